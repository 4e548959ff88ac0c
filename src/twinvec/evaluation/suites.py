"""Suites of public sets with published figures: which files they are, how many rows each must have, and how they are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from twinvec.data.dataset import read_data
from twinvec.data.tables import read_table
from twinvec.data.textfile import read_lines
from twinvec.errors import DataError, choose
from twinvec.files import sha256_file

SPLITS: Final = ("test", "dev")


@dataclass(frozen=True)
class SetSpec:
    """One set: `files` and `rows` by split (a split that is not there does not exist), `subsets` of the test split with their rows."""

    name: str
    files: dict[str, str]
    rows: dict[str, int]
    subsets: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class SuiteSet:
    """Pairs of one set, in the file's order. subsets: a name for each row, or empty names. notes: what differs from what is published."""

    name: str
    first: list[str]
    second: list[str]
    gold: list[float]
    subsets: list[str]
    expected: int
    files: list[str]
    sha256: list[str]
    notes: list[str] = field(default_factory=list)


def _year(name: str, **subsets: int) -> SetSpec:
    named = {subset.replace("_", "-"): rows for subset, rows in subsets.items()}
    return SetSpec(name, {"test": f"{name.lower()}.test.csv"}, {"test": sum(named.values())}, named)


# Sizes: Agirre et al. 2012 to 2016, Cer et al. 2017, Marelli et al. 2014. STS13 without SMT, whose licence keeps it out of every public copy.
STS_EN: Final = (
    _year("STS12", MSRpar=750, MSRvid=750, SMTeuroparl=459, surprise_OnWN=750, surprise_SMTnews=399),
    _year("STS13", FNWN=189, headlines=750, OnWN=561),
    _year("STS14", deft_forum=450, deft_news=300, headlines=750, images=750, OnWN=750, tweet_news=750),
    _year("STS15", answers_forums=375, answers_students=750, belief=375, headlines=750, images=750),
    _year("STS16", answer_answer=254, headlines=249, plagiarism=230, postediting=244, question_question=209),
    SetSpec("STS-B", {"test": "stsb.test.csv", "dev": "stsb.dev.csv"}, {"test": 1379, "dev": 1500}),
    SetSpec("SICK-R", {"test": "sick-r.test.csv", "dev": "sick-r.trial.csv"}, {"test": 4927, "dev": 500}),
)
STS_ZH: Final = (
    SetSpec("STS-B-mt", {"test": "stsb-mt.test.csv", "dev": "stsb-mt.dev.csv"}, {"test": 1379, "dev": 1500}),
    SetSpec("STS-B-cnsd", {"test": "cnsd-stsb.test.csv", "dev": "cnsd-stsb.dev.csv"}, {"test": 1361, "dev": 1458}),
    SetSpec("ATEC", {"test": "atec.test.csv", "dev": "atec.dev.csv"}, {"test": 20000, "dev": 20000}),
    SetSpec("BQ", {"test": "bq.test.csv", "dev": "bq.dev.csv"}, {"test": 10000, "dev": 10000}),
    SetSpec("LCQMC", {"test": "lcqmc.test.csv", "dev": "lcqmc.dev.csv"}, {"test": 12500, "dev": 8802}),
    SetSpec("PAWS-X", {"test": "pawsx-zh.test.csv", "dev": "pawsx-zh.dev.csv"}, {"test": 1975, "dev": 1984}),
    # The test labels were never published: papers report dev, and so does this suite, under its name.
    SetSpec("AFQMC-dev", {"test": "afqmc.dev.csv", "dev": "afqmc.dev.csv"}, {"test": 4316, "dev": 4316}),
)
SUITES: Final[dict[str, tuple[SetSpec, ...]]] = {"sts-en": STS_EN, "sts-zh": STS_ZH}
PLACES: Final = {"sts-en": ("", "sts/en", "en"), "sts-zh": ("", "sts/zh", "pairs/zh", "zh")}
_SENTEVAL: Final = ("", "STS", "downstream", "downstream/STS")
_ALIASES: Final = {"surprise.OnWN": "surprise-OnWN", "surprise.SMTnews": "surprise-SMTnews", "OnWN": "surprise-OnWN", "SMTnews": "surprise-SMTnews"}


