"""Keys, hosts, limits, health, metrics, logs, deadlines, clients that vanish, several models."""

from __future__ import annotations

import asyncio
import hashlib
import html
import json
import logging
import os
import re
import shlex
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import reduce
from operator import getitem
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any, get_args

import httpx
import numpy as np
import pytest
import yaml
from fastapi.routing import APIRoute
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families

import bertworks as bw
from bertworks.cli.verb_settings import split_settings
from bertworks.errors import BertworksError, SettingsError
from bertworks.inference import native_network
from bertworks.serving import connections, loaded_model
from bertworks.serving.app import DIALECTS, EXAMPLES, make_app
from bertworks.serving.dialects.bert_as_service import EncodeRequest
from bertworks.serving.middleware import RequestMiddleware
from bertworks.serving.models import Models, parse_sources
from bertworks.serving.queue import Queue
from bertworks.serving.security import Keys, check_host, is_loopback, parse_host, read_keys
from bertworks.serving.settings import ServeSettings
from bertworks.serving.signals import signals_at_start
from bertworks.settings.literals import InferencePrecision
from tests.serving.conftest import Running

TEXT = "the door was open"
OPENAI = ("/v1/", "/embeddings")
KEY = "a-key-of-sixteen-characters"


def metrics(server: Running) -> dict[tuple[str, frozenset], float]:
    text = server.http.get("/metrics").text
    return {  # the parser adds `_total` to the names of other tools' counters
        (
            sample.name.removesuffix("_total") if sample.name.startswith("te_") else sample.name,
            frozenset(sample.labels.items()),
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


# --- access ---


@pytest.mark.long
def test_routes_but_health_need_a_key(directories, start) -> None:
    keys = Keys({"ada": KEY, "bob": "b" * 20})
    with start({"encoder": directories["encoder"]}, keys=keys, local=False) as server:
        for path in ("/health", "/ready", "/ping", "/"):
            assert server.http.get(path).status_code == 200, path
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": f"Basic {KEY}"}):
            for path in ("/metrics", "/info", "/openapi.json", "/nowhere"):
                assert server.http.get(path, headers=headers).status_code == 401, path
            response = server.post("/embed", {"inputs": TEXT}, headers=headers)
            assert (response.status_code, response.content) == (401, b"")
            for path in ("/", "/health", "/explore/static/app.js"):  # open to GET alone
                assert server.post(path, {"inputs": TEXT}, headers=headers).status_code == 401, path
            openai = server.post("/v1/embeddings", {"model": "m", "input": "a"}, headers=headers)
            assert openai.status_code == 401
            assert openai.json()["error"]["code"] == "invalid_api_key"
        for headers in ({"authorization": f"Bearer {KEY}"}, {"x-api-key": "b" * 20}):
            assert server.post("/embed", {"inputs": TEXT}, headers=headers).status_code == 200
            assert server.http.get("/metrics", headers=headers).status_code == 200


@pytest.mark.long
def test_pages_ask_browsers_for_a_key(directories, start) -> None:
    browser = {"accept": "text/html,*/*"}
    with start({"encoder": directories["encoder"]}, keys=Keys({"ada": KEY})) as server:
        for path in ("/docs", "/openapi.json"):
            page = server.http.get(path, headers=browser)
            assert page.status_code == 401
            scripts = re.findall(r'(?:src|href)="(\./[^"]+)"', page.text)
            assert len(scripts) > 1
            for script in scripts:
                assert server.http.get(script).status_code == 200, script
            assert server.http.get(path).content == b"", "for other programs"
            with_key = {**browser, "authorization": f"Bearer {KEY}"}
            assert server.http.get(path, headers=with_key).status_code == 200
        assert server.http.get("/info", headers=browser).content == b""


@pytest.mark.long
def test_metrics_need_no_key_on_this_machine_alone(directories, start) -> None:
    with start({"encoder": directories["encoder"]}, keys=Keys({"ada": KEY})) as server:
        assert server.http.get("/metrics").status_code == 200
        assert server.http.get("/info").status_code == 401


def test_a_page_of_another_host_is_refused(server: Running) -> None:
    """A name that some web page has pointed at this machine."""
    for host in ("evil.example", "evil.example:8080", "127.0.0.1.evil.example", ""):
        response = server.post("/embed", {"inputs": TEXT}, headers={"host": host})
        assert response.status_code in (400, 403), host
    for host in ("localhost", "localhost:1234", "[::1]:80", "127.0.0.1"):
        assert server.post("/embed", {"inputs": TEXT}, headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("localhost", True),
        ("LOCALHOST.", True),
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("[::1]", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.0.1", False),
        ("example.com", False),
        ("", False),
    ],
)
def test_loopback_hosts_are_this_machine(host: str, local: bool) -> None:
    assert is_loopback(host) is local
    if local:
        check_host(host, Keys(), no_auth=False)
        return
    check_host(host, Keys({"a": KEY}), no_auth=False)
    check_host(host, Keys(), no_auth=True)
    with pytest.raises(SettingsError, match="there are no API keys"):
        check_host(host, Keys(), no_auth=False)


def test_hosts_are_read_without_ports() -> None:
    assert [parse_host(host) for host in ("a:1", "a", "[::1]:2", "::1", "")] == [
        *("a", "a", "::1", "::1", ""),
    ]


def test_keys_are_read_from_a_file_and_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# ours\nada:{KEY}\n\n{'c' * 30}\n")
    monkeypatch.setenv("BERTWORKS_API_KEYS", f"bob:{'b' * 16}")
    keys = read_keys(file)
    assert keys.find_owner(KEY) == "ada"
    assert keys.find_owner("b" * 16) == "bob"
    assert keys.find_owner("c" * 30) == "key-3"
    assert keys.find_owner("") is keys.find_owner(KEY + " ") is keys.find_owner("é") is None
    assert KEY not in repr(vars(keys)), "only digests are held"
    monkeypatch.delenv("BERTWORKS_API_KEYS")
    assert not read_keys(None)
    with pytest.raises(SettingsError, match="none: no such file"):
        read_keys(tmp_path / "none")
    with pytest.raises(SettingsError, match="cannot be read"):
        read_keys(tmp_path)


@pytest.mark.parametrize("text", [f"\ufeff{KEY}\r\n", f"\ufeffada:{KEY}\r\n", f"ada : {KEY}\n"])
def test_a_byte_order_mark_and_spaces_are_no_part_of_a_key(tmp_path: Path, text: str) -> None:
    file = tmp_path / "keys"
    file.write_bytes(text.encode())
    assert read_keys(file).find_owner(KEY) in ("ada", "key-1")


@pytest.mark.long
@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_a_key_may_have_letters_beyond_ascii(directories, start, encoding: str) -> None:
    key = "ein-schlüssel-mit-umlaut"
    with start({"encoder": directories["encoder"]}, keys=Keys({"ada": key})) as server:
        headers = {b"authorization": b"Bearer " + key.encode(encoding)}
        assert server.post("/embed", {"inputs": TEXT}, headers=headers).status_code == 200
        headers = {b"x-api-key": key.encode(encoding)}
        assert server.post("/embed", {"inputs": TEXT}, headers=headers).status_code == 200
        with bw.Client(server.url, key) as client:
            assert client.embed(TEXT).shape == (1, 16)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "keys: there is no key in it"),
        ("# ours\n\n  # theirs\n", "keys: there is no key in it"),
        ("# ours\nabc\n", "keys:2: the key 'key-1' has fewer than 16 characters"),
        (":abc\n", "keys:1: the key 'key-1' has fewer than 16 characters"),
        (f"a:{KEY}\n\na:{KEY}\n", "keys:3: two keys are called 'a'"),
    ],
)
def test_a_file_of_keys_must_have_good_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, says: str
) -> None:
    file = tmp_path / "keys"
    file.write_text(text)
    with pytest.raises(SettingsError, match=says):
        read_keys(file)
    monkeypatch.setenv("BERTWORKS_API_KEYS", "short")
    with pytest.raises(SettingsError, match="BERTWORKS_API_KEYS: the key 'key-1' has fewer"):
        read_keys(None)


