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
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

WINDOW = 256  # texts of a part of `embed`


def prepare(options: argparse.Namespace, workers: int, out: Path) -> int:
    """Prepare the corpus; the number of its parts."""
    import bertworks as bw

    tokenizer = bw.load(options.model).tokenizer
    corpus = bw.prepare(
        options.corpus,
        tokenizer=tokenizer,
        out=out / "data",
        workers=workers,
        on=options.on,
        shard_bytes=options.shard_bytes,
    )
    return len(corpus.shards)


def embed(options: argparse.Namespace, workers: int, out: Path) -> int:
    """Embed the corpus's first paragraphs; the number of its parts."""
    import bertworks as bw
    from bertworks.data.documents import read_documents

    documents = read_documents(options.corpus)
    paragraphs = (paragraph for document in documents for paragraph in document.paragraphs)
    texts = list(itertools.islice(paragraphs, options.texts))
    model = bw.load(options.model, device="cpu")
    model.embed_to(
        out / "vectors.npy",
        texts,
        workers=workers,
        on=options.on,
        window_rows=WINDOW,
        max_seq_length=64,
    )
    return -(-len(texts) // WINDOW)


VERBS: dict[str, Callable[[argparse.Namespace, int, Path], int]] = {
    "prepare": prepare,
    "embed": embed,
}


def measure(options: argparse.Namespace) -> dict[str, float]:
    """Do one run in this process."""
    with tempfile.TemporaryDirectory() as out:
        start, processor_start = time.perf_counter(), time.process_time()
        parts = VERBS[options.one](options, options.workers[0], Path(out))
        seconds, own = time.perf_counter() - start, time.process_time() - processor_start
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
    options = parser.parse_args()
    if options.one is not None:
        print(json.dumps(measure(options)))
        return
    print("| verb | workers | parts | seconds | efficiency | the command's own, ms a part |")
    print("|---|---|---|---|---|---|")
    for verb in VERBS:
        runs_by_count: dict[int, list[dict[str, float]]] = {count: [] for count in options.workers}
        for _, count in itertools.product(range(options.rounds), options.workers):  # in turns
            command: list[Any] = [sys.executable, __file__, *sys.argv[1:], "--one", verb]
            command += ["--workers", str(count)]
            process = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            runs_by_count[count].append(json.loads(process.stdout.splitlines()[-1]))
        medians = {
            count: {key: statistics.median(run[key] for run in runs) for key in runs[0]}
            for count, runs in runs_by_count.items()
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
