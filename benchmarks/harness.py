"""The measurements of all benchmarks: ours and its peers in turns, in processes.

A contestant does jobs by name, and answers with what each took:

- `Contestant`: a process that loads once (`serve`), or that works in steps (`Pace`), and waits
  while others work;
- `Fresh`: the same, started again for each job;
- `Command`: a command line, from the shell to its end.

A machine that slows down does so for all of them. Medians and the spread of the rounds are
reported, of the time by the clock and by the processor. With one thread on a machine that others
use as well, the processor's is the fairer one (`--by processor`).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, Protocol

Job = Callable[[], Any]
Loader = Callable[[], Mapping[str, Job]]
Answer = dict[str, Any]

PACKAGES: tuple[str, ...]
PACKAGES = ("torch", "transformers", "sentence-transformers", "onnxruntime", "openvino", "nncf")
PACKAGES += ("tokenizers", "datasets", "sentencex", "bertworks")
ROOT = Path(__file__).resolve().parent.parent
DATA = Path(os.environ.get("BERTWORKS_DATA", "../shared/data"))


# ------------------------------------------------------------------------- inside a contestant


class _Requests:
    """The contestant's end of the pipe: requests on standard input, an answer line for each."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # what libraries print is no answer
        self._begin = time.perf_counter(), time.process_time()

    def wait(self) -> str:
        """The next job; empty at the end."""
        job = sys.stdin.readline().strip()
        self._begin = time.perf_counter(), time.process_time()
        return job

    def answer(self, result: Any = None) -> None:
        """Report the result of a job, and what it took since its request."""
        seconds, processor = time.perf_counter(), time.process_time()
        answer = {
            "seconds": seconds - self._begin[0],
            "processor": processor - self._begin[1],
            "peak_mb": _peak_mb(),
            "result": result,
        }
        print(json.dumps(answer), file=self._out, flush=True)


def serve(loader: Loader) -> None:
    """Be a contestant that does each job when it is requested."""
    requests = _Requests()
    jobs = loader()
    requests.answer()
    while job := requests.wait():
        requests.answer(jobs[job]())


class Pace:
    """Be a contestant that works by itself, in steps, and waits after so many of them.

    Args:
        steps: of a job; the process is ready after the first of all.
    """

    def __init__(self, steps: int) -> None:
        self._requests, self._steps = _Requests(), steps
        self._results: list[Any] = []
        self._left = 1

    def step(self, result: Any = None) -> None:
        """Report a step; the process ends here after the last request."""
        self._results.append(result)
        self._left -= 1
        if not self._left:
            self._requests.answer(self._results)
            self._results, self._left = [], self._steps
            if not self._requests.wait():
                raise SystemExit


def _peak_mb() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1000 for line in lines if line.startswith("VmHWM"))


# ---------------------------------------------------------------------------------- contestants


class Worker(Protocol):
    """What `in_rounds` needs."""

    name: str

    def run(self, job: str) -> Answer: ...

    def close(self) -> None: ...


def _environment(threads: int) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}


class Contestant:
    """A process that loads once.

    Args:
        name: what the table calls it.
        command: what starts it.
        threads: that its libraries may use.
    """

    def __init__(self, name: str, command: Sequence[str], threads: int) -> None:
        self.name = name
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=_environment(threads),
        )
        self._answer()  # it has loaded

    def run(self, job: str) -> Answer:
        assert self._process.stdin is not None
        print(job, file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> Answer:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} has ended with status {self._process.wait()}")
        answer: Answer = json.loads(line)
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


class Fresh:
    """A contestant that is started again for each job; starting is not counted."""

    def __init__(self, name: str, command: Sequence[str], threads: int) -> None:
        self.name, self._command, self._threads = name, command, threads

    def run(self, job: str) -> Answer:
        one = Contestant(self.name, self._command, self._threads)
        answer = one.run(job)
        one.close()
        return answer

    def close(self) -> None:
        """Nothing runs between jobs."""


