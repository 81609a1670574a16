"""Plans of packed rows that are damaged, half written, unwritable or out of date: the same rows, and no stale ones."""

from __future__ import annotations

import fcntl
import gc
import logging
import os
import pickle
import resource
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import stoker
from stoker.compose.packs import pack_plan_cache as plan_cache
from stoker.compose.packs import pack_planning as planning
from stoker.compose.packs import packed as packed_module
from stoker.compose.packs.pack_tables import PackTables
from stoker.compose.packs.packed import Packed
from stoker.errors import ArgumentError, DataError, StaleSource
from stoker.plan import exchange
from stoker.store import Store, Writer, build, open_store, verify
from tests.faults.test_store_faults import CALLS, dying_at, flip, in_a_fork
from tests.store.places import folder

LENGTH = 64


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with folder() as path:
        yield path


def lengths_of(seed: int = 0, count: int = 40_000) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(0, 150, count)


def made(path: Path, *, seed: int = 0, count: int = 40_000) -> Store:
    lengths = lengths_of(seed, count)
    with Writer(path, {"tokens": "uint16[*]"}, overwrite=True, shard_bytes=1 << 20) as writer:
        writer.extend({"tokens": (np.arange(int(lengths.sum())).astype(np.uint16), lengths)})
    return open_store(path)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return made(tmp_path / "s")


def content(packed: Packed) -> list[NDArray[Any]]:
    """Return which documents are in all rows, and the tokens of some."""
    spans = packed.spans(range(len(packed)))
    tokens = packed.__getbatch__(range(0, len(packed), 97), np.empty)["tokens"]
    return [*spans, tokens]


def is_same(one: Packed, two: Packed) -> bool:
    return all(np.array_equal(*pair) for pair in zip(content(one), content(two), strict=True))


def plan_of(packed: Packed) -> Path:
    assert packed.plan_path is not None
    return packed.plan_path


def shard_of(packed: Packed) -> Path:
    [path] = plan_of(packed).glob("*.safetensors")
    return path


