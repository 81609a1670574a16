"""The folder that a preparation fills: what it contains, and whether that is up to date."""

from __future__ import annotations

import glob
import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from stoker.errors import ArgumentError, DataError
from stoker.prepare.inputs import Input
from stoker.prepare.skips import LEDGER
from stoker.store import Build
from stoker.store.build import PIECES, UNFINISHED
from stoker.store.generations import GENERATIONS
from stoker.store.lock import locked
from stoker.store.manifest import FILE, Manifest, read_manifest, write_safely
from stoker.transform.tokenizer import Identity

_INPUTS = "inputs.json"
"""Digests of the inputs, kept by an unfinished run so that the next one need not read them again."""

_RUN = "run.json"
"""Settings of an unfinished run that the next one needs."""

_NUM_NAMED = 10


class Target(ABC):
    """A folder for a store of one kind.

    While a run is unfinished, its complete pieces, `run.json` and the lock are in `.build`. A run that continues finds
    all it needs there; `clear_up` removes only temporary files, which have another name until they are complete.
    """

    kind: str
    """As in `stoker prepare KIND`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.unfinished = path / UNFINISHED
        self._known: tuple[Any, Manifest | None] = (None, None)

    @abstractmethod
    def _made_it(self, meta: Mapping[str, Any]) -> bool:
        """Return whether a finished store with this meta was made by this kind of preparation."""

    @abstractmethod
    def _is_made_of(self, meta: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
        """Return whether a finished store with this meta was made from these inputs with these settings."""

    @property
    @abstractmethod
    def _noted(self) -> str:
        """A count that the notes of every piece of this kind have."""

    def check_is_ours(self) -> None:
        """Raise `ArgumentError` if the folder contains anything but a store of this kind, finished or not."""
        path, manifest = self.path, self.manifest()
        run = self._run()
        run_kind = run.get("kind", "tokens") if run else self.kind  # runs of tokens have never written a kind
        has_pieces = None if manifest is not None else self._has_pieces()
        if manifest is not None:
            is_ours = self._made_it(manifest.meta)
        elif has_pieces is not None:  # the manifest is damaged or lost: all is made again
            is_ours = has_pieces
        else:  # never finished
            is_ours = self.unfinished.is_dir() and run_kind == self.kind
        if is_ours or not path.exists() or (path.is_dir() and not any(path.iterdir())):
            return
        if not path.is_dir():
            what = "is a file"
        elif manifest is not None or has_pieces is False or run_kind != self.kind:
            what = f"contains a store that was not made by `stoker prepare {self.kind}`"
        else:
            what = "exists already, and is not a store"
        raise ArgumentError(f"{path} {what}", hint="choose a new or an empty folder")

    def _has_pieces(self) -> bool | None:
        """Return whether pieces.json lists pieces of this kind; None if it cannot be read."""
        try:
            pieces = json.loads((self.path / PIECES).read_bytes())
            notes = [entry["notes"] for entry in pieces.values()]
            return bool(notes) and all(self._noted in noted for noted in notes)
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None

    def manifest(self) -> Manifest | None:
        """Return the manifest of the existing store; None if there is none, or it cannot be read.

        It is read again only after it changed: it may list millions of inputs.
        """
        try:
            found = os.stat(self.path / FILE)
        except OSError:
            return None
        seen = (found.st_ino, found.st_size, found.st_mtime_ns)
        if self._known[0] != seen:
            try:
                self._known = (seen, read_manifest(self.path))
            except (DataError, OSError):
                self._known = (seen, None)
        return self._known[1]

    def is_fresh(self, wanted: Mapping[str, Any], *, is_settled: bool = True) -> bool:
        """Return whether the store was made from these inputs and settings, and its shards exist with their sizes.

        Contents are not read: an input counts as unchanged if its path, size and time are. `is_settled` also requires
        that nothing is left of an unfinished run.
        """
        manifest = self.manifest()
        if manifest is None or (is_settled and self.unfinished.exists()) or not self._is_made_of(manifest.meta, wanted):
            return False
        try:
            return all(os.stat(self.path / shard.file).st_size == shard.num_bytes for shard in manifest.shards)
        except OSError:
            return False

    def clear_up(self) -> None:
        """Remove temporary files of a killed run. Only while holding the lock."""
        for folder, pattern in self._leftovers():
            for path in folder.glob(pattern):
                if path.is_file():
                    path.unlink(missing_ok=True)

    def _leftovers(self) -> Iterator[tuple[Path, str]]:
        """Yield folders and patterns of temporary files."""
        yield self.path, ".*.json*.*"
        yield self.unfinished, ".*"
        yield self.unfinished, "*.safetensors.*"

    def _keep_run(self, run: Mapping[str, Any]) -> None:
        write_safely(self.unfinished / _RUN, json.dumps(run).encode())

    def _run(self) -> dict[str, Any]:
        with suppress(OSError, ValueError, RecursionError):
            run = json.loads((self.unfinished / _RUN).read_bytes())
            return run if isinstance(run, dict) else {}
        return {}

    def known_piece_bytes(self) -> int | None:
        """Return the size of pieces in the store or in the unfinished run; None if there is neither."""
        manifest = self.manifest()
        settings = self._run() if manifest is None else manifest.meta.get("settings")
        size = settings.get("piece_bytes") if isinstance(settings, dict) else None
        return size if type(size) is int and size > 0 else None

    def piece_keys(self) -> set[str]:
        """Return the keys of the non-empty pieces of the existing store."""
        manifest = self.manifest()
        return set() if manifest is None else {shard.piece for shard in manifest.shards}

    def write_ledger(self, entries: Sequence[Mapping[str, Any]]) -> None:
        """Write what was skipped, one line per entry; without entries, remove the ledger."""
        path = self.path / LEDGER
        if not entries:
            path.unlink(missing_ok=True)
            return
        write_safely(path, "".join(json.dumps(entry) + "\n" for entry in entries).encode())

    def _facts(self) -> tuple[Manifest, dict[str, Any]]:
        """Return the manifest, and what a report of any kind of store contains."""
        manifest = self.manifest()
        assert manifest is not None
        counts = manifest.meta["counts"]
        return manifest, {
            "path": self.path,
            "skipped": counts["skipped"],
            "reasons": counts.get("reasons", {}),
            "disk_bytes": sum(shard.num_bytes for shard in manifest.shards),
            "num_pieces": len({shard.piece for shard in manifest.shards}),
        }


class TokenTarget(Target):
    """A folder for a store of tokens. A shuffled one is made from an unshuffled store in `.build`."""

    kind = "tokens"
    _noted = "tokens"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.unshuffled = self.unfinished / "unshuffled"

    def _made_it(self, meta: Mapping[str, Any]) -> bool:
        return all(isinstance(meta.get(part), dict) for part in ("tokenizer", "settings", "origin"))

    def _is_made_of(self, meta: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
        known, origin = meta["origin"], wanted["origin"]
        if any(meta.get(part) != wanted[part] for part in ("tokenizer", "settings")):
            return False
        return known.get("code") == origin["code"] and _stamps(known.get("inputs", ())) == _stamps(origin["inputs"])

    def _leftovers(self) -> Iterator[tuple[Path, str]]:
        yield from super()._leftovers()
        for name in self._copies():
            yield self.path, f".{glob.escape(name)}.*"
        yield self.unshuffled, ".*.json*.*"
        yield self.unshuffled / UNFINISHED, ".*"
        yield self.unshuffled / UNFINISHED, "*.safetensors.*"

    def end_generations(self) -> None:
        """Remove earlier generations that are not in use any more, unless another process is writing here."""
        if not (self.path / GENERATIONS).exists():
            return
        with suppress(ArgumentError, OSError), locked(self.unfinished):
            manifest = self.manifest()
            if manifest is not None:
                build = Build(self.path, manifest.columns)
                build.end_generations()
                build.discard_if_empty()

    def finish_again(self) -> bool:
        """Repeat the last step of a run that was killed after it wrote the manifest: remove what it does not name.

        Return whether all files next to the manifest belong to it. They do not if another run was killed just before
        it wrote its own manifest.
        """
        manifest = self.manifest()
        assert manifest is not None
        num_shards = Counter(shard.piece for shard in manifest.shards)  # in the order of the pieces
        build = Build(self.path, manifest.columns)
        try:
            pieces = json.loads((self.path / PIECES).read_bytes())
            noted = {key: entry["num_shards"] for key, entry in pieces.items() if entry["num_shards"]}
            ledger = self.path / LEDGER
            lines = ledger.read_bytes().splitlines() if ledger.exists() else []
            num_skipped = sum(json.loads(line).get("more", 1) for line in lines)
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return False
        if list(noted.items()) != list(num_shards.items()) or num_skipped != manifest.meta["counts"]["skipped"]:
            return False
        if any(build.record(key) is None for key in pieces):
            return False
        build.finish(list(pieces), meta=manifest.meta)
        return True

    def known_inputs(self) -> list[dict[str, Any]]:
        """Return the inputs of earlier runs, finished or not, with their digests."""
        known: list[dict[str, Any]] = []
        if (manifest := self.manifest()) is not None:
            known += manifest.meta["origin"].get("inputs", ())
        with suppress(OSError, ValueError):
            known += json.loads((self.unfinished / _INPUTS).read_bytes())
        return known

    def keep_inputs(self, inputs: Iterable[Input]) -> None:
        """Keep the digests for the run that continues if this one is stopped."""
        write_safely(self.unfinished / _INPUTS, json.dumps([entry.to_meta() for entry in inputs]).encode())

    def keep_run(self, piece_bytes: int, identity: Identity) -> None:
        """Keep what the next run needs if this one is stopped."""
        copies = self._copies() | {identity.name: identity.file_digest}
        self._keep_run({"piece_bytes": piece_bytes, "copies": copies})

    def _copies(self) -> dict[str, str]:
        """Return names and digests of the tokenizer files that earlier runs may have copied into the folder."""
        kept = self._run().get("copies")
        found: dict[str, Any] = dict(kept) if isinstance(kept, dict) else {}
        if (manifest := self.manifest()) is not None:
            known = manifest.meta["tokenizer"]
            found[str(known.get("name"))] = str(known.get("file_digest"))
        return {name: str(digest) for name, digest in found.items() if _is_copied(name)}

    def keep_tokenizer(self, spec: str, identity: Identity) -> None:
        """Copy the tokenizer's file into the store, so that its tokens can be decoded wherever it is moved.

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

    def report_facts(self) -> dict[str, Any]:
        """Return the part of a `TokensReport` that the store knows."""
        manifest, facts = self._facts()
        counts = manifest.meta["counts"]
        names = ("documents", "tokens", "text_bytes")
        return facts | {name: counts[name] for name in names} | {"dtype": manifest.columns["tokens"].dtype}


