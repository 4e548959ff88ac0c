"""tokenizer.json cut down to some of its tokens, so that texts made of those are cut exactly as before. No torch here."""

from __future__ import annotations

import copy
import json
import re
import unicodedata
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from twinvec.errors import ModelError, UsageError

CHARACTERS = ("scripts", "all", "used")
KINDS = ("Unigram", "WordPiece", "BPE", "WordLevel")
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")


class Vocabulary:
    """The tokens of a tokenizer.json, and the rules by which its algorithm depends on them.

    pieces: token string by id (the model's own and added ones). ModelError for an algorithm or an option that is not known here.
    """

    def __init__(self, definition: dict[str, Any], name: str) -> None:
        self.definition, self.name = definition, name
        self.model: dict[str, Any] = definition.get("model") or {}
        self.kind = str(self.model.get("type"))
        if self.kind not in KINDS:
            raise ModelError(f"{name}: a tokenizer of the kind {self.kind!r} cannot be trimmed; known: {', '.join(KINDS)}")
        if self.kind == "BPE" and (self.model.get("continuing_subword_prefix") or self.model.get("dropout")):
            raise ModelError(f"{name}: a BPE tokenizer with a subword prefix or dropout cannot be trimmed")
        vocab = self.model["vocab"]
        self.pieces: dict[int, str] = (
            {i: row[0] for i, row in enumerate(vocab)} if self.kind == "Unigram" else {at: piece for piece, at in vocab.items()}
        )
        self.own = set(self.pieces)
        self.added = {int(token["id"]): str(token["content"]) for token in definition.get("added_tokens") or ()}
        self.pieces.update(self.added)
        self.places = {piece: at for at, piece in self.pieces.items()}
        self.prefix = str(self.model.get("continuing_subword_prefix") or "") if self.kind == "WordPiece" else ""
        self.suffix = str(self.model.get("end_of_word_suffix") or "") if self.kind == "BPE" else ""
        self.bytes = self.kind == "BPE" and "ByteLevel" in json.dumps([definition.get("pre_tokenizer"), definition.get("decoder")])

    @property
    def size(self) -> int:
        return len(self.pieces)

    def ids_of(self, tokens: Iterable[str]) -> set[int]:
        """UsageError for a token that is not in the vocabulary."""
        listed = list(tokens)
        missing = [token for token in listed if token not in self.places]
        if missing:
            raise UsageError(f"{len(missing)} of the tokens to keep are not in the vocabulary of {self.name} (first: {missing[0]!r})")
        return {self.places[token] for token in listed}

    def bare(self, piece: str) -> str:
        """A token without the marks of its place in a word."""
        if self.prefix and piece.startswith(self.prefix):
            piece = piece[len(self.prefix) :]
        return piece[: -len(self.suffix)] if self.suffix and piece.endswith(self.suffix) and piece != self.suffix else piece

    def closed(self, kept: Iterable[int]) -> list[int]:
        """The ids in `kept` with all that the algorithm needs beside them, ascending.

        Always: added tokens, the unknown token, byte tokens. Unigram: the piece with the lowest score, since what an unknown character costs is
        reckoned from it (10 below the lowest). BPE: every token on the way by which merges build a kept one. With these, the texts whose tokens
        are kept are cut as before: a best path in Unigram stays the best among fewer, a longest match in WordPiece the longest, and no merge of
        BPE that was made is missing while none is new.
        """
        found = {at for at in kept if at in self.pieces} | set(self.added) | {at for at, piece in self.pieces.items() if _BYTE.fullmatch(piece)}
        unknown = self.model.get("unk_id") if self.kind == "Unigram" else self.places.get(str(self.model.get("unk_token")))
        if unknown is not None:
            found.add(int(unknown))
        if self.kind == "Unigram":
            scores = [score for _, score in self.model["vocab"]]
            found.add(min(range(len(scores)), key=scores.__getitem__))
        if self.kind == "BPE":
            rank = {pair: i for i, pair in reversed(list(enumerate(self._merges())))}
            for at in list(found & self.own):
                found |= {self.places[symbol] for symbol in self._way(self.pieces[at], rank) if symbol in self.places}
        return sorted(found)

    def _merges(self) -> list[tuple[str, str]]:
        return [tuple(merge.split(" ", 1)) if isinstance(merge, str) else tuple(merge) for merge in self.model["merges"]]  # type: ignore[misc]

    def _way(self, token: str, rank: dict[tuple[str, str], int]) -> set[str]:
        """Every symbol that comes up while merges build the token from its characters."""
        if token in self.added.values():
            return {token}
        body = self.bare(token)
        symbols = list(body)
        if self.suffix and symbols and token != body:
            symbols[-1] += self.suffix
        seen = {token, *symbols}
        while len(symbols) > 1:
            ranks = [rank.get(pair, len(rank)) for pair in pairwise(symbols)]
            at = min(range(len(ranks)), key=ranks.__getitem__)
            if ranks[at] == len(rank):
                break
            symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
            seen.add(symbols[at])
        return seen

    def failed_matches(self, words: Sequence[str]) -> set[int]:
        """WordPiece: ids of the longest matches in words that end as unknown. Without these a shorter match might lead to another end."""
        found: set[int] = set()
        longest = int(self.model.get("max_input_chars_per_word") or 100)
        for word in words:
            at, matched = 0, []
            if len(word) > longest:
                continue
            while at < len(word):
                for stop in range(len(word), at, -1):
                    place = self.places.get((self.prefix if at else "") + word[at:stop])
                    if place is not None and place in self.own:
                        matched.append(place)
                        at = stop
                        break
                else:
                    found.update(matched)
                    break
        return found

    def cut(self, ids: Sequence[int]) -> dict[str, Any]:
        """The definition with the tokens `ids` (ascending) only, numbered from 0 in their order."""
        new = {old: i for i, old in enumerate(ids)}
        out = copy.deepcopy({key: value for key, value in self.definition.items() if key != "model"})
        model = {key: value for key, value in self.model.items() if key not in ("vocab", "merges")}
        own = [at for at in ids if at in self.own]
        if own and new[own[-1]] != len(own) - 1:
            raise ModelError(f"{self.name}: its added tokens stand between those of its model; such a vocabulary cannot be trimmed")
        if self.kind == "Unigram":
            model["vocab"] = [self.model["vocab"][at] for at in own]
            if model.get("unk_id") is not None:
                model["unk_id"] = new[int(model["unk_id"])]
        else:
            names = {piece: at for piece, at in self.model["vocab"].items() if at in new}
            model["vocab"] = {piece: new[at] for piece, at in sorted(names.items(), key=lambda item: item[1])}
        if self.kind == "BPE":
            there = model["vocab"]
            model["merges"] = [
                merge for merge, (a, b) in zip(self.model["merges"], self._merges(), strict=True) if a in there and b in there and a + b in there
            ]
        for token in out.get("added_tokens") or ():
            token["id"] = new[int(token["id"])]
        out["post_processor"] = _renumbered(out.get("post_processor"), new)
        if out.get("padding"):
            out["padding"]["pad_id"] = new.get(int(out["padding"].get("pad_id", 0)), 0)
        return {**out, "model": model}


