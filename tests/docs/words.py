"""Find words that the project does not use (`words.txt`) in its text and code.

On the command line:

    python tests/docs/words.py                 # counts by folder
    python tests/docs/words.py docs src/stoker/cli   # every place, with what to say instead
    python tests/docs/words.py --lower         # lower the counts in words_left.txt to what is left
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
LEFT = HERE / "words_left.txt"

FOLDERS = ("src", "tests", "docs", "examples", "benchmarks", ".ci")
SUFFIXES = {".md", ".py", ".c", ".h", ".js", ".css", ".html", ".txt", ".toml", ".yaml", ".j2", ""}
ITSELF = {"words.txt", "words_allowed.txt", "words_left.txt", "words.py", "test_words.py"}

PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
"""A part of an identifier, or a word."""

GAP = r"(?:_|[ \t]+|[ \t]*\n[ \t]*(?:#:? |// |\* |> )?)"
"""What a space in a phrase matches."""


@dataclass(frozen=True, slots=True)
class Hit:
    """One place where a word stands."""

    path: str
    line: int
    text: str
    instead: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text!r} (say {self.instead})"


@dataclass(frozen=True, slots=True)
class WordList:
    """The words of `words.txt`."""

    singles: list[tuple[re.Pattern[str], str]]
    """Single words, and what to say instead."""
    phrases: list[tuple[re.Pattern[str], str]]


@cache
def word_list() -> WordList:
    """Read `words.txt`."""
    words = WordList([], [])
    for line in _lines(HERE / "words.txt"):
        wanted, _, instead = line.rpartition(" -> ")
        if wanted.startswith("/"):
            words.phrases.append((re.compile(wanted.strip("/").replace(" ", GAP)), instead))
            continue
        for word in wanted.split(", "):
            if " " in word:
                pattern = rf"(?<![A-Za-z]){re.escape(word)}(?![a-z])".replace(r"\ ", GAP)
                words.phrases.append((re.compile(pattern, re.IGNORECASE), instead))
            else:
                pattern = word.replace("*", "[a-z]*").replace("-", "(?:e|ed|es|er|ers|ing|ation|ations|able)")
                words.singles.append((re.compile(pattern), instead))
    return words


@cache
def instead_of(part: str) -> str | None:
    """Return what to say instead of a single word; None if it is fine."""
    word = part.lower()
    return next((instead for pattern, instead in word_list().singles if pattern.fullmatch(word)), None)


@cache
def allowed() -> list[tuple[str, str]]:
    """Return the phrases that are fine, each with the path below which it is."""
    pairs = []
    for line in _lines(HERE / "words_allowed.txt"):
        path, colon, phrase = line.partition(": ")
        pairs.append((path, phrase) if (colon and "/" in path) or path.endswith(".md") else ("", line))
    return pairs


def hits_in(text: str, path: str = "") -> list[Hit]:
    """Return every place in a text where a word of the list stands."""
    words = word_list()
    for where, phrase in allowed():
        if path.startswith(where):
            text = text.replace(phrase, " " * len(phrase))
    found = [(match, instead) for match in PART.finditer(text) if (instead := instead_of(match[0]))]
    for pattern, instead in words.phrases:
        found += [(match, instead) for match in pattern.finditer(text)]
    found.sort(key=lambda pair: pair[0].start())
    return [Hit(path, text.count("\n", 0, match.start()) + 1, match[0], instead) for match, instead in found]


def files() -> Iterator[str]:
    """Yield the files whose words are checked, relative to the root."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if (
                path.suffix in SUFFIXES
                and path.name not in ITSELF
                and "__pycache__" not in path.parts
                and path.is_file()
            ):
                yield str(path.relative_to(ROOT))
    for path in sorted(ROOT.glob("*")):
        if path.suffix in SUFFIXES and path.is_file() and path.name != "LICENSE":
            yield path.name


def help_texts() -> Iterator[tuple[str, str]]:
    """Yield the name of every command, as `help/prepare/tokens`, and its help."""
    import typer.main
    from typer.testing import CliRunner

    from stoker.cli.app import app

    def names_of(command: object, names: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        yield names
        for name, inner in getattr(command, "commands", {}).items():
            yield from names_of(inner, (*names, name))

    for names in names_of(typer.main.get_command(app), ()):
        shown = CliRunner().invoke(app, [*names, "--help"], env={"COLUMNS": "200", "TERM": "dumb"})
        yield "/".join(("help", *names)), shown.output


def all_hits() -> list[Hit]:
    """Return every hit in the files of the project and in the help of its commands."""
    texts = chain(((path, (ROOT / path).read_text(errors="replace")) for path in files()), help_texts())
    return [hit for path, text in texts for hit in hits_in(text, path)]


def words_left() -> dict[str, int]:
    """Return how many hits each file or folder may still have."""
    return {path: int(count) for count, path in (line.split() for line in _lines(LEFT))}


def place_of(path: str, places: dict[str, int]) -> str:
    """Return the entry of `words_left.txt` that a file counts for; the file itself if there is none."""
    parts = path.split("/")
    candidates = ("/".join(parts[:end]) for end in range(len(parts), 0, -1))
    return next((candidate for candidate in candidates if candidate in places), path)


def counted(hits: list[Hit], places: dict[str, int]) -> Counter[str]:
    """Count hits by entry of `words_left.txt`."""
    return Counter(place_of(hit.path, places) for hit in hits)


def lower() -> None:
    """Lower the counts in `words_left.txt`, and remove entries without hits."""
    places = words_left()
    counts = counted(all_hits(), places)
    header = [line for line in LEFT.read_text().splitlines() if line.startswith("#")]
    lines = [f"{min(counts[place], most)} {place}" for place, most in places.items() if counts[place]]
    LEFT.write_text("\n".join([*header, *lines]) + "\n")


def _lines(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if line.strip() and not line.startswith("#")]


def main(arguments: list[str]) -> None:
    """Print hits or counts, or lower the counts."""
    if arguments == ["--lower"]:
        return lower()
    hits = all_hits()
    if not arguments:
        for place, count in sorted(counted(hits, words_left()).items()):
            sys.stdout.write(f"{count:6} {place}\n")
    for hit in hits:
        if any(hit.path.startswith(path) for path in arguments):
            sys.stdout.write(f"{hit}\n")
    return None


if __name__ == "__main__":
    main(sys.argv[1:])
