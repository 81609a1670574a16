"""Timeline of batches: an overview of all, and a detail of some; the page's script scrolls and zooms.

Without the script, the page shows the overview and, below it, the detail around the longest wait.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stoker.foundation.text import UNKNOWN, format_count, format_duration, format_percent
from stoker.lab.page.frame import columns, data, figure, legend, missing, stretch, table, time_axis, x_labels
from stoker.lab.page.markup import Child, Markup, join, short, tag
from stoker.lab.page.scales import Scale
from stoker.lab.page.subject import Loader
from stoker.lab.page.times import Batches, busy_share, num_ready, to_script_data

NUM_SHOWN = 64
"""Batches in the initial detail view."""

NUM_COLUMNS = 320
"""Columns of the overview."""

ROW, READY, GAP = 20, 40, 8
"""Heights of the trainer's rows, of the ready batches, and of the gaps, in pixels."""

OVERVIEW = 44


@dataclass(frozen=True, slots=True)
class _Layout:
    """Vertical positions, from the top, in pixels."""

    lane: float
    num_lanes: int
    has_ready: bool

    @property
    def step(self) -> float:
        return 0

    @property
    def wait(self) -> float:
        return ROW + 2

    @property
    def ready(self) -> float:
        return 2 * (ROW + 2) + GAP

    @property
    def lanes(self) -> float:
        return self.ready + (READY + GAP if self.has_ready else 0)

    @property
    def height(self) -> float:
        if not self.num_lanes:
            return self.ready - GAP
        return self.lanes + self.num_lanes * self.lane


def timeline(loader: Loader, *, ident: str, of: str = "") -> Markup:
    """Return the timeline of a loader's latest batches."""
    title = f"Timeline of batches{of}"
    batches = loader.batches
    if batches is None:
        return figure(title, missing("No individual batches were recorded, so there is no timeline."))
    num_lanes = len(batches.lanes)
    layout = _Layout(
        lane=18 if num_lanes <= 8 else 12 if num_lanes <= 16 else 8, num_lanes=num_lanes, has_ready=batches.is_ahead
    )
    begin, end, what = _first_window(batches)
    first, last = (int(np.searchsorted(batches.handed, at)) for at in (begin, end))
    lead = join(
        f"{format_count(len(batches), 'batch', 'batches')}"
        f"{f' (the latest of {loader.stats.num_batches:,})' if batches.first else ''}"
        f" over {format_duration(batches.end - batches.begin)}.",
        f" Below: batches {batches.first + first:,} to {batches.first + min(last, len(batches) - 1):,}{what}."
        if len(batches) > 1
        else None,
    )
    return figure(
        title,
        tag(
            "div",
            _tools(),
            legend(
                ("step", "step: training code"),
                ("wait", "wait: no batch ready"),
                *((("load", "loading a batch"), ("send", "sending it")) if num_lanes else ()),
            ),
            _overview(batches, begin, end),
            _detail(batches, begin, end, layout),
            tag("p", class_="readout", aria_live="polite", hidden=True),
            data("laps", to_script_data(batches)),
            class_="timeline",
            id=ident,
            data_begin=f"{begin:.6f}",
            data_end=f"{end:.6f}",
            data_lane=layout.lane,
            data_ahead="yes" if layout.has_ready else None,
        ),
        tag("p", f"{batches.num_left_out} more lanes are not shown.", class_="missing")
        if batches.num_left_out
        else None,
        lead=lead,
        table=_longest(batches),
    )


def _tools() -> Markup:
    """Return the buttons, which the page's script shows and handles."""
    buttons = (
        ("earlier", "\N{LEFTWARDS ARROW}", "Earlier"),
        ("later", "\N{RIGHTWARDS ARROW}", "Later"),
        ("in", "+", "Zoom in"),
        ("out", "\N{MINUS SIGN}", "Zoom out"),
        ("all", "All", "Show all batches"),
        ("longest", "Longest wait", "Show the longest wait"),
    )
    return tag(
        "div",
        [tag("button", text, type="button", data_do=do, aria_label=label, title=label) for do, text, label in buttons],
        tag(
            "span",
            "drag in the strip, or Ctrl + mouse wheel; arrow keys, + and \N{MINUS SIGN} when focused",
            class_="hint",
        ),
        class_="tools",
        role="group",
        aria_label="Visible part of the timeline",
        hidden=True,
    )


