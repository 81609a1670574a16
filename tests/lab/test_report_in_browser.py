"""The report in a real browser, opened from disk: it draws, it can be used, and it asks nobody for anything."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import stoker
from stoker.lab.page import RunReport
from stoker.lab.page.recorded_batches import batches_of
from stoker.lab.watch.run import Run
from tests.lab import chromium, runs
from tests.lab.chromium import Browser, Page
from tests.lab.test_report_colors import DARK, LIGHT

PAGES = ("healthy", "starved", "ranks", "one batch", "nothing", "compared")


def made(name: str) -> RunReport:
    if name == "compared":
        return stoker.report(runs.healthy(), against=runs.starved())
    found = {"healthy": runs.healthy, "starved": runs.starved, "ranks": runs.ranks, "one batch": runs.one_batch}
    return stoker.report(found[name]() if name in found else Run())


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    folder = tmp_path_factory.mktemp("profile")
    with chromium.browser(folder) as one:
        yield one
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    return {name: made(name).save(folder / f"{name.replace(' ', '-')}.html") for name in PAGES}


@pytest.fixture
def starved(browser: Browser, pages: dict[str, Path]) -> Iterator[Page]:
    """The page of a run whose trainer waits, scrolled to its timeline."""
    with browser.open(pages["starved"]) as page:
        page.js("document.querySelector('.timeline').scrollIntoView()")
        yield page
        assert page.complaints == []


def box(page: Page, what: str) -> tuple[float, float, float, float]:
    """Return where an element is on the screen: left, top, width, height."""
    answer = page.js(
        f"(() => {{ const b = document.querySelector({what!r}).getBoundingClientRect();"
        " return [b.left, b.top, b.width, b.height]; })()"
    )
    left, top, width, height = answer
    return left, top, width, height


def window(page: Page) -> tuple[float, float]:
    answer = page.js("(({begin, end}) => [Number(begin), Number(end)])(document.querySelector('.timeline').dataset)")
    return answer[0], answer[1]


OPENED = "document.querySelectorAll('details').forEach((one) => { one.open = true; })"

SETTLED = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))"
"""Two frames later, all that was to be drawn is."""


@pytest.mark.parametrize("name", PAGES)
def test_a_page_opens_from_disk_without_a_complaint_and_asks_for_nothing(
    browser: Browser, pages: dict[str, Path], name: str
) -> None:
    for dark in (False, True):
        with browser.open(pages[name], dark=dark) as page:
            assert page.js("document.documentElement.dataset.ready") == "yes"
            page.js(OPENED)
            page.js(SETTLED)
            assert page.complaints == []
            assert page.requests == [pages[name].as_uri()]


WIDER = """(() => {
  const room = document.documentElement.clientWidth;
  const scrolled = (one) => { for (; one; one = one.parentElement)
    if (['auto', 'scroll', 'hidden'].includes(getComputedStyle(one).overflowX)) return true; return false; };
  return [document.documentElement.scrollWidth - room, ...[...document.querySelectorAll('body *')]
    .filter((one) => one.getBoundingClientRect().right > room + 1 && !one.closest('svg'))
    .filter((one) => !scrolled(one.parentElement))
    .map((one) => one.tagName + '.' + one.className)];
})()"""


@pytest.mark.parametrize("width", [320, 390, 768, 1280, 2560])
@pytest.mark.parametrize("name", ["starved", "ranks", "compared"])
def test_nothing_is_wider_than_the_screen(browser: Browser, pages: dict[str, Path], name: str, width: int) -> None:
    with browser.open(pages[name], width=width) as page:
        assert page.js("innerWidth") == width
        assert page.js(WIDER) == [0]
        page.js(OPENED)
        page.js(SETTLED)
        assert page.js(WIDER) == [0]


CUT_OFF = """((what) => [...document.querySelectorAll(what)].filter((one) => one.getClientRects().length)
  .filter((one) => { const box = one.getBoundingClientRect(), room = one.closest('.scrolling, nav, body')
    .getBoundingClientRect(); return box.right > room.right + 1 || box.left < room.left - 1
    || one.scrollWidth > one.clientWidth + 1; })
  .map((one) => one.textContent))"""


@pytest.mark.parametrize("width", [320, 390])
def test_on_a_phone_settings_and_links_are_wrapped_and_not_cut_off(
    browser: Browser, tmp_path: Path, width: int
) -> None:
    slow, quick = runs.starved(), runs.healthy()
    [stats] = quick.loaders
    long = replace(stats, kind="torch", config=stats.config | {"dataset": "a.very.long.name.of.a.Dataset" * 3})
    short = replace(slow.loaders[0], config=slow.loaders[0].config | {"dataset": "Photos"})
    report = stoker.report(replace(quick, loaders=[long]), against=replace(slow, loaders=[short]))
    with browser.open(report.save(tmp_path / "page.html"), width=width) as page:
        page.js("document.querySelectorAll('details.settings').forEach((one) => { one.open = true; })")
        assert page.js("document.querySelectorAll('nav a').length") > 5
        assert page.js(f"{CUT_OFF}('nav a')") == []
        assert page.js(f"{CUT_OFF}('#differences tbody td, #differences tbody th, #settings td')") == []


def test_the_answer_of_a_comparison_is_seen_without_scrolling(browser: Browser, pages: dict[str, Path]) -> None:
    for width, height in ((1280, 900), (390, 844)):
        with browser.open(pages["compared"], width=width, height=height) as page:
            _, top, _, tall = box(page, ".answer")
            assert top + tall < height


CONTRASTS = """(() => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const bright = ([r, g, b]) => { const [x, y, z] = [r, g, b].map((v) => v / 255)
    .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * x + 0.7152 * y + 0.0722 * z; };
  const behind = (one) => { for (; one; one = one.parentElement) {
    const rgba = parse(getComputedStyle(one).backgroundColor); if (rgba.length === 3 || rgba[3] === 1) return rgba; }
    return [255, 255, 255]; };
  const found = {};
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const one = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || ['SCRIPT', 'STYLE', 'title'].includes(one.tagName)) continue;
    if (!one.getClientRects().length) continue;
    const pair = [bright(parse(getComputedStyle(one).color)), bright(behind(one))].sort((a, b) => b - a);
    const contrast = (pair[0] + 0.05) / (pair[1] + 0.05);
    const name = one.tagName + '.' + one.className;
    found[name] = Math.min(found[name] ?? 99, contrast);
  }
  return found;
})()"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_text_can_be_read_on_what_is_behind_it(browser: Browser, pages: dict[str, Path], dark: bool) -> None:
    with browser.open(pages["compared"], dark=dark) as page:
        page.js(OPENED)
        contrasts: dict[str, float] = page.js(CONTRASTS)
    assert len(contrasts) > 20
    assert {name: value for name, value in contrasts.items() if value < 4.5} == {}


