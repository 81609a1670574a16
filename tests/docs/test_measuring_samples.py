"""The tables in the guides on measuring are what the commands print for records like these."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from benchmarks.scale.record import FIRST, SAMPLES, STEPS, Curve, Limit, Point, RankShares, Scale
from benchmarks.scale.tables import scale_remarks, scale_table
from stoker.cli.trials import conclude, conclude_sweep, format_notes
from stoker.cli.tune import format_verdict
from stoker.engine.stats import Plain, Quantiles
from stoker.lab.plots.batch_size_results import batch_remarks, batch_table
from stoker.lab.plots.sweep_tables import compare_table, loader_table, tune_table
from stoker.lab.plots.train_results import parts_table, train_remarks, ways_table
from stoker.lab.trial.batch_size import OUT_OF_MEMORY, BatchTrial, BatchTune
from stoker.lab.trial.process_memory import ProcessMemory
from stoker.lab.trial.sweep import Config, Sweep
from stoker.lab.trial.train_record import CACHED, REAL, RESIDENT, TrainBench, Way
from stoker.lab.trial.trial import Startup, Trial
from stoker.lab.trial.tuning import decide
from tests.docs.samples import assert_sample

MB = 1_000_000


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")


def trials(config: Config, ms: float, *, spread: float = 0.3, mb: int = 220, **more: Any) -> list[Trial]:
    """Return three trials of batches of `ms` milliseconds, in a process tree of `mb` megabytes."""
    workers = config.get("num_workers", 0)
    each = 40 * MB // workers if workers else 0
    held = [ProcessMemory(name="trainer", peak_bytes=mb * MB, held_bytes=mb * MB - workers * each)]
    held += [ProcessMemory(name=f"worker {n}", peak_bytes=each, held_bytes=each) for n in range(workers)]
    return [
        Trial(
            config=config,
            number=number,
            kind=more.get("kind", "torch"),
            found={"num_workers": 0} | {"prefetch_factor": 2 if workers else None} | config,
            startup=Startup(interpreter=0.05, imports=0.6, construction=0.01, first_batch=0.06),
            seconds=3.0,
            num_batches=round(3000 / (ms + spread * (number - 1))),
            num_samples=10 * round(3000 / (ms + spread * (number - 1))),
            num_bytes=1000,
            batch_seconds=Quantiles(num=9, mean=ms / 1e3, p50=ms / 1e3, p90=ms / 900, p99=ms / 800, most=ms / 500),
            wait_seconds=Quantiles(num=9, mean=max(0.0, ms - 15) / 1e3),
            step_seconds=Quantiles(num=9, mean=0.015),
            cpu_seconds_per_sample=8e-5,
            trainer_bytes=held[0].held_bytes,
            workers_bytes=workers * each,
            private_bytes=mb * MB,
            processes=held,
            num_processes=1 + workers,
            digest=more.get("digest"),
        )
        for number in range(more.get("num_rounds", 3))
    ]


def sweep_of(
    verb: str, target: str, times: dict[str, float], name: str, notes: Sequence[str] = (), **more: Any
) -> Sweep:
    configs: list[Config] = [{name: int(value) if value.isdigit() else value} for value in times]
    found = [
        trial
        for config, ms in zip(configs, times.values())
        for trial in trials(config, ms, spread=ms / 30, mb=220 + 14 * config.get("num_workers", 0))
    ]
    settings = {"seconds": 3.0, "num_batches": None, "num_rounds": 3, **more}
    return Sweep(verb=verb, target=target, settings=settings, configs=configs, trials=found, notes=list(notes))


def printed(capsys: pytest.CaptureFixture[str], show: Callable[[], None]) -> str:
    capsys.readouterr()
    show()
    return capsys.readouterr().out


def show_sweep(sweep: Sweep, table: Any, record: Any = None, **more: Any) -> None:
    conclude_sweep(sweep, lambda width: table(record or sweep, width=width), dict, out=None, is_json=False, **more)


def show(record: Plain, tables: list[Any], remarks: list[str]) -> None:
    conclude(
        record,
        lambda width: [*(table(record, width=width) for table in tables), *format_notes(remarks)],
        [],
        out=None,
        is_json=False,
        is_interrupted=False,
    )


def test_the_table_of_a_loader(capsys: pytest.CaptureFixture[str]) -> None:
    sweep = sweep_of("loader", "train:make_loader", {"0": 21.1, "1": 21.2, "2": 10.6, "4": 5.27}, "num_workers")
    text = printed(capsys, lambda: show_sweep(sweep, loader_table))
    assert_sample("docs/guides/benchmarks.md", "train:make_loader: 3", text)


def test_the_table_of_loaders_compared(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "72")
    names = ("torch", "StatefulDataLoader", "stoker", "SPDL, processes", "SPDL, threads", "Grain")
    times = {name: 100 + 5.0 * place for place, name in enumerate(names)}
    notes = [
        "SPDL, threads: one process, with as many threads as others have workers",
        "Grain: reads without threads; its default is 16 in each worker; gives arrays, not tensors",
        "Grain: its first batch differs from that of torch's loader (each of its workers makes batches of its own part "
        "of the data)",
    ]
    sweep = sweep_of("compare", "train:make_dataset", times, "contender", notes, batch_size=64, collate=None)
    text = printed(capsys, lambda: show_sweep(sweep, compare_table))
    assert_sample("docs/guides/benchmarks.md", "train:make_dataset, batches of 64", text)


def test_the_table_of_a_tuned_loader(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "68")

    def config(workers: int, prefetch: int | None = None) -> Config:
        return {"num_workers": workers} | ({"prefetch_factor": prefetch} if prefetch else {})

    found = [*trials({}, 37.8), *trials(config(0), 37.3, num_rounds=1), *trials(config(1), 22.2, num_rounds=1)]
    best = [config(2), config(2, 4), config(2, 8), config(3), config(4)]
    found += [trial for one, ms in zip(best, (17.0, 16.8, 16.9, 17.1, 17.0)) for trial in trials(one, ms)]
    configs = [{}, config(0), config(1), *best]
    settings = {"seconds": 2.0, "num_batches": None, "num_rounds": 3, "max_workers": 4}
    sweep = Sweep(
        verb="tune",
        target="train:make_loader",
        step="train:make_step",
        settings=settings,
        configs=configs,
        trials=found,
    )
    tuning = decide(sweep, limit=4, is_asked=True)
    text = printed(capsys, lambda: show_sweep(sweep, tune_table, tuning, verdict=format_verdict(tuning)))
    assert_sample("docs/guides/tuning.md", "train:make_loader: 3", text)


def test_the_table_of_batch_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    speeds = {8: 537, 16: 943, 32: 1655, 64: 2410, 128: 3318, 256: 4206, 512: 4922, 1024: 5099, 2048: 5471, 4096: 5814}
    speeds |= {6144: 5586, 6656: 5902, 6912: 5961, 6944: 6025}
    done = [
        BatchTrial(
            batch_size=size,
            step_seconds=[0.95 * size / speed, size / speed, 1.05 * size / speed],
            peak_bytes=280 * MB + size * 38_000,
        )
        for size, speed in speeds.items()
    ]
    error = "DefaultCPUAllocator: can't allocate memory"
    done += [BatchTrial(batch_size=size, outcome=OUT_OF_MEMORY, error=error) for size in (6976, 7040, 7168, 8192)]
    tune = BatchTune(trials=done, largest=6944, num_verified=8, memory_bytes=629 * MB, margin=0.05, most=65536)
    text = printed(capsys, lambda: show(tune, [batch_table], batch_remarks(tune)))
    assert_sample("docs/guides/batch-size.md", "batch size  samples/s", text)


def test_the_tables_of_a_training_step(capsys: pytest.CaptureFixture[str]) -> None:
    ways = [
        Way(
            name=name,
            num_steps=500,
            step_seconds=[ms / 1e3, ms * 1.002 / 1e3, ms * 0.998 / 1e3],
            wait_seconds=[0.0] * 3,
            quantiles=Quantiles(num=500, mean=ms / 1e3, p50=ms / 1e3, p90=ms / 990, p99=ms / 950, most=ms / 900),
        )
        for name, ms in ((RESIDENT, 8.92), (CACHED, 10.6), (REAL, 14.4))
    ]
    bench = TrainBench(
        num_gpus=8, kind="stoker", ways=ways, blocked_share=0.69, split_by="by the loader's own counters"
    )
    remarks = [one for one in train_remarks(bench) if "stalls take" in one]
    text = printed(capsys, lambda: show(bench, [ways_table, parts_table], remarks))
    assert_sample("docs/guides/stalls.md", "ms from step to step", text)


def test_the_table_of_growth(capsys: pytest.CaptureFixture[str]) -> None:
    def curve(axis: str, loader: str, ys: dict[int, float]) -> Curve:
        return Curve(axis=axis, measure=FIRST, loader=loader, points=[Point(x=x, values=[y]) for x, y in ys.items()])

    curves = [
        curve(SAMPLES, "stoker", {10**3: 1.47e-3, 10**6: 1.5e-3, 10**9: 1.54e-3}),
        curve(SAMPLES, "torch", {10**3: 494e-6, 10**5: 6e-3, 10**7: 0.619}),
        curve(SAMPLES, "StatefulDataLoader", {10**3: 588e-6, 10**5: 6e-3, 10**7: 0.636}),
        curve(STEPS, "stoker", {1: 1.15e-3, 10**3: 1.15e-3, 10**6: 1.15e-3}),
        curve(STEPS, "torch", {1: 0.484, 10**3: 0.5, 10**6: 13.7}),
        curve(STEPS, "StatefulDataLoader", {1: 2.22, 10**3: 2.2, 10**5: 2.25}),
    ]
    curves[1].points.extend(Point(x=x, skipped="took more than the 4.0 GiB allowed") for x in (10**8, 10**9))
    shares = [RankShares(num_ranks=1024, num_steps=122, num_samples=8, are_equal=True)]
    scale = Scale(curves=curves, shares=shares, limit=Limit(memory_bytes=4 << 30), repetitions=5)
    text = printed(capsys, lambda: show(scale, [scale_table], scale_remarks(scale)))
    assert_sample("docs/guides/scale.md", "samples", text)
