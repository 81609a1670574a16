"""Format samples for the terminal, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from stoker.transform.tokenizer import Tokenizer

MAX_CHARS = 240
MAX_VALUES = 64
MAX_BYTES = 16


def describe_type(value: Any) -> str:
    """Describe the type of a sample's value in a few characters, like `Column.described`."""
    import numpy as np

    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        return f"{array.dtype.name}[{', '.join(map(str, array.shape))}]" if array.ndim else array.dtype.name
    return {"str": "text"}.get(type(value).__name__, type(value).__name__)


def format_value(value: Any) -> str:
    """Format a value in a few lines."""
    import numpy as np

    if isinstance(value, str):
        return shorten(value)
    if isinstance(value, bytes | bytearray | memoryview):
        data = bytes(value)
        if 0 < len(data) <= MAX_CHARS and data.isascii() and data.decode().isprintable():
            return f"{len(data):,} bytes: {data.decode()!r}"
        more = " ..." if len(data) > MAX_BYTES else ""
        return f"{len(data):,} bytes: {data[:MAX_BYTES].hex(' ')}{more}"
    if isinstance(value, np.ndarray) and value.ndim:
        return _array(value)
    return shorten(repr(value.item() if isinstance(value, np.generic | np.ndarray) else value))


def _array(array: NDArray[Any]) -> str:
    if array.ndim == 1:
        few = array[:12].tolist()
        numbers = " ".join(f"{number:.6g}" if isinstance(number, float) else str(number) for number in few)
        return f"{len(array):,} values: {numbers} ..." if len(array) > len(few) else numbers or "(empty)"
    if not array.size or array.dtype.kind not in "biuf":
        return describe_type(array)
    return f"{describe_type(array)} from {array.min().item():.6g} to {array.max().item():.6g}"


def shorten(text: str, max_chars: int = MAX_CHARS) -> str:
    """Return a text on one line, truncated to `max_chars`."""
    line = text[:max_chars].replace("\r", "").replace("\n", "⏎").replace("\t", " ")
    return f"{line} ..." if len(text) > max_chars else line


def decode_tokens(values: NDArray[np.integer], tokenizer: Tokenizer | None) -> str | None:
    """Decode the first tokens; return None without a tokenizer, or if it cannot decode them."""
    from stoker.errors import StokerError

    if tokenizer is None:
        return None
    try:
        return tokenizer.decode(values[:MAX_VALUES])
    except StokerError as error:
        return f"({str(error).splitlines()[0]})"


def iterate_values(sample: Any) -> Iterator[tuple[str, Any]]:
    """Yield a sample's values with their names; the name is empty if the sample has no names."""
    if isinstance(sample, Mapping):
        for name, value in sample.items():
            yield str(name), value
    else:
        yield "", sample


def to_json(value: Any) -> Any:
    """Return a value as JSON-compatible data; long values are truncated."""
    import numpy as np

    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        plain = array.ravel()[:MAX_VALUES].tolist() if array.ndim else array.item()
        if array.dtype.kind == "c":
            plain = str(plain)
        return {"type": describe_type(value), "values": plain} if array.ndim else plain
    if isinstance(value, bytes | bytearray | memoryview):
        return {"type": "bytes", "num_bytes": len(value), "hex": bytes(value)[:MAX_VALUES].hex()}
    if isinstance(value, Mapping):
        return {str(name): to_json(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(part) for part in value[:MAX_VALUES]]
    return value if value is None or isinstance(value, str | int | float | bool) else repr(value)
