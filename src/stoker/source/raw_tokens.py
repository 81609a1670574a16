"""Tokens in plain files, without documents: as written by nanoGPT, llm.c and others."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, Self, SupportsIndex, final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from stoker.errors import ArgumentError, DamagedFile
from stoker.foundation.positions import position_in, positions_in
from stoker.source.flat_values import FlatTokens, FlatValues, ValueFile
from stoker.source.known_file import KnownFile, Paths, files_at, fingerprint_of, named
from stoker.source.npy_header import MAGIC as NPY_MAGIC
from stoker.source.npy_header import read_npy_header

# Header of llm.c: 256 int32; magic, version, number of tokens, then zeros.
_LLM_C_BYTES = 1024
_LLM_C_DTYPES: dict[tuple[int, int], np.dtype[Any]] = {(20240520, 1): np.dtype("<u2"), (20240801, 7): np.dtype("<u4")}


@final
class RawTokens(FlatTokens):
    """The tokens of files as one sequence, memory-mapped. `tokens(length)` returns crops of it for training.

    `paths` is a file, a pattern, a folder of `.bin` files, or a list of these; crops cross from file to file. Each file
    is one of:

    - raw token ids, as written by nanoGPT: of `dtype`, by default uint16, after `offset_bytes`.
    - the same after the header of llm.c (1024 bytes, magic 20240520 or 20240801), which is detected and skipped.
    - a `.npy` file of integers in one dimension.

    These files have no offsets of documents: `num_documents` is 0. As a source, each token is a sample.

    A size that is not a multiple of a token, or does not match a header, raises `DamagedFile`; a file that changed
    since it was opened raises `StaleSource`. Thread-safe; pickles as its paths; works after a fork and in spawned
    processes.
    """

    def __init__(self, paths: Paths, *, dtype: DTypeLike | None = None, offset_bytes: int | None = None) -> None:
        wanted = None if dtype is None else np.dtype(dtype)
        if wanted is not None and wanted.kind not in "iu":
            raise ArgumentError(f"dtype={wanted} is not for tokens", hint="tokens are integers: pass e.g. 'uint16'")
        files = files_at(paths, suffixes=(".bin",))
        found = [_token_file(file, wanted, offset_bytes) for file in files]
        first = found[0][1]
        for part, other in found:
            if other != first:
                raise ArgumentError(
                    f"{files[0].path} holds {first} and {part.file.path} {other}",
                    hint="open them apart, or convert one",
                )
        self._values = FlatValues([part for part, _ in found], first)

    @classmethod
    def of(cls, parts: Sequence[ValueFile], dtype: np.dtype[Any]) -> Self:
        """Return the tokens of files whose layout is known."""
        made = cls.__new__(cls)
        made._values = FlatValues(parts, dtype)
        return made

    def __repr__(self) -> str:
        return named("RawTokens", [part.file for part in self._values.parts])

    @property
    def num_documents(self) -> int:
        """0: the offsets of documents are unknown."""
        return 0

    @property
    def fingerprint(self) -> str:
        """Digest of the names, sizes and ends of the files, and of the layout."""
        begins = " ".join(str(part.offset_bytes) for part in self._values.parts)
        return fingerprint_of([part.file for part in self._values.parts], str(self.dtype), begins)

    def offsets(self, first: int, last: int) -> NDArray[np.int64]:
        """Raise `ArgumentError`: there are no documents."""
        raise ArgumentError(
            f"{self!r} has no offsets of documents (requested: {first} to {last})",
            hint="take crops across documents, or make a store of the text with `stoker prepare tokens`",
        )

    def __len__(self) -> int:
        return self.num_values

    def __getitem__(self, position: SupportsIndex, /) -> int:
        """Return the token at `position`; negative positions count from the end."""
        place = position_in(position, len(self), self)
        return int(self._values.read(place, place + 1)[0])

    def __getitems__(self, positions: Sequence[SupportsIndex], /) -> list[int]:
        """Return the tokens at `positions`, in that order."""
        tokens: list[int] = self._values.take(positions_in(positions, len(self), self)).tolist()
        return tokens

    def describe(self, position: SupportsIndex) -> str:
        """Return the location of a sample: path, and token from 0."""
        number, token = self._values.place_of(position_in(position, len(self), self))
        return f"{self._values.parts[number].file.path}, token {token}"


def _token_file(
    file: KnownFile, dtype: np.dtype[Any] | None, offset_bytes: int | None
) -> tuple[ValueFile, np.dtype[Any]]:
    """Return the location of the tokens of a file, and their dtype."""
    if offset_bytes is not None:
        if not 0 <= operator.index(offset_bytes) <= file.size_bytes:
            raise ArgumentError(
                f"offset_bytes={offset_bytes} is not in {file.path}, which has {file.size_bytes} bytes",
                hint="it is the number of bytes before the first token",
            )
        return _raw(file, dtype, offset_bytes)
    head = file.head(_LLM_C_BYTES)
    if head.startswith(NPY_MAGIC):
        layout = read_npy_header(file)
        if len(layout.shape) != 1 or layout.dtype.kind not in "iu":
            raise ArgumentError(
                f"{file.path} holds {layout.dtype} {layout.shape}, which are not tokens one after the other",
                hint="tokens are integers in an array of one dimension; stoker.open reads the rows of any array",
            )
        _check_dtype(file, dtype, layout.dtype)
        return ValueFile(file, layout.offset_bytes, layout.shape[0]), layout.dtype
    fields = np.frombuffer(head[: len(head) // 4 * 4], "<i4")
    known = _LLM_C_DTYPES.get((int(fields[0]), int(fields[1]))) if len(head) == _LLM_C_BYTES else None
    if known is None or fields[3:].any():
        return _raw(file, dtype, 0)
    _check_dtype(file, dtype, known)
    num_tokens = int(fields[2])
    wanted = _LLM_C_BYTES + num_tokens * known.itemsize
    if num_tokens < 0 or wanted != file.size_bytes:
        raise DamagedFile(
            file.path,
            what=f"has the header of llm.c for {num_tokens} tokens, which makes {wanted} bytes, and has "
            f"{file.size_bytes}",
        )
    return ValueFile(file, _LLM_C_BYTES, num_tokens), known


def _raw(file: KnownFile, dtype: np.dtype[Any] | None, offset_bytes: int) -> tuple[ValueFile, np.dtype[Any]]:
    dtype = np.dtype("<u2") if dtype is None else dtype
    num_values, rest = divmod(file.size_bytes - offset_bytes, dtype.itemsize)
    if rest:
        raise DamagedFile(
            file.path,
            what=f"has {file.size_bytes - offset_bytes} bytes of data, not a multiple of {dtype} tokens",
            hint="pass its dtype=, or offset_bytes= if it has a header; otherwise the file is truncated",
        )
    return ValueFile(file, offset_bytes, num_values), dtype


def _check_dtype(file: KnownFile, given: np.dtype[Any] | None, found: np.dtype[Any]) -> None:
    if given is not None and given != found:
        raise ArgumentError(
            f"{file.path} says itself that it holds {found}, and dtype={given} was given",
            hint="leave dtype away; offset_bytes= turns what the file says about itself off",
        )
