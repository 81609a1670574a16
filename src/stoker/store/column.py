"""What a store's columns hold: types, shapes, and how samples become rows of arrays."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from stoker.errors import ArgumentError

Kind = Literal["array", "bytes", "text"]

SAFETENSORS_NAMES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "uint16": "U16",
    "int16": "I16",
    "float16": "F16",
    "uint32": "U32",
    "int32": "I32",
    "float32": "F32",
    "uint64": "U64",
    "int64": "I64",
    "float64": "F64",
    "complex64": "C64",
}
"""The NumPy types that safetensors has, and their names there."""

NUMPY_NAMES = {name: numpy_name for numpy_name, name in SAFETENSORS_NAMES.items()}

OFFSETS = ".offsets"
"""What is added to a ragged column's name for the array that says where its samples begin."""

RESERVED = "stoker."
"""Names that begin so are the format's own."""

_DESCRIPTION = re.compile(r"([a-z]+\d*)(?:\[((?:\*|\d+)?(?:,\d+)*)\])?")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]{0,126}")

_MAX_BYTES = 1 << 62
_MAX_DIMENSIONS = 32
"""What every NumPy allows."""


def can_be_array(dtype: str, shape: tuple[int, ...], *, num_more: int = 0) -> bool:
    """Return whether NumPy can have such an array, with `num_more` dimensions in front; it counts empty ones too."""
    num_bytes = np.dtype(dtype).itemsize
    for size in shape[:_MAX_DIMENSIONS]:
        num_bytes *= max(1, size)
    return len(shape) + num_more <= _MAX_DIMENSIONS and num_bytes < _MAX_BYTES


@dataclass(frozen=True, slots=True)
class Column:
    """One column: an array of the same shape for each sample, or, if ragged, of any length."""

    dtype: str
    """A NumPy name, such as "uint16"."""
    shape: tuple[int, ...] = ()
    """Of a sample; of one value, if the column is ragged."""
    is_ragged: bool = False
    kind: Kind = "array"
    """What a sample comes out as. Bytes and text (UTF-8) are ragged columns of uint8."""

    def __post_init__(self) -> None:
        try:
            name = np.dtype(self.dtype).name
        except TypeError as error:
            raise ArgumentError(f"{self.dtype!r} is not a type of NumPy's", hint="say for example 'uint16'") from error
        if name not in SAFETENSORS_NAMES:
            raise ArgumentError(
                f"a store cannot hold {name}",
                hint=f"it can hold {', '.join(SAFETENSORS_NAMES)}; text has Column.text()",
            )
        object.__setattr__(self, "dtype", name)
        shape: Any = self.shape
        object.__setattr__(self, "shape", tuple(map(int, (shape,) if isinstance(shape, int) else shape)))
        if any(size < 0 for size in self.shape):
            raise ArgumentError(f"the shape {self.shape} has a negative size", hint="say Column.ragged for any length")
        if not can_be_array(name, self.shape, num_more=1):
            raise ArgumentError(f"NumPy has no arrays of the shape {self.shape}", hint="flatten it")
        if self.kind not in ("array", "bytes", "text"):
            raise ArgumentError(f"{self.kind!r} is no kind of column", hint="say array, bytes or text")
        if self.kind != "array" and (name, self.shape, self.is_ragged) != ("uint8", (), True):
            raise ArgumentError(f"{self.kind} must be ragged uint8", hint="say Column.text() or Column.blob()")

    @classmethod
    def fixed(cls, dtype: Any, shape: tuple[int, ...] = ()) -> Column:
        """Return a column whose samples all have this shape."""
        return cls(_named(dtype), shape)

    @classmethod
    def ragged(cls, dtype: Any, shape: tuple[int, ...] = ()) -> Column:
        """Return a column whose samples have any number of values, each of this shape."""
        return cls(_named(dtype), shape, is_ragged=True)

    @classmethod
    def text(cls) -> Column:
        """Return a column of strings."""
        return cls("uint8", is_ragged=True, kind="text")

    @classmethod
    def blob(cls) -> Column:
        """Return a column of byte strings, such as files."""
        return cls("uint8", is_ragged=True, kind="bytes")

    @property
    def numpy(self) -> np.dtype[Any]:
        """The type of its values, in the byte order of the file."""
        return np.dtype(self.dtype).newbyteorder("<")

    @property
    def value_bytes(self) -> int:
        """How long one value is; of a fixed column, one sample."""
        return math.prod(self.shape) * self.numpy.itemsize

    def described(self) -> str:
        """Return it in a few characters, as `stoker inspect` shows it."""
        if self.kind != "array":
            return self.kind
        sizes = [*(["*"] if self.is_ragged else []), *map(str, self.shape)]
        return f"{self.dtype}[{', '.join(sizes)}]" if sizes else self.dtype

    def to_json(self) -> dict[str, Any]:
        """Return it as the manifest holds it."""
        return {"dtype": self.dtype, "shape": list(self.shape), "ragged": self.is_ragged, "kind": self.kind}

    @classmethod
    def of(cls, description: Column | str) -> Column:
        """Return the column that `described` tells of: "uint16[*]", "float32[3, 32]", "int64", "text", "bytes"."""
        if isinstance(description, Column):
            return description
        if description in ("text", "bytes"):
            return cls.text() if description == "text" else cls.blob()
        match = _DESCRIPTION.fullmatch(description.replace(" ", "")) if isinstance(description, str) else None
        if match is None:
            raise ArgumentError(
                f"{description!r} does not describe a column",
                hint="say 'uint16[*]', 'float32[3, 32]', 'int64' or 'text'",
            )
        sizes = [size for size in (match[2] or "").split(",") if size]
        is_ragged = sizes[:1] == ["*"]
        return cls(match[1], tuple(int(size) for size in sizes[is_ragged:]), is_ragged)

    @classmethod
    def of_sample(cls, value: Any) -> Column:
        """Return the column that a sample's value looks like: text and bytes ragged, all else of this shape."""
        if isinstance(value, str):
            return cls.text()
        if isinstance(value, bytes | bytearray | memoryview):
            return cls.blob()
        array = np.asarray(value)
        return cls(array.dtype.name, array.shape)


def checked_name(name: Any) -> str:
    """Return a column's name, if it can be one."""
    is_ours = isinstance(name, str) and (name.startswith((RESERVED, "__")) or name.endswith(OFFSETS))
    if not isinstance(name, str) or not _NAME.fullmatch(name) or is_ours:
        raise ArgumentError(
            f"{name!r} cannot be the name of a column",
            hint=f"use letters, digits, _ - . /, not beginning with {RESERVED!r} or '__' and not ending in {OFFSETS!r}",
        )
    return name


def _named(dtype: Any) -> str:
    """Return NumPy's name of a type, given as NumPy or as torch has it."""
    name = str(dtype).removeprefix("torch.") if type(dtype).__module__ == "torch" else dtype
    try:
        return np.dtype(name).name
    except TypeError:
        return str(name)  # told by Column, in its words
