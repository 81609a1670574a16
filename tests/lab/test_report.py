"""The report as text: what stands in it, what cannot get into it, and that nothing that is missing breaks it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

import stoker
from stoker.errors import ArgumentError
from stoker.lab.diagnose.diagnosis import Diagnosis, Finding
from stoker.lab.diagnose.verdict import diagnose
from stoker.lab.page.document import document
from stoker.lab.page.reported_run import MAX_OTHERS, ReportedRun
from stoker.lab.watch.run import Copies, Moment, ProcessStats, Quantiles, Run, Sampled, Stage, Stats, join_runs
from tests.lab import runs


class Parsed(HTMLParser):
    """The elements of a page, with their attributes, and its text without scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self._text: list[str] = []
        self._inside: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self._inside:
            while self._inside.pop() != tag:
                pass

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self._inside[-1:]):
            self._text.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self._text).replace("\N{NO-BREAK SPACE}", " ").split())


def text_of(run: Any, **more: Any) -> str:
    return Parsed(str(stoker.report(run, **more))).text


HAND_MADE = Diagnosis(
    verdict="decode-bound",
    says="the trainer waits 22 ms of 54 ms per batch",
    evidence=["workers are busy 99% of the time", "they are at `images.py:88`"],
    gain="22 ms per step",
    advice=["write `num_workers=6`", "or decode less"],
    findings=[Finding(about="batch_size", what="63 is odd", advice="write `batch_size=64`")],
)


def test_the_verdict_comes_first_with_all_that_is_said() -> None:
    page = document([ReportedRun(runs.starved(), HAND_MADE, "")])
    text = Parsed(page).text
    order = [
        "Decode-bound : workers are busy decoding",
        "The trainer waits 22 ms of 54 ms per batch",
        "Possible gain: 22 ms per step",
        "Suggested changes",
        "num_workers=6",
        "Why",
        "Workers are busy 99% of the time",
        "Other findings",
        "63 is odd.",
        "batch_size=64",
        "Figures",
        "Timeline of batches",
    ]
    below = text.partition("Settings")[2]  # the last of the links at the top
    places = [below.index(words) for words in order]
    assert places == sorted(places)
    copied = [about["data-copy"] for tag, about in Parsed(page).elements if "data-copy" in about]
    assert copied == ["num_workers=6", "batch_size=64"]


def test_the_verdict_is_the_doctors() -> None:
    run = runs.starved()
    report = stoker.report(run)
    assert report.diagnoses == [diagnose(run)]
    said = diagnose(run).says
    assert (said[:1].upper() + said[1:]).replace("`", "") in Parsed(str(report)).text
    assert report.diagnoses[0].verdict in repr(report)


def test_the_figures_are_those_of_the_record() -> None:
    run = runs.starved()
    [stats] = run.loaders
    text = text_of(run)
    assert f"throughput {stats.samples_per_second:,.0f} samples/s" in text
    assert f"step, mean {stats.step_seconds.mean * 1000:.1f}".rstrip("0").rstrip(".") in text
    assert f"waiting for data, without first batches {stats.wait_share * 100:.0f}%" in text
    assert f"{stats.num_stalls:,}, " in text
    assert f"first batch {stats.first_batch_seconds[0] * 1000:.0f} ms" in text
    assert "peak memory" in text
    assert "images.py:88 decode" in text
    assert "6,000 (100%)" in text  # copies from ordinary memory


def test_decisions_of_auto_are_listed() -> None:
    assert runs.healthy().loaders[0].decisions[0] in text_of(runs.healthy())
    assert 'Decisions of "auto"' not in text_of(runs.starved())


def test_a_page_asks_nobody_for_anything() -> None:
    for page in (stoker.report(runs.ranks()), stoker.report(runs.healthy(), against=runs.starved())):
        parsed = Parsed(page.html)
        for tag, about in parsed.elements:
            assert tag not in {"img", "iframe", "object", "embed", "base", "form", "video", "audio", "image"}
            assert "src" not in about
            assert "xlink:href" not in about
            assert about.get("href", "#").startswith("#") or about.get("href") == "data:,"  # type: ignore[union-attr]
        outside = set(re.findall(r"https?://[^\s\"'<)]+", page.html))
        assert outside == {"http://www.w3.org/2000/svg"}, "the name of SVG, which nobody looks up"
        assert "@import" not in page.html
        assert "url(" not in page.html
        [policy] = [about["content"] for _, about in parsed.elements if "http-equiv" in about]
        assert policy is not None
        assert policy.startswith("default-src 'none'")
        assert "script-src 'sha256-" in policy


