"""Pages that list what is elsewhere are complete: arguments of the loader, decisions, packages."""

from __future__ import annotations

import inspect
import os
import re
from dataclasses import MISSING, Field
from typing import Any

from stoker import DataLoader
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
DECISIONS = ROOT / "docs/decisions"
DECISION = re.compile(r"^- \[(.+)\]\((0.+\.md)\)", re.MULTILINE)
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
