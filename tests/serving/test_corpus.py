"""Answers from the corpus of a server: those of `answer_questions`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import bertworks as bw
from bertworks.analysis.retrieval.answering import answer_questions
from bertworks.analysis.retrieval.bm25 import BM25Index
from bertworks.analysis.retrieval.store import VectorStore
from bertworks.serving import service
from bertworks.serving.client_base import ServerError
from bertworks.serving.settings import ServeSettings
from tests.cli.conftest import fails
from tests.serving.conftest import Running

PASSAGES = ["the door was open in london", "a deep river", "the river was open"]
QUESTIONS = ["which river", "the door", "zzz"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("corpus") / "passages.txt"
    file.write_text("\n".join(PASSAGES))
    return file


@pytest.fixture(scope="module")
def library(
    start: Callable[..., Any], directories: dict[str, str], corpus: Path
) -> Iterator[Running]:
    names = ("answering", "encoder")
    with start({name: directories[name] for name in names}, corpus=str(corpus)) as running:
        yield running


def test_corpus_has_the_answers_of_answer_questions(
    library: Running, get_model: Any, corpus: Path
) -> None:
    """All but the directory of the places, which is not a client's concern."""
    index, reader = BM25Index.open(str(corpus)), get_model("answering")
    for passages, top_k in ((5, 1), (1, 3)):
        numbers = {"passages": passages, "top_k": top_k}
        expected = answer_questions(index, reader, QUESTIONS, **numbers)
        with bw.Client(library.url) as client:
            answers = client.answer(QUESTIONS, **numbers)
        assert [list(map(len, own)) for own in answers] == [[8] * len(own) for own in expected]
        for own, expected_own in zip(answers, expected, strict=True):
            for one, expected_one in zip(own, expected_own, strict=True):
                scores = {name: one[name] for name in ("score", "similarity")}
                name, number = expected_one.where.removeprefix(f"{corpus.parent}/").split(":")
                assert name == "passages.txt"
                values = {**expected_one._asdict(), "where": f"{name}:{number}"}
                assert scores == pytest.approx({name: values[name] for name in scores}, abs=1e-4)
                assert {**one, **scores} == {**values, **scores}
    (answer,) = library.ask("/answer", {"inputs": {"question": "the door"}})
    assert {name: answer[name] for name in answer["alternatives"][0]} == answer["alternatives"][0]
    (no_answer,) = library.ask("/answer", {"inputs": [{"question": "zzz"}]})
    assert no_answer == {"answer": "", "alternatives": []}


def test_server_answers_from_the_present_state_of_its_store(
    start: Callable[..., Any], directories: dict[str, str], get_model: Any, tmp_path: Path
) -> None:
    model, path = get_model("encoder"), tmp_path / "store"
    writer = VectorStore.open(model, path)
    writer.add(PASSAGES[:2], ["a", "b"])
    body = {"inputs": {"question": "the door"}, "passages": 9, "n_best": 9}

    def places(running: Running) -> set[str]:
        (answer,) = running.ask("/answer", body)
        return {one["where"] for one in answer["alternatives"]}

    with start({"answering": directories["answering"]}, corpus=PASSAGES) as running:
        running.service.corpus = VectorStore.open(model, path, create=False)
        assert places(running) == {"a", "b"}
        writer.add(PASSAGES[2:], ["c"])
        assert places(running) == {"a", "b", "c"}
        writer.delete(["a"])
        writer.compact()
        assert places(running) == {"b", "c"}
        (path / "store.json").rename(path / "store.bak")
        response = running.post("/answer", body)
        assert response.status_code == 503
        assert "the server's corpus cannot be read" in response.text
        assert str(path) not in response.text
        (path / "store.bak").rename(path / "store.json")
        assert places(running) == {"b", "c"}


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"inputs": [{"question": "a"}, {"question": "b", "context": "c"}]}, "or for none"),
        ({"inputs": {"question": "a"}, "null_threshold": 1.0}, "is for questions with a context"),
        ({"inputs": {"question": "a", "context": "b"}, "passages": 2}, "without a context"),
        ({"inputs": [{"question": "a"}] * 30, "passages": 100}, "at most 2,048"),
        ({"inputs": {"question": "a"}, "model": "encoder"}, "not for answer"),
    ],
)
def test_corpus_refuses_what_has_no_meaning(library: Running, body: Any, says: str) -> None:
    response = library.http.post("/answer", json=body)
    assert 400 <= response.status_code < 500
    assert says in response.text


@pytest.mark.parametrize(("limit", "count"), [(len(PASSAGES), 0), (len(PASSAGES) - 1, 1)])
def test_large_file_as_a_corpus_is_logged(
    directories: dict[str, str],
    start: Callable[..., Any],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    limit: int,
    count: int,
) -> None:
    monkeypatch.setattr(service, "_LARGE_CORPUS", limit)
    with start({"answering": directories["answering"]}, corpus=PASSAGES):
        pass
    assert caplog.text.count("the corpus is read again for each answer") == count


def test_question_of_more_passages_than_texts_is_refused(
    start: Callable[..., Any], directories: dict[str, str]
) -> None:
    """No part is smaller than a question: the clients do not ask again."""
    sources = {"answering": directories["answering"]}
    says = "inputs: 5 texts, but at most 4"

    async def ask(url: str) -> None:
        async with bw.AsyncClient(url, timeout=20) as client:
            with pytest.raises(ServerError, match=says):
                await asyncio.wait_for(client.answer("the door", passages=5), 20)

    with start(sources, ServeSettings(max_texts=4), corpus=PASSAGES) as running:
        asyncio.run(ask(running.url))
        with bw.Client(running.url) as client:
            assert len(client.answer(QUESTIONS, passages=4)) == len(QUESTIONS)
            with pytest.raises(ServerError, match=says):
                client.answer("the door", passages=5)


def test_server_without_a_corpus_says_so(server: Running) -> None:
    body = {"inputs": {"question": "a"}, "model": "answering"}
    response = server.http.post("/answer", json=body)
    assert response.status_code == 422
    assert "the server has no corpus (serve --corpus FILE): give a passage" in response.text
    entries = server.http.get("/explore/models?model=answering").json()["models"]
    (entry,) = [one for one in entries if one["name"] == "answering"]
    assert "The server has no corpus" in entry["views"]["corpus"]


def test_options_of_a_corpus_need_it() -> None:
    says = "--retriever and --column need --corpus FILE"
    fails("serve", "mini", "--retriever", "mini-sentences", says=says, status=2)
