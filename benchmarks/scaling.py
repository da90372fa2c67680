"""What more workers gain `prepare` and `embed`, and what a part costs the command that deals them.

    python benchmarks/scaling.py CORPUS [--model MODEL] [--workers 1 2] [--on ray] [--rounds 3]

Each run is a process of its own. Efficiency is the time of one worker, over that of N times N. The
command's own processor time, over the number of parts, is what a part costs it, reading and
writing included; with one worker it does the work as well.
"""

from __future__ import annotations

import argparse
import itertools
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

WINDOW = 256  # texts of a part of `embed`


def prepare(given: argparse.Namespace, workers: int, out: Path) -> int:
    """Prepare the corpus; the number of its parts."""
    import bertworks as bw

    tokenizer = bw.load(given.model).tokenizer
    made = bw.prepare(
        given.corpus,
        tokenizer=tokenizer,
        out=out / "data",
        workers=workers,
        on=given.on,
        shard_bytes=given.shard_bytes,
    )
    return len(made.shards)


def embed(given: argparse.Namespace, workers: int, out: Path) -> int:
    """Embed the corpus's first paragraphs; the number of its parts."""
    import bertworks as bw
    from bertworks.corpus.readers import read_documents

    paragraphs = (
        paragraph for document in read_documents(given.corpus) for paragraph in document.paragraphs
    )
    texts = list(itertools.islice(paragraphs, given.texts))
    model = bw.load(given.model, device="cpu")
    model.embed_to(
        out / "vectors.npy",
        texts,
        workers=workers,
        on=given.on,
        window_rows=WINDOW,
        max_seq_length=64,
    )
    return -(-len(texts) // WINDOW)


VERBS: dict[str, Callable[[argparse.Namespace, int, Path], int]] = {
    "prepare": prepare,
    "embed": embed,
}


def measure(given: argparse.Namespace) -> dict[str, float]:
    """Do one run in this process."""
    with tempfile.TemporaryDirectory() as out:
        start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
        parts = VERBS[given.one](given, given.workers[0], Path(out))
        seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
    own = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"seconds": seconds, "own": own, "parts": parts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus")
    parser.add_argument("--model", default="mini")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--on", help="ray, or ray://HOST:PORT")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--texts", type=int, default=4096, help="paragraphs that are embedded")
    parser.add_argument("--shard-bytes", type=int, default=1 << 20)
    parser.add_argument("--one", choices=list(VERBS), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one is not None:
        print(json.dumps(measure(given)))
        return
    print("| verb | workers | parts | seconds | efficiency | the command's own, ms a part |")
    print("|---|---|---|---|---|---|")
    for verb in VERBS:
        found: dict[int, list[dict[str, float]]] = {count: [] for count in given.workers}
        for _, count in itertools.product(range(given.rounds), given.workers):  # in turns
            command: list[Any] = [sys.executable, __file__, *sys.argv[1:], "--one", verb]
            command += ["--workers", str(count)]
            told = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            found[count].append(json.loads(told.stdout.splitlines()[-1]))
        medians = {
            count: {key: statistics.median(run[key] for run in runs) for key in runs[0]}
            for count, runs in found.items()
        }
        least = min(medians)
        for count, run in medians.items():
            efficiency = medians[least]["seconds"] * least / (run["seconds"] * count)
            own = 1000 * run["own"] / run["parts"]
            print(
                f"| {verb} | {count} | {run['parts']:.0f} | {run['seconds']:.1f} "
                f"| {efficiency:.0%} | {own:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
