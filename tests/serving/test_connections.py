"""Silent, slow and greedy clients, by real sockets; the server may open 200 files."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import shlex
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from bertworks.serving.connections import Connections, bind, limit_connections, listen
from bertworks.serving.settings import ServeSettings

pytestmark = pytest.mark.long
KEY = "a-key-of-sixteen-characters"
HEADER_SECONDS, KEEP_ALIVE_SECONDS, MAX_HEADER_BYTES = 2.0, 3.0, 4096
DESCRIPTORS = 200
SLACK = 15.0  # of a busy machine
REQUEST = b"GET /health HTTP/1.1\r\nhost: localhost\r\n"


@dataclass
class ServerProcess:
    """A server process."""

    process: subprocess.Popen[str]
    port: int
    tls: bool

    def connect(
        self, *, handshake: bool = True, receive_buffer: int | None = None
    ) -> socket.socket:
        plain = socket.socket()
        if receive_buffer is not None:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        plain.settimeout(30)
        plain.connect(("127.0.0.1", self.port))
        return context().wrap_socket(plain) if self.tls and handshake else plain

    def client(self) -> httpx.Client:
        url = f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"
        headers = {"authorization": f"Bearer {KEY}"}
        return httpx.Client(base_url=url, headers=headers, timeout=60, verify=context())

    def memory(self) -> int:
        """Resident memory in MB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) // 1024


def context() -> ssl.SSLContext:
    any_server = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    any_server.check_hostname, any_server.verify_mode = False, ssl.CERT_NONE
    return any_server


@pytest.fixture(scope="module", params=["http", "https"])
def server(
    request, directories, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    words = [directories["encoder"], "--port", "0", "--device", "cpu", "max_connections=1000"]
    words += [f"header_seconds={HEADER_SECONDS}", f"keep_alive_seconds={KEEP_ALIVE_SECONDS}"]
    words += [f"max_header_bytes={MAX_HEADER_BYTES}", "body_seconds=60"]
    tls = request.param == "https"
    if tls:
        words += certificate(tmp_path_factory.mktemp("tls"))
    command = shlex.join([sys.executable, "-m", "bertworks", "serve", *words])
    process = subprocess.Popen(
        ["sh", "-c", f"ulimit -n {DESCRIPTORS}; exec {command}"],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "BERTWORKS_API_KEYS": f"ada:{KEY}"},
    )
    assert process.stderr is not None
    try:
        event: dict[str, Any] = {}
        while event.get("event") != "listening":
            event = json.loads(process.stderr.readline())
        threading.Thread(target=process.stderr.read, daemon=True).start()  # until it ends
        yield ServerProcess(process, int(event["url"].rpartition(":")[2]), tls)
    finally:
        process.terminate()
        try:
            assert process.wait(120) == 0
        finally:
            process.kill()
            process.wait()
            process.stderr.close()


