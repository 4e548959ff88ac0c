"""A vocabulary cut down to the tokens that given texts use: the same vectors on those texts from a smaller model."""

from __future__ import annotations

import copy
import json
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from twinvec.errors import ModelError, UsageError, choose
from twinvec.files import atomic_folder
from twinvec.model.encoder import Encoder
from twinvec.model.static import StaticEngine, StaticTokens, unknown_of
from twinvec.model.tokens import Tokens
from twinvec.model.trim_tokenizer import CHARACTERS, Vocabulary, characters_to_keep, special_ids

TOLERANCE = 1e-6
VECTORS = 1000
_BLOCK = 4096
Texts = Callable[[], Iterable[str]]
"""Opens the texts anew: they are read more than once, and never held whole."""


@dataclass(frozen=True, kw_only=True)
class Trimmed:
    """What a trim has cut, and how it was proved.

    texts: read; changed_texts: of these, those that lost a token to min_count. used: tokens in use. verified_vectors: texts encoded before and
    after, with the largest difference of a number. check: what would change in the held-out texts, None when there were none.
    """

    texts: int
    changed_texts: int
    used: int
    vocabulary_before: int
    vocabulary_after: int
    parameters_before: int
    parameters_after: int
    bytes_before: int
    bytes_after: int
    verified_vectors: int
    largest_difference: float
    check: Check | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Check:
    """Held-out texts: tokens, and how many of them would be cut another way; unknown tokens before and after."""

    texts: int
    changed_texts: int
    tokens: int
    changed_tokens: int
    changed_share: float
    unknown_before: int
    unknown_after: int


def trim(
    encoder: Encoder, texts: Texts, folder: Path, *, keep: Sequence[str] = (), min_count: int = 1, characters: str = "scripts",
    vectors: int | None = VECTORS, check: Texts | None = None, force: bool = False,
) -> Trimmed:  # fmt: skip
    """Write to `folder` the encoder with the tokens that `texts` use, and prove that their vectors have stayed.

    Kept are: tokens of the texts (and of each of the model's prompts before them) that occur at least `min_count` times; all special and added
    tokens, and bytes; single characters (`characters`: "scripts" those of the scripts that the texts use, with all digits, signs and punctuation;
    "all"; or "used", no more than the texts use); the tokens in `keep`; and what the algorithm needs beside them (`Vocabulary.closed`).

    Every text is tokenised before and after, and its tokens must be the same. Then `vectors` of them, spread evenly (None: all), are encoded by
    the model as it is loaded from the new folder; no number may differ by more than 1e-6. ModelError when one does, and nothing is left behind.
    A min_count over 1 takes tokens away from some texts: these are counted instead. check: other texts, whose change is counted.
    """
    choose("characters", characters, CHARACTERS)
    if min_count < 1:
        raise UsageError(f"min_count = {min_count}: wanted 1 or more")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())) and not force:
        raise UsageError(f"{folder} exists already; give another name, or --force to replace it")
    source = _Source(encoder)
    counts, seen, number = source.count(texts)
    if not number:
        raise UsageError("no text to trim by; give files with texts of the languages in use")
    used = {at for at, times in counts.items() if times >= min_count}
    kept = used | source.vocabulary.ids_of(keep) | characters_to_keep(source.vocabulary, seen, characters) | source.needed()
    ids = source.vocabulary.closed(kept)
    with atomic_folder(folder, replace=folder.exists()) as place:
        with source.cut(ids) as smaller:
            smaller.save(place)
            after = _parameters(smaller)
        if encoder.engine.name == "torch" and encoder.source is not None:
            _store_as(place, encoder.source)
        made = Encoder.load(place)
        made.name = encoder.name
        changed = _compare_tokens(source, made, texts, ids, strict=min_count == 1)
        worst, compared = _compare_vectors(encoder, made, texts, number, vectors, changed)
        found = Trimmed(
            texts=number, changed_texts=len(changed), used=len(used), vocabulary_before=source.vocabulary.size, vocabulary_after=len(ids),
            parameters_before=_parameters(encoder), parameters_after=after, bytes_before=_size(encoder.source), bytes_after=_size(place),
            verified_vectors=compared, largest_difference=worst, check=_check(source, made, check, ids) if check is not None else None,
        )  # fmt: skip
    return found


