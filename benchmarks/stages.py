"""What each stage of training does to a model: STS Spearman beside the geometry of its vectors.

    .venv/bin/python benchmarks/stages.py --test ../shared/data/sts/en/stsb.test.csv MODEL...        e.g. runs/from-nothing/*/best

Anisotropy is the mean cosine of random pairs (0: vectors point everywhere, 1: all the same way); uniformity is that of Wang and Isola 2020
(lower is better spread); alignment is the mean squared distance of pairs with a gold score of 4 and more.
"""

from __future__ import annotations

import argparse
import warnings

from common import machine, versions

import twinvec as tv
from twinvec.data.dataset import Dataset, normalised_scores, read_data
from twinvec.evaluation.geometry import geometry_of


def row(name: str, encoder, test: Dataset, prompt: str | None) -> str:
    found = tv.evaluate(encoder, test, prompt=prompt, progress=False)
    gold = normalised_scores(test)
    first, second = list(test.columns.values())[:2]
    pairs = [(a, b) for a, b, score in zip(first, second, gold, strict=True) if score >= 0.8]
    spread = geometry_of(encoder, list(dict.fromkeys([*first, *second])), pairs, prompt=prompt)
    cells = (found["spearman_cosine"], spread["mean_random_cosine"], spread["uniformity"], spread["alignment"], spread["effective_rank"])
    return f"| {name} | " + " | ".join("" if value is None else f"{value:.4f}" if value < 10 else f"{value:.0f}" for value in cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--test", required=True)
    parser.add_argument("--prompt")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    test = read_data(options.test)
    print(f"{machine()}; {versions('twinvec', 'torch')}")
    print("| model | Spearman | anisotropy | uniformity | alignment | effective rank |\n|---|---|---|---|---|---|")
    for name in options.models:
        print(row(name, tv.Encoder.load(name), test, options.prompt), flush=True)


if __name__ == "__main__":
    main()
