"""Borrowing the process-wide generators: `random`, `numpy.random` and `torch`.

Much code draws its augmentation from them. While a batch is made they are seeded from the batch, so that the batch is
the same wherever it is made; afterwards they are as the trainer left them. This happens once per batch, so it has to
take microseconds: `random.getstate` alone takes eight.
"""

from __future__ import annotations

import ctypes
import random
from typing import Any, Protocol

import numpy as np
import torch
from numpy.random import MT19937

_python = random.random.__self__  # type: ignore[attr-defined]  # the instance behind the module's functions
_torch = torch.default_generator
_spare_numpy: list[MT19937] = []

Borrowed = tuple[Any, Any, Any, MT19937, torch.Tensor]


class _PythonState(Protocol):
    """Taking and putting back the state of Python's generator."""

    def take(self) -> Any: ...

    def put(self, state: Any) -> None: ...


class _Public:
    """The slow way, open to every Python."""

    def take(self) -> Any:
        return _python.getstate()

    def put(self, state: Any) -> None:
        _python.setstate(state)


class _Direct:
    """CPython's generator is an index and 624 words behind the object's header; copying them takes 0.3 microseconds."""

    def __init__(self) -> None:
        address = id(_python) + object.__basicsize__
        self.words = np.frombuffer((ctypes.c_uint32 * 625).from_address(address), dtype=np.uint32)

    def take(self) -> Any:
        return self.words.copy()

    def put(self, state: Any) -> None:
        self.words[:] = state

    def is_right(self) -> bool:
        """Whether the words are what the public function says, before and after drawing."""
        before = _python.getstate()
        try:
            for _ in range(2):
                _, public, _ = _python.getstate()
                if self.words.tolist() != [public[-1], *public[:-1]]:
                    return False
                _python.random()
            return True
        finally:
            _python.setstate(before)


def _python_state() -> _PythonState:
    if hasattr(_python, "getstate") and type(_python) is random.Random:
        direct = _Direct()
        if direct.is_right():
            return direct
    return _Public()


_state = _python_state()


def borrow(key: int) -> Borrowed:
    """Seed the three generators from a 64-bit `key`; return what `give_back` needs to undo it.

    Each gets other bits of the key: they are the same algorithm, and equal seeds would give related numbers.
    """
    mine = _spare_numpy.pop() if _spare_numpy else MT19937()
    borrowed = (_state.take(), _python.gauss_next, np.random.get_bit_generator(), mine, _torch.get_state())
    np.random.set_bit_generator(mine)
    np.random.seed(key & 0xFFFFFFFF)
    _python.seed(key)
    _torch.manual_seed(key >> 1)
    return borrowed


def give_back(borrowed: Borrowed) -> None:
    """Put the three generators back as they were."""
    words, gauss_next, numpy_generator, mine, torch_state = borrowed
    _state.put(words)
    _python.gauss_next = gauss_next
    np.random.set_bit_generator(numpy_generator)
    _spare_numpy.append(mine)
    _torch.set_state(torch_state)
