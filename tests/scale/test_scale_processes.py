"""Several processes: the same vectors in the same order; an end for every way to fail."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scale_fakes import TEXTS

from twinvec import Pool, read_vectors
from twinvec.errors import EncodeError, ModelError, UsageError
from twinvec.scale.bulk import encode_files
from twinvec.scale.compute import Calls
from twinvec.scale.processes import WorkerError


@pytest.fixture(scope="module")
def pool(model: Path) -> Iterator[Pool]:
    with Pool(model, processes=2, threads=1) as made:
        yield made


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_pool_gives_what_one_process_gives(pool: Pool, wanted: np.ndarray, encoder: Any) -> None:
    np.testing.assert_allclose(pool.encode(TEXTS), wanted, atol=1e-5)
    np.testing.assert_allclose(pool.encode("the cat", prompt="query"), encoder.encode("the cat", prompt="query"), atol=1e-6)
    assert pool.encode([]).shape == (0, 32)
    assert (pool.facts.fingerprint, pool.facts.max_tokens, pool.facts.prompts) == (encoder.fingerprint, 64, encoder.prompts)


def test_odd_texts_come_through(pool: Pool, encoder: Any) -> None:
    odd = ["a\x00b", "\ud800 lone", "👩‍👩‍👧", "\n\r\t", "ＡＢＣ", "x" * 100_000, "a"]
    np.testing.assert_allclose(pool.encode(odd), encoder.encode(odd), atol=1e-5)


def test_few_blocks_are_asked_for_ahead(pool: Pool) -> None:
    asked = []

    def blocks() -> Iterator[list[str]]:
        for number in range(20):
            asked.append(number)
            yield [f"cat {number}"]

    for done, _ in enumerate(pool.results(blocks(), Calls())):
        assert len(asked) <= done + 1 + 4


def test_a_bad_block_is_an_error_and_the_pool_lives(pool: Pool, wanted: np.ndarray) -> None:
    with pytest.raises(EncodeError, match=r"has \d+ tokens, the model's window is 64"):
        pool.encode(["the cat " * 100], on_long="error")
    with pytest.raises(UsageError, match="knows these prompts: query, passage"):
        pool.encode(["the cat"], prompt="qery")
    np.testing.assert_allclose(pool.encode(TEXTS), wanted, atol=1e-5)


@pytest.mark.parametrize("suffix", ["npy", "parquet"])
def test_files_are_the_same_for_any_number_of_processes(suffix: str, pool: Pool, encoder: Any, texts: Path, tmp_path: Path) -> None:
    encode_files(encoder, texts, tmp_path / f"one.{suffix}", shard_rows=20)
    report = encode_files(pool, texts, tmp_path / f"two.{suffix}", shard_rows=20)
    assert report.processes == 2
    one, two = read_vectors(tmp_path / f"one.{suffix}"), read_vectors(tmp_path / f"two.{suffix}")
    np.testing.assert_allclose(one.vectors, two.vectors, atol=1e-6)
    assert (one.ids, one.texts) == (two.ids, two.texts)


def test_a_killed_worker_is_an_error_within_seconds(model: Path) -> None:
    """sentence-transformers PR 3920, fastembed PR 336: the parent waited for ever."""
    with Pool(model, processes=2, threads=1) as pool:
        pids = pool.pids
        threading.Timer(0.3, os.kill, (pids[1], signal.SIGKILL)).start()
        start = time.monotonic()
        endless = pool.results(iter(lambda: TEXTS, None), Calls())
        with pytest.raises(WorkerError, match=rf"process 2 of 2 \(pid {pids[1]}\) was ended by signal 9 \(SIGKILL\)"):
            deque(endless, maxlen=0)
        assert time.monotonic() < start + 20
    assert all(gone(pid) for pid in pids)


def test_a_model_that_is_not_there_is_an_error_and_no_process_stays(tmp_path: Path) -> None:
    pool = Pool(tmp_path / "none", processes=1)
    with pytest.raises(ModelError, match="no model"):
        pool.__enter__()
    assert pool.pids == []


def test_workers_end_with_a_parent_that_is_killed(model: Path) -> None:
    code = f"import twinvec, time; p = twinvec.Pool({str(model)!r}, threads=1); p.__enter__(); print(p.pids[0], flush=True); time.sleep(60)"
    # No __main__ guard is needed, though this is a main program.
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert not gone(pid)
        parent.kill()
    for _ in range(100):
        if gone(pid):
            break
        time.sleep(0.1)
    assert gone(pid)


def test_an_encoder_that_was_changed_is_refused(model: Path) -> None:
    from twinvec import Encoder

    changed = Encoder.load(model)
    changed.prompts = {"query": "another: "}
    with pytest.raises(UsageError, match=r"this encoder is not the one in .* \(any more\); save it"):
        Pool(changed, threads=1).__enter__()


def test_settings_of_a_pool() -> None:
    assert Pool("minilm", devices=["cuda:0", "cuda:1"]).processes == 2
    assert "stand in each other's way" in Pool("minilm", processes=500).notes()[0]
    assert Pool("minilm", processes=1).notes() == []
    with pytest.raises(UsageError, match="not open"):
        _ = Pool("minilm").facts


def test_one_shard_is_encoded_by_one_process(model: Path, texts: Path, tmp_path: Path) -> None:
    notes: list[str] = []
    assert encode_files(model, texts, tmp_path / "out.npy", processes=4, notify=notes.append).processes == 1
    assert notes == ["the input is one shard, which one process encodes alone; several do not pay here"]
