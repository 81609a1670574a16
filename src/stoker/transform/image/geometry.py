"""Which part of a picture, at which size: torchvision's transforms, drawn before anything is decoded.

Names, arguments, defaults, rounding and distributions are torchvision's; the random numbers are those of the sample
(`stoker.rng()`). Several in a row become one `View` where that gives the same pixels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from numpy.random import Generator

from stoker.errors import ArgumentError
from stoker.foundation.randomness import rng as sample_generator
from stoker.transform.image.arguments import check_filter, filling, four, is_one_side, numbers, pair, probability
from stoker.transform.image.forms import as_image, like, pillow
from stoker.transform.image.uniforms import Uniform, uniforms, whole_number
from stoker.transform.image.view import View, cut, inside, is_plain, whole

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_TRIES = 10
"""Crops tried by `RandomResizedCrop` before it takes the middle, as in torchvision."""


class Transform:
    """What changes a picture. Called by itself, it takes and returns a PIL image, an array or a tensor."""

    def __call__(self, picture: Any) -> Any:
        """Return the picture changed, in the form it came in, with the random numbers of the sample being read."""
        return like(picture, self.apply(as_image(picture), uniforms(sample_generator())))

    def apply(self, image: Image, uniform: Uniform) -> Image:
        """Return `image` changed."""
        raise NotImplementedError

    def __repr__(self) -> str:
        told = ", ".join(f"{name}={value!r}" for name, value in vars(self).items() if not name.startswith("_"))
        return f"{type(self).__name__}({told})"


class Geometric(Transform):
    """A transform that can be told from the size of a picture alone."""

    def refine(self, view: View, uniform: Uniform, /) -> View | None:
        """Return what becomes of a view.

        None, before any number is drawn, if it cannot be told as one view: it has to be done to the pixels of `view`.
        """
        raise NotImplementedError

    def resulting_size(self, size: tuple[int, int] | None, /) -> tuple[int, int] | None:
        """Return height and width of what comes of a picture of this size; None if they depend on the picture."""
        return size

    def draw(self, width: int, height: int, rng: Generator) -> View | None:
        """Return what becomes of a picture of this size; None where something has to be added around it."""
        return self.refine(whole(width, height), uniforms(rng))

    def apply(self, image: Image, uniform: Uniform) -> Image:
        """Return `image` cut, resized or mirrored, by Pillow."""
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
                f"max_size={max_size} beside size={size}",
                hint="max_size bounds the longer side where size is the shorter one, and is larger",
            )

    def refine(self, view: View, _: Uniform, /) -> View | None:
        """Return the view at another size, or None if it was resized already."""
        size = self._size_of(*view.size)
        if size == view.size:
            return view
        if not is_plain(view):
            return None
        return view._replace(size=size)

    def resulting_size(self, size: tuple[int, int] | None, /) -> tuple[int, int] | None:
        """Return height and width, if they are given, or those of what comes in are known."""
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
    """Cuts out the middle; a picture that is smaller gets black edges."""

    def __init__(self, size: int | Sequence[int]) -> None:
        self.size = pair("size", size)

    def refine(self, view: View, _: Uniform, /) -> View | None:
        """Return the middle of the view."""
        (height, width), (rows, columns) = self.size, view.size
        if width > columns or height > rows:
            return None
        return cut(view, round((columns - width) / 2), round((rows - height) / 2), width, height)

    def resulting_size(self, _: tuple[int, int] | None, /) -> tuple[int, int] | None:
        """Return height and width."""
        return self.size

    def apply(self, image: Image, uniform: Uniform) -> Image:
        """Return the middle of `image`."""
        height, width = self.size
        if width > image.width or height > image.height:
            left, top = (max(0, want - have) // 2 for want, have in ((width, image.width), (height, image.height)))
            image = image.crop((-left, -top, max(width, image.width) - left, max(height, image.height) - top))
        return super().apply(image, uniform)


class RandomCrop(Geometric):
    """Cuts out a part anywhere, of a picture with `padding` around it (one number, (across, down), or four)."""

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
                f"padding_mode={padding_mode!r} is not done here",
                hint="pass torchvision's own RandomCrop instead: transforms of others run unchanged",
            )

    def refine(self, view: View, uniform: Uniform, /) -> View | None:
        """Return a part of the view; None where there is padding."""
        (height, width), (rows, columns) = self.size, view.size
        if self.padding is not None or (self.pad_if_needed and (width > columns or height > rows)):
            return None
        if width > columns or height > rows:
            raise ValueError(
                f"a crop of {height} x {width} is larger than the picture, {rows} x {columns}\n"
                "hint: Resize first, or pass pad_if_needed=True"
            )
        top = whole_number(uniform, rows - height + 1)
        return cut(view, whole_number(uniform, columns - width + 1), top, width, height)

    def resulting_size(self, _: tuple[int, int] | None, /) -> tuple[int, int] | None:
        """Return height and width."""
        return self.size

    def apply(self, image: Image, uniform: Uniform) -> Image:
        """Return a part of `image` with padding around."""
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
    """Cuts out a part of random size (`scale`, of the picture's area) and shape (`ratio`), and resizes it."""

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
            raise ArgumentError(f"ratio={ratio!r} begins at 0", hint="give the narrowest shape, as width / height")
        self._logs = math.log(self.ratio[0]), math.log(self.ratio[1])

    def refine(self, view: View, uniform: Uniform, /) -> View | None:
        """Return a part of the view, or None if it was resized already."""
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
    """Mirrors left to right, with probability `p`."""

    def __init__(self, p: float = 0.5) -> None:
        self.p = probability(p)

    def refine(self, view: View, uniform: Uniform, /) -> View | None:
        """Return the view, mirrored or not."""
        if uniform() >= self.p:
            return view
        return view._replace(flip=not view.flip)


def seen(image: Image, view: View) -> Image:
    """Return what comes of a PIL image, with Pillow's pixels."""
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
    return image.transpose(image_module.Transpose.FLIP_LEFT_RIGHT) if view.flip else image


def colour(image: Image, fill: int | tuple[int, ...] | None) -> Any:
    """Return what Pillow is to be told to fill with: it takes one number for red alone, and means black by None."""
    return (fill,) * len(image.getbands()) if isinstance(fill, int) else fill


def _padded(image: Image, sides: tuple[int, int, int, int], fill: int | tuple[int, ...]) -> Image:
    left, top, right, bottom = sides
    if fill == 0:  # what lies outside is black
        return image.crop((-left, -top, image.width + right, image.height + bottom))
    size = image.width + left + right, image.height + top + bottom
    padded: Image = pillow().new(image.mode, size, colour(image, fill))
    padded.paste(image, (left, top))
    return padded