def _renumbered(processor: Any, new: dict[int, int]) -> Any:
    """A post-processor with the new ids of its special tokens."""
    if not isinstance(processor, dict):
        return processor
    out = dict(processor)
    if isinstance(out.get("processors"), list):
        out["processors"] = [_renumbered(part, new) for part in out["processors"]]
    if isinstance(out.get("special_tokens"), dict):  # TemplateProcessing
        out["special_tokens"] = {name: {**token, "ids": [new[at] for at in token["ids"]]} for name, token in out["special_tokens"].items()}
    for name in ("sep", "cls"):  # BertProcessing, RobertaProcessing
        if isinstance(out.get(name), list):
            out[name] = [out[name][0], new[out[name][1]]]
    return out


def special_ids(processor: Any) -> set[int]:
    """Ids that a post-processor puts around a text."""
    if not isinstance(processor, dict):
        return set()
    found = {at for part in processor.get("processors") or () for at in special_ids(part)}
    if isinstance(processor.get("special_tokens"), dict):
        found |= {at for token in processor["special_tokens"].values() for at in token["ids"]}
    return found | {processor[name][1] for name in ("sep", "cls") if isinstance(processor.get(name), list)}


def characters_to_keep(vocabulary: Vocabulary, seen: set[str], mode: str) -> set[int]:
    """Ids of tokens of one character, for texts to come: of the scripts in `seen` with all signs and digits, or all of them, or none."""
    if vocabulary.bytes:  # a byte-level alphabet has no scripts, and without it a text would lose bytes
        return {at for at, piece in vocabulary.pieces.items() if len(piece) == 1}
    if mode == "used":
        return set()
    scripts = {script_of(char) for char in seen}
    single = {at: bare for at, piece in vocabulary.pieces.items() if len(bare := vocabulary.bare(piece)) == 1}
    return {at for at, char in single.items() if mode == "all" or script_of(char) in scripts | {""}}


def script_of(char: str) -> str:
    """The script of a letter by the first word of its Unicode name (LATIN, CJK, CYRILLIC); "" for digits, signs, punctuation and spaces."""
    if unicodedata.category(char)[0] not in "LM":
        return ""
    return unicodedata.name(char, "").split(" ")[0].split("-")[0]
