"""What is prepared depends on inputs, tokenizer and settings: not on pieces, workers or interruptions."""

from __future__ import annotations

import json
import random
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker import prepare
from tests.prepare.corpora import contents, read, texts_in, write_jsonl, write_parquet

texts = st.text(st.sampled_from("ab \t\r\n\u2028é四\ufeff"), max_size=60)
piece_sizes = st.integers(1, 80)


@given(text=texts, piece_bytes=piece_sizes)
def test_lines_are_the_same_in_any_pieces(text: str, piece_bytes: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.txt")
        path.write_bytes(text.encode())
        found, notes = read(path, documents="line", on_error="skip", piece_bytes=piece_bytes)
    lines = text.removeprefix("\ufeff").split("\n")
    if not lines[-1]:
        lines.pop()
    ended = [line.removesuffix("\r") for line in lines[:-1]] + [
        line.removesuffix("\r") if text.endswith("\n") else line for line in lines[-1:]
    ]
    assert found == [line for line in ended if line]
    assert sum(noted["count"] for noted in notes) == ended.count("")


@given(text=texts, piece_bytes=piece_sizes)
def test_paragraphs_are_the_same_in_any_pieces(text: str, piece_bytes: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.txt")
        path.write_bytes(text.encode())
        found = texts_in(path, documents="paragraph", piece_bytes=piece_bytes)
    parts = re.split(r"(?m)^[ \t\r\v\f]*\n", text.removeprefix("\ufeff"))
    ended = [part.removesuffix("\n").removesuffix("\r") for part in parts]
    assert found == [part for part in ended if part.strip(" \t\r\n\v\f")]


@given(documents=st.lists(st.text(min_size=1, max_size=20), max_size=30), piece_bytes=st.integers(1, 400))
def test_json_documents_are_the_same_in_any_pieces(documents: list[str], piece_bytes: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.jsonl")
        path.write_text(
            "".join(json.dumps({"text": text}, ensure_ascii=bool(len(text) % 2)) + "\n" for text in documents)
        )
        assert texts_in(path, piece_bytes=piece_bytes) == documents


@settings(max_examples=25)
@given(
    documents=st.lists(st.text(min_size=1, max_size=20), min_size=1, max_size=30),
    group=st.integers(1, 9),
    piece_bytes=st.integers(1, 400),
)
def test_rows_are_the_same_in_any_pieces(documents: list[str], group: int, piece_bytes: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = write_parquet(Path(folder, "a.parquet"), documents, row_group_size=group)
        assert texts_in(path, piece_bytes=piece_bytes) == documents


# ---------------------------------------------------------------- workers, interruptions

TEXTS = [f"document {number} " + "na ja, " * (number * 37 % 11) for number in range(300)]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    write_jsonl(folder / "a.jsonl", [*TEXTS[:150], "", *TEXTS[150:200]])
    write_parquet(folder / "b.parquet", [*TEXTS[200:], None], row_group_size=20)
    return folder


def options_for(shuffle: int | None) -> dict[str, Any]:
    return {"tokenizer": "bytes", "on_error": "skip", "piece_bytes": 1500, "shuffle": shuffle}


@pytest.mark.parametrize("shuffle", [None, 7])
def test_any_number_of_workers_writes_the_same_bytes(corpus: Path, tmp_path: Path, shuffle: int | None) -> None:
    for workers in (0, 1, 2, 5):
        prepare.tokens(corpus, out=tmp_path / str(workers), workers=workers, **options_for(shuffle))
    first = contents(tmp_path / "0")
    assert len(first) > 5
    assert all(contents(tmp_path / str(workers)) == first for workers in (1, 2, 5))


MORTAL = """
import json, mmap, os, signal, sys
from stoker import prepare

corpus, out, options, last_step = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), int(sys.argv[4])
steps = mmap.mmap(-1, 8)  # counted over all processes

def step(event, arguments):
    if event not in ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir"):
        return
    if not str(arguments[0]).startswith(out) or (event == "open" and not arguments[2] & (os.O_WRONLY | os.O_RDWR)):
        return
    number = int.from_bytes(steps[:8], "little") + 1
    steps[:8] = number.to_bytes(8, "little")
    if number >= last_step:
        os.killpg(0, signal.SIGKILL)

sys.addaudithook(step)
prepare.tokens(corpus, out=out, workers=2, **options)
"""


@pytest.mark.parametrize("shuffle", [None, 7])
def test_killed_at_any_step_and_run_again_it_writes_the_same_bytes(
    corpus: Path, tmp_path: Path, shuffle: int | None
) -> None:
    options = options_for(shuffle)
    prepare.tokens(corpus, out=tmp_path / "whole", workers=0, **options)
    out, choice = tmp_path / "out", random.Random(shuffle or 1)
    num_kills = 0
    while True:
        arguments = [str(corpus), str(out), json.dumps(options), str(choice.randrange(1, 30 + 10 * num_kills))]
        done = subprocess.run(
            [sys.executable, "-c", MORTAL, *arguments], start_new_session=True, capture_output=True, timeout=60
        )
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr.decode()
        num_kills += 1
    assert num_kills >= 2
    # what is left of the last run is removed by one that has nothing else to do
    assert prepare.tokens(corpus, out=out, workers=0, **options).is_up_to_date
    assert contents(out) == contents(tmp_path / "whole")