class _Source:
    """The model to trim: its vocabulary, and a way to the same model with fewer tokens."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder, self.tokens = encoder, encoder.tokens
        backend = self.tokens.tokenizer if isinstance(self.tokens, StaticTokens) else getattr(self.tokens.tokenizer, "backend_tokenizer", None)
        if isinstance(self.tokens, StaticTokens) and self.tokens.words is not None:
            raise ModelError(f"{encoder.name} is made of word vectors, one a word: twinvec convert FILE --limit N makes it smaller")
        if backend is None or encoder.engine.name not in ("torch", "static"):
            raise ModelError(f"{encoder.name}: only a model of the engines torch and static that has a tokenizer.json can be trimmed")
        self.backend: Any = backend
        self.vocabulary = Vocabulary(json.loads(backend.to_str()), encoder.name)
        self.prompts = ["", *dict.fromkeys(self.tokens.clean(text) for text in encoder.prompts.values() if text)]

    def blocks(self, texts: Texts) -> Iterator[list[str]]:
        """Cleaned texts, each once a prompt, a few thousand at a time; the same block comes once for each prompt."""
        stream = iter(texts())
        while block := list(islice(stream, _BLOCK)):
            cleaned = [self.tokens.clean(text) for text in block]
            for prompt in self.prompts:
                yield [prompt + text for text in cleaned] if prompt else cleaned

    def count(self, texts: Texts) -> tuple[Counter[int], set[str], int]:
        """How often each token is used, the characters seen, and the number of texts."""
        counts: Counter[int] = Counter()
        seen: set[str] = set()
        number = 0
        unknown = self.tokens.unknown_id
        for i, block in enumerate(self.blocks(texts)):
            rows = self.tokens.content(block)
            for row in rows:
                counts.update(row)
            if i % len(self.prompts) == 0:
                number += len(block)
                seen.update(*block)
            if self.vocabulary.kind == "WordPiece" and unknown is not None:
                odd = [text for text, row in zip(block, rows, strict=True) if unknown in row]
                for at in self.vocabulary.failed_matches(self._words(odd)):
                    counts[at] += 1_000_000_000  # needed, whatever min_count is
        wide = {char for text in {unicodedata.normalize("NFKC", char).lower() for char in seen} for char in text}
        return counts, seen | wide, number

    def _words(self, texts: Sequence[str]) -> list[str]:
        words: dict[str, None] = {}
        for text in texts:
            normal = self.backend.normalizer.normalize_str(text) if self.backend.normalizer is not None else text
            pieces = self.backend.pre_tokenizer.pre_tokenize_str(normal) if self.backend.pre_tokenizer is not None else [(normal, None)]
            words.update(dict.fromkeys(word for word, _ in pieces))
        return list(words)

    def needed(self) -> set[int]:
        """Ids that the model's configuration and the tokenizer's frame name."""
        found = special_ids(self.vocabulary.definition.get("post_processor")) | set(self.tokens.prefix) | set(self.tokens.suffix)
        if self.encoder.engine.name == "torch":
            from twinvec.model.backbone import position_offset

            config: Any = self.encoder.net.backbone.config
            found |= {at for _, at in _config_ids(config)}
            if position_offset(self.encoder.net.backbone):  # positions are counted from the padding token's id, so it must keep its number
                found |= set(range(self.tokens.pad_id + 1))
        return found

    @contextmanager
    def cut(self, ids: Sequence[int]) -> Iterator[Encoder]:
        """The same encoder with the tokens `ids`; inside the block only, since it borrows this one's weights."""
        from tokenizers import Tokenizer

        definition = self.vocabulary.cut(ids)
        backend = Tokenizer.from_str(json.dumps(definition, ensure_ascii=False))
        encoder = self.encoder
        kept: dict[str, Any] = {"name": encoder.name, "prompts": encoder.prompts, "default_prompt": encoder.default_prompt}
        if isinstance(encoder.engine, StaticEngine):
            bag = encoder.engine.bag
            mapping, weights = (None if array is None else array[ids] for array in (bag.mapping, bag.weights))
            table = bag.table if mapping is not None or bag.table is None else bag.table[ids]
            unknown = unknown_of(backend, definition)
            skip = -1 if bag.skip < 0 or unknown is None else unknown
            smaller = replace(bag, table=table, mapping=mapping, weights=weights, skip=skip)
            yield Encoder(StaticEngine(smaller), StaticTokens(backend, self.tokens.max_tokens, nfkc=self.tokens.nfkc, unknown_id=unknown), **kept)
            return
        tokenizer = copy.deepcopy(self.tokens.tokenizer)
        tokenizer._tokenizer = backend
        with _smaller_embedding(encoder, ids):
            tokens = Tokens(tokenizer, self.tokens.max_tokens, lower_case=self.tokens.lower_case, nfkc=self.tokens.nfkc)
            before, encoder.net.pad_id = encoder.net.pad_id, tokens.pad_id
            try:
                yield Encoder(encoder.net, tokens, **kept)
            finally:
                encoder.net.pad_id = before


