"""What the report's charts are made of: laps as columns, shares of time, scales, and numbers in words."""

from __future__ import annotations

from itertools import pairwise
from math import isclose

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from stoker.foundation.text import (
    format_duration,
)
from stoker.lab.key_figures import KeyFigure
from stoker.lab.page.comparison import judge
from stoker.lab.page.recorded_batches import MOST_LANES, batches_of, busy_share, num_ready
from stoker.lab.page.reported_run import ReportedLoader, ReportedRun
from stoker.lab.page.scales import AxisScale, byte_ticks, time_ticks
from stoker.lab.page.templating import escape, prose, short
from stoker.lab.page.timeline import NUM_SHOWN, timeline
from stoker.lab.watch.run import Copies, Moment, ProcessStats, Quantiles, Run, Sampled, Stage, Stats
from tests.lab import runs


def laps(*rows: tuple[float, float, int, float, float, float]) -> Stats:
    names = ("asked", "handed", "worker", "began", "made", "sent")
    columns = {name: [row[at] for row in rows] for at, name in enumerate(names)}
    return Stats(num_batches=len(rows), laps=columns, step_seconds=Quantiles(num=1, most=1.0))


def test_batches_have_waits_steps_and_workers() -> None:
    found = batches_of(
        laps((11, 12, 0, 10, 11.5, 11.8), (12.5, 12.6, 1, 10.5, 12.2, 12.3), (13, 13.1, 0, 11.9, 12.8, 13))
    )
    assert found is not None
    assert found.begin == 0  # the first thing that happened
    assert found.waits.tolist() == pytest.approx([1.0, 0.1, 0.1])
    assert found.steps.tolist() == pytest.approx([0.5, 0.4])
    assert found.periods.tolist() == pytest.approx([0.6, 0.5])
    assert found.lanes == ["worker 0", "worker 1"]
    assert [found.maker(at) for at in range(3)] == ["worker 0", "worker 1", "worker 0"]
    assert num_ready(found, np.array([0.0, 1.9, 2.2, 2.4, 4.0])).tolist() == [0, 1, 0, 1, 0]


def test_times_count_from_the_beginning_of_the_run_where_that_is_known() -> None:
    found = batches_of(laps((11, 12, 0, 10, 11.5, 11.8)), run_began=4.0)
    assert found is not None
    assert found.begin == 6.0
    later = batches_of(laps((11, 12, 0, 10, 11.5, 11.8)), run_began=1e9)  # another machine's clock
    assert later is not None
    assert later.begin == 0.0


def test_what_lies_between_iterations_is_no_step() -> None:
    found = batches_of(laps((1, 2, 0, 0.5, 1.9, 2), (2.5, 3, 0, 2, 2.9, 3), (60, 61, 0, 59, 60.9, 61)))
    assert found is not None
    assert found.steps.tolist() == pytest.approx([0.5])
    assert found.periods.tolist() == pytest.approx([1.0])


def test_only_the_latest_batches_are_taken_and_their_numbers_kept() -> None:
    [stats] = runs.starved().loaders
    found = batches_of(stats, most=100)
    assert found is not None
    assert (len(found), found.first) == (100, 5900)


spans = st.lists(st.tuples(st.floats(0, 100), st.floats(0, 5), st.integers(-1, 3)), min_size=1, max_size=60)


@given(spans=spans)
def test_no_two_batches_overlap_in_a_lane_and_none_changes_its_maker(spans: list[tuple[float, float, int]]) -> None:
    rows = [
        (200.0 + at, 200.5 + at, worker, 1 + begin, 1.001 + begin + long, 1.001 + begin + long)
        for at, (begin, long, worker) in enumerate(spans)
    ]
    found = batches_of(laps(*rows))
    assert found is not None
    drawn = [at for at in range(len(found)) if found.lane[at] >= 0]
    assert len(drawn) == len(spans) or len(found.lanes) == MOST_LANES
    for lane in range(len(found.lanes)):
        its = sorted((found.began[at], found.made[at]) for at in drawn if found.lane[at] == lane)
        assert all(end <= begin + 1e-6 for (_, end), (begin, _) in pairwise(its))
    for at in drawn:
        assert found.maker(at) == ("trainer" if spans[at][2] < 0 else f"worker {spans[at][2]}")


@given(
    gaps=st.lists(st.tuples(st.floats(0, 2), st.floats(0, 2)), max_size=30),
    edges=st.lists(st.floats(-1, 70), min_size=2, max_size=20, unique=True),
)
def test_shares_of_time_add_up_to_what_the_stretches_cover(gaps: list[tuple[float, float]], edges: list[float]) -> None:
    begins, ends, now = [], [], 0.0
    for gap, long in gaps:
        begins.append(now + gap)
        now += gap + long
        ends.append(now)
    around = np.array(sorted({-1.0, *edges, 200.0}))
    shares = busy_share(np.array(begins), np.array(ends), around)
    assert ((shares >= 0) & (shares <= 1)).all()
    assert float((shares * np.diff(around)).sum()) == pytest.approx(sum(long for _, long in gaps), abs=1e-6)


def test_the_timeline_opens_at_the_longest_wait() -> None:
    [stats] = runs.starved().loaders
    found = batches_of(stats)
    assert found is not None
    longest = int(np.argmax(found.waits[1:])) + 1
    drawn = timeline(ReportedLoader(stats, "train", None, 4096), ident="here").replace("\N{NO-BREAK SPACE}", " ")
    assert f"around the longest wait ({format_duration(float(found.waits[longest]))})" in drawn
    assert f"batch {found.first + longest:,}: waited" in drawn
    assert drawn.count('class="step"><title>') <= NUM_SHOWN + 2


