"""`stoker prepare`: raw files into what trains."""

from __future__ import annotations

import shlex
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stoker.cli.prepare_images import images

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from stoker.prepare import ImageReport, Progress, Report

SPEED_SECONDS = 0.5
"""How long a stage has to run before a speed means anything."""

prepare_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Turn text into tokens that load instantly, or pictures into a store; train a tokenizer. "
    "Try [bold]stoker prepare tokens --help[/].",
)


class DocumentsOption(StrEnum):
    """What one document of plain text is."""

    file = "file"
    line = "line"
    paragraph = "paragraph"


class OnErrorOption(StrEnum):
    """What becomes of input that cannot be used."""

    stop = "raise"
    skip = "skip"


class BackendOption(StrEnum):
    """Who makes the ids."""

    auto = "auto"
    reference = "reference"
    gigatoken = "gigatoken"


_Inputs = Annotated[
    list[str],
    typer.Argument(
        metavar="INPUT...",
        help="Files, patterns or folders: Parquet, JSON, CSV, text (.gz, .zst, .xz, .bz2 too), Hugging Face datasets.",
    ),
]
_TextColumn = Annotated[str, typer.Option(help="The column or JSON field with the text; dots lead into nested ones.")]
_DocumentsKind = Annotated[DocumentsOption, typer.Option(help="What one document of plain text is.")]
_OnError = Annotated[
    OnErrorOption, typer.Option(help="Stop at input that cannot be used, or leave it out and list it.")
]


