"""A loader and a trainer in virtual time: what a setting, or a autotuner, makes of given costs, cores and neighbors.

Work flows as a fluid: everything that wants a core gets an equal share of the cores there are, threads of one process
share its GIL, and what waits for a disk takes its time whatever else goes on.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from stoker.tuning.autotuner import Autotuner
from stoker.tuning.batch_window import BatchWindow, Observation
from stoker.tuning.parallelism import Parallelism

WAIT, LOCKED, FREE = range(3)
"""What a piece of work needs: time alone; a core and the GIL of its process; a core."""

TRAINER = -1
LANES = 2


@dataclass(frozen=True)
class World:
    """What a pipeline costs, in seconds."""

    cores: int = 8
    units: int = 8
    """Samples of a batch, or parts of them that are done by one thread."""
    wait: float = 0.0
    """Of one unit: time of the disk or the network."""
    locked: float = 0.0
    """Of one unit: Python."""
    free: float = 0.0
    """Of one unit: native code that lets go of the lock."""
    collate: float = 0.0
    launch: float = 0.001
    """Of the trainer's step: work on a core, in Python."""
    device: float = 0.0
    """Of the trainer's step: waiting for the accelerator."""
    others: float = 0.0
    """Cores that other programs want."""
    handover: float = 100e-6
    start: float = 0.03
    """How long a worker takes to be there."""
    spread: float = 0.0
    """Units differ: the deviation of the logarithm of what they cost."""
    rare: float = 0.0
    """So many units take twenty times as long."""
    seed: int = 0
    num_ahead: int = 1 << 30
    """Batches in flight that there is memory for."""

    @property
    def unit(self) -> float:
        """Seconds of one unit, undisturbed."""
        return self.wait + self.locked + self.free


class _Work:
    """Something under way."""

    __slots__ = ("batch", "left", "need", "owner", "phases", "then")

    def __init__(self, owner: int, phases: list[tuple[int, float]], batch: Any, then: Callable[[_Work], None]) -> None:
        self.owner, self.phases, self.batch, self.then = owner, phases, batch, then
        self.need, self.left = phases.pop()


class _Batch:
    __slots__ = ("made", "making", "num_units", "number", "units", "units_done")

    def __init__(self, number: int, units: list[list[tuple[int, float]]]) -> None:
        self.number, self.units, self.num_units, self.units_done = number, units, len(units), 0
        self.making = 0.0
        self.made = 0.0


@dataclass
class _Worker:
    number: int
    open: list[_Batch] = field(default_factory=list)
    num_busy: int = 0
    is_leaving: bool = False


