"""What encoding of any size refuses, and what it says. CASES is the table: name, options, the error, a pattern of its message."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars
import pytest

from twinvec import Pool
from twinvec.errors import DataError, EncodeError, TwinvecError, UsageError
from twinvec.scale.bulk import encode_files
from twinvec.scale.read import read_vectors


def encode(**options: Any) -> Callable[[Path, Any], Any]:
    """A case: encode d/lines.txt to d/out.npy, unless `options` say otherwise. Paths are below the folder of the case."""

    def go(folder: Path, encoder: Any) -> None:
        given = {"texts": "lines.txt", "output": "out.npy", "model": encoder, **options}
        texts = given.pop("texts")
        listed = [texts] if isinstance(texts, str) else texts
        output = given.pop("output")
        target = output if ":" in output else folder / output
        if "ranges" in given:
            given["ranges"] = folder / given["ranges"]
        encode_files(given.pop("model"), [folder / name if name != "-" else name for name in listed], target, **given)

    return go


def read(name: str) -> Callable[[Path, Any], Any]:
    return lambda folder, _: read_vectors(folder / name)


CASES: list[tuple[str, Callable[[Path, Any], Any], type[TwinvecError], str]] = [
    # outputs
    ("output of no kind", encode(output="out.json"), UsageError, r"the name's ending chooses the format; wanted .npy, .parquet or collection:FOLDER"),
    ("output that is there", encode(output="there.npy"), UsageError, r"there.npy exists already; give another name, or force"),
    ("output that is a folder", encode(output="folder.npy"), UsageError, r"folder.npy is a folder; give the name of a file"),
    ("folder of parts that is a file", encode(output="blocked.npy"), UsageError, r"blocked.npy.parts is a file; the parts of .* need a folder"),
    ("unknown store", encode(store="int4"), UsageError, r"store = 'int4': choose one of float32, float16, int8, binary"),
    ("short vectors into a collection", encode(output="collection:faq", dimensions=4), UsageError, r"a collection stores the model's vectors"),
    ("ids into npy", encode(texts="table.csv", id="id"), UsageError, r"--id: a .npy file holds vectors only"),
    # options
    ("ranges for floats", encode(ranges="ranges.json"), UsageError, r"--ranges is for --store int8; the store is float32"),
    ("dimensions above the model's", encode(dimensions=33), UsageError, r"dimensions = 33: the model .* gives 32; wanted 1 to 32"),
    ("no dimensions", encode(dimensions=0), UsageError, r"dimensions = 0: .* wanted 1 to 32"),
    ("no processes", encode(processes=0), UsageError, r"processes = 0: wanted a number, 1 or more"),
    ("negative cache", encode(cache_bytes=-1), UsageError, r"cache_bytes = -1: wanted a number of bytes"),
    ("shards of no rows", encode(shard_rows=0), UsageError, r"shard_rows = 0: wanted a number, 1 or more"),
    ("unknown prompt", encode(prompt="qery"), UsageError, r"knows these prompts: query, passage; did you mean 'query'\?"),
    ("standard input twice", encode(texts=["-", "-"]), UsageError, r"standard input\) was given twice"),
    ("no files", encode(texts=[]), UsageError, r"texts: no file was given"),
    ("pool of no processes", lambda d, e: Pool(e, processes=0), UsageError, r"processes = 0: wanted a number, 1 or more"),
    ("pool of a model that lies nowhere", lambda d, e: Pool(nowhere(e)), UsageError, r"was not loaded from a folder, so other"),
    # inputs
    ("file that is not there", encode(texts=["lines.txt", "none.txt"]), DataError, r"none.txt: no such file"),
    ("table without texts", encode(texts="numbers.csv"), DataError, r"numbers.csv: no column for the text .*among 'one', 'two'"),
    ("text that is a number", encode(texts="mixed.jsonl"), DataError, r"mixed.jsonl, row 2 \(line 2\): 'text' is 3 \(int\); wanted a text"),
    ("missing text in Parquet", encode(texts="null.parquet"), DataError, r"null.parquet, row 2: 'text' is missing"),
    ("column of Parquet that is not there", encode(texts="null.parquet", text="body"), UsageError, r"--text 'body' is no column; there are 'text'"),
    ("header alone", encode(texts="empty.csv"), DataError, r"empty.csv: no rows"),
    ("id twice in two files", encode(texts=["table.csv", "table2.csv"], output="o.parquet"), DataError,
     r"table2.csv, row 1 .*'b' was given before, in .*table.csv, row 2 \(line 3\)"),
    ("text that is too long", encode(texts="long.txt", on_long="error"), EncodeError, r"^row 2 has \d+ tokens, the model's window is 64"),
    # ranges
    ("ranges that are not there", encode(store="int8", ranges="none.json"), DataError, r"none.json: no such file; wanted ranges \(.json\)"),
    ("ranges that are no JSON", encode(store="int8", ranges="lines.txt"), DataError, r"lines.txt: not JSON; wanted ranges"),
    ("ranges of another model", encode(store="int8", ranges="ranges.json"), DataError, r"ranges of 2 dimensions, but the vectors have 32"),
    ("ranges that are turned round", encode(store="int8", ranges="turned.json"), DataError, r"two equal rows of finite numbers, low <= high"),
    ("ranges from other samples", encode(store="int8", ranges="there.npy"), DataError, r"float64 of shape \(3,\); wanted finite float sample"),
    # reading back
    ("vectors that are not there", read("none.npy"), DataError, r"none.npy: no such file; wanted .npy or .parquet"),
    ("vectors of no kind", read("lines.txt"), DataError, r"lines.txt: the name's ending tells the format"),
    ("npy that is text", read("text.npy"), DataError, r"text.npy: not a readable .npy file"),
    ("npy of one row", read("there.npy"), DataError, r"an array float64 of shape \(3,\); wanted rows of float32, float16, int8, binary numbers"),
    ("int8 without its table", read("bare.npy"), DataError, r"bare.npy: int8 numbers need the table .* bare.store.json; put it there"),
    ("table that is no table", read("odd.npy"), DataError, r"odd.store.json: not a table of int8 vectors"),
    ("Parquet without vectors", read("null.parquet"), DataError, r"null.parquet: no column 'vector' of rows of one length"),
    ("Parquet that is text", read("text.parquet"), DataError, r"text.parquet: not a readable Parquet file"),
]  # fmt: skip


def nowhere(encoder: Any) -> Any:
    class Unsaved:
        source = None
        engine = encoder.engine

    return Unsaved()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Everything that the cases name."""
    (tmp_path / "lines.txt").write_text("the cat\nthe dog\n")
    (tmp_path / "long.txt").write_text("the cat\nthe cat\n" + "the cat " * 100)
    (tmp_path / "folder.npy").mkdir()
    (tmp_path / "blocked.npy.parts").write_text("")
    (tmp_path / "numbers.csv").write_text("one,two\n1,2\n")
    (tmp_path / "table.csv").write_text("id,text\na,x\nb,y\n")
    (tmp_path / "table2.csv").write_text("id,text\nb,x\n")
    (tmp_path / "empty.csv").write_text("id,text\n")
    (tmp_path / "mixed.jsonl").write_text('{"text": "a"}\n{"text": 3}\n')
    (tmp_path / "ranges.json").write_text(json.dumps({"low": [0, 0], "high": [1, 1]}))
    (tmp_path / "turned.json").write_text(json.dumps({"low": [1] * 32, "high": [0] * 32}))
    (tmp_path / "odd.store.json").write_text("[]")
    for name in ("text.npy", "text.parquet"):
        (tmp_path / name).write_text("not this")
    np.save(tmp_path / "there.npy", np.zeros(3))
    for name in ("bare.npy", "odd.npy"):
        np.save(tmp_path / name, np.zeros((2, 3), np.int8))
    polars.DataFrame({"text": ["a", None]}).write_parquet(tmp_path / "null.parquet")
    return tmp_path


@pytest.mark.parametrize(("name", "go", "error", "message"), CASES, ids=[case[0] for case in CASES])
def test_bad_input(
    name: str,
    go: Callable[[Path, Any], Any],
    error: type[TwinvecError],
    message: str,
    place: Path,
    encoder: Any,
    record_property: Callable[[str, object], None],
) -> None:
    before = sorted(str(path) for path in place.rglob("*"))
    with pytest.raises(error) as caught:
        go(place, encoder)
    assert re.search(message, str(caught.value).replace(f"{place}/", "")), str(caught.value)
    assert sorted(str(path) for path in place.rglob("*")) == before
    record_property("message", str(caught.value))
