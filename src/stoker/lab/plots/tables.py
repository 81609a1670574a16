"""Tables for the terminal, which leave out columns to fit its width; numbers are never truncated."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

MANY = 1000
"""Wider than any table."""


def table_of_rows(
    rows: Sequence[Mapping[str, str | Text]],
    *,
    texts: Collection[str] = (),
    spare: Sequence[str] = (),
    width: int,
    bold: int | None = None,
) -> Table:
    """Return a table of rows, which map column heads to cells; a missing cell is empty.

    Args:
        texts: columns that are not numbers.
        spare: if the table would be wider than `width`, columns whose heads begin with these are left out, in order.
        bold: the row to emphasize.
    """
    heads = dict.fromkeys(head for row in rows for head in row)

    def build(left_out: Collection[str]) -> Table:
        table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
        shown = [head for head in heads if not head.startswith(tuple(left_out))]
        for head in shown:
            table.add_column(head, justify="left" if head in texts else "right", no_wrap=True)
        for number, row in enumerate(rows):
            table.add_row(*(row.get(head, "") for head in shown), style="bold" if number == bold else "")
        return table

    return fit_to_width(build, spare=spare, width=width)


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


def table_width(table: Table) -> int:
    """Return the width of a table in characters, with nothing truncated."""
    return Console(width=MANY).measure(table).maximum


def shorten_target(target: str) -> str:
    """Return the name of a function without its folder."""
    return target.rpartition("/")[2]
