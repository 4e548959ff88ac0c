"""`twinvec mine`: new training data from texts and a model, one subcommand a kind."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from twinvec.cli import options as opt
from twinvec.cli.console import Console, aligned, one_line, pairs, room
from twinvec.cli.loading import check_inputs, check_output, load_encoder, prompt_note, texts_of
from twinvec.errors import UsageError

if TYPE_CHECKING:
    from twinvec.data.dataset import Dataset
    from twinvec.mining.mined import Mined
    from twinvec.model.cross import CrossEncoder
    from twinvec.model.encoder import Encoder

OUTPUTS = (".jsonl", ".csv", ".tsv", ".parquet")
SAMPLES = ("top", "random")
INCOMPLETE = ("drop", "repeat")

Data = Annotated[Path, opt.value("--data", metavar="FILE", help="pairs (with labels 0 and 1, or without) or triplets")]
Output = Annotated[Path, opt.value("--output", "-o", metavar="FILE", help="where the rows go, by its ending: .jsonl, .csv, .tsv or .parquet")]
CorpusFiles = Annotated[
    list[Path] | None,
    opt.value("--corpus", metavar="FILE", help="texts to choose from; may be given several times; default: all texts of the pairs but the anchors"),
]
CorpusText = Annotated[str | None, opt.value("--corpus-text", metavar="COLUMN", help="column with the corpus's texts; default: found by its name")]
Negatives = Annotated[int, typer.Option("--negatives", metavar="N", min=1, help="negatives a row")]
RankFrom = Annotated[int, typer.Option("--rank-from", metavar="N", min=1, help="first rank of the window of candidates")]
RankTo = Annotated[int, typer.Option("--rank-to", metavar="N", min=1, help="last rank of the window")]
Margin = Annotated[float | None, opt.value("--margin", metavar="X", help="a negative scores at most the positive's score less X")]
Relative = Annotated[
    float | None, opt.value("--relative-margin", metavar="R", help="a negative scores at most R times the positive's score; good: 0.95")
]
MaxScore = Annotated[float | None, opt.value("--max-score", metavar="X", help="a negative scores at most X")]
MinScore = Annotated[float | None, opt.value("--min-score", metavar="X", help="a negative scores at least X")]
Sample = Annotated[str, opt.choice("--sample", choices=SAMPLES, help="which of the candidates left: the hardest, or any")]
Seed = Annotated[int, typer.Option("--seed", metavar="N", min=0, help="of --sample random")]
Incomplete = Annotated[
    str, opt.choice("--incomplete", choices=INCOMPLETE, help="rows with fewer negatives than asked for: leave out, or repeat those they have")
]
Reranker = Annotated[
    str | None, opt.value("--reranker", metavar="MODEL", help="cross-encoder (folder or hub id) whose scores decide instead of the model's")
]
Metric = Annotated[str, opt.choice("--metric", choices=("cosine", "dot"), help="how vectors are compared")]
QueryPrompt = Annotated[str | None, opt.value("--query-prompt", metavar="NAME", help="prompt of the anchors; default: as --prompt")]
DocumentPrompt = Annotated[str | None, opt.value("--document-prompt", metavar="NAME", help="prompt of positives and corpus; default: as --prompt")]
Scores = Annotated[bool, typer.Option("--scores", help="write the scores too, and the margin (of one negative a row)")]


def negatives(
    model: opt.Model,
    data: Data,
    output: Output,
    corpus: CorpusFiles = None,
    negatives: Negatives = 1,
    rank_from: RankFrom = 1,
    rank_to: RankTo = 100,
    margin: Margin = None,
    relative_margin: Relative = None,
    max_score: MaxScore = None,
    min_score: MinScore = None,
    sample: Sample = "top",
    seed: Seed = 0,
    incomplete: Incomplete = "drop",
    reranker: Reranker = None,
    metric: Metric = "cosine",
    scores: Scores = False,
    prompt: opt.Prompt = None,
    query_prompt: QueryPrompt = None,
    document_prompt: DocumentPrompt = None,
    columns: opt.Columns = None,
    kind: opt.Kind = None,
    labels: opt.Labels = None,
    corpus_text: CorpusText = None,
    encoding: opt.Encoding = "utf-8",
    format: opt.Format = None,
    engine: opt.Engine = "auto",
    precision: opt.Precision = None,
    pooling: opt.Pooling = None,
    max_tokens: opt.MaxTokens = None,
    revision: opt.Revision = None,
    device: opt.Device = None,
    force: opt.Force = False,
    json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Find hard negatives for pairs, ready to train on.

    For each pair: texts near to its anchor that are not known to belong to it. Never the anchor, a positive of the same anchor in any row,
    or a text that shares a positive with it. Of labelled pairs those with label 1 are used; texts with label 0 are candidates. The output
    has the columns anchor, positive, negative, negative_2, ... and goes to twinvec train as it is.

    \b
    Example:
      twinvec mine negatives minilm --data pairs.csv -o triplets.jsonl --relative-margin 0.95
      twinvec mine negatives minilm --data pairs.csv --corpus docs.jsonl -o triplets.csv --negatives 5 --rank-from 10 --sample random
    """
    out = Console(json, quiet)
    from twinvec.mining.rules import Rules

    rules = Rules(
        negatives=negatives, rank_from=rank_from, rank_to=rank_to, margin=margin, relative_margin=relative_margin, max_score=max_score,
        min_score=min_score, sample=sample, seed=seed, incomplete=incomplete,
    )  # fmt: skip
    check_output(output, OUTPUTS, force)
    check_inputs([data, *(corpus or [])])
    if corpus_text is not None and not corpus:
        raise UsageError("--corpus-text is for --corpus FILE")
    from twinvec.data.dataset import read_data

    rows = read_data(data, kind=kind, columns=columns, labels=labels, encoding=encoding, format=format)  # type: ignore[arg-type]
    out.describe(rows.describe())
    out.note_all(rows.notes)
    chosen = [text for path in corpus for text in texts_of(path, text=corpus_text, encoding=encoding, format=None)] if corpus else None
    encoder = load_encoder(model, engine=engine, precision=precision, pooling=pooling, max_tokens=max_tokens, revision=revision, device=device)
    asked = prompt if query_prompt is None else query_prompt, prompt if document_prompt is None else document_prompt
    scorer = _load_reranker(reranker, device)
    mined = _mine(out, encoder, rows, chosen, rules, scorer, asked, metric)
    from twinvec.cli.tables import write_table

    write_table(output, mined.columns(scores))
    payload = {
        **mined.to_dict(), "output": str(output), "data": str(data), "model": encoder.name, "reranker": reranker, "metric": metric,
    }  # fmt: skip
    out.result(payload, _lines(mined, output))


