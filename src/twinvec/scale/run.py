"""One run of a job: what is there already is played back, the rest encoded, and all of it put together."""

from __future__ import annotations

import io
import re
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from twinvec import __version__
from twinvec.data.blocks import STDIN, Block, Source, count_rows, head_digest, read_blocks
from twinvec.errors import DataError, EncodeError, UsageError, choose
from twinvec.files import write_bytes
from twinvec.progress import Progress
from twinvec.scale import outputs
from twinvec.scale.cache import Cache, Plan
from twinvec.scale.compute import Calls, Computed, Computer, Facts
from twinvec.scale.parts import FORMAT, Parts, Shard, digest, record_batch
from twinvec.scale.report import BulkReport, Tally
from twinvec.scale.stored import NUMPY, STORES, Ranges, read_ranges, shortened, to_store, width

if TYPE_CHECKING:
    from twinvec.index.collection import Collection

SHARD_ROWS: Final = 8192
SHARD_CHARACTERS: Final = 4 << 20
CACHE_BYTES: Final = 128 << 20
Notify = Callable[[str], None]


@dataclass(frozen=True)
class Job:
    """What is to be made of what, the model apart."""

    source: Source
    output: Path
    kind: str  # npy, parquet, collection
    calls: Calls
    store: str = "float32"
    dimensions: int | None = None
    ranges: Path | None = None
    cache_bytes: int = CACHE_BYTES
    shard_rows: int = SHARD_ROWS
    shard_characters: int = SHARD_CHARACTERS

    def __post_init__(self) -> None:
        choose("store", self.store, STORES)
        if self.kind == "collection" and (self.store != "float32" or self.dimensions is not None):
            raise UsageError("a collection stores the model's vectors as they are; leave out --store and --dimensions, or write a .npy or .parquet")
        if self.ranges is not None and self.store != "int8":
            raise UsageError(f"--ranges is for --store int8; the store is {self.store}")
        if self.kind == "npy" and self.source.id is not None:
            raise UsageError("--id: a .npy file holds vectors only; give a .parquet file as output to keep ids and texts")
        for name in ("shard_rows", "shard_characters"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} = {getattr(self, name)}: wanted a number, 1 or more")
        if self.cache_bytes < 0:
            raise UsageError(f"cache_bytes = {self.cache_bytes}: wanted a number of bytes, or 0 to remember nothing")

    @property
    def keep(self) -> str:
        return {"npy": "texts", "parquet": "ids", "collection": "documents"}[self.kind]

    def blocks(self) -> Iterator[Block]:
        return read_blocks(self.source, rows=self.shard_rows, characters=self.shard_characters, keep=self.keep)

    def manifest(self, facts: Facts) -> dict[str, Any]:
        """All that the numbers depend on. The number of processes is not among it."""
        source = asdict(self.source)
        return {
            "format": FORMAT,
            "twinvec": __version__,
            "input": [_identity(path) for path in source.pop("paths")],
            "option": {
                **source,
                **asdict(self.calls),
                "store": self.store,
                "dimensions": self.dimensions,
                "ranges": None if self.ranges is None else head_digest(self.ranges),
            },
            "output": self.kind,
            "model": {"fingerprint": facts.fingerprint, "engine": facts.engine, "precision": facts.precision, "window": facts.max_tokens},
            "shard": {"rows": self.shard_rows, "characters": self.shard_characters, "cache_bytes": self.cache_bytes},
        }


def _identity(name: str) -> dict[str, Any]:
    path = Path(name)
    if name == STDIN or not path.is_file():  # a pipe, or a folder
        return {"path": name}
    stat = path.stat()
    return {"path": str(path.resolve()), "bytes": stat.st_size, "mtime": stat.st_mtime_ns, "sha256_of_head": head_digest(path)}