@pytest.mark.parametrize("value", ["", " ", ",", "# ada"])
def test_variable_without_a_key_is_no_open_server(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("BERTWORKS_API_KEYS", value)
    with pytest.raises(SettingsError, match="BERTWORKS_API_KEYS: there is no key in it"):
        read_keys(None)


def test_other_origins_get_no_permission(server: Running) -> None:
    answer = server.post("/embed", {"inputs": TEXT}, headers={"origin": "https://evil.example"})
    assert not [name for name in answer.headers if name.startswith("access-control")]
    response = server.http.options(
        "/embed",
        headers={"origin": "https://e.example", "access-control-request-method": "POST"},
    )
    assert response.status_code == 405


# --- sizes ---


@pytest.mark.long
def test_a_body_is_bounded_whether_it_says_its_length_or_not(directories, start) -> None:
    settings = ServeSettings(max_body_bytes=2000)
    with start({"encoder": directories["encoder"]}, settings) as server:
        with_length = server.post("/embed", {"inputs": "a" * 3000})
        parts = (b"x" * 500 for _ in range(9))
        without_length = server.http.post("/embed", content=parts)
        for answer in (with_length, without_length):
            assert answer.status_code == 413
            assert answer.json()["error"] == "the body has more than 2,000 bytes"
        assert server.post("/v1/embeddings", {"input": "a" * 3000}).status_code == 413
        assert server.post("/embed", {"inputs": "a"}).status_code == 200


@pytest.mark.long
def test_a_body_that_does_not_arrive_is_408(directories, start) -> None:
    settings = ServeSettings(body_seconds=0.1)
    with start({"encoder": directories["encoder"]}, settings) as server:
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=10) as slow:
            slow.sendall(b"POST /embed HTTP/1.1\r\nhost: localhost\r\ncontent-length: 50\r\n\r\n{")
            assert b"408" in slow.recv(100)
        assert server.post("/embed", {"inputs": "a"}).status_code == 200


