"""Compile the C libraries: run by the build hook at installation, or by `python -m stoker.native`.

There are two, because the one that decodes JPEG files needs libjpeg-turbo, which not every machine has.

Imports nothing but the standard library: the hook runs this file before the package can be imported.
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

SOURCES = Path(__file__).parent
LIBRARY = SOURCES / "libstoker.so"
JPEG_LIBRARY = SOURCES / "libstokerjpeg.so"
MARK = b"stoker-native-sources:"
"""The digest of the sources follows it in the library."""

# No -march: the library may be used on another machine. Loops have clones for newer processors, where supported.
FLAGS = ("-O3", "-std=gnu11", "-fPIC", "-shared", "-fvisibility=hidden")
CLONES = "-DSTOKER_CLONES"

OF_JPEG = {"jpeg.c", "passes.c", "resize.c", "version.c"}
"""The sources of the library for JPEG. The other one has all except jpeg.c."""

# Symbols that libjpeg lacks fail here or when the library is loaded, not at the first call: that would end the process.
JPEG_LINKS = ("-ljpeg", "-Wl,-z,defs", "-Wl,-z,now")


class NotBuilt(Exception):
    """There is no compiler, or it failed. Everything works without the library, only slower."""


def digest() -> str:
    """Return a digest of the sources and compiler flags."""
    found = hashlib.sha256(" ".join(FLAGS).encode())
    for path in sorted(SOURCES.glob("*.[ch]")):
        found.update(f"\0{path.name}\0".encode() + path.read_bytes())
    return found.hexdigest()[:32]


def is_current(library: Path = LIBRARY, sources: str | None = None) -> bool:
    """Return whether a library exists and was built from exactly these sources, without loading it.

    `sources` is their digest, if it is known already.
    """
    try:
        return MARK + (sources or digest()).encode() in library.read_bytes()
    except OSError:
        return False


def build(library: Path = LIBRARY) -> Path:
    """Return the library, after compiling it unless it is current; raise `NotBuilt` if that fails."""
    return _built(library, {path.name for path in SOURCES.glob("*.c")} - {"jpeg.c"}, ())


def build_jpeg(library: Path = JPEG_LIBRARY) -> Path:
    """The same for the JPEG library."""
    return _built(library, OF_JPEG, JPEG_LINKS)


def _built(library: Path, names: set[str], links: tuple[str, ...]) -> Path:
    if is_current(library):
        return library
    import subprocess  # late: the package imports this file too, and opening a store should stay quick

    compiler = _compiler()
    # Under another name first: running processes may have the old one mapped.
    unfinished = library.with_name(f"{library.name}.{os.getpid()}")
    sources = [str(SOURCES / name) for name in sorted(names)]
    output = ""
    try:
        for options in ([CLONES], []):  # not every system supports them
            mark = f'-DSTOKER_SOURCES="{digest()}"'
            command = [*compiler, *FLAGS, *options, mark, "-o", str(unfinished), *sources, *links, "-lm"]
            try:
                done = subprocess.run(command, capture_output=True, text=True, check=False)
            except OSError as error:
                raise NotBuilt(f"{compiler[0]} cannot be run: {error}") from error
            if done.returncode == 0:
                os.replace(unfinished, library)
                return library
            output = done.stderr
    except OSError as error:
        raise NotBuilt(f"{library} cannot be written: {error}") from error
    finally:
        unfinished.unlink(missing_ok=True)
    raise NotBuilt(f"{' '.join(compiler)} failed:\n{output}")


def _compiler() -> list[str]:
    import shlex
    import shutil

    given = shlex.split(os.environ.get("CC", ""))
    for command in [given] if given else [["cc"], ["gcc"], ["clang"]]:
        if shutil.which(command[0]):
            return command
    raise NotBuilt(f"no compiler was found ({' '.join(given) or 'cc, gcc or clang'})")


def first_fault(reason: NotBuilt) -> str:
    """Return in one line why there is no library: the first compiler error, if any."""
    lines = str(reason).splitlines()
    return next((line.strip() for line in lines if "error:" in line or "cannot find" in line), lines[0])


def main() -> None:
    """Build and print the result. Without a compiler, that is not a failure."""
    try:
        print(f"native helpers: {build()}")  # noqa: T201
    except NotBuilt as reason:
        print(f"native helpers: not built, so NumPy is used (slower). {reason}", file=sys.stderr)  # noqa: T201
        return
    try:
        print(f"native JPEG decoder: {build_jpeg()}")  # noqa: T201
    except NotBuilt as reason:
        why = f"not built, so other decoders are used (slower). {first_fault(reason)}"
        print(f"native JPEG decoder: {why}", file=sys.stderr)  # noqa: T201
