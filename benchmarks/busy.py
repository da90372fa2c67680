"""Training on a machine that other programs use: how its threads wait for each other.

    python benchmarks/busy.py --out busy.json

`mini` is fine-tuned on random words, in a fresh process for each figure, next to processes that do
nothing but compute. The variants differ in environment variables only:

- *default*: what the package sets, by what else runs when it starts;
- *PyTorch's default*: GNU OpenMP's 300,000 turns of waiting;
- *passive*: a thread that waits sleeps at once;
- *one thread*.

The figure is the median of the journal's tokens per second, without the first intervals.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness import machine

VARIANTS = {
    "default": {},
    "PyTorch's default": {"GOMP_SPINCOUNT": "300000"},
    "passive": {"OMP_WAIT_POLICY": "passive"},
    "one thread": {"OMP_NUM_THREADS": "1"},
}
WORDS = ("river", "city", "old", "man", "walked", "along", "the", "house", "music", "was")


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Keep some processes computing."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def write_table(path: Path) -> None:
    """Write random texts with random labels."""
    draw = random.Random(0)
    lines = ["text\tlabel"]
    for _ in range(20_000):
        text = " ".join(draw.choices(WORDS, k=draw.randint(8, 40)))
        lines.append(f"{text}\t{draw.choice('abcd')}")
    path.write_text("\n".join(lines) + "\n")


def tokens_per_second(table: Path, variables: dict[str, str], seconds: float) -> float:
    """Fine-tune for some seconds; return the median speed."""
    unset = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "OMP_NUM_THREADS")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        command = [sys.executable, "-m", "bertworks", "finetune", "classification"]
        command += ["--model", "mini", "--train", str(table), "--dev", "0.01", "--out", str(run)]
        process = subprocess.Popen(
            [*command, "epochs=20"],
            env={**environment, **variables},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            process.wait(seconds)
            raise RuntimeError(f"the training ended within {seconds} s: {command}")
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        records = map(json.loads, (run / "journal.jsonl").read_text().splitlines())
        speeds = [one["time"]["tokens_per_second"] for one in records if one["kind"] == "train"]
    return statistics.median(speeds[1:]) if len(speeds) > 1 else 0.0


def main() -> None:
    """Measure in rounds, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--busy", type=int, nargs="*", default=[0, 1, 2, 4])
    parser.add_argument("--variants", nargs="*", default=list(VARIANTS))
    parser.add_argument("--spins", nargs="*", default=[], help="further GOMP_SPINCOUNT to try")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=25, help="of each run")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    variants = {name: VARIANTS[name] for name in options.variants}
    variants |= {f"{spins} spins": {"GOMP_SPINCOUNT": spins} for spins in options.spins}
    speeds: dict[str, dict[int, list[float]]] = {
        name: {busy: [] for busy in options.busy} for name in variants
    }
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "table.tsv"
        write_table(table)
        for _ in range(options.rounds):
            for busy in options.busy:
                for name, variables in variants.items():
                    with busy_processes(busy):
                        speed = tokens_per_second(table, variables, options.seconds)
                    speeds[name][busy].append(speed)
                    print(f"{busy} busy, {name}: {speed:,.0f} tokens/s", file=sys.stderr)
    print("| busy processes | " + " | ".join(variants) + " |")
    print("|---" * (len(variants) + 1) + "|")
    for busy in options.busy:
        medians = [statistics.median(speeds[name][busy]) for name in variants]
        print(f"| {busy} | " + " | ".join(f"{median:,.0f}" for median in medians) + " |")
    if options.out:
        record = {"machine": machine(), "tokens_per_second": speeds}
        options.out.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
