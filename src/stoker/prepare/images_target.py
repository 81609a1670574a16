"""The folder that a preparation of pictures fills: what is in it, and whether that is what is asked for."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from stoker.errors import ArgumentError, DataError
from stoker.prepare.images_report import ImageReport
from stoker.prepare.skips import LEDGER
from stoker.store.build import PIECES, UNFINISHED
from stoker.store.manifest import Manifest, read_manifest, write_safely

KIND = "images"
_RUN = "run.json"
_NUM_NAMED = 10


class ImageTarget:
    """A folder for a store of pictures."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.unfinished = path / UNFINISHED

    def check_is_ours(self) -> None:
        """Refuse a folder that holds anything but a store of pictures, finished or not."""
        path = self.path
        manifest = self.manifest()
        if manifest is not None:
            is_ours = manifest.meta.get("kind") == KIND
        else:
            # never finished, or its manifest is damaged or lost: then all is made again
            is_ours = self._run().get("kind") == KIND or (self.unfinished.is_dir() and not self._run())
            is_ours = is_ours or self._has_pieces()
        if is_ours or not path.exists() or (path.is_dir() and not any(path.iterdir())):
            return
        if not path.is_dir():
            what = "is a file"
        elif manifest is not None or self._run():
            what = "holds a store that was not made by `stoker prepare images`"
        else:
            what = "is there already, and is not a store"
        raise ArgumentError(f"{path} {what}", hint="choose a new or an empty folder")

    def _has_pieces(self) -> bool:
        """Whether the table of pieces tells of pieces such as ours."""
        try:
            pieces = json.loads((self.path / PIECES).read_bytes())
            return bool(pieces) and all("pictures" in entry["notes"] for entry in pieces.values())
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return False

    def manifest(self) -> Manifest | None:
        """Return the manifest of the store that is there; None if there is none, or none that can be read."""
        try:
            return read_manifest(self.path)
        except (DataError, OSError):
            return None

    def is_fresh(self, wanted: Mapping[str, Any]) -> bool:
        """Whether the store was made of these pictures with these settings, and nothing of a run is left over."""
        manifest = self.manifest()
        if manifest is None or self.unfinished.exists():
            return False
        if any(manifest.meta.get(part) != wanted[part] for part in ("kind", "settings", "classes")):
            return False
        origin = manifest.meta.get("origin")
        known = [origin.get(name) if isinstance(origin, dict) else None for name in ("code", "digest")]
        if known != [wanted["origin"]["code"], wanted["origin"]["digest"]]:
            return False
        try:
            return all(os.stat(self.path / shard.file).st_size == shard.num_bytes for shard in manifest.shards)
        except OSError:
            return False

    def clear_up(self) -> None:
        """Remove what a killed run has left half-written. Only for whoever holds the lock."""
        for folder, pattern in (
            (self.path, ".*.json*.*"),
            (self.unfinished, ".*"),
            (self.unfinished, "*.safetensors.*"),
        ):
            for path in folder.glob(pattern):
                if path.is_file():
                    path.unlink(missing_ok=True)

    def keep_run(self, piece_bytes: int) -> None:
        """Keep what the next run wants to know if this one is stopped."""
        write_safely(self.unfinished / _RUN, json.dumps({"kind": KIND, "piece_bytes": piece_bytes}).encode())

    def _run(self) -> dict[str, Any]:
        with suppress(OSError, ValueError, RecursionError):
            run = json.loads((self.unfinished / _RUN).read_bytes())
            return run if isinstance(run, dict) else {}
        return {}

    def known_piece_bytes(self) -> int | None:
        """Return the size of pieces in the store, or in the run that was not finished; None if there is neither."""
        manifest = self.manifest()
        settings = self._run() if manifest is None else manifest.meta.get("settings")
        size = settings.get("piece_bytes") if isinstance(settings, dict) else None
        return size if type(size) is int and size > 0 else None

    def piece_keys(self) -> set[str]:
        """Return the keys of the pieces in the store that is there."""
        manifest = self.manifest()
        return set() if manifest is None else {shard.piece for shard in manifest.shards}

    def write_ledger(self, entries: Sequence[Mapping[str, Any]]) -> None:
        """Write what was skipped, a line each; without entries there is no ledger."""
        path = self.path / LEDGER
        if not entries:
            path.unlink(missing_ok=True)
            return
        write_safely(path, "".join(json.dumps(entry) + "\n" for entry in entries).encode())

    def report(self, *, seconds: float) -> ImageReport:
        """Return what is in the store."""
        manifest = self.manifest()
        assert manifest is not None
        counts = manifest.meta["counts"]
        classes = manifest.meta.get("classes")
        return ImageReport(
            path=self.path,
            pictures=counts["pictures"],
            reencoded=counts["new"],
            source_bytes=counts["source_bytes"],
            image_bytes=counts["image_bytes"],
            disk_bytes=sum(shard.num_bytes for shard in manifest.shards),
            skipped=counts["skipped"],
            reasons=counts["reasons"],
            bad=self._bad(),
            classes=None if classes is None else len(classes),
            num_pieces=len({shard.piece for shard in manifest.shards}),
            num_made=0,
            seconds=seconds,
        )

    def _bad(self) -> list[str]:
        found = []
        with suppress(OSError, ValueError, KeyError), open(self.path / LEDGER, encoding="utf-8") as file:
            for line in file:
                entry = json.loads(line)
                if "reason" in entry:
                    found.append(f"{entry['file']}: {entry['reason']}")
                if len(found) == _NUM_NAMED:
                    break
        return found


def ledger_of(notes: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the entries of the ledger, from the notes of each piece."""
    found: list[dict[str, Any]] = []
    for noted in notes:
        skipped = noted["skipped"]
        found.extend(skipped["entries"])
        if skipped["count"] > len(skipped["entries"]):
            found.append({"more": skipped["count"] - len(skipped["entries"]), "reasons": skipped["reasons"]})
    return found
