"""`Lines` and `LineStream` against a plain model: the file's bytes split at line feeds."""

from __future__ import annotations

import fcntl
import gc
import gzip
import json
import multiprocessing
import os
import pickle
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker import errors
from stoker.source import LineStream, Source, Splittable, line_index
from stoker.source.line_stream import LineIterator, Sizes
from stoker.source.lines import Lines

PACK: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": lambda data: gzip.compress(data, mtime=0),
    ".zst": lambda data: zstandard.ZstdCompressor(write_checksum=True).compress(data),
}

contents = st.lists(
    st.sampled_from([b"", b"\n", b"\r\n", b"\r", b"a", b"bc", b"\xff", b"\xef\xbb\xbf", b"x" * 40])
).map(b"".join)
suffixes = st.sampled_from(list(PACK))
datasets = st.lists(st.tuples(contents, suffixes), min_size=1, max_size=4)
sizes = st.builds(Sizes, chunk_bytes=st.integers(1, 30), block_bytes=st.integers(1, 30))


def model(data: bytes) -> list[bytes]:
    """The lines of a file, the slow and obvious way."""
    lines = data.split(b"\n")
    last = lines.pop()
    lines = [line.removesuffix(b"\r") for line in lines]
    return [*lines, last] if last else lines


@contextmanager
def written(dataset: list[tuple[bytes, str]]) -> Iterator[tuple[Path, list[Path]]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = []
        for number, (data, suffix) in enumerate(dataset):
            path = folder / f"{number}.bin{suffix}"
            path.write_bytes(PACK[suffix](data))
            paths.append(path)
        yield folder, paths


def sized(stream: LineStream, chosen: Sizes) -> LineStream:
    return LineStream.of(stream._files, sizes=chosen)


def expected(dataset: list[tuple[bytes, str]]) -> list[bytes]:
    return [line for data, _ in dataset for line in model(data)]


# --- laws


@settings(deadline=None)
@given(dataset=datasets, scan_bytes=st.integers(1, 30), target_bytes=st.integers(1, 200), data=st.data())
def test_every_line_is_read_by_its_position(
    dataset: list[tuple[bytes, str]], scan_bytes: int, target_bytes: int, data: st.DataObject
) -> None:
    with ExitStack() as stack:
        stack.enter_context(patch.object(line_index, "SCAN_BYTES", scan_bytes))
        stack.enter_context(patch.object(line_index, "_TARGET_BYTES", target_bytes))
        folder, paths = stack.enter_context(written(dataset))
        lines = Lines(paths, parse="bytes", index_dir=folder / "index")
        want = expected(dataset)
        assert len(lines) == len(want)
        assert [lines[position] for position in range(len(want))] == want
        asked = data.draw(st.lists(st.integers(-len(want), len(want) - 1))) if want else []
        assert lines.__getitems__(asked) == [want[position] for position in asked]
        again = Lines(paths, parse="bytes", index_dir=folder / "index")
        assert again.__getitems__(range(len(want))) == want


@settings(deadline=None)
@given(dataset=datasets, sizes=sizes)
def test_a_stream_gives_every_line_in_order(dataset: list[tuple[bytes, str]], sizes: Sizes) -> None:
    with written(dataset) as (_, paths):
        assert list(sized(LineStream(paths, parse="bytes"), sizes)) == expected(dataset)


def leaves(stream: LineStream, counts: list[int]) -> list[LineStream]:
    if not counts:
        return [stream]
    return [leaf for index in range(counts[0]) for leaf in leaves(stream.split(index, counts[0]), counts[1:])]


@settings(deadline=None)
@given(dataset=datasets, sizes=sizes, counts=st.lists(st.integers(1, 4), max_size=3))
def test_the_parts_hold_every_line_exactly_once(
    dataset: list[tuple[bytes, str]], sizes: Sizes, counts: list[int]
) -> None:
    with written(dataset) as (_, paths):
        # By place, so that a line lost here and an equal one doubled there cannot even out.
        stream = sized(LineStream(paths, parse="bytes"), sizes)
        places = []
        for part in leaves(stream, counts):
            iterator = iter(part)
            while True:
                cursor = iterator._cursor
                try:
                    line = next(iterator)
                except StopIteration:
                    break
                number, offset, _ = cursor._place_of_last()
                places.append((number, offset, line))
        assert [line for _, _, line in sorted(places)] == expected(dataset)
        assert len({place[:2] for place in places}) == len(places)


@settings(deadline=None)
@given(dataset=datasets, sizes=sizes, split=st.sampled_from([(0, 1), (0, 2), (1, 2), (2, 3)]), data=st.data())
def test_an_iterator_resumes_at_any_line(
    dataset: list[tuple[bytes, str]], sizes: Sizes, split: tuple[int, int], data: st.DataObject
) -> None:
    with written(dataset) as (_, paths):
        part = sized(LineStream(paths, parse="bytes"), sizes).split(*split)
        whole = list(part)
        num_taken = data.draw(st.integers(0, len(whole)))
        iterator = iter(part)
        for _ in range(num_taken):
            next(iterator)
        state = json.loads(json.dumps(iterator.state_dict()))
        resumed = iter(part)
        if data.draw(st.booleans()) and len(whole) > 1:
            next(resumed)  # what was read before the state came is dropped
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state
        assert list(resumed) == whole[num_taken:]
        iterator.close()


@given(
    rows=st.lists(st.lists(st.text(st.characters(exclude_characters="\r\n", codec="utf-8")), min_size=3, max_size=3)),
    suffix=st.sampled_from([".csv", ".tsv"]),
)
@settings(deadline=None)
def test_csv_written_by_the_csv_module_is_read_back(rows: list[list[str]], suffix: str) -> None:
    import csv

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"table{suffix}"
        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, delimiter="," if suffix == ".csv" else "\t")
            writer.writerows([["a", "b b", 'c"'], *rows])
        want = [dict(zip(["a", "b b", 'c"'], row)) for row in rows]
        lines = Lines(path, index_dir=folder)
        assert lines.__getitems__(range(len(lines))) == want
        assert list(lines.stream()) == want
        assert [row for part in range(3) for row in lines.stream().split(part, 3)] == want


