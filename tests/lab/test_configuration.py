"""What the configuration could do better: told if it is so, and only then."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stoker.lab.diagnose.configuration import check_configuration
from stoker.lab.watch.run import Copies, Moment, Run, Stats
from tests.lab.test_verdict import MACHINE, run, stats, times

GIB = 1 << 30


def about(*loaders: Stats, verdict: str = "compute-bound", **machine: Any) -> list[str]:
    return [finding.about for finding in check_configuration(run(*loaders, **machine), verdict=verdict)]


def set_up(config: dict[str, Any] | None = None, facts: dict[str, Any] | None = None, **shown: Any) -> Stats:
    seen = stats(**{"wait": 0.0005, "cpu": 0.03} | shown)
    return replace(seen, config=seen.config | (config or {}), facts=facts or {})


def test_a_sound_configuration_has_nothing_to_be_shown() -> None:
    assert about(set_up()) == []
    assert check_configuration(Run(), verdict="nothing-seen") == []


@pytest.mark.parametrize(("pageable", "blocking", "shown"), [(0, 100, "non_blocking"), (100, 0, "pin_memory")])
def test_pinned_memory_and_copies_that_do_not_block_go_together(pageable: int, blocking: int, shown: str) -> None:
    copies = Copies(num=100, num_pageable=pageable, num_blocking=blocking, seconds=0.01)
    assert about(replace(set_up(), copies=copies)) == [shown]
    assert about(replace(set_up(), copies=replace(copies, num_pageable=0, num_blocking=0))) == []


def test_pageable_memory_is_shown_where_there_is_a_device() -> None:
    copies = Copies(num=100, num_pageable=100, num_blocking=100, seconds=0.01)
    assert about(replace(set_up(), copies=copies)) == ["pin_memory"]
    assert about(replace(set_up(), copies=None)) == []
    # a loader with a device of its own sees to it
    assert about(replace(set_up({"device": "cuda"}), copies=copies)) == []


@pytest.mark.parametrize(
    ("size", "is_told"), [(64, False), (100, True), (33, True), (8, False), (4, False), (None, False)]
)
def test_batches_are_multiples_of_eight(size: int | None, is_told: bool) -> None:
    assert about(set_up({"batch_size": size})) == ["batch_size"] * is_told


def test_the_nearest_multiples_are_offered() -> None:
    (finding,) = check_configuration(run(set_up({"batch_size": 100})), verdict="compute-bound")
    assert "batch_size=104" in finding.advice
    assert "96" in finding.advice


def test_workers_are_no_more_than_cores_unless_they_wait_for_disks() -> None:
    many = set_up(num_workers=16, read=0.3, cpu=0.29)
    assert about(many, cores=8) == ["num_workers"]
    assert about(many, cores=16) == []
    assert about(set_up(num_workers=16, read=0.3, cpu=0.01), cores=8) == []
    assert about(*(replace(many, rank=rank) for rank in range(2)), cores=16) == ["num_workers"]
    at_leisure = [replace(worker, cpu_seconds=0.2) for worker in many.workers]
    assert about(replace(many, workers=at_leisure), cores=8) == []


def test_threads_beyond_the_cores_are_told_of_as_threads() -> None:
    many = set_up({"num_threads": 16}, num_workers=1, read=0.3, cpu=0.29, kind="stoker")
    (finding,) = check_configuration(run(many, cores=8), verdict="compute-bound")
    assert finding.what.startswith("16 threads in 1 worker compete for 8 cores")
    assert "num_threads=7" in finding.advice


def test_memory_that_has_grown_much_in_a_short_run_is_not_kept_quiet_about() -> None:
    def moments(*levels: float) -> list[Moment]:
        return [Moment(at=float(at), private_bytes=int(level * GIB)) for at, level in enumerate(levels)]

    def shown(*levels: float, verdict: str = "compute-bound") -> list[str]:
        return [one.about for one in check_configuration(run(set_up(), moments=moments(*levels)), verdict=verdict)]

    assert shown(1, 1, 1.5, 2, 2.5) == ["memory growth"]
    assert shown(1, 1, 1.5, 2, 2.5, verdict="memory-growth") == []  # that says it all
    assert shown(0.2, 2, 2, 2, 2) == []  # a model was made
    assert shown(1, 1, 1.5, 2.5, 1) == []  # and let go of
    assert shown(1, 1) == []


def test_shared_memory_has_to_hold_what_is_on_its_way() -> None:
    large = replace(set_up(), num_bytes=100 * (20 << 20))
    assert about(large, shared_memory_bytes=64 << 20) == ["shm"]
    assert about(large, shared_memory_bytes=GIB) == []
    assert about(replace(large, kind="stoker"), shared_memory_bytes=64 << 20) == []


@pytest.mark.parametrize(("start_method", "word"), [("fork", "reference count"), ("spawn", "pickled")])
def test_millions_of_objects_are_copied_by_reading_them(start_method: str, word: str) -> None:
    facts = {"num_objects": 3_000_000, "object_bytes": 200 << 20, "objects_in": "samples"}
    (finding,) = check_configuration(run(set_up({"start_method": start_method}, facts)), verdict="compute-bound")
    assert finding.about == "copy-on-read"
    assert word in finding.what
    assert "`samples`" in finding.what
    assert about(set_up(facts=facts | {"num_objects": 30_000})) == []


@pytest.mark.parametrize(("is_remote", "is_rotational"), [(True, None), (False, True)])
def test_an_order_that_seeks_all_over_a_slow_disk(is_remote: bool, is_rotational: bool | None) -> None:
    mount = {"point": "/data", "kind": "nfs4", "is_remote": is_remote, "is_rotational": is_rotational}
    facts = {"mount": mount, "files_bytes": 500 * GIB}
    assert about(set_up({"order": "shuffle"}, facts)) == ["order"]
    assert about(set_up({"order": "sequential"}, facts)) == []
    assert about(set_up({"order": "window"}, facts)) == []
    here = mount | {"is_remote": False, "is_rotational": False}
    assert about(set_up({"order": "shuffle"}, facts | {"mount": here})) == []


def test_data_that_fits_in_memory_need_not_be_read_again() -> None:
    facts = {"files_bytes": 4 * GIB}
    assert about(set_up({"is_iterable": True, "order": "stream"}, facts)) == ["fits in memory"]
    assert about(set_up(facts=facts), verdict="storage-bound") == ["fits in memory"]
    assert about(set_up(facts=facts)) == []
    assert about(set_up({"is_iterable": True}, {"files_bytes": 400 * GIB})) == []


def test_data_that_does_not_fit_is_to_be_mapped() -> None:
    facts = {"array_bytes": 40 * GIB}
    assert about(set_up(facts=facts)) == ["memory"]
    assert about(set_up(facts={"array_bytes": 20 * GIB})) == []
    assert about(set_up({"start_method": "spawn"}, {"array_bytes": 20 * GIB})) == ["memory"]


def test_workers_may_stay() -> None:
    seen = set_up({"persistent_workers": False}, num_iterations=10, first_batch_seconds=[0.05] * 10)
    assert about(seen) == ["persistent_workers"]
    assert about(replace(seen, config=seen.config | {"persistent_workers": True})) == []
    assert about(seen, verdict="start-up-bound") == []


def test_batches_that_differ_much_need_more_in_store() -> None:
    making = replace(times(0.02), p99=0.9)
    seen = set_up(wait=0.003, making_seconds=making, queue_depth=2.0, num_stalls=3)
    assert about(seen) == ["prefetch_factor"]
    assert about(replace(seen, making_seconds=replace(making, p99=0.05))) == []


def test_a_stream_that_never_asks_which_worker_it_is_in() -> None:
    facts = {"looked_at_worker": False}
    stream = {"is_iterable": True, "order": "stream"}
    assert about(set_up(stream, facts)) == ["get_worker_info"]
    assert about(set_up(stream, facts), verdict="duplicated-data") == []
    assert about(set_up(stream | {"shard": "auto"}, facts)) == []
    assert about(set_up(stream | {"worker_init_fn": True}, facts)) == []
    assert about(set_up(stream, {"looked_at_worker": True})) == []


def test_each_thing_is_shown_once_however_many_ranks_there_are() -> None:
    ranks = [replace(set_up({"batch_size": 100}), rank=rank) for rank in range(4)]
    assert about(*ranks, cores=64) == ["batch_size"]
    assert MACHINE["cores"] == 8