@pytest.mark.long
def test_requests_that_do_not_fit_the_queue_are_429_and_not_tokenised(directories, start) -> None:
    settings = ServeSettings(max_queue_tokens=58)
    with (
        start({"encoder": directories["encoder"]}, settings) as server,
        no_batches(server.service.queue) as go,
    ):
        first = threading.Thread(target=server.post, args=("/embed", {"inputs": "a" * 25}))
        first.start()
        wait_until(lambda: server.service.queue.load.requests == 1)
        response = server.post("/embed", {"inputs": ["a" * 30] * 2})
        assert response.status_code == 413, "it never fits"
        response = server.post("/embed", {"inputs": "a" * 35})
        assert response.status_code == 429
        assert int(response.headers["retry-after"]) >= 1
        assert response.json() == {
            "error": "the server is busy. Try again later.",
            "error_type": "Overloaded",
        }
        assert server.service.queue.load.requests == 1, "nothing of it was taken"
        go.set()
        first.join(10)
        assert server.post("/embed", {"inputs": "a" * 30}).status_code == 200


@pytest.mark.long
def test_requests_at_a_time_are_bounded_and_health_is_not(directories, start) -> None:
    settings = ServeSettings(max_concurrent_requests=2)
    with (
        start({"encoder": directories["encoder"]}, settings) as server,
        no_batches(server.service.queue) as go,
    ):
        waiting = [
            threading.Thread(target=server.post, args=("/embed", {"inputs": "a"})) for _ in range(2)
        ]
        for thread in waiting:
            thread.start()
        wait_until(lambda: server.service.queue.load.requests == 2)
        response = server.post("/embed", {"inputs": "a"})
        assert (response.status_code, response.headers["retry-after"]) == (429, "1")
        assert server.http.get("/health").status_code == 200
        go.set()
        for thread in waiting:
            thread.join(10)


class no_batches:  # noqa: N801
    """While this block lasts, or until the event is set, no batch is computed."""

    def __init__(self, queue: Queue) -> None:
        self.queue, self.go, self.is_waiting = queue, threading.Event(), threading.Event()

    def __enter__(self) -> threading.Event:
        self.usual = self.queue._run

        def wait(*arguments: object) -> object:
            self.is_waiting.set()
            assert self.go.wait(20)
            return self.usual(*arguments)  # type: ignore[arg-type]

        self.queue._run = wait  # type: ignore[assignment, method-assign]
        return self.go

    def __exit__(self, *_: object) -> None:
        self.go.set()
        self.queue._run = self.usual  # type: ignore[method-assign]


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until a condition is true."""
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


# --- deadlines ---


def test_a_deadline_that_passed_is_408(server: Running) -> None:
    answer = server.post("/embed", {"inputs": TEXT}, headers={"x-deadline-ms": "0"})
    assert answer.status_code == 408
    assert answer.json()["error"].startswith("the deadline passed")
    assert answer.headers["x-should-retry"] == "false"
    assert server.post("/embed", {"inputs": "a"}, headers={"x-deadline-ms": "60000"}).is_success
    for wrong in ("-1", "soon", "1.5"):
        response = server.post("/embed", {"inputs": "a"}, headers={"x-deadline-ms": wrong})
        assert response.status_code == 400


@pytest.mark.long
def test_a_deadline_that_passes_in_the_queue_is_408(directories, start) -> None:
    with start({"encoder": directories["encoder"]}) as server, no_batches(server.service.queue):
        answer = server.post("/embed", {"inputs": TEXT}, headers={"x-deadline-ms": "50"})
        assert answer.status_code == 408
        wait_until(lambda: server.service.queue.load.requests == 0)


@pytest.mark.long
def test_a_request_whose_client_disconnected_is_dropped(directories, start) -> None:
    with (
        start({"encoder": directories["encoder"]}) as server,
        no_batches(server.service.queue) as go,
    ):
        queue = server.service.queue
        first = threading.Thread(target=server.post, args=("/embed", {"inputs": "a"}))
        first.start()
        wait_until(lambda: queue.load.requests == 1)
        with pytest.raises(httpx.ReadTimeout):
            server.post("/embed", {"inputs": "gone"}, timeout=0.2)
        wait_until(lambda: queue.load.requests == 1)
        go.set()
        first.join(10)
        wait_until(lambda: queue.load.requests == 0)
        counted = metrics(server)
        assert counted["te_request_failure", frozenset({("err", "Gone")})] == 1


def make_post(app: Any) -> Callable[[], Awaitable[None]]:
    """Return a function that posts to an application behind the middleware, and stays connected."""
    service = make_app(Models({"mini": "mini"})).state.service
    middleware = RequestMiddleware(app, service, local=False)
    names = ("method", "path", "raw_path", "query_string", "headers")
    scope = dict(zip(names, ("POST", "/embed", b"/embed", b"", ()), strict=True))

    async def send(_: Any) -> None: ...

    async def post() -> None:
        messages = iter([{"type": "http.request", "body": b"{}"}])

        async def receive() -> Any:
            return next(messages, None) or await asyncio.Event().wait()

        await middleware({"type": "http", **scope}, receive, send)

    return post


def test_a_few_requests_continue_in_each_iteration_of_the_loop() -> None:
    """While a hundred are ready, others have their turn in between."""
    order: list[str] = []

    async def app(*_: Any) -> None:
        order.append("request")

    async def check() -> None:
        for _ in range(4):
            await asyncio.sleep(0)
        order.append("check")

    post = make_post(app)

    async def all_of_them() -> None:
        await asyncio.gather(*(post() for _ in range(100)), check())

    asyncio.run(all_of_them())
    assert order.count("request") == 100
    assert order.index("check") < 20


def test_a_request_that_the_server_cancels_is_cancelled() -> None:
    """Only a request whose client is gone ends as if it had been answered."""

    async def cancel() -> None:
        is_running = asyncio.Event()

        async def app(*_: Any) -> None:
            is_running.set()
            await asyncio.Event().wait()

        task = asyncio.create_task(make_post(app)())
        await is_running.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())


@pytest.mark.long
def test_health_answers_while_a_long_text_is_computed(directories, start) -> None:
    settings = ServeSettings(max_characters=2_000_000)
    with start({"encoder": directories["encoder"]}, settings) as server:
        body = {"inputs": "door " * 100_000, "truncate": True}
        long = threading.Thread(target=server.post, args=("/embed", body))
        long.start()
        wait_until(lambda: server.service.queue.load.requests == 1)
        count = 0
        while long.is_alive():
            assert server.http.get("/health").status_code == 200
            count += 1
        assert count > 1


@contextmanager
def slow_loading(owner: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Event]]:
    """Within the block, let a function that loads something wait; yield an event for each call."""
    load, may_load, calls = getattr(owner, name), Event(), []

    def load_slowly(*arguments: Any, **more: Any) -> Any:
        calls.append(Event())
        assert may_load.wait(60)
        return load(*arguments, **more)

    monkeypatch.setattr(owner, name, load_slowly)
    try:
        yield calls
    finally:
        may_load.set()


@pytest.mark.long
def test_health_answers_while_a_request_loads_pytorch(
    directories, start, get_model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network is loaded for a precision without native code, once for all requests."""
    body = {"texts": [TEXT], "precision": "bf16"}
    with (
        start({"encoder": directories["encoder"]}, backend="native") as server,
        ThreadPoolExecutor(8) as threads,
    ):
        loaded_model = server.service.models.get()
        native_bytes = loaded_model.num_bytes
        monkeypatch.setattr(native_network, "has_kernels", lambda precision: precision != "bf16")
        with slow_loading(loaded_model, "_load_network", monkeypatch) as calls:
            replies = [threads.submit(server.ask, "/encode", body) for _ in range(8)]
            wait_until(lambda: len(calls) == 1)
            assert server.http.get("/health", timeout=20).status_code == 200
            assert server.ask("/tokenize", {"inputs": TEXT}, timeout=20)
        vectors = [reply.result()["results"] for reply in replies]
        assert len(calls) == 1
        assert loaded_model.num_bytes > native_bytes
    expected = get_model("encoder").embed([TEXT], precision="bf16")
    for found in vectors:
        np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.long
