"""A local collection copied up to a server."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import chain
from typing import Any

import numpy as np
import pytest
from index_fakes import FakeEncoder
from remote_places import Place
from typer.testing import CliRunner

from twinvec.errors import CollectionError, UsageError
from twinvec.index.collection import Collection
from twinvec.index.remote import copying

TEXTS = ["red apple", "green apple", "old house", "红色 苹果", "blue sky over the sea", "a cat", "two dogs", "a small boat"]
LONG = "The cat sleeps here. " * 3 + "A blue whale swims far. " * 3


def filled(place: Place, encoder: FakeEncoder, **options: Any) -> Collection:
    local = place.make(encoder, **options)
    local.add([(f"d{i:03}", f"{TEXTS[i % 8]} {i}", {"n": i, "lang": "zh" if i % 8 == 3 else "en"}) for i in range(120)])
    local.add([("long", LONG, {"kind": "long"})], on_long="passages", passage_tokens=12, passage_overlap=2)
    local.add([("empty", "")], on_long="truncate")
    local.delete(["d005", "d006"])
    local.put_setting("fusion", {"weight": 0.25})
    return local


def same(local: Any, remote: Any, encoder: FakeEncoder) -> None:
    assert remote.ids() == local.ids()
    assert remote.settings.fingerprint == local.settings.fingerprint
    for name in ("d000", "long", "empty", "d003"):
        assert remote.get(name) == local.get(name)
        if local.vector(name) is not None:
            np.testing.assert_array_equal(remote.vector(name), local.vector(name))
    queries = encoder.encode(["green apple 9", "A blue whale swims far.", "house"])
    for where in (None, "lang = 'zh'", "n < 10 or kind = 'long'"):
        mine, theirs = local.search(queries, 12, where=where), remote.search(queries, 12, where=where)
        assert [[(hit.id, hit.passage) for hit in row] for row in theirs] == [[(hit.id, hit.passage) for hit in row] for row in mine]
        for a, b in zip(chain(*mine), chain(*theirs), strict=True):
            assert b.score == pytest.approx(a.score, abs=1e-6)


def test_a_copy_is_the_same(local_place: Place, server_place: Place, encoder: FakeEncoder) -> None:
    local = filled(local_place, encoder)
    found = copying.copy_to(local, server_place.url, batch=25)
    assert (found["documents"], found["copied"], found["already_there"]) == (120, 120, 0)
    assert found["compared"]["sample"] == 50
    assert found["compared"]["equal"] == "equal to the last bit"
    remote = server_place.open(encoder)
    same(local, remote, encoder)
    assert remote.setting("fusion") == {"weight": 0.25}
    assert [hit.id for hit in remote.lexical("whale", 3)[0]] == ["long"]
    # A second time nothing is sent; what changed meanwhile is.
    assert copying.copy_to(local, server_place.url)["copied"] == 0
    local.add([("new", "brand new text"), ("d000", "changed text")])
    assert copying.copy_to(local, server_place.url)["copied"] == 2
    same(local, remote, encoder)


def test_a_copy_that_was_stopped_goes_on(local_place: Place, server_place: Place, encoder: FakeEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    local = filled(local_place, encoder)
    kind = type(server_place.make(encoder, cut="bigrams"))
    real, calls = kind._write, []

    def stopped(self: Any, *arguments: Any) -> None:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        real(self, *arguments)

    monkeypatch.setattr(kind, "_write", stopped)
    with pytest.raises(KeyboardInterrupt):
        copying.copy_to(local, server_place.url, batch=25)
    monkeypatch.undo()
    assert server_place.open().count() == 50
    found = copying.copy_to(local, server_place.url, batch=25)
    assert (found["copied"], found["already_there"]) == (70, 50)
    same(local, server_place.open(encoder), encoder)


def test_what_must_not_be_copied_over(local_place: Place, server_place: Place, encoder: FakeEncoder) -> None:
    local = filled(local_place, encoder)
    remote = server_place.make(FakeEncoder("other"))
    with pytest.raises(CollectionError, match="was made with the model other"):
        copying.copy_to(local, server_place.url)
    remote.drop()
    copying.copy_to(local, server_place.url)
    server_place.open(encoder).add([("theirs", "only there")])
    with pytest.raises(CollectionError, match=r"has 1 documents that .* has not \('theirs' \.\.\.\)"):
        copying.copy_to(local, server_place.url)
    with pytest.raises(UsageError, match="wanted a server's URL"):
        copying.copy_to(local, "some/folder")


@pytest.mark.parametrize("store", ["float16", "int8"])
def test_smaller_number_types(local_place: Place, server_place: Place, encoder: FakeEncoder, store: str) -> None:
    local = filled(local_place, encoder, store=store)
    found = copying.copy_to(local, server_place.url)
    assert found["compared"]["queries"] == 5
    assert server_place.open().settings.store == ("float16" if store == "float16" and server_place.engine == "postgres" else "float32")


def test_the_command(local_place: Place, server_place: Place, encoder: FakeEncoder, record_property: Callable[[str, object], None]) -> None:
    from twinvec.cli.main import app

    filled(local_place, encoder).close()
    done = CliRunner().invoke(app, ["index", local_place.url, "--to", server_place.url, "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (found["documents"], found["copied"]) == (120, 120)
    assert "s3cret" not in done.output
    server_place.open()


def test_from_a_model_to_hits_by_commands(server_place: Place, tmp_path: Any) -> None:
    """twinvec index URL DOCS --model M, then twinvec search URL QUERY, with the packaged model."""
    from twinvec.cli.main import app

    file = tmp_path / "faq.csv"
    file.write_text("id,text,lang\na,How do I return a parcel?,en\nb,如何退货？,zh\nc,The weather is nice today.,en\n", encoding="utf-8")
    run = CliRunner()
    done = run.invoke(app, ["index", server_place.url, str(file), "--model", "minilm", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["total"] == 3
    server_place.open()
    done = run.invoke(app, ["search", server_place.url, "send it back", "-k", "2", "--where", "lang = 'en'", "--json"])
    assert done.exit_code == 0, done.output
    assert [hit["id"] for hit in json.loads(done.stdout)["hits"]] == ["a", "c"]
    assert "s3cret" not in done.output
    done = run.invoke(app, ["search", server_place.url, "weather", "-k", "2", "--mode", "hybrid", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["hits"][0]["id"] == "c"
