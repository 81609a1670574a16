"""Find the end-of-document token of a tokenizer."""

from __future__ import annotations

from stoker.errors import ArgumentError
from stoker.transform.tokenizer.protocols import Library

# Common names of the end-of-document token, in order of preference. `<|im_end|>`, `<|eot_id|>` and the like are
# excluded: they end a turn of a conversation. Chat tokenizers often set such a token as `eos_token`, so these names
# take precedence.
CONVENTIONAL = (
    "<|endoftext|>",
    "<|end_of_text|>",
    "<eos>",
    "</s>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
    "<EOS_TOKEN>",
    "[EOS]",
)


def end_of_document(library: Library, chosen: str | int | None, *, where: str) -> int | None:
    """Return the chosen id, or the conventional one: a special token with a known name, the tokenizer's own setting, or
    any token with a known name. None if there is none.
    """
    if isinstance(chosen, str):
        return _by_text(library, chosen, where=where)
    if chosen is not None:
        return _by_id(library, chosen, where=where)
    for name in CONVENTIONAL:
        if name in library.specials:
            return library.specials[name]
    usual = library.usual_end()
    if usual is not None:
        return usual
    return next((token for name in CONVENTIONAL if (token := library.find(name)) is not None), None)


def _by_text(library: Library, text: str, *, where: str) -> int:
    token = library.find(text)
    if token is None:
        listed = ", ".join(list(library.specials)[:8])
        raise ArgumentError(
            f"end_of_document={text!r} is not a token of {where}",
            hint=f"its special tokens are {listed}" if listed else "it has no special tokens; pass an id instead",
        )
    return token


def _by_id(library: Library, token: int, *, where: str) -> int:
    if isinstance(token, bool) or not isinstance(token, int):
        raise ArgumentError(
            f"end_of_document must be a token or an id, got {token!r}",
            hint="pass for instance '<|endoftext|>' or 50256",
        )
    if not 0 <= token < library.vocab_size:
        raise ArgumentError(
            f"end_of_document={token} is not in the vocabulary of {where}",
            hint=f"ids run from 0 to {library.vocab_size - 1}",
        )
    return token
