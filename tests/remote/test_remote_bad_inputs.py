"""URLs of collections that cannot be, and what is said then. No server is needed: nothing of these gets as far as one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from twinvec.errors import TwinvecError, UsageError
from twinvec.index.remote import is_remote, open_collection, parse_address

SECRET = "hunter2"
CASES: list[tuple[str, Callable[[], Any], str]] = [
    (
        "a PostgreSQL URL without a collection",
        lambda: open_collection(f"postgresql://me:{SECRET}@db/shop"),
        r"me@db/shop\?collection=: names no coll",
    ),
    ("a Milvus URL without a collection", lambda: open_collection(f"milvus://me:{SECRET}@db:19530"), r"names no collection; .*milvus://user"),
    ("a URL with two names in its path", lambda: open_collection(f"milvus://me:{SECRET}@db/a/b"), r"more than one name in the path"),
    ("a URL whose port is no number", lambda: open_collection("milvus://db:port/faq"), r"this URL cannot be read \(Port could not be cast"),
    ("a Milvus name with a hyphen", lambda: open_collection("milvus://db/my-faq"), r"'my-faq': Milvus takes names of letters, digits and _"),
    ("a PostgreSQL name that is too long", lambda: open_collection(f"postgresql://db/shop?collection={'x' * 64}"), r"up to 63 bytes"),
    ("a PostgreSQL name with a quote", lambda: open_collection("postgresql://db/shop?collection=a%22b"), r"names have letters, digits, spaces"),
    ("a PostgreSQL name of the system", lambda: open_collection("postgresql://db/shop?collection=pg_x"), r"do not begin with pg_"),
    (
        "a PostgreSQL server that is not there",
        lambda: open_collection(f"postgresql://me:{SECRET}@127.0.0.1:1/shop?collection=faq"),
        r"127.0.0.1:1/shop\?collection=faq: cannot connect .*is the server up",
    ),
    (
        "a Milvus server that is not there",
        lambda: open_collection(f"milvus://me:{SECRET}@127.0.0.1:1/faq?secure=false"),
        r"milvus://me@127.0.0.1:1/faq: cannot connect .*is the server up",
    ),
    ("a new remote collection without a model", lambda: open_collection("milvus://db/faq", create=True), r"needs the model of its documents"),
    (
        "a new Milvus collection without dimensions",
        lambda: open_collection("milvus://127.0.0.1:1/faq", "print", create=True),
        r"cannot connect|must know the dimensions",
    ),
]


@pytest.mark.parametrize(("name", "make", "pattern"), CASES, ids=[case[0] for case in CASES])
def test_bad_input(name: str, make: Callable[[], Any], pattern: str, record_property: Callable[[str, object], None]) -> None:
    with pytest.raises(TwinvecError, match=pattern) as caught:
        make()
    record_property("message", str(caught.value))
    shown: BaseException | None = caught.value
    while shown is not None:  # the password is not in what the error was raised from, either
        assert SECRET not in str(shown)
        shown = shown.__cause__
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("postgresql://h/d?collection=faq", ("postgresql", "h", None, None, None, "d", "faq")),
        ("postgres://u:p%40w@h:5433/d?collection=a%20b&sslmode=require", ("postgresql", "h", 5433, "u", "p@w", "d", "a b")),
        ("postgresql://u@h/d#faq", ("postgresql", "h", None, "u", None, "d", "faq")),
        ("postgresql:///d?host=/run/pg&collection=faq", ("postgresql", "", None, None, None, "d", "faq")),
        ("milvus://h/faq", ("milvus", "h", None, None, None, "", "faq")),
        ("MILVUS://u:pw9@h:1/faq?db=shop", ("milvus", "h", 1, "u", "pw9", "shop", "faq")),
    ],
)
def test_urls(text: str, parts: tuple[Any, ...]) -> None:
    a = parse_address(text)
    assert (a.engine, a.host, a.port, a.user, a.password, a.database, a.collection) == parts
    assert is_remote(text)
    if a.password:
        assert a.password not in repr(a)
        assert a.password not in a.shown
        assert a.hide(f"x {a.password} y") == "x *** y"


def test_a_path_that_lost_a_slash_is_still_a_url() -> None:
    assert parse_address(Path("postgresql://u@h/d?collection=faq")).host == "h"
    assert is_remote(Path("milvus://h/faq"))
    assert not is_remote("faq")
    assert not is_remote("some:/folder")


def test_a_folder_goes_to_the_local_collection(tmp_path: Path) -> None:
    with open_collection(tmp_path / "faq", "print", create=True, dimensions=4) as made:
        made.add([("a", "text")], np.ones((1, 4)))
    with open_collection(str(tmp_path / "faq")) as found:
        assert found.ids() == ["a"]
    with pytest.raises(UsageError, match="needs the model"):
        open_collection(tmp_path / "new", create=True)
