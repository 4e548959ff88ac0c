"""Bad data files, columns and labels: what each is answered with. The list is the table; `python tests/data/test_data_bad_inputs.py` prints it."""

from __future__ import annotations

import gzip
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars
import pytest

from twinvec.data.beir import read_retrieval
from twinvec.data.check import check_data
from twinvec.data.dataset import normalised_scores, read_data
from twinvec.data.documents import read_documents, read_texts
from twinvec.data.nli import nli_triplets
from twinvec.data.pairs import positives, without_pairs_of
from twinvec.data.sampling import ClassOrder, LengthBucketedOrder, MixedOrder, split_rows
from twinvec.errors import DataError, TwinvecError, UsageError

Case = tuple[str, Callable[[Path], Any], type[TwinvecError], str]
PAIRS = "sentence1,sentence2,label\na,b,1\nc,d,0\n"


def put(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def data(name: str, content: str | bytes, **options: Any) -> Callable[[Path], Any]:
    """A file of this name and content, read with these options."""
    return lambda folder: read_data(put(folder, name, content), **options)


def documents(*files: tuple[str, str], **options: Any) -> Callable[[Path], Any]:
    return lambda folder: list(read_documents([put(folder, name, content) for name, content in files], **options))


def retrieval(split: str = "test", **changes: str | None) -> Callable[[Path], Any]:
    """A good folder with some files changed, or (None) left out."""
    files: dict[str, str | None] = {
        "corpus": '{"_id": "d1", "title": "T", "text": "one"}\n{"_id": "d2", "title": "", "text": "two"}\n',
        "queries": '{"_id": "q1", "text": "first"}\n',
        "qrels": "query-id\tcorpus-id\tscore\nq1\td1\t1\n",
    } | changes
    names = {"corpus": "corpus.jsonl", "queries": "queries.jsonl", "qrels": "qrels/test.tsv"}

    def run(folder: Path) -> Any:
        for key, content in files.items():
            if content is not None:
                put(folder, f"set/{names[key]}", content)
        return read_retrieval(folder / "set", split)

    return run


def parquet(columns: dict[str, Any], **options: Any) -> Callable[[Path], Any]:
    def run(folder: Path) -> Any:
        polars.DataFrame(columns).write_parquet(folder / "x.parquet")
        return read_data(folder / "x.parquet", **options)

    return run


def folder_instead(folder: Path) -> Any:
    (folder / "x.csv").mkdir()
    return read_data(folder / "x.csv")


def near_name(folder: Path) -> Any:
    put(folder, "train.csv", PAIRS)
    return read_data(folder / "trian.csv")


def made(function: Callable[..., Any], content: str, *others: str, **options: Any) -> Callable[[Path], Any]:
    """`function` of a CSV with this content, and of a list of others where there are any."""

    def run(folder: Path) -> Any:
        files = [read_data(put(folder, f"{'x' if i == 0 else f'test{i}'}.csv", text)) for i, text in enumerate((content, *others))]
        return function(files[0], files[1:], **options) if others else function(files[0], **options)

    return run


def mixed(*sizes: int, **options: Any) -> Callable[[Path], Any]:
    return lambda folder: MixedOrder([LengthBucketedOrder([1] * n, 4, 0) for n in sizes], **options)


NLI = "premise,hypothesis,label\np,yes,entailment\nq,no,contradiction\n"
GROUPED = "anchor,positive,group,group_id\na,b,1,1\n"

CASES: list[Case] = [
    # --- files
    ("missing file", lambda folder: read_data(folder / "nowhere.csv"), DataError, r"nowhere\.csv: no such file; check the name"),
    ("missing file, one of a near name", near_name, DataError, r"no such file; did you mean 'train\.csv'\?"),
    ("missing folder", lambda folder: read_data(folder / "no" / "x.csv"), DataError, r"no such file; there is no folder '.*no' either"),
    ("a folder for a file", folder_instead, DataError, r"x\.csv is a folder; give a file"),
    ("empty file", data("x.csv", b""), DataError, r"x\.csv: the file is empty \(0 bytes\)"),
    ("header only", data("x.csv", "sentence1,sentence2,label\n"), DataError, r"no rows \(a header at most\)"),
    ("unknown ending", data("x.dat", PAIRS), DataError, r"cannot tell the format .*--format csv\|tsv"),
    ("unknown format", data("x.csv", PAIRS, format="cvs"), UsageError, r"format = 'cvs': choose one of .*did you mean 'csv'"),
    ("truncated gzip", data("x.csv.gz", gzip.compress(PAIRS.encode() * 99)[:-12]), DataError, r"the gzip file ends too early"),
    ("damaged gzip", data("x.csv.gz", gzip.compress(PAIRS.encode())[:10] + b"\xff" * 40), DataError, r"broken gzip file"),
    (".gz that is no gzip", data("x.csv.gz", PAIRS), DataError, r"ends in \.gz but it is not gzip"),
    ("a web page", data("x.csv", "<!DOCTYPE html>\n<html><body>Not found</body></html>"), DataError, r"is a web page \(HTML\), not data"),
    ("a Git LFS pointer", data("x.csv", "version https://git-lfs.github.com/spec/v1\noid sha256:0\n"), DataError, r"Git LFS pointer.*git lfs pull"),
    ("an Excel workbook", data("x.csv", b"PK\x03\x04\x14\x00" + b"\x00" * 50), DataError, r"Excel workbook; unpack it, or save the sheet as CSV"),
    ("Parquet named .csv", data("x.csv", b"PAR1\x15\x04" + b"\x00" * 50), DataError, r"is a Parquet file; .*--format parquet"),
    ("broken Parquet", data("x.parquet", b"PAR1" + b"\x00" * 50), DataError, r"not a readable Parquet file"),
    ("UTF-16 read as UTF-8", data("x.csv", PAIRS.encode("utf-16")), DataError, r"is UTF-16 text; give --encoding utf-16"),
    ("UTF-16 without its mark", data("x.csv", PAIRS.encode("utf-16-le")), DataError, r"NUL bytes.*--encoding utf-16-le"),
    ("NUL bytes", data("x.csv", PAIRS.replace("c,d", "c\x00,d")), DataError, r"holds NUL bytes.*binary file"),
    (
        "GB18030 read as UTF-8",
        data("x.csv", "sentence1,sentence2,label\na,b,1\n花呗怎么还款,怎么还花呗,1\n".encode("gb18030")),
        DataError,
        r"line 3: byte 32 \(bb a8 df c2\) is not utf-8; --encoding gb18030 reads it, that line then starts '花呗怎么还款",
    ),
    ("cp1252 read as UTF-8", data("x.csv", PAIRS.replace("c,", "café,").encode("cp1252")), DataError, r"line 3.*--encoding cp1252 reads it"),
    (
        "bytes of no encoding",
        data("x.csv", PAIRS.encode() + b"\x81,\xff\x00,1\n"),
        DataError,
        r"line 4: byte \d+ .* is not utf-8; give --encoding NAME",
    ),
    ("unknown encoding", data("x.csv", PAIRS, encoding="gb18031"), UsageError, r"encoding = 'gb18031': no such text encoding"),
    ("codec that is no text encoding", data("x.csv", PAIRS, encoding="base64"), UsageError, r"encoding = 'base64': no such text encoding"),
    ("old Mac line ends", data("x.tsv", "text\rone\rtwo\r"), DataError, r"lone carriage returns"),
    # --- rows
    (
        "CSV row with too many fields",
        data("x.csv", PAIRS + "e,f,g,1\n"),
        DataError,
        r"row 3 \(line 4\): 4 fields, but the header has 3 .*need quotes",
    ),
    ("CSV row with too few fields", data("x.csv", PAIRS + "e\n"), DataError, r"row 3 \(line 4\): 1 fields, but the header has 3"),
    (
        "TSV row with a tab in its text",
        data("x.tsv", PAIRS.replace(",", "\t") + "e\tf\tg\t1\n"),
        DataError,
        r"row 3 \(line 4\): 4 fields.*give positions",
    ),
    ("CSV quote never closed", data("x.csv", PAIRS + '"e,f,1\ng,h,0\n'), DataError, r"line 4: not valid CSV .*never closed"),
    ("CSV quote closed in mid-cell", data("x.csv", PAIRS + '"e"e,f,1\n'), DataError, r'line 4: not valid CSV .*doubled \(""\)'),
    ("semicolons in a CSV", data("x.csv", PAIRS.replace(",", ";")), DataError, r"no column for a pair.*separated by ';': save the file with commas"),
    ("tabs in a CSV", data("x.csv", PAIRS.replace(",", "\t")), DataError, r"separated by '\\t': give --format tsv"),
    ("a header that repeats a name", data("x.csv", "text,label,text\na,b,c\n"), DataError, r"header names 'text' more than once \(columns 1, 3\)"),
    ("JSON line cut off", data("x.jsonl", '{"text": "a"}\n{"text": "b\n'), DataError, r"line 2, column 10: not JSON .*one object a line"),
    ("JSON line that is no object", data("x.jsonl", '{"text": "a"}\n"b"\n'), DataError, r"line 2: a JSON string; wanted one object a line"),
    ("JSON array named .jsonl", data("x.jsonl", '[{"text": "a"}]'), DataError, r"line 1: a JSON array.*--format json"),
    ("JSON array of texts", data("x.json", '["a", "b"]'), DataError, r"row 1: a JSON string; wanted an array of objects"),
    ("JSON array cut off", data("x.json", '[{"text": "a"},\n{"text"'), DataError, r"line 2, column \d+: not JSON"),
    ("JSON too deep", data("x.jsonl", "[" * 100_000 + "\n"), DataError, r"line 1: not JSON \(nested too deeply\)"),
    (
        "text missing in one JSON line",
        data("x.jsonl", '{"text": "a"}\n{"txt": "b"}\n'),
        DataError,
        r"row 2 \(line 2\): no text: column 'text' is missing",
    ),
    ("number for a text", data("x.jsonl", '{"text": "a"}\n{"text": 7}\n'), DataError, r"row 2 \(line 2\): text is 7 \(int\) in column 'text'"),
    ("null in a Parquet text", parquet({"text": ["a", None]}), DataError, r"x\.parquet, row 2: no text"),
    (
        "unequal lists of negatives",
        data("x.jsonl", '{"query": "q", "pos": ["p"], "neg": ["a", "b"]}\n{"query": "q", "pos": ["p"], "neg": ["a"]}\n'),
        DataError,
        r"row 2 \(line 2\): 1 texts in column 'neg', but 2 in the rows before",
    ),
    (
        "two positives in a list",
        data("x.jsonl", '{"query": "q", "pos": ["p", "o"], "neg": ["a"]}\n'),
        DataError,
        r"2 texts in column 'pos'; wanted one",
    ),
    # --- columns
    ("unknown columns", data("x.csv", "left,right\na,b\n"), DataError, r"among 'left', 'right'; .*--columns sentence1=left,sentence2=right"),
    (
        "no header",
        data("x.csv", "a plane takes off,a plane flies,4.5\na dog,a cat,1.2\n"),
        DataError,
        r"by position if the file has no header: --columns sentence1=1,sentence2=2,label=3",
    ),
    (
        "two pairs of columns",
        data("x.csv", "sentence1,sentence2,question1,question2\na,b,c,d\n"),
        DataError,
        r"sentence1/sentence2 and question1/question2 could each be sentence1 and sentence2; .*--columns",
    ),
    (
        "a text beside a pair",
        data("x.csv", "text,question,answer\na,b,c\n"),
        DataError,
        r"question/answer and text could each be the texts; .*--columns",
    ),
    ("two label columns", data("x.csv", "sentence1,sentence2,score,label\na,b,3,1\n"), DataError, r"could each be the label; .*--columns label="),
    ("names equal but for case", data("x.csv", "text,Text\na,b\n"), DataError, r"'text', 'Text' are the same name but for case"),
    (
        "a nameless label",
        data("x.csv", "sentence1,sentence2,gold\na,b,1\nc,d,0\ne,f,1\n"),
        DataError,
        r"'gold' may hold labels; give --columns label=gold",
    ),
    ("kind that the columns do not fit", data("x.csv", PAIRS, kind="triplets"), DataError, r"no column for anchor among"),
    ("scores without a score", data("x.csv", "sentence1,sentence2\na,b\n", kind="scores"), DataError, r"no column for label .*--columns label="),
    ("unknown kind", data("x.csv", PAIRS, kind="pair"), UsageError, r"kind = 'pair': choose one of .*did you mean 'pairs'"),
    (
        "--columns of an absent column",
        data("x.csv", PAIRS, columns="label=lable"),
        UsageError,
        r"names 'lable', but the columns .*did you mean 'label'",
    ),
    (
        "--columns with an unknown role",
        data("x.csv", PAIRS, columns="sentense1=a"),
        UsageError,
        r"roles are .*, not 'sentense1'; did you mean 'sentence1'",
    ),
    ("--columns past the last", data("x.csv", PAIRS, columns="sentence1=1,sentence2=2,label=9"), UsageError, r"asks for column 9, but there are 3"),
    ("--columns twice the same", data("x.csv", PAIRS, columns="sentence1=label,sentence2=label"), UsageError, r"'label' is given twice"),
    ("--columns with a role twice", data("x.csv", PAIRS, columns="label=1,score=2"), UsageError, r"'label' is given twice \('1' and '2'\)"),
    ("--columns as a list, no kind", data("x.csv", PAIRS, columns="sentence1,sentence2"), UsageError, r"a plain list needs --kind"),
    ("--columns as a list, too short", data("x.csv", PAIRS, columns="sentence1", kind="pairs"), UsageError, r"1 columns, but kind 'pairs' wants 3"),
    ("--columns with an empty part", data("x.csv", PAIRS, columns="sentence1=a,,label=b"), UsageError, r"an empty part"),
    ("--columns without use", data("x.csv", PAIRS, columns="text=label,anchor=sentence1"), UsageError, r"gives anchor, which .* has no use for"),
    # --- labels
    ("word for a score", data("x.csv", PAIRS + "e,f,many\n"), DataError, r"row 3 \(line 4\): label 'many' in column 'label': .*--labels many=drop"),
    ("words for labels", data("x.csv", "sentence1,sentence2,label\na,b,yes\nc,d,no\n"), DataError, r"'no' 1.*--labels no=0,yes=1"),
    ("empty label", data("x.csv", PAIRS + "e,f,\n"), DataError, r"row 3 \(line 4\): no label in column 'label'.*--labels =drop"),
    ("label missing in JSON", data("x.jsonl", '{"text": "a", "label": "p"}\n{"text": "b"}\n'), DataError, r"row 2 \(line 2\): no label"),
    ("NaN label", data("x.csv", PAIRS + "e,f,nan\n"), DataError, r"row 3 \(line 4\): label 'nan'.*a finite one"),
    ("infinite label", data("x.jsonl", '{"text1": "a", "text2": "b", "score": Infinity}\n'), DataError, r"row 1 \(line 1\): label inf.*finite"),
    ("decimal comma", data("x.csv", 'sentence1,sentence2,score\na,b,"2,5"\n'), DataError, r"label '2,5'.*decimals with a point"),
    ("label of no class", data("x.jsonl", '{"text": "a", "label": ["p"]}\n'), DataError, r"a list is no class"),
    ("2 among 0/1 labels", data("x.csv", PAIRS + "e,f,2\n", kind="pairs"), DataError, r"row 3 \(line 4\): label '2'.*wanted 0 or 1"),
    ("0, 1, 2 without a kind", data("x.csv", PAIRS + "e,f,2\n"), DataError, r"can be NLI classes or scores; give --kind nli or --kind scores"),
    (
        "premises with 0 and 1 only",
        data("x.csv", "premise,hypothesis,label\na,b,1\nc,d,0\n"),
        DataError,
        r"labels 0 and 1 only: .*--kind nli.*--kind pairs",
    ),
    (
        "NLI row without agreement",
        data("x.csv", "premise,hypothesis,label\na,b,neutral\nc,d,-\n"),
        DataError,
        r"row 2 \(line 3\): label '-'.*--labels -=drop",
    ),
    (
        "NLI names and numbers mixed",
        data("x.csv", "premise,hypothesis,label\na,b,neutral\nc,d,1\n"),
        DataError,
        r"row 2 \(line 3\): .*a number among names",
    ),
    ("unknown NLI name", data("x.csv", "premise,hypothesis,label\na,b,neutral\nc,d,related\n"), DataError, r"label 'related'.*wanted entailment"),
    (
        "score outside its range",
        data("x.csv", PAIRS + "e,f,6\n", score_range="0,5"),
        DataError,
        r"row 3 \(line 4\): label '6'.*outside --score-range 0,5",
    ),
    ("--score-range backwards", data("x.csv", PAIRS, score_range="5,0"), UsageError, r"--score-range '5,0': wanted the lowest and the highest"),
    ("--score-range of one number", data("x.csv", PAIRS, score_range="5"), UsageError, r"--score-range '5'"),
    ("--labels without a meaning", data("x.csv", PAIRS, labels="yes"), UsageError, r"--labels 'yes': cannot read 'yes'"),
    ("--labels with a label twice", data("x.csv", PAIRS, labels="1=0,1.0=1"), UsageError, r"'1\.0' is given twice"),
    ("--labels that drops everything", data("x.csv", PAIRS, labels="1=drop,0=drop"), DataError, r"--labels leaves out every row"),
    ("limit of no rows", data("x.csv", PAIRS, limit=0), UsageError, r"limit = 0"),
    (
        "scores of a constant",
        lambda f: normalised_scores(data("x.csv", "text1,text2,score\na,b,9\n")(f)),
        DataError,
        r"every score is 9.*--score-range",
    ),
    ("scores of triplets", lambda f: normalised_scores(data("x.csv", "anchor,positive,negative\na,b,c\n")(f)), DataError, r"triplets have no scores"),
    # --- retrieval folders
    ("retrieval folder missing", lambda folder: read_retrieval(folder / "none"), DataError, r"none is not there; wanted a folder in BEIR layout"),
    ("no corpus", retrieval(corpus=None), DataError, r"no corpus\.jsonl \(nor \.gz\) there, only qrels, queries\.jsonl"),
    ("no such split", retrieval("tset"), DataError, r"no qrels/tset\.tsv; choose --split test; did you mean 'test'"),
    ("no judgements", retrieval(qrels=None), DataError, r"no judgements, wanted qrels/test\.tsv"),
    ("document id twice", retrieval(corpus='{"_id": "d", "text": "a"}\n' * 2), DataError, r"line 2: the id 'd' was on line 1 already"),
    ("document without id", retrieval(corpus='{"text": "a"}\n'), DataError, r"line 1: its id \(_id\) is missing"),
    ("document without text", retrieval(corpus='{"_id": "d"}\n'), DataError, r"line 1 \(id 'd'\): text is None"),
    (
        "grade that is no number",
        retrieval(qrels="query-id\tcorpus-id\tscore\nq1\td1\tgood\n"),
        DataError,
        r"row 1 \(line 2\): grade 'good' is no number",
    ),
    ("TREC judgements", retrieval(qrels="q1 0 d1 1\n".replace(" ", "\t")), DataError, r"4 fields; .*TREC"),
    (
        "judgements of other queries",
        retrieval(qrels="q9\td1\t1\n"),
        DataError,
        r"none of its query ids is in queries\.jsonl; the first here 'q9', there 'q1'",
    ),
    ("judgements of other documents", retrieval(qrels="q1\tx\t1\n"), DataError, r"none of its document ids is in corpus\.jsonl"),
    ("two grades for one pair", retrieval(qrels="q1\td1\t1\nq1\td1\t2\n"), DataError, r"document 'd1' has two grades for query 'q1', 1 and 2"),
    # --- documents and texts
    (
        "document id in two files",
        documents(("a.csv", "id,text\n1,x\n2,y\n"), ("b.csv", "id,text\n2,z\n")),
        DataError,
        r"b\.csv, row 1 \(line 2\): the id '2' was given before, in .*a\.csv, row 2 \(line 3\)",
    ),
    ("documents without a text", documents(("a.csv", "id,name\n1,x\n")), DataError, r"no column for the text .*--text name"),
    ("documents with two texts", documents(("a.csv", "text,content\n1,x\n")), DataError, r"'text' and 'content' could each be the text.*--text"),
    (
        "--text of an absent column",
        documents(("a.csv", "id,body\n1,x\n"), text="boby"),
        UsageError,
        r"--text 'boby' is no column; .*did you mean 'body'",
    ),
    ("empty document id", documents(("a.csv", "id,text\n ,x\n")), DataError, r"row 1 \(line 2\): its id \(id\) is empty"),
    ("document id that is a list", documents(("a.jsonl", '{"id": [1], "text": "x"}\n')), DataError, r"its id \(id\) is \[1\]"),
    ("texts of a table without one", lambda folder: read_texts(put(folder, "a.csv", "x,y\n1,2\n")), DataError, r"no column for the text"),
    # --- checks and sampling
    ("rows that are neither texts nor pairs", lambda folder: check_data([("a", "b"), ("c",)]), UsageError, r"row 2 is \('c',\)"),
    ("a window without a counter", lambda folder: check_data(["a"], window=8), UsageError, r"both count_tokens and window"),
    ("share above 1", lambda folder: split_rows(10, 1.5, 0), UsageError, r"share = 1\.5"),
    ("batches of nothing", lambda folder: LengthBucketedOrder([1], 0, 0), UsageError, r"batch_size = 0"),
    ("keys of other rows", lambda folder: LengthBucketedOrder([1, 1], 2, 0, keys=[[1]]), UsageError, r"keys of 1 rows for lengths of 2"),
    ("a mixture of nothing", mixed(), UsageError, r"sources of \[\] batches; wanted one source or more"),
    ("a mixture with an empty source", mixed(8, 0), UsageError, r"sources of \[2, 0\] batches; wanted .* each with rows"),
    ("unknown mixing", mixed(8, mixing="evenly"), UsageError, r"mixing = 'evenly': choose one of proportional, even, temperature, weights; did you"),
    ("mixing at temperature 0", mixed(8, mixing="temperature", temperature=0.0), UsageError, r"temperature = 0\.0: wanted a number above 0"),
    ("mixing at NaN", mixed(8, mixing="temperature", temperature=math.nan), UsageError, r"temperature = nan"),
    ("mixing by weights without weights", mixed(8, 8, mixing="weights"), UsageError, r"weights go with mixing = 'weights', and with no other"),
    ("weights with another mixing", mixed(8, 8, weights=[1, 2]), UsageError, r"mixing = 'proportional' with weights = \[1, 2\]"),
    ("too few weights", mixed(8, 8, mixing="weights", weights=[1.0]), UsageError, r"weights = \[1\.0\]: wanted 2 numbers above 0, one a source"),
    ("a weight of 0", mixed(8, 8, mixing="weights", weights=[1.0, 0.0]), UsageError, r"wanted 2 numbers above 0"),
    ("batch triplets of one class", lambda folder: ClassOrder([1] * 9, 8, seed=0), DataError, r"9 rows with 1 classes of two rows or more"),
    ("batch triplets of single rows", lambda folder: ClassOrder(range(9), 8, seed=0), DataError, r"9 rows with 0 classes"),
    ("one row a class", lambda folder: ClassOrder([1, 1, 2, 2], 8, 1, seed=0), UsageError, r"per_class = 1: wanted 2 rows or more a class"),
    ("a batch of less than two classes", lambda folder: ClassOrder([1, 1, 2, 2], 7, 4, seed=0), UsageError, r"room for two classes in a batch"),
    # --- what data becomes
    ("triplets of pairs", made(nli_triplets, PAIRS), DataError, r"x\.csv: holds pairs; triplets .* are made from nli"),
    ("NLI without a premise that has both", made(nli_triplets, NLI), DataError, r"in 2 rows no premise has both an entailment and a contradiction"),
    ("unknown way for lone entailments", made(nli_triplets, NLI, without="keep"), UsageError, r"without = 'keep': choose one of drop, pair"),
    ("no positive pair", made(positives, PAIRS.replace(",1", ",0")), DataError, r"no positive pairs: none of 2 rows has label 1"),
    (
        "no score that is high enough",
        made(positives, "sentence1,sentence2,score\na,b,0.5\nc,d,0.1\n"),
        DataError,
        r"none of 2 rows has a score of at least 0\.8 of 1; lower the threshold",
    ),
    ("positives of single texts", made(positives, "text\na\n"), DataError, r"holds texts, in which no two texts belong together"),
    ("threshold above 1", made(positives, PAIRS, threshold=4), UsageError, r"threshold = 4: wanted a number from 0 to 1; scores are mapped"),
    (
        "all training pairs in the test",
        made(without_pairs_of, PAIRS, "sentence1,sentence2\nb,a\nd,C\n"),
        DataError,
        r"every row is in .*test1\.csv, so nothing is left to train on",
    ),
    # --- groups and margins
    (
        "two columns of groups",
        data("x.csv", GROUPED),
        DataError,
        r"'group' and 'group_id' could each be the group.*|group and group_id could each be",
    ),
    ("a list for a group", data("x.jsonl", '{"anchor": "a", "positive": "b", "group": [1]}\n'), DataError, r"row 1 \(line 1\): group is a list"),
    (
        "groups of texts",
        data("x.csv", "text,topic\na,1\n", columns="text=text,group=topic"),
        UsageError,
        r"gives group, which a file of texts has no",
    ),
    (
        "a margin that is no number",
        data("x.csv", "anchor,positive,negative,margin\na,b,c,1\na,b,c,x\n"),
        DataError,
        r"row 2 \(line 3\): label 'x' in column 'margin': wanted a number",
    ),
    (
        "a margin left out",
        data("x.csv", "anchor,positive,negative,margin\na,b,c,\n"),
        DataError,
        r"row 1 \(line 2\): no label in column 'margin'",
    ),
    ("a NaN margin", data("x.csv", "anchor,positive,negative,margin\na,b,c,nan\n"), DataError, r"label 'nan' .*a finite one"),
]


@pytest.mark.parametrize(("name", "run", "error", "message"), CASES, ids=[case[0] for case in CASES])
def test_bad_input(
    tmp_path: Path, name: str, run: Callable[[Path], Any], error: type[TwinvecError], message: str, record_property: Callable[[str, object], None]
) -> None:
    with pytest.raises(error, match=message) as caught:
        run(tmp_path)
    record_property("message", str(caught.value))
    assert type(caught.value) is error
    assert len(str(caught.value)) < 700, "a message is read by a person"


def test_names_are_unique_and_many() -> None:
    names = [case[0] for case in CASES]
    assert len(names) == len(set(names)) >= 35
