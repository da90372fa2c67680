"""Limits of connections: their number, and what they may send before a request begins.

    accept ─► waiting for a request ─► answering ─► the client takes the response ─► waiting …
              header_seconds           middleware   keep_alive_seconds               keep_alive_
              max_header_bytes                      without progress                 seconds

uvicorn has none of these limits. They hold before anything is known about a client, also while it
does not complete a TLS handshake. If there are too many connections, the one that has waited
longest for a request is closed, so that silent clients keep nobody out.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from ssl import SSLContext
from typing import Any

import orjson
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from .logs import log
from .settings import ServeSettings

OTHER_FILES = 64
"""File descriptors that are not for connections: of libraries, models and the log."""

_WATCH_SECONDS = 0.5
_MAX_PIPELINED = 64  # requests that a client may send before the response to its first
_WARNING_SECONDS = 60.0


@dataclass(eq=False)
class Connection:
    """An accepted connection.

    Attributes:
        transport: None until the TLS handshake is complete.
        deadline: when a request must have arrived, on the monotonic clock; None while one is
            answered.
        unsent_bytes: bytes of responses that the client had not taken at the last check.
        send_deadline: when it must have taken some of them.
    """

    sock: socket.socket
    fd: int
    transport: asyncio.Transport | None = None
    deadline: float | None = None
    unsent_bytes: int = 0
    send_deadline: float = 0.0

    def count_unsent(self) -> int:
        """Return the bytes of responses that the client has not taken."""
        return 0 if self.transport is None else self.transport.get_write_buffer_size()


class Connections:
    """The open connections of a server."""

    def __init__(self, settings: ServeSettings) -> None:
        self.limit = settings.max_connections
        self.header_seconds = settings.header_seconds
        self.keep_alive_seconds = settings.keep_alive_seconds
        self.max_header_bytes = settings.max_header_bytes
        self._open: dict[int, Connection] = {}
        self._waiting: dict[Connection, None] = {}  # for a request; the longest first
        self._last_warning_time = -_WARNING_SECONDS
        self._closed_when_full = 0

    def __len__(self) -> int:
        return len(self._open)

    def add(self, sock: socket.socket) -> None:
        """Register an accepted connection; if there are too many, close one that waits."""
        connection = Connection(sock, sock.fileno())
        self._open[connection.fd] = connection
        self.wait(connection, self.header_seconds)
        while len(self._open) > self.limit and self._waiting:
            idle = (waiting for waiting in self._waiting if not waiting.count_unsent())
            self._close(next(idle, next(iter(self._waiting))))
            self._warn()

    def attach_transport(self, transport: asyncio.Transport) -> Connection:
        """Return the connection of a transport."""
        sock = transport.get_extra_info("socket")
        # It may have been closed to make room; the transport will detect that.
        connection = self._open.get(sock.fileno()) or Connection(sock, sock.fileno())
        connection.transport = transport
        return connection

    def wait(self, connection: Connection, seconds: float) -> None:
        """Close the connection if no request has arrived after `seconds`."""
        connection.deadline = time.monotonic() + seconds
        self._waiting.pop(connection, None)
        if self._is_open(connection):
            self._waiting[connection] = None

    def answer(self, connection: Connection) -> None:
        """Wait for no request while one is answered."""
        self._waiting.pop(connection, None)
        connection.deadline = None

    def remove(self, connection: Connection) -> None:
        """Forget a connection that has ended. Its descriptor may already be another's."""
        self._waiting.pop(connection, None)
        if self._is_open(connection):
            del self._open[connection.fd]

    async def watch(self) -> None:
        """Close connections whose deadline has passed, until cancelled."""
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            self.close_late()

    def close_late(self) -> None:
        """Close the connections whose deadline has passed."""
        now = time.monotonic()
        for connection in list(self._open.values()):
            if connection.sock.fileno() == -1:  # it ended before its TLS handshake was complete
                self.remove(connection)
                continue
            previous_bytes, connection.unsent_bytes = (
                connection.unsent_bytes,
                connection.count_unsent(),
            )
            if connection.unsent_bytes:
                if not previous_bytes or connection.unsent_bytes < previous_bytes:
                    connection.send_deadline = now + self.keep_alive_seconds
                if connection.deadline is not None:
                    connection.deadline = connection.send_deadline
                is_late = now > connection.send_deadline
            else:
                is_late = connection.deadline is not None and now > connection.deadline
            if is_late:
                what = "takes no response" if connection.unsent_bytes else "sends no request"
                log(logging.DEBUG, "connection closed", reason=f"the client {what}")
                self._close(connection)

    def _is_open(self, connection: Connection) -> bool:
        return self._open.get(connection.fd) is connection

    def _close(self, connection: Connection) -> None:
        self.remove(connection)
        if connection.transport is not None:
            connection.transport.abort()
            return
        with suppress(OSError):  # asyncio, which owns it, reads the end of its data
            connection.sock.shutdown(socket.SHUT_RDWR)

    def _warn(self) -> None:
        self._closed_when_full += 1
        now = time.monotonic()
        if now - self._last_warning_time > _WARNING_SECONDS:
            log(
                logging.WARNING,
                "too many connections",
                limit=self.limit,
                closed=self._closed_when_full,
            )
            self._last_warning_time, self._closed_when_full = now, 0


