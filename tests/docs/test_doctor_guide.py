"""The doctor's guide shows what the doctor prints, every verdict, and every check of the configuration."""

from __future__ import annotations

import io
import os
import re
from pathlib import Path

from rich.console import Console

from stoker.cli.doctor_command import print_diagnosis
from stoker.lab.diagnose.configuration import CHECKS
from stoker.lab.diagnose.verdict import diagnose
from stoker.lab.diagnose.verdicts import VERDICTS
from stoker.lab.watch.run import Run
from tests.docs.samples import UPDATE, assert_sample

GUIDE = Path(__file__).parents[2] / "docs/guides/doctor.md"
RECORD = Path(__file__).parent / "records/slow_disk.json"


def test_the_sample_is_what_the_doctor_prints_for_this_record() -> None:
    printed = io.StringIO()
    print_diagnosis(diagnose(Run.load(RECORD)), Console(file=printed, width=120, highlight=False))
    assert_sample("docs/guides/doctor.md", "storage-bound:", printed.getvalue(), exact=True)


def check_lines(shown: list[str], expected: list[str]) -> None:
    """Compare lines of the guide with those that the code gives; rewrite them instead if that was asked for."""
    if os.environ.get(UPDATE):
        text = GUIDE.read_text()
        GUIDE.write_text(text.replace("\n".join(shown), "\n".join(expected)))
        return
    assert shown == expected, f"set {UPDATE}=1 and run this test again to rewrite the guide"


def test_the_table_has_the_signs_and_remedies_of_all_verdicts() -> None:
    shown = [line for line in GUIDE.read_text().splitlines() if re.match(r"\| `[a-z][a-z-]+` \|", line)]
    check_lines(shown, [f"| `{verdict.name}` | {verdict.sign} | {verdict.remedy} |" for verdict in VERDICTS.values()])


def test_the_list_has_all_checks_of_the_configuration() -> None:
    _, _, below = GUIDE.read_text().partition("## What it checks in the configuration")
    shown = [line for line in below.partition("\n## ")[0].splitlines() if line.startswith("- ")]
    check_lines(shown, [f"- {check.covers}" for check in CHECKS])
