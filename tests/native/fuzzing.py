"""Run by itself: decodes many damaged JPEG files. Whatever reads or writes outside its memory ends this process.

    python fuzzing.py SEED COUNT

The files lie at the very end of readable memory, and the pictures are written between bytes that must not change.
"""

from __future__ import annotations

import ctypes
import io
import mmap
import random
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from stoker.native import JpegFault, decode_jpeg, jpeg_header

MOST_BYTES = 1 << 16
MARGIN = 64


def files() -> list[bytes]:
    """Return good files of all kinds."""
    y, x = np.mgrid[0:90, 0:120]
    pixels = np.stack([x * 2, y * 2, (x * y) % 256], -1).astype(np.uint8)
    found = []
    for mode in ("RGB", "L"):
        for subsampling in (0, 1, 2):
            for is_progressive in (False, True):
                for restart in (0, 1):
                    file = io.BytesIO()
                    Image.fromarray(pixels).convert(mode).save(
                        file,
                        "JPEG",
                        subsampling=subsampling,
                        progressive=is_progressive,
                        restart_marker_rows=restart,
                    )
                    found.append(file.getvalue())
    return found


def damaged(rng: random.Random, good: list[bytes]) -> bytes:
    """Return a file with bits turned, bytes changed, parts cut out, doubled or taken from another file."""
    data = bytearray(rng.choice(good))
    for _ in range(rng.choice((1, 1, 2, 5, 20))):
        at = rng.randrange(len(data))
        if rng.random() < 0.3:  # where the header is most can go wrong
            at = at % 700
        at = max(min(at, len(data) - 1), min(2, len(data) - 1))  # few decoders are lost over the first two bytes
        match rng.randrange(7):
            case 0:
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                data[at] = rng.choice((0, 1, 2, 3, 4, 0x11, 0x22, 0x41, 0xC0, 0xC2, 0xC4, 0xD0, 0xDA, 0xD9, 0xFF))
            case 2:
                del data[at : at + rng.randrange(1, 30)]
            case 3:
                del data[max(at, 2) :]
            case 4:
                data[at:at] = data[at : at + rng.randrange(1, 200)]
            case 5:
                other = rng.choice(good)
                begin = rng.randrange(len(other))
                data[at : at + 50] = other[begin : begin + rng.randrange(1, 400)]
            case _:
                marker = data.find(b"\xff\xda")
                if marker > 0:  # another scan
                    data[marker:marker] = data[marker : marker + rng.randrange(10, 300)]
        if not data:
            data = bytearray(b"\xff")
    return bytes(data[:MOST_BYTES])


class Edge:
    """Memory that ends where it must not be read."""

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, MOST_BYTES + mmap.PAGESIZE)
        self._bytes: NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)
        end = ctypes.c_void_p(self._bytes.ctypes.data + MOST_BYTES)
        assert ctypes.CDLL(None).mprotect(end, mmap.PAGESIZE, 0) == 0

    def put(self, data: bytes) -> NDArray[np.uint8]:
        """Return the bytes, the last of which is the last that can be read."""
        where = self._bytes[MOST_BYTES - len(data) : MOST_BYTES]
        where[:] = np.frombuffer(data, np.uint8)
        return where


def resident_bytes() -> int:
    """Return the memory this process has at this moment."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def main(seed: int, count: int) -> None:
    """Decode, and print how many files there were, how many of them whole, and the bytes of memory that were lost."""
    rng, good, edge = random.Random(seed), files(), Edge()
    num_decoded, before = 0, 0
    around = np.full(200 * 200 * 3 + 2 * MARGIN, 77, np.uint8)
    for number in range(count):
        if number == count // 4:
            before = resident_bytes()
        data = edge.put(damaged(rng, good))
        header = jpeg_header(data)
        width, height = (header.width, header.height) if header else (120, 90)
        left, top = rng.randrange(width), rng.randrange(height)
        right, bottom = rng.randint(left + 1, width), rng.randint(top + 1, height)
        if rng.random() < 0.3:
            left, top, right, bottom = 0, 0, width, height
        shape = (rng.randint(1, 60), rng.randint(1, 60), rng.choice((1, 3)))
        inside = around[MARGIN : MARGIN + shape[0] * shape[1] * shape[2]]
        out = inside.reshape(shape) if number % 2 else inside.reshape(shape[::-1]).transpose(2, 1, 0)
        try:
            decode_jpeg(data, (left, top, right, bottom), (left, top, right, bottom), out, shrink=number % 3)
            num_decoded += 1
        except JpegFault:
            pass
        if not ((around[:MARGIN] == 77).all() and (around[MARGIN + inside.size :] == 77).all()):
            raise SystemExit(f"file {number} was written beside the output")
        around[:] = 77
    print(count, num_decoded, resident_bytes() - before)  # noqa: T201


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
