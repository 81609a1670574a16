"""Fill in the page's templates: every value is escaped, and a number stays on the line of its unit."""

from __future__ import annotations

import re
from functools import cache
from typing import Any, NamedTuple

import markupsafe
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from stoker.foundation.text import UNKNOWN, trim_zeros

_UNFIT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
"""Characters removed from pages: control characters and lone surrogates."""

_BEFORE_UNIT = re.compile(
    r"(?<=\d) (?=(?:ns|µs|ms|s|min|h|bytes?|kB|MB|GB|TB|PB|cores)\b)|(?<=\bmin) (?=\d+ s\b)|(?<=\bh) (?=\d+ min\b)"
)
_CODE = re.compile(r"`([^`\n]+)`")


def render(template: str, **values: Any) -> Markup:
    """Return a template of the page with its values filled in. A value is inserted as HTML only if it is `Markup`."""
    return Markup(_environment().get_template(template).render(**values))


def missing_figure(title: str, sentence: str) -> Markup:
    """Return a figure that says why its chart is missing."""
    return render("missing.html", title=title, sentence=sentence)


def escape(text: object) -> Markup:
    """Return a text as HTML, for use inside elements and quoted attributes."""
    return markupsafe.escape(_finalize(text))


def short(number: float) -> str:
    """Format a number for SVG: at most three decimals."""
    text = trim_zeros(f"{number:.3f}")
    return "0" if text == "-0" else text


def percent(share: float) -> str:
    """Format a part of 1 as a length in CSS or SVG."""
    return f"{short(100 * share)}%"


def capitalize(text: str) -> str:
    """Return a text with a capital at the start and the rest as it is."""
    return text[:1].upper() + text[1:]


def prose(text: str, *, has_buttons: bool = False) -> Markup:
    """Return a sentence as HTML, capitalized, with code elements for backquoted parts.

    Args:
        has_buttons: add a copy button to each piece of code, which the page's script handles.
    """
    code = "copy.html" if has_buttons else "code.html"
    parts = _CODE.split(capitalize(text))
    return Markup("").join(render(code, code=part) if at % 2 else escape(part) for at, part in enumerate(parts))


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("stoker.lab.page"),
        autoescape=True,
        finalize=_finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    environment.filters |= {"short": short, "percent": percent, "prose": prose, "capital": capitalize}
    environment.globals |= {"UNKNOWN": UNKNOWN}
    return environment


def _finalize(value: Any) -> Any:
    """Prepare a value for insertion: None is nothing, floats get few decimals, and unprintable letters are replaced."""
    if value is None:
        return ""
    if isinstance(value, Markup):
        return value
    text = short(value) if isinstance(value, float) else str(value)
    return _BEFORE_UNIT.sub("\N{NO-BREAK SPACE}", _UNFIT.sub("\N{REPLACEMENT CHARACTER}", text))


class Bar(NamedTuple):
    """A cell of a table: a bar filled to a share, and its number."""

    share: float
    kind: str
    text: str
