"""NLI as triplets for contrastive losses."""

from __future__ import annotations

from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, Literal

from twinvec.data.dataset import Dataset
from twinvec.data.labels import CONTRADICTION, ENTAILMENT
from twinvec.errors import DataError, choose
from twinvec.text import same_text_key

Without = Literal["drop", "pair"]
WITHOUT: Final[tuple[Without, ...]] = ("drop", "pair")


def nli_triplets(data: Dataset, *, without: Without = "drop") -> Dataset:
    """NLI rows as (premise, entailment, contradiction): supervised SimCSE, Gao et al. 2021, section 4. Neutral hypotheses are not used.

    Rows of one premise (equal after `same_text_key`) belong together wherever they stand. Each different entailment makes one triplet, with the
    premise's contradictions in turn (the first again when there are fewer); a hypothesis that stands there as both is used as neither.
    The triplets come in the order of their entailments, whose row numbers they keep.
    without: entailments of a premise that has no contradiction are left out ("drop"), or get the contradiction of another premise ("pair"):
    a random text as any other of the batch, so that the row teaches what a plain pair teaches and the columns stay three.

    Departure: SimCSE's file keeps only premises annotated with both and takes one of each; here every entailment is used.
    DataError: data of another kind, or no premise with both.
    """
    choose("without", without, WITHOUT)
    if data.kind != "nli" or data.labels is None:
        raise DataError(f"{data.path}: holds {data.kind}; triplets of premise, entailment and contradiction are made from nli")
    premises, hypotheses = data.columns.values()
    sides = _sides(premises, hypotheses, data.labels)
    made: list[tuple[int, str | None]] = []  # row of the entailment, its contradiction
    used: Counter[str] = Counter()
    seen: set[tuple[str, str]] = set()
    for row, label in enumerate(data.labels):
        premise, hypothesis = same_text_key(premises[row]), same_text_key(hypotheses[row])
        entailments, contradictions = sides[premise]
        if label != ENTAILMENT or hypothesis in contradictions or (premise, hypothesis) in seen:
            continue
        seen.add((premise, hypothesis))
        against = [text for key, text in contradictions.items() if key not in entailments]
        made.append((row, against[used[premise] % len(against)] if against else None))
        used[premise] += 1
    lacking = sum(negative is None for _, negative in made)
    if lacking == len(made):
        raise DataError(f"{data.path}: no triplets: in {len(data)} rows no premise has both an entailment and a contradiction")
    if without == "drop":
        made = [(row, negative) for row, negative in made if negative is not None]
    else:
        made = _borrow(made, lambda row: sides[same_text_key(premises[row])][0])
    chosen = data.select([row for row, _ in made])
    columns = dict(zip(("anchor", "positive"), chosen.columns.values(), strict=True)) | {"negative": [negative or "" for _, negative in made]}
    note = f"{len(made)} triplets of premise, entailment and contradiction, made from {len(data)} NLI rows"
    if lacking:
        note += f"; {lacking} entailments without a contradiction are " + ("left out" if without == "drop" else "given that of another premise")
    first, second, *_ = [*data.mapping.values(), "", ""]
    mapping = {"anchor": first, "positive": second, "negative": second} if data.mapping else {}
    mapping |= {"group": data.mapping["group"]} if "group" in data.mapping else {}
    return replace(chosen, kind="triplets", columns=columns, labels=None, label_names=None, mapping=mapping, notes=[*data.notes, note])


def _borrow(made: list[tuple[int, str | None]], entailments: Callable[[int], Mapping[str, str]]) -> list[tuple[int, str | None]]:
    """Rows without a contradiction get that of a row further on (round the end), unless it is one of their own entailments."""
    owned = [(i, negative) for i, (_, negative) in enumerate(made) if negative is not None]
    places = [i for i, _ in owned]
    out: list[tuple[int, str | None]] = []
    for i, (row, negative) in enumerate(made):
        if negative is None:
            start = bisect(places, i)
            following = (owned[(start + step) % len(owned)][1] for step in range(len(owned)))
            own = entailments(row)
            negative = next((text for text in following if same_text_key(text) not in own), None)
        if negative is not None:
            out.append((row, negative))
    return out


def _sides(premises: Sequence[str], hypotheses: Sequence[str], labels: Sequence[float]) -> dict[str, tuple[dict[str, str], dict[str, str]]]:
    """Premise key -> ({key: text} of its entailments, the same of its contradictions), in the order of the rows."""
    found: dict[str, tuple[dict[str, str], dict[str, str]]] = defaultdict(lambda: ({}, {}))
    for premise, hypothesis, label in zip(premises, hypotheses, labels, strict=True):
        if label in (ENTAILMENT, CONTRADICTION):
            found[same_text_key(premise)][0 if label == ENTAILMENT else 1].setdefault(same_text_key(hypothesis), hypothesis)
    return found