def colors_in(path: Path) -> dict[str, int]:
    """Return how many pixels of an image have each color."""
    with Image.open(path) as image:
        found: Any = image.convert("RGB").getcolors(1 << 24)
    return {"#{:02x}{:02x}{:02x}".format(*color): count for count, color in found}


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280], ids=["phone", "desk"])
def test_the_image_has_the_colors_of_the_scheme(
    browser: Browser, pages: dict[str, Path], dark: bool, width: int, tmp_path: Path
) -> None:
    with browser.open(pages["starved"], dark=dark, width=width) as page:
        path = page.screenshot(tmp_path / "page.png")
    scheme, other = (DARK, LIGHT) if dark else (LIGHT, DARK)
    found = colors_in(path)
    for name in ("step", "wait", "load"):
        assert found[scheme[name]] > 2000, name
        assert found.get(other[name], 0) < 50, name
    assert found[scheme["heat1"]] > 1000
    assert found[scheme["paper"]] > sum(found.values()) / 3


def test_charts_have_the_marks_that_the_record_calls_for(browser: Browser, pages: dict[str, Path]) -> None:
    run = runs.starved()
    with browser.open(pages["starved"]) as page:
        count = page.js(
            "((...all) => all.map((one) => document.querySelectorAll(one).length))('.timeline', '.duration',"
            " '.duration .mark', '.shares rect', '#machine .layer', '.stages tbody tr', '#workers tbody tr',"
            " '.overview path', 'figure')"
        )
    [stats] = run.loaders
    parts = 3 + 5 + 2  # of the trainer's time, of the workers', and of the run's
    assert stats.sampled is not None
    lines = (1 + len(stats.workers)) + len(stats.sampled.places) + 5  # processes, places, copies
    assert count == [1, 4, 12, parts, 2 + 3, len(stats.stages), lines, 2, 9]


