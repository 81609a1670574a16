"""`RawTokens` against the tokens as one array."""

from __future__ import annotations

import os
import resource
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker import errors
from stoker.source import flat_values, mapped_files
from stoker.source.known_file import Paths
from stoker.source.protocols import Source
from stoker.source.raw_tokens import RawTokens
from tests.source.foreign import check_laws, check_processes, check_staleness, damages, read_damaged, write_llm_c

parts = st.lists(st.lists(st.integers(0, 65535), max_size=30), min_size=1, max_size=5)


def write(folder: Path, tokens: list[list[int]], dtype: str = "<u2", offset_bytes: int = 0) -> list[Path]:
    paths = []
    for number, part in enumerate(tokens):
        paths.append(folder / f"{number}.bin")
        paths[-1].write_bytes(b"#" * offset_bytes + np.array(part, dtype).tobytes())
    return paths


# --- laws


@given(tokens=parts, dtype=st.sampled_from(["<u2", ">u2", "<i4", "<i8"]), offset=st.integers(0, 5), data=st.data())
def test_windows_are_slices_of_all_tokens_whatever_the_files(
    tokens: list[list[int]], dtype: str, offset: int, data: st.DataObject
) -> None:
    flat = np.array([token for part in tokens for token in part], np.dtype(dtype).newbyteorder("="))
    long = flat_values._LONG
    with tempfile.TemporaryDirectory() as folder:
        source = RawTokens(write(Path(folder), tokens, dtype, offset), dtype=dtype, offset_bytes=offset)
        assert (source.num_values, source.dtype, source.num_documents) == (len(flat), flat.dtype, 0)
        length = data.draw(st.integers(0, len(flat)))
        starts = np.array(data.draw(st.lists(st.integers(0, len(flat) - length), max_size=20)), np.int64)
        want = [flat[start : start + length].tolist() for start in starts]
        try:
            for flat_values._LONG in (1, 1000):  # rows one by one, and file by file
                rows = source.windows(starts, length)
                assert rows.tolist() == want
                assert (rows.shape, rows.dtype) == ((len(starts), length), flat.dtype)
                assert rows.flags.writeable and rows.flags.owndata
        finally:
            flat_values._LONG = long
        assert source.__getitems__(range(len(flat))) == flat.tolist()


