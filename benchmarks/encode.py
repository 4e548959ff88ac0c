"""Encoding: twinvec's engines and their peers on the same 2,000 sentences, turn by turn, each in a process of its own.

    .venv/bin/python benchmarks/encode.py [--model minilm] [--rounds 3] [--sides torch:float32,torch:int8] [--sts FILE]

Sides: torch, ctranslate2 and onnx are twinvec's engines (float32, bf16, int8); st is sentence-transformers at batch 32 (float32, bf16);
bare-ctranslate2 and bare-onnx drive the same exported files by their own libraries in the plain way: batches of 32 sorted by length, padded,
mean of the tokens.
Prints the best rate of each, its ratio to sentence-transformers in float32, peak memory, the least cosine to its vectors, and with --sts the Spearman
correlation of cosine and score on a file with columns sentence1, sentence2, score.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from common import in_child, machine, mixed_sentences, versions

PEER = "st:float32"
SIDES = (
    PEER, "st:bf16", "torch:float32", "torch:bf16", "torch:int8", "ctranslate2:float32", "ctranslate2:int8", "onnx:float32", "onnx:int8",
    "bare-ctranslate2:float32", "bare-ctranslate2:int8", "bare-onnx:float32", "bare-onnx:int8",
)  # fmt: skip
Encode = Callable[[list[str]], np.ndarray]


def make(side: str, model: str, exports: str) -> tuple[Encode, int]:
    """How a side encodes, and the number of its threads."""
    import twinvec as tv

    name, precision = side.split(":")
    if name == "st":
        import torch
        from sentence_transformers import SentenceTransformer

        source = str(tv.Encoder.load(model).source)
        kind = {"model_kwargs": {"dtype": torch.bfloat16}} if precision == "bf16" else {}
        peer = SentenceTransformer(source, device="cpu", **kind)
        return (lambda texts: peer.encode(texts, batch_size=32, show_progress_bar=False).astype(np.float32)), torch.get_num_threads()
    if name.startswith("bare-"):
        return bare(name.removeprefix("bare-"), precision, exports)
    encoder = tv.Encoder.load(model if name == "torch" else exports, engine=name, precision=precision)
    return encoder.encode, encoder.threads


def bare(name: str, precision: str, exports: str) -> tuple[Encode, int]:
    from tokenizers import Tokenizer

    threads = len(os.sched_getaffinity(0))
    tokenizer = Tokenizer.from_file(str(Path(exports) / "tokenizer.json"))
    tokenizer.enable_truncation(256)
    tokenizer.enable_padding()
    folder = Path(exports) / "engines" / f"{name}-{precision}"
    run: Callable[[np.ndarray, np.ndarray], np.ndarray]
    if name == "ctranslate2":
        import ctranslate2

        place = next(folder.rglob("model.bin")).parent
        kind = "int8_float32" if precision == "int8" else "float32"
        engine = ctranslate2.Encoder(str(place), device="cpu", compute_type=kind, inter_threads=1, intra_threads=threads)
        view = ctranslate2.StorageView.from_array

        def run(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
            lengths = view(mask.sum(1).astype(np.int32))
            return np.asarray(engine.forward_batch(view(ids.astype(np.int32)), lengths=lengths).last_hidden_state)
    else:
        import onnxruntime

        session = onnxruntime.InferenceSession(str(next(folder.rglob("*.onnx"))), providers=["CPUExecutionProvider"])
        wanted = {one.name for one in session.get_inputs()}

        def run(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
            given = {"input_ids": ids.astype(np.int64), "attention_mask": mask.astype(np.int64), "token_type_ids": np.zeros_like(ids, dtype=np.int64)}
            return session.run(None, {key: value for key, value in given.items() if key in wanted})[0]

    def encode(texts: list[str]) -> np.ndarray:
        order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
        out = np.zeros((len(texts), 0), np.float32)
        for at in range(0, len(order), 32):
            chosen = order[at : at + 32]
            found = tokenizer.encode_batch([texts[i] for i in chosen])
            ids, mask = np.array([one.ids for one in found]), np.array([one.attention_mask for one in found])
            states = run(ids, mask) * mask[:, :, None]
            mean = states.sum(1) / mask.sum(1, keepdims=True)
            if not out.shape[1]:
                out = np.zeros((len(texts), mean.shape[1]), np.float32)
            out[chosen] = mean / np.linalg.norm(mean, axis=1, keepdims=True)
        return out

    return encode, threads


def child(options: argparse.Namespace) -> None:
    """One turn of one side: the best of two passes, and its vectors into a file."""
    encode, threads = make(options.side, options.model, options.exports)
    texts = json.loads(Path(options.texts).read_text())
    encode(texts[:200])
    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        vectors = encode(texts)
        seconds.append(time.perf_counter() - start)
    result = {"side": options.side, "seconds": min(seconds), "threads": threads}
    if options.sts:
        import gzip

        from scipy.stats import spearmanr

        opened = gzip.open if options.sts.endswith(".gz") else open
        with opened(options.sts, "rt", encoding="utf-8", newline="") as stream:
            rows = list(csv.DictReader(stream))
        u, v = (encode([row[name] for row in rows]) for name in ("sentence1", "sentence2"))
        cosine = (u * v).sum(1) / np.linalg.norm(u, axis=1) / np.linalg.norm(v, axis=1)
        result["spearman"] = float(spearmanr(cosine, [float(row["score"]) for row in rows]).statistic)
    np.save(options.vectors, vectors)
    print(json.dumps(result))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sides", default=",".join(SIDES))
    parser.add_argument("--sts", default="")
    for hidden in ("side", "texts", "vectors", "exports"):
        parser.add_argument(f"--{hidden}", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        return child(options)
    import twinvec as tv

    encoder = tv.Encoder.load(options.model)
    texts = mixed_sentences(encoder)
    tokens = np.asarray(encoder.count_tokens(texts))
    print(f"{machine()}; {versions('twinvec', 'sentence-transformers', 'torch', 'transformers', 'ctranslate2', 'onnxruntime')}")
    middle, long = np.median(tokens), np.percentile(tokens, 95)
    print(f"{len(texts)} sentences, {tokens.min()}-{tokens.max()} tokens, median {middle:.0f}, 95th percentile {long:.0f}", flush=True)
    sides = list(dict.fromkeys([PEER, *options.sides.split(",")]))
    with tempfile.TemporaryDirectory() as place:
        Path(place, "texts.json").write_text(json.dumps(texts))
        exports = Path(place, "exports")
        exported = {side.removeprefix("bare-") for side in sides if side.split(":")[0] not in ("st", "torch")}
        for one in sorted(exported):
            from twinvec.model.engines.export import export

            name, precision = one.split(":")
            if exports.exists():
                export(exports, engine=name, precision=precision)
            else:
                export(options.model, engine=name, precision=precision, output=exports)
        runs: dict[str, list[dict]] = {side: [] for side in sides}
        for _ in range(options.rounds):  # turn by turn, so that a busy neighbour slows all
            for side in sides:
                more = ["--sts", options.sts] if options.sts and not runs[side] else []
                runs[side].append(
                    in_child(__file__, "--model", options.model, "--side", side, "--texts", f"{place}/texts.json", "--exports", str(exports),
                             "--vectors", f"{place}/{side}.npy", *more)
                )  # fmt: skip
        reference = np.load(f"{place}/{PEER}.npy")
        print("| side | texts/s | ratio of best | ratio by round | least cosine | Spearman | peak MB | threads |\n|---|---|---|---|---|---|---|---|")
        peer = [run["seconds"] for run in runs[PEER]]
        for side, found in runs.items():
            ours = [run["seconds"] for run in found]
            rounds = " ".join(f"{one / other:.2f}" for one, other in zip(peer, ours, strict=True))
            vectors = np.load(f"{place}/{side}.npy")
            cosine = (vectors * reference).sum(1) / np.linalg.norm(vectors, axis=1) / np.linalg.norm(reference, axis=1)
            spearman = f"{found[0]['spearman']:.4f}" if "spearman" in found[0] else ""
            print(
                f"| {side} | {len(texts) / min(ours):.0f} | {min(peer) / min(ours):.2f} | {rounds} | {cosine.min():.7f} | {spearman} "
                f"| {found[0]['peak_rss_mb']} | {found[0]['threads']} |"
            )


if __name__ == "__main__":
    main()
