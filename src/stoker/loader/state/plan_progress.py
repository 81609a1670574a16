"""The place in a plan: a step, and a digest of what was served."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from stoker.batch.result import BatchResult
from stoker.errors import StateError, StateMismatch
from stoker.loader.state.progress import VERSION, differing
from stoker.plan import Origin, Plan, Recipe
from stoker.plan.mixing import MASK


class PlanProgress:
    """How far an iteration of a plan is."""

    def __init__(self, plan: Plan, epoch: int, *, rank: int, num_ranks: int, in_order: bool = True) -> None:
        self.plan, self.epoch, self.rank, self.num_ranks, self.in_order = plan, epoch, rank, num_ranks, in_order
        self.step = plan.first_step(epoch)
        self.last: Recipe | None = None
        self.digest = 0
        self.since = (epoch, 0)
        self.ahead: set[int] = set()
        """Steps that were yielded before an earlier one, with in_order=False."""
        self._constant: dict[str, Any] | None = None

    def go_on_from(self, previous: PlanProgress) -> None:
        """Count on from the iteration before this one."""
        self.digest, self.since = previous.digest, previous.since

    def recipes(self) -> Iterator[Recipe]:
        """Yield what is to be made from here to the end of the epoch."""
        if self.step >= self._end:
            return iter(())
        recipes = self.plan.recipes(self.step, self.rank, self.num_ranks)
        if not self.ahead:
            return recipes
        done = frozenset(self.ahead)
        return (recipe for recipe in recipes if recipe.step not in done)

    def advance(self, made: BatchResult) -> None:
        """Note that a batch was handed over."""
        recipe = made.recipe
        self.last = recipe
        self.digest = (self.digest + recipe.digest) & MASK  # `added`, without the call: this runs for every batch
        if self.in_order:
            self.step = recipe.step + 1
            return
        self.ahead.add(recipe.step)
        while self.step in self.ahead or (self.step < self._end and self.plan.is_skipped(self.step)):
            self.ahead.discard(self.step)
            self.step += 1

    def finish(self) -> None:
        """Note that the epoch is over: the next one begins."""
        self.epoch += 1
        self.step = self.plan.first_step(self.epoch)
        self.ahead.clear()

    @property
    def is_at_start(self) -> bool:
        """Whether nothing of the epoch is behind us."""
        return not self.ahead and not self.ordinal

    @property
    def is_at_end(self) -> bool:
        """Whether nothing of the epoch is to come."""
        return all(map(self.plan.is_skipped, range(self.step, self._end)))

    def skip_first(self, num_batches: int) -> int:
        """Pass over so many batches of the epoch, from its beginning; return how many are yet to be drawn for that."""
        step, end = self.plan.first_step(self.epoch), self._end
        while num_batches and step < end:
            num_batches -= not self.plan.is_skipped(step)
            step += 1
        self.step = step
        self.begin_digest()
        return 0

    def begin_digest(self) -> None:
        """Let the digest begin here."""
        self.digest, self.since = 0, (self.epoch, self.ordinal)

    @property
    def _end(self) -> int:
        return self.plan.first_step(self.epoch) + self.plan.steps_in(self.epoch)

    @property
    def ordinal(self) -> int:
        """Slots of this epoch that are behind us, over all ranks."""
        begin = self.plan.origin.ordinal if self.epoch == self.plan.origin.epoch else 0
        steps = self.step - self.plan.first_step(self.epoch)
        return min(begin + steps * self.plan.batch_size, self.plan.num_samples)

    def state(self) -> dict[str, Any]:
        """Return where this is."""
        plan = self.plan
        if self._constant is None:
            self._constant = {
                "version": VERSION,
                "kind": "plan",
                "plan": plan.identity(),
                "batch_size": plan.batch_size,
                "origin": list(plan.origin),
                "skip": [list(steps) for steps in plan.skip],
                "rank": self.rank,
                "num_ranks": self.num_ranks,
            }
        return self._constant | {
            "epoch": self.epoch,
            "step": self.step,
            "position": self.ordinal,
            "digest": f"{self.digest:016x}",
            "digest_since": list(self.since),
            "ahead": sorted(self.ahead),
        }

    def take_up(self) -> None:
        """Do nothing: what is read follows from the place alone."""

    def resumed(self, state: dict[str, Any]) -> PlanProgress:
        """Return the place in `state`, in a plan of this batch size for this rank.

        The epochs of a mixture may have become longer or shorter, the state's epoch too, from there on; so may those of
        a corpus that has grown, from the beginning of an epoch on.
        """
        differences = differing(state["plan"], self.plan.identity())
        num_samples = self.plan.num_samples
        if ("mixture" in state or "has_grown" in state) and "num_samples" in differences:
            num_samples, _ = differences.pop("num_samples")
        if "drop" not in differences.get("tail", ("drop",)):
            del differences["tail"]  # padding only fills up the last batch of an epoch
        if differences:
            raise StateMismatch(differences)
        skip = tuple((int(first), int(stop)) for first, stop in state["skip"])
        old = replace(
            self.plan,
            num_samples=num_samples,
            batch_size=state["batch_size"],
            origin=Origin(*state["origin"]),
            skip=skip,
        )
        epoch, step = int(state["epoch"]), int(state["step"])
        if not 0 <= step - old.first_step(epoch) <= old.steps_in(epoch):
            raise ValueError(f"step {step} is not in epoch {epoch}")
        plan = old
        same_ranks = (state["rank"], state["num_ranks"]) == (self.rank, self.num_ranks)
        if old.batch_size != self.plan.batch_size:
            plan = old.rebatched(self.plan.batch_size, Origin(epoch, int(state["position"]), step))
        if old.num_samples != self.plan.num_samples:
            plan = replace(plan, num_samples=self.plan.num_samples, origin=Origin(epoch, int(state["position"]), step))
        if state["ahead"] and (plan is not old or not same_ranks):
            raise StateError(
                "the state was taken with in_order=False while later batches had overtaken earlier ones, "
                "so it only fits the same batch size and number of ranks\n"
                "hint: resume as before, or save states with in_order=True"
            )
        # A range in a script that the state knows already, in the numbers of its own batch size, is not skipped again.
        for first, stop in self.plan.skip:
            if not all(map(old.is_skipped, (first, stop - 1))):
                plan = plan.skipping(first, stop)
        progress = PlanProgress(plan, epoch, rank=self.rank, num_ranks=self.num_ranks, in_order=self.in_order)
        progress.step = step
        if progress.ordinal != state["position"]:
            raise ValueError(f"step {step} is not at position {state['position']}")
        progress.ahead = set(state["ahead"])
        if same_ranks:  # a digest counts one rank's samples, so with other ranks it begins anew
            first_epoch, first_ordinal = state["digest_since"]
            progress.digest, progress.since = int(state["digest"], 16), (first_epoch, first_ordinal)
        else:
            progress.since = (epoch, progress.ordinal)
        return progress
