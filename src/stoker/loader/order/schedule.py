"""Which plan a loader follows, with which seed, and which epoch comes next."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from stoker.loader.arguments import Arguments
from stoker.loader.checks import length_of
from stoker.loader.sharing.placement import RankPlacement
from stoker.plan import Layout, Order, Origin, Plan, Sequential, Shuffle, Tail, order_named


class Schedule:
    """What a loader and its sampler share. Holds the dataset and never the loader, so that neither keeps the other."""

    def __init__(self, arguments: Arguments, placement: RankPlacement) -> None:
        order, tail = arguments.order, arguments.tail
        self.dataset, self.skip = arguments.dataset, arguments.skip
        self.order: Order = order_named(
            order if order is not None else Shuffle() if arguments.shuffle else Sequential()
        )
        self.tail: Tail = tail or ("drop" if arguments.drop_last else "keep")
        self.batch_size = arguments.batch_size or 1
        self.placement = placement
        self.drawn_seed = arguments.seed
        self.generator = arguments.generator
        self.is_seed_drawn = False
        """Whether the seed is one that a restarted program may not draw again."""
        self.layout: Layout = "interleaved"
        self.next_epoch = 0
        self._plan: Plan | None = None

    @property
    def rank(self) -> int:
        """Which share of each batch this process reads."""
        return self.placement.rank

    @property
    def num_ranks(self) -> int:
        """How many shares each batch has."""
        return self.placement.num_ranks

    @property
    def seed(self) -> int:
        """The seed; without one of the user's it is drawn when first needed."""
        if self.drawn_seed is None:
            self.is_seed_drawn = self.draws_seed
            self.drawn_seed = self.draw() if self.is_seed_drawn else 0
        return self.drawn_seed

    @property
    def draws_seed(self) -> bool:
        """Whether a seed is drawn where the user gave none. Ranks must agree, and torch's own generators need not."""
        return self.generator is not None or not self.placement.is_set

    def draw(self) -> int:
        """Draw a seed as torch's loader does at the start of an iteration."""
        return int(torch.empty((), dtype=torch.int64).random_(generator=self.generator).item())

    @property
    def plan(self) -> Plan:
        """The plan; a new one from the next epoch on, if the dataset has changed its length."""
        num_samples = length_of(self.dataset)
        if self._plan is None or self._plan.num_samples != num_samples:
            origin = Origin()
            if self._plan is not None:
                origin = Origin(self.next_epoch, 0, self._plan.first_step(self.next_epoch))
            self._plan = self.planned(num_samples, seed=self.seed, origin=origin)
        return self._plan

    def planned(self, num_samples: int, *, seed: int, origin: Origin | None = None) -> Plan:
        """Return the plan for so many samples."""
        return Plan(
            num_samples=num_samples,
            batch_size=self.batch_size * self.num_ranks,
            order=self.order,
            seed=seed,
            tail=self.tail,
            skip=self.skip,
            origin=origin or Origin(),
            layout=self.layout,
        )

    def plan_for(self, epoch: int) -> Plan:
        """Return the plan that holds `epoch` from its beginning on."""
        plan = self.plan
        if (epoch, 0) < plan.origin[:2]:  # back to before a change of batch size: count from the beginning
            plan = self._plan = replace(plan, origin=Origin())
        return plan

    @property
    def following(self) -> tuple[Plan | None, int | None]:
        """The plan and the seed, as far as they are known yet."""
        return self._plan, self.drawn_seed

    def follow(self, plan: Plan | None, seed: int | None) -> None:
        """Go on with another plan and seed, such as those of a state; None for what is yet to be made."""
        self._plan, self.drawn_seed = plan, seed

    def length_of_share(self) -> int:
        """Return how many samples this rank reads in a whole epoch, padding included."""
        plan = replace(self.planned(length_of(self.dataset), seed=0), skip=())
        full, rest = divmod(plan.num_samples, plan.batch_size)
        length = full * self.batch_size
        if rest and self.tail != "drop":
            length += len(plan.recipe(full, self.rank, self.num_ranks).positions)
        return length

    def positions(self, epoch: int) -> Iterator[int]:
        """Yield what this rank reads in `epoch`, from its beginning to its end."""
        plan = self.plan_for(epoch)
        if plan.steps_in(epoch):
            for recipe in plan.recipes(plan.first_step(epoch), self.rank, self.num_ranks):
                yield from recipe.positions.tolist()
