"""Every error that Stoker raises on purpose.

::

    StokerError
    ├── ArgumentError (ValueError)          an argument, or two together, are invalid
    │   └── BadLength (TypeError)           len(dataset) is not a number of samples
    ├── MissingExtra (ImportError)          an optional library is not installed
    ├── DataError                           the data is unusable, or not what was expected
    │   ├── EmptyDataset (ValueError)       the dataset has no samples
    │   ├── PositionError (IndexError)      a position outside the data
    │   ├── EarlyStop (RuntimeError)        user code raised StopIteration instead of returning a sample
    │   ├── BadLine (ValueError)            a line of a file cannot be parsed
    │   ├── BadImage (ValueError)           an image cannot be decoded
    │   ├── StaleSource                     a file changed after it was opened
    │   ├── DamagedFile                     a file is truncated, corrupt or of another format
    │   │   └── DamagedBlock                a block of a store is corrupt
    │   ├── NotAStore                       a folder without a store's manifest
    │   ├── StoreMismatch                   a store prepared with other settings
    │   └── TooManySkipped                  more bad samples than the policy allows
    ├── BatchError                          the samples of a step cannot be collated
    │   └── NothingCollated                 the collate function returned None
    ├── StateError (ValueError)             a state that cannot be loaded
    │   ├── StateUnreadable                 not a state of a loader, or from a newer version
    │   └── StateMismatch                   a state of another order or dataset
    ├── CheckFailed (AssertionError)        a dataset breaks a promise (stoker.testing)
    └── WorkerError (RuntimeError)          something happened to a worker
        ├── NotPicklable                    an object cannot be sent to a worker process
        ├── WorkerStuck                     no batch within `timeout`
        ├── WorkerDied                      worker processes died, several in a row
        ├── OutOfSharedMemory (MemoryError) no memory for a batch
        ├── OutOfDescriptors                too many open files
        ├── ForeignProcess                  an iterator was used in a forked child
        └── NestedNext                      next(iterator) inside next(iterator)

All of them can be pickled with their fields and notes.
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
    """Base class of all errors raised on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        # The constructors take fields, not a message, so the default (calling the class with `args`) would fail.
        return _rebuilt, (type(self), self.args, dict(self.__dict__))


class ArgumentError(StokerError, ValueError):
    """An argument is invalid, alone or together with another one."""

    def __init__(self, what: str, *, hint: str) -> None:
        super().__init__(f"{what}\nhint: {hint}")


class BadLength(ArgumentError, TypeError):
    """`len(dataset)` is not a number of samples. Also a `TypeError`, like Python's own error."""

    def __init__(self, dataset: str, *, returned: str) -> None:
        super().__init__(
            f"__len__ of the dataset ({dataset}) must return an int of at least 0, got {returned}",
            hint="return the number of samples; round an estimate with int(...)",
        )
        self.dataset, self.returned = dataset, returned


class MissingExtra(StokerError, ImportError):
    """An optional library is not installed."""

    def __init__(self, library: str, *, extra: str, need: str) -> None:
        super().__init__(f"{need} needs {library}, which is not installed\nhint: pip install 'stoker[{extra}]'")
        self.library, self.extra = library, extra


class DataError(StokerError):
    """The data is unusable, or not what was expected."""


class EmptyDataset(DataError, ValueError):
    """The dataset has no samples."""

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
    """User code raised StopIteration, which would have ended the epoch silently."""

    def __init__(self, where: str) -> None:
        super().__init__(
            f"{where} raised StopIteration, which a loop would mistake for the end of the epoch\n"
            "hint: an inner next() is exhausted; pass it a default, or catch StopIteration"
        )


class BadLine(DataError, ValueError):
    """A line of a file cannot be parsed."""

    def __init__(self, path: str | Path, *, line: int | None, offset: int, reason: str) -> None:
        where = f"line {line} (byte {offset})" if line is not None else f"the line at byte {offset}"
        super().__init__(
            f"{where} of {path} cannot be parsed: {reason}\n"
            "hint: fix the line, or pass on_error='skip' to skip such lines and list them in the ledger"
        )
        self.path, self.line, self.offset, self.reason = str(path), line, offset, reason