@given(low=st.floats(1e-6, 1e3), factor=st.floats(1.01, 1e6), is_log=st.booleans(), about=st.integers(2, 8))
def test_ticks_are_inside_and_not_many(low: float, factor: float, is_log: bool, about: int) -> None:
    scale = AxisScale(low, low * factor, is_log)
    ticks = scale.ticks(about)
    assert len(ticks) <= 3 * about + 3
    assert all(low * (1 - 1e-6) <= tick <= scale.high * (1 + 1e-6) for tick in ticks)
    assert ticks == sorted(ticks)
    times, step = time_ticks(low, scale.high, about)
    assert all(low - 1e-6 <= at <= scale.high * (1 + 1e-6) for at in times)
    assert step > 0


@given(high=st.floats(1, 1e15))
def test_ticks_of_bytes_begin_at_nothing_and_are_few(high: float) -> None:
    ticks = byte_ticks(high)
    assert ticks[0] == 0
    assert ticks[-1] <= high * (1 + 1e-9)
    assert 2 <= len(ticks) <= 9


@pytest.mark.parametrize(
    ("mine", "other", "is_more_better", "ratio", "word"),
    [
        (200.0, 100.0, True, 2.0, "better"),
        (200.0, 100.0, False, 2.0, "worse"),
        (50.0, 100.0, False, 0.5, "better"),
        (101.0, 100.0, False, 1.01, "same"),
        (5.0, 5.0, False, 1.0, "same"),
        (0.0, 5.0, False, None, "better"),
        (5.0, 0.0, False, None, "worse"),
        (0.0, 0.0, False, 1.0, "same"),
        (None, 5.0, True, None, "unknown"),
    ],
)
def test_a_difference_has_a_ratio_and_a_word(
    mine: float | None, other: float | None, is_more_better: bool, ratio: float | None, word: str
) -> None:
    figure = KeyFigure(label="x", value=lambda _: None, format=format_duration, is_more_better=is_more_better)
    found, verdict = judge(figure, (mine, other))
    assert verdict == word
    assert found == ratio or (found is not None and ratio is not None and isclose(found, ratio))


def test_text_is_escaped_and_stays_with_its_unit() -> None:
    assert escape('a<b & "c" \x00\ud800') == "a&lt;b &amp; &#34;c&#34; ��"
    assert escape("in 2 min 3 s") == "in 2\N{NO-BREAK SPACE}min\N{NO-BREAK SPACE}3\N{NO-BREAK SPACE}s"
    assert escape(Markup("<i>c</i>")) == "<i>c</i>"
    assert prose("say `a<b` now") == "Say <code>a&lt;b</code> now"
    assert [short(number) for number in (1.23456, 2.0, -0.0001)] == ["1.235", "2", "0"]


numbers = st.one_of(st.floats(-1e3, 1e12), st.sampled_from([0.0, -0.0, 1e-300, 1e-9]))  # JSON has no others
some = st.one_of(st.none(), numbers)
texts = st.text(max_size=8)
quantiles = st.builds(
    Quantiles,
    num=st.integers(0, 5),
    mean=numbers,
    deviation=numbers,
    p50=numbers,
    p90=numbers,
    p99=numbers,
    most=numbers,
)
processes = st.builds(
    ProcessStats,
    pid=st.just(1),
    role=texts,
    cpu_seconds=numbers,
    delay_seconds=some,
    read_bytes=some,
    pss_bytes=some,
    num_batches=st.one_of(st.none(), st.integers(0, 9)),
    busy_seconds=some,
)
columns = st.dictionaries(
    st.sampled_from(["asked", "handed", "worker", "began", "made", "sent"]), st.lists(some, min_size=3, max_size=3)
)
stats = st.builds(
    Stats,
    name=texts,
    kind=st.sampled_from(["stoker", "torch", "odd"]),
    rank=st.integers(0, 3),
    seconds=numbers,
    num_batches=st.integers(0, 10),
    num_samples=st.integers(0, 10),
    first_batch_seconds=st.lists(numbers, max_size=3),
    batch_seconds=quantiles,
    wait_seconds=quantiles,
    step_seconds=quantiles,
    making_seconds=quantiles,
    stages=st.dictionaries(
        st.sampled_from(["read", "wait", "odd"]), st.builds(Stage, busy_seconds=numbers, waiting_seconds=numbers)
    ),
    trainer=st.one_of(st.none(), processes),
    workers=st.lists(processes, max_size=3),
    sampled=st.one_of(st.none(), st.builds(Sampled, num=st.integers(0, 3), places=st.dictionaries(texts, numbers))),
    copies=st.one_of(st.none(), st.builds(Copies, num=st.integers(0, 3), seconds=numbers)),
    laps=st.one_of(st.none(), columns),
)
moments = st.builds(
    Moment,
    at=numbers,
    trainer_pss_bytes=some,
    workers_pss_bytes=some,
    private_bytes=some,
    trainer_cores=numbers,
    workers_cores=numbers,
    others_cores=numbers,
    trainer_delay_share=some,
    cores=st.lists(numbers, max_size=3),
)
any_run = st.builds(
    Run,
    title=texts,
    seconds=numbers,
    loaders=st.lists(stats, max_size=3),
    moments=st.lists(moments, max_size=4),
    machine=st.dictionaries(st.sampled_from(["cores", "memory_bytes", "x"]), some),
)


@given(run=any_run)
def test_whatever_numbers_a_record_holds_there_is_a_page(run: Run) -> None:

    from stoker.lab.diagnose.diagnosis import Diagnosis
    from stoker.lab.page.document import document

    said = Diagnosis(verdict="nothing-seen", says="x")
    page = document([ReportedRun(run, said, "")])
    document([ReportedRun(run, said, "this run"), ReportedRun(runs.one_batch(), said, "baseline")])
    assert page.endswith("</html>\n")
    page.encode()