class Pipeline:
    """Runs one loader and one trainer. `world` may be changed on the way."""

    def __init__(self, world: World, setting: Parallelism) -> None:
        self.world, self.setting = world, setting
        self.now = 0.0
        self._active: list[_Work] = []
        self._workers: dict[int, _Worker] = {}
        self._num_started = 0
        self._requests: deque[_Batch] = deque()
        self._done: dict[int, _Batch] = {}
        self._num_drawn = self._num_handed = 0
        self.used = self.delayed = 0.0
        """Core seconds that were used, and the trainer's waiting for a core."""
        self.timings: list[tuple[float, float, float, float]] = []
        """Asked, handed, made, making: of each batch."""
        self._has_to_resize_workers = False
        self._num_starting = 0
        self._resize_workers()

    # ------------------------------------------------------------ fluid

    def _advance(self, until: Callable[[], bool]) -> None:
        """Let work flow until something has come true."""
        while not until():
            assert self._active, "nothing is under way, and another process waits"
            rates = self._rates()
            soonest = min(work.left / rate for work, rate in zip(self._active, rates))
            self.now += soonest
            ended = []
            for work, rate in zip(self._active, rates):
                work.left -= soonest * rate
                if work.need != WAIT:
                    self.used += soonest * rate
                    if work.owner == TRAINER and work.batch is None:
                        self.delayed += soonest * (1 - rate)
                if work.left <= 1e-12:
                    ended.append(work)
            for work in ended:
                if work.phases:
                    work.need, work.left = work.phases.pop()
                    continue
                self._active.remove(work)
                work.then(work)

    def _rates(self) -> list[float]:
        holders: dict[int, int] = {}
        demand = self.world.others
        for work in self._active:
            if work.need == LOCKED:
                holders[work.owner] = holders.get(work.owner, 0) + 1
            elif work.need == FREE:
                demand += 1
        demand += len(holders)
        share = min(1.0, self.world.cores / demand) if demand else 1.0
        return [
            1.0 if work.need == WAIT else share if work.need == FREE else share / holders[work.owner]
            for work in self._active
        ]

    def _begin(self, owner: int, phases: list[tuple[int, float]], batch: Any, then: Callable[[_Work], None]) -> None:
        phases = [(need, seconds) for need, seconds in reversed(phases) if seconds > 0] or [(WAIT, 1e-9)]
        self._active.append(_Work(owner, phases, batch, then))

    def _units(self, batch: int, count: int) -> list[list[tuple[int, float]]]:
        """Return what units of a batch take: of the same batch the same, whatever asks and when."""
        world = self.world
        factors = [1.0] * count
        if world.spread or world.rare:
            chance = random.Random(world.seed * 1_000_003 + batch)
            for unit in range(count):
                if world.spread:
                    factors[unit] = chance.lognormvariate(-(world.spread**2) / 2, world.spread)
                if chance.random() < world.rare:
                    factors[unit] *= 20
        return [
            [(WAIT, world.wait * factor), (LOCKED, world.locked * factor), (FREE, world.free * factor)]
            for factor in factors
        ]

    # ------------------------------------------------------------ workers

    def resize(self, setting: Parallelism) -> None:
        """Go on with another setting; what is under way ends as it began."""
        was_inline, self.setting = self.setting.is_inline, setting
        if setting.is_inline:
            return  # the others run dry first: see `_next`
        if was_inline:
            self._has_to_resize_workers = True
        else:
            self._resize_workers()

    @property
    def is_starting(self) -> bool:
        """Whether workers are on their way."""
        return bool(self._num_starting) or self._has_to_resize_workers

    def _resize_workers(self) -> None:
        wanted = 0 if self.setting.is_inline else max(1, self.setting.num_workers)
        staying = [worker for worker in self._workers.values() if not worker.is_leaving]
        for worker in staying[wanted:]:
            worker.is_leaving = True
        for _ in range(wanted - len(staying) - self._num_starting):
            self._num_starting += 1
            number = self._num_started if self.setting.num_workers else TRAINER
            self._num_started += 1

            def there(work: _Work) -> None:
                self._num_starting -= 1
                self._workers[work.batch] = _Worker(work.batch)
                self._deal()

            self._begin(number, [(WAIT, self.world.start if self.setting.num_workers else 1e-6)], number, there)
        self._deal()

    def _fill(self) -> None:
        while self._num_drawn - self._num_handed < self.setting.num_in_flight:
            self._requests.append(_Batch(self._num_drawn, self._units(self._num_drawn, self.world.units)))
            self._num_drawn += 1
        self._deal()

    def _deal(self) -> None:
        """Give work to whatever is free."""
        num_threads = max(1, self.setting.num_threads)
        for worker in list(self._workers.values()):
            if worker.is_leaving and not worker.open:
                del self._workers[worker.number]
                continue
            while worker.num_busy < num_threads:
                batch = next((batch for batch in worker.open if batch.units), None)
                if batch is None:
                    lanes = 1 if num_threads == 1 else LANES
                    if worker.is_leaving or not self._requests or len(worker.open) >= lanes:
                        break
                    batch = self._requests.popleft()
                    worker.open.append(batch)
                self._claim(worker, batch, len(batch.units) if num_threads == 1 else 1)

    def _claim(self, worker: _Worker, batch: _Batch, count: int) -> None:
        worker.num_busy += 1
        began = self.now
        phases = [phase for unit in batch.units[:count] for phase in unit]
        del batch.units[:count]
        if count > 1:  # one thread does one thing after the other: the order does not matter
            phases = [(need, sum(s for other, s in phases if other == need)) for need in (WAIT, LOCKED, FREE)]

        def done(_: _Work) -> None:
            batch.making += self.now - began
            batch.units_done += count
            if batch.units_done < batch.num_units:
                worker.num_busy -= 1
                self._deal()
                return
            self._begin(worker.number, [(LOCKED, self.world.collate)], batch, lambda _: collated(self.now))

        def collated(_: float) -> None:
            batch.making += self.world.collate
            batch.made = self.now
            worker.open.remove(batch)
            worker.num_busy -= 1
            self._done[batch.number] = batch
            self._deal()

        self._begin(worker.number, phases, batch, done)

    # ------------------------------------------------------------ trainer

    def run(self, num_batches: int) -> None:
        """Train for so many batches."""
        for _ in range(num_batches):
            self._next()
            self._do([(LOCKED, self.world.launch), (WAIT, self.world.device)])

    def _do(self, phases: list[tuple[int, float]], batch: Any = None) -> None:
        over: list[bool] = []
        self._begin(TRAINER, phases, batch, lambda _: over.append(True))
        self._advance(lambda: bool(over))

    def _next(self) -> None:
        asked = self.now
        if self.setting.is_inline and self._num_drawn == self._num_handed:
            for worker in list(self._workers.values()):
                worker.is_leaving = True
            self._deal()
            units = self._units(self._num_drawn, self.world.units)
            self._do([phase for unit in units for phase in unit], "inline")
            self._do([(LOCKED, self.world.collate)], "inline")
            self._num_drawn += 1
            self._num_handed += 1
            self.timings.append((asked, self.now, self.now, self.now - asked))
            return
        if self._has_to_resize_workers:
            self._has_to_resize_workers = False
            self._resize_workers()
        self._fill()
        number = self._num_handed
        is_late = number not in self._done
        self._advance(lambda: number in self._done)
        batch = self._done.pop(number)
        self._num_handed += 1
        self._fill()
        latency = 50e-6 if is_late else 0.0
        self._do([(WAIT, latency), (LOCKED, self.world.handover)], "handover")
        self.timings.append((asked, self.now, batch.made, batch.making))


