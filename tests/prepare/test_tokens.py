from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stoker
from stoker import prepare
from stoker.errors import ArgumentError, BadLine, DataError
from stoker.prepare import Progress, Report
from stoker.prepare.encoding import with_ends
from stoker.store import Column, Writer, open_store
from tests.prepare.corpora import END, contents, decoded, write_jsonl, write_parquet

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

    monkeypatch.setattr("stoker.prepare.preparation.identified", fail)
    again = made(corpus, tmp_path / "out")
    assert again.is_up_to_date
    assert replace(again, seconds=0, num_made=0) == replace(first, seconds=0, num_made=0, made_bytes=0)
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
    assert made(corpus, tmp_path / "out").is_up_to_date
    assert contents(tmp_path / "out") == before


def test_what_a_folder_holds_that_is_no_store_is_left_alone(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    (tmp_path / "file").write_text("precious")
    with Writer(tmp_path / "other", {"x": Column.fixed("uint8", ())}) as writer:
        writer.append({"x": 1})
    for name, message in (
        ("mine", "is there already, and is not a store"),
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
    with pytest.raises(DataError, match="there is no document in the inputs"):
        made(tmp_path / "a.jsonl", tmp_path / "out", on_error="skip")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": -1}, "workers=-1 is negative"),
        ({"documents": "page"}, "documents='page' is not known"),
        ({"on_error": "ignore"}, "on_error='ignore' is not known"),
        ({"text_column": ""}, "names nothing"),
        ({"piece_bytes": 0}, "not positive"),
        ({"shuffle": -1}, "is no seed"),
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


def test_gigatoken_makes_the_same_store(corpus: Path, tmp_path: Path) -> None:
    pytest.importorskip("gigatoken")
    prepare.tokenizer(corpus, vocab_size=300, out=tmp_path / "tokenizer.json")
    options = {"tokenizer": tmp_path / "tokenizer.json", "workers": 2}
    assert made(corpus, tmp_path / "one", backend="gigatoken", **options).backend == "gigatoken"
    made(corpus, tmp_path / "two", backend="reference", **options)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
