"""Pages that list what is elsewhere are complete: arguments of the loader, decisions, packages."""

from __future__ import annotations

import os
import re
import textwrap
from dataclasses import MISSING, Field
from typing import Any

import stoker
from stoker.loader.arguments import ARGUMENTS, GUIDES, MEANING, SECTION
from tests.docs.samples import ROOT, UPDATE

PAGE = ROOT / "docs/reference/arguments.md"
LOADER = ROOT / "src/stoker/loader/dataloader.py"
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


def arguments_in_docstring() -> str:
    indent = " " * 8
    entries = (f"{one.name}: {one.metadata[MEANING]}" for one in ARGUMENTS)
    wrapped = (
        textwrap.fill(entry, 120, initial_indent=indent, subsequent_indent=indent + " " * 4, break_on_hyphens=False)
        for entry in entries
    )
    return "    Args:\n" + "\n".join(wrapped) + "\n"


def test_the_docstring_of_the_loader_lists_each_argument_with_its_meaning() -> None:
    text = LOADER.read_text()
    [shown] = re.findall(r"^    Args:\n(?:        .*\n)+", text, re.MULTILINE)
    if os.environ.get(UPDATE):
        LOADER.write_text(text.replace(shown, arguments_in_docstring()))
        return
    assert shown == arguments_in_docstring(), f"set {UPDATE}=1 and run this test again to rewrite the docstring"


def test_the_guide_to_images_names_every_transform() -> None:
    guide = (ROOT / "docs/guides/images.md").read_text()
    assert [name for name in stoker.transform.__all__ if not re.search(rf"`{name}\b", guide)] == []


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
