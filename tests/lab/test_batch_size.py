"""The largest batch size is found for real: processes run out of memory, are killed, crash, hang, and are replaced."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stoker.errors import ArgumentError, WorkerDied
from stoker.foundation import machine
from stoker.lab.plots.batch_size_results import batch_remarks
from stoker.lab.trial.batch_size import OK, OUT_OF_MEMORY, SLOW, BatchTrial, BatchTune, round_size, tune_batch

pytestmark = pytest.mark.timed

STEPS = """
import os, signal, sys, time
import numpy as np

MIB = 1 << 20

def taking(batch_size):  # a megabyte for each sample
    def step():
        np.ones(batch_size * MIB // 8)
    return step

def greedy_at_last(batch_size):  # the fourth step takes half as much again
    calls = []
    def step():
        calls.append(1)
        np.ones((3 if len(calls) > 6 else 2) * batch_size * MIB // 16)
    return step

kept = []

def leaking(batch_size):  # what one size takes is not given back
    kept.append(np.ones(batch_size * MIB // 8))
    return lambda: None

def killed(batch_size):  # as the system does
    if batch_size > 50:
        os.kill(os.getpid(), signal.SIGKILL)
    return lambda: None

def crashing(batch_size):
    if batch_size > 50:
        print("last words", flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)
    return lambda: None

def aborting(batch_size):
    if batch_size > 50:
        print("terminate called after throwing an instance of 'std::bad_alloc'", flush=True)
        os.abort()
    return lambda: None

def wrong_at_64(batch_size):
    def step():
        if batch_size == 64:
            raise ValueError("64 does not go into 7")
    return step

def without_engine(batch_size):  # as a convolution says that got no memory
    def step():
        if batch_size > 50:
            raise RuntimeError("GET was unable to find an engine to execute this computation")
    return step

def never_any_engine(batch_size):
    def step():
        raise RuntimeError("GET was unable to find an engine to execute this computation")
    return step

def compiled(batch_size):
    import torch
    def told(graph, inputs):
        with open(os.environ["COUNTED"], "a") as file:
            file.write(f"{batch_size} {any(isinstance(one, torch.SymInt) for one in inputs)}\\n")
        return graph.forward
    double = torch.compile(lambda x: x * 2, backend=told)
    return lambda: double(torch.ones(batch_size, 3))

def hanging(batch_size):
    if batch_size > 50:
        time.sleep(1000)
    return lambda: None

def quick(batch_size):  # half a millisecond, and a tenth of one for each sample up to 64
    seconds = 0.0005 + 0.0001 * batch_size
    return lambda: time.sleep(seconds)

def no_step(batch_size):
    return batch_size

def no_argument():
    return lambda: None

def needs_a_batch(batch_size):
    return lambda batch: None

def needs_more(model, data):
    return lambda: None

def make_loader():
    return [{"x": np.ones((5, MIB // 8)), "name": list("abcde")}] * 3

def odd_loader():
    return [{"x": np.ones((5, 3)), "starts": np.arange(6)}]

def on_a_batch(seed=0):  # as `stoker bench train` has it: a megabyte for each sample
    def step(batch):
        assert len(batch["x"]) == len(batch["name"]), "all of it is as large"
        batch.pop("name")
        np.array(batch["x"])
    return step

def with_its_loader():
    return odd_loader(), lambda batch: None

def counting(batch_size):
    with open(os.environ["COUNTED"], "a") as file:
        file.write(f"{os.getpid()} {batch_size}\\n")
    return taking(batch_size)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "steps.py"
    path.write_text(STEPS)
    return path


def tuned(file: Path, name: str, **options: object) -> BatchTune:
    return tune_batch(f"{file}:{name}", device="cpu", **{"num_rounds": 1, **options})  # type: ignore[arg-type]


def outcomes(found: BatchTune) -> dict[int, str]:
    return {trial.batch_size: trial.outcome for trial in found.trials}


def test_the_largest_that_fits_into_a_limit_is_found_and_verified(file: Path) -> None:
    found = tuned(file, "taking", memory_bytes=400 << 20)
    assert found.largest is not None
    assert found.largest % 32 == 0
    # a child without torch has used some ten MiB by then, and 380 of 400 are not kept free
    assert 288 <= found.largest <= 384
    assert outcomes(found)[512] == OUT_OF_MEMORY
    assert found.trials[-1].batch_size == found.largest
    assert len(found.trials[-1].step_seconds) == found.num_verified == 8
    assert found.memory_bytes == 400 << 20
    assert found.device == "cpu"
    sizes = {one.batch_size: one for one in found.sizes()}
    assert sizes[256].fits
    assert (sizes[256].peak_bytes or 0) > 256 << 20
    assert not sizes[512].fits
    assert "allocate" in (sizes[512].error or "")


def test_a_child_is_kept_while_it_is_well_and_replaced_after_a_lack_of_memory(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COUNTED", str(tmp_path / "counted"))
    found = tuned(file, "counting", memory_bytes=150 << 20)
    tried = [tuple(map(int, line.split())) for line in (tmp_path / "counted").read_text().splitlines()]
    first = [size for pid, size in tried if pid == tried[0][0]]
    assert first == [8, 16, 32, 64, 128] or first == [8, 16, 32, 64, 128, 256]
    failed = [size for size, outcome in outcomes(found).items() if outcome == OUT_OF_MEMORY]
    for size in failed:  # believed only in a process that has tried nothing before
        pids = [pid for pid, its in tried if its == size]
        assert any([its for one, its in tried if one == pid] == [size] for pid in pids)


def test_what_others_have_left_behind_is_not_held_against_a_size(file: Path) -> None:
    found = tuned(file, "leaking", memory_bytes=400 << 20)
    assert found.largest is not None
    assert found.largest >= 288  # in one process 8 + 16 + ... + 256 would have been too much already


def test_a_result_that_does_not_last_is_lowered_until_it_does(file: Path) -> None:
    found = tuned(file, "greedy_at_last", memory_bytes=400 << 20)
    assert found.largest is not None
    assert found.largest * 1.5 < 400
    assert found.largest >= 128
    assert found.trials[-1].outcome == OK
    lowered = [trial for trial in found.trials if len(trial.step_seconds) != 50 and trial.outcome == OUT_OF_MEMORY]
    assert lowered


@pytest.mark.parametrize("name", ["killed", "aborting"])
def test_a_process_that_the_system_ends_for_its_memory_counts_as_too_large(file: Path, name: str) -> None:
    found = tuned(file, name, most=128)
    assert found.largest == 32
    assert outcomes(found)[64] == OUT_OF_MEMORY
    error = next(one.error for one in found.sizes() if one.batch_size == 64)
    assert "killed by the system" in str(error) or "bad_alloc" in str(error)


def test_a_crash_is_no_lack_of_memory(file: Path) -> None:
    with pytest.raises(WorkerDied, match="a worker process died at a step with a batch of 64: SIGSEGV") as caught:
        tuned(file, "crashing", most=128)
    assert "last words" in "".join(caught.value.__notes__)


def test_another_error_is_raised_as_it_is(file: Path) -> None:
    with pytest.raises(ValueError, match="64 does not go into 7") as caught:
        tuned(file, "wrong_at_64")
    assert caught.value.__notes__[-1] == "raised with a batch size of 64"
    assert "in step" in str(caught.value.__cause__)  # the step's own traceback


def test_what_may_be_a_lack_of_memory_counts_as_one_if_smaller_sizes_went_well(file: Path) -> None:
    found = tuned(file, "without_engine", most=128)
    assert found.largest == 32
    assert outcomes(found)[64] == OUT_OF_MEMORY
    with pytest.raises(RuntimeError, match="unable to find an engine"):
        tuned(file, "never_any_engine", most=128)


@pytest.mark.slow
def test_every_size_is_compiled_for_itself(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What serves several sizes is slower than what is trained with."""
    monkeypatch.setenv("COUNTED", str(tmp_path / "counted"))
    found = tuned(file, "compiled", most=32, num_verified=1)
    assert found.largest == 32
    lines = (tmp_path / "counted").read_text().split("\n")[:-1]
    assert set(lines) == {"8 False", "16 False", "32 False"}


@pytest.mark.parametrize(
    ("device", "says"),
    [("mps", "memory of mps cannot be limited"), ("nonsense", "'nonsense': "), ("cuda:99", "device 'cuda:99'")],
)
def test_a_device_that_cannot_be_had_is_refused(file: Path, device: str, says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        tune_batch(f"{file}:taking", device=device)


def test_a_size_that_takes_too_long_ends_the_search(file: Path) -> None:
    found = tuned(file, "hanging", limit_seconds=3)
    assert found.largest == 32
    assert outcomes(found)[64] == SLOW
    assert found.stopped == "a trial with 64 took longer than 3 s"


def test_no_size_above_the_most_is_tried_and_rounds_take_turns(file: Path) -> None:
    told: list[tuple[int, int, str]] = []
    found = tuned(file, "quick", most=100, num_rounds=2, watch=lambda *what: told.append(what))
    assert found.largest == 96
    assert found.stopped == "sizes above 96 were not tried"
    tried = [trial.batch_size for trial in found.trials]
    assert tried == [8, 16, 32, 64, 96, 96, 8, 16, 32, 64, 96]
    assert [number for number, _, _ in told] == list(range(len(tried)))
    assert all(total > number for number, total, _ in told)


def test_a_limit_below_one_sample_leaves_nothing(file: Path) -> None:
    found = tuned(file, "taking", memory_bytes=(machine.anonymous_bytes() or 0) // 100 + (20 << 20), start=4)
    assert found.largest is None or found.largest < 16
    with pytest.raises(ArgumentError, match="in use before the first step"):
        tuned(file, "taking", memory_bytes=1 << 20)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("no_step", r"no_step\(8\) returned int, expected a step\nhint: write `def make_sized_step\(batch_size\)"),
        (
            "no_argument",
            r"no_argument\(\) returned a step that cannot be called with a batch\nhint: write `def make_step",
        ),
        ("needs_a_batch", r"needs_a_batch\(8\) returned a step that needs a batch.*\nhint: .*`def make_loader"),
        ("needs_more", "needs_more cannot be called with a batch size alone"),
        (
            "with_its_loader",
            r"batch of 5 samples cannot be .*: it contains an array of shape \(6,\).*\nhint: .*make_sized_step",
        ),
        ("nothing", "has no 'nothing'"),
    ],
)
def test_what_makes_no_step_is_refused(file: Path, name: str, told: str) -> None:
    with pytest.raises(ArgumentError, match=told):
        tuned(file, name)


def test_a_step_that_is_given_its_batch_gets_the_loaders_first_in_every_size(file: Path) -> None:
    found = tuned(file, "on_a_batch", memory_bytes=300 << 20, most=512)
    assert found.num_repeated == 5
    assert found.largest in (64, 96, 128)  # a batch, and a copy of it
    assert {2**n for n in range(3, 7)} <= {one.batch_size for one in found.sizes() if one.fits}
    assert "batches repeat the 5 samples of the loader's first one" in " ".join(batch_remarks(found))
    assert tuned(file, "on_a_batch", loader=f"{file}:make_loader", most=8).largest == 8


def test_a_loader_beside_a_step_that_brings_its_own_batch_is_refused(file: Path) -> None:
    with pytest.raises(ArgumentError, match="takes a batch size, and .*make_loader would give batches of another"):
        tuned(file, "taking", loader=f"{file}:make_loader")


def test_sizes_and_margins_that_make_no_sense_are_refused(file: Path) -> None:
    with pytest.raises(ArgumentError, match="start and most must be positive, got 0 and 65536"):
        tuned(file, "taking", start=0)
    with pytest.raises(ArgumentError, match=r"margin must be from 0 to 0.9, got 1.5"):
        tuned(file, "taking", margin=1.5)


@pytest.mark.slow
def test_a_step_of_torchs_that_runs_out_of_memory_is_recovered_from(tmp_path: Path) -> None:
    (tmp_path / "training.py").write_text(
        "import torch\n"
        "torch.set_num_threads(1)\n"
        "def make_step(batch_size):\n"
        "    weights = torch.nn.Parameter(torch.ones(1 << 18))\n"
        "    optimizer = torch.optim.Adam([weights])\n"
        "    x = torch.ones(batch_size, 1 << 18)\n"  # a MiB for each sample, and as much again for the product
        "    def step():\n"
        "        optimizer.zero_grad()\n"
        "        (x * weights).mean().backward()\n"
        "        optimizer.step()\n"
        "    return step\n"
    )
    found = tuned(tmp_path / "training.py", "make_step", memory_bytes=500 << 20, start=64, most=256, num_verified=3)
    assert found.largest is not None
    assert found.largest % 32 == 0
    assert 64 <= found.largest < 256
    assert any("can't allocate memory" in str(one.error) for one in found.sizes())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_the_largest_that_fits_on_a_gpu_is_found(tmp_path: Path) -> None:
    (tmp_path / "training.py").write_text(
        "import torch\n"
        "def make_step(batch_size):\n"
        "    x = torch.ones(batch_size, 1 << 20, device='cuda')\n"  # 4 MiB for each sample, and as much for the sum
        "    return lambda: x + 1\n"
    )
    found = tune_batch(f"{tmp_path / 'training.py'}:make_step", memory_bytes=2 << 30, num_rounds=1)
    assert found.device.startswith("cuda")
    assert found.largest is not None
    assert 192 <= found.largest <= 256
    assert all(trial.outcome in (OK, OUT_OF_MEMORY) for trial in found.trials)


# ---------------------------------------------------------------- the record


def trial(size: int, seconds: float, **more: object) -> BatchTrial:
    return BatchTrial(batch_size=size, step_seconds=[seconds, seconds], **more)  # type: ignore[arg-type]


def test_the_knee_is_the_smallest_size_that_is_nearly_as_fast_as_any() -> None:
    trials = [trial(8, 0.08), trial(16, 0.09), trial(32, 0.1), trial(64, 0.2), trial(128, 0.39)]
    found = BatchTune(trials=trials, largest=128)
    assert found.knee == 32  # 320 of 328 samples per second
    assert [one.samples_per_second for one in found.sizes()] == pytest.approx([100, 177.8, 320, 320, 328.2], rel=1e-3)
    assert BatchTune(trials=[]).knee is None


@given(st.lists(st.tuples(st.integers(1, 4096).map(round_size), st.floats(1e-4, 10)), min_size=1, max_size=20))
def test_the_knee_is_within_five_percent_and_none_smaller_is(tried: list[tuple[int, float]]) -> None:
    found = BatchTune(trials=[trial(size, seconds) for size, seconds in tried], largest=4096)
    speeds = {one.batch_size: one.samples_per_second or 0.0 for one in found.sizes()}
    best = max(speeds.values())
    assert found.knee is not None
    assert speeds[found.knee] >= 0.95 * best
    assert all(speed < 0.95 * best for size, speed in speeds.items() if size < found.knee)


def test_a_size_that_failed_once_or_is_above_the_largest_does_not_count_as_fitting() -> None:
    failed = BatchTrial(batch_size=64, outcome=OUT_OF_MEMORY, error="no memory")
    found = BatchTune(trials=[trial(32, 0.1), trial(64, 0.1), failed, trial(96, 0.1)], largest=32)
    assert [(one.batch_size, one.fits) for one in found.sizes()] == [(32, True), (64, False), (96, False)]
    assert found.sizes()[1].error == "no memory"
    assert found.knee == 32


def test_a_record_comes_back_from_its_file_and_others_are_refused(tmp_path: Path) -> None:
    found = BatchTune(target="t", trials=[trial(8, 0.1)], largest=8, machine={"cores": 2})
    found.save(tmp_path / "batch.json")
    assert BatchTune.load(tmp_path / "batch.json") == found
    assert json.loads(found.as_json())["format"] == "stoker-batch"
    (tmp_path / "other.json").write_text('{"format": "stoker-train"}')
    with pytest.raises(ArgumentError, match="is not a record of batch sizes"):
        BatchTune.load(tmp_path / "other.json")
