"""Geometric transforms: which part of an image, at which size, drawn before decoding.

Names, arguments, defaults, rounding and distributions are torchvision's; random numbers come from the sample's
generator (`stoker.rng()`). Adjacent transforms are fused into one `View` where that gives the same pixels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from numpy.random import Generator

from stoker.errors import ArgumentError
from stoker.foundation.randomness import rng as sample_generator
from stoker.transform.image.forms import as_image, like, pillow
from stoker.transform.image.transform_arguments import (
    check_filter,
    filling,
    four,
    is_one_side,
    numbers,
    pair,
    probability,
)
from stoker.transform.image.uniforms import Uniform, uniforms, whole_number
from stoker.transform.image.view import View, cut, inside, is_plain, whole

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_TRIES = 10
"""Crops tried by `RandomResizedCrop` before it falls back to the center, as in torchvision."""


class Transform:
    """Base class of transforms. A direct call takes and returns a PIL image, an array or a tensor."""

    def __call__(self, picture: Any) -> Any:
        """Return the transformed image in its original form, with random numbers of the current sample."""
        return like(picture, self.apply(as_image(picture), uniforms(sample_generator())))

    def apply(self, image: Image, uniform: Uniform) -> Image:
        """Return the transformed `image`."""
        raise NotImplementedError

    def __repr__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in vars(self).items() if not name.startswith("_"))
        return f"{type(self).__name__}({arguments})"


class Geometric(Transform):
    """A transform that depends only on the size of an image.

    `refine` is all that decoding needs, on every path: fused with its neighbors, by Pillow, and on the GPU.
    """

    keeps_pixels = False
    """Whether it only moves pixels, and so may follow any other transform without a change of their values."""

    def refine(self, view: View, uniform: Uniform, /) -> View | None:
        """Return the view after this transform.

        Return None, before drawing any number, if that is not a single view: apply it to the pixels of `view` instead.
        """
        raise NotImplementedError

    def resulting_size(self, size: tuple[int, int] | None, /) -> tuple[int, int] | None:
        """Return height and width of the result for an image of this size; None if they depend on the image."""
        return size

    def draw(self, width: int, height: int, rng: Generator) -> View | None:
        """Return the view for an image of this size; None if it needs padding."""
        return self.refine(whole(width, height), uniforms(rng))

    def apply(self, image: Image, uniform: Uniform) -> Image:
        """Return `image` cropped, resized or flipped by Pillow."""
        view = self.refine(whole(image.width, image.height), uniform)
        assert view is not None
        return seen(image, view)


class Resize(Geometric):
    """Resizes: `size` is (height, width), or the length of the shorter side, the longer one at most `max_size`."""

    def __init__(
        self,
        size: int | Sequence[int],
        interpolation: Any = "bilinear",
        max_size: int | None = None,
        antialias: bool = True,
    ) -> None:
        check_filter(interpolation, antialias)
        sides = pair("size", size)
        self.size = sides[0] if is_one_side(size) else sides
        self.max_size = None if max_size is None else pair("max_size", max_size)[0]
        if self.max_size is not None and (not isinstance(self.size, int) or self.max_size <= self.size):
            raise ArgumentError(
                f"max_size={max_size} is invalid with size={size}",
                hint="max_size limits the longer side if size is one int, and must be larger than size",
            )

    def refine(self, view: View, _: Uniform, /) -> View | None:
        """Return the view at another size; None if it was already resized."""
        size = self._size_of(*view.size)
        if size == view.size:
            return view
        if not is_plain(view):
            return None
        return view._replace(size=size)

    def resulting_size(self, size: tuple[int, int] | None, /) -> tuple[int, int] | None:
        """Return height and width, if given or if the input size is known."""
        if isinstance(self.size, tuple):
            return self.size
        return None if size is None else self._size_of(*size)

    def _size_of(self, height: int, width: int) -> tuple[int, int]:
        if isinstance(self.size, tuple):
            return self.size
        short, long = (width, height) if width <= height else (height, width)
        new_short, new_long = self.size, int(self.size * long / short)
        if self.max_size is not None and new_long > self.max_size:
            new_short, new_long = max(1, int(self.max_size * new_short / new_long)), self.max_size
        return (new_long, new_short) if width <= height else (new_short, new_long)


class CenterCrop(Geometric):
    """Crops the center; smaller images are padded with black."""

    def __init__(self, size: int | Sequence[int]) -> None:
        self.size = pair("size", size)

    def refine(self, view: View, _: Uniform, /) -> View | None:
        """Return the center of the view."""
        (height, width), (rows, columns) = self.size, view.size
        if width > columns or height > rows:
            return None
        return cut(view, round((columns - width) / 2), round((rows - height) / 2), width, height)

    def resulting_size(self, _: tuple[int, int] | None, /) -> tuple[int, int] | None:
        """Return height and width."""
        return self.size

    def apply(self, image: Image, uniform: Uniform) -> Image:
        """Return the center of `image`."""
        height, width = self.size
        if width > image.width or height > image.height:
            left, top = (max(0, want - have) // 2 for want, have in ((width, image.width), (height, image.height)))
            image = image.crop((-left, -top, max(width, image.width) - left, max(height, image.height) - top))
        return super().apply(image, uniform)


class RandomCrop(Geometric):
    """Crops at a random place, after adding `padding` (one number, (horizontal, vertical), or four)."""

    def __init__(
        self,
        size: int | Sequence[int],
        padding: int | Sequence[int] | None = None,
        pad_if_needed: bool = False,
        fill: int | Sequence[int] = 0,
        padding_mode: str = "constant",
    ) -> None:
        self.size = pair("size", size)
        self.padding = None if padding is None else four("padding", padding)
        self.pad_if_needed = pad_if_needed
        self.fill = filling(fill)
        if padding_mode != "constant":
            raise ArgumentError(
                f"padding_mode={padding_mode!r} is not supported",
                hint="use torchvision's own RandomCrop instead, which runs unchanged",
            )

    def refine(self, view: View, uniform: Uniform, /) -> View | None:
        """Return a part of the view; None if there is padding."""
        (height, width), (rows, columns) = self.size, view.size
        if self.padding is not None or (self.pad_if_needed and (width > columns or height > rows)):
            return None
        if width > columns or height > rows:
            raise ValueError(
                f"a crop of {height} x {width} is larger than the image, {rows} x {columns}\n"
                "hint: Resize first, or pass pad_if_needed=True"
            )
        top = whole_number(uniform, rows - height + 1)
        return cut(view, whole_number(uniform, columns - width + 1), top, width, height)

    def resulting_size(self, _: tuple[int, int] | None, /) -> tuple[int, int] | None:
        """Return height and width."""
        return self.size

    def apply(self, image: Image, uniform: Uniform) -> Image:
        """Return a part of the padded `image`."""
        if self.padding is not None:
            image = _padded(image, self.padding, self.fill)
        if self.pad_if_needed:
            height, width = self.size
            if image.width < width:
                image = _padded(image, (width - image.width, 0, width - image.width, 0), self.fill)
            if image.height < height:
                image = _padded(image, (0, height - image.height, 0, height - image.height), self.fill)
        view = RandomCrop(self.size).refine(whole(image.width, image.height), uniform)
        assert view is not None
        return seen(image, view)


class RandomResizedCrop(Geometric):
    """Crops a random area (`scale`, relative to the image) and aspect ratio (`ratio`), and resizes it."""

    def __init__(
        self,
        size: int | Sequence[int],
        scale: Sequence[float] = (0.08, 1.0),
        ratio: Sequence[float] = (3.0 / 4.0, 4.0 / 3.0),
        interpolation: Any = "bilinear",
        antialias: bool = True,
    ) -> None:
        check_filter(interpolation, antialias)
        self.size = pair("size", size)
        self.scale, self.ratio = numbers("scale", scale, above=0), numbers("ratio", ratio, above=0)
        if not self.ratio[0]:
            raise ArgumentError(f"ratio must be above 0, got {ratio!r}", hint="pass (low, high) as width / height")
        self._logs = math.log(self.ratio[0]), math.log(self.ratio[1])

    def refine(self, view: View, uniform: Uniform, /) -> View | None:
        """Return a part of the view; None if it was already resized."""
        if not is_plain(view):
            return None
        rows, columns = view.size
        left, top, width, height = self._drawn(columns, rows, uniform)
        part = cut(view, left, top, width, height)
        return part._replace(size=self.size)

    def resulting_size(self, _: tuple[int, int] | None, /) -> tuple[int, int] | None:
        """Return height and width."""
        return self.size

    def _drawn(self, columns: int, rows: int, uniform: Uniform) -> tuple[int, int, int, int]:
        smallest, largest = self.scale
        area = rows * columns
        first, last = self._logs
        for _ in range(MAX_TRIES):
            part = area * (smallest + (largest - smallest) * uniform())
            ratio = math.exp(first + (last - first) * uniform())
            width, height = round(math.sqrt(part * ratio)), round(math.sqrt(part / ratio))
            if 0 < width <= columns and 0 < height <= rows:
                top = int(uniform() * (rows - height + 1))
                return int(uniform() * (columns - width + 1)), top, width, height
        width, height = columns, rows
        if columns / rows < self.ratio[0]:
            height = max(1, round(width / self.ratio[0]))
        elif columns / rows > self.ratio[1]:
            width = max(1, round(height * self.ratio[1]))
        return (columns - width) // 2, (rows - height) // 2, width, height


class RandomHorizontalFlip(Geometric):
    """Flips left to right with probability `p`."""

    keeps_pixels = True

    def __init__(self, p: float = 0.5) -> None:
        self.p = probability(p)

    def refine(self, view: View, uniform: Uniform, /) -> View | None:
        """Return the view, flipped or not."""
        rows, columns = view.flips
        return view._replace(flips=(rows, not columns)) if uniform() < self.p else view


class RandomVerticalFlip(Geometric):
    """Flips top to bottom with probability `p`."""

    keeps_pixels = True

    def __init__(self, p: float = 0.5) -> None:
        self.p = probability(p)

    def refine(self, view: View, uniform: Uniform, /) -> View | None:
        """Return the view, flipped or not."""
        rows, columns = view.flips
        return view._replace(flips=(not rows, columns)) if uniform() < self.p else view


def seen(image: Image, view: View) -> Image:
    """Apply a view to a PIL image, with Pillow's pixels."""
    image_module = pillow()
    if view.region != (0, 0, image.width, image.height):
        image = image.crop(view.region)
    if is_plain(view):
        left, top = view.box[0] - view.region[0], view.box[1] - view.region[1]
        height, width = view.size
        if (left, top, width, height) != (0, 0, image.width, image.height):
            image = image.crop((int(left), int(top), int(left) + width, int(top) + height))
    else:
        height, width = view.size
        image = image.resize((width, height), image_module.Resampling.BILINEAR, box=inside(view.region, view.box))
    ways = image_module.Transpose
    for is_flipped, way in zip(view.flips, (ways.FLIP_TOP_BOTTOM, ways.FLIP_LEFT_RIGHT)):
        image = image.transpose(way) if is_flipped else image
    return image


def pillow_fill(image: Image, fill: int | tuple[int, ...] | None) -> Any:
    """Return the fill argument for Pillow, which takes one number as red only, and None as black."""
    return (fill,) * len(image.getbands()) if isinstance(fill, int) else fill


def _padded(image: Image, sides: tuple[int, int, int, int], fill: int | tuple[int, ...]) -> Image:
    left, top, right, bottom = sides
    if fill == 0:  # Pillow fills with black
        return image.crop((-left, -top, image.width + right, image.height + bottom))
    size = image.width + left + right, image.height + top + bottom
    padded: Image = pillow().new(image.mode, size, pillow_fill(image, fill))
    padded.paste(image, (left, top))
    return padded
