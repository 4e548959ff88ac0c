"""`mine_negatives`: pairs and a corpus in, rows with hard negatives out, ready to be trained on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from twinvec.data.dataset import Dataset
from twinvec.errors import DataError, UsageError, choose
from twinvec.index.checks import METRICS, is_blank
from twinvec.mining.candidates import Candidates, Corpus, Floats, candidates, fit, similarity
from twinvec.mining.known import Known
from twinvec.mining.mined import Mined
from twinvec.mining.rules import Rules
from twinvec.progress import Progress
from twinvec.records import Encoding, Vectors
from twinvec.text import same_text_key

Rows = npt.NDArray[np.int64]
RERANKED = 16  # anchors whose windows are reranked at once: some seconds of work, so that the bar moves
CONE = 0.5  # a background above this makes a relative margin, which counts from 0, far stricter than its name says


class EncoderLike(Protocol):
    """What mining needs of an encoder."""

    def encode_with_report(self, texts: Any, *, prompt: str | None = None, progress: bool = False) -> Encoding: ...


class ScorerLike(Protocol):
    """What mining needs of a cross-encoder; `model.cross.CrossEncoder` has it."""

    def scores(self, pairs: Any) -> Vectors: ...


def mine_negatives(
    encoder: EncoderLike, data: Dataset, corpus: Sequence[str] | None = None, rules: Rules | None = None, *, reranker: ScorerLike | None = None,
    query_prompt: str | None = None, document_prompt: str | None = None, metric: str = "cosine", progress: bool = False,
) -> Mined:  # fmt: skip
    """Hard negatives for each pair of `data`: texts of the corpus that are near to the anchor and not known to belong to it.

    data: pairs (only those with label 1, where there are labels) or triplets (whose negatives are replaced). corpus: the texts to choose
    from; by default every text of `data` but the anchors: the positives of other rows, and what is labelled 0 or given as a negative.
    rules: see `Rules`; by default 1 negative from ranks 1 to 100. query_prompt, document_prompt: names of the model's prompts for anchors
    and for the rest; None takes the model's default. metric: "cosine" or "dot".

    reranker: scores the anchor with each candidate of the window and with its positive. Margins, limits and "top" then go by its scores;
    the window still goes by the encoder's ranks.

    Never a negative: the anchor, its positives in any row, whatever else `Known` relates to it, a blank text. Equal scores go by the order
    of the corpus. The same input gives the same rows whatever the sizes of blocks. DataError when there is nothing to mine from, or when
    no row gets its negatives.
    """
    rules = rules or Rules()
    choose("metric", metric, METRICS)
    job = _Job(data, rules, reranker, metric, _texts(data, corpus))
    notes = job.encode(encoder, query_prompt, document_prompt, progress)
    with Progress(len(job.live), "mine", show=progress, unit="anchors") as bar:
        for block in job.candidates():
            job.take(block)
            bar.advance(len(block))
    mined = job.result()
    if job.cut:
        notes.append(f"reranker: {job.cut:,} of {job.scored:,} pairs were longer than its window and were cut")
    return replace(mined, notes=[*notes, *_said(mined, reranker is not None)])


@dataclass(frozen=True)
class _Texts:
    """pairs: rows of the data that are positive pairs; anchors: their distinct first texts; documents: the distinct texts that are encoded
    beside them, of which the first `searched` are the corpus (each text once, by `same_text_key`) and the others positives outside it."""

    pairs: list[int]
    anchors: list[str]
    documents: list[str]
    searched: int


def _texts(data: Dataset, corpus: Sequence[str] | None) -> _Texts:
    if data.kind not in ("pairs", "triplets"):
        raise DataError(f"{data.path} holds {data.kind}: wanted pairs (with labels 0 and 1, or without) or triplets to mine negatives for")
    if isinstance(corpus, str):
        raise UsageError("corpus: got one text; give a list of texts")
    first, *others = data.columns.values()
    pairs = [row for row in range(len(data)) if data.kind == "triplets" or data.labels is None or data.labels[row] == 1]
    if not pairs:
        raise DataError(f"{data.path}: no pair has the label 1, so there is nothing to find negatives for")
    chosen: dict[str, str] = {}
    for text in corpus if corpus is not None else (text for column in others for text in column):
        if not isinstance(text, str):
            raise DataError(f"corpus: {text!r:.60} ({type(text).__name__}) is no text")
        chosen.setdefault(same_text_key(text), text)
    if not chosen:
        raise DataError("corpus: no texts to choose negatives from")
    listed = list(chosen.values())
    documents = list(dict.fromkeys([*listed, *(others[0][row] for row in pairs)]))
    return _Texts(pairs, list(dict.fromkeys(first[row] for row in pairs)), documents, len(listed))


class _Job:
    """One mining: vectors of all texts, and the rows as they get their negatives."""

    def __init__(self, data: Dataset, rules: Rules, reranker: ScorerLike | None, metric: str, texts: _Texts) -> None:
        self.data, self.rules, self.reranker, self.metric, self.texts = data, rules, reranker, metric, texts
        self.place = {text: i for i, text in enumerate(texts.documents)}
        self.rows_of: dict[int, list[int]] = defaultdict(list)  # anchor -> its rows of the data
        self.found: dict[int, tuple[float, Rows, Floats, Rows]] = {}  # row -> score of the positive; corpus rows, scores and ranks of negatives
        self.removed: dict[str, int] = {"known": 0}
        self.background = 0.0
        self.scored = self.cut = 0  # pairs that the reranker scored, and cut to its window
        left = {"label_0": len(data) - len(texts.pairs), "blank": 0, "too_few": 0, "none": 0, "filled": 0}
        self.counts = {"rows": len(data), **left, "anchors": len(texts.anchors), "corpus": 0}

    @property
    def live(self) -> list[int]:
        """Numbers of the anchors that have a row to fill."""
        return sorted(self.rows_of)

    def encode(self, encoder: EncoderLike, query_prompt: str | None, document_prompt: str | None, progress: bool) -> list[str]:
        """Vectors of anchors and documents, fit for the metric; notes on what the encoder lost."""
        notes: list[str] = []

        def vectors(texts: list[str], prompt: str | None, what: str) -> tuple[Vectors, Floats, npt.NDArray[np.bool_]]:
            encoding = encoder.encode_with_report(texts, prompt=prompt, progress=progress)
            notes.extend(f"{what}: {said}" for said in replace(encoding.report, empty=[]).warnings())
            found = np.array(encoding.vectors, dtype=np.float32)  # a copy, since it is normalised in place
            norms = fit(found, self.metric, what)
            return found, norms, (norms > 0) & ~np.fromiter((is_blank(text) for text in texts), bool, len(texts))

        searched = self.texts.searched
        self.queries, _, asked = vectors(self.texts.anchors, query_prompt, "anchors")
        self.stored, norms, usable = vectors(self.texts.documents, document_prompt, "corpus")
        self.corpus = Corpus(self.stored[:searched], norms[:searched], usable[:searched], self.metric)
        self.counts["corpus"] = self.corpus.usable
        if asked.any() and self.corpus.usable:
            # The mean of all inner products is the inner product of the means.
            self.background = float(
                self.queries[asked].mean(0, dtype=np.float64) @ self.stored[:searched][usable[:searched]].mean(0, dtype=np.float64)
            )
        number = {text: i for i, text in enumerate(self.texts.anchors)}
        for row in self.texts.pairs:
            anchor, positive = self.data.texts(row)[:2]
            if asked[number[anchor]] and usable[self.place[positive]]:
                self.rows_of[number[anchor]].append(row)
            else:
                self.counts["blank"] += 1
        return notes

    def candidates(self) -> Iterator[list[Candidates]]:
        first, second = list(self.data.columns.values())[:2]
        pairs = self.texts.pairs
        groups = self.data.groups
        known = Known(
            self.texts.documents[: self.texts.searched], [first[row] for row in pairs], [second[row] for row in pairs],
            [groups[row] for row in pairs] if groups is not None else None,
        )  # fmt: skip
        live = self.live
        asked = [self.texts.anchors[i] for i in live]
        rules = self.rules
        sizes = {} if self.reranker is None else {"block": RERANKED}
        for block in candidates(asked, self.queries[live], self.corpus, known, rank_from=rules.rank_from, rank_to=rules.rank_to, **sizes):
            yield [replace(one, anchor=live[one.anchor]) for one in block]

    def take(self, block: list[Candidates]) -> None:
        """Choose the negatives of every row of these anchors."""
        for one, scores, own in self._scored(block):
            order = np.argsort(-scores, kind="stable")  # a reranker has an order of its own; ties stay in the encoder's
            self.removed["known"] += one.known
            for row, positive in zip(self.rows_of[one.anchor], own.tolist(), strict=True):
                kept = self.rules.keep(scores[order], positive, self.removed)
                chosen = order[self.rules.choose(kept, row)]
                self._keep(row, positive, one.rows[chosen], scores[chosen], self.rules.rank_from + chosen)

    def _scored(self, block: list[Candidates]) -> Iterator[tuple[Candidates, Floats, Floats]]:
        """Each anchor's candidates with their scores (m,), and the scores of the positives of its rows."""
        positives = [[self.place[self.data.texts(row)[1]] for row in self.rows_of[one.anchor]] for one in block]
        if self.reranker is None:
            for one, places in zip(block, positives, strict=True):
                yield one, one.scores, similarity(self.queries[one.anchor], self.stored[places], self.metric)
            return
        anchors, documents = self.texts.anchors, self.texts.documents
        asked = [(anchors[one.anchor], documents[i]) for one, places in zip(block, positives, strict=True) for i in (*one.rows.tolist(), *places)]
        scores = np.asarray(self._rerank(asked), dtype=np.float64)
        if scores.shape != (len(asked),) or not np.isfinite(scores).all():
            raise DataError(f"reranker: wanted {len(asked)} finite scores, got shape {scores.shape} with NaN or infinity, or another count")
        at = 0
        for one, places in zip(block, positives, strict=True):
            middle, end = at + len(one.rows), at + len(one.rows) + len(places)
            yield one, scores[at:middle], scores[middle:end]
            at = end

    def _rerank(self, asked: list[tuple[str, str]]) -> Vectors:
        """The reranker's scores; what it cut is counted where it says so."""
        assert self.reranker is not None
        with_report = getattr(self.reranker, "scores_with_report", None)
        if with_report is None:
            return self.reranker.scores(asked)
        report = with_report(asked)
        self.cut += report.truncated
        self.scored += len(asked)
        found: Vectors = report.scores
        return found

    def _keep(self, row: int, positive: float, rows: Rows, scores: Floats, ranks: Rows) -> None:
        wanted = self.rules.negatives
        if not len(rows):
            self.counts["none"] += 1
        elif len(rows) == wanted:
            self.found[row] = positive, rows, scores, ranks
        elif self.rules.incomplete == "drop":
            self.counts["too_few"] += 1
        else:
            self.counts["filled"] += 1
            again = np.arange(wanted) % len(rows)
            self.found[row] = positive, rows[again], scores[again], ranks[again]

    def result(self) -> Mined:
        kept = sorted(self.found)
        if not kept:
            raise DataError(self._nothing())
        first, second = list(self.data.columns.values())[:2]
        columns = {"anchor": [first[row] for row in kept], "positive": [second[row] for row in kept]}
        documents = self.texts.documents
        for i in range(self.rules.negatives):
            columns["negative" if i == 0 else f"negative_{i + 1}"] = [documents[self.found[row][1][i]] for row in kept]
        groups = self.data.groups
        data = Dataset(
            kind="triplets", columns=columns, path=self.data.path, mapping={name: name for name in columns},
            groups=[groups[row] for row in kept] if groups is not None else None,
            numbers=[self.data.numbers[row] for row in kept], lines=[self.data.lines[row] for row in kept] if self.data.lines else None,
        )  # fmt: skip
        positive = np.asarray([self.found[row][0] for row in kept], dtype=np.float64)
        negative, ranks = np.stack([self.found[row][2] for row in kept]), np.stack([self.found[row][3] for row in kept])
        return Mined(data, positive, negative, ranks, self.counts, self.removed, self.rules, self.background)

    def _nothing(self) -> str:
        reasons = ", ".join(f"{name} {count:,}" for name, count in self.removed.items() if count) or "none"
        usable = sum(map(len, self.rows_of.values()))
        wanted = f"{self.rules.negatives} negative{'s' * (self.rules.negatives > 1)}"
        return (
            f"{self.data.path}: none of the {usable:,} rows with texts got {wanted} out of a corpus of "
            f"{self.counts['corpus']:,} texts (candidates refused: {reasons}; rows with some but too few: {self.counts['too_few']:,}). "
            f"Give a larger corpus, a wider window of ranks or looser limits, or ask for fewer negatives{_cone(self.rules, self.background)}"
        )


