"""What the machine tells: cores and memory that are ours, and what processes use of them.

All of it is read from `/proc` and the container's limits, when asked for; nothing runs in between. Where the system
does not tell (another one than Linux, a closed `/proc`), the answer is None, or as good as is known.
"""

from __future__ import annotations

import gc
import os
import platform
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple
from weakref import finalize

_PROC = Path("/proc")
_CGROUP = Path("/sys/fs/cgroup")


class Usage(NamedTuple):
    """What a process has used since it began: a snapshot, of which differences are taken."""

    cpu_seconds: float
    """Of all its threads that are still there, and of those that ended."""
    delay_seconds: float
    """How long its threads, ready to run, have waited for a core. 0 where that is not told."""
    read_bytes: int
    """Read from disks, and not from the page cache."""
    num_threads: int


def usable_cores() -> set[int]:
    """Return the numbers of the cores that this process may run on. A container's quota may allow it less time."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def num_cores() -> int:
    """Return how many cores this process may use: its affinity and the container's quota, rounded up; at least 1."""
    cores, quota = len(usable_cores()), quota_cores()
    return max(1, cores if quota is None else min(cores, int(-(-quota // 1))))


def quota_cores() -> float | None:
    """Return how many cores' worth of time the container may use; None if there is no limit."""
    return min((cores for cores, _ in _quotas()), default=None)


def quota_used_seconds() -> float | None:
    """Return how much of that time was used so far, by all that share the tightest limit; None if that is not told."""
    tightest = min(_quotas(), default=None)
    if tightest is None:
        return None
    folder = tightest[1]
    try:
        for line in (folder / "cpu.stat").read_text().splitlines():
            if line.startswith("usage_usec"):
                return int(line.split()[1]) / 1e6
        return int((folder / "cpuacct.usage").read_text()) / 1e9
    except (OSError, ValueError, IndexError):
        return None


def _quotas() -> Iterator[tuple[float, Path]]:
    """Yield the limits that hold for this process, in cores, and where they are told."""
    for folder in _cgroups("cpu"):
        try:
            if (folder / "cpu.max").exists():
                quota, period = (folder / "cpu.max").read_text().split()[:2]
            else:
                quota = (folder / "cpu.cfs_quota_us").read_text().strip()
                period = (folder / "cpu.cfs_period_us").read_text().strip()
            if quota not in ("max", "-1"):
                yield float(quota) / float(period), folder
        except (OSError, ValueError):
            continue


def memory_bytes() -> int | None:
    """Return how much memory there is for us: the machine's, or the container's limit if that is less."""
    found = [value for value in (_meminfo("MemTotal"), *_memory_limits()) if value is not None]
    return min(found, default=None)


def available_bytes() -> int | None:
    """Return how much memory could still be taken without swapping: of the machine's, and of the container's limit."""
    found = [value for value in (_meminfo("MemAvailable"), *_memory_left()) if value is not None]
    return min(found, default=None)


def shared_memory_bytes() -> int | None:
    """Return the size of `/dev/shm`, which torch's workers send batches through; None if there is none."""
    try:
        told = os.statvfs("/dev/shm")
    except (OSError, AttributeError):
        return None
    return told.f_blocks * told.f_frsize


def usage_of(pid: int | str = "self") -> Usage | None:
    """Return what a process has used so far; None if it is gone, or not ours to look at."""
    folder = _PROC / str(pid)
    cpu = delay = 0.0
    num_threads = 0
    try:
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        cpu = max((int(fields[11]) + int(fields[12])) / _TICKS, _cpu_clock(os.getpid() if pid == "self" else int(pid)))
        for task in os.scandir(folder / "task"):
            num_threads += 1
            try:
                waited = Path(task.path, "schedstat").read_text().split()
            except OSError:  # this thread is gone, or the kernel does not count
                continue
            delay += int(waited[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return None
    return Usage(cpu, delay, _read_bytes(folder), num_threads)


def thread_delay_seconds(native_id: int | None = None) -> float | None:
    """Return how long a thread of this process, ready to run, has waited for a core; by default the calling one."""
    folder = "thread-self" if native_id is None else f"self/task/{native_id}"
    try:
        return int((_PROC / folder / "schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return None


def thread_times(pid: int, native_id: int) -> tuple[float, float] | None:
    """Return how long a thread of any process was on a core, and how long it was ready and had none, in seconds."""
    try:
        told = (_PROC / str(pid) / "task" / str(native_id) / "schedstat").read_text().split()
        return int(told[0]) / 1e9, int(told[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return None


class Clock:
    """How long the thread that made it was on a core, and was ready and had none. A microsecond for each look."""

    def __init__(self) -> None:
        try:
            self._file = os.open(_PROC / "thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._file = -1
        self._end = finalize(self, os.close, self._file) if self._file >= 0 else None

    def times(self) -> tuple[float, float]:
        """Return both, in seconds since the thread began; zeros where the system does not tell."""
        try:
            cpu, delay, _ = os.pread(self._file, 64, 0).split()
        except (OSError, ValueError):
            return 0.0, 0.0
        return int(cpu) * 1e-9, int(delay) * 1e-9

    def close(self) -> None:
        """Let go of the file."""
        self._file = -1
        if self._end is not None:
            self._end()


def current_frames() -> dict[int, FrameType]:
    """Return where each thread is.

    Some versions up to Python 3.12 deadlock if the garbage collector comes to run meanwhile: it may free what is local
    to a thread, and waits for a lock that is held by whoever makes the list of threads.
    """
    is_on = gc.isenabled() and sys.version_info < (3, 13)
    if is_on:
        gc.disable()
    try:
        return sys._current_frames()
    finally:
        if is_on:
            gc.enable()


class Memory(NamedTuple):
    """The memory of a process, pages that it shares with others counted by its share."""

    pss_bytes: int
    private_bytes: int
    """Without pages of files, which the system can drop and read again."""


def memory_of(pid: int | str = "self") -> Memory | None:
    """Return the memory of a process; None if it is gone, or not ours to look at. It costs what `pss_bytes` does."""
    told: dict[str, int] = {}
    try:
        for line in (_PROC / str(pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss"):
                name, value = line.split()[:2]
                told[name.rstrip(":")] = int(value) * 1024
        return Memory(told["Pss"], told["Pss"] - told.get("Pss_File", 0))
    except (OSError, ValueError, KeyError):
        return None


def pss_bytes(pid: int | str = "self") -> int | None:
    """Return the memory of a process, pages that it shares with others counted by its share (PSS).

    It takes the kernel a millisecond for each gigabyte or so: for now and then, not for every batch.
    """
    try:
        for line in (_PROC / str(pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return None


def data_bytes(pid: int | str = "self") -> int | None:
    """Return how much memory of its own a process has asked for: what `RLIMIT_DATA` is compared with."""
    return _status(pid, "VmData")


def anonymous_bytes(pid: int | str = "self") -> int | None:
    """Return the memory of a process that is there and is no file's: without libraries, which others may use, too."""
    return _status(pid, "RssAnon")


def peak_bytes() -> int | None:
    """Return the most memory that this process has had since it began, or since `forget_peak`, as far as it is no
    file's: what it has of libraries now is taken off.
    """
    peak, files = _status("self", "VmHWM"), _status("self", "RssFile")
    return None if peak is None else max(0, peak - (files or 0))


def forget_peak() -> bool:
    """Let `peak_bytes` count from here on; return whether the system can."""
    try:
        (_PROC / "self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def children(pid: int) -> list[int]:
    """Return the processes that a process has started and that are still there, in no order."""
    found: list[int] = []
    try:
        tasks = list(os.scandir(_PROC / str(pid) / "task"))
    except OSError:
        return []
    for task in tasks:
        try:
            found += map(int, Path(task.path, "children").read_text().split())
        except (OSError, ValueError):
            continue
    return found


def command_of(pid: int) -> list[str]:
    """Return the command line of a process, word by word; nothing if it is gone, or not ours to look at.

    One that was forked and runs no other program has that of its parent.
    """
    try:
        return (_PROC / str(pid) / "cmdline").read_text(errors="replace").split("\0")[:-1]
    except OSError:
        return []


def tree(pid: int) -> Iterator[int]:
    """Yield a process and all that descend from it."""
    left = [pid]
    while left:
        yield (one := left.pop())
        left += children(one)


def tree_cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process and of all that descend from it, those that have ended included.

    Of children that have ended it is told in ticks of 10 ms.
    """
    total = 0.0
    for one in tree(pid):
        try:
            fields = (_PROC / str(one) / "stat").read_text().rpartition(")")[2].split()
            of_itself, of_waited_for = sum(map(int, fields[11:13])), sum(map(int, fields[13:15]))
        except (OSError, IndexError, ValueError):
            continue
        total += max(of_itself / _TICKS, _cpu_clock(one)) + of_waited_for / _TICKS
    return total


def _cpu_clock(pid: int) -> float:
    """Return the CPU time of a process to the nanosecond, by the clock that Linux has for each; 0 if there is none."""
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except (OSError, OverflowError, AttributeError):
        return 0.0


def core_seconds() -> list[tuple[float, float]]:
    """Return for each core of the machine how long it was busy, and how long it was there, since the machine began."""
    found = []
    try:
        lines = (_PROC / "stat").read_text().splitlines()
    except OSError:
        return []
    for line in lines:
        if line.startswith("cpu") and line[3:4].isdigit():
            times = [int(field) for field in line.split()[1:9]]
            found.append(((sum(times) - times[3] - times[4]) / _TICKS, sum(times) / _TICKS))
    return found


def our_core_seconds() -> tuple[float, float] | None:
    """Return how long the cores that this process may use were busy, by whomever, and how long they were there."""
    ours = usable_cores()
    busy = there = 0
    try:
        for line in (_PROC / "stat").read_text().splitlines():
            name, *fields = line.split()
            if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in ours:
                times = [int(field) for field in fields[:8]]
                there += sum(times)
                busy += sum(times) - times[3] - times[4]
    except (OSError, ValueError, IndexError):
        return None
    return (busy / _TICKS, there / _TICKS) if there else None


def held() -> frozenset[str]:
    """Return what this process holds that a fork of it would have to share, or do without: threads, and open files, but
    for those that are only written to, such as logs.
    """
    found: set[str] = set()
    try:
        found.update(f"thread {task}" for task in os.listdir(_PROC / "self/task"))
        numbers = os.listdir(_PROC / "self/fd")
    except OSError:
        return frozenset(found)
    for number in numbers:
        try:
            name = os.readlink(_PROC / "self/fd" / number)
            told = (_PROC / "self/fdinfo" / number).read_text().split()
            if int(told[told.index("flags:") + 1], 8) & os.O_ACCMODE != os.O_WRONLY:
                found.add(f"file {number} {name}")
        except (OSError, ValueError):  # the one that lists the folder
            continue
    return frozenset(found)


class Mount(NamedTuple):
    """Where a path lies."""

    point: str
    kind: str
    """The file system: "ext4", "nfs4", "fuse.gcsfuse", "tmpfs"."""
    is_remote: bool
    is_rotational: bool | None
    """Whether its disk turns; None if that is not known, as for what lies on no disk of this machine."""


REMOTE = ("nfs", "cifs", "smb", "fuse.", "lustre", "ceph", "glusterfs", "9p", "beegfs", "gpfs", "afs", "s3", "wekafs")
"""Beginnings of the names of file systems that are read over a network."""


def mount_of(path: str | os.PathLike[str]) -> Mount | None:
    """Return where a path lies; None if it does not exist, or the system does not tell."""
    try:
        device = os.stat(path).st_dev
        real = os.path.realpath(path)
        lines = (_PROC / "self/mountinfo").read_text().splitlines()
    except (OSError, ValueError):
        return None
    best: tuple[int, str, str] | None = None
    for line in lines:
        before, _, after = line.partition(" - ")
        # spaces in the names of folders are written as octal escapes
        point = before.split()[4].replace("\\040", " ").replace("\\011", "\t")
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and (best is None or len(point) >= best[0]):  # of two at one place, the later one covers the other
            best = len(point), point, after.split()[0]
    if best is None:
        return None
    _, point, kind = best
    return Mount(point, kind, kind.startswith(REMOTE), _is_rotational(device))


def _is_rotational(device: int) -> bool | None:
    folder = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve()
    if folder.name.startswith(("vd", "xvd", "loop", "nbd")):
        return None  # a virtual disk says that it turns, whatever it lies on
    for place in (folder / "queue", folder.parent / "queue"):  # a partition has none, its disk has
        try:
            return (place / "rotational").read_text().strip() == "1"
        except OSError:
            continue
    return None


def described() -> dict[str, Any]:
    """Return what kind of machine this is, and nothing that tells which one."""
    return {
        "cores": num_cores(),
        "quota_cores": quota_cores(),
        "memory_bytes": memory_bytes(),
        "shared_memory_bytes": shared_memory_bytes(),
        "system": platform.system(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
    }


_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


def _read_bytes(folder: Path) -> int:
    try:
        for line in (folder / "io").read_text().splitlines():
            if line.startswith("read_bytes:"):
                return int(line.split()[1])
    except (OSError, ValueError):
        pass
    return 0


def _status(pid: int | str, name: str) -> int | None:
    try:
        for line in (_PROC / str(pid) / "status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return None


def _meminfo(name: str) -> int | None:
    try:
        for line in (_PROC / "meminfo").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return None


def _memory_limits() -> Iterator[int]:
    for folder in _cgroups("memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            try:
                yield int((folder / name).read_text())
            except (OSError, ValueError):  # "max", or another version of control groups
                continue


def _memory_left() -> Iterator[int]:
    """Yield what each control group around this process could still take: pages of files can be let go of."""
    kinds = (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    )
    for folder in _cgroups("memory"):
        for limit, used, reclaimable in kinds:
            try:
                left = int((folder / limit).read_text()) - int((folder / used).read_text())
                told = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
                yield max(0, left + int(told.get(reclaimable, 0)))
            except (OSError, ValueError):  # "max", or another version of control groups
                continue


def _cgroups(controller: str) -> Iterator[Path]:
    """Yield the control groups that this process is in, and those around them: each may have a limit."""
    try:
        lines = (_PROC / "self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, names, path = line.split(":", 2)
        if names and controller not in names.split(","):
            continue
        top = _CGROUP / names if names and (_CGROUP / names).exists() else _CGROUP / controller if names else _CGROUP
        folder = top / path.strip("/")
        while True:
            if folder.exists():
                yield folder
            if folder == top:
                break
            folder = folder.parent
