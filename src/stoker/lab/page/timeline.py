"""Timeline of batches: an overview of all, and a detail of some; the page's script scrolls and zooms.

Without the script, the page shows the overview and, below it, the detail around the longest wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from markupsafe import Markup

from stoker.foundation.text import UNKNOWN, format_count, format_duration, format_percent
from stoker.lab.page.recorded_batches import RecordedBatches, busy_share, num_ready, to_script_data
from stoker.lab.page.reported_run import ReportedLoader
from stoker.lab.page.scales import AxisScale, column_path
from stoker.lab.page.templating import missing_figure, render

NUM_SHOWN = 64
"""Batches in the initial detail view."""

NUM_COLUMNS = 320
"""Columns of the overview."""

OVERVIEW = 44
"""Height of the overview in pixels."""

ROW, READY, GAP = 20, 40, 8
"""Heights of the training loop's rows, of the ready batches, and of the gaps, in pixels; `page.js` has them too."""

STEP_TOP, WAIT_TOP, READY_TOP = 0, ROW + 2, 2 * (ROW + 2) + GAP


class _Block(NamedTuple):
    """A rectangle of the detail view; x and width as shares of its width, the rest in pixels."""

    kind: str
    x: float
    width: float
    y: float
    height: float
    label: str


def timeline(loader: ReportedLoader, *, ident: str, of: str = "") -> Markup:
    """Return the timeline of a loader's latest batches."""
    title = f"Timeline of batches{of}"
    batches = loader.batches
    if batches is None:
        return missing_figure(title, "No individual batches were recorded, so there is no timeline.")
    num_lanes = len(batches.lanes)
    lane = 18 if num_lanes <= 8 else 12 if num_lanes <= 16 else 8
    lanes_top = READY_TOP + (READY + GAP if batches.is_ahead else 0)
    begin, end, where = _first_window(batches)
    window = AxisScale(begin, end)
    ready, most_ready = _ready_path(batches, window) if batches.is_ahead else (None, 0.0)
    labels = [(STEP_TOP + ROW / 2, "step", ""), (WAIT_TOP + ROW / 2, "wait", "")]
    if ready:
        labels.append((READY_TOP + READY / 2, f"0\N{EN DASH}{most_ready:.0f} ready", "depth"))
    every = 1 if lane >= 12 else 4
    labels += [(lanes_top + (at + 0.5) * lane, name, "") for at, name in enumerate(batches.lanes) if at % every == 0]
    return render(
        "timeline.html",
        title=title,
        ident=ident,
        lead=_lead(loader, batches, begin, end, where),
        batches=batches,
        begin=begin,
        end=end,
        overview=_overview(batches, begin, end),
        labels=[label for label in labels if label[1]],
        lane=lane,
        height=lanes_top + num_lanes * lane if num_lanes else READY_TOP - GAP,
        loop_blocks=[one for one in _loop_blocks(batches, window) if one],
        loading_blocks=[one for one in _loading_blocks(batches, window, lanes_top, lane) if one],
        ready={"path": ready, "most": most_ready, "top": READY_TOP, "height": READY} if ready else None,
        times=window.time_axis(),
        data_for_script=to_script_data(batches),
        longest=_longest_waits(batches),
    )


def _lead(loader: ReportedLoader, batches: RecordedBatches, begin: float, end: float, where: str) -> str:
    latest = f" (the latest of {loader.stats.num_batches:,})" if batches.first else ""
    seconds = format_duration(batches.end - batches.begin)
    lead = f"{format_count(len(batches), 'batch', 'batches')}{latest} over {seconds}."
    if len(batches) == 1:
        return lead
    first, last = (int(np.searchsorted(batches.handed, at)) for at in (begin, end))
    last = min(last, len(batches) - 1)
    return f"{lead} Below: batches {batches.first + first:,} to {batches.first + last:,}{where}."


