"""Draw loaders in the terminal: one panel each, or one line each if there are many."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from stoker.foundation.text import UNKNOWN, format_bytes, format_count, format_duration, format_number, format_percent
from stoker.lab.diagnose.diagnosis import Diagnosis
from stoker.lab.key_figures import process_memory
from stoker.lab.live.letters import Letters, bar, spark, warmth
from stoker.lab.live.panel import format_on_one_line, panel, row_names
from stoker.lab.live.track import Track, Tracks
from stoker.lab.watch.run import Stats

MAX_PANELS = 3
"""Above this number, loaders get one line each."""

BAR, CURVE = 12, 20
"""Widths of a bar and of a sparkline in the table of many loaders, in characters."""


def frame(
    tracks: Tracks,
    *,
    diagnosis: Diagnosis | None = None,
    ages: dict[str, float] | None = None,
    remarks: Sequence[str] = (),
    letters: Letters | None = None,
    height: int | None = None,
) -> RenderableType:
    """Return the current state of all loaders, as wide as the terminal.

    Args:
        diagnosis: the diagnosis of all of them together.
        ages: seconds since each source was last written to.
        remarks: more lines to show below.
        height: available lines; the least important rows are dropped to fit.
    """
    return _LiveFrame(tracks, diagnosis, dict(ages or {}), list(remarks), letters or Letters(), height)


def verdict(diagnosis: Diagnosis, *, is_short: bool = False) -> Text:
    """Return the diagnosis on one or two lines; `is_short`: only the name of the verdict."""
    sign, style = ("\N{CHECK MARK}", "green") if diagnosis.is_healthy else ("!", "bold red")
    if diagnosis.verdict == "nothing-seen":
        sign, style = "?", "dim"
    return Text.assemble((f"{sign} {diagnosis.verdict}", style), "" if is_short else f"  {diagnosis.says}")


def line(track: Track) -> str:
    """Format a loader on one line, for files and pipes."""
    stats, now = track.latest, track.now
    parts = [
        f"{track.name} rank {stats.rank}" if stats.num_ranks > 1 else track.name,
        f"batch {stats.num_batches:,}",
        f"{format_number(now.samples_per_second) if now else UNKNOWN} samples/s",
        f"step p50 {format_duration(stats.step_seconds.p50)} p99 {format_duration(stats.step_seconds.p99)}",
        f"waiting {format_percent(now.wait_share if now else None)}",
        f"queue {UNKNOWN if stats.queue_depth is None else format_number(stats.queue_depth, 2)}",
        f"memory {format_bytes(_memory(stats))}",
    ]
    return "  ".join(parts)


@dataclass
class _LiveFrame:
    """A rich renderable that adapts to the size of the terminal."""

    tracks: Tracks
    diagnosis: Diagnosis | None
    ages: dict[str, float]
    remarks: list[str]
    letters: Letters
    height: int | None
    _found: list[Track] = field(init=False)

    def __post_init__(self) -> None:
        self._found = self.tracks.all

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for drawn in self._versions(options.max_width):
            if self.height is None or len(console.render_lines(drawn, options.reset_height())) <= self.height:
                break
        yield drawn

    def _versions(self, width: int) -> Iterator[RenderableType]:
        """Yield renderings with fewer and fewer rows."""
        if len(self._found) > MAX_PANELS:
            num = len(self._found)
            yield self._drawn(self._table(num, width))
            for shown in range(num, 0, -1):
                yield self._drawn(self._table(shown, width), is_short=True)
        else:
            is_short, rows = False, row_names()
            for num_rows in range(len(rows), 1, -1):
                panels = [self._panel(one, width, rows[:num_rows]) for one in self._found]
                yield self._drawn(panels, is_short=is_short)
                if (
                    not is_short and rows[num_rows - 1] == "auto"
                ):  # the remaining rows are more useful than the sentence
                    is_short = True
                    yield self._drawn(panels, is_short=True)
        lines = [format_on_one_line(one, age=self.ages.get(one.source), width=width) for one in self._found]
        yield self._drawn(lines, is_short=True)
        for shown in range(len(lines), 0, -1):
            yield Group(*lines[:shown])

    def _drawn(self, loaders: Sequence[RenderableType], *, is_short: bool = False) -> RenderableType:
        above = [verdict(self.diagnosis, is_short=is_short)] if self.diagnosis is not None else []
        return Group(*above, *loaders, *self._slowest(), *(Text(one, style="dim") for one in self.remarks))

    def _panel(self, track: Track, width: int, rows: Sequence[str]) -> RenderableType:
        age = self.ages.get(track.source)
        return panel(track, age=age, letters=self.letters, width=width, rows=rows)

    def _table(self, num: int, width: int) -> list[RenderableType]:
        """Return a table of `num` loaders including the slowest, and its age."""
        slowest = self.tracks.slowest
        shown = self._found[:num]
        if slowest is not None and slowest not in shown:
            shown[-1] = slowest
        drawn: list[RenderableType] = [_tracks_table(shown, slowest, self.letters, width=width)]
        notes = [f"{len(self._found) - num:,} more"] if num < len(self._found) else []
        known = [age for one in self._found if (age := self.ages.get(one.source)) is not None]
        if known:
            youngest, oldest = (format_duration(max(0.0, round(age))) for age in (min(known), max(known)))
            notes.append(f"{youngest} ago" if youngest == oldest else f"{youngest} to {oldest} ago")
        return [*drawn, Text(", ".join(notes), style="dim")] if notes else drawn

    def _slowest(self) -> list[Text]:
        slowest = self.tracks.slowest
        if slowest is None:
            return []
        wait = format_duration(slowest.latest.wait_seconds.mean)
        return [Text(f"slowest: rank {slowest.latest.rank}, which waits {wait} per batch for data", style="bold")]


@dataclass(frozen=True, slots=True, eq=False)
class _TrackColumn:
    """A column of the table of many loaders."""

    head: str
    cells: list[Text]
    worth: int
    """Columns of lower value are dropped first."""
    is_number: bool = True

    @property
    def width(self) -> int:
        return 2 + max(cell_len(self.head), *(cell.cell_len for cell in self.cells))


def _tracks_table(tracks: Sequence[Track], slowest: Track | None, letters: Letters, *, width: int) -> Table:
    """Return a table with a row per loader, at most `width` characters wide."""
    columns = _columns(tracks, slowest, letters)
    kept: list[_TrackColumn] = []
    for one in sorted(columns, key=lambda column: -column.worth):
        if kept and sum(other.width for other in kept) + one.width > width:
            break
        kept.append(one)
    shown = [one for one in columns if one in kept]
    table = Table(box=None, padding=(0, 1), header_style="dim")
    for one in shown:
        table.add_column(one.head, justify="right" if one.is_number else "left", overflow="fold")
    for number, track in enumerate(tracks):
        table.add_row(*(one.cells[number] for one in shown), style="bold" if track is slowest else None)
    return table


def _columns(tracks: Sequence[Track], slowest: Track | None, letters: Letters) -> list[_TrackColumn]:
    """Return all columns, from left to right."""
    latest = [track.latest for track in tracks]
    shares = [track.now.wait_share if track.now else track.latest.wait_share for track in tracks]
    speeds = [track.now.samples_per_second if track.now else track.latest.samples_per_second for track in tracks]
    is_one_name = len({track.name for track in tracks}) == 1
    ranks = [f"{track.latest.rank}{' slowest' if track is slowest else ''}" for track in tracks]
    curves = [
        Text(spark((one.samples_per_second for one in track.spans), CURVE, letters), style="cyan") for track in tracks
    ]
    return [
        _TrackColumn("loader", [Text(track.name) for track in tracks], 5 if is_one_name else 12, is_number=False),
        _TrackColumn("rank", [*map(Text, ranks)], 11),
        _TrackColumn("batches", [Text(format_count(one.num_batches)) for one in latest], 8),
        _TrackColumn("samples/s", [Text(format_number(speed)) for speed in speeds], 10),
        _TrackColumn("step p50", [Text(format_duration(one.step_seconds.p50)) for one in latest], 7),
        _TrackColumn("p99", [Text(format_duration(one.step_seconds.p99)) for one in latest], 6),
        _TrackColumn("waiting", [Text(format_percent(share)) for share in shares], 9),
        _TrackColumn("", [bar(share, BAR, letters, warmth(share)) for share in shares], 1, is_number=False),
        _TrackColumn(
            "queue",
            [Text(UNKNOWN if one.queue_depth is None else format_number(one.queue_depth, 2)) for one in latest],
            4,
        ),
        _TrackColumn("CPU", [Text(_cores(track)) for track in tracks], 2),
        _TrackColumn("memory", [Text(format_bytes(_memory(one))) for one in latest], 3),
        _TrackColumn("samples/s", curves, 0, is_number=False),
    ]


def _cores(track: Track) -> str:
    now = track.now
    used = [one for one in ((now.workers_cores, now.trainer_cores) if now else ()) if one is not None]
    return format_number(sum(used), 2) if used else UNKNOWN


def _memory(stats: Stats) -> float | None:
    """Return the memory of a loader's trainer and workers together; None if not measured."""
    return sum(size or 0 for size in process_memory(stats)) or None
