"""Compare samples of output in the docs with real output, and rewrite them when it has changed on purpose.

Two ways to check a sample, both with numbers ignored unless asked otherwise:

- A block that the page itself produces is marked in the page, and `test_blocks.py` checks it:

      <!-- output -->           the output of the Python block before it
      <!-- output, exact -->    the same, numbers included

  A ```console block under such a mark starts with `$ stoker ...`; the command runs in the folder of the page's blocks.

- Any other test calls `assert_sample("docs/guides/doctor.md", "storage-bound:", actual)` with the text that the program
  prints for fixed input.

`STOKER_UPDATE_SAMPLES=1 pytest tests/docs` (or the test that failed) rewrites the pages instead of failing.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
UPDATE = "STOKER_UPDATE_SAMPLES"

FENCE = re.compile(r"^```(?P<language>\w*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(
    r"[-+]?(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?(?: ?(?:ns|µs|us|ms|s|min|h|%|[kMGT]?B|[KMG]iB)(?![\w]))?"
)


def without_numbers(text: str) -> str:
    """Replace numbers, with their units, by `#`, and join spaces and rules, whose widths depend on the numbers."""
    lines = [re.sub(r"─+", "─", re.sub(r"[ \t]+", " ", NUMBER.sub("#", line))).strip() for line in text.splitlines()]
    return "\n".join(line for line in lines if line)


def assert_sample(page: str, start: str, actual: str, *, exact: bool = False) -> None:
    """Compare `actual` with the code block of the page that contains a line starting with `start`.

    The block may show a `$ command` above its output and may leave out lines, which it marks by a line `...`. Numbers
    and their units are ignored unless `exact`.
    """
    path = ROOT / page
    text = path.read_text()
    found = [
        match
        for match in FENCE.finditer(text)
        if any(line.strip().startswith(start) for line in match["body"].splitlines())
    ]
    assert len(found) == 1, f"{page} has {len(found)} code blocks with a line that starts with {start!r}; expected 1"
    [block] = found
    if not agrees(block["body"], actual, exact=exact):
        replace(path, block["body"], actual, exact=exact)


def agrees(sample: str, actual: str, *, exact: bool) -> bool:
    """Return whether a sample matches the output, apart from `$` lines, lines left out at `...`, and numbers."""
    clean = str.strip if exact else without_numbers
    wanted = [clean(part) for part in re.split(r"^[ \t]*\.\.\.[ \t]*\n", output_of(sample), flags=re.MULTILINE)]
    rest = clean(_without_trailing_spaces(actual))
    first, *others = wanted
    if not others:
        return rest == first
    if not rest.startswith(first):
        return False
    rest = rest[len(first) :]
    for part in others[:-1]:
        _, found, rest = rest.partition(part)
        if not found:
            return False
    return rest.endswith(others[-1])


def output_of(sample: str) -> str:
    """Return a sample without the commands that it begins with."""
    lines = sample.splitlines(keepends=True)
    while lines and (lines[0].startswith("$ ") or not lines[0].strip()):
        lines.pop(0)
    return "".join(lines)


def replace(path: Path, sample: str, actual: str, *, exact: bool) -> None:
    """Write the actual output into the page if that was asked for; fail with both texts if not."""
    actual = _without_trailing_spaces(actual).strip("\n") + "\n"
    if os.environ.get(UPDATE) and "\n...\n" not in sample:
        head = sample[: len(sample) - len(output_of(sample))] if output_of(sample) else sample
        path.write_text(path.read_text().replace(f"\n{sample}```", f"\n{head}{actual}```", 1))
        return
    expected = output_of(sample).strip("\n") + "\n"
    if not exact:
        expected, actual = without_numbers(expected), without_numbers(actual)
    raise AssertionError(
        f"{path.relative_to(ROOT)} shows other output than the program prints; "
        f"if the program is right, set {UPDATE}=1 and run this test again\n--- page\n{expected}\n--- program\n{actual}"
    )


def _without_trailing_spaces(text: str) -> str:
    return re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE)