def read_suite(suite: str, folder: str | Path, split: str = "test") -> tuple[list[SuiteSet], list[str]]:
    """The sets of a suite that are in a folder, and notes on what is missing or of another size than published.

    Two layouts: one CSV a set (sts12.test.csv or .csv.gz: sentence1, sentence2, score, subset), in the folder or in sts/en, sts/zh, pairs/zh in it;
    for sts-en also SentEval's (STS12-en-test/STS.input.X.txt with STS.gs.X.txt, STSBenchmark/sts-test.csv, SICK/SICK_test_annotated.txt).
    DataError: no folder, or no set of the suite in it.
    """
    choose("suite", suite, SUITES)
    choose("split", split, SPLITS)
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(
            f"{folder} is {'a file' if folder.exists() else 'not there'}; wanted the folder with the data of the suite {suite} (--data-dir)"
        )
    found: list[SuiteSet] = []
    notes: list[str] = []
    for spec in SUITES[suite]:
        if split not in spec.files:
            notes.append(f"{spec.name} has no {split} split and is left out")
            continue
        data = _one_file(spec, folder, PLACES[suite], split)
        if data is None and suite == "sts-en":
            data = _senteval(spec, folder, split)
        if data is None:
            notes.append(f"{spec.name} is missing: no {spec.files[split]} in {folder}; averages are over the sets that are there")
            continue
        found.append(data)
        notes += [f"{spec.name}: {note}" for note in data.notes]
    if not found:
        wanted = ", ".join(spec.files[split] for spec in SUITES[suite] if split in spec.files)
        raise DataError(f"{folder}: no set of the suite {suite} ({split}) in it; wanted {wanted} (each also .gz), or for sts-en SentEval's folders")
    return found, notes


def _one_file(spec: SetSpec, folder: Path, places: Sequence[str], split: str) -> SuiteSet | None:
    name = spec.files[split]
    for place in places:
        for path in (folder / place / name, folder / place / f"{name}.gz"):
            if path.is_file():
                data = read_data(path)
                if data.kind not in ("scores", "pairs") or data.labels is None:
                    raise DataError(f"{path}: holds {data.kind}; wanted the pairs of {spec.name} with a score or a 0/1 label each")
                subsets = [""] * len(data)
                if "subset" in data.unused:
                    cells = read_table(path).columns["subset"]
                    subsets = [str(cells[number - 1] or "") for number in data.numbers]
                first, second = data.columns.values()
                return _checked(spec, split, first, second, [float(x) for x in data.labels], subsets, [path])
    return None


def _senteval(spec: SetSpec, folder: Path, split: str) -> SuiteSet | None:
    for place in _SENTEVAL:
        if spec.name.startswith("STS1"):
            files = sorted((folder / place / f"{spec.name}-en-test").glob("STS.input.*.txt"))
            if files:
                return _year_of(spec, files)
        elif spec.name == "STS-B":
            path = folder / place / "STSBenchmark" / f"sts-{split}.csv"
            if path.is_file():
                # genre, source file (the subset), year, number, score, sentence1, sentence2 and sometimes licences; tabs, never quoted
                rows = [line.split("\t") for line in _lines(path) if line]
                _wide_enough(path, rows, 7)
                return _checked(spec, split, *_three(path, rows, 5, 6, 4), [row[1] for row in rows], [path])
        else:
            path = folder / place / "SICK" / f"SICK_{'trial' if split == 'dev' else 'test_annotated'}.txt"
            if path.is_file():
                rows = [line.split("\t") for line in _lines(path)[1:] if line]
                _wide_enough(path, rows, 4)
                return _checked(spec, split, *_three(path, rows, 1, 2, 3), [""] * len(rows), [path])
    return None


