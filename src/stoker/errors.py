"""Every error Stoker raises on purpose.

::

    StokerError
    ├── ArgumentError (ValueError)          an argument, or two together, cannot work
    │   └── BadLength (TypeError)           len(dataset) is not a number of samples
    ├── MissingExtra (ImportError)          an optional library is not installed
    ├── DataError                           the data is not what it said it was
    │   ├── EmptyDataset (ValueError)       there is nothing to load
    │   ├── PositionError (IndexError)      a position outside the data
    │   ├── EarlyStop (RuntimeError)        StopIteration where a sample should have come
    │   ├── BadLine (ValueError)            a line of a file cannot be parsed
    │   ├── BadImage (ValueError)           a picture cannot be decoded
    │   ├── StaleSource                     a file changed after it was opened
    │   ├── DamagedFile                     a file's bytes are not what its name says
    │   │   └── DamagedBlock                a block of a store is not what was written
    │   ├── NotAStore                       a folder without a manifest of ours
    │   ├── StoreMismatch                   a store that is not the one expected
    │   └── TooManySkipped                  more bad samples than the policy allows
    ├── BatchError                          samples that do not make a batch
    │   └── NothingCollated                 the collate function returned None
    ├── StateError (ValueError)             a state that cannot be loaded
    │   ├── StateUnreadable                 not a state of ours, or from a newer version
    │   └── StateMismatch                   a state of another plan or dataset
    ├── CheckFailed (AssertionError)        a dataset breaks a promise (stoker.testing)
    └── WorkerError (RuntimeError)          something happened to whoever does the work
        ├── NotPicklable                    an object cannot travel to a worker process
        ├── WorkerStuck                     no batch within `timeout`
        ├── WorkerDied                      a batch, or the start, has ended several worker processes
        ├── OutOfSharedMemory (MemoryError) no memory for a batch
        ├── OutOfDescriptors                too many open files
        ├── ForeignProcess                  an iterator was used in a forked child
        └── NestedNext                      next(iterator) inside next(iterator)

All of them survive pickling with their fields and notes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def _rebuilt(kind: type[StokerError], args: tuple[Any, ...], fields: dict[str, Any]) -> StokerError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(fields)
    return error


class StokerError(Exception):
    """The base of all errors raised on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        # The constructors take fields, not a message, so the default (calling the class with `args`) would fail.
        return _rebuilt, (type(self), self.args, dict(self.__dict__))


class ArgumentError(StokerError, ValueError):
    """An argument cannot work, alone or beside another one."""

    def __init__(self, what: str, *, hint: str) -> None:
        super().__init__(f"{what}\nhint: {hint}")


class BadLength(ArgumentError, TypeError):
    """`len(dataset)` is not a number of samples. A `TypeError` too, as Python's own refusal of it is."""

    def __init__(self, dataset: str, *, returned: str) -> None:
        super().__init__(
            f"__len__ of the dataset ({dataset}) must return an int of at least 0, got {returned}",
            hint="return the number of samples; of an estimate, int(...)",
        )
        self.dataset, self.returned = dataset, returned


class MissingExtra(StokerError, ImportError):
    """An optional library is not installed."""

    def __init__(self, library: str, *, extra: str, need: str) -> None:
        super().__init__(f"{need} needs {library}, which is not installed\nhint: pip install 'stoker[{extra}]'")
        self.library, self.extra = library, extra


class DataError(StokerError):
    """The data is not what it said it was."""


class EmptyDataset(DataError, ValueError):
    """There is nothing to load."""

    def __init__(self, dataset: str) -> None:
        super().__init__(
            f"the dataset ({dataset}) is empty: len(dataset) is 0\n"
            "hint: check the path or the filter that produced it; a loader needs at least one sample"
        )


class PositionError(DataError, IndexError):
    """A position is outside the data."""

    def __init__(self, position: int, *, length: int, what: str) -> None:
        super().__init__(
            f"position {position} is outside {what}, which has {length} samples\n"
            f"hint: positions run from 0 to {length - 1}"
        )
        self.position, self.length = position, length


class EarlyStop(DataError, RuntimeError):
    """User code raised StopIteration, which would have ended the epoch as if all were well."""

    def __init__(self, where: str) -> None:
        super().__init__(
            f"{where} raised StopIteration, which a loop would take for the end of the epoch\n"
            "hint: an inner next() has run out; give it a default, or handle its end"
        )


