"""Text into ids, by what users already have: Hugging Face's `tokenizers`, tiktoken, SentencePiece, or plain bytes.

`open_tokenizer` opens any of them. The library that belongs to the kind of file is the *reference*: its ids are right
by definition. gigatoken, which is many times faster, stands in for it where its ids have been seen to be the same.
"""

from __future__ import annotations

from stoker.transform.tokenizer.identity import Identity
from stoker.transform.tokenizer.opening import open_tokenizer
from stoker.transform.tokenizer.protocols import Tokenizer
from stoker.transform.tokenizer.training import train_bpe

__all__ = ["Identity", "Tokenizer", "open_tokenizer", "train_bpe"]
