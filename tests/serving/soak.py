"""A server under mixed load for any time: good requests and every kind of bad ones.

    python -m tests.serving.soak --minutes 30 --rate 20 [--model DIR] [--out soak.jsonl]

Every answer is checked: a good request's against the library, a bad one's status and its one line.
Clients that are slow or vanish are among the callers. Each minute a key and a model are replaced by
SIGHUP (`tests.serving.rotation`). First the server is warmed up: oneDNN keeps half a megabyte of
kernels for each number of rows of each matrix product. From then on memory has to be flat. The exit
status is 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import math
import os
import random
import signal
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np

import bertworks as bw
from bertworks import explorer
from bertworks.nn.cpu import round_up_rows
from tests.serving.conftest import WORDS, save_models
from tests.serving.rotation import NAME, Rotation
from tests.serving.test_bert import close
from tests.serving.test_process import command

KEY = "a-key-of-sixteen-characters"
BODY_SECONDS = 2.0
FLAT = 1.0
"""MB a minute: memory that grows by less, after the first third, is flat."""

_BATCH_TOKENS = 1024
_ROW = 32  # tokens of a text: as many as the small encoder takes


class Good(NamedTuple):
    """A request, and what is answered."""

    path: str
    body: dict[str, Any]
    expected: Any


class Bad(NamedTuple):
    """A request that is refused: how it is sent, and the status."""

    name: str
    path: str
    content: bytes
    status: int
    headers: dict[str, str] = {}  # noqa: RUF012


def good_requests(models: dict[str, str], extra: str | None) -> list[Good]:
    """Requests of all kinds, their answers by the library."""
    models_by_name = {name: bw.load(place, device="cpu") for name, place in models.items()}
    draw = random.Random(0)
    texts = [" ".join(draw.choices(WORDS, k=draw.randint(1, 25))) for _ in range(40)]
    masked = [f"{text} [MASK] {draw.choice(WORDS)}" for text in texts[:10]]
    requests: list[Good] = []

    def add(name: str, path: str, body: dict[str, Any], expected: Any) -> None:
        requests.append(Good(path, {"model": name, **body}, expected))

    for at in range(0, len(texts), 4):
        four = texts[at : at + 4]
        vectors = models_by_name["encoder"].embed(four).tolist()
        add("encoder", "/embed", {"inputs": four}, vectors)
        data = [
            {"object": "embedding", "index": row, "embedding": vector}
            for row, vector in enumerate(vectors)
        ]
        add("encoder", "/v1/embeddings", {"input": four}, {"data": data})
        cosines = models_by_name["encoder"].similarity(four[:1], four[1:])[0].tolist()
        inputs = {"source_sentence": four[0], "sentences": four[1:]}
        add("encoder", "/similarity", {"inputs": inputs}, cosines)
        labels = models_by_name["classifier"].predict(four)
        add("classifier", "/classify", {"inputs": four}, labels)
        tags = models_by_name["tagger"].predict(four)
        add("tagger", "/tag", {"inputs": four}, tags)
    for text in masked:
        masks = models_by_name["pretrained"].fill_mask(text, top_k=3)
        add("pretrained", "/fill-mask", {"inputs": text, "top_k": 3}, [{"masks": masks}])
        view = explorer.predict(models_by_name["pretrained"], text)
        add("pretrained", "/explore/predict", {"text": text}, view)
    for seed, text in enumerate(texts[:10]):
        settings = {"max_new_tokens": 1 + 4 * seed, "temperature": float(seed % 2), "seed": seed}
        prompt = " ".join(text.split()[:8])
        (new,) = models_by_name["causal"].generate(prompt, **settings)
        add("causal", "/generate", {"inputs": prompt, **settings}, [{"generated_text": new}])
    if extra is not None:
        model = bw.load(extra, device="cpu")
        limit = (model.sentence and model.sentence.max_seq_length) or 300
        most = math.log(limit / 2)  # words; an unknown one has two tokens
        pool = [
            " ".join(draw.choices(WORDS, k=round(math.exp(draw.uniform(0, most))))) for _ in texts
        ]
        vectors = model.embed(pool).tolist()
        for text, vector in zip(pool, vectors, strict=True):
            add("extra", "/embed", {"inputs": text}, [vector])
    return requests


def bad_requests() -> list[Bad]:
    """Those that are sent whole, and quickly."""

    def make_bad(name: str, status: int, value: Any, path: str = "/embed", **headers: str) -> Bad:
        content = value if isinstance(value, bytes) else json.dumps(value).encode()
        return Bad(
            name, path, content, status, {n.replace("_", "-"): v for n, v in headers.items()}
        )

    text, masked, causal = {"inputs": "the door"}, {"model": "pretrained"}, {"model": "causal"}
    return [
        make_bad("no JSON", 400, b'{"inputs": "the'),
        make_bad("no object", 422, b"[1, 2]"),
        make_bad("no UTF-8", 400, b'{"inputs": "\xff\xfe"}'),
        make_bad("a wrong type", 422, {"inputs": 3}),
        make_bad("wrong types in a list", 422, {"inputs": ["a", None]}),
        make_bad("an unknown field", 422, {**text, **masked, "topk": 3}, "/fill-mask"),
        make_bad("nothing", 400, {"inputs": []}),
        make_bad("a body of 10 MB", 413, {"inputs": "a" * 10_000_000}),
        make_bad("a text of a million characters", 413, {"inputs": "a" * 1_000_000}),
        make_bad("too many tokens", 413, {"inputs": "door " * 1000}),
        make_bad("too many texts", 413, {"inputs": ["a"] * 3000}),
        make_bad("a lone surrogate", 422, b'{"inputs": "the \\ud800 door"}'),
        make_bad("a deadline of 0", 408, text, x_deadline_ms="0"),
        make_bad("a wrong deadline", 400, text, x_deadline_ms="soon"),
        make_bad("a wrong key", 401, text, authorization="Bearer not-the-key"),
        make_bad("no key", 401, text, authorization=""),
        make_bad("no such model", 404, {**text, "model": "none"}),
        make_bad("no such route", 404, text, "/none"),
        make_bad("no head", 424, {**text, "model": "encoder"}, "/fill-mask"),
        make_bad("no mask", 400, {**text, **masked}, "/fill-mask"),
        make_bad(
            "too many new tokens", 400, {**text, **causal, "max_new_tokens": 999}, "/generate"
        ),
        make_bad("an impossible setting", 400, {**text, **causal, "top_k": 2}, "/generate"),
        make_bad("OpenAI's errors", 400, {"input": [""], "model": "encoder"}, "/v1/embeddings"),
        make_bad("a view of no head", 424, {"text": "a", "model": "encoder"}, "/explore/heads"),
        make_bad(
            "no such head",
            422,
            {"text": "a [MASK]", "ablated_heads": [[9, 0]], **masked},
            "/explore/predict",
        ),
    ]


@dataclass
class Findings:
    """Counts and faults so far."""

    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def right(self, name: str, seconds: float | None = None) -> None:
        with self.lock:
            self.counts[name] += 1
            if seconds is not None:
                self.seconds.append(seconds)

    def wrong(self, what: str) -> None:
        with self.lock:
            self.counts["wrong"] += 1
            self.faults.append(what[:500])
            print(time.strftime("%H:%M:%S"), what[:500], file=sys.stderr, flush=True)


class Caller:
    """A thread that asks at a rate, good and bad requests mixed."""

    def __init__(
        self,
        port: int,
        seed: int,
        rate: float,
        end: float,
        requests: Sequence[Any],
        findings: Findings,
        rotation: Rotation,
    ) -> None:
        self.port, self.rate, self.end, self.findings = port, rate, end, findings
        self.rotation = rotation
        self.draw = random.Random(seed)
        self.good = [one for one in requests if isinstance(one, Good)]
        self.bad = [one for one in requests if isinstance(one, Bad)]
        self.thread = threading.Thread(target=self.run)

    def run(self) -> None:
        """Mostly good requests; of the others each kind as often."""
        odd: list[Callable[[], None]] = [self.slow, self.vanish, self.vanish_from_view]
        due = time.monotonic()
        while due < self.end:
            due += self.draw.expovariate(self.rate)
            time.sleep(max(0.0, due - time.monotonic()))
            try:
                if self.draw.random() < 0.3:
                    self.check_rotation()
                elif self.draw.random() < 0.75:
                    self.ask(self.draw.choice(self.good))
                else:
                    at = self.draw.randrange(len(self.bad) + len(odd))
                    odd[at]() if at < len(odd) else self.send_bad(self.bad[at - len(odd)])
            except Exception as error:  # an error of the caller's own connection
                self.findings.wrong(f"{type(error).__name__}: {error}")

    def send(self, path: str, content: bytes, **headers: str) -> tuple[int, bytes, float]:
        """A status, a body, and the seconds that they took."""
        own = {"content-type": "application/json", "authorization": f"Bearer {KEY}", **headers}
        start_time = time.monotonic()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            # Where it is refused before it was all sent, the answer may be there already.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.request("POST", path, content, own)
            answer = connection.getresponse()
            return answer.status, answer.read(), time.monotonic() - start_time
        finally:
            connection.close()

    def ask(self, good: Good) -> None:
        status, body, seconds = self.send(good.path, json.dumps(good.body).encode())
        answer = json.loads(body)
        if good.path == "/v1/embeddings":
            answer = {"data": answer["data"]}
        if status == 200 and close(answer, good.expected):
            self.findings.right(f"good {good.path}", seconds)
        else:
            self.findings.wrong(f"{good.path}: {status} {body[:300]!r}")

    def check_rotation(self) -> None:
        name, fault = self.rotation.check(self.send, self.draw)
        self.findings.right(name) if fault is None else self.findings.wrong(fault)

    def send_bad(self, bad: Bad) -> None:
        try:
            status, body, _ = self.send(bad.path, bad.content, **bad.headers)
        except (ConnectionError, http.client.HTTPException):
            if len(bad.content) < 1 << 20:
                raise
            # A body that is too large is refused before it is read, which may break the connection.
            self.findings.right(f"bad: {bad.name}, connection closed")
            return
        is_line = b"\n" not in body and len(body) < 600
        if status == bad.status and is_line:
            self.findings.right(f"bad: {bad.name}")
        else:
            self.findings.wrong(f"{bad.name}: {status} {body[:300]!r}")

    def _open_request(
        self, path: str, body: dict[str, Any], length: int | None = None
    ) -> socket.socket:
        content = json.dumps(body).encode()
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        head = (
            f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {KEY}\r\n"
            f"content-type: application/json\r\ncontent-length: {length or len(content)}\r\n\r\n"
        )
        connection.sendall(head.encode() + content)
        return connection

    def slow(self) -> None:
        """A client whose body never ends."""
        with self._open_request("/embed", {"inputs": "a"}, length=1000) as connection:
            answer = connection.recv(1000)
        if b" 408 " in answer.splitlines()[0]:
            self.findings.right("bad: slow")
        else:
            self.findings.wrong(f"slow: {answer[:300]!r}")

    def vanish(self) -> None:
        """A client that asks for much and leaves, before its body is there or after."""
        length = self.draw.choice([None, 10_000_000])
        body = {"inputs": ["door " * 20] * self.draw.randint(1, 300), "model": "encoder"}
        with self._open_request("/embed", body, length):
            time.sleep(self.draw.choice([0.0, 0.01, 0.1]))
        self.findings.right("bad: vanished")

    def vanish_from_view(self) -> None:
        with self._open_request(
            "/explore/heads", {"text": "the [MASK] was open", "model": "pretrained"}
        ):
            pass
        self.findings.right("bad: vanished from a view")


def warm_up(caller: Caller, models: Sequence[str]) -> None:
    """Have each number of tokens that a batch may have computed once."""
    for model in models:
        for tokens in sorted({round_up_rows(count) for count in range(3, _BATCH_TOKENS + 1)}):
            parts = np.array_split(np.arange(tokens), -(-tokens // _ROW))
            texts = ["door " * (len(part) - 2) for part in parts]  # and the tokens at both ends
            body = json.dumps({"inputs": texts, "model": model}).encode()
            status, answer, _ = caller.send("/embed", body)
            assert status == 200, answer


def memory_of(pid: int) -> dict[str, float]:
    """MB that a process has for itself, its threads and open files."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    values = dict(line.split(":", 1) for line in lines)
    return {
        "anonymous": int(values["RssAnon"].split()[0]) / 1000,
        "threads": int(values["Threads"]),
        "files": len(os.listdir(f"/proc/{pid}/fd")),
    }


