"""`twinvec demo`: the whole way once, on the packaged FAQ, leaving every file behind to look at."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

from twinvec.data.sample import DEMO_QUERIES, faq_documents, write_sample
from twinvec.errors import UsageError, choose
from twinvec.evaluation.evaluate import evaluate
from twinvec.files import write_json
from twinvec.index.collection import Collection
from twinvec.model.encoder import Encoder
from twinvec.progress import note
from twinvec.runs.train import train
from twinvec.search.searcher import Searcher
from twinvec.training.recipe import Recipe

MARK = "demo.json"


def demo(
    output: str | Path = "demo-run", *, model: str = "minilm", language: str = "en", epochs: float = 2.0, progress: bool = True
) -> dict[str, Any]:
    """Evaluate, fine-tune, evaluate again on held-out questions, index, answer three queries. Returns what `demo --json` prints.

    Prompts of the model, where it has them, go before questions and answers in training, evaluation and search alike.
    """
    choose("language", language, ("en", "zh"))
    start = time.monotonic()
    folder = Path(output)
    _clear(folder)
    say = note if progress else _silent
    say(f"1/5  sample data ({language}) -> {folder / 'data'}")
    files = write_sample(folder / "data", language)
    encoder = Encoder.load(model)
    prompt = _prompt(encoder)

    say("2/5  before training: held-out questions against the answers")
    recipe = Recipe.of(
        model=model,
        data=str(files.train),
        dev=str(files.dev),
        test=[str(files.questions), str(files.test)],
        output=str(folder / "run"),
        objective="regression",
        mapping="unit",
        metric="average_precision_cosine",
        epochs=epochs,
        batch_size=32,
        lr=4e-5,
        evaluations_per_epoch=2,
        log_steps=5,
        prompt=prompt,
    )
    before = evaluate(encoder, files.questions, prompt=prompt, progress=False)
    _show(say, before)

    say("3/5  fine-tuning on the sample pairs")
    result = train(recipe, progress=progress, language=language)

    say("4/5  after training: the same held-out questions")
    best = Encoder.load(result["best"])
    after = result["tests"][0]["after"]  # the run has measured the held-out questions with this very folder
    _show(say, after)

    say("5/5  indexing the answers, asking three questions")
    answers = _answer(folder / "faq", best, language, prompt, say)
    out = {
        "model": model,
        "language": language,
        "before": _retrieval(before),
        "after": _retrieval(after),
        "answers": answers,
        "train": {key: result[key] for key in ("best_step", "best_metric", "baseline_metric", "metric", "output")},
        "collection": str(folder / "faq"),
        "report": result["report"],
        "seconds": round(time.monotonic() - start, 1),
    }
    write_json(folder / MARK, out)
    say(f"report: {result['report']}")
    return out


def _clear(folder: Path) -> None:
    """Only an earlier demo, or nothing, may be replaced."""
    if folder.exists() and (folder.is_file() or any(folder.iterdir())) and not (folder / "data" / "documents.csv").is_file():
        raise UsageError(f"output = {str(folder)!r} holds something that is not a demo; choose another folder")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def _prompt(encoder: Encoder) -> str | None:
    """One prompt for both sides, as symmetric models of the E5 kind want it; None for a model without prompts."""
    return "query" if "query" in encoder.prompts else next(iter(encoder.prompts), None)


def _retrieval(result: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in result.items() if "@" in key}


def _show(say: Any, result: dict[str, Any]) -> None:
    chosen = [key for key in ("accuracy@1", "accuracy@3", "mrr@10", "ndcg@10") if isinstance(result.get(key), float)]
    say("     " + "   ".join(f"{key} {result[key]:.3f}" for key in chosen) + f"   ({result['rows']} questions)")


def _answer(place: Path, encoder: Encoder, language: str, prompt: str | None, say: Any) -> list[dict[str, Any]]:
    collection = Collection.create(place, encoder, document_prompt=prompt, query_prompt=prompt)
    collection.add(faq_documents(language))
    searcher = Searcher(encoder, collection)
    answers = []
    for query in DEMO_QUERIES[language]:
        hits = searcher.search(query, k=3)
        say(f"\n     ? {query}")
        for hit in hits:
            say(f"       {hit.score:.3f}  {hit.id:<22} {hit.text[:90]}")
        answers.append({"query": query, "hits": [hit.to_dict() for hit in hits]})
    return answers


def _silent(message: str) -> None:
    """Say nothing."""
