"""What loaders count while they run, and how they tell it."""

from __future__ import annotations

import copy
import gc
import io
import json
import multiprocessing
import os
import pickle
import signal
import threading
import time
import urllib.request
import weakref
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset

import stoker
from stoker import DataLoader, Stats
from stoker.engine.stats import STAGES
from stoker.errors import ArgumentError, MissingExtra
from stoker.loader.metrics import counters as counting
from stoker.loader.metrics.stats_log import StatsLog
from stoker.loader.metrics.stats_text import format_rank_stats, format_stats, slowest_rank

ENGINES: list[dict[str, int]] = [
    {},
    {"num_threads": 2},
    {"num_workers": 2},
    {"num_workers": 1, "num_threads": 2},
]


class Sleeping:
    """Reading sleeps, transforming sleeps, each a known time."""

    def __init__(self, num_samples: int = 24, *, read: float = 0.002, transform: float = 0.001) -> None:
        self.num_samples, self.read, self.transform = num_samples, read, transform

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, position: int) -> Any:
        time.sleep(self.read)
        with stoker.transforming():
            time.sleep(self.transform)
        return np.full(100, position, np.float32)


def slow_collate(samples: list[Any]) -> Any:
    time.sleep(0.004)
    return torch.from_numpy(np.stack(samples))


class Counting(IterableDataset[Any]):
    def __iter__(self) -> Any:
        for number in range(32):
            time.sleep(0.001)
            yield number


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_stages_are_told_apart_whoever_does_the_work(engine: dict[str, int]) -> None:
    loader = DataLoader(Sleeping(), batch_size=4, collate_fn=slow_collate, **engine)  # type: ignore[arg-type]
    for _ in range(2):
        for _ in loader:
            pass
    stats = loader.stats()
    assert (stats.num_batches, stats.num_samples, stats.num_iterations) == (12, 48, 2)
    assert stats.num_bytes == 48 * 400
    assert list(stats.stages) == list(STAGES)
    # sleeping takes at least its time; how much longer is the machine's affair
    assert 48 * 0.002 <= stats.stages["read"].busy_seconds < 60
    assert 48 * 0.001 <= stats.stages["transform"].busy_seconds < 60
    assert 12 * 0.004 <= stats.stages["collate"].busy_seconds < 60
    assert stats.stages["read"].busy_seconds > stats.stages["transform"].busy_seconds
    assert stats.engine == ("processes" if "num_workers" in engine else "threads" if engine else "inline")
    assert len(stats.first_batch_seconds) == 2
    assert stats.batch_seconds.num == stats.wait_seconds.num == 10  # first batches are told by themselves
    assert 0 < stats.wait_seconds.p50 <= stats.wait_seconds.p90 <= stats.wait_seconds.p99 <= stats.wait_seconds.most
    assert 0 < stats.wait_share <= 1
    assert stats.stages["wait"].waiting_seconds >= stats.stall_seconds > 0


@pytest.mark.timed
@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_a_slow_trainer_finds_batches_ready(engine: dict[str, int]) -> None:
    loader = DataLoader(Sleeping(read=0.0001, transform=0), batch_size=4, **engine)  # type: ignore[arg-type]
    for _ in loader:
        time.sleep(0.02)
    stats = loader.stats()
    assert stats.step_seconds.p50 >= 0.02
    assert stats.queue_depth is not None
    if engine:
        assert stats.queue_depth > 0.5
        assert stats.stages["hand-over"].waiting_seconds > 0.02
    else:
        assert stats.queue_depth == 0
        assert stats.queue_empty_share == 1