class BadImage(DataError, ValueError):
    """An image cannot be decoded: truncated, corrupt, empty, too large, or not an image."""

    def __init__(self, path: str | Path, *, reason: str) -> None:
        super().__init__(
            f"{path} cannot be decoded: {reason}\n"
            "hint: `stoker verify images` finds all such files before a run; with on_error='skip' a loader replaces "
            "each by another image and lists it in its ledger; `stoker prepare images --on-error skip` leaves them out"
        )
        self.path, self.reason = str(path), reason


class StaleSource(DataError):
    """A file changed, shrank or was deleted after it was opened."""

    def __init__(self, path: str | Path, *, what: str) -> None:
        super().__init__(
            f"{path} is no longer the file that was opened: {what}\n"
            "hint: files must not change during a run: write a new file and rename it over the old one, and open the "
            "source again to use the new content"
        )
        self.path = str(path)


class DamagedFile(DataError):
    """A file is truncated, corrupt, or not of the format that its name says."""

    def __init__(self, path: str | Path, *, what: str, hint: str = "copy or create the file again") -> None:
        super().__init__(f"{path} {what}\nhint: {hint}")
        self.path = str(path)


class DamagedBlock(DamagedFile):
    """A block of a store does not match its checksum."""

    def __init__(self, path: str | Path, *, block: int, columns: Sequence[str], expected: int, found: int) -> None:
        super().__init__(
            path,
            what=f"is damaged in block {block} (of {', '.join(columns) or 'no column'}): "
            f"expected checksum {expected:016x}, got {found:016x}",
            hint=f"`stoker verify {Path(path).parent}` lists all damage; copy the file again, or prepare it again",
        )
        self.block, self.columns = block, tuple(columns)


class NotAStore(DataError):
    """There is no store at this path."""

    def __init__(self, path: str | Path, *, what: str) -> None:
        super().__init__(
            f"{path} is not a store: {what}\n"
            "hint: a store is a folder with a manifest.json, made by stoker.store.Writer or `stoker prepare`; "
            "if its preparation was interrupted, run the same command again to complete it"
        )
        self.path = str(path)


class StoreMismatch(DataError):
    """A store was prepared with other settings than expected."""

    def __init__(self, path: str | Path, differences: Mapping[str, tuple[Any, Any]]) -> None:
        lines = "".join(
            f"\n  {name}: expected {ours!r}, the store has {theirs!r}" for name, (ours, theirs) in differences.items()
        )
        super().__init__(
            f"{path} was prepared with other settings than expected:{lines}\n"
            "hint: prepare it again with the expected settings, or pass the settings that `stoker inspect` shows"
        )
        self.path, self.differences = str(path), dict(differences)


class TooManySkipped(DataError):
    """More bad samples were skipped than the policy allows."""

    def __init__(self, *, skipped: int, served: int, limit: str, recent: Sequence[str]) -> None:
        listed = "".join(f"\n  {line}" for line in recent)
        super().__init__(
            f"{skipped} of {served} samples were skipped, more than {limit}; the latest:{listed}\n"
            "hint: fix the data, or allow more with on_error=stoker.Policy(max_skipped=..., max_rate=...)"
        )
        self.skipped, self.served = skipped, served


class BatchError(StokerError):
    """The samples of a step cannot be collated."""


class NothingCollated(BatchError):
    """The collate function returned None."""

    def __init__(self, function: str, *, step: int) -> None:
        super().__init__(
            f"the collate function {function} returned None at step {step}\n"
            "hint: did the function forget to `return` the batch? "
            "To skip bad samples, raise an error in `__getitem__` and pass on_error='skip'"
        )
        self.function, self.step = function, step


