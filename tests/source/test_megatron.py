"""`Megatron` against the sequences that were written."""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker import errors
from stoker.source.megatron import Megatron
from stoker.source.protocols import Source
from tests.source.foreign import (
    DTYPE_CODES,
    check_laws,
    check_processes,
    check_staleness,
    damages,
    read_damaged,
    write_megatron,
)

documents = st.lists(st.lists(st.lists(st.integers(0, 100), max_size=8), max_size=3), max_size=6)
SEQUENCES = [[1, 2, 3], [], [4], [5, 6, 7, 8], [9, 10]]


# --- laws


@given(documents=documents, dtype=st.sampled_from(list(DTYPE_CODES)), modes=st.booleans(), data=st.data())
def test_sequences_windows_and_borders_are_those_of_the_data(
    documents: list[list[list[int]]], dtype: str, modes: bool, data: st.DataObject
) -> None:
    sequences = [sequence for document in documents for sequence in document]
    firsts = np.cumsum([0, *(len(document) for document in documents)]).tolist()
    flat = [token for sequence in sequences for token in sequence]
    with tempfile.TemporaryDirectory() as folder:
        write_megatron(Path(folder, "x"), sequences, dtype=dtype, documents=firsts, modes=modes)
        source = Megatron(Path(folder, "x"))
        assert isinstance(source, Source)
        assert (len(source), source.num_values) == (len(sequences), len(flat))
        assert (source.num_documents, source.dtype) == (len(documents), np.dtype(dtype))
        assert [tokens.tolist() for tokens in source.__getitems__(range(len(sequences)))] == sequences
        ends = np.cumsum([0, *(sum(map(len, document)) for document in documents)]).tolist()
        first = data.draw(st.integers(0, len(documents)))
        last = data.draw(st.integers(first, len(documents)))
        assert source.offsets(first, last).tolist() == ends[first : last + 1]
        length = data.draw(st.integers(0, len(flat)))
        starts = np.array(data.draw(st.lists(st.integers(0, len(flat) - length), max_size=9)), np.int64)
        assert source.windows(starts, length).tolist() == [flat[start : start + length] for start in starts]


