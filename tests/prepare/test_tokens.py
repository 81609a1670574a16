from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stoker
from stoker import prepare
from stoker.errors import ArgumentError, BadLine, DataError, StaleSource
from stoker.prepare import Progress, Report
from stoker.prepare.documents import read_documents
from stoker.prepare.token_work import with_ends
from stoker.store import Build, Column, Writer, open_store
from stoker.store.manifest import write_safely
from tests.prepare.corpora import END, contents, decoded, write_gzip, write_jsonl, write_parquet

TEXTS = [f"document {number} " + "na ja, " * (number * 37 % 11) for number in range(200)]


def made(inputs: Any, out: Path, **options: Any) -> Report:
    return prepare.tokens(inputs, out=out, **{"tokenizer": "bytes", "workers": 0, "piece_bytes": 2000, **options})


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    folder.mkdir()
    write_jsonl(folder / "a.jsonl", TEXTS[:100])
    write_parquet(folder / "b.parquet", TEXTS[100:150], row_group_size=10)
    write_jsonl(folder / "c.jsonl", TEXTS[150:])
    return folder


def test_every_document_is_a_sample_with_its_end(corpus: Path, tmp_path: Path) -> None:
    report = made(corpus, tmp_path / "out")
    assert decoded(tmp_path / "out") == TEXTS
    assert report.documents == len(TEXTS)
    assert report.tokens == sum(len(text) + 1 for text in TEXTS)
    assert report.text_bytes == report.made_bytes == sum(map(len, TEXTS))
    assert (report.skipped, report.dtype, report.backend) == (0, "uint16", "bytes")
    assert report.num_made == report.num_pieces > 5
    assert not (tmp_path / "out" / ".build").exists()


def test_the_manifest_tells_where_it_comes_from(corpus: Path, tmp_path: Path) -> None:
    made(corpus, tmp_path / "out", on_error="skip")
    meta = open_store(tmp_path / "out").meta
    assert meta["tokenizer"]["kind"] == "bytes"
    assert meta["tokenizer"]["end_of_document"] == END
    assert meta["settings"] == {
        "text_column": "text",
        "documents": "file",
        "end_of_document": True,
        "shuffle": None,
        "on_error": "skip",
        "piece_bytes": 2000,
    }
    assert [Path(entry["path"]).name for entry in meta["origin"]["inputs"]] == ["a.jsonl", "b.parquet", "c.jsonl"]
    assert all(len(entry["digest"]) == 32 for entry in meta["origin"]["inputs"])
    assert meta["counts"]["documents"] == len(TEXTS)


def test_documents_need_not_end_with_a_token(corpus: Path, tmp_path: Path) -> None:
    report = made(corpus, tmp_path / "out", end_of_document=False)
    assert report.tokens == sum(map(len, TEXTS))
    assert len(open_store(tmp_path / "out")[3]["tokens"]) == len(TEXTS[3])


def test_another_token_may_end_documents(corpus: Path, tmp_path: Path) -> None:
    made(corpus, tmp_path / "out", end_of_document=7)
    assert open_store(tmp_path / "out")[3]["tokens"][-1] == 7


def test_ends_are_put_behind_each_document() -> None:
    ids, lengths = np.array([1, 2, 3], np.uint32), np.array([0, 2, 0, 1])
    values, new = with_ends(ids, lengths, 9, np.dtype(np.uint8))
    assert values.tolist() == [9, 1, 2, 9, 9, 3, 9]
    assert new.tolist() == [1, 3, 1, 2]
    assert values.dtype == np.uint8


# ---------------------------------------------------------------- again


def test_the_same_again_does_nothing(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = made(corpus, tmp_path / "out")
    before = contents(tmp_path / "out")
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}

    def fail(*_: Any, **__: Any) -> None:
        raise AssertionError("no input is read")

    monkeypatch.setattr("stoker.prepare.token_preparation.identify_inputs", fail)
    again = made(corpus, tmp_path / "out")
    assert again.is_up_to_date
    assert not first.is_up_to_date
    assert replace(again, seconds=0) == replace(first, seconds=0, num_made=0, made_bytes=0, is_up_to_date=True)
    assert contents(tmp_path / "out") == before
    assert times == {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}