class Run:
    """One run of a job: plays back the shards that are there, encodes the rest, puts them together."""

    def __init__(self, job: Job, computer: Computer, blocks: Iterator[Block], few: bool, say: Notify) -> None:
        self.job, self.computer, self.blocks, self.few, self.say = job, computer, blocks, few, say
        self.facts = computer.facts
        self.dimensions = _cut(job.dimensions, self.facts, say)
        self.ranges = read_ranges(job.ranges, self.dimensions) if job.ranges is not None else None
        self.cache = Cache(width(job.store, self.dimensions), NUMPY[job.store], job.cache_bytes)
        self.parts, self.tally = Parts(job.output), Tally()
        self.collection: Collection | None = None
        self.calls = job.calls
        self.waiting: deque[tuple[int, Block, Plan]] = deque()
        self.asked = self.resumed = 0
        self.only: Shard | None = None

    def go(self, resume: bool, progress: bool) -> BulkReport:
        start = time.perf_counter()
        job, facts = self.job, self.facts
        prompt = facts.prompt_text(job.calls.prompt)
        try:
            done = self.parts.open(job.manifest(facts), resume)
            if done and job.store == "int8":
                self.ranges = self.parts.ranges(self.dimensions)
            if job.kind == "collection":
                self.collection = outputs.open_collection(job.output, facts, job.calls.prompt)
                named = self.collection.settings.document_prompt
                self.calls = Calls(named or "", job.calls.on_long, job.calls.batch_tokens)
                prompt = facts.prompt_text(named or "")
            with Progress(count_rows(job.source), "encode", show=progress, unit="texts") as bar:
                self._encode(done, bar)
            self._put_together(prompt)
            self.parts.remove()
        except BaseException:
            self._leave()
            raise
        finally:
            if self.collection is not None:
                self.collection.close()
        return self._report(prompt, time.perf_counter() - start)

    def _encode(self, done: int, bar: Progress) -> None:
        results = self.computer.results(self._asking(done, bar), self.calls)
        start, before = time.perf_counter(), 0
        while True:
            try:
                found = next(results, None)
                if found is None:
                    break
                self._settle(*self.waiting[0], found)
            except EncodeError as err:
                raise self._located(err) from err
            _, block, _ = self.waiting.popleft()
            before += len(block)
            bar.advance(len(block), rate=f"{before / max(time.perf_counter() - start, 1e-9):,.0f}/s", known=self.tally.sums["cache_hits"])
        if done > self.asked:
            raise DataError(f"{self.parts.folder} holds {done} parts, but the input ends after {self.asked}: it has changed; see --no-resume")

    def _asking(self, done: int, bar: Progress) -> Iterator[list[str]]:
        """The texts to encode, block by block, after those that are there already were played back."""
        for number, block in enumerate(self.blocks):
            self.asked = number + 1
            if number < done:
                self._play_back(number, block)
                bar.advance(len(block))
                continue
            if number == done and number:
                self.say(f"{self.resumed:,} rows were done before, in {self.parts.folder}; going on from there")
            plan = self.cache.plan(block.texts)
            self.waiting.append((number, block, plan))
            yield [block.texts[row] for row in plan.fresh.tolist()]

    def _play_back(self, number: int, block: Block) -> None:
        notes = self.parts.notes(number)
        if notes["digest"] != digest(block):
            first = self.resumed + 1
            raise DataError(
                f"rows {first:,} to {first + len(block) - 1:,} of the input are not those that {self.parts.folder} was begun with; "
                "give the input it was begun with to go on, or --no-resume to begin again"
            )
        if self.collection is None:
            shard, plan = self.parts.read(number), self.cache.plan(block.texts)
            self.cache.remember(plan, shard.vectors[plan.fresh], shard.counts[plan.fresh])
        self.tally.add(notes["tally"])
        self.resumed += len(block)

    def _settle(self, number: int, block: Block, plan: Plan, found: Computed) -> None:
        """Make a shard of what came back, and keep it."""
        vectors = shortened(found.vectors, self.dimensions)
        fresh_ranges = self.job.store == "int8" and self.ranges is None
        if fresh_ranges:
            self.ranges = Ranges.of(vectors)
        stored, clipped = to_store(vectors, self.job.store, self.ranges)
        rows, counts = self.cache.settle(plan, stored, found.counts)
        tally = self.tally.block(block.texts, counts, self.facts.max_tokens, known=len(block) - len(plan.fresh), clipped=clipped)
        texts = block.texts if self.job.kind == "parquet" else []
        shard = Shard(rows, counts, block.ids if texts else [], texts, {"digest": digest(block), "tally": tally})
        if self.collection is not None:
            outputs.add_to_collection(self.collection, block, rows)
        if self.few:
            self.only = shard
            return
        self.parts.begin()
        if self.job.store == "int8" and number == 0:
            assert self.ranges is not None
            self.parts.keep_ranges(self.ranges)
        if self.collection is not None:
            self.parts.commit_notes(number, shard.notes)
        else:
            self.parts.commit(number, shard)

    def _located(self, err: EncodeError) -> EncodeError:
        """The error with the row's number in the whole input: the encoder counts in what it was given."""
        from twinvec.scale.processes import WorkerError

        if isinstance(err, WorkerError) or not self.waiting:
            return err
        _, block, plan = self.waiting[0]
        first = self.tally.sums["rows"]

        def row(match: re.Match[str]) -> str:
            at = int(plan.fresh[int(match[1])])
            return f"row {first + at}" + (f" (id {block.ids[at]!r})" if block.ids else "")

        def listed(match: re.Match[str]) -> str:
            return match[1] + ", ".join(str(first + int(plan.fresh[int(at)])) for at in match[2].split(", "))

        message = re.sub(r"\brow (\d+)(?= has)", row, str(err))
        message = re.sub(r"(\(rows, from 0: )([\d, ]+\d)", listed, message)
        where = "" if self.few else f"texts {first + 1} to {first + len(block)}: "
        return type(err)(f"{where}{message}")

    def _layout(self, prompt: str) -> outputs.Layout:
        return outputs.Layout(self.job.store, self.dimensions, self.ranges, self.facts.name, self.facts.fingerprint, prompt)

    def _put_together(self, prompt: str) -> None:
        job, layout = self.job, self._layout(prompt)
        if job.kind == "collection":
            return
        if self.only is not None:
            memory = io.BytesIO()
            self._write(memory, [record_batch(self.only.vectors, self.only.ids, self.only.texts)], layout)
            write_bytes(job.output, memory.getvalue())
            return
        whole = self.parts.folder / "whole"
        with open(whole, "w+b") as stream:
            self._write(stream, self.parts.batches(), layout)
        self.parts.become(whole)

    def _write(self, stream: Any, batches: Any, layout: outputs.Layout) -> None:
        if self.job.kind == "npy":
            outputs.write_npy(stream, batches, self.tally.sums["rows"], layout)
            # The table goes first: until the file beside it is the new one, the table does not fit, which readers see.
            outputs.write_npy_notes(stream, self.job.output, layout)
        else:
            outputs.write_parquet(stream, batches, layout)

    def _leave(self) -> None:
        """Say what is kept of a run that is broken off; a run that has finished no shard leaves nothing."""
        if self.parts.committed:
            self.say(f"what is done is kept in {self.parts.folder} ({self.parts.committed:,} parts); the same command goes on from there")
        elif self.parts.made:
            self.parts.remove()
        self.parts.close()

    def _report(self, prompt: str, seconds: float) -> BulkReport:
        job, facts, sums = self.job, self.facts, dict(self.tally.sums)
        unknown, content, clipped = sums.pop("unknown"), sums.pop("content"), sums.pop("clipped")
        numbers = (sums["rows"] - sums["cache_hits"]) * self.dimensions
        return BulkReport(
            **sums,
            dimensions=self.dimensions,
            longest=self.tally.longest,
            empty_rows=self.tally.empty_rows,
            unknown_rate=unknown / content if content else 0.0,
            prompt=prompt,
            engine=facts.engine,
            precision=facts.precision,
            threads=facts.threads,
            seconds=seconds,
            shards=self.asked,
            resumed_rows=self.resumed,
            processes=self.computer.processes,
            clipped=clipped / numbers if numbers else 0.0,
            store=job.store,
            output=str(job.output) if job.kind != "collection" else f"{outputs.COLLECTION}{job.output}",
            bytes=_size(job.output),
            model=facts.name,
            fingerprint=facts.fingerprint,
            notes=_prompt_note(facts, job),
        )


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def _cut(dimensions: int | None, facts: Facts, say: Notify) -> int:
    """The dimensions of the output; a loud note where the model does not say that it may be cut."""
    if dimensions is None or dimensions == facts.dimensions:
        return facts.dimensions
    if not 1 <= dimensions < facts.dimensions:
        raise UsageError(f"dimensions = {dimensions}: the model {facts.name} gives {facts.dimensions}; wanted 1 to {facts.dimensions}")
    if not facts.matryoshka:
        say(
            f"the model {facts.name} does not say that it was trained to be cut (Matryoshka): {dimensions} of its {facts.dimensions} dimensions may "
            "be much worse than all, so measure before you use them"
        )
    elif dimensions not in facts.matryoshka:
        say(f"the model {facts.name} was trained to be cut to {', '.join(map(str, facts.matryoshka))} dimensions; {dimensions} is none of them")
    return dimensions


def _prompt_note(facts: Facts, job: Job) -> list[str]:
    """A model that was trained with prompts and is used without one loses much, and nothing else shows it."""
    offered = [name for name, text in facts.prompts.items() if text]
    if job.calls.prompt is not None or not offered or facts.prompt_text(None) or job.kind == "collection":
        return []
    return [f"this model has prompts ({', '.join(offered)}) and none was used, which may cost much of its quality; see --prompt"]
