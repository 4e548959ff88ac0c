"""Options that several commands share, so that one thing has one name and one help text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer


def one_of(*choices: str) -> Callable[[Any], Any]:
    """A typer callback that refuses, as a usage error, what is not among `choices`."""

    def check(value: Any) -> Any:
        if value is not None and value not in choices:
            raise typer.BadParameter(f"{value!r} is not one of {', '.join(choices)}")
        return value

    return check


def choice(*flags: str, choices: tuple[str, ...], help: str, **more: Any) -> Any:
    """An option with a fixed set of values, shown as a|b|c."""
    return typer.Option(*flags, metavar="|".join(choices), callback=one_of(*choices), help=help, **more)


def value(*flags: str, metavar: str, help: str, **more: Any) -> Any:
    """An option with a value; its help says what holds when it is not given."""
    return typer.Option(*flags, metavar=metavar, help=help, show_default=False, **more)


def argument(metavar: str, help: str) -> Any:
    return typer.Argument(metavar=metavar, help=help, show_default=False)


ENGINES = ("auto", "torch", "ctranslate2", "onnx", "static")
PRECISIONS = ("float32", "bf16", "float16", "int8")
ON_LONG = ("truncate", "error", "split")
INDEX_KINDS = ("auto", "exact", "flat", "ivf", "ivfpq", "hnsw")
DATA_KINDS = ("scores", "pairs", "nli", "triplets", "texts", "parallel", "labelled")
FORMATS = ("csv", "tsv", "tsv-quoted", "jsonl", "json", "parquet", "txt")

MODEL_HELP = "'minilm' (the packaged model), a model folder, or a hub id"

Model = Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP, show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="print one JSON object on standard output")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="no notes and no progress; only the result and errors")]
Force = Annotated[bool, typer.Option("--force", help="replace an existing output file")]

Prompt = Annotated[
    str | None,
    typer.Option(
        "--prompt",
        metavar="NAME",
        help="name of the model's prompt put before each text, \"\" for none; default: the model's own",
        show_default=False,
    ),
]
OnLong = Annotated[str, choice("--on-long", choices=ON_LONG, help="what to do with a text longer than the model's window")]
BatchTokens = Annotated[
    int | None, typer.Option("--batch-tokens", min=1, metavar="N", help="tokens a forward pass; default: what is fastest", show_default=False)
]
Engine = Annotated[
    str,
    choice("--engine", choices=ENGINES, help="what computes; auto: what twinvec tune chose on this machine, else torch in float32"),
]
Precision = Annotated[
    str | None,
    choice(
        "--precision", choices=PRECISIONS, help="numbers the model computes with (float16: on a GPU only); default: float32, or tune's choice",
        show_default=False,
    ),
]  # fmt: skip
Profile = Annotated[
    Path | None,
    typer.Option("--profile", metavar="FILE", help="what twinvec tune chose; default: profile.json of the model", show_default=False),
]
Device = Annotated[str | None, typer.Option("--device", metavar="NAME", help="cpu or cuda; default: cuda when there is one", show_default=False)]
Pooling = Annotated[
    str | None,
    typer.Option("--pooling", metavar="NAME", help="cls, mean, max, ... or a sum such as cls+mean; default: the model's own", show_default=False),
]
MaxTokens = Annotated[
    int | None, typer.Option("--max-tokens", metavar="N", min=1, help="a smaller window; default: the model's own", show_default=False)
]
Revision = Annotated[str | None, typer.Option("--revision", metavar="NAME", help="commit, branch or tag of a hub id", show_default=False)]

Encoding = Annotated[str, typer.Option("--encoding", metavar="NAME", help="text encoding of the files, for example gb18030")]
Format = Annotated[str | None, choice("--format", choices=FORMATS, help="format of the files; default: by their names", show_default=False)]
Columns = Annotated[
    str | None,
    typer.Option(
        "--columns", metavar="LIST", help="which column is which: sentence1=q,sentence2=a,label=y (names, or positions from 1)", show_default=False
    ),
]
Kind = Annotated[
    str | None, choice("--kind", choices=DATA_KINDS, help="what the file holds; default: found from its columns and labels", show_default=False)
]
Labels = Annotated[str | None, typer.Option("--labels", metavar="LIST", help="what labels mean: yes=1,no=0 or x=drop", show_default=False)]
ScoreRange = Annotated[
    str | None, typer.Option("--score-range", metavar="LOW,HIGH", help="ends of the scores; default: found in the file", show_default=False)
]
Split = Annotated[str, typer.Option("--split", metavar="NAME", help="which qrels of a retrieval folder")]
TextColumn = Annotated[
    str | None, typer.Option("--text", metavar="COLUMN", help="column with the text; default: found by its name", show_default=False)
]
IdColumn = Annotated[
    str | None,
    typer.Option("--id", metavar="COLUMN", help="column with the ids; default: found by its name, else FILE:ROW", show_default=False),
]
OutputFile = Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", show_default=False)]