def test_inputs_that_were_only_touched_or_moved_are_not_made_again(corpus: Path, tmp_path: Path) -> None:
    made(corpus, tmp_path / "out")
    os.utime(corpus / "a.jsonl", ns=(7, 7))
    assert made(corpus, tmp_path / "out").num_made == 0
    shutil.move(corpus, tmp_path / "elsewhere")
    assert made(tmp_path / "elsewhere", tmp_path / "out").num_made == 0
    paths = [entry["path"] for entry in open_store(tmp_path / "out").meta["origin"]["inputs"]]
    assert paths[0] == str(tmp_path / "elsewhere" / "a.jsonl")


def test_changed_inputs_make_the_pieces_that_changed(corpus: Path, tmp_path: Path) -> None:
    first = made(corpus, tmp_path / "out")
    write_jsonl(corpus / "c.jsonl", ["new", *TEXTS[150:]])
    write_jsonl(corpus / "d.jsonl", ["more"])
    (corpus / "b.parquet").unlink()
    again = made(corpus, tmp_path / "out")
    assert 0 < again.num_made < first.num_made
    assert again.num_reused == again.num_pieces - again.num_made > 0
    made(corpus, tmp_path / "fresh")
    assert contents(tmp_path / "out") == contents(tmp_path / "fresh")
    assert decoded(tmp_path / "out") == [*TEXTS[:100], "new", *TEXTS[150:], "more"]


def test_changed_settings_make_everything_again(corpus: Path, tmp_path: Path) -> None:
    first = made(corpus, tmp_path / "out")
    again = made(corpus, tmp_path / "out", end_of_document=False)
    assert again.num_made == again.num_pieces == first.num_pieces
    made(corpus, tmp_path / "fresh", end_of_document=False)
    assert contents(tmp_path / "out") == contents(tmp_path / "fresh")


def test_a_shard_that_is_gone_is_made_again(corpus: Path, tmp_path: Path) -> None:
    made(corpus, tmp_path / "out")
    before = contents(tmp_path / "out")
    next(iter((tmp_path / "out").glob("*.safetensors"))).unlink()
    assert made(corpus, tmp_path / "out").num_made == 1
    assert contents(tmp_path / "out") == before


def test_a_run_stopped_between_its_last_steps_is_cleared_up_after(corpus: Path, tmp_path: Path) -> None:
    made(corpus, tmp_path / "out")
    before = contents(tmp_path / "out")
    (tmp_path / "out" / ".build").mkdir()
    (tmp_path / "out" / ".build" / f"{'0' * 32}-000.safetensors.123").write_text("half")
    (tmp_path / "out" / ".manifest.json.123").write_text("half")
    (tmp_path / "out" / f"{'0' * 32}-000.safetensors").write_text("of another piece")
    report = made(corpus, tmp_path / "out")
    assert (report.num_made, report.is_up_to_date) == (0, False)
    assert contents(tmp_path / "out") == before


@pytest.mark.parametrize("content", [None, b"", b"{}", b'{"format": "stoker.store", "ver'])
@pytest.mark.parametrize("is_unfinished", [False, True])
@pytest.mark.parametrize("shuffle", [None, 3])
def test_a_store_whose_manifest_is_damaged_or_lost_is_made_again(
    corpus: Path, tmp_path: Path, content: bytes | None, is_unfinished: bool, shuffle: int | None
) -> None:
    made(corpus, tmp_path / "out", shuffle=shuffle)
    before = contents(tmp_path / "out")
    (tmp_path / "out" / "manifest.json").unlink()
    if content is not None:
        (tmp_path / "out" / "manifest.json").write_bytes(content)
    if is_unfinished:
        (tmp_path / "out" / ".build").mkdir()
        (tmp_path / "out" / "pieces.json").write_text("{")
    assert made(corpus, tmp_path / "out", shuffle=shuffle).num_made > 0
    assert contents(tmp_path / "out") == before


def test_a_store_of_something_else_is_left_alone_even_without_its_manifest(corpus: Path, tmp_path: Path) -> None:
    with Writer(tmp_path / "other", {"x": Column.fixed("uint8", ())}) as writer:
        writer.append({"x": 1})
    (tmp_path / "other" / "manifest.json").write_bytes(b"")
    before = contents(tmp_path / "other")
    with pytest.raises(ArgumentError, match="was not made by `stoker prepare tokens`"):
        made(corpus, tmp_path / "other")
    (tmp_path / "other" / "pieces.json").unlink()
    with pytest.raises(ArgumentError, match="is not a store"):
        made(corpus, tmp_path / "other")
    assert contents(tmp_path / "other").items() <= before.items()


