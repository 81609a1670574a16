"""Every Python block of README and docs runs; blocks of one page run one after the other, as a reader would.

Output that a page shows under `<!-- output -->` is compared with what its blocks print (`samples.py`).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.samples import agrees, replace

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>not run|output)(?P<more>[^\n]*) -->\n)?"
    r"^```(?P<language>python|console|text)\n(?P<body>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
"""A block, with what is said about it in the comment above."""

SEPARATOR = "\N{INFORMATION SEPARATOR TWO}"
"""Printed between the output of one block and the next."""
TRAINERS = {"accelerate.md", "distributed.md", "lightning.md", "trainer.md"}
"""Pages whose blocks import other tools, whose warnings are not ours."""
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "ACCELERATE_USE_CPU": "true",
    "OMP_NUM_THREADS": "1",
}
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def script_of(page: Path) -> str:
    """Return the page's blocks as one script, which prints a separator where the page shows output."""
    parts = []
    for block in BLOCK.finditer(page.read_text()):
        if block["language"] == "python" and not block["mark"]:
            parts.append(block["body"])
        elif block["mark"] == "output":
            if block["language"] == "console":
                parts += [f"print(end={SEPARATOR!r}, flush=True)", *map(_run_command, commands_of(block["body"]))]
            parts.append(f"print(end={SEPARATOR!r}, flush=True)")
    return "\n".join(parts)


def commands_of(sample: str) -> list[str]:
    return [line.removeprefix("$ ") for line in sample.splitlines() if line.startswith("$ ")]


def _run_command(command: str) -> str:
    return f"__import__('subprocess').run({command!r}, shell=True, check=True)"


def outputs_of(page: Path, printed: str) -> Iterator[tuple[str, str, bool]]:
    """Yield the output that a page shows, what its script printed there, and whether numbers count."""
    outputs = iter(printed.split(SEPARATOR))
    for block in BLOCK.finditer(page.read_text()):
        if block["mark"] == "output":
            if block["language"] == "console":
                next(outputs)  # what earlier blocks printed
            yield block["body"], next(outputs), "exact" in block["more"]


@pytest.mark.parametrize(
    "page", [page for page in PAGES if script_of(page)], ids=lambda page: str(page.relative_to(ROOT))
)
def test_the_blocks_of_a_page_run(page: Path, tmp_path: Path) -> None:
    script = tmp_path / "blocks.py"
    script.write_text(script_of(page))
    commands = Path(sys.executable).parent  # `stoker` is there
    filtered = "default" if page.name in TRAINERS else "error"
    done = subprocess.run(
        [sys.executable, "-W", filtered, script],
        cwd=tmp_path,
        env=os.environ | OFFLINE | {"PATH": f"{commands}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "120"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    for sample, actual, exact in outputs_of(page, done.stdout):
        if not agrees(sample, actual, exact=exact):
            replace(page, sample, actual, exact=exact)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in LINK.findall(page.read_text()):
        linked = page.parent / target if target else page
        assert linked.exists(), target
        if anchor and linked.suffix == ".md":
            assert anchor in anchors_of(linked), f"{target}#{anchor}"


def anchors_of(page: Path) -> set[str]:
    """Return the names of a page's headings in links, as GitHub makes them."""
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in HEADING.findall(page.read_text())}
