"""Stores that are damaged, hostile, cut short or replaced while they are read: a clear error, and nothing worse."""

from __future__ import annotations

import errno
import gc
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

import stoker
from stoker.errors import DamagedBlock, DamagedFile, NotAStore, StaleSource
from stoker.store import Build, Column, Store, Writer, create_array, open_store, verify
from tests.store import by_hand
from tests.store.places import folder

TOKENS = {"tokens": Column.ragged("uint16")}
NUM = 3000


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with folder() as path:
        yield path


def numbers(count: int = NUM, first: int = 0) -> dict[str, Any]:
    """Samples of 1 to 60 tokens, each with its own first token."""
    lengths = 1 + np.arange(first, first + count) % 60
    values = np.repeat(np.arange(first, first + count), lengths)
    return {"tokens": (values, lengths)}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Several shards of several blocks."""
    with Writer(tmp_path / "s", TOKENS, shard_bytes=100_000) as writer:
        writer.extend(numbers())
    return open_store(tmp_path / "s")


def flip(path: Path, at: int) -> None:
    with open(path, "r+b") as file:
        byte = os.pread(file.fileno(), 1, at)[0]
        os.pwrite(file.fileno(), bytes([byte ^ 16]), at)


def in_a_fork(do: Callable[[], object]) -> int:
    """Return how a child ends that does something; 0 if that went well."""
    child = os.fork()
    if not child:
        try:
            do()
            os._exit(0)
        except BaseException as error:
            sys.stderr.write(f"in a fork: {error!r}\n")
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def run(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True)


# ---------------------------------------------------------------- files that are not what they were


def lengths_of(shard: Any) -> list[int]:
    middle = (shard.body + shard.num_bytes) // 2
    return [0, 1, 7, 8, 100, 65535, 65536, shard.body - 1, shard.body, shard.body + 1, middle, shard.num_bytes - 1]


@pytest.mark.parametrize("which", range(12))
def test_a_shard_that_is_cut_off_is_reported(store: Store, which: int) -> None:
    shard = store.manifest.shards[1]
    length = lengths_of(shard)[which]
    os.truncate(store.path / shard.file, length)
    first = store.manifest.shards[0].num_samples
    for check in (True, False):
        other = open_store(store.path, check=check)
        assert len(other[0]["tokens"]) == 1
        for _ in range(2):
            with pytest.raises(
                DamagedFile,
                match=f"{shard.file} is truncated: it has {length} bytes, but {shard.num_bytes}",
            ):
                other[first]


def test_a_shard_that_is_too_long_is_reported(store: Store) -> None:
    shard = store.manifest.shards[0]
    with open(store.path / shard.file, "ab") as file:
        file.write(b"\0")
    with pytest.raises(DamagedFile, match=f"{shard.file} is too long: it has {shard.num_bytes + 1} bytes"):
        store[0]


@pytest.mark.parametrize("magic", [b"\x93NUMPY\1\0", b"\0" * 8, b"\xff" * 8, b"PAR1" * 2, b'{"format'])
def test_a_file_of_another_kind_is_reported(store: Store, magic: bytes) -> None:
    path = store.path / store.manifest.shards[0].file
    data = path.read_bytes()
    path.write_bytes(magic + data[8:])
    with pytest.raises(DamagedFile, match=f"{path.name} (has a header of|does not begin with)"):
        store[0]
    assert not verify(store.path).is_sound


def test_a_shard_that_is_missing_is_reported(store: Store) -> None:
    shard = store.manifest.shards[0]
    (store.path / shard.file).unlink()
    with pytest.raises(DamagedFile, match=f"{shard.file} is listed in the manifest, but missing\nhint: copy the file"):
        store[0]


def test_a_pipe_in_the_place_of_a_shard_is_not_waited_for(store: Store) -> None:
    path = store.path / store.manifest.shards[0].file
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(DamagedFile, match="is truncated: it has 0 bytes"):
        store[0]


def test_shards_of_the_same_size_that_were_swapped_are_reported(tmp_path: Path) -> None:
    arrays = [by_hand.of_tokens([value] * 3, [0, 1, 3]) for value in (1, 2)]
    path = by_hand.write(tmp_path / "s", arrays)
    assert open_store(path).read_ragged("tokens", range(4))[0].tolist() == [1, 1, 1, 2, 2, 2]
    os.rename(path / "s0.safetensors", path / "x")
    os.rename(path / "s1.safetensors", path / "s0.safetensors")
    os.rename(path / "x", path / "s1.safetensors")
    for position, name in ((0, "s0.safetensors"), (3, "s1.safetensors")):
        with pytest.raises(DamagedFile, match=f"{name} is not the file in the manifest: its header or its che"):
            open_store(path)[position]
    assert [damage.file for damage in verify(path).damages] == ["s0.safetensors", "s1.safetensors"]


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"num_samples": 1}, "does not match the manifest: tokens.offsets differ"),
        ({"num_samples": 2**40}, "does not match the manifest: tokens.offsets differ"),
        ({"values": {"tokens": 2**40}}, "does not match the manifest: tokens differ"),
        ({"values": {"tokens": 0}}, "does not match the manifest: tokens differ"),
        ({"num_bytes": 2**50, "body": 65536 + 2**37}, "is truncated: it has 131102 bytes, but 11258"),
        ({"num_bytes": 2**61, "body": 2**48}, "the body of shard s0.safetensors cannot begin at byte"),
        ({"num_bytes": 2**40, "body": 2**40}, "the body of shard s0.safetensors cannot begin at byte"),
        ({"num_bytes": 131072 + 40}, "is truncated: it has 131102 bytes, but 131112"),
        ({"digest": "0" * 16}, "is not the file in the manifest"),
    ],
)
def test_a_manifest_that_disagrees_with_a_shard_is_reported(
    tmp_path: Path, changes: dict[str, Any], shown: str
) -> None:
    path = by_hand.write(
        tmp_path / "s", [by_hand.of_tokens([1, 2, 3], [0, 1, 3])], edit_entry=lambda entry: entry.update(changes)
    )
    with pytest.raises(DamagedFile, match=shown):
        open_store(path)[0]


def test_columns_of_another_type_of_the_same_size_are_reported(tmp_path: Path) -> None:
    columns = by_hand.tokens_column()
    columns["tokens"]["dtype"] = "int16"
    path = by_hand.write(tmp_path / "s", [by_hand.of_tokens([1, 2, 3], [0, 1, 3])], columns=columns)
    with pytest.raises(DamagedFile, match="does not match the manifest: tokens differ"):
        open_store(path)[0]


def header_edits() -> dict[str, tuple[Callable[[dict[str, Any]], Any], str]]:
    def swap(table: dict[str, Any]) -> None:
        table["tokens"], table["tokens.offsets"] = table["tokens.offsets"], table["tokens"]

    def offsets(name: str, begin: int, end: int) -> Callable[[dict[str, Any]], Any]:
        return lambda table: table[name].update(data_offsets=[begin, end])

    return {
        "swapped": (swap, "does not match the manifest"),
        "overlapping": (offsets("tokens", 65536, 65542), "begins at byte"),
        "negative": (offsets("tokens", -6, 0), "a size or an offset is not an integer"),
        "backwards": (offsets("tokens", 65566, 65560), "cannot have -6 bytes"),
        "huge": (offsets("tokens", 2**61, 2**61 + 6), "begins at byte"),
        "beyond": (lambda table: table["tokens"].update(data_offsets=[65560, 65568], shape=[4]), "is truncated"),
        "no checksums": (lambda table: table.pop("stoker.checksums"), "begins at byte"),
        "one more": (
            lambda table: table.update(more={"dtype": "U8", "shape": [0], "data_offsets": [65566, 65566]}),
            "more differ",
        ),
        "checksums of another type": (lambda table: table["stoker.checksums"].update(dtype="I64"), "has no checksums"),
        "other blocks": (lambda table: table["__metadata__"].update(block_bytes="4096"), "has blocks of 4096 bytes"),
        "no blocks": (lambda table: table.pop("__metadata__"), "has blocks of None bytes"),
    }


@pytest.mark.parametrize("lie", header_edits())
def test_a_header_that_lies_is_shown_even_if_its_checksum_is_right(tmp_path: Path, lie: str) -> None:
    edit, shown = header_edits()[lie]
    arrays = by_hand.of_tokens([1, 2, 3], [0, 1, 3])
    path = by_hand.write(tmp_path / "s", [arrays], edit_header=edit)
    with pytest.raises(DamagedFile, match=f"s0.safetensors .*{shown}"):
        open_store(path)[0]
    assert not verify(path).is_sound


def test_a_damaged_block_is_named_and_stays_damaged(store: Store) -> None:
    shard = store.manifest.shards[0]
    path = store.path / shard.file
    flip(path, shard.num_bytes - 5)
    store = open_store(store.path)
    last, block = shard.num_samples - 1, (shard.num_bytes - shard.body - 5) // 65536
    assert store[0]["tokens"].tolist() == [0]
    readers: list[Callable[[], Any]] = [
        lambda: store[last],
        lambda: store.__getitems__([0, last]),
        lambda: store.read_ragged("tokens", range(last + 1)),
        lambda: store.stretch().windows(np.array([shard.values["tokens"] - 40]), 40),
        lambda: store.stretch().windows(np.array([0]), shard.values["tokens"]),
    ]
    for read in readers * 2:
        with pytest.raises(DamagedBlock, match=f"{shard.file} is damaged in block {block} \\(of tokens\\)") as caught:
            read()
        assert caught.value.path == str(path) and caught.value.block == block
    assert store[0]["tokens"].tolist() == [0]
    assert store[shard.num_samples]["tokens"].size
    unchecked = open_store(store.path, check=False)
    assert unchecked[last]["tokens"].size


def test_offsets_in_a_damaged_block_are_not_believed(store: Store) -> None:
    shard = store.manifest.shards[0]
    flip(store.path / shard.file, shard.body + 8 * 7 + 5)
    with pytest.raises(DamagedBlock, match="block 0 \\(of tokens.offsets"):
        open_store(store.path)[6]
    unchecked = open_store(store.path, check=False)
    for position in (6, 7):
        with pytest.raises(DamagedFile, match=f"has invalid offsets: sample {position} of 'tokens'"):
            unchecked[position]
    with pytest.raises(DamagedFile, match="has invalid offsets"):
        unchecked.tokens(8, across=False)


@pytest.mark.parametrize("engine", [{}, {"num_threads": 2}, {"num_workers": 2}], ids=["inline", "threads", "processes"])
def test_a_loader_tells_of_damage_or_passes_over_it(store: Store, engine: dict[str, Any]) -> None:
    shard = store.manifest.shards[0]
    flip(store.path / shard.file, shard.num_bytes - 5)
    crops = open_store(store.path).tokens(256)
    with pytest.raises(DamagedBlock, match=f"{shard.file} is damaged in block 1") as caught:
        list(stoker.DataLoader(crops, batch_size=8, **engine))
    assert "while reading positions" in "\n".join(caught.value.__notes__)
    loader = stoker.DataLoader(crops, batch_size=8, on_error=stoker.Policy("skip", max_rate=1.0), **engine)
    assert sum(len(batch["tokens"]) for batch in loader) == len(crops)
    skipped = list(loader.ledger)
    assert skipped and all("is damaged in block 1" in entry.reason for entry in skipped)


# ---------------------------------------------------------------- hostile stores, in a process of their own


@pytest.mark.parametrize("seed", range(2))
def test_whatever_is_changed_the_data_is_right_or_an_error_names_the_file(tmp_path: Path, seed: int) -> None:
    count = 250
    number = seed if os.environ.get("CI") else int.from_bytes(os.urandom(3), "little")
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.store.fuzz", str(tmp_path), str(number), str(count)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert ended.returncode == 0, f"seed {number}: {ended.stderr[-2000:]}"
    results = json.loads(ended.stdout)
    assert results["refused"] + results["read"] == count


OFFSETS = [
    [0, 4, 3],
    [0, -1, 3],
    [-(2**63), 0, 3],
    [1, -(2**63), 3],
    [0, 2**63 - 1, 3],
    [2**63 - 1, -(2**63), 3],
    [0, 2**40, 2**40],
    [2, 1, 0],
]


@pytest.mark.parametrize("offsets", OFFSETS, ids=str)
def test_hostile_offsets_with_right_checksums_are_reported(tmp_path: Path, offsets: list[int]) -> None:
    path = by_hand.write(tmp_path / "s", [by_hand.of_tokens([1, 2, 3], offsets)])
    code = """if True:
        import sys, numpy as np
        from stoker.errors import DataError
        from stoker.store import open_store
        reads = [
            lambda store: store.__getitems__([0, 1]),
            lambda store: store.read_ragged("tokens", [0, 1]),
            lambda store: store.lengths("tokens", [0, 1]),
            lambda store: store.stretch().offsets(0, 2),
            lambda store: store.tokens(2, across=False).__getitems__([0]),
        ]
        for check in (True, False):
            for read in reads:
                try:
                    read(open_store(sys.argv[1], check=check))
                    sys.exit("it was read")
                except DataError as error:
                    assert "invalid" in str(error), error
    """
    ended = run(code, path)
    assert ended.returncode == 0, ended.stderr


# ---------------------------------------------------------------- writers that are killed

CALLS = ["write", "fsync", "replace", "unlink", "mkdir", "rename", "rmdir"]


def dying_at(number: int, do: Callable[[], object]) -> int:
    """Do something in a fork that ends, as if by kill -9, at the call `number` that changes something on disk."""

    def dying() -> None:
        count = 0

        def counted(name: str) -> Callable[..., Any]:
            real = getattr(os, name)

            def call(*arguments: Any, **options: Any) -> Any:
                nonlocal count
                count += 1
                if count == number:
                    if name == "write":  # half of it may be there
                        real(arguments[0], arguments[1][: len(arguments[1]) // 2])
                    os._exit(77)
                return real(*arguments, **options)

            return call

        for name in CALLS:
            setattr(os, name, counted(name))
        do()

    return in_a_fork(dying)


def contents(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def all_tokens(store: Store) -> Any:
    return store.read_ragged("tokens", range(len(store)))[0].tolist()


def write(path: Path, *, first: int = 0, **options: Any) -> None:
    with Writer(path, TOKENS, shard_bytes=2000, **options) as writer:
        done = writer.num_samples
        writer.extend(numbers(50 - done, first + done))


def test_a_writer_killed_anywhere_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    write(tmp_path / "whole")
    expected, whole = contents(tmp_path / "whole"), all_tokens(open_store(tmp_path / "whole"))
    for number in range(1, 200):
        path = tmp_path / "s"
        ended = dying_at(number, lambda path=path: write(path))  # type: ignore[misc]
        assert ended in (0, 77)
        try:
            assert all_tokens(open_store(path)) == whole
        except NotAStore:
            write(path, resume=True)
            assert contents(path) == expected
        for file in sorted(path.rglob("*"), reverse=True):
            file.rmdir() if file.is_dir() else file.unlink()
        path.rmdir()
        if not ended:
            break
    assert number > 20


def test_a_store_that_is_overwritten_is_the_old_one_or_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "s"
    write(path, first=1000)
    old = all_tokens(open_store(path))
    write(tmp_path / "new")
    new = all_tokens(open_store(tmp_path / "new"))
    seen = set()
    for number in range(1, 200):
        ended = dying_at(number, lambda: write(path, overwrite=True))
        found = all_tokens(open_store(path))
        assert found in (old, new) and verify(path).is_sound
        seen.add(found == new)
        if found == new:
            write(path, first=1000, overwrite=True)  # once more from the beginning
        if not ended:
            break
    assert seen == {False, True} and number > 20
    write(path, overwrite=True)
    names = sorted(file.name for file in path.iterdir())
    assert names == sorted(["manifest.json", "pieces.json", *(s.file for s in open_store(path).manifest.shards)])


def test_pieces_killed_anywhere_are_made_again_or_known(tmp_path: Path) -> None:
    def made(path: Path) -> None:
        build = Build(path, TOKENS, shard_bytes=2000)
        for key in "ba":
            if build.record(key) is None:
                with build.piece(key) as piece:
                    piece.notes["key"] = key
                    piece.extend(numbers(25, ord(key)))
        build.finish(["a", "b"], meta={"x": 1})

    made(tmp_path / "whole")
    expected = contents(tmp_path / "whole")
    for number in range(1, 200):
        path = tmp_path / f"s{number}"
        ended = dying_at(number, lambda path=path: made(path))  # type: ignore[misc]
        made(path)
        assert contents(path) == expected
        if not ended:
            break
    assert number > 20


KILLED = """if True:
    import sys
    from stoker.store import Column, Writer
    from tests.faults.test_store_faults import TOKENS, numbers
    with Writer(sys.argv[1], TOKENS, shard_bytes=3000, resume=True) as writer:
        for number in range(writer.num_samples, 20_000):
            writer.extend(numbers(1, number))
            if number % 100 == 0:
                print(number, flush=True)
