"""Draw loaders in the terminal: one panel each, or one line each if there are many."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

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
        f"queue {format_number(stats.queue_depth, 2)}",
        f"memory {format_bytes(_memory(stats))}",
    ]
    return "  ".join(parts)


class LiveFrame:
    """The current state of all loaders, as wide as the terminal: a rich renderable.

    Args:
        diagnosis: the diagnosis of all of them together.
        ages: seconds since each source was last written to.
        remarks: more lines to show below.
        height: available lines; the least important rows are dropped to fit.
    """

    def __init__(
        self,
        tracks: Tracks,
        *,
        diagnosis: Diagnosis | None = None,
        ages: Mapping[str, float] | None = None,
        remarks: Sequence[str] = (),
        letters: Letters | None = None,
        height: int | None = None,
    ) -> None:
        self.slowest = tracks.slowest
        self.tracks = tracks.all  # as it is now: more records may come before it is drawn
        self.diagnosis, self.remarks, self.height = diagnosis, remarks, height
        self.ages, self.letters = ages or {}, letters or Letters()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for drawn in self._versions(options.max_width):
            if self.height is None or len(console.render_lines(drawn, options.reset_height())) <= self.height:
                break
        yield drawn

    def _versions(self, width: int) -> Iterator[RenderableType]:
        """Yield renderings with fewer and fewer rows."""
        if len(self.tracks) > MAX_PANELS:
            num = len(self.tracks)
            yield self._drawn(self._table(num, width))
            for shown in range(num, 0, -1):
                yield self._drawn(self._table(shown, width), is_short=True)
        else:
            is_short, rows = False, row_names()
            for num_rows in range(len(rows), 1, -1):
                panels = [self._panel(one, width, rows[:num_rows]) for one in self.tracks]
                yield self._drawn(panels, is_short=is_short)
                if not is_short and rows[num_rows - 1] == "auto":
                    is_short = True  # the remaining rows are more useful than the sentence
                    yield self._drawn(panels, is_short=True)
        lines = [format_on_one_line(one, age=self.ages.get(one.source), width=width) for one in self.tracks]
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
        slowest = self.slowest
        shown = self.tracks[:num]
        if slowest is not None and slowest not in shown:
            shown[-1] = slowest
        drawn: list[RenderableType] = [_tracks_table(shown, slowest, self.letters, width=width)]
        notes = [f"{len(self.tracks) - num:,} more"] if num < len(self.tracks) else []
        known = [age for one in self.tracks if (age := self.ages.get(one.source)) is not None]
        if known:
            youngest, oldest = (format_duration(max(0.0, round(age))) for age in (min(known), max(known)))
            notes.append(f"{youngest} ago" if youngest == oldest else f"{youngest} to {oldest} ago")
        return [*drawn, Text(", ".join(notes), style="dim")] if notes else drawn

    def _slowest(self) -> list[Text]:
        slowest = self.slowest
        if slowest is None:
            return []
        wait = format_duration(slowest.latest.wait_seconds.mean)
        return [Text(f"slowest: rank {slowest.latest.rank}, which waits {wait} per batch for data", style="bold")]


class _TrackColumn(NamedTuple):
    """A column of the table of many loaders."""

    head: str
    worth: int
    """Columns of lower value are dropped first."""
    cell: Callable[[Track], str | Text]
    is_number: bool = True


def _tracks_table(tracks: Sequence[Track], slowest: Track | None, letters: Letters, *, width: int) -> Table:
    """Return a table with a row per loader, at most `width` characters wide."""
    columns = _columns(slowest, letters, are_alike=len({track.name for track in tracks}) == 1)
    cells = [[Text.assemble(column.cell(track)) for track in tracks] for column in columns]
    widths = [2 + max(cell_len(column.head), *(cell.cell_len for cell in its)) for column, its in zip(columns, cells)]
    kept: list[int] = []
    for at in sorted(range(len(columns)), key=lambda at: -columns[at].worth):
        if kept and sum(widths[other] for other in kept) + widths[at] > width:
            break
        kept.append(at)
    table = Table(box=None, padding=(0, 1), header_style="dim")
    for at in sorted(kept):
        table.add_column(columns[at].head, justify="right" if columns[at].is_number else "left", overflow="fold")
    for number, track in enumerate(tracks):
        table.add_row(*(cells[at][number] for at in sorted(kept)), style="bold" if track is slowest else None)
    return table


def _columns(slowest: Track | None, letters: Letters, *, are_alike: bool) -> list[_TrackColumn]:
    """Return all columns, from left to right."""

    def waiting(track: Track) -> Text:
        share = track.present.wait_share
        return bar(share, BAR, letters, warmth(share))

    def curve(track: Track) -> Text:
        return Text(spark((one.samples_per_second for one in track.spans), CURVE, letters), style="cyan")

    return [
        _TrackColumn("loader", 5 if are_alike else 12, lambda track: track.name, is_number=False),
        _TrackColumn("rank", 11, lambda track: f"{track.latest.rank}{' slowest' if track is slowest else ''}"),
        _TrackColumn("batches", 8, lambda track: format_count(track.latest.num_batches)),
        _TrackColumn("samples/s", 10, lambda track: format_number(track.present.samples_per_second)),
        _TrackColumn("step p50", 7, lambda track: format_duration(track.latest.step_seconds.p50)),
        _TrackColumn("p99", 6, lambda track: format_duration(track.latest.step_seconds.p99)),
        _TrackColumn("waiting", 9, lambda track: format_percent(track.present.wait_share)),
        _TrackColumn("", 1, waiting, is_number=False),
        _TrackColumn("queue", 4, lambda track: format_number(track.latest.queue_depth, 2)),
        _TrackColumn("CPU", 2, _cores),
        _TrackColumn("memory", 3, lambda track: format_bytes(_memory(track.latest))),
        _TrackColumn("samples/s", 0, curve, is_number=False),
    ]


def _cores(track: Track) -> str:
    now = track.now
    used = [one for one in ((now.workers_cores, now.trainer_cores) if now else ()) if one is not None]
    return format_number(sum(used), 2) if used else UNKNOWN


def _memory(stats: Stats) -> float | None:
    """Return the memory of a loader's trainer and workers together; None if not measured."""
    return sum(size or 0 for size in process_memory(stats)) or None
