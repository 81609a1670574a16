"""What no planner and no loader can beat by much: best fit item by item, and rows filled from known spans, in C."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.report import OUT

FOLDER = OUT.parent / "corpora"

SOURCE = r"""
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Best-fit decreasing. Documents are sorted by counting; rows with equal room are a linked list; and the least room
   that an item fits into is found in a bitmap of two levels. Documents of a row's length or more give full rows.

   row_of[d]: the row in which the end of document d is, or its last full row.
   starts, documents: what is in each row. Returns the number of rows; -1 if there is no memory. */
int64_t best_fit(const int64_t *lengths, int64_t num_documents, int64_t length, uint32_t *row_of, uint32_t *starts,
                 uint32_t *documents)
{
    int64_t words = (length + 64) / 64, uppers = (words + 63) / 64, num_rows = 0, num_spans = 0;
    uint32_t *sorted = malloc((num_documents + 1) * sizeof *sorted);
    uint32_t *at = calloc(length + 1, sizeof *at);
    uint32_t *head = calloc(length + 1, sizeof *head); /* the first row with so much room, plus one */
    uint32_t *next = NULL;
    uint64_t *there = calloc(words, sizeof *there), *upper = calloc(uppers, sizeof *upper);
    int64_t num_full = 0;
    if (!sorted || !at || !head || !there || !upper) return -1;
    for (int64_t d = 0; d < num_documents; d++) {
        int64_t rest = lengths[d];
        if (rest >= length) { num_full += rest / length; rest %= length; }
        at[rest]++;
    }
    next = malloc((num_full + num_documents + 1) * sizeof *next);
    if (!next) return -1;
    uint32_t sum = 0;
    for (int64_t size = length; size >= 0; size--) { uint32_t count = at[size]; at[size] = sum; sum += count; }
    uint32_t num_items = at[0];
    memset(starts, 0, (num_full + num_documents + 1) * sizeof *starts);
    for (int64_t d = 0; d < num_documents; d++) {
        int64_t rest = lengths[d];
        if (rest >= length) {
            for (int64_t piece = rest / length; piece > 0; piece--) { row_of[d] = num_rows; starts[++num_rows] = 1; }
            rest %= length;
        }
        sorted[at[rest]++] = d;
    }
    for (uint32_t item = 0; item < num_items; item++) {
        uint32_t d = sorted[item], row;
        int64_t size = lengths[d] % length, room = -1;
        int64_t word = size >> 6;
        uint64_t bits = there[word] & (~0ULL << (size & 63));
        if (bits) room = (word << 6) + __builtin_ctzll(bits);
        else {
            int64_t high = (word + 1) >> 6;
            if (high < uppers) {
                uint64_t seen = upper[high] & (~0ULL << ((word + 1) & 63));
                while (!seen && ++high < uppers) seen = upper[high];
                if (seen) {
                    word = (high << 6) + __builtin_ctzll(seen);
                    room = (word << 6) + __builtin_ctzll(there[word]);
                }
            }
        }
        if (room < 0) { row = num_rows++; room = length; }
        else {
            row = head[room] - 1;
            head[room] = next[row];
            if (!head[room]) {
                there[room >> 6] &= ~(1ULL << (room & 63));
                if (!there[room >> 6]) upper[room >> 12] &= ~(1ULL << ((room >> 6) & 63));
            }
        }
        row_of[d] = row;
        starts[row + 1]++;
        room -= size;
        if (room) {
            next[row] = head[room];
            head[room] = row + 1;
            there[room >> 6] |= 1ULL << (room & 63);
            upper[room >> 12] |= 1ULL << ((room >> 6) & 63);
        }
    }
    for (int64_t row = 0; row < num_rows; row++) { num_spans += starts[row + 1]; starts[row + 1] = num_spans; }
    /* documents by row, longest first: `next` is where each row is filled up to */
    memcpy(next, starts, num_rows * sizeof *next);
    for (int64_t d = 0, row = 0; d < num_documents; d++)
        for (int64_t piece = lengths[d] / length; piece > 0; piece--, row++) documents[next[row]++] = d;
    for (uint32_t item = 0; item < num_items; item++) documents[next[row_of[sorted[item]]]++] = sorted[item];
    free(sorted); free(at); free(head); free(next); free(there); free(upper);
    return num_rows;
}

