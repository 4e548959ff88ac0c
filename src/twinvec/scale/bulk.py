"""`encode_files`: texts of any number into a .npy, a Parquet file or a collection. Memory stays flat, and a killed run goes on where it was."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twinvec.data.blocks import STDIN, Source
from twinvec.errors import DataError, UsageError
from twinvec.scale import outputs
from twinvec.scale.compute import Calls, Computer, Here, ModelSpec
from twinvec.scale.report import BulkReport
from twinvec.scale.run import CACHE_BYTES, SHARD_CHARACTERS, SHARD_ROWS, Job, Notify, Run

if TYPE_CHECKING:
    from twinvec.model.encoder import Encoder


def encode_files(
    model: str | Path | Encoder | Computer, texts: str | Path | Sequence[str | Path], output: str | Path, *, prompt: str | None = None,
    on_long: str = "truncate", batch_tokens: int | None = None, store: str = "float32", dimensions: int | None = None,
    ranges: str | Path | None = None, text: str | None = None, id: str | None = None,
    encoding: str = "utf-8", format: str | None = None, resume: bool = True, force: bool = False,
    processes: int | None = None, devices: Sequence[str] = (), ray: str | None = None, cache_bytes: int = CACHE_BYTES,
    shard_rows: int = SHARD_ROWS, shard_characters: int = SHARD_CHARACTERS, progress: bool = False, notify: Notify | None = None, **load: Any,
) -> BulkReport:  # fmt: skip
    """Encode the texts of files (csv, tsv, jsonl, parquet, txt, each also .gz; "-" is standard input) into `output`. Returns what happened to them.

    model: as for `Encoder.load`, or an encoder, or an open `Pool`.
    output: NAME.npy (rows in order), NAME.parquet (id, text, vector), or "collection:FOLDER". A file is written whole or not at all; the work lies
    in NAME.parts/ until then, and a run that was broken off goes on from there when it is given again (resume=False begins anew).
    store: "float32", "float16", "int8" (ranges of the first shard, or from the file `ranges`), "binary". dimensions: keep the first so many, at
    length 1 again. processes, devices: several processes, several GPUs. ray: "local", "auto" or an address. load: as for `Encoder.load`.
    Rows with equal texts are encoded once, as long as the first is among the last `cache_bytes` of distinct ones.
    Raises UsageError, DataError, ModelError, EncodeError with the row, WorkerError; the parts stay, but for a job that has not finished one.
    """
    paths = [str(path) for path in ([texts] if isinstance(texts, (str, Path)) else texts)]
    kind, target = _target(str(output), force)
    source = Source(tuple(paths), text, id, encoding, format)
    given = None if ranges is None else Path(ranges)
    calls = Calls(prompt, on_long, batch_tokens)
    job = Job(source, target, kind, calls, store, dimensions, given, cache_bytes, shard_rows, shard_characters)
    blocks = job.blocks()
    head = [block for _ in range(2) if (block := next(blocks, None)) is not None]  # a file that cannot be read is said before the model is loaded
    if not head:
        raise DataError(f"{'standard input' if paths == [STDIN] else ', '.join(paths)}: no texts")
    few = len(head) == 1
    say = notify or (lambda _: None)
    with computer_for(model, processes, list(devices), ray, few, say, load) as computer:
        return Run(job, computer, chain(head, blocks), few, say).go(resume, progress)


def _target(output: str, force: bool) -> tuple[str, Path]:
    """(kind, path); UsageError for a name that tells no kind, or a file that is there."""
    if output.startswith(outputs.COLLECTION):
        return "collection", Path(output.removeprefix(outputs.COLLECTION))
    path = Path(output)
    kind = path.suffix.lower().removeprefix(".")
    if f".{kind}" not in outputs.SUFFIXES:
        raise UsageError(f"output {output}: the name's ending chooses the format; wanted .npy, .parquet or collection:FOLDER")
    if path.is_dir():
        raise UsageError(f"output {output} is a folder; give the name of a file")
    if path.exists() and not force:
        raise UsageError(f"output {output} exists already; give another name, or force to replace it")
    path.parent.mkdir(parents=True, exist_ok=True)
    return kind, path


def computer_for(
    model: Any, processes: int | None, devices: list[str], ray: str | None, few: bool, say: Notify, load: dict[str, Any]
) -> AbstractContextManager[Computer]:  # fmt: skip
    """This process, several, or a cluster. `few`: the input is one shard, which several processes cannot share."""
    if isinstance(model, Computer):
        return nullcontext(model)  # an open pool of the caller, who closes it
    if ray is not None:
        from twinvec.scale.cluster import Cluster

        return Cluster(model, address=ray, processes=processes, device=devices[0] if devices else None, **load)
    if processes is not None and processes < 1:
        raise UsageError(f"processes = {processes}: wanted a number, 1 or more")
    several = (processes or len(devices) or 1) > 1
    if several and few:
        say("the input is one shard, which one process encodes alone; several do not pay here")
    if several and not few:
        from twinvec.scale.processes import Pool

        pool = Pool(model, processes=processes, devices=devices, **load)
        for note in pool.notes():
            say(note)
        return pool
    return Here(ModelSpec(str(model), load) if isinstance(model, (str, Path)) else model, devices[0] if devices else None)
