"""Characters for bars and sparklines in a terminal."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text


@dataclass(frozen=True, slots=True)
class Letters:
    """Characters for bars and sparklines."""

    parts: str = "▏▎▍▌▋▊▉█"
    """Partial blocks, from the left; the last one is full."""
    empty: str = "\N{LIGHT SHADE}"
    heights: str = "▁▂▃▄▅▆▇█"

    @staticmethod
    def plain() -> Letters:
        """Return ASCII characters, which every terminal has."""
        return Letters(parts="#", empty=".", heights="_.-=+*#@")


def letters_of(console: Console) -> Letters:
    """Return the characters that a terminal can display."""
    return Letters.plain() if console.options.ascii_only else Letters()


def bar(share: float, width: int, letters: Letters, style: str) -> Text:
    """Return a bar filled to a share."""
    pieces = len(letters.parts)
    whole, rest = divmod(round(min(1.0, max(0.0, share)) * width * pieces), pieces)
    drawn = letters.parts[-1] * whole + (letters.parts[rest - 1] if rest else "")
    return Text.assemble((drawn, style), (letters.empty * (width - len(drawn)), "dim"))


def spark(values: Iterable[float], width: int, letters: Letters) -> str:
    """Return the latest values as a sparkline, scaled from 0 to the maximum."""
    shown = list(values)[-width:]
    top = max(shown, default=0.0)
    if top <= 0:
        return letters.heights[0] * len(shown)
    last = len(letters.heights) - 1
    return "".join(letters.heights[round(max(0.0, value) / top * last)] for value in shown)


def warmth(share: float) -> str:
    """Return the color for a share of waiting: green, yellow or red."""
    return "green" if share < 0.05 else "yellow" if share < 0.2 else "red"