def test_the_timeline_is_the_same_with_and_without_the_script(browser: Browser, pages: dict[str, Path]) -> None:
    batches = batches_of(runs.starved().loaders[0])
    assert batches is not None
    with browser.open(pages["starved"], scripts=False) as still:
        begin, end = window(still)
        inside = ((batches.stepped >= begin) & (batches.handed <= end)).sum()
        assert still.js("document.querySelectorAll('svg.detail rect.step').length") == inside
        assert still.js("document.querySelectorAll('svg.detail rect.load').length") > 32
        assert still.js("document.querySelector('.tools').hidden")
        assert still.js("[...document.querySelectorAll('button')].every((one) => !one.offsetParent)")
        labels = still.js("[...document.querySelectorAll('.timeline .xs span')].map((one) => one.textContent)")
    with browser.open(pages["starved"]) as page:
        assert window(page) == (begin, end)
        assert abs(int(page.js("document.querySelector('.timeline').dataset.visible")) - inside) <= 1
        assert page.js("document.querySelector('.timeline').dataset.drawn") == "blocks"
        assert page.js("[...document.querySelectorAll('.timeline .xs span')].map((one) => one.textContent)") == labels


def test_buttons_show_all_batches_and_the_longest_wait(starved: Page) -> None:
    batches = batches_of(runs.starved().loaders[0])
    assert batches is not None
    starved.js("document.querySelector('[data-do=all]').click()")
    timeline = starved.js("({...document.querySelector('.timeline').dataset})")
    assert timeline["drawn"] == "columns"
    assert int(timeline["visible"]) == len(batches) == 4096
    assert window(starved) == pytest.approx((batches.begin, batches.end), abs=1e-4)
    starved.js("document.querySelector('[data-do=longest]').click()")
    longest = int(np.argmax(batches.waits[1:])) + 1
    begin, end = window(starved)
    assert begin < batches.asked[longest] < batches.handed[longest] < end
    assert starved.js("document.querySelector('.readout').textContent").startswith(
        f"Batch {batches.first + longest:,}:"
    )
    for button, grows in (("in", False), ("out", True), ("out", True)):
        before = np.subtract(*window(starved)[::-1])
        starved.js(f"document.querySelector('[data-do={button}]').click()")
        assert (np.subtract(*window(starved)[::-1]) > before) == grows


def test_keys_walk_from_batch_to_batch_and_zoom(starved: Page) -> None:
    starved.js("document.querySelector('svg.detail').focus()")
    starved.key("Home")
    read = "document.querySelector('.readout').textContent"
    assert starved.js(read).startswith("Batch 1,904:")  # the first of the latest 4096 of 6000
    starved.key("ArrowRight")
    assert starved.js(read).startswith("Batch 1,905: loaded by worker")
    starved.key("End")
    assert starved.js(read).startswith("Batch 5,999:")
    starved.key("ArrowLeft")
    assert starved.js(read).startswith("Batch 5,998:")
    before = window(starved)
    starved.key("+")
    assert np.subtract(*window(starved)) > np.subtract(*before)  # less of it: both are negative
    assert starved.js("document.querySelector('.chosen').getAttribute('d').length") > 10


def test_the_mouse_tells_about_what_it_points_at(starved: Page) -> None:
    left, top, width, _ = box(starved, "svg.detail")
    hidden = "document.getElementById('tip').hidden"
    starved.mouse("mouseMoved", left + 0.3 * width, top + 5)
    answer = starved.js("document.getElementById('tip').textContent")
    assert answer.startswith("Batch ")
    assert "step" in answer
    starved.mouse("mouseMoved", left + 0.3 * width, top - 200)
    assert starved.js(hidden)
    starved.js("document.getElementById('machine').scrollIntoView()")
    left, top, width, height = box(starved, "#machine svg.drawing")
    starved.mouse("mouseMoved", left + 0.5 * width, top + height / 2)
    answer = starved.js("document.getElementById('tip').textContent")
    assert "trainer 3" in answer
    assert "workers 4" in answer
    assert starved.js("document.querySelectorAll('.cursor').length") == 1
    starved.key("Escape")
    assert starved.js(hidden)


def test_other_charts_are_read_by_keys(starved: Page) -> None:
    starved.js("document.querySelector('.duration svg').focus()")
    starved.key("ArrowRight")
    first = starved.js("document.getElementById('tip').textContent")
    starved.key("End")
    last = starved.js("document.getElementById('tip').textContent")
    assert first.startswith("from batch to batch: ")
    assert last.startswith("from batch to batch: ")
    assert first != last
    assert starved.js("document.activeElement.getAttribute('aria-label')") == last


