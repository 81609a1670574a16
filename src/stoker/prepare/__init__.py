"""Raw files to the store: text into tokens, and a tokenizer out of text."""

from __future__ import annotations

from stoker.prepare.preparation import tokens
from stoker.prepare.report import Progress, Report
from stoker.prepare.training import tokenizer

__all__ = ["Progress", "Report", "tokenizer", "tokens"]
