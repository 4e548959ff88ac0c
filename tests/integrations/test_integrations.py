"""An encoder under the interfaces of mteb, scikit-learn, LangChain and LlamaIndex gives the encoder's own vectors, with the right prompts."""

from __future__ import annotations

import asyncio
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from twinvec.errors import InputTypeError, UsageError
from twinvec.integrations.prompts import prompt_for
from twinvec.model.encoder import Encoder

TEXTS = ["the cat sat", "where is my refund", "a dog looked", "the cat sat on the mat"]


@pytest.fixture(scope="module")
def folder(bare_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    encoder = Encoder.load(bare_model("bert"), pooling="mean")
    encoder.prompts = {"query": "query: ", "passage": "passage: "}
    encoder.net.normalize = True
    return encoder.save(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def encoder(folder: Path) -> Encoder:
    return Encoder.load(folder)


def same(found: Any, wanted: Any) -> None:
    np.testing.assert_allclose(np.asarray(found), wanted, atol=1e-6)


@pytest.mark.parametrize(
    ("offered", "side", "asked", "wanted"),
    [
        (("query", "passage"), "query", None, "query"),
        (("query", "passage"), "document", None, "passage"),
        (("search_query", "search_document"), "document", None, "search_document"),
        (("query", "passage"), "document", "query", "query"),
        (("query",), "query", "", ""),
        ((), "query", None, None),
        (("sts",), "document", None, None),
    ],
)
def test_prompt_of_each_side(offered: tuple[str, ...], side: str, asked: str | None, wanted: str | None) -> None:
    assert prompt_for(dict.fromkeys(offered, "x: "), side, asked) == wanted


def test_a_prompt_that_the_model_has_not() -> None:
    with pytest.raises(UsageError, match=r"query_prompt = 'qeury': this model has query, passage; did you mean 'query'\?; '' for none"):
        prompt_for({"query": "q", "passage": "p"}, "query", "qeury")


# --- scikit-learn


def test_sklearn_gives_the_encoders_vectors(folder: Path, encoder: Encoder) -> None:
    from twinvec.integrations.sklearn import SentenceVectors

    step = SentenceVectors(str(folder), prompt="query")
    same(step.fit_transform(TEXTS), encoder.encode(TEXTS, prompt="query"))
    same(step.transform(np.asarray(TEXTS, dtype=object)[:, None]), encoder.encode(TEXTS, prompt="query"))
    assert list(step.get_feature_names_out()) == [f"sentencevectors{i}" for i in range(encoder.dimensions)]
    short = SentenceVectors(encoder, dimensions=3).transform(TEXTS)
    cut = encoder.encode(TEXTS)[:, :3]
    same(short, cut / np.linalg.norm(cut, axis=1, keepdims=True))


def test_sklearn_pipeline_clone_and_grid(folder: Path) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    from sklearn.base import clone
    from sklearn.compose import ColumnTransformer
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import make_pipeline

    from twinvec.integrations.sklearn import SentenceVectors

    step = SentenceVectors(str(folder))
    step.fit(TEXTS)
    copy = clone(step)
    assert copy.get_params() == step.get_params()
    assert not hasattr(copy, "_encoder")
    labels = [0, 1, 0, 1] * 3
    pipeline = make_pipeline(step, LogisticRegression())
    pipeline.fit(TEXTS * 3, labels)
    assert pipeline.predict(TEXTS).shape == (4,)
    assert len(pipeline[:-1].get_feature_names_out()) == step.encoder.dimensions
    grid = GridSearchCV(pipeline, {"sentencevectors__prompt": [None, "query"], "sentencevectors__dimensions": [4, None]}, cv=2)
    grid.fit(TEXTS * 3, labels)
    assert set(grid.best_params_) == {"sentencevectors__prompt", "sentencevectors__dimensions"}
    frame = np.asarray([[text, i] for i, text in enumerate(TEXTS)], dtype=object)
    made = ColumnTransformer([("text", SentenceVectors(str(folder)), [0])]).fit_transform(frame)
    same(made, step.transform(TEXTS))


def test_sklearn_parameters(folder: Path) -> None:
    from twinvec.integrations.sklearn import SentenceVectors

    step = SentenceVectors(str(folder))
    before = step.transform(TEXTS)
    same(step.set_params(prompt="query").transform(TEXTS), Encoder.load(folder).encode(TEXTS, prompt="query"))
    with pytest.raises(ValueError, match="no parameter 'colour'; it has model, prompt"):
        step.set_params(colour=1)
    again = pickle.loads(pickle.dumps(step.set_params(prompt=None)))
    assert not hasattr(again, "_encoder")
    same(again.transform(TEXTS), before)
    with pytest.raises(UsageError, match="dimensions = 999: this model has"):
        SentenceVectors(str(folder), dimensions=999).fit(TEXTS)
    with pytest.raises(InputTypeError, match="one text alone; wanted a list"):
        step.transform("the cat")
    with pytest.raises(InputTypeError, match="2 columns; wanted one column"):
        step.transform(np.zeros((2, 2), dtype=object))
    with pytest.raises(InputTypeError, match="row 1"):
        step.transform(["a", None])


# --- LangChain


def test_langchain(folder: Path, encoder: Encoder) -> None:
    pytest.importorskip("langchain_core", reason="langchain-core is not installed")
    from langchain_core.vectorstores import InMemoryVectorStore

    from twinvec.integrations.langchain import TwinvecEmbeddings

    found = TwinvecEmbeddings(folder)
    same(found.embed_documents(TEXTS), encoder.encode(TEXTS, prompt="passage"))
    same(found.embed_query(TEXTS[0]), encoder.encode(TEXTS[:1], prompt="query")[0])
    assert found.embed_documents([]) == []
    assert isinstance(found.embed_query("a")[0], float)
    same(asyncio.run(found.aembed_query(TEXTS[1])), encoder.encode([TEXTS[1]], prompt="query")[0])
    plain = TwinvecEmbeddings(encoder, query_prompt="", document_prompt="")
    assert InMemoryVectorStore.from_texts(TEXTS, plain).similarity_search("where is my refund", k=1)[0].page_content == "where is my refund"
    with pytest.raises(UsageError, match="engine: options of loading, but the model is loaded already"):
        TwinvecEmbeddings(encoder, engine="torch")


# --- LlamaIndex


def test_llamaindex(folder: Path, encoder: Encoder) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the library's own imports
        pytest.importorskip("llama_index.core", reason="llama-index-core is not installed")
        from llama_index.core.base.embeddings.base import BaseEmbedding

        from twinvec.integrations.llamaindex import TwinvecEmbedding
    found = TwinvecEmbedding(folder, embed_batch_size=3)
    assert isinstance(found, BaseEmbedding)
    same(found.get_query_embedding(TEXTS[0]), encoder.encode(TEXTS[:1], prompt="query")[0])
    same(found.get_text_embedding(TEXTS[0]), encoder.encode(TEXTS[:1], prompt="passage")[0])
    same(found.get_text_embedding_batch(TEXTS), encoder.encode(TEXTS, prompt="passage"))
    same(asyncio.run(found.aget_text_embedding_batch(TEXTS)), encoder.encode(TEXTS, prompt="passage"))
    same(asyncio.run(found.aget_query_embedding(TEXTS[0])), encoder.encode(TEXTS[:1], prompt="query")[0])
    assert found.class_name() == "TwinvecEmbedding"


# --- MTEB


@pytest.fixture(scope="module")
def mteb() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = pytest.importorskip("mteb", reason="mteb is not installed")
    if not found.__version__.startswith("2."):
        pytest.skip(f"the adapter is for mteb 2, here is {found.__version__}")
    return found


def _task(mteb: Any, kind: str) -> Any:
    """A task of a few sentences, made here: nothing is fetched."""
    from datasets import Dataset, DatasetDict
    from mteb.abstasks.retrieval import AbsTaskRetrieval
    from mteb.abstasks.sts import AbsTaskSTS
    from mteb.abstasks.task_metadata import TaskMetadata

    common: dict[str, Any] = {
        "description": "local", "reference": None, "dataset": {"path": "local", "revision": "1"}, "category": "t2t", "eval_splits": ["test"],
        "eval_langs": ["eng-Latn"], "date": None, "dialect": [], "domains": None, "task_subtypes": None, "license": None,
        "annotations_creators": None, "modalities": ["text"], "sample_creation": None, "bibtex_citation": "",
    }  # fmt: skip

    class LocalSts(AbsTaskSTS):
        metadata = TaskMetadata(type="STS", name="LocalSts", main_score="cosine_spearman", **common)
        min_score, max_score = 0, 5

        def load_data(self, *_: Any, **__: Any) -> None:
            rows = {"sentence1": [*TEXTS, "the dog"], "sentence2": [*TEXTS[1:], TEXTS[0], "the dog looked"], "score": [0.0, 1.0, 2.0, 4.0, 5.0]}
            self.dataset = DatasetDict({"test": Dataset.from_dict(rows)})
            self.data_loaded = True

    class LocalRetrieval(AbsTaskRetrieval):
        metadata = TaskMetadata(type="Retrieval", name="LocalRetrieval", main_score="ndcg_at_10", **common)

        def load_data(self, *_: Any, **__: Any) -> None:
            corpus = Dataset.from_dict({"id": [f"d{i}" for i in range(4)], "text": TEXTS, "title": [""] * 4})
            queries = Dataset.from_dict({"id": ["q0", "q1"], "text": ["the cat sat", "my refund"]})
            split = {"corpus": corpus, "queries": queries, "relevant_docs": {"q0": {"d0": 1}, "q1": {"d1": 1}}, "top_ranked": None}
            self.dataset = {"default": {"test": split}}
            self.data_loaded = True

    return LocalSts() if kind == "sts" else LocalRetrieval()


class Watched:
    """The encoder, noting under which prompt each text was encoded."""

    def __init__(self, encoder: Encoder) -> None:
        self.inner, self.asked = encoder, []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def encode(self, texts: Any, *, prompt: str | None = None) -> Any:
        self.asked.append((prompt, list(texts)))
        return self.inner.encode(texts, prompt=prompt)


def test_mteb_sts_equals_our_own(mteb: Any, encoder: Encoder) -> None:
    from twinvec.evaluation.metrics import similarities, spearman
    from twinvec.integrations.mteb import MtebEncoder

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = mteb.evaluate(MtebEncoder(encoder), _task(mteb, "sts"), cache=None, show_progress_bar=False, co2_tracker=False)
    u, v = encoder.encode([*TEXTS, "the dog"]), encoder.encode([*TEXTS[1:], TEXTS[0], "the dog looked"])
    wanted = spearman(similarities(u, v, "cosine"), [0.0, 1.0, 2.0, 4.0, 5.0])
    assert result.task_results[0].get_score() == pytest.approx(wanted, abs=1e-6)


def test_mteb_retrieval_uses_both_prompts(mteb: Any, encoder: Encoder) -> None:
    from twinvec.integrations.mteb import MtebEncoder

    watched = Watched(encoder)
    model = MtebEncoder(watched)  # type: ignore[arg-type]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = mteb.evaluate(model, _task(mteb, "retrieval"), cache=None, show_progress_bar=False, co2_tracker=False)
    assert 0 <= result.task_results[0].get_score() <= 1
    asked = {prompt: [text.strip() for text in texts] for prompt, texts in watched.asked}
    assert asked == {"query": ["the cat sat", "my refund"], "passage": TEXTS}
    assert model.mteb_model_meta.revision == encoder.fingerprint


def test_mteb_name_and_similarity(mteb: Any, encoder: Encoder) -> None:
    from twinvec.integrations.mteb import MtebEncoder

    with pytest.raises(UsageError, match="name = 'a/b/c': mteb wants owner/name"):
        MtebEncoder(encoder, name="a/b/c")
    model = MtebEncoder(encoder, name="mine/tiny")
    assert model.mteb_model_meta.name == "mine/tiny"
    u, v = np.asarray([[2.0, 0], [0, 0]], np.float32), np.asarray([[1.0, 1], [1, 0]], np.float32)
    np.testing.assert_allclose(model.similarity(u, v).numpy(), [[0.5**0.5, 1], [0, 0]], atol=1e-6)
    np.testing.assert_allclose(model.similarity_pairwise(u, v).numpy(), [0.5**0.5, 0], atol=1e-6)
