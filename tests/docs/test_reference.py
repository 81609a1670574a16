"""Pages that list what is elsewhere are complete: arguments of the loader, decisions, packages."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from stoker import DataLoader

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/reference/arguments.md"
ROW = re.compile(r"^\| `(?P<name>\w+)` \| (?P<default>`[^`]*`|required) \|", re.MULTILINE)

DECISIONS = ROOT / "docs/decisions"
DECISION = re.compile(r"^- \[(.+)\]\((0.+\.md)\)", re.MULTILINE)


def test_the_page_of_arguments_lists_each_argument_once_with_its_default() -> None:
    rows = [(row["name"], row["default"]) for row in ROW.finditer(PAGE.read_text())]
    arguments = [
        (name, "required" if argument.default is inspect.Parameter.empty else f"`{argument.default!r}`")
        for name, argument in inspect.signature(DataLoader.__init__).parameters.items()
        if name != "self"
    ]
    assert sorted(rows) == sorted(arguments)


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
