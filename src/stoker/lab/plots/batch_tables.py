"""Format the batch sizes that were tried as a table for the terminal."""

from __future__ import annotations

from rich.table import Table

from stoker.foundation.text import format_bytes, format_number, format_spread
from stoker.lab.plots.columns import table_of_rows
from stoker.lab.trial.batch_size import KNEE_SHARE, BatchTune


def batch_table(tune: BatchTune, *, width: int = 200) -> Table:
    """Return a table with a row per size tried: samples per second, step time, memory."""
    rows = []
    for one in tune.sizes():
        if not one.fits:
            note = "[red]does not fit[/]"
        elif one.batch_size == tune.largest:
            note = "[green]largest that fits[/]"
        elif tune.is_slower_when_larger:
            note = "[cyan]fastest[/]" if one.batch_size == tune.fastest else ""
        else:
            note = "[cyan]larger gains little[/]" if one.batch_size == tune.knee else ""
        rows.append(
            {
                "batch size": f"{one.batch_size:,}",
                "samples/s": "-" if one.samples_per_second is None else format_number(one.samples_per_second),
                "ms per step": format_spread(one.step_seconds, one.deviation, scale=1e-3),
                "memory": format_bytes(one.peak_bytes),
                "": note,
            }
        )
    return table_of_rows(rows, texts="", spare=("memory", "ms per step"), width=width)


def batch_remarks(tune: BatchTune) -> list[str]:
    """Return the conclusions, one sentence each."""
    where = f"{format_bytes(tune.memory_bytes)} of {tune.device}" if tune.memory_bytes is not None else tune.device
    if tune.largest is None and tune.is_interrupted:
        return [f"no batch size that fits into {where} was found before the interruption"]
    if tune.largest is None:
        return [f"not even a batch of one sample fits into {where}"]
    found = [f"batch_size={tune.largest} is the largest that fits into {where} with {tune.margin:.0%} to spare"]
    if tune.num_verified:
        found[0] += f"; verified with {tune.num_verified} steps in a separate process"
    if tune.stopped:
        found[0] = found[0].replace("the largest that fits", "the largest found to fit")
        found.append(f"larger sizes may fit: {tune.stopped}")
    knee = tune.knee
    if tune.is_slower_when_larger:
        speeds = tune.speeds()
        best, last = format_number(max(speeds.values())), format_number(speeds[max(speeds)])
        found.append(
            f"batch_size={tune.fastest} is the fastest, with {best} samples per second: use that. Larger batches are "
            f"slower, and batch_size={max(speeds)} gives {last}"
        )
    elif knee is not None and knee < tune.largest:
        found.append(f"beyond batch_size={knee}, larger batches gain less than {KNEE_SHARE:.0%} in samples per second")
    elif knee == tune.largest and not tune.stopped:
        found.append("throughput still grows at the largest size: more memory would allow more samples per second")
    if tune.num_repeated is not None:
        found.append(
            f"batches repeat the {tune.num_repeated:,} samples of the loader's first one: where others are larger, "
            "memory may not be enough"
        )
    said = [one.error for one in tune.sizes() if one.error]
    if said:
        found.append(f"error of a size that did not fit: {said[0]}")
    return found
