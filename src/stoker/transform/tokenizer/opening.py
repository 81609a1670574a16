"""Open a tokenizer."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ArgumentError, DataError, StaleSource
from stoker.transform.tokenizer.byte_tokenizer import ByteValues
from stoker.transform.tokenizer.gigatoken import Gigatoken
from stoker.transform.tokenizer.huggingface import HuggingFace
from stoker.transform.tokenizer.identity import Identity, digest_of
from stoker.transform.tokenizer.library_errors import NOT_THEIRS, reason_of
from stoker.transform.tokenizer.sample import probes_of
from stoker.transform.tokenizer.sentencepiece import SentencePiece
from stoker.transform.tokenizer.tiktoken import Tiktoken
from stoker.transform.tokenizer.tokenizer_file import TokenizerFile
from stoker.transform.tokenizer.tokenizer_protocols import Encoded, Library, Tokenizer

Backend: TypeAlias = Literal["auto", "reference", "gigatoken"]

# Common names of the end-of-document token, in order of preference. `<|im_end|>`, `<|eot_id|>` and the like are
# excluded: they end a turn of a conversation. Chat tokenizers often set such a token as `eos_token`, so these names
# take precedence.
_CONVENTIONAL = (
    "<|endoftext|>",
    "<|end_of_text|>",
    "<eos>",
    "</s>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
    "<EOS_TOKEN>",
    "[EOS]",
)


def open_tokenizer(
    spec: str | os.PathLike[str],
    *,
    end_of_document: str | int | None = None,
    backend: Backend = "auto",
    num_threads: int = 1,
    pattern: str | None = None,
    specials: Mapping[str, int] | None = None,
) -> Tokenizer:
    """Open the tokenizer at `spec`.

    `spec` is the path of a Hugging Face tokenizer.json (or of a folder that holds one), of a tiktoken file, of a
    SentencePiece model, or the word `"bytes"`: then the ids are the bytes of the text, and 256 ends a document.
    Nothing is downloaded.

    `end_of_document` is the token between documents, as text or id (default: a token with a conventional name, or the
    one set in the files next to the tokenizer).

    `backend` selects the library: `"reference"` is the original library of the format. `"auto"` uses gigatoken if it is
    installed, can load the tokenizer, and produces identical ids on a built-in sample of tricky texts; otherwise
    `fallback_reason` gives the reason. `"gigatoken"` raises an error instead of falling back.

    `num_threads` threads share each call of `encode` (gigatoken only uses the calling thread).

    `pattern` and `specials` are for tiktoken files other than OpenAI's: the regular expression that splits text into
    words (or the name of an OpenAI file with the same one), and the ids of special tokens by their text.
    """
    if backend not in ("auto", "reference", "gigatoken"):
        raise ArgumentError(f"unknown backend={backend!r}", hint="choose 'auto', 'reference' or 'gigatoken'")
    if isinstance(num_threads, bool) or not isinstance(num_threads, int) or num_threads < 1:
        raise ArgumentError(f"num_threads must be a positive integer, got {num_threads!r}", hint="pass 1 or more")
    choices = _Choices(
        spec=os.fspath(spec),
        end_of_document=end_of_document,
        backend=backend,
        num_threads=num_threads,
        pattern=pattern,
        specials=dict(specials) if specials is not None else None,
    )
    return _opened(choices)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choices:
    """The arguments to open a tokenizer again in another process."""

    spec: str
    end_of_document: str | int | None
    backend: Backend
    num_threads: int
    pattern: str | None
    specials: dict[str, int] | None


def _opened(choices: _Choices) -> _Opened:
    if choices.spec == "bytes":
        _refuse_options(choices, what="the tokenizer 'bytes'")
        if choices.backend == "gigatoken":
            raise ArgumentError("backend='gigatoken' does not support 'bytes'", hint="omit backend=")
        library: Library = ByteValues()
        return _Opened(choices, library, _identity(library, choices, kind="bytes", name="bytes", digest=_BYTES), None)
    file = TokenizerFile.read(choices.spec)
    options: dict[str, Any] = {}
    if file.kind == "tiktoken":
        library = ranks = Tiktoken(
            file, pattern=choices.pattern, specials=choices.specials, num_threads=choices.num_threads
        )
        options = ranks.options
    else:
        _refuse_options(choices, what=f"{file.path}, which is not a tiktoken file,")
        kind = HuggingFace if file.kind == "huggingface" else SentencePiece
        library = kind(file, num_threads=choices.num_threads)
    identity = _identity(
        library, choices, kind=file.kind, name=file.path.name, digest=digest_of(file.data, options), path=file.path
    )
    identity = replace(identity, file_digest=digest_of(file.data, {}))
    return _Opened(replace(choices, spec=str(file.path)), library, identity, file)


_BYTES = digest_of(b"bytes", {})


def _refuse_options(choices: _Choices, *, what: str) -> None:
    for name in ("pattern", "specials"):
        if getattr(choices, name) is not None:
            raise ArgumentError(f"{what} does not take {name}=", hint=f"{name}= is only for tiktoken files; omit it")


def _identity(
    library: Library, choices: _Choices, *, kind: str, name: str, digest: str, path: Path | None = None
) -> Identity:
    return Identity(
        kind=kind,
        name=name,
        digest=digest,
        vocab_size=library.vocab_size,
        end_of_document=_find_end_of_document(library, choices.end_of_document, where=str(path or name)),
        specials=library.specials,
    )


def _reopened(choices: _Choices, identity: Identity, fallback_reason: str | None) -> _Opened:
    again = _opened(choices)
    if again.identity.digest != identity.digest:
        raise StaleSource(
            choices.spec, what=f"its digest is {again.identity.digest[:16]}..., and was {identity.digest[:16]}..."
        )
    if fallback_reason is not None:
        again.fallback_reason = fallback_reason
    return again


@final
class _Opened:
    """Implementation of `Tokenizer`: a reference library, replaced by gigatoken as long as their ids agree."""

    def __init__(self, choices: _Choices, reference: Library, identity: Identity, file: TokenizerFile | None) -> None:
        self.identity = identity
        self.fallback_reason: str | None = None
        self._choices = choices
        self._reference = reference
        self._fast: Gigatoken | None = None
        if file is not None and choices.backend != "reference":
            self._try_gigatoken(file)

    @property
    def backend(self) -> str:
        return self._reference.library if self._fast is None else self._fast.library

    def _try_gigatoken(self, file: TokenizerFile) -> None:
        try:
            self._fast = Gigatoken(file, self._reference)
        except ImportError as error:  # includes MissingExtra
            if self._choices.backend == "gigatoken":
                raise
            self._fall_back(f"gigatoken is not installed ({reason_of(error.__cause__ or error)})")
        except NOT_THEIRS:
            raise
        except BaseException as error:
            self._fall_back(f"gigatoken cannot load {file.path}: {reason_of(error)}", cause=error)
        self.check(probes_of(self._reference.marks))

    def _fall_back(self, reason: str, *, cause: BaseException | None = None) -> None:
        if self._choices.backend == "gigatoken":
            raise DataError(
                f"{reason}\nhint: backend='auto' falls back to {self._reference.library}, which is slower"
            ) from cause
        self._fast = None
        self.fallback_reason = reason

    def encode(self, texts: Sequence[str]) -> Encoded:
        _refuse_other_than_texts(texts)
        if self._fast is None:
            return self._encode_by_reference(texts)
        try:
            return self._fast.encode(texts)
        except NOT_THEIRS:
            raise
        except BaseException as error:
            encoded = self._encode_by_reference(texts)  # if that fails too, the text is the cause
            self._fall_back(f"gigatoken failed: {reason_of(error)}", cause=error)
            return encoded

    def _encode_by_reference(self, texts: Sequence[str]) -> Encoded:
        try:
            return self._reference.encode(texts)
        except NOT_THEIRS:
            raise
        except BaseException as error:
            raise self._blame(texts, error) from error

    def _blame(self, texts: Sequence[str], error: BaseException) -> DataError:
        for number, text in enumerate(texts):
            reason = self._failure(text)
            if reason is not None:
                return DataError(
                    f"text {number} of {len(texts)} ({_excerpt(text)}) cannot be tokenized: {reason}\n"
                    "hint: fix the text or leave it out"
                )
        return DataError(
            f"{self._reference.library} failed on {len(texts)} texts: {reason_of(error)}\n"
            "hint: each text can be tokenized alone; pass fewer at a time"
        )

    def _failure(self, text: str) -> str | None:
        try:
            text.encode()
            self._reference.encode([text])
        except UnicodeEncodeError as error:
            return (
                f"character {error.start} is {text[error.start]!a}, half of a surrogate pair, which is not valid text"
            )
        except NOT_THEIRS:
            raise
        except BaseException as error:
            return f"{self._reference.library} says: {reason_of(error)}"
        return None

    def decode(self, ids: Sequence[int] | NDArray[np.integer]) -> str:
        array = np.asarray(ids)
        if array.size == 0:
            return ""
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise ArgumentError(
                f"cannot decode ids of shape {array.shape} and dtype {array.dtype}",
                hint="pass one sequence of ints",
            )
        if (low := int(array.min())) < 0 or (high := int(array.max())) >= self.identity.vocab_size:
            wrong = low if low < 0 else high
            raise ArgumentError(
                f"id {wrong} is not in the vocabulary of {self.identity.name}",
                hint=f"ids run from 0 to {self.identity.vocab_size - 1}; did another tokenizer produce it?",
            )
        try:
            return self._reference.decode(array.tolist())
        except NOT_THEIRS:
            raise
        except BaseException as error:
            raise ArgumentError(
                f"{self._reference.library} cannot decode these ids: {reason_of(error)}",
                hint="did another tokenizer produce them?",
            ) from error

    def check(self, texts: Iterable[str]) -> None:
        for text in texts:
            if self._fast is None:
                break
            self._check(self._fast, text)

    def _check(self, fast: Gigatoken, text: str) -> None:
        try:
            right = self._reference.encode([text])[0]
        except NOT_THEIRS:
            raise
        except BaseException:
            return  # nothing to compare with
        try:
            ours = fast.encode([text])[0]
        except NOT_THEIRS:
            raise
        except BaseException as error:
            self._fall_back(f"gigatoken failed on {_excerpt(text)}: {reason_of(error)}", cause=error)
        else:
            if not np.array_equal(ours, right):
                who, unlike = self._reference.library, _unlike(ours, right)
                self._fall_back(f"gigatoken and {who} give different ids for {_excerpt(text)}: {unlike}")

    def __reduce__(self) -> tuple[Any, ...]:
        # Keep the fallback state of gigatoken, so that copies use the same backend.
        choices = replace(self._choices, end_of_document=self.identity.end_of_document)
        if self.fallback_reason is not None:
            choices = replace(choices, backend="reference")
        return _reopened, (choices, self.identity, self.fallback_reason)

    def __repr__(self) -> str:
        return f"<tokenizer {self._choices.spec}, {self.identity.vocab_size} ids, by {self.backend}>"


def _refuse_other_than_texts(texts: Sequence[str]) -> None:
    if isinstance(texts, str):
        raise ArgumentError("encode expects a list of texts, got a single str", hint="pass [text]")
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise ArgumentError(
                f"text {number} of {len(texts)} must be a str, got {type(text).__name__}", hint="pass a list of str"
            )


def _excerpt(text: str) -> str:
    return ascii(text) if len(text) <= 40 else f"{text[:40]!a}... with {len(text)} characters"


def _unlike(ours: NDArray[np.uint32], right: NDArray[np.uint32]) -> str:
    for number, (one, other) in enumerate(zip(ours.tolist(), right.tolist())):
        if one != other:
            return f"id {number} is {one} instead of {other}"
    return f"there are {len(ours)} ids instead of {len(right)}"


# ------------------------------------------------------------ the end of a document


def _find_end_of_document(library: Library, chosen: str | int | None, *, where: str) -> int | None:
    """Return the chosen id, or the conventional one: a special token with a known name, the tokenizer's own setting, or
    any token with a known name. None if there is none.
    """
    if isinstance(chosen, str):
        return _by_text(library, chosen, where=where)
    if chosen is not None:
        return _by_id(library, chosen, where=where)
    for name in _CONVENTIONAL:
        if name in library.specials:
            return library.specials[name]
    usual = library.usual_end()
    if usual is not None:
        return usual
    return next((token for name in _CONVENTIONAL if (token := library.find(name)) is not None), None)


def _by_text(library: Library, text: str, *, where: str) -> int:
    token = library.find(text)
    if token is None:
        listed = ", ".join(list(library.specials)[:8])
        raise ArgumentError(
            f"end_of_document={text!r} is not a token of {where}",
            hint=f"its special tokens are {listed}" if listed else "it has no special tokens; pass an id instead",
        )
    return token


def _by_id(library: Library, token: int, *, where: str) -> int:
    if isinstance(token, bool) or not isinstance(token, int):
        raise ArgumentError(
            f"end_of_document must be a token or an id, got {token!r}",
            hint="pass for instance '<|endoftext|>' or 50256",
        )
    if not 0 <= token < library.vocab_size:
        raise ArgumentError(
            f"end_of_document={token} is not in the vocabulary of {where}",
            hint=f"ids run from 0 to {library.vocab_size - 1}",
        )
    return token
