"""One way to open whatever is there: a store, or data in one of the formats that others write."""

from __future__ import annotations

import glob
import inspect
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from stoker.errors import ArgumentError
from stoker.source import arrow_file, megatron, npy_header, parquet
from stoker.source.array_file import ArrayFile, is_array_file
from stoker.source.arrow_folder import ArrowFolder, is_saved_dataset
from stoker.source.images.listing import EXTENSIONS, OTHERS
from stoker.source.known_file import Paths, files_within, has_pattern
from stoker.source.lines import Lines
from stoker.source.megatron import Megatron
from stoker.source.parquet import Parquet
from stoker.source.raw_tokens import RawTokens

_LINE_SUFFIXES = tuple(
    suffix + packed
    for suffix in (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".txt")
    for packed in ("", ".gz", ".zst", ".zstd", ".xz", ".bz2")
)
# What a file is by its name, where its first bytes do not tell.
_BY_SUFFIX: tuple[tuple[tuple[str, ...], Callable[..., Any]], ...] = (
    ((".npy",), ArrayFile),
    ((".parquet", ".pq"), Parquet),
    ((".arrow",), ArrowFolder),
    ((".idx",), Megatron),
    ((".bin",), RawTokens),
    (_LINE_SUFFIXES, Lines),
)

_CAN_BE_OPENED = """what can be opened:
  a store (a folder with a manifest.json, from stoker.store.Writer or `stoker prepare`)
  .npy, a file of stoker.store.save_array, or any file of raw values with dtype= and shape=
  .bin of token ids (nanoGPT, llm.c), with dtype= unless they are uint16
  .bin beside .idx, or their common prefix (Megatron-LM)
  .parquet files, or a folder of them
  a folder from datasets.save_to_disk (Hugging Face), or .arrow files
  .jsonl, .json, .csv, .tsv, .txt, also .gz, .zst, .xz and .bz2
  a pattern such as "data/*.parquet", or a list, of files of one of these kinds
pictures (folders of JPEG, PNG and others, tar archives) are opened by stoker.images"""
_PICTURES = tuple(f".{extension}" for extension in (*EXTENSIONS, *OTHERS, "tar"))


def open(path: Paths, *, expect: Mapping[str, Any] | None = None, **options: Any) -> Any:  # noqa: A001
    """Return the data at `path` as an addressable source: `len`, `source[position]`, and many positions at once.

    `path` is a store, or what others have written, read as it is: see `stoker.source` for the classes and their
    options, which are passed on. Which of them it is follows from the first bytes where those tell, and from the name
    where they do not. A pattern, a list, or a folder of files of one kind is one source, in the order of the names.

    `expect` names what a store must have been made with, and is for stores alone.
    """
    kind, where = _kind_of(path, options)
    if kind is None:
        from stoker.store import open_store

        return _made(open_store, where, {"expect": expect, **options})
    if expect is not None:
        raise ArgumentError(
            f"expect= is for stores, and {where} is opened as {kind.__name__}",
            hint="leave expect away, or make a store of it with `stoker prepare`",
        )
    return _made(kind, where, options)


def _made(kind: Callable[..., Any], where: Any, options: dict[str, Any]) -> Any:
    known = [name for name, one in inspect.signature(kind).parameters.items() if one.kind is one.KEYWORD_ONLY]
    for name in options:
        if name not in known:
            raise ArgumentError(
                f"{where} is opened with {kind.__name__}, which has no option {name!r}",
                hint=f"its options are {', '.join(known)}" if known else "it has no options",
            )
    return kind(where, **options)


def _kind_of(path: Any, options: Mapping[str, Any]) -> tuple[Callable[..., Any] | None, Any]:
    """Return what opens `path`, None for a store, and what to give to it."""
    if not isinstance(path, (str, os.PathLike)):
        return _kind_of_several(list(path), path)
    where = Path(os.path.abspath(path))
    if where.is_dir():
        return _kind_of_folder(where)
    if where.exists():
        return _kind_of_file(where, options), where
    if all(part.is_file() for part in megatron.pair_of(where)):
        return Megatron, where
    if has_pattern(path):
        found = [Path(name) for name in sorted(glob.glob(str(where), recursive=True))]
        if found:
            return _kind_of_several(found, path)
    raise FileNotFoundError(f"there is nothing at {where}\nhint: {_CAN_BE_OPENED}")


