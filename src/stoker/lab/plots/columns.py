"""Fit tables to the terminal width by dropping columns; numbers are never truncated."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

MANY = 1000
"""Wider than any table."""


def fit_to_width(build: Callable[[Collection[str]], Table], *, spare: Sequence[str], width: int) -> Table:
    """Return the table that `build` makes, no wider than `width` if possible.

    `build` receives the names of the columns to drop: as many of `spare` as necessary, in that order. If that is not
    enough, the result is wider, and the caller prints it without wrapping.
    """
    table = build(())
    for number in range(1, len(spare) + 1):
        if table_width(table) <= width:
            break
        table = build(spare[:number])
    return table


def table_of_rows(rows: Sequence[Mapping[str, str]], *, texts: str, spare: Sequence[str], width: int) -> Table:
    """Return a table of rows, which map column names to cells. The column `texts` is not numeric."""

    def build(left_out: Collection[str]) -> Table:
        table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
        names = [name for name in rows[0] if name not in left_out]
        for name in names:
            table.add_column(name, justify="left" if name == texts else "right", no_wrap=True)
        for row in rows:
            table.add_row(*(row[name] for name in names))
        return table

    return fit_to_width(build, spare=spare, width=width)


def table_width(table: Table) -> int:
    """Return the width of a table in characters, with nothing truncated."""
    return Console(width=MANY).measure(table).maximum
