"""Models small enough to make in a test session: two layers of 32, with tokenizers trained on a few sentences. No weights are shipped or fetched."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

CORPUS = (
    "A man is playing a guitar on the stage.",
    "A woman is slicing an onion in the kitchen.",
    "The cat sat on the mat and looked at the dog.",
    "How do I close the payment account? 1 2 3 4 5",
    "Where is my refund - order 1024 has not arrived",
    "如何关闭支付宝免密支付？",
    "没网的时候支付宝能够支付吗",
    "花呗什么时候还款，可以提前还吗",
    "query: passage: represent this sentence for searching",
)
TEXTS = (
    "a man is playing a guitar",
    "the cat sat",
    "",
    "如何关闭支付宝",
    "where is my refund - order 1024 has not arrived and the dog looked at the cat on the mat in the kitchen",
    "the cat sat",
    "花呗 什么时候 还款，可以 提前 还吗 ?",
    "x",
)
"""Short, long, empty, repeated, Chinese: what a batch holds in life."""

FAMILIES = ("bert", "roberta", "xlm-roberta", "mpnet", "distilbert", "modernbert", "deberta-v2", "qwen2")
PACKED = (*FAMILIES[:6], "qwen2")
WINDOW = 64


def wordpiece(cls: str = "[CLS]", sep: str = "[SEP]", pad: str = "[PAD]", unk: str = "[UNK]", specials: tuple[str, ...] = ()) -> Any:
    """A lower-casing WordPiece tokenizer of the BERT kind, as a transformers tokenizer.

    The trainer of WordPiece numbers its pieces in another order in each process, and ties fall otherwise; that of BPE does not. So BPE finds the
    pieces, and each may begin a word or go on with one.
    """
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    found = Tokenizer(models.BPE())
    found.normalizer, found.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    found.train_from_iterator(CORPUS * 3, trainers.BpeTrainer(vocab_size=150, show_progress=False))
    pieces = sorted(found.get_vocab())
    listed = [*(specials or (pad, unk, cls, sep, "[MASK]")), *pieces, *(f"##{piece}" for piece in pieces)]
    raw = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(listed)}, unk_token=unk))
    raw.normalizer, raw.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    return _finish(raw, cls, sep, pad, unk)


def unigram(cls: str = "<s>", sep: str = "</s>", pad: str = "<pad>", unk: str = "<unk>", specials: tuple[str, ...] = ()) -> Any:
    """A Unigram tokenizer with metaspace, of the XLM-R kind; its pieces in a fixed order, for the reason above."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    first = list(specials) or [cls, pad, sep, unk]
    found = Tokenizer(models.Unigram())
    found.normalizer, found.pre_tokenizer = normalizers.NFKC(), pre_tokenizers.Metaspace()
    found.train_from_iterator(CORPUS * 3, trainers.UnigramTrainer(vocab_size=300, special_tokens=first, unk_token=unk, show_progress=False))
    scores = {piece: round(score, 2) for piece, score in json.loads(found.to_str())["model"]["vocab"]}
    pieces = [(piece, 0.0) for piece in first] + [(piece, scores[piece]) for piece in sorted(scores) if piece not in first]
    raw = Tokenizer(models.Unigram(pieces, first.index(unk), False))
    raw.normalizer, raw.pre_tokenizer = normalizers.NFKC(), pre_tokenizers.Metaspace()
    raw.add_special_tokens(first)
    return _finish(raw, cls, sep, pad, unk)


