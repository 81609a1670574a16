"""A tokenizer from what the user has."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ArgumentError, DataError, StaleSource
from stoker.transform.tokenizer.byte_values import ByteValues
from stoker.transform.tokenizer.end_of_document import end_of_document as find_end_of_document
from stoker.transform.tokenizer.gigatoken import Gigatoken
from stoker.transform.tokenizer.huggingface import HuggingFace
from stoker.transform.tokenizer.identity import Identity, digest_of
from stoker.transform.tokenizer.mishap import NOT_THEIRS, reason_of
from stoker.transform.tokenizer.protocols import Encoded, Library, Tokenizer
from stoker.transform.tokenizer.sample import probes_of
from stoker.transform.tokenizer.sentencepiece import SentencePiece
from stoker.transform.tokenizer.tiktoken import Tiktoken
from stoker.transform.tokenizer.tokenizer_file import TokenizerFile

Backend: TypeAlias = Literal["auto", "reference", "gigatoken"]


def open_tokenizer(
    spec: str | os.PathLike[str],
    *,
    end_of_document: str | int | None = None,
    backend: Backend = "auto",
    num_threads: int = 1,
    pattern: str | None = None,
    specials: Mapping[str, int] | None = None,
) -> Tokenizer:
    """Return the tokenizer at `spec`, ready to encode.

    `spec` is the path of a Hugging Face tokenizer.json (or of a folder that holds one), of a tiktoken file, of a
    SentencePiece model, or the word `"bytes"`: then the ids are the bytes of the text, and 256 ends a document.
    Nothing is downloaded.

    `end_of_document` names the token between documents by its text or id; by default it is the one that has a usual
    name, or that the files beside the tokenizer name.

    `backend` says who makes the ids: `"reference"` is the library of that kind of tokenizer. `"auto"` takes gigatoken
    if it is there, can load the tokenizer, and makes the same ids for a built-in sample of tricky texts; otherwise
    `fallback_reason` says why not. `"gigatoken"` makes an error of each such reason.

    `num_threads` threads share each call of `encode` (gigatoken uses the caller's alone).

    `pattern` and `specials` are for tiktoken files other than OpenAI's: the regular expression that splits text into
    words (or the name of the OpenAI file with the same), and the ids of special tokens by their texts.
    """
    if backend not in ("auto", "reference", "gigatoken"):
        raise ArgumentError(f"backend={backend!r} is unknown", hint="it is 'auto', 'reference' or 'gigatoken'")
    if isinstance(num_threads, bool) or not isinstance(num_threads, int) or num_threads < 1:
        raise ArgumentError(f"num_threads={num_threads!r} is not a number of threads", hint="it is 1 or more")
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
    """How a tokenizer was opened, and can be again in another process."""

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
            raise ArgumentError("gigatoken has nothing to do for 'bytes'", hint="leave backend= out")
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
        _refuse_options(choices, what=f"{file.path}, which is no tiktoken file,")
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
            raise ArgumentError(f"{what} takes no {name}=", hint=f"{name}= is for tiktoken files; leave it out")


def _identity(
    library: Library, choices: _Choices, *, kind: str, name: str, digest: str, path: Path | None = None
) -> Identity:
    return Identity(
        kind=kind,
        name=name,
        digest=digest,
        vocab_size=library.vocab_size,
        end_of_document=find_end_of_document(library, choices.end_of_document, where=str(path or name)),
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
    """The one implementation of `Tokenizer`: a reference, and gigatoken in its place as long as they agree."""

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
        except ImportError as error:  # MissingExtra is one
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
                f"{reason}\nhint: backend='auto' takes {self._reference.library} in such a case, which is slower"
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
            encoded = self._encode_by_reference(texts)  # if that fails too, the text is to blame
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
                    f"text {number} of {len(texts)} ({_excerpt(text)}) cannot be tokenised: {reason}\n"
                    "hint: mend the text or leave it out"
                )
        return DataError(
            f"{self._reference.library} failed on {len(texts)} texts: {reason_of(error)}\n"
            "hint: each of them alone can be tokenised; pass fewer at a time"
        )

    def _failure(self, text: str) -> str | None:
        try:
            text.encode()
            self._reference.encode([text])
        except UnicodeEncodeError as error:
            return f"character {error.start} is {text[error.start]!a}, half of a surrogate pair, which is no text"
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
                f"ids of shape {array.shape} and type {array.dtype} cannot be decoded",
                hint="pass one sequence of whole numbers",
            )
        if (low := int(array.min())) < 0 or (high := int(array.max())) >= self.identity.vocab_size:
            wrong = low if low < 0 else high
            raise ArgumentError(
                f"the id {wrong} is not in the vocabulary of {self.identity.name}",
                hint=f"ids run from 0 to {self.identity.vocab_size - 1}; was it made by another tokenizer?",
            )
        try:
            return self._reference.decode(array.tolist())
        except NOT_THEIRS:
            raise
        except BaseException as error:
            raise ArgumentError(
                f"{self._reference.library} cannot decode these ids: {reason_of(error)}",
                hint="were they made by another tokenizer?",
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
            return  # there is nothing to compare with
        try:
            ours = fast.encode([text])[0]
        except NOT_THEIRS:
            raise
        except BaseException as error:
            self._fall_back(f"gigatoken failed on {_excerpt(text)}: {reason_of(error)}", cause=error)
        else:
            if not np.array_equal(ours, right):
                who, unlike = self._reference.library, _unlike(ours, right)
                self._fall_back(f"gigatoken makes other ids than {who} of {_excerpt(text)}: {unlike}")

    def __reduce__(self) -> tuple[Any, ...]:
        # The reference goes with what has been learnt about gigatoken, so that copies make ids as this one does.
        choices = replace(self._choices, end_of_document=self.identity.end_of_document)
        if self.fallback_reason is not None:
            choices = replace(choices, backend="reference")
        return _reopened, (choices, self.identity, self.fallback_reason)

    def __repr__(self) -> str:
        return f"<tokenizer {self._choices.spec}, {self.identity.vocab_size} ids, by {self.backend}>"


def _refuse_other_than_texts(texts: Sequence[str]) -> None:
    if isinstance(texts, str):
        raise ArgumentError("encode takes several texts, and was given one", hint="pass [text]")
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise ArgumentError(
                f"text {number} of {len(texts)} is of type {type(text).__name__}", hint="texts are of type str"
            )


def _excerpt(text: str) -> str:
    return ascii(text) if len(text) <= 40 else f"{text[:40]!a}... with {len(text)} characters"


def _unlike(ours: NDArray[np.uint32], right: NDArray[np.uint32]) -> str:
    for number, (one, other) in enumerate(zip(ours.tolist(), right.tolist())):
        if one != other:
            return f"id {number} is {one} instead of {other}"
    return f"there are {len(ours)} ids instead of {len(right)}"
