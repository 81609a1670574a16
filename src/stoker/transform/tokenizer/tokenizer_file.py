"""Find and read the file of a tokenizer."""

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

# The largest known file has 35 MB. A file that is not a tokenizer should not fill the memory.
_MAX_BYTES = 1 << 30

_RANK_LINE = re.compile(rb"[A-Za-z0-9+/]+=* [0-9]+\s")


@dataclass(frozen=True, slots=True)
class TokenizerFile:
    """The contents of a tokenizer file when it was read."""

    path: Path
    kind: Kind
    data: bytes

    @classmethod
    def read(cls, spec: str | os.PathLike[str]) -> TokenizerFile:
        """Read the file at `spec`, or the tokenizer.json in the folder at `spec`, and detect its kind."""
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
                        what=f"has {status.st_size / 2**30:.1f} GiB, too large for a tokenizer",
                        hint=f"a tokenizer is {KINDS}",
                    )
                data = file.read()
        except FileNotFoundError as error:
            raise ArgumentError(
                f"tokenizer {path} does not exist",
                hint=f"pass the path of {KINDS}; model names are not resolved, and nothing is downloaded",
            ) from error
        except OSError as error:
            raise ArgumentError(
                f"cannot read the tokenizer {path}: {error.strerror}", hint="check the path and its permissions"
            ) from error
        return cls(path, _kind_of(path, data), data)


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # do not block on a pipe without a writer


def _inside(folder: Path) -> Path:
    path = folder / "tokenizer.json"
    if path.is_file():
        return path
    others = sorted(other.name for other in folder.iterdir() if other.suffix in (".tiktoken", ".model"))
    raise ArgumentError(
        f"folder {folder} contains no tokenizer.json" + (f", but {', '.join(others)}" if others else ""),
        hint="pass the path of the file itself" if others else f"a tokenizer is {KINDS}",
    )


def _kind_of(path: Path, data: bytes) -> Kind:
    if path.suffix == ".json":
        return "huggingface"
    if path.suffix == ".tiktoken":
        return "tiktoken"
    if path.suffix == ".model":
        # Some models ship tiktoken ranks under the usual name of SentencePiece files.
        return "tiktoken" if _RANK_LINE.match(data) else "sentencepiece"
    raise ArgumentError(f"the kind of tokenizer is not clear from the name {path}", hint=f"a tokenizer is {KINDS}")
