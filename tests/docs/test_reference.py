"""Pages that list what is elsewhere are complete: the arguments of the loader, the decisions."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from stoker import DataLoader

PAGE = Path(__file__).parents[2] / "docs/reference/arguments.md"
ROW = re.compile(r"^\| `(?P<name>\w+)` \| (?P<default>`[^`]*`|required) \|", re.MULTILINE)

DECISIONS = Path(__file__).parents[2] / "docs/decisions"
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
