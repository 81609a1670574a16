"""Pages that list what is elsewhere are complete: arguments of the loader, decisions, packages."""

from __future__ import annotations

import inspect
import os
import re
from dataclasses import MISSING
from pathlib import Path

from stoker import DataLoader
from stoker.loader.arguments import ARGUMENTS, GUIDES, MEANING, SECTION
from tests.docs.samples import UPDATE

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/reference/arguments.md"

DECISIONS = ROOT / "docs/decisions"
DECISION = re.compile(r"^- \[(.+)\]\((0.+\.md)\)", re.MULTILINE)


LABELS = {"plan": "the plan", "randomness": "random numbers", "bad-samples": "bad samples"}
"""Text of a link to a guide, if it is not the name of the file."""


def tables_of_arguments() -> str:
    """Return the sections of the page of arguments, from the list in `loader/arguments.py`."""
    lines: list[str] = []
    section = None
    for argument in ARGUMENTS:
        about = argument.metadata
        if about[SECTION] != section:
            section = about[SECTION]
            lines += ["", f"## {section}", "", "| argument | default | meaning | guide |", "|---|---|---|---|"]
        default = "required" if argument.default is MISSING else f"`{argument.default!r}`"
        links = ", ".join(map(link, about[GUIDES].split(", ")))
        lines.append(f"| `{argument.name}` | {default} | {about[MEANING]} | {links} |")
    return "\n".join(lines) + "\n"


def link(guide: str) -> str:
    folder = "concepts" if (ROOT / f"docs/concepts/{guide}.md").exists() else "guides"
    return f"[{LABELS.get(guide, guide)}](../{folder}/{guide}.md)"


def test_the_page_of_arguments_is_that_of_the_list() -> None:
    text = PAGE.read_text()
    head = text[: text.index("\n## ")]
    if os.environ.get(UPDATE):
        PAGE.write_text(head + tables_of_arguments())
        return
    assert text == head + tables_of_arguments(), f"set {UPDATE}=1 and run this test again"


def test_the_list_of_arguments_is_that_of_the_signature() -> None:
    signature = inspect.signature(DataLoader.__init__).parameters.values()
    defaults = {argument.name: argument.default for argument in signature if argument.name != "self"}
    listed = {
        argument.name: inspect.Parameter.empty if argument.default is MISSING else argument.default
        for argument in ARGUMENTS
    }
    assert listed == defaults


def test_the_list_of_decisions_has_every_page_under_its_title() -> None:
    titles = [(path.read_text().splitlines()[0].removeprefix("# "), path.name) for path in sorted(DECISIONS.glob("0*"))]
    assert DECISION.findall((DECISIONS / "README.md").read_text()) == titles


def test_the_list_of_packages_has_every_room() -> None:
    rooms = re.findall(r"^\| `(\w+)/?` \|", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    there = {path.stem for path in (ROOT / "src/stoker").iterdir() if path.is_dir() or path.suffix == ".py"}
    assert set(rooms) == {name for name in there if not name.startswith("_")}
    assert len(rooms) == len(set(rooms))


def test_the_files_named_in_the_guide_to_changes_exist() -> None:
    named = re.findall(
        r"`((?:src|tests|docs|benchmarks)/[\w/.]+)`", (ROOT / "docs/contributing-changes.md").read_text()
    )
    assert len(named) > 10
    assert [path for path in named if not (ROOT / path).exists()] == []
