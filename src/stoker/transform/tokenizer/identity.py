"""Identity of a tokenizer, to compare tokenizers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stoker.errors import DataError


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Identity of a tokenizer, as stored with the ids it produced.

    Equal digests mean equal ids for every text. `name` is only for display: the same file under another name has the
    same digest.
    """

    kind: str
    """`huggingface`, `tiktoken`, `sentencepiece` or `bytes`."""
    name: str
    digest: str
    """SHA-256 of the tokenizer's file, and of any options that change ids."""
    vocab_size: int
    """One more than the largest id."""
    end_of_document: int | None
    """The id between documents; None if the tokenizer has none by convention and none was chosen."""
    file_digest: str = ""
    """SHA-256 of the file only."""
    specials: dict[str, int] = field(default_factory=dict, hash=False)
    """Ids of special tokens, which no text encodes to, by their text."""

    @property
    def dtype(self) -> str:
        """The smallest unsigned NumPy type that holds every id."""
        return "uint8" if self.vocab_size <= 1 << 8 else "uint16" if self.vocab_size <= 1 << 16 else "uint32"

    def to_meta(self) -> dict[str, Any]:
        """Return the identity as plain JSON values; the inverse of `from_meta`."""
        return {
            "kind": self.kind,
            "name": self.name,
            "digest": self.digest,
            "file_digest": self.file_digest,
            "vocab_size": self.vocab_size,
            "end_of_document": self.end_of_document,
            "specials": dict(self.specials),
        }

    @classmethod
    def from_meta(cls, meta: Mapping[str, Any]) -> Identity:
        """Return the identity that `to_meta` wrote; unknown fields are ignored."""
        try:
            texts = [meta[name] for name in ("kind", "name", "digest")]
            size, end, specials = meta["vocab_size"], meta["end_of_document"], meta["specials"]
        except (KeyError, TypeError) as error:
            raise _not_an_identity(f"{error} is missing") from error
        if not all(isinstance(text, str) for text in texts):
            raise _not_an_identity("kind, name and digest must be text")
        if not _is_count(size) or not (end is None or _is_count(end)):
            raise _not_an_identity("vocab_size and end_of_document must be numbers")
        if not isinstance(specials, Mapping) or not all(
            isinstance(text, str) and _is_count(token) for text, token in specials.items()
        ):
            raise _not_an_identity("specials must be ids by text")
        kind, name, digest = texts
        return cls(
            kind=kind,
            name=name,
            digest=digest,
            file_digest=str(meta.get("file_digest", "")),
            vocab_size=size,
            end_of_document=end,
            specials=dict(specials),
        )


def digest_of(data: bytes, options: Mapping[str, Any]) -> str:
    """Return the digest of a tokenizer; without options it equals `sha256sum` of the file."""
    if not options:
        return hashlib.sha256(data).hexdigest()
    encoded = json.dumps(options, sort_keys=True, ensure_ascii=True).encode()
    return hashlib.sha256(hashlib.sha256(data).digest() + encoded).hexdigest()


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _not_an_identity(why: str) -> DataError:
    return DataError(
        f"this does not describe a tokenizer: {why}\n"
        "hint: pass what `Identity.to_meta()` returned, or the `tokenizer` part of a store's meta"
    )
