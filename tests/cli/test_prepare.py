from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from stoker.cli.app import app
from tests.prepare.corpora import decoded, write_jsonl, write_parquet

TEXTS = [f"document {number} says {number * number}" for number in range(50)]


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["prepare", *map(str, arguments)], env={"COLUMNS": "200"})


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    (tmp_path / "corpus").mkdir()
    write_jsonl(tmp_path / "corpus" / "a.jsonl", TEXTS)
    return tmp_path / "corpus"


def test_text_becomes_tokens_and_the_result_is_told(corpus: Path, tmp_path: Path) -> None:
    result = run("tokens", corpus, "--tokenizer", "bytes", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.stderr
    assert re.search(r"documents +50", result.output)
    num_tokens = sum(len(text) + 1 for text in TEXTS)
    assert re.search(rf"tokens +{num_tokens:,} \({num_tokens / 50:.1f} per document\)", result.output)
    assert re.search(r"on disk +.*kB, as uint16", result.output)
    assert re.search(r"pieces +1, of which 0 existed", result.output)
    assert re.search(r"time +.* MB/s, by bytes", result.output)
    assert re.search(r"skipped +none", result.output)
    assert f"next: stoker inspect {tmp_path / 'out'}" in result.output
    assert decoded(tmp_path / "out") == TEXTS


def test_the_same_again_says_that_there_is_nothing_to_do(corpus: Path, tmp_path: Path) -> None:
    arguments = ("tokens", corpus, "--tokenizer", "bytes", "--out", tmp_path / "out")
    assert "is up to date" not in run(*arguments).output
    assert "is up to date" in run(*arguments).output


def test_what_was_removed_is_told_and_not_that_nothing_was_done(corpus: Path, tmp_path: Path) -> None:
    write_jsonl(corpus / "b.jsonl", ["more"])
    arguments = ("tokens", corpus, "--tokenizer", "bytes", "--out", tmp_path / "out")
    run(*arguments)
    (corpus / "b.jsonl").unlink()
    result = run(*arguments)
    assert "is up to date" not in result.output
    assert re.search(r"pieces +1, of which 1 existed; removed: 1", result.output)
    assert "MB/s" not in result.output


def test_what_was_skipped_is_told(corpus: Path, tmp_path: Path) -> None:
    (corpus / "bad.jsonl").write_text('oops\n{"text": ""}\n')
    arguments = ("tokens", corpus, "--tokenizer", "bytes", "--out", tmp_path / "out")
    result = run(*arguments)
    assert result.exit_code == 1
    assert "error: line 1 (byte 0) of" in result.stderr
    assert "hint: " in result.stderr
    result = run(*arguments, "--on-error", "skip")
    assert result.exit_code == 0, result.stderr
    assert re.search(r"skipped +2 \(1 empty document, 1 not JSON\); see .*skipped\.jsonl", result.output)


def test_options_find_their_way(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    result = run(
        *("tokens", tmp_path / "a.txt", "--tokenizer", "bytes", "--out", tmp_path / "out", "--documents", "line"),
        *("--no-end-of-document", "--workers", "0", "--piece-mib", "1", "--shuffle", "3", "--backend", "reference"),
    )
    assert result.exit_code == 0, result.stderr
    assert re.search(r"tokens +6 \(3\.0 per document\)", result.output)


def test_options_that_contradict_each_other_are_refused(corpus: Path, tmp_path: Path) -> None:
    result = run(
        *("tokens", corpus, "--tokenizer", "bytes", "--out", tmp_path / "out"),
        *("--no-end-of-document", "--end-of-document", "7"),
    )
    assert result.exit_code == 1
    assert "exclude each other" in result.stderr


def test_a_tokenizer_is_trained_and_the_next_command_told(corpus: Path, tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    out = tmp_path / "tokenizer.json"
    result = run("tokenizer", corpus, "--vocab-size", "300", "--out", out)
    assert result.exit_code == 0, result.stderr
    assert "tokens, ids as uint16" in result.output
    assert f"next: stoker prepare tokens {corpus} --tokenizer {out} --out tokens" in result.output
    result = run("tokens", corpus, "--tokenizer", out, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.stderr


def test_the_next_command_has_the_options_of_this_one_and_can_be_pasted(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    (tmp_path / "my corpus").mkdir()
    write_parquet(tmp_path / "my corpus" / "a.parquet", TEXTS, column="it's [b]")
    options = ("--text-column", "it's [b]", "--documents", "line", "--on-error", "skip")
    given = (tmp_path / "my corpus" / "*.parquet", *options)
    result = run("tokenizer", *given, "--vocab-size", "300", "--out", tmp_path / "tokenizer.json")
    [line] = [line for line in result.output.splitlines() if line.startswith("next: ")]
    stoker, prepare, *command = shlex.split(line.removeprefix("next: "))
    assert (stoker, prepare, command[-6:]) == ("stoker", "prepare", list(options))
    command[command.index("tokens", 1)] = str(tmp_path / "my tokens")
    result = run(*command)
    assert result.exit_code == 0, result.stderr
    assert f"next: stoker inspect '{tmp_path}/my tokens'" in result.output


def test_a_bar_is_drawn_on_a_terminal_and_nothing_into_a_file(corpus: Path, tmp_path: Path) -> None:
    from rich.console import Console

    from stoker.cli.prepare import _ProgressDisplay
    from stoker.prepare import Progress

    for is_terminal in (True, False):
        console = Console(record=True, force_terminal=is_terminal, width=150, file=open("/dev/null", "w"))  # noqa: SIM115
        with _ProgressDisplay(console) as display:
            for done in (0, 500_000):
                display.show(
                    Progress(
                        stage="tokenizing",
                        num_read=done,
                        num_bytes=1_000_000,
                        documents=done,
                        tokens=2 * done,
                        pieces_done=1,
                        num_pieces=2,
                    )
                )
        text = console.export_text()
        console.file.close()
        assert ("50%" in text and "1.0 M tokens 1/2 pieces" in text) == is_terminal


def test_a_speed_is_told_once_there_is_one() -> None:
    from stoker.cli.prepare import _format_rates
    from stoker.prepare import Progress

    progress = Progress(stage="hashing", num_read=47_000_000, num_bytes=47_000_000)
    assert _format_rates(progress, 1e-9) == ""
    assert _format_rates(progress, 2.0) == "23.5 MB/s"


@pytest.mark.parametrize("verb", ["tokens", "tokenizer"])
def test_help_teaches_with_an_example_and_imports_nothing_heavy(verb: str) -> None:
    result = run(verb, "--help")
    assert result.exit_code == 0
    assert f"Example: stoker prepare {verb}" in result.output
    code = (
        "import sys\nfrom stoker.cli import main\n"
        "try:\n    main()\nfinally:\n    print([n for n in ('torch', 'numpy', 'pyarrow') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, "prepare", verb, "--help"], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_preparing_does_without_torch(corpus: Path, tmp_path: Path) -> None:
    code = (
        "import sys\nfrom stoker import prepare\n"
        "prepare.tokens(sys.argv[1], tokenizer='bytes', out=sys.argv[2], workers=1)\nprint('torch' in sys.modules)"
    )
    command = [sys.executable, "-c", code, str(corpus), str(tmp_path / "out")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "False\n"
