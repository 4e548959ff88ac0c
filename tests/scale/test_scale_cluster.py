"""A local Ray cluster: the same file, and an error where Ray would wait for ever."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from twinvec.errors import UsageError
from twinvec.scale.cluster import Cluster, Share, share

CODE = """
import os, sys, warnings
from twinvec.scale.bulk import encode_files
from twinvec.scale.cluster import Cluster
from twinvec.errors import EncodeError
model, texts, folder = sys.argv[1:]
before = dict(os.environ)
with Cluster(model, processes=2) as cluster:
    assert dict(os.environ) == before
    report = encode_files(cluster, texts, folder + "/ray.parquet", shard_rows=20)
    print(report.processes, report.rows)
    try:
        encode_files(cluster, texts, folder + "/none.parquet", shard_rows=20, on_long="error", prompt="qery")
    except Exception as err:
        print(type(err).__name__, err)
    import ray
    ray.kill(cluster._actors[1])
    try:
        encode_files(cluster, texts, folder + "/none.parquet", shard_rows=20)
    except EncodeError as err:
        print(err)
print(cluster._folder)
"""


def test_a_local_cluster_gives_the_same_file(model: Path, encoder: object, texts: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    from twinvec.scale.bulk import encode_files

    done = subprocess.run([sys.executable, "-c", CODE, str(model), str(texts), str(tmp_path)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    first, second, third, fourth = done.stdout.strip().splitlines()
    assert first == "2 230"
    assert second.startswith("UsageError prompt = 'qery': this model")
    assert third.startswith("Ray process 2 of 2 has ended: ActorDiedError")
    assert fourth == "None"
    encode_files(encoder, texts, tmp_path / "one.parquet", shard_rows=20)  # type: ignore[arg-type]
    from twinvec import read_vectors

    one, ray = read_vectors(tmp_path / "one.parquet"), read_vectors(tmp_path / "ray.parquet")
    np.testing.assert_allclose(ray.vectors, one.vectors, atol=1e-6)
    assert (ray.ids, ray.texts) == (one.ids, one.texts)
    assert sorted(name for name in os.listdir(tmp_path) if not name.endswith(".parts")) == ["one.parquet", "ray.parquet", "texts.txt"]


@pytest.mark.parametrize(
    ("actors", "nodes", "free", "gpu", "wanted"),
    [
        (None, [2], 2, False, Share(1, 1.0, 0.0, 2)),
        (2, [2], 2, False, Share(2, 0.5, 0.0, 1)),  # as found by trial: two of a whole CPU each hang on two CPUs
        (1, [1], 1, False, Share(1, 0.5, 0.0, 1)),
        (None, [16], 16, False, Share(4, 3.0, 0.0, 4)),
        (None, [8, 8], 16, False, Share(4, 3.0, 0.0, 4)),
        (1, [2, 2], 4, False, Share(1, 2.0, 0.0, 4)),
        (3, [2, 2], 4, False, Share(3, 1.0, 0.0, 1)),
        (None, [8], 8, True, Share(2, 3.0, 1.0, 4)),
    ],
)
def test_what_is_asked_of_a_cluster_leaves_a_part_free(actors: int | None, nodes: list[float], free: float, gpu: bool, wanted: Share) -> None:
    found = share(actors, [{"CPU": cpus, "GPU": 2.0 * gpu} for cpus in nodes], {"CPU": free, "GPU": 2.0 * gpu}, "Ray", gpu)
    assert found == wanted
    assert found.actors * found.cpus < sum(nodes)


@pytest.mark.parametrize(
    ("actors", "nodes", "free", "gpu", "message"),
    [
        (3, [2], 2, False, r"--ray: Ray has 1 node with 2 CPUs \(2 free\) and 0 GPUs; 3 processes were asked for; give --processes 2 or fewer"),
        (2, [2], 0.5, False, r"2 CPUs \(0.5 free\) and 0 GPUs; 2 processes of 0.5 CPUs are wanted\. Other work has them: wait"),
        (None, [], 0, False, r"0 nodes with 0 CPUs .* at least one CPU is needed"),
        (2, [4], 4, True, r"2 processes with a GPU each were asked for; leave out --device"),
    ],
)  # fmt: skip
def test_what_a_cluster_cannot_give_is_said_at_once(actors: int | None, nodes: list[float], free: float, gpu: bool, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        share(actors, [{"CPU": cpus} for cpus in nodes], {"CPU": free}, "Ray", gpu)


def test_a_head_that_is_not_there_is_said_at_once() -> None:
    pytest.importorskip("ray")
    with pytest.raises(UsageError, match=r"--ray 127\.0\.0\.1:9: nobody answers there"):
        Cluster("minilm", address="127.0.0.1:9").__enter__()
    with pytest.raises(UsageError, match=r"--ray 'somewhere': wanted local, auto, HOST:PORT or ray://HOST:PORT"):
        Cluster("minilm", address="somewhere").__enter__()
