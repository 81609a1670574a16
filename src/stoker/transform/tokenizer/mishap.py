"""What foreign libraries raise, in words that say what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stoker.errors import DamagedFile, StokerError

_MAX_REASON_CHARS = 300

# Ours, and what is no failure of a library. All else is caught, beyond `Exception` too: a panic in a library written in
# Rust arrives as a BaseException.
NOT_THEIRS = (StokerError, KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError)


def reason_of(error: BaseException) -> str:
    """Return what an error of a library says, on one line."""
    said = " ".join(str(error).split()) or type(error).__name__
    if len(said) > _MAX_REASON_CHARS:
        said = said[:_MAX_REASON_CHARS] + "..."
    return f"it panicked: {said}" if type(error).__name__ == "PanicException" else said


@contextmanager
def loading(path: Path, *, library: str, hint: str = "copy or make the file again") -> Iterator[None]:
    """Turn whatever a library raises while it loads `path` into a `DamagedFile` that says so."""
    try:
        yield
    except NOT_THEIRS:
        raise
    except BaseException as error:
        raise DamagedFile(path, what=f"cannot be loaded by {library}: {reason_of(error)}", hint=hint) from error
