"""Lines of a text file: at random, in order, and what the index costs."""

from __future__ import annotations

import linecache
import random
import shutil
import tempfile
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import stoker
from benchmarks.report import Report, Saved, Setting, only
from stoker.lab.trial.rounds import BlockTimer, Measurement, RoundLimits, TimedFunction, interleaved

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NUM_LINES = 300_000
NUM_READS = 2_560
BATCH_SIZE = 256


def run(setting: Setting) -> Report:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "text.txt"
        num_bytes = _write(path, NUM_LINES // 20 if setting.is_quick else NUM_LINES)
        records = _at_random(path, setting) + _in_order(path, setting) + _indexed(path, num_bytes, setting)
    size = num_bytes / (1 << 20)
    return Report(
        name="lines",
        title="Lines of a text file",
        records=records,
        shows=_shows(records, num_bytes),
        limits=[
            f"a disk: the file ({size:.0f} MiB, lines of 20 to 200 bytes) is in the page cache, and so is its index.",
            "files larger than memory, which is what the index is for: `linecache` holds all of the file, a table of "
            "offsets 8 bytes a line, Stoker's index one entry for a block of lines.",
            "JSON, CSV or compressed files.",
        ],
        draw=draw,
        extra={"file_bytes": num_bytes},
    )


def _write(path: Path, num_lines: int) -> int:
    chance = random.Random(0)
    with path.open("w") as file:
        for number in range(num_lines):
            file.write(f"{number} " + "abcdefghi " * chance.randrange(2, 20) + "\n")
    return path.stat().st_size


def _at_random(path: Path, setting: Setting) -> list[Measurement]:
    lines = stoker.Lines(path, index_dir=path.parent / "index")
    chance = random.Random(1)
    positions = [chance.randrange(len(lines)) for _ in range(NUM_READS)]
    batches = [positions[start : start + BATCH_SIZE] for start in range(0, NUM_READS, BATCH_SIZE)]
    offsets = _offsets(path)
    handle = path.open("rb")
    name = str(path)

    def sought(position: int) -> str:
        handle.seek(offsets[position])
        return handle.readline().rstrip(b"\n").decode()

    def cached(position: int) -> str:
        return linecache.getline(name, position + 1).rstrip("\n")

    for position in positions[:20]:
        assert lines[position] == sought(position) == cached(position)
    contenders: dict[str, TimedFunction] = {
        "offsets, seek and readline": _each(sought, positions),
        "linecache, all in memory": _each(cached, positions),
        "Lines, one by one": _each(lines.__getitem__, positions),
        f"Lines, {BATCH_SIZE} together": _each(lines.__getitems__, batches),
    }
    found = interleaved(
        contenders,
        case={"what": "at random"},
        unit="line",
        rounds=_pace(setting),
        reference="offsets, seek and readline",
    )
    handle.close()
    linecache.clearcache()
    return found


def _each(read: Callable[[Any], Any], positions: list[Any]) -> TimedFunction:
    def timed(clock: BlockTimer) -> None:
        with clock.timing(NUM_READS):
            for position in positions:
                read(position)

    return timed


def _in_order(path: Path, setting: Setting) -> list[Measurement]:
    lines = stoker.Lines(path, index_dir=path.parent / "index")
    num_lines = len(lines)
    stream = lines.stream()

    def opened(clock: BlockTimer) -> None:
        with clock.timing(num_lines), path.open(encoding="utf-8", newline="\n") as file:
            for line in file:
                line.rstrip("\n")

    def streamed(clock: BlockTimer) -> None:
        with clock.timing(num_lines):
            for _ in stream:
                pass

    def addressed(clock: BlockTimer) -> None:
        with clock.timing(num_lines):
            for start in range(0, num_lines, BATCH_SIZE):
                lines.__getitems__(range(start, min(start + BATCH_SIZE, num_lines)))

    contenders: dict[str, TimedFunction] = {
        "open(), line by line": opened,
        "Lines.stream()": streamed,
        f"Lines, {BATCH_SIZE} together": addressed,
    }
    return interleaved(
        contenders, case={"what": "in order"}, unit="line", rounds=_pace(setting), reference="open(), line by line"
    )


def _indexed(path: Path, num_bytes: int, setting: Setting) -> list[Measurement]:
    """Per MiB of the file: the index, and the plainest ways to learn where lines are."""
    num_mib = max(1, round(num_bytes / (1 << 20)))
    buffer = bytearray(1 << 16)  # used again and again: a new one for each read costs more than the reading

    def indexed(clock: BlockTimer) -> None:
        folder = path.parent / "new"
        with clock.timing(num_mib):
            len(stoker.Lines(path, index_dir=folder))
        shutil.rmtree(folder)

    def offsets(clock: BlockTimer) -> None:
        with clock.timing(num_mib):
            _offsets(path)

    def counted(clock: BlockTimer) -> None:
        with clock.timing(num_mib), path.open("rb", buffering=0) as file:
            while num_read := file.readinto(buffer):
                buffer.count(b"\n", 0, num_read)

    contenders: dict[str, TimedFunction] = {
        "table of offsets, line by line": offsets,
        "counting line feeds only": counted,
        "Lines, index built and stored": indexed,
    }
    return interleaved(
        contenders,
        case={"what": "index"},
        unit="MiB",
        rounds=_pace(setting),
        reference="table of offsets, line by line",
    )


def _offsets(path: Path) -> array[int]:
    table = array("q")
    begin = 0
    with path.open("rb") as file:
        for line in file:
            table.append(begin)
            begin += len(line)
    return table


def _pace(setting: Setting) -> RoundLimits:
    return RoundLimits(0.01, min_rounds=2) if setting.is_quick else RoundLimits(10.0, max_rounds=60, min_rounds=10)


def _shows(records: list[Measurement], num_bytes: int) -> list[str]:
    sentences = []
    for record in records:
        if not record.contender.startswith("Lines"):
            continue
        reference = only(records, what=record.case["what"])[0].contender
        speed = f" ({1e6 / record.median:,.0f} MiB/s)" if record.unit == "MiB" else ""
        sentences.append(
            f"{record.case['what']}: {record.contender} takes {record.median:,.2f} µs a {record.unit}{speed}, "
            f"{record.median_ratio:.2f} of the time of {reference}."
        )
    sentences.append(f"the file has {num_bytes / (1 << 20):.0f} MiB.")
    return sentences


def draw(records: list[Measurement], _: Saved) -> Figure:
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(15, 3.2), layout="constrained")
    for axis, what in zip(axes, ("at random", "in order", "index")):
        found = only(records, what=what)
        for place, record in enumerate(found):
            axis.barh(place, record.median, 0.6, color="#c8391b" if record.contender.startswith("Lines") else "#767676")
            axis.plot([record.best, record.p90], [place] * 2, color="black", linewidth=1)
            shown = f" {record.median:,.0f}" if record.median > 100 else f" {record.median:.2f}"
            axis.annotate(shown, (max(record.median, record.p90), place), va="center", fontsize=8)
        axis.set_yticks(range(len(found)), [record.contender for record in found], fontsize=8)
        axis.invert_yaxis()
        axis.margins(x=0.18)
        axis.set_xlim(left=0)
        axis.set_title(
            {"at random": "One line at random", "in order": "All lines in order", "index": "The index"}[what],
            fontsize=10,
        )
        axis.set_xlabel(f"µs per {found[0].unit} (bar: median; line: best to p90)")
    return figure
