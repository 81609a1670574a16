"""Finding and reading the file that a tokenizer is in."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from stoker.errors import ArgumentError, DamagedFile

Kind: TypeAlias = Literal["huggingface", "tiktoken", "sentencepiece"]

KINDS = "a Hugging Face tokenizer.json, a *.tiktoken file, a SentencePiece *.model, or the word 'bytes'"

# The largest we know of has 35 MB. A file that is no tokenizer at all should not fill the memory first.
_MAX_BYTES = 1 << 30

_RANK_LINE = re.compile(rb"[A-Za-z0-9+/]+=* [0-9]+\s")


@dataclass(frozen=True, slots=True)
class TokenizerFile:
    """A tokenizer's file as it was when it was read."""

    path: Path
    kind: Kind
    data: bytes

    @classmethod
    def read(cls, spec: str | os.PathLike[str]) -> TokenizerFile:
        """Read the file at `spec`, or the tokenizer.json in the folder at `spec`, and tell what kind it is."""
        path = Path(os.path.abspath(spec))
        try:
            if path.is_dir():
                path = _inside(path)
            with open(path, "rb", opener=_without_waiting) as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    raise ArgumentError(f"{path} is not a regular file", hint=f"a tokenizer is {KINDS}")
                if status.st_size > _MAX_BYTES:
                    raise DamagedFile(
                        path,
                        what=f"has {status.st_size / 2**30:.1f} GiB, which no tokenizer has",
                        hint=f"a tokenizer is {KINDS}",
                    )
                data = file.read()
        except FileNotFoundError as error:
            raise ArgumentError(
                f"there is no tokenizer at {path}",
                hint=f"give the path of {KINDS}; names of models are not looked up, files are not downloaded",
            ) from error
        except OSError as error:
            raise ArgumentError(
                f"the tokenizer {path} cannot be read: {error.strerror}", hint="check the path and who may read it"
            ) from error
        return cls(path, _kind_of(path, data), data)


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a pipe without a writer would be waited for


def _inside(folder: Path) -> Path:
    path = folder / "tokenizer.json"
    if path.is_file():
        return path
    others = sorted(other.name for other in folder.iterdir() if other.suffix in (".tiktoken", ".model"))
    raise ArgumentError(
        f"the folder {folder} holds no tokenizer.json" + (f", but {', '.join(others)}" if others else ""),
        hint="give the path of the file itself" if others else f"a tokenizer is {KINDS}",
    )


def _kind_of(path: Path, data: bytes) -> Kind:
    if path.suffix == ".json":
        return "huggingface"
    if path.suffix == ".tiktoken":
        return "tiktoken"
    if path.suffix == ".model":
        # Some models ship tiktoken's ranks under the name that SentencePiece files usually have.
        return "tiktoken" if _RANK_LINE.match(data) else "sentencepiece"
    raise ArgumentError(f"{path} does not say by its name what kind of tokenizer it is", hint=f"a tokenizer is {KINDS}")
