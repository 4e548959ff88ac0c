"""Bad settings, data, vectors and cross-encoders: what each is answered with."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mining_fakes import FakeEncoder, FakeScorer, pairs, unit

from twinvec.data.dataset import Dataset
from twinvec.errors import DataError, InputTypeError, ModelError, TwinvecError, UsageError
from twinvec.index.checks import VectorError
from twinvec.mining.negatives import mine_negatives
from twinvec.mining.rules import Rules
from twinvec.model.cross import CrossEncoder

PLANE = {"a": (1.0, 0.0), "p": unit(0.9), "n": unit(0.95), "": (0.0, 0.0)}
CONE = {"a": (1.0, 0.0), "p": unit(0.9), "n": unit(0.89)}
NAN = {**PLANE, "n": (np.nan, 1.0)}
Case = tuple[str, Callable[[], Any], type[TwinvecError], str]


def rules(**options: Any) -> Callable[[], Any]:
    return lambda: Rules(**options)


def mined(
    rows: Dataset | None = None,
    corpus: Any = ("n", "p"),
    vectors: dict[str, Any] | None = None,
    scorer: Any = None,
    metric: str = "cosine",
    **options: Any,
) -> Callable[[], Any]:
    texts = list(corpus) if isinstance(corpus, tuple) else corpus
    return lambda: mine_negatives(FakeEncoder(vectors or PLANE), rows or pairs(("a", "p")), texts, Rules(**options), reranker=scorer, metric=metric)


class Broken:
    def scores(self, pairs: Any) -> Any:
        return np.full(len(pairs), np.nan, np.float32)


NLI = Dataset(kind="nli", columns={"sentence1": ["a"], "sentence2": ["p"]}, labels=[0])
CASES: list[Case] = [
    ("no negative wanted", rules(negatives=0), UsageError, r"negatives = 0: wanted a whole number, 1 or more"),
    ("half a negative", rules(negatives=1.5), UsageError, r"negatives = 1\.5"),
    ("ranks from 0", rules(rank_from=0), UsageError, r"rank_from = 0: wanted a whole number, 1 or more"),
    ("window that is too small", rules(negatives=5, rank_from=8, rank_to=10), UsageError, r"ranks 8 to 10 hold 3 candidates, fewer than the 5"),
    ("window that ends before it begins", rules(rank_from=200), UsageError, r"ranks 200 to 100 hold 0 candidates"),
    ("margin that is NaN", rules(margin=float("nan")), UsageError, r"margin = nan: wanted a finite number"),
    (
        "relative margin as a share to take off",
        rules(relative_margin=0.0),
        UsageError,
        r"relative_margin = 0: wanted a share .* NV-Retriever's is 0\.95",
    ),
    ("relative margin in per cent", rules(relative_margin=95), UsageError, r"relative_margin = 95: wanted a share"),
    ("limits that exclude each other", rules(max_score=0.1, min_score=0.2), UsageError, r"max_score = 0\.1 is below min_score = 0\.2"),
    ("unknown way to sample", rules(sample="hard"), UsageError, r"sample = 'hard': choose one of top, random"),
    ("unknown way with incomplete rows", rules(incomplete="pad"), UsageError, r"incomplete = 'pad': choose one of drop, repeat"),
    ("negative seed", rules(seed=-1), UsageError, r"seed = -1"),
    ("unknown metric", mined(metric="euclidean"), UsageError, r"metric = 'euclidean': choose one of cosine, dot"),
    ("rows of another kind", mined(NLI), DataError, r"holds nli: wanted pairs .* or triplets"),
    ("pairs that are all different", mined(pairs(("a", "p"), labels=[0])), DataError, r"no pair has the label 1"),
    ("empty corpus", mined(corpus=()), DataError, r"corpus: no texts to choose negatives from"),
    ("corpus that is one text", mined(corpus="n"), UsageError, r"corpus: got one text; give a list"),
    ("corpus with something else in it", mined(corpus=("n", 3)), DataError, r"corpus: 3 \(int\) is no text"),
    (
        "corpus of positives only",
        mined(corpus=("p", "a")),
        DataError,
        r"none of the 1 rows .* \(candidates refused: known 2",
    ),
    ("limits that nothing passes", mined(margin=0.5), DataError, r"candidates refused: known 1, margin 1; .*Give a larger corpus"),
    ("more negatives than texts", mined(negatives=3), DataError, r"rows with some but too few: 1"),
    ("relative margin in a narrow cone", mined(vectors=CONE, relative_margin=0.95), DataError, r"unrelated texts 0\.89 on average"),
    ("only blank rows", mined(pairs(("", "p"))), DataError, r"none of the 0 rows with texts"),
    ("only a blank corpus", mined(corpus=("",)), DataError, r"out of a corpus of 0 texts"),
    ("vectors with NaN", mined(vectors=NAN), VectorError, r"corpus: row 0 from 0 holds NaN or infinity"),
    ("reranker that gives NaN", mined(scorer=Broken()), DataError, r"reranker: wanted 2 finite scores"),
]


@pytest.mark.parametrize(("name", "run", "error", "message"), CASES, ids=[case[0] for case in CASES])
def test_bad_input(
    name: str, run: Callable[[], Any], error: type[TwinvecError], message: str, record_property: Callable[[str, object], None]
) -> None:
    with pytest.raises(error, match=message) as caught:
        run()
    record_property("message", str(caught.value))
    assert type(caught.value) is error
    assert len(str(caught.value)) < 700, "a message is read by a person"


def test_names_are_unique() -> None:
    assert len({case[0] for case in CASES}) == len(CASES)


def test_a_fake_reranker_is_enough() -> None:
    assert len(mined(scorer=FakeScorer({}))()) == 1


# --- cross-encoder folders: (name, how a good folder is spoilt, error, message)


def change(**keys: Any) -> Callable[[Path], None]:
    def run(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **keys}))

    return run


def labels(count: int) -> dict[str, Any]:
    return {"id2label": {str(i): f"L{i}" for i in range(count)}, "label2id": {f"L{i}": i for i in range(count)}}


def cut(folder: Path) -> None:
    with open(folder / "model.safetensors", "r+b") as stream:
        stream.truncate(1000)


FOLDERS: list[tuple[str, Callable[[Path], Any], str]] = [
    ("cross-encoder without weights", lambda folder: (folder / "model.safetensors").unlink(), r"no weights \(model\.safetensors\)"),
    ("cross-encoder with damaged weights", cut, r"the weights cannot be read"),
    ("cross-encoder without a config", lambda folder: (folder / "config.json").unlink(), r"transformers cannot load this as a cross-encoder"),
    ("cross-encoder of three labels", change(**labels(3)), r"classifier\.(weight|bias) is \(1,? ?\d*\) in the file, \(3"),
    (
        "activation that is not known",
        change(sentence_transformers={"activation_fn": "os.system"}),
        r"activation 'os\.system': wanted one of",
    ),
    ("cross-encoder without a tokenizer", lambda folder: (folder / "tokenizer.json").unlink(), r"tokenizer"),
]


@pytest.mark.parametrize(("name", "spoil", "message"), FOLDERS, ids=[case[0] for case in FOLDERS])
def test_bad_cross_encoder(
    name: str,
    spoil: Callable[[Path], Any],
    message: str,
    cross_model: Callable[..., Path],
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    folder = Path(shutil.copytree(cross_model(), tmp_path / "m"))
    spoil(folder)
    with pytest.raises(ModelError, match=message) as caught:
        CrossEncoder.load(folder)
    record_property("message", str(caught.value))
    assert len(str(caught.value)) < 900


def test_an_encoder_is_no_cross_encoder(bare_model: Callable[[str], Path]) -> None:
    with pytest.raises(ModelError, match=r"no head that scores pairs \(classifier\.bias is not in the file"):
        CrossEncoder.load(bare_model("bert"))


def test_three_trained_labels_are_refused(cross_model: Callable[..., Path]) -> None:
    with pytest.raises(ModelError, match=r"3 labels: a cross-encoder has one score, or two labels"):
        CrossEncoder.load(cross_model(labels=3))


@pytest.mark.parametrize("given", ["text", {"a": "b"}, [("a",)], [("a", "b", "c")], ["ab"], [("a", 1)], [("a", None)]])
def test_what_is_no_pair_is_named(given: Any, cross_model: Callable[..., Path]) -> None:
    with pytest.raises(InputTypeError, match=r"scores"):
        CrossEncoder.load(cross_model()).scores(given)


def test_wrong_options_are_usage_errors(cross_model: Callable[..., Path]) -> None:
    for options in ({"max_tokens": 3}, {"max_tokens": 100}, {"device": "tpu9"}, {"precision": "int4"}, {"revision": "v1"}):
        with pytest.raises(UsageError, match=next(iter(options))):
            CrossEncoder.load(cross_model(), **options)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="batch_tokens = 0"):
        CrossEncoder.load(cross_model()).scores([("a", "b")], batch_tokens=0)
