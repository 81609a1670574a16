"""What charts are framed with: a heading, a sentence, a legend, axes, and the numbers behind them as a table."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from stoker.foundation.text import UNKNOWN, format_moment
from stoker.view.page.markup import Child, Markup, escaped, short, tag
from stoker.view.page.scales import Scale, time_ticks

Tick = tuple[float, str]
"""Where something is written along an axis, from 0 to 1, and what."""


def section(ident: str, title: str, *body: Child) -> Markup:
    """Return a part of the page that can be linked to."""
    return tag("section", tag("h2", title, id=f"{ident}-title"), *body, id=ident, aria_labelledby=f"{ident}-title")


def figure(title: str, *body: Child, lead: Child = None, table: Markup | None = None, class_: str = "") -> Markup:
    """Return a chart with what it is called, what it shows, and the numbers behind it."""
    return tag(
        "figure",
        tag("figcaption", tag("h3", title), tag("p", lead, class_="lead") if lead is not None else None),
        *body,
        behind(table) if table is not None else None,
        class_=class_ or None,
    )


def missing(what: str) -> Markup:
    """Return the sentence that stands where there is nothing to draw."""
    return tag("p", what, class_="missing")


def behind(table: Markup, summary: str = "The numbers as a table") -> Markup:
    """Return a table that is folded away until somebody wants it."""
    return tag("details", tag("summary", summary), table, class_="numbers")


def table(
    head: Sequence[Child], rows: Iterable[Sequence[Child]], *, caption: str, class_: str = "", num_words: int = 1
) -> Markup:
    """Return a table whose first column names the row. The first `num_words` columns are words, the others numbers.

    On a phone, a table of class `folds` has a line for each cell, which then tells its column's name too.
    """
    columns = [tag("th", one, scope="col", class_=None if at < num_words else "number") for at, one in enumerate(head)]
    body = [
        tag(
            "tr",
            tag("th", row[0], scope="row"),
            [
                tag("td", one, class_=_kind(one, is_number=at >= num_words), data_label=str(head[at]) or None)
                for at, one in enumerate(row[1:], 1)
            ],
        )
        for row in rows
    ]
    whole = tag(
        "table",
        tag("caption", caption),
        tag("thead", tag("tr", *columns)),
        tag("tbody", *body),
        class_=class_ or None,
    )
    # a table that is wider than a phone is moved sideways by itself, by keys too
    return tag("div", whole, class_="scrolling", tabindex=0, role="region", aria_label=caption)


def _kind(cell: Child, *, is_number: bool) -> str | None:
    kinds = [*(["number"] if is_number else ()), *(["none"] if cell == UNKNOWN else ())]
    return " ".join(kinds) or None


def legend(*entries: tuple[str, str]) -> Markup:
    """Return what stands for what: pairs of a mark's class and words."""
    return tag(
        "ul",
        [
            tag("li", tag("svg", tag("rect", width="100%", height="100%", class_=kind), aria_hidden="true"), words)
            for kind, words in entries
        ],
        class_="legend",
    )


def bar(share: float, kind: str = "step", *, label: str | None = None) -> Markup:
    """Return a bar that fills a part of its place, for use beside a number that says the same."""
    width = f"{short(100 * min(1.0, max(0.0, share)))}%"
    return tag(
        "svg",
        tag("rect", width="100%", height="100%", class_="rail"),
        tag("rect", width=width, height="100%", class_=kind),
        class_="bar",
        role="img" if label else None,
        aria_label=label,
        aria_hidden=None if label else "true",
    )


def barred(share: float, kind: str, told: str) -> Markup:
    """Return a bar and the number that it stands for."""
    return tag("span", bar(share, kind), tag("span", told), class_="barred")