@contextmanager
def _smaller_embedding(encoder: Encoder, ids: Sequence[int]) -> Iterator[None]:
    """The backbone with the rows `ids` of its word embedding, and its configuration to match; put back at the end."""
    import torch
    from torch import nn

    backbone: Any = encoder.net.backbone
    whole, config = backbone.get_input_embeddings(), backbone.config
    told = copy.deepcopy(config.__dict__)
    new = {old: i for i, old in enumerate(ids)}
    if ids[-1] >= whole.num_embeddings:
        raise ModelError(
            f"{encoder.name}: the tokenizer has token {ids[-1]}, the model {whole.num_embeddings} embeddings; they do not belong together"
        )
    small = nn.Embedding(len(ids), whole.embedding_dim, padding_idx=new.get(whole.padding_idx), dtype=whole.weight.dtype, device=whole.weight.device)
    with torch.no_grad():
        small.weight.copy_(whole.weight[torch.as_tensor(list(ids), device=whole.weight.device)])
    small.weight.requires_grad_(whole.weight.requires_grad)
    try:
        backbone.set_input_embeddings(small)
        for name, at in list(_config_ids(config)):
            value = getattr(config, name)
            setattr(config, name, [new[one] for one in value] if isinstance(value, (list, tuple)) else new[at])
        config.vocab_size = len(ids)
        encoder.net.rebuild()
        yield
    finally:
        backbone.set_input_embeddings(whole)
        config.__dict__.clear()
        config.__dict__.update(told)
        encoder.net.rebuild()


def _config_ids(config: Any) -> Iterator[tuple[str, int]]:
    """Names and ids of the special tokens that a configuration of transformers names, as far as the model has an embedding for them."""
    rows = int(config.vocab_size)
    for name, value in vars(config).items():
        if name.endswith("_token_id"):
            for at in value if isinstance(value, (list, tuple)) else [value]:
                if isinstance(at, int) and 0 <= at < rows:
                    yield name, at


def _compare_tokens(source: _Source, made: Encoder, texts: Texts, ids: Sequence[int], *, strict: bool) -> set[int]:
    """Numbers of the texts whose tokens have changed; ModelError when there is one and `strict`."""
    changed: set[int] = set()
    first = 0
    for i, block in enumerate(source.blocks(texts)):
        before, after = source.tokens.content(block), made.tokens.content(block)
        for j, (old, new) in enumerate(zip(before, after, strict=True)):
            if [ids[at] for at in new] == old:
                continue
            changed.add(first + j)
            if strict:
                pieces = source.vocabulary.pieces
                raise ModelError(
                    f"{made.name}: text {first + j} would be cut another way ({block[j][:40]!r}: {[pieces[at] for at in old][:8]} would be "
                    f"{[pieces[ids[at]] for at in new][:8]}); this tokenizer cannot be trimmed, and nothing was written"
                )
        if (i + 1) % len(source.prompts) == 0:
            first += len(block)
    return changed


