"""Tokenize with a Hugging Face tokenizer.json and the library `tokenizers`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, final

from stoker.errors import DamagedFile, MissingExtra
from stoker.transform.tokenizer.chunked_encoding import encode_by_chunks, from_lists
from stoker.transform.tokenizer.library_errors import loading
from stoker.transform.tokenizer.tokenizer_file import TokenizerFile
from stoker.transform.tokenizer.tokenizer_protocols import Encoded

if TYPE_CHECKING:
    import tokenizers


@final
class HuggingFace:
    """A tokenizer.json, reduced to turning text into ids.

    Truncation, padding and BPE dropout are disabled, and the post-processor adds nothing. The text of a special token
    is treated as ordinary text; an added token *not* marked as special is a word of the vocabulary, and becomes its id
    wherever it occurs.
    """

    library = "tokenizers"

    def __init__(self, file: TokenizerFile, *, num_threads: int) -> None:
        library = _library()
        with loading(file.path, library=self.library):
            tokenizer: tokenizers.Tokenizer = library.Tokenizer.from_buffer(file.data)
            tokenizer.no_truncation()
            tokenizer.no_padding()
            tokenizer.encode_special_tokens = True  # as ordinary text
            if getattr(tokenizer.model, "dropout", None):
                tokenizer.model.dropout = None
            vocabulary = tokenizer.get_vocab(with_added_tokens=True)
            added = tokenizer.get_added_tokens_decoder()
        if not vocabulary:
            raise DamagedFile(file.path, what="has an empty vocabulary")
        self.vocab_size = max(vocabulary.values()) + 1
        self.specials = {str(token.content): token_id for token_id, token in sorted(added.items()) if token.special}
        self.marks = [str(token.content) for _, token in sorted(added.items())]
        self._path, self._tokenizer, self._num_threads = file.path, tokenizer, num_threads

    def find(self, token: str) -> int | None:
        """Return the id of the token with exactly this text, or None."""
        return self._tokenizer.token_to_id(token)

    def usual_end(self) -> int | None:
        """Return the id of the `eos_token` from the usual files next to a tokenizer.json."""
        for name in ("tokenizer_config.json", "special_tokens_map.json"):
            token = _eos_token(self._path.with_name(name))
            if token is not None and (token_id := self.find(token)) is not None:
                return token_id
        return None

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Return the ids of all texts and the number of each."""
        with _PLAIN_CALLS.inside():
            return encode_by_chunks(self._encode, texts, num_threads=self._num_threads)

    def _encode(self, texts: list[str]) -> Encoded:
        encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return from_lists(encoding.ids for encoding in encodings)

    def decode(self, ids: list[int]) -> str:
        """Return the text of `ids`."""
        return self._tokenizer.decode(ids, skip_special_tokens=False)


def ordinary_json(data: bytes) -> str:
    """Return a tokenizer.json without special tokens, for a library that always matches them in text."""
    content = json.loads(data)
    content["added_tokens"] = [token for token in content.get("added_tokens") or [] if not token.get("special")]
    content["truncation"] = content["padding"] = content["post_processor"] = None
    if content["model"].get("dropout"):
        content["model"]["dropout"] = None
    return json.dumps(content, ensure_ascii=False)


def _library() -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise MissingExtra("tokenizers", extra="tokens", need="a tokenizer.json") from error
    return tokenizers


def _eos_token(path: Path) -> str | None:
    try:
        token = json.loads(path.read_bytes())["eos_token"]
        token = token["content"] if isinstance(token, dict) else token
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None  # ignore missing or malformed files next to the tokenizer
    return token if isinstance(token, str) else None


class _PlainCalls:
    """Prevents `tokenizers` from starting its own threads during calls.

    Its pool always has one thread per core, and a process that forks after the pool was used gets a warning or hangs.
    The only switch is an environment variable, read at every call; it is restored when no call is running.
    """

    _NAME = "TOKENIZERS_PARALLELISM"

    def __init__(self) -> None:
        self._lock = Lock()
        self._num_calls = 0
        self._before: str | None = None

    @contextmanager
    def inside(self) -> Iterator[None]:
        with self._lock:
            self._num_calls += 1
            if self._num_calls == 1:
                self._before = os.environ.get(self._NAME)
                os.environ[self._NAME] = "false"
        try:
            yield
        finally:
            with self._lock:
                self._num_calls -= 1
                if self._num_calls == 0:
                    if self._before is None:
                        os.environ.pop(self._NAME, None)
                    else:
                        os.environ[self._NAME] = self._before


_PLAIN_CALLS = _PlainCalls()


def _forget_calls() -> None:
    # A fork may happen while another thread is inside; the child has no such thread to release the lock.
    global _PLAIN_CALLS
    _PLAIN_CALLS = _PlainCalls()


os.register_at_fork(after_in_child=_forget_calls)
