"""The command itself: signals under load, bad requests among good ones, the served description."""

from __future__ import annotations

import gc
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import uvicorn
from typer.testing import CliRunner

from bertworks.cli import app
from bertworks.serving.client import Client
from bertworks.serving.server import format_url


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


@contextmanager
def command(*words: object, log: Path, **env: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """`bertworks serve`, once it is ready."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    arguments = [
        sys.executable,
        "-m",
        "bertworks",
        "serve",
        *words,
        "--port",
        port,
        "--device",
        "cpu",
    ]
    with log.open("wb") as file:
        process = subprocess.Popen(
            list(map(str, arguments)), stderr=file, env={**os.environ, **env}
        )
    try:
        end = time.monotonic() + 60
        while time.monotonic() < end and process.poll() is None:
            try:
                if httpx.get(f"{url}/ready").status_code == 200:
                    break
            except httpx.HTTPError:
                time.sleep(0.02)
        assert process.poll() is None, log.read_text()
        yield process, url
    finally:
        process.kill()
        process.wait(30)


class Callers:
    """Threads that ask for vectors until nobody answers.

    Attributes:
        num_answers: how many requests were.
        wrong: answers that are not those.
        lost_ids: the ids of requests whose connection broke.
    """

    def __init__(self, url: str, count: int) -> None:
        self.url = url
        self.num_answers, self.wrong, self.lost_ids = 0, list[str](), list[str]()
        self.threads = [threading.Thread(target=self._ask, args=(at,)) for at in range(count)]
        for thread in self.threads:
            thread.start()

    def _ask(self, seed: int) -> None:
        draw = random.Random(seed)
        with httpx.Client(base_url=self.url, timeout=30) as http:
            while True:
                texts = ["door " * draw.randint(1, 25)] * draw.randint(1, 20)
                name = f"{seed}-{draw.getrandbits(60)}"
                try:
                    headers = {"x-request-id": name}
                    answer = http.post("/embed", json={"inputs": texts}, headers=headers)
                except httpx.ConnectError:
                    return
                except httpx.HTTPError:
                    self.lost_ids.append(name)
                    return
                if answer.status_code != 200 or len(answer.json()) != len(texts):
                    self.wrong.append(answer.text)
                self.num_answers += 1

    def join(self) -> None:
        for thread in self.threads:
            thread.join(30)
            assert not thread.is_alive(), "a request hangs"


def wait_for_answers(callers: Callers, count: int) -> None:
    end = time.monotonic() + 30
    while callers.num_answers < count:
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.long
def test_sigterm_under_load_loses_nothing_that_was_accepted(directories, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with command(directories["encoder"], "drain_delay=1.5", log=log) as (process, url):
        callers = Callers(url, 8)
        wait_for_answers(callers, 100)
        at_signal = callers.num_answers
        process.send_signal(signal.SIGTERM)
        time.sleep(0.1)
        with httpx.Client(base_url=url) as http:
            assert http.get("/ready").status_code == 503, "first it is not ready"
            assert http.get("/health").status_code == 200
            assert http.post("/embed", json={"inputs": "a"}).status_code == 200, "still taken"
        callers.join()
        assert process.wait(20) == 0
    assert callers.wrong == []
    assert callers.num_answers > at_signal
    events = [json.loads(line) for line in log.read_text().splitlines()]
    taken = {one.get("id") for one in events}
    # What the kernel has connected, but the server not yet taken, ends with the port.
    assert not taken & set(callers.lost_ids)
    assert [one["event"] for one in events if one["event"] != "request"] == [
        "listening",
        "draining",
    ]
    assert {one["status"] for one in events if one["event"] == "request"} == {200}


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's /proc")
def test_signals_during_the_start_are_handled(directories, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "bertworks", "serve", directories["encoder"], "--port", "0"]
    for number in (signal.SIGTERM, signal.SIGHUP):
        with subprocess.Popen([*words, "--device", "cpu"], stderr=subprocess.PIPE) as process:
            assert process.stderr is not None
            try:
                wait_until_blocked(process.pid, signal.SIGHUP)
                process.send_signal(number)
                if number == signal.SIGTERM:
                    assert process.wait(30) == 128 + signal.SIGTERM
                    continue
                events = [json.loads(process.stderr.readline())["event"] for _ in range(3)]
                assert events == ["listening", "model loaded", "reloaded"]
            finally:
                process.kill()


def wait_until_blocked(pid: int, number: int) -> None:
    """Wait until the main thread of a process holds a signal back."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        status = Path(f"/proc/{pid}/status").read_text()
        (mask,) = (line.split()[1] for line in status.splitlines() if line.startswith("SigBlk"))
        if int(mask, 16) >> (number - 1) & 1:
            return
        time.sleep(0.002)
    raise AssertionError("the signal is not held back")


@pytest.mark.slow
def test_a_killed_server_starts_again_and_hup_reloads_models(directories, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with command(directories["encoder"], log=log) as (process, url):
        callers = Callers(url, 2)
        wait_for_answers(callers, 5)
        process.kill()
        callers.join()
    with command(f"m={directories['encoder']}", log=log) as (process, url), Client(url) as client:
        vectors = client.embed("the door")
        process.send_signal(signal.SIGHUP)
        end = time.monotonic() + 30
        while "reloaded" not in log.read_text():
            assert time.monotonic() < end
            time.sleep(0.02)
        np.testing.assert_array_equal(client.embed("the door"), vectors)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["no where"], "error: no where: no such directory"),
        (["{encoder}", "--host", "0.0.0.0"], "there are no API keys"),
        (["{encoder}", "max_text=3"], "max_texts"),
        (["{encoder}", "{encoder}"], "two models are called 'encoder'"),
        (
            ["{encoder}", "--port", "{port}"],
            "error: cannot listen on 127.0.0.1:{port}. Another server may be there",
        ),
        (
            ["{encoder}", "--host", "999.1.1.1", "--no-auth"],
            "cannot listen on 999.1.1.1:8080. 999.1.1.1 is no address of this machine",
        ),
        (
            ["{encoder}", "--host", "192.0.2.1", "--no-auth"],
            "cannot listen on 192.0.2.1:8080. 192.0.2.1 is no address of this machine",
        ),
        (["{encoder}", "--tls-key", "{key}"], "--tls-key is given without --tls-certificate"),
        (["{encoder}", "--tls-certificate", "{key}"], "key.pem: there is no certificate in it"),
        (["{encoder}", "--tls-certificate", "none.pem"], "none.pem: no such file"),
        (
            ["{encoder}", "--tls-certificate", "{certificate}"],
            "certificate.pem: there is no private key in it. Give its PEM file as --tls-key",
        ),
        (
            ["{encoder}", "--tls-key", "{certificate}", "--tls-certificate", "{certificate}"],
            "certificate.pem: there is no private key in it",
        ),
        (
            ["{encoder}", "--tls-key", "{key}", "--tls-certificate", "{certificate}"],
            "certificate.pem, {key}: no certificate with its private key (",
        ),
    ],
)
def test_errors_at_the_start_are_one_line(
    directories, words: list[str], message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("bertworks.serving.server.log_to_stderr", lambda _: None)
    files = {"key": "PRIVATE KEY", "certificate": "CERTIFICATE"}
    for name, what in files.items():
        file = tmp_path / f"{name}.pem"
        file.write_text(f"-----BEGIN {what}-----\nbm9uZQ==\n-----END {what}-----\n")
        files[name] = str(file)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        values = {**directories, **files, "port": port}
        arguments = [word.format(**values) for word in words]
        result = CliRunner().invoke(app, ["serve", *arguments])
    assert result.exit_code in (1, 2), result.output
    assert message.format(**values) in result.stderr
    assert "Traceback" not in result.output
    assert gc.isenabled()


@pytest.mark.long
def test_the_log_says_where_it_listens(directories, tmp_path: Path) -> None:
    log = tmp_path / "log"
    words = ["serve", f"mine={directories['encoder']}", "--port", "0", "--device", "cpu"]
    with log.open("wb") as file:
        process = subprocess.Popen([sys.executable, "-m", "bertworks", *words], stderr=file)
    try:
        end = time.monotonic() + 60
        while not log.read_text().endswith("\n"):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end, "nothing is said"
            time.sleep(0.02)
        event = json.loads(log.read_text())
        assert (event["event"], event["models"]) == ("listening", ["mine"])
        for path in ("/health", event["explorer"], event["api"]):
            assert httpx.get(event["url"] + path).status_code == 200
    finally:
        process.kill()
        process.wait(30)


@pytest.mark.parametrize(
    ("host", "options", "url"),
    [
        ("127.0.0.1", {}, "http://127.0.0.1:5"),
        ("localhost", {"ssl_certfile": "c.pem"}, "https://localhost:5"),
        ("::1", {}, "http://[::1]:5"),
    ],
)
def test_the_address_is_one_for_clients(host: str, options: dict[str, str], url: str) -> None:
    assert format_url(uvicorn.Config("none", host=host, port=0, **options), 5) == url


BAD: list[tuple[str, bytes, dict[str, str], set[int]]] = [
    ("/embed", b"{", {}, {400}),
    ("/embed", b'{"inputs": 3}', {}, {422}),
    ("/embed", b'{"inputs": []}', {}, {400}),
    ("/embed", b'{"inputs": "' + b"a" * 250_000 + b'"}', {}, {413}),
    ("/embed", b'{"inputs": "' + b"a" * 10_000_000 + b'"}', {}, {413}),
    ("/embed", b'{"inputs": "\\ud800"}', {}, {422}),
    ("/embed", b'{"inputs": "a"}', {"x-deadline-ms": "0"}, {408}),
    ("/predict", b'{"inputs": "a"}', {}, {424}),
    ("/v1/embeddings", b'{"model": "none", "input": "a"}', {}, {404}),
    ("/v1/embeddings", b'{"model": "encoder", "input": [""]}', {}, {400}),
    ("/fill-mask", b'{"inputs": "a", "model": "pretrained"}', {}, {400}),
    ("/none", b"", {}, {404}),
    ("/tag", b'{"inputs": {}, "model": "tagger"}', {}, {422}),
]


@pytest.mark.long
def test_bad_requests_do_not_affect_good_ones(server: Any, get_model) -> None:
    """For some seconds: the good ones are right, the bad ones are their 4xx in one line."""
    expected = get_model("encoder").embed(["the door", "a river was deep"])
    counts: Counter[str] = Counter()
    end = time.monotonic() + 3

    def good(seed: int) -> None:
        with Client(server.url, model="encoder") as client:
            while time.monotonic() < end:
                vectors = client.embed(["the door", "a river was deep"])
                right = np.abs(vectors - expected).max() < 1e-5
                counts["right" if right else "wrong"] += 1

    def bad(seed: int) -> None:
        draw = random.Random(seed)
        with httpx.Client(base_url=server.url, timeout=30) as http:
            while time.monotonic() < end:
                path, content, headers, statuses = draw.choice(BAD)
                headers = {"content-type": "application/json", **headers}
                try:
                    answer = http.post(path, content=content, headers=headers)
                except httpx.WriteError:  # it was refused before it was all sent
                    counts["refused"] += 1
                    continue
                one_line = "\n" not in answer.text and len(answer.text) < 500
                is_right = answer.status_code in statuses and one_line
                counts["refused" if is_right else answer.text[:200]] += 1

    def vanishing(seed: int) -> None:
        draw = random.Random(seed)
        while time.monotonic() < end:
            try:
                body = {"inputs": ["door " * 20] * 200}
                httpx.post(f"{server.url}/embed", json=body, timeout=draw.uniform(0.001, 0.05))
                counts["in time"] += 1
            except httpx.TimeoutException:
                counts["gone"] += 1

    threads = [
        threading.Thread(target=target, args=(seed,))
        for seed, target in enumerate((good, good, bad, bad, bad, vanishing))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert set(counts) <= {"right", "refused", "gone", "in time"}, counts
    assert counts["right"] > 10
    assert counts["refused"] > 10
    assert counts["gone"]
    end = time.monotonic() + 10
    while server.service.queue.load.tokens and time.monotonic() < end:
        time.sleep(0.01)
    assert server.service.queue.load == (0, 0)


@pytest.mark.slow  # for its minutes
def test_a_mixed_load_leaves_no_faults() -> None:
    """`python -m tests.serving.soak` does it for as long as you like."""
    from tests.serving.soak import bad_requests, soak

    findings, rows = soak(minutes=3, rate=20, callers=6, extra=None, out=None, reload_seconds=20)
    assert not findings.faults
    assert {f"bad: {one.name}" for one in bad_requests()} <= {
        name.removesuffix(", connection closed") for name in findings.counts
    }
    assert findings.counts["bad: slow"] and findings.counts["bad: vanished"]
    assert findings.counts["rotation: reloads"] > 2
    assert findings.counts["rotation: reloads of a broken file"] > 1
    after = [row["anonymous"] for row in rows[len(rows) // 3 :]]
    assert max(after) - after[0] < 20, "MB"


@pytest.mark.slow
def test_schemathesis_finds_nothing(directories, tmp_path: Path) -> None:
    """Requests that the description allows, and others, have the answers that it names."""
    models = [f"{name}={place}" for name, place in directories.items()]
    with command(*models, log=tmp_path / "log") as (_, url):
        schemathesis = Path(sys.executable).with_name("schemathesis")
        result = subprocess.run(
            [
                *(schemathesis, "run", f"{url}/openapi.json", "--max-examples=30", "--seed=1"),
                *("--checks=all", "--exclude-checks=unsupported_method,positive_data_acceptance"),
                *("--workers=2", "--no-color"),
            ],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
        )
    assert result.returncode == 0, result.stdout[-6000:]
