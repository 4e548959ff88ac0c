"""Tiny cross-encoders, made once a session."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tiny_models import MAKERS, scramble


def with_pairs(tokenizer: Any) -> Any:
    """The tiny tokenizer with a template for pairs, as its family has it."""
    from tokenizers import processors

    cls, sep, eos = tokenizer.cls_token, tokenizer.sep_token, tokenizer.eos_token
    single, pair = (f"{cls} $A {sep}", f"{cls} $A {sep} $B:1 {sep}:1") if cls else (f"$A {eos}", f"$A $B:1 {eos}:1")
    marks = [(token, tokenizer.convert_tokens_to_ids(token)) for token in {cls, sep, eos} if token]
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=marks)
    return tokenizer


@pytest.fixture(scope="session")
def cross_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """cross_model("bert", labels=1): a folder of a tiny model for sequence classification. Copy it before changing it."""
    from transformers import AutoModelForSequenceClassification
    from transformers.utils import logging

    logging.disable_progress_bar()
    made: dict[tuple[str, int], Path] = {}

    def get(family: str = "bert", labels: int = 1) -> Path:
        if (family, labels) not in made:
            folder = tmp_path_factory.mktemp("cross") / f"{family}-{labels}"
            tokenizer, config = MAKERS[family]()
            tokenizer = with_pairs(tokenizer)
            if family == "bert":
                tokenizer.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
            config.vocab_size, config.num_labels = len(tokenizer), labels
            config.pad_token_id = tokenizer.pad_token_id
            model = AutoModelForSequenceClassification.from_config(config).eval()
            scramble(model)
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
            made[family, labels] = folder
        return made[family, labels]

    return get
