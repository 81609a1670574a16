"""RandAugment: a few random geometric or color operations of the same magnitude (Cubuk et al., 2019).

Operations, magnitudes and probabilities are torchvision's, with the pixels it gives on PIL images.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stoker.errors import ArgumentError
from stoker.transform.image.color import blended, brightened, contrasted, saturated
from stoker.transform.image.forms import pillow
from stoker.transform.image.geometry import Transform, pillow_fill
from stoker.transform.image.transform_arguments import filling
from stoker.transform.image.uniforms import Uniform, whole_number

if TYPE_CHECKING:
    from PIL.Image import Image


class RandAugment(Transform):
    """Applies `num_ops` random operations in sequence, each one of fourteen, with strength `magnitude` out of
    `num_magnitude_bins`.
    """

    def __init__(
        self,
        num_ops: int = 2,
        magnitude: int = 9,
        num_magnitude_bins: int = 31,
        interpolation: Any = "nearest",
        fill: int | Sequence[int] | None = None,
    ) -> None:
        if getattr(interpolation, "value", interpolation) not in ("nearest", 0):
            raise ArgumentError(
                f"interpolation={interpolation!r} is not supported",
                hint="use torchvision's own RandAugment instead, which runs unchanged",
            )
        counts = num_ops, magnitude, num_magnitude_bins
        if not all(isinstance(count, int) for count in counts) or num_ops < 0 or not 0 <= magnitude < counts[2]:
            raise ArgumentError(
                f"num_ops={num_ops}, magnitude={magnitude} of num_magnitude_bins={num_magnitude_bins}",
                hint="magnitude must be a bin index, from 0 to num_magnitude_bins - 1",
            )
        self.num_ops, self.magnitude, self.num_magnitude_bins = num_ops, magnitude, num_magnitude_bins
        self.fill = None if fill is None else filling(fill)

    def apply(self, image: Image, uniform: Uniform) -> Image:
        """Return `image` after random operations."""
        strength = self.magnitude / max(1, self.num_magnitude_bins - 1)
        for _ in range(self.num_ops):
            name, is_signed = CHANGES[whole_number(uniform, len(CHANGES))]
            sign = -1 if is_signed and uniform() < 0.5 else 1
            image = changed(image, name, sign * strength, self.fill)
        return image


CHANGES = (
    ("Identity", False),
    ("ShearX", True),
    ("ShearY", True),
    ("TranslateX", True),
    ("TranslateY", True),
    ("Rotate", True),
    ("Brightness", True),
    ("Color", True),
    ("Contrast", True),
    ("Sharpness", True),
    ("Posterize", False),
    ("Solarize", False),
    ("AutoContrast", False),
    ("Equalize", False),
)
"""The operations, and whether their sign is random."""


def changed(image: Image, name: str, strength: float, fill: int | tuple[int, ...] | None = None) -> Image:
    """Apply one of `CHANGES` to a PIL image, with maximum strength at 1, and the opposite direction at -1."""
    from PIL import ImageFilter, ImageOps

    match name:
        case "ShearX":
            return _moved(image, (1, 0.3 * strength, 0, 0, 1, 0), fill)
        case "ShearY":
            return _moved(image, (1, 0, 0, 0.3 * strength, 1, 0), fill)
        case "TranslateX":
            return _moved(image, (1, 0, -int(150.0 / 331.0 * image.width * strength), 0, 1, 0), fill)
        case "TranslateY":
            return _moved(image, (1, 0, 0, 0, 1, -int(150.0 / 331.0 * image.height * strength)), fill)
        case "Rotate":
            return image.rotate(30.0 * strength, pillow().Resampling.NEAREST, fillcolor=pillow_fill(image, fill))
        case "Brightness":
            return brightened(image, 1.0 + 0.9 * strength)
        case "Color":
            return saturated(image, 1.0 + 0.9 * strength)
        case "Contrast":
            return contrasted(image, 1.0 + 0.9 * strength)
        case "Sharpness":
            return blended(image.filter(ImageFilter.SMOOTH), image, 1.0 + 0.9 * strength)
        case "Posterize":
            return ImageOps.posterize(image, 8 - round(4 * strength))
        case "Solarize":
            return ImageOps.solarize(image, 255.0 * (1.0 - strength))  # type: ignore[arg-type]  # compares floats at run time
        case "AutoContrast":
            return ImageOps.autocontrast(image)
        case "Equalize":
            return ImageOps.equalize(image)
    return image


def _moved(image: Image, matrix: tuple[float, ...], fill: Any) -> Image:
    module = pillow()
    return image.transform(
        image.size, module.Transform.AFFINE, matrix, module.Resampling.NEAREST, fillcolor=pillow_fill(image, fill)
    )