def test_requests_for_a_model_that_is_loading_take_one_thread(
    directories, start, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("encoder", "classifier")
    count = 2 * ((os.cpu_count() or 1) + 4)  # more than asyncio has threads
    with (
        start({name: directories[name] for name in names}) as server,
        ThreadPoolExecutor(count) as threads,
    ):
        models = server.service.models
        models.get("classifier")
        with slow_loading(models, "get", monkeypatch) as calls:
            replies = [threads.submit(server.ask, "/embed", {"inputs": TEXT}) for _ in range(count)]
            wait_until(lambda: len(calls) > 0)
            time.sleep(0.5)  # in which the other requests arrive
            body = {"inputs": TEXT, "model": "classifier"}
            assert server.ask("/tokenize", body, timeout=20)
            assert len(calls) == 1
        assert len({str(reply.result()) for reply in replies}) == 1


def test_encode_refuses_poolings_without_a_dense_vector(server: Running) -> None:
    for pooling in ("splade-max", "none"):
        reply = server.post("/encode", {"texts": [TEXT], "pooling": pooling})
        assert (reply.status_code, reply.json()["error"]) == (
            422,
            f"pooling: {pooling} gives no dense vector",
        )


# --- other web pages, traces ---


@pytest.mark.long
def test_only_pages_of_allowed_origins_may_send_requests(directories, start) -> None:
    sources, keys = {"m": directories["encoder"]}, Keys({"ada": KEY})
    preflight = {
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type",
    }
    settings = ServeSettings(cors_origins=("https://example.org",))
    with start(sources, settings, keys=keys) as server:
        for origin, status in (("https://example.org", 200), ("https://evil.example", 400)):
            headers = {"origin": origin, **preflight}
            assert server.http.options("/embed", headers=headers).status_code == status
        headers = {"origin": "https://example.org", "authorization": f"Bearer {KEY}"}
        response = server.post("/embed", {"inputs": TEXT}, headers=headers)
        assert response.headers["access-control-allow-origin"] == "https://example.org"
        del headers["authorization"]
        response = server.post("/embed", {"inputs": TEXT}, headers=headers)
        assert response.status_code == 401, "an origin is no key"
    with start(sources, keys=keys) as server:
        headers = {"origin": "https://example.org", "authorization": f"Bearer {KEY}"}
        response = server.post("/embed", {"inputs": TEXT}, headers=headers)
        assert "access-control-allow-origin" not in response.headers
    with pytest.raises(SettingsError, match="without a path"):
        ServeSettings.resolve(cors_origins="https://example.org/a")
    with pytest.raises(SettingsError, match="cors_origins"):
        ServeSettings.parse({"cors_origins": 5})


def test_responses_continue_the_trace_of_a_request(
    server: Running, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="bertworks.serving")
    trace, span = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
    headers = {"traceparent": f"00-{trace}-{span}-01"}
    response = server.post("/embed", {"inputs": TEXT}, headers=headers)
    version, own_trace, own_span, flags = response.headers["traceparent"].split("-")
    assert (version, own_trace, flags) == ("00", trace, "01")
    assert own_span not in (span, "0" * 16)
    for invalid in (f"00-{'0' * 32}-{span}-01", f"00-{trace}-01", "x"):
        response = server.post("/embed", {"inputs": TEXT}, headers={"traceparent": invalid})
        assert response.status_code == 200
        assert "traceparent" not in response.headers
    # A line is written after its response, but before the next one of the connection.
    events = [json.loads(record.getMessage()) for record in caplog.records]
    assert [event.get("trace") for event in events if event["event"] == "request"][:3] == [
        *(trace, None, None)
    ]


# --- metrics and logs ---


@pytest.mark.long
def test_metrics_are_there_from_the_start_and_count(directories, start) -> None:
    with start({"encoder": directories["encoder"]}, ServeSettings()) as server:
        first = metrics(server)
        embed = frozenset({("route", "/embed")})
        single, batch = (frozenset({("method", method)}) for method in ("single", "batch"))
        assert first["bertworks_requests_total", embed] == 0
        assert first["bertworks_route_failures_total", embed] == 0
        assert first["te_request_count", single] == first["te_request_success", batch] == 0
        for name in ("te_embed_count", "te_predict_count", "te_queue_size", "te_embed_failure"):
            assert first[name, frozenset()] == 0
        for verb in ("request", "embed", "predict"):
            for part in ("tokenization", "queue", "inference"):
                assert (f"te_{verb}_{part}_duration_count", frozenset()) in first
        for name in ("te_batch_next_size", "te_batch_next_tokens", "te_request_input_length"):
            assert first[f"{name}_count", frozenset()] == 0
        server.ask("/embed", {"inputs": [TEXT, "a", "b"]})
        server.post("/embed", {"inputs": []})
        server.post("/embed", {"inputs": "a", "model": "none"})
        second = metrics(server)
        assert second["bertworks_requests_total", embed] == 3
        assert second["bertworks_route_failures_total", embed] == 2
        assert second["te_request_count", batch] == second["te_request_success", batch] == 1
        for name in ("te_request_failure", "bertworks_failures_total"):
            assert second[name, frozenset({("err", "Empty")})] == 1
            assert second[name, frozenset({("err", "NotFound")})] == 1
        by_client = frozenset({("model", "encoder"), ("client", "no key")})
        assert second["bertworks_texts_total", by_client] == 3
        assert second["bertworks_tokens_total", by_client] == 6 + 3 + 3
        assert second["te_embed_count", frozenset()] == second["te_embed_success", frozenset()] == 3
        assert second["te_batch_next_size_sum", frozenset()] == 3
        assert second["te_batch_next_tokens_sum", frozenset()] == 6 + 3 + 3
        assert second["te_request_duration_count", embed] == 3
        assert second["bertworks_queue_tokens", frozenset()] == 0
        # Routes that do not exist get no label of their own: their number is bounded.
        for at in range(5):
            server.http.get(f"/none-{at}")
        last = metrics(server)
        assert last["bertworks_requests_total", frozenset({("route", "other")})] == 5
        assert not any("none" in str(labels) for _, labels in last)
        # A body that is refused before it is routed has its route.
        with_body = {"content": b"x" * 9_000_000}
        assert server.http.post("/embed", **with_body).status_code == 413
        assert metrics(server)["bertworks_requests_total", embed] == 4


@pytest.mark.long
def test_metrics_are_valid_openmetrics(directories, start) -> None:
    keys = Keys({"ada": KEY})
    with start({"m": directories["encoder"]}, keys=keys) as server:
        headers = {"authorization": f"Bearer {KEY}"}
        assert server.post("/embed", {"inputs": TEXT}, headers=headers).status_code == 200
        accept = {"accept": "application/openmetrics-text; version=1.0.0", **headers}
        response = server.http.get("/metrics", headers=accept)
        assert response.headers["content-type"].startswith("application/openmetrics-text")
        families = {family.name: family for family in parse_openmetrics(response.text)}
        assert families["bertworks_requests"].type == "counter"
        assert {"te_request_duration", "te_queue_size"} <= families.keys()
        (sample,) = (s for s in families["bertworks_texts"].samples if s.name.endswith("_total"))
        assert (sample.labels, sample.value) == ({"model": "m", "client": "ada"}, 1)
        (sample,) = families["bertworks_model_load_time_seconds"].samples
        info = server.http.get("/info", headers=headers).json()
        assert sample.labels == {"model": "m", "digest": info["model_sha"]}
        assert int(sample.value) == info["load_time"]
        weights = (Path(directories["encoder"]) / "model.safetensors").read_bytes()
        assert info["model_sha"] == hashlib.sha256(weights).hexdigest()


@pytest.mark.long
def test_neither_texts_nor_keys_are_logged(
    directories, start, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG, logger="bertworks.serving")
    secret = "doorsecret"
    keys = Keys({"ada": KEY})
    headers = {"authorization": f"Bearer {KEY}", "x-request-id": "mine-1"}
    with start({"encoder": directories["encoder"]}, keys=keys) as server:
        answer = server.post("/embed", {"inputs": secret}, headers=headers)
        assert answer.headers["x-request-id"] == "mine-1"
        server.post("/embed", {"inputs": [secret, 3]}, headers=headers)
        server.post(f"/{secret}?{secret}", {"inputs": secret}, headers=headers)
        server.http.post("/embed", content=b'{"inputs": "\\ud800 doorsecret"}', headers=headers)
        server.http.get("/info", headers={"authorization": f"Bearer {secret}"})

        def fault(*_: object, **__: object) -> None:
            raise RuntimeError(secret)

        monkeypatch.setattr(server.service.queue, "submit", fault)
        response = server.post("/embed", {"inputs": secret}, headers=headers)
        assert response.status_code == 500
        assert response.headers["x-request-id"] == "mine-1"
        assert secret not in response.text
        odd = server.http.get("/health", headers={"x-request-id": "a b\n".strip() + '"{}'})
        assert odd.headers["x-request-id"] != 'a b"{}'
    lines = [json.loads(record.getMessage()) for record in caplog.records]
    lines = [line for line in lines if line["event"] != "model loaded"]
    assert len(lines) == 8
    assert secret not in caplog.text
    assert KEY not in caplog.text
    first = lines[0]
    assert first["id"] == "mine-1"
    assert (first["route"], first["status"], first["client"]) == ("/embed", 200, "ada")
    assert (first["texts"], first["model"]) == (1, "encoder")
    fault_line = next(line for line in lines if line["event"] == "fault")
    assert fault_line["kind"] == "RuntimeError"


@pytest.mark.long
def test_ready_is_not_health(directories, start) -> None:
    with start({"encoder": directories["encoder"]}) as server:
        assert server.http.get("/ready").status_code == 200
        server.service.draining = True
        draining = server.http.get("/ready")
        assert (draining.status_code, draining.json()["error_type"]) == (503, "Unhealthy")
        assert draining.headers["connection"] == "close"
        assert server.http.get("/health").status_code == 200
        assert server.post("/embed", {"inputs": "a"}).status_code == 200, "still taken"
        server.service.draining = False
        server.service.queue.fatal_error = RuntimeError()
        assert server.http.get("/health").status_code == 503


# --- several models ---


@pytest.mark.long
def test_models_are_loaded_on_demand_and_the_oldest_is_unloaded(
    directories, start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bertworks.serving.models.measure_resident_bytes", lambda: None)
    names = ("encoder", "classifier", "tagger")
    sources = {name: directories[name] for name in names}
    size = Models({"encoder": directories["encoder"]}, device="cpu").get().num_bytes
    with start(sources, max_memory=int(2.5 * size)) as server:
        models = server.service.models
        assert models.list_loaded() == []
        for name in (*names, "encoder"):
            server.ask("/encode", {"texts": [TEXT], "model": name})
        assert [one.name for one in models.list_loaded()] == ["encoder", "tagger"]


@pytest.mark.long
def test_models_are_loaded_anew(directories, start, tmp_path: Path) -> None:
    import shutil

    folder = tmp_path / "model"
    shutil.copytree(directories["classifier"], folder)
    with start({"m": str(folder)}) as server:
        first = server.ask("/classify", {"inputs": TEXT})
        shutil.rmtree(folder)
        shutil.copytree(directories["topics"], folder)
        assert server.ask("/classify", {"inputs": TEXT}) == first
        assert server.reload() == ["m"]
        assert "labels" in server.ask("/classify", {"inputs": TEXT})[0]
        (folder / "config.json").write_text("{")
        with pytest.raises(Exception, match="config"):
            server.reload()
        assert "labels" in server.ask("/classify", {"inputs": TEXT})[0], "it stays as it was"


def test_a_setting_of_another_verb_is_no_models_name(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "8").mkdir()
    monkeypatch.chdir(tmp_path)
    for word in ("max_length=64", "pooling=mean", "max_seq_length=512", "batch_token=512"):
        with pytest.raises(SettingsError, match=f"unknown setting '{word}'"):
            split_settings("serve", ["m", word], {}, takes_texts=True)
    words = ["max_length=8", "max_length=./64", "pooling=owner/model", "tiny=mini"]
    words, settings = split_settings("serve", [*words, "lazy=true"], {}, takes_texts=True)
    assert (words, settings) == (words, ["lazy=true"])


def test_models_have_names(tmp_path: Path) -> None:
    (tmp_path / "runs" / "a=b").mkdir(parents=True)
    folder = tmp_path / "runs"
    assert parse_sources([str(folder), "x=owner/model", "owner/other", str(folder / "a=b")]) == {
        "runs": str(folder),
        "x": "owner/model",
        "owner/other": "owner/other",
        "a=b": str(folder / "a=b"),
    }
    with pytest.raises(SettingsError, match="two models are called 'runs'"):
        parse_sources([str(folder), f"runs={folder}"])
    with pytest.raises(SettingsError, match="no models"):
        parse_sources([])


@pytest.mark.long
def test_a_default_prompt_is_put_before_texts(
    directories, start, tmp_path: Path, get_model
) -> None:
    import shutil

    folder = tmp_path / "model"
    shutil.copytree(directories["encoder"], folder)
    settings = {"prompts": {"query": "the door "}, "default_prompt_name": "query"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    expected = pytest.approx(get_model("encoder").embed([TEXT])[0].tolist(), abs=1e-6)
    with start({"m": str(folder)}) as server:
        assert server.ask("/embed", {"inputs": "was open"})[0] == expected
        encoded = {"id": 1, "texts": ["was open"], "is_tokenized": False}
        assert server.ask("/encode", encoded)["results"][0] == expected
    with start({"m": str(folder)}, ServeSettings(default_prompt=False)) as server:
        assert server.ask("/embed", {"inputs": TEXT})[0] == expected


# --- the description ---


def test_every_described_post_route_has_an_example() -> None:
    routes = [
        route for dialect in DIALECTS for route in dialect.routes if isinstance(route, APIRoute)
    ]
    paths = {route.path for route in routes if "POST" in route.methods and route.include_in_schema}
    assert sorted(EXAMPLES) == sorted(paths)


@pytest.mark.long
def test_each_route_has_an_example_that_runs(server: Running) -> None:
    for name in server.service.models.sources:
        server.service.models.get(name)
    description = server.http.get("/openapi.json").json()
    ran = set()
    for path, verbs in description["paths"].items():
        if "post" not in verbs:
            continue
        body = verbs["post"]["requestBody"]["content"]["application/json"]["example"]
        answer = server.post(path, body)
        assert answer.status_code == 200, (path, answer.text)
        ran.add(path)
    assert ran == EXAMPLES.keys() - {"/embed_sparse"}, "no model here makes sparse vectors"


@pytest.mark.long
def test_each_route_refuses_a_field_that_it_does_not_know(server: Running) -> None:
    """But one that is null is as if it was omitted."""
    for path, (_, example) in EXAMPLES.items():
        for value, is_refused in ((7, True), ([], True), (None, False)):
            answer = server.post(path, {**example, "some_pooling": value})
            assert ("some_pooling: no such field" in answer.text) == is_refused, (path, value)
            if is_refused:
                assert answer.status_code == (400 if path.startswith(OPENAI) else 422), path


_PAIRS = [["the door", "a river"]]
MANY: dict[str, tuple[str, str, list[Any]]] = {
    **dict.fromkeys(("/embed", "/embed_all", "/tokenize"), ("encoder", "inputs", ["a"])),
    **dict.fromkeys(("/v1/embeddings", "/embeddings"), ("encoder", "input", ["a"])),
    "/encode": ("encoder", "texts", ["a"]),
    "/decode": ("encoder", "ids", [[5, 6]]),
    **dict.fromkeys(("/predict", "/classify"), ("classifier", "inputs", [["a"]])),
    "/rerank": ("reranker", "texts", ["a"]),
    **dict.fromkeys(("/v1/rerank", "/v2/rerank"), ("reranker", "documents", ["a"])),
    "/fill-mask": ("pretrained", "inputs", ["the [MASK]"]),
    "/next-sentence": ("pretrained", "inputs", _PAIRS),
    "/generate": ("causal", "inputs", ["a"]),
    "/tag": ("tagger", "inputs", ["a"]),
    "/answer": ("answering", "inputs", [{"question": "a", "context": "the door"}]),
    "/predict-rows": ("classifier", "rows", [{"text": "a"}]),
}


@pytest.mark.long
def test_each_route_limits_the_texts_of_a_request(directories, start) -> None:
    apart = {"/embed_sparse", "/similarity", *(path for path in EXAMPLES if "explore" in path)}
    assert MANY.keys() == EXAMPLES.keys() - apart
    with start(directories, ServeSettings(lazy=True, max_texts=2)) as server:
        for path, (model, field, items) in MANY.items():
            more = {"query": "a"} if path.endswith("rerank") else {}
            answers = [
                server.post(path, {"model": model, field: items * count, **more})
                for count in (2, 3)
            ]
            assert answers[0].status_code == 200, (path, answers[0].text)
            assert answers[1].status_code == (400 if path.startswith(OPENAI) else 413), path
            assert f"{field}: 3 texts, but at most 2" in answers[1].text, (path, answers[1].text)
        # A candidate of two pieces is predicted in a text of its own.
        body = {"model": "pretrained", "inputs": ["the [MASK]"] * 2}
        assert server.post("/fill-mask", {**body, "candidates": ["door"]}).status_code == 200
        answer = server.post("/fill-mask", {**body, "candidates": ["door", "unopen"]})
        assert (answer.status_code, "inputs: 4 texts" in answer.text) == (413, True), answer.text


def test_runners_of_a_model_are_no_more_than_their_limit(directories) -> None:
    """Requests may choose any settings; each choice has a runner, which holds memory."""
    model = Models({"m": directories["encoder"]}, device="cpu").get("m")
    lengths = range(3, 11 + loaded_model._MAX_RUNNERS)
    runners = [model.get_embed_runner(max_seq_length=length) for length in lengths]
    assert len(model._runners) == loaded_model._MAX_RUNNERS
    assert model.get_embed_runner(max_seq_length=lengths[-1]) is runners[-1]
    assert model.get_embed_runner(max_seq_length=lengths[0]) is not runners[0]


@pytest.mark.parametrize(
    "name",
    [
        "infinity.openapi.json",
        "text-embeddings-inference.openapi.json",
        "bert-as-service.openapi.yaml",
    ],
)
def test_the_published_fields_of_each_route_are_known(data_dir: Path, name: str) -> None:
    description = yaml.safe_load((data_dir / "http" / name).read_text("utf-8"))
    routes = {
        route.path: route.endpoint.__annotations__["body"]
        for dialect in DIALECTS
        for route in dialect.routes
        if isinstance(route, APIRoute) and route.path in EXAMPLES
    }
    num_fields = 0
    for path, verbs in description["paths"].items():
        kind = routes.get(path)
        if kind is None or "post" not in verbs or (name[0] == "i" and path == "/classify"):
            continue  # infinity's /classify is documented as not supported
        schema = verbs["post"]["requestBody"]["content"]["application/json"]["schema"]
        fields = set(_properties(description, schema))
        assert fields <= kind.model_fields.keys() | kind.ignored_fields, path
        num_fields += len(fields)
    assert num_fields >= 3


def _properties(description: Any, schema: Any) -> Iterator[str]:
    """The fields of an object of a published description, in all of its forms."""
    if "$ref" in schema:
        schema = reduce(getitem, schema["$ref"].removeprefix("#/").split("/"), description)
    yield from schema.get("properties", ())
    for form in (one for key in ("anyOf", "oneOf", "allOf") for one in schema.get(key, ())):
        yield from _properties(description, form)


@pytest.mark.long
def test_routes_follow_from_the_task(directories, start) -> None:
    with start({"tagger": directories["tagger"]}, ServeSettings()) as server:
        paths = server.http.get("/openapi.json").json()["paths"]
        assert {"/tag", "/embed", "/predict-rows"} <= paths.keys()
        assert not {"/fill-mask", "/generate", "/answer", "/rerank", "/classify"} & paths.keys()


@pytest.mark.long
def test_no_example_is_shown_that_no_loaded_model_can_answer(directories, start) -> None:
    with start({"tagger": directories["tagger"]}) as server:
        for num_loaded in (0, 1):
            paths = server.http.get("/openapi.json").json()["paths"]
            for path in ("/tag", "/embed"):
                body = paths[path]["post"]["requestBody"]["content"]["application/json"]
                assert ("example" in body) == bool(num_loaded)
            assert ("/embed_sparse" in paths) == (not num_loaded), "it may be such a model"
            page = server.http.get("/docs").text
            assert ("No model that is loaded can answer it." in page) == (not num_loaded)
            server.service.models.get("tagger")


@pytest.mark.long
def test_the_page_of_routes_has_commands_that_run_and_loads_nothing(directories, start) -> None:
    with start({"pretrained": directories["pretrained"]}) as server:
        server.service.models.get("pretrained")
        page = server.http.get("/docs").text
        commands = [
            shlex.split(html.unescape(one)) for one in re.findall(r"<pre.*?>(.*?)</pre>", page)
        ]
        assert len(commands) > 20
        for curl, quiet, url, *more in commands:
            assert (curl, quiet) == ("curl", "-s")
            if "-d" in more:
                headers = {"content-type": "application/json"}
                answer = server.http.post(url, content=more[-1].encode(), headers=headers)
            else:
                answer = server.http.get(url)
            assert answer.status_code == 200, (url, answer.text)
        assert not re.search(r"(?:src|href)=[\"']?(?:https?:)?//", page)


def test_connections_that_make_room_are_counted_from_warning_to_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, warnings = [0.0], []
    monkeypatch.setattr(connections, "time", SimpleNamespace(monotonic=lambda: clock[-1]))
    monkeypatch.setattr(connections, "log", lambda level, event, **fields: warnings.append(fields))
    open_connections = connections.Connections(ServeSettings(max_connections=2))
    with ExitStack() as sockets:
        for now, added in ((100.0, 3), (101.0, 2), (200.0, 1), (300.0, 1)):
            clock.append(now)
            for _ in range(added):
                open_connections.add(sockets.enter_context(socket.socket()))
        assert len(open_connections) == 2
    counts = [fields["closed"] for fields in warnings if "closed" in fields]
    assert counts == [1, 3, 1], "5 connections made room, 2 of them soon after a warning"


def test_a_system_without_signals_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("signal.SIGHUP")
    with pytest.raises(BertworksError, match="does not run on Windows"), signals_at_start():
        pass


def test_precision_of_the_server_is_any_of_inference() -> None:
    for precision in get_args(InferencePrecision):
        assert ServeSettings(precision=precision).precision == precision
        assert EncodeRequest(texts=[TEXT], precision=precision).precision == precision
