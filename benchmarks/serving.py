"""Load on servers of embeddings, in turns: requests and texts a second, and latencies.

    make bench-serving MODEL=DIR

Ours and infinity-emb, which has an environment of its own, get requests through OpenAI's
`/embeddings` from 1, 8, 64 and 256 clients, each of which sends its next request when the last is
answered. A server is idle while another's turn lasts. The caller is a process of its own on the
same processors. In a turn, what is answered before each client has had two answers is not counted:
all clients begin at once, and the first answers are early. Medians over the rounds are reported.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shlex
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from harness import machine

CLIENTS = (1, 8, 64, 256)
_MOST_SECONDS = 120.0  # of a turn
_ANSWERS = 4  # that each client has in a turn, at least


class Server(NamedTuple):
    """A server, and the address of its requests."""

    name: str
    port: int
    path: str
    command: str


class Running(NamedTuple):
    """A server that has answered, and what it took to start it."""

    server: Server
    process: subprocess.Popen[bytes]
    first_answer: float  # seconds, by the clock
    first_processor: float  # seconds of the processor's


def servers_of(model: str, infinity: Path | None) -> list[Server]:
    """Ours, and infinity-emb in both precisions that it has for a CPU."""
    ours = f"{sys.executable} -m bertworks serve m={shlex.quote(model)} --log-level warning"
    servers = [Server("bertworks", 8101, "/v1/embeddings", f"{ours} --port 8101")]
    if infinity is not None:
        theirs = (
            f"{infinity} v2 --model-id {shlex.quote(model)} --served-model-name m --engine torch "
            "--device cpu --no-bettertransformer --no-compile --log-level critical"
        )
        for port, dtype in ((8102, "float32"), (8103, "bfloat16")):
            command = f"{theirs} --dtype {dtype} --port {port}"
            servers.append(Server(f"infinity {dtype}", port, "/embeddings", command))
    return servers


def texts_of(data: Path, kind: str, count: int = 2000) -> list[str]:
    """Short texts (sentences of SST-2), or a mix of them and of SQuAD's questions and passages."""
    rows = (data / "glue/sst2/dev.tsv").read_text().splitlines()[1:]
    short = [row.rpartition("\t")[0] for row in rows]
    if kind == "short":
        return short
    articles = json.loads((data / "squad/dev.json").read_text())["data"]
    paragraphs = [part for article in articles for part in article["paragraphs"]]
    questions = [part["qas"][0]["question"] for part in paragraphs]
    passages = [part["context"] for part in paragraphs]
    draw = random.Random(0)
    return [draw.choice(draw.choice((short, short, questions, passages))) for _ in range(count)]


def request(server: Server, texts: Sequence[str]) -> bytes:
    """A request as it goes over the wire."""
    body = json.dumps({"model": "m", "input": texts, "encoding_format": "base64", "truncate": True})
    head = f"POST {server.path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body.encode())}\r\n\r\n{body}".encode()