@given(damage=damages())
def test_a_damaged_file_is_read_or_refused(damage: Callable[[bytes], bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "x.bin")
        write_llm_c(path, range(20))
        path.write_bytes(damage(path.read_bytes()))
        read_damaged(lambda: RawTokens(path))


# --- one by one


def test_each_token_is_a_sample(tmp_path: Path) -> None:
    source = RawTokens(write(tmp_path, [[1, 2, 3], [], [4, 5]]))
    assert isinstance(source, Source)
    check_laws(source)
    check_processes(source)
    assert [type(source[0]), source[3], source[-1]] == [int, 4, 5]
    assert source.describe(3) == f"{tmp_path / '2.bin'}, token 0"
    assert repr(source) == f"RawTokens('{tmp_path / '0.bin'}' and 2 more)"


def test_files_are_given_as_a_path_a_pattern_a_folder_or_a_list(tmp_path: Path) -> None:
    paths = write(tmp_path, [[1], [2], [3]])
    ways: list[Paths] = [paths, str(tmp_path / "*.bin"), tmp_path, [str(paths[0]), tmp_path / "[12].bin"]]
    for way in ways:
        source = RawTokens(way)
        assert source.__getitems__(range(3)) == [1, 2, 3]
    with pytest.raises(FileNotFoundError, match="matches no file"):
        RawTokens(tmp_path / "*.nothing")
    with pytest.raises(FileNotFoundError):
        RawTokens(tmp_path / "nothing.bin")
    with pytest.raises(errors.ArgumentError, match="paths is empty"):
        RawTokens([])
    with pytest.raises(errors.ArgumentError, match="7 is not a path"):
        RawTokens([7])  # type: ignore[list-item]
    (tmp_path / "empty").mkdir()
    with pytest.raises(errors.ArgumentError, match="contains no files named .bin"):
        RawTokens(tmp_path / "empty")
    with pytest.raises(errors.ArgumentError, match="not a regular file"):
        RawTokens(os.devnull)


@pytest.mark.parametrize(("magic", "version", "dtype"), [(20240520, 1, "uint16"), (20240801, 7, "uint32")])
def test_the_header_of_llm_c_is_skipped(tmp_path: Path, magic: int, version: int, dtype: str) -> None:
    path = tmp_path / "x.bin"
    write_llm_c(path, [7, 8, 9], magic=magic, version=version)
    source = RawTokens(path)
    assert source.dtype == dtype
    assert source.windows(np.array([0, 1]), 2).tolist() == [[7, 8], [8, 9]]
    with pytest.raises(errors.ArgumentError, match="says itself that it holds"):
        RawTokens(path, dtype="int32")
    assert RawTokens(path, dtype="int16", offset_bytes=1024)[0] == 7  # as told, and not as the file says
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(errors.DamagedFile, match="header of llm.c for 3 tokens"):
        RawTokens(path)


def test_tokens_in_npy_files_are_read(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([1, 2], np.uint16))
    np.save(tmp_path / "b.npy", np.array([3], np.uint16))
    assert RawTokens(tmp_path / "*.npy").windows(np.array([0]), 3).tolist() == [[1, 2, 3]]
    np.save(tmp_path / "c.npy", np.zeros((2, 2), np.uint16))
    with pytest.raises(errors.ArgumentError, match="which are not tokens"):
        RawTokens(tmp_path / "c.npy")
    np.save(tmp_path / "d.npy", np.array([3], np.int32))
    with pytest.raises(errors.ArgumentError, match=r"a.npy holds uint16 and .*d.npy int32"):
        RawTokens([tmp_path / "a.npy", tmp_path / "d.npy"])


def test_an_odd_number_of_bytes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(bytes(7))
    with pytest.raises(errors.DamagedFile, match="has 7 bytes of data, not a multiple of uint16 tokens"):
        RawTokens(tmp_path / "x.bin")
    with pytest.raises(errors.ArgumentError, match="offset_bytes=8 is not in"):
        RawTokens(tmp_path / "x.bin", offset_bytes=8)
    assert len(RawTokens(tmp_path / "x.bin", offset_bytes=1)) == 3
    with pytest.raises(errors.ArgumentError, match="dtype=float32 is not for tokens"):
        RawTokens(tmp_path / "x.bin", dtype="float32")


def test_documents_are_not_known(tmp_path: Path) -> None:
    with pytest.raises(errors.ArgumentError, match="has no offsets of documents"):
        RawTokens(write(tmp_path, [[1, 2]])).offsets(0, 1)


def test_crops_run_over_the_borders_of_files(tmp_path: Path) -> None:
    crops = RawTokens(write(tmp_path, [list(range(10)), list(range(10, 31))])).tokens(length=5, stride=3)
    assert crops[2]["tokens"].tolist() == [6, 7, 8, 9, 10]
    assert crops[2]["labels"].tolist() == [7, 8, 9, 10, 11]


def test_a_file_that_changed_is_noticed(tmp_path: Path) -> None:
    (path,) = write(tmp_path, [[1, 2, 3]])
    check_staleness(lambda: RawTokens(path), path)


def test_many_files_take_few_descriptors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = write(tmp_path, [[number] * 3 for number in range(40)])
    source = RawTokens(paths)
    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(mapped_files, "_most_mappings", lambda: 8)
    assert source.__getitems__(range(120)) == [number // 3 for number in range(120)]
    assert source.windows(np.arange(118), 3)[:, 0].tolist() == [number // 3 for number in range(118)]
    assert len(os.listdir("/proc/self/fd")) - before <= 8


def test_an_eighth_of_the_descriptors_may_be_mappings(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit, most in ((1024, 128), (16, 8), (1 << 20, 4096), (resource.RLIM_INFINITY, 4096)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, limit=limit: (limit, limit))
        assert mapped_files._most_mappings() == most
