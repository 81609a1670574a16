"""Table of many loaders or ranks, one per line, with as many columns as fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from stoker.foundation.text import UNKNOWN, format_bytes, format_count, format_duration, format_number, format_percent
from stoker.lab.live.letters import Letters, bar, spark, warmth
from stoker.lab.live.panel import memory_of
from stoker.lab.live.track import Track

BAR, CURVE = 12, 20
"""Widths of a bar and of a sparkline, in characters."""


@dataclass(frozen=True, slots=True, eq=False)
class _Column:
    head: str
    cells: list[Text]
    worth: int
    """Columns of lower value are dropped first."""
    is_number: bool = True

    @property
    def width(self) -> int:
        return 2 + max(cell_len(self.head), *(cell.cell_len for cell in self.cells))


def tracks_table(tracks: Sequence[Track], slowest: Track | None, letters: Letters, *, width: int) -> Table:
    """Return a table with a row per loader, at most `width` characters wide."""
    columns = _columns(tracks, slowest, letters)
    kept: list[_Column] = []
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


def _columns(tracks: Sequence[Track], slowest: Track | None, letters: Letters) -> list[_Column]:
    """Return all columns, from left to right."""
    latest = [track.latest for track in tracks]
    shares = [track.now.wait_share if track.now else track.latest.wait_share for track in tracks]
    speeds = [track.now.samples_per_second if track.now else track.latest.samples_per_second for track in tracks]
    is_one_name = len({track.name for track in tracks}) == 1
    curves = [
        Text(spark((one.samples_per_second for one in track.spans), CURVE, letters), style="cyan") for track in tracks
    ]
    return [
        _Column("loader", [Text(track.name) for track in tracks], 5 if is_one_name else 12, is_number=False),
        _Column("rank", [Text(f"{track.latest.rank}{' slowest' if track is slowest else ''}") for track in tracks], 11),
        _Column("batches", [Text(format_count(one.num_batches)) for one in latest], 8),
        _Column("samples/s", [Text(format_number(speed)) for speed in speeds], 10),
        _Column("step p50", [Text(format_duration(one.step_seconds.p50)) for one in latest], 7),
        _Column("p99", [Text(format_duration(one.step_seconds.p99)) for one in latest], 6),
        _Column("waiting", [Text(format_percent(share)) for share in shares], 9),
        _Column("", [bar(share, BAR, letters, warmth(share)) for share in shares], 1, is_number=False),
        _Column(
            "queue",
            [Text(UNKNOWN if one.queue_depth is None else format_number(one.queue_depth, 2)) for one in latest],
            4,
        ),
        _Column("CPU", [Text(_cores(track)) for track in tracks], 2),
        _Column("memory", [Text(format_bytes(memory_of(one))) for one in latest], 3),
        _Column("samples/s", curves, 0, is_number=False),
    ]


def _cores(track: Track) -> str:
    now = track.now
    used = [one for one in ((now.workers_cores, now.trainer_cores) if now else ()) if one is not None]
    return format_number(sum(used), 2) if used else UNKNOWN
