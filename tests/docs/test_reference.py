"""The page of arguments is written from the list of arguments."""

from __future__ import annotations

import os
from dataclasses import MISSING, Field
from typing import Any

from stoker.loader.arguments import ARGUMENTS, GUIDES, MEANING, SECTION
from tests.docs.samples import ROOT, UPDATE

PAGE = ROOT / "docs/reference/arguments.md"
HEAD = """\
# Arguments of `DataLoader`

`stoker.DataLoader` accepts every argument of
[torch's loader](https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.DataLoader), in the same order and \
with the same
defaults. The arguments from `dataset` to `generator` may be positional; all others are keyword-only.
"""
TITLES = {"plan": "the plan", "randomness": "random numbers"}


def row(argument: Field[Any]) -> str:
    default = "required" if argument.default is MISSING else f"`{argument.default!r}`"
    names = {guide: guide.rpartition("/")[2].removesuffix(".md") for guide in argument.metadata[GUIDES]}
    guides = ", ".join(f"[{TITLES.get(name, name.replace('-', ' '))}](../{guide})" for guide, name in names.items())
    return f"| `{argument.name}` | {default} | {argument.metadata[MEANING]} | {guides} |"


def page() -> str:
    lines = [HEAD]
    for section in dict.fromkeys(argument.metadata[SECTION] for argument in ARGUMENTS):
        lines += [f"## {section}", "", "| argument | default | meaning | guide |", "|---|---|---|---|"]
        lines += [row(argument) for argument in ARGUMENTS if argument.metadata[SECTION] == section]
        lines.append("")
    return "\n".join(lines)


def test_the_page_of_arguments_lists_each_one_with_its_default_and_meaning() -> None:
    if os.environ.get(UPDATE):
        PAGE.write_text(page())
    assert PAGE.read_text() == page(), f"set {UPDATE}=1 and run this test again to rewrite the page"


def test_every_guide_that_the_list_names_exists() -> None:
    for argument in ARGUMENTS:
        assert all((ROOT / "docs" / guide).is_file() for guide in argument.metadata[GUIDES])