def certificate(folder: Path) -> list[str]:
    """Make a certificate; return the options that name its files."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate")
    files = [str(folder / "key.pem"), str(folder / "certificate.pem")]
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"]
    subprocess.run([*words, "-keyout", files[0], "-out", files[1]], check=True, capture_output=True)
    return ["--tls-key", files[0], "--tls-certificate", files[1]]


def check_answer(server: ServerProcess) -> None:
    """Check that a new client is answered."""
    with server.client() as client:
        assert client.get("/health").status_code == 200
        assert client.post("/embed", json={"inputs": "the door"}).status_code == 200


def end_of(sock: socket.socket, send: Callable[[], bytes] = lambda: b"") -> tuple[bytes, float]:
    """Send and receive until the server closes the connection.

    Returns:
        what it sent, and the seconds until then.
    """
    start_time, response = time.monotonic(), b""
    sock.settimeout(0.1)
    while time.monotonic() < start_time + HEADER_SECONDS + KEEP_ALIVE_SECONDS + SLACK:
        try:
            sock.sendall(send())
            part = sock.recv(1 << 16)
        except (TimeoutError, ssl.SSLWantReadError):
            continue
        except OSError:
            return response, time.monotonic() - start_time
        response += part
        if not part:
            return response, time.monotonic() - start_time
    raise AssertionError("the connection stays open")


@pytest.mark.parametrize("request_part", [b"", b"G", REQUEST, REQUEST + b"x: "])
def test_connections_without_a_request_do_not_keep_others_out(
    server: ServerProcess, request_part: bytes
) -> None:
    with ExitStack() as stack:
        for _ in range(DESCRIPTORS + 20):
            silent = stack.enter_context(server.connect(handshake=False))
            with suppress(OSError):  # it may already be closed
                silent.sendall(request_part)
        check_answer(server)
        assert len(os.listdir(f"/proc/{server.process.pid}/fd")) < DESCRIPTORS
    check_answer(server)


def test_a_request_is_not_closed_for_other_connections(server: ServerProcess) -> None:
    body = b'{"inputs": "the door"}'
    head = (
        f"POST /embed HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {KEY}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    with server.connect() as busy, ExitStack() as stack:
        busy.sendall(head.encode() + body[:5])
        time.sleep(0.5)
        for _ in range(DESCRIPTORS + 20):
            stack.enter_context(server.connect(handshake=False))
        check_answer(server)
        busy.sendall(body[5:])
        assert busy.recv(1 << 16).startswith(b"HTTP/1.1 200 OK")


FLOODS = {
    "value": (REQUEST + b"x: ", b"a" * 65536),
    "name": (REQUEST, b"a" * 65536),
    "headers": (REQUEST, b"abcdef: ghijkl\r\n" * 4096),
    "url": (b"GET /health?", b"a" * 65536),
    "trailers": (
        b"POST /embed HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n0\r\nx: ",
        b"a" * 65536,
    ),
    "chunk extension": (
        b"POST /embed HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n5;",
        b"a" * 65536,
    ),
    "second request": (REQUEST + b"\r\n" + REQUEST + b"x: ", b"a" * 65536),
}


@pytest.mark.parametrize("flood", FLOODS)
def test_headers_are_bounded_without_a_key(server: ServerProcess, flood: str) -> None:
    """Memory does not grow by the 138 MB that a client sends."""
    check_answer(server)
    memory = server.memory()
    start, part = FLOODS[flood]
    with server.connect() as greedy:
        sent_bytes, response = 0, b""
        with suppress(OSError):
            greedy.sendall(start)
            while sent_bytes < 138_000_000:
                sent_bytes += greedy.send(part)
        with suppress(OSError):
            while more := greedy.recv(1 << 16):
                response += more
    assert sent_bytes < 16_000_000, "it is closed soon"
    assert server.memory() < memory + 8
    if response and "POST" not in start.decode():
        assert b"431" in response
        assert b"the headers have more than 4,096 bytes" in response
    check_answer(server)


@pytest.mark.parametrize("size", [2000, 3900, 4200, 20_000, 200_000])
def test_headers_that_arrive_at_once_are_bounded(server: ServerProcess, size: int) -> None:
    with server.client() as client:
        client.headers.pop("authorization")
        answer = client.get("/health", headers={"x-large": "a" * size})
        assert answer.status_code == (200 if size < MAX_HEADER_BYTES else 431)
        openai = client.get("/v1/models", headers={"x-large": "a" * size})
        assert openai.status_code == (401 if size < MAX_HEADER_BYTES else 431)


SLOW = {
    "silent": (b"", b"", HEADER_SECONDS),
    "slow headers": (REQUEST, b"a: b\r\n", HEADER_SECONDS),
    "slow URL": (b"GET /", b"a", HEADER_SECONDS),
    "empty lines": (b"", b"\r\n", HEADER_SECONDS),
    "idle": (REQUEST + b"\r\n", b"", KEEP_ALIVE_SECONDS),
    "empty lines when idle": (REQUEST + b"\r\n", b"\r\n", KEEP_ALIVE_SECONDS),
    "second request": (
        REQUEST + b"\r\nGET /health HTTP/1.1\r\n",
        b"a: b\r\n",
        HEADER_SECONDS,
    ),
    "body after a refusal": (
        b"POST /embed HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9999\r\n\r\n",
        b"a",
        KEEP_ALIVE_SECONDS,
    ),
}
"""What slow clients send at first, what they go on sending, and when they are closed."""


def test_slow_clients_are_closed(server: ServerProcess) -> None:
    """All at once: each waits for seconds."""

    def seconds_open(name: str) -> float:
        start, dribble, _ = SLOW[name]
        with server.connect() as slow:
            slow.sendall(start)
            return end_of(slow, lambda: dribble)[1]

    def seconds_silent() -> float:
        with server.connect(handshake=False) as silent:
            return end_of(silent)[1]

    with ThreadPoolExecutor(len(SLOW) + 1) as clients:
        silent = clients.submit(seconds_silent)
        for name, measured in zip(SLOW, clients.map(seconds_open, SLOW), strict=True):
            expected = SLOW[name][-1]
            assert expected - 1 < measured < expected + SLACK, name
        assert silent.result() < HEADER_SECONDS + SLACK, "a handshake"


def large_request() -> bytes:
    """A request whose response has megabytes."""
    texts = ["the door was open"] * 2000
    body = json.dumps({"texts": texts, "layers": [0, 1, 2]}).encode()
    head = (
        f"POST /encode HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {KEY}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def test_a_client_that_takes_no_response_is_closed(server: ServerProcess) -> None:
    with server.connect(receive_buffer=4096) as greedy:
        greedy.sendall(large_request() * 8)
        start_time = time.monotonic()
        with suppress(OSError):
            while time.monotonic() < start_time + 60:
                greedy.sendall(b"x")
                time.sleep(0.2)
        assert time.monotonic() - start_time < 60
    check_answer(server)


def test_a_client_that_takes_its_response_slowly_gets_it(server: ServerProcess) -> None:
    with server.connect(receive_buffer=4096) as slow:
        slow.sendall(large_request())
        response, start_time = b"", time.monotonic()
        while b"\r\n\r\n" not in response:
            response += slow.recv(1 << 12)
        headers, _, content = response.partition(b"\r\n\r\n")
        length = int(headers.lower().partition(b"content-length:")[2].split()[0])
        while len(content) < length:
            part = slow.recv(50_000)
            assert part
            content += part
            time.sleep((KEEP_ALIVE_SECONDS + 1) * len(part) / length)
        assert time.monotonic() - start_time > KEEP_ALIVE_SECONDS
    assert np.array(json.loads(content)["results"]).shape[0] == 2000


def test_one_connection_serves_many_requests(server: ServerProcess) -> None:
    with server.connect() as one:
        for _ in range(3):
            one.sendall((REQUEST + b"\r\n") * 5)  # pipelined
            response = b""
            while response.count(b"HTTP/1.1 200 OK") < 5:
                part = one.recv(1 << 16)
                assert part
                response += part
            time.sleep(HEADER_SECONDS / 2)


def test_requests_before_a_response_are_bounded(server: ServerProcess) -> None:
    memory = server.memory()
    with server.connect() as greedy:
        response, _ = end_of(greedy, lambda: (REQUEST + b"\r\n") * 5000)
    assert response.count(b"200 OK") < 500
    assert server.memory() < memory + 8
    check_answer(server)


# --- without a server ---


class Pair:
    """A connection between two sockets of this process."""

    def __init__(self, connections: Connections, stack: ExitStack) -> None:
        self.ours, self.theirs = (stack.enter_context(one) for one in socket.socketpair())
        self.fd = self.ours.fileno()
        connections.add(self.ours)
        self.connection = connections._open.get(self.fd)

    @property
    def is_closed(self) -> bool:
        self.theirs.setblocking(False)
        try:
            return self.theirs.recv(1) == b""
        except BlockingIOError:
            return False


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_the_connection_that_waits_longest_is_closed_first(stack: ExitStack) -> None:
    connections = Connections(ServeSettings(max_connections=3))
    first, second, third = (Pair(connections, stack) for _ in range(3))
    connections.answer(first.connection)
    connections.wait(second.connection, 1)  # its request was answered
    fourth = Pair(connections, stack)
    assert [first.is_closed, second.is_closed, third.is_closed] == [False, False, True]
    fifth = Pair(connections, stack)
    assert [first.is_closed, second.is_closed, fourth.is_closed] == [False, True, False]
    assert not fifth.is_closed
    assert len(connections) == 3


def test_a_new_connection_is_closed_if_all_others_are_busy(stack: ExitStack) -> None:
    connections = Connections(ServeSettings(max_connections=2))
    busy = [Pair(connections, stack) for _ in range(2)]
    for pair in busy:
        connections.answer(pair.connection)
    assert Pair(connections, stack).is_closed
    assert not any(pair.is_closed for pair in busy)


def test_a_descriptor_that_is_used_again_is_another_connection(stack: ExitStack) -> None:
    connections = Connections(ServeSettings(max_connections=2))
    first = Pair(connections, stack)
    first.ours.close()
    second = Pair(connections, stack)
    assert second.fd == first.fd
    connections.remove(first.connection)
    assert len(connections) == 1
    second.ours.close()
    connections.close_late()
    assert len(connections) == 0


def test_addresses_that_this_machine_lacks_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name may also have an IPv6 address, which containers often do not have."""
    usual = socket.getaddrinfo

    def resolve(_: object, port: int, **more: Any) -> list[Any]:
        return [found for host in hosts for found in usual(host, port, **more)]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    connections = Connections(ServeSettings())
    hosts = ["127.0.0.1", "192.0.2.1", "127.0.0.2"]
    listeners = bind("name", 0, connections)
    try:
        names = [listener.getsockname() for listener in listeners]
        assert [host for host, _ in names] == ["127.0.0.1", "127.0.0.2"]
        assert len({port for _, port in names}) == 1
        listeners[0].listen()
        with pytest.raises(OSError, match="in use"):
            bind("name", names[0][1], connections)
    finally:
        for listener in listeners:
            listener.close()
    hosts = ["192.0.2.1"]
    with pytest.raises(OSError, match="assign"):
        bind("name", 0, connections)


