"""The byte tokenizer, which needs no file: ids are the bytes of the text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np

from stoker.transform.tokenizer.tokenizer_protocols import Encoded

_END = 256


@final
class ByteValues:
    """Ids 0 to 255 are the bytes of the text in UTF-8, 256 is the end of a document."""

    library = "bytes"
    vocab_size = _END + 1

    def __init__(self) -> None:
        self.specials = {"<|endoftext|>": _END}
        self.marks: list[str] = []

    def find(self, token: str) -> int | None:
        """Return the id of a special token, or of a character that is one byte."""
        if token in self.specials:
            return self.specials[token]
        return ord(token) if len(token) == 1 and token.isascii() else None

    def usual_end(self) -> int | None:
        """Return 256."""
        return _END

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Return the bytes of all texts and the number of each."""
        encoded = [text.encode() for text in texts]
        lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
        return np.frombuffer(b"".join(encoded), np.uint8).astype(np.uint32), lengths

    def decode(self, ids: list[int]) -> str:
        """Return the text of `ids`."""
        end = b"<|endoftext|>"
        return b"".join(end if token == _END else bytes((token,)) for token in ids).decode(errors="replace")