@given(damage=damages(), damages_index=st.booleans())
def test_a_damaged_file_is_read_or_refused(damage: Callable[[bytes], bytes], damages_index: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_megatron(Path(folder, "x"), SEQUENCES, documents=[0, 2, 5])
        path = Path(folder, "x.idx" if damages_index else "x.bin")
        path.write_bytes(damage(path.read_bytes()))
        read_damaged(lambda: Megatron(Path(folder, "x")))


# --- one by one


def test_it_is_a_source(tmp_path: Path) -> None:
    write_megatron(tmp_path / "x", SEQUENCES, documents=[0, 2, 5])
    for name in ("x", "x.bin", "x.idx"):
        source = Megatron(tmp_path / name)
        check_laws(source)
    check_processes(source)
    assert source.describe(3) == f"{tmp_path / 'x.bin'}, sequence 3, document 1"
    assert source[3].dtype == np.uint16
    for path in (tmp_path / "x.bin", tmp_path / "x.idx"):
        check_staleness(lambda: Megatron(tmp_path / "x"), path)


def test_sequences_without_documents_are_read(tmp_path: Path) -> None:
    write_megatron(tmp_path / "x", SEQUENCES, documents=[0])
    source = Megatron(tmp_path / "x")
    assert source.num_documents == 0
    assert source.describe(3) == f"{tmp_path / 'x.bin'}, sequence 3"
    assert source[3].tolist() == SEQUENCES[3]


def test_crops_stay_within_documents_if_asked(tmp_path: Path) -> None:
    write_megatron(tmp_path / "x", SEQUENCES, documents=[0, 2, 5])
    crops = Megatron(tmp_path / "x").tokens(length=4, across=False, pad=77)
    assert [crops[position]["tokens"].tolist()[:3] for position in range(2)] == [[1, 2, 3], [4, 5, 6]]
    assert crops[0]["tokens"][3] == 77


def test_borders_that_are_not_there_are_refused(tmp_path: Path) -> None:
    write_megatron(tmp_path / "x", SEQUENCES)
    for first, last in ((-1, 2), (3, 2), (0, 6)):
        with pytest.raises(errors.ArgumentError, match=f"documents {first} to {last} are not in"):
            Megatron(tmp_path / "x").offsets(first, last)


def edited(path: Path, at: int, form: str, number: int) -> None:
    content = bytearray(path.read_bytes())
    struct.pack_into(form, content, at, number)
    path.write_bytes(content)


SIZES, POINTERS, DOCUMENTS = 34, 34 + 4 * 5, 34 + 12 * 5
LIES = {
    "a negative length": (SIZES + 4 * 2, "<i", -1, "sequence 2 should have -1 tokens"),
    "a length beyond the data": (SIZES + 4 * 3, "<i", 2**31 - 1, "sequence 3 should have 2147483647 tokens"),
    "a negative pointer": (POINTERS + 8 * 3, "<q", -8, "sequence 3 should have 4 tokens from byte -8 on"),
    "a pointer beyond the data": (POINTERS + 8 * 3, "<q", 2**63 - 2, "sequence 3 should have"),
    "a pointer between tokens": (POINTERS + 8 * 3, "<q", 7, "sequence 3 should have"),
    "a first sequence that is not first": (POINTERS, "<q", 2, "first sequence begins at token 1"),
    "a last sequence that is not last": (POINTERS + 8 * 4, "<q", 2, "sequences end at token 3, and x.bin has 10"),
    "documents that begin late": (DOCUMENTS, "<q", 1, "documents span sequences 1 to 5"),
    "documents that end early": (DOCUMENTS + 8 * 2, "<q", 4, "documents span sequences 0 to 4"),
    "a document beyond the sequences": (DOCUMENTS + 8, "<q", 9, "out of order or not there"),
    "a document before the sequences": (DOCUMENTS + 8, "<q", -9, "out of order or not there"),
    "sequences out of order": (POINTERS + 8 * 2, "<q", 20, "sequence 2|do not lie one after the other"),
    "far too many sequences": (18, "<Q", 2**64 - 1, "should have .* bytes for"),
    "far too many documents": (26, "<Q", 2**63, "should have .* bytes for"),
    "one sequence more": (18, "<Q", 6, "should have"),
    "another version": (9, "<Q", 2, "version 2"),
    "an unknown dtype": (17, "<B", 99, "unknown code for its dtype: 99"),
    "a wider dtype": (17, "<B", 5, "not a multiple of int64 tokens"),
    "another magic": (0, "<B", 0, "not an index of Megatron-LM"),
}


@pytest.mark.parametrize("lie", LIES)
def test_an_index_that_lies_is_refused(tmp_path: Path, lie: str) -> None:
    write_megatron(tmp_path / "x", SEQUENCES, documents=[0, 2, 5])
    at, form, number, words = LIES[lie]
    edited(tmp_path / "x.idx", at, form, number)

    def read() -> None:
        source = Megatron(tmp_path / "x")
        source.__getitems__(range(len(source)))
        source.offsets(0, source.num_documents)

    with pytest.raises(errors.DamagedFile, match=words):
        read()


def test_files_that_are_cut_short_are_refused(tmp_path: Path) -> None:
    write_megatron(tmp_path / "x", SEQUENCES)
    data, index = (tmp_path / "x.bin").read_bytes(), (tmp_path / "x.idx").read_bytes()
    for end in range(0, len(data), 2):
        (tmp_path / "x.bin").write_bytes(data[:end])
        with pytest.raises(errors.DamagedFile, match="does not fit its .bin file"):
            Megatron(tmp_path / "x")
    (tmp_path / "x.bin").write_bytes(data[:-1])
    with pytest.raises(errors.DamagedFile, match="not a multiple of uint16"):
        Megatron(tmp_path / "x")
    (tmp_path / "x.bin").write_bytes(data)
    for end in range(len(index)):
        (tmp_path / "x.idx").write_bytes(index[:end])
        with pytest.raises(errors.DamagedFile):
            Megatron(tmp_path / "x")
    (tmp_path / "x.idx").unlink()
    with pytest.raises(FileNotFoundError, match=r"x\.idx"):
        Megatron(tmp_path / "x")


def test_floating_point_values_are_no_tokens(tmp_path: Path) -> None:
    write_megatron(tmp_path / "x", SEQUENCES)
    edited(tmp_path / "x.idx", 17, "<B", 7)
    with pytest.raises(errors.ArgumentError, match=r"floating-point values \(code 7\)"):
        Megatron(tmp_path / "x")
