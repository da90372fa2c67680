"""What a server of one core carries: tokens a second of processor time, and memory, by model.

    python benchmarks/capacity.py [--sizes mini base] [--python .venv/bin/python] [--seconds 10]

For each of BERT's released geometries (random weights), `bertworks serve` runs with one thread, and
four clients send requests of four texts of up to a hundred words. Tokens are divided by the
server's own processor time. Other work on the machine slows it down, too; memory stays the same.
With `--python` the server runs in another environment, such as one without PyTorch.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from bertworks.serving.load_test import run
from harness import machine
from models import fresh


def measure(model: Path, python: str, seconds: float) -> dict[str, Any]:
    """Measure a server of a model: tokens a second, and MB at the start and after the load."""
    words = [python, "-m", "bertworks", "serve", str(model), "--port", "0", "--device", "cpu"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    log = model.with_suffix(".log")
    with (
        log.open("w") as file,
        subprocess.Popen(words, stderr=file, env=environment) as process,
    ):
        try:
            while "\n" not in log.read_text():  # it listens
                time.sleep(0.1)
            url = json.loads(log.read_text().splitlines()[0])["url"]
            memory = read_memory(process.pid)
            run(url, clients=1, seconds=1.0, texts=4, words=100)
            start = read_tokens(url), read_seconds(process.pid), time.perf_counter()
            run(url, clients=4, seconds=seconds, texts=4, words=100)
            end = read_tokens(url), read_seconds(process.pid), time.perf_counter()
            tokens, core_seconds, wall_seconds = (b - a for a, b in zip(start, end, strict=True))
            return {
                "tokens": tokens,
                "tokens_per_core_second": round(tokens / core_seconds),
                "tokens_per_second": round(tokens / wall_seconds),
                "memory_mb": round(memory),
                "memory_under_load_mb": round(read_memory(process.pid)),
            }
        finally:
            process.kill()


def read_tokens(url: str) -> float:
    """Return how many tokens a server has computed."""
    text = urllib.request.urlopen(f"{url}/metrics").read().decode()
    return sum(
        float(one) for one in re.findall(r"^bertworks_tokens_total\{.*\} (\S+)$", text, re.M)
    )


def read_seconds(pid: int) -> float:
    """Return the processor time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def read_memory(pid: int) -> float:
    """Return the MB that a process has in memory."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"^VmRSS:\s+(\d+) kB$", status, re.M)[0]) * 1024 / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    sizes = ["mini", "small", "medium", "base", "large"]
    parser.add_argument("--sizes", nargs="*", default=sizes)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    print(json.dumps(machine()))
    for size in options.sizes:
        with tempfile.TemporaryDirectory() as folder:
            model = fresh(size, Path(folder) / size)
            result = measure(model, options.python, options.seconds)
        print(json.dumps({"size": size, **result}), flush=True)


if __name__ == "__main__":
    main()
