"""All of a store compared with its checksums."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from stoker.errors import DamagedFile, NotAStore
from stoker.store import Column, Store, Writer, open_store, verify
from tests.store import by_hand


@pytest.fixture
def store(tmp_path: Path) -> Store:
    columns = {"t": Column.ragged("uint16"), "x": Column("float32", (64,))}
    with Writer(tmp_path / "s", columns, shard_bytes=300_000) as writer:
        writer.extend({"t": (np.arange(250_000) % 60_000, [250] * 1000), "x": np.zeros((1000, 64))})
    return open_store(tmp_path / "s")


def flip(path: Path, at: int) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


@pytest.mark.parametrize("num_threads", [None, 1, 3])
def test_a_sound_store_is_sound(store: Store, num_threads: int | None) -> None:
    told: list[int] = []
    verdict = verify(store.path, progress=told.append, num_threads=num_threads)
    shards = store.manifest.shards
    assert verdict.is_sound and verdict.num_shards == len(shards) == 3
    assert verdict.num_bytes == sum(told) == sum((store.path / shard.file).stat().st_size for shard in shards)
    assert verdict.num_blocks == sum(-(-(shard.num_bytes - shard.body) // 65536) for shard in shards)


def test_every_damaged_block_is_named(store: Store) -> None:
    first, second, third = store.manifest.shards
    flip(store.path / first.file, first.body + 70_000)
    flip(store.path / first.file, first.num_bytes - 1)
    flip(store.path / third.file, third.body)
    damages = verify(store.path).damages
    assert [(damage.file, damage.block) for damage in damages] == [
        (first.file, 1),
        (first.file, (first.num_bytes - first.body - 1) // 65536),
        (third.file, 0),
    ]
    assert set(damages[0].columns) <= {"t", "x", "t.offsets"} and damages[1].columns == ("t",)
    assert str(damages[1]).startswith(f"{first.file} block 4 (t): its checksum is ")
    assert second.file not in str(damages)


def test_files_that_are_missing_cut_off_or_swapped_are_named(store: Store) -> None:
    first, second, third = store.manifest.shards
    os.truncate(store.path / first.file, first.num_bytes - 1)
    (store.path / second.file).unlink()
    flip(store.path / third.file, 9)
    told = {damage.file: str(damage) for damage in verify(store.path).damages}
    assert told[first.file] == (
        f"{first.file}: is truncated: it has {first.num_bytes - 1} bytes, but {first.num_bytes} in the manifest"
    )
    assert told[second.file] == f"{second.file}: is listed in the manifest, but missing"
    assert told[third.file].startswith(f"{third.file}: has a header that cannot be read")


def test_offsets_that_do_not_ascend_are_told_even_if_checksums_are_right(tmp_path: Path) -> None:
    far = 2**63 - 1
    for number, offsets in enumerate(
        ([0, 2, 1, 3], [1, 1, 2, 3], [0, 1, 2, 2], [0, 4, 2, 3], [-1, 0, 2, 3], [0, far, -2, 3], [0, far, -far, 3])
    ):
        folder = by_hand.write(tmp_path / str(number), [by_hand.of_tokens([1, 2, 3], offsets)])
        [damage] = verify(folder).damages
        assert str(damage) == "s0.safetensors: the offsets of 'tokens' do not increase from 0 to its 3 values"


def test_a_file_that_is_read_in_small_parts_is_sound(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pread

    def little(descriptor: int, num_bytes: int, at: int) -> bytes:
        return real(descriptor, num_bytes if at == 0 else min(num_bytes, 70_001), at)

    monkeypatch.setattr(os, "pread", little)
    assert verify(store.path).is_sound


def test_a_file_that_shrinks_meanwhile_is_told(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pread
    shard = store.manifest.shards[0]
    for end in (shard.body + 65536, shard.body + 100):

        def cut(descriptor: int, num_bytes: int, at: int, end: int = end) -> bytes:
            return real(descriptor, num_bytes if at == 0 else max(0, min(num_bytes, end - at)), at)

        monkeypatch.setattr(os, "pread", cut)
        damages = verify(store.path, num_threads=1).damages
        assert str(damages[0]) == f"{shard.file}: the file ends early"


def test_only_a_manifest_that_cannot_be_read_is_an_error(store: Store) -> None:
    (store.path / "manifest.json").write_text('{"format": "stoker.store"')
    with pytest.raises(DamagedFile, match="manifest.json cannot be read as a manifest"):
        verify(store.path)
    with pytest.raises(NotAStore):
        verify(store.path / "nowhere")


def test_an_error_of_whoever_watches_ends_it(store: Store) -> None:
    def stopping(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        verify(store.path, progress=stopping)
