"""Borrowing the process-wide generators: `random`, `numpy.random` and `torch`.

Much code draws its augmentation from them. While a batch is made they are seeded from the batch, so that the batch is
the same wherever it is made; afterwards they are as the trainer left them.

This happens for every batch, so it has to take microseconds, and `random.getstate` alone takes eight. So it is
learned whether the trainer and the dataset use Python's and NumPy's generators at all, by looking at the words of
their state before and after (0.2 microseconds). What the trainer has not moved need not be saved again. What the
dataset has left alone for a while is no longer seeded, only watched; should it be used after all, that one batch is
made a second time, seeded.
"""

from __future__ import annotations

import ctypes
import os
import random
from collections.abc import Callable
from functools import cache, lru_cache
from threading import get_ident, main_thread
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.random import MT19937

R = TypeVar("R")
T = TypeVar("T")

TRUSTED_AFTER = 32
"""Batches that leave Python's and NumPy's generators alone before they are only watched."""

NUM_WORDS = 624
"""Words in the state of a Mersenne twister, which all three are."""

_main = main_thread().ident


def _see_main_thread() -> None:
    global _main
    _main = main_thread().ident


os.register_at_fork(after_in_child=_see_main_thread)  # whoever forked is the child's main thread

_python: Any = random.random.__self__  # type: ignore[attr-defined]  # the one behind the module's functions
_torch = torch.default_generator
_numpy: Any = np.random  # its stubs leave out what changes the generator
_get_numpy, _set_numpy, _seed_numpy = _numpy.get_bit_generator, _numpy.set_bit_generator, _numpy.seed


def _words_at(address: int) -> Callable[[], bytes]:
    """Return a function that reads a generator's words and index where they lie."""
    words: Any = (ctypes.c_uint32 * (NUM_WORDS + 1)).from_address(address)
    look: Callable[[], bytes] = np.frombuffer(words, dtype=np.uint32).tobytes
    return look


def _changing() -> bytes:
    """Stands in for words that cannot be seen: never twice the same, so that everything is saved and seeded."""
    global _num_changes
    _num_changes += 1
    return _num_changes.to_bytes(8)


_num_changes = 0


@cache  # where they lie is checked once: it takes 20 us
def _python_words() -> Callable[[], bytes]:
    """Return a look at Python's words. In CPython, index and words lie right behind the object's header."""
    if type(_python) is not random.Random:
        return _changing
    *words, index = _python.getstate()[1]
    look = _words_at(id(_python) + object.__basicsize__)
    return look if look() == np.array([index, *words], dtype=np.uint32).tobytes() else _changing


@lru_cache(maxsize=8)
def _numpy_words(generator: Any) -> Callable[[], bytes]:
    """Return a look at the words of a NumPy generator; where they lie is checked once for each."""
    if type(generator) is not MT19937:
        return _changing
    state: Any = generator.state["state"]
    look = _words_at(generator.ctypes.state_address)
    return look if look() == np.append(state["key"], np.uint32(state["pos"])).tobytes() else _changing


class _Trainer:
    """The trainer's Python and NumPy generators, as they were when last seen."""

    def __init__(self) -> None:
        self.look_at_python = _python_words()
        self.python_words = b""
        self.python_state: Any = None
        self.generator: Any = None
        self.look_at_numpy: Callable[[], bytes] = _changing
        self.numpy_words = b""
        self.numpy_state: Any = None
        self.has_pending = True

    def look(self) -> None:
        """See how both are, and save what has moved since the last time."""
        if self.is_as_seen() and not self.has_pending and _python.gauss_next is None:
            return
        self.python_words = self.look_at_python()
        self.python_state = _python.getstate()
        self.generator = _get_numpy()
        self.look_at_numpy = _numpy_words(self.generator)
        self.numpy_words = self.look_at_numpy()
        self.numpy_state = np.random.get_state(legacy=False)
        # Both keep the second of two normal numbers apart, and taking that one moves no word.
        self.has_pending = self.python_state[2] is not None or bool(self.numpy_state["has_gauss"])

    def restore(self) -> None:
        """Put both back as they were seen."""
        _python.setstate(self.python_state)
        if _get_numpy() is not self.generator:
            _set_numpy(self.generator)
            if self.numpy_state["has_gauss"]:
                np.random.set_state(self.numpy_state)
        else:
            np.random.set_state(self.numpy_state)

    def is_as_seen(self) -> bool:
        """Whether neither has moved."""
        return (
            self.look_at_python() == self.python_words
            and _get_numpy() is self.generator
            and self.look_at_numpy() == self.numpy_words
        )


_spares: list[MT19937] = []  # to stand in for the trainer's generator; making one takes 90 microseconds


class BorrowedGenerators:
    """The borrowing of one loader, which learns what its dataset uses."""

    def __init__(self, *, is_repeatable: bool) -> None:
        self.is_repeatable = is_repeatable
        """Whether a batch can be made a second time."""
        self.num_unused = 0
        self.trainer = _Trainer()
        self.is_out = False

    def __getstate__(self) -> dict[str, Any]:
        return {"is_repeatable": self.is_repeatable}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def run(self, make: Callable[[R], T], recipe: R, key: int, *, gives_back: bool = True) -> T:
        """Return make(recipe), with the three generators seeded from a 64-bit `key` while it runs.

        In a worker process, torch's need not be given back: nobody draws from it between two batches.
        """
        if get_ident() != _main:
            return make(recipe)  # the process's generators are the main thread's, which may be drawing right now
        if self.is_out:  # a batch is made while another one is, by its dataset
            return BorrowedGenerators(is_repeatable=False).run(make, recipe, key)
        self.is_out = True
        trainer = self.trainer
        torch_state = _torch.get_state() if gives_back else None
        try:
            trainer.look()
            if self.num_unused < TRUSTED_AFTER or trainer.has_pending:
                return self._run_seeded(make, recipe, key)
            _torch.manual_seed(key >> 1)
            try:
                made = make(recipe)
                if trainer.is_as_seen():
                    return made
            except Exception:
                if trainer.is_as_seen():
                    raise
            trainer.restore()
            return self._run_seeded(make, recipe, key)
        finally:
            if torch_state is not None:
                _torch.set_state(torch_state)
            self.is_out = False

    def _run_seeded(self, make: Callable[[R], T], recipe: R, key: int) -> T:
        trainer = self.trainer
        mine = _spares.pop() if _spares else MT19937()
        look_at_mine = _numpy_words(mine)
        try:
            _torch.manual_seed(key >> 1)
            _python.seed(key)
            _set_numpy(mine)
            _seed_numpy(key & 0xFFFFFFFF)
            before = trainer.look_at_python(), look_at_mine()
            made = make(recipe)
            is_unused = self.is_repeatable and before == (trainer.look_at_python(), look_at_mine())
            self.num_unused = self.num_unused + 1 if is_unused else 0
            return made
        finally:
            trainer.restore()
            _spares.append(mine)