def _kind_of_file(file: Path, options: Mapping[str, Any]) -> Callable[..., Any]:
    if options.get("dtype") is not None and options.get("shape") is not None:
        return ArrayFile
    if not file.is_file():
        raise ArgumentError(f"{file} is neither a file nor a folder", hint="copy the data to a file first")
    with file.open("rb") as opened:
        head = opened.read(len(megatron.MAGIC))
    name = file.name.lower()
    if head.startswith(npy_header.MAGIC) or is_array_file(file):
        return ArrayFile
    if head.startswith(parquet.MAGIC):
        return Parquet
    if head.startswith(arrow_file.FILE_MAGIC) or (name.endswith(".arrow") and head):
        return ArrowFolder
    if head == megatron.MAGIC or (name.endswith(".bin") and _is_megatron(file)):
        return Megatron
    for suffixes, kind in _BY_SUFFIX:
        if name.endswith(suffixes):
            return kind
    if name.endswith(_PICTURES):
        raise ArgumentError(
            f"{file} holds pictures, which are opened in another way", hint=f"stoker.images([{str(file)!r}])"
        )
    raise ArgumentError(f"{file} is none of the kinds of data that are known", hint=_CAN_BE_OPENED)


def _is_megatron(file: Path) -> bool:
    """Whether an index of Megatron-LM is beside a `.bin` file."""
    data, index = megatron.pair_of(file)
    if data != file or not index.is_file():
        return False
    with index.open("rb") as opened:
        return opened.read(len(megatron.MAGIC)) == megatron.MAGIC


def _kind_of_folder(folder: Path) -> tuple[Callable[..., Any] | None, Any]:
    if (folder / "manifest.json").is_file() or (folder / ".build").is_dir():
        return None, folder  # also one that is unfinished: it tells so itself
    if is_saved_dataset(folder):
        return ArrowFolder, folder
    suffixes = tuple(suffix for suffixes, _ in _BY_SUFFIX for suffix in suffixes)
    found = files_within(folder, suffixes)
    # what describes other data is not data
    beside = {"dataset_info.json", "dataset_infos.json", "metadata.json", "meta.json"}
    found = [file for file in found if file.name not in beside] or found
    if not found:
        if any(name.lower().endswith(_PICTURES) for _, _, names in os.walk(folder) for name in names):
            raise ArgumentError(
                f"{folder} holds pictures, which are opened in another way", hint=f"stoker.images({str(folder)!r})"
            )
        raise ArgumentError(f"{folder} holds nothing that can be opened", hint=_CAN_BE_OPENED)
    return _kind_of_several(found, folder)


def _kind_of_several(files: list[Any], given: Any) -> tuple[Callable[..., Any], Any]:
    """Return what opens all of `files` together."""
    if not files:
        raise ArgumentError("the list of paths is empty", hint="pass at least one; did a glob match nothing?")
    paths = [Path(os.path.abspath(file)) for file in files]
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(f"there is nothing at {path}")
    kinds = {_kind_of_file(path, {}) for path in paths}
    if len(paths) == 1:
        return kinds.pop(), paths[0]
    if kinds == {Megatron} and len({megatron.pair_of(path) for path in paths}) == 1:
        return Megatron, paths[0]
    if kinds == {ArrayFile}:  # tokens one after the other, if anything
        return RawTokens, paths
    kind = kinds.pop()
    if kinds or kind is Megatron:
        names = sorted({one.__name__ for one in (*kinds, kind)})
        raise ArgumentError(
            f"{given} holds data that is not one source: {len(paths)} files for {', '.join(names)}",
            hint="open them apart: pass a file, or a pattern for files of one kind",
        )
    return kind, paths
