from __future__ import annotations

import os
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

from stoker.prepare.inputs import Input, find_inputs, identify_inputs
from stoker.prepare.pieces import Piece, plan_pieces
from stoker.prepare.settings import TokenSettings, choose_piece_bytes
from tests.prepare.corpora import write_jsonl, write_parquet

TEXTS = [f"document {number} " * (number % 7 + 1) for number in range(60)]


def pieces_of(path: Any, *, tokenizer: Any = "t", **options: Any) -> tuple[Piece, ...]:
    return plan_pieces(
        identify_inputs(find_inputs(path), ()), TokenSettings(**{"piece_bytes": 500, **options}), tokenizer=tokenizer
    )


def keys(path: Any, **options: Any) -> list[str]:
    return [piece.key for piece in pieces_of(path, **options)]


def test_pieces_cover_a_file_once(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", TEXTS)
    pieces = pieces_of(path)
    assert len(pieces) > 3
    assert pieces[0].start == 0
    assert pieces[-1].stop == path.stat().st_size == sum(piece.num_bytes for piece in pieces)
    assert all(before.stop == after.start for before, after in pairwise(pieces))


def test_row_groups_are_put_together_up_to_the_size_of_a_piece(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", TEXTS, row_group_size=4)
    pieces = pieces_of(path, piece_bytes=1000)
    assert 1 < len(pieces) < 15
    assert [piece.start for piece in pieces[1:]] == [piece.stop for piece in pieces[:-1]]
    assert pieces[-1].stop == 15
    assert sum(piece.num_bytes for piece in pieces) == path.stat().st_size


def test_keys_do_not_depend_on_place_time_or_neighbors(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    write_jsonl(tmp_path / "one" / "m.jsonl", TEXTS)
    first = keys(tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    os.utime(tmp_path / "two" / "m.jsonl", ns=(5, 5))
    assert keys(tmp_path / "two") == first
    write_jsonl(tmp_path / "two" / "a.jsonl", TEXTS[:5])
    write_jsonl(tmp_path / "two" / "z.jsonl", TEXTS[:6])
    more = keys(tmp_path / "two")
    assert more[-len(first) - 1 : -1] == first
    assert len(set(more)) == len(more)


def test_keys_depend_on_what_decides_about_the_bytes(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", TEXTS)
    first = set(keys(path))
    for options in ({"tokenizer": "u"}, {"text_column": "id"}, {"end_of_document": False}, {"piece_bytes": 400}):
        assert not first & set(keys(path, **options))
    for same in ({"on_error": "skip"}, {"shuffle": 3}, {"documents": "line"}):
        assert first == set(keys(path, **same))


def test_files_with_the_same_content_have_keys_of_their_own(tmp_path: Path) -> None:
    for name in "abc":
        write_jsonl(tmp_path / f"{name}.jsonl", TEXTS[:3])
    found_keys = keys(tmp_path)
    assert len(set(found_keys)) == 3
    (tmp_path / "a.jsonl").unlink()
    assert keys(tmp_path) == found_keys[:2]


def test_a_file_that_is_added_changes_the_groups_around_it_alone(tmp_path: Path) -> None:
    for number in range(400):
        (tmp_path / f"{number:04}.txt").write_text(f"{number} " * 50)
    options = {"piece_bytes": 20 * 4096}
    before = keys(tmp_path, **options)
    assert 8 < len(before) < 60
    (tmp_path / "0100a.txt").write_text("new")
    after = keys(tmp_path, **options)
    assert len(set(after) - set(before)) <= 2


def test_pieces_grow_with_the_inputs_and_not_with_the_machine() -> None:
    def size(total: int) -> int:
        entry = Input(path="a", kind="text", compression=None, num_bytes=total, mtime_ns=0)
        return choose_piece_bytes(entry.num_bytes)

    assert size(0) == size(1000) == 4 << 20
    assert size(1 << 30) == 16 << 20
    assert size(1 << 42) == 64 << 20


def test_a_piece_says_what_it_is(tmp_path: Path) -> None:
    [piece] = pieces_of(write_jsonl(tmp_path / "a.jsonl", TEXTS), piece_bytes=1 << 20)
    assert piece.describe() == f"the piece {tmp_path / 'a.jsonl'}, bytes 0 to {piece.stop}"
    [piece] = pieces_of(write_parquet(tmp_path / "a.parquet", TEXTS), piece_bytes=1 << 20)
    assert piece.describe() == f"the piece {tmp_path / 'a.parquet'}, row groups 0 to 15"
