"""How long a checkpoint takes to load, and what it takes of memory, beside Hugging Face's.

    python benchmarks/loading.py --times 5 --out loading.jsonl

A BERT of random weights is saved in a temporary directory, in the layout that both read, and read
once so that it lies in the operating system's cache. Then ours (`bertworks.load`, the tokenizer
included) and theirs (`AutoModelForPreTraining.from_pretrained`, without one) load it in turns, each
time in a fresh process. What is imported before is not counted. A mapped file costs when it is
first touched, so the first forward pass, of a few tokens, is timed too, and the second one, which
is what the first would have cost had all weights been there. Processor time is told beside the
clock's, since a machine that others use as well makes the latter longer.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

WHO = ("ours", "theirs")
TOKENS = 8


def make(directory: Path, size: str) -> int:
    """Save a pre-trained model of a released size, but random; how large its file is."""
    import bertworks as bw
    from bertworks.model.config import EncoderConfig
    from bertworks.tasks.pretraining.task import PretrainingTask

    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces += [f"piece{number}" for number in range(30522 - len(pieces))]
    tokenizer = bw.Tokenizer.from_vocabulary(pieces)
    task = PretrainingTask(tokenizer, max_length=512)
    config = EncoderConfig.of_size(size)
    bw.Model(tokenizer, task, task.network(config).eval()).save(directory)
    return (directory / "model.safetensors").stat().st_size


def load_ours(directory: str) -> Callable[[], object]:
    import numpy as np
    import torch

    import bertworks as bw

    model = bw.load(directory, device="cpu")
    packed = bw.Packed.from_arrays([np.arange(5, 5 + TOKENS)], [np.zeros(TOKENS)]).to("cpu")

    def forward() -> object:
        with torch.no_grad():
            return model.network.mlm_head(model.encoder(packed))

    return forward


def load_theirs(directory: str) -> Callable[[], object]:
    import torch
    from transformers import AutoModelForPreTraining

    model = AutoModelForPreTraining.from_pretrained(directory).eval()
    ids = torch.arange(5, 5 + TOKENS)[None]

    def forward() -> object:
        with torch.no_grad():
            return model(ids).prediction_logits

    return forward


def now() -> tuple[float, float]:
    """Seconds of the clock, and of the processor."""
    return time.perf_counter(), time.process_time()


def memory() -> dict[str, int]:
    """Megabytes: most that was ever resident; now, of the process's own, and of mapped files."""
    names = {"VmHWM": "peak", "RssAnon": "own", "RssFile": "mapped"}
    lines = Path("/proc/self/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return {own: int(fields[name].split()[0]) // 1000 for name, own in names.items()}


def measure(who: str, directory: str) -> dict[str, float]:
    """Load once in this process, whose imports are made before the clock starts."""
    import torch

    if who == "theirs":
        from transformers import AutoModelForPreTraining, BertForPreTraining  # noqa: F401

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    load = load_ours if who == "ours" else load_theirs
    before = memory()
    times = [now()]
    forward = load(directory)
    times.append(now())
    after = memory()
    for _ in range(2):
        forward()
        times.append(now())
    used = memory()
    found: dict[str, float] = {}
    for name, start, end in zip(("load", "first", "second"), times, times[1:], strict=False):
        found |= {name: end[0] - start[0], f"{name}_processor": end[1] - start[1]}
    return found | {
        "imports_own": before["own"],
        "loaded_own": after["own"] - before["own"],
        "used_own": used["own"] - before["own"],
        "used_mapped": used["mapped"] - before["mapped"],
        "peak": used["peak"],
    }


def in_a_process(who: str, directory: Path) -> dict[str, float]:
    command = [sys.executable, __file__, "--one", who, str(directory)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def compare(directory: Path, size: int, times: int, out: Path | None) -> None:
    """Both in turns; the medians as a table."""
    found: dict[str, list[dict[str, float]]] = {who: [] for who in WHO}
    for _ in range(times):
        for who in WHO:
            with (directory / "model.safetensors").open("rb") as file:  # warm it
                while file.read(2**26):
                    pass
            found[who].append(in_a_process(who, directory))
            if out is not None:
                with out.open("a") as lines:
                    print(json.dumps({"who": who, "bytes": size, **found[who][-1]}), file=lines)
    gigabytes = size / 1e9
    print(f"{gigabytes:.2f} GB, medians of {times}; in brackets the processor's time")
    print("| | load | a GB | a GB, with the first touch | own memory | mapped | peak |")
    print("|---|---|---|---|---|---|---|")
    for who in WHO:
        middle = {key: statistics.median(run[key] for run in found[who]) for key in found[who][0]}
        touch = middle["first"] - middle["second"]
        touch_processor = middle["first_processor"] - middle["second_processor"]
        loading = (middle["load"], middle["load_processor"])
        total = (loading[0] + touch, loading[1] + touch_processor)
        cells = [
            f"{clock:.2f} s ({processor:.2f} s)"
            for clock, processor in (
                loading,
                (loading[0] / gigabytes, loading[1] / gigabytes),
                (total[0] / gigabytes, total[1] / gigabytes),
            )
        ]
        cells += [f"{middle[key]:.0f} MB" for key in ("used_own", "used_mapped", "peak")]
        print(f"| {who} | {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="large", help="one of the released sizes")
    parser.add_argument("--times", type=int, default=5, help="how often each loads")
    parser.add_argument("--out", type=Path, help="JSON Lines of all measurements")
    parser.add_argument("--one", nargs=2, metavar=("WHO", "DIR"), help="one measurement, as JSON")
    options = parser.parse_args()
    if options.one is not None:
        print(json.dumps(measure(*options.one)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary) / "model"
        compare(directory, make(directory, options.size), options.times, options.out)


if __name__ == "__main__":
    main()
