"""Many texts over a few threads, and what comes back made into arrays."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from stoker.transform.tokenizer.protocols import Encoded

# Of text in one call of a library. The objects that Hugging Face's returns take about fifty times the text until they
# are ids in an array, and smaller calls keep them in the processor's cache.
_CHUNK_CHARS = 1 << 17


def encode_by_chunks(encode: Callable[[list[str]], Encoded], texts: Sequence[str], *, num_threads: int) -> Encoded:
    """Return `encode(texts)`, called with a part of the texts at a time, from `num_threads` threads.

    The threads end before this returns. They pay where `encode` lets go of the GIL.
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
    """Return the ids of all parts one after the other, and the lengths likewise."""
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
    """Return lists of ids as arrays. Of the ways from Python's ints to an array this one costs least, 10 ns per id."""
    ids = array("I")
    lengths = array("q")
    for one in lists:
        ids.fromlist(one)
        lengths.append(len(one))
    return np.frombuffer(ids, np.uint32) if ids else np.empty(0, np.uint32), np.array(lengths, np.int64)


def from_arrays(arrays: Sequence[NDArray[np.uint32]]) -> Encoded:
    """Return arrays of ids as one, and their lengths."""
    lengths = np.fromiter(map(len, arrays), np.int64, len(arrays))
    return np.concatenate(arrays) if arrays else np.empty(0, np.uint32), lengths
