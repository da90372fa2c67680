"""Load on servers of embeddings, in turns: requests and texts a second, and latencies.

Each server is started by the command given, asked through OpenAI's `/embeddings` with one text a
request by 1, 8, 64 and 256 clients, each of which sends its next request when the last is answered,
and is idle while another's turn lasts. The caller is a process of its own on the same processors.

    python benchmarks/serving.py --data $BERTWORKS_DATA --out results.jsonl \\
        ours 8101 /v1/embeddings "bertworks serve m=MODEL precision=auto --port 8101" \\
        peer 8102 /embeddings "infinity_emb v2 --model-id MODEL --served-model-name m --port 8102 …"
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shlex
import statistics
import subprocess
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

CLIENTS = (1, 8, 64, 256)


class Server(NamedTuple):
    """A server, and where it is asked."""

    name: str
    port: int
    path: str
    command: str


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


def request(server: Server, text: str, key: str = "m") -> bytes:
    """A request as it goes over the wire."""
    body = json.dumps(
        {"model": key, "input": [text], "encoding_format": "base64", "truncate": True}
    )
    head = f"POST {server.path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body.encode())}\r\n\r\n{body}".encode()


async def client(
    server: Server, requests: Sequence[bytes], first: int, end: float, latencies: list[float]
) -> None:
    """Ask, wait, ask again, until the time is over."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    at = first
    while time.perf_counter() < end:
        started = time.perf_counter()
        writer.write(requests[at % len(requests)])
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        lower = head.lower()
        size = lower[lower.index(b"content-length:") + 15 :]
        await reader.readexactly(int(size[: size.index(b"\r")]))
        latencies.append(time.perf_counter() - started)
        at += 1
    writer.close()


async def load(
    server: Server, texts: Sequence[str], clients: int, seconds: float
) -> dict[str, float]:
    """What clients see for some seconds, after a second of warming up."""
    requests = [request(server, text) for text in texts]
    for measured in (False, True):
        latencies: list[float] = []
        started = time.perf_counter()
        end = started + (seconds if measured else 1.0)
        step = len(requests) // clients
        await asyncio.gather(
            *(client(server, requests, at * step, end, latencies) for at in range(clients))
        )
        elapsed = time.perf_counter() - started
    ordered = sorted(latencies)
    return {
        "requests_per_second": len(ordered) / elapsed,
        "p50_ms": 1000 * statistics.median(ordered),
        "p99_ms": 1000 * ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))],
    }


def wait_for(server: Server, process: subprocess.Popen[bytes]) -> None:
    """Wait until it answers."""
    end = time.monotonic() + 180
    while time.monotonic() < end:
        assert process.poll() is None, f"{server.name} has ended"
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{server.port}/health", timeout=2)
            return
        except OSError:
            time.sleep(0.2)
    raise SystemExit(f"{server.name} does not answer")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", type=int, action="append", help="1, 8, 64, 256")
    parser.add_argument("servers", nargs="+", help="NAME PORT PATH COMMAND, of each")
    given = parser.parse_args()
    words = given.servers
    servers = [
        Server(name, int(port), path, command)
        for name, port, path, command in zip(*(words[at::4] for at in range(4)), strict=True)
    ]
    processes = [subprocess.Popen(shlex.split(server.command)) for server in servers]
    try:
        for server, process in zip(servers, processes, strict=True):
            wait_for(server, process)
        with given.out.open("a") as out:
            for kind in ("short", "mix"):
                texts = texts_of(given.data, kind)
                for clients in given.clients or CLIENTS:
                    for number in range(given.rounds):
                        for server in servers[:: 1 if number % 2 else -1]:
                            found = asyncio.run(load(server, texts, clients, given.seconds))
                            line = {"server": server.name, "texts": kind, "clients": clients}
                            out.write(json.dumps({**line, "round": number, **found}) + "\n")
                            out.flush()
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(60)
    print(table(given.out))


def table(file: Path) -> str:
    """Medians over the rounds."""
    found: dict[tuple[str, int, str], list[dict[str, float]]] = {}
    for line in file.read_text().splitlines():
        row = json.loads(line)
        found.setdefault((row["texts"], row["clients"], row["server"]), []).append(row)
    lines = [
        "| texts | clients | server | requests/s | p50 ms | p99 ms |",
        "|---|---|---|---|---|---|",
    ]
    for (kind, clients, name), rows in found.items():
        middle = [
            statistics.median(row[key] for row in rows)
            for key in ("requests_per_second", "p50_ms", "p99_ms")
        ]
        cells = [kind, str(clients), name, f"{middle[0]:.0f}", *(f"{x:.1f}" for x in middle[1:])]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
