"""Fine-tune on SST-2: from pre-trained weights, from random ones, and the peer's loop beside ours.

    python benchmarks/finetuning/sst2.py MODEL --seeds 0 1 2 --out results.jsonl \
        [--random] [--peer] learning_rate=2e-5 epochs=3 precision=bf16

`--random` also trains the same network from random weights, `--peer` also runs the peer. What is
told of each: the seed, the dev accuracy of its best epoch, the seconds of training alone, and the
real tokens trained on in a second.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

DATA = Path(os.environ.get("BERTWORKS_DATA", "../shared/data")) / "glue" / "sst2"
HERE = Path(__file__).parent


def ours(
    who: str, model: str, seed: int, out: Path, settings: Sequence[str], threads: int
) -> dict[str, object]:
    """One run of `bertworks finetune`, and what its journal says."""
    command = [
        *(sys.executable, "-m", "bertworks", "finetune", "classification", "--model", model),
        *("--train", str(DATA / "train.tsv"), "--dev", str(DATA / "dev.tsv"), "--out", str(out)),
        *("--threads", str(threads), f"seed={seed}", *settings),
    ]
    subprocess.run(command, check=True, stdout=sys.stderr)
    lines = [json.loads(line) for line in (out / "journal.jsonl").open()]
    trained = [line for line in lines if line["kind"] == "train"]
    measured = [line["metrics"]["accuracy"] for line in lines if line["kind"] == "eval"]
    rates = sorted(line["time"]["tokens_per_second"] for line in trained)
    rate = rates[len(rates) // 2]
    return {
        "who": who,
        "seed": seed,
        "accuracy": max(measured),
        "seconds": round(trained[-1]["tokens"] / rate, 1),
        "tokens_per_second": round(rate),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--random", action="store_true")
    parser.add_argument("--peer", action="store_true")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_intermixed_args()
    threads = options.threads
    with options.out.open("w") as results, tempfile.TemporaryDirectory() as folder:
        for seed in options.seeds:
            run = Path(folder) / f"ours-{seed}"
            found = [ours("ours", options.model, seed, run, options.settings, threads)]
            if options.random:
                other = Path(folder) / f"random-{seed}"
                settings = [*options.settings, "reinitialize=true"]
                found.append(ours("random", options.model, seed, other, settings, threads))
            if options.peer:
                command = [sys.executable, HERE / "peer.py", options.model, run / "settings.yaml"]
                command += [DATA / "train.tsv", DATA / "dev.tsv", "--threads", str(threads)]
                told = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
                found.append(json.loads(told.splitlines()[-1]))
            for line in found:
                print(json.dumps(line), file=results, flush=True)
                print(line)


if __name__ == "__main__":
    main()
