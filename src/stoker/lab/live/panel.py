"""Panel of one loader in the terminal: recent and overall figures.

On narrow terminals, bars and sparklines are dropped and text is never cut; on short ones, the least important rows are
dropped.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from stoker.foundation.text import (
    UNKNOWN,
    format_bytes,
    format_cores,
    format_count,
    format_duration,
    format_number,
    format_percent,
)
from stoker.lab.key_figures import TERMINAL, Measured, figures_for, process_memory
from stoker.lab.live.letters import Letters, bar, spark, warmth
from stoker.lab.live.track import Track
from stoker.lab.watch.run import STAGES, Quantiles, Run, Stats

BAR, STAGE_BAR, CURVE = 24, 12, 40
"""Maximum widths of a bar, of a stage's bar, and of a sparkline, in characters."""

LEAST_BAR = 8
"""Bars and sparklines shorter than this are dropped."""

LABEL = 12
"""Width of the row names, in characters."""

NARROW = 36
"""Terminals narrower than this have no frame and no column of names."""


def row_names() -> list[str]:
    """Return the names of a panel's rows, the most important first."""
    figures = [figure.label for figure in figures_for(TERMINAL)]
    return ["throughput", "waiting", *figures, "step", "stages", "auto", "memory", "CPU"]


def panel(track: Track, *, age: float | None, letters: Letters, width: int, rows: Collection[str]) -> RenderableType:
    """Return the panel of a loader, `width` characters wide, with the first rows only."""
    is_narrow = width < NARROW
    room = width if is_narrow else width - 4 - LABEL
    cells = [(name, cell) for name, cell in _cells(track, letters, room) if name in rows]
    title = Text(_title(track), style="bold")
    batches = format_count(track.latest.num_batches, "batch", "batches")
    subtitle = Text(batches + _ago(age), style="dim")
    if is_narrow:
        lines = [Group(Text(name, style="dim"), cell) for name, cell in cells]
        return Group(title, *lines, subtitle)
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True, min_width=LABEL - 2)
    grid.add_column()
    for name, cell in cells:
        grid.add_row(name, cell)
    is_fitting = title.cell_len <= width - 6  # a name too long for the frame goes above it
    framed = Panel(
        grid,
        title=title if is_fitting else None,
        title_align="left",
        subtitle=subtitle,
        subtitle_align="right",
        border_style="dim",
        width=width,
    )
    return framed if is_fitting else Group(title, framed)


def format_on_one_line(track: Track, *, age: float | None, width: int) -> Text:
    """Return throughput and waiting on one line, for short terminals; with the loader's name if it fits."""
    now = track.present
    text = Text(
        f"{format_number(now.samples_per_second)} samples/s, waiting {format_percent(now.wait_share)}{_ago(age)}"
    )
    title = f"  {_title(track)}"
    return text.append(title, style="dim") if text.cell_len + cell_len(title) <= width else text


def _cells(track: Track, letters: Letters, room: int) -> Iterator[tuple[str, RenderableType]]:
    """Yield the rows with their names, each at most `room` characters wide."""
    stats = track.latest
    yield "throughput", _throughput(track, letters, room)
    yield "step", Text(f"{_quantiles(stats.step_seconds)}; from batch to batch {_quantiles(stats.batch_seconds)}")
    yield "waiting", _waiting(track, letters, room)
    measured = Measured(stats=stats, ranks=[stats], parts=[Run(loaders=[stats])])
    for figure in figures_for(TERMINAL):
        if figure.value(measured) is not None:
            yield figure.label, Text(figure.describe(measured))
    if stats.seconds and any(one.busy_seconds or one.waiting_seconds for one in stats.stages.values()):
        yield "stages", _stages(stats, letters, room)
    yield "CPU", _cores(track, letters, room)
    yield "memory", Text(_format_memory(stats))
    if stats.decisions:
        yield "auto", Text(stats.decisions[-1])


def _quantiles(quantiles: Quantiles) -> str:
    return f"p50 {format_duration(quantiles.p50)}, p99 {format_duration(quantiles.p99)}"