class Listener(socket.socket):
    """A listening socket that registers the connections that it accepts."""

    connections: Connections

    def accept(self) -> tuple[socket.socket, Any]:
        connection, address = super().accept()
        self.connections.add(connection)
        return connection, address


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol, which reports requests to `Connections` and limits headers.

    Args:
        arguments: those of uvicorn's class.
    """

    def __init__(self, connections: Connections, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.open_connections = connections
        self.connection: Connection
        self._unparsed_bytes = 0  # received since headers ended or a body's bytes came

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    # Of TCP.
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.connection = self.open_connections.attach_transport(transport)
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.open_connections.remove(self.connection)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unparsed_bytes += len(data)
        super().data_received(data)
        if self._unparsed_bytes > self.open_connections.max_header_bytes:
            self._refuse_headers()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self.cycle is not None and not self._is_answering:
            self.open_connections.wait(self.connection, self.open_connections.header_seconds)

    def on_headers_complete(self) -> None:
        if len(self.pipeline) >= _MAX_PIPELINED:
            raise ValueError("too many requests before a response")  # uvicorn answers 400
        self._unparsed_bytes = 0
        self.open_connections.answer(self.connection)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unparsed_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unparsed_bytes = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._is_answering:  # no other request was sent meanwhile
            self.open_connections.wait(self.connection, self.open_connections.keep_alive_seconds)

    def _refuse_headers(self) -> None:
        """Answer 431 to headers (or a URL, or trailers of a body) that are too long."""
        if self.transport.is_closing():
            return
        log(logging.INFO, "connection closed", reason="headers too long", status=431)
        if not self._is_answering:
            message = long_headers_message(self.open_connections.max_header_bytes)
            body = orjson.dumps({"error": message, "error_type": "Validation"})
            self.transport.write(
                b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\n"
                b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
                % (len(body), body)
            )
        self.transport.close()


def long_headers_message(limit: int) -> str:
    """Return the message for headers of more than `limit` bytes."""
    return f"the headers have more than {limit:,} bytes"


def limit_connections(max_connections: int) -> int:
    """Return how many connections there may be, at most `max_connections`.

    The process's limit of file descriptors is raised if necessary, as far as the system allows.
    """
    import resource

    soft_limit, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    num_descriptors = max_connections + OTHER_FILES
    infinity = resource.RLIM_INFINITY
    if soft_limit != infinity and soft_limit < num_descriptors:
        new_limit = num_descriptors if hard_limit == infinity else min(num_descriptors, hard_limit)
        with suppress(OSError, ValueError):  # the system may allow fewer than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (new_limit, hard_limit))
            soft_limit = new_limit
    limit = (
        max_connections
        if soft_limit == infinity
        else min(max_connections, max(1, soft_limit - OTHER_FILES))
    )
    if limit < max_connections:
        log(logging.WARNING, "fewer connections", limit=limit, descriptors=soft_limit)
    return limit


def bind(host: str, port: int, connections: Connections) -> list[Listener]:
    """Return sockets that are bound to the addresses of a host, and do not listen yet.

    Args:
        port: 0: any free port, the same for all addresses.

    Raises:
        OSError: another program uses the port, or this machine has no address of the host.
    """
    listeners: list[Listener] = []
    unusable: OSError | None = None
    addresses = socket.getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    for family, _, _, _, address in dict.fromkeys(addresses):
        try:
            listener = _bind_listener(family, (address[0], port, *address[2:]))
        except OSError as error:
            if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):  # such as ::1 without IPv6
                unusable = error
                continue
            for listener in listeners:
                listener.close()
            raise
        listener.connections = connections
        listeners.append(listener)
        port = listener.getsockname()[1]
    if unusable is not None and not listeners:
        raise unusable
    return listeners


def _bind_listener(family: int, address: tuple[Any, ...]) -> Listener:
    # Named as TCP: asyncio turns off the delay of small packets (40 ms) for such sockets alone.
    listener = Listener(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener


Factory = Callable[[], LimitedProtocol]
_MAX_ACCEPTS = 16  # at a time: fewer than OTHER_FILES, since closing others takes a moment
_BACKLOG = 2048


async def listen(
    listener: Listener, factory: Factory, *, ssl: SSLContext | None
) -> asyncio.base_events.Server:
    """Accept connections, with TLS if there is a context for it."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(factory, sock=listener, backlog=_MAX_ACCEPTS, ssl=ssl)
    listener.listen(_BACKLOG)  # those that wait in the kernel: asyncio has one number for both
    return server
