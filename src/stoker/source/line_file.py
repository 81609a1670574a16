"""A file of lines: its identity, compression and format."""

from __future__ import annotations

from dataclasses import dataclass

from stoker.source.compression import (
    SUFFIXES,
    Compression,
    check_magic,
    check_readable,
    compression_of,
    require_library,
)
from stoker.source.known_file import KnownFile, Paths, files_at
from stoker.source.line_format import LineFormat, Parse, format_of

LINE_SUFFIXES = tuple(
    suffix + packed for suffix in (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".txt") for packed in ("", *SUFFIXES)
)
"""Suffixes of the files that are read from folders."""


@dataclass(frozen=True, slots=True)
class LineFile(KnownFile):
    """One file of lines."""

    compression: Compression | None
    format: LineFormat

    @property
    def identity(self) -> tuple[str, ...]:
        """Name, size and format."""
        return self.path.name, str(self.size_bytes), self.format.name


def line_files(paths: Paths, parse: Parse | None) -> tuple[LineFile, ...]:
    """Return the files at `paths`, expanded as by every source (`known_file.py`).

    Raises `FileNotFoundError` for a file that does not exist, `ArgumentError` for one that cannot be a file of lines,
    and `DamagedFile` for one whose first bytes are not those of its compression.
    """
    return tuple(_line_file(file, parse) for file in files_at(paths, suffixes=LINE_SUFFIXES))


def _line_file(file: KnownFile, parse: Parse | None) -> LineFile:
    path = file.path
    check_readable(path)
    compression = compression_of(path)
    if compression is not None:
        require_library(compression)
        check_magic(path, compression)
    line_format = format_of(path.with_suffix("") if compression else path, parse)
    return LineFile(path, file.size_bytes, file.mtime_ns, compression, line_format)
