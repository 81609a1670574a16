"""`stoker top`: loaders while they run, from files that are being written."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from select import select
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from stoker import DataLoader
from stoker.cli.app import app
from stoker.cli.top import last_lines
from stoker.lab.diagnose.verdict import diagnose
from stoker.lab.live import LiveFrame, Tail, Tracks, line
from stoker.lab.live.letters import Letters, bar, spark
from stoker.lab.live.tail import MOST_BYTES
from stoker.lab.watch.run import Quantiles, Run, Stats
from tests.docs.samples import assert_sample
from tests.lab import runs


def once(*paths: Path, code: int = 0, columns: int = 160) -> str:
    done = CliRunner().invoke(app, ["top", "--once", *map(str, paths)], env={"COLUMNS": str(columns)})
    assert done.exit_code == code, done.output
    return plain(done.output)


def plain(text: str) -> str:
    return text.replace("\N{NO-BREAK SPACE}", " ")


def record(step: int, *, rank: int = 0, num_ranks: int = 1, wait: float = 0.25, name: str = "train") -> Stats:
    """Return the counters of a loader after so many steps of 0.1 s, of which a part was waiting."""
    seconds = 0.1 * step
    return Stats(
        name=name,
        rank=rank,
        num_ranks=num_ranks,
        seconds=seconds,
        num_batches=step,
        num_samples=step * 8,
        batch_seconds=Quantiles(num=step, mean=0.1, p50=0.1, p90=0.1, p99=0.12, most=0.2),
        wait_seconds=Quantiles(num=step, mean=0.1 * wait, p50=0.1 * wait),
        step_seconds=Quantiles(num=step, mean=0.1 * (1 - wait), p50=0.1 * (1 - wait), p99=0.09),
        queue_depth=1.5,
    )


def lines(*records: Stats) -> str:
    return "".join(f"{one.as_json()}\n" for one in records)


def test_one_frame_shows_what_a_loader_has_written(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    loader: DataLoader[Any] = DataLoader(list(range(256)), batch_size=8)
    loader.log_stats(path, every=0.001)
    for _ in loader:
        pass
    shown = once(path)
    assert "32 batches" in shown
    assert "samples/s" in shown
    for name in ("throughput", "step", "waiting", "stages", "CPU", "memory"):
        assert name in shown


def test_the_verdict_stands_at_the_top(tmp_path: Path) -> None:
    (tmp_path / "run.jsonl").write_text(lines(replace(runs.healthy().loaders[0], laps=None)))
    assert once(tmp_path / "run.jsonl").splitlines()[0].startswith("\N{CHECK MARK} compute-bound  the loader keeps up")


def test_now_is_shown_next_to_the_whole(tmp_path: Path) -> None:
    slow, quick = record(100, wait=0.5), record(200, wait=0.3)
    (tmp_path / "run.jsonl").write_text(lines(slow, replace(quick, num_samples=100 * 8 + 100 * 16)))
    shown = once(tmp_path / "run.jsonl")
    assert "160 samples/s  120 overall" in shown
    assert "10%, 30% overall" in shown  # 5 s were waited in the first 10, and one in the second


def test_ranks_get_a_line_each_and_the_slowest_is_named(tmp_path: Path) -> None:
    paths = [tmp_path / f"rank{rank}.jsonl" for rank in range(4)]
    for rank, path in enumerate(paths):
        path.write_text(lines(record(100, rank=rank, num_ranks=4, wait=0.6 if rank == 2 else 0.1)))
    shown = once(*paths)
    assert "slowest: rank 2, which waits 60 ms per batch for data" in shown
    assert "2 slowest" in shown
    (tmp_path / "all.jsonl").write_text("".join(path.read_text() for path in paths))
    shared = once(tmp_path / "all.jsonl")
    assert shared.count("train") == 4
    assert "slowest: rank 2" in shared


def test_equal_ranks_have_no_slowest(tmp_path: Path) -> None:
    (tmp_path / "all.jsonl").write_text(lines(*(record(100, rank=rank, num_ranks=4) for rank in range(4))))
    assert "slowest" not in once(tmp_path / "all.jsonl")


def test_a_record_of_a_whole_run_is_shown_too(tmp_path: Path) -> None:
    runs.starved().save(tmp_path / "run.json")
    assert "train, 2 workers" in once(tmp_path / "run.json")


def drawn(tracks: Tracks, *, columns: int, rows: int | None = None, age: float | None = 3.0) -> list[str]:
    """Return the lines of a frame in a terminal of some size."""
    console = Console(width=columns, file=open(os.devnull, "w"))  # noqa: SIM115
    diagnosis = diagnose(Run(loaders=[track.latest for track in tracks.all]))
    ages = {} if age is None else {"file": age}
    with console.file, console.capture() as captured:
        console.print(LiveFrame(tracks, diagnosis=diagnosis, ages=ages, height=rows))
    return plain(captured.get()).splitlines()


def tracks_of(*runs_: Run) -> Tracks:
    tracks = Tracks()
    tracks.add((one for run in runs_ for one in run.loaders), source="file")
    return tracks


def test_the_guide_shows_what_the_terminal_shows() -> None:
    tracks = Tracks()
    for stats in runs.guide_records():
        tracks.add([stats], source="file")
    shown = "\n".join(drawn(tracks, columns=80, age=1))
    assert_sample("docs/guides/report.md", "\N{BOX DRAWINGS LIGHT ARC DOWN AND RIGHT}", shown, exact=True)


def words_in(text: str) -> set[str]:
    return set(re.findall("[a-z-]{2,}|\N{HORIZONTAL ELLIPSIS}", text))


@pytest.mark.parametrize("columns", [20, 30, 36, 40, 50, 60, 80])
@pytest.mark.parametrize("name", ["one", "three", "many"])
def test_a_narrow_terminal_drops_bars_and_columns_but_no_letters(name: str, columns: int) -> None:
    cases = {"one": [runs.starved()], "three": [runs.starved(), runs.one_batch(), runs.healthy()]}
    tracks = tracks_of(*cases.get(name, [runs.ranks()]))
    shown = drawn(tracks, columns=columns)
    assert max(map(len, shown)) <= columns
    assert words_in("\n".join(shown)) <= words_in("\n".join(drawn(tracks, columns=300))), "no word is broken or cut off"
    assert "3 s ago" in " ".join("\n".join(shown).split())
    if name != "many":
        assert {"throughput", "waiting", "stages", "hand-over", "memory", "busy"} <= words_in("\n".join(shown))


@pytest.mark.parametrize("columns", [40, 80])
@pytest.mark.parametrize("name", ["one", "three", "many"])
def test_a_short_terminal_keeps_what_matters_most_and_how_old_it_is(name: str, columns: int) -> None:
    cases = {"one": [runs.starved()], "three": [runs.starved(), runs.one_batch(), runs.healthy()]}
    tracks = tracks_of(*cases.get(name, [runs.ranks()]))
    before = 0
    for rows in range(1, 60):
        shown = drawn(tracks, columns=columns, rows=rows)
        text = "\n".join(shown)
        assert before <= len(shown) <= rows, "more room shows more"
        assert "3 s ago" in text
        assert "waiting" in text or rows < 3
        before = len(shown)
    assert shown == drawn(tracks, columns=columns), "all of it, as soon as there is room"


def test_twelve_lines_of_forty_letters_have_verdict_throughput_waiting_and_age() -> None:
    first, *rest = drawn(tracks_of(runs.starved()), columns=40, rows=12)
    assert first.startswith("! ")
    assert any(one.startswith("│ throughput") for one in rest)
    assert any(one.startswith("│ waiting") for one in rest)
    assert rest[-1].endswith("6,000 batches, 3 s ago ─╯")


def test_of_many_ranks_the_slowest_is_shown_however_short_the_terminal() -> None:
    tracks = Tracks()
    tracks.add([record(100, rank=rank, num_ranks=8, wait=0.6 if rank == 6 else 0.1) for rank in range(8)])
    shown = drawn(tracks, columns=80, rows=7, age=None)
    assert any("6 slowest" in one for one in shown)
    assert "5 more" in shown
    assert len(shown) == 7


def test_the_name_of_a_loader_that_a_frame_would_cut_off_stands_above_it() -> None:
    tracks = Tracks()
    tracks.add([record(100, name="a loader of a long name that goes on and on")], source="file")
    shown = drawn(tracks, columns=40)
    assert "a loader of a long name that goes on and" in " ".join(shown)
    assert "\N{HORIZONTAL ELLIPSIS}" not in "".join(shown)


@pytest.mark.parametrize("text", [None, "", "no json\n", '{"num_batches": 3', "[1]\n{}\n"])
def test_nothing_to_show_is_shown_with_a_hint(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "run.jsonl").write_text(text)
    shown = once(tmp_path / "run.jsonl", code=1)
    assert ("does not exist" if text is None else "contains no loader records") in shown
    assert "hint: loader.log_stats" in shown


def test_lines_are_taken_when_they_are_whole(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    tail = Tail(path)
    assert tail.read() == []
    assert tail.changed is None
    first, second = lines(record(1)), lines(record(2))
    path.write_text(first + second[:100])
    assert [one.num_batches for one in tail.read()] == [1]
    assert tail.read() == []
    with path.open("a") as file:
        file.write(second[100:] + "garbage\n" + lines(record(3)))
    assert [one.num_batches for one in tail.read()] == [2, 3]
    assert tail.num_bad == 1


def test_a_file_that_begins_again_is_read_from_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text(lines(record(5), record(6)))
    tail = Tail(path)
    assert len(tail.read()) == 2
    path.write_text(lines(record(1)))  # shorter: emptied and written to
    assert [one.num_batches for one in tail.read()] == [1]
    (tmp_path / "new").write_text(lines(record(7), record(8), record(9)))
    (tmp_path / "new").replace(path)  # longer, but another file
    assert [one.num_batches for one in tail.read()] == [7, 8, 9]
    path.unlink()
    assert tail.read() == []


def test_of_a_long_file_the_end_is_read_and_no_half_line(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    one = lines(record(1))
    num = MOST_BYTES // len(one) + 100
    path.write_text(one * num + lines(record(77)))
    tail = Tail(path)
    found = tail.read()
    assert len(found) < num
    assert found[-1].num_batches == 77
    assert tail.num_bad == 0


def test_a_loader_that_begins_again_is_not_taken_for_one_that_runs_backwards() -> None:
    tracks = Tracks()
    tracks.add([record(100), record(110), record(5), record(10)])
    [track] = tracks.all
    assert track.latest.num_batches == 10
    assert [round(span.samples_per_second) for span in track.spans] == [80, 80]
    assert all(span.seconds > 0 for span in track.spans)


def test_bars_and_curves_are_drawn_with_what_the_terminal_has() -> None:
    assert bar(0.5, 8, Letters(), "").plain == "████░░░░"
    assert bar(0.55, 8, Letters(), "").plain == "████▍░░░"
    assert bar(2.0, 4, Letters.plain(), "").plain == "####"
    assert bar(-1.0, 4, Letters.plain(), "").plain == "...."
    assert spark([0, 1, 2, 4], 9, Letters()) == "▁▃▅█"
    assert spark([], 9, Letters()) == ""
    assert spark([0.0, 0.0], 9, Letters.plain()) == "__"
    everything = Tracks()
    everything.add(one for run in (runs.ranks(), runs.starved(), runs.one_batch()) for one in run.loaders)
    everything.add([Stats()], source="empty")
    console = Console(width=120, file=open(os.devnull, "w"))  # noqa: SIM115
    with console.file, console.capture() as captured:
        console.print(LiveFrame(everything, letters=Letters.plain(), remarks=["shown"]))
    text = plain(captured.get()).replace("\N{EN DASH}", "-").replace("µ", "u")
    assert text.isascii()
    assert "shown" in text
    for track in everything.all:
        assert track.name in line(track)


@pytest.fixture
def started() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start the command in a separate process, and see to its end."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str, **options: Any) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "stoker", "top", *arguments]
        # whoever runs tests in the background lets them ignore Ctrl-C, and they would pass that on
        process = subprocess.Popen(command, restore_signals=True, **options)
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def test_without_a_terminal_there_is_a_line_for_each_record_and_ctrl_c_ends_it(
    tmp_path: Path, started: Callable[..., subprocess.Popen[bytes]]
) -> None:
    path = tmp_path / "run.jsonl"
    process = started(str(path), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stderr.readline().decode() == f"waiting for {path}\n"
    path.write_text(lines(record(100)))
    assert plain(process.stdout.readline().decode()).startswith("train  batch 100  80.0 samples/s  step p50 75 ms")
    second = lines(record(200))
    with path.open("a") as file:
        file.write(second[:50])
        file.flush()
        file.write(second[50:])
    assert plain(process.stdout.readline().decode()).startswith("train  batch 200  ")
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=60)
    assert (process.returncode, out, errors) == (0, b"", b"")


def test_in_a_terminal_it_draws_until_ctrl_c_and_leaves_the_last_picture(
    tmp_path: Path, started: Callable[..., subprocess.Popen[bytes]]
) -> None:
    path = tmp_path / "run.jsonl"
    ours, theirs = pty.openpty()
    try:
        environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"}
        process = started(
            str(path), "--every", "0.05", stdin=theirs, stdout=theirs, stderr=theirs, env=environment,
            start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        seen = read_until(ours, "waiting for")
        path.write_text(lines(record(100)))
        seen += read_until(ours, "100 batches")
        with path.open("a") as file:
            file.write(lines(record(250)))
        seen += read_until(ours, "250 batches")
        assert "\x1b[?1049h" in seen, "the screen is its own"
        process.send_signal(signal.SIGINT)
        rest = read_until(ours, None)
    finally:
        os.close(ours)
    assert process.wait(60) == 0
    left = rest.rpartition("\x1b[?1049l")[2]
    assert "250 batches" in plain(left), "what was last seen stays in the terminal"
    assert "Traceback" not in seen + rest
    assert "Aborted" not in seen + rest


def read_until(descriptor: int, words: str | None) -> str:
    """Return what a terminal shows, until it shows some words, or until nobody writes to it any more."""
    text = ""
    while words is None or words not in plain(text):
        if not select([descriptor], [], [], 60)[0]:
            pytest.fail(f"{words!r} never came, but {text!r}")
        try:
            part = os.read(descriptor, 1 << 16)
        except OSError:  # the other end is closed
            part = b""
        if not part:
            assert words is None, text
            break
        text += part.decode(errors="replace")
    return text


TRAINING = """
import sys, time
from torch.utils.data import DataLoader

