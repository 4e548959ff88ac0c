"""`dry_run`: which batch fits, and how long the run takes, measured on the user's own texts."""

from __future__ import annotations

import itertools
import time
from typing import Any

import numpy as np

from twinvec.training.loop import Run
from twinvec.training.memory import SHARE, bytes_per_token, free_bytes, megabytes, standing_bytes

SIZES = (32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
STEPS = 4  # measured; the first warms up
LOSS_BLOCKS = 6 * 64 * 1024 * 1024  # what a block of similarities and its gradient take at most (objectives.infonce)


def dry_run(run: Run) -> dict[str, Any]:
    """Measure memory by token and a few steps. The weights it changes are thrown away; nothing is written."""
    recipe, net = run.recipe, run.net
    net.train()
    free = free_bytes(net.device)
    standing = standing_bytes([net, run.heads])
    batches = run.order.batches(0)
    sample = [batches[int(i)] for i in np.linspace(0, len(batches) - 1, min(16, len(batches)))]
    vector = [(number, rows) for number, rows in sample if not run.tasks[number].of_tokens]
    table: list[dict[str, Any]] = []
    per_token = per_row = 0.0
    if vector:
        made = [(run.tasks[number], run.tasks[number].prepare(rows, np.random.default_rng(0))) for number, rows in vector]
        per_token = max(bytes_per_token(run.stepper, task, batch) for task, batch in made[:4])
        per_row = sum(sum(map(len, batch.tokens)) for _, batch in made) / sum(len(batch.rows) for _, batch in made)
        table = [_row(size, per_row, per_token, run, standing, free) for size in sorted({*SIZES, recipe.batch_size})]
    if recipe.gradient_cache == "auto":
        run.stepper.cache = run._too_big()
    seconds = _seconds_a_step(run)
    total = seconds * run.total_steps
    lines = [
        f"weights, gradients and optimiser: {megabytes(standing)}; free now: {megabytes(free)} ({net.device})",
        f"{run.total_steps} steps of {recipe.batch_size * recipe.accumulation} rows at {seconds:.2f} s: {_clock(total)}, evaluations not counted",
    ]
    if table:
        lines.append(f"{per_row:.0f} tokens a row, {per_token / 1e3:.0f} KB of graph a token")
        lines.append("batch size   plain          with gradient cache")
        for row in table:
            plain = f"{megabytes(row['plain_bytes'])}{'' if row['plain_fits'] else ' (too big)'}"
            lines.append(f"{row['batch_size']:>10}   {plain:<24} {megabytes(row['cached_bytes'])}{'' if row['cached_fits'] else ' (too big)'}")
    if any(getattr(task, "teacher", None) is not None for task in run.tasks):
        lines.append("encoding with the teacher or guide, once before the first step, is not counted")
    fitting = [row["batch_size"] for row in table if row["plain_fits"]]
    return {
        "dry_run": True, "steps": run.total_steps, "seconds_a_step": round(seconds, 3), "seconds": round(total, 1),
        "gradient_cache": run.stepper.cache,
        "largest_plain_batch": max(fitting, default=None), "table": table, "output": recipe.output, "notes": run.notes, "lines": lines,
    }  # fmt: skip


def _row(size: int, per_row: float, per_token: float, run: Run, standing: int, free: int) -> dict[str, Any]:
    tokens = size * per_row
    vectors = 4 * size * len(run.tasks[0].texts) * run.net.dimensions * 4  # vectors, their gradients, and the loss's copies
    loss = min(LOSS_BLOCKS, 6 * 4 * size * size * len(run.tasks[0].texts))
    plain = standing + tokens * per_token + vectors + loss
    cached = standing + min(tokens, run.stepper.micro_tokens) * per_token + vectors + loss
    # What stands already is not free any more, gradients and moments are still to come: three quarters of `standing`.
    room = SHARE * free
    return {
        "batch_size": size, "plain_bytes": int(plain), "cached_bytes": int(cached),
        "plain_fits": bool(plain - standing / 4 < room), "cached_fits": bool(cached - standing / 4 < room),
    }  # fmt: skip


def _seconds_a_step(run: Run) -> float:
    times = []
    for group in itertools.islice(run._groups(0, 0), min(STEPS, run.total_steps)):
        start = time.perf_counter()
        _, batches = run._prepare(group)
        run._step(batches)
        times.append(time.perf_counter() - start)
    return float(np.mean(times[1:] or times))


def _clock(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
