"""Files that are rewritten, cut off or replaced while they are read through memory maps."""

from __future__ import annotations

import faulthandler
import io
import logging
import os
import re
import shutil
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakSet

import numpy as np
import pyarrow as pa
import pytest

import stoker
from stoker.errors import DamagedFile, DataError, StaleSource, WorkerDied
from stoker.foundation import file_watch
from stoker.source import mapped_files
from stoker.source.array_file import ArrayFile
from stoker.source.arrow_folder import ArrowFolder
from stoker.source.images.labels import ImageLabels
from stoker.source.images.listing_cache import ArrayCache
from stoker.source.images.tar_shards import TarFields, TarShards, indexed
from stoker.source.known_file import known_file
from stoker.source.lines import Lines
from stoker.source.megatron import Megatron
from stoker.source.raw_tokens import RawTokens
from stoker.store import Column, Writer, open_store
from tests.source import foreign

ENGINES: list[dict[str, Any]] = [{}, {"num_threads": 2}, {"num_workers": 2, "multiprocessing_context": "fork"}]
ENGINE_NAMES = ["inline", "threads", "workers"]

NUM, WIDTH = 64, 256
"""Samples of a file, and values of each: many pages of memory."""


@pytest.fixture
def always_looking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop the clock: every read looks at every file."""
    monkeypatch.setattr(file_watch, "clock", lambda: 0.0)


class Members:
    """The members of tar archives as samples, copied as soon as they are read."""

    def __init__(self, shards: TarShards) -> None:
        self.shards = shards

    def __len__(self) -> int:
        return len(self.shards)

    def __getitem__(self, position: int) -> Any:
        return np.array(self.shards.read(position))


def write_npy(folder: Path, value: int) -> Path:
    np.save(folder / "x.npy", np.full((NUM, WIDTH), value, np.int32))
    return folder / "x.npy"


def write_raw(folder: Path, value: int) -> Path:
    np.full(NUM * WIDTH + 1, value, np.uint16).tofile(folder / "x.bin")
    return folder / "x.bin"


def write_megatron(folder: Path, value: int) -> Path:
    foreign.write_megatron(folder / "m", [[value] * WIDTH] * NUM)
    return folder / "m.bin"


def write_arrow(folder: Path, value: int) -> Path:
    table = pa.table({"x": pa.array([[value] * WIDTH] * NUM, pa.list_(pa.int32()))})
    foreign.save_dataset(folder / "d", [table])
    return folder / "d" / "data-00000-of-00001.arrow"


def write_tar(folder: Path, value: int) -> Path:
    with tarfile.open(folder / "x.tar", "w") as archive:
        for number in range(NUM):
            info = tarfile.TarInfo(f"{number:03}.jpg")
            info.size = 4 * WIDTH
            archive.addfile(info, io.BytesIO(bytes([value]) * info.size))
    return folder / "x.tar"


def open_tar(path: Path) -> Any:
    files = [known_file(path)]
    wanted = TarFields(("jpg",), None, None, has_labels=False)
    return Members(TarShards(files, indexed(files, wanted, ArrayCache(cache=False)), ImageLabels()))


def write_lines(folder: Path, value: int) -> Path:
    (folder / "x.jsonl").write_text(f'{{"x": [{", ".join([str(value)] * WIDTH)}]}}\n' * NUM)
    return folder / "x.jsonl"


def write_store(folder: Path, value: int) -> Path:
    with Writer(folder / "s", {"x": Column.fixed("int32", (WIDTH,))}) as writer:
        writer.extend({"x": np.full((NUM, WIDTH), value, np.int32)})
    [shard] = (folder / "s").glob("*.safetensors")
    return shard


class Kind(NamedTuple):
    write: Callable[[Path, int], Path]
    """Writes samples that are all of one value; returns the file with the data."""
    open: Callable[[Path], Any]


KINDS = {
    "npy": Kind(write_npy, ArrayFile),
    "raw": Kind(write_raw, lambda path: RawTokens(path).tokens(WIDTH)),
    "megatron": Kind(write_megatron, Megatron),
    "arrow": Kind(write_arrow, lambda path: ArrowFolder(path.parent)),
    "tar": Kind(write_tar, open_tar),
    "lines": Kind(write_lines, lambda path: Lines(path, index_dir=path.parent / "index")),
    "store": Kind(write_store, lambda path: open_store(path.parent)),
}


def values_in(batch: Any) -> set[int]:
    """Return all values of a batch."""
    if isinstance(batch, dict):
        return set().union(*map(values_in, batch.values()))
    if isinstance(batch, list):
        return set().union(*map(values_in, batch))
    return set(np.unique(np.asarray(batch)).tolist())


def opened(kind: str, tmp_path: Path) -> tuple[Any, Path, Path]:
    """Return a source whose values are all 1, its file, and a file of the same size whose values are all 2."""
    paths = []
    for value in (1, 2):
        folder = tmp_path / str(value)
        folder.mkdir()
        paths.append(KINDS[kind].write(folder, value))
        os.utime(paths[-1], ns=(10**18, 10**18 + value))
    path, other = paths
    assert path.stat().st_size == other.stat().st_size > 4 * 4096
    return KINDS[kind].open(path), path, other


def rewrite(path: Path, other: Path) -> None:
    """As `np.save` does: the file is emptied and written again."""
    path.write_bytes(other.read_bytes())


def overwrite(path: Path, other: Path) -> None:
    """Write over the bytes without changing the size in between."""
    with open(path, "r+b") as file:
        file.write(other.read_bytes())


def truncate(path: Path, other: Path) -> None:
    os.truncate(path, 4096)


def rename(path: Path, other: Path) -> None:
    os.replace(other, path)


CHANGES = {change.__name__: change for change in (rewrite, overwrite, truncate)}


def as_list(samples: list[Any]) -> list[Any]:
    return samples


# ---------------------------------------------------------------- sources by themselves


@pytest.mark.usefixtures("always_looking")
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_changes_under_a_source_is_stale(tmp_path: Path, kind: str, change: str) -> None:
    source, path, other = opened(kind, tmp_path)
    assert values_in(source[NUM - 1]) == {1}
    size = path.stat().st_size
    CHANGES[change](path, other)
    for _ in range(2):
        with pytest.raises(StaleSource) as caught:
            source[NUM - 1]
        assert caught.value.path == str(path)
        found = "written to since" if change != "truncate" else f"it had {size} bytes and has 4096"
        assert found in str(caught.value)
        assert "last written at 2001-09-09 01:46:40.000000001 UTC then" in str(caught.value)
        assert "hint: files must not change during a run" in str(caught.value)


@pytest.mark.usefixtures("always_looking")
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_another_was_renamed_over_is_read_on_as_it_was(tmp_path: Path, kind: str) -> None:
    source, path, other = opened(kind, tmp_path)
    assert values_in(source[0]) == {1}
    rename(path, other)
    assert [values_in(source[position]) for position in range(NUM)] == [{1}] * NUM
    path.unlink()
    assert values_in(source[NUM - 1]) == {1}


@pytest.mark.usefixtures("always_looking")
def test_a_change_during_a_read_is_noticed_before_the_batch_is_handed_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, path, other = opened("npy", tmp_path)
    take = np.take

    def interrupted(rows: Any, positions: Any, **options: Any) -> Any:
        out = options["out"]
        take(rows, positions[: NUM // 2], axis=0, out=out[: NUM // 2], mode="clip")
        overwrite(path, other)
        take(rows, positions[NUM // 2 :], axis=0, out=out[NUM // 2 :], mode="clip")
        assert set(np.unique(out.view(np.int32))) == {1, 2}
        return out

    monkeypatch.setattr(np, "take", interrupted)
    with pytest.raises(StaleSource, match="written to since"):
        source.__getitems__(range(NUM))


@pytest.mark.usefixtures("always_looking")
def test_a_block_that_does_not_fit_its_checksum_because_the_shard_changed_is_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, path, _ = opened("store", tmp_path)
    store._files.element_of("x", np.array([0]))  # mapped, and no block was read
    monkeypatch.setattr(file_watch.FileWatch, "check", lambda _: None)  # it is not time to look
    with open(path, "r+b") as file:
        file.seek(-4 * NUM * WIDTH, os.SEEK_END)
        file.write(b"another")
    with pytest.raises(StaleSource, match="written to since"):
        store[0]


@pytest.mark.usefixtures("always_looking")
@pytest.mark.parametrize("change", CHANGES)
def test_packed_rows_notice_a_shard_that_changes(tmp_path: Path, change: str) -> None:
    shards: list[Path] = []
    for value in (1, 2):
        with Writer(tmp_path / str(value), {"tokens": Column.ragged("uint16")}) as writer:
            for number in range(500):
                writer.append({"tokens": np.full(50 + number % 100, value, np.uint16)})
        shards += (tmp_path / str(value)).glob("*.safetensors")
        os.utime(shards[-1], ns=(10**18, 10**18 + value))
    packed = stoker.pack(open_store(tmp_path / "1"), length=512)
    every = np.arange(len(packed))
    for _ in range(2):  # the first time blocks are checked, the second time nothing but memory is read
        assert values_in(packed.__getbatch__(every, np.empty)["tokens"]) <= {0, 1}
    CHANGES[change](*shards)
    for _ in range(2):
        with pytest.raises(StaleSource, match=str(shards[0])):
            packed.__getbatch__(every, np.empty)


# ---------------------------------------------------------------- loaders


class Paused:
    """A source of which nothing is read while somebody holds its lock."""

    def __init__(self, source: Any) -> None:
        self.source, self.lock = source, threading.Lock()

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, position: int) -> Any:
        with self.lock:
            return self.source[position]

    def __getitems__(self, positions: Any) -> Any:
        if not hasattr(self.source, "__getitems__"):
            return [self[position] for position in positions]
        with self.lock:
            return self.source.__getitems__(positions)


@pytest.mark.usefixtures("always_looking")
@pytest.mark.parametrize("engine", ENGINES, ids=ENGINE_NAMES)
@pytest.mark.parametrize("change", [*CHANGES, "rename"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_loader_never_mixes_two_versions_of_a_file(
    tmp_path: Path, kind: str, change: str, engine: dict[str, Any]
) -> None:
    source, path, other = opened(kind, tmp_path)
    paused = Paused(source)
    # in this process, nobody reads while the file changes: a read of what is cut off just then would end pytest
    dataset = source if "num_workers" in engine else paused
    loader = stoker.DataLoader(dataset, batch_size=4, prefetch_factor=1 if engine else None, **engine)
    iterator = iter(loader)
    assert values_in(next(iterator)) == {1}
    with paused.lock:
        {**CHANGES, "rename": rename}[change](path, other)
    # A worker that maps the file only now finds another one; a store says that it is not the shard it should be.
    errors = (StaleSource, DamagedFile) if kind == "store" else StaleSource
    failure = None
    while failure is None:
        try:
            batch = next(iterator)
        except StopIteration:
            break
        except errors as error:
            failure = error
        else:
            assert values_in(batch) == {1}
    assert str(path) in str(failure) if failure is not None else change == "rename"


@pytest.mark.usefixtures("always_looking")
def test_threads_that_read_at_once_all_notice(tmp_path: Path) -> None:
    source, path, other = opened("npy", tmp_path)
    source[0]
    overwrite(path, other)
    found: list[type[BaseException] | None] = []

    def read() -> None:
        try:
            source.__getitems__(range(NUM))
            found.append(None)
        except BaseException as error:
            found.append(type(error))

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [StaleSource] * 4


# ---------------------------------------------------------------- SIGBUS


class TouchesWhatIsGone:
    """Cuts its file off after the check, and reads on: what a check cannot prevent."""

    def __init__(self, path: Path, *, restores: bool) -> None:
        self.path, self.restores = path, restores
        self.source = ArrayFile(path)

    def __len__(self) -> int:
        return NUM

    def __getitem__(self, _: int) -> Any:
        faulthandler.disable()  # pytest has enabled it, and the stacks of a death on purpose help nobody
        if self.restores:
            write_npy(self.path.parent, 1)
            self.source = ArrayFile(self.path)
        array = self.source._mapped()
        os.truncate(self.path, 4096)
        return np.array(array[-1])


BUS = r"SIGBUS while reading /[^;]*/x\.npy: it had 65664 bytes and has 4096 \(last written at [^;]* UTC now\)"


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_worker_that_sigbus_ends_is_reported_with_the_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    path = write_npy(tmp_path, 1)
    os.utime(path, ns=(1, 1))
    dataset = TouchesWhatIsGone(path, restores=False)
    loader = stoker.DataLoader(dataset, batch_size=4, num_workers=1, multiprocessing_context=method)
    caplog.set_level(logging.WARNING, "stoker")
    # the next worker finds the file cut off when it maps it
    with pytest.raises(StaleSource, match=r"x\.npy is no longer the file .* it had 65664 bytes and has 4096"):
        list(loader)
    assert caplog.text.count("worker 0 has ended") == 1
    assert re.search(BUS, caplog.text)


def test_a_batch_that_sigbus_ends_again_and_again_is_blamed_with_the_file(tmp_path: Path) -> None:
    dataset = TouchesWhatIsGone(write_npy(tmp_path, 1), restores=True)
    loader = stoker.DataLoader(dataset, batch_size=4, num_workers=1, multiprocessing_context="fork")
    with pytest.raises(WorkerDied, match=f"positions 0, 1, 2, 3, .*{BUS}, .*{BUS}, .*{BUS}") as caught:
        list(loader)
    assert "a file was truncated while it was read through a memory map" in str(caught.value)


def test_a_file_is_listed_once_and_blamed_only_if_it_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_watch, "_report", file_watch._WatchReport())
    monkeypatch.setattr(file_watch, "_watches", WeakSet())
    first, second = write_npy(tmp_path, 1), write_raw(tmp_path, 1)
    watch = file_watch.FileWatch()
    watch.add(first, first.stat())
    with open(tmp_path / "list", "a+b", buffering=0) as listed:
        file_watch.report_to(listed.fileno())
        for _ in range(3):
            watch.add(second, second.stat())
        assert (tmp_path / "list").read_bytes().count(b"\n") == 2
        assert file_watch.changed_files(listed.fileno(), os.getpid()) == []
        os.truncate(second, 0)
        listed.write(b"[cut o")  # as a process leaves it that dies over it
        [blamed] = file_watch.changed_files(listed.fileno(), os.getpid())
        assert blamed.startswith(f"{second}: it had ")
        assert file_watch.changed_files(listed.fileno(), os.getpid() + 1) == []


# ---------------------------------------------------------------- when files are looked at


class Clock:
    """Seconds that pass as a test says: `step` with every look at the clock."""

    def __init__(self) -> None:
        self.now = self.step = 0.0

    def __call__(self) -> float:
        self.now += self.step
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    moved = Clock()
    monkeypatch.setattr(file_watch, "clock", moved)
    return moved


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that were looked at."""
    found: list[str] = []
    difference = file_watch.WatchedFile.difference

    def noted(file: file_watch.WatchedFile) -> str | None:
        found.append(Path(file.path).name)
        return difference(file)

    monkeypatch.setattr(file_watch.WatchedFile, "difference", noted)
    return found