def plot(
    drawing: Child,
    *,
    title: str,
    height: int,
    ys: Sequence[Tick] = (),
    xs: Sequence[Tick] = (),
    rows: Sequence[Tick] = (),
    lines: Sequence[float] = (),
    points: tuple[Sequence[float], Sequence[str]] | None = None,
) -> Markup:
    """Return a drawing with its axes.

    Args:
        title: what the drawing shows, for those who do not see it and for whoever rests the mouse on it.
        height: in pixels; it is as wide as there is room.
        ys: what is written beside it, from the bottom up, each with a line across.
        rows: what is written beside it, from the top down, without a line.
        xs: what is written below it, from left to right.
        lines: where else a line goes across, dashed: limits.
        points: places from left to right and what is told about each, under the mouse and by the arrow keys.
    """
    across = [tag("line", x1=0, x2="100%", y1=_percent(1 - at), y2=_percent(1 - at), class_="grid") for at, _ in ys]
    dashed = [tag("line", x1=0, x2="100%", y1=_percent(1 - at), y2=_percent(1 - at), class_="limit") for at in lines]
    return tag(
        "div",
        tag(
            "div",
            [_at(text, bottom=at) for at, text in ys],
            [_at(text, bottom=1 - at) for at, text in rows],
            class_="ys",
            aria_hidden="true",
        ),
        tag(
            "svg",
            tag("title", title),
            *across,
            drawing,
            *dashed,
            role="img",
            height=height,
            width="100%",
            tabindex=0 if points else None,
            class_="drawing",
        ),
        x_labels(xs) if xs else None,
        data("points", {"x": [round(at, 5) for at in points[0]], "told": list(points[1])}) if points else None,
        class_="plot",
    )


def stretched(*drawn: Child, height: int) -> Markup:
    """Return what is drawn in a space 1000 wide and `height` high, as wide as there is room."""
    return tag(
        "svg",
        *drawn,
        viewBox=f"0 0 1000 {height}",
        preserveAspectRatio="none",
        width="100%",
        height="100%",
    )


def time_axis(scale: Scale) -> list[Tick]:
    """Return what is written along an axis of time."""
    ticks, step = time_ticks(scale.low, scale.high)
    return [(scale(at), format_moment(at, step=step, high=scale.high)) for at in ticks]


def x_labels(xs: Sequence[Tick]) -> Markup:
    """Return what is written below a drawing; every second one gives way where there is little room."""
    written = []
    for number, (at, text) in enumerate(xs):
        side = "first" if at < 0.02 else "last" if at > 0.98 else ""
        also = "spare" if number % 2 and len(xs) > 3 else ""
        written.append(tag("span", text, style=f"left:{_percent(at)}", class_=f"{side} {also}".strip() or None))
    return tag("div", written, class_="xs", aria_hidden="true")


def data(kind: str, value: object) -> Markup:
    """Return values for the page's script. They are data and never run, whatever is in them."""
    told = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for letter in "<>&":
        told = told.replace(letter, f"\\u{ord(letter):04x}")
    return Markup(f'<script type="application/json" class="{escaped(kind)}">{told}</script>')


def area(xs: Sequence[float], tops: Sequence[float], bottoms: Sequence[float], *, height: int) -> str:
    """Return the path of an area between two lines; x and y are from 0 to 1, y upwards."""
    if not len(xs):
        return ""
    there = [f"{short(1000 * x)} {short(height * (1 - y))}" for x, y in zip(xs, tops)]
    back = [f"{short(1000 * x)} {short(height * (1 - y))}" for x, y in zip(reversed(xs), reversed(bottoms))]
    return f"M{'L'.join(there)}L{'L'.join(back)}Z"


def columns(edges: Sequence[float], tops: Sequence[float], *, height: int, base: float = 0.0) -> str:
    """Return the path of columns that stand side by side: `edges` from 0 to 1, one more than `tops`."""
    path = [f"M{short(1000 * edges[0])} {short(height * (1 - base))}"]
    for right, top in zip(edges[1:], tops):
        path.append(f"V{short(height * (1 - top))}H{short(1000 * right)}")
    return "".join(path) + f"V{short(height * (1 - base))}Z"


def _percent(at: float) -> str:
    return f"{short(100 * at)}%"


def _at(text: str, *, bottom: float) -> Markup:
    return tag("span", text, style=f"bottom:{_percent(bottom)}")
