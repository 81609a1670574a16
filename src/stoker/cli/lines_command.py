"""`stoker lines`: count and index files of lines."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from stoker.source.line_format import FormatName


class FormatOption(StrEnum):
    """Formats of a line."""

    text = "text"
    json = "json"
    csv = "csv"
    tsv = "tsv"
    bytes = "bytes"


class Counted(NamedTuple):
    """Line count and index of one file."""

    path: Path
    format: str
    size_bytes: int
    num_samples: int
    seconds: float
    was_indexed: bool
    """Whether the index existed before."""


def lines(
    paths: Annotated[list[Path], typer.Argument(help="Text, CSV, TSV or JSONL files, plain, .gz, .zst, .xz or .bz2.")],
    parse: Annotated[FormatOption | None, typer.Option(help="Format of the lines (default: by suffix).")] = None,
    samples: Annotated[int, typer.Option(help="Number of samples to show, spread over the files.")] = 3,
    index_dir: Annotated[Path | None, typer.Option(help="Folder for indexes (default: the cache).")] = None,
) -> None:
    """Count the lines of files, index them for loading, and show a few as samples.

    The index is cached, so that the next run starts at once; a compressed file is unpacked next to it.

    Example: [bold cyan]stoker lines corpus/*.jsonl --samples 5[/]
    """
    from rich.console import Console

    from stoker.source import Lines

    name: FormatName | None = None if parse is None else parse.value
    counts = [count_lines(path, name, index_dir) for path in paths]
    console = Console(highlight=False)
    console.print(_table(counts))
    source = Lines(paths, parse=name, index_dir=index_dir)
    num_shown = min(max(0, samples), len(source))
    for number in range(num_shown):
        position = number * (len(source) - 1) // max(1, num_shown - 1)
        console.print(f"[bold]{position:,}[/] [dim]{source.describe(position)}[/]", soft_wrap=True)
        console.print(_format_sample(source[position]), markup=False)


def count_lines(path: Path, parse: FormatName | None, index_dir: Path | None) -> Counted:
    """Return the line count of one file, building its index if necessary."""
    from time import perf_counter

    from stoker.source import Lines
    from stoker.source.line_file import line_files
    from stoker.source.line_index import IndexFolder

    [file] = line_files(path, parse)
    was_indexed = IndexFolder(index_dir).head(file) is not None
    begin = perf_counter()
    num_samples = len(Lines(path, parse=parse, index_dir=index_dir))
    seconds = perf_counter() - begin
    packed = f" ({file.compression})" if file.compression else ""
    return Counted(path, f"{file.format.name}{packed}", file.size_bytes, num_samples, seconds, was_indexed)


def _table(counts: list[Counted]) -> Table:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    from stoker.foundation.text import format_bytes, format_duration

    table = Table(box=box.SIMPLE, show_footer=len(counts) > 1)
    table.add_column("file", f"{len(counts)} files", overflow="fold")
    table.add_column("format")
    table.add_column("size", format_bytes(sum(count.size_bytes for count in counts)), justify="right")
    table.add_column("samples", f"{sum(count.num_samples for count in counts):,}", justify="right")
    table.add_column("index", format_duration(sum(count.seconds for count in counts)), justify="right")
    for count in counts:
        table.add_row(
            escape(str(count.path)),
            count.format,
            format_bytes(count.size_bytes),
            f"{count.num_samples:,}",
            "kept" if count.was_indexed else format_duration(count.seconds),
        )
    return table


def _format_sample(sample: Any, *, max_chars: int = 200) -> str:
    text = sample if isinstance(sample, str) else repr(sample)
    return f"    {text[:max_chars]}{' ...' if len(text) > max_chars else ''}"
