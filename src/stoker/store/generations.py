"""Earlier versions of a store that are still in use: their manifests, and which shards must stay for them.

Whoever reads a store holds a shared lock on its manifest. When another manifest takes its place, the old one stays in
`.generations` as long as somebody holds it, with the shards that it names.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from stoker.errors import DataError
from stoker.store.manifest import FILE, Manifest, read_manifest
from stoker.store.space import Space

GENERATIONS = ".generations"


class Hold:
    """A shared lock on a manifest, held for as long as this object is there. Forked children have a share in it.

    The file is mapped and then closed: a lock of this kind lasts until the last mapping is gone, so that a store takes
    no file descriptor.
    """

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            self._file = os.fstat(descriptor)
            self._space: Space | None = Space(1)
            self._space.map_file(descriptor, 0, 1)
        finally:
            os.close(descriptor)

    def is_of(self, path: Path) -> bool:
        """Return whether the file at a path is the one that is held."""
        try:
            return os.path.samestat(os.stat(path), self._file)
        except OSError:
            return False

    def leave(self) -> None:
        """Let go of it, in this process."""
        self._space = None


def held_manifest(folder: Path, name: str = FILE) -> tuple[Manifest, Hold | None]:
    """Return the manifest of a store, and what keeps its shards; None where files cannot be locked."""
    path = folder / name
    while True:
        hold: Hold | None = None
        with suppress(OSError):
            hold = Hold(path)
        try:
            manifest = read_manifest(folder, name)
        except BaseException:
            if hold is not None:
                hold.leave()
            raise
        if hold is None or hold.is_of(path):
            return manifest, hold
        hold.leave()  # another one has taken its place meanwhile


def name_of(fingerprint: str) -> str:
    """Return where in the store's folder the manifest of an earlier generation is."""
    return f"{GENERATIONS}/{fingerprint}.json"


def keep(folder: Path, new: Manifest) -> None:
    """Keep the manifest that a new one is about to replace, unless it cannot be used any more, or is the same."""
    try:
        old = read_manifest(folder)
    except DataError:
        return
    fingerprint = old.fingerprint()
    digests = {shard.file: shard.digest for shard in new.shards}
    if fingerprint == new.fingerprint() or any(
        digests.get(shard.file, shard.digest) != shard.digest for shard in old.shards
    ):
        return
    with suppress(OSError):  # without links, as on some file systems, it goes as it went
        (folder / GENERATIONS).mkdir(exist_ok=True)
        (folder / name_of(fingerprint)).unlink(missing_ok=True)
        os.link(folder / FILE, folder / name_of(fingerprint))


def end_unused(folder: Path) -> tuple[set[str], set[str]]:
    """Remove the manifests that nobody holds. Return the shards of these, and those that have to stay for the others.

    Only for whoever holds the lock of the folder.
    """
    ended: set[str] = set()
    kept: set[str] = set()
    for path in (folder / GENERATIONS).glob("*.json"):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            shards: set[str] = set()
            with suppress(DataError):
                shards = {shard.file for shard in read_manifest(folder, f"{GENERATIONS}/{path.name}").shards}
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                kept |= shards
                continue
            except OSError:
                pass  # nobody can hold it either
            path.unlink(missing_ok=True)  # before its shards: whoever is about to hold it sees that it is gone
            ended |= shards
        finally:
            os.close(descriptor)
    with suppress(OSError):
        (folder / GENERATIONS).rmdir()
    return ended - kept, kept