class Command:
    """A command line, measured from outside; its peak memory is that of its largest process."""

    def __init__(self, name: str, command: Sequence[str], threads: int) -> None:
        self.name, self._command, self._threads = name, command, threads

    def run(self, job: str) -> Answer:  # noqa: ARG002  (a command line does one thing)
        start = time.perf_counter()
        process = subprocess.Popen(
            self._command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=_environment(self._threads),
        )
        assert process.stderr is not None
        errors = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        if status:
            raise SystemExit(f"{self.name} failed:\n{errors.decode()[-2000:]}")
        return {
            "seconds": time.perf_counter() - start,
            "processor": usage.ru_utime + usage.ru_stime,
            "peak_mb": usage.ru_maxrss / 1000,
            "result": None,
        }

    def close(self) -> None:
        """Nothing runs between jobs."""


def in_rounds(
    workers: Iterable[Worker], job: str, rounds: int, *, warm: bool = True
) -> dict[str, Answer]:
    """What a job took each, one after the other in each round.

    Args:
        warm: a first round is done and not counted.
    """
    workers = list(workers)
    answers: dict[str, list[Answer]] = {worker.name: [] for worker in workers}
    for number in range(-warm, rounds):
        for worker in workers:
            answer = worker.run(job)
            if number >= 0:
                answers[worker.name].append(answer)
    summaries = {name: _summary(results) for name, results in answers.items()}
    for name, one in summaries.items():  # printed now: a long run may be stopped
        times = f"{one['seconds']:.3f} s, processor {one['processor']:.3f} s"
        print(f"{job}: {name} {times}", file=sys.stderr, flush=True)
    return summaries


def _summary(answers: list[Answer]) -> Answer:
    summary: Answer = {}
    for key in ("seconds", "processor"):
        values = [answer[key] for answer in answers]
        summary[key] = statistics.median(values)
        summary[f"{key}_spread"] = min(values), max(values)
    summary["peak_mb"] = max(answer["peak_mb"] for answer in answers)
    summary["results"] = [answer["result"] for answer in answers]
    return summary


# -------------------------------------------------------------------------------------- machine


def peaks(threads: int, seconds: float = 1.0) -> dict[str, float]:
    """What PyTorch reaches at best: a product of 2,048 in GFLOP/s (GOP/s) and a copy in GB/s."""
    import torch

    torch.set_num_threads(threads)
    size = 2048
    plain, eight = torch.randn(size, size), torch.ones(size, size, dtype=torch.int8)
    half, large = plain.bfloat16(), torch.ones(1 << 26)
    target = torch.empty_like(large)
    product = 2 * size**3
    trials: dict[str, tuple[float, Callable[[], object]]] = {
        "fp32": (product, lambda: plain @ plain),
        "bf16": (product, lambda: half @ half),
        "int8": (product, lambda: torch._int_mm(eight, eight)),
        "copy": (2 * large.numel() * large.itemsize, lambda: target.copy_(large)),
    }
    rates = {}
    for name, (amount, trial) in trials.items():
        trial()
        least, end = float("inf"), time.perf_counter() + seconds
        while time.perf_counter() < end:
            start = time.perf_counter()
            trial()
            least = min(least, time.perf_counter() - start)
        rates[name] = amount / least / 1e9
    return rates


