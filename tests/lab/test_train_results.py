"""Where a step's time goes, drawn and in tables, from hand-made records."""

from __future__ import annotations

import io
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from rich.console import Console

from stoker.engine.stats import Quantiles
from stoker.lab.plots.train_results import parts_table, spread_labels, train_figure, train_remarks, ways_table
from stoker.lab.trial.train_record import CACHED, REAL, RESIDENT, TrainBench, Way


def way(name: str, mean: float, *, wait: float = 0.0, spread: float = 0.01) -> Way:
    return Way(
        name=name,
        num_steps=100,
        step_seconds=[mean * (1 - spread), mean * (1 + spread)],
        wait_seconds=[wait, wait],
        quantiles=Quantiles(num=100, mean=mean, p50=mean, p90=1.2 * mean, p99=2 * mean, most=3 * mean),
    )


@pytest.fixture
def bench() -> TrainBench:
    ways = [way(RESIDENT, 0.010), way(CACHED, 0.012), way(REAL, 0.020)]
    return TrainBench(
        target="train.py:make_step",
        machine={"gpu": "a GPU"},
        num_gpus=8,
        ways=ways,
        blocked_share=0.75,
        split_by="by counters",
        num_samples=32,
    )


def text_of(table: object) -> list[list[str]]:
    console = Console(width=80, file=io.StringIO(), record=True)
    console.print(table)
    return [line.split() for line in console.export_text().splitlines() if line.strip()]


def test_bars_are_made_up_of_their_parts(bench: TrainBench) -> None:
    figure = train_figure(bench)
    left, right = figure.axes
    heights = [round(bar.get_height(), 6) for bar in left.patches if bar.get_height()]  # type: ignore[attr-defined]
    assert heights == pytest.approx([10, 10, 2, 10, 2, 2, 6])
    legend = left.get_legend()
    assert legend is not None
    assert "fetch 6 ms, 30%" in [text.get_text() for text in legend.get_texts()]
    assert {text.get_text() for text in right.texts} >= {"10.0", "24.0", "40.0"}
    assert "train.py:make_step: 96.0 GPU-hours per day lost on 8 GPUs" in figure.get_suptitle()
    file = io.BytesIO()
    figure.savefig(file)
    assert min(Image.open(file).size) > 300


def test_a_loader_that_is_not_split_is_drawn_too(bench: TrainBench) -> None:
    plain = TrainBench(ways=[bench.ways[0], bench.ways[2]])
    left, _ = train_figure(plain).axes
    heights = [round(bar.get_height(), 6) for bar in left.patches if bar.get_height()]  # type: ignore[attr-defined]
    assert heights == pytest.approx([10, 10, 10])
    assert train_figure(TrainBench(ways=[bench.ways[0], way(REAL, 0.010)])).get_suptitle() == "no stalls"


def test_tables_fit_into_eighty_columns(bench: TrainBench) -> None:
    lines = text_of(ways_table(bench))
    assert ["real", "loader", "20.0", "±", "0.3", "20.0", "24.0", "40.0", "60.0", "100"] in lines
    lines = text_of(parts_table(bench))
    assert any(line[:3] == ["fetch", "stall:", "storage"] and line[-2:] == ["30%", "57.6"] for line in lines)


def test_remarks_say_what_follows(bench: TrainBench) -> None:
    remarks = train_remarks(bench)
    assert remarks[0] == (
        "stalls take 50% of a step: 96.0 hours per day of 8 GPUs; without them a step takes 10 ms instead of 20 ms"
    )
    assert remarks[1] == "that is 1,600 samples per second, and 3,200 without stalls"
    assert remarks[2] == "fetch and preparation are separated by counters"
    assert len(remarks) == 3


def test_noise_and_shared_cores_are_reported() -> None:
    ways = [way(RESIDENT, 0.010, spread=0.3), way(CACHED, 0.010), way(REAL, 0.020, wait=0.002)]
    bench = TrainBench(ways=ways, counts_slowing=True, notes=["a note"], kind="torch", config={"num_workers": 2})
    remarks = " ".join(train_remarks(bench))
    assert "while workers are busy, the step itself takes 8 ms longer: they compete for its cores" in remarks
    assert "the machine is noisy" in remarks
    assert remarks.endswith("a note")


@pytest.mark.parametrize(
    ("kind", "config", "who"),
    [
        ("torch", {"num_workers": 0}, "after loading a batch in the same thread, the step itself takes 8 ms"),
        ("stoker", {"num_workers": 0, "num_threads": 2}, "while threads are busy, the step itself takes 8 ms longer"),
        ("iterable", {}, "with the real loader, the step itself takes 8 ms longer"),
    ],
)
def test_who_slows_a_step_down_is_called_by_its_name(kind: str, config: dict[str, int], who: str) -> None:
    ways = [way(RESIDENT, 0.010), way(CACHED, 0.010), way(REAL, 0.020, wait=0.002)]
    remarks = " ".join(train_remarks(TrainBench(ways=ways, counts_slowing=True, kind=kind, config=config)))
    assert who in remarks
    assert "workers" not in remarks


def test_a_way_that_noise_made_quicker_than_one_that_does_less_has_one_time_in_all_that_is_reported() -> None:
    bench = TrainBench(ways=[way(RESIDENT, 0.00508), way(CACHED, 0.00461), way(REAL, 0.01)], num_samples=32)
    assert any(line[:2] == ["compute", "4.61"] for line in text_of(parts_table(bench)))
    remarks = train_remarks(bench)
    assert remarks[0].endswith("without them a step takes 4.61 ms instead of 10 ms")
    assert remarks[1] == "that is 3,200 samples per second, and 6,941 without stalls"
    assert remarks[2] == (
        "batches on the device: 5.08 ms, longer than cached batches, loader (4.61 ms), which can only be noise: "
        "both count as 4.61 ms"
    )
    left, _ = train_figure(bench).axes
    tops = [bar.get_height() for bar in left.patches if bar.get_height()]  # type: ignore[attr-defined]
    whiskers = [collection.get_segments()[0][:, 1].mean() for collection in left.collections]  # type: ignore[attr-defined]
    assert whiskers == pytest.approx([tops[0], tops[1], 10.0])


@given(heights=st.lists(st.floats(0, 100), min_size=1, max_size=6).map(sorted), least=st.floats(0.1, 10))
def test_numbers_next_to_marks_never_cover_each_other(heights: list[float], least: float) -> None:
    written = spread_labels(heights, least)
    assert all(above - below >= least * (1 - 1e-9) for below, above in itertools.pairwise(written))
    assert written[0] >= least / 2 * (1 - 1e-9)
    apart = [100 * least * (place + 1) for place in range(len(heights))]
    assert spread_labels(apart, least) == pytest.approx(apart)