def watch_of(tmp_path: Path, num_files: int) -> file_watch.FileWatch:
    watch = file_watch.FileWatch()
    for number in range(num_files):
        (tmp_path / f"f{number}").write_text("x")
        watch.add(tmp_path / f"f{number}", (tmp_path / f"f{number}").stat())
    return watch


def test_looking_takes_a_hundredth_of_the_time(tmp_path: Path, clock: Clock, looks: list[str]) -> None:
    watch = watch_of(tmp_path, 1)
    clock.step = 0.001  # what a look takes
    watch.check()
    assert looks == ["f0"]
    clock.step, begin = 0.0, clock.now
    while len(looks) == 1:
        watch.check()
        clock.now += 0.01
    assert clock.now - begin == pytest.approx(0.1, abs=0.02)


def test_many_files_are_looked_at_in_turn_a_few_at_a_time(tmp_path: Path, clock: Clock, looks: list[str]) -> None:
    watch = watch_of(tmp_path, 100)
    clock.step = 0.0001
    for _ in range(500):
        before = len(looks)
        watch.check()
        assert len(looks) - before <= 2
        clock.now += 0.01
    assert len(looks) > 300
    assert max(map(looks.count, set(looks))) - min(map(looks.count, set(looks))) <= 1
    looks.clear()
    clock.now += 10  # nobody has read for a while: there is time for all of them
    watch.check()
    assert sorted(looks) == sorted(f"f{number}" for number in range(100))