EVIL = "</script></style></title><script>window.hacked = 1</script><img src=x onerror='hacked=1'>\"'`&\ud800\x00"


def poisoned(value: Any) -> Any:
    """Return a record with every text in it, and every key, replaced by something evil."""
    if isinstance(value, str):
        return EVIL
    if isinstance(value, dict):
        return {f"{key}{EVIL}": poisoned(one) for key, one in value.items()}
    return [poisoned(one) for one in value] if isinstance(value, list) else value


@pytest.fixture
def evil() -> Run:
    run = runs.starved()
    values = run.as_dict()
    stats = values["loaders"][0]
    keep = {"stages": stats["stages"], "laps": stats["laps"], "engine": "processes"}
    stats["config"] |= {"dataset": "x"}
    stats["facts"] = {"path": "x"}
    stats["decisions"] = ["x"]
    stats["stages"]["own"] = {"busy_seconds": 1.0, "waiting_seconds": 0.0}
    bad = poisoned(stats) | {key: stats[key] for key in fields_without_text() if key in stats} | keep
    bad["stages"] = {**keep["stages"], EVIL: {"busy_seconds": 1.0, "waiting_seconds": 0.0}}
    bad["trainer"] = stats["trainer"] | {"role": EVIL}
    bad["workers"] = [one | {"role": EVIL} for one in stats["workers"]]
    bad["sampled"] = {"num": 3, "places": {EVIL: 1.0}, "gil_share": 0.5}
    return Run.from_dict(values | {"title": EVIL, "machine": {EVIL: EVIL, "system": EVIL}, "loaders": [bad, bad]})


def fields_without_text() -> list[str]:
    with_text = {"kind", "name", "config", "facts", "decisions", "sampled", "trainer", "workers", "stages"}
    return [one.name for one in fields(Stats) if one.name not in with_text]


def test_what_stands_in_a_record_never_becomes_markup(evil: Run) -> None:
    said = Diagnosis(
        verdict=EVIL,
        says=EVIL,
        evidence=[EVIL],
        gain=EVIL,
        advice=[f"`{EVIL}`", EVIL],
        findings=[Finding(about=EVIL, what=EVIL, advice=EVIL)],
    )
    clean = document([ReportedRun(runs.starved(), HAND_MADE, "")])
    for page in (
        document([ReportedRun(evil, said, "")], title=EVIL),
        document([ReportedRun(evil, said, "this run"), ReportedRun(runs.healthy(), said, "baseline")]),
        str(stoker.report(evil)),
    ):
        parsed = Parsed(page)
        assert {tag for tag, _ in parsed.elements} <= {tag for tag, _ in Parsed(clean).elements} | {"small"}
        assert not [name for _, about in parsed.elements for name in about if name.startswith("on")]
        running = [about for tag, about in parsed.elements if tag == "script" and "type" not in about]
        assert len(running) == 1, "the page's own"
        assert "window.hacked = 1" in parsed.text  # shown as the text that it is
        page.encode()  # and half a character does not end it


def test_data_for_the_script_is_whole_json_and_cannot_end_its_element(evil: Run) -> None:
    page = str(stoker.report(evil))
    blocks = re.findall(r'<script type="application/json" class="(\w+)">(.*?)</script>', page, re.DOTALL)
    assert {kind for kind, _ in blocks} == {"laps", "points"}
    for _, text in blocks:
        assert "<" not in text
        json.loads(text)


LESS: dict[str, Callable[[Run], Run]] = {
    "nothing at all": lambda run: Run(),
    "no loaders": lambda run: replace(run, loaders=[]),
    "a loader that counted nothing": lambda run: replace(run, loaders=[Stats()]),
    "no moments": lambda run: replace(run, moments=[]),
    "one moment": lambda run: replace(run, moments=run.moments[:1]),
    "moments without values": lambda run: replace(run, moments=[Moment(at=float(at)) for at in range(5)]),
    "moments at one time": lambda run: replace(run, moments=[Moment(at=0.0, cores=[0.5])] * 3, seconds=0.0),
    "no machine": lambda run: replace(run, machine={}),
    "a machine without values": lambda run: replace(run, machine=dict.fromkeys(runs.MACHINE)),
    "no laps": lambda run: changed(run, laps=None),
    "empty laps": lambda run: changed(run, laps={}),
    "laps of one column": lambda run: changed(run, laps={"asked": [1.0, 2.0]}),
    "laps without makers": lambda run: changed(
        run, laps={name: run.loaders[0].laps[name] for name in ("asked", "handed")} if run.loaders[0].laps else None
    ),
    "laps that are not known": lambda run: changed(
        run, laps={"asked": [1.0, None, 3.0], "handed": [1.5, 2.5, None], "began": [None] * 3}
    ),
    "no stages": lambda run: changed(run, stages={}),
    "no processes": lambda run: changed(run, trainer=None, workers=[]),
    "no time": lambda run: changed(run, seconds=0.0, num_samples=0, num_batches=0, batch_seconds=Quantiles()),
    "no durations": lambda run: changed(
        run,
        batch_seconds=Quantiles(),
        wait_seconds=Quantiles(),
        step_seconds=Quantiles(),
        making_seconds=Quantiles(),
        laps=None,
    ),
    "waits of nothing": lambda run: changed(run, wait_seconds=Quantiles(num=5), laps=None),
    "processes without values": lambda run: changed(
        run, trainer=ProcessStats(pid=1, role="trainer"), workers=[ProcessStats(pid=2, role="worker 0")]
    ),
    "odd extras": lambda run: changed(
        run, copies=Copies(), sampled=Sampled(), stages={"own": Stage()}, queue_depth=None, num_bytes=0
    ),
    "one batch": lambda run: runs.one_batch(),
}


