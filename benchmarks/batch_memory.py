"""Peak memory and time of one optimiser step of InfoNCE by batch size, with gradient caching: the batch is bounded by data, not by memory.

    .venv/bin/python benchmarks/batch_memory.py [--sizes 256,1024,4096] [--layers 3] [--model minilm] [--data PAIRS.csv]

Each size runs in a process of its own: loading, one whole step (forward, loss, backward, AdamW), nothing else. Without --data the pairs are made
of words of the sample FAQ: a text of 4 to 7 words and a changed copy. `--layers` cuts the model's layers; 0 keeps all.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from argparse import Namespace
from pathlib import Path

import numpy as np
from common import in_child, machine, versions


def pairs(n: int, seed: int = 0):
    """n distinct pairs of short texts."""
    from twinvec.data.dataset import Dataset
    from twinvec.data.sample import load_faq

    rng = np.random.default_rng(seed)
    words = sorted({word for entry in load_faq("en") for text in (entry.answer, *entry.train) for word in text.split() if word.isalpha()})
    anchors, positives = [], []
    for number in range(n):
        text = list(rng.choice(words, rng.integers(3, 7)))
        anchors.append(" ".join([*text, str(number)]))
        positives.append(" ".join([str(number), *text[1:]]))
    return Dataset(kind="pairs", columns={"sentence1": anchors, "sentence2": positives})


def child(options: Namespace) -> None:
    import twinvec as tv
    from twinvec.model.encoder import Encoder
    from twinvec.training.loop import Run
    from twinvec.training.tasks import make_task

    size = int(options.sizes)
    encoder = Encoder.load(options.model)
    if options.layers:
        layers = encoder.net.backbone.encoder.layer
        encoder.net.backbone.encoder.layer = layers[: options.layers]
        encoder.net.rebuild()
    data = tv.read_data(options.data, kind="pairs").select(range(size)) if options.data else pairs(size)
    with tempfile.TemporaryDirectory() as folder:
        recipe = tv.Recipe.of(
            model=options.model, data="pairs", objective="infonce", output=folder, batch_size=size, gradient_cache=options.gradient_cache,
            precision=options.precision,
        )  # fmt: skip
        (source,) = recipe.sources()
        task = make_task(source, data, encoder, Path(folder), normalize=False)
        run = Run(recipe, encoder, [task], Path(folder), None, "loss", show=False)
        ((_, rows),) = run.order.batches(0)
        start = time.perf_counter()
        batch = task.prepare(rows)
        loss, norm = run._step([batch])
        seconds = time.perf_counter() - start
    tokens = sum(map(len, batch.tokens))
    print(json.dumps({"batch": size, "tokens": tokens, "seconds": round(seconds, 1), "loss": loss, "gradient_norm": norm}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="256,1024,4096")
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--layers", type=int, default=0)
    parser.add_argument("--data")
    parser.add_argument("--gradient-cache", default="on", choices=["on", "off"])
    parser.add_argument("--precision", default="float32", choices=["float32", "bf16"])
    parser.add_argument("--child", action="store_true")
    options = parser.parse_args()
    if options.child:
        child(options)
        return
    print(f"{machine()}; {versions('twinvec', 'torch')}")
    print("| batch | tokens | s a step | peak MB | loss |\n|---|---|---|---|---|")
    for size in options.sizes.split(","):
        given = ["--child", "--sizes", size, "--model", options.model, "--layers", str(options.layers), "--gradient-cache", options.gradient_cache,
                 "--precision", options.precision, *(["--data", options.data] if options.data else [])]  # fmt: skip
        found = in_child(__file__, *given)
        print(f"| {found['batch']:,} | {found['tokens']:,} | {found['seconds']:,} | {found['peak_rss_mb']:,} | {found['loss']:.3f} |", flush=True)


if __name__ == "__main__":
    main()
