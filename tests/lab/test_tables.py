"""Tables on narrow terminals: fewer columns, and whole numbers in those that are left."""

from __future__ import annotations

import io
from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.table import Table

from benchmarks.scale.record import AXES, FIRST, MEMORY, STEP, Curve, Point, Scale
from benchmarks.scale.tables import scale_table
from stoker.engine.stats import Quantiles
from stoker.lab.plots.batch_size_results import batch_table
from stoker.lab.plots.sweep_tables import compare_table, loader_table, tune_table
from stoker.lab.plots.tables import fit_to_width, table_of_rows, table_width
from stoker.lab.plots.train_results import parts_table, ways_table
from stoker.lab.trial.batch_size import BatchTrial, BatchTune
from stoker.lab.trial.rounds import Spread
from stoker.lab.trial.train_record import CACHED, REAL, RESIDENT, TrainBench, Way
from stoker.lab.trial.tuning import Tuning
from tests.lab.test_sweep_plots import CONTENDERS, GRID, sweep_of


def printed(table: Table, width: int) -> str:
    text = io.StringIO()
    Console(width=width, file=text).print(table)
    return text.getvalue()


def tables(width: int) -> dict[str, Table]:
    """Return every table of `stoker bench` and `stoker tune`, with numbers that take much room."""
    tuning = Tuning(
        sweep=sweep_of([{}, *GRID], "tune"),
        best=GRID[3],
        quickest=GRID[3],
        code="",
        seconds=Spread(mean=0.01, deviation=0.001, num=2),
    )
    quantiles = Quantiles(num=10, mean=1.234, p50=1.234, p90=2.345, p99=12.345, most=23.456)
    ways = [
        Way(name=name, num_steps=12_345, step_seconds=[1.0, 1.345], wait_seconds=[0, 0], quantiles=quantiles)
        for name in (RESIDENT, CACHED, REAL)
    ]
    bench = TrainBench(ways=ways, num_gpus=1024, blocked_share=0.5)
    trials = [BatchTrial(batch_size=2**n, step_seconds=[1.0, 1.3], peak_bytes=10**8) for n in range(12, 16)]
    points = [Point(x=x, values=[0.01 * x, 0.011 * x]) for x in (1000, 1024, 10**9)]
    curves = [
        Curve(axis=axis, measure=measure, loader="StatefulDataLoader", points=points)
        for axis in AXES
        for measure in (FIRST, STEP, MEMORY)
    ]
    return {
        "loader": loader_table(sweep_of(GRID), width=width),
        "compare": compare_table(sweep_of(CONTENDERS, "compare"), width=width),
        "tune": tune_table(tuning, width=width),
        "ways": ways_table(bench, width=width),
        "parts": parts_table(bench, width=width),
        "batch": batch_table(BatchTune(trials=trials, largest=2**15), width=width),
        "scale": scale_table(Scale(curves=curves), width=width),
    }


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_no_table_is_wider_than_the_terminal_and_no_number_is_cut(width: int) -> None:
    wide = {name: printed(table, 1000).split() for name, table in tables(1000).items()}
    for name, table in tables(width).items():
        shown = printed(table, width)
        assert "…" not in shown, shown
        assert table_width(table) <= width, shown
        whole = set(wide[name]) | {"─" * count for count in range(width)}
        assert set(shown.split()) <= whole, "what is shown is what a wide terminal shows"


def test_what_matters_most_is_left_at_last() -> None:
    heads = {name: [str(column.header) for column in table.columns] for name, table in tables(60).items()}
    assert "samples/s" in heads["loader"]
    assert {"samples/s", "x torch"} <= set(heads["compare"])
    assert {"ms/batch", ""} <= set(heads["tune"])
    assert {"mean", "p99"} <= set(heads["ways"])
    assert {"ms", "share"} <= set(heads["parts"])
    assert {"batch size", "samples/s", ""} <= set(heads["batch"])
    assert {"cost", "loader", "to", "slope"} <= set(heads["scale"])


@given(widths=st.lists(st.integers(1, 20), min_size=1, max_size=8), width=st.integers(1, 200), num=st.integers(0, 8))
def test_no_more_columns_are_left_out_than_need_be(widths: list[int], width: int, num: int) -> None:
    row = {f"{place}".ljust(cells, "x"): "1" * cells for place, cells in enumerate(widths)}
    spare = list(row)[1:][:num]

    def build(left_out: Collection[str]) -> Table:
        return table_of_rows([{name: row[name] for name in row if name not in left_out}], spare=(), width=width)

    fitting = [number for number in range(len(spare) + 1) if table_width(build(spare[:number])) <= width]
    expected = fitting[0] if fitting else len(spare)
    assert len(fit_to_width(build, spare=spare, width=width).columns) == len(row) - expected