def changed(run: Run, **values: Any) -> Run:
    return replace(run, loaders=[replace(stats, **values) for stats in run.loaders])


SAID = {
    "nothing at all": ["No loader was found", "Memory was sampled less than twice"],
    "no moments": ["The machine was sampled less than twice", "Core usage was sampled less than twice"],
    "moments without values": ["Memory was sampled less than twice", "Core usage was sampled less than twice"],
    "no laps": ["No individual batches were recorded"],
    "empty laps": ["No individual batches were recorded"],
    "laps of one column": ["No individual batches were recorded"],
    "no processes": ["No process was sampled"],
    "no durations": ["Fewer than two batches were recorded"],
    "a loader that counted nothing": ["No stage was timed", "Fewer than two batches"],
}


@pytest.mark.parametrize("case", LESS)
def test_what_is_missing_is_left_out_with_a_sentence(case: str) -> None:
    run = LESS[case](runs.starved())
    text = text_of(run)
    for words in SAID.get(case, ()):
        assert words in text
    assert "Verdict" in text
    assert not re.search(r"\bnan\b|\binf\b|\bNone\b", text)
    compared = text_of(run, against=runs.healthy())
    assert "Differences" in compared
    text_of(runs.healthy(), against=run)


def test_the_slowest_rank_is_named_and_led_with() -> None:
    text = text_of(runs.ranks(slow=2))
    assert "Rank 2 is the slowest : it waits" in text
    assert "800 batches of train, rank 2" in text
    assert "Ranks of valid All 4 ranks wait about equally long for data." in text


def test_hundreds_of_ranks_make_a_page_of_bearable_size() -> None:
    run = runs.ranks()
    many = [replace(run.loaders[rank % 4], rank=rank, num_ranks=300) for rank in range(300)]
    page = stoker.report(replace(run, loaders=many)).html
    assert len(page) < 8_000_000
    text = Parsed(page).text
    assert f"{300 - 1 - MAX_OTHERS} more appear only in the tables of ranks" in text
    assert "rank 299" in text


def test_ranks_that_were_recorded_one_by_one_are_one_run() -> None:
    whole = runs.ranks()
    parts = [
        replace(whole, loaders=[one for one in whole.loaders if one.rank == rank], seconds=40.0 + rank)
        for rank in (1, 0, 3, 2)
    ]
    together = join_runs(parts)
    assert [one.rank for one in together.loaders] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert together.seconds == 43.0
    text = Parsed(str(stoker.report(parts))).text
    assert "Rank 2 is the slowest" in text
    assert "part 4" in text  # memory and cores of each


def test_two_runs_are_not_taken_for_ranks_of_one() -> None:
    with pytest.raises(ArgumentError, match="a.json and b.json both contain rank 0.*\n.*a.json --against b.json"):
        join_runs([runs.one_batch(), runs.one_batch()], names=["a.json", "b.json"])
    with pytest.raises(ArgumentError, match="there are no runs to join"):
        join_runs([])


def test_two_runs_stand_side_by_side_with_what_differs() -> None:
    slow, quick = runs.starved(), runs.healthy()
    text = text_of(quick, against=slow)
    ratio = quick.loaders[0].samples_per_second / slow.loaders[0].samples_per_second
    assert f"This run has {ratio:.2f}\N{MULTIPLICATION SIGN} the throughput of the baseline: better." in text
    assert "worse" not in text.partition("Different settings")[0].partition("Differences")[2]
    assert "num_workers 4 2" in text
    back = text_of(slow, against=quick)
    assert "worse" in back
    assert "Timeline of batches, this run" in back
    assert "Timeline of batches, baseline" in back
    same = text_of(quick, against=quick)
    assert "The throughput is about the same." in same
    assert "The recorded settings are the same in both runs." in same
    noted = replace(quick, loaders=[replace(one, facts=one.facts | {"watched_share": 0.5}) for one in quick.loaders])
    assert "The recorded settings are the same in both runs." in text_of(noted, against=quick)