class BadLine(DataError, ValueError):
    """A line of a file cannot be parsed."""

    def __init__(self, path: str | Path, *, line: int | None, offset: int, reason: str) -> None:
        where = f"line {line} (byte {offset})" if line is not None else f"the line at byte {offset}"
        super().__init__(
            f"{where} of {path} cannot be parsed: {reason}\n"
            "hint: mend the line, or pass on_error='skip' to leave such lines out and list them in the ledger"
        )
        self.path, self.line, self.offset, self.reason = str(path), line, offset, reason


class BadImage(DataError, ValueError):
    """A picture cannot be decoded: cut short, damaged, empty, too large, or no picture at all."""

    def __init__(self, path: str | Path, *, reason: str) -> None:
        super().__init__(
            f"{path} cannot be decoded: {reason}\n"
            "hint: `stoker verify images` finds all such files beforehand; with on_error='skip' a loader puts another "
            "picture in the place of each and lists them in its ledger, and `stoker prepare` (--on-error skip) leaves "
            "them out"
        )
        self.path, self.reason = str(path), reason


class StaleSource(DataError):
    """A file changed, shrank or went away after it was opened."""

    def __init__(self, path: str | Path, *, what: str) -> None:
        super().__init__(
            f"{path} is no longer the file that was opened: {what}\n"
            "hint: files must not change during a run: write a new file and rename it over the old one, and open the "
            "source again to use the new content"
        )
        self.path = str(path)


class DamagedFile(DataError):
    """A file is cut short, damaged, or not of the kind its name says."""

    def __init__(self, path: str | Path, *, what: str, hint: str = "copy or make the file again") -> None:
        super().__init__(f"{path} {what}\nhint: {hint}")
        self.path = str(path)


class DamagedBlock(DamagedFile):
    """A block's bytes are not the bytes that were written."""

    def __init__(self, path: str | Path, *, block: int, columns: Sequence[str], expected: int, found: int) -> None:
        super().__init__(
            path,
            what=f"is damaged in block {block} (of {', '.join(columns) or 'no column'}): "
            f"its checksum is {found:016x} and should be {expected:016x}",
            hint=f"`stoker verify {Path(path).parent}` lists all damage; copy the file again, or prepare it anew",
        )
        self.block, self.columns = block, tuple(columns)


class NotAStore(DataError):
    """A path at which there is no store."""

    def __init__(self, path: str | Path, *, what: str) -> None:
        super().__init__(
            f"{path} is not a store: {what}\n"
            "hint: a store is a folder with a manifest.json, made by stoker.store.Writer or `stoker prepare`; "
            "one whose preparation was cut short is completed by the same command again"
        )
        self.path = str(path)


class StoreMismatch(DataError):
    """A store does not match what was expected of it."""

    def __init__(self, path: str | Path, differences: Mapping[str, tuple[Any, Any]]) -> None:
        lines = "".join(
            f"\n  {name}: expected {ours!r}, the store has {theirs!r}" for name, (ours, theirs) in differences.items()
        )
        super().__init__(
            f"{path} is not the store that was expected; what differs:{lines}\n"
            "hint: prepare it anew with the settings that are expected, or expect what `stoker inspect` shows"
        )
        self.path, self.differences = str(path), dict(differences)


class TooManySkipped(DataError):
    """More bad samples were skipped than the policy allows."""

    def __init__(self, *, skipped: int, served: int, limit: str, recent: Sequence[str]) -> None:
        listed = "".join(f"\n  {line}" for line in recent)
        super().__init__(
            f"{skipped} of {served} samples were skipped, more than {limit}; the latest:{listed}\n"
            "hint: mend the data, or allow more with on_error=stoker.Policy(max_skipped=..., max_rate=...)"
        )
        self.skipped, self.served = skipped, served


class BatchError(StokerError):
    """The samples of a step do not make a batch."""


class NothingCollated(BatchError):
    """The collate function returned None."""

    def __init__(self, function: str, *, step: int) -> None:
        super().__init__(
            f"the collate function {function} returned None at step {step}\n"
            "hint: return the batch; a `return` is often forgotten at the end of the function. "
            "To leave bad samples out, raise in `__getitem__` and pass on_error='skip'"
        )
        self.function, self.step = function, step


class CheckFailed(StokerError, AssertionError):
    """A dataset breaks a promise of a protocol in `stoker.source.protocols`."""

    def __init__(self, check: str, problem: str) -> None:
        super().__init__(f"{check}: {problem}")
        self.check = check


class StateError(StokerError, ValueError):
    """A state cannot be loaded."""


