"""Training: pairs a second and peak memory on STS-B at batch 32, against the sentence-transformers trainer with the same loss.

    .venv/bin/python benchmarks/train.py [--data ../shared/data/sts/en/stsb.train.csv.gz] [--steps 60]

Each side runs in a process of its own, turn by turn, twice; the better run counts. Without --data the sample FAQ is used.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

from common import in_child, machine, versions

WARM = 10  # steps before the clock starts


def ours(data: str, steps: int) -> None:
    import twinvec as tv
    from twinvec.training.loop import Run

    with tempfile.TemporaryDirectory() as folder:
        recipe = tv.Recipe.of(
            model="minilm", data=data, objective="regression", mapping="unit", output=folder, batch_size=32, lr=2e-5, max_steps=steps
        )
        train = tv.read_data(data)
        run = Run(recipe, tv.Encoder.load("minilm"), train, Path(folder), None, "loss", show=False)
        batches = [batch for epoch in range(10) for batch in run.order.batches(epoch) if len(batch) == 32][: steps + WARM]
        start, losses = 0.0, []
        for i, batch in enumerate(batches):
            if i == WARM:
                start = time.perf_counter()
            losses.append(run._step([batch])[0])
        seconds = time.perf_counter() - start
    print(json.dumps({"pairs_per_second": steps * 32 / seconds, "last_loss": sum(losses[-10:]) / 10}))


def peer(data: str, steps: int) -> None:
    from datasets import Dataset
    from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments, losses
    from transformers import TrainerCallback

    import twinvec as tv
    from twinvec.data.dataset import normalised_scores
    from twinvec.model.resolve import resolve

    train = tv.read_data(data)
    rows = Dataset.from_dict({**train.columns, "score": normalised_scores(train).tolist()})
    model = SentenceTransformer(str(resolve("minilm")), device="cpu")

    class Clock(TrainerCallback):
        start = end = 0.0

        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == WARM:
                self.start = time.perf_counter()
            self.end = time.perf_counter()

    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        arguments = SentenceTransformerTrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=32,
            max_steps=steps + WARM,
            learning_rate=2e-5,
            warmup_steps=0.1,
            lr_scheduler_type="linear",
            save_strategy="no",
            logging_steps=10,
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            seed=42,
        )
        trainer = SentenceTransformerTrainer(
            model=model, args=arguments, train_dataset=rows, loss=losses.CosineSimilarityLoss(model), callbacks=[clock]
        )
        trainer.train()
        logged = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    print(json.dumps({"pairs_per_second": steps * 32 / (clock.end - clock.start), "last_loss": float(logged[-1])}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--side", choices=["ours", "peer"])
    options = parser.parse_args()
    if options.side:
        (ours if options.side == "ours" else peer)(options.data, options.steps)
        return
    with tempfile.TemporaryDirectory() as folder:
        data = options.data
        if data is None:
            from twinvec.data.sample import write_sample

            data = str(write_sample(folder).train)
        print(f"{machine()}; {versions('twinvec', 'sentence-transformers', 'torch', 'transformers')}")
        found: dict[str, list[dict]] = {"peer": [], "ours": []}
        for _ in range(2):
            for side in found:
                found[side].append(in_child(__file__, "--side", side, "--data", data, "--steps", str(options.steps)))
    best = {side: max(runs, key=lambda run: run["pairs_per_second"]) for side, runs in found.items()}
    ratio = best["ours"]["pairs_per_second"] / best["peer"]["pairs_per_second"]
    print(json.dumps({**best, "ratio": round(ratio, 2), "data": options.data or "sample FAQ", "steps": options.steps}, indent=2))


if __name__ == "__main__":
    main()
