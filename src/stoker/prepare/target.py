"""The folder that a preparation fills: what is in it, and whether that is what is asked for."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from stoker.errors import ArgumentError
from stoker.prepare.choice import Findings
from stoker.prepare.encoding import COLUMN
from stoker.prepare.inputs import Input
from stoker.prepare.report import Report
from stoker.prepare.skips import LEDGER
from stoker.store import Build, open_store
from stoker.store.build import PIECES, UNFINISHED
from stoker.store.manifest import FILE, Manifest, write_safely
from stoker.transform.tokenizer import Identity

_INPUTS = "inputs.json"


class Target:
    """A folder for a store of tokens."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.unfinished = path / UNFINISHED
        self.unshuffled = self.unfinished / "unshuffled"

    def check_is_ours(self) -> None:
        """Refuse a folder that holds anything but a store of tokens, finished or not."""
        path = self.path
        if path.is_dir() and (path / FILE).exists():
            meta = self._manifest.meta
            if not all(isinstance(meta.get(part), dict) for part in ("tokenizer", "settings", "origin")):
                raise ArgumentError(
                    f"{path} holds a store that was not made by `stoker prepare tokens`",
                    hint="choose a new or an empty folder",
                )
        elif path.exists() and not self.unfinished.is_dir() and not (path.is_dir() and not any(path.iterdir())):
            what = "is there already, and is not a store" if path.is_dir() else "is a file"
            raise ArgumentError(f"{path} {what}", hint="choose a new or an empty folder")

    @property
    def _manifest(self) -> Manifest:
        return open_store(self.path).manifest

    def is_fresh(self, wanted: Mapping[str, Any], *, is_settled: bool = True) -> bool:
        """Whether the store was made of these inputs with this tokenizer and these settings, and its shards are there.

        Contents are not read: a file is taken for the same if its path, size and time are. `is_settled` asks for more:
        that nothing is left of an unfinished run.
        """
        if not (self.path / FILE).exists() or (is_settled and self.unfinished.exists()):
            return False
        manifest = self._manifest
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
            (self.unfinished, ".*"),
            (self.unfinished, "*.safetensors.*"),
            (self.unshuffled, ".*.json*.*"),
            (self.unshuffled / UNFINISHED, ".*"),
            (self.unshuffled / UNFINISHED, "*.safetensors.*"),
        ):
            for path in folder.glob(pattern):
                if path.is_file():
                    path.unlink(missing_ok=True)

    def finish_again(self) -> bool:
        """Do what is left to do after the manifest is written: remove what it does not name.

        Return whether all that lies beside the manifest belongs to it. It does not where another run was stopped just
        before it could write its own.
        """
        manifest = self._manifest
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
        if (self.path / FILE).exists():
            known += self._manifest.meta["origin"].get("inputs", ())
        with suppress(OSError, ValueError):
            known += json.loads((self.unfinished / _INPUTS).read_bytes())
        return known

    def keep_inputs(self, inputs: Iterable[Input]) -> None:
        """Keep the digests for a run that goes on after this one was stopped."""
        write_safely(self.unfinished / _INPUTS, json.dumps([entry.to_meta() for entry in inputs]).encode())

    def keep_tokenizer(self, spec: str, identity: Identity) -> None:
        """Put a copy of the tokenizer's file into the store, so that its tokens can be decoded wherever it goes."""
        source = Path(spec)
        source = source / identity.name if source.is_dir() else source
        if not identity.file_digest or identity.name in (FILE, PIECES, LEDGER):
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
        manifest = self._manifest
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


def _are_same(known: Sequence[Mapping[str, Any]], wanted: Sequence[Mapping[str, Any]]) -> bool:
    fields = ("path", "num_bytes", "mtime_ns")
    return [[entry.get(name) for name in fields] for entry in known] == [
        [entry[name] for name in fields] for entry in wanted
    ]
