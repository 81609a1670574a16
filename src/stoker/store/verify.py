"""Verify a store: compare every byte with its checksums."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stoker.errors import DataError
from stoker.foundation import machine
from stoker.store.checksums import BLOCK_BYTES, checksum
from stoker.store.column import OFFSETS, Column
from stoker.store.header import Header
from stoker.store.manifest import Shard, read_manifest
from stoker.store.shard import CHECKSUMS, checked_header, columns_in, opened

READ_BLOCKS = 64
"""Blocks per read: 4 MiB, beyond which it does not get faster."""


@dataclass(frozen=True, slots=True)
class Damage:
    """A part of a store that is not as it was written."""

    file: str
    block: int | None
    """Number of the damaged block; None for the file as a whole."""
    columns: tuple[str, ...]
    what: str

    def __str__(self) -> str:
        where = "" if self.block is None else f" block {self.block} ({', '.join(self.columns)})"
        return f"{self.file}{where}: {self.what}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of a verification."""

    num_shards: int
    num_blocks: int
    num_bytes: int
    damages: tuple[Damage, ...]

    @property
    def is_sound(self) -> bool:
        """Whether everything is as it was written."""
        return not self.damages


def verify(
    path: str | os.PathLike[str], *, progress: Callable[[int], None] | None = None, num_threads: int | None = None
) -> Verdict:
    """Compare every byte of a store with its checksums; `progress` is called with the number of bytes just read.

    Damaged files are not errors: the verdict lists all of them. Only an unreadable manifest raises.
    """
    folder = Path(path).absolute()
    manifest = read_manifest(folder)
    threads = num_threads or min(8, machine.num_cores())
    lock = threading.Lock()

    def report(num_bytes: int) -> None:
        if progress is not None:
            with lock:
                progress(num_bytes)

    is_over = threading.Event()
    with ThreadPoolExecutor(threads, thread_name_prefix="stoker-verify") as pool:
        try:
            found = list(
                pool.map(lambda shard: _verify_shard(folder, shard, manifest.columns, report, is_over), manifest.shards)
            )
        except BaseException:
            is_over.set()  # Ctrl-C: the threads end after their present read
            raise
    return Verdict(
        num_shards=len(manifest.shards),
        num_blocks=sum(num_blocks for num_blocks, _ in found),
        num_bytes=sum(shard.num_bytes for shard in manifest.shards),
        damages=tuple(damage for _, damages in found for damage in damages),
    )


def _verify_shard(
    folder: Path,
    shard: Shard,
    columns: dict[str, Column],
    report: Callable[[int], None],
    is_over: threading.Event,
) -> tuple[int, list[Damage]]:
    """Return the number of blocks of a shard that were read, and its damages."""
    path = folder / shard.file
    try:
        descriptor = opened(path)
    except (DataError, OSError) as error:
        return 0, [Damage(shard.file, None, (), _first_line(error, path))]
    try:
        header = checked_header(path, descriptor, shard, columns)
        report(shard.body)
        num_blocks, damages = _compare_blocks(descriptor, shard, header, report, is_over)
        if not damages:
            damages = _check_offsets(descriptor, shard, header, columns)
        return num_blocks, damages
    except (DataError, OSError) as error:
        return 0, [Damage(shard.file, None, (), _first_line(error, path))]
    finally:
        os.close(descriptor)


def _compare_blocks(
    descriptor: int, shard: Shard, header: Header, report: Callable[[int], None], is_over: threading.Event
) -> tuple[int, list[Damage]]:
    sums = header.arrays[CHECKSUMS]
    expected = np.frombuffer(os.pread(descriptor, sums.num_bytes, sums.begin), "<u8")
    damages = []
    block, at = 0, shard.body
    while at < shard.num_bytes and not is_over.is_set():
        data = memoryview(os.pread(descriptor, READ_BLOCKS * BLOCK_BYTES, at))
        if at + len(data) < shard.num_bytes:  # the kernel may return less than requested
            data = data[: len(data) // BLOCK_BYTES * BLOCK_BYTES]
        if not data:
            raise OSError("the file ends early")
        for begin in range(0, len(data), BLOCK_BYTES):
            found = checksum(data[begin : begin + BLOCK_BYTES])
            if found != int(expected[block]):
                names = columns_in(header, at + begin, min(at + begin + BLOCK_BYTES, shard.num_bytes))
                what = f"its checksum is {found:016x}, expected {int(expected[block]):016x}"
                damages.append(Damage(shard.file, block, tuple(names), what))
            block += 1
        at += len(data)
        report(len(data))
    return block, damages


def _check_offsets(descriptor: int, shard: Shard, header: Header, columns: dict[str, Column]) -> list[Damage]:
    """Return damages of offsets whose checksums match: another program may have written invalid ones."""
    damages = []
    for name, column in columns.items():
        if not column.is_ragged:
            continue
        extent = header.arrays[name + OFFSETS]
        at, last, is_right = 0, 0, True
        while at < extent.num_bytes and is_right:
            data = os.pread(descriptor, min(READ_BLOCKS * BLOCK_BYTES, extent.num_bytes - at), extent.begin + at)
            part = np.frombuffer(data[: len(data) // 8 * 8], "<i8")
            if not part.size:
                raise OSError("the file ends early")
            # compared, not subtracted: a difference of invalid offsets could overflow
            is_right = bool(part[0] >= last and (part[1:] >= part[:-1]).all()) and (at > 0 or part[0] == 0)
            last, at = int(part[-1]), at + part.nbytes
        if not is_right or last != shard.values[name]:
            what = f"the offsets of {name!r} do not increase from 0 to its {shard.values[name]} values"
            damages.append(Damage(shard.file, None, (name,), what))
    return damages


def _first_line(error: Exception, path: Path) -> str:
    """Return the first line of an error, without the path at its beginning."""
    return str(error).splitlines()[0].removeprefix(str(path)).strip()
