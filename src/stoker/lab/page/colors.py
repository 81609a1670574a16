"""Colors of the page, for light and dark mode.

Mark colors are distinguishable for color-blind readers and have a contrast of at least 3:1; text has 4.5:1.
`tests/view/test_report_colors.py` checks this. No information is carried by color alone: marks also differ in row,
order or words.
"""

from __future__ import annotations

LIGHT = {
    "ground": "#f3f5f7",
    "paper": "#ffffff",
    "ink": "#1b2027",
    "faint": "#56606b",
    "line": "#d4d9df",
    "soft": "#eaedf1",
    "step": "#0a68b0",
    "wait": "#c94f07",
    "load": "#02866a",
    "send": "#e05aa8",
    "turn": "#8a6a00",
    "other": "#505860",
    "focus": "#0a68b0",
    "heat0": "#eef1f4",
    "heat1": "#c6dbee",
    "heat2": "#93bfe2",
    "heat3": "#5598cf",
    "heat4": "#2170b0",
    "heat5": "#07437d",
}

DARK = {
    "ground": "#0e1116",
    "paper": "#171b21",
    "ink": "#e7eaee",
    "faint": "#a5afba",
    "line": "#363d47",
    "soft": "#222831",
    "step": "#58aff2",
    "wait": "#ff8f52",
    "load": "#3cc8a0",
    "send": "#f5bce2",
    "turn": "#dcbc3e",
    "other": "#7c838a",
    "focus": "#8cc8f7",
    "heat0": "#20262e",
    "heat1": "#1d3a57",
    "heat2": "#1f5683",
    "heat3": "#2b7db6",
    "heat4": "#5fb0e6",
    "heat5": "#b9e0fb",
}

NUM_HEATS = 6

MARKS = ("step", "wait", "load", "send", "turn", "other")
"""Colors of bars, lines and areas."""


def style() -> str:
    """Return the colors as CSS: light, dark if the system prefers it, and light for printing."""
    light, dark = _to_css(LIGHT), _to_css(DARK)
    return (
        f":root{{color-scheme:light dark;{light}}}\n"
        f"@media (prefers-color-scheme:dark){{:root{{{dark}}}}}\n"
        f"@media print{{:root{{color-scheme:light;{light}}}}}\n"
    )


def _to_css(colors: dict[str, str]) -> str:
    return "".join(f"--{name}:{value};" for name, value in colors.items())
