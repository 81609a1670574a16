"""A sequence of transforms: geometric ones are drawn before decoding, the rest apply to pixels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any

from stoker.errors import ArgumentError
from stoker.transform.image.decoding import MODES, Data, Pixels, decode
from stoker.transform.image.forms import as_array, as_image
from stoker.transform.image.geometry import Geometric, Transform
from stoker.transform.image.uniforms import Uniform
from stoker.transform.image.view import View, is_plain, whole


class Pipeline:
    """The transforms of every image: first those that choose the region to decode, then the rest.

    Stoker's transforms are `Geometric` or other `Transform`s; any other callable counts as foreign.
    """

    def __init__(self, transform: Any = None) -> None:
        self.transforms = _listed(transform)
        head = 0
        while head < len(self.transforms) and isinstance(self.transforms[head], Geometric):
            head += 1
        self.head: tuple[Geometric, ...] = self.transforms[:head]
        """Transforms drawn before decoding."""
        self.tail: tuple[Any, ...] = _grouped(self.transforms[head:])
        """Transforms applied to pixels."""
        self.size: tuple[int, int] | None = None
        """Height and width of every result, if known."""
        self.is_ours = True
        """Whether results are pixels, rather than values returned by a foreign transform."""
        for step in (*self.head, *self.tail):
            self.is_ours = isinstance(step, Transform)
            if isinstance(step, Geometric):
                self.size = step.resulting_size(self.size)
            elif not self.is_ours:
                self.size = None

    def drawing(self, uniform: Uniform, *, exact: bool = False) -> Drawing:
        """Return an object that draws the view of one image."""
        return Drawing(self, uniform, exact=exact)

    def picture(
        self,
        data: Data,
        drawing: Drawing,
        *,
        out: Pixels | None = None,
        name: str | Callable[[], str] = "the image",
        mode: str = "RGB",
        **decoding: Any,
    ) -> Any:
        """Decode and transform an image. Return pixels [H, W, C], or the value of a foreign transform.

        Pixels are converted to the mode at the end, and are written to `out`, if given. `decoding` has more options of
        `decode`.
        """
        pixels = decode(
            data, drawing.view, out=lambda _: None if drawing.left else out, name=name, mode=mode, **decoding
        )
        if not drawing.left:
            return pixels
        found: Any = pixels
        uniform, dtype = drawing.uniform, MODES[mode].dtype
        for step in drawing.left:
            image = as_image(found, dtype)
            found = step.apply(image, uniform) if isinstance(step, Transform) else step.run(image, uniform)
        if not self.is_ours:
            return found
        image = as_image(found, dtype)
        pixels = as_array(image if image.mode == mode else image.convert(mode))
        if out is None:
            return pixels
        out[...] = pixels
        return out

    def __repr__(self) -> str:
        return f"[{', '.join(map(repr, self.transforms))}]"


class Drawing:
    """The view of one image, and the remaining transforms of its pixels.

    With `exact`, a view that was resized or flipped is not refined further, except by flipping: Pillow rounds boxes to
    24 bits, so resizing a part may differ by a level or two from cropping the resized image. Random numbers are drawn
    in the same order, for the same purposes.
    """

    __slots__ = ("_exact", "_pipeline", "_view", "left", "uniform")

    def __init__(self, pipeline: Pipeline, uniform: Uniform, *, exact: bool = False) -> None:
        self._pipeline, self.uniform, self._exact = pipeline, uniform, exact
        self._view: View | None = None
        self.left: Sequence[Any] = pipeline.tail
        """Transforms of the pixels of the view, available once the view is drawn."""

    def view(self, width: int, height: int) -> View:
        """Return the view for an image of this size: always the same one, once drawn."""
        if self._view is not None:
            return self._view
        view, uniform = whole(width, height), self.uniform
        for number, step in enumerate(self._pipeline.head):
            refined = None
            if not self._exact or step.keeps_pixels or (is_plain(view) and not any(view.flips)):
                refined = step.refine(view, uniform)
            if refined is None:
                self.left = (*self._pipeline.head[number:], *self._pipeline.tail)
                break
            view = refined
        self._view = view
        return view


def _listed(transform: Any) -> tuple[Any, ...]:
    if transform is None:
        return ()
    given = transform if isinstance(transform, list | tuple) else (transform,)
    listed = tuple(part for step in given for part in _taken_apart(step))
    for step in listed:
        if not callable(step):
            raise ArgumentError(
                f"expected a transform, got {step!r}", hint="pass a transform, a function, or a list of them, in order"
            )
        if isinstance(step, type):
            raise ArgumentError(f"{step.__name__} is a class", hint=f"call it: {step.__name__}(...)")
    return listed


def _taken_apart(step: Any) -> Iterable[Any]:
    """Return the steps of a `Compose` that contains Stoker transforms, which can then be drawn before decoding."""
    parts = getattr(step, "transforms", None)
    if type(step).__name__ == "Compose" and isinstance(parts, list | tuple):
        inner = [part for one in parts for part in _taken_apart(one)]
        if any(isinstance(part, Transform) for part in inner):
            return inner
    return (step,)


def _grouped(transforms: Iterable[Any]) -> tuple[Any, ...]:
    """Return the transforms, with adjacent foreign ones merged into one."""
    steps: list[Any] = []
    for is_ours, group in groupby(transforms, key=lambda step: isinstance(step, Transform)):
        if is_ours:
            steps += group
        else:
            from stoker.transform.image.foreign import Foreign

            steps.append(Foreign(list(group)))
    return tuple(steps)