def _load_reranker(name: str | None, device: str | None) -> CrossEncoder | None:
    if name is None:
        return None
    from twinvec.model.cross import CrossEncoder

    return CrossEncoder.load(name, device=device)


def _mine(
    out: Console, encoder: Encoder, rows: Dataset, corpus: list[str] | None, rules: Any, scorer: CrossEncoder | None, prompts: Any, metric: str
) -> Mined:
    from twinvec.mining.negatives import mine_negatives

    query, document = prompts
    for side in prompts:
        encoder.prompt_text(side)  # a wrong name is said before the work
    mined = mine_negatives(
        encoder, rows, corpus, rules, reranker=scorer, query_prompt=query, document_prompt=document, metric=metric, progress=out.progress
    )
    out.note_all([*mined.notes, *prompt_note(encoder, query), *prompt_note(encoder, document)])
    return mined


def _lines(mined: Mined, output: Path) -> list[str]:
    """Counts, scores and a sample, for a human."""
    counts = mined.counts
    left = {"label 0": counts["label_0"], "blank": counts["blank"], "no negative": counts["none"], "too few negatives": counts["too_few"]}
    refused = {name.replace("_", " "): count for name, count in mined.removed.items()}
    table = [["", *next(iter(mined.quantiles().values()))]]
    table += [[name, *(f"{x:.3f}" for x in values.values())] for name, values in mined.quantiles().items()]
    lines = [
        f"{output}: {len(mined):,} of {counts['rows']:,} rows, with {mined.rules.negatives} negative{'s' * (mined.rules.negatives > 1)} each",
        *pairs(
            [
                ("searched", f"{counts['corpus']:,} texts for {counts['anchors']:,} anchors"),
                ("rows left out", _listed(left)),
                ("rows filled", f"{counts['filled']:,}" if counts["filled"] else None),
                ("candidates refused", _listed(refused)),
                ("unrelated texts", f"score {mined.background:.3f} on average"),
            ]
        ),
        *aligned(table, right=range(1, len(table[0])), indent="  "),
    ]
    left_room = room(24)
    for one in mined.sample():
        lines += ["", f"  anchor           {one_line(one['anchor'], left_room)}"]
        lines.append(f"  positive  {one['positive_score']:6.3f} {one_line(one['positive'], left_room)}")
        lines += [f"  rank {hit['rank']:<4} {hit['score']:6.3f} {one_line(hit['text'], left_room)}" for hit in one["negatives"]]
    return lines


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items() if count) or "none"


def group(command: type[Any]) -> typer.Typer:
    """The commands of `twinvec mine`; `command`: the class that commands have."""
    found = typer.Typer(
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        help="""Mine training data: hard negatives.

        Each kind of data has its own command; all of them take --json and --quiet.

        \b
        Example:
          twinvec mine negatives minilm --data pairs.csv -o triplets.jsonl
        """,
    )
    found.command("negatives", cls=command)(negatives)
    found.callback()(lambda: None)  # with one command only, typer would make no group of it
    return found
