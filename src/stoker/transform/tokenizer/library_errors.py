"""Convert errors of tokenizer libraries into errors with a hint."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stoker.errors import DamagedFile, StokerError

_MAX_REASON_CHARS = 300

# Stoker's errors, and exceptions that are not library failures. All others are caught, even beyond `Exception`: a panic
# in a Rust library arrives as a BaseException.
NOT_THEIRS = (StokerError, KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError)


def reason_of(error: BaseException) -> str:
    """Return the message of a library error, on one line."""
    said = " ".join(str(error).split()) or type(error).__name__
    if len(said) > _MAX_REASON_CHARS:
        said = said[:_MAX_REASON_CHARS] + "..."
    return f"it panicked: {said}" if type(error).__name__ == "PanicException" else said


@contextmanager
def loading(path: Path, *, library: str, hint: str = "copy or create the file again") -> Iterator[None]:
    """Convert any error that a library raises while loading `path` into a `DamagedFile`."""
    try:
        yield
    except NOT_THEIRS:
        raise
    except BaseException as error:
        raise DamagedFile(path, what=f"cannot be loaded by {library}: {reason_of(error)}", hint=hint) from error
