"""Batch sizes, how fast they are and which fit, as a table for the terminal."""

from __future__ import annotations

from rich.table import Table

from stoker.bench.batch_record import KNEE_SHARE, BatchTune
from stoker.foundation.text import format_bytes, format_number, format_spread
from stoker.view.columns import table_of_rows


def batch_table(tune: BatchTune, *, width: int = 200) -> Table:
    """Return a line for each size that was tried: samples per second, time of a step, memory."""
    rows = []
    for one in tune.sizes():
        if not one.fits:
            note = "[red]does not fit[/]"
        elif one.batch_size == tune.largest:
            note = "[green]the largest that fits[/]"
        elif tune.is_slower_when_larger:
            note = "[cyan]the fastest[/]" if one.batch_size == tune.fastest else ""
        else:
            note = "[cyan]pays up to here[/]" if one.batch_size == tune.knee else ""
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
    """Return what follows, a sentence each."""
    where = f"{format_bytes(tune.memory_bytes)} of {tune.device}" if tune.memory_bytes is not None else tune.device
    if tune.largest is None and tune.is_interrupted:
        return [f"no size was found by then that fits into {where}"]
    if tune.largest is None:
        return [f"not even a batch of one sample fits into {where}"]
    found = [f"batch_size={tune.largest} is the largest that fits into {where} with {tune.margin:.0%} to spare"]
    if tune.num_verified:
        found[0] += f"; verified with {tune.num_verified} steps in a process of its own"
    if tune.stopped:
        found[0] = found[0].replace("the largest that fits", "the largest that was found to fit")
        found.append(f"it may not be the limit: {tune.stopped}")
    knee = tune.knee
    if tune.is_slower_when_larger:
        speeds = tune.speeds()
        best, last = format_number(max(speeds.values())), format_number(speeds[max(speeds)])
        found.append(
            f"batch_size={tune.fastest} is the fastest, with {best} samples per second: take that; larger ones become "
            f"slower, and batch_size={max(speeds)} gives {last}"
        )
    elif knee is not None and knee < tune.largest:
        found.append(f"from batch_size={knee} on, larger ones bring less than {KNEE_SHARE:.0%} more samples per second")
    elif knee == tune.largest and not tune.stopped:
        found.append("larger sizes pay all the way: more memory would bring more samples per second")
    if tune.num_repeated is not None:
        found.append(
            f"batches repeat the {tune.num_repeated:,} samples of the loader's first one: where others are larger, "
            "memory may not be enough"
        )
    said = [one.error for one in tune.sizes() if one.error]
    if said:
        found.append(f"what did not fit said: {said[0]}")
    return found