def _compare_vectors(encoder: Encoder, made: Encoder, texts: Texts, number: int, wanted: int | None, changed: set[int]) -> tuple[float, int]:
    """The largest difference between vectors before and after, and how many texts were encoded for it."""
    take = set(range(number)) if wanted is None else set(np.linspace(0, number - 1, min(wanted, number)).astype(int).tolist())
    worst, compared = 0.0, 0
    stream = (text for i, text in enumerate(texts()) if i in take and i not in changed)
    while block := list(islice(stream, 256)):
        before, after = encoder.encode(block, prompt=""), made.encode(block, prompt="")
        difference = np.abs(before - after).max(axis=1)
        worst, compared = max(worst, float(difference.max())), compared + len(block)
        if worst > TOLERANCE:
            at = int(difference.argmax())
            raise ModelError(
                f"{encoder.name}: the vector of {block[at][:40]!r} would change by {worst:.2g}, at most {TOLERANCE:g} was wanted; nothing was written"
            )
    return worst, compared


def _check(source: _Source, made: Encoder, texts: Texts, ids: Sequence[int]) -> Check:
    """What would change in other texts: tokens by their place in the text."""
    smaller = made.tokens.tokenizer if isinstance(made.tokens, StaticTokens) else made.tokens.tokenizer.backend_tokenizer
    number = odd = tokens = other = 0
    unknown = [0, 0]
    stream = iter(texts())
    while block := [source.tokens.clean(text) for text in islice(stream, _BLOCK)]:
        pairs = zip(*(found.encode_batch(block, add_special_tokens=False) for found in (source.backend, smaller)), strict=True)
        for old, new in pairs:
            before = Counter(zip(old.ids, old.offsets, strict=True))
            lost = (before - Counter(zip((ids[at] for at in new.ids), new.offsets, strict=True))).total()
            number, odd, tokens, other = number + 1, odd + bool(lost), tokens + len(old.ids), other + lost
            unknown[0] += old.ids.count(source.tokens.unknown_id)
            unknown[1] += new.ids.count(made.tokens.unknown_id)
    return Check(
        texts=number, changed_texts=odd, tokens=tokens, changed_tokens=other, changed_share=other / tokens if tokens else 0.0,
        unknown_before=unknown[0], unknown_after=unknown[1],
    )  # fmt: skip


def _store_as(place: Path, source: Path) -> None:
    """Weights that came from half precision go back to it: loading made them float32, and no bit is lost on the way back."""
    import torch
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    if not (source / "model.safetensors").is_file() or not (place / "model.safetensors").is_file():
        return  # in several files
    with safe_open(source / "model.safetensors", framework="pt") as found:
        kinds = {found.get_slice(name).get_dtype() for name in found.keys()}  # noqa: SIM118
    half = {"F16": torch.float16, "BF16": torch.bfloat16}.get(next(iter(kinds))) if len(kinds) == 1 else None
    if half is None:
        return
    wide = load_file(place / "model.safetensors")
    narrow = {name: tensor.to(half) for name, tensor in wide.items()}
    if all(torch.equal(narrow[name].to(tensor.dtype), tensor) for name, tensor in wide.items()):
        save_file(narrow, place / "model.safetensors", {"format": "pt"})


def _parameters(encoder: Encoder) -> int:
    if isinstance(encoder.engine, StaticEngine):
        return encoder.engine.bag.parameters
    return sum(parameter.numel() for parameter in encoder.net.parameters())


def _size(folder: Path | None) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) if folder is not None else 0
