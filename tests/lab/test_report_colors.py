"""The colors of the report: everybody can read it, in light and in dark."""

from __future__ import annotations

import re
from importlib.resources import files
from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray

from stoker.lab.page.machine_use import NUM_HEATS

CSS = files("stoker.lab.page").joinpath("page.css").read_text("utf-8")
LIGHT, DARK = (dict(re.findall(r"--(\w+):(#\w+)", block)) for block in re.findall(r":root\{[^}]*--[^}]*\}", CSS))
MARKS = ("step", "wait", "load", "send", "turn", "other")
"""Colors of bars, lines and areas."""

SCHEMES = pytest.mark.parametrize("colors", [LIGHT, DARK], ids=["light", "dark"])

# How colors look to people without one kind of cone (Viénot, Brettel and Mollon 1999), in linear RGB.
EYES = {
    "all cones": np.eye(3),
    "no red cones": np.array([[0.11238, 0.88762, 0.0], [0.11238, 0.88762, 0.0], [0.00401, -0.00401, 1.0]]),
    "no green cones": np.array([[0.29275, 0.70725, 0.0], [0.29275, 0.70725, 0.0], [-0.02234, 0.02234, 1.0]]),
}


def linear(color: str) -> NDArray[np.float64]:
    values = np.array([int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colors as WCAG has it, from 1 to 21."""
    bright, dark = sorted((float(linear(color) @ [0.2126, 0.7152, 0.0722]) for color in (one, other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def lab(rgb: NDArray[np.float64]) -> NDArray[np.float64]:
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ np.clip(rgb, 0, 1) / [0.95047, 1.0, 1.08883]
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def test_the_measure_of_contrast_is_the_known_one() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.01)


ON = {"ink": ("paper", "ground", "soft"), "faint": ("paper", "ground"), "step": ("paper", "ground")}
ON |= {"load": ("paper",), "wait": ("paper",), "paper": ("ink", "load", "wait")}
"""Text, and what it stands on: links are blue, better and worse have a color, and signs and tips are reversed."""


@SCHEMES
@pytest.mark.parametrize("text", ON)
def test_text_stands_out_from_what_is_behind_it(colors: dict[str, str], text: str) -> None:
    for behind in ON[text]:
        assert contrast(colors[text], colors[behind]) >= 4.5, behind


@SCHEMES
@pytest.mark.parametrize("mark", MARKS)
def test_marks_stand_out_from_the_paper(colors: dict[str, str], mark: str) -> None:
    assert contrast(colors[mark], colors["paper"]) >= 3


@SCHEMES
@pytest.mark.parametrize("eyes", EYES)
def test_marks_that_are_drawn_side_by_side_differ_for_every_kind_of_eye(colors: dict[str, str], eyes: str) -> None:
    together = [("step", "wait", "load", "send"), ("load", "turn", "send", "other"), ("step", "load", "other")]
    for marks in together:
        for one, other in combinations(marks, 2):
            seen = (lab(EYES[eyes] @ linear(colors[name])) for name in (one, other))
            difference = float(np.linalg.norm(np.subtract(*seen)))
            assert difference > 12, f"{one} and {other} look alike: {difference:.0f}"


@SCHEMES
def test_strips_of_cores_get_steadily_further_from_the_paper(colors: dict[str, str]) -> None:
    steps = [contrast(colors[f"heat{at}"], colors["paper"]) for at in range(NUM_HEATS)]
    assert steps == sorted(steps)
    assert min(np.diff(steps)) > 0.15


def test_both_schemes_have_the_same_names_and_paper_is_light() -> None:
    assert LIGHT.keys() == DARK.keys()
    assert contrast(LIGHT["paper"], "#ffffff") == 1
    assert "@media screen and (prefers-color-scheme:dark){:root{" in CSS, "dark on screens, never on paper"
