"""What the fields of a loader's state must be, so that whatever reads them need not wonder."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from reprlib import repr as short_repr
from typing import Any, NamedTuple

from stoker.errors import StateUnreadable


class Form(NamedTuple):
    """What a field must be."""

    what: str
    fits: Callable[[Any], bool]


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return _is_integer(value) and 0 <= value < 1 << 63


def _are_counts(value: Any, size: int) -> bool:
    return isinstance(value, list | tuple) and len(value) == size and all(map(_is_count, value))


def _is_list_of(value: Any, fits: Callable[[Any], bool]) -> bool:
    return isinstance(value, list | tuple) and all(map(fits, value))


def _are_cuts(value: Any) -> bool:
    if not (_is_list_of(value, lambda pair: _are_counts(pair, 2)) and all(size for _, size in value)):
        return False
    begins = [begin for begin, _ in value]
    return begins == sorted(begins) and not any(begins[:1])


def _or_none(form: Form) -> Form:
    return Form(f"{form.what} or None", lambda value: value is None or form.fits(value))


_COUNT = Form("an integer of at least 0", _is_count)
_POSITIVE = Form("an integer of at least 1", lambda value: _is_count(value) and value > 0)
_INTEGER = Form("an integer", _is_integer)
_TEXT = Form("a str", lambda value: isinstance(value, str))
_FLAG = Form("True or False", lambda value: isinstance(value, bool))
_DICT = Form("a dict", lambda value: isinstance(value, dict))
_HEX = Form(
    "16 hexadecimal digits",
    lambda value: isinstance(value, str) and re.fullmatch("[0-9a-f]{16}", value) is not None,
)
_PAIRS = Form("pairs of integers of at least 0", lambda value: _is_list_of(value, lambda pair: _are_counts(pair, 2)))
_COUNTS = Form("integers of at least 0", lambda value: _is_list_of(value, _is_count))
_BASE64 = Form(
    "text in base64",
    lambda value: (
        isinstance(value, str) and len(value) % 4 == 0 and re.fullmatch("[A-Za-z0-9+/]*=?=?", value) is not None
    ),
)

_COMMON: dict[str, Form] = {
    "epoch": _COUNT,
    "step": _COUNT,
    "seed": _INTEGER,
    "digest": _HEX,
    "dataset": _or_none(_TEXT),
    "dataset_length": _or_none(_COUNT),
    "chosen_epoch": _or_none(_INTEGER),
    "served": _COUNT,
    "skipped": _COUNT,
    "checksums": _or_none(Form("two integers", lambda value: _are_counts(value, 2))),
    "split_sequence": _or_none(_TEXT),
    "mixture": _DICT,
}

_BY_KIND: dict[str, dict[str, Form]] = {
    "plan": {
        "plan": _DICT,
        "batch_size": _POSITIVE,
        "origin": Form("three integers of at least 0", lambda value: _are_counts(value, 3)),
        "skip": _PAIRS,
        "rank": _COUNT,
        "num_ranks": _POSITIVE,
        "position": _COUNT,
        "digest_since": Form("two integers of at least 0", lambda value: _are_counts(value, 2)),
        "ahead": _COUNTS,
    },
    "sampler": {
        "num_batches": _COUNT,
        "num_samples": _COUNT,
        "batch_size": _or_none(_POSITIVE),
        "sampler": _TEXT,
        "sampler_length": _or_none(_COUNT),
        "generator": _or_none(_BASE64),
        "ahead": _PAIRS,
        "is_ended": _FLAG,
    },
    "stream": {
        "sharing": Form("'whole', 'own' or 'split'", lambda value: value in ("whole", "own", "split")),
        "num_workers": _POSITIVE,
        "num_parts": _POSITIVE,
        "num_ranks": _POSITIVE,
        "rank": _COUNT,
        "place": _DICT,
    },
}

_PLACE: dict[str, Form] = {
    "turn": _COUNT,
    "steps": _COUNT,
    "samples": _COUNT,
    "cuts": Form("pairs of a turn, from 0 on in ascending order, and a positive size", _are_cuts),
    "is_ended": _FLAG,
}


def check_fields(state: Mapping[str, Any]) -> None:
    """Raise `StateUnreadable`, which names the field, unless each field that is there is what it must be."""
    _check(state, _COMMON | _BY_KIND[state["kind"]], "")
    if state["kind"] == "stream":
        place = state["place"]
        lacking = {"turn", "steps", "samples"} - set(place)
        parts = place.get("parts", place.get("workers"))
        if lacking or not isinstance(parts, dict):
            raise StateUnreadable(f"its place lacks {', '.join(sorted(lacking)) or 'parts'}")
        _check(place, _PLACE, "place.")
        for name, part in parts.items():
            if not isinstance(part, dict) or (part and {"steps", "samples"} - set(part)):
                raise StateUnreadable(f"part {name!r} of its place must have steps and samples, got {short_repr(part)}")
            _check(part, _PLACE, f"place.parts.{name}.")


def _check(fields: Mapping[str, Any], forms: Mapping[str, Form], prefix: str) -> None:
    for name, form in forms.items():
        if name in fields and not form.fits(fields[name]):
            raise StateUnreadable(f"its {prefix}{name} must be {form.what}, got {short_repr(fields[name])}")
