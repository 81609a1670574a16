"""All of a store compared with its checksums."""

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
"""Blocks that are read in one go: 4 MiB, beyond which nothing gets quicker."""


@dataclass(frozen=True, slots=True)
class Damage:
    """Something that is not as it was written."""

    file: str
    block: int | None
    """The damaged block; None if it is the file as a whole."""
    columns: tuple[str, ...]
    what: str

    def __str__(self) -> str:
        where = "" if self.block is None else f" block {self.block} ({', '.join(self.columns)})"
        return f"{self.file}{where}: {self.what}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a verification found."""

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
    """Compare every byte of a store with its checksums; `progress` is told of bytes that were read.

    Damaged files do not end it: all damages are in the verdict. Only a manifest that cannot be read is an error.
    """
    folder = Path(path).absolute()
    manifest = read_manifest(folder)
    threads = num_threads or min(8, machine.num_cores())
    lock = threading.Lock()

    def tell(num_bytes: int) -> None:
        if progress is not None:
            with lock:
                progress(num_bytes)

    is_over = threading.Event()
    with ThreadPoolExecutor(threads, thread_name_prefix="stoker-verify") as pool:
        try:
            found = list(
                pool.map(lambda shard: _verified(folder, shard, manifest.columns, tell, is_over), manifest.shards)
            )
        except BaseException:
            is_over.set()  # Ctrl-C: the threads end with the blocks they are at
            raise
    return Verdict(
        num_shards=len(manifest.shards),
        num_blocks=sum(num_blocks for num_blocks, _ in found),
        num_bytes=sum(shard.num_bytes for shard in manifest.shards),
        damages=tuple(damage for _, damages in found for damage in damages),
    )


def _verified(
    folder: Path,
    shard: Shard,
    columns: dict[str, Column],
    tell: Callable[[int], None],
    is_over: threading.Event,
) -> tuple[int, list[Damage]]:
    """Return how many blocks of a shard were read, and what is wrong with it."""
    path = folder / shard.file
    try:
        descriptor = opened(path)
    except (DataError, OSError) as error:
        return 0, [Damage(shard.file, None, (), _told(error, path))]
    try:
        header = checked_header(path, descriptor, shard, columns)
        tell(shard.body)
        num_blocks, damages = _compared(descriptor, shard, header, tell, is_over)
        if not damages:
            damages = _offsets_checked(descriptor, shard, header, columns)
        return num_blocks, damages
    except (DataError, OSError) as error:
        return 0, [Damage(shard.file, None, (), _told(error, path))]
    finally:
        os.close(descriptor)


def _compared(
    descriptor: int, shard: Shard, header: Header, tell: Callable[[int], None], is_over: threading.Event
) -> tuple[int, list[Damage]]:
    sums = header.arrays[CHECKSUMS]
    expected = np.frombuffer(os.pread(descriptor, sums.num_bytes, sums.begin), "<u8")
    damages = []
    block, at = 0, shard.body
    while at < shard.num_bytes and not is_over.is_set():
        data = memoryview(os.pread(descriptor, READ_BLOCKS * BLOCK_BYTES, at))
        if at + len(data) < shard.num_bytes:  # the system may give less than was asked for
            data = data[: len(data) // BLOCK_BYTES * BLOCK_BYTES]
        if not data:
            raise OSError("the file ends early")
        for begin in range(0, len(data), BLOCK_BYTES):
            found = checksum(data[begin : begin + BLOCK_BYTES])
            if found != int(expected[block]):
                names = columns_in(header, at + begin, min(at + begin + BLOCK_BYTES, shard.num_bytes))
                what = f"its checksum is {found:016x} and should be {int(expected[block]):016x}"
                damages.append(Damage(shard.file, block, tuple(names), what))
            block += 1
        at += len(data)
        tell(len(data))
    return block, damages


def _offsets_checked(descriptor: int, shard: Shard, header: Header, columns: dict[str, Column]) -> list[Damage]:
    """Return what is wrong with offsets whose checksums are right: a program may have written nonsense."""
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
            # compared and not subtracted: a difference of offsets that are far out may come out positive
            is_right = bool(part[0] >= last and (part[1:] >= part[:-1]).all()) and (at > 0 or part[0] == 0)
            last, at = int(part[-1]), at + part.nbytes
        if not is_right or last != shard.values[name]:
            what = f"the offsets of {name!r} do not ascend from 0 to its {shard.values[name]} values"
            damages.append(Damage(shard.file, None, (name,), what))
    return damages


def _told(error: Exception, path: Path) -> str:
    """Return the first line of an error, without the path that stands before it already."""
    return str(error).splitlines()[0].removeprefix(str(path)).strip()