@prepare_app.command()
def tokens(
    inputs: _Inputs,
    tokenizer: Annotated[
        str, typer.Option(help="A tokenizer.json or its folder, a .tiktoken file, a SentencePiece .model, or 'bytes'.")
    ],
    out: Annotated[Path, typer.Option(help="The folder of the store; it is made.")],
    text_column: _TextColumn = "text",
    documents: _DocumentsKind = DocumentsOption.file,
    on_error: _OnError = OnErrorOption.stop,
    end_of_document: Annotated[
        str | None, typer.Option(help="The token that ends each document; by default the tokenizer's own.")
    ] = None,
    no_end_of_document: Annotated[
        bool, typer.Option("--no-end-of-document", help="Let no token end documents; their borders are kept anyway.")
    ] = False,
    shuffle: Annotated[
        int | None, typer.Option(metavar="SEED", help="Write all documents in a random order, by this seed.")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Processes; by default one for each core.")] = None,
    piece_mib: Annotated[
        int | None, typer.Option(help="MiB of input in one piece; by default as in a store that is there, or 4 to 64.")
    ] = None,
    backend: Annotated[
        BackendOption, typer.Option(help="Who makes the ids: gigatoken where it makes the same, or the reference.")
    ] = BackendOption.auto,
    pattern: Annotated[
        str | None,
        typer.Option(help="How a .tiktoken file of an unknown name splits text: a pattern, or 'o200k_base'."),
    ] = None,
) -> None:
    """Turn text into a store of tokens, on all cores, in pieces.

    Stop it whenever you like: the same command goes on where it was. Run again, it makes what changed in the
    inputs, or nothing. The result is the same to the last byte, whatever the number of workers.

    Example: [bold cyan]stoker prepare tokens corpus/*.jsonl --tokenizer tokenizer.json --out tokens[/]
    """
    from rich.console import Console

    from stoker import prepare
    from stoker.errors import ArgumentError

    if no_end_of_document and end_of_document is not None:
        raise ArgumentError(
            "--end-of-document and --no-end-of-document do not go together", hint="leave one of them out"
        )
    end: bool | str | int = not no_end_of_document
    if end_of_document is not None:
        end = int(end_of_document) if end_of_document.isdecimal() else end_of_document
    errors = Console(stderr=True, highlight=False)
    try:
        with _Display(errors) as display:
            report = prepare.tokens(
                inputs,
                tokenizer=tokenizer,
                out=out,
                text_column=text_column,
                documents=documents.value,
                on_error=on_error.value,
                end_of_document=end,
                shuffle=shuffle,
                workers=workers,
                piece_bytes=None if piece_mib is None else piece_mib << 20,
                backend=backend.value,
                pattern=pattern,
                watch=display.show,
            )
    except KeyboardInterrupt:
        errors.print("stopped; what is finished is kept: [bold]run the same command again[/] to go on", soft_wrap=True)
        raise
    console = Console(highlight=False)
    if report.is_up_to_date:
        console.print(
            f"[green]{_escaped(report.path)} is up to date[/]: inputs, tokenizer and settings are as they were"
        )
    console.print(_table(report))
    _tell_more(console, report, pattern)


@prepare_app.command()
def tokenizer(
    inputs: _Inputs,
    vocab_size: Annotated[int, typer.Option(help="How many tokens it has, special ones included.")],
    out: Annotated[Path, typer.Option(help="Where the tokenizer.json goes.")],
    text_column: _TextColumn = "text",
    documents: _DocumentsKind = DocumentsOption.file,
    on_error: _OnError = OnErrorOption.stop,
    special: Annotated[
        list[str] | None, typer.Option(help="A special token; may be given several times. By default <|endoftext|>.")
    ] = None,
) -> None:
    """Train a byte-level BPE tokenizer on the inputs: offline, and the same again for the same text.

    Example: [bold cyan]stoker prepare tokenizer corpus/*.jsonl --vocab-size 32768 --out tokenizer.json[/]
    """
    from rich.console import Console

    from stoker import prepare
    from stoker.foundation.text import format_bytes

    with _Display(Console(stderr=True, highlight=False)) as display:
        identity = prepare.tokenizer(
            inputs,
            vocab_size=vocab_size,
            out=out,
            text_column=text_column,
            documents=documents.value,
            on_error=on_error.value,
            specials=special or ("<|endoftext|>",),
            watch=display.show,
        )
    path = out / "tokenizer.json" if out.is_dir() else out
    console = Console(highlight=False)
    console.print(
        f"[bold]{identity.vocab_size:,}[/] tokens, ids as {identity.dtype}, {format_bytes(path.stat().st_size)}"
        f" at {_escaped(path)}"
    )
    if identity.vocab_size < vocab_size:
        console.print(f"the text had no more to merge: {vocab_size:,} were asked for")
    _tell_next(
        console,
        f"prepare tokens {shlex.join(inputs[:3])}{' ...' if len(inputs) > 3 else ''}",
        *("--tokenizer", str(path), "--out", "tokens"),
        *(("--text-column", text_column) if text_column != "text" else ()),
        *(("--documents", documents.value) if documents != DocumentsOption.file else ()),
        *(("--on-error", on_error.value) if on_error != OnErrorOption.stop else ()),
    )


prepare_app.command()(images)


def _escaped(text: object) -> str:
    from rich.markup import escape

    return escape(str(text))


def _table(report: Report) -> Table:
    from rich import box
    from rich.table import Table

    from stoker.foundation.text import format_bytes, format_duration

    table = Table(box=box.SIMPLE, show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    per_document = report.tokens / max(1, report.documents)
    rows = [
        ("documents", f"{report.documents:,}"),
        ("tokens", f"{report.tokens:,} ({per_document:,.1f} per document)"),
        ("text", format_bytes(report.text_bytes)),
        ("on disk", f"{format_bytes(report.disk_bytes)}, as {report.dtype}"),
        ("skipped", _skipped(report)),
        ("where", _escaped(report.path)),
    ]
    if not report.is_up_to_date:
        pieces = f"{report.num_pieces:,}, of which {report.num_reused:,} were there from before"
        if report.num_removed:
            pieces += f"; removed: {report.num_removed:,}"
        speed = report.made_bytes / 1e6 / max(1e-9, report.seconds)
        made = f", {speed:,.1f} MB/s, by {report.backend}" if report.made_bytes else ""
        rows[4:4] = [("pieces", pieces), ("time", f"{format_duration(report.seconds)}{made}")]
    for row in rows:
        table.add_row(*row)
    return table


def _skipped(report: Report | ImageReport) -> str:
    if not report.skipped:
        return "none"
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in report.reasons.items())
    return _escaped(f"{report.skipped:,} ({reasons}); see {report.path / 'skipped.jsonl'}")


def _tell_more(console: Console, report: Report, pattern: str | None) -> None:
    if report.fallback_reason is not None and not report.is_up_to_date:
        console.print(f"gigatoken was not used: {report.fallback_reason}", markup=False, soft_wrap=True)
    _tell_next(console, "inspect", str(report.path), *(("--pattern", pattern) if pattern is not None else ()))


def _tell_next(console: Console, command: str, *arguments: str) -> None:
    """Print a command that can be pasted."""
    console.print(f"next: [bold cyan]{_escaped(f'stoker {command} {shlex.join(arguments)}')}[/]", soft_wrap=True)


class _Display:
    """How far it is: a bar on a terminal, a line now and then elsewhere."""

    LINE_SECONDS = 10.0

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar: Any = None
        self._task: Any = None
        self._stage = ""
        self._begin = self._told = 0.0

    def __enter__(self) -> _Display:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def show(self, progress: Progress) -> None:
        """Show it."""
        from time import monotonic

        now = monotonic()
        if progress.stage != self._stage:
            self._end()
            self._stage, self._begin, self._told = progress.stage, now, now
            if self._console.is_terminal:
                self._bar = _bar(self._console)
                self._task = self._bar.add_task(progress.stage, total=max(1, progress.num_bytes), told="")
                self._bar.start()
        told = _told(progress, now - self._begin)
        if self._bar is not None:
            self._bar.update(self._task, completed=progress.num_read, told=told, refresh=True)
        elif now - self._told >= self.LINE_SECONDS:
            self._told = now
            share = progress.num_read / max(1, progress.num_bytes)
            self._console.print(f"{progress.stage} {share:.1%} {told}", soft_wrap=True)

    def _end(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def _bar(console: Console) -> Any:
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.table import Column

    # no thread of its own: workers are forked from this process
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=10),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[told]}", table_column=Column(no_wrap=True)),
        console=console,
        auto_refresh=False,
        transient=True,
    )


def _told(progress: Progress, seconds: float) -> str:
    parts = []
    if seconds >= SPEED_SECONDS:
        parts.append(f"{progress.num_read / 1e6 / seconds:,.1f} MB/s")
    if seconds >= SPEED_SECONDS and progress.documents:
        noun = "pictures" if progress.stage == "pictures" else "docs"
        # a rate below one would be shown as none at all, while one long document is read
        is_slow = progress.documents < seconds
        parts.append(f"{progress.documents:,} {noun}" if is_slow else f"{progress.documents / seconds:,.0f} {noun}/s")
    if progress.tokens:
        parts.append(f"{progress.tokens / 1e6:,.1f} M tokens")
    if progress.num_pieces:
        parts.append(f"{progress.pieces_done}/{progress.num_pieces} pieces")
    return " ".join(parts)
