"""Earlier versions of a store that are still open: their manifests, and the shards that must be kept for them.

Every reader holds a shared lock (flock) on the manifest it opened. When a preparation replaces the manifest, it keeps
the old one in `.generations`, as a hard link, and with it the shards that it lists. Later runs remove a generation once
they get an exclusive lock on its manifest, which means that no process has it open.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from stoker.errors import DataError
from stoker.store.manifest import FILE, Manifest, read_manifest
from stoker.store.space import AddressSpace

GENERATIONS = ".generations"


class ManifestLock:
    """A shared lock on a manifest, held as long as this object lives, also by forked children.

    The file is mapped and then closed: a flock lasts until the last mapping is gone, so a store needs no descriptor.
    """

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            self._file = os.fstat(descriptor)
            self._space: AddressSpace | None = AddressSpace(1)
            self._space.map_file(descriptor, 0, 1)
        finally:
            os.close(descriptor)

    def is_for(self, path: Path) -> bool:
        """Return whether the file at a path is the locked one."""
        try:
            return os.path.samestat(os.stat(path), self._file)
        except OSError:
            return False

    def release(self) -> None:
        """Release it in this process."""
        self._space = None


def lock_manifest(folder: Path, name: str = FILE) -> tuple[Manifest, ManifestLock | None]:
    """Return the manifest of a store, and the lock that keeps its shards; None if files cannot be locked."""
    path = folder / name
    while True:
        hold: ManifestLock | None = None
        with suppress(OSError):
            hold = ManifestLock(path)
        try:
            manifest = read_manifest(folder, name)
        except BaseException:
            if hold is not None:
                hold.release()
            raise
        if hold is None or hold.is_for(path):
            return manifest, hold
        hold.release()  # race: another manifest replaced it between locking and reading


def name_of(fingerprint: str) -> str:
    """Return the path of an earlier manifest, relative to the store's folder."""
    return f"{GENERATIONS}/{fingerprint}.json"


def keep(folder: Path, new: Manifest) -> None:
    """Keep the manifest that a new one will replace, unless its shards are overwritten or it is the same."""
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
    with suppress(OSError):  # some file systems have no hard links: then the old generation is not kept
        (folder / GENERATIONS).mkdir(exist_ok=True)
        (folder / name_of(fingerprint)).unlink(missing_ok=True)
        os.link(folder / FILE, folder / name_of(fingerprint))


def end_unused(folder: Path) -> tuple[set[str], set[str]]:
    """Remove unlocked manifests. Return their shards, and the shards that must be kept for the others.

    Only while holding the lock of the folder.
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
                pass  # no locks on this file system, so no reader has one
            path.unlink(missing_ok=True)  # before its shards: a reader about to lock it sees that it is gone
            ended |= shards
        finally:
            os.close(descriptor)
    with suppress(OSError):
        (folder / GENERATIONS).rmdir()
    return ended - kept, kept