def test_a_part_of_the_whole_is_chosen_by_dragging_and_turned_to_by_the_wheel(starved: Page) -> None:
    batches = batches_of(runs.starved().loaders[0])
    assert batches is not None
    left, top, width, height = box(starved, "svg.overview")
    at = top + height / 2
    starved.mouse("mousePressed", left + 0.2 * width, at, button="left", clickCount=1)
    starved.mouse("mouseMoved", left + 0.3 * width, at, button="left")
    starved.mouse("mouseReleased", left + 0.3 * width, at, button="left", clickCount=1)
    whole = batches.end - batches.begin
    assert window(starved) == pytest.approx((batches.begin + 0.2 * whole, batches.begin + 0.3 * whole), rel=0.02)
    left, top, width, _ = box(starved, "svg.detail")
    before = window(starved)
    starved.mouse("mouseWheel", left + width / 2, top + 10, deltaX=0, deltaY=-100, modifiers=2)  # with Ctrl
    starved.js(SETTLED)
    begin, end = window(starved)
    assert before[0] < begin < end < before[1]
    starved.mouse("mousePressed", left + 0.5 * width, top + 10, button="left", clickCount=1)
    starved.mouse("mouseMoved", left + 0.25 * width, top + 10, button="left")
    starved.mouse("mouseReleased", left + 0.25 * width, top + 10, button="left", clickCount=1)
    moved = window(starved)
    assert moved[0] == pytest.approx(begin + 0.25 * (end - begin), rel=0.02)


def test_a_loader_that_is_folded_away_is_drawn_when_it_is_opened(browser: Browser, pages: dict[str, Path]) -> None:
    with browser.open(pages["ranks"]) as page:
        folded = "document.querySelector('details.loader .timeline')"
        assert not page.js(f"{folded}.checkVisibility()")
        page.js("document.querySelector('details.loader').open = true")
        page.js(SETTLED)
        assert page.js(f"{folded}.checkVisibility()")
        assert page.js(f"{folded}.dataset.drawn") == "blocks"
        left, _, width, _ = box(page, "details.loader svg.detail .load")
        around, _, room, _ = box(page, "details.loader svg.detail")
        assert room > 900
        assert width > 0.95 * room, "the whole width is drawn on"
        assert left >= around - 3


def test_code_can_be_copied(browser: Browser, pages: dict[str, Path]) -> None:
    with browser.open(pages["starved"]) as page:
        button = "document.querySelector('button.copy')"
        assert not page.js(f"{button}.hidden")
        page.js(f"{button}.click()")
        page.js(SETTLED)
        assert page.js(f"{button}.textContent") in ("copied", "selected")
        assert page.js("getSelection().toString()") == page.js(f"{button}.dataset.copy")


def test_on_paper_it_is_light_and_without_what_cannot_be_pressed(browser: Browser, pages: dict[str, Path]) -> None:
    with browser.open(pages["starved"], dark=True) as page:
        pdf = base64.b64decode(page.call("Page.printToPDF")["data"])
        assert pdf.startswith(b"%PDF")
        page.call("Emulation.setEmulatedMedia", media="print")
        assert page.js("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert page.js("getComputedStyle(document.querySelector('nav')).display") == "none"
        assert page.js("getComputedStyle(document.querySelector('.tools')).display") == "none"


EVIL = "</script><img src=x onerror='window.hacked=1'><script>window.hacked=1</script>"


def test_what_stands_in_a_record_never_runs(browser: Browser, tmp_path: Path) -> None:
    run = runs.starved()
    [stats] = run.loaders
    bad: dict[str, Any] = {"name": EVIL, "decisions": [EVIL], "facts": {EVIL: EVIL}, "kind": EVIL}
    stats = replace(stats, **bad, config={**stats.config, "dataset": EVIL})
    report = stoker.report(replace(run, title=EVIL, machine={**run.machine, "system": EVIL}, loaders=[stats]))
    with browser.open(report.save(tmp_path / "evil.html")) as page:
        page.js(OPENED)
        assert page.js("window.hacked") is None
        assert page.js("document.images.length") == 0
        assert page.js("document.querySelector('h1').textContent") == EVIL
        assert page.complaints == []
        assert len(page.requests) == 1
        # and if it ever came to be markup, the page's own rules would not let it run
        page.js("document.body.insertAdjacentHTML('beforeend', \"<img src='data:,' onerror='window.hacked=1'>\")")
        page.js(SETTLED)
        assert page.js("window.hacked") is None
        assert any("Content Security Policy" in one for one in page.complaints)


def test_thousands_of_batches_are_drawn_again_within_a_blink(starved: Page) -> None:
    """No assertion about speed, which is the machine's: that a hundred drawings end is enough to tell a page that
    stalls from one that does not.
    """
    starved.js("for (let at = 0; at < 100; at++) document.querySelector('[data-do=all]').click()")
    assert starved.js("document.querySelectorAll('svg.detail *').length") < 20  # paths, and not thousands of elements


def test_without_a_browser_tests_are_skipped_but_not_where_everything_is_tested(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no browser on the PATH"):
        chromium.program()
    monkeypatch.setenv("CI", "1")
    with pytest.raises(pytest.fail.Exception, match="no browser on the PATH"):
        chromium.program()
