"""Columns of a store: dtype, shape and kind."""

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
"""Supported NumPy dtypes, and their names in safetensors."""

NUMPY_NAMES = {name: numpy_name for numpy_name, name in SAFETENSORS_NAMES.items()}

OFFSETS = ".offsets"
"""Suffix of the array with the offsets of a ragged column's samples."""

RESERVED = "stoker."
"""Prefix of names that are reserved by the format."""

_DESCRIPTION = re.compile(r"([a-z]+\d*)(?:\[((?:\*|\d+)?(?:,\d+)*)\])?")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]{0,126}")

_MAX_BYTES = 1 << 62
_MAX_DIMENSIONS = 32
"""Maximum in every version of NumPy."""


def can_be_array(dtype: str, shape: tuple[int, ...], *, num_more: int = 0) -> bool:
    """Return whether NumPy supports this shape, with `num_more` leading dimensions; sizes of 0 count as 1."""
    num_bytes = np.dtype(dtype).itemsize
    for size in shape[:_MAX_DIMENSIONS]:
        num_bytes *= max(1, size)
    return len(shape) + num_more <= _MAX_DIMENSIONS and num_bytes < _MAX_BYTES


@dataclass(frozen=True, slots=True)
class Column:
    """One column: an array of the same shape for each sample, or of any length if ragged."""

    dtype: str
    """Name of a NumPy dtype, such as "uint16"."""
    shape: tuple[int, ...] = ()
    """Shape of a sample; of one value, if the column is ragged."""
    is_ragged: bool = False
    kind: Kind = "array"
    """Type of a sample. Bytes and text (UTF-8) are stored as ragged uint8."""

    def __post_init__(self) -> None:
        try:
            name = np.dtype(self.dtype).name
        except TypeError as error:
            raise ArgumentError(f"{self.dtype!r} is not a NumPy dtype", hint="pass for instance 'uint16'") from error
        if name not in SAFETENSORS_NAMES:
            raise ArgumentError(
                f"stores do not support {name}",
                hint=f"use one of {', '.join(SAFETENSORS_NAMES)}; for text, Column.text()",
            )
        object.__setattr__(self, "dtype", name)
        shape: Any = self.shape
        object.__setattr__(self, "shape", tuple(map(int, (shape,) if isinstance(shape, int) else shape)))
        if any(size < 0 for size in self.shape):
            raise ArgumentError(f"shape {self.shape} has a negative size", hint="use Column.ragged for any length")
        if not can_be_array(name, self.shape, num_more=1):
            raise ArgumentError(f"shape {self.shape} is too large for NumPy", hint="flatten it")
        if self.kind not in ("array", "bytes", "text"):
            raise ArgumentError(f"unknown column kind {self.kind!r}", hint="choose array, bytes or text")
        if self.kind != "array" and (name, self.shape, self.is_ragged) != ("uint8", (), True):
            raise ArgumentError(f"{self.kind} must be ragged uint8", hint="use Column.text() or Column.blob()")

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
        """The dtype of its values, in the byte order of the file."""
        return np.dtype(self.dtype).newbyteorder("<")

    @property
    def value_bytes(self) -> int:
        """Size of one value; of a fixed column, of one sample."""
        return math.prod(self.shape) * self.numpy.itemsize

    def described(self) -> str:
        """Return a short description, such as "uint16[*]", as `stoker inspect` shows it."""
        if self.kind != "array":
            return self.kind
        sizes = [*(["*"] if self.is_ragged else []), *map(str, self.shape)]
        return f"{self.dtype}[{', '.join(sizes)}]" if sizes else self.dtype

    def to_json(self) -> dict[str, Any]:
        """Return the column as recorded in the manifest."""
        return {"dtype": self.dtype, "shape": list(self.shape), "ragged": self.is_ragged, "kind": self.kind}

    @classmethod
    def of(cls, description: Column | str) -> Column:
        """Return the column for a description: "uint16[*]", "float32[3, 32]", "int64", "text", "bytes"."""
        if isinstance(description, Column):
            return description
        if description in ("text", "bytes"):
            return cls.text() if description == "text" else cls.blob()
        match = _DESCRIPTION.fullmatch(description.replace(" ", "")) if isinstance(description, str) else None
        if match is None:
            raise ArgumentError(
                f"{description!r} does not describe a column",
                hint="pass for instance 'uint16[*]', 'float32[3, 32]', 'int64' or 'text'",
            )
        sizes = [size for size in (match[2] or "").split(",") if size]
        is_ragged = sizes[:1] == ["*"]
        return cls(match[1], tuple(int(size) for size in sizes[is_ragged:]), is_ragged)

    @classmethod
    def of_sample(cls, value: Any) -> Column:
        """Return the column for a value like this: text and bytes ragged, everything else of this shape."""
        if isinstance(value, str):
            return cls.text()
        if isinstance(value, bytes | bytearray | memoryview):
            return cls.blob()
        array = np.asarray(value)
        return cls(array.dtype.name, array.shape)


def checked_name(name: Any) -> str:
    """Return the name of a column; raise `ArgumentError` if it is invalid."""
    is_ours = isinstance(name, str) and (name.startswith((RESERVED, "__")) or name.endswith(OFFSETS))
    if not isinstance(name, str) or not _NAME.fullmatch(name) or is_ours:
        raise ArgumentError(
            f"{name!r} is not a valid column name",
            hint=f"use letters, digits, _ - . /, not beginning with {RESERVED!r} or '__' and not ending in {OFFSETS!r}",
        )
    return name


def _named(dtype: Any) -> str:
    """Return NumPy's name of a dtype of NumPy or torch."""
    name = str(dtype).removeprefix("torch.") if type(dtype).__module__ == "torch" else dtype
    try:
        return np.dtype(name).name
    except TypeError:
        return str(name)  # Column raises the error