class ImageTarget(Target):
    """A folder for a store of images."""

    kind = "images"
    _noted = "pictures"

    def _made_it(self, meta: Mapping[str, Any]) -> bool:
        return meta.get("kind") == self.kind

    def _is_made_of(self, meta: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
        if any(meta.get(part) != wanted[part] for part in ("kind", "settings", "classes")):
            return False
        origin = meta.get("origin")
        known = origin if isinstance(origin, dict) else {}
        return all(known.get(name) == wanted["origin"][name] for name in ("code", "digest"))

    def keep_run(self, piece_bytes: int) -> None:
        """Keep what the next run needs if this one is stopped."""
        self._keep_run({"kind": self.kind, "piece_bytes": piece_bytes})

    def report_facts(self) -> dict[str, Any]:
        """Return the part of an `ImageReport` that the store knows."""
        manifest, facts = self._facts()
        counts, classes = manifest.meta["counts"], manifest.meta.get("classes")
        return facts | {
            "images": counts["pictures"],
            "reencoded": counts["new"],
            "source_bytes": counts["source_bytes"],
            "image_bytes": counts["image_bytes"],
            "bad": self._first_skipped(),
            "classes": None if classes is None else len(classes),
        }

    def _first_skipped(self) -> list[str]:
        found = []
        with suppress(OSError, ValueError, KeyError), open(self.path / LEDGER, encoding="utf-8") as file:
            for line in file:
                entry = json.loads(line)
                if "reason" in entry:
                    found.append(f"{entry['file']}: {entry['reason']}")
                if len(found) == _NUM_NAMED:
                    break
        return found


def _is_copied(name: str) -> bool:
    """Return whether a tokenizer of this name is copied into the store: not if another file there has the name."""
    return bool(name) and name == os.path.basename(name) and name not in (FILE, PIECES, LEDGER)


def _stamps(inputs: Iterable[Mapping[str, Any]]) -> list[list[Any]]:
    return [[entry.get(name) for name in ("path", "num_bytes", "mtime_ns")] for entry in inputs]
