"""The text: documents of log-normal lengths in files of JSON lines, made up or cut out of given files.

Made up, words are drawn by Zipf's law from a vocabulary of syllables, punctuation, numbers, capitals, new lines and
some words beyond ASCII. Kept in `out/corpora`, in a folder that appears when it is complete.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from benchmarks.tokens.corpus import CORPORA
from benchmarks.turns import run_alone

FILE_BYTES = 8_000_000
NUM_WORDS = 60_000
MEDIAN_CHARS, SPREAD = 1_800, 1.1
"""Of the log-normal lengths of documents, in characters."""
END_OF_DOCUMENT = "<|endoftext|>"


@dataclass(frozen=True, slots=True)
class Text:
    """Some files of text, and a tokenizer trained on the first of them."""

    num_files: int
    vocab_size: int
    originals: tuple[str, ...] = ()
    """Files to take the text from, instead of making it up."""

    @property
    def folder(self) -> Path:
        summary = repr([(path, os.stat(path).st_size, os.stat(path).st_mtime_ns) for path in self.originals])
        which = f"-{hashlib.sha256(summary.encode()).hexdigest()[:8]}" if self.originals else ""
        return CORPORA / f"text-{self.num_files}{which}"

    @property
    def files(self) -> list[Path]:
        return [self.folder / f"{number:03}.jsonl" for number in range(self.num_files)]

    @property
    def tokenizer(self) -> Path:
        return self.folder / f"tokenizer-{self.vocab_size}.json"

    def documents(self, number: int) -> list[str]:
        """Return the documents of one file."""
        with self.files[number].open() as file:
            return [json.loads(line)["text"] for line in file]


@dataclass(frozen=True, slots=True)
class Size:
    """How much text there is in some of the files."""

    num_documents: int
    num_bytes: int
    """Of text, in UTF-8."""


def made(text: Text, notify: Callable[[str], None]) -> None:
    """Make what is not there yet, in a process of its own."""
    if not text.folder.exists():
        notify(f"making {text.num_files * FILE_BYTES // 10**6} MB of text")
        run_alone(make, text, limit_seconds=1200)
    if not text.tokenizer.exists():
        notify(f"training a tokenizer of {text.vocab_size:,} tokens")
        run_alone(train, text, limit_seconds=1200)


def measured(text: Text, num_files: int) -> Size:
    """Return how much text is in the first files."""
    num_documents = num_bytes = 0
    for number in range(num_files):
        documents = text.documents(number)
        num_documents += len(documents)
        num_bytes += sum(len(document.encode()) for document in documents)
    return Size(num_documents, num_bytes)


def make(text: Text) -> None:
    """Write the files."""
    unfinished = text.folder.with_name(f"{text.folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    documents = cut(text.originals) if text.originals else invented()
    for path in text.files:
        num_bytes = 0
        with (unfinished / path.name).open("w") as file:
            while num_bytes < FILE_BYTES:
                document = next(documents)
                num_bytes += file.write(json.dumps({"text": document}, ensure_ascii=False) + "\n")
    os.rename(unfinished, text.folder)


def train(text: Text) -> None:
    """Train a tokenizer on the first file."""
    import stoker.prepare

    unfinished = text.tokenizer.with_suffix(".unfinished.json")
    stoker.prepare.tokenizer(text.files[:1], vocab_size=text.vocab_size, out=unfinished, specials=(END_OF_DOCUMENT,))
    os.rename(unfinished, text.tokenizer)


def _lengths(chance: np.random.Generator) -> Iterator[int]:
    while True:
        yield from np.maximum(20, chance.lognormal(np.log(MEDIAN_CHARS), SPREAD, 1000)).astype(int).tolist()


def cut(originals: tuple[str, ...]) -> Iterator[str]:
    """Yield documents from files, one piece after the other; from the beginning when they are at an end."""
    whole = "\n".join(Path(path).read_text(errors="replace") for path in originals)
    lengths, at = _lengths(np.random.default_rng(0)), 0
    while True:
        document = whole[at : (at := at + next(lengths))].strip()
        if document:
            yield document
        if at >= len(whole):
            at = 0


def invented() -> Iterator[str]:
    """Yield documents without end."""
    chance = np.random.default_rng(0)
    words = np.array(_vocabulary(chance), dtype=object)
    ranks = np.arange(1, NUM_WORDS + 1) + 2.7
    cumulative = np.cumsum(1 / ranks)
    cumulative /= cumulative[-1]
    ends = np.array(
        [" "] * 84 + [", "] * 7 + [". "] * 6 + [".\n", ".\n\n", "? ", "! ", "; ", ": ", " - ", ' "'], dtype=object
    )
    mean_chars = 6.5
    for length in _lengths(chance):
        size = max(3, int(length / mean_chars))
        drawn = words[cumulative.searchsorted(chance.random(size))]
        marks = ends[chance.integers(0, len(ends), size)]
        begins = np.flatnonzero([mark[0] in ".?!" for mark in marks[:-1]]) + 1
        for place in (0, *begins.tolist()):
            drawn[place] = drawn[place].capitalize()
        yield "".join((drawn + marks).tolist()).strip() + "."


_ONSETS = [
    "",
    "b",
    "c",
    "ch",
    "d",
    "f",
    "g",
    "h",
    "k",
    "l",
    "m",
    "n",
    "p",
    "pr",
    "r",
    "s",
    "sh",
    "st",
    "t",
    "th",
    "tr",
    "v",
    "w",
]
_CORES = ["a", "ai", "e", "ea", "ee", "i", "o", "oo", "ou", "u", "y"]
_CODAS = ["", "", "", "ck", "d", "l", "m", "n", "nd", "ng", "r", "rt", "s", "ss", "st", "t"]
_BEYOND = ["é", "ü", "ñ", "ç", "ø", "ж", "д", "и", "ω", "λ", "漢", "字", "日", "ا", "ن", "क", "🙂", "—", "€"]  # noqa: RUF001


def _vocabulary(chance: np.random.Generator) -> list[str]:
    """Return words without repetition, frequent ones first, and shorter."""

    def word(number: int) -> str:
        kind = chance.random()
        if kind < 0.03:
            return str(int(10 ** (chance.random() * 6)))
        num_syllables = 1 + chance.poisson(0.25 + 1.5 * min(1.0, number / 4000))
        syllables = [
            _ONSETS[chance.integers(len(_ONSETS))]
            + _CORES[chance.integers(len(_CORES))]
            + _CODAS[chance.integers(len(_CODAS))]
            for _ in range(num_syllables)
        ]
        if kind < 0.06:
            syllables.insert(int(chance.integers(num_syllables + 1)), _BEYOND[chance.integers(len(_BEYOND))])
        found = "".join(syllables)
        return found.capitalize() if kind > 0.95 else found

    def words() -> Iterator[str]:
        seen: set[str] = set()
        while True:
            found = word(len(seen))
            if found not in seen:
                seen.add(found)
                yield found

    return list(islice(words(), NUM_WORDS))
