"""Build the frame of charts: heading, lead sentence, legend, axes, and the numbers as a table."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from stoker.foundation.text import UNKNOWN, format_moment
from stoker.lab.page.markup import Child, Markup, escape, short, tag
from stoker.lab.page.scales import Scale, time_ticks

Tick = tuple[float, str]
"""Position along an axis, from 0 to 1, and label."""


def section(ident: str, title: str, *body: Child) -> Markup:
    """Return a section of the page with an anchor."""
    return tag("section", tag("h2", title, id=f"{ident}-title"), *body, id=ident, aria_labelledby=f"{ident}-title")


def figure(title: str, *body: Child, lead: Child = None, table: Markup | None = None, class_: str = "") -> Markup:
    """Return a chart with its title, lead sentence, and numbers as a table."""
    return tag(
        "figure",
        tag("figcaption", tag("h3", title), tag("p", lead, class_="lead") if lead is not None else None),
        *body,
        fold_away(table) if table is not None else None,
        class_=class_ or None,
    )


def missing(what: str) -> Markup:
    """Return a placeholder sentence for a missing chart."""
    return tag("p", what, class_="missing")


def fold_away(table: Markup, summary: str = "The numbers as a table") -> Markup:
    """Return a collapsed table."""
    return tag("details", tag("summary", summary), table, class_="numbers")


def table(
    head: Sequence[Child], rows: Iterable[Sequence[Child]], *, caption: str, class_: str = "", num_words: int = 1
) -> Markup:
    """Return a table whose first column names the row. The first `num_words` columns are words, the others numbers.

    On a phone, a table of class `folds` puts each cell on its own line, with the name of its column.
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
    # a table wider than a phone scrolls by itself, with keys too
    return tag("div", whole, class_="scrolling", tabindex=0, role="region", aria_label=caption)


def _kind(cell: Child, *, is_number: bool) -> str | None:
    kinds = [*(["number"] if is_number else ()), *(["none"] if cell == UNKNOWN else ())]
    return " ".join(kinds) or None


def legend(*entries: tuple[str, str]) -> Markup:
    """Return a legend from pairs of a mark's class and its text."""
    return tag(
        "ul",
        [
            tag("li", tag("svg", tag("rect", width="100%", height="100%", class_=kind), aria_hidden="true"), words)
            for kind, words in entries
        ],
        class_="legend",
    )


def bar(share: float, kind: str = "step", *, label: str | None = None) -> Markup:
    """Return a bar filled to a share, to be shown next to the number."""
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


def labeled_bar(share: float, kind: str, text: str) -> Markup:
    """Return a bar and its number."""
    return tag("span", bar(share, kind), tag("span", text), class_="barred")


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
    """Return a chart with its axes.

    Args:
        title: description of the chart, for screen readers and as a tooltip.
        height: in pixels; the width fills the page.
        ys: labels at the side, from the bottom up, each with a grid line.
        rows: labels at the side, from the top down, without grid lines.
        xs: labels below, from left to right.
        lines: heights of dashed lines, such as limits.
        points: positions from left to right and their tooltips, for mouse and arrow keys.
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
        data("points", {"x": [round(at, 5) for at in points[0]], "texts": list(points[1])}) if points else None,
        class_="plot",
    )


def stretch(*drawn: Child, height: int) -> Markup:
    """Return an SVG with a 1000 x `height` viewBox, stretched to the available width."""
    return tag(
        "svg",
        *drawn,
        viewBox=f"0 0 1000 {height}",
        preserveAspectRatio="none",
        width="100%",
        height="100%",
    )


def time_axis(scale: Scale) -> list[Tick]:
    """Return the labels of a time axis."""
    ticks, step = time_ticks(scale.low, scale.high)
    return [(scale(at), format_moment(at, step=step, high=scale.high)) for at in ticks]


def x_labels(xs: Sequence[Tick]) -> Markup:
    """Return the labels below a chart; every second one is hidden on narrow screens."""
    written = []
    for number, (at, text) in enumerate(xs):
        side = "first" if at < 0.02 else "last" if at > 0.98 else ""
        also = "spare" if number % 2 and len(xs) > 3 else ""
        written.append(tag("span", text, style=f"left:{_percent(at)}", class_=f"{side} {also}".strip() or None))
    return tag("div", written, class_="xs", aria_hidden="true")


def data(kind: str, value: object) -> Markup:
    """Return values as JSON for the page's script; they are never executed."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for letter in "<>&":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return Markup(f'<script type="application/json" class="{escape(kind)}">{text}</script>')


def area(xs: Sequence[float], tops: Sequence[float], bottoms: Sequence[float], *, height: int) -> str:
    """Return the path of the area between two lines; x and y from 0 to 1, y upward."""
    if not len(xs):
        return ""
    there = [f"{short(1000 * x)} {short(height * (1 - y))}" for x, y in zip(xs, tops)]
    back = [f"{short(1000 * x)} {short(height * (1 - y))}" for x, y in zip(reversed(xs), reversed(bottoms))]
    return f"M{'L'.join(there)}L{'L'.join(back)}Z"


def columns(edges: Sequence[float], tops: Sequence[float], *, height: int, base: float = 0.0) -> str:
    """Return the path of adjacent columns: `edges` from 0 to 1, one more than `tops`."""
    path = [f"M{short(1000 * edges[0])} {short(height * (1 - base))}"]
    for right, top in zip(edges[1:], tops):
        path.append(f"V{short(height * (1 - top))}H{short(1000 * right)}")
    return "".join(path) + f"V{short(height * (1 - base))}Z"


def _percent(at: float) -> str:
    return f"{short(100 * at)}%"


def _at(text: str, *, bottom: float) -> Markup:
    return tag("span", text, style=f"bottom:{_percent(bottom)}")
