"""Convert dtypes and normalize images on the device.

Workers send small dtypes (uint8 pixels, short integers), which are widened where they are used: the copy moves a
quarter of the bytes that float32 would take, and the conversion is one pass over them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stoker.errors import ArgumentError

BYTES = frozenset({torch.uint8, torch.int8})

INTEGERS = BYTES | {torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64}

To = torch.dtype | Mapping[torch.dtype | str, torch.dtype]


@dataclass(frozen=True, slots=True)
class Normalize:
    """`(x / scale - mean) / std` for every channel of an image, on the device, as float32 or what `to` says."""

    mean: tuple[float, ...]
    """One number per channel, like `std`."""
    std: tuple[float, ...]
    scale: float = 255.0
    """Input values are divided by this first: 255 maps uint8 to 0 to 1."""
    fields: tuple[str, ...] | None = None
    """The fields to normalize, whatever their dtype. By default every uint8 tensor of three dimensions or more."""

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            object.__setattr__(self, name, _numbers(name, getattr(self, name)))
        if len(self.mean) != len(self.std) or not self.mean:
            raise ArgumentError(
                f"normalize has {len(self.mean)} means and {len(self.std)} standard deviations",
                hint="give one of each per channel, such as ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))",
            )
        if not all(std > 0 for std in self.std):
            raise ArgumentError(
                f"std={self.std} is not positive", hint="a channel is divided by its std; use 1 for none"
            )
        if isinstance(self.scale, bool) or not isinstance(self.scale, int | float) or not 0 < self.scale < math.inf:
            raise ArgumentError(
                f"scale={self.scale!r} is not a positive number", hint="255 for bytes, 1 if mean and std are in bytes"
            )
        if self.fields is not None:
            given: Any = self.fields
            fields = (given,) if isinstance(given, str) else tuple(given)
            if not fields or not all(isinstance(field, str) for field in fields):
                raise ArgumentError(
                    f"fields={self.fields!r} does not name fields", hint="give names, such as ('image',), or None"
                )
            object.__setattr__(self, "fields", fields)


class Widening:
    """Converts and normalizes tensors, on the device they are on.

    Args:
        to: a floating dtype for floating tensors and 8-bit integers; or an integer dtype for narrower integers; or a
            mapping that says exactly, by source dtype or by field. A field takes precedence over a dtype.
        normalize: `(mean, std)` or a `Normalize`. A field that `to` makes an integer is not an image, and is left out.
    """

    def __init__(self, to: To | None = None, normalize: Normalize | Iterable[Any] | None = None) -> None:
        self._normalize = _normalize(normalize)
        self._plain: torch.dtype | None = None
        self._exact: dict[torch.dtype | str, torch.dtype] = {}
        if isinstance(to, Mapping):
            self._exact = _exact(to)
        elif to is not None:
            self._plain = _plain(to)
        self._check_together()
        self._constants: dict[tuple[torch.device, bool], tuple[Tensor, Tensor]] = {}
        self._seen: set[str | None] = set()
        self._has_normalized = False
        self._passed_by: torch.dtype | None = None
        """The dtype of tensors that look like images but are not normalized, as they are not uint8."""

    @classmethod
    def of(cls, to: To | None, normalize: Normalize | Iterable[Any] | None) -> Widening | None:
        """Return a `Widening`, or None if there is nothing to convert."""
        return None if to is None and normalize is None else cls(to, normalize)

    @property
    def normalize(self) -> Normalize | None:
        """What images are normalized with."""
        return self._normalize

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_constants": {}}  # tensors on a device: computed again where they are needed

    def __call__(self, tensor: Tensor, field: str | None = None) -> Tensor:
        """Return the tensor of `field`, converted; the tensor itself if there is nothing to do."""
        self._seen.add(field)
        target = self._target(tensor.dtype, field)
        normalize = self._normalize
        if normalize is not None and (target is None or target.is_floating_point):
            if normalize.fields is not None:
                if field in normalize.fields:
                    return self._normalized(tensor, field, target or torch.float32)
            elif tensor.dtype is torch.uint8 and tensor.ndim >= 3:
                return self._normalized(tensor, field, target or torch.float32)
            elif tensor.dtype not in BYTES and tensor.ndim >= 4:
                self._passed_by = tensor.dtype
        return tensor if target is None else tensor.to(target)

    def unseen(self) -> list[str]:
        """Return the named fields that no batch has had so far."""
        named = {name for name in self._exact if isinstance(name, str)}
        if self._normalize is not None and self._normalize.fields is not None:
            named |= set(self._normalize.fields)
        return sorted(named - self._seen)

    def doubts(self) -> list[str]:
        """Return warnings about arguments that have had no effect on any batch so far."""
        doubts = []
        if names := self.unseen():
            doubts.append(f"`to` or `normalize` names fields that the first batch does not have: {', '.join(names)}")
        if self._passed_by is not None and not self._has_normalized:
            doubts.append(
                f"`normalize` is for uint8 images, and the first batch has {self._passed_by} ones, which are left "
                "unchanged\nhint: leave ToTensor and the like out of the transforms; or name the fields and the "
                "largest value: Normalize(mean, std, scale=1, fields=...)"
            )
        return doubts

    def _target(self, source: torch.dtype, field: str | None) -> torch.dtype | None:
        """Return the dtype to convert to, or None for none."""
        if self._exact:
            found = self._exact.get(field) if field is not None else None
            return found or self._exact.get(source)
        plain = self._plain
        if plain is None:
            return None
        if plain.is_floating_point:
            return plain if source.is_floating_point or source in BYTES else None
        is_narrower = source in INTEGERS and source.itemsize < plain.itemsize
        return plain if is_narrower and (plain.is_signed or not source.is_signed) else None

    def _normalized(self, tensor: Tensor, field: str | None, target: torch.dtype) -> Tensor:
        normalize = self._normalize
        assert normalize is not None
        self._has_normalized = True
        num_channels = len(normalize.mean)
        if tensor.ndim >= 3 and tensor.shape[-3] == num_channels:
            is_first = True
        elif tensor.ndim >= 1 and tensor.shape[-1] == num_channels:
            is_first = False
        else:
            where = f"field {field!r}" if field is not None else "the tensor"
            raise ArgumentError(
                f"normalize has {num_channels} channels, but {where} of shape {tuple(tensor.shape)} has none of that "
                "size where channels are: third from last or last",
                hint="name the images, Normalize(mean, std, fields=('image',)), if this is not one; "
                "otherwise give as many means as it has channels",
            )
        if target.itemsize == 1:  # torch promotes no float8
            return self._normalized(tensor, field, torch.float32).to(target)
        if tensor.dtype.is_floating_point and tensor.dtype.itemsize == 1:
            tensor = tensor.to(torch.float32)
        factor, offset = self._constants_on(tensor.device, is_first=is_first)
        # one pass: read the bytes, multiply and add in float32, write the target
        return torch.addcmul(offset, tensor, factor, out=torch.empty_like(tensor, dtype=target))

    def _constants_on(self, device: torch.device, *, is_first: bool) -> tuple[Tensor, Tensor]:
        """Return 1 / (scale * std) and -mean / std, shaped for where the channels are."""
        constants = self._constants.get((device, is_first))
        if constants is None:
            assert self._normalize is not None
            mean, std = (
                torch.tensor(part, dtype=torch.float64) for part in (self._normalize.mean, self._normalize.std)
            )
            shape = (-1, 1, 1) if is_first else (-1,)
            factor, offset = (
                # a blocking copy: complete when it returns, so that any stream may read it
                part.to(torch.float32).reshape(shape).to(device)
                for part in (1 / (self._normalize.scale * std), -mean / std)
            )
            constants = self._constants[device, is_first] = factor, offset
        return constants

    def _check_together(self) -> None:
        normalize, exact = self._normalize, self._exact
        if normalize is None:
            return
        fields = normalize.fields
        wrong = [field for field in fields or () if field in exact and not exact[field].is_floating_point]
        byte_target = exact.get(torch.uint8)
        if wrong:
            raise ArgumentError(
                f"field {wrong[0]!r} is normalized, but `to` makes it {exact[wrong[0]]}",
                hint="give it a floating dtype, or take it out of `fields`",
            )
        if fields is None and byte_target is not None and not byte_target.is_floating_point:
            raise ArgumentError(
                f"uint8 tensors are normalized, but `to` makes them {byte_target}",
                hint="give uint8 a floating dtype, or name the images: Normalize(mean, std, fields=('image',))",
            )


def _numbers(name: str, values: Any) -> tuple[float, ...]:
    try:
        numbers = tuple(float(value) for value in values)
    except (TypeError, ValueError):
        numbers = (math.nan,)
    if not all(math.isfinite(number) for number in numbers):
        raise ArgumentError(
            f"{name}={values!r} does not make one number per channel", hint=f"such as {name}=(0.5, 0.5, 0.5)"
        )
    return numbers


def _normalize(normalize: Any) -> Normalize | None:
    if normalize is None or isinstance(normalize, Normalize):
        return normalize
    try:
        mean, std = normalize
    except (TypeError, ValueError):
        raise ArgumentError(
            f"normalize={normalize!r} is not a mean and a standard deviation",
            hint="give (mean, std), one number per channel in each, or stoker.Normalize(...)",
        ) from None
    return Normalize(mean, std)


def _plain(to: Any) -> torch.dtype:
    if not isinstance(to, torch.dtype) or not (to.is_floating_point or to in INTEGERS):
        raise ArgumentError(
            f"to={to!r} is not a floating or integer dtype",
            hint="give one, such as torch.bfloat16, or a mapping by dtype or field: {torch.uint8: torch.float16}",
        )
    return to


def _exact(to: Mapping[Any, Any]) -> dict[torch.dtype | str, torch.dtype]:
    for source, target in to.items():
        if not isinstance(source, torch.dtype | str) or not isinstance(target, torch.dtype):
            raise ArgumentError(
                f"to={{{source!r}: {target!r}}} does not say which dtype becomes which",
                hint="map a dtype or the name of a field to a dtype: {torch.uint8: torch.float16, 'mask': torch.int64}",
            )
    return dict(to)
