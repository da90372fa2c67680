"""A load test of a running server: texts a second, latencies, errors.

    python -m bertworks.serving.load_test http://127.0.0.1:8080 --clients 8 --seconds 30

Clients ask for vectors, each again as soon as it is answered. Their texts have from 1 to `--words`
words. A vector must equal that of the same text alone. The exit status is 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray

from ..utils.formatting import format_count

_NUM_TEXTS = 64
"""Different texts; each is embedded alone before the test."""

_MAX_DIFFERENCE = 0.02
"""Of vectors of length 1, of a text alone and in a batch: below it also in bfloat16."""

_WORDS = (
    *("the", "river", "was", "wide", "and", "an", "old", "man", "walked", "along", "it", "to"),
    *("a", "town", "where", "he", "sold", "fish"),
)


@dataclass
class Result:
    """What a load test measured.

    Attributes:
        latencies: seconds of each request that was answered.
        statuses: the number of responses by status; 0: none came.
        num_texts: texts of the requests that were answered.
        num_wrong: vectors that differ from those of the text alone.
    """

    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    num_texts: int = 0
    num_wrong: int = 0

    @property
    def is_good(self) -> bool:
        """Whether each request was answered, with the right vectors."""
        return set(self.statuses) == {200} and not self.num_wrong

    def __str__(self) -> str:
        lines = [f"requests   {self.statuses.total():,} in {self.seconds:.1f} s"]
        lines += [f"status {status:<4}{count:,}" for status, count in sorted(self.statuses.items())]
        lines.append(f"texts      {self.num_texts / self.seconds:,.1f} a second")
        if self.latencies:
            values = 1000 * np.quantile(self.latencies, [0.5, 0.9, 0.99, 1])
            names = ("p50", "p90", "p99", "max")
            quantiles = (f"{name} {value:.1f}" for name, value in zip(names, values, strict=True))
            lines.append(f"latency    {', '.join(quantiles)} ms")
        lines.append(f"wrong      {format_count(self.num_wrong, 'vector')}")
        return "\n".join(lines)


def run(
    url: str,
    *,
    clients: int = 8,
    seconds: float = 10.0,
    texts: int = 1,
    words: int = 20,
    key: str | None = None,
    model: str | None = None,
    verify: str | bool = True,
) -> Result:
    """Send requests to a server for some time.

    Args:
        clients: number of clients that send at the same time.
        texts: texts of each request.
        words: the most words of a text.
        key: API key.
        model: name of the model; the server's default if omitted.
        verify: file of certificates that are trusted, or False to trust any.
    """
    draw = random.Random(0)
    pool = [" ".join(draw.choices(_WORDS, k=draw.randint(1, words))) for _ in range(_NUM_TEXTS)]
    options: dict[str, Any] = {
        "base_url": url,
        "timeout": 60,
        "verify": verify,
        "headers": {} if key is None else {"authorization": f"Bearer {key}"},
    }
    with httpx.Client(**options) as http:
        vectors = np.concatenate([_embed(http, [text], model)[1] for text in pool])
    result, lock = Result(), threading.Lock()
    start_time = time.monotonic()

    def send_requests(seed: int) -> None:
        draw = random.Random(seed)
        with httpx.Client(**options) as http:
            while time.monotonic() < start_time + seconds:
                numbers = draw.choices(range(_NUM_TEXTS), k=texts)
                begin_time = time.monotonic()
                try:
                    status, answers = _embed(http, [pool[number] for number in numbers], model)
                except httpx.HTTPStatusError as error:
                    status, answers = error.response.status_code, None
                except httpx.HTTPError:
                    status, answers = 0, None
                latency = time.monotonic() - begin_time
                with lock:
                    result.statuses[status] += 1
                    if answers is None:
                        continue
                    differences = np.linalg.norm(answers - vectors[numbers], axis=1)
                    result.latencies.append(latency)
                    result.num_texts += texts
                    result.num_wrong += int((differences > _MAX_DIFFERENCE).sum())

    threads = [threading.Thread(target=send_requests, args=(seed,)) for seed in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    result.seconds = time.monotonic() - start_time
    return result


def _embed(
    http: httpx.Client, texts: Sequence[str], model: str | None
) -> tuple[int, NDArray[np.float64]]:
    """Return the status and the vectors of texts."""
    body = {"inputs": texts, "normalize": True, "model": model}
    response = http.post("/embed", json=body)
    response.raise_for_status()
    return response.status_code, np.array(response.json())


def main() -> int:
    """Run the load test of a command line; return the exit status."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        prog="python -m bertworks.serving.load_test", description=__doc__.splitlines()[0]
    )
    parser.add_argument("url", metavar="URL", help="the server's address")
    for name, default in (("clients", 8), ("texts", 1), ("words", 20)):
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N")
    parser.add_argument("--seconds", type=float, default=10.0, metavar="S")
    parser.add_argument("--key", help="API key")
    parser.add_argument("--model", metavar="NAME", help="model, if not the default")
    parser.add_argument("--verify", metavar="FILE", default=True, help="trusted certificates")
    try:
        result = run(**vars(parser.parse_args()))
    except httpx.HTTPError as error:
        print(f"error: the server cannot be used ({error})", file=sys.stderr)
        return 1
    print(result)
    return int(not result.is_good)


if __name__ == "__main__":
    sys.exit(main())