def _first_window(batches: RecordedBatches) -> tuple[float, float, str]:
    """Return the initial time window, and where it lies."""
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
    where = f", around the longest wait ({format_duration(float(waits[longest]))})" if is_stall else ", from the middle"
    return float(batches.asked[first]), float(end), where


def _overview(batches: RecordedBatches, begin: float, end: float) -> dict[str, object]:
    """Return shares of step and wait over all batches, and the place of the window among them."""
    edges = np.linspace(batches.begin, max(batches.end, batches.begin + 1e-6), NUM_COLUMNS + 1)
    steps = busy_share(batches.handed, batches.stepped, edges)
    waits = busy_share(batches.asked, batches.handed, edges)
    scale = AxisScale(float(edges[0]), float(edges[-1]))
    places = [scale(edge) for edge in edges.tolist()]
    return {
        "height": OVERVIEW,
        "waiting": format_percent(float(waits.mean())),
        "paths": [
            {"kind": "step", "d": column_path(places, steps.tolist(), height=OVERVIEW)},
            {"kind": "wait", "d": column_path(places, (1 - waits).tolist(), height=OVERVIEW, base=1.0)},
        ],
        "x": scale(begin),
        "width": scale(end) - scale(begin),
    }


def _block(
    window: AxisScale, begin: float, end: float, kind: str, y: float, height: float, label: str
) -> _Block | None:
    """Return a block; None if it is outside the window, or its times are unknown."""
    if not (end >= window.low and begin <= window.high):
        return None
    left, right = window(begin), window(end)
    return _Block(kind, left, right - left, y, height, label)


def _loop_blocks(batches: RecordedBatches, window: AxisScale) -> Iterator[_Block | None]:
    """Yield the wait for each batch in the window, and the step on it."""
    ends = np.fmax(batches.handed, batches.stepped)
    [inside] = np.nonzero((ends >= window.low) & (batches.asked <= window.high))
    for at in inside.tolist():
        asked, handed, stepped = batches.asked[at], batches.handed[at], batches.stepped[at]
        name = f"batch {batches.first + at:,}"
        yield _block(window, asked, handed, "wait", WAIT_TOP, ROW, f"{name}: waited {format_duration(handed - asked)}")
        yield _block(
            window, handed, stepped, "step", STEP_TOP, ROW, f"{name}: step {format_duration(stepped - handed)}"
        )


def _loading_blocks(batches: RecordedBatches, window: AxisScale, top: float, lane: int) -> list[_Block | None]:
    """Return the sending of batches below their loading: the next one may be loading while one is being sent."""
    made_of, sent_of = [], []
    height = lane - (3 if lane >= 12 else 1)
    [inside] = np.nonzero((batches.sent >= window.low) & (batches.began <= window.high) & (batches.lane >= 0))
    for at in inside.tolist():
        y = top + int(batches.lane[at]) * lane
        began, made, sent = batches.began[at], batches.made[at], batches.sent[at]
        label = f"batch {batches.first + at:,}: loaded in {format_duration(made - began)}"
        made_of.append(_block(window, began, made, "load", y, height, label))
        if sent > made:
            sent_of.append(_block(window, made, sent, "send", y, height, f"sent in {format_duration(sent - made)}"))
    return sent_of + made_of


def _ready_path(batches: RecordedBatches, window: AxisScale) -> tuple[str, float]:
    """Return the number of ready batches over time as a path, and its maximum."""
    changes = np.unique(np.concatenate((batches.sent, batches.handed)))
    inside = changes[(changes > window.low) & (changes < window.high)]
    edges = np.concatenate(([window.low], inside, [window.high]))
    depths = num_ready(batches, edges[:-1])
    most = max(1.0, float(depths.max()))
    return column_path([window(at) for at in edges.tolist()], (depths / most).tolist(), height=READY), most


def _longest_waits(batches: RecordedBatches) -> list[tuple[str, ...]]:
    order = np.argsort(-batches.waits, kind="stable")[:20].tolist()
    return [
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
