"""An encoder from nothing: a WordPiece vocabulary counted on the user's texts, and a BERT of random weights, to be pretrained."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import torch

from twinvec.errors import DataError, UsageError, choose
from twinvec.model.encoder import Encoder
from twinvec.model.engines.torch_engine import pick_device
from twinvec.model.layout import parse_pooling
from twinvec.model.net import Net
from twinvec.model.tokens import Tokens
from twinvec.text import without_surrogates

KINDS: Final = ("bert",)
SPECIALS: Final = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def fresh_encoder(
    texts: Sequence[str], *, layers: int = 4, hidden: int = 256, heads: int = 4, intermediate: int | None = None, vocabulary: int = 20_000,
    max_tokens: int = 128, pooling: str = "mean", kind: str = "bert", seed: int = 0, device: str | None = None,
) -> Encoder:  # fmt: skip
    """A BERT of random weights with a vocabulary made from `texts`; the same arguments give the same encoder, in any process.

    The default is the size of BERT-mini (Turc et al. 2019: 4 layers of 256, 4 heads): 8 million parameters, 5 of them the vocabulary.
    intermediate: 4 x hidden when None (Vaswani et al. 2017). vocabulary: an upper bound, special tokens included; few texts give fewer pieces.
    Text is normalised as in bert-base-uncased: lower case, accents stripped, each Chinese character a word.
    Save it with `.save(folder)`: an ordinary model folder. DataError without any text, UsageError for sizes that do not fit together.
    """
    choose("kind", kind, KINDS)
    _check_sizes(layers=layers, hidden=hidden, heads=heads, intermediate=intermediate, vocabulary=vocabulary, max_tokens=max_tokens)
    if hidden % heads:
        raise UsageError(f"hidden = {hidden}, heads = {heads}: hidden must be a multiple of heads")
    modes = parse_pooling(pooling)
    tokenizer = wordpiece_tokenizer(texts, vocabulary, max_tokens)
    place = pick_device(device)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would touch the generators of GPUs too
        backbone = _bert(len(tokenizer), layers, hidden, heads, intermediate or 4 * hidden, max_tokens)
    tokens = Tokens(tokenizer, max_tokens)
    net = Net(backbone, modes, [], normalize=False, pad_id=tokens.pad_id).to(place).eval()
    return Encoder(net, tokens, name=f"fresh {kind}")


def describe(encoder: Encoder) -> str:
    """One line: layers, width, entries of the vocabulary, parameters."""
    config: Any = encoder.net.backbone.config
    parameters = sum(p.numel() for p in encoder.net.parameters())
    return (
        f"{encoder.name}: {config.num_hidden_layers} layers of {encoder.net.token_dimensions}, "
        f"{len(encoder.tokens.tokenizer):,} words and pieces, {parameters / 1e6:.1f} million parameters"
    )


def _check_sizes(**sizes: int | None) -> None:
    least = {"vocabulary": len(SPECIALS) + 1, "max_tokens": 3}
    for name, value in sizes.items():
        if value is None and name == "intermediate":
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < least.get(name, 1):
            raise UsageError(f"{name} = {value!r}: wanted a whole number, {least.get(name, 1)} or more")


def _bert(vocabulary: int, layers: int, hidden: int, heads: int, intermediate: int, max_tokens: int) -> Any:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=vocabulary, num_hidden_layers=layers, hidden_size=hidden, num_attention_heads=heads, intermediate_size=intermediate,
        max_position_embeddings=max_tokens, pad_token_id=SPECIALS.index("[PAD]"),
    )  # fmt: skip
    return BertModel(config, add_pooling_layer=False)


def wordpiece_tokenizer(texts: Sequence[str], vocabulary: int, max_tokens: int) -> Any:
    """A lower-casing WordPiece tokenizer (Devlin et al. 2019) of at most `vocabulary` entries, as transformers' fast tokenizer.

    The library's own trainer numbers the pieces that go on with a word (##a) by a hash table, otherwise in each process, and ties between merges
    fall by number. Here the alphabet is counted first and numbered by us, so equal texts give an equal vocabulary. The most frequent characters
    take at most half of it (Chinese has thousands); rarer ones are unknown.
    """
    from tokenizers import Tokenizer, models, processors, trainers
    from transformers import PreTrainedTokenizerFast

    listed = _checked(texts)
    alphabet = _alphabet(listed, (vocabulary - len(SPECIALS)) // 2)
    finder = _bare(Tokenizer(models.BPE(continuing_subword_prefix="##")))
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, continuing_subword_prefix="##", special_tokens=[*SPECIALS, *alphabet], show_progress=False,
        limit_alphabet=0, min_frequency=2,
    )  # fmt: skip
    finder.train_from_iterator(listed, trainer)
    numbered = sorted(finder.get_vocab().items(), key=lambda item: item[1])[:vocabulary]
    raw = _bare(Tokenizer(models.WordPiece({piece: i for i, (piece, _) in enumerate(numbered)}, unk_token="[UNK]")))
    marks = [(token, raw.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    raw.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=marks)
    return PreTrainedTokenizerFast(
        tokenizer_object=raw, model_max_length=max_tokens, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
        mask_token="[MASK]",
    )  # fmt: skip


def _bare(tokenizer: Any) -> Any:
    """The normaliser and the splitting into words of bert-base-uncased."""
    from tokenizers import decoders, normalizers, pre_tokenizers

    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def _checked(texts: Sequence[str]) -> list[str]:
    if isinstance(texts, str):
        raise UsageError("texts: wanted a list of texts, got one string; put it in a list")
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise DataError(f"texts, row {i}: wanted a text, got {type(text).__name__} ({text!r:.40})")
    found = [without_surrogates(text) for text in texts if text.strip()]
    if not found:
        raise DataError(f"texts: {len(texts)} rows without a single word; a vocabulary is made from texts")
    return found


def _alphabet(texts: Sequence[str], most: int) -> list[str]:
    """The most frequent characters, at most `most` entries: each as the beginning of a word ("a") and, where it occurs there, inside one ("##a").

    Both forms or none: the trainer would add a missing one by itself, under a number of its own.
    """
    from tokenizers import normalizers, pre_tokenizers

    normalizer, splitter = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    words: Counter[str] = Counter()
    for text in texts:
        words.update(word for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text)))
    count: Counter[str] = Counter()
    inside: set[str] = set()
    for word, times in words.items():
        inside.update(word[1:])
        for character in word:
            count[character] += times
    out: list[str] = []
    for character in sorted(count, key=lambda one: (-count[one], one)):
        forms = [character, f"##{character}"] if character in inside else [character]
        if len(out) + len(forms) > most:
            break
        out += forms
    return out
