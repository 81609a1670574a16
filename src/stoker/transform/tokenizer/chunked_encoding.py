"""Encode many texts with a few threads, and collect the ids in arrays."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from stoker.transform.tokenizer.tokenizer_protocols import Encoded

# Characters of text per library call. The objects returned by Hugging Face take about fifty times the memory of the
# text until they are converted to arrays, and smaller calls keep them in the CPU cache.
_CHUNK_CHARS = 1 << 17


def encode_by_chunks(encode: Callable[[list[str]], Encoded], texts: Sequence[str], *, num_threads: int) -> Encoded:
    """Return `encode(texts)`, computed in chunks by `num_threads` threads.

    The threads end before this returns. They help only if `encode` releases the GIL.
    """
    parts = _parts(texts)
    if num_threads == 1 or len(texts) < 2:
        return joined(map(encode, parts))
    with ThreadPoolExecutor(num_threads, thread_name_prefix="stoker-tokenizer") as threads:
        return joined(threads.map(encode, parts))


def _parts(texts: Sequence[str]) -> Iterator[list[str]]:
    part: list[str] = []
    num_chars = 0
    for text in texts:
        part.append(text)
        num_chars += len(text)
        if num_chars >= _CHUNK_CHARS:
            yield part
            part, num_chars = [], 0
    if part:
        yield part


def joined(parts: Iterable[Encoded]) -> Encoded:
    """Concatenate the ids and the lengths of all parts."""
    ids: list[NDArray[np.uint32]] = []
    lengths: list[NDArray[np.int64]] = []
    for part_ids, part_lengths in parts:
        ids.append(part_ids)
        lengths.append(part_lengths)
    if len(ids) == 1:
        return ids[0], lengths[0]
    return (
        np.concatenate(ids) if ids else np.empty(0, np.uint32),
        np.concatenate(lengths) if lengths else np.empty(0, np.int64),
    )


def from_lists(lists: Iterable[list[int]]) -> Encoded:
    """Convert lists of ids to arrays, in the fastest way: 10 ns per id."""
    ids = array("I")
    lengths = array("q")
    for one in lists:
        ids.fromlist(one)
        lengths.append(len(one))
    return np.frombuffer(ids, np.uint32) if ids else np.empty(0, np.uint32), np.array(lengths, np.int64)


def from_arrays(arrays: Sequence[NDArray[np.uint32]]) -> Encoded:
    """Concatenate arrays of ids; return the result and their lengths."""
    lengths = np.fromiter(map(len, arrays), np.int64, len(arrays))
    return np.concatenate(arrays) if arrays else np.empty(0, np.uint32), lengths