class Counting:
    """Counts how often something is planned."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.count = 0
        planned = planning.plan_best_fit

        def counted(*arguments: Any, **options: Any) -> PackTables:
            self.count += 1
            return planned(*arguments, **options)

        patch.setattr(packed_module, "plan_best_fit", counted)


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Counting:
    return Counting(monkeypatch)


# ---------------------------------------------------------------- found again


def test_a_plan_is_made_once_and_found_by_whoever_packs_the_same_way(store: Store, counting: Counting) -> None:
    first = stoker.pack(store, LENGTH)
    assert counting.count == 1
    same: list[dict[str, Any]] = [{}, {"seed": 5}, {"dtype": "int32"}, {"pad": 9}, {"ignored": -1}, {"blocks": 16}]
    for options in same:
        again = stoker.pack(store.path, LENGTH, **options)
        assert again.plan_path == first.plan_path
    assert counting.count == 1
    assert is_same(first, stoker.pack(store.path, LENGTH))
    others: list[dict[str, Any]] = [{"length": 65}, {"window": 100}, {"long": "truncate"}]
    for options in others:
        assert stoker.pack(store, **{"length": LENGTH, **options}).plan_path != first.plan_path
    assert counting.count == 4


def test_what_two_strategies_keep_is_told_apart(store: Store) -> None:
    laid, fitted = stoker.pack(store, LENGTH, strategy="concat"), stoker.pack(store, LENGTH)
    again = stoker.pack(store, LENGTH, strategy="concat")
    assert laid.plan_path == again.plan_path != fitted.plan_path
    assert laid.facts == again.facts != fitted.facts


def test_a_plan_is_a_store_and_does_not_disturb_the_one_it_is_in(store: Store) -> None:
    before = store.fingerprint
    packed = stoker.pack(store, LENGTH)
    assert verify(plan_of(packed)).is_sound
    assert verify(store.path).is_sound
    assert stoker.open(store.path).fingerprint == before
    assert len(stoker.open(store.path)) == len(store)


def test_a_plan_may_be_kept_elsewhere_or_in_memory(store: Store, tmp_path: Path, counting: Counting) -> None:
    beside = stoker.pack(store, LENGTH)
    there = stoker.pack(store, LENGTH, cache=tmp_path / "plans")
    again = stoker.pack(store, LENGTH, cache=str(tmp_path / "plans"))
    memory = stoker.pack(store, LENGTH, cache=False)
    assert plan_of(there).parent == tmp_path / "plans"
    assert again.plan_path == there.plan_path
    assert memory.plan_path is None
    assert counting.count == 3
    assert is_same(beside, there)
    assert is_same(beside, memory)
    documents = [[1, 2], [3]]
    kept = stoker.pack(documents, 4, cache=tmp_path / "plans")
    assert plan_of(kept).parent == tmp_path / "plans"
    assert plan_of(there).exists()


# ---------------------------------------------------------------- damaged


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.999])
def test_a_plan_that_is_cut_off_is_made_anew(store: Store, counting: Counting, share: float) -> None:
    packed = stoker.pack(store, LENGTH)
    expected = content(packed)
    shard = shard_of(packed)
    os.truncate(shard, int(share * shard.stat().st_size))
    again = stoker.pack(store.path, LENGTH)
    assert counting.count == 2
    assert all(np.array_equal(*pair) for pair in zip(expected, content(again), strict=True))
    assert verify(plan_of(again)).is_sound


@pytest.mark.parametrize("name", ["manifest.json", "shard"])
def test_a_plan_without_a_file_is_made_anew(store: Store, counting: Counting, name: str) -> None:
    packed = stoker.pack(store, LENGTH)
    (shard_of(packed) if name == "shard" else plan_of(packed) / name).unlink()
    assert is_same(stoker.pack(store.path, LENGTH), stoker.pack(store, LENGTH, cache=False))
    assert counting.count == 3


@pytest.mark.parametrize("seed", range(40))
def test_wherever_a_bit_is_flipped_the_rows_are_right(store: Store, seed: int) -> None:
    expected = stoker.pack(store, LENGTH, cache=False)
    packed = stoker.pack(store, LENGTH)
    rng = np.random.default_rng(seed)
    file = shard_of(packed) if seed % 4 else plan_of(packed) / "manifest.json"
    flip(file, int(rng.integers(file.stat().st_size)))
    again = stoker.pack(store.path, LENGTH)
    assert is_same(again, expected)
    assert verify(plan_of(again)).is_sound, "what was damaged is still there"
    assert is_same(stoker.pack(store.path, LENGTH), expected)


def test_damage_that_is_found_late_is_mended_under_way(
    store: Store, counting: Counting, caplog: pytest.LogCaptureFixture
) -> None:
    expected = stoker.pack(store, LENGTH, cache=False)
    shard = shard_of(stoker.pack(store, LENGTH))
    packed, other = stoker.pack(store.path, LENGTH), stoker.pack(store.path, LENGTH)
    assert counting.count == 2
    flip(shard, shard.stat().st_size - 100)  # the end of `order` or `pieces`, which nobody has looked at yet
    caplog.set_level(logging.WARNING, "stoker")
    assert is_same(packed, expected)
    assert counting.count == 3
    assert "is damaged; planning again" in caplog.text
    assert is_same(other, expected)
    assert counting.count == 3, "somebody had mended it already"
    assert is_same(pickle.loads(pickle.dumps(packed)), expected)
    assert packed.find(17) == expected.find(17)


def test_a_plan_that_was_moved_under_another_key_is_not_believed(store: Store, counting: Counting) -> None:
    short, long = stoker.pack(store, LENGTH), stoker.pack(store, 2 * LENGTH)
    shutil.rmtree(plan_of(long))
    shutil.copytree(plan_of(short), plan_of(long))
    again = stoker.pack(store, 2 * LENGTH)
    assert counting.count == 3
    assert is_same(again, stoker.pack(store, 2 * LENGTH, cache=False))


TAMPERED: list[tuple[str, Any, int]] = [
    ("row_starts", -1, 10**6),
    ("row_starts", 3, 0),
    ("slot_starts", 2, -1),
    ("slot_starts", -1, 10**6),
    ("slots", (0, 0), 2**32 - 1),
    ("slots", ("in many rows", 1), 2**32 - 1),
    ("slots", ("in many rows", 2), 2**31),
    ("slots", ("in many rows", 2), 0),
    ("classes", (0, 0), -1),
    ("classes", (4, 0), 2**62),
    ("classes", (4, 1), 2**62),
    ("classes", (4, 1), 0),
    ("classes", (4, 2), LENGTH + 1),
    ("classes", (0, 4), 2**63 - 1),
]


def kept_instead(packed: Packed, **tables: Any) -> None:
    """Put another plan in the place of one, with checksums that are right."""
    path, meta = plan_of(packed), Store(plan_of(packed)).meta
    layout = planning.plan_best_fit([lengths_of()], length=LENGTH, window=None, long="split")
    shutil.rmtree(path)
    plan_cache.write_plan(path, replace(layout, **tables), meta=meta)


@pytest.mark.parametrize(("name", "place", "number"), TAMPERED, ids=str)
def test_tables_that_cannot_be_are_made_anew(
    store: Store, counting: Counting, monkeypatch: pytest.MonkeyPatch, name: str, place: Any, number: int
) -> None:
    monkeypatch.setattr(exchange, "MOST_SLOTS", 1)  # sections of more than one row
    packed = stoker.pack(store, LENGTH)
    layout = planning.plan_best_fit([lengths_of()], length=LENGTH, window=None, long="split")
    table = getattr(layout, name).copy()
    if isinstance(place, tuple) and place[0] == "in many rows":
        place = (int(layout.slot_starts[1 + int(np.diff(layout.row_starts)[1:].argmax())]), place[1])
    table[place] = number
    kept_instead(packed, **{name: table})
    assert is_same(stoker.pack(store.path, LENGTH), packed)
    assert counting.count == 2


@pytest.mark.parametrize("fact", ["num_rows", "num_tokens", "num_spans", "max_documents", "max_seqlen"])
def test_facts_that_cannot_be_are_not_believed(store: Store, counting: Counting, fact: str) -> None:
    packed = stoker.pack(store, LENGTH)
    path, meta = plan_of(packed), Store(plan_of(packed)).meta
    layout = planning.plan_best_fit([lengths_of()], length=LENGTH, window=None, long="split")
    meta["pack"]["facts"][fact] -= 1
    shutil.rmtree(path)
    plan_cache.write_plan(path, layout, meta=meta)
    assert stoker.pack(store.path, LENGTH).facts == packed.facts
    assert counting.count == 2


@pytest.mark.parametrize("fact", ["num_rows", "most_documents", "max_documents", "max_seqlen"])
def test_facts_of_a_plan_without_tables_are_not_believed_either(store: Store, fact: str) -> None:
    packed = stoker.pack(store, LENGTH, strategy="concat")
    path, meta = plan_of(packed), Store(plan_of(packed)).meta
    meta["pack"]["facts"][fact] = 2**40
    shutil.rmtree(path)
    plan_cache.write_plan(path, PackTables.without_tables(packed.facts), meta=meta)
    assert stoker.pack(store.path, LENGTH, strategy="concat").facts == packed.facts


@pytest.mark.parametrize("long", ["split", "truncate"])
def test_a_plan_with_documents_of_other_lengths_gives_no_rows(store: Store, long: Any) -> None:
    packed = stoker.pack(store, LENGTH, long=long)
    path, meta = plan_of(packed), Store(plan_of(packed)).meta
    layout = planning.plan_best_fit([lengths_of()], length=LENGTH, window=None, long=long)
    shutil.rmtree(path)
    plan_cache.write_plan(path, replace(layout, order=np.asarray(layout.order)[::-1].copy()), meta=meta)
    with pytest.raises(DataError, match="is not one of these documents"):
        stoker.pack(store.path, LENGTH, long=long).spans(range(100))


def test_a_plan_with_pieces_that_are_not_there_gives_no_rows(store: Store) -> None:
    packed = stoker.pack(store, LENGTH)
    pieces = np.asarray(planning.plan_best_fit([lengths_of()], length=LENGTH, window=None, long="split").pieces)
    kept_instead(packed, pieces=pieces + np.uint32(3))
    with pytest.raises(DataError, match="is not one of these documents"):
        stoker.pack(store.path, LENGTH)[0]


def test_a_plan_that_is_removed_while_it_is_written_stays_in_memory(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = stoker.pack(store, LENGTH, cache=False)

    def removed_first(path: Path) -> Store:
        shutil.rmtree(store.path / ".packs")
        return open_store(path)

    monkeypatch.setattr(build, "open_store", removed_first)
    packed = stoker.pack(store.path, LENGTH)
    assert packed.plan_path is None
    assert is_same(packed, expected)


def test_who_has_a_plan_that_is_removed_goes_on(store: Store) -> None:
    packed = stoker.pack(store, LENGTH)
    expected = stoker.pack(store, LENGTH, cache=False)
    shutil.rmtree(store.path / ".packs")
    assert is_same(packed, expected)
    copy = pickle.loads(pickle.dumps(packed))
    assert is_same(copy, expected)


# ---------------------------------------------------------------- nowhere to write


def told(caplog: pytest.LogCaptureFixture) -> int:
    return sum("plan stays in memory" in record.message for record in caplog.records)


def test_where_no_folder_can_be_made_the_plan_stays_in_memory(
    store: Store, counting: Counting, caplog: pytest.LogCaptureFixture
) -> None:
    (store.path / ".packs").write_text("a file in its place")
    expected = stoker.pack(store, LENGTH, cache=False)
    packed = stoker.pack(store, LENGTH)
    assert packed.plan_path is None
    assert is_same(packed, expected)
    stoker.pack(store, LENGTH)
    assert told(caplog) == 1, "said once"
    assert is_same(pickle.loads(pickle.dumps(packed)), expected)
    assert counting.count == 3, "a copy does not plan again"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_folder_of_somebody_else_is_left_alone(store: Store) -> None:
    for path in (store.path.parent, store.path, *store.path.iterdir()):
        path.chmod(0o755 if path.is_dir() else 0o644)

    def pack() -> None:
        os.setuid(65534)
        packed = stoker.pack(store.path, LENGTH)
        assert packed.plan_path is None
        assert int(packed.spans(range(len(packed))).sizes.sum()) == packed.num_tokens

    assert in_a_fork(pack) == 0
    assert not (store.path / ".packs").exists()


def test_a_limit_on_the_size_of_files_leaves_nothing_behind(store: Store) -> None:
    def pack() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
        packed = stoker.pack(store, LENGTH)
        assert packed.plan_path is None
        assert is_same(packed, stoker.pack(store, LENGTH, cache=False))

    assert in_a_fork(pack) == 0
    assert list((store.path / ".packs").iterdir()) == []
    assert stoker.pack(store, LENGTH).plan_path is not None


def test_a_full_disk_leaves_the_plan_in_memory(store: Store, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", disk], capture_output=True)
    if mounted.returncode:
        pytest.skip("file systems cannot be mounted here")
    try:
        packed = stoker.pack(store, LENGTH, cache=disk / "plans")
        assert packed.plan_path is None
        assert is_same(packed, stoker.pack(store, LENGTH, cache=False))
        assert list((disk / "plans").iterdir()) == []
    finally:
        gc.collect()
        subprocess.run(["umount", "-l", disk], check=True)


# ---------------------------------------------------------------- killed, and several at once


def test_a_planner_killed_anywhere_leaves_nothing_wrong(tmp_path: Path) -> None:
    store = made(tmp_path / "s", count=2000)
    expected = stoker.pack(store, LENGTH, cache=False)
    code, number = 77, 0
    while code == 77:
        number += 1
        shutil.rmtree(store.path / ".packs", ignore_errors=True)
        code = dying_at(number, lambda: stoker.pack(store, LENGTH))
        again = stoker.pack(store.path, LENGTH)
        assert again.plan_path is not None
        assert is_same(again, expected)
        assert [path.name for path in (store.path / ".packs").iterdir()] == [again.plan_path.name]
    assert code == 0
    assert number > 10


class Striking:
    """Raises what Ctrl-C does at the call `number`, of those that change something on disk."""

    def __init__(self, number: int) -> None:
        self.left = number

    def over(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self.left -= 1
            if not self.left:
                raise KeyboardInterrupt
            return real(*arguments, **options)

        return call


def test_ctrl_c_anywhere_leaves_nothing_half_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = made(tmp_path / "s", count=2000)
    expected = stoker.pack(store, LENGTH, cache=False)
    packs = store.path / ".packs"
    is_struck, number = True, 0
    while is_struck:
        number += 1
        shutil.rmtree(packs, ignore_errors=True)
        striking = Striking(number)
        with monkeypatch.context() as patched:
            for name in CALLS:
                patched.setattr(os, name, striking.over(getattr(os, name)))
            try:
                stoker.pack(store, LENGTH)
                is_struck = False
            except KeyboardInterrupt:
                pass
        left = [path for path in packs.iterdir() if not path.name.startswith(".")] if packs.exists() else []
        again = stoker.pack(store.path, LENGTH)
        assert again.plan_path is not None
        assert is_same(again, expected)
        assert left in ([], [again.plan_path])
        assert [path.name for path in packs.iterdir()] == [again.plan_path.name]
    assert number > 10


def test_a_planner_that_is_really_killed_is_followed_by_another(store: Store) -> None:
    reached, write = os.pipe()
    pid = os.fork()
    if not pid:  # plans, and is killed when it has begun to write
        try:

            def stuck(*_: Any, **__: Any) -> None:
                (store.path / ".packs" / "half").mkdir()
                os.write(write, b"!")
                signal.pause()

            plan_cache.write_plan = stuck
            stoker.pack(store, LENGTH)
        finally:
            os._exit(1)
    os.close(write)
    assert os.read(reached, 1) == b"!"
    os.close(reached)
    found: list[Packed] = []
    waiting = threading.Thread(target=lambda: found.append(stoker.pack(store.path, LENGTH)))
    waiting.start()
    assert not found, "the lock is held"
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    waiting.join()
    assert found[0].plan_path is not None
    assert is_same(found[0], stoker.pack(store, LENGTH, cache=False))
    assert [path.name for path in (store.path / ".packs").iterdir()] == [found[0].plan_path.name]


def in_forks(count: int, do: Callable[[int], None]) -> list[int]:
    """Do something in several forks at the same time, and return how they ended."""
    begun, begin = os.pipe()
    pids = []
    for number in range(count):
        pid = os.fork()
        if not pid:
            code = 1
            try:
                os.close(begin)
                os.read(begun, 1)  # until the parent lets go
                do(number)
                code = 0
            finally:
                os._exit(code)
        pids.append(pid)
    os.close(begun)
    os.close(begin)
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


def test_processes_that_plan_at_once_plan_once_and_agree(store: Store, tmp_path: Path) -> None:
    expected = stoker.pack(store, LENGTH, cache=False)

    def pack(number: int) -> None:
        with pytest.MonkeyPatch.context() as patch:
            counting = Counting(patch)
            packed = stoker.pack(store.path, LENGTH)
            assert packed.plan_path is not None
            assert is_same(packed, expected)
            if counting.count:
                (tmp_path / f"planned-{number}").touch()

    assert in_forks(6, pack) == [0] * 6
    assert len(list(tmp_path.glob("planned-*"))) == 1


def test_threads_that_plan_at_once_plan_once_and_agree(store: Store, counting: Counting) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: stoker.pack(store.path, LENGTH), range(4)))
    assert counting.count == 1
    assert len({packed.plan_path for packed in found}) == 1


def test_where_folders_cannot_be_locked_plans_stay_in_memory(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise OSError("no locks")

    expected = stoker.pack(store, LENGTH, cache=False)
    monkeypatch.setattr(fcntl, "flock", refused)
    packed = stoker.pack(store, LENGTH)
    assert packed.plan_path is None
    assert is_same(packed, expected)


def test_threads_read_rows_of_several_epochs_at_once(store: Store) -> None:
    packed = stoker.pack(store, LENGTH)
    expected = {epoch: content(stoker.pack(store, LENGTH, cache=False).in_epoch(epoch)) for epoch in range(6)}

    def read(epoch: int) -> bool:
        return all(np.array_equal(*pair) for pair in zip(content(packed.in_epoch(epoch)), expected[epoch], strict=True))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(read, [number % 6 for number in range(24)]))


# ---------------------------------------------------------------- a store made anew


def test_a_store_made_anew_has_a_plan_of_its_own_and_no_old_one(store: Store, counting: Counting) -> None:
    old = stoker.pack(store, LENGTH)
    sent = pickle.dumps(old)
    new = made(store.path, seed=1)
    assert not (store.path / ".packs").exists(), "plans of what is no more"
    packed = stoker.pack(new, LENGTH)
    assert counting.count == 2
    assert packed.plan_path != old.plan_path
    assert is_same(packed, stoker.pack(new, LENGTH, cache=False))
    with pytest.raises(StaleSource, match="was prepared again"):
        pickle.loads(sent)


def test_plans_that_came_from_another_store_are_removed(store: Store, tmp_path: Path) -> None:
    other = made(tmp_path / "other", seed=1)
    left = plan_of(stoker.pack(other, LENGTH))
    shutil.copytree(left, store.path / ".packs" / left.name)
    kept = plan_of(stoker.pack(store, LENGTH))
    assert [path.name for path in (store.path / ".packs").iterdir()] == [kept.name]


def test_tokens_that_cannot_be_told_from_others_have_no_plan_on_disk(tmp_path: Path) -> None:
    from tests.compose.test_packed import Others

    with pytest.raises(ArgumentError, match="the source has no fingerprint"):
        stoker.pack(Others(), 8, cache=tmp_path / "plans")
