"""What a run reads before anything is trained: sources, dev and test files, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from twinvec.data.beir import RetrievalSet, read_retrieval
from twinvec.data.check import check_data
from twinvec.data.dataset import Dataset, read_data
from twinvec.data.pairs import judged_pairs, without_pairs_of
from twinvec.data.sampling import split_rows
from twinvec.errors import UsageError
from twinvec.model.encoder import Encoder
from twinvec.training.fit import as_wanted
from twinvec.training.recipe import Recipe
from twinvec.training.source import Source

Held = Dataset | RetrievalSet


@dataclass
class Inputs:
    """sources: each with its data as the objective sees it. dev: as read. raw: the first source's rows as read, for pictures."""

    sources: list[tuple[Source, Dataset]]
    raw: Dataset
    dev: Held | None
    tests: list[tuple[str, Held]]
    notes: list[str] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return sum(len(data) for _, data in self.sources)


def read_held(path: str, source: Source) -> Held:
    """A dev or test file, read as the training file is; a folder is a retrieval set."""
    if Path(path).is_dir():
        return read_retrieval(Path(path))
    return read_data(path, kind=source.kind, columns=source.columns, encoding=source.encoding, labels=source.labels, score_range=source.score_range)


def read_held_alike(path: str, sources: Sequence[Source]) -> Held:
    """As read_held, with the reading options of the source whose they fit: with several sources the options of one seldom fit a dev file."""
    if len(sources) == 1 and sources[0].objective not in ("mlm", "retromae", "tsdae", "simcse", "distillation"):
        return read_held(path, sources[0])
    return read_held(path, Source(encoding=sources[0].encoding))


def _read_source(source: Source) -> Dataset:
    if Path(source.data).is_dir():
        data = judged_pairs(read_retrieval(Path(source.data), split="train"))
        data = data.select(range(min(source.limit or len(data), len(data))))
    else:
        data = read_data(
            source.data, kind=source.kind, columns=source.columns, encoding=source.encoding, labels=source.labels, score_range=source.score_range,
            limit=source.limit,
        )  # fmt: skip
    if source.exclude:
        folders = [path for path in source.exclude if Path(path).is_dir()]
        if folders:
            raise UsageError(f"exclude = {folders[0]!r} is a folder; wanted files of pairs, scores, NLI, triplets or texts")
        read = [read_held(path, Source(encoding=source.encoding)) for path in source.exclude]
        data = without_pairs_of(data, [other for other in read if isinstance(other, Dataset)])
    return data


def training_texts(recipe: Recipe) -> list[str]:
    """Every text of the training files."""
    return [text for source in recipe.sources() for column in _read_source(source).columns.values() for text in column]


def read_inputs(recipe: Recipe, encoder: Encoder, say: Callable[[str], None]) -> Inputs:
    """Read everything, show how each file was read, and look for what would make the run worthless."""
    sources = recipe.sources()
    read = [_read_source(source) for source in sources]
    dev: Held | None = None
    if recipe.dev is not None:
        dev = read_held_alike(recipe.dev, sources)
    elif recipe.dev_share:
        read[0], dev = _split(recipe, read[0])
    made = [(source, as_wanted(source, data)) for source, data in zip(sources, read, strict=True)]
    notes: list[str] = []
    for _, data in made:
        for line in data.describe():
            say(line)
        notes += [text for text in data.notes if text not in notes]
    tests = [(path, read_held_alike(path, sources)) for path in recipe.test]
    inputs = Inputs(made, read[0], dev, tests, notes)
    window = {"count_tokens": encoder.count_tokens, "window": encoder.max_tokens}
    for source, data in made:
        for line in check_data(data, **window).lines():  # type: ignore[arg-type]
            say(f"{Path(source.data).name}: {line}" if len(made) > 1 else f"train: {line}")
        for name, other in [("dev", dev), *tests]:
            if isinstance(other, Dataset):
                _overlaps(name, data, other, inputs, say)
    return inputs


def _overlaps(name: str, data: Dataset, other: Dataset, inputs: Inputs, say: Callable[[str], None]) -> None:
    for finding in check_data(data, test=other).findings:
        # A shared pair makes a figure worthless, which is a note of the run; a shared text (one answer to many questions) is often meant.
        if finding.name.startswith("shared_pairs"):
            inputs.notes.append(f"{name}: {finding.line()}; exclude = [FILE] takes them out of the training data")
        elif finding.name.startswith("shared"):
            say(f"{name}: {finding.line()}")


def _split(recipe: Recipe, data: Dataset) -> tuple[Dataset, Dataset]:
    kept, held = split_rows(len(data), recipe.dev_share, recipe.seed)
    if not len(held) or not len(kept):
        raise UsageError(f"dev_share = {recipe.dev_share}: of {len(data)} rows that leaves {len(kept)} to train on and {len(held)} to measure")
    return data.select(kept), replace(data.select(held))
