"""Reranking in the formats of TEI, infinity, Jina and Cohere, and bert-as-service's status."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from starlette.routing import Route

from bertworks.serving.request_error import ErrorFormat, ErrorFormats
from bertworks.serving.security import Keys
from tests.serving.conftest import LIMIT, Running

QUERY = "the door"
TEXTS = ["a river", "the door was open", "deep in london", "a"]
KEY = "a-key-of-sixteen-characters"


@pytest.fixture
def expected(server: Running) -> dict[int, float]:
    """The scores, best first."""
    ranks = server.ask("/rerank", {"model": "reranker", "query": QUERY, "texts": TEXTS})
    return {rank["index"]: rank["score"] for rank in ranks}


@pytest.mark.parametrize("top_n", [None, 1, 3, 9])
@pytest.mark.parametrize("has_text", [True, False])
@pytest.mark.parametrize("route", ["/rerank texts", "/rerank", "/v1/rerank", "/v2/rerank"])
def test_all_formats_give_the_same_ranks(
    server: Running, expected: dict[int, float], route: str, top_n: int | None, has_text: bool
) -> None:
    path, *field = route.split()
    body: dict[str, Any] = {"model": "reranker", "query": QUERY, (*field, "documents")[0]: TEXTS}
    body |= {"top_n": top_n, "return_documents": has_text}
    answer = server.ask(path, body)
    results = answer["results"] if isinstance(answer, dict) else answer
    assert len(results) == min(top_n or 4, 4)
    for result, (index, score) in zip(results, expected.items(), strict=False):
        assert result["index"] == index
        assert result.get("relevance_score", result.get("score")) == score
        text = result.get("text", result.get("document"))
        if has_text and path != "/v2/rerank":
            assert text in (TEXTS[index], {"text": TEXTS[index]})
        else:
            assert text is None


def test_fields_are_those_of_each_format(server: Running) -> None:
    """Of `infinity.openapi.json`, and of `V2RerankResponse` in Cohere's client."""
    body = {"model": "reranker", "query": QUERY, "documents": TEXTS, "return_documents": True}
    infinity = server.ask("/rerank", body)
    assert infinity.keys() == {"object", "results", "model", "usage", "id", "created"}
    assert (infinity["object"], infinity["model"]) == ("rerank", "reranker")
    assert isinstance(infinity["created"], int)
    assert infinity["results"][0].keys() == {"relevance_score", "index", "document"}
    assert infinity["usage"]["total_tokens"] > 0
    cohere = server.ask("/v2/rerank", body)
    assert cohere.keys() == {"id", "results", "meta"}
    assert cohere["results"][0].keys() == {"index", "relevance_score"}
    assert cohere["meta"]["api_version"] == {"version": "2"}


def test_texts_and_documents_are_one_or_the_other(server: Running) -> None:
    both = {"model": "reranker", "query": QUERY, "texts": TEXTS, "documents": TEXTS}
    response = server.post("/rerank", both)
    assert (response.status_code, response.json()["error"].split(":")[0]) == (422, "documents")
    response = server.post("/rerank", {"model": "reranker", "query": QUERY})
    assert (response.status_code, response.json()["error"]) == (422, "texts: must be given")


def test_documents_are_truncated_where_the_client_asks(server: Running) -> None:
    words = ["the", "door", "was", "open", "a", "river", "was", "deep", "in", "london"]
    documents = [" ".join(words), "the door", " ".join(words * 20)]
    body = {"model": "reranker", "query": QUERY, "documents": documents}
    response = server.post("/v2/rerank", body)
    assert response.status_code == 413
    assert response.json().keys() == {"message"}
    for most in (1, 3, 10):
        answer = server.post("/v2/rerank", {**body, "max_tokens_per_doc": most})
        truncated_documents = [" ".join(document.split()[:most]) for document in documents]
        same = server.ask("/v2/rerank", {**body, "documents": truncated_documents})
        assert answer.json()["results"] == same["results"]
        num_truncated = sum(map(str.__ne__, documents, truncated_documents))
        assert answer.headers["x-truncated-texts"] == str(num_truncated)
    answer = server.post("/v2/rerank", {**body, "max_tokens_per_doc": 4096})
    assert answer.headers["x-truncated-texts"] == "1", f"of {LIMIT} tokens"


def test_errors_follow_the_protocol_of_the_route() -> None:
    routes: list[tuple[Route, ErrorFormat]] = [
        (Route("/v2/embed", print), "tei"),
        (Route("/v2/rerank", print), "cohere"),
        (Route("/v1/models/{name:path}", print), "openai"),
        (Route("/embeddings", print), "openai"),
    ]
    formats = ErrorFormats(routes)
    for path, expected in {
        "/v2/embed": "tei",
        "/v2/rerank": "cohere",
        "/v1/models/a/b": "openai",
        "/v1/none": "openai",
        "/embeddings": "openai",
        "/none": "tei",
        "/": "tei",
        "": "tei",
    }.items():
        assert formats.find(path) == expected, path


@pytest.mark.long
def test_errors_under_v2_are_cohere_s(directories, start) -> None:
    keys = Keys({"ada": KEY})
    with start({"encoder": directories["encoder"]}, keys=keys) as server:
        body = {"query": QUERY, "documents": TEXTS}
        response = server.post("/v2/rerank", body)
        assert (response.status_code, response.json()) == (401, {"message": "no valid API key"})
        headers = {"authorization": f"Bearer {KEY}"}
        for path, wrong, status in (
            ("/v2/rerank", {**body, "model": "none"}, 404),
            ("/v2/rerank", body, 424),
            ("/v2/rerank", {**body, "top_n": 0}, 422),
            ("/v2/none", body, 404),
        ):
            answer = server.post(path, wrong, headers=headers)
            assert answer.status_code == status
            assert answer.json().keys() == {"message"}


def test_status_is_that_of_bert_as_service(server: Running) -> None:
    """The fields and types of `bert-as-service.openapi.yaml`."""
    server.ask("/encode", {"id": 1, "texts": ["a"], "is_tokenized": False})
    status = server.http.get("/status/server").json()
    assert status["status"] == 200
    assert (status["max_seq_len"], status["pooling_layer"]) == (32, [-1])
    assert status["pooling_strategy"] == 2, "REDUCE_MEAN"
    assert status["cpu"] is True
    is_false = ("fp16", "mask_cls_sep", "show_tokens_to_client")
    assert [status[name] for name in is_false] == [False] * 3
    assert str(status["http_port"]) == server.url.rpartition(":")[2]
    start_time, now = (
        datetime.fromisoformat(status[f"server_{at}_time"]) for at in ("start", "current")
    )
    assert start_time <= now
    counts = status["statistic"]
    assert 1 <= counts["num_data_request"] <= counts["num_total_request"]
    client = server.http.get("/status/client").json()
    assert client["num_request"] == counts["num_data_request"]
    assert (client["status"], client["pending_request"]) == (200, [])
    assert server.post("/status/server", {}).status_code == 405, "GET, as in the description"
