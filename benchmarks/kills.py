"""Kill a writer again and again, while readers look on: no committed row lost, none half there, every reopen good.

    python benchmarks/kills.py --kills 1000              # about three kills a second
    python benchmarks/kills.py --kills 1000 --seed 7     # another course of events

A writer process does random work: additions in one and in several commits, updates, deletions by id and by filter, compactions, approximate
indexes, moves to another model and back. Before and after each piece of work it writes a line to a journal and syncs it. At a random moment it
gets SIGKILL. Then the collection is opened with every check (`verify`) and must be what a plain dictionary says after the work that was done, or
after a whole number of commits of the work that was cut off. Readers in two other processes search all the time and check that each group of
documents that is changed in one commit is there as a whole, in one version. Texts are encoded by a hash, so the time goes into the store.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from twinvec.errors import CollectionError
from twinvec.index.collection import Collection
from twinvec.records import EncodeReport, Encoding

Model = dict[str, tuple[int, int]]  # id -> (version of the text, version of the metadata)
GROUP = 3  # documents that always change together
_OPERATIONS = ("add", "add", "add", "stream", "update", "update", "delete", "delete where", "compact", "optimize", "reindex")


class HashEncoder:
    """Unit vectors from a hash of the text and of the model's name: the same always, quickly, and another model's are far off."""

    def __init__(self, name: str, dimensions: int = 16) -> None:
        self.name, self.dimensions, self.fingerprint, self.normalizes = name, dimensions, f"{crc32(name.encode()):08x}" * 4, True

    def encode_with_report(self, texts: Sequence[str], *, prompt: str | None = None, on_long: str = "truncate") -> Encoding:
        rows = [np.random.default_rng(crc32(f"{self.name} {text}".encode())).standard_normal(self.dimensions) for text in texts]
        vectors = np.asarray(rows).reshape(-1, self.dimensions)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        report = EncodeReport(len(rows), self.dimensions, len(rows), 0, 0, 0, 0, [], 0.0, "", "hash", "float32", 1, 0.0)
        return Encoding(vectors.astype(np.float32), report)


ENCODERS = {encoder.fingerprint: encoder for encoder in (HashEncoder("one"), HashEncoder("two"))}


def text_of(name: str, version: int) -> str:
    return f"{name} version{version} words{version % 7}"


def metadata_of(version: int, name: str) -> dict[str, Any]:
    return {"v": version, "bucket": crc32(name.encode()) % 20}


def planned(chance: random.Random, model: Model, at: int) -> dict[str, Any]:
    """One piece of work, as it stands in the journal."""
    operation = chance.choice(_OPERATIONS)
    groups = sorted({name.split("-")[0] for name in model if name.startswith("g")})
    singles = sorted(name for name in model if name.startswith("s"))
    if operation in ("add", "stream"):
        count = chance.randint(1, 4) if operation == "add" else 5
        chosen = [chance.choice(groups) if groups and chance.random() < 0.4 else f"g{chance.randrange(200)}" for _ in range(count)]
        listed = [[f"{group}-{i}", at] for group in dict.fromkeys(chosen) for i in range(GROUP)]
        single = [[f"s{chance.randrange(60)}", at]] if operation == "add" else []
        return {"do": operation, "documents": single + listed}
    if operation == "update" and singles:
        return {"do": "update", "id": chance.choice(singles), "text": at if chance.random() < 0.5 else None, "metadata": at}
    if operation == "delete" and groups:
        group = chance.choice(groups)
        return {"do": "delete", "ids": [f"{group}-{i}" for i in range(GROUP)]}
    if operation == "delete where" and len(model) > 150:
        return {"do": "delete where", "bucket": chance.randrange(20)}
    return {"do": operation if operation in ("compact", "optimize", "reindex") else "compact"}


def after(model: Model, work: dict[str, Any]) -> list[Model]:
    """What the collection may hold after each commit of the work; the last one when all of it is done."""
    states, now = [], dict(model)
    if work["do"] in ("add", "stream"):
        step = GROUP if work["do"] == "stream" else len(work["documents"])
        for start in range(0, len(work["documents"]), step):
            for name, version in work["documents"][start : start + step]:
                now[name] = (version, version)
            states.append(dict(now))
    elif work["do"] == "update":
        now[work["id"]] = (now[work["id"]][0] if work["text"] is None else work["text"], work["metadata"])
    elif work["do"] == "delete":
        now = {name: value for name, value in now.items() if name not in work["ids"]}
    elif work["do"] == "delete where":
        now = {name: value for name, value in now.items() if metadata_of(0, name)["bucket"] != work["bucket"] or not name.startswith("s")}
    return states or [now]


def perform(collection: Collection, work: dict[str, Any]) -> None:
    if work["do"] in ("add", "stream"):
        documents = [(name, text_of(name, version), metadata_of(version, name)) for name, version in work["documents"]]
        collection.add(iter(documents), batch=GROUP if work["do"] == "stream" else 100)
    elif work["do"] == "update":
        text = None if work["text"] is None else text_of(work["id"], work["text"])
        collection.update(work["id"], text, metadata_of(work["metadata"], work["id"]))
    elif work["do"] == "delete":
        collection.delete(work["ids"])
    elif work["do"] == "delete where":
        collection.delete(where=f"bucket = {work['bucket']} and id like 's%'")
    elif work["do"] == "compact":
        collection.compact()
    elif work["do"] == "optimize":
        collection.optimize("ivf", 0.9)
    else:
        other = next(encoder for name, encoder in ENCODERS.items() if name != collection.fingerprint)
        collection.reindex(other, batch=60)


def write(path: Path, journal: Path, model: Model, seed: int) -> None:
    """Work until killed."""
    chance = random.Random(seed)
    with Collection.open(path) as asked:
        fingerprint = asked.fingerprint
    collection = Collection.open(path, ENCODERS[fingerprint])
    handle = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    at = seed * 1000
    while True:
        at += 1
        work = planned(chance, model, at)
        for line in (json.dumps(work), "done"):
            if line == "done":
                perform(collection, work)
                model = after(model, work)[-1]
            os.write(handle, (line + "\n").encode())
            os.fsync(handle)


def look(path: Path, seed: int, report: Path) -> None:
    """Search until told to stop (SIGTERM); what is wrong goes to `report`."""
    stop: list[bool] = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(True))
    chance, looks, collection = random.Random(seed), 0, None
    while not stop:
        try:
            if collection is None or chance.random() < 0.05:
                collection = Collection.open(path)
            groups: dict[str, set[Any]] = {}
            seen: Counter[str] = Counter()
            for hit in collection.search(np.random.default_rng(looks).standard_normal(16), 10**6)[0]:
                name, version = hit.text.split(" ")[0], int(hit.text.split(" ")[1].removeprefix("version"))
                assert name == hit.id, f"the text of {name} as {hit.id}"
                assert hit.id not in seen, f"{hit.id} twice"
                seen[hit.id] += 1
                if hit.id.startswith("g"):
                    assert hit.metadata["v"] == version, f"{hit.id}: text of {version}, metadata of {hit.metadata['v']}"
                    groups.setdefault(hit.id.split("-")[0], set()).add(version)
            counts = Counter(name.split("-")[0] for name in seen if name.startswith("g"))
            for group, versions in groups.items():
                assert (len(versions), counts[group]) == (1, GROUP), f"{group}: {counts[group]} of {GROUP}, versions {sorted(versions)}"
            looks += 1
            if looks % 10 == 0:
                collection.lexical("words3", 5)
        except Exception:
            report.write_text(traceback.format_exc())
            os._exit(1)
    report.with_suffix(".looks").write_text(str(looks))
    os._exit(0)


def check(path: Path, model: Model, journal: Path) -> tuple[Model, str]:
    """The model that the collection agrees with, and what was cut off; AssertionError when it agrees with none."""
    lines = journal.read_text().splitlines() if journal.exists() else []
    allowed, cut = [model], "nothing"
    for line in lines:
        if line == "done":
            allowed, cut = [allowed[-1]], "nothing"
        else:
            work = json.loads(line)
            allowed, cut = [allowed[0], *after(allowed[0], work)], str(work["do"])
    with Collection.open(path, verify=True) as collection:
        held = {}
        for name in collection.ids():
            document = collection.get(name)
            assert document is not None
            version = int(document.text.split(" ")[1].removeprefix("version"))
            assert document.text == text_of(name, version), f"{name}: {document.text!r}"
            held[name] = (version, document.metadata["v"])
            assert document.metadata == metadata_of(held[name][1], name)
        assert held in allowed, f"after {cut}: {difference(held, allowed)}"
        found = collection.search(np.ones(16), 10**6)[0]
        assert sorted(hit.id for hit in found) == sorted(held), "not what is stored is found"
        encoder = ENCODERS[collection.fingerprint]
        names = sorted(held)[:: max(1, len(held) // 5)]
        for name in names:
            wanted = encoder.encode_with_report([text_of(name, held[name][0])]).vectors[0]
            assert np.abs(np.asarray(collection.vector(name)) - wanted).max() < 1e-6, f"{name} has the vector of another text or model"
            assert any(hit.id == name for hit in collection.lexical(text_of(name, held[name][0]), 60)[0]), f"{name} is not found by its words"
    return held, cut


def difference(held: Model, allowed: Sequence[Model]) -> str:
    names = [name for name in {*held, *allowed[-1]} if all(held.get(name) != state.get(name) for state in allowed)]
    return f"{len(held)} documents, allowed {[len(state) for state in allowed]}, for example {names[:3]}"


def run(folder: Path, kills: int, seed: int = 0, readers: int = 2, longest: float = 0.2) -> dict[str, Any]:
    """The whole test in `folder`; counts. AssertionError at the first thing that is not as it should be."""
    path, journal = folder / "collection", folder / "journal"
    with Collection.create(path, next(iter(ENCODERS.values()))) as collection:
        collection.add([(f"s{i}", text_of(f"s{i}", 0), metadata_of(0, f"s{i}")) for i in range(30)])
    model: Model = {f"s{i}": (0, 0) for i in range(30)}
    chance, cuts, start, largest = random.Random(seed), Counter[str](), time.perf_counter(), 0
    watching = [forked(look, path, seed + i, folder / f"reader{i}") for i in range(readers)]
    try:
        for round_ in range(kills):
            journal.unlink(missing_ok=True)
            child = forked(write, path, journal, model, seed * 100_000 + round_ + 1)
            time.sleep(chance.uniform(0.01, longest))
            os.kill(child, signal.SIGKILL)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL, "the writer ended by itself"
            model, cut = check(path, model, journal)
            cuts[cut] += 1
            largest = max(largest, sum(file.stat().st_size for file in path.rglob("*") if file.is_file()))
            for i in range(readers):
                assert not (folder / f"reader{i}").exists(), (folder / f"reader{i}").read_text()
    finally:
        for child in watching:
            os.kill(child, signal.SIGTERM)
            os.waitpid(child, 0)
    looks = 0
    for i in range(readers):
        assert not (folder / f"reader{i}").exists(), (folder / f"reader{i}").read_text()
        looks += int((folder / f"reader{i}.looks").read_text())
    seconds = time.perf_counter() - start
    return {"kills": kills, "cut": dict(cuts), "documents": len(model), "looks": looks, "largest_bytes": largest, "seconds": round(seconds, 1)}


def forked(work: Any, *arguments: Any) -> int:
    child = os.fork()
    if child == 0:
        try:
            work(*arguments)
            os._exit(0)
        except BaseException as err:
            if not isinstance(err, CollectionError):
                traceback.print_exc()
            print(f"{work.__name__}: {err}", file=sys.stderr, flush=True)
            os._exit(1)
    return child


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--readers", type=int, default=2)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="kills-"))
    found = run(folder, options.kills, options.seed, options.readers)
    shutil.rmtree(folder)
    print(json.dumps(found))
    print(f"{found['kills']} kills, {found['looks']} searches beside them: nothing lost, nothing half there, every reopen good")


if __name__ == "__main__":
    main()
