"""Quality of the first d dimensions: a Matryoshka model beside plain truncation of one that was not trained for it.

.venv/bin/python benchmarks/dimensions.py --test ../shared/data/sts/en/stsb.test.csv minilm runs/matryoshka/best
"""

from __future__ import annotations

import argparse

import numpy as np
from common import machine, versions

import twinvec as tv
from twinvec.data.dataset import read_data
from twinvec.evaluation.sts import score_sts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--test", required=True)
    parser.add_argument("--dimensions", default="384,256,128,64,32")
    parser.add_argument("--prompt")
    options = parser.parse_args()
    test = read_data(options.test)
    sizes = [int(size) for size in options.dimensions.split(",")]
    print(f"{machine()}; {versions('twinvec', 'torch')}")
    print("| model | " + " | ".join(map(str, sizes)) + " |\n|---|" + "---|" * len(sizes))
    for name in options.models:
        encoder = tv.Encoder.load(name)
        u, v = (encoder.encode(column, prompt=options.prompt) for column in list(test.columns.values())[:2])
        scores = [score_sts(u[:, :size], v[:, :size], np.asarray(test.labels))["spearman_cosine"] for size in sizes]
        print(f"| {name} | " + " | ".join(f"{score:.4f}" for score in scores) + " |", flush=True)


if __name__ == "__main__":
    main()