# --- formats


def test_the_suffix_tells_the_format(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n[2]\n')
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(b'x,y\r\n1,"2,""3"\r\n'))
    (tmp_path / "c.txt").write_text("grüße\n\nend")
    lines = Lines([tmp_path / "a.jsonl", str(tmp_path / "b.csv.gz"), tmp_path / "c.txt"], index_dir=tmp_path / "i")
    want = [{"x": 1}, [2], {"x": "1", "y": '2,"3'}, "grüße", "", "end"]
    assert list(lines.stream()) == want
    assert [lines[np.int64(position)] for position in range(len(lines))] == want
    assert lines[-1] == "end"
    assert lines.describe(2) == f"{tmp_path / 'b.csv.gz'}, line 2"
    assert lines.describe(-1) == f"{tmp_path / 'c.txt'}, line 3"


def test_it_fits_the_protocols(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x\n")
    lines = Lines(tmp_path / "a.txt", index_dir=tmp_path)
    assert isinstance(lines, Source)
    assert isinstance(lines.stream(), Splittable)


def test_a_byte_order_mark_is_dropped_at_the_start_of_a_file_only(tmp_path: Path) -> None:
    for name in ("a.txt", "b.jsonl", "c.csv"):
        mark = b"\xef\xbb\xbf"
        (tmp_path / name).write_bytes(mark + {"a": b"x\n" + mark + b"y", "b": b"1\n", "c": b"k\nv\n"}[name[0]])
    want = ["x", "\ufeffy", 1, {"k": "v"}]
    lines = Lines(sorted(tmp_path.iterdir()), index_dir=tmp_path / "i")
    assert lines.__getitems__(range(4)) == want
    assert list(lines.stream()) == want


def test_a_function_gets_the_bytes_of_each_line(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"1\r\n22\nthree\n")
    lines = Lines(tmp_path / "a.txt", parse=int, index_dir=tmp_path / "i")
    assert [lines[0], lines[1]] == [1, 22]
    with pytest.raises(errors.BadLine, match=r"line 3 \(byte 6\).*builtins.int raised ValueError: invalid literal"):
        lines[2]


def test_a_function_that_stops_iteration_does_not_end_the_stream(tmp_path: Path) -> None:
    def parse(line: bytes) -> bytes:
        if line == b"b":
            raise StopIteration
        return line

    (tmp_path / "a.txt").write_bytes(b"a\nb\nc\n")
    iterator = iter(LineStream(tmp_path / "a.txt", parse=parse))
    assert next(iterator) == b"a"
    with pytest.raises(errors.BadLine, match="raised StopIteration"):
        next(iterator)
    assert list(iterator) == [b"c"]


def test_other_errors_of_a_function_come_through_with_a_note(tmp_path: Path) -> None:
    def parse(line: bytes) -> bytes:
        raise KeyError(line)

    (tmp_path / "a.txt").write_bytes(b"a\n")
    lines = Lines(tmp_path / "a.txt", parse=parse, index_dir=tmp_path)
    with pytest.raises(KeyError) as caught:
        lines[0]
    assert caught.value.__notes__ == [f"while parsing line 1 of {tmp_path / 'a.txt'}"]
    with pytest.raises(KeyError) as caught:
        next(iter(lines.stream()))
    assert caught.value.__notes__ == [f"while parsing the line at byte 0 of {tmp_path / 'a.txt'}"]


# --- bad lines

BAD = [
    ("a.txt", b"ok\nb\xffd\nok\n", 2, 3, "it is not UTF-8: byte 0xff at byte 1 of the line"),
    ("a.jsonl", b"1\n{\n2\n", 2, 2, "it is not JSON: Expecting property name enclosed in double quotes at character 2"),
    ("a.jsonl", b"1\n\n2\n", 2, 2, "the line is empty; each line must be one JSON value"),
    ("a.jsonl", b"1\n" + b"[" * 100_000 + b"\n2\n", 2, 2, "its JSON is nested too deeply"),
    ("a.csv", b"a,b\n1,2\n3\n4,5\n", 3, 8, "it has 1 fields, and the header has 2"),
    ("a.csv", b"a,b\n1,2\n\n4,5\n", 3, 8, r"it has no fields \(the line is empty\), and the header has 2"),
    ("a.csv", b'a,b\n1,2\n3,"x\n4,5\n', 3, 8, r"a quote is not closed on this line \(fields with line breaks"),
    ("a.csv", b'a,b\n1,2\n3,"x"y\n4,5\n', 3, 8, "a quoted field is followed by 'y' at character 6"),
]


@pytest.mark.parametrize("suffix", PACK)
@pytest.mark.parametrize(("name", "content", "line", "offset", "reason"), BAD)
def test_a_bad_line_names_its_place_and_the_next_one_is_read(
    tmp_path: Path, name: str, content: bytes, line: int, offset: int, reason: str, suffix: str
) -> None:
    path = tmp_path / (name + suffix)
    path.write_bytes(PACK[suffix](content))
    lines = Lines(path, index_dir=tmp_path / "index")
    position = line - 1 - name.endswith(".csv")
    text = rf"line {line} \(byte {offset}\) of {path} cannot be parsed: {reason}"
    with pytest.raises(errors.BadLine, match=text) as caught:
        lines[position]
    assert (caught.value.path, caught.value.line, caught.value.offset) == (str(path), line, offset)
    lines[position + 1]

    iterator = iter(lines.stream())
    samples: list[Any] = []
    while True:
        try:
            samples.append(next(iterator))
        except errors.BadLine as error:
            samples.append(str(error))
        except StopIteration:
            break
    assert len(samples) == len(lines)
    assert samples[position] == str(caught.value)


def test_a_part_that_begins_inside_a_file_names_the_byte_of_a_bad_line(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"1\n2\n3\nx\n")
    iterator = iter(LineStream(tmp_path / "a.jsonl").split(1, 2))
    assert next(iterator) == 3
    with pytest.raises(errors.BadLine, match=r"the line at byte 6 of .* cannot be parsed: it is not JSON"):
        next(iterator)
    assert list(iterator) == []


@pytest.mark.parametrize(
    ("header", "reason"), [(b"a,a", "the column 'a' occurs twice"), (b"", "it is empty"), (b"\xff", "can't decode")]
)
def test_a_bad_header_makes_every_line_a_bad_one(tmp_path: Path, header: bytes, reason: str) -> None:
    (tmp_path / "a.csv").write_bytes(header + b"\n1,2\n3,4\n")
    lines = Lines(tmp_path / "a.csv", index_dir=tmp_path / "i")
    assert len(lines) == 2
    with pytest.raises(errors.BadLine, match=f"header .line 1 of the file. cannot be used: .*{reason}"):
        lines[1]
    iterator = iter(lines.stream())
    for _ in range(2):
        with pytest.raises(errors.BadLine, match=reason):
            next(iterator)
    assert list(iterator) == []


# --- arguments and positions


def test_positions_outside_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x\ny\n")
    lines = Lines(tmp_path / "a.txt", index_dir=tmp_path)
    for position in (2, -3):
        with pytest.raises(errors.PositionError, match=rf"position {position} is outside Lines\(.*which has 2 samples"):
            lines[position]
        with pytest.raises(errors.PositionError):
            lines.__getitems__([0, position])
    with pytest.raises(TypeError):
        lines[0.5]  # type: ignore[index]


def test_paths_that_cannot_work_are_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no such file.*gone\.txt"):
        Lines(tmp_path / "gone.txt")
    with pytest.raises(FileNotFoundError, match="the pattern matches no file"):
        Lines(tmp_path / "*.txt")
    with pytest.raises(errors.ArgumentError, match=r"folder .* contains no files named \.jsonl, "):
        Lines(tmp_path)
    with pytest.raises(errors.ArgumentError, match="list of paths is empty"):
        Lines([])
    with pytest.raises(errors.ArgumentError, match="not a path"):
        Lines([3])  # type: ignore[list-item]
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(errors.ArgumentError, match="unknown parse='xml'"):
        Lines(tmp_path / "a.txt", parse="xml")  # type: ignore[arg-type]
    for index, count in ((1, 1), (-1, 2), (0, 0)):
        with pytest.raises(errors.ArgumentError, match="there is no part"):
            LineStream(tmp_path / "a.txt").split(index, count)


def test_a_missing_library_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.zst").write_bytes(PACK[".zst"](b"x\n"))
    with (
        patch.dict(sys.modules, {"zstandard": None}),
        pytest.raises(errors.MissingExtra, match=r"reading .zst files needs zstandard.*(?s:.)*stoker\[zstd\]"),
    ):
        Lines(tmp_path / "a.zst")


# --- compressed files


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_file_that_is_not_compressed_though_its_name_says_so_is_refused(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(b"[1]\n")
    with pytest.raises(errors.DamagedFile, match="though its suffix says so: its first bytes are 5b 31 5d 0a"):
        Lines(path)
    path.write_bytes(b"")
    with pytest.raises(errors.DamagedFile, match="it is empty"):
        Lines(path)


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_several_members_or_frames_are_one_content(tmp_path: Path, suffix: str) -> None:
    pack = PACK[suffix]
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(pack(b"a\nb") + pack(b"") + pack(b"c\n") + pack(b"d"))
    lines = Lines(path, index_dir=tmp_path / "i")
    assert list(lines.stream()) == ["a", "bc", "d"]
    assert lines.__getitems__([2, 0, 1]) == ["d", "a", "bc"]


def test_a_skippable_zstd_frame_may_come_first(tmp_path: Path) -> None:
    skippable = b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"abcd"
    (tmp_path / "a.txt.zst").write_bytes(skippable + PACK[".zst"](b"x\ny"))
    assert list(LineStream(tmp_path / "a.txt.zst")) == ["x", "y"]


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
@pytest.mark.parametrize("damage", ["cut", "flip"])
def test_damaged_compressed_data_is_an_error_that_names_the_file(tmp_path: Path, suffix: str, damage: str) -> None:
    content = np.random.default_rng(0).integers(48, 122, 300_000, dtype=np.uint8).tobytes()
    packed = bytearray(PACK[suffix](content))
    if damage == "cut":
        del packed[len(packed) * 2 // 3 :]
        text = "cannot be unpacked: the data ends early"
    else:
        packed[len(packed) // 2 : len(packed) // 2 + 2000] = bytes(2000)
        text = "cannot be unpacked: the data is damaged"
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(packed)
    lines = Lines(path, parse="bytes", index_dir=tmp_path / "i")
    for _ in range(2):
        with pytest.raises(errors.DamagedFile, match=f"{path} {text}"):
            len(lines)
    assert not [file for file in (tmp_path / "i").rglob("*") if file.suffix not in ("", ".lock")]
    iterator = iter(lines.stream())
    for _ in range(2):  # and not the end of the data
        with pytest.raises(errors.DamagedFile, match=f"{path} {text}"):
            for _ in iterator:
                pass


def test_whole_compressed_files_are_dealt_out_where_there_are_enough(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.txt.gz" for number in range(5)]
    for number, path in enumerate(paths):
        path.write_bytes(PACK[".gz"](b"%d\n" % number * 3))
    parts = [list(LineStream(paths).split(index, 2)) for index in range(2)]
    assert parts == [["0"] * 3 + ["2"] * 3 + ["4"] * 3, ["1"] * 3 + ["3"] * 3]


def test_small_compressed_files_do_not_all_go_to_the_first_part(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.txt.gz" for number in range(3)]
    for path in paths:
        path.write_bytes(PACK[".gz"](b"x\n"))
    assert [len(list(LineStream(paths).split(index, 4))) for index in range(4)] == [1, 1, 1, 0]


# --- the index


def index_files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.lines"))


def test_the_index_is_built_once(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x\n" * 1000)
    assert len(Lines(tmp_path / "a.txt", index_dir=tmp_path / "i")) == 1000
    with patch.object(line_index, "_scan", side_effect=AssertionError("built again")):
        lines = Lines(tmp_path / "a.txt", index_dir=tmp_path / "i")
        assert len(lines) == 1000
        assert lines[999] == "x"


def test_the_index_lies_in_the_cache_folder_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("x\n")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert len(Lines(tmp_path / "a.txt")) == 1
    assert len(index_files(tmp_path / "cache" / "stoker" / "lines")) == 1
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert len(Lines(tmp_path / "a.txt")) == 1
    assert len(index_files(tmp_path / "home" / ".cache" / "stoker" / "lines")) == 1


@pytest.mark.parametrize("suffix", PACK)
def test_a_changed_file_gets_a_new_index_and_the_old_one_goes(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(PACK[suffix](b"x\n" * 10))
    assert len(Lines(path, index_dir=tmp_path / "i")) == 10
    path.write_bytes(PACK[suffix](b"yyy\n" * 4))
    lines = Lines(path, index_dir=tmp_path / "i")
    assert (len(lines), lines[3]) == (4, "yyy")
    assert len(index_files(tmp_path / "i")) == 1
    assert len(list((tmp_path / "i").rglob("*.unpacked"))) == (suffix != "")


@pytest.mark.parametrize("where", [0, 20, 40, 60, 70, 80, -1])
def test_a_damaged_index_is_built_again(tmp_path: Path, where: int) -> None:
    content = "".join(f"{number}\n" for number in range(5000))
    (tmp_path / "a.txt").write_text(content)
    assert len(Lines(tmp_path / "a.txt", index_dir=tmp_path / "i")) == 5000
    (index,) = index_files(tmp_path / "i")
    damaged = bytearray(index.read_bytes())
    damaged[where] ^= 1
    for broken in (bytes(damaged), b"", bytes(damaged[:-8]), b"junk" * 100):
        index.chmod(0o600)
        index.write_bytes(broken)
        lines = Lines(tmp_path / "a.txt", index_dir=tmp_path / "i")
        assert len(lines) == 5000
        assert lines.__getitems__(range(5000)) == content.split()


def test_a_lost_unpacked_file_is_made_again(tmp_path: Path) -> None:
    (tmp_path / "a.txt.gz").write_bytes(PACK[".gz"](b"x\ny\n"))
    lines = Lines(tmp_path / "a.txt.gz", index_dir=tmp_path / "i")
    assert len(lines) == 2
    for lost in (tmp_path / "i").rglob("*.unpacked"):
        lost.unlink()
    assert lines[1] == "y"


def test_where_the_folder_cannot_be_written_to_the_index_stays_in_memory(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x\ny\n")
    (tmp_path / "not a folder").write_text("")
    lines = Lines(tmp_path / "a.txt", index_dir=tmp_path / "not a folder" / "i")  # stops root too, unlike a mode
    assert (len(lines), lines[1]) == (2, "y")
    (tmp_path / "a.txt.gz").write_bytes(PACK[".gz"](b"x\ny\n"))
    packed = Lines(tmp_path / "a.txt.gz", index_dir=tmp_path / "not a folder" / "i")
    with pytest.raises(errors.ArgumentError, match=r"cannot be decompressed.*(?s:.)*index_dir=.*or read in order"):
        len(packed)
    assert list(packed.stream()) == ["x", "y"]


def test_a_full_disk_leaves_no_half_of_an_index(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x\ny\n")
    with patch.object(os, "replace", side_effect=OSError(28, "No space left on device")):
        lines = Lines(tmp_path / "a.txt", index_dir=tmp_path / "i")
        assert (len(lines), lines[1]) == (2, "y")
    assert not [file for file in (tmp_path / "i").rglob("*") if file.suffix not in ("", ".lock")]


def _read_all(path: Path, index_dir: Path, barrier: Any, answers: Any) -> None:
    barrier.wait()
    lines = Lines(path, index_dir=index_dir)
    answers.put((len(lines), lines[len(lines) - 1]))


@pytest.mark.parametrize("suffix", PACK)
@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("has_locks", [True, False])
def test_two_processes_may_build_the_same_index_at_the_same_time(
    tmp_path: Path, suffix: str, method: str, has_locks: bool
) -> None:
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(PACK[suffix](b"".join(b"%d\n" % number for number in range(100_000))))
    context: Any = multiprocessing.get_context(method)
    barrier, answers = context.Barrier(2), context.Queue()
    with patch.object(line_index, "fcntl", fcntl if has_locks else None):
        workers = [context.Process(target=_read_all, args=(path, tmp_path / "i", barrier, answers)) for _ in range(2)]
        for worker in workers:
            worker.start()
        found = [answers.get(timeout=60) for _ in workers]
        for worker in workers:
            worker.join()
    assert found == [(100_000, "99999")] * 2


# --- processes, threads, files


@pytest.mark.parametrize("suffix", PACK)
def test_it_pickles_small_and_reads_the_same(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(PACK[suffix](b"x\n" * 10_000 + b"y"))
    lines = Lines(path, index_dir=tmp_path / "i")
    assert lines[10_000] == "y"
    packed = pickle.dumps(lines)
    assert len(packed) < 1500
    copy = pickle.loads(packed)
    assert (len(copy), copy[10_000], copy.fingerprint) == (10_001, "y", lines.fingerprint)
    part = pickle.loads(pickle.dumps(lines.stream().split(1, 2)))
    assert list(part) == list(lines.stream().split(1, 2))
    with pytest.raises(TypeError, match="state_dict"):
        pickle.dumps(iter(part))


def test_a_forked_child_reads_what_its_parent_opened(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("".join(f"{number}\n" for number in range(1000)))
    lines = Lines(tmp_path / "a.txt", index_dir=tmp_path / "i")
    assert lines[5] == "5"
    lines._locks[os.getpid()].acquire()  # as another thread may at the moment of the fork
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    child = context.Process(target=lambda: answers.put(_fresh(lines)))
    child.start()
    assert answers.get(timeout=30) == ["7", "999"]
    child.join()
    assert lines[8] == "8"


def _fresh(lines: Lines) -> list[Any]:
    lines._open.clear()
    return lines.__getitems__([7, -1])


def test_many_threads_read_many_files_at_once(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number:03}.txt" for number in range(100)]  # more than are kept open
    for number, path in enumerate(paths):
        path.write_text("".join(f"{number}:{line}\n" for line in range(50)))
    want = [f"{number}:{line}" for number in range(100) for line in range(50)]
    lines = Lines(paths, index_dir=tmp_path / "i")

    def read(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(10):
            positions = rng.integers(0, len(want), 64)
            assert lines.__getitems__(positions) == [want[position] for position in positions]  # type: ignore[arg-type]
            assert lines[positions[0]] == want[positions[0]]

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(read, range(8)))


def _num_open(folder: Path) -> int:
    opened = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            opened += os.readlink(f"/proc/self/fd/{name}").startswith(str(folder))
        except OSError:
            continue
    return opened


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
@pytest.mark.parametrize("suffix", PACK)
def test_files_are_closed_at_the_end_on_close_and_when_dropped(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(PACK[suffix](b"x\n" * 200_000))
    stream = LineStream(path)
    gc.disable()
    try:
        iterator: LineIterator | None = iter(stream)
        assert iterator is not None
        next(iterator)
        assert _num_open(tmp_path) == 1
        iterator.close()
        assert _num_open(tmp_path) == 0
        assert list(iterator) == []
        iterator = iter(stream)
        next(iterator)
        del iterator  # and without the cycle collector
        assert _num_open(tmp_path) == 0
        list(stream)
        assert _num_open(tmp_path) == 0
        lines = Lines(path, index_dir=tmp_path / "i")
        lines[3]
        assert _num_open(tmp_path) == 2
        del lines
        assert _num_open(tmp_path) == 0
    finally:
        gc.enable()


@pytest.mark.parametrize("change", ["shorter", "longer", "same size", "gone"])
def test_a_file_that_changed_is_stale(tmp_path: Path, change: str) -> None:
    path = tmp_path / "a.txt"
    path.write_text("abc\n" * 10)
    lines = Lines(path, index_dir=tmp_path / "i")
    assert len(lines) == 10
    if change == "gone":
        path.unlink()
    else:
        path.write_text("abd\n" * {"shorter": 5, "longer": 20, "same size": 10}[change])
        os.utime(path, ns=(1, 1))
    for read in (lambda: lines[9], lambda: next(iter(lines.stream())), lambda: lines.fingerprint):
        with pytest.raises(errors.StaleSource, match=f"{path} is no longer the file that was opened"):
            read()


@pytest.mark.parametrize(
    "content", [b'{"x": 12}' * 2000, b"\n" * 18_000, b"{" * 17_999 + b"\n"], ids=["one line", "empty lines", "no JSON"]
)
def test_a_file_overwritten_at_the_same_size_is_stale(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"x": 1}\n' * 2000)
    os.utime(path, ns=(1, 1))
    lines = Lines(path, index_dir=tmp_path / "i")
    assert lines[1999] == {"x": 1}
    with open(path, "r+b") as file:
        file.write(content[:18_000])
    for read in (lambda: lines[1999], lambda: lines.__getitems__([1998, 1999, 3])):
        with pytest.raises(errors.StaleSource, match="its size is the same but it was written to since"):
            read()


def test_a_file_that_does_not_fit_its_index_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"x": 1}\n' * 2000)
    os.utime(path, ns=(1, 1))
    lines = Lines(path, index_dir=tmp_path / "i")
    assert lines[1999] == {"x": 1}
    path.write_bytes(b'{"x": 12}' * 2000)
    os.utime(path, ns=(1, 1))  # by whom the time was set back cannot be seen
    with pytest.raises(errors.DamagedFile, match="does not fit its index: block .* should have more than"):
        lines[1999]


def test_a_file_cut_short_while_it_is_read_is_an_error_and_no_crash(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("abc\n" * 100_000)
    lines = Lines(path, index_dir=tmp_path / "i")
    assert lines[0] == "abc"
    iterator = iter(lines.stream())
    next(iterator)
    os.truncate(path, 1000)
    with pytest.raises(errors.StaleSource, match="it had 400000 bytes and has 1000"):
        lines[90_000]
    for _ in range(2):
        with pytest.raises(errors.StaleSource, match=r"bytes early|it had"):
            for _ in iterator:
                pass


# --- fingerprints and states


def test_the_fingerprint_stays_with_a_copy_and_changes_with_the_content(tmp_path: Path) -> None:
    def fingerprint(folder: str, content: bytes, name: str = "a.txt", **arguments: Any) -> str:
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / name).write_bytes(content)
        return Lines(tmp_path / folder / name, **arguments).fingerprint

    first = fingerprint("one", b"x" * 200_000)
    assert first == fingerprint("two", b"x" * 200_000)
    assert first == LineStream(tmp_path / "one" / "a.txt").split(0, 2).fingerprint
    others = [
        fingerprint("two", b"x" * 200_001),
        fingerprint("two", b"x" * 199_999 + b"y"),
        fingerprint("two", b"y" + b"x" * 199_999),
        fingerprint("two", b"x" * 200_000, name="b.txt"),
        fingerprint("two", b"x" * 200_000, parse="bytes"),
        fingerprint("two", b"x" * 200_000, parse=int),
    ]
    assert len({first, *others}) == 7


def test_a_state_of_another_part_or_of_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x\ny\n")
    stream = LineStream(tmp_path / "a.txt")
    state = iter(stream.split(0, 2)).state_dict()
    with pytest.raises(errors.StateMismatch, match="part"):
        iter(stream.split(1, 2)).load_state_dict(state)
    for unreadable in ({}, {**state, "version": 99}, {**state, "file": 7}, {**state, "offset": "x"}):
        with pytest.raises(errors.StateUnreadable):
            iter(stream.split(0, 2)).load_state_dict(unreadable)
    ended = iter(stream)
    list(ended)
    with pytest.raises(errors.StateUnreadable, match="at its end"):
        ended.load_state_dict(iter(stream).state_dict())
    again = iter(stream)
    again.load_state_dict(ended.state_dict())
    assert list(again) == []


def test_line_numbers_go_on_after_resuming(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"1\n2\n3\nx\n")
    stream = sized(LineStream(tmp_path / "a.jsonl"), Sizes(chunk_bytes=3))
    iterator = iter(stream)
    next(iterator)
    next(iterator)
    resumed = iter(stream)
    resumed.load_state_dict(iterator.state_dict())
    iterator.close()
    assert next(resumed) == 3
    with pytest.raises(errors.BadLine, match="line 4"):
        next(resumed)
    resumed.close()


def test_an_iterator_that_failed_can_be_sent_elsewhere(tmp_path: Path) -> None:
    packed = PACK[".gz"](b"a\nb\n" + os.urandom(50_000).hex().encode())
    (tmp_path / "a.gz").write_bytes(packed[:-1000])
    iterator = iter(LineStream(tmp_path / "a.gz"))
    start = iterator.state_dict()
    with pytest.raises(errors.DamagedFile, match="ends early"):
        list(iterator)
    iterator.load_state_dict({**start, "file": 1})
    assert list(iterator) == []


def test_a_file_that_grows_is_read_up_to_the_size_it_had(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("x\n" * 100_000)
    iterator = iter(LineStream(path))
    next(iterator)
    with open(path, "a") as file:
        file.write("y\n" * 10)
    assert set(iterator) == {"x"}


def test_sizes_change_nothing_but_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("\n".join("word " * (number % 70) for number in range(3000)))
    stream = LineStream(path)
    assert list(sized(stream, replace(Sizes(), chunk_bytes=17))) == list(stream)
