"""Batch sizes drawn and in tables, from hand-made records."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from PIL import Image
from rich.console import Console

from stoker.lab.plots.batch_size_results import batch_figure, batch_remarks, batch_table
from stoker.lab.trial.batch_size import OUT_OF_MEMORY, BatchTrial, BatchTune


@pytest.fixture
def tune() -> BatchTune:
    def trial(size: int, seconds: float) -> BatchTrial:
        return BatchTrial(batch_size=size, step_seconds=[seconds, 1.02 * seconds], peak_bytes=size * 10**6)

    failed = BatchTrial(batch_size=256, outcome=OUT_OF_MEMORY, error="[enforce fail] can't allocate memory")
    trials = [trial(8, 0.010), trial(16, 0.010), trial(32, 0.011), trial(64, 0.0219), trial(128, 0.0435), failed]
    return BatchTune(
        target="train.py:make_step",
        device="cpu",
        memory_bytes=200 * 10**6,
        margin=0.05,
        most=65536,
        trials=trials,
        largest=128,
        num_verified=8,
    )


def text_of(tune: BatchTune) -> list[list[str]]:
    console = Console(width=80, file=io.StringIO(), record=True)
    console.print(batch_table(tune))
    return [line.split() for line in console.export_text().splitlines() if line.strip()]


def test_the_table_marks_the_knee_the_largest_and_what_does_not_fit(tune: BatchTune) -> None:
    lines = text_of(tune)
    assert ["32", "2,880", "11.1", "±", "0.2", "32", "MB", "larger", "gains", "little"] in lines
    assert ["128", "2,913", "43.9", "±", "0.6", "128", "MB", "largest", "that", "fits"] in lines
    assert ["256", "-", "-", "-", "does", "not", "fit"] in lines


def test_remarks_say_what_follows(tune: BatchTune) -> None:
    assert batch_remarks(tune) == [
        "batch_size=128 is the largest that fits into 200 MB of cpu with 5% to spare; verified with 8 steps in a "
        "separate process",
        "beyond batch_size=32, larger batches gain less than 5% in samples per second",
        "error of a size that did not fit: [enforce fail] can't allocate memory",
    ]
    bounded = replace(tune, trials=tune.trials[:3], largest=32, stopped="sizes above 32 were not tried")
    assert batch_remarks(bounded) == [
        "batch_size=32 is the largest found to fit into 200 MB of cpu with 5% to spare; verified with 8 steps "
        "in a separate process",
        "larger sizes may fit: sizes above 32 were not tried",
    ]
    paying = replace(tune, trials=tune.trials[:3], largest=32)
    assert "throughput still grows at the largest size" in batch_remarks(paying)[1]
    nothing = replace(tune, trials=tune.trials[-1:], largest=None)
    assert batch_remarks(nothing) == ["not even a batch of one sample fits into 200 MB of cpu"]
    too_soon = replace(nothing, is_interrupted=True, stopped="the search was interrupted")
    assert batch_remarks(too_soon) == ["no batch size that fits into 200 MB of cpu was found before the interruption"]
    unverified = replace(bounded, num_verified=0, is_interrupted=True, stopped="the search was interrupted")
    assert batch_remarks(unverified) == [
        "batch_size=32 is the largest found to fit into 200 MB of cpu with 5% to spare",
        "larger sizes may fit: the search was interrupted",
    ]


def test_throughput_time_and_memory_are_drawn_against_the_size(tune: BatchTune) -> None:
    figure = batch_figure(tune)
    assert [panel.get_title(loc="left") for panel in figure.axes] == [
        "samples per second",
        "ms per step",
        "peak memory, GB",
    ]
    for panel in figure.axes:
        assert panel.get_xscale() == "log"
        assert panel.get_xlim()[1] > 256  # what does not fit is in the plot
        assert "128" in [tick.get_text() for tick in panel.get_xticklabels()]
    assert figure.get_suptitle() == "train.py:make_step: a batch of 128 fits, 32 is as fast"
    file = io.BytesIO()
    figure.savefig(file)
    assert {tick.get_text() for tick in figure.axes[1].get_yticklabels()} >= {"10", "20", "50"}
    assert min(Image.open(file).size) > 300


def test_a_record_in_which_nothing_fits_or_memory_is_not_known_is_drawn(tune: BatchTune) -> None:
    nothing = replace(tune, trials=tune.trials[-1:], largest=None)
    assert batch_figure(nothing).get_suptitle() == "train.py:make_step: no batch size fits"
    too_soon = replace(nothing, is_interrupted=True)
    assert batch_figure(too_soon).get_suptitle() == "train.py:make_step: no size tried so far fits"
    unknown = replace(tune, trials=[replace(trial, peak_bytes=None) for trial in tune.trials], memory_bytes=None)
    assert len(batch_figure(unknown).axes) == 2


def test_sizes_that_become_slower_are_called_slower_and_the_fastest_is_to_be_taken(tune: BatchTune) -> None:
    trials = [replace(trial, step_seconds=[4 * one for one in trial.step_seconds]) for trial in tune.trials[-3:-1]]
    slowing = replace(tune, trials=[*tune.trials[:3], *trials])
    assert ["32", "2,880", "11.1", "±", "0.2", "32", "MB", "fastest"] in text_of(slowing)
    assert batch_remarks(slowing)[1] == (
        "batch_size=32 is the fastest, with 2,880 samples per second: use that. Larger batches are slower, and "
        "batch_size=128 gives 728"
    )
    figure = batch_figure(slowing)
    title = "train.py:make_step: a batch of 128 fits, but 32 is the fastest: larger batches are slower"
    assert figure.get_suptitle() == title
    assert "Green: fastest." in figure.get_supxlabel()
