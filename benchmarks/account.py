"""The time of inference and training, part by part, with the lower bound of each.

    python benchmarks/account.py MODEL --out account.json

Texts to vectors (many, and one), a step of fine-tuning, a step of pre-training of each size.
PyTorch's profiler counts each operator's own time; what is left of the step is native code, which
it does not see, Python, tokenising and the making of batches (`BERTWORKS_NATIVE=0` shows the
operators that compute without native code). The floor of a part is what its matrix products would
take at the measured peak of the precision, and its other operators at the measured bandwidth, if
each number they take in or give out passed through memory once. On a processor without
instructions for bfloat16: `--precision fp32`, in which then all is computed.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from harness import DATA, arguments, machine, peaks
from inference import ONE, paragraphs
from pretraining import LEAST, prepare, settings

PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")
NORMS = ("layer_norm", "gelu", "tanh", "random_", "clamp", "sub", "mul", "add", "sum", "div")
OPTIMIZER = ("_fused_adam", "_foreach", "linalg_vector_norm", "reciprocal", "zero_")
COPIES = ("copy_", "cat", "index", "embedding", "fill_", "pad", "gather", "scatter", "clone")
BYTES = {"bf16": 2, "fp32": 4}  # of most numbers

Parts = dict[str, dict[str, float]]


def part_of(name: str, shapes: list[list[int]], vocabulary: int) -> str:
    """Which part of a step an operator belongs to."""
    kind = name.removeprefix("aten::")
    is_wide = any(vocabulary in shape for shape in shapes if len(shape) == 2)
    rules = (
        ("optimizer and clipping", kind.startswith(OPTIMIZER)),
        ("decoder and its loss", is_wide and "embedding" not in kind),
        ("attention", any(len(shape) >= 3 for shape in shapes)),
        ("linear maps", "linear" in kind or kind in ("mm", "addmm")),
        ("embeddings, casts, copies", kind.startswith(COPIES)),
        ("norms, activation, dropout, sums", any(norm in kind for norm in NORMS)),
    )
    return next((part for part, holds in rules if holds), "other operators")


def operations(name: str, shapes: list[list[int]]) -> float:
    """Of a matrix product of these inputs; 0 of other operators."""
    kind = name.rpartition("::")[2]
    if "flash_attention" in kind:
        return 4.0 * math.prod(shapes[0]) * shapes[1][-2]
    if kind not in PRODUCTS and "linear_pointwise" not in kind:
        return 0.0
    (*outer, inner), other = [shape for shape in shapes if len(shape) >= 2][-2:]
    width = other[-1] if other[-2] == inner else other[-2]
    return 2.0 * math.prod(outer) * inner * width


class Account:
    """Profiles what runs between `profile` and `end`, after the same was timed without a profiler.

    Args:
        times: how often it is timed, and then profiled.
        precision: whose peak is the floor's.
    """

    def __init__(self, times: int, vocabulary: int, best: dict[str, float], precision: str) -> None:
        import torch

        activities = [torch.profiler.ProfilerActivity.CPU]
        self._profiler: Any = torch.profiler.profile(activities=activities, record_shapes=True)
        self._times, self._vocabulary = times, vocabulary
        self._peak, self._copy, self._bytes = best[precision], best["copy"], BYTES[precision]

    def time(self) -> None:
        self._start = time.perf_counter()

    def profile(self) -> None:
        self._whole = 1000 * (time.perf_counter() - self._start) / self._times
        self._profiler.start()

    def end(self) -> Parts:
        """For each part its milliseconds, and its floor's."""
        self._profiler.stop()
        parts: Parts = {}
        for event in self._profiler.events():
            shapes = [shape for shape in event.input_shapes if shape]
            name = part_of(event.name, shapes, self._vocabulary)
            part = parts.setdefault(name, {"ms": 0.0, "floor": 0.0})
            spent = event.self_cpu_time_total / 1000
            part["ms"] += spent / self._times
            part["floor"] += min(spent, self._floor(event.name, shapes)) / self._times
        rest = self._whole - sum(part["ms"] for part in parts.values())
        parts["native code, Python, tokenising, batches"] = {"ms": max(0.0, rest), "floor": 0.0}
        return parts

    def _floor(self, name: str, shapes: list[list[int]]) -> float:
        if work := operations(name, shapes):
            return work / self._peak / 1e6
        sizes = [math.prod(shape) for shape in shapes]
        return self._bytes * (sum(sizes) + max(sizes, default=0)) / self._copy / 1e6


