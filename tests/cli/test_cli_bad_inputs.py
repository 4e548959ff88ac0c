"""What the command line says to wrong arguments and broken inputs: one line, an exit code, nothing left behind."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

# (name, arguments, exit code, regular expression on standard error). {d} is the folder of the files, {m} the model, {o} another model.
BAD = [
    # wrong usage
    ("unknown command", "serch", 2, r"No such command 'serch'. Did you mean 'search'\?\nTry: twinvec --help"),
    ("unknown option", "encode {m} {d}/lines.txt -o {d}/out.npy --promt query", 2, r"No such option: --promt.*--prompt"),
    ("missing argument", "encode", 2, r"Missing argument 'MODEL'"),
    ("missing output", "encode {m} {d}/lines.txt", 2, r"Missing option '--output'"),
    ("engine that is not there", "encode {m} {d}/lines.txt -o {d}/out.npy --engine tpu", 2, r"'--engine': 'tpu' is not one of auto, torch"),
    ("wrong choice", "encode {m} {d}/lines.txt -o {d}/out.npy --on-long cut", 2, r"'cut' is not one of truncate, error, split"),
    ("no number", "search {c} cat -k ten", 2, r"Invalid value for '-k'"),
    ("k of zero", "search {c} cat -k 0", 2, r"'-k'"),
    ("batch of no tokens", "encode {m} {d}/lines.txt -o {d}/out.npy --batch-tokens 0", 2, r"--batch-tokens"),
    ("one text", "similarity {m} alone", 2, r"1 texts: wanted two or more, or --data FILE"),
    ("texts and a file", "similarity {m} a b --data {d}/pairs.csv", 2, r"either texts or --data FILE, not both"),
    ("output without a file", "similarity {m} a b -o {d}/out.csv", 2, r"--output is for --data"),
    ("query and queries", "search {c} cat --queries {d}/lines.txt", 2, r"not both"),
    ("no query", "search {c}", 2, r"give a QUERY or --queries FILE"),
    ("prompts without names", "evaluate {m} {d}/pairs.csv --prompts query", 2, r"--prompts 'query': wanted COLUMN=NAME"),
    ("prompt and prompts", "evaluate {m} {d}/pairs.csv --prompt query --prompts a=b", 2, r"either prompt .* or prompts"),
    ("prompts for a column that is not there", "evaluate {m} {d}/pairs.csv --prompts frage=query", 2, r"'frage': choose one of sentence1, sentence2"),
    ("data option for a model", "inspect {m} --columns a=b", 2, r"--columns is for data files; .* is a model"),
    ("test option for a collection", "inspect {c} --test {d}/pairs.csv", 2, r"--test is for data files; .* is a collection"),
    ("no recipe and no flags", "train", 2, r"give a recipe file, or at least --model"),
    ("recipe that is not there", "train {d}/none.toml", 2, r"none.toml: no such recipe file"),
    ("recipe that is no TOML", "train {d}/broken.toml", 2, r"broken.toml: not TOML"),
    ("recipe with an unknown key", "train {d}/typo.toml", 2, r"typo.toml: unknown key 'epoch'; did you mean 'epochs'\?"),
    ("set without a value", "train --set lr", 2, r"--set 'lr': wanted KEY=VALUE"),
    ("set of an unknown key", "train --set learning_rate=1", 2, r"no recipe key 'learning_rate'"),
    ("flags that are not enough", "train --model {m} --lr 1e-5 --output {d}/r", 2, r"'data' is missing"),
    ("value out of bounds", "train --model m --data d --objective triplet --output {d}/r --lr -1", 2, r"lr = -1.0: .*greater than 0"),
    ("objective that is not there", "train --objective cosin", 2, r"'cosin' is not one of classification, regression, triplet, infonce"),
    ("demo in another language", "demo --language de -o {d}/demo", 2, r"'de' is not one of en, zh"),
    ("demo over other things", "demo -o {d}", 2, r"holds something that is not a demo"),
    # outputs
    ("output exists", "encode {m} {d}/lines.txt -o {d}/taken.npy", 2, r"taken.npy exists already; give another name, or --force"),
    ("output of no kind", "encode {m} {d}/lines.txt -o {d}/out.json", 2, r"the name's ending chooses the format; wanted one of .npy, .parquet"),
    ("output is a folder", "encode {m} {d}/lines.txt -o {d}/folder.npy --force", 2, r"folder.npy is a folder"),
    ("output below a file", "encode {m} {d}/lines.txt -o {d}/lines.txt/out.npy", 2, r"lines.txt is a file, so there can be no file below it"),
    ("ids in npy", "encode {m} {d}/answers.csv -o {d}/out.npy --id id", 2, r"--id: a .npy file holds vectors only"),
    ("tsv that cannot hold a text", "similarity {m} --data {d}/breaks.csv -o {d}/out.tsv", 1, r"row 1 has a tab or line break inside a text"),
    ("run exists", "train --model {m} --data {d}/pairs.csv --objective regression --output {d}", 2, r"is a folder with other things in it"),
    # inputs
    ("no such file", "encode {m} {d}/none.txt -o {d}/out.npy", 1, r"none.txt: no such file"),
    ("no such file to evaluate", "evaluate {m} {d}/pairs.csv {d}/pears.csv", 1, r"pears.csv: no such file"),
    ("no such file to inspect", "inspect {d}/pears.csv", 1, r"pears.csv: no such file; did you mean 'pairs.csv'\?"),
    ("folder as texts", "encode {m} {d}/folder.npy -o {d}/out.npy", 1, r"folder.npy is a folder; give a file"),
    ("folder to evaluate", "evaluate {m} {d}/folder.npy", 1, r"corpus.jsonl"),
    ("empty file", "encode {m} {d}/empty.txt -o {d}/out.npy", 1, r"empty.txt: the file is empty"),
    ("empty standard input", "encode {m} - -o {d}/out.npy", 1, r"standard input: no texts"),
    ("web page", "evaluate {m} {d}/page.csv", 1, r"page.csv is a web page"),
    ("other encoding", "encode {m} {d}/gb.csv -o {d}/out.npy", 1, r"gb.csv, line 2: .* is not utf-8; --encoding gb18030 reads it"),
    ("unknown encoding", "encode {m} {d}/lines.txt -o {d}/out.npy --encoding utf8mb4", 2, r"utf8mb4"),
    ("unknown encoding of standard input", "encode {m} - -o {d}/out.npy --encoding utf8mb4", 2, r"--encoding 'utf8mb4': no such text encoding"),
    ("no column for the text", "index {d}/new {d}/numbers.csv --model {m}", 1, r"no column for the text.*--text"),
    ("column that is not there", "encode {m} {d}/answers.csv -o {d}/out.npy --text body", 2, r"--text 'body' is no column"),
    ("columns that are not there", "evaluate {m} {d}/pairs.csv --columns sentence1=q,sentence2=a", 2, r"--columns names 'q'.*'sentence1'"),
    ("label that is no number", "evaluate {m} {d}/label.csv", 1, r"label.csv, row 2 \(line 3\).*'high'"),
    ("texts to evaluate", "evaluate {m} {d}/lines.txt", 1, r"nothing to measure in a file of kind 'texts'"),
    ("texts to score", "similarity {m} --data {d}/lines.txt -o {d}/out.csv", 2, r"holds texts: wanted two texts a row"),
    ("split that is not there", "evaluate {m} {d}/beir --split dev", 1, r"test"),
    ("text too long", "encode {m} {d}/long.txt -o {d}/out.npy --on-long error", 1, r"has \d+ tokens, the model's window is 64"),
    ("id twice", "index {d}/new {d}/twice.csv --model {m}", 1, r"twice.csv, row 2 \(line 3\): the id 'a' was given before"),
    ("empty query", ["search", "{c}", " "], 2, r"the query is empty"),
    ("empty query in a file", "search {c} --queries {d}/lines.txt", 2, r"query 2 of 4 is empty"),
    # models and collections
    ("no such model", "similarity {d}/none a b", 1, r"no model '.*none': give 'minilm', a folder that exists, or a hub id"),
    ("nearly minilm", "similarity minilmm a b", 1, r"did you mean 'minilm'\?"),
    ("folder that is no model", "similarity {d}/beir a b", 1, r"is no model folder"),
    ("file as a model", "similarity {d}/pairs.csv a b", 1, r"pairs.csv is a file; give the model's folder"),
    ("unknown prompt", "encode {m} {d}/lines.txt -o {d}/out.npy --prompt qery", 2, r"knows these prompts: query, passage; did you mean 'query'\?"),
    ("prompt of a model without", "similarity {o} a b --prompt query", 2, r"knows these prompts: none"),
    ("window too large", "similarity {m} a b --max-tokens 100", 2, r"max_tokens = 100: this model's window is 1 to 64"),
    ("unknown pooling", "similarity {m} a b --pooling middle", 2, r"middle"),
    ("half precision on a CPU", "similarity {m} a b --precision float16 --device cpu", 2, r"float16.*use float32 or bf16"),
    ("no such device", "similarity {m} a b --device tpu9", 2, r"device = 'tpu9'"),
    ("revision of a folder", "similarity {m} a b --revision main", 2, r"revision = 'main': .* has no revisions"),
    ("collection that is not there", "search {d}/none cat", 1, r"none: not there; make a collection with: twinvec index"),
    ("folder that is no collection", "search {d}/beir cat", 1, r"a folder, but no collection"),
    ("new collection without a model", "index {d}/new {d}/answers.csv", 2, r"is a new collection: say with which model"),
    ("collection in a taken place", "index {d}/beir {d}/answers.csv --model {m}", 1, r"the path is taken"),
    ("collection of another model", "search {c} cat --model {o}", 1, r"was made with the model .* Vectors of two models cannot be compared"),
    ("index with another model", "index {c} {d}/answers.csv --model {o}", 1, r"Vectors of two models cannot be compared"),
    ("other kind for a collection", "index {c} {d}/answers.csv --kind flat", 2, r"--kind 'flat': .* was made with 'auto'"),
    ("nothing to do with a collection", "index {c}", 2, r"nothing to do: give documents to add, or one of --delete, "),
    ("delete without a filter", "index {c} --delete", 2, r"--delete: say what is to go with --where FILTER"),
    ("a filter without delete", ["index", "{c}", "{d}/answers.csv", "--where", "topic = 'pay'"], 2, r"--where belongs to --delete here"),
    ("delete and add at once", ["index", "{c}", "{d}/answers.csv", "--delete", "--where", "n = 1"], 2, r"--delete and DOCS: give one at a time"),
    ("delete by half a filter", ["index", "{c}", "--delete", "--where", "topic ="], 2, r"where"),
    ("delete ids of no file", "index {c} --delete-ids {d}/none.txt", 1, r"none.txt: no such file"),
    ("reindex without a model", "index {c} --reindex", 2, r"--reindex: say to which model, for example --model minilm"),
    ("reindex and compact at once", "index {c} --reindex --compact --model {m}", 2, r"--reindex and --compact: give one at a time"),
    ("compact what is not there", "index {d}/none --compact", 1, r"none: not there; make a collection with: twinvec index"),
    ("memory that is no size", "index {c} --optimize --memory much", 2, r"--memory 'much': wanted a size, for example 2GB or 500MB"),
    ("an index for a recall of 95", "index {c} --optimize --kind ivf --recall 95", 2, r"recall = 95.0: wanted a share"),
    ("an index on the id", "index {c} --index-field id", 2, r"'id' is no plain metadata field"),
    (
        "passages longer than the window",
        "index {c} {d}/answers.csv --on-long passages --passage-tokens 9999",
        2,
        r"passage_tokens = 9999: the window of .* which leaves \d+ for a passage",
    ),
    ("overlap without passages", "index {c} {d}/answers.csv --passage-overlap 3", 2, r"passage_overlap: they need on_long = 'passages'"),
    ("other numbers for a collection", "index {c} {d}/answers.csv --store int8", 2, r"--store 'int8': .* was made with 'float32', which stays"),
    ("other prompt for a collection", "index {c} {d}/answers.csv --prompt query", 2, r"--prompt 'query': .* was made with 'passage'"),
    ("unknown prompt for a collection", "index {d}/new {d}/answers.csv --model {m} --prompt doc", 2, r"document_prompt = 'doc'"),
]  # fmt: skip


@pytest.fixture
def place(files: Path) -> Path:
    """Everything that the cases name."""
    (files / "taken.npy").write_bytes(b"mine")
    (files / "folder.npy").mkdir()
    (files / "empty.txt").write_bytes(b"")
    (files / "page.csv").write_text("<!DOCTYPE html><html><body>log in</body></html>")
    (files / "gb.csv").write_bytes("text\n如何关闭支付宝\n".encode("gb18030"))
    (files / "numbers.csv").write_text("one,two\n1,2\n")
    (files / "label.csv").write_text("sentence1,sentence2,score\na,b,1.5\nc,d,high\n")
    (files / "breaks.csv").write_text('sentence1,sentence2\n"one\ntwo",b\n')
    (files / "long.txt").write_text("the cat\n" + "the cat sat on the mat " * 30 + "\n")
    (files / "twice.csv").write_text("id,text\na,x\na,y\n")
    (files / "broken.toml").write_text("model = \n")
    (files / "typo.toml").write_text('model = "m"\ndata = "d"\nobjective = "triplet"\noutput = "o"\nepoch = 2\n')
    (files / "beir" / "qrels").mkdir(parents=True)
    (files / "beir" / "corpus.jsonl").write_text(json.dumps({"_id": "a", "text": "x"}) + "\n")
    (files / "beir" / "queries.jsonl").write_text(json.dumps({"_id": "q", "text": "x"}) + "\n")
    (files / "beir" / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\ta\t1\n")
    return files


def tree(folder: Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


@pytest.mark.parametrize(("name", "arguments", "code", "message"), BAD, ids=[row[0] for row in BAD])
def test_bad_input(
    name: str,
    arguments: str | list[str],
    code: int,
    message: str,
    run: Any,
    place: Path,
    saved_model: Path,
    other_model: Path,
    made_collection: Path,
    record_property: Callable[[str, object], None],
) -> None:
    names = {"d": place, "m": saved_model, "o": other_model, "c": made_collection}
    before = tree(place), tree(made_collection)
    words = arguments if isinstance(arguments, list) else arguments.split()
    found = run(*[word.format(**names) for word in words], input=b"")
    assert re.search(message, found.err, re.DOTALL), found.err
    assert found.code == code
    assert found.out == ""
    assert "Traceback" not in found.err
    assert "unexpected" not in found.err
    errors = [line for line in found.err.splitlines() if line.startswith("twinvec: ")]
    assert len(errors) == 1
    record_property("message", errors[0].removeprefix("twinvec: error: "))
    assert errors[0].startswith("twinvec: error: ")
    after = tree(place), tree(made_collection)
    assert after == before, "something was left behind"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written(run: Any, saved_model: Path, files: Path) -> None:
    (files / "closed").mkdir(mode=0o500)
    found = run("encode", saved_model, files / "lines.txt", "-o", files / "closed" / "out.npy")
    assert found.code == 2
    assert "cannot be written to" in found.err


def test_a_damaged_model_is_refused(run: Any, saved_model: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(saved_model, tmp_path / "m"))
    with open(model / "model.safetensors", "r+b") as stream:
        stream.truncate(1000)
    found = run("similarity", model, "a", "b")
    assert found.code == 1
    assert "model.safetensors" in found.err or "weights cannot be read" in found.err
    assert "unexpected" not in found.err