class CheckFailed(StokerError, AssertionError):
    """A dataset breaks a promise of a protocol in `stoker.source.protocols`."""

    def __init__(self, check: str, problem: str) -> None:
        super().__init__(f"{check}: {problem}\nhint: stoker.source.protocols says what a dataset has to do for it")
        self.check, self.problem = check, problem


class StateError(StokerError, ValueError):
    """A state cannot be loaded."""


class StateUnreadable(StateError):
    """The object is not a state of a loader, or comes from a newer version."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"this state cannot be loaded: {reason}\nhint: pass what `DataLoader.state_dict()` returned, unchanged"
        )


class StateMismatch(StateError):
    """The state is of another order or dataset."""

    def __init__(self, differences: Mapping[str, tuple[Any, Any]]) -> None:
        lines = "".join(
            f"\n  {name}: the state has {theirs!r}, this loader {ours!r}"
            for name, (theirs, ours) in differences.items()
        )
        super().__init__(
            f"this state does not match this loader:{lines}\n"
            "hint: the number of ranks, workers and threads and the batch size may change between runs, these may not; "
            "create the loader with the same settings, or start without the state"
        )
        self.differences = dict(differences)


class WorkerError(StokerError, RuntimeError):
    """Something happened to a worker."""


class NotPicklable(WorkerError):
    """An object cannot be sent to a worker process."""

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
            "hint: the stacks below show where the worker is stuck; raise the timeout if it is only slow\n"
            f"{stacks}"
        )
        self.seconds, self.stacks = seconds, stacks


class WorkerDied(WorkerError):
    """Several worker processes died in a row, at one batch or at start-up."""

    def __init__(self, what: str, *, ends: Sequence[str]) -> None:
        hint = (
            "SIGKILL usually means out of memory (see `dmesg`, or the container's limit); SIGSEGV and SIGABRT mean "
            "a crash in native code; num_workers=0 loads the same sample in this process"
        )
        if any(end.startswith("SIGBUS") for end in ends):
            hint = (
                "SIGBUS: a file was truncated while it was read through a memory map, or there was no memory or disk "
                "space for a shared mapping; files must not change during a run: write a new file and rename it over "
                "the old one"
            )
        elif all(end.startswith("exit code") for end in ends):
            hint = (
                "see what the process printed before it died; a script that starts workers by spawn or forkserver "
                'needs `if __name__ == "__main__":` around its main code'
            )
        died = f"{len(ends)} worker processes died in a row" if len(ends) > 1 else "a worker process died"
        super().__init__(f"{died} at {what}: {', '.join(ends)}\nhint: {hint}")
        self.what, self.ends = what, tuple(ends)


class OutOfSharedMemory(WorkerError, MemoryError):
    """No shared memory is left for a batch."""

    def __init__(self, num_bytes: int, *, reason: str, what: str = "a batch") -> None:
        from stoker.foundation.text import format_bytes  # late: `foundation` imports this module

        size = f"{format_bytes(num_bytes)} of " if num_bytes else ""
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
            f"too many open files: no file descriptor left for {what}\n"
            "hint: raise the limit (`ulimit -n 65536`), or close what is no longer needed; a loader itself takes about "
            "three descriptors per worker, and none per batch"
        )
        self.what = what


class ForeignProcess(WorkerError):
    """An iterator was used in a forked process."""

    def __init__(self) -> None:
        super().__init__(
            "this iterator was created before os.fork(); its threads exist only in the parent process\n"
            "hint: call iter(loader) in the process that uses it"
        )


class NestedNext(WorkerError):
    """`next(iterator)` was called while the same thread was already inside it."""

    def __init__(self) -> None:
        super().__init__(
            "next(iterator) was called while this thread was already inside next(iterator): from a signal handler, a "
            "__del__ method, or a dataset that reads from its own loader\n"
            "hint: let the handler set a flag and check it between batches; the interrupted call continues"
        )