def growth(rows: Sequence[dict[str, float]]) -> float:
    """MB a minute, after the first third, by least squares."""
    rows = rows[len(rows) // 3 :]
    minutes = np.array([row["seconds"] for row in rows]) / 60
    return float(np.polyfit(minutes, [row["anonymous"] for row in rows], 1)[0])


def soak(
    minutes: float,
    rate: float,
    callers: int,
    extra: str | None,
    out: Path | None,
    reload_seconds: float = 60.0,
) -> tuple[Findings, list[dict[str, float]]]:
    """Send requests for so many minutes; return the findings, and the memory by time."""
    findings, rows = Findings(), list[dict[str, float]]()
    with tempfile.TemporaryDirectory() as folder:
        models = save_models(Path(folder))
        with patch("bertworks.nn.device.is_fast_at_bfloat16", lambda _: False):  # as the server
            requests = [*good_requests(models, extra), *bad_requests()]
            rotation = Rotation(Path(folder), {"soak": KEY})
        sources = [f"{name}={place}" for name, place in models.items()]
        sources.append(f"{NAME}={rotation.link}")
        if extra is not None:
            sources.append(f"extra={extra}")
        keys = {"BERTWORKS_SERVE_API_KEYS": str(rotation.keys_file)}
        log = Path(folder) / "log"
        settings = ["precision=fp32", f"body_seconds={BODY_SECONDS}"]
        settings.append(f"batch_tokens={_BATCH_TOKENS}")
        with command(*sources, *settings, log=log, **keys) as (process, url):
            port = int(url.rpartition(":")[2])
            warm_up(
                Caller(port, 0, rate, 0, requests, findings, rotation),
                ["encoder", *(["extra"] if extra else [])],
            )
            start_time = time.monotonic()
            end = start_time + 60 * minutes
            every = [
                Caller(port, seed, rate / callers, end, requests, findings, rotation)
                for seed in range(callers)
            ]
            for caller in every:
                caller.thread.start()
            rotation.start(process, log, reload_seconds, end)
            while (now := time.monotonic()) < end:
                row = {"seconds": now - start_time, **memory_of(process.pid)}
                rows.append({**row, "requests": float(sum(findings.counts.values()))})
                if out is not None:
                    with out.open("a") as file:
                        file.write(json.dumps(rows[-1]) + "\n")
                time.sleep(max(0.05, min(minutes, 5.0)))
            for caller in every:
                caller.thread.join(90)
                if caller.thread.is_alive():
                    findings.wrong("a caller hangs")
            for fault in rotation.join():
                findings.wrong(fault)
            findings.counts["rotation: reloads"] = rotation.num_done
            findings.counts["rotation: reloads of a broken file"] = rotation.num_failed
            process.send_signal(signal.SIGTERM)
            if process.wait(60) != 0:
                findings.wrong(f"the server ended with {process.returncode}")
        for line in log.read_text().splitlines():
            event = json.loads(line)
            if event["event"] == "fault" or event.get("status", 0) >= 500:
                findings.wrong(line)
    return findings, rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument(
        "--rate", type=float, default=20.0, help="requests a second, of all callers"
    )
    parser.add_argument("--callers", type=int, default=8)
    parser.add_argument("--model", help="one more model, for texts of mixed lengths")
    parser.add_argument(
        "--reload-seconds", type=float, default=60.0, help="replace a key and a model so often"
    )
    parser.add_argument("--out", type=Path, help="a line of JSON for each measurement of memory")
    arguments = parser.parse_args()
    findings, rows = soak(
        arguments.minutes,
        arguments.rate,
        arguments.callers,
        arguments.model,
        arguments.out,
        arguments.reload_seconds,
    )
    for name, count in sorted(findings.counts.items()):
        print(f"{count:8,}  {name}")
    seconds = sorted(findings.seconds)
    if seconds:
        p50, p99 = (1000 * seconds[int(share * len(seconds))] for share in (0.5, 0.99))
        print(f"good requests: p50 {p50:.1f} ms, p99 {p99:.1f} ms")
    for row in rows[:: max(1, len(rows) // 12)]:
        print(f"{row['seconds']:7.0f} s  " + "  ".join(f"{k} {row[k]:.1f}" for k in list(row)[1:]))
    print(f"growth after the first third: {growth(rows):+.2f} MB a minute")
    for fault, count in Counter(fault[:100] for fault in findings.faults).most_common(20):
        print(f"{count:8,}  wrong: {fault}")
    if findings.faults or growth(rows) > FLAT:
        sys.exit(1)


if __name__ == "__main__":
    main()