def _cone(rules: Rules, background: float, positive: float | None = None) -> str:
    """What to know of a relative margin under a model that scores unrelated texts high."""
    if background <= CONE or (rules.relative_margin is None and positive is None):
        return ""
    example = f": --margin {0.05 * (positive - background):.2g} asks for that" if positive is not None and positive > background else ""
    return (
        f". This model scores even unrelated texts {background:.2f} on average, and a relative margin counts from 0, so it asks for much more than "
        f"a share of what lies above that{example}"
    )


def _said(mined: Mined, reranked: bool) -> list[str]:
    """What the user should know of the result."""
    notes = []
    cone = "" if reranked else _cone(mined.rules, mined.background, float(np.median(mined.positive_scores)))
    if mined.above():
        notes.append(
            f"{mined.above():,} of {mined.negative_scores.size:,} negatives score as high as their positive or higher, so many may be positives "
            f"that nobody labelled; --relative-margin 0.95, or --rank-from 30 with --sample random, leaves most of them out{cone}"
        )
    lost = mined.counts["too_few"] + mined.counts["none"]
    if lost > len(mined):
        advice = cone if mined.rules.relative_margin is not None else ""
        notes.append(f"{lost:,} of {lost + len(mined):,} rows got too few negatives and were left out; see the refused candidates{advice}")
    if mined.counts["filled"]:
        notes.append(f"{mined.counts['filled']:,} rows repeat some of their negatives, having fewer than {mined.rules.negatives}")
    if reranked:
        notes.append("scores are the cross-encoder's; ranks are the encoder's")
    return notes
