"""Run transforms of other libraries (torchvision, albumentations, any function) on the inputs they expect.

They draw from process-wide generators (`random`, `numpy.random`, `torch`), so these are seeded from the sample around
each call, and results are the same in every engine. Threads share these generators. In a worker process threads take
turns; in the training process, where the main thread may draw at any time, seeding happens only in the main thread.
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

from stoker.foundation.randomness import in_sample
from stoker.transform.image.forms import as_array, as_image
from stoker.transform.image.uniforms import Uniform, key_from

if TYPE_CHECKING:
    from PIL.Image import Image

_turn = threading.RLock()
"""Lock: one foreign call at a time, because it uses process-wide generators."""


def _free_turn() -> None:
    # A fork may happen while another thread holds the lock; the child has no such thread to release it.
    global _turn
    _turn = threading.RLock()


os.register_at_fork(after_in_child=_free_turn)


class Albumented:
    """Wrapper of an albumentations transform, which takes and returns arrays by name."""

    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def __call__(self, picture: Any) -> Any:
        """Return the transformed image."""
        return self.transform(image=np.array(as_array(as_image(picture))))["image"]

    def seed(self, key: int) -> None:
        """Seed the transform's own generators (albumentations 2 and later)."""
        if hasattr(self.transform, "set_random_seed"):
            self.transform.set_random_seed(key & 0x7FFFFFFF)

    def __repr__(self) -> str:
        return repr(self.transform)


class Foreign:
    """A chain of foreign transforms: the first gets a PIL image, each next one the previous result."""

    def __init__(self, functions: Sequence[Callable[[Any], Any]]) -> None:
        self.functions = [Albumented(function) if _is_albumentations(function) else function for function in functions]

    def run(self, image: Image, uniform: Uniform) -> Any:
        """Return the transformed `image`, with all generators seeded from the current sample."""
        if not in_sample():  # outside of a sample: no seeding
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
                raise ValueError(
                    f"the transform {function!r} returned None\nhint: did it forget to `return` the image?"
                )
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
    """Restore the process-wide generators at the end."""
    python, numpy, tensors = random.getstate(), np.random.get_state(legacy=False), torch.default_generator.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.default_generator.set_state(tensors)


def _is_albumentations(function: Any) -> bool:
    return any(kind.__module__.split(".")[0] == "albumentations" for kind in type(function).__mro__)