def encode(
    model: Path, texts: list[str], best: dict[str, float], times: int, precision: Any
) -> Parts:
    import bertworks as bw

    encoder = bw.load(model, device="cpu")
    account = Account(times, encoder.tokenizer.vocab_size, best, precision)
    for begin in (None, account.time, account.profile):
        if begin:
            begin()
        for _ in range(times):
            encoder.embed(texts, precision=precision)
    return account.end()


def steps(
    train: Callable[[Any], object], vocabulary: int, best: dict[str, float], precision: str
) -> Parts:
    """Steps 7 to 10 of a training run that takes a progress, timed by steps 3 to 6."""
    from bertworks.utils.progress import Progress

    account = Account(4, vocabulary, best, precision)
    parts: Parts = {}

    class EnoughError(Exception):
        """Enough steps were seen."""

    class Watch(Progress):
        def train(self, step: int, *_total: int, **_metrics: Any) -> None:
            if step == 2:
                account.time()
            elif step == 6:
                account.profile()
            elif step == 10:
                parts.update(account.end())
                raise EnoughError

    try:
        train(Watch())
    except EnoughError:
        return parts
    raise SystemExit("the run was shorter than ten steps")


def measure(options: argparse.Namespace, work: Path) -> Iterable[tuple[str, Any]]:
    import bertworks as bw

    best, precision = peaks(options.threads), options.precision
    yield "peaks", best
    texts = paragraphs()
    if "encode" in options.parts:
        yield (
            f"{options.texts} texts to vectors",
            encode(options.model, texts[: options.texts], best, 1, precision),
        )
        yield "one text of 13 tokens to a vector", encode(options.model, [ONE], best, 50, precision)
    if "finetune" in options.parts:
        rows = (DATA / "glue/sst2/train.tsv").read_text(encoding="utf-8").splitlines()[:401]
        (work / "sst2.tsv").write_text("\n".join(rows) + "\n")

        def finetune(progress: Any) -> object:
            keywords: dict[str, Any] = {"train": work / "sst2.tsv", "out": work / "finetuned"}
            keywords |= {"batch_size": 32, "precision": precision}
            return bw.finetune(options.model, progress=progress, **keywords)

        yield "a step of fine-tuning, SST-2", steps(finetune, -1, best, precision)
    sizes = [size for size in LEAST if size in options.parts]
    if sizes:
        prepare(sizes, 4, work)
    for size in sizes:

        def pretrain(progress: Any, size: str = size) -> object:
            keywords = settings(argparse.Namespace(dropout=0.1, precision=precision), size, work)
            return bw.pretrain(out=work / f"run-{size}", progress=progress, **keywords)

        yield f"a step of pre-training, {size}", steps(pretrain, 30522, best, precision)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("model", type=Path, help="a sentence encoder's directory")
    parser.add_argument("--texts", type=int, default=400)
    parser.add_argument("--precision", choices=list(BYTES), default="bf16")
    parser.add_argument("--parts", nargs="+", default=["encode", "finetune", *LEAST])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        accounts = dict(measure(options, Path(work)))
    if options.out is not None:
        options.out.write_text(json.dumps({"machine": machine(), **accounts}, indent=1) + "\n")
    print("| | part | ms | share | floor, ms |\n|---|---|---|---|---|")
    accounts.pop("peaks")
    for what, parts in accounts.items():
        whole = sum(part["ms"] for part in parts.values())
        for name, part in sorted(parts.items(), key=lambda item: -item[1]["ms"]):
            print(
                f"| {what} | {name} | {part['ms']:.2f} | {part['ms'] / whole:.0%} "
                f"| {part['floor']:.2f} |"
            )


if __name__ == "__main__":
    main()
