"""Transforms of others: torchvision's, albumentations', any function. They run unchanged, on what they expect.

They draw from the process's own generators (`random`, `numpy.random`, `torch`), so these are seeded from the sample
around each call: the outcome is the same in every engine. Threads share these generators. In a worker process they
take turns; in the trainer's, where the main thread may be drawing at any time, only the main thread's are seeded.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import get_worker_info

from stoker.errors import ArgumentError
from stoker.foundation.randomness import in_sample
from stoker.transform.image.forms import as_array, as_image
from stoker.transform.image.uniforms import Uniform, key_from

if TYPE_CHECKING:
    from PIL.Image import Image

FORMS = ("image", "array", "tensor")

_turn = threading.RLock()
"""One foreign call at a time, in a process whose generators it draws from."""


def _free_turn() -> None:
    # A fork may happen while another thread has its turn; that thread is not in the child, and its turn never ends.
    global _turn
    _turn = threading.RLock()


os.register_at_fork(after_in_child=_free_turn)


class Apply:
    """A function of your own, on the form of picture that it takes.

    A function that is passed by itself gets a PIL image, as in torchvision's datasets. This one gets `form`: "image"
    (PIL), "array" (uint8 [H, W, C]) or "tensor" (uint8 [C, H, W]).
    """

    def __init__(self, function: Callable[[Any], Any], form: str = "array") -> None:
        if form not in FORMS:
            raise ArgumentError(f"form={form!r} is not known", hint=f"choose one of {', '.join(FORMS)}")
        self.function, self.form = function, form

    def __call__(self, picture: Any) -> Any:
        """Return what the function makes of a picture."""
        image = as_image(picture)
        if self.form == "image":
            return self.function(image)
        array = np.array(as_array(image))  # its own: it may be changed in place
        return self.function(array if self.form == "array" else torch.from_numpy(array).permute(2, 0, 1).contiguous())

    def __repr__(self) -> str:
        return f"Apply({self.function!r}, form={self.form!r})"


class Albumented:
    """A transform of albumentations, which takes and returns arrays by name."""

    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def __call__(self, picture: Any) -> Any:
        """Return what it makes of a picture."""
        return self.transform(image=np.array(as_array(as_image(picture))))["image"]

    def seed(self, key: int) -> None:
        """Seed the generators of its own, which it has from version 2 on."""
        if hasattr(self.transform, "set_random_seed"):
            self.transform.set_random_seed(key & 0x7FFFFFFF)

    def __repr__(self) -> str:
        return repr(self.transform)


class Foreign:
    """Some transforms of others, one after the other: the first gets a PIL image, each next what the last returned."""

    def __init__(self, functions: Sequence[Callable[[Any], Any]]) -> None:
        self.functions = [Albumented(function) if _is_albumentations(function) else function for function in functions]

    def run(self, image: Image, uniform: Uniform) -> Any:
        """Return what they make of `image`, with all generators seeded from the sample that is being read."""
        if not in_sample():  # nobody asked for a certain outcome: as it comes
            return self._run(image)
        key = key_from(uniform)
        if get_worker_info() is not None:
            with _turn:
                self._seed(key)
                return self._run(image)
        if threading.current_thread() is threading.main_thread():
            with _turn, _as_they_were():
                self._seed(key)
                return self._run(image)
        with _turn:
            self._seed(key, process_wide=False)
            return self._run(image)

    def _run(self, picture: Any) -> Any:
        for function in self.functions:
            picture = function(picture)
            if picture is None:
                raise ValueError(f"the transform {function!r} returned nothing\nhint: does it end with a `return`?")
        return picture

    def _seed(self, key: int, *, process_wide: bool = True) -> None:
        if process_wide:
            random.seed(key)
            np.random.seed(key & 0xFFFFFFFF)
            torch.default_generator.manual_seed(key)
        for function in self.functions:
            if isinstance(function, Albumented):
                function.seed(key)


@contextmanager
def _as_they_were() -> Iterator[None]:
    """Put the process's generators back at the end."""
    python, numpy, tensors = random.getstate(), np.random.get_state(legacy=False), torch.default_generator.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.default_generator.set_state(tensors)


def _is_albumentations(function: Any) -> bool:
    return any(kind.__module__.split(".")[0] == "albumentations" for kind in type(function).__mro__)
