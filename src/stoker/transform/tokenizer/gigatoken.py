"""gigatoken, which produces the ids of other tokenizer libraries about fifty times faster."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from typing import Any, final

from stoker.errors import MissingExtra, StaleSource
from stoker.transform.tokenizer.chunked_encoding import from_arrays
from stoker.transform.tokenizer.huggingface import ordinary_json
from stoker.transform.tokenizer.tiktoken import KNOWN, Tiktoken
from stoker.transform.tokenizer.tokenizer_file import TokenizerFile
from stoker.transform.tokenizer.tokenizer_protocols import Encoded, Library

# gigatoken 0.10 has the letters and digits of Unicode 17; tokenizers 0.23 and tiktoken 0.14 have those of Unicode 16,
# and split text differently around a character that only one side knows. Such texts go to the reference.
_NEWCOMERS = (
    "\u088f\u0c5c\u0cdc\u1acf-\u1add\u1ae0-\u1aeb\ua7ce\ua7cf\ua7d2\ua7d4\ua7f1\U00010940-\U00010959"
    "\U00010ec5-\U00010ec7\U00010efa\U00010efb\U00011b60-\U00011b67\U00011db0-\U00011ddb\U00011de0-\U00011de9"
    "\U00016ea0-\U00016eb8\U00016ebb-\U00016ed3\U00016ff2-\U00016ff6\U000187f8-\U000187ff\U00018d09-\U00018d1e"
    "\U00018d80-\U00018df2\U0001e6c0-\U0001e6de\U0001e6e0-\U0001e6f5\U0001e6fe\U0001e6ff\U0002b73a-\U0002b73f"
    "\U0002cea2-\U0002cead\U000323b0-\U00033479"
)
_NEWCOMER = re.compile(f"[{_NEWCOMERS}]")
# Their first bytes in UTF-8. Searching bytes is many times faster than the expression above, and single bytes are
# fastest: most text has none of these first bytes, and emoji, which start with f0 too, continue with 9f.
_BEGINNINGS = (
    (b"\xe0", (b"\xe0\xa2\x8f", b"\xe0\xb1\x9c", b"\xe0\xb3\x9c")),
    (b"\xe1", (b"\xe1\xab",)),
    (b"\xea", (b"\xea\x9f",)),
)
_BEGINNING_OF_FOUR = re.compile(rb"\xf0[\x90\x91\x96\x98\x9e\xab\xac\xb2\xb3]")

# Memory limit of gigatoken's cache. It caches every word, 90 bytes each, without a limit; a new instance starts empty.
_MAX_GROWTH_BYTES = 256 << 20

# gigatoken's names of split patterns, by tiktoken's pattern.
_SCHEMES = {
    KNOWN["r50k_base"].pattern: "gpt2",
    KNOWN["cl100k_base"].pattern: "gpt4",
    KNOWN["o200k_base"].pattern: "o200k",
}


@final
class Gigatoken:
    """The tokenizer of `reference`, loaded in gigatoken. Errors of gigatoken pass through."""

    library = "gigatoken"

    def __init__(self, file: TokenizerFile, reference: Library) -> None:
        self._load = _loader(file, reference)
        self._reference = reference
        self._encoder = self._load()
        self._growth_bytes = 0

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Return the ids of all texts and the number of each."""
        if self._growth_bytes > _MAX_GROWTH_BYTES:
            self._encoder = None
            self._encoder = self._load()
            self._growth_bytes = 0
        before = _resident_bytes()
        encode = self._encoder.encode
        arrays = []
        for text in texts:
            if text.isascii():
                arrays.append(encode(text))
                continue
            data = text.encode()
            if has_newcomer(text, data):
                arrays.append(self._reference.encode([text])[0])
            else:
                arrays.append(encode(data))
        # Ids count as new memory. If they reuse old memory, the sum would decrease with each call, hence the 0.
        self._growth_bytes += max(0, _resident_bytes() - before - sum(array.nbytes for array in arrays))
        return from_arrays(arrays)


def has_newcomer(text: str, data: bytes) -> bool:
    """Return whether the text (`data` in UTF-8) has a character on whose Unicode version the libraries differ."""
    if _BEGINNING_OF_FOUR.search(data) is None and not any(
        first in data and any(beginning in data for beginning in beginnings) for first, beginnings in _BEGINNINGS
    ):
        return False
    return _NEWCOMER.search(text) is not None


def _loader(file: TokenizerFile, reference: Library) -> Callable[[], Any]:
    try:
        import gigatoken
        from gigatoken import gigatoken_rs
    except ImportError as error:
        raise MissingExtra("gigatoken", extra="gigatoken", need="backend='gigatoken'") from error

    if file.kind == "tiktoken":
        assert isinstance(reference, Tiktoken)
        scheme = _SCHEMES.get(reference.pattern)
        if scheme is None:
            raise ValueError("it does not support this pattern")

        def load() -> Any:
            # gigatoken reads the file itself, perhaps hours later.
            if file.path.read_bytes() != file.data:
                raise StaleSource(file.path, what="its content has changed")
            return gigatoken_rs.BPETokenizer.from_tiktoken(str(file.path), scheme, None)

        return load

    if file.kind == "sentencepiece":
        from gigatoken._load.sentencepiece import sentencepiece_to_tokenizer_json

        content = ordinary_json(sentencepiece_to_tokenizer_json(file.data).encode())
    else:
        content = ordinary_json(file.data)
    return lambda: gigatoken.Tokenizer.from_json(content).backend


def _resident_bytes() -> int:
    try:
        with open("/proc/self/statm", "rb", buffering=0) as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):  # no such file on this system: the cache is unlimited there
        return 0