def test_workers_tell_what_they_used_also_when_they_are_gone() -> None:
    class Busy(Sleeping):
        def __getitem__(self, position: int) -> Any:
            end = time.process_time() + 0.005
            while time.process_time() < end:
                pass
            return position

    loader = DataLoader(Busy(), batch_size=4, num_workers=2)
    for _ in range(2):
        for _ in loader:
            pass
    stats = loader.stats()
    assert [worker.role for worker in stats.workers] == ["worker 0", "worker 1"]
    assert sum(worker.cpu_seconds for worker in stats.workers) >= 48 * 0.005
    assert sum(worker.num_batches or 0 for worker in stats.workers) == 12
    assert all((worker.pss_bytes or 0) > 1_000_000 for worker in stats.workers)
    assert stats.trainer is not None
    assert stats.trainer.pid == os.getpid()
    assert (stats.trainer.pss_bytes or 0) > 10_000_000


def test_living_workers_tell_their_memory() -> None:
    loader = DataLoader(Sleeping(), batch_size=4, num_workers=2)
    batches = iter(loader)
    next(batches)
    stats = loader.stats()
    assert all((worker.pss_bytes or 0) > 1_000_000 for worker in stats.workers)
    assert len({worker.pid for worker in stats.workers} | {os.getpid()}) == 3
    batches.close()


def test_a_killed_workers_cpu_time_is_not_lost() -> None:
    class Deadly(Sleeping):
        def __getitem__(self, position: int) -> Any:
            end = time.process_time() + 0.02
            while time.process_time() < end:
                pass
            if position == 6 and not Path(self.mark).exists():
                Path(self.mark).touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return position

        mark = ""

    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        Deadly.mark = os.path.join(folder, "mark")
        loader = DataLoader(Deadly(12), batch_size=2, num_workers=1)
        assert sum(map(len, loader)) == 12
    [worker] = loader.stats().workers
    assert worker.num_batches == 6
    assert worker.cpu_seconds >= 12 * 0.02


