"""The first difference between two samples or batches, in words."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from stoker.foundation import trees


def first_difference(found: Any, expected: Any, path: str = "") -> str | None:
    """Return where two nested values differ, with both values; None if they are equal, types and dtypes too."""
    where = path or "the whole"
    if type(found) is not type(expected):
        return f"{where} is {_short(found)} of type {type(found).__name__}, not {type(expected).__name__}"
    pairs = trees.items(expected)
    if pairs is not None:
        expected_parts, found_parts = dict(pairs), dict(trees.items(found) or ())
        if list(found_parts) != list(expected_parts):
            return f"{where} has {list(found_parts)[:8]}, not {list(expected_parts)[:8]}"
        for name, value in expected_parts.items():
            difference = first_difference(found_parts[name], value, f"{path}[{name!r}]")
            if difference is not None:
                return difference
        return None
    if isinstance(expected, torch.Tensor):
        if found.dtype != expected.dtype or found.shape != expected.shape:
            return f"{where} is {_kind(found)}, not {_kind(expected)}"
        if expected.layout is not torch.strided or expected.is_nested or torch.equal(found, expected):
            return None
        return _first_element(torch.as_tensor(found).numpy(), torch.as_tensor(expected).numpy(), where)
    if isinstance(expected, np.ndarray):
        if found.dtype != expected.dtype or found.shape != expected.shape:
            return f"{where} is {_kind(found)}, not {_kind(expected)}"
        return None if found.tobytes() == expected.tobytes() else _first_element(found, expected, where)
    try:
        is_equal = bool(found == expected) or (found != found and expected != expected)  # NaN
    except Exception:
        return None  # cannot be compared
    if is_equal or not _compares(expected):
        return None
    return f"{where} is {_short(found)}, not {_short(expected)}"


def _compares(value: Any) -> bool:
    """Return whether a type says what equal is; objects of others equal only themselves."""
    return any("__eq__" in vars(kind) for kind in type(value).__mro__[:-1])


def _first_element(found: Any, expected: Any, where: str) -> str | None:
    is_number = expected.dtype.kind in "fc"
    is_different = (
        ~((found == expected) | ((found != found) & (expected != expected))) if is_number else found != expected
    )
    if not is_different.any():
        return None
    at = tuple(int(index) for index in np.argwhere(is_different)[0])
    place = f"{where}[{', '.join(map(str, at))}]" if at else where
    return f"{place} is {found[at]}, not {expected[at]}"


def _kind(value: Any) -> str:
    return f"{value.dtype} of shape {tuple(value.shape)}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