def _year_of(spec: SetSpec, files: Sequence[Path]) -> SuiteSet:
    """All subsets of a year put together; lines without a gold score are no rows of the test (STS15 and STS16 have such)."""
    first: list[str] = []
    second: list[str] = []
    gold: list[float] = []
    subsets: list[str] = []
    used: list[Path] = []
    for path in files:
        name = path.name[len("STS.input.") : -len(".txt")]
        if name == "SMT" and spec.name == "STS13":
            continue
        scores_file = path.with_name(f"STS.gs.{name}.txt")
        if not scores_file.is_file():
            raise DataError(f"{path}: no {scores_file.name} beside it, so its pairs have no gold scores")
        pairs, scores = [line.split("\t") for line in _lines(path)], _lines(scores_file)
        while pairs and len(pairs) > len(scores) and pairs[-1] == [""]:
            pairs.pop()
        scores += [""] * (len(pairs) - len(scores) if all(len(pair) < 2 for pair in pairs[len(scores) :]) else 0)
        if len(pairs) != len(scores):
            raise DataError(f"{path}: {len(pairs)} pairs, but {scores_file.name} has {len(scores)} scores; wanted one line each")
        used += [path, scores_file]
        for number, (pair, score) in enumerate(zip(pairs, scores, strict=True), start=1):
            if not score.strip():
                continue
            if len(pair) < 2:
                raise DataError(f"{path}, line {number}: no tab between two sentences")
            first.append(pair[0].strip())
            second.append(pair[1].strip())
            gold.append(_number(scores_file, number, score))
            subsets.append(_ALIASES.get(name, name) if spec.name == "STS12" else name)
    return _checked(spec, "test", first, second, gold, subsets, used)


def _lines(path: Path) -> list[str]:
    return [line.rstrip("\r\n") for line in read_lines(path, "utf-8")]


def _wide_enough(path: Path, rows: Sequence[Sequence[str]], columns: int) -> None:
    for number, row in enumerate(rows, start=1):
        if len(row) < columns:
            raise DataError(f"{path}, row {number}: {len(row)} fields, wanted {columns} or more separated by tabs, as SentEval has them")


def _three(path: Path, rows: Sequence[Sequence[str]], a: int, b: int, score: int) -> tuple[list[str], list[str], list[float]]:
    gold = [_number(path, number, row[score]) for number, row in enumerate(rows, start=1)]
    return [row[a].strip() for row in rows], [row[b].strip() for row in rows], gold


def _number(path: Path, line: int, cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        raise DataError(f"{path}, line {line}: {cell!r:.40} is no score; wanted a number") from None


def _checked(spec: SetSpec, split: str, first: list[str], second: list[str], gold: list[float], subsets: list[str], files: list[Path]) -> SuiteSet:
    """With a note for each size that is not the published one."""
    notes = []
    if len(gold) != spec.rows[split]:
        notes.append(f"{len(gold)} rows where the published {split} set has {spec.rows[split]}; its figure cannot be compared with published ones")
    named = [_ALIASES.get(name, name) if spec.name == "STS12" else name for name in subsets]
    if spec.subsets and any(named):
        for name, rows in spec.subsets.items():
            count = named.count(name)
            if count != rows:
                notes.append(f"subset {name} is missing ({rows} rows)" if not count else f"subset {name} has {count} rows where {rows} are published")
        notes += [f"subset {name or '(no name)'} is not one of the published ones" for name in dict.fromkeys(named) if name not in spec.subsets]
    elif spec.subsets:
        notes.append("no column subset: the mean over subsets cannot be given, only all rows together")
    return SuiteSet(
        spec.name, first, second, gold, named, spec.rows[split], [str(path) for path in files], [sha256_file(path) for path in files], notes
    )