NUM_WARM = 60


def period_of(world: World, setting: Parallelism, *, num_batches: int = 120) -> float:
    """Return the seconds from batch to batch with a setting that stays."""
    pipeline = Pipeline(world, setting)
    pipeline.run(NUM_WARM)
    began = pipeline.now
    pipeline.run(num_batches)
    return (pipeline.now - began) / num_batches


@dataclass
class Flight:
    """What became of a autotuner's run."""

    autotuner: Autotuner
    pipeline: Pipeline
    settings: list[tuple[int, Parallelism]]
    """From which window on there was which."""
    decisions: list[str]
    seen: list[Observation]

    @property
    def num_changes(self) -> int:
        """How often the setting has changed."""
        return len(self.settings) - 1

    def changes_since(self, window: int) -> int:
        """Return how often it has, from a window on."""
        return sum(1 for at, _ in self.settings[1:] if at >= window)


def fly(
    world: World,
    autotuner: Autotuner,
    *,
    num_windows: int,
    changes: dict[int, dict[str, Any]] | None = None,
) -> Flight:
    """Let a autotuner have a pipeline; `changes` are those of the world, by the window from which on they hold."""
    pipeline = Pipeline(world, autotuner.setting)
    meter = BatchWindow(least_seconds=0.02)  # nothing disturbs the clock here
    meter.begin(autotuner.setting.num_in_flight + 2, num_in_flight=autotuner.setting.num_in_flight)
    flight = Flight(autotuner, pipeline, [(0, autotuner.setting)], [], [])
    before = (pipeline.now, 0.0, 0.0)
    changes = dict(changes or {})
    while len(flight.seen) < num_windows:
        number = len(flight.seen)
        if number in changes:
            pipeline.world = replace(pipeline.world, **changes.pop(number))
        pipeline.run(1)
        if pipeline.is_starting:
            meter.pause()
            continue
        if not meter.add(*pipeline.timings[-1]):
            if not meter.num_seen:
                before = (pipeline.now, pipeline.used, pipeline.delayed)
            continue
        seconds = pipeline.now - before[0]
        used = (pipeline.used - before[1]) / seconds + pipeline.world.others
        seen = meter.observation(
            cpu_share=min(1.0, used / pipeline.world.cores),
            delay_share=(pipeline.delayed - before[2]) / seconds,
            most_ahead=pipeline.world.num_ahead,
        )
        flight.seen.append(seen)
        was = autotuner.setting
        why = autotuner.observe(seen)
        if autotuner.setting != was:
            assert why is not None
            flight.decisions.append(f"{number}: {autotuner.setting}: {why}")
            flight.settings.append((number, autotuner.setting))
            pipeline.resize(autotuner.setting)
        passed = was.num_in_flight + autotuner.setting.num_in_flight + 2 if autotuner.setting != was else 0
        meter.begin(passed, num_in_flight=autotuner.setting.num_in_flight)
        before = (pipeline.now, pipeline.used, pipeline.delayed)
    return flight