/* All fields of packed rows. Each loop has one stream in and one out, which compilers turn into vector instructions. */
void fill(const uint16_t *restrict corpus, const int64_t *begins, const int64_t *sizes, const uint8_t *has_next,
          const int64_t *row_starts, int64_t num_rows, int64_t length, int64_t width, int64_t pad, int64_t ignored,
          int64_t *restrict tokens, int64_t *restrict labels, int32_t *restrict positions,
          int32_t *restrict document_ids, int32_t *restrict borders)
{
    for (int64_t row = 0; row < num_rows; row++) {
        int64_t column = 0, place = 0;
        *borders = 0;
        for (int64_t s = row_starts[row]; s < row_starts[row + 1]; s++, place++) {
            const uint16_t *from = corpus + begins[s];
            int64_t size = sizes[s];
            for (int64_t i = 0; i < size; i++) tokens[column + i] = from[i];
            for (int64_t i = 0; i < size - 1; i++) labels[column + i] = from[i + 1];
            labels[column + size - 1] = has_next[s] ? (int64_t)from[size] : ignored;
            for (int32_t i = 0; i < (int32_t)size; i++) positions[column + i] = i;
            for (int64_t i = 0; i < size; i++) document_ids[column + i] = (int32_t)place;
            column += size;
            borders[place + 1] = (int32_t)column;
        }
        for (int64_t i = place + 1; i < width; i++) borders[i] = (int32_t)length;
        for (int64_t i = column; i < length; i++) {
            tokens[i] = pad, labels[i] = ignored, positions[i] = (int32_t)(i - column), document_ids[i] = -1;
        }
        tokens += length, labels += length, positions += length, document_ids += length, borders += width;
    }
}
"""


def has_compiler() -> bool:
    return shutil.which("gcc") is not None


def library() -> ctypes.CDLL:
    """Return the functions, compiled here and now for this very machine."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    made = FOLDER / "packing.so"
    source = made.with_suffix(".c")
    if not made.exists() or source.read_text() != SOURCE:
        source.write_text(SOURCE)
        unfinished = FOLDER / f"packing.{os.getpid()}.so"
        command = ["gcc", "-O3", "-march=native", "-shared", "-fPIC", "-o", str(unfinished), str(source)]
        subprocess.run(command, check=True)
        os.rename(unfinished, made)
    found = ctypes.CDLL(str(made))
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    found.best_fit.argtypes = [pointer, number, number, *[pointer] * 3]
    found.best_fit.restype = number
    found.fill.argtypes = [*[pointer] * 5, *[number] * 5, *[pointer] * 5]
    found.fill.restype = None
    return found


@dataclass(frozen=True, slots=True)
class Fitted:
    """Which documents are in which row."""

    row_of: NDArray[np.uint32]
    starts: NDArray[np.uint32]
    documents: NDArray[np.uint32]

    @property
    def num_rows(self) -> int:
        return len(self.starts) - 1


def best_fit(functions: Any, lengths: NDArray[np.int64], length: int) -> Fitted:
    """Plan and map, item by item."""
    most = len(lengths) + int((lengths // length).sum())
    row_of, documents = np.empty(len(lengths), np.uint32), np.empty(most, np.uint32)
    starts = np.empty(most + 1, np.uint32)
    num_rows = functions.best_fit(
        lengths.ctypes.data, len(lengths), length, row_of.ctypes.data, starts.ctypes.data, documents.ctypes.data
    )
    if num_rows < 0:
        raise MemoryError
    starts = starts[: num_rows + 1]
    return Fitted(row_of, starts, documents[: int(starts[-1])])
