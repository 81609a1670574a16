"""Build HTML and SVG safely: everything that is not `Markup` is escaped."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from typing import TypeAlias

_VOID = {"br", "col", "hr", "input", "link", "meta"}
_CLOSED = {"circle", "line", "path", "rect", "stop", "use"}

_UNFIT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
"""Characters removed from pages: control characters and lone surrogates."""


_BEFORE_UNIT = re.compile(
    r"(?<=\d) (?=(?:ns|µs|ms|s|min|h|bytes?|kB|MB|GB|TB|PB|cores)\b)|(?<=\bmin) (?=\d+ s\b)|(?<=\bh) (?=\d+ min\b)"
)


class Markup(str):
    """Text that is already HTML, inserted without escaping."""

    __slots__ = ()


Child: TypeAlias = "Markup | str | int | float | Iterable[Child] | None"
Value: TypeAlias = "str | int | float | bool | None"


def escape(text: object) -> Markup:
    """Escape a text for use inside elements and quoted attributes.

    A number and its unit are joined by a no-break space.
    """
    if isinstance(text, Markup):
        return text
    whole = _BEFORE_UNIT.sub("\N{NO-BREAK SPACE}", _UNFIT.sub("\N{REPLACEMENT CHARACTER}", str(text)))
    return Markup(html.escape(whole))


def join(*children: Child) -> Markup:
    """Concatenate children: markup as it is, everything else escaped; None is skipped."""
    return Markup("".join(_each(children)))


def tag(name: str, /, *children: Child, **attributes: Value) -> Markup:
    """Return an element. In attribute names, a trailing underscore is dropped and others become hyphens: `class_`.

    An attribute that is None or False is omitted, one that is True has no value, a float is shortened.
    """
    written = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in _VOID:
        return Markup(f"<{name}{written}>")
    inside = join(*children)
    if name in _CLOSED and not inside:
        return Markup(f"<{name}{written}/>")
    return Markup(f"<{name}{written}>{inside}</{name}>")


def short(number: float) -> str:
    """Format a number for SVG: at most three decimals."""
    text = f"{number:.3f}".rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text


def _attribute(key: str, value: Value) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    if value is True:
        return f" {name}"
    return f' {name}="{escape(short(value) if isinstance(value, float) else value)}"'


def _each(children: Iterable[Child]) -> Iterable[str]:
    for child in children:
        if child is None:
            continue
        if isinstance(child, str | int | float):
            yield escape(child)
        else:
            yield from _each(child)
