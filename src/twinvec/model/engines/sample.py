"""Texts that every installation has: for calibration, and to measure speed with when the user gives none. No torch here."""

from __future__ import annotations

import json
from importlib.resources import files

from twinvec.model.fingerprint import GOLDEN_TEXTS


def sample_texts() -> list[str]:
    """Short questions and longer answers in English and Chinese, as they come to an encoder; each once."""
    found = list(GOLDEN_TEXTS)
    for name in ("faq.en.jsonl", "faq.zh.jsonl"):
        for line in (files("twinvec") / "data" / "faq" / name).read_text("utf-8").splitlines():
            for key, value in json.loads(line).items():
                if key != "id":
                    found += [value] if isinstance(value, str) else value
    return list(dict.fromkeys(found))
