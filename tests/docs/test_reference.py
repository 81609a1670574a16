"""The page of arguments lists every argument of the loader, with its default."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from stoker import DataLoader

PAGE = Path(__file__).parents[2] / "docs/reference/arguments.md"
ROW = re.compile(r"^\| `(?P<name>\w+)` \| (?P<default>`[^`]*`|required) \|", re.MULTILINE)


def test_the_page_of_arguments_lists_each_argument_once_with_its_default() -> None:
    rows = [(row["name"], row["default"]) for row in ROW.finditer(PAGE.read_text())]
    arguments = [
        (name, "required" if argument.default is inspect.Parameter.empty else f"`{argument.default!r}`")
        for name, argument in inspect.signature(DataLoader.__init__).parameters.items()
        if name != "self"
    ]
    assert sorted(rows) == sorted(arguments)
