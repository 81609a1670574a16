"""tiktoken's rank files: a token in base64 and its rank on every line.

Such a file contains neither the pattern that splits text into words nor the special tokens; both are in code. They are
built in for OpenAI's files, and passed as arguments for others.
"""

from __future__ import annotations

import hashlib
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from stoker.errors import ArgumentError, DamagedFile, MissingExtra
from stoker.transform.tokenizer.chunked_encoding import encode_by_chunks, from_arrays
from stoker.transform.tokenizer.library_errors import NOT_THEIRS, loading, reason_of
from stoker.transform.tokenizer.sample import TRICKY_TEXTS
from stoker.transform.tokenizer.tokenizer_file import TokenizerFile
from stoker.transform.tokenizer.tokenizer_protocols import Encoded

_MAX_ID = (1 << 32) - 2  # so that the vocabulary size fits into 32 bits too


@dataclass(frozen=True, slots=True)
class KnownEncoding:
    """Constants of one of OpenAI's files, from tiktoken's code."""

    num_ranks: int
    digest: str
    pattern: str
    specials: dict[str, int]


_END = "<|endoftext|>"

_R50K = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
_CL100K = (
    r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"""
    r"""|\s++$|\s*[\r\n]|\s+(?!\S)|\s"""
)
_O200K = "|".join(
    [
        r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
        r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
        r"""\p{N}{1,3}""",
        r""" ?[^\s\p{L}\p{N}]+[\r\n/]*""",
        r"""\s*[\r\n]+""",
        r"""\s+(?!\S)""",
        r"""\s+""",
    ]
)

KNOWN: dict[str, KnownEncoding] = {
    "r50k_base": KnownEncoding(
        50256, "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930", _R50K, {_END: 50256}
    ),
    "p50k_base": KnownEncoding(
        50280, "94b5ca7dff4d00767bc256fdd1b27e5b17361d7b8a5f968547f9f23eb70d2069", _R50K, {_END: 50256}
    ),
    "cl100k_base": KnownEncoding(
        100256,
        "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
        _CL100K,
        {
            _END: 100257,
            "<|fim_prefix|>": 100258,
            "<|fim_middle|>": 100259,
            "<|fim_suffix|>": 100260,
            "<|endofprompt|>": 100276,
        },
    ),
    "o200k_base": KnownEncoding(
        199998,
        "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
        _O200K,
        {_END: 199999, "<|endofprompt|>": 200018},
    ),
}


@final
class Tiktoken:
    """A rank file with its pattern and special tokens. Special tokens in text are treated as ordinary text."""

    library = "tiktoken"

    def __init__(
        self, file: TokenizerFile, *, pattern: str | None, specials: Mapping[str, int] | None, num_threads: int
    ) -> None:
        library = _library()
        ranks = _parsed(file)
        known = _recognized(file, num_ranks=len(ranks), pattern=pattern)
        self.options: dict[str, Any] = {}
        """Arguments that change ids, for the digest."""
        if pattern is not None:
            self.pattern = KNOWN[pattern].pattern if pattern in KNOWN else pattern
            if known is None or self.pattern != known.pattern:
                self.options["pattern"] = self.pattern
        else:
            assert known is not None
            self.pattern = known.pattern
        self.specials = dict(known.specials) if known is not None else {}
        if specials is not None and dict(specials) != self.specials:
            self.specials = _checked_specials(specials, ranks)
            self.options["specials"] = self.specials
        try:
            with loading(file.path, library=self.library):
                self._encoding = library.Encoding(
                    file.path.name, pat_str=self.pattern, mergeable_ranks=ranks, special_tokens=self.specials
                )
        except DamagedFile as error:
            if "pattern" in self.options:
                raise ArgumentError(
                    f"tiktoken rejects the pattern {self.pattern!r}: {reason_of(error.__cause__ or error)}",
                    hint="pass a regular expression as in tiktoken's `pat_str`",
                ) from error
            raise
        self.vocab_size = max(max(ranks.values()), max(self.specials.values(), default=0)) + 1
        self.marks = list(self.specials)
        self._num_threads = num_threads
        if "pattern" in self.options:
            self._refuse_a_pattern_that_loses_text()

    def _refuse_a_pattern_that_loses_text(self) -> None:
        for text in TRICKY_TEXTS:
            try:
                again = self.decode(self._encode([text])[0].tolist())
            except NOT_THEIRS:
                raise
            except BaseException as error:
                again = reason_of(error)
            if again != text:
                raise ArgumentError(
                    f"the pattern {self.pattern!r} does not match all text: {text[:40]!r} decodes to {again[:40]!r}",
                    hint="unmatched text is dropped; patterns usually end with a catch-all such as \\s+",
                )

    def find(self, token: str) -> int | None:
        """Return the id of the token with exactly this text, or None."""
        if token in self.specials:
            return self.specials[token]
        try:
            return int(self._encoding.encode_single_token(token))
        except (KeyError, UnicodeError):
            return None

    def usual_end(self) -> int | None:
        """Return None: a rank file has no settings."""
        return None

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Return the ids of all texts and the number of each."""
        return encode_by_chunks(self._encode, texts, num_threads=self._num_threads)

    def _encode(self, texts: list[str]) -> Encoded:
        # Not `encode_ordinary`, which makes lists (10% slower), and silently replaces invalid UTF-8.
        to_numpy = self._encoding.encode_to_numpy
        return from_arrays([to_numpy(text, disallowed_special=()) for text in texts])

    def decode(self, ids: list[int]) -> str:
        """Return the text of `ids`."""
        return str(self._encoding.decode(ids))


def _library() -> Any:
    try:
        import tiktoken
    except ImportError as error:
        raise MissingExtra("tiktoken", extra="tokens", need="a tiktoken file") from error
    return tiktoken


def _parsed(file: TokenizerFile) -> dict[bytes, int]:
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(file.data.split(b"\n"), start=1):
        parts = line.split()
        if not parts:
            continue
        try:
            if len(parts) != 2 or not parts[1].isdigit() or len(parts[1]) > 10:
                raise ValueError
            token, rank = b64decode(parts[0], validate=True), int(parts[1])
            if not token or rank > _MAX_ID:
                raise ValueError
        except (NotBase64, ValueError) as error:
            raise DamagedFile(
                file.path,
                what=f"is not a tiktoken file: line {number} is not a token in base64 and its rank, but {line[:40]!r}",
            ) from error
        if token in ranks:
            raise DamagedFile(file.path, what=f"has the token {token!r} twice, again on line {number}")
        ranks[token] = rank
    if len(set(ranks.values())) != len(ranks):
        raise DamagedFile(file.path, what="gives the same rank to two tokens")
    missing = [value for value in range(256) if bytes([value]) not in ranks]
    if missing:
        raise DamagedFile(
            file.path,
            what=f"has no token for {len(missing)} of the 256 bytes, the first being {missing[0]:#04x}: "
            "there is text that it cannot encode",
        )
    return ranks


def _recognized(file: TokenizerFile, *, num_ranks: int, pattern: str | None) -> KnownEncoding | None:
    digest = hashlib.sha256(file.data).hexdigest()
    for known in KNOWN.values():
        if known.digest == digest:
            return known
    named = KNOWN.get(file.path.name.removesuffix(file.path.suffix))
    if named is not None and named.num_ranks == num_ranks:
        return named
    if pattern is not None:
        return None
    if named is not None:
        raise DamagedFile(
            file.path,
            what=f"has {num_ranks} ranks, but OpenAI's file of that name has {named.num_ranks}",
            hint="copy it again if it should be that file, otherwise rename it and pass a pattern",
        )
    raise ArgumentError(
        f"the split pattern of {file.path} is unknown; only those of {', '.join(KNOWN)} are built in",
        hint="pass pattern=, the regular expression that splits text into words (tiktoken's `pat_str`) or one of those "
        "names, and specials={text: id} if it has special tokens; a wrong pattern silently gives wrong ids",
    )


def _checked_specials(specials: Mapping[str, int], ranks: Mapping[bytes, int]) -> dict[str, int]:
    taken = set(ranks.values())
    for text, token in specials.items():
        if not isinstance(text, str) or not text or not isinstance(token, int) or not 0 <= token <= _MAX_ID:
            raise ArgumentError(
                f"specials has {text!r}: {token!r}", hint="pass a dict of text to id, such as {'<|endoftext|>': 50256}"
            )
        if token in taken:
            raise ArgumentError(
                f"id {token} of the special token {text!r} is already in use",
                hint=f"the ranks of the file end at {max(ranks.values())}",
            )
        taken.add(token)
    return dict(sorted(specials.items(), key=lambda item: item[1]))
