"""Every set of the shared data opens with the rows that its README counts, and the check finds the leaks that it names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from twinvec.data.beir import read_retrieval
from twinvec.data.check import check_data
from twinvec.data.dataset import read_data
from twinvec.data.documents import read_documents

ROOT = Path(__file__).resolve().parents[3] / "shared" / "data"
KINDS = {"sts": "scores", "nli": "nli", "pairs": "pairs", "parallel": "parallel", "text": "texts", "classification": "labelled"}

pytestmark = pytest.mark.skipif(not (ROOT / "README.md").is_file(), reason="the shared data are not beside the repository")


def listed(pattern: str) -> list[tuple[str, ...]]:
    readme = ROOT / "README.md"
    return re.findall(pattern, readme.read_text(encoding="utf-8"), re.MULTILINE) if readme.is_file() else []


FILES = listed(r"^\| ((?:sts|nli|pairs|classification|parallel|text)/\S+) \|[^|]*\| (\d+) \|")
FOLDERS = listed(r"^\| ([a-z0-9-]+) \|[^|]*\| (\d+) \| (\d+) \| (\d+) \| [\d.]+ \|")


def test_nothing_is_left_out() -> None:
    names = {
        str(path.relative_to(ROOT))
        for path in ROOT.rglob("*")
        if path.name.endswith((".csv", ".csv.gz", ".txt.gz")) and path.parent.name != "licences"
    }
    assert names == {name for name, _ in FILES}
    assert {path.name for path in (ROOT / "retrieval").iterdir()} == {name for name, *_ in FOLDERS}


@pytest.mark.parametrize(("name", "rows"), FILES)
def test_file(name: str, rows: str) -> None:
    data = read_data(ROOT / name)
    kind = KINDS[name.split("/")[0]]
    assert (data.kind, data.rows) == (kind, int(rows))
    assert all(text.strip() for texts in data.columns.values() for text in texts)
    assert data.unused in ([], ["subset"])
    if kind == "scores":
        assert data.score_range == ((1.0, 5.0) if "sick" in name else (0.0, 5.0))
    if kind == "pairs":
        assert set(data.labels or []) == {0, 1}
    if kind == "nli":
        assert set(data.labels or []) == {0, 1, 2}


@pytest.mark.parametrize(("name", "documents", "queries", "judgements"), FOLDERS)
def test_folder(name: str, documents: str, queries: str, judgements: str) -> None:
    data = read_retrieval(ROOT / "retrieval" / name)
    assert (len(data.corpus), len(data.queries), sum(map(len, data.qrels.values()))) == (int(documents), int(queries), int(judgements))
    assert data.notes == []


def test_the_other_split_of_scifact() -> None:
    data = read_retrieval(ROOT / "retrieval" / "scifact", "train")
    assert (len(data.queries), sum(map(len, data.qrels.values()))) == (809, 919)
    assert sum(1 for _ in read_documents(ROOT / "retrieval" / "scifact")) == 5183


@pytest.mark.parametrize(
    ("train", "test", "pairs"),
    [
        ("sts/en/stsb.train.csv.gz", "sts/en/stsb.test.csv", 12),
        ("sts/en/stsb.train.csv.gz", "sts/en/stsb.dev.csv", 7),
        ("sts/en/stsb.train.csv.gz", "sts/en/sts12.test.csv.gz", 1002),
        ("sts/zh/cnsd-stsb.train.csv.gz", "sts/zh/cnsd-stsb.test.csv", 18),
        ("pairs/zh/pawsx-zh.dev.csv.gz", "pairs/zh/pawsx-zh.test.csv.gz", 22),
        ("sts/en/sick-r.train.csv.gz", "sts/en/sick-r.test.csv.gz", 81),
    ],
)
def test_leaks_that_the_readme_counts(train: str, test: str, pairs: int) -> None:
    report = check_data(read_data(ROOT / train), test=read_data(ROOT / test))
    assert report["shared_pairs"] == pairs
    if "sick" in train:
        assert report["shared_both_texts"] == 2533


def test_pairs_with_two_labels_that_the_readme_counts() -> None:
    assert check_data(read_data(ROOT / "pairs/zh/pawsx-zh.test.csv.gz"))["conflicts"] == 1
    assert check_data(read_data(ROOT / "sts/zh/cnsd-stsb.train.csv.gz"))["identical"] == 51
    assert (
        check_data(read_data(ROOT / "classification/banking77.train.csv.gz"), test=read_data(ROOT / "classification/banking77.test.csv"))[
            "shared_texts"
        ]
        == 7
    )