def _first_window(batches: Batches) -> tuple[float, float, str]:
    """Return the initial time window, and its description."""
    if len(batches) <= 2 * NUM_SHOWN:
        return batches.begin, batches.end, ""
    waits = batches.waits.copy()
    waits[0] = 0.0  # the first wait is reported elsewhere, and nothing precedes it
    longest = int(np.argmax(waits))
    typical = float(np.median(batches.periods)) if len(batches.periods) else 0.0
    is_stall = float(waits[longest]) > max(1e-3, 0.25 * typical)
    middle = longest if is_stall else len(batches) // 2
    first = min(max(0, middle - NUM_SHOWN // 2), len(batches) - NUM_SHOWN)
    last = first + NUM_SHOWN - 1
    end = batches.stepped[last] if np.isfinite(batches.stepped[last]) else batches.handed[last]
    label = f", around the longest wait ({format_duration(float(waits[longest]))})" if is_stall else ", from the middle"
    return float(batches.asked[first]), float(end), label


def _overview(batches: Batches, begin: float, end: float) -> Markup:
    edges = np.linspace(batches.begin, max(batches.end, batches.begin + 1e-6), NUM_COLUMNS + 1)
    steps = busy_share(batches.handed, batches.stepped, edges)
    waits = busy_share(batches.asked, batches.handed, edges)
    scale = Scale(float(edges[0]), float(edges[-1]))
    places = [scale(edge) for edge in edges.tolist()]
    return tag(
        "div",
        tag("div", tag("span", "all", style=f"top:{OVERVIEW / 2}px"), class_="labels", aria_hidden="true"),
        tag(
            "svg",
            tag(
                "title",
                f"Shares of time over all batches: step from below, wait from above. "
                f"{format_percent(float(waits.mean()))} is waiting, including first batches.",
            ),
            stretch(
                tag("path", d=columns(places, steps.tolist(), height=OVERVIEW), class_="step"),
                tag("path", d=columns(places, (1 - waits).tolist(), height=OVERVIEW, base=1.0), class_="wait"),
                height=OVERVIEW,
            ),
            tag(
                "rect",
                x=f"{short(100 * scale(begin))}%",
                width=f"{short(100 * (scale(end) - scale(begin)))}%",
                y=1,
                height=OVERVIEW - 2,
                class_="window",
            ),
            role="img",
            height=OVERVIEW,
            width="100%",
            class_="overview",
        ),
        class_="plot lanes",
    )


def _detail(batches: Batches, begin: float, end: float, layout: _Layout) -> Markup:
    scale = Scale(begin, end)
    ready, most_ready = _ready(batches, scale, layout)
    marks = join(_trainer(batches, scale, layout), ready, _makings(batches, scale, layout))
    labels: list[tuple[float, str]] = [(layout.step + ROW / 2, "step"), (layout.wait + ROW / 2, "wait")]
    if layout.has_ready:
        labels.append((layout.ready + READY / 2, f"0\N{EN DASH}{most_ready:.0f} ready"))
    every = 1 if layout.lane >= 12 else 4
    labels += [
        (layout.lanes + (at + 0.5) * layout.lane, name)
        for at, name in enumerate(batches.lanes)
        if name and at % every == 0
    ]
    return tag(
        "div",
        tag(
            "div",
            [
                tag("span", text, style=f"top:{short(y)}px", class_="depth" if text.endswith("ready") else None)
                for y, text in labels
            ],
            class_="labels",
        ),
        tag(
            "svg",
            tag("title", "Individual batches: loading, waiting and step of each"),
            tag("g", marks, class_="marks"),
            role="img",
            height=short(layout.height),
            width="100%",
            tabindex=0,
            class_="detail",
        ),
        x_labels(time_axis(scale)),
        class_="plot lanes",
    )


def _block(scale: Scale, begin: float, end: float, y: float, height: float, kind: str, label: str) -> Child:
    if not end >= scale.low or not begin <= scale.high:  # outside the window, or unknown
        return None
    left, right = scale(begin), scale(end)
    return tag(
        "rect",
        tag("title", label),
        x=f"{short(100 * left)}%",
        width=f"{short(100 * (right - left))}%",
        y=y,
        height=height,
        class_=kind,
    )


def _trainer(batches: Batches, scale: Scale, layout: _Layout) -> Markup:
    drawn: list[Child] = []
    ends = np.fmax(batches.handed, batches.stepped)
    [inside] = np.nonzero((ends >= scale.low) & (batches.asked <= scale.high))
    for at in inside.tolist():
        asked, handed, stepped = batches.asked[at], batches.handed[at], batches.stepped[at]
        name = f"batch {batches.first + at:,}"
        wait = f"{name}: waited {format_duration(handed - asked)}"
        step = f"{name}: step {format_duration(stepped - handed)}"
        drawn.append(_block(scale, asked, handed, layout.wait, ROW, "wait", wait))
        drawn.append(_block(scale, handed, stepped, layout.step, ROW, "step", step))
    return join(*drawn)


def _makings(batches: Batches, scale: Scale, layout: _Layout) -> Markup:
    made_of: list[Child] = []
    sent_of: list[Child] = []
    height = layout.lane - (3 if layout.lane >= 12 else 1)
    [inside] = np.nonzero((batches.sent >= scale.low) & (batches.began <= scale.high) & (batches.lane >= 0))
    for at in inside.tolist():
        y = layout.lanes + int(batches.lane[at]) * layout.lane
        began, made, sent = batches.began[at], batches.made[at], batches.sent[at]
        label = f"batch {batches.first + at:,}: loaded in {format_duration(made - began)}"
        made_of.append(_block(scale, began, made, y, height, "load", label))
        if sent > made:
            sent_of.append(_block(scale, made, sent, y, height, "send", f"sent in {format_duration(sent - made)}"))
    return join(*sent_of, *made_of)  # the next batch may be loading while one is being sent


def _ready(batches: Batches, scale: Scale, layout: _Layout) -> tuple[Child, float]:
    """Return the number of ready batches over time, and its maximum."""
    if not layout.has_ready:
        return None, 0.0
    changes = np.unique(np.concatenate((batches.sent, batches.handed)))
    inside = changes[(changes > scale.low) & (changes < scale.high)]
    edges = np.concatenate(([scale.low], inside, [scale.high]))
    depths = num_ready(batches, edges[:-1])
    most = max(1.0, float(depths.max()))
    path = columns([scale(at) for at in edges.tolist()], (depths / most).tolist(), height=READY)
    drawn = tag(
        "svg",
        tag("title", f"Batches ready and not yet handed over: at most {most:.0f}"),
        tag("path", d=path, class_="ready"),
        viewBox=f"0 0 1000 {READY}",
        preserveAspectRatio="none",
        x=0,
        y=layout.ready,
        width="100%",
        height=READY,
    )
    return drawn, most


def _longest(batches: Batches) -> Markup:
    """Return a table of the longest waits."""
    order = np.argsort(-batches.waits, kind="stable")[:20].tolist()
    rows = [
        (
            f"{batches.first + at:,}",
            format_duration(float(batches.asked[at])),
            format_duration(float(batches.waits[at])),
            format_duration(float(batches.stepped[at] - batches.handed[at])),
            format_duration(float(batches.made[at] - batches.began[at])),
            batches.maker(at) or UNKNOWN,
        )
        for at in order
    ]
    head = ("batch", "requested at", "wait", "step", "loaded in", "by")
    return table(head, rows, caption=f"The {format_count(len(rows), 'longest wait', 'longest waits')}")
