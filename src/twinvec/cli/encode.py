"""`twinvec encode`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from twinvec.cli import options as opt
from twinvec.cli.console import Console, bytes_text
from twinvec.cli.loading import check_inputs, check_output, documents_of, load_encoder, prompt_note, texts_of
from twinvec.errors import DataError, EncodeError, UsageError

if TYPE_CHECKING:
    from twinvec.model.encoder import Encoder
    from twinvec.records import EncodeReport

BLOCK_ROWS, BLOCK_BYTES = (
    10_000,
    256 << 20,
)  # of vectors held at once; only larger jobs are cut into blocks, since repeated texts are found within a block


Texts = Annotated[Path, opt.argument("TEXTS", "file with texts (txt, csv, tsv, jsonl, parquet, each also .gz), or - for standard input")]
Output = Annotated[
    Path, opt.value("--output", "-o", metavar="FILE", help="where the vectors go: .npy (rows in order) or .parquet (id, text, vector)")
]
Engine = Annotated[str, opt.choice("--engine", choices=opt.ENGINES, help="what computes")]
Store = Annotated[str, opt.choice("--store", choices=("float32", "float16"), help="numbers in the file")]
Text = Annotated[str | None, opt.value("--text", "--column", metavar="COLUMN", help="column with the text; default: found by its name")]
Id = Annotated[str | None, opt.value("--id", metavar="COLUMN", help="column with the ids, for .parquet; default: found by its name, else FILE:ROW")]


def encode(
    model: opt.Model,
    texts: Texts,
    output: Output,
    prompt: opt.Prompt = None,
    on_long: opt.OnLong = "truncate",
    batch_tokens: opt.BatchTokens = None,
    engine: Engine = "auto",
    precision: opt.Precision = "float32",
    store: Store = "float32",
    text: Text = None,
    id: Id = None,
    encoding: opt.Encoding = "utf-8",
    format: opt.Format = None,
    pooling: opt.Pooling = None,
    max_tokens: opt.MaxTokens = None,
    revision: opt.Revision = None,
    device: opt.Device = None,
    force: opt.Force = False,
    json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Turn texts into vectors.

    One row a text, in the file's order. Says how many texts were cut, empty or unknown to the model. The output is written whole or not at all.

    \b
    Example:
      twinvec encode minilm questions.csv -o questions.parquet
      cat lines.txt | twinvec encode minilm - -o lines.npy --on-long split
    """
    out = Console(json, quiet)
    check_output(output, (".npy", ".parquet"), force)
    check_inputs([texts])
    rows = _rows(texts, output, text=text, id=id, encoding=encoding, format=format)
    first = next(rows, None)  # a file that cannot be read is said before the model is loaded
    if first is None:
        raise DataError(f"{'standard input' if str(texts) == '-' else texts}: no texts")
    encoder = load_encoder(model, device=device, precision=precision, revision=revision, pooling=pooling, max_tokens=max_tokens)
    calls: dict[str, Any] = {"prompt": prompt, "on_long": on_long, "batch_tokens": batch_tokens, "progress": out.progress}
    report = write_vectors(encoder, chain([first], rows), output, store, calls)
    out.note_all([*report.warnings(), *prompt_note(encoder, prompt)])
    payload = {
        **report.to_dict(),
        "store": store,
        "output": str(output),
        "bytes": output.stat().st_size,
        "model": encoder.name,
        "fingerprint": encoder.fingerprint,
    }
    rate = f"{report.rows / report.seconds:.0f} texts/s" if report.seconds else ""
    asked = f", prompt {report.prompt!r}" if report.prompt else ""
    out.result(
        payload,
        [
            f"{output}: {report.rows:,} vectors of {report.dimensions} dimensions ({store}, {bytes_text(payload['bytes'])})",
            f"  {report.tokens:,} tokens in {report.seconds:.1f} s ({rate}); engine {report.engine}, {report.precision}{asked}; "
            f"cut {report.truncated}, split {report.split}, empty {len(report.empty)}, unknown tokens {report.unknown_rate:.1%}",
        ],
    )


def _rows(path: Path, output: Path, *, text: str | None, id: str | None, encoding: str, format: str | None) -> Iterator[tuple[str, str]]:
    """(id, text) of each row; the ids are left empty for a .npy file, which has no place for them."""
    if output.suffix.lower() != ".npy":
        return ((document.id, document.text) for document in documents_of([path], text=text, id=id, encoding=encoding, format=format))
    if id is not None:
        raise UsageError("--id: a .npy file holds vectors only; give a .parquet file as output to keep ids and texts")
    return (("", text) for text in texts_of(path, text=text, encoding=encoding, format=format))


def write_vectors(encoder: Encoder, rows: Iterator[tuple[str, str]], output: Path, store: str, calls: dict[str, Any]) -> EncodeReport:
    """Encode (id, text) rows block by block into `output`; the report over all of them."""
    from twinvec.cli.vectors import sink
    from twinvec.evaluation.encoding import join_reports

    block = max(BLOCK_ROWS, BLOCK_BYTES // (4 * encoder.dimensions))
    reports, done = [], 0
    with sink(output, encoder.dimensions, store) as target:
        while listed := list(islice(rows, block)):
            texts = [text for _, text in listed]
            try:
                encoding = encoder.encode_with_report(texts, **calls)
            except EncodeError as err:
                where = f"texts {done + 1} to {done + len(listed)}: " if done or len(listed) == block else ""
                raise EncodeError(f"{where}{err}") from err
            target.add([id for id, _ in listed], texts, encoding.vectors)
            reports.append(encoding.report)
            done += len(listed)
    return join_reports(reports)
