"""`stoker.open`, and the formats that it reads.

To add a format, write its reader (a source, in a module of its own) and list it in `FORMATS`: `stoker.open`,
`stoker inspect`, the errors and a test of the documentation's table read that list.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.errors import ArgumentError
from stoker.source import arrow_file, megatron, npy_header, parquet
from stoker.source.array_file import ArrayFile, is_safetensors
from stoker.source.arrow_folder import ArrowFolder, is_saved_dataset
from stoker.source.images.listing import EXTENSIONS, OTHERS
from stoker.source.known_file import Paths, files_matching, files_within, has_pattern
from stoker.source.line_file import LINE_SUFFIXES
from stoker.source.lines import Lines
from stoker.source.megatron import Megatron
from stoker.source.parquet import Parquet
from stoker.source.raw_tokens import RawTokens
from stoker.store import open_store
from stoker.store.build import UNFINISHED
from stoker.store.manifest import FILE


def _nothing(*_: Any) -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFormat:
    """A format that `stoker.open` reads."""

    reader: Callable[..., Any]
    """Opens a file, a list of files, or what `is_at` accepts. Its keyword-only arguments are the options."""
    summary: str
    """One line for errors and documentation."""
    suffixes: tuple[str, ...] = ()
    """Suffixes of its files, if their content does not decide; also select the files of a folder."""
    recognizes: Callable[[Path, bytes], bool] = _nothing
    """Whether a file is of this format, by its first 16 bytes or the files next to it. Decides before any suffix."""
    is_at: Callable[[Path], bool] = _nothing
    """Whether a folder, or a path that does not exist (such as a common prefix), is of this format."""
    several: Callable[..., Any] | None = None
    """Opens a list of files, if that is not `reader`."""
    is_single: bool = False
    """Whether several files cannot be one source."""


FORMATS = [
    FileFormat(
        reader=open_store,
        summary="a store (a folder with a manifest.json, from stoker.store.Writer or `stoker prepare`)",
        # also an unfinished one: opening it raises an error that says so
        is_at=lambda path: (path / FILE).is_file() or (path / UNFINISHED).is_dir(),
    ),
    FileFormat(
        reader=ArrayFile,
        summary=".npy, a file of stoker.store.save_array, or any file of raw values with dtype= and shape=",
        suffixes=(".npy",),
        recognizes=lambda path, head: head.startswith(npy_header.MAGIC) or is_safetensors(path),
        several=RawTokens,  # tokens one after the other, if anything
    ),
    FileFormat(
        reader=Parquet,
        summary=".parquet files, or a folder of them",
        suffixes=(".parquet", ".pq"),
        recognizes=lambda _, head: head.startswith(parquet.MAGIC),
    ),
    FileFormat(
        reader=ArrowFolder,
        summary="a folder from datasets.save_to_disk (Hugging Face), or .arrow files",
        suffixes=(".arrow",),
        recognizes=lambda _, head: head.startswith(arrow_file.FILE_MAGIC),
        is_at=is_saved_dataset,
    ),
    FileFormat(
        reader=Megatron,
        summary=".bin next to .idx, or their common prefix (Megatron-LM)",
        suffixes=(".idx",),
        recognizes=megatron.is_megatron,
        is_at=lambda path: not path.exists() and all(part.is_file() for part in megatron.pair_of(path)),
        is_single=True,
    ),
    FileFormat(
        reader=RawTokens,
        summary=".bin of token ids (nanoGPT, llm.c), with dtype= unless they are uint16",
        suffixes=(".bin",),
    ),
    FileFormat(
        reader=Lines, summary=".jsonl, .json, .csv, .tsv, .txt, also .gz, .zst, .xz and .bz2", suffixes=LINE_SUFFIXES
    ),
]
"""All formats, in the order in which they are tried."""

_IMAGES = tuple(f".{extension}" for extension in (*EXTENSIONS, *OTHERS, "tar"))

_DESCRIBING = {"dataset_info.json", "dataset_infos.json", "metadata.json", "meta.json"}
"""Files that describe other data in their folder."""


def open(path: Paths, *, expect: Mapping[str, Any] | None = None, **options: Any) -> Any:  # noqa: A001
    """Return the data at `path` as an addressable source: `len`, `source[position]`, and many positions at once.

    `path` is a store, or data in another format, read without conversion: see `stoker.source` for the classes and their
    options, which are passed on. The format follows from the first bytes of a file if they are specific, otherwise from
    its name. A list of files, a pattern, or a folder of files of one format is one source: lists keep their order,
    files of folders and patterns are sorted by path.

    `expect` contains settings that a store must have been made with; it is only for stores.
    """
    reader, where = _reader_of(path, options)
    if reader is open_store:
        options = {"expect": expect, **options}
    elif expect is not None:
        raise ArgumentError(
            f"expect= is only for stores, and {where} is opened as {reader.__name__}",
            hint="omit expect, or convert the data to a store with `stoker prepare`",
        )
    known = [name for name, one in inspect.signature(reader).parameters.items() if one.kind is one.KEYWORD_ONLY]
    for name in options:
        if name not in known:
            raise ArgumentError(
                f"{where} is opened with {reader.__name__}, which has no option {name!r}",
                hint=f"its options are {', '.join(known)}" if known else "it has no options",
            )
    return reader(where, **options)


def _reader_of(path: Any, options: Mapping[str, Any]) -> tuple[Callable[..., Any], Any]:
    """Return the reader of `path`, and what to pass to it: a path, or a list of files."""
    if not isinstance(path, (str, os.PathLike)):
        return _reader_of_several(list(path), path)
    where = Path(os.path.abspath(path))
    for known in FORMATS:
        if known.is_at(where):
            return known.reader, where
    if where.is_dir():
        found = files_within(where, tuple(suffix for known in FORMATS for suffix in known.suffixes))
        found = [file for file in found if file.name not in _DESCRIBING] or found
        if not found:
            if any(name.lower().endswith(_IMAGES) for _, _, names in os.walk(where) for name in names):
                raise _not_for_images(where, str(where))
            raise ArgumentError(f"{where} contains nothing that can be opened", hint=_what_can_be_opened())
        return _reader_of_several(found, where)
    if where.exists():
        if options.get("dtype") is not None and options.get("shape") is not None:
            return ArrayFile, where
        return _format_of(where).reader, where
    if has_pattern(path):
        try:
            return _reader_of_several(files_matching(where), path)
        except FileNotFoundError:
            pass
    raise FileNotFoundError(f"{where} does not exist\nhint: {_what_can_be_opened()}")


def _reader_of_several(files: list[Any], given: Any) -> tuple[Callable[..., Any], Any]:
    if not files:
        raise ArgumentError("the list of paths is empty", hint="pass at least one; did a glob match nothing?")
    paths = [Path(os.path.abspath(file)) for file in files]
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(f"{path} does not exist")
    formats = [_format_of(path) for path in paths]
    first = formats[0]
    is_pair = first.reader is Megatron and len({megatron.pair_of(path) for path in paths}) == 1
    if len(paths) == 1 or (is_pair and all(known is first for known in formats)):
        return first.reader, paths[0]
    if first.is_single or any(known is not first for known in formats):
        names = sorted({known.reader.__name__ for known in formats})
        raise ArgumentError(
            f"{given} is not one source: it has {len(paths)} files for {', '.join(names)}",
            hint="open them separately: pass a file, or a pattern for files of one format",
        )
    return first.several or first.reader, paths


def _format_of(file: Path) -> FileFormat:
    if not file.is_file():
        raise ArgumentError(f"{file} is neither a file nor a folder", hint="copy the data to a file first")
    with file.open("rb") as opened:
        head = opened.read(16)
    name = file.name.lower()
    for known in FORMATS:
        if known.recognizes(file, head):
            return known
    for known in FORMATS:
        if name.endswith(known.suffixes):
            return known
    if name.endswith(_IMAGES):
        raise _not_for_images(file, [str(file)])
    raise ArgumentError(f"{file} is not in a known format", hint=_what_can_be_opened())


def _not_for_images(path: Path, argument: Any) -> ArgumentError:
    return ArgumentError(
        f"{path} contains images, which stoker.open does not read", hint=f"stoker.images({argument!r})"
    )


def _what_can_be_opened() -> str:
    return "\n  ".join(
        (
            "what can be opened:",
            *(known.summary for known in FORMATS),
            'a pattern such as "data/*.parquet", or a list, of files of one of these formats',
            "images (folders of JPEG, PNG and others, tar archives) are opened by stoker.images",
        )
    )
