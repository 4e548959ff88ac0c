"""Texts that have broken encoders before. Each must give one finite vector, the same in every way of encoding."""

from __future__ import annotations

HARD: dict[str, str] = {
    "empty": "",
    "a space": " ",
    "white space of all kinds": " \t\n\r\u00a0\u2003\u3000",
    "English": "a man is playing a guitar",
    "Chinese": "如何关闭支付宝免密支付？",
    "mixed scripts": "支付宝 payment привет مرحبا नमस्ते สวัสดี 안녕 γειά",
    "right to left": "שלום עולם \u202eabc\u202c",
    "emoji": "🙂😀🎉",
    "emoji of several parts": "👩‍👩‍👧‍👦 🇨🇳 👍🏽 1️⃣",
    "zero-width characters": "a\u200bman\u200c is\u200d play\ufeffing\u2060",
    "combining characters": "e\u0301 n\u0303 a\u0300\u0301\u0302\u0303\u0304",
    "many marks on one letter": "a" + "\u0301" * 200,
    "composed": "é ñ",
    "full-width forms": "ＡＢＣ１２３　，。！",
    "half-width kana": "ﾊﾝｶｸ",
    "ligatures": "ﬁne ﬂow ㎏ ①",
    "control characters": "a\x00b\x07c\x1b[0m\x7f\x85",
    "a lone high surrogate": "cat \ud800 dog",
    "a lone low surrogate": "\udfff",
    "two halves that belong together": "\ud83d\ude42",
    "private use and unassigned": "\ue000 \U000e0001 \U0010ffff \u0378",
    "mathematical letters": "𝓐𝓑𝓒 𝟏𝟐𝟑",
    "special tokens as text": "[CLS] [SEP] [MASK] <s> </s> <unk> [UNK]",
    "only punctuation": "?!... --- \u2026\u2014",
    "digits": "3.14159 1,000,000 2024-01-01",
    "markup": '<p class="x">a &amp; b</p> {{x}} $HOME %s \\n',
    "a long word": "supercalifragilistic" * 40,
    "a long text": "the cat sat on the mat and looked at the dog " * 30,
    "a long text without spaces": "如何关闭支付宝免密支付" * 40,
    "a rare ideograph": "龘靐齉 𠀀𪚥",
    "what was before": "a man is playing a guitar",
}

HUGE: dict[str, str] = {
    "one letter": "a" * 100_000,
    "letters": "".join(chr(97 + i * 7919 % 26) for i in range(100_000)),
    "ideographs": "".join(chr(0x4E00 + i * 7919 % 20_000) for i in range(100_000)),
    "emoji": "😀" * 100_000,
    "marks": "\u0301" * 100_000,
    "zero-width": "\u200b" * 100_000,
    "spaces": " " * 100_000,
    "punctuation": "!?" * 50_000,
    "surrogates": "\ud800" * 100_000,
}
"""100,000 characters without a word in them."""
