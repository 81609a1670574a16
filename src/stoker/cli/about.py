"""`stoker about`: facts about the machine, for bug reports."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator
from pathlib import Path

from stoker.foundation.text import format_bytes


def about() -> None:
    """Print versions, cores, memory and limits, to paste into a bug report.

    Example: [bold cyan]stoker about[/]
    """
    from rich.console import Console
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in facts():
        table.add_row(name, value)
    Console(highlight=False).print(table)


def facts() -> Iterator[tuple[str, str]]:
    """Yield facts about this machine, as names and values."""
    import numpy as np
    import torch

    from stoker import native
    from stoker._version import __version__

    yield "stoker", __version__
    yield "python", f"{platform.python_version()} ({platform.python_implementation()})"
    yield "torch", torch.__version__
    yield "numpy", np.__version__
    yield "native helpers", native.describe()
    yield "native JPEG decoder", native.describe_jpeg()
    yield "system", platform.platform()
    yield "cores", _cores()
    yield "memory", _memory()
    yield "/dev/shm", _shared_memory()
    yield "open files", _open_files()
    yield "CUDA", _cuda()


def _cores() -> str:
    from stoker.foundation import machine

    present, usable = os.cpu_count() or 1, machine.num_cores()
    return str(present) if usable == present else f"{usable} usable of {present}"


def _memory() -> str:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
    except (OSError, ValueError):  # no control groups, or "max": no limit
        return format_bytes(total)
    return f"{format_bytes(limit)} (limit of the container; the machine has {format_bytes(total)})"


def _shared_memory() -> str:
    try:
        usage = shutil.disk_usage("/dev/shm")
    except OSError:
        return "not available"
    return f"{format_bytes(usage.total)}, {format_bytes(usage.free)} free"


def _open_files() -> str:
    import resource

    soft, hard = (
        "unlimited" if limit == resource.RLIM_INFINITY else str(limit)
        for limit in resource.getrlimit(resource.RLIMIT_NOFILE)
    )
    return f"{soft} (can be raised to {hard})" if soft != hard else soft


def _cuda() -> str:
    import torch

    if not torch.cuda.is_available():
        return "no devices"
    gpus = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
    return "\n".join(f"{number}: {gpu.name}, {format_bytes(gpu.total_memory)}" for number, gpu in enumerate(gpus))
