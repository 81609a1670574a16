"""Texts on which tokenizers are known to disagree."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

TRICKY_TEXTS: tuple[str, ...] = (
    "",
    " ",
    "\n",
    "Hello, world! It's the users' turn; they'll say we've 'S'T'RE'LL it. DON'T.",
    "a  b   c    d\t\te \t f  \n g\n\n\nh   \n   \n\n  i ",
    "   leading and trailing   ",
    "line\r\nline\r\n\r\nline\rline\n\r\n \r\n\t\r",
    "def f(x):\n    return {**x, 'a': [1, 2.5e-10, 0xFF]}  # comment\n\n\tif x != y -> z:\n\t\tpass\n",
    '<div class="a">&amp;</div>{{x}} $a_b$ \\frac{1}{2} // /* */ ::: ===== ----- ##### !!!??? ...',
    "0 1 12 123 1234 12345 1234567890 3.14159 1,000,000 2026-11-16T17:44:00Z ٣٤٥ Ⅷ ½ ² ①",
    "CamelCaseWord snake_case_word SCREAMING kebab-case-word iPhone macOS ABCdef aBcD ǅabc ʰx ªº",
    "Grüße, ÀÉÎÕÜ naïve façade; cafe\u0301 e\u0301\u0302\u0303 \u0301 \u0308a a\u0308\u0323 \u0300\u0301",
    "Привет мир. Γειά \u03c3\u03bf\u03c5 Κό\u03c3με ς. שלום עולם. مرحبا بالعالم. नमस्ते दुनिया क्ष. สวัสดีชาวโลก. ქართული",
    "你好\uff0c世界。こんにちは世界、カタカナ・ﾊﾝｶｸ。안녕하세요 \u1112\u1161\u11ab 세계.",
    "🙂🙃 👩‍👩‍👧‍👦 👍🏽 🇩🇪🇯🇵 ❤️ ☺︎ #️⃣ \U0001d4b3\U0001d7d8\U0001d538 🏴\U000e0067\U000e0062\U000e007f",
    "a\u00a0b\u2003c\u2009d\u200be\u200cf\u200dg\u3000h\u0085i\u2028j\u2029k\ufeffl\u180em\u1680n\u202fo\x0bp\x0cq\x1cr",
    "nul \x00 bell \x07 del \x7f esc \x1b[0m \x9f \u00ad \u202e \ufffd \ufffe \uffff \U0010ffff \ue000 \u0378",
    "\u017f \u212a \u212b \u0131 \u0130 ß ẞ ﬁ ﬂ ĳ Ǆ \u0149 '\u017f '\u212a i\u0307 ΐ ΰ",
    "▁ ▁▁ a▁b Ġ Ċ Ġa <0x0A> <unk> [UNK] [CLS] [SEP] [MASK] ##ing",
    "<|endoftext|> a<|endoftext|>b <|end_of_text|> <s> </s> <eos> <bos> <pad> <|im_start|>x<|im_end|> <|fim_prefix|>",
    "https://example.org/a/b?c=d&e=%20f#g user@example.org C:\\Users\\x ~/.config/y --flag=value -v",
    "w" + "o" * 3000 + "rd " + "=" * 500 + " " * 500 + "x" + "\n" * 300 + "ab" * 700,
    "base64 " + "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVphYmNkZWZnaGlqa2xtbm9wcXJzdHV2d3h5ejAxMjM0NTY3ODkrLw" * 5,
)
"""Varied Unicode, whitespace, code, digits, long words, line ends, control characters, texts of special tokens."""

_MAX_MARKS = 100


def probes_of(marks: Iterable[str]) -> list[str]:
    """Return test texts for a tokenizer whose special and added tokens are `marks`."""
    around = [f"a{mark}b {mark} c  {mark}\n{mark}{mark}" for mark in islice(marks, _MAX_MARKS)]
    return [*TRICKY_TEXTS, *around]