def _throughput(track: Track, letters: Letters, room: int) -> Text:
    now, overall = (format_number(one.samples_per_second) for one in (track.present, track.latest))
    text = Text.assemble((f"{now} samples/s", "bold"), f"  {overall} overall")
    spans = list(track.spans)[-CURVE:]
    while len(spans) >= min(LEAST_BAR, len(track.spans)) > 0:
        span = format_duration(sum(one.seconds for one in spans))
        if text.cell_len + 4 + len(spans) + len(span) <= room:
            text.append(f"  {spark((one.samples_per_second for one in spans), CURVE, letters)}", style="cyan")
            text.append(f"  {span}", style="dim")
            break
        spans = spans[1:]  # keep the latest that fit
    return text


def _waiting(track: Track, letters: Letters, room: int) -> Text:
    stats, share = track.latest, track.present.wait_share
    text = (
        f"{format_percent(share)}, {format_percent(stats.wait_share)} overall; "
        f"{format_count(stats.num_stalls, 'stall')}, {format_duration(stats.stall_seconds)}"
    )
    length = min(BAR, room - cell_len(text) - 1)
    if length < LEAST_BAR:
        return Text(text)
    return Text.assemble(bar(share, length, letters, warmth(share)), f" {text}")


def _title(track: Track) -> str:
    stats = track.latest
    parts = [track.name]
    if stats.num_ranks > 1:
        parts.append(f"rank {stats.rank} of {stats.num_ranks}")
    parts.append(format_count(len(stats.workers), "worker") if stats.workers else stats.engine)
    return ", ".join(parts)


def _ago(age: float | None) -> str:
    return "" if age is None else f", {format_duration(max(0.0, round(age)))} ago"


def _stages(stats: Stats, letters: Letters, room: int) -> RenderableType:
    """Return the mean number of busy and of waiting workers of each stage."""
    shown = [(name, stats.stages[name]) for name in STAGES if name in stats.stages]
    shown = [(name, one) for name, one in shown if one.busy_seconds or one.waiting_seconds]
    most = max((max(one.busy_seconds, one.waiting_seconds) for _, one in shown), default=0.0) or 1.0
    lines = [
        (name, _at_a_time(one.busy_seconds, stats, "busy"), _at_a_time(one.waiting_seconds, stats, "waiting"))
        for name, one in shown
    ]
    widths = [max((cell_len(row[at]) for row in lines), default=0) for at in range(3)]
    if sum(widths) + 2 > room:
        return Text("\n".join(" ".join((name, ", ".join(filter(None, numbers)))) for name, *numbers in lines))
    length = min(STAGE_BAR, (room - sum(widths) - 4) // 2)
    grid = Table.grid(padding=(0, 1))
    for (name, busy, waiting), (_, one) in zip(lines, shown):
        row = [Text(name), Text(busy, style="dim"), Text(waiting, style="dim")]
        if length >= LEAST_BAR:
            row.insert(1, bar(one.busy_seconds / most, length, letters, "green"))
            row.insert(3, bar(one.waiting_seconds / most, length, letters, "yellow"))
        grid.add_row(*row)
    return grid


def _at_a_time(seconds: float, stats: Stats, what: str) -> str:
    return f"{format_number(seconds / stats.seconds, 2)} {what}" if seconds else ""


def _cores(track: Track, letters: Letters, room: int) -> Text:
    stats, now = track.latest, track.now
    text = Text()
    if now is not None and now.trainer_cores is not None:
        text.append(f"trainer {format_cores(now.trainer_cores)}")
    if now is not None and now.workers_cores is not None:
        text.append(f"{', ' if text else ''}workers {format_cores(now.workers_cores)}")
        each = [one.cpu_seconds / stats.seconds for one in stats.workers[:64] if stats.seconds]
        if text.cell_len + 1 + len(each) <= room:
            # scale from 0 to one core each, not to the busiest worker: idle workers should look idle
            text.append(f" {spark([*each, 1.0], 65, letters)[:-1]}", style="cyan")
    return text or Text(UNKNOWN)


def _format_memory(stats: Stats) -> str:
    sizes = zip(("trainer", "workers"), process_memory(stats))
    return ", ".join(f"{whose} {format_bytes(size)}" for whose, size in sizes if size is not None) or UNKNOWN
