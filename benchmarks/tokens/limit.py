"""What no loader can beat: the same bytes gathered and widened into a buffer that is used again, on one thread."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.tokens.corpus import CORPORA, LENGTH, Corpus

# x and y in two loops: each is one stream in and one out, which compilers turn into vector instructions.
SOURCE = """
#include <stdint.h>
void gather(const uint16_t *tokens, const int64_t *starts, int64_t num_rows, int64_t length, int64_t *x, int64_t *y)
{
    for (int64_t row = 0; row < num_rows; row++) {
        const uint16_t *from = tokens + starts[row];
        int64_t *to = x + row * length;
        for (int64_t i = 0; i < length; i++) to[i] = from[i];
        to = y + row * length;
        for (int64_t i = 0; i < length; i++) to[i] = from[i + 1];
    }
}
"""

Pair = tuple[torch.Tensor, torch.Tensor]
Gather = Callable[[NDArray[np.int64]], Pair]


def has_compiler() -> bool:
    return shutil.which("gcc") is not None


def in_c(corpus: Corpus, batch_size: int) -> Gather:
    """Return a gather compiled here and now, for this very machine."""
    library = _compiled(CORPORA)
    tokens = corpus.tokens()
    x, y = (np.zeros((batch_size, LENGTH), np.int64) for _ in range(2))
    gather = ctypes.CDLL(str(library)).gather
    gather.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, *[ctypes.c_void_p] * 2]
    gather.restype = None
    where, to_x, to_y = tokens.ctypes.data, x.ctypes.data, y.ctypes.data
    given = torch.from_numpy(x), torch.from_numpy(y)  # as loaders give them: to look at them costs the trainer alike

    def gathered(starts: NDArray[np.int64]) -> Pair:
        assert tokens is not None, "mapped as long as this can be called"
        gather(where, starts.ctypes.data, len(starts), LENGTH, to_x, to_y)
        return given

    return gathered


def _compiled(folder: Path) -> Path:
    library = folder / "gather.so"
    if not library.exists() or library.with_suffix(".c").read_text() != SOURCE:
        library.with_suffix(".c").write_text(SOURCE)
        unfinished = folder / f"gather.{os.getpid()}.so"
        command = ["gcc", "-O3", "-march=native", "-shared", "-fPIC", "-o", str(unfinished)]
        subprocess.run([*command, str(library.with_suffix(".c"))], check=True)
        os.rename(unfinished, library)
    return library


def in_numpy(corpus: Corpus, batch_size: int) -> Gather:
    """Return a gather by one index of NumPy's, and one copy that widens each of x and y."""
    windows = np.lib.stride_tricks.sliding_window_view(corpus.tokens(), LENGTH + 1)
    x, y = (np.zeros((batch_size, LENGTH), np.int64) for _ in range(2))
    given = torch.from_numpy(x), torch.from_numpy(y)

    def gathered(starts: NDArray[np.int64]) -> Pair:
        rows = windows[starts]
        np.copyto(x, rows[:, :-1])
        np.copyto(y, rows[:, 1:])
        return given

    return gathered


class Gathering:
    """Epochs of batches that are only gathered: which rows is known before the clock runs."""

    def __init__(self, corpus: Corpus, batch_size: int, *, is_shuffled: bool, gather: Gather) -> None:
        rows = np.arange(corpus.num_rows)
        if is_shuffled:
            np.random.default_rng(0).shuffle(rows)
        self._starts = (rows[: len(rows) // batch_size * batch_size] * LENGTH).reshape(-1, batch_size)
        self._gather = gather

    def __iter__(self) -> Iterator[Any]:
        return map(self._gather, self._starts)