"""


def test_a_writer_that_is_really_killed_goes_on(tmp_path: Path) -> None:
    with Writer(tmp_path / "whole", TOKENS, shard_bytes=3000) as writer:
        writer.extend(numbers(20_000))
    expected = contents(tmp_path / "whole")
    done = [0]
    for num_lines in (3, 40, 70):
        with subprocess.Popen(
            [sys.executable, "-c", KILLED, str(tmp_path / "s")], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
        ) as process:
            assert process.stdout is not None
            for _, line in zip(range(num_lines), process.stdout):
                reached = int(line)
            process.send_signal(signal.SIGKILL)
            assert process.wait() == -signal.SIGKILL
        with pytest.raises(NotAStore, match="its preparation is unfinished"):
            open_store(tmp_path / "s")
        done.append(reached)
    assert done[-1] > 3000
    with Writer(tmp_path / "s", TOKENS, shard_bytes=3000, resume=True) as writer:
        assert writer.num_samples > 2000
        writer.extend(numbers(20_000 - writer.num_samples, writer.num_samples))
    assert contents(tmp_path / "s") == expected


# ---------------------------------------------------------------- disks that are full


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    path = tmp_path / "disk"
    path.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", path], capture_output=True)
    if mounted.returncode:
        pytest.skip("file systems cannot be mounted here")
    try:
        yield path
    finally:
        gc.collect()
        subprocess.run(["umount", "-l", path], check=True)


def test_a_full_disk_is_told_and_the_writer_goes_on_when_there_is_room(small_disk: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"shard_bytes": 50_000}
    with Writer(tmp_path / "whole", TOKENS, **options) as writer:
        writer.extend(numbers(10_000))
    expected = contents(tmp_path / "whole")
    with (
        pytest.raises(OSError, match="No space left on device") as caught,
        Writer(small_disk / "s", TOKENS, **options) as writer,
    ):
        writer.extend(numbers(10_000))
    assert caught.value.errno == errno.ENOSPC
    assert "while writing " in caught.value.__notes__[0]
    left = contents(small_disk / "s")
    records = [json.loads(data) for name, data in left.items() if name.endswith(".json")]
    named = {entry["file"] for record in records for entry in record["shards"]}
    assert named == {name for name in left if not name.startswith(".build")}
    with pytest.raises(NotAStore, match="its preparation is unfinished"):
        open_store(small_disk / "s")
    subprocess.run(["mount", "-o", "remount,size=64m", small_disk], check=True)
    with Writer(small_disk / "s", TOKENS, resume=True, **options) as writer:
        assert writer.num_samples > 0
        writer.extend(numbers(10_000 - writer.num_samples, writer.num_samples))
    assert contents(small_disk / "s") == expected


def test_nothing_is_left_of_a_piece_or_an_array_when_the_disk_is_full(small_disk: Path) -> None:
    build = Build(small_disk / "s", TOKENS, shard_bytes=50_000)
    with pytest.raises(OSError, match="No space left on device"), build.piece("a") as piece:
        piece.extend(numbers(30_000))
    assert contents(small_disk / "s") == {} and build.record("a") is None
    with build.piece("a") as piece:
        piece.extend(numbers(100))
    with pytest.raises(OSError, match="No space left on device"), create_array(small_disk / "a", "uint8", (1 << 22,)):
        pytest.fail("a full disk is told before anything is filled in")
    assert sorted(file.name for file in small_disk.iterdir()) == ["s"]


def test_a_limit_on_the_size_of_files_is_reported(tmp_path: Path) -> None:
    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
        with pytest.raises(OSError, match="File too large"), Writer(tmp_path / "s", TOKENS) as writer:
            writer.extend(numbers(10_000))
        assert contents(tmp_path / "s") == {}

    assert in_a_fork(limited) == 0


# ---------------------------------------------------------------- readers at the same time


def test_forks_read_what_nobody_has_touched_and_what_others_have(store: Store) -> None:
    expected = all_tokens(open_store(store.path))

    def read() -> None:
        assert all_tokens(store) == expected

    assert in_a_fork(read) == 0
    store[0]
    assert in_a_fork(read) == 0
    read()
    assert in_a_fork(read) == 0


def test_a_fork_reads_while_another_thread_is_mapping(store: Store) -> None:
    expected = all_tokens(open_store(store.path))
    inside, over = threading.Event(), threading.Event()

    def hold() -> None:
        with store._files._lock:
            inside.set()
            over.wait()

    def read() -> None:
        signal.alarm(30)
        assert all_tokens(store) == expected

    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait()
    try:
        assert in_a_fork(read) == 0
    finally:
        over.set()
        thread.join()
    read()
    signal.alarm(0)


def test_threads_and_forks_read_at_once(store: Store) -> None:
    expected = all_tokens(store)
    for _ in range(3):
        fresh = open_store(store.path)
        barrier = threading.Barrier(4)
        found: list[bool] = []

        def read(fresh: Store = fresh, barrier: threading.Barrier = barrier, found: list[bool] = found) -> None:
            barrier.wait()
            found.append(all_tokens(fresh) == expected)

        threads = [threading.Thread(target=read) for _ in range(3)]
        for thread in threads:
            thread.start()
        barrier.wait()
        child = in_a_fork(lambda fresh=fresh: os._exit(0 if all_tokens(fresh) == expected else 1))  # type: ignore[misc]
        for thread in threads:
            thread.join()
        assert child == 0 and found == [True] * 3


# ---------------------------------------------------------------- stores that are replaced


def test_who_has_a_store_open_that_is_replaced_reads_the_old_one_or_is_reported(store: Store) -> None:
    old = all_tokens(store)
    half = open_store(store.path)
    half[0]
    unread = open_store(store.path)
    with Writer(store.path, TOKENS, overwrite=True, shard_bytes=100_000) as writer:
        writer.extend(numbers(NUM, 7))
    assert all_tokens(store) == old
    assert half[0]["tokens"].tolist() == [0]
    for position, other in ((NUM - 1, half), (0, unread)):
        with pytest.raises(StaleSource, match="the store was prepared again meanwhile\nhint: files must not change"):
            other[position]
    assert all_tokens(open_store(store.path)) != old


def test_pieces_made_again_under_their_names_are_distinguished(tmp_path: Path) -> None:
    build = Build(tmp_path / "s", TOKENS)
    for value in (1, 2):
        with build.piece("a") as piece:
            piece.append({"tokens": [value] * 9})
        if value == 1:
            build.finish(["a"])
            opened = open_store(tmp_path / "s")
        else:
            with pytest.raises(DamagedFile, match="is not the file in the manifest"):
                open_store(tmp_path / "s")[0]
    build.finish(["a"])
    with pytest.raises(StaleSource, match="the store was prepared again meanwhile"):
        opened[0]


# ---------------------------------------------------------------- stores that are big


def test_thousands_of_shards_need_no_descriptors(tmp_path: Path) -> None:
    num_shards = 3000
    path = by_hand.write(tmp_path / "s", [by_hand.of_tokens([1, 2, 3], [0, 1, 3])])
    table = json.loads((path / "manifest.json").read_text())
    [entry] = table["shards"]
    for number in range(1, num_shards):
        os.link(path / "s0.safetensors", path / f"s{number}.safetensors")
        table["shards"].append(entry | {"file": f"s{number}.safetensors"})
    table["num_samples"] = 2 * num_shards
    by_hand.write_manifest(path, table)
    before = len(os.listdir("/proc/self/fd"))
    store = open_store(path)
    assert all_tokens(store) == [1, 2, 3] * num_shards
    assert store.stretch().windows(np.array([0]), 3 * num_shards).tolist() == [[1, 2, 3] * num_shards]
    assert len(os.listdir("/proc/self/fd")) == before


def sparse(path: Path, num_samples: int) -> Path:
    """A store of that many empty samples and zeros: a file with holes, and checksums of nothing but zeros."""
    path.mkdir()
    sizes = {"tokens.offsets": 8 * (num_samples + 1), "x": num_samples, "tokens": 0}
    body_bytes = sum(sizes.values())
    num_blocks = -(-body_bytes // by_hand.BLOCK)
    sums = np.zeros(-(-num_blocks // 8192) * 8192, "<u8")
    sums[:num_blocks] = xxhash.xxh3_64_intdigest(bytes(by_hand.BLOCK))
    last = body_bytes - (num_blocks - 1) * by_hand.BLOCK
    sums[num_blocks - 1] = xxhash.xxh3_64_intdigest(bytes(last))
    table: dict[str, Any] = {"__metadata__": {"block_bytes": str(by_hand.BLOCK)}}
    at = sums.nbytes
    table["stoker.checksums"] = {"dtype": "U64", "shape": [len(sums)], "data_offsets": [0, at]}
    for name, dtype, shape in (
        ("tokens.offsets", "I64", [num_samples + 1]),
        ("tokens", "U16", [0]),
        ("x", "U8", [num_samples]),
    ):
        table[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + sizes[name]]}
        at += sizes[name]
    before = by_hand.head_of(table) + sums.tobytes()
    (path / "s.safetensors").write_bytes(before)
    os.truncate(path / "s.safetensors", len(before) + body_bytes)
    columns = {**by_hand.tokens_column(), "x": {"dtype": "uint8", "shape": [], "ragged": False, "kind": "array"}}
    entry = {
        "file": "s.safetensors",
        "piece": "p",
        "num_samples": num_samples,
        "num_bytes": len(before) + body_bytes,
        "body": len(before),
        "values": {"tokens": 0},
        "digest": f"{xxhash.xxh3_64_intdigest(before):016x}",
    }
    manifest = {"format": "stoker.store", "version": 1, "num_samples": num_samples, "columns": columns, "meta": {}}
    by_hand.write_manifest(path, {**manifest, "shards": [entry]})
    return path


def work(do: Callable[[], Any]) -> tuple[int, int]:
    """Return how many bytes something reads, and takes of Python's memory at the most."""

    def num_read() -> int:
        return int(Path("/proc/self/io").read_text().split()[1])

    counting = num_read()
    counting = num_read() - counting  # what looking costs
    gc.collect()
    tracemalloc.start()
    try:
        before = num_read()
        do()
        return num_read() - before - counting, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_opening_a_store_costs_the_same_for_any_number_of_samples(tmp_path: Path) -> None:
    small, big = sparse(tmp_path / "small", 10**5), sparse(tmp_path / "big", 10**9)
    opening: dict[Path, tuple[int, int]] = {}
    for path in (small, small, big):  # the first time, for what is only made once
        opening[path] = work(lambda path=path: (len(open_store(path)), open_store(path).tokens(64)))  # type: ignore[misc]
    (small_read, small_memory), (big_read, big_memory) = opening[small], opening[big]
    assert abs(big_read - small_read) <= 100
    assert abs(big_memory - small_memory) <= 4096
    store = open_store(big)
    assert len(store) == 10**9
    positions = [0, 10**9 - 1, 123_456_789, -5]
    num_read, memory = work(lambda: store.__getitems__(positions))
    assert [(sample["tokens"].size, int(sample["x"])) for sample in store.__getitems__(positions)] == [(0, 0)] * 4
    assert num_read < 3 << 20 and memory < 8 << 20  # the header and the checksums: 8 of every 65,536 bytes
    num_read, memory = work(lambda: store.__getitems__(positions))
    assert num_read == 0 and memory < 1 << 16


def test_many_may_begin_a_store_at_the_same_time(tmp_path: Path) -> None:
    for number in range(30):
        barrier = threading.Barrier(6)
        failures: list[BaseException] = []
        build = Build(tmp_path / f"s{number}", TOKENS)

        def make(
            key: str, build: Build = build, barrier: threading.Barrier = barrier, failures: Any = failures
        ) -> None:
            barrier.wait()
            try:
                with build.piece(key) as piece:
                    piece.append({"tokens": [ord(key)]})
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=make, args=(key,)) for key in "abcdef"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures
        assert all_tokens(build.finish(list("abcdef"))) == list(b"abcdef")