class FromDisk(Sleeping):
    """Reads a file that lies on a disk, and not in memory."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        path.write_bytes(os.urandom(24 << 16))

    def __getitem__(self, position: int) -> Any:
        file = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            return len(os.pread(file, 1 << 16, position << 16))
        finally:
            os.close(file)


def test_what_workers_that_have_ended_have_read_is_not_the_trainers(tmp_path: Path) -> None:
    loader = DataLoader(FromDisk(tmp_path / "data"), batch_size=4, num_workers=1)
    for _ in range(2):
        assert sum(batch.sum().item() for batch in loader) == 24 << 16
    stats = loader.stats()
    [worker] = stats.workers
    if not worker.read_bytes:
        pytest.skip("these files lie in memory, or the system does not tell")
    assert stats.trainer is not None and stats.trainer.read_bytes is not None
    assert stats.trainer.read_bytes < worker.read_bytes / 4


def test_streams_are_counted_too() -> None:
    loader = DataLoader(Counting(), batch_size=8, num_workers=1)
    assert len(list(loader)) == 4
    stats = loader.stats()
    assert (stats.num_batches, stats.num_samples) == (4, 32)
    assert stats.stages["read"].busy_seconds >= 32 * 0.001


def test_what_is_done_to_batches_on_the_way_to_the_device_is_the_copy() -> None:
    class Pictures(Sleeping):
        def __getitem__(self, position: int) -> Any:
            return np.zeros((3, 64, 64), np.uint8)

    loader = DataLoader(Pictures(), batch_size=4, device="cpu", normalize=((0.5,) * 3, (0.5,) * 3))
    for _ in loader:
        pass
    stats = loader.stats()
    assert stats.copies is not None
    assert stats.copies.num == 6
    assert stats.stages["copy"].busy_seconds == pytest.approx(stats.copies.seconds)
    assert stats.copies.seconds > 0
    assert DataLoader(Pictures(), batch_size=4).stats().copies is None


class Meeting(Sleeping):
    """The first two batches wait for each other, so that no worker makes both."""

    def __init__(self) -> None:
        super().__init__()
        self.barrier = multiprocessing.get_context("fork").Barrier(2)

    def __getitem__(self, position: int) -> Any:
        if position in (0, 4):
            self.barrier.wait(60)
        return super().__getitem__(position)


def test_laps_tell_each_batch_in_the_order_of_its_life() -> None:
    loader = DataLoader(Meeting(), batch_size=4, num_workers=2, multiprocessing_context="fork")
    for _ in loader:
        time.sleep(0.001)
    laps = loader.stats(laps=True).laps
    assert laps is not None
    assert len(laps["asked"]) == 6
    for lap in map(dict, (zip(laps, values) for values in zip(*laps.values()))):
        assert lap["began"] < lap["made"] <= lap["sent"] < lap["handed"]
        assert lap["asked"] < lap["handed"]
    assert set(laps["worker"]) == set(laps["worker"][:2]) == {0.0, 1.0}
    assert {worker.role: worker.num_batches for worker in loader.stats().workers} == {
        f"worker {worker}": laps["worker"].count(worker) for worker in (0, 1)
    }
    assert loader.stats().laps is None


def test_reset_begins_anew_in_the_middle_of_an_iteration() -> None:
    loader = DataLoader(Sleeping(), batch_size=4, num_workers=1)
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    loader.counters.reset()
    assert loader.stats().num_batches == 0
    for _ in batches:
        pass
    stats = loader.stats()
    assert (stats.num_batches, stats.num_samples) == (3, 12)
    assert stats.batch_seconds.num == 3  # no first batch among them
    assert stats.workers[0].cpu_seconds >= 0


def test_the_record_survives_json() -> None:
    loader = DataLoader(Sleeping(8), batch_size=4, num_workers=1)
    for _ in loader:
        pass
    stats = loader.stats(laps=True)
    assert Stats.from_dict(json.loads(stats.as_json())) == stats


def test_the_report_tells_people() -> None:
    loader = DataLoader(Sleeping(), batch_size=4, num_workers=2)
    page = io.StringIO()
    loader.report(file=page)
    assert "has not yielded a batch" in page.getvalue()
    for _ in loader:
        pass
    page = io.StringIO()
    loader.report(file=page)
    text = page.getvalue()
    assert "6 batches, 24 samples" in text
    assert "2 workers" in text
    for word in ("p50", "p99", *STAGES, "worker 1", "trainer", "waiting for data"):
        assert word in text
    assert "(1 worker of 2 threads)" in format_stats(
        replace(loader.stats(), config={"num_workers": 1, "num_threads": 2})
    )


def test_the_methods_of_the_loader_are_those_of_its_metrics(tmp_path: Path) -> None:
    loader = DataLoader(Sleeping(), batch_size=4)
    loader.metrics.log(tmp_path / "run.jsonl", every=1000)
    for _ in loader:
        pass
    assert loader.metrics.stats().num_samples == loader.stats().num_samples == 24
    assert json.loads((tmp_path / "run.jsonl").read_text())["num_samples"] == 24
    pages = io.StringIO(), io.StringIO()
    loader.metrics.report(file=pages[0])
    loader.report(file=pages[1])
    first_lines = [page.getvalue().split(" in ")[0] for page in pages]
    assert first_lines[0] == first_lines[1] != ""
    loader.metrics.reset()
    assert loader.stats().num_samples == 0


def test_a_line_of_json_is_written_now_and_then_and_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    loader = DataLoader(Sleeping(), batch_size=4)
    loader.log_stats(path, every=1e-12)  # due at every look
    for _ in range(2):
        for _ in loader:
            pass
    lines = [Stats.from_dict(json.loads(line)) for line in path.read_text().splitlines()]
    assert [stats.num_batches for stats in lines] == [0, 1, 2, 3, 4, 5, 6, 6, 6, 7, 8, 9, 10, 11, 12, 12]
    other = tmp_path / "rare.jsonl"
    loader.log_stats(other, every=3600)
    for _ in loader:
        pass
    assert len(other.read_text().splitlines()) == 1


def test_a_log_stays_where_it_was_and_ends_a_line_that_was_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.jsonl").write_text('{"num_batches": 1}\n{"num_ba')  # whoever wrote it was killed
    loader = DataLoader(Sleeping(), batch_size=4)
    loader.log_stats("run.jsonl", every=3600)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    for _ in loader:
        pass
    lines = (tmp_path / "run.jsonl").read_text().splitlines()
    assert len(lines) == 3
    assert json.loads(lines[2])["num_batches"] == 6
    assert not list(Path().iterdir())


def test_a_log_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    loader = DataLoader(Sleeping(), batch_size=4)
    with pytest.raises(FileNotFoundError):
        loader.log_stats(tmp_path / "no" / "folder.jsonl")
    with pytest.raises(ArgumentError, match="every=0 is not a positive number"):
        loader.log_stats(tmp_path / "log.jsonl", every=0)


def test_numbers_of_numpys_are_written_as_numbers(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    loader = DataLoader(Sleeping(), batch_size=4, num_workers=np.int64(1), prefetch_factor=np.int64(2))  # type: ignore[arg-type]
    loader.log_stats(path)
    assert len(list(loader)) == 6
    assert json.loads(path.read_text())["config"]["num_workers"] == 1


def test_ctrl_c_while_the_log_is_written_costs_no_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = DataLoader(Sleeping(), batch_size=4)
    loader.log_stats(tmp_path / "run.jsonl", every=1e-9)
    write, num_struck = StatsLog.write, 0

    def interrupted(log: StatsLog, stats: Stats) -> None:
        nonlocal num_struck
        num_struck += 1
        if num_struck in (1, 4):
            raise KeyboardInterrupt
        write(log, stats)

    monkeypatch.setattr(StatsLog, "write", interrupted)
    batches = iter(loader)
    seen: list[float] = []
    while len(seen) < 6:
        with suppress(KeyboardInterrupt):
            seen.append(next(batches)[0, 0].item())
            assert loader.state_dict()["served"] == 4 * len(seen)
    assert seen == [0, 4, 8, 12, 16, 20]
    assert num_struck >= 5


def test_ctrl_c_while_a_batch_is_noted_costs_no_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = DataLoader(Sleeping(), batch_size=4)
    note, num_struck = counting.Counters.note, 0

    def interrupted(*arguments: Any) -> None:
        nonlocal num_struck
        num_struck += 1
        if num_struck == 3:
            raise KeyboardInterrupt
        note(*arguments)

    monkeypatch.setattr(counting.Counters, "note", interrupted)
    batches = iter(loader)
    seen = [next(batches)[0, 0].item() for _ in range(2)]
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    assert loader.state_dict()["served"] == 8
    seen += [batch[0, 0].item() for batch in batches]
    assert seen == [0, 4, 8, 12, 16, 20]


def test_a_full_disk_ends_the_log_and_not_the_training() -> None:
    loader = DataLoader(Sleeping(), batch_size=4)
    loader.log_stats("/dev/full", every=0.001)
    with pytest.warns(UserWarning, match="no longer written to /dev/full"):
        assert len(list(loader)) == 6


def test_counters_do_not_keep_the_loader_and_outlive_it() -> None:
    loader = DataLoader(Sleeping(8), batch_size=4)
    for _ in loader:
        pass
    counters, gone = loader.counters, weakref.ref(loader)
    counters.stats()
    del loader
    gc.collect()
    assert gone() is None
    assert counters.stats().num_batches == 2
    assert counters.stats().config["batch_size"] == 4


def test_a_copy_and_a_pickled_loader_count_for_themselves() -> None:
    loader = DataLoader(Sleeping(8), batch_size=4)
    for _ in loader:
        pass
    for twin in (copy.copy(loader), pickle.loads(pickle.dumps(loader))):
        assert twin.stats().num_batches == 0
        for _ in twin:
            pass
        assert twin.stats().num_batches == 2
    assert loader.stats().num_batches == 2


def test_whoever_watches_is_told_when_an_iteration_begins() -> None:
    seen: list[Any] = []
    counting.on_begin.append(seen.append)
    try:
        loader = DataLoader(Sleeping(4), batch_size=4)
        for _ in loader:
            pass
    finally:
        counting.on_begin.remove(seen.append)
    assert seen == [loader.counters]


def test_stats_may_be_asked_for_from_another_thread_all_the_time() -> None:
    loader = DataLoader(Sleeping(4000, read=0, transform=0), batch_size=1)
    is_over, most = threading.Event(), 0

    def ask() -> None:
        nonlocal most
        while not is_over.is_set():
            stats = loader.stats()
            assert stats.num_batches >= most
            most = stats.num_batches

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        for _ in loader:
            pass
    finally:
        is_over.set()
        thread.join()
    stats = loader.stats()
    assert stats.num_batches == stats.num_samples == 4000
    assert stats.batch_seconds.num == 3999


def test_the_slowest_rank_is_named() -> None:
    ranks = []
    for rank, read in enumerate((0.0002, 0.006, 0.0002)):
        loader = DataLoader(Sleeping(read=read, transform=0), batch_size=2, rank=rank, num_ranks=3, num_threads=1)
        for _ in loader:
            time.sleep(0.001)
        ranks.append(loader.stats())
    assert [stats.rank for stats in ranks] == [0, 1, 2]
    assert slowest_rank(ranks).rank == 1
    assert "slowest: rank 1" in format_rank_stats(ranks)


def test_ranks_are_asked_only_where_there_are_some() -> None:
    with pytest.raises(ArgumentError, match="torch.distributed is not initialized"):
        DataLoader(Sleeping(), batch_size=4).report(all_ranks=True)


def test_prometheus_is_told_when_it_asks() -> None:
    import prometheus_client

    registry = prometheus_client.CollectorRegistry()
    loader = DataLoader(Sleeping(), batch_size=4, num_workers=1)
    other = DataLoader(Sleeping(), batch_size=8)
    loader.prometheus("train", registry=registry)
    other.prometheus("validation", registry=registry)
    for _ in loader:
        pass
    server, thread = prometheus_client.start_http_server(0, addr="127.0.0.1", registry=registry)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/metrics") as answer:
            text = answer.read().decode()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert 'stoker_batches_total{loader="train",rank="0"} 6.0' in text
    assert 'stoker_batches_total{loader="validation",rank="0"} 0.0' in text
    assert 'stoker_stage_seconds_total{loader="train",rank="0",stage="read",state="busy"}' in text
    assert 'quantile="0.99"' in text
    assert text.count("# TYPE stoker_batches_total") == 1
    with pytest.warns(UserWarning, match="another loader was registered with Prometheus as 'train'"):
        other.prometheus("train", registry=registry)
    del other
    gc.collect()
    assert "validation" not in prometheus_client.generate_latest(registry).decode()


def test_prometheus_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(MissingExtra, match=r"stoker\[metrics\]"):
        DataLoader(Sleeping(), batch_size=4).prometheus()


def test_a_registry_that_is_none_is_refused() -> None:
    with pytest.raises(ArgumentError, match="cannot take our metrics"):
        DataLoader(Sleeping(), batch_size=4).prometheus(registry=7)


RANK = """
import sys, time
import torch.distributed as distributed
from stoker import DataLoader

class Slow:
    def __len__(self): return 24
    def __getitem__(self, position):
        time.sleep(0.006 if rank == 1 else 0.0)
        return position

rank = int(sys.argv[1])
distributed.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
loader = DataLoader(Slow(), batch_size=2, distributed=True)
for _ in loader: pass
loader.report(all_ranks=True)
distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_all_ranks_are_told_of_together(tmp_path: Path) -> None:
    import subprocess
    import sys

    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), str(tmp_path / "meeting")], stdout=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    told = [rank.communicate(timeout=60)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    assert "slowest: rank 1" in told[0]
    assert len(told[0].splitlines()) == 4
    assert told[1] == ""
