"""`ArrayFile` against the array that was saved."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of
from numpy.typing import DTypeLike, NDArray

from stoker import errors
from stoker.batch.collate import collate
from stoker.source.array_file import ArrayFile
from stoker.source.protocols import Source
from tests.source.foreign import check_laws, check_processes, check_staleness, damages, read_damaged, same

dtypes = st.one_of(
    arrays_of.boolean_dtypes(),
    arrays_of.integer_dtypes(endianness="?"),
    arrays_of.unsigned_integer_dtypes(endianness="?"),
    arrays_of.floating_dtypes(endianness="?", sizes=(16, 32, 64)),
    arrays_of.complex_number_dtypes(endianness="?", sizes=(64, 128)),
)
saved = arrays_of.arrays(dtypes, arrays_of.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=5))


def rows_of(array: NDArray[Any]) -> list[Any]:
    return [np.array(row, array.dtype.newbyteorder("=")) for row in array]


def listed(samples: Any) -> list[Any]:
    return [np.asarray(sample) for sample in samples]


def plainly(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    return np.empty(shape, dtype)


# --- laws


@given(array=saved, is_fortran=st.booleans(), data=st.data())
def test_the_sample_at_a_position_is_the_row_of_the_array(
    array: NDArray[Any], is_fortran: bool, data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "x.npy")
        np.save(path, np.asfortranarray(array) if is_fortran else array)
        source = ArrayFile(path)
        assert isinstance(source, Source)
        assert (len(source), source.shape) == (len(array), array.shape)
        assert source.dtype == array.dtype.newbyteorder("=")
        check_laws(source)
        assert same(listed(source[position] for position in range(len(array))), rows_of(array))
        asked = data.draw(st.lists(st.integers(-len(array), len(array) - 1))) if len(array) else []
        want = np.array(array[asked] if asked else array[:0], source.dtype)
        batch = source.__getbatch__(np.array(asked, np.int64), plainly)
        assert same(batch, want)
        # torch cannot make a tensor of a list of NumPy's uint64
        if asked and array.size and not (array.ndim == 1 and source.dtype == np.uint64):
            assert same(collate(source.__getitems__(asked)).numpy(), batch)


@given(array=saved, offset_bytes=st.integers(0, 9), infers=st.booleans())
def test_raw_values_are_read_by_dtype_and_shape_at_any_offset(
    array: NDArray[Any], offset_bytes: int, infers: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "x.dat")
        path.write_bytes(b"#" * offset_bytes + array.tobytes())
        shape = (-1, *array.shape[1:]) if infers and array[:1].size else array.shape
        source = ArrayFile(path, dtype=array.dtype, shape=shape, offset_bytes=offset_bytes)
        assert source.shape == array.shape
        assert same(listed(source.__getitems__(range(len(array)))), rows_of(array))
        assert same(source.__getbatch__(np.arange(len(array)), plainly), array.astype(source.dtype))


@example(damage=lambda data: data[:100])
@example(damage=lambda data: data.replace(b"(7, 3)", b"(70000000000000, 300000000000)"[: len(b"(7, 3)")]))
@given(damage=damages())
def test_a_damaged_file_is_read_or_refused(damage: Callable[[bytes], bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "x.npy")
        np.save(path, np.arange(21, dtype=np.int16).reshape(7, 3))
        path.write_bytes(damage(path.read_bytes()))
        read_damaged(lambda: ArrayFile(path))


# --- one by one


def test_a_batch_goes_straight_into_the_memory_that_is_offered(tmp_path: Path) -> None:
    array = np.arange(24, dtype=np.float32).reshape(6, 4)
    np.save(tmp_path / "x.npy", array)
    memory = np.empty((3, 4), np.float32)
    batch = ArrayFile(tmp_path / "x.npy").__getbatch__(np.array([5, 0, 5]), lambda shape, dtype: memory)
    assert batch is memory
    assert np.array_equal(memory, array[[5, 0, 5]])
    strided = np.empty((3, 8), np.float32)[:, ::2]
    ArrayFile(tmp_path / "x.npy").__getbatch__(np.array([5, 0, 5]), lambda shape, dtype: strided)
    assert np.array_equal(strided, memory)


def test_a_batch_with_a_position_outside_is_an_error(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((6, 4)))
    with pytest.raises(errors.PositionError, match="position 6 is outside ArrayFile"):
        ArrayFile(tmp_path / "x.npy").__getbatch__(np.array([0, 6]), plainly)


def test_what_torch_has_no_dtype_for_makes_no_batch(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array(["a", "bc"]))
    source = ArrayFile(tmp_path / "x.npy")
    assert source.__getbatch__(np.array([0]), plainly) is NotImplemented
    assert source.__getitems__([1, 0]) == ["bc", "a"]


def test_a_structured_array_gives_dicts(tmp_path: Path) -> None:
    array = np.array([(1, [1.5, 2.5]), (2, [3.5, 4.5])], dtype=[("label", "<i4"), ("at", "<f8", (2,))])
    np.save(tmp_path / "x.npy", array)
    source = ArrayFile(tmp_path / "x.npy")
    check_laws(source)
    assert same(source[1], {"label": np.int32(2), "at": np.array([3.5, 4.5])})
    assert collate(source.__getitems__([1, 0]))["at"].tolist() == [[3.5, 4.5], [1.5, 2.5]]


def test_every_version_of_the_header_is_read(tmp_path: Path) -> None:
    for version in ((1, 0), (2, 0), (3, 0)):
        with open(tmp_path / "x.npy", "wb") as file:
            np.lib.format.write_array(file, np.arange(6).reshape(2, 3), version=version)
        assert ArrayFile(tmp_path / "x.npy")[1].tolist() == [3, 4, 5]


def test_it_works_in_other_processes(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(12).reshape(4, 3))
    check_processes(ArrayFile(tmp_path / "x.npy"))


def test_a_file_that_changed_is_noticed(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(12).reshape(4, 3))
    check_staleness(lambda: ArrayFile(tmp_path / "x.npy"), tmp_path / "x.npy")


def test_a_file_that_shrinks_under_our_hands_is_an_error_and_not_a_signal(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.zeros((100, 4096)))
    source = ArrayFile(path)
    assert source[99].sum() == 0
    with open(path, "r+b") as file:
        file.truncate(4096)
    with pytest.raises(errors.StaleSource, match="has 4096"):
        source[99]
    with pytest.raises(errors.StaleSource, match="has 4096"):
        source.__getitems__([99])


def test_describe_names_file_and_row(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((4, 3)))
    source = ArrayFile(tmp_path / "x.npy")
    assert source.describe(-1) == f"{tmp_path / 'x.npy'}, row 3"
    assert repr(source) == f"ArrayFile('{tmp_path / 'x.npy'}')"


def test_pickled_objects_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([{}, []], dtype=object), allow_pickle=True)
    with pytest.raises(errors.ArgumentError, match="pickled Python objects(.|\n)*hint: save the numbers"):
        ArrayFile(tmp_path / "x.npy")


HEADERS = {
    "(((((((((((((((": "damaged .npy header",
    "{'descr': '<i8', 'fortran_order': False}": "not a dict of descr",
    "{'descr': '<i8', 'fortran_order': False, 'shape': (-1,)}": r"shape is \(-1,\)",
    "{'descr': '<i8', 'fortran_order': False, 'shape': (True,)}": "shape is",
    "{'descr': '<i8', 'fortran_order': False, 'shape': 3}": "shape is 3",
    "{'descr': '<i8', 'fortran_order': 7, 'shape': (1,)}": "fortran_order is 7",
    "{'descr': 'odd', 'fortran_order': False, 'shape': (1,)}": "damaged .npy header",
    "{'descr': '|V0', 'fortran_order': False, 'shape': (1,)}": "descr is",
    "{'descr': '<i8', 'fortran_order': False, 'shape': (9223372036854775807, 9223372036854775807)}": "truncated",
    "{'descr': '<i8', 'fortran_order': False, 'shape': (9223372036854775807, 9223372036854775807, 0)}": "damaged",
    "{'descr': '<i8', 'fortran_order': False, 'shape': (99999999999999999999, 0)}": "shape is",
    "{'descr': '<i8', 'fortran_order': False, 'shape': (2,)}": "truncated: it has .* of .* bytes",
    "{'descr': '<i8', 'fortran_order': False, 'shape': (0,)}": "too long for int64",
}


@pytest.mark.parametrize("header", HEADERS)
def test_a_header_that_lies_is_refused(tmp_path: Path, header: str) -> None:
    path = tmp_path / "x.npy"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + bytes(8))
    with pytest.raises(errors.DamagedFile, match=HEADERS[header]):
        ArrayFile(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "it is empty"),
        (b"PK\x03\x04 a zip", "not a .npy file: its first bytes are 50 4b"),
        (b"\x93NUMPY\x09\x00" + bytes(100), "unknown version of the .npy header: 9.0"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\x7f" + bytes(100), "header of 2147483647 bytes"),
        (b"\x93NUMPY\x01\x00\x76\x00{", "truncated: its header takes 128 bytes"),
        (b"\x93NUM", "not a .npy file"),
        (b"\x93NUMPY", "unknown version"),
    ],
)
def test_what_is_no_npy_file_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "x.npy").write_bytes(content)
    with pytest.raises(errors.DamagedFile, match=words):
        ArrayFile(tmp_path / "x.npy")


def test_arguments_that_cannot_work_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.dat"
    path.write_bytes(bytes(12))
    np.save(tmp_path / "single.npy", np.array(7))
    with pytest.raises(errors.ArgumentError, match="both dtype and shape"):
        ArrayFile(path, dtype="uint8")
    with pytest.raises(errors.ArgumentError, match="offset_bytes is only for raw values"):
        ArrayFile(path, offset_bytes=3)
    with pytest.raises(errors.ArgumentError, match="offset_bytes=13 is beyond"):
        ArrayFile(path, dtype="uint8", shape=(-1,), offset_bytes=13)
    with pytest.raises(errors.ArgumentError, match="is invalid"):
        ArrayFile(path, dtype="uint8", shape=(-1, -1))
    with pytest.raises(errors.ArgumentError, match="no fixed size"):
        ArrayFile(path, dtype=object, shape=(-1,))
    with pytest.raises(errors.ArgumentError, match="single value"):
        ArrayFile(tmp_path / "single.npy")
    with pytest.raises(errors.ArgumentError, match="is a folder"):
        ArrayFile(tmp_path)
    with pytest.raises(errors.DamagedFile, match="not a multiple of .*uint8"):
        ArrayFile(path, dtype="uint8", shape=(-1, 5))
    with pytest.raises(errors.DamagedFile, match="truncated"):
        ArrayFile(path, dtype="uint8", shape=(4, 5))
    with pytest.raises(FileNotFoundError):
        ArrayFile(tmp_path / "none.npy")


def test_one_row_of_integers_gives_crops(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(100, dtype=np.uint16))
    crops = ArrayFile(tmp_path / "x.npy").tokens(10)
    assert crops[1]["tokens"].tolist() == list(range(10, 20))
    np.save(tmp_path / "y.npy", np.zeros((3, 4)))
    with pytest.raises(errors.ArgumentError, match="which are not tokens"):
        ArrayFile(tmp_path / "y.npy").tokens(10)
