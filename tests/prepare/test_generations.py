"""A corpus that is prepared again while somebody trains on it: what is in use stays, and goes afterwards."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stoker
from stoker import prepare
from stoker.errors import StaleSource
from stoker.store.generations import GENERATIONS
from tests.faults.test_store_faults import dying_at
from tests.prepare.corpora import contents, decoded, write_jsonl

FIRST = [f"document {number} " + "na ja, " * (number * 37 % 11) for number in range(120)]
MORE = [f"another {number}" for number in range(40)]

READER = """
import sys
import stoker

if __name__ == "__main__":
    store = stoker.open(sys.argv[1])
    print(len(store), flush=True)
    sys.stdin.readline()
    options = {"num_workers": 1, "multiprocessing_context": "spawn"}
    loader = stoker.DataLoader(store.tokens(length=16), batch_size=4, shuffle=True, seed=1, **options)
    print(sum(int(batch["tokens"].sum()) for batch in loader), flush=True)
"""


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    folder.mkdir()
    write_jsonl(folder / "a.jsonl", FIRST[:60])
    write_jsonl(folder / "b.jsonl", FIRST[60:])
    return folder


def made(inputs: Path, out: Path, **options: Any) -> prepare.Report:
    return prepare.tokens(inputs, out=out, **{"tokenizer": "bytes", "workers": 0, "piece_bytes": 2000, **options})


def grown(corpus: Path) -> None:
    write_jsonl(corpus / "c.jsonl", MORE)


def changed(corpus: Path) -> None:
    write_jsonl(corpus / "a.jsonl", MORE)


def texts_of(store: Any) -> list[str]:
    return [
        sample["tokens"][:-1].astype(np.uint8).tobytes().decode() for sample in store.__getitems__(range(len(store)))
    ]


@pytest.mark.parametrize("change", [grown, changed])
def test_a_store_that_is_open_is_read_to_its_end_whatever_is_prepared(
    corpus: Path, tmp_path: Path, change: Any
) -> None:
    out = tmp_path / "out"
    made(corpus, out)
    store = stoker.open(out)  # no shard is mapped yet
    sent = pickle.dumps(store)
    change(corpus)
    made(corpus, out)
    assert texts_of(store) == FIRST
    assert texts_of(pickle.loads(sent)) == FIRST, "as workers get it that are started now"
    assert decoded(out) != FIRST
    assert len(list((out / GENERATIONS).iterdir())) == 1
    del store
    made(corpus, out)  # has nothing to do but this
    assert not (out / GENERATIONS).exists()
    made(corpus, tmp_path / "fresh")
    assert contents(out) == contents(tmp_path / "fresh"), "nothing is left of what was before"
    with pytest.raises(StaleSource, match="was prepared again"):
        pickle.loads(sent)


def test_several_generations_stay_each_for_its_readers(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    stores = []
    for number in range(3):
        write_jsonl(corpus / "b.jsonl", [f"{number} {text}" for text in MORE])
        made(corpus, out)
        stores.append(stoker.open(out))
    assert len(list((out / GENERATIONS).iterdir())) == 2
    assert [texts_of(store)[-1] for store in stores] == [f"{number} {MORE[-1]}" for number in range(3)]
    del stores[0], stores[1:]
    write_jsonl(corpus / "d.jsonl", MORE)
    made(corpus, out)
    [kept] = [json.loads(path.read_bytes()) for path in (out / GENERATIONS).iterdir()]
    assert texts_of(stores[0])[-1] == f"1 {MORE[-1]}"
    named = {shard["file"] for shard in kept["shards"]} | {shard.file for shard in stoker.Store(out).manifest.shards}
    assert {path.name for path in out.glob("*.safetensors")} == named


def test_a_process_that_trains_goes_on_with_what_it_opened(corpus: Path, tmp_path: Path) -> None:
    out, script = tmp_path / "out", tmp_path / "train.py"
    script.write_text(READER)
    made(corpus, out)
    expected = sum(int(row["tokens"].sum()) for row in stoker.open(out).tokens(length=16))
    with subprocess.Popen(
        [sys.executable, str(script), str(out)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as training:
        assert training.stdin is not None
        assert training.stdout is not None
        assert training.stdout.readline() == f"{len(FIRST)}\n"
        changed(corpus)
        command = [sys.executable, "-m", "stoker", "prepare", "tokens", str(corpus), "--tokenizer", "bytes"]
        subprocess.run([*command, "--out", str(out)], check=True, capture_output=True)
        assert len(stoker.open(out)) == len(MORE) + 60
        training.stdin.write("go on\n")
        training.stdin.flush()
        assert training.stdout.readline() == f"{expected}\n"
    assert training.returncode == 0
    subprocess.run([*command, "--out", str(out)], check=True, capture_output=True)
    assert not (out / GENERATIONS).exists()


def test_a_preparation_killed_anywhere_keeps_what_is_in_use_and_nothing_else(corpus: Path, tmp_path: Path) -> None:
    made(corpus, tmp_path / "first")
    changed(corpus)
    made(corpus, tmp_path / "fresh")
    code, number = 77, 0
    while code == 77:
        number += 1
        write_jsonl(corpus / "a.jsonl", FIRST[:60])
        out = tmp_path / f"out{number}"
        made(corpus, out)
        store = stoker.open(out)
        changed(corpus)
        code = dying_at(number, lambda out=out: made(corpus, out))  # type: ignore[misc]
        assert texts_of(store) == FIRST
        made(corpus, out)
        assert texts_of(store) == FIRST
        del store
        made(corpus, out)
        assert decoded(out) == decoded(tmp_path / "fresh")
        assert not (out / GENERATIONS).exists()
        assert {path.name for path in out.glob("*.safetensors")} == {
            path.name for path in (tmp_path / "fresh").glob("*.safetensors")
        }
    assert code == 0
    assert number > 10


def test_what_a_preparation_did_not_make_stays(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    made(corpus, out)
    (out / GENERATIONS).mkdir()
    (out / GENERATIONS / "notes.txt").write_text("mine")
    changed(corpus)
    made(corpus, out)
    assert (out / GENERATIONS / "notes.txt").read_text() == "mine"


def test_where_files_cannot_be_linked_a_store_is_prepared_as_before(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any) -> None:
        raise OSError("no links")

    out = tmp_path / "out"
    made(corpus, out)
    monkeypatch.setattr(os, "link", refused)
    changed(corpus)
    made(corpus, out)
    assert len(decoded(out)) == len(MORE) + 60
    assert not (out / GENERATIONS).exists()