@pytest.mark.parametrize(
    ("limits", "most", "expected", "raised_to"),
    [
        ((200, 200), 2048, 136, None),
        ((1024, 4096), 2048, 2048, 2112),
        ((1024, 1500), 2048, 1436, 1500),
        ((100_000, 100_000), 2048, 2048, None),
        ((1024, resource.RLIM_INFINITY), 2048, 2048, 2112),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), 2048, 2048, None),
        ((20, 20), 2048, 1, None),
    ],
)
def test_connections_are_as_many_as_the_system_allows(
    limits: tuple[int, int],
    most: int,
    expected: int,
    raised_to: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    changes: list[int] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda _, values: changes.append(values[0]))
    assert limit_connections(most) == expected
    assert set(changes) <= {raised_to, limits[1]}
    assert raised_to is None or changes == [raised_to]


def test_small_packets_are_sent_at_once() -> None:
    """Else a client that keeps its connection waits 40 ms for the body of each response."""

    async def accept_one() -> int:
        delays = asyncio.get_running_loop().create_future()

        class Protocol(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                sock = transport.get_extra_info("socket")
                delays.set_result(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

        (listener,) = bind("127.0.0.1", 0, Connections(ServeSettings()))
        async with await listen(listener, Protocol, ssl=None):
            with socket.create_connection(listener.getsockname()):
                return await asyncio.wait_for(delays, 10)

    assert asyncio.run(accept_one()) != 0
