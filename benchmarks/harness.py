"""Contestants in processes of their own, asked in turns, and the table of what they took.

Each contestant is a loader: a function that returns named jobs, which are timed in its process and
run again and again. All loaded processes wait while one works, so that a machine that slows down
does so for all; medians and the spread of the rounds are what is reported. Processor time stands
beside the clock's: by one thread on a machine that others use as well, it is the fairer one.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Job = Callable[[], Any]
Loader = Callable[[], Mapping[str, Job]]


def serve(loader: Loader) -> None:
    """Be a contestant: run jobs by name as the standard input asks, and tell their seconds."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    start = time.perf_counter()
    jobs = loader()
    print(json.dumps({"load": time.perf_counter() - start}), file=out, flush=True)
    for line in sys.stdin:
        start, used = time.perf_counter(), time.process_time()
        told = jobs[line.strip()]()
        seconds, used = time.perf_counter() - start, time.process_time() - used
        answer = {"seconds": seconds, "processor": used, "peak_mb": _peak_mb(), "told": told}
        print(json.dumps(answer), file=out, flush=True)


def _peak_mb() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1000 for line in lines if line.startswith("VmHWM"))


class Contestant:
    """A process that serves.

    Args:
        name: what the table calls it.
        command: what starts it.
        threads: that its libraries may use.
    """

    def __init__(self, name: str, command: list[str], threads: int) -> None:
        self.name = name
        variables = {"OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **variables},
        )
        self.loaded = self._answer()

    def run(self, job: str) -> dict[str, Any]:
        """Let it do a job."""
        assert self.process.stdin is not None
        print(job, file=self.process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} has ended: {self.process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End it."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def in_rounds(contestants: list[Contestant], job: str, rounds: int) -> dict[str, dict[str, Any]]:
    """What a job took each contestant, one after the other in each round; a first one is unseen."""
    found: dict[str, list[dict[str, Any]]] = {one.name: [] for one in contestants}
    for number in range(rounds + 1):
        for one in contestants:
            answer = one.run(job)
            if number:
                found[one.name].append(answer)
    return {
        name: {
            "processor": statistics.median(answer["processor"] for answer in answers),
            "median": statistics.median(answer["seconds"] for answer in answers),
            "least": min(answer["seconds"] for answer in answers),
            "most": max(answer["seconds"] for answer in answers),
            "peak_mb": max(answer["peak_mb"] for answer in answers),
            "told": answers[-1]["told"],
        }
        for name, answers in found.items()
    }


def matmul_peaks(seconds: float = 1.0) -> dict[str, float]:
    """The most GFLOP/s (of int8: GOP/s) of a matrix product of 2,048 by PyTorch, by type."""
    import torch

    size = 2048
    plain, bytes_ = torch.randn(size, size), torch.ones(size, size, dtype=torch.int8)
    half = plain.bfloat16()
    products: dict[str, Callable[[], object]] = {
        "fp32": lambda: plain @ plain,
        "bf16": lambda: half @ half,
        "int8": lambda: torch._int_mm(bytes_, bytes_),
    }
    peaks = {}
    for name, product in products.items():
        product()
        least, end = float("inf"), time.perf_counter() + seconds
        while time.perf_counter() < end:
            start = time.perf_counter()
            product()
            least = min(least, time.perf_counter() - start)
        peaks[name] = 2 * size**3 / least / 1e9
    return peaks


def machine() -> dict[str, Any]:
    """Which processor, with which of the instructions that matter, and how busy it is."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    values = {name.strip(): value.strip() for name, value in fields.items()}
    flags = values.get("flags", "").split()
    wanted = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8")
    return {
        "processor": f"{values.get('model name')} (family {values.get('cpu family')}, "
        f"model {values.get('model')})",
        "cores": len(os.sched_getaffinity(0)),
        "instructions": [flag for flag in wanted if flag in flags],
        "python": platform.python_version(),
        "load_average": os.getloadavg()[0],
    }
