"""Training: pairs a second, peak memory and dev Spearman on STS-B, against the sentence-transformers trainer with the same loss, batch and schedule.

    .venv/bin/python benchmarks/train.py --data ../shared/data/sts/en/stsb.train.csv.gz --dev ../shared/data/sts/en/stsb.dev.csv [--steps 60]
    .venv/bin/python benchmarks/train.py --data ... --precision both        float32 and bf16, turn by turn
    .venv/bin/python benchmarks/train.py --data ... --loss infonce --batch 256 --steps 3 --gradient-cache on      peak memory

Each side runs in a process of its own, turn by turn, `--rounds` times; the better run counts. Without --data the sample FAQ is used.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from argparse import Namespace
from pathlib import Path

from common import in_child, machine, versions

OBJECTIVES = {"cosine": {"objective": "regression", "mapping": "unit"}, "infonce": {"objective": "infonce"}}


def recipe_of(options: Namespace, folder: str):
    import twinvec as tv

    return tv.Recipe.of(
        model="minilm", data=options.data, output=folder, batch_size=options.batch, lr=2e-5, max_steps=options.steps + options.warm,
        precision=options.precision, gradient_cache=options.gradient_cache, max_tokens=options.max_tokens, **OBJECTIVES[options.loss],
    )  # fmt: skip


def ours(options: Namespace) -> None:
    import twinvec as tv
    from twinvec.data.dataset import Dataset
    from twinvec.training.fit import as_wanted
    from twinvec.training.loop import Run
    from twinvec.training.prefetch import Prefetcher
    from twinvec.training.tasks import make_task

    with tempfile.TemporaryDirectory() as folder:
        recipe = recipe_of(options, folder)
        encoder = tv.Encoder.load("minilm", max_tokens=options.max_tokens)
        (source,) = recipe.sources()
        data = tv.read_data(source.data)
        if options.loss == "infonce":  # every pair counts as one that belongs together, as on the other side: this measures cost, not quality
            data = Dataset(kind="pairs", columns=data.columns, path=data.path)
        data = as_wanted(source, data)
        run = Run(recipe, encoder, [make_task(source, data, encoder, Path(folder), normalize=False)], Path(folder), None, "loss", show=False)
        groups = (group for group in run._groups(0, 0) if all(len(rows) == options.batch for _, rows in group[3]))
        ahead = Prefetcher(groups, run._prepare)
        start, losses = 0.0, []
        for step in range(options.steps + options.warm):
            if step == options.warm:
                start = time.perf_counter()
            losses.append(run._step(next(ahead)[1])[0])
            run.state.step += 1
        seconds = time.perf_counter() - start
        ahead.close()
    report(options, seconds, sum(losses[-10:]) / len(losses[-10:]), encoder)


def peer(options: Namespace) -> None:
    from datasets import Dataset
    from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments, losses
    from transformers import TrainerCallback

    import twinvec as tv
    from twinvec.data.dataset import normalised_scores
    from twinvec.model.resolve import resolve

    train = tv.read_data(options.data)
    labels = {"score": normalised_scores(train).tolist()} if options.loss == "cosine" else {}
    model = SentenceTransformer(str(resolve("minilm")), device="cpu")
    if options.max_tokens:
        model.max_seq_length = options.max_tokens
    loss = losses.CosineSimilarityLoss(model) if options.loss == "cosine" else losses.MultipleNegativesRankingLoss(model)

    class Clock(TrainerCallback):
        start = end = 0.0

        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == options.warm:
                self.start = time.perf_counter()
            self.end = time.perf_counter()

    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        arguments = SentenceTransformerTrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=options.batch,
            max_steps=options.steps + options.warm,
            learning_rate=2e-5,
            warmup_steps=0.1,
            lr_scheduler_type="linear",
            save_strategy="no",
            logging_steps=1,
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            bf16=options.precision == "bf16",
            seed=42,
        )
        rows = Dataset.from_dict({**train.columns, **labels})
        trainer = SentenceTransformerTrainer(model=model, args=arguments, train_dataset=rows, loss=loss, callbacks=[clock])
        trainer.train()
        logged = [float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry][-10:]
        model.save(folder + "/model")
        report(options, clock.end - clock.start, sum(logged) / len(logged), tv.Encoder.load(folder + "/model"))


def report(options: Namespace, seconds: float, loss: float, encoder) -> None:
    import twinvec as tv

    found = {"pairs_per_second": options.steps * options.batch / seconds, "last_loss": loss}
    if options.dev:
        encoder.net.eval()
        found["dev_spearman"] = tv.evaluate(encoder, options.dev, progress=False)["spearman_cosine"]
    print(json.dumps(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data")
    parser.add_argument("--dev")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--warm", type=int, default=10, help="steps before the clock starts")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--loss", choices=list(OBJECTIVES), default="cosine")
    parser.add_argument("--precision", choices=["float32", "bf16", "both"], default="float32")
    parser.add_argument("--gradient-cache", choices=["auto", "on", "off"], default="auto")
    parser.add_argument("--max-tokens", type=int)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--side", choices=["ours", "peer"])
    options = parser.parse_args()
    if options.side:
        (ours if options.side == "ours" else peer)(options)
        return
    with tempfile.TemporaryDirectory() as folder:
        if options.data is None:
            from twinvec.data.sample import write_sample

            options.data = str(write_sample(folder).train)
        print(f"{machine()}; {versions('twinvec', 'sentence-transformers', 'torch', 'transformers')}")
        precisions = ["float32", "bf16"] if options.precision == "both" else [options.precision]
        sides = [(side, precision) for precision in precisions for side in ("peer", "ours")]
        found: dict[str, list[dict]] = {f"{side} {precision}": [] for side, precision in sides}
        given = [part for key in ("data", "dev", "steps", "warm", "batch", "loss", "gradient_cache", "max_tokens")
                 if getattr(options, key) is not None for part in (f"--{key.replace('_', '-')}", str(getattr(options, key)))]  # fmt: skip
        for _ in range(options.rounds):
            for side, precision in sides:
                found[f"{side} {precision}"].append(in_child(__file__, *given, "--side", side, "--precision", precision))
    best = {side: max(runs, key=lambda run: run["pairs_per_second"]) for side, runs in found.items()}
    ratios, memory = {}, {}
    for mine, theirs in ((a, b) for a in best if a.startswith("ours") for b in best if b.startswith("peer")):
        ratios[f"{mine} / {theirs}"] = round(best[mine]["pairs_per_second"] / best[theirs]["pairs_per_second"], 2)
        memory[f"{theirs} / {mine}"] = round(best[theirs]["peak_rss_mb"] / best[mine]["peak_rss_mb"], 2)
    print(json.dumps({**best, "speed_ratio": ratios, "memory_ratio": memory, "command": " ".join(given)}, indent=2))


if __name__ == "__main__":
    main()
