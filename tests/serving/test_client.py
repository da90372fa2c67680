"""The client: the verbs of `Model`, with the same answers."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, HTTPServer

import httpx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bertworks as bw
from bertworks.errors import DataError, SettingsError
from bertworks.serving.client import AsyncClient, Client
from bertworks.serving.client_base import ServerError
from bertworks.serving.client_parts import add_neighbours
from bertworks.serving.dialects.info import describe_row_context
from bertworks.serving.settings import ServeSettings
from bertworks.tasks.tagging.task import TaggingTask
from bertworks.text.tokenizer import Tokenizer
from tests.serving.conftest import PIECES, Running, save_tagger_of_documents, tasks
from tests.serving.test_bert import close

TEXTS = ["the door was open", "a river", "deep in london"]


@pytest.fixture
def client(server: Running) -> Iterator[Client]:
    with bw.Client(server.url) as client:
        yield client


@pytest.mark.long
def test_settings_are_those_of_a_model(server: Running, get_model) -> None:
    clients = ExitStack()

    def open_client(name: str) -> tuple[Client, bw.Model]:
        return clients.enter_context(Client(server.url, model=name)), get_model(name)

    theirs, model = open_client("encoder")
    for keywords in ({}, {"pooling": "max", "layers": [0, -1]}, {"normalize": False}):
        found = theirs.embed(TEXTS, **keywords)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, model.embed(TEXTS, **keywords), atol=1e-5)
    cosines = theirs.similarity("a river", TEXTS, pooling="max")
    expected = model.similarity("a river", TEXTS, pooling="max")
    np.testing.assert_allclose(cosines, expected, atol=1e-5)
    assert theirs.embed("a").shape == (1, 16)
    assert len(theirs.embed([])) == 0
    assert theirs.embed(["door " * 60], truncate=True).shape == (1, 16)
    assert theirs.info()["served_model_name"] == "encoder"
    assert theirs.tokenize("the door")[0][1]["text"] == "the"
    theirs, model = open_client("pretrained")
    masked = "the door was [MASK]"
    (probabilities,) = theirs.fill_mask(masked, candidates=["open", "deep"])
    assert close([probabilities], model.fill_mask(masked, candidates=["open", "deep"]))
    theirs, model = open_client("causal")
    assert theirs.generate(TEXTS, max_new_tokens=3) == model.generate(TEXTS, max_new_tokens=3)
    clients.close()


def test_a_data_frame_is_its_rows(server: Running, get_model) -> None:
    frame = pytest.importorskip("pandas").DataFrame({"text": TEXTS, "more": range(3)})
    with Client(server.url, model="classifier") as client:
        assert close(client.predict(frame), get_model("classifier").predict(frame))
        with pytest.raises(ServerError, match=r"^http.*: inputs"):  # and no texts
            client.tokenize(frame)


def test_rows_of_python_are_sent_as_json(server: Running, get_model) -> None:
    with Client(server.url, model="classifier") as client:
        rows = [{"text": "a river", "number": np.int64(3), "missing": float("nan")}]
        assert close(client.predict(rows), get_model("classifier").predict(rows))
        with pytest.raises(ServerError, match=r"rows\[1\]: lone surrogate U\+D800") as refused:
            client.predict(["é", "\ud800"])
        assert refused.value.status == 422
        with pytest.raises(DataError, match=r"cannot be sent as JSON \(a value of the type set\)"):
            client.predict([{"text": {"a"}}])
    with Client(server.url) as client:
        layers = np.array([0, 2])
        found = client.embed("é", layers=layers)
        np.testing.assert_allclose(found, get_model("encoder").embed("é", layers=layers), atol=1e-5)


def test_many_texts_are_sent_in_parts(client: Client, get_model) -> None:
    texts = [f"{'door ' * (at % 20)} open" for at in range(1100)]
    np.testing.assert_allclose(
        client.embed(iter(texts)), get_model("encoder").embed(texts), atol=1e-5
    )


@pytest.mark.long
def test_long_texts_are_sent_in_smaller_parts(server: Running, get_model) -> None:
    texts = [f"{'é ' * 2000}{at}" for at in range(100)]  # 4,000 characters, perhaps 12,000 tokens
    with Client(server.url, model="classifier") as client:
        found = client.predict(texts)
    with pytest.warns(match="too long"):
        assert close(found, get_model("classifier").predict(texts))


@pytest.mark.long
def test_a_server_that_takes_fewer_texts_gets_smaller_requests(
    directories, start, get_model
) -> None:
    texts = [f"{'door ' * (at % 20)} open" for at in range(30)]
    prompts = ["the door"] * 10 + ["a", "the door"] * 3
    keywords = {"max_new_tokens": 4, "temperature": 1.0, "seed": 3}
    sources = {name: directories[name] for name in ("encoder", "causal")}
    with start(sources, ServeSettings(lazy=True, max_texts=7)) as server:
        with Client(server.url) as client:
            vectors, info = client.embed(texts), client.info()
            with pytest.raises(ServerError, match=r"texts\[20\]: 62 tokens, but at most 32 fit"):
                client.embed([*texts[:20], "door " * 60])
        with Client(server.url, model="causal") as client:
            continuations = client.generate(prompts, **keywords)

        async def ask() -> object:
            async with AsyncClient(server.url) as client:
                assert (await client.info())["model_id"] == info["model_id"]
                return await client.embed(iter(texts))

        async_vectors = asyncio.run(ask())
    np.testing.assert_allclose(vectors, get_model("encoder").embed(texts), atol=1e-5)
    np.testing.assert_allclose(async_vectors, vectors, atol=1e-5)
    assert continuations == get_model("causal").generate(prompts, **keywords)


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=40),
    limit=st.integers(1, 9),
    texts_per_item=st.integers(1, 4),
    names_item=st.booleans(),
)
def test_parts_become_smaller_until_they_fit_or_have_one_item(
    sizes: list[int], limit: int, texts_per_item: int, names_item: bool
) -> None:
    """Of a server that counts other texts than the client, such as choices."""
    texts, num_refusals = list(map(str, sizes)), 0

    def respond(request: httpx.Request) -> httpx.Response:
        nonlocal num_refusals
        if request.url.path == "/info":
            return httpx.Response(200, json={"max_client_batch_size": limit})
        part = json.loads(request.content)["inputs"]
        if sum(map(int, part)) <= limit:
            return httpx.Response(200, json=part)
        num_refusals += 1
        assert num_refusals <= (1 if names_item else 6)
        message = "inputs[0]: too long" if names_item else "inputs: too many"
        return httpx.Response(413, json={"error": message})

    def ask(client: Client) -> list[str]:
        requests = client._request_many(
            "/tokenize",
            texts,
            lambda part, _: {"inputs": part},
            lambda replies: [text for reply in replies for text in reply],
            texts_per_item=texts_per_item,
        )
        return client._send(requests)

    with Client("http://127.0.0.1:1") as client:
        client._http = httpx.Client(base_url=client.url, transport=httpx.MockTransport(respond))
        if sum(sizes) > limit and (names_item or max(sizes) > limit):
            with pytest.raises(ServerError) as refused:
                ask(client)
            assert refused.value.status == 413
        else:
            assert ask(client) == texts


@pytest.mark.long
def test_rows_of_many_choices_are_sent_in_smaller_parts(directories, start, get_model) -> None:
    rows = [
        {"prompt": "the door", "choices": ["a", "was open", "deep"][: 1 + n % 3]} for n in range(9)
    ]
    with (
        start({"choice": directories["choice"]}, ServeSettings(max_texts=4)) as server,
        Client(server.url) as client,
    ):
        assert close(client.predict(rows), get_model("choice").predict(rows))
        with pytest.raises(ServerError, match=r"rows: 5 choices, but at most 4"):
            client.predict([*rows, {"prompt": "a", "choices": ["a"] * 5}])


@pytest.mark.long
def test_copies_of_a_prompt_differ_in_all_requests(server: Running, get_model) -> None:
    prompts = ["the door"] * 500 + ["a", "the door"] * 50
    keywords = {"max_new_tokens": 4, "temperature": 1.0, "seed": 3}
    with Client(server.url, model="causal") as client:
        found = client.generate(prompts, **keywords)
    assert found == get_model("causal").generate(prompts, **keywords)
    assert found[512:] != found[: len(prompts) - 512]


@pytest.mark.long
def test_rows_of_a_document_are_context_in_all_requests(directories, start, tmp_path) -> None:
    tagger = save_tagger_of_documents(directories, tmp_path / "tagger")
    words = ["the", "door", "was", "open", "river", "deep", "in", "london"]
    rows: list[object] = [
        {"words": words[at % 5 : at % 7 + 2], "document": at // 12} for at in range(40)
    ]
    rows += [{"words": ["open"]}, {"words": np.array(["deep", "river"]), "document": 5}]
    expected = bw.load(tagger, device="cpu").predict(rows)
    with (
        start({"tagger": tagger}, ServeSettings(max_texts=9)) as server,
        Client(server.url) as client,
    ):
        assert close(client.predict(rows), expected)
        apart = [client.predict(rows[at : at + 9]) for at in range(0, len(rows), 9)]
        assert not close([one for part in apart for one in part], expected), "the context matters"
        with pytest.raises(DataError, match=r"rows\[30\]: the column 'words' holds 'a', not a"):
            client.predict([*rows[:30], {"words": "a", "document": 2}])
        wrong = server.post("/predict-rows", {"rows": [*rows[:4], {"words": "a", "document": 0}]})
        assert (wrong.status_code, "rows[4]: the column" in wrong.json()["error"]) == (422, True)
        text = "the door was open"
        assert close(client.predict([text] * 10), 10 * client.predict(text))


def test_rows_whose_neighbours_are_not_known_go_in_one_request() -> None:
    class Own(TaggingTask):
        def add_context(self, rows):
            return super().add_context(rows)

    task = tasks(Tokenizer.from_vocabulary(PIECES))["tagger"]
    assert describe_row_context(task) is None
    assert describe_row_context(Own(task.tokenizer, task.settings)) == {}
    with pytest.raises(DataError, match=r"these 3 need several requests\. Send at most 2 rows"):
        add_neighbours([[1, 2], [3]], {})


@pytest.mark.long
def test_the_async_client_has_the_same_answers(server: Running, get_model) -> None:
    async def ask() -> list[object]:
        async with AsyncClient(server.url, model="encoder") as client:
            vectors = client.embed(TEXTS)
            tokens = client.tokenize(TEXTS)
            return list(await asyncio.gather(vectors, tokens))

    vectors, tokens = asyncio.run(ask())
    np.testing.assert_allclose(vectors, get_model("encoder").embed(TEXTS), atol=1e-5)
    assert len(tokens) == 3

    async def others() -> None:
        for name, verb, arguments in (
            ("classifier", "predict", (TEXTS,)),
            ("pretrained", "fill_mask", ("a [MASK]",)),
            ("pretrained", "next_sentence", TEXTS[:2]),
            ("causal", "generate", (TEXTS,)),
            ("reranker", "rerank", ("a", TEXTS)),
            ("encoder", "similarity", (TEXTS[:2], TEXTS)),
        ):
            async with AsyncClient(server.url, model=name) as client:
                with Client(server.url, model=name) as waiting:
                    expected = getattr(waiting, verb)(*arguments)
                found = await getattr(client, verb)(*arguments)
                is_array = isinstance(found, np.ndarray)
                assert np.allclose(found, expected) if is_array else close(found, expected), verb

    asyncio.run(others())


def test_closed_client_has_no_connections() -> None:
    with Client("http://127.0.0.1:1") as client:
        assert not client._http.is_closed
    assert client._http.is_closed

    async def open_and_close() -> AsyncClient:
        async with AsyncClient("http://127.0.0.1:1") as client:
            assert not client._http.is_closed
        return client

    assert asyncio.run(open_and_close())._http.is_closed


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_an_address_needs_its_scheme(kind: type[Client] | type[AsyncClient]) -> None:
    says = "127.0.0.1:8123: the address must begin with http:// or https://"
    with pytest.raises(SettingsError, match=says):
        kind("127.0.0.1:8123")


@pytest.mark.long
def test_errors_name_the_server_and_the_text(server: Running, client: Client) -> None:
    with pytest.raises(ServerError, match=rf"^{server.url}: the model 'encoder' was trained for"):
        client.predict(TEXTS)
    with pytest.raises(ServerError, match=r"texts\[1\]: 62 tokens, but at most 32 fit") as refused:
        client.embed(["a", "door " * 60])
    assert refused.value.status == 413
    with pytest.raises(ServerError, match=r"texts\[700\]: 62 tokens, but at most 32 fit"):
        client.embed([*["a"] * 700, "door " * 60])  # in the second request
    with (
        Client(server.url, model="none") as wrong,
        pytest.raises(ServerError, match="unknown model 'none'"),
    ):
        wrong.info()
    with pytest.raises(DataError, match="got int"):
        client.embed(3)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(ServerError, match=rf"{url}: cannot be reached. Is the server running"):
            _embed(url)
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(ServerError, match=r"no answer in 0\.2 seconds"),
    ):
        _embed(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout=0.2)


def _embed(url: str, **more: float) -> None:
    with Client(url, **more) as client:
        client.embed("a")


class Busy(BaseHTTPRequestHandler):
    """Answers 429 some times, then 200."""

    left = 0
    key: str | None = None

    def do_POST(self) -> None:
        Busy.key = self.headers.get("authorization")
        self.rfile.read(int(self.headers["content-length"]))
        status, body = 200, [[{"id": 1}]]
        if Busy.left:
            Busy.left -= 1
            status, body = 429, {"error": "the server is busy", "error_type": "Overloaded"}
        data = json.dumps(body).encode()
        self.send_response(status)
        if status == 429:
            self.send_header("retry-after-ms", "10")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_a_request_to_a_busy_server_is_repeated_a_few_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[float] = []
    monkeypatch.setattr("time.sleep", waits.append)
    busy = HTTPServer(("127.0.0.1", 0), Busy)
    thread = threading.Thread(target=busy.serve_forever, args=(0.01,))
    thread.start()
    try:
        client = Client(f"http://127.0.0.1:{busy.server_port}", "secret", retries=3)
        Busy.left = 3
        assert client.tokenize("a") == [[{"id": 1}]]
        assert Busy.key == "Bearer secret"
        assert all(0.01 * 2**at <= wait <= 0.015 * 2**at for at, wait in enumerate(waits))
        Busy.left = 4
        with pytest.raises(ServerError, match="the server is busy") as refused:
            client.tokenize("a")
        assert refused.value.status == 429
        client.close()
    finally:
        busy.shutdown()
        busy.server_close()
        thread.join()


@pytest.mark.long
def test_https_to_a_server_of_http_is_an_error(server: Running) -> None:
    with (
        Client(server.url.replace("http:", "https:")) as client,
        pytest.raises(ServerError, match=r"no HTTPS connection is possible .*Does the server use"),
    ):
        client.embed("the door")
