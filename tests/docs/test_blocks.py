"""Every Python block of README and docs runs; blocks of one page run one after the other, as a reader would."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"(?P<mark><!-- not run: .*? -->\n)?^```python\n(?P<code>.*?)^```", re.MULTILINE | re.DOTALL)
TRAINERS = {"accelerate.md", "distributed.md", "lightning.md", "trainer.md"}
"""Pages whose blocks import other tools, whose warnings are not ours."""
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "ACCELERATE_USE_CPU": "true",
    "OMP_NUM_THREADS": "1",
}
LINK = re.compile(r"\]\((?!https?:)([^)#]+)")


def code_of(page: Path) -> str:
    return "\n".join(match["code"] for match in BLOCK.finditer(page.read_text()) if not match["mark"])


@pytest.mark.parametrize(
    "page", [page for page in PAGES if code_of(page)], ids=lambda page: str(page.relative_to(ROOT))
)
def test_the_blocks_of_a_page_run(page: Path, tmp_path: Path) -> None:
    script = tmp_path / "blocks.py"
    script.write_text(code_of(page))
    filtered = "default" if page.name in TRAINERS else "error"
    done = subprocess.run(
        [sys.executable, "-W", filtered, script],
        cwd=tmp_path,
        env=os.environ | OFFLINE,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text()):
        assert (page.parent / target.strip()).exists(), target
