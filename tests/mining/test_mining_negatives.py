"""Hard negatives: the rules one by one, invariants, a slow reference in float64, and sentence-transformers' own miner."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mining_fakes import FakeEncoder, FakeScorer, pairs, triplets, unit

from twinvec.data.dataset import Dataset
from twinvec.mining import candidates as searching
from twinvec.mining.mined import Mined
from twinvec.mining.negatives import mine_negatives
from twinvec.mining.rules import Rules
from twinvec.text import same_text_key

# An anchor with its positive at 0.9, and six texts by falling cosine.
PLANE = {
    "a": (1.0, 0.0),
    "p": unit(0.9),
    "n95": unit(0.95),
    "n85": unit(0.85),
    "n60": unit(0.6),
    "n40": unit(0.4),
    "n0": unit(0.0),
    "m50": unit(-0.5),
}
CORPUS = ["m50", "n0", "n40", "p", "n60", "n85", "n95"]


def mine(rows: Dataset | None = None, corpus: list[str] | None = None, encoder: Any = None, **options: Any) -> Mined:
    """With the plane above, unless told otherwise."""
    calls = {key: options.pop(key) for key in ("reranker", "query_prompt", "document_prompt", "metric") if key in options}
    return mine_negatives(encoder or FakeEncoder(PLANE), rows or pairs(("a", "p")), CORPUS if corpus is None else corpus, Rules(**options), **calls)


def negatives(mined: Mined, row: int = 0) -> list[str]:
    return mined.data.texts(row)[2:]


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, ["n95"]),
        ({"negatives": 3}, ["n95", "n85", "n60"]),
        ({"rank_from": 2}, ["n85"]),
        ({"rank_from": 3, "rank_to": 4, "negatives": 2}, ["n60", "n40"]),
        ({"margin": 0.0, "negatives": 2}, ["n85", "n60"]),
        ({"margin": 0.1}, ["n60"]),
        ({"margin": -0.1}, ["n95"]),
        ({"relative_margin": 1.0}, ["n85"]),
        ({"relative_margin": 0.94}, ["n60"]),
        ({"max_score": 0.5}, ["n40"]),
        ({"max_score": 0.9, "min_score": 0.5, "negatives": 2}, ["n85", "n60"]),
        ({"margin": 0.0, "max_score": 0.7, "min_score": -0.2, "negatives": 3}, ["n60", "n40", "n0"]),
        ({"negatives": 6}, ["n95", "n85", "n60", "n40", "n0", "m50"]),
    ],
)
def test_each_rule(options: dict[str, Any], wanted: list[str]) -> None:
    assert negatives(mine(**options)) == wanted


def test_what_is_refused_is_counted_by_rule() -> None:
    mined = mine(margin=0.0, max_score=0.5, min_score=-0.2, rank_to=6)
    assert mined.removed == {"known": 1, "margin": 1, "max_score": 2, "min_score": 1}
    assert mined.counts == {"rows": 1, "label_0": 0, "blank": 0, "too_few": 0, "none": 0, "filled": 0, "anchors": 1, "corpus": 7}
    np.testing.assert_allclose(mined.positive_scores, [0.9], atol=1e-6)
    np.testing.assert_allclose(mined.negative_scores, [[0.4]], atol=1e-6)
    assert mined.ranks.tolist() == [[4]]  # the positive has no rank


def test_ranks_do_not_count_what_belongs_to_the_anchor() -> None:
    encoder = FakeEncoder({**PLANE, "p2": unit(0.99), "a ": (1.0, 0.0)})
    rows = pairs(("a", "p"), ("A", "p2"))  # another spelling of the same anchor
    mined = mine(rows, [*CORPUS, "p2", "a "], FakeEncoder({**encoder.vectors, "A": (1.0, 0.0)}), rank_to=1)
    assert negatives(mined, 0) == negatives(mined, 1) == ["n95"]
    assert mined.ranks.tolist() == [[1], [1]]


def test_a_relative_margin_is_taken_downwards_from_a_negative_score() -> None:
    encoder = FakeEncoder({"a": (1.0, 0.0), "p": unit(-0.5), "x": unit(-0.49), "y": unit(-0.51), "z": unit(-0.6)})
    assert negatives(mine(encoder=encoder, corpus=["x", "y", "z"], relative_margin=0.9)) == ["z"]


def test_random_takes_from_those_that_pass_and_depends_on_seed_and_row_alone() -> None:
    texts = [f"t{i}" for i in range(60)]
    rows = pairs(*((f"a{i}", f"p{i}") for i in range(30)))
    options = {"encoder": FakeEncoder(), "corpus": texts, "sample": "random", "negatives": 4, "rank_from": 5, "rank_to": 30}
    first, again, other = mine(rows, **options, seed=1), mine(rows, **options, seed=1), mine(rows, **options, seed=2)
    assert first.data.columns == again.data.columns
    assert first.data.columns != other.data.columns
    assert first.ranks.min() >= 5
    assert first.ranks.max() <= 30
    assert (np.diff(first.ranks, axis=1) > 0).all()
    assert len(np.unique(first.ranks)) > 20
    # The first rows get the same whatever follows them.
    head = mine(rows.select(range(10)), **options, seed=1)
    assert head.ranks.tolist() == first.ranks[:10].tolist()


def test_random_gives_every_candidate_its_turn() -> None:
    counts = np.zeros(7, int)
    for seed in range(300):
        counts[mine(negatives=2, sample="random", seed=seed).ranks] += 1
    assert counts[0] == 0
    np.testing.assert_allclose(counts[1:] / 300, 2 / 6, atol=0.12)  # 4.4 standard deviations


def test_rows_with_too_few_are_dropped_or_filled_and_counted() -> None:
    encoder = FakeEncoder({**PLANE, "b": (1.0, 0.0), "q": unit(0.5)})
    rows = pairs(("a", "p"), ("b", "q"))  # for b only three texts lie below 0.5
    dropped = mine(rows, encoder=encoder, negatives=4, margin=0.0)
    assert dropped.data.columns["anchor"] == ["a"]
    assert dropped.data.numbers == [1]
    assert (dropped.counts["too_few"], dropped.counts["none"], len(dropped)) == (1, 0, 1)
    filled = mine(rows, encoder=encoder, negatives=4, margin=0.0, incomplete="repeat")
    assert negatives(filled, 1) == ["n40", "n0", "m50", "n40"]
    assert (filled.counts["too_few"], filled.counts["filled"], len(filled)) == (0, 1, 2)
    assert any("repeat some" in note for note in filled.notes)
    assert mine(rows, encoder=encoder, min_score=0.45, margin=0.0, incomplete="repeat").counts["none"] == 1  # nothing to repeat


def test_known_positives_are_never_negatives_in_any_spelling_and_over_two_steps() -> None:
    near = unit(0.99)
    encoder = FakeEncoder({"a": (1.0, 0.0), **dict.fromkeys(("p", "ＰＰ", "pp", "c", "rev", "far", "A  ", "x"), near), "n": unit(0.1)})
    rows = pairs(("a", "p"), ("a", "pp"), ("c", "p"), ("rev", "a"), ("c", "far"))
    mined = mine(rows, ["p", "ＰＰ", "c", "rev", "A  ", "n", "x"], encoder)
    assert negatives(mined, 0) == ["x"]
    # Three steps (a - p - c - far) are no relation: for passages that answer two questions it would be wrong.
    assert negatives(mine(rows, ["p", "far", "n"], encoder), 0) == ["far"]


def test_rows_of_one_group_are_related() -> None:
    encoder = FakeEncoder({"a": (1.0, 0.0), "p": unit(0.9), "b": unit(0.8), "q": unit(0.95), "r": unit(0.94), "c": unit(0.5)})
    rows = pairs(("a", "p"), ("b", "q"), ("c", "r"), groups=[3, 3, -1])
    mined = mine(rows, ["q", "b", "p", "r"], encoder)
    assert negatives(mined, 0) == ["r"]
    assert mined.columns()["group"] == [3, 3, None]
    ungrouped = pairs(("a", "p"), ("b", "q"), ("c", "r"), groups=[-1, -1, -1])
    assert negatives(mine(ungrouped, ["q", "b", "p", "r"], encoder), 0) == ["q"]


def test_labelled_pairs_give_their_positives_and_their_other_texts_as_candidates() -> None:
    rows = pairs(("a", "p"), ("a", "n85"), ("n0", "n40"), labels=[1, 0, 0])
    mined = mine_negatives(FakeEncoder(PLANE), rows)
    assert mined.data.columns == {"anchor": ["a"], "positive": ["p"], "negative": ["n85"]}
    assert mined.counts == {"rows": 3, "label_0": 2, "blank": 0, "too_few": 0, "none": 0, "filled": 0, "anchors": 1, "corpus": 3}


def test_triplets_get_new_negatives_and_theirs_are_candidates() -> None:
    mined = mine_negatives(FakeEncoder(PLANE), triplets(("a", "p", "n0", "n95"), ("n40", "m50", "n0", "n60")), rules=Rules(negatives=2))
    assert negatives(mined) == ["n95", "n60"]
    assert mined.data.kind == "triplets"
    assert list(mined.data.columns) == ["anchor", "positive", "negative", "negative_2"]


def test_blank_texts_are_no_rows_and_no_negatives() -> None:
    encoder = FakeEncoder({**PLANE, "": (1.0, 0.0), "\u200b": (1.0, 0.0), "zero": (0.0, 0.0)})
    rows = pairs(("a", "p"), ("", "p"), ("a", "\u200b"), ("zero", "p"), ("a", "zero"))
    mined = mine(rows, ["", "\u200b", "zero", *CORPUS], encoder)
    assert mined.data.columns == {"anchor": ["a"], "positive": ["p"], "negative": ["n95"]}
    assert mined.counts["blank"] == 4
    assert mined.counts["corpus"] == 7


@pytest.mark.parametrize("metric", ["cosine", "dot"])
@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e6])
def test_vectors_need_not_be_unit_vectors(metric: str, scale: float) -> None:
    rows = pairs(*((f"a{i}", f"p{i}") for i in range(20)))
    mined = mine_negatives(FakeEncoder(scale=scale), rows, rules=Rules(negatives=3, relative_margin=0.95), metric=metric)
    assert np.isfinite(mined.negative_scores).all()
    assert np.isfinite(mined.positive_scores).all()
    one = mine_negatives(FakeEncoder(), rows, rules=Rules(negatives=3, relative_margin=0.95), metric=metric)
    assert mined.data.columns == one.data.columns


def test_equal_scores_go_by_the_order_of_the_corpus() -> None:
    encoder = FakeEncoder({"a": (1.0, 0.0), "p": unit(0.9), **{name: unit(0.5) for name in "zyxwv"}})
    assert negatives(mine(encoder=encoder, corpus=list("zyxwv"), negatives=5)) == list("zyxwv")
    assert negatives(mine(encoder=encoder, corpus=list("vwxyz"), negatives=2)) == ["v", "w"]


def test_prompts_reach_their_side() -> None:
    encoder = FakeEncoder(PLANE)
    mine(encoder=encoder, query_prompt="query", document_prompt="passage")
    assert [(prompt, texts[0]) for prompt, texts in encoder.seen] == [("query", "a"), ("passage", "m50")]


def test_a_positive_outside_the_corpus_is_scored_and_never_found() -> None:
    encoder = FakeEncoder(PLANE)
    mined = mine(corpus=["n40", "n0"], encoder=encoder)
    np.testing.assert_allclose(mined.positive_scores, [0.9], atol=1e-6)
    assert negatives(mined) == ["n40"]
    assert encoder.seen[1][1] == ["n40", "n0", "p"]


def test_a_reranker_decides_within_the_window() -> None:
    scorer = FakeScorer({("a", "p"): 0.8, ("a", "n85"): 0.1, ("a", "n60"): 0.79, ("a", "n40"): 0.85, ("a", "n0"): 0.99})
    mined = mine(reranker=scorer, negatives=2, margin=0.0, rank_to=4)
    assert negatives(mined) == ["n60", "n85"]
    assert mined.ranks.tolist() == [[3, 2]]
    np.testing.assert_allclose(mined.negative_scores, [[0.79, 0.1]], atol=1e-6)
    np.testing.assert_allclose(mined.positive_scores, [0.8], atol=1e-6)
    assert set(scorer.seen) == {("a", name) for name in ("n95", "n85", "n60", "n40", "p")}  # the window and the positive, nothing else
    assert any("cross-encoder's" in note for note in mined.notes)


def test_what_a_reranker_cuts_is_said(cross_model: Callable[..., Path]) -> None:
    from twinvec.model.cross import CrossEncoder

    scorer = CrossEncoder.load(cross_model(), max_tokens=8)
    mined = mine(pairs(("a", "p"), ("a", "p " * 20)), ["the cat sat on the mat " * 5, "x"], FakeEncoder(), reranker=scorer)
    assert "reranker: 2 of 4 pairs were longer than its window and were cut" in mined.notes


def test_scores_margins_and_a_sample_can_be_had() -> None:
    mined = mine(pairs(("a", "p"), ("n0", "n40")), negatives=1)
    written = mined.columns(scores=True)
    assert list(written) == ["anchor", "positive", "negative", "positive_score", "negative_score", "margin"]
    np.testing.assert_allclose(written["margin"], mined.positive_scores - mined.negative_scores[:, 0])
    assert "margin" not in mine(negatives=2).columns(scores=True)
    shown = mined.sample()
    assert [one["anchor"] for one in shown] == ["a", "n0"]
    assert shown[0]["negatives"] == [{"text": "n95", "score": pytest.approx(0.95, abs=1e-6), "rank": 1}]
    assert set(mined.quantiles()) == {"positive", "negative", "difference"}
    assert mined.quantiles()["positive"]["min"] == mined.positive_scores.min()
    assert mined.above() == int((mined.negative_scores[:, 0] >= mined.positive_scores).sum())
    assert any("nobody labelled" in note for note in mined.notes)


def test_a_narrow_cone_is_said() -> None:
    rng = np.random.default_rng(0)
    texts = [f"t{i}" for i in range(50)]
    cone = {text: np.append(rng.normal(size=8) * 0.2, 1.5).tolist() for text in [*texts, "a", "p"]}
    mined = mine(corpus=texts, encoder=FakeEncoder(cone))
    cosines = [np.dot(cone["a"], cone[t]) / np.linalg.norm(cone["a"]) / np.linalg.norm(cone[t]) for t in texts]
    assert mined.background == pytest.approx(np.mean(cosines), abs=1e-6)
    if mined.above():
        assert any("counts from 0" in note for note in mined.notes)
    wide = mine(encoder=FakeEncoder({**PLANE, "p": unit(0.1)}))
    assert wide.above() == 1
    assert not any("counts from 0" in note for note in wide.notes)


# --- a slow reference, in float64 and in the plainest way


def reference(encoder: FakeEncoder, rows: list[tuple[str, str]], corpus: list[str], rules: Rules) -> dict[str, list[str]]:
    key = same_text_key
    related = {key(text): {key(text)} for row in rows for text in row}
    for a, b in rows:
        related[key(a)].add(key(b))
        related[key(b)].add(key(a))
    texts = list({key(text): text for text in reversed(corpus)}.values())[::-1]
    # The dict keeps the last of equal keys, so of the reversed list the first; its order is put right by the corpus.
    texts = sorted(texts, key=corpus.index)

    def cosine(a: str, b: str) -> float:
        u, v = encoder.vector(a).astype(np.float64), encoder.vector(b).astype(np.float64)
        return float(u @ v / np.sqrt(u @ u) / np.sqrt(v @ v))

    out: dict[str, list[str]] = {}
    for a, b in rows:
        known = set().union(*(related[other] for other in related[key(a)]))
        ranked = sorted((text for text in texts if key(text) not in known), key=lambda text: -cosine(a, text))
        s = cosine(a, b)
        kept = []
        for text in ranked[rules.rank_from - 1 : rules.rank_to]:
            c = cosine(a, text)
            if rules.margin is not None and c > s - rules.margin:
                continue
            if rules.relative_margin is not None and c > (rules.relative_margin * s if s >= 0 else s + (1 - rules.relative_margin) * s):
                continue
            if (rules.max_score is None or c <= rules.max_score) and (rules.min_score is None or c >= rules.min_score):
                kept.append(text)
        if len(kept) >= rules.negatives:
            out[f"{a}|{b}"] = kept[: rules.negatives]
    return out


limits = st.one_of(st.none(), st.floats(-0.5, 0.5))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=25, unique=True), st.integers(1, 3), st.integers(1, 4),
    st.integers(4, 30), limits, st.one_of(st.none(), st.floats(0.5, 1)), limits,
)  # fmt: skip
def test_mining_equals_the_reference(
    edges: list[tuple[int, int]], negatives: int, first: int, last: int, margin: float | None, relative: float | None, top: float | None
) -> None:
    rows = [(f"q{a}", f"q{b}" if b % 3 == 0 else f"d{b}") for a, b in edges]
    corpus = [f"d{i}" for i in range(20)] + [f"q{i}" for i in range(0, 12, 3)] + ["D1 ", "ｄ2"]
    last = max(last, first + negatives - 1)
    rules = Rules(negatives=negatives, rank_from=first, rank_to=last, margin=margin, relative_margin=relative, max_score=top)
    encoder = FakeEncoder(dimensions=5)
    wanted = reference(encoder, rows, corpus, rules)
    if not wanted:
        with pytest.raises(Exception, match="none of the"):
            mine_negatives(encoder, pairs(*rows), corpus, rules)
        return
    mined = mine_negatives(encoder, pairs(*rows), corpus, rules)
    found = {f"{a}|{b}": rest for a, b, *rest in (mined.data.texts(i) for i in range(len(mined)))}
    assert found == wanted
    assert list(found) == [f"{a}|{b}" for a, b in rows if f"{a}|{b}" in wanted]  # in the order of the pairs


@pytest.mark.parametrize("block", [1, 3, 1000])
def test_blocks_and_deep_anchors_change_nothing(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # One anchor has sixty positives, so its block is deep; the others must not be.
    rows = pairs(*((f"a{i % 17}", f"p{i}") for i in range(40)), *(("hub", f"h{i}") for i in range(60)))
    rules = Rules(negatives=3, rank_from=2, rank_to=9)
    wanted = mine_negatives(FakeEncoder(), rows, rules=rules)
    depths: list[tuple[int, int]] = []
    search = searching.Corpus.search

    def spy(self: Any, queries: Any, k: int) -> Any:
        depths.append((len(queries), k))
        return search(self, queries, k)

    monkeypatch.setattr(searching.Corpus, "search", spy)
    monkeypatch.setattr(searching, "_FOUND", 40 if block == 1 else 2000)
    plain: Callable[..., Any] = searching.candidates
    monkeypatch.setattr("twinvec.mining.negatives.candidates", lambda *args, **options: plain(*args, **options, block=block))
    found = mine_negatives(FakeEncoder(), rows, rules=rules)
    assert found.data.columns == wanted.data.columns
    assert (found.ranks == wanted.ranks).all()
    np.testing.assert_array_equal(found.negative_scores, wanted.negative_scores)
    assert found.removed == wanted.removed
    if block == 3:
        assert min(k for _, k in depths) < 15
        assert max(k for _, k in depths) > 60


def test_the_order_of_pairs_does_not_matter() -> None:
    rows = pairs(*((f"a{i % 9}", f"p{i}") for i in range(30)))
    corpus = [f"p{i}" for i in range(30)]
    rules = Rules(negatives=2)
    straight = mine_negatives(FakeEncoder(), rows, corpus, rules)
    turned = mine_negatives(FakeEncoder(), rows.select(range(29, -1, -1)), corpus, rules)
    assert [straight.data.texts(i) for i in range(30)] == [turned.data.texts(29 - i) for i in range(30)]


# --- sentence-transformers


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({}, {}),
        ({"rank_from": 3, "rank_to": 10, "negatives": 2}, {"range_min": 2, "range_max": 10, "num_negatives": 2}),
        ({"margin": 0.002, "rank_to": 20}, {"absolute_margin": 0.002, "range_max": 20}),
        ({"relative_margin": 0.999, "negatives": 3, "rank_to": 20}, {"relative_margin": 0.001, "num_negatives": 3, "range_max": 20}),
        ({"max_score": 0.985, "min_score": 0.96, "rank_to": 20}, {"max_score": 0.985, "min_score": 0.96, "range_max": 20}),
    ],
)  # fmt: skip
def test_sentence_transformers_mines_the_same(
    ours: dict[str, Any], theirs: dict[str, Any], bare_model: Callable[[str], Path], tmp_path: Path
) -> None:
    from datasets import Dataset as TheirData
    from datasets.utils.logging import disable_progress_bar
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.util import mine_hard_negatives

    from twinvec.model.encoder import Encoder

    disable_progress_bar()
    encoder = Encoder.load(bare_model("bert"), pooling="mean")
    folder = encoder.save(tmp_path / "model")
    words = ["cat", "dog", "refund", "order", "guitar", "kitchen", "onion", "mat", "payment", "account", "stage"]
    rows = [(f"{a} {b}", f"{b} the {a} {c}") for a, b, c in zip(words, words[1:], words[3:], strict=False)]
    corpus = [f"{a} is {b}" for a in words for b in words if a < b]
    options = {"num_negatives": 1, "range_max": 100, "output_format": "n-tuple", "verbose": False, **theirs}
    data = TheirData.from_dict({"anchor": [a for a, _ in rows], "positive": [b for _, b in rows]})
    # Their corpus always holds the positives of other rows too.
    mined = mine_negatives(encoder, pairs(*rows), [*corpus, *(b for _, b in rows)], Rules(**ours))
    found = mine_hard_negatives(data, SentenceTransformer(str(folder), device="cpu"), corpus=corpus, **options)
    names = [name for name in found.column_names if name.startswith("negative")]
    wanted = {row["anchor"]: [row[name] for name in names] for row in found}
    assert len(wanted) >= 4
    assert wanted == {text: negatives(mined, i) for i, text in enumerate(mined.data.columns["anchor"])}
