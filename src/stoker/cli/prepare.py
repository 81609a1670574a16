"""`stoker prepare`: text as tokens, images as a store, a tokenizer from text."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stoker.cli.image_options import ImageColumnOption, LabelOption, LabelsOption, SplitOption, image_options

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from stoker.prepare import ImageReport, PreparationProgress, TokensReport
    from stoker.prepare.report import StoreReport

SPEED_SECONDS = 0.5
"""How long a stage runs before its speed is shown."""

MAX_BAD = 5
"""Skipped images listed."""

prepare_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Turn text into a store of tokens, or images into a store of images; train a tokenizer. "
    "See [bold]stoker prepare tokens --help[/].",
)


class DocumentsOption(StrEnum):
    """What counts as one document in plain text."""

    file = "file"
    line = "line"
    paragraph = "paragraph"


class OnErrorOption(StrEnum):
    """What to do with unusable input."""

    stop = "raise"
    skip = "skip"


class BackendOption(StrEnum):
    """Which library encodes."""

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
_TextColumn = Annotated[str, typer.Option(help="Column or JSON field with the text; dots separate nested names.")]
_DocumentsKind = Annotated[DocumentsOption, typer.Option(help="What counts as one document in plain text.")]
_OnError = Annotated[OnErrorOption, typer.Option(help="Stop at unusable input, or skip and list it.")]
_Out = Annotated[Path, typer.Option(help="Folder of the store (created if missing).")]
_Workers = Annotated[int | None, typer.Option(help="Processes (default: one per core).")]
_PieceMib = Annotated[
    int | None,
    typer.Option(help="MiB of input in one piece (default: as in an existing store, otherwise 4 to 64)."),
]


@prepare_app.command()
def tokens(
    inputs: _Inputs,
    tokenizer: Annotated[
        str, typer.Option(help="A tokenizer.json or its folder, a .tiktoken file, a SentencePiece .model, or 'bytes'.")
    ],
    out: _Out,
    text_column: _TextColumn = "text",
    documents: _DocumentsKind = DocumentsOption.file,
    on_error: _OnError = OnErrorOption.stop,
    end_of_document: Annotated[
        str | None, typer.Option(help="Token that ends each document (default: the tokenizer's own).")
    ] = None,
    no_end_of_document: Annotated[
        bool,
        typer.Option("--no-end-of-document", help="Add no token at the end of documents; their offsets are stored."),
    ] = False,
    shuffle: Annotated[
        int | None, typer.Option(metavar="SEED", help="Write all documents in random order, with this seed.")
    ] = None,
    workers: _Workers = None,
    piece_mib: _PieceMib = None,
    backend: Annotated[
        BackendOption, typer.Option(help="Library that encodes: gigatoken if its ids are identical, or the reference.")
    ] = BackendOption.auto,
    pattern: Annotated[
        str | None,
        typer.Option(help="Split pattern of an unknown .tiktoken file: a regular expression, or 'o200k_base'."),
    ] = None,
) -> None:
    """Turn text into a store of tokens, on all cores.

    After an interruption, the same command continues. Running it again rebuilds only what changed in the inputs.
    The result is the same, byte for byte, with any number of workers.

    Example: [bold cyan]stoker prepare tokens corpus/*.jsonl --tokenizer tokenizer.json --out tokens[/]
    """
    from rich.console import Console

    from stoker import prepare
    from stoker.errors import ArgumentError

    if no_end_of_document and end_of_document is not None:
        raise ArgumentError("--end-of-document and --no-end-of-document exclude each other", hint="omit one of them")
    end: bool | str | int = not no_end_of_document
    if end_of_document is not None:
        end = int(end_of_document) if end_of_document.isdecimal() else end_of_document
    with _display() as display:
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
    console = Console(highlight=False)
    if report.is_up_to_date:
        console.print(f"[green]{_escape(report.path)} is up to date[/]: inputs, tokenizer and settings are unchanged")
    console.print(_token_table(report))
    if report.fallback_reason is not None and not report.is_up_to_date:
        console.print(f"gigatoken was not used: {report.fallback_reason}", markup=False, soft_wrap=True)
    _print_next(console, "inspect", str(report.path), *(("--pattern", pattern) if pattern is not None else ()))


@prepare_app.command()
def tokenizer(
    inputs: _Inputs,
    vocab_size: Annotated[int, typer.Option(help="Number of tokens, including special ones.")],
    out: Annotated[Path, typer.Option(help="Path of the tokenizer.json.")],
    text_column: _TextColumn = "text",
    documents: _DocumentsKind = DocumentsOption.file,
    on_error: _OnError = OnErrorOption.stop,
    special: Annotated[
        list[str] | None, typer.Option(help="A special token; can be repeated (default: <|endoftext|>).")
    ] = None,
) -> None:
    """Train a byte-level BPE tokenizer on the inputs, offline. The same text gives the same tokenizer.

    Example: [bold cyan]stoker prepare tokenizer corpus/*.jsonl --vocab-size 32768 --out tokenizer.json[/]
    """
    from rich.console import Console

    from stoker import prepare
    from stoker.foundation.text import format_bytes

    with _ProgressDisplay(Console(stderr=True, highlight=False)) as display:
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
        f" at {_escape(path)}"
    )
    if identity.vocab_size < vocab_size:
        console.print(f"the text has no more pairs to merge: {vocab_size:,} tokens were requested")
    _print_next(
        console,
        f"prepare tokens {shlex.join(inputs[:3])}{' ...' if len(inputs) > 3 else ''}",
        *("--tokenizer", str(path), "--out", "tokens"),
        *(("--text-column", text_column) if text_column != "text" else ()),
        *(("--documents", documents.value) if documents != DocumentsOption.file else ()),
        *(("--on-error", on_error.value) if on_error != OnErrorOption.stop else ()),
    )


@prepare_app.command()
def images(
    source: Annotated[
        str,
        typer.Argument(
            metavar="FOLDER", help="Folder of images; or tar shards, Parquet, or a Hugging Face dataset of images."
        ),
    ],
    out: _Out,
    max_side: Annotated[
        int | None, typer.Option(metavar="PIXELS", help="Downscale images whose longer side is larger than this.")
    ] = None,
    short_side: Annotated[
        int | None,
        typer.Option(metavar="PIXELS", help="Downscale images whose shorter side is larger than this, e.g. 256."),
    ] = None,
    quality: Annotated[
        int | None, typer.Option(help="Quality of downscaled JPEG files, 1 to 100 (default: 90).")
    ] = None,
    labels: LabelsOption = None,
    columns: Annotated[
        str | None, typer.Option(metavar="FILE,LABEL", help="Columns of the label file, if their names are unusual.")
    ] = None,
    column: ImageColumnOption = None,
    label: LabelOption = None,
    split: SplitOption = None,
    apply_exif_orientation: Annotated[
        bool | None,
        typer.Option(help="Rotate images upright as their EXIF data says (default), or never."),
    ] = None,
    allow_empty: Annotated[
        bool, typer.Option("--allow-empty", help="Accept a subfolder without images as a class.")
    ] = False,
    on_error: _OnError = OnErrorOption.stop,
    workers: _Workers = None,
    piece_mib: _PieceMib = None,
) -> None:
    """Turn images into a store, on all cores: copied, or downscaled.

    After an interruption, the same command continues. Running it again rebuilds only what changed.

    Example: [bold cyan]stoker prepare images photos --out data/photos --short-side 256[/]
    """
    from rich.console import Console

    from stoker import prepare

    options = image_options(labels=labels, column=column, label=label, split=split, allow_empty=allow_empty or None)
    if columns is not None:
        options["columns"] = [name.strip() for name in columns.split(",")]
    with _display() as display:
        report = prepare.images(
            source,
            out=out,
            max_side=max_side,
            short_side=short_side,
            quality=quality,
            apply_exif_orientation=apply_exif_orientation,
            on_error=on_error.value,
            workers=workers,
            piece_bytes=None if piece_mib is None else piece_mib << 20,
            watch=display.show,
            **options,
        )
    console = Console(highlight=False)
    if report.is_up_to_date:
        console.print(f"[green]{_escape(report.path)} is up to date[/]: images and settings are unchanged")
    console.print(_image_table(report))
    for line in report.bad[:MAX_BAD]:
        console.print(f"  skipped {_escape(line)}", soft_wrap=True)
    console.print(f"next: [bold cyan]stoker.images({_escape(repr(str(report.path)))})[/]", soft_wrap=True)


def _escape(text: object) -> str:
    from rich.markup import escape

    return escape(str(text))


def _token_table(report: TokensReport) -> Table:
    from stoker.foundation.text import format_bytes

    per_document = report.tokens / max(1, report.documents)
    speed = report.made_bytes / 1e6 / max(1e-9, report.seconds)
    return _table(
        report,
        ("documents", f"{report.documents:,}"),
        ("tokens", f"{report.tokens:,} ({per_document:,.1f} per document)"),
        ("text", format_bytes(report.text_bytes)),
        ("on disk", f"{format_bytes(report.disk_bytes)}, as {report.dtype}"),
        made=f", {speed:,.1f} MB/s, by {report.backend}" if report.made_bytes else "",
    )


def _image_table(report: ImageReport) -> Table:
    from stoker.foundation.text import format_bytes

    kept = report.images - report.reencoded
    made = f"{report.reencoded:,} re-encoded, {kept:,} copied" if report.reencoded else "all copied"
    rows = [("images", f"{report.images:,} ({made})")]
    if report.classes is not None:
        rows.append(("classes", f"{report.classes:,}"))
    share = report.image_bytes / max(1, report.source_bytes)
    size = f"{format_bytes(report.source_bytes)} before, {format_bytes(report.image_bytes)} now ({share:.0%})"
    rows.append(("size", size if report.reencoded else format_bytes(report.source_bytes)))
    if (before := report.before) is not None and (after := report.after) is not None:
        each = f"{format_bytes(round(before.bytes_each))} before, {format_bytes(round(after.bytes_each))} now"
        times = f"{before.decode_ms:.2f} ms before, {after.decode_ms:.2f} ms now"
        rows += [("each", each), ("decoding", f"{times}, full size on one core ({after.num_tried} sampled)")]
    return _table(report, *rows, ("on disk", format_bytes(report.disk_bytes)))


def _table(report: StoreReport, *rows: tuple[str, str], made: str = "") -> Table:
    from rich import box
    from rich.table import Table

    from stoker.foundation.text import format_duration

    table = Table(box=box.SIMPLE, show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*row)
    if not report.is_up_to_date:
        pieces = f"{report.num_pieces:,}, of which {report.num_reused:,} existed"
        table.add_row("pieces", f"{pieces}; removed: {report.num_removed:,}" if report.num_removed else pieces)
        table.add_row("time", f"{format_duration(report.seconds)}{made}")
    table.add_row("skipped", _skipped(report))
    table.add_row("path", _escape(report.path))
    return table


def _skipped(report: StoreReport) -> str:
    if not report.skipped:
        return "none"
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in report.reasons.items())
    return _escape(f"{report.skipped:,} ({reasons}); see {report.path / 'skipped.jsonl'}")


def _print_next(console: Console, command: str, *arguments: str) -> None:
    """Print the next command, to copy and paste."""
    console.print(f"next: [bold cyan]{_escape(f'stoker {command} {shlex.join(arguments)}')}[/]", soft_wrap=True)


@contextmanager
def _display() -> Iterator[_ProgressDisplay]:
    """Show progress on stderr, and how to continue after Ctrl-C."""
    from rich.console import Console

    errors = Console(stderr=True, highlight=False)
    try:
        with _ProgressDisplay(errors) as display:
            yield display
    except KeyboardInterrupt:
        errors.print(
            "stopped; finished pieces are kept: [bold]run the same command again[/] to continue", soft_wrap=True
        )
        raise


class _ProgressDisplay:
    """Shows progress: a bar on a terminal, a line every ten seconds elsewhere."""

    LINE_SECONDS = 10.0

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar: Any = None
        self._task: Any = None
        self._stage = ""
        self._begin = self._last_line = 0.0

    def __enter__(self) -> _ProgressDisplay:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def show(self, progress: PreparationProgress) -> None:
        """Show the progress."""
        from time import monotonic

        now = monotonic()
        if progress.stage != self._stage:
            self._end()
            self._stage, self._begin, self._last_line = progress.stage, now, now
            if self._console.is_terminal:
                self._bar = _bar(self._console)
                self._task = self._bar.add_task(progress.stage, total=max(1, progress.num_bytes), rates="")
                self._bar.start()
        rates = _format_rates(progress, now - self._begin)
        if self._bar is not None:
            self._bar.update(self._task, completed=progress.num_read, rates=rates, refresh=True)
        elif now - self._last_line >= self.LINE_SECONDS:
            self._last_line = now
            share = progress.num_read / max(1, progress.num_bytes)
            self._console.print(f"{progress.stage} {share:.1%} {rates}", soft_wrap=True)

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
        TextColumn("{task.fields[rates]}", table_column=Column(no_wrap=True)),
        console=console,
        auto_refresh=False,
        transient=True,
    )


def _format_rates(progress: PreparationProgress, seconds: float) -> str:
    parts = []
    if seconds >= SPEED_SECONDS:
        parts.append(f"{progress.num_read / 1e6 / seconds:,.1f} MB/s")
    if seconds >= SPEED_SECONDS and progress.documents:
        noun = "images" if progress.stage == "images" else "docs"
        # a rate below one would be shown as 0 while one long document is read
        is_slow = progress.documents < seconds
        parts.append(f"{progress.documents:,} {noun}" if is_slow else f"{progress.documents / seconds:,.0f} {noun}/s")
    if progress.tokens:
        parts.append(f"{progress.tokens / 1e6:,.1f} M tokens")
    if progress.num_pieces:
        parts.append(f"{progress.pieces_done}/{progress.num_pieces} pieces")
    return " ".join(parts)