if __name__ == "__main__":
    for batch in DataLoader(range(640), batch_size=8):
        time.sleep(0.02)
    print("trained", flush=True)
    sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def training(tmp_path: Path) -> list[str]:
    (tmp_path / "train.py").write_text(TRAINING)
    return [sys.executable, str(tmp_path / "train.py"), "7"]


def test_a_command_is_shown_while_it_runs_and_its_code_and_output_are_its_own(
    training: list[str], started: Callable[..., subprocess.Popen[bytes]]
) -> None:
    process = started("--every", "0.1", "--", *training, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, errors = process.communicate(timeout=100)
    assert (process.returncode, out) == (7, b"trained\n")
    shown = plain(errors.decode()).splitlines()
    assert len(shown) > 1
    assert all("samples/s  step p50" in one for one in shown), shown


def test_in_a_terminal_a_command_has_the_end_of_its_output_on_the_screen_and_all_of_it_at_the_end(
    training: list[str], started: Callable[..., subprocess.Popen[bytes]]
) -> None:
    ours, theirs = pty.openpty()
    try:
        environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"}
        process = started(
            "--every", "0.1", "--", *training, stdin=theirs, stdout=theirs, stderr=theirs, env=environment,
            start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        seen = read_until(ours, None)
    finally:
        os.close(ours)
    assert process.wait(60) == 7
    screen, _, left = plain(seen).rpartition("\x1b[?1049l")
    assert "\x1b[?1049h" in screen
    assert "throughput" in screen
    assert left.count("trained") == 1
    assert "80 batches" in left
    assert "Traceback" not in seen


def test_ctrl_c_ends_the_command_and_then_the_picture(
    tmp_path: Path, started: Callable[..., subprocess.Popen[bytes]]
) -> None:
    (tmp_path / "wait.py").write_text(
        "import signal, sys\ntry:\n    print('here', flush=True)\n    signal.pause()\nexcept KeyboardInterrupt:\n"
        "    print('interrupted', flush=True)\n    sys.exit(9)\n"
    )
    process = started("--", sys.executable, str(tmp_path / "wait.py"), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"here\n"
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=60)
    assert (process.returncode, out, errors) == (9, b"interrupted\n", b"")


def test_a_command_cannot_be_shown_once() -> None:
    done = CliRunner().invoke(app, ["top", "--once", "--", sys.executable, "train.py"])
    assert done.exit_code == 1
    assert "--once works with files only" in done.output


def test_the_end_of_an_output_is_what_a_screen_would_show(tmp_path: Path) -> None:
    path = tmp_path / "output"
    path.write_bytes(b"first\n\x1b[31mred\x1b[0m\n10 %\r20 %\r30 %\nlast\r\n\n")
    with path.open("rb") as file:
        assert last_lines(file, 3) == ["red", "30 %", "last"]
        assert last_lines(file, 9)[0] == "first"
    path.write_bytes(b"x" * 100_000 + b"\nend\n")
    with path.open("rb") as file:
        assert last_lines(file, 5) == ["end"]
    path.write_bytes(b"")
    with path.open("rb") as file:
        assert last_lines(file, 5) == []


def test_a_command_that_is_misspelled_is_not_waited_for_as_a_file() -> None:
    done = CliRunner().invoke(app, ["top", "--", "pyhton", "train.py"])
    assert done.exit_code == 127
    assert "cannot run 'pyhton'" in done.output
