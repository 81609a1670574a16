"""The last stages of building a batch: samples to a batch, this rank's part of it, page-locked memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stoker.batch.collate import plain_collate
from stoker.batch.memory import BatchSlot, placed
from stoker.batch.misfit import explain
from stoker.errors import EarlyStop, NothingCollated, StokerError
from stoker.foundation.randomness import reading_in_epoch
from stoker.plan import Recipe


class Collation:
    """Turns the samples of a recipe into the batch that the training loop gets."""

    def __init__(
        self,
        collate_fn: Callable[[Any], Any] | None,
        *,
        is_batched: bool,
        pin: Callable[[Any], Any] | None = None,
        check: Callable[[Recipe, list[Any]], None] | None = None,
        part: Callable[[Any], Any] | None = None,
    ) -> None:
        self.collate_fn, self.is_batched, self.pin = collate_fn, is_batched, pin
        self._part = part
        """Takes this rank's part of every sequence, where ranks share a batch."""
        self._is_complete = part is None and pin is None
        self._check = check if collate_fn is None and is_batched else None
        """Refuses samples of several datasets that do not go together."""
        self._collate: Callable[[Any], Any] | None = None
        self.is_ours = collate_fn is None and is_batched
        """Batches are put together here, so that the dataset may do it itself."""
        # A collate_fn may keep what it makes, and must not find it changed later; of sequences that are split, the slot
        # does not need what other ranks have.
        self.uses_slot = collate_fn is None and part is None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "pin": None, "_is_complete": self._part is None, "_collate": None}  # workers never pin

    def collate(self, recipe: Recipe, samples: list[Any], slot: BatchSlot | None = None) -> Any:
        """Return the batch of `samples`, collated straight into the slot if there is one."""
        if slot is not None and self.uses_slot:
            with placed(slot.take):
                return self.collate(recipe, samples)
        collate = self._collate
        if collate is None:
            self._collate = collate = self.collate_fn or plain_collate()
        try:
            if self._check is not None:
                self._check(recipe, samples)
            if self.collate_fn is None:
                batch = collate(samples if self.is_batched else samples[0])
            else:
                with reading_in_epoch(recipe.epoch):
                    batch = collate(samples if self.is_batched else samples[0])
        except StopIteration as error:
            raise noted(EarlyStop("the collate function"), f"while collating {describe_recipe(recipe)}") from error
        except Exception as error:
            if self.is_ours and not isinstance(error, StokerError):
                positions = positions_of(recipe)
                explain(error, samples, lambda row: f"position {positions[row]}")
            noted(error, f"while collating {describe_recipe(recipe)}")
            raise
        if batch is None and self.collate_fn is not None:
            raise NothingCollated(getattr(self.collate_fn, "__qualname__", repr(self.collate_fn)), step=recipe.step)
        return batch if self._is_complete else self.complete(recipe, batch)

    def complete(self, recipe: Recipe, batch: Any) -> Any:
        """Return a whole batch as this rank gets it: its part of the sequences, in page-locked memory if asked for."""
        if self._part is not None:
            try:
                batch = self._part(batch)
            except Exception as error:
                noted(error, f"while splitting the sequences of {describe_recipe(recipe)}")
                raise
        return batch if self.pin is None else self.pin(batch)


def positions_of(recipe: Recipe) -> list[Any]:
    """Return the positions of a recipe, as Python's own numbers, or whatever else a sampler uses."""
    positions: Any = recipe.positions
    return positions if isinstance(positions, list) else positions.tolist()


def describe_recipe(recipe: Recipe, most: int = 8) -> str:
    """Return the positions of a recipe, up to `most` of them, with its step and epoch, for errors."""
    positions = positions_of(recipe)
    shown = ", ".join(map(str, positions[:most]))
    more = ", ..." if len(positions) > most else ""
    return f"positions {shown}{more}, step {recipe.step}, epoch {recipe.epoch}"


def noted(error: Exception, where: str) -> Exception:
    """Add a note to an error that says where it was raised, and return it."""
    error.add_note(f"raised {where}")
    return error
