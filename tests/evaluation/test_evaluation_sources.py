"""Encoders that are no models: files of vectors, cut vectors, and a service, which here is one on this machine."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest
from compare_data import pairs, retrieval
from evaluation_fakes import FakeEncoder

from twinvec.errors import ModelError
from twinvec.evaluation.evaluate import evaluate
from twinvec.evaluation.sources import EndpointEncoder, Shortened, VectorsEncoder, is_endpoint, split_endpoint, texts_in_order

KEY = "sk-very-secret"
Answer = tuple[int, Any, dict[str, str]]


class Service:
    """A server on a free loopback port; `script` answers each request: (texts, headers, number of the request) -> (status, body, headers)."""

    def __init__(self, script: Callable[[list[str], dict[str, str], int], Answer]) -> None:
        self.requests: list[dict[str, Any]] = []
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                service.requests.append({"path": self.path, "body": body, "headers": dict(self.headers)})
                status, answer, more = script(body["input"], dict(self.headers), len(service.requests))
                content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(status)
                for name, value in {**more, "Content-Length": str(len(content))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def serve() -> Iterator[Callable[..., Service]]:
    made: list[Service] = []

    def go(script: Callable[..., Answer]) -> Service:
        made.append(Service(script))
        return made[-1]

    yield go
    for service in made:
        service.close()


def good(texts: list[str], *_: Any) -> Answer:
    fake = FakeEncoder()
    rows = [{"object": "embedding", "index": i, "embedding": fake.vector(text).tolist()} for i, text in enumerate(texts)]
    return 200, {"object": "list", "data": rows[::-1], "usage": {"prompt_tokens": 3 * len(texts)}}, {}


def test_a_service_gives_what_its_model_gives(serve: Callable[..., Service]) -> None:
    service = serve(good)
    encoder = EndpointEncoder(service.url, "fake", batch=7)
    found = encoder.encode_with_report(["the cat", "a dog", "", "the mat"] * 5)
    wanted = np.stack([FakeEncoder().vector(text) if text else np.zeros(8) for text in ["the cat", "a dog", "", "the mat"] * 5])
    np.testing.assert_allclose(found.vectors, wanted, atol=1e-6)  # by index, though the answer was in another order
    assert found.report.empty == [2, 6, 10, 14, 18]
    assert found.report.tokens == 45
    assert [len(request["body"]["input"]) for request in service.requests] == [7, 7, 1]
    assert all("" not in request["body"]["input"] and request["body"]["model"] == "fake" for request in service.requests)
    assert {request["path"] for request in service.requests} == {"/v1/embeddings"}
    assert "Authorization" not in service.requests[0]["headers"]
    here, there = evaluate(FakeEncoder(), pairs(), progress=False), evaluate(encoder, pairs(), progress=False)
    assert there["average_precision_cosine"] == pytest.approx(here["average_precision_cosine"])
    assert encoder.encode_with_report(["", " "]).vectors.shape == (2, 1)


def test_passing_faults_are_tried_again(serve: Callable[..., Service]) -> None:
    def flaky(texts: list[str], headers: dict[str, str], number: int) -> Answer:
        return (429, {"error": {"message": "slow down"}}, {"Retry-After": "0"}) if number == 1 else (503, b"", {}) if number == 2 else good(texts)

    service = serve(flaky)
    assert EndpointEncoder(service.url, "m", wait=0.001).encode_with_report(["a"]).vectors.shape == (1, 8)
    assert len(service.requests) == 3


def test_the_key_is_sent_and_never_shown(serve: Callable[..., Service], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    service = serve(lambda texts, headers, number: (401, {"error": {"message": f"wrong key {headers['Authorization']}"}}, {}))
    with pytest.raises(ModelError, match=r"HTTP 401 \(wrong key Bearer \*\*\*\): the key was refused") as caught:
        EndpointEncoder(service.url, "m", key_variable="MY_KEY").encode_with_report(["a"])
    assert KEY not in str(caught.value)
    assert service.requests[0]["headers"]["Authorization"] == f"Bearer {KEY}"
    assert len(service.requests) == 1


def test_a_redirect_is_not_followed(serve: Callable[..., Service], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    other = serve(good)
    service = serve(lambda *_: (307, b"", {"Location": f"{other.url}/embeddings"}))
    with pytest.raises(ModelError, match="it points elsewhere, which is not followed"):
        EndpointEncoder(service.url, "m", key_variable="MY_KEY").encode_with_report(["a"])
    assert not other.requests


BAD_ANSWERS: list[tuple[str, Answer, str]] = [
    ("no JSON", (200, b"<html>", {}), r"the answer is not of the OpenAI embeddings API \(JSONDecodeError\); wanted"),
    ("another API", (200, {"embeddings": [[1]]}, {}), r"not of the OpenAI embeddings API \(KeyError\)"),
    ("a list", (200, [1], {}), r"not of the OpenAI embeddings API \(TypeError\)"),
    ("text for numbers", (200, {"data": [{"embedding": "AAAA", "index": 0}, {"embedding": "AAAA", "index": 1}]}, {}), r"not of the OpenAI"),
    ("too few", (200, {"data": [{"embedding": [1.0], "index": 0}]}, {}), r"1 vectors for 2 texts, or of unequal lengths; wanted one each"),
    ("one index twice", (200, {"data": [{"embedding": [1.0], "index": 0}] * 2}, {}), r"2 vectors for 2 texts, or of unequal"),
    ("unequal", (200, {"data": [{"embedding": [1.0], "index": 0}, {"embedding": [1.0, 2], "index": 1}]}, {}), r"not of the OpenAI|unequal"),
    ("NaN", (200, b'{"data": [{"embedding": [NaN], "index": 0}, {"embedding": [1], "index": 1}]}', {}), r"NaN or infinity for some texts"),
    ("too long", (400, {"error": {"message": "maximum context length is 512 tokens"}}, {}), r"HTTP 400 \(maximum context length is 512 tokens\)$"),
    ("no such model", (404, {"detail": "Not Found"}, {}), r"HTTP 404 \(Not Found\): no http://.*/embeddings there, or no model of that name"),
    (
        "no key",
        (403, {"error": "forbidden"}, {}),
        r"HTTP 403 \(forbidden\): it wants a key; put it into an environment variable and give --api-key-env",
    ),
]


@pytest.mark.parametrize(("name", "answer", "message"), BAD_ANSWERS, ids=[case[0] for case in BAD_ANSWERS])
def test_bad_answers(name: str, answer: Answer, message: str, serve: Callable[..., Service], record_property: Callable[[str, object], None]) -> None:
    service = serve(lambda *_: answer)
    with pytest.raises(ModelError, match=message) as caught:
        EndpointEncoder(service.url, "m").encode_with_report(["a", "b"])
    assert len(service.requests) == 1
    assert "\n" not in str(caught.value)
    record_property("message", str(caught.value).replace(service.url, "http://localhost:8000/v1"))


def test_a_service_that_changes_its_size(serve: Callable[..., Service]) -> None:
    service = serve(lambda texts, headers, number: (200, {"data": [{"embedding": [1.0] * number}]}, {}))
    with pytest.raises(ModelError, match="vectors of 1 and 2 numbers in one run"):
        EndpointEncoder(service.url, "m", batch=1).encode_with_report(["a", "b"])


def test_retries_end(serve: Callable[..., Service]) -> None:
    service = serve(lambda *_: (500, {"error": {"message": "boom"}}, {}))
    with pytest.raises(ModelError, match=r"no answer after 3 tries \(boom\); check that the service runs"):
        EndpointEncoder(service.url, "m", retries=2, wait=0.001).encode_with_report(["a"])
    assert len(service.requests) == 3
    service.close()
    with pytest.raises(ModelError, match=r"no answer after 1 tries \(.*refused"):
        EndpointEncoder(service.url, "m", retries=0).encode_with_report(["a"])


def test_names_of_services() -> None:
    assert split_endpoint("http://h:8000/v1::org/model") == ("http://h:8000/v1", "org/model")
    assert split_endpoint("https://h/v1/embeddings::m") == ("https://h/v1", "m")
    assert split_endpoint("http://[::1]:80/v1::m") == ("http://[::1]:80/v1", "m")
    assert is_endpoint("http://h/v1::m")
    assert not is_endpoint("models/http")


# --- vectors


def test_vectors_by_text_and_by_order() -> None:
    data = pairs(10)
    listed = texts_in_order(data)
    fake = FakeEncoder()
    vectors = np.stack([fake.vector(text) for text in listed])
    wanted = evaluate(fake, data, progress=False)["average_precision_cosine"]
    by_text = VectorsEncoder(vectors[::-1].copy(), name="v.parquet", texts=listed[::-1])
    by_order = VectorsEncoder(vectors, name="v.npy")
    for encoder in (by_text.bind(data), by_order.bind(data)):
        assert evaluate(encoder, data, progress=False)["average_precision_cosine"] == wanted
    distinct = list(dict.fromkeys([*listed, listed[0]]))
    assert VectorsEncoder(vectors[: len(distinct)], name="v").bind(data).place is not None


def test_vectors_by_id_and_by_order_of_a_folder() -> None:
    data, fake = retrieval(), FakeEncoder()
    wanted = evaluate(fake, data, progress=False)["ndcg@10"]
    ids = [*(d.id for d in data.corpus), *data.queries]
    vectors = np.stack([fake.vector(text) for text in texts_in_order(data)])
    order = np.random.default_rng(0).permutation(len(ids))
    by_id = VectorsEncoder(vectors[order], name="v.parquet", ids=[ids[i] for i in order]).bind(data)
    assert evaluate(by_id, data, progress=False)["ndcg@10"] == wanted
    assert evaluate(VectorsEncoder(vectors, name="v.npy").bind(data), data, progress=False)["ndcg@10"] == wanted


def test_shortened_is_the_first_numbers_at_length_one() -> None:
    fake = FakeEncoder()
    found = Shortened(fake, 3).encode_with_report(["the cat", "", "a dog"])
    whole = np.stack([fake.vector("the cat"), np.zeros(8), fake.vector("a dog")])[:, :3]
    np.testing.assert_allclose(found.vectors[[0, 2]], whole[[0, 2]] / np.linalg.norm(whole[[0, 2]], axis=1, keepdims=True), atol=1e-6)
    assert not found.vectors[1].any()
    assert found.report.dimensions == 3