def test_no_file_is_looked_at_before_its_time(tmp_path: Path, clock: Clock, looks: list[str]) -> None:
    watch = watch_of(tmp_path, 2)
    clock.step = 1.0
    watch.check()
    clock.step, num = 0.0, len(looks)
    for _ in range(1000):
        watch.check()
    assert len(looks) == num


def test_a_file_that_is_dropped_is_looked_at_no_more(tmp_path: Path, looks: list[str]) -> None:
    watch = watch_of(tmp_path, 0)
    path = write_npy(tmp_path, 1)
    file = watch.add(path, path.stat())
    watch.discard(file)
    watch.discard(file)
    os.truncate(path, 0)
    watch.check()
    watch.check_now()
    assert looks == []


@pytest.mark.usefixtures("always_looking")
def test_mapped_files_that_made_room_for_others_are_not_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looks: list[str]
) -> None:
    monkeypatch.setattr(mapped_files, "_most_mappings", lambda: 8)
    paths = []
    for number in range(30):
        np.full(100, number, np.uint16).tofile(tmp_path / f"{number:02}.bin")
        paths.append(tmp_path / f"{number:02}.bin")
    source = RawTokens(paths)
    assert [source[100 * number] for number in range(30)] == list(range(30))
    looks.clear()
    source[2900]
    assert len(set(looks)) == 8 and "29.bin" in looks


def test_a_store_whose_copy_is_damaged_is_not_stale(tmp_path: Path) -> None:
    _, path, _ = opened("store", tmp_path)
    shutil.copytree(path.parent, tmp_path / "copy")
    copy = tmp_path / "copy" / path.name
    content = bytearray(copy.read_bytes())
    content[-5] ^= 1
    copy.write_bytes(content)
    with pytest.raises(DataError, match="is damaged in block"):
        open_store(tmp_path / "copy")[NUM - 1]