class Turn:
    """Clients of a server; when each answer came, and its latency."""

    def __init__(self, running: Running, texts: Sequence[str], clients: int, size: int) -> None:
        groups = [texts[at : at + size] for at in range(0, len(texts) - size + 1, size)]
        self.running, self.requests = running, [request(running.server, one) for one in groups]
        self.answers: list[list[tuple[float, float]]] = [[] for _ in range(clients)]
        self.is_over = False

    async def client(self, number: int) -> None:
        """Send requests, each after the last answer, until the turn is over."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.running.server.port)
        index = number * len(self.requests) // len(self.answers)
        while not self.is_over:
            start = time.perf_counter()
            writer.write(self.requests[index % len(self.requests)])
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), head
            lower = head.lower()
            size = lower[lower.index(b"content-length:") + 15 :]
            await reader.readexactly(int(size[: size.index(b"\r")]))
            end = time.perf_counter()
            self.answers[number].append((end, end - start))
            index += 1
        writer.close()

    async def wait_for_answers(self, answers: int, deadline: float) -> None:
        while min(map(len, self.answers)) < answers and time.perf_counter() < deadline:
            await asyncio.sleep(0.02)

    async def run(self, seconds: float) -> dict[str, float]:
        """What clients see for some seconds, or until each has had a few answers."""
        tasks = [asyncio.create_task(self.client(number)) for number in range(len(self.answers))]
        deadline = time.perf_counter() + _MOST_SECONDS
        await self.wait_for_answers(2, deadline)
        pid = self.running.process.pid
        start, processor_start = time.perf_counter(), processor_seconds(pid)
        await asyncio.sleep(seconds)
        await self.wait_for_answers(2 + _ANSWERS, deadline)
        end, processor_time = time.perf_counter(), processor_seconds(pid) - processor_start
        self.is_over = True
        await asyncio.gather(*tasks)
        answers = (one for own in self.answers for one in own if start <= one[0] <= end)
        latencies = sorted(latency for _, latency in answers)
        return {
            "requests_per_second": len(latencies) / (end - start),
            "p50_ms": 1000 * statistics.median(latencies),
            "p99_ms": 1000 * latencies[min(len(latencies) - 1, int(0.99 * len(latencies)))],
            "processor_ms": 1000 * processor_time / len(latencies),
        }


def processor_seconds(pid: int) -> float:
    """The processor's seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def start(server: Server) -> Running:
    """Start a server, and wait until it answers."""
    began = time.perf_counter()
    offline = {**os.environ, "HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"}
    process = subprocess.Popen(shlex.split(server.command), env=offline)
    body = json.dumps({"model": "m", "input": ["a first text"]}).encode()
    first_request = urllib.request.Request(
        f"http://127.0.0.1:{server.port}{server.path}", body, {"content-type": "application/json"}
    )
    while time.perf_counter() < began + 300:
        if process.poll() is not None:
            raise SystemExit(f"{server.name} has ended with {process.returncode}")
        try:
            urllib.request.urlopen(first_request, timeout=30).read()
        except OSError:
            time.sleep(0.01)
            continue
        return Running(server, process, time.perf_counter() - began, processor_seconds(process.pid))
    process.kill()
    raise SystemExit(f"{server.name} does not answer")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="a sentence encoder's directory")
    parser.add_argument("--infinity", type=Path, help="the program of infinity-emb")
    parser.add_argument("--data", type=Path, default=os.environ.get("BERTWORKS_DATA"))
    parser.add_argument("--out", type=Path, required=True, help="lines of JSON, which are added")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--size", type=int, default=1, help="texts of a request")
    parser.add_argument("--clients", type=int, nargs="+", default=CLIENTS)
    options = parser.parse_args()
    if options.data is None:
        parser.error("--data, or BERTWORKS_DATA, says where the real texts are")
    every: list[Running] = []
    lines: list[dict[str, Any]] = [{"machine": machine(), "size": options.size}]
    try:
        for server in servers_of(options.model, options.infinity):
            every.append(start(server))
            took = {"seconds": every[-1].first_answer, "processor": every[-1].first_processor}
            lines.append({"server": server.name, "first_answer": took})
        for number in range(options.rounds):
            for kind in ("short", "mix"):
                texts = texts_of(options.data, kind)
                for clients in options.clients:
                    for running in every[:: 1 if number % 2 else -1]:
                        turn = Turn(running, texts, clients, options.size)
                        figures = asyncio.run(turn.run(options.seconds))
                        name = {"server": running.server.name, "texts": kind, "clients": clients}
                        lines.append({**name, "round": number, **figures})
                        print(lines[-1], flush=True)
    finally:
        for running in every:
            running.process.terminate()
        for running in every:
            running.process.wait(60)
    with options.out.open("a") as out:
        out.writelines(json.dumps(line) + "\n" for line in lines)
    print(table(lines))


def table(lines: Sequence[dict[str, Any]]) -> str:
    """Medians over the rounds of one run."""
    groups: dict[tuple[str, int, str], list[dict[str, Any]]] = {}
    for line in lines:
        if "clients" in line:
            key = line["texts"], line["clients"], line["server"]
            groups.setdefault(key, []).append(line)
    table_lines = [
        "| texts | clients | server | requests/s | texts/s | p50 ms | p99 ms | processor ms |",
        "|---|---|---|---|---|---|---|---|",
    ]
    names = ("requests_per_second", "p50_ms", "p99_ms", "processor_ms")
    for (kind, clients, server), rows in sorted(groups.items()):
        rate, p50, p99, processor = (statistics.median(row[name] for row in rows) for name in names)
        cells = [kind, str(clients), server, f"{rate:.1f}", f"{rate * lines[0]['size']:.1f}"]
        table_lines.append(
            "| " + " | ".join([*cells, *(f"{x:.1f}" for x in (p50, p99, processor))]) + " |"
        )
    table_lines += [
        f"{line['server']}: first answer after {line['first_answer']['seconds']:.2f} s, "
        f"{line['first_answer']['processor']:.2f} s of the processor's"
        for line in lines
        if "first_answer" in line
    ]
    return "\n".join(table_lines)


if __name__ == "__main__":
    main()
