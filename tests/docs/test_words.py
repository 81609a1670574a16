"""Plain words: no text of the project uses a word of `words.txt`, in code, messages, `--help` or docs.

What is still to be reworded is counted by folder in `words_left.txt`. The sum may fall but not rise, and folders that
are not listed stay clean.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.docs import words
from tests.docs.words import hits_in

MOST_SHOWN = 60
"""Hits in a failure's message."""


@pytest.fixture
def lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of its own with one page, of which two words are left to be reworded."""
    monkeypatch.setattr(words, "ROOT", tmp_path)
    monkeypatch.setattr(words, "LEFT", tmp_path / "left.txt")
    monkeypatch.setattr(words, "help_texts", lambda: iter(()))
    (tmp_path / "left.txt").write_text("# counts\n2 docs\n5 src\n")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/page.md").write_text("The neighbours were told.\nNobody was.\n")
    return tmp_path


def test_no_text_uses_a_word_of_the_list() -> None:
    hits, places = words.all_hits(), words.words_left()
    counts = words.counted(hits, places)
    risen = {place for place, count in counts.items() if count > places.get(place, 0)}
    if sum(counts.values()) <= sum(places.values()):
        risen -= places.keys()  # something moved
    shown = [str(hit) for hit in hits if words.place_of(hit.path, places) in risen]
    too_many = [f"{place}: {counts[place]}, at most {places.get(place, 0)}" for place in sorted(risen)]
    all_of_them = f"all of them: {Path(sys.executable).name} tests/docs/words.py {' '.join(sorted(risen))}"
    head = "words that this project does not use (tests/docs/words.txt):"
    assert not risen, "\n".join([head, *too_many, *shown[:MOST_SHOWN], "...", all_of_them])


def test_the_help_of_every_command_is_checked() -> None:
    helps = dict(words.help_texts())
    assert {"help", "help/doctor", "help/prepare/tokens"} <= set(helps)
    assert "Usage: stoker prepare tokens" in helps["help/prepare/tokens"]


def test_a_word_is_found_in_identifiers_and_text() -> None:
    found = [hit.text for hit in hits_in("def _told(x): ToldBy(x)  # untold, retold\nTHE_COLOUR = 1")]
    assert found == ["told", "Told", "COLOUR"]


def test_a_phrase_is_found_across_lines_and_in_names() -> None:
    found = hits_in("    # a loader of\n    # ours\ndef test_a_loader_of_ours(): ...")
    assert [(hit.line, " ".join(hit.text.replace("#", "").split())) for hit in found] == [
        (1, "of ours"),
        (3, "of_ours"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "there is no file",
        "of course",
        "it is no longer needed",
        "data parallelism",
        "96% of it",
        "x = 7 % of_rest",
        "13 ms",
    ],
)
def test_plain_text_is_fine(text: str) -> None:
    assert hits_in(text) == []


@pytest.mark.parametrize(
    "text", ["7 is no size", "normalised", "unlabelled", "96 % of it", "took 13ms", "pictures", "for ever"]
)
def test_other_text_is_not(text: str) -> None:
    assert len(hits_in(text)) == 1


def test_hits_count_for_the_folder_that_is_listed(lists: Path) -> None:
    hits = words.all_hits()
    assert str(hits[0]) == "docs/page.md:1: 'neighbours' (say neighbor)"
    assert dict(words.counted(hits, words.words_left())) == {"docs": 3}


def test_counts_are_lowered_and_never_raised(lists: Path) -> None:
    words.lower()
    assert (lists / "left.txt").read_text() == "# counts\n2 docs\n"
    (lists / "docs/page.md").write_text("The neighbours said so.\n")
    words.lower()
    assert (lists / "left.txt").read_text() == "# counts\n1 docs\n"
