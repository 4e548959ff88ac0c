"""The narrow cone in one picture: cosines of random texts and the spectrum of several models, such as a raw one and what training made of it.

    python benchmarks/geometry.py --texts texts.txt -o cone.svg RAW TRAINED...

MODEL::PROMPT gives a model its prompt. Prints the figures of `evaluate --geometry` beside it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from twinvec.data.documents import read_texts
from twinvec.evaluation.pictures import cone_of
from twinvec.evaluation.report.build import save_picture
from twinvec.evaluation.report.charts import cone_chart
from twinvec.evaluation.space import space_of
from twinvec.model.encoder import Encoder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL[::PROMPT]")
    parser.add_argument("--texts", type=Path, required=True, help="a file of texts (.txt, .csv, .jsonl, each also .gz)")
    parser.add_argument("--column", help="the column with the texts")
    parser.add_argument("--rows", type=int, default=2000, help="distinct texts at most")
    parser.add_argument("--pooling", help="for models that do not say theirs, such as mean or last")
    parser.add_argument("--language", choices=("en", "zh"), default="en")
    parser.add_argument("-o", "--output", type=Path, default=Path("cone.svg"), help=".svg or .png")
    given = parser.parse_args()
    texts: list[str] = []
    seen: set[str] = set()
    for text in read_texts(given.texts, given.column):
        if text.strip() and text not in seen:
            seen.add(text)
            texts.append(text)
        if len(texts) == given.rows:
            break
    cones = []
    for name in given.models:
        place, mark, prompt = name.rpartition("::")
        encoder = Encoder.load(place if mark else name, pooling=given.pooling)
        vectors = encoder.encode(texts, prompt=prompt if mark else None)
        folder = Path(place if mark else name)
        cones.append(cone_of("/".join(folder.parts[-2:]) + (f"::{prompt}" if mark else ""), vectors))  # many a trained model is called "best"
        found = space_of(vectors)
        shown = {
            key: found[key]
            for key in ("mean_random_cosine", "uniformity", "effective_rank", "top_share", "variance_share", "components_90", "hubness")
        }
        print(json.dumps({"model": name, "texts": len(texts), **shown}), flush=True)
    print(save_picture(given.output, cone_chart(cones), given.language))


if __name__ == "__main__":
    main()
