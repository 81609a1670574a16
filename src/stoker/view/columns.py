"""Tables for terminals of any width: columns are left out where there is no room, and numbers never cut."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

MANY = 1000
"""More columns of a terminal than any table has."""


def narrowed(build: Callable[[Collection[str]], Table], *, spare: Sequence[str], width: int) -> Table:
    """Return the table that `build` makes, no wider than `width` if that can be.

    It is given the names of the columns to leave out: as many as need be of `spare`, in that order. If all of them are
    not enough, what is left is wider, and whoever prints it lets its lines run on.
    """
    table = build(())
    for number in range(1, len(spare) + 1):
        if width_of(table) <= width:
            break
        table = build(spare[:number])
    return table


def table_of_rows(rows: Sequence[Mapping[str, str]], *, texts: str, spare: Sequence[str], width: int) -> Table:
    """Return a table of rows, each with the same columns, by their names. The column `texts` has no numbers in it."""

    def build(left_out: Collection[str]) -> Table:
        table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
        names = [name for name in rows[0] if name not in left_out]
        for name in names:
            table.add_column(name, justify="left" if name == texts else "right", no_wrap=True)
        for row in rows:
            table.add_row(*(row[name] for name in names))
        return table

    return narrowed(build, spare=spare, width=width)


def width_of(table: Table) -> int:
    """Return how many columns of a terminal a table takes when nothing of it is cut."""
    return Console(width=MANY).measure(table).maximum
