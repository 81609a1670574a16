"""Tokenize with existing libraries: Hugging Face `tokenizers`, tiktoken, SentencePiece, or plain bytes.

`open_tokenizer` opens any of them. The original library of a file format is the *reference*: its ids are correct by
definition. gigatoken, which is many times faster, replaces it where it produces identical ids.
"""

from __future__ import annotations

from stoker.transform.tokenizer.identity import Identity
from stoker.transform.tokenizer.opening import open_tokenizer
from stoker.transform.tokenizer.tokenizer_protocols import Tokenizer
from stoker.transform.tokenizer.training import train_bpe

__all__ = ["Identity", "Tokenizer", "open_tokenizer", "train_bpe"]