class StateUnreadable(StateError):
    """The object is not a state of ours, or comes from a newer version."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"this is not a state that can be loaded: {reason}\n"
            "hint: pass what `DataLoader.state_dict()` returned, unchanged"
        )


class StateMismatch(StateError):
    """The state was made by another plan or on another dataset."""

    def __init__(self, differences: Mapping[str, tuple[Any, Any]]) -> None:
        lines = "".join(
            f"\n  {name}: the state has {theirs!r}, this loader {ours!r}"
            for name, (theirs, ours) in differences.items()
        )
        super().__init__(
            f"the state belongs to another stream of samples; what differs:{lines}\n"
            "hint: the number of ranks, workers, threads and the batch size may change between runs, these may not; "
            "make the loader as it was, or start without the state"
        )
        self.differences = dict(differences)


class WorkerError(StokerError, RuntimeError):
    """Something happened to whoever does the work."""


class NotPicklable(WorkerError):
    """An object cannot travel to a worker process."""

    def __init__(self, what: str, *, reason: str, start_method: str) -> None:
        super().__init__(
            f"{what} cannot be sent to a worker process (start method {start_method!r}): {reason}\n"
            "hint: define it at the top of a module (no lambda, no local class, no open file or lock inside), "
            "or load with threads instead: num_workers=0, num_threads=..."
        )
        self.what, self.reason = what, reason


class WorkerStuck(WorkerError):
    """No batch came within `timeout`."""

    def __init__(self, *, seconds: float, stacks: str, what: str = "") -> None:
        super().__init__(
            f"no batch came within timeout={seconds} s{f': waiting for {what}' if what else ''}\n"
            "hint: the stacks below show where the work is stuck; raise the timeout if it is only slow\n"
            f"{stacks}"
        )
        self.seconds, self.stacks = seconds, stacks


class WorkerDied(WorkerError):
    """A batch, or the start, has ended several worker processes, one after the other."""

    def __init__(self, what: str, *, ends: Sequence[str]) -> None:
        hint = (
            "SIGKILL is often the system's answer to a lack of memory (see `dmesg`, or the container's limit); "
            "SIGSEGV and SIGABRT are crashes in native code; num_workers=0 runs into the same sample in this process"
        )
        if any(end.startswith("SIGBUS") for end in ends):
            hint = (
                "SIGBUS: a file was truncated while it was read through a memory map, or there was no memory or disk "
                "space for a shared mapping; files must not change during a run: write a new file and rename it over "
                "the old one"
            )
        elif all(end.startswith("exit code") for end in ends):
            hint = (
                "what the process printed before it ended tells why; a script that starts workers by spawn or "
                'forkserver needs `if __name__ == "__main__":` around what it runs'
            )
        in_a_row = f"{len(ends)} worker processes in a row" if len(ends) > 1 else "a worker process"
        super().__init__(f"{what} ended {in_a_row}: {', '.join(ends)}\nhint: {hint}")
        self.what, self.ends = what, tuple(ends)


class OutOfSharedMemory(WorkerError, MemoryError):
    """There is no memory for a batch."""

    def __init__(self, num_bytes: int, *, reason: str, what: str = "a batch") -> None:
        size = f"{num_bytes / 1e6:,.1f} MB of " if num_bytes else ""
        super().__init__(
            f"no shared memory for {size}{what}: {reason}\n"
            "hint: use fewer workers or a smaller prefetch_factor or batch_size, keep fewer batches, or raise the "
            "limit on memory (container) or file size (`ulimit -f`); /dev/shm is not used, and its size does not matter"
        )
        self.num_bytes, self.reason = num_bytes, reason


class OutOfDescriptors(WorkerError):
    """Too many files are open."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"too many open files: no descriptor left for {what}\n"
            "hint: raise the limit (`ulimit -n 65536`), or close what is no longer needed; a loader itself takes about "
            "three descriptors per worker, and none per batch"
        )
        self.what = what


class ForeignProcess(WorkerError):
    """An iterator was used in a process other than the one that made it."""

    def __init__(self) -> None:
        super().__init__(
            "this iterator was made before a fork, and its threads stayed behind in the parent process\n"
            "hint: call iter(loader) in the process that uses it"
        )


class NestedNext(WorkerError):
    """`next(iterator)` was called by what interrupted a call of it in the same thread."""

    def __init__(self) -> None:
        super().__init__(
            "next(iterator) was called while this thread is inside next(iterator) already: by a signal handler, a "
            "__del__ method, or a dataset that reads from its own loader\n"
            "hint: let the handler set a flag, and look at it between two batches; the interrupted call continues"
        )
