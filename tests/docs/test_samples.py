"""The comparison of samples of output with real output."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs import samples
from tests.docs.samples import agrees, assert_sample, without_numbers

PAGE = """
Some text.

```console
$ stoker doctor -- python train.py

cpu-bound: the 2 workers were busy 96% of the time
```

```text
 workers  samples/s
 ────────────
       1    474 ± 5
 ...
       4   1,896 ± 5
```
"""


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(samples, "ROOT", tmp_path)
    monkeypatch.delenv(samples.UPDATE, raising=False)
    path = tmp_path / "page.md"
    path.write_text(PAGE)
    return path


def test_numbers_and_their_units_are_ignored() -> None:
    assert without_numbers("13 ms of 1,017.5 µs: 75%  (train.py:8, 3.2 MB/s)") == "# of #: # (train.py:#, #/s)"
    assert without_numbers("a p50 of 1.5e-3, int64 and step4") == "a p50 of #, int64 and step4"
    assert without_numbers("13 ms") == without_numbers("1.3 s")


def test_other_numbers_are_the_same_sample(page: Path) -> None:
    assert_sample("page.md", "cpu-bound", "cpu-bound: the 16 workers were busy 9.1% of the time\n")


def test_other_words_are_not(page: Path) -> None:
    with pytest.raises(AssertionError, match="shows other output than the program prints"):
        assert_sample("page.md", "cpu-bound", "cpu-bound: the 2 workers were idle 96% of the time\n")


def test_numbers_count_where_they_are_to(page: Path) -> None:
    assert_sample("page.md", "cpu-bound", "cpu-bound: the 2 workers were busy 96% of the time\n", exact=True)
    with pytest.raises(AssertionError):
        assert_sample("page.md", "cpu-bound", "cpu-bound: the 2 workers were busy 95% of the time\n", exact=True)


def test_dots_stand_for_lines_left_out(page: Path) -> None:
    header = " workers  samples/s\n ──────────────────\n"
    assert_sample("page.md", "workers", f"{header} 1 7 ± 1\n 2 8 ± 1\n 3 9 ± 1\n 4 9 ± 1\n")
    with pytest.raises(AssertionError):
        assert_sample("page.md", "workers", f"{header} 1 7 ± 1\n 2 8 ± 1\n 3 9 ± 1\n all 9 ± 1\n")


def test_a_sample_that_no_page_shows_is_an_error(page: Path) -> None:
    with pytest.raises(AssertionError, match="0 code blocks"):
        assert_sample("page.md", "disk-bound", "")


def test_the_page_is_rewritten_on_request(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(samples.UPDATE, "1")
    assert_sample("page.md", "cpu-bound", "cpu-bound: all 2 workers were busy\n")
    assert page.read_text() == PAGE.replace("the 2 workers were busy 96% of the time", "all 2 workers were busy")


def test_a_command_above_the_output_is_not_output() -> None:
    assert agrees("$ stoker plan\n\nstep 1\n", "step 1\n", exact=True)
