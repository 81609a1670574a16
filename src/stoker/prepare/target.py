"""The folder that a preparation fills: what is in it, and whether that is what is asked for."""

from __future__ import annotations

import glob
import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from stoker.errors import ArgumentError, DataError
from stoker.prepare.choice import Findings
from stoker.prepare.encoding import COLUMN
from stoker.prepare.inputs import Input
from stoker.prepare.report import Report
from stoker.prepare.settings import Settings
from stoker.prepare.skips import LEDGER
from stoker.store import Build
from stoker.store.build import PIECES, UNFINISHED
from stoker.store.generations import GENERATIONS
from stoker.store.lock import locked
from stoker.store.manifest import FILE, Manifest, read_manifest, write_safely
from stoker.transform.tokenizer import Identity

_INPUTS = "inputs.json"
_RUN = "run.json"
"""What an unfinished run was asked to do, as far as the next one wants to know."""


class Target:
    """A folder for a store of tokens."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.unfinished = path / UNFINISHED
        self.unshuffled = self.unfinished / "unshuffled"
        self._known: tuple[Any, Manifest | None] = (None, None)

    def check_is_ours(self) -> None:
        """Refuse a folder that holds anything but a store of tokens, finished or not."""
        path = self.path
        manifest = self._manifest()
        has_pieces = self._has_pieces() if manifest is None else None
        if manifest is not None:
            is_ours = all(isinstance(manifest.meta.get(part), dict) for part in ("tokenizer", "settings", "origin"))
        else:  # it was never finished, or its manifest is damaged or lost: then all is made again
            is_ours = self.unfinished.is_dir() if has_pieces is None else has_pieces
        if is_ours or not path.exists() or (path.is_dir() and not any(path.iterdir())):
            return
        if not path.is_dir():
            what = "is a file"
        elif manifest is not None or has_pieces is False:
            what = "holds a store that was not made by `stoker prepare tokens`"
        else:
            what = "is there already, and is not a store"
        raise ArgumentError(f"{path} {what}", hint="choose a new or an empty folder")

    def _manifest(self) -> Manifest | None:
        """Return the manifest of the store that is there; None if there is none, or none that can be read.

        It is read once as long as it stays the same: it may tell of millions of inputs.
        """
        try:
            found = os.stat(self.path / FILE)
        except (FileNotFoundError, NotADirectoryError):
            return None
        seen = (found.st_ino, found.st_size, found.st_mtime_ns)
        if self._known[0] != seen:
            try:
                self._known = (seen, read_manifest(self.path))
            except DataError:
                self._known = (seen, None)
        return self._known[1]

    def _has_pieces(self) -> bool | None:
        """Whether the table of pieces tells of pieces such as ours; None if there is no table of any store's pieces."""
        try:
            pieces = json.loads((self.path / PIECES).read_bytes())
            notes = [entry["notes"] for entry in pieces.values()]
            return bool(notes) and all("documents" in noted and "tokens" in noted for noted in notes)
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None

    def is_fresh(self, wanted: Mapping[str, Any], *, is_settled: bool = True) -> bool:
        """Whether the store was made of these inputs with this tokenizer and these settings, and its shards are there.

        Contents are not read: a file is taken for the same if its path, size and time are. `is_settled` asks for more:
        that nothing is left of an unfinished run.
        """
        manifest = self._manifest()
        if manifest is None or (is_settled and self.unfinished.exists()):
            return False
        meta = manifest.meta
        if any(meta.get(part) != wanted[part] for part in ("tokenizer", "settings")):
            return False
        origin = meta["origin"]
        if origin.get("code") != wanted["origin"]["code"] or not _are_same(
            origin.get("inputs", ()), wanted["origin"]["inputs"]
        ):
            return False
        try:
            return all(os.stat(self.path / shard.file).st_size == shard.num_bytes for shard in manifest.shards)
        except OSError:
            return False

    def clear_up(self) -> None:
        """Remove what a killed run has left half-written. Only for whoever holds the lock."""
        for folder, pattern in (
            (self.path, ".*.json*.*"),
            *((self.path, f".{glob.escape(name)}.*") for name in self._copies()),
            (self.unfinished, ".*"),
            (self.unfinished, "*.safetensors.*"),
            (self.unshuffled, ".*.json*.*"),
            (self.unshuffled / UNFINISHED, ".*"),
            (self.unshuffled / UNFINISHED, "*.safetensors.*"),
        ):
            for path in folder.glob(pattern):
                if path.is_file():
                    path.unlink(missing_ok=True)

    def end_generations(self) -> None:
        """Remove earlier generations that nobody reads any more; left for another time if somebody is writing here."""
        if not (self.path / GENERATIONS).exists():
            return
        with suppress(ArgumentError, OSError), locked(self.unfinished):
            manifest = self._manifest()
            if manifest is not None:
                build = Build(self.path, manifest.columns)
                build.end_generations()
                build.discard_if_empty()

    def finish_again(self) -> bool:
        """Do what is left to do after the manifest is written: remove what it does not name.

        Return whether all that lies beside the manifest belongs to it. It does not where another run was stopped just
        before it could write its own.
        """
        manifest = self._manifest()
        assert manifest is not None
        num_shards = Counter(shard.piece for shard in manifest.shards)  # in the order of the pieces
        build = Build(self.path, manifest.columns)
        try:
            pieces = json.loads((self.path / PIECES).read_bytes())
            noted = {key: entry["num_shards"] for key, entry in pieces.items() if entry["num_shards"]}
            num_skipped = sum(json.loads(line).get("more", 1) for line in self._ledger_lines())
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return False
        if list(noted.items()) != list(num_shards.items()) or num_skipped != manifest.meta["counts"]["skipped"]:
            return False
        if any(build.record(key) is None for key in pieces):
            return False
        build.finish(list(pieces), meta=manifest.meta)
        return True

    def _ledger_lines(self) -> list[bytes]:
        path = self.path / LEDGER
        return path.read_bytes().splitlines() if path.exists() else []

    def known_inputs(self) -> list[dict[str, Any]]:
        """Return what is known of inputs from earlier runs, finished or not."""
        known: list[dict[str, Any]] = []
        if (manifest := self._manifest()) is not None:
            known += manifest.meta["origin"].get("inputs", ())
        with suppress(OSError, ValueError):
            known += json.loads((self.unfinished / _INPUTS).read_bytes())
        return known

    def keep_inputs(self, inputs: Iterable[Input]) -> None:
        """Keep the digests for a run that goes on after this one was stopped."""
        write_safely(self.unfinished / _INPUTS, json.dumps([entry.to_meta() for entry in inputs]).encode())

    def known_piece_bytes(self) -> int | None:
        """Return the size of pieces in the store, or in the run that was not finished; None if there is neither."""
        manifest = self._manifest()
        settings = self._run() if manifest is None else manifest.meta["settings"]
        size = settings.get("piece_bytes")
        return size if type(size) is int and size > 0 else None

    def piece_keys(self) -> set[str]:
        """Return the keys of the pieces with documents in the store that is there."""
        manifest = self._manifest()
        return set() if manifest is None else {shard.piece for shard in manifest.shards}

    def keep_run(self, settings: Settings, identity: Identity) -> None:
        """Keep what the next run wants to know if this one is stopped."""
        copies = self._copies() | {identity.name: identity.file_digest}
        run = {"piece_bytes": settings.piece_bytes, "copies": copies}
        write_safely(self.unfinished / _RUN, json.dumps(run).encode())

    def _run(self) -> dict[str, Any]:
        with suppress(OSError, ValueError, RecursionError):
            run = json.loads((self.unfinished / _RUN).read_bytes())
            return run if isinstance(run, dict) else {}
        return {}

    def _copies(self) -> dict[str, str]:
        """Return the digests of the tokenizers' files that earlier runs may have put here, by their names."""
        kept = self._run().get("copies")
        found: dict[str, Any] = dict(kept) if isinstance(kept, dict) else {}
        if (manifest := self._manifest()) is not None:
            known = manifest.meta["tokenizer"]
            found[str(known.get("name"))] = str(known.get("file_digest"))
        return {name: str(digest) for name, digest in found.items() if _is_copied(name)}

    def keep_tokenizer(self, spec: str, identity: Identity) -> None:
        """Put a copy of the tokenizer's file into the store, so that its tokens can be decoded wherever it goes.

        Copies of other tokenizers under other names, from earlier runs, are removed.
        """
        for name, digest in self._copies().items():
            with suppress(OSError):
                if name != identity.name and hashlib.sha256((self.path / name).read_bytes()).hexdigest() == digest:
                    (self.path / name).unlink()
        source = Path(spec)
        source = source / identity.name if source.is_dir() else source
        if not identity.file_digest or not _is_copied(identity.name):
            return
        data = source.read_bytes()
        if hashlib.sha256(data).hexdigest() == identity.file_digest:
            write_safely(self.path / identity.name, data)

    def write_ledger(self, entries: Sequence[Mapping[str, Any]]) -> None:
        """Write what was skipped, a line each; without entries there is no ledger."""
        path = self.path / LEDGER
        if not entries:
            path.unlink(missing_ok=True)
            return
        write_safely(path, "".join(json.dumps(entry) + "\n" for entry in entries).encode())

    def report(self, *, seconds: float, findings: Findings) -> Report:
        """Return what is in the store."""
        manifest = self._manifest()
        assert manifest is not None
        counts = manifest.meta["counts"]
        return Report(
            path=self.path,
            documents=counts["documents"],
            tokens=counts["tokens"],
            text_bytes=counts["text_bytes"],
            skipped=counts["skipped"],
            reasons=counts.get("reasons", {}),
            dtype=manifest.columns[COLUMN].dtype,
            disk_bytes=sum(shard.num_bytes for shard in manifest.shards),
            num_pieces=len({shard.piece for shard in manifest.shards}),
            num_made=0,
            made_bytes=0,
            seconds=seconds,
            backend=findings.backend,
            fallback_reason=findings.fallback_reason,
        )


def _is_copied(name: str) -> bool:
    """Whether a tokenizer of this name has a copy in the store: not where the name is that of another file in it."""
    return bool(name) and name == os.path.basename(name) and name not in (FILE, PIECES, LEDGER)


def _are_same(known: Sequence[Mapping[str, Any]], wanted: Sequence[Mapping[str, Any]]) -> bool:
    fields = ("path", "num_bytes", "mtime_ns")
    return [[entry.get(name) for name in fields] for entry in known] == [
        [entry[name] for name in fields] for entry in wanted
    ]