def bpe(cls: str | None = "<s>", sep: str = "</s>", pad: str = "<pad>", unk: str | None = "<unk>") -> Any:
    """A byte-level BPE tokenizer of the RoBERTa kind; without `cls` of the kind that decoders have, with an end token."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    specials = [token for token in dict.fromkeys((cls, pad, sep, unk)) if token]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    raw.train_from_iterator(CORPUS * 3, trainers.BpeTrainer(vocab_size=420, special_tokens=specials, initial_alphabet=alphabet, show_progress=False))
    return _finish(raw, cls, sep, pad, unk)


def _finish(raw: Any, cls: str | None, sep: str, pad: str, unk: str | None) -> Any:
    from tokenizers import processors
    from transformers import PreTrainedTokenizerFast

    marks = [(token, raw.token_to_id(token)) for token in (cls, sep) if token]
    raw.post_processor = processors.TemplateProcessing(single=f"{cls} $A {sep}" if cls else f"$A {sep}", special_tokens=marks)
    names = {"cls_token": cls, "sep_token": sep, "pad_token": pad, "unk_token": unk} if cls else {"eos_token": sep, "pad_token": pad}
    return PreTrainedTokenizerFast(tokenizer_object=raw, model_max_length=WINDOW, **{key: value for key, value in names.items() if value})


def _size(**more: Any) -> dict[str, Any]:
    return {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, **more}


def _bert() -> tuple[Any, Any]:
    from transformers import BertConfig

    return wordpiece(), BertConfig(**_size(max_position_embeddings=WINDOW))


def _roberta() -> tuple[Any, Any]:
    from transformers import RobertaConfig

    return bpe(), RobertaConfig(**_size(max_position_embeddings=WINDOW + 2, type_vocab_size=1, pad_token_id=1))


def _xlm_roberta() -> tuple[Any, Any]:
    from transformers import XLMRobertaConfig

    return unigram(), XLMRobertaConfig(**_size(max_position_embeddings=WINDOW + 2, type_vocab_size=1, pad_token_id=1))


def _mpnet() -> tuple[Any, Any]:
    from transformers import MPNetConfig

    tokenizer = wordpiece("<s>", "</s>", "<pad>", "[UNK]", ("<s>", "<pad>", "</s>", "[UNK]", "<mask>"))
    return tokenizer, MPNetConfig(**_size(max_position_embeddings=WINDOW + 2, pad_token_id=1))


def _distilbert() -> tuple[Any, Any]:
    from transformers import DistilBertConfig

    return wordpiece(), DistilBertConfig(dim=32, n_layers=2, n_heads=4, hidden_dim=48, max_position_embeddings=WINDOW)


def _modernbert() -> tuple[Any, Any]:
    from transformers import ModernBertConfig

    # Three layers, so that both kinds of attention occur; a window of 4 to each side is shorter than most texts.
    config = ModernBertConfig(
        **_size(num_hidden_layers=3, max_position_embeddings=WINDOW, local_attention=8, global_attn_every_n_layers=2, pad_token_id=1),
        bos_token_id=0, eos_token_id=2, cls_token_id=0, sep_token_id=2,
    )  # fmt: skip
    return bpe("[CLS]", "[SEP]", "[PAD]", None), config


def _deberta() -> tuple[Any, Any]:
    from transformers import DebertaV2Config

    tokenizer = unigram("[CLS]", "[SEP]", "[PAD]", "[UNK]", ("[PAD]", "[CLS]", "[SEP]", "[UNK]"))
    config = DebertaV2Config(
        **_size(max_position_embeddings=WINDOW, relative_attention=True, position_buckets=8, pos_att_type=["p2c", "c2p"]),
        share_att_key=True, norm_rel_ebd="layer_norm", position_biased_input=False, type_vocab_size=0,
    )  # fmt: skip
    return tokenizer, config


def _qwen2() -> tuple[Any, Any]:
    from transformers import Qwen2Config

    return bpe(None, "<|endoftext|>", "<|endoftext|>", None), Qwen2Config(**_size(num_key_value_heads=2, max_position_embeddings=WINDOW))


MAKERS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "bert": _bert, "roberta": _roberta, "xlm-roberta": _xlm_roberta, "mpnet": _mpnet, "distilbert": _distilbert,
    "modernbert": _modernbert, "deberta-v2": _deberta, "qwen2": _qwen2,
}  # fmt: skip


def scramble(model: torch.nn.Module, seed: int = 0) -> None:
    """Random values everywhere: a fresh model has zero biases and unit norms, which would hide a forgotten one."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.2 * noise if "norm" in name.lower() and name.endswith("weight") else 0.15 * noise)


def make_bare(family: str, folder: Path) -> Path:
    """A bare transformers folder of the family."""
    from transformers import AutoModel

    tokenizer, config = MAKERS[family]()
    config.vocab_size = len(tokenizer)
    model = AutoModel.from_config(config).eval()
    scramble(model)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
