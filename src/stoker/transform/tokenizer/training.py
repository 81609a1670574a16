"""Train a tokenizer on texts."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from stoker.errors import ArgumentError, DataError, MissingExtra, StokerError
from stoker.transform.tokenizer.identity import Identity
from stoker.transform.tokenizer.library_errors import NOT_THEIRS, reason_of
from stoker.transform.tokenizer.opening import open_tokenizer

# Characters of text per handover: each handover takes the GIL.
_HAND_OVER_CHARS = 1 << 20


def train_bpe(
    texts: Iterable[str],
    *,
    vocab_size: int,
    out: str | os.PathLike[str],
    specials: Sequence[str] = ("<|endoftext|>",),
    progress: Callable[[int], None] | None = None,
) -> Identity:
    """Train a byte-level BPE like GPT-2's on the texts, write it to `out`, and return its identity.

    `out` is the path of a tokenizer.json, or a folder for it; the file is written atomically. The same texts in any
    order give the same file, for any number of threads. Special tokens have the first ids, then come the 256 bytes, so
    that every text can be encoded, then the merges, which may be fewer than requested.

    `progress` is called with the number of characters of each text as it is read. Memory holds the counts of all
    distinct words, but not the texts.
    """
    _refuse(vocab_size=vocab_size, specials=specials)
    path = Path(os.path.abspath(out))
    if path.is_dir():
        path /= "tokenizer.json"
    if path.suffix != ".json":
        raise ArgumentError(
            f"out must be a .json file or a folder, got {os.fspath(out)!r}", hint="end the name with .json"
        )
    content = _trained(texts, vocab_size=vocab_size, specials=specials, progress=progress)
    _write(path, content.encode())
    return open_tokenizer(path, backend="reference").identity


def _refuse(*, vocab_size: int, specials: Sequence[str]) -> None:
    if isinstance(specials, str) or not all(isinstance(text, str) and text for text in specials):
        raise ArgumentError(f"specials must be a sequence of str, got {specials!r}", hint="pass ('<|endoftext|>',)")
    if len(set(specials)) != len(specials):
        raise ArgumentError(f"specials={specials!r} has a duplicate", hint="each special token must be unique")
    least = 256 + len(specials)
    if isinstance(vocab_size, bool) or not isinstance(vocab_size, int) or not least <= vocab_size < 1 << 31:
        raise ArgumentError(
            f"vocab_size={vocab_size!r} is too small",
            hint=f"pass at least {least}: the 256 bytes and {len(specials)} special tokens",
        )


def _trained(
    texts: Iterable[str], *, vocab_size: int, specials: Sequence[str], progress: Callable[[int], None] | None
) -> str:
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    except ImportError as error:
        raise MissingExtra("tokenizers", extra="tokens", need="training a tokenizer") from error

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(specials),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    feed = _Feed(texts, progress)
    try:
        tokenizer.train_from_iterator(iter(feed), trainer)
    except BaseException as error:
        if feed.failure is not None:
            raise feed.failure from None
        if isinstance(error, NOT_THEIRS):
            raise
        raise DataError(
            f"training failed after {feed.num_texts} texts: {reason_of(error)}\n"
            "hint: use a smaller vocab_size or fewer texts"
        ) from error
    if feed.failure is not None:
        raise feed.failure
    if not feed.num_texts:
        raise ArgumentError("no texts to train on", hint="check the inputs; at least one text is required")
    return tokenizer.to_str(pretty=True)


class _Feed:
    """Passes texts to the trainer, and keeps their errors, which the library would replace with its own."""

    def __init__(self, texts: Iterable[str], progress: Callable[[int], None] | None) -> None:
        self.failure: BaseException | None = None
        self.num_texts = 0
        self._texts, self._progress = texts, progress

    def __iter__(self) -> Iterator[list[str]]:
        try:
            yield from self._batches()
        except GeneratorExit:
            raise
        except BaseException as error:
            self.failure = error
            raise

    def _batches(self) -> Iterator[list[str]]:
        batch: list[str] = []
        num_chars = 0
        for text in self._texts:
            self._refuse_what_is_no_text(text)
            self.num_texts += 1
            batch.append(text)
            num_chars += len(text)
            if self._progress is not None:
                self._progress(len(text))
            if num_chars >= _HAND_OVER_CHARS:
                yield batch
                batch, num_chars = [], 0
        if batch:
            yield batch

    def _refuse_what_is_no_text(self, text: str) -> None:
        if not isinstance(text, str):
            raise ArgumentError(
                f"text {self.num_texts} must be a str, got {type(text).__name__}", hint="pass texts as str"
            )
        try:
            if not text.isascii():
                text.encode()
        except UnicodeEncodeError as error:
            raise DataError(
                f"text {self.num_texts} is not valid: character {error.start} is half of a surrogate pair\n"
                "hint: fix the text or leave it out"
            ) from error


def _write(path: Path, data: bytes) -> None:
    """Write a file atomically."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise _not_written(path, error) from error
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            os.fchmod(file.fileno(), 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException as error:
        with suppress(OSError):
            os.unlink(name)
        if isinstance(error, OSError):
            raise _not_written(path, error) from error
        raise


def _not_written(path: Path, error: OSError) -> StokerError:
    return ArgumentError(
        f"cannot write the tokenizer to {path}: {error.strerror}",
        hint="check the folder and the free disk space",
    )


def _umask() -> int:
    # Read the umask without os.umask, which would briefly reset it for other threads.
    with suppress(OSError, ValueError, IndexError), open("/proc/self/status") as status:
        return next(int(line.split()[1], 8) for line in status if line.startswith("Umask:"))
    return 0o022
