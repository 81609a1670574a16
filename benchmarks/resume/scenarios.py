"""When runs are stopped, and how they go on."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from itertools import pairwise

from benchmarks.resume.jobs import NUM_EPOCHS, NUM_SAMPLES, SAVE_EVERY, Shape

STEPS = NUM_SAMPLES // Shape(0).batch_size
"""In an epoch."""

ONE = Shape(num_workers=2)
TWO = Shape(num_workers=2, num_ranks=2)


@dataclass(frozen=True, slots=True)
class Part:
    """One process of a run, or one process for each rank: how it is started, and when it is killed."""

    shape: Shape
    saved_at: int | None = None
    """The step behind which the last checkpoint is written, counted from the run's beginning."""
    stopped_at: int | None = None
    """The step behind which the process is killed."""
    saved_after: int | None = None
    """Instead: the epoch behind whose loop the checkpoint is written, and the process killed."""

    def as_one_stream(self) -> Part:
        """Return the same for a loader that has no loop for each epoch."""
        if self.saved_after is None:
            return self
        step = (self.saved_after + 1) * STEPS
        return Part(self.shape, saved_at=step, stopped_at=step)


Run = tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Scenario:
    """A way to stop and resume, and the runs in which it is tried."""

    name: str
    runs: tuple[Run, ...]
    is_distributed: bool = False
    """Whether the script is written for several ranks."""

    @property
    def shape(self) -> Shape:
        """How the runs start."""
        return self.runs[0][0].shape


RANDOM, TWICE, LAST, BETWEEN = "random step", "twice", "epoch's last step", "between epochs"
FROM_NONE, WORKERS = "0 to 2 workers", "2 to 4 workers"
RANKS, FEWER, MORE = "2 ranks", "2 ranks to 1", "1 rank to 2"


def scenarios(*, is_quick: bool) -> tuple[Scenario, ...]:
    """Return what all contenders go through. The steps are drawn, from a fixed seed."""
    draw = random.Random(1)
    found = (
        Scenario(RANDOM, tuple(_resumed(draw, (ONE, ONE)) for _ in range(5))),
        Scenario(TWICE, (_resumed(draw, (ONE, ONE, ONE), epochs=(1,)), _resumed(draw, (ONE, ONE, ONE), epochs=(0, 2)))),
        Scenario(LAST, tuple((Part(ONE, saved_at=step, stopped_at=step), Part(ONE)) for step in (STEPS, 2 * STEPS))),
        Scenario(BETWEEN, tuple((Part(ONE, saved_after=epoch), Part(ONE)) for epoch in (0, 1))),
        Scenario(FROM_NONE, tuple(_resumed(draw, (replace(ONE, num_workers=0), ONE)) for _ in range(2))),
        Scenario(WORKERS, tuple(_resumed(draw, (ONE, replace(ONE, num_workers=4))) for _ in range(2))),
        Scenario(RANKS, tuple(_resumed(draw, (TWO, TWO)) for _ in range(2)), is_distributed=True),
        Scenario(FEWER, tuple(_resumed(draw, (TWO, ONE)) for _ in range(2)), is_distributed=True),
        Scenario(MORE, tuple(_resumed(draw, (ONE, TWO)) for _ in range(2)), is_distributed=True),
    )
    return tuple(replace(found[0], runs=found[0].runs[:1]) for _ in range(1)) if is_quick else found


def _resumed(draw: random.Random, shapes: tuple[Shape, ...], epochs: tuple[int, ...] = tuple(range(NUM_EPOCHS))) -> Run:
    """Return a run that is killed once for each shape but the last, up to four steps behind a checkpoint."""
    steps = [epoch * STEPS + step for epoch in epochs for step in range(SAVE_EVERY, STEPS - SAVE_EVERY)]
    while True:
        saved = sorted(draw.sample(steps, len(shapes) - 1))
        if all(later - earlier > 2 * SAVE_EVERY for earlier, later in pairwise(saved)):
            break
    stopped = [Part(shape, saved_at=at, stopped_at=at + draw.randrange(SAVE_EVERY)) for shape, at in zip(shapes, saved)]
    return (*stopped, Part(shapes[-1]))
