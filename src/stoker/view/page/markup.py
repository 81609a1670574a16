"""HTML and SVG put together so that text cannot become markup: what is not marked as markup is escaped."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from typing import TypeAlias

_VOID = {"br", "col", "hr", "input", "link", "meta"}
_CLOSED = {"circle", "line", "path", "rect", "stop", "use"}

_UNFIT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
"""What no page may hold: control characters, and halves of characters, which no file can."""


_BEFORE_UNIT = re.compile(
    r"(?<=\d) (?=(?:ns|µs|ms|s|min|h|bytes?|kB|MB|GB|TB|PB|cores)\b)|(?<=\bmin) (?=\d+ s\b)|(?<=\bh) (?=\d+ min\b)"
)


class Markup(str):
    """Text that is HTML already, and put into a page as it is."""

    __slots__ = ()


Child: TypeAlias = "Markup | str | int | float | Iterable[Child] | None"
Value: TypeAlias = "str | int | float | bool | None"


def escaped(text: object) -> Markup:
    """Return a text so that it reads as itself in a page, inside elements and inside quoted attributes.

    A number and its unit stay on one line.
    """
    if isinstance(text, Markup):
        return text
    whole = _BEFORE_UNIT.sub("\N{NO-BREAK SPACE}", _UNFIT.sub("\N{REPLACEMENT CHARACTER}", str(text)))
    return Markup(html.escape(whole))


def joined(*children: Child) -> Markup:
    """Return things one after the other: markup as it is, everything else as text; None is nothing."""
    return Markup("".join(_each(children)))


def tag(name: str, /, *children: Child, **attributes: Value) -> Markup:
    """Return an element. Attributes lose an underscore at their end, and get hyphens for others: `class_`, `data_tip`.

    An attribute that is None or False is left out, one that is True has no value, a float is written short.
    """
    written = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in _VOID:
        return Markup(f"<{name}{written}>")
    inside = joined(*children)
    if name in _CLOSED and not inside:
        return Markup(f"<{name}{written}/>")
    return Markup(f"<{name}{written}>{inside}</{name}>")


def short(number: float) -> str:
    """Return a number as short as a drawing may have it: three places after the point."""
    told = f"{number:.3f}".rstrip("0").rstrip(".")
    return "0" if told in ("-0", "") else told


def _attribute(key: str, value: Value) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    if value is True:
        return f" {name}"
    return f' {name}="{escaped(short(value) if isinstance(value, float) else value)}"'


def _each(children: Iterable[Child]) -> Iterable[str]:
    for child in children:
        if child is None:
            continue
        if isinstance(child, str | int | float):
            yield escaped(child)
        else:
            yield from _each(child)
