"""The share of pictures that the device decodes: found by watching who is waited for, in pipelines of known costs."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from stoker.deliver.split import DecodeSplit


@dataclass
class Pipeline:
    """Workers that make batches ahead, a device that decodes a share of each, and a trainer, in simulated seconds."""

    cpu: float
    """For a batch whose pictures are all decoded by the workers."""
    read: float
    """For a batch whose pictures are only read."""
    device: float
    """For a batch whose pictures are all decoded by the device."""
    train: float
    burden: float = 0.0
    """What the training loses of the time for which the device decodes."""
    lag: int = 12
    depth: int = 2

    def run(self, split: DecodeSplit, num_batches: int, *, start: int = 0) -> list[float]:
        """Return when each batch is handed over."""
        split.begin()
        now = 0.0
        made: list[tuple[float, float]] = []
        decoded: list[float] = []
        handed: list[float] = []
        free_workers = free_device = 0.0
        for number in range(num_batches):
            began = now
            while len(made) < number + self.lag:  # as many are asked for as may be
                share = split.batch_hint()
                began_at = max(free_workers, handed[len(made) - self.lag] if len(made) >= self.lag else 0.0)
                free_workers = began_at + self.cpu * (1 - share) + self.read * share
                made.append((free_workers, share))
            is_late = len(decoded) <= number
            if is_late:
                now = max(now, made[number][0])
            while len(decoded) <= number + self.depth and len(decoded) < len(made) and made[len(decoded)][0] <= now:
                free_device = max(now, free_device) + self.device * made[len(decoded)][1]
                decoded.append(free_device)
            came = now
            now = max(now, decoded[number])
            split.note(
                now,
                for_workers=now - began if is_late else 0.0,
                for_device=0.0 if is_late else now - came,
                whole=self.device,
            )
            handed.append(now)
            now += self.train + self.burden * self.device * made[number][1]
        return handed

    def period(self, handed: list[float]) -> float:
        tail = handed[-100:]
        return (tail[-1] - tail[0]) / (len(tail) - 1)


PIPELINES = {
    "workers slow, device quick": Pipeline(cpu=0.100, read=0.004, device=0.020, train=0.030),
    "workers slow, device slow": Pipeline(cpu=0.100, read=0.004, device=0.100, train=0.030),
    "workers quick, device slow": Pipeline(cpu=0.020, read=0.004, device=0.100, train=0.030),
    "workers quick, device quick": Pipeline(cpu=0.020, read=0.004, device=0.020, train=0.030),
    "both quick, a burden": Pipeline(cpu=0.036, read=0.004, device=0.020, train=0.030, burden=0.5),
    "a trainer that is quicker than all": Pipeline(cpu=0.050, read=0.005, device=0.025, train=0.002),
    "many workers": Pipeline(cpu=0.060, read=0.003, device=0.022, train=0.037, burden=0.3, lag=34),
    "reading is slow too": Pipeline(cpu=0.080, read=0.060, device=0.020, train=0.030),
    "the device hardly can": Pipeline(cpu=0.050, read=0.004, device=1.000, train=0.030),
}


def best(pipeline: Pipeline) -> float:
    """Return the period of the best share, known in advance."""
    shares = [number / 1000 for number in range(1001)]
    return min(
        max(
            pipeline.cpu * (1 - share) + pipeline.read * share,
            pipeline.device * share,
            pipeline.train + pipeline.burden * pipeline.device * share,
        )
        for share in shares
    )


@pytest.mark.parametrize("num_cores", [1, 16, 200], ids=["one core", "16 cores", "200 cores"])
@pytest.mark.parametrize("pipeline", PIPELINES.values(), ids=PIPELINES)
def test_it_finds_a_share_with_which_batches_come_as_quickly_as_they_can(pipeline: Pipeline, num_cores: int) -> None:
    split = DecodeSplit(num_cores=num_cores)
    handed = pipeline.run(split, 6000)
    assert pipeline.period(handed) < 1.06 * best(pipeline), split


@pytest.mark.parametrize("pipeline", PIPELINES.values(), ids=PIPELINES)
def test_it_settles(pipeline: Pipeline) -> None:
    """After it was found, the share hardly changes any more."""
    split = DecodeSplit(num_cores=16)
    pipeline.run(split, 6000)
    shares = []
    for _ in range(20):
        pipeline.run(split, 100)
        shares.append(split.share)
    assert max(shares) - min(shares) <= 0.13


def test_it_soon_gives_up_a_share_that_is_far_off() -> None:
    pipeline = PIPELINES["workers slow, device quick"]
    split = DecodeSplit(num_cores=200)
    assert split.share < 0.2
    handed = pipeline.run(split, 300)
    assert pipeline.period(handed) < 1.1 * best(pipeline)


def test_the_device_is_left_alone_where_the_workers_can_do_it() -> None:
    pipeline = PIPELINES["workers quick, device quick"]
    split = DecodeSplit(num_cores=16)
    pipeline.run(split, 3000)
    assert split.share == 0


def test_short_epochs_teach_it_too() -> None:
    pipeline = PIPELINES["workers slow, device quick"]
    split = DecodeSplit(num_cores=200)
    for _ in range(100):
        handed = pipeline.run(split, 30)
    assert split.share > 0.6
    assert len(handed) == 30


def test_a_long_pause_counts_for_one_batch() -> None:
    split = DecodeSplit(num_cores=16)
    split.begin()
    before = split.share
    now = 0.0
    for number in range(40):
        now += 1000.0 if number == 20 else 0.030
        split.note(now, for_workers=0.015, for_device=0.0, whole=0.02)
    assert split.share > before


def test_it_tells_where_it_stands() -> None:
    split = DecodeSplit(num_cores=8)
    assert repr(split).startswith("<DecodeSplit: 40% decoded by the device; waited 0% of the time for workers")
    assert split.batch_hint() == split.share