def machine() -> dict[str, Any]:
    """Which processor, with which of the instructions that matter, and how busy it is."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    values = {name.strip(): value.strip() for name, value in fields.items()}
    flags = values.get("flags", "").split()
    names = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8")
    return {
        "processor": f"{values.get('model name')} (family {values.get('cpu family')}, "
        f"model {values.get('model')})",
        "cores": len(os.sched_getaffinity(0)),
        "instructions": [flag for flag in names if flag in flags],
        "python": platform.python_version(),
        "load_average": os.getloadavg()[0],
    }


def _versions() -> dict[str, str]:
    versions = {one.metadata["Name"]: one.version for one in distributions()}
    return {name: versions[name] for name in PACKAGES if name in versions}


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    return subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True).stdout.strip()


# --------------------------------------------------------------------------------------- report


@dataclass
class Work:
    """A line of work, and what it took each contestant.

    Attributes:
        summaries: of `in_rounds`.
        amount: how much of `unit` a job does; the table then has rates instead of times.
        calls: how many a job makes; without `amount` the table has the time of one.
        operations: of the job's matrix products, for the share of the peak.
        notes: for each contestant, what else the table says of it.
    """

    name: str
    summaries: dict[str, Answer]
    unit: str = ""
    amount: float = 0
    calls: int = 1
    operations: float = 0
    notes: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Target:
    """How many times as fast as a peer ours is to be; a ratio below 1 allows to be slower."""

    work: str
    ours: str
    peer: str
    least: float
    aim: float
    quantity: str = "time"  # or "memory"


def arguments(description: str) -> argparse.ArgumentParser:
    """The options that all questions have."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--out", type=Path, help="JSON of all figures")
    parser.add_argument("--rounds", type=int, default=5, help="that are counted")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--by", choices=("clock", "processor"), default="clock")
    parser.add_argument("--only", nargs="+", help="of the contestants")
    parser.add_argument("--serve", metavar="NAME", help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    return parser


def select_contestants(names: Iterable[str], options: argparse.Namespace) -> list[str]:
    """The contestants that `--only` names."""
    return [name for name in names if not options.only or name in options.only]


def report(
    works: Sequence[Work],
    targets: Sequence[Target],
    options: argparse.Namespace,
    precisions: Mapping[str, str] | None = None,
) -> None:
    """Print the tables, and write all figures.

    Args:
        precisions: for each contestant, whose peak its rate is a share of.
    """
    best = peaks(options.threads)
    content = {
        # Without the paths of this machine.
        "command": " ".join(["python", *(Path(w).name if w[0] == "/" else w for w in sys.argv)]),
        "commit": _commit(),
        "machine": machine(),
        "versions": _versions(),
        "threads": options.threads,
        "rounds": options.rounds,
        "by": options.by,
        "peaks": best,
        "works": [asdict(work) for work in works],
        "ratios": [
            {**asdict(target), "ratio": ratio}
            for target in targets
            if (ratio := _ratio(target, works, options.by)) is not None
        ],
    }
    if options.out is not None:
        options.out.write_text(json.dumps(content, indent=1) + "\n")
    rates = ", ".join(f"{name} {value:,.0f}" for name, value in best.items())
    print(f"peaks, {options.threads} thread(s), GFLOP/s (copy: GB/s): {rates}\n")
    print("| work | | by the clock (slowest–fastest round) | by the processor | peak memory | |")
    print("|---|---|---|---|---|---|")
    for work in works:
        for name, answer in work.summaries.items():
            notes = [work.notes[name]] if name in work.notes else []
            precision = (precisions or {}).get(name)
            if work.operations and precision:
                rate = work.operations / answer[_KEYS[options.by]] / 1e9
                notes.append(f"{rate / best[precision]:.0%} of the {precision} peak")
            least, most = answer["seconds_spread"]
            print(
                f"| {work.name} | {name} | {_format_rate(work, answer['seconds'])} "
                f"({_format_rate(work, most)}–{_format_rate(work, least)}) | "
                f"{_format_rate(work, answer['processor'])} | {answer['peak_mb']:,.0f} MB | "
                f"{', '.join(notes)} |"
            )
    if content["ratios"]:
        print(f"\n| by the {options.by} | peer | ours : peer | at least | aim | |")
        print("|---|---|---|---|---|---|")
    for one in content["ratios"]:
        verdict = "reached" if one["ratio"] >= one["least"] else "**missed**"
        work = one["work"] + (", memory" if one["quantity"] == "memory" else "")
        print(
            f"| {work}: {one['ours']} | {one['peer']} | {one['ratio']:.2f} | {one['least']:g} "
            f"| {one['aim']:g} | {verdict} |"
        )


_KEYS = {"clock": "seconds", "processor": "processor"}


def _ratio(target: Target, works: Sequence[Work], clock: str) -> float | None:
    answers = next((work.summaries for work in works if work.name == target.work), {})
    if target.ours not in answers or target.peer not in answers:
        return None
    key = "peak_mb" if target.quantity == "memory" else _KEYS[clock]
    return float(answers[target.peer][key] / answers[target.ours][key])


def _format_rate(work: Work, seconds: float) -> str:
    if work.amount:
        rate = work.amount / seconds
        return f"{rate:,.0f} {work.unit}/s" if rate >= 100 else f"{rate:.3g} {work.unit}/s"
    seconds /= work.calls
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.1f} ms"