def test_only_a_run_that_did_nothing_finds_the_store_up_to_date(corpus: Path, tmp_path: Path) -> None:
    first = made(corpus, tmp_path / "out")
    skipping = made(corpus, tmp_path / "out", on_error="skip")
    assert (skipping.is_up_to_date, skipping.num_made, skipping.num_removed) == (False, 0, 0)
    (corpus / "c.jsonl").unlink()
    fewer = made(corpus, tmp_path / "out", on_error="skip")
    assert (fewer.is_up_to_date, fewer.num_made) == (False, 0)
    assert fewer.num_removed == first.num_pieces - fewer.num_pieces > 0
    os.rename(corpus / "a.jsonl", corpus / "z.jsonl")
    reordered = made(corpus, tmp_path / "out", on_error="skip")
    assert (reordered.is_up_to_date, reordered.num_made, reordered.num_removed) == (False, 0, 0)
    assert decoded(tmp_path / "out") == TEXTS[100:150] + TEXTS[:100]
    assert made(corpus, tmp_path / "out", on_error="skip").is_up_to_date


def test_pieces_stay_as_large_as_they_are_when_inputs_grow(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = iter((1500, 2000))
    monkeypatch.setattr("stoker.prepare.token_preparation.choose_piece_bytes", lambda _: next(sizes))
    made(corpus, tmp_path / "out", piece_bytes=None)
    write_jsonl(corpus / "d.jsonl", ["more"])
    assert made(corpus, tmp_path / "out", piece_bytes=None).num_made == 1
    assert open_store(tmp_path / "out").meta["settings"]["piece_bytes"] == 1500
    made(corpus, tmp_path / "out", piece_bytes=700)
    assert open_store(tmp_path / "out").meta["settings"]["piece_bytes"] == 700


def test_pieces_of_a_run_that_was_stopped_stay_as_large_as_they_are(corpus: Path, tmp_path: Path) -> None:
    (corpus / "z.jsonl").write_text("oops\n")
    with pytest.raises(BadLine):
        made(corpus, tmp_path / "out", piece_bytes=3000)
    (corpus / "z.jsonl").unlink()
    assert made(corpus, tmp_path / "out", piece_bytes=None).num_made == 0
    assert open_store(tmp_path / "out").meta["settings"]["piece_bytes"] == 3000


def test_what_a_folder_holds_that_is_no_store_is_left_alone(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    (tmp_path / "file").write_text("precious")
    with Writer(tmp_path / "other", {"x": Column.fixed("uint8", ())}) as writer:
        writer.append({"x": 1})
    for name, message in (
        ("mine", "exists already, and is not a store"),
        ("file", "is a file"),
        ("other", "was not made by `stoker prepare tokens`"),
    ):
        with pytest.raises(ArgumentError, match=message):
            made(corpus, tmp_path / name)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == (tmp_path / "file").read_text() == "precious"


def test_a_store_inside_its_own_input_folder_is_not_read(corpus: Path) -> None:
    (corpus / "bad.jsonl").write_text("oops\n")
    made(corpus, corpus / "out", on_error="skip")
    assert (corpus / "out" / "skipped.jsonl").exists()
    assert made(corpus, corpus / "out", on_error="skip").is_up_to_date


# ---------------------------------------------------------------- bad input


def test_what_is_skipped_is_counted_and_listed(corpus: Path, tmp_path: Path) -> None:
    (corpus / "bad.jsonl").write_text('{"text": "good"}\noops\n{"other": 1}\n{"text": ""}\n')
    (corpus / "broken.parquet").write_bytes(b"PAR1")
    report = made(corpus, tmp_path / "out", on_error="skip")
    assert report.documents == len(TEXTS) + 1
    assert report.skipped == 4
    assert report.reasons == {"empty document": 1, "no field": 1, "not JSON": 1, "unreadable": 1}
    entries = [json.loads(line) for line in (tmp_path / "out" / "skipped.jsonl").read_text().splitlines()]
    assert [Path(entry["file"]).name for entry in entries] == ["bad.jsonl"] * 3 + ["broken.parquet"]
    assert [(entry["line"], entry["byte"]) for entry in entries[:3]] == [(2, 17), (3, 22), (4, 35)]
    assert made(corpus, tmp_path / "out", on_error="skip").skipped == 4


def test_a_ledger_goes_when_nothing_is_skipped_any_more(corpus: Path, tmp_path: Path) -> None:
    (corpus / "bad.jsonl").write_text("oops\n")
    made(corpus, tmp_path / "out", on_error="skip")
    (corpus / "bad.jsonl").unlink()
    made(corpus, tmp_path / "out", on_error="skip")
    assert not (tmp_path / "out" / "skipped.jsonl").exists()


def test_an_error_keeps_what_is_finished_for_a_run_that_skips(corpus: Path, tmp_path: Path) -> None:
    (corpus / "z.jsonl").write_text("oops\n")
    with pytest.raises(BadLine, match=r"line 1 .* of .*z\.jsonl cannot be parsed: it is not JSON"):
        made(corpus, tmp_path / "out")
    assert not (tmp_path / "out" / "manifest.json").exists()
    report = made(corpus, tmp_path / "out", on_error="skip")
    assert (report.num_made, report.skipped) == (1, 1)
    with pytest.raises(BadLine):
        made(corpus, tmp_path / "out")
    assert decoded(tmp_path / "out") == TEXTS


def test_inputs_without_any_document_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("oops\n")
    with pytest.raises(DataError, match="the inputs contain no documents"):
        made(tmp_path / "a.jsonl", tmp_path / "out", on_error="skip")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": -1}, "workers must not be negative, got -1"),
        ({"documents": "page"}, "unknown documents='page'"),
        ({"on_error": "ignore"}, "unknown on_error='ignore'"),
        ({"text_column": ""}, "text_column must be a name"),
        ({"piece_bytes": 0}, "piece_bytes must be positive"),
        ({"shuffle": -1}, "shuffle must be a seed"),
        ({"end_of_document": "<none>"}, "is not a token"),
    ],
)
def test_arguments_that_cannot_work_are_refused(
    corpus: Path, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ArgumentError, match=message):
        made(corpus, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


# ---------------------------------------------------------------- order, progress, tokenizers


def test_a_shuffle_writes_every_document_once_in_the_order_of_its_seed(corpus: Path, tmp_path: Path) -> None:
    report = made(corpus, tmp_path / "out", shuffle=5)
    texts = decoded(tmp_path / "out")
    assert sorted(texts) == sorted(TEXTS)
    assert texts != TEXTS
    assert report.documents == len(TEXTS)
    assert made(corpus, tmp_path / "out", shuffle=5).is_up_to_date
    made(corpus, tmp_path / "other", shuffle=6)
    assert decoded(tmp_path / "other") != texts
    assert not (tmp_path / "out" / ".build").exists()


def test_a_shuffled_store_is_made_again_when_inputs_change(corpus: Path, tmp_path: Path) -> None:
    made(corpus, tmp_path / "out", shuffle=5)
    write_jsonl(corpus / "d.jsonl", ["more"])
    assert made(corpus, tmp_path / "out", shuffle=5).num_made
    assert sorted(decoded(tmp_path / "out")) == sorted([*TEXTS, "more"])


@pytest.mark.parametrize("workers", [0, 2])
def test_whoever_watches_sees_all_stages_to_their_end(corpus: Path, tmp_path: Path, workers: int) -> None:
    seen: list[Progress] = []
    made(corpus, tmp_path / "out", shuffle=1, workers=workers, watch=seen.append)
    assert list(dict.fromkeys(progress.stage for progress in seen)) == ["hashing", "tokenizing", "shuffling"]
    for stage in ("tokenizing", "shuffling"):
        *_, last = (progress for progress in seen if progress.stage == stage)
        assert last.num_read == last.num_bytes
        assert last.pieces_done == last.num_pieces
        assert last.documents == len(TEXTS)


def test_a_tokenizer_is_trained_and_used(corpus: Path, tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    identity = prepare.tokenizer(corpus, vocab_size=300, out=tmp_path / "tokenizer.json")
    again = prepare.tokenizer(corpus, vocab_size=300, out=tmp_path / "again.json")
    assert identity.vocab_size == 300
    assert identity.digest == again.digest
    report = made(corpus, tmp_path / "out", tokenizer=tmp_path / "tokenizer.json", workers=2, backend="reference")
    assert (report.dtype, report.backend) == ("uint16", "tokenizers")
    from stoker.transform.tokenizer import open_tokenizer

    tokenizer = open_tokenizer(tmp_path / "tokenizer.json", backend="reference")
    store = stoker.Store(tmp_path / "out")
    assert [tokenizer.decode(store[number]["tokens"][:-1]) for number in range(0, 200, 17)] == TEXTS[::17]
    assert store[0]["tokens"][-1] == identity.end_of_document
    from importlib.metadata import version

    assert store.meta["origin"]["libraries"] == {"tokenizers": version("tokenizers")}


def test_gigatoken_makes_the_same_store(corpus: Path, tmp_path: Path) -> None:
    pytest.importorskip("gigatoken")
    prepare.tokenizer(corpus, vocab_size=300, out=tmp_path / "tokenizer.json")
    options = {"tokenizer": tmp_path / "tokenizer.json", "workers": 2}
    assert made(corpus, tmp_path / "one", backend="gigatoken", **options).backend == "gigatoken"
    made(corpus, tmp_path / "two", backend="reference", **options)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


# ---------------------------------------------------------------- what is there is not lost, and never mixed up


def test_the_same_pattern_works_again_where_the_store_lies_among_its_matches(corpus: Path) -> None:
    first = made(corpus / "*", corpus / "out")
    again = made(corpus / "*", corpus / "out")
    assert again.is_up_to_date
    assert again.documents == first.documents


class _Killed(BaseException):
    pass


def test_a_run_that_was_stopped_before_its_manifest_does_not_mix_with_the_store_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n\nthree")
    made(tmp_path / "a.txt", tmp_path / "out", documents="line", on_error="skip")
    before = contents(tmp_path / "out")

    def stopped(path: Path, text: bytes) -> None:
        if path.name == "manifest.json":
            raise _Killed
        write_safely(path, text)

    monkeypatch.setattr(f"{Build.__module__}.write_safely", stopped)
    with pytest.raises(_Killed):
        made(tmp_path / "a.txt", tmp_path / "out", documents="paragraph", on_error="skip")
    monkeypatch.undo()
    made(tmp_path / "a.txt", tmp_path / "out", documents="line", on_error="skip")
    assert decoded(tmp_path / "out") == ["one", "two", "three"]
    assert contents(tmp_path / "out") == before


def test_a_run_with_another_tokenizer_that_was_stopped_does_not_leave_its_copy(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, vocab_size in (("a", 260), ("b", 270)):
        (tmp_path / name).mkdir()
        prepare.tokenizer(corpus, vocab_size=vocab_size, out=tmp_path / name)
    made(corpus, tmp_path / "out", tokenizer=tmp_path / "a")
    before = contents(tmp_path / "out")

    def stopped(path: Path, text: bytes) -> None:
        if path.name == "pieces.json":
            raise _Killed
        write_safely(path, text)

    monkeypatch.setattr(f"{Build.__module__}.write_safely", stopped)
    with pytest.raises(_Killed):
        made(corpus, tmp_path / "out", tokenizer=tmp_path / "b")
    monkeypatch.undo()
    made(corpus, tmp_path / "out", tokenizer=tmp_path / "a")
    assert contents(tmp_path / "out") == before


def test_the_copy_of_a_tokenizer_goes_with_the_store_it_was_for(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tokenizers")
    for name, vocab_size in (("a.json", 260), ("b.json", 270), ("c.json", 280)):
        prepare.tokenizer(corpus, vocab_size=vocab_size, out=tmp_path / name)
    made(corpus, tmp_path / "out", tokenizer=tmp_path / "a.json")
    before = contents(tmp_path / "out")

    def stopped(*_: Any, **__: Any) -> None:
        raise _Killed

    with monkeypatch.context() as patch:  # both are stopped when their copy is already there
        patch.setattr(Build, "finish", stopped)
        for name in ("b.json", "c.json"):
            with pytest.raises(_Killed):
                made(corpus, tmp_path / "out", tokenizer=tmp_path / name)
    (tmp_path / "out" / ".c.json.123").write_text("half")
    made(corpus, tmp_path / "out", tokenizer=tmp_path / "a.json")
    assert contents(tmp_path / "out") == before
    (tmp_path / "out" / "b.json").write_text("the user's own")
    made(corpus, tmp_path / "out", tokenizer=tmp_path / "c.json")
    assert sorted(path.name for path in (tmp_path / "out").glob("?.json")) == ["b.json", "c.json"]
    made(corpus, tmp_path / "out")
    assert not (tmp_path / "out" / "c.json").exists()


def test_half_a_copy_of_a_tokenizer_is_cleared_up_after(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "out" / ".build").mkdir(parents=True)
    (tmp_path / "out" / ".build" / "run.json").write_text('{"copies": {"my.model": ""}}')
    (tmp_path / "out" / ".my.model.123").write_text("half")
    made(corpus, tmp_path / "out")
    assert not (tmp_path / "out" / ".my.model.123").exists()


@pytest.mark.parametrize("content", [None, b"", b"[]", b'{"a": 1}'])
def test_a_store_without_its_table_of_pieces_is_made_whole_again(
    corpus: Path, tmp_path: Path, content: bytes | None
) -> None:
    made(corpus, tmp_path / "out")
    before = contents(tmp_path / "out")
    (tmp_path / "out" / ".build").mkdir()
    (tmp_path / "out" / "pieces.json").unlink()
    if content is not None:
        (tmp_path / "out" / "pieces.json").write_bytes(content)
    made(corpus, tmp_path / "out")
    assert contents(tmp_path / "out") == before


def test_an_error_over_what_was_skipped_before_leaves_the_store_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("token_preparation", "store_target"):
        monkeypatch.setattr(f"stoker.prepare.{module}.Build", partial(Build, shard_bytes=1 << 20))
    texts: list[Any] = ["x" * 400_000] * 8
    lines = write_jsonl(tmp_path / "a.jsonl", [*texts, None])
    packed = write_gzip(tmp_path / "a.jsonl.gz", lines.read_text())
    made(packed, tmp_path / "out", on_error="skip")
    with pytest.raises(DataError, match="line 9 .* cannot be used"):
        made(packed, tmp_path / "out")
    assert decoded(tmp_path / "out") == texts


def test_a_tokenizer_that_has_changed_is_loaded_again(corpus: Path, tmp_path: Path) -> None:
    for vocab_size in (260, 270):
        prepare.tokenizer(corpus, vocab_size=vocab_size, out=tmp_path / "tokenizer.json")
        made(corpus, tmp_path / "out", tokenizer=tmp_path / "tokenizer.json")
        assert open_store(tmp_path / "out").meta["tokenizer"]["vocab_size"] == vocab_size


def test_a_text_that_the_tokenizer_refuses_is_named_with_its_file(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    made_of = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1}, unk_token="none"))
    made_of.save(str(tmp_path / "words.json"))
    for name, text in (("1", "a"), ("2", "c"), ("3", "b")):
        (tmp_path / f"{name}.txt").write_text(text)
    options = {"tokenizer": tmp_path / "words.json", "end_of_document": False}
    with pytest.raises(DataError, match=r"2\.txt cannot be used"):
        made(tmp_path / "*.txt", tmp_path / "out", **options, piece_bytes=1 << 20)
    report = made(tmp_path / "*.txt", tmp_path / "out", **options, piece_bytes=1 << 20, on_error="skip")
    assert (report.documents, report.text_bytes, report.skipped) == (2, 2, 1)
    [entry] = map(json.loads, (tmp_path / "out" / "skipped.jsonl").read_text().splitlines())
    assert entry["file"] == str(tmp_path / "2.txt")


def test_a_file_that_changes_while_it_is_read_is_noticed(corpus: Path, tmp_path: Path) -> None:
    def change(progress: Progress) -> None:
        if progress.stage == "tokenizing" and not progress.pieces_done:
            os.utime(corpus / "c.jsonl", ns=(7, 7))

    with pytest.raises(StaleSource, match="c.jsonl"):
        made(corpus, tmp_path / "out", watch=change)


def test_a_file_that_changes_after_its_last_byte_was_read_is_noticed(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_change(*given: Any) -> Any:
        yield from read_documents(*given)
        os.utime(corpus / "a.jsonl", ns=(7, 7))

    monkeypatch.setattr("stoker.prepare.token_work.read_documents", with_change)
    with pytest.raises(StaleSource, match="a.jsonl"):
        made(corpus / "a.jsonl", tmp_path / "out", piece_bytes=1 << 20)