def test_runs_that_do_different_work_are_not_called_better_or_worse() -> None:
    slow, quick = runs.starved(), runs.healthy()
    facts = {"dataset": "Photos", "num_samples": 1000}
    photos = replace(slow, loaders=[replace(one, facts=one.facts | facts) for one in slow.loaders])
    tokens = replace(
        quick, loaders=[replace(one, facts=one.facts | facts | {"dataset": "Tokens"}) for one in quick.loaders]
    )
    text = text_of(photos, against=tokens)
    assert "The runs do different work (dataset: Photos and Tokens), so neither is better" in text
    assert not re.search(r"\bworse\b", text)
    model = replace(quick, loaders=[replace(one, step_seconds=_slower(one.step_seconds, 3)) for one in quick.loaders])
    text = text_of(model, against=quick)
    assert "The runs may do different work (training step per sample: " in text
    assert not re.search(r"\bworse\b", text)


def _slower(quantiles: Quantiles, times: float) -> Quantiles:
    return replace(quantiles, mean=times * quantiles.mean)


def test_a_loader_is_reported_about_as_it_is() -> None:
    loader: stoker.DataLoader[Any] = stoker.DataLoader(list(range(64)), batch_size=8)
    for _ in loader:
        pass
    text = text_of(loader)
    assert "DataLoader of list" in text
    assert "8 batches over" in text
    assert "Memory was sampled less than twice" in text
    assert "batch_size 8" in text
    assert "8 batches of loader" in text_of(loader.stats())
    with pytest.raises(
        ArgumentError, match="expected a run or a loader, got dict\n.*hint: pass a stoker.lab.watch.run.Run"
    ):
        stoker.report({})


def test_its_earlier_name_still_works() -> None:
    assert stoker.view.report is stoker.report
    with pytest.raises(AttributeError, match="no attribute 'reports'"):
        _ = stoker.view.reports


def test_a_report_is_saved_whole_or_not_at_all(tmp_path: Path) -> None:
    report = stoker.report(runs.one_batch(), title="A title of mine")
    path = report.save(tmp_path / "report.html")
    assert path.read_text("utf-8") == report.html == str(report)
    assert "<title>A title of mine - stoker report</title>" in report.html
    assert [one.name for one in tmp_path.iterdir()] == ["report.html"]
    with pytest.raises(FileNotFoundError):
        report.save(tmp_path / "nowhere" / "report.html")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError):
        report.save(tmp_path / "folder")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["folder", "report.html"]


def test_a_notebook_shows_it_in_a_frame_of_its_own() -> None:
    shown = stoker.report(runs.one_batch())._repr_html_()
    [(tag, about)] = Parsed(shown).elements
    assert tag == "iframe"
    assert (about["srcdoc"] or "").startswith("<!doctype html>")


def test_every_chart_has_a_title_and_numbers_behind_it() -> None:
    parsed = Parsed(str(stoker.report(runs.starved())))
    drawings = [about for tag, about in parsed.elements if tag == "svg" and about.get("role") == "img"]
    assert len(drawings) > 8
    titles = [tag for tag, _ in parsed.elements if tag == "title"]
    assert len(titles) > len([about for about in drawings if "aria-label" not in about])
    summaries = parsed.text.count("The numbers as a table")
    assert summaries == 5  # timeline, durations, memory, cores' time, each core; the others are tables


@pytest.mark.slow
def test_templates_style_and_script_are_in_the_wheel(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    for name in ("pyproject.toml", "README.md", "LICENSE", "hatch_build.py", ".gitignore"):
        shutil.copy(root / name, tmp_path)
    shutil.copytree(root / "src", tmp_path / "src", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    code = "import hatchling.build as b; b.build_wheel('out')"
    environment = os.environ | {"STOKER_NATIVE": "0"}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, check=True, capture_output=True)
    [wheel] = (tmp_path / "out").iterdir()
    folder = root / "src/stoker/lab/page"
    needed = {
        path.relative_to(root / "src").as_posix() for path in folder.rglob("*") if path.suffix not in ("", ".pyc")
    }
    assert len(needed) > 20
    assert needed <= set(ZipFile(wheel).namelist())
