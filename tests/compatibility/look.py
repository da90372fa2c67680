"""What is recorded of a saved model and of a run, and how records are compared.

Both `make` (at the commit that the fixtures are from) and the tests (now) use this, so it keeps to
what users see: the public API, the command line, and the files of a run.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import nn

import bertworks as bw
from bertworks.tasks.pretraining.task import PretrainingTask

DIRECTORY = Path(__file__).with_name("db463f6")
"""The fixtures; nothing may be written there."""

PROSE = frozenset({"remarks", "why", "columns", "title"})
"""What records say to people, in words that may become better."""

CORRELATIONS = ("pearson", "spearman")
TEXTS = ("Anna Berg opened the door in Rome.", "a Zebra (1.5) found\ttwo letters", "river")


def conditions() -> dict[str, Any]:
    """What the bits of the fixtures may depend on, besides the version."""
    return {
        "torch": torch.__version__,
        "numpy": np.__version__,
        "threads": torch.get_num_threads(),
        "cpu": _processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
    }


def libraries() -> dict[str, str]:
    """The libraries whose versions the bytes of tokenizers and of prepared corpora depend on."""
    return {name: version(name) for name in ("pyarrow", "sentencex", "tokenizers", "safetensors")}


def describe(directory: Path, asked: Mapping[str, Any]) -> dict[str, Any]:
    """What a saved model answers.

    Args:
        directory: the model.
        asked: `rows` to predict, and perhaps a `table` to evaluate on, a text with `masks`, a
            `pair` of sentences, `prompts` to continue.
    """
    model = bw.load(directory, device="cpu")
    found: dict[str, Any] = {
        "tokens": [model.tokenizer.encode(text).input_ids.tolist() for text in TEXTS],
        "vectors": model.embed(TEXTS).tolist(),
    }
    inspection = asdict(bw.inspect(directory))
    del inspection["used"]  # names of the implementation's tensors
    found["inspection"] = inspection
    # A model of pre-training is asked by the verbs that are its own: `predict` refuses it.
    if "rows" in asked and not isinstance(model.task, PretrainingTask):
        found["predictions"] = model.predict(asked["rows"])
    if "table" in asked:
        evaluation = model.evaluate(asked["table"])
        found["metrics"] = {"rows": evaluation.rows, **evaluation.metrics}
        found["remarks"] = evaluation.remarks
    if "masks" in asked:
        found["masks"] = model.fill_mask(asked["masks"], top_k=3)
    if "pair" in asked:
        found["next_sentence"] = model.next_sentence(*asked["pair"])
    if "prompts" in asked:
        found["generated"] = model.generate(asked["prompts"], max_new_tokens=6)
        found["drawn"] = model.generate(
            asked["prompts"], max_new_tokens=6, temperature=1.0, top_k=9, seed=3
        )
    plain: dict[str, Any] = json.loads(json.dumps(found))
    return plain


def outcome(directory: Path) -> dict[str, Any]:
    """The files of a finished run that people and programs read, by their path in it.

    Left out are what depends on the clock, and the model itself.
    """
    found: dict[str, Any] = {}
    for file in sorted(directory.rglob("*.json*")):
        name = file.relative_to(directory).as_posix()
        parts = set(Path(name).parts)
        if parts & {"sessions.jsonl", "checkpoints", "model", "generator", "report.html"}:
            continue
        if file.suffix == ".jsonl":
            lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
            found[name] = [{k: v for k, v in line.items() if k != "time"} for line in lines]
        elif file.suffix == ".json":
            found[name] = json.loads(file.read_bytes())
    return found


def models(directory: Path) -> dict[str, str]:
    """A digest of the weights of each model in a run; a grid's link to its best is none."""
    files = sorted(directory.rglob("model.safetensors"))
    return {
        file.relative_to(directory).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in files
        if not file.parent.is_symlink()
    }


def last_state(directory: Path) -> dict[str, dict[str, Any]]:
    """Of each run's last checkpoint every tensor: a digest of its bits, its sum and its norm."""
    found: dict[str, dict[str, Any]] = {}
    for folder in sorted(directory.rglob("checkpoints")):
        for name in ("weights.safetensors", "optimizer.safetensors"):
            file = max(folder.glob("step-*")) / name
            tensors = {}
            for key, value in sorted(load_file(file).items()):
                bits = hashlib.sha256(value.contiguous().numpy().tobytes()).hexdigest()[:16]
                wide = value.double()
                tensors[key] = {"bits": bits, "sum_norm": [wide.sum().item(), wide.norm().item()]}
            found[file.relative_to(directory).as_posix()] = tensors
    return found


@contextmanager
def recorded_batches() -> Iterator[list[str]]:
    """Collects a digest of each pack of sequences that an encoder is trained on, in order."""
    digests: list[str] = []

    def note(module: nn.Module, args: tuple[Any, ...]) -> None:
        if isinstance(module, bw.Encoder) and module.training:
            packed = args[0]
            digest = hashlib.sha256()
            for part in (packed.input_ids, packed.token_type_ids, packed.cu_seqlens):
                digest.update(part.cpu().to(torch.int64).numpy().tobytes())
            digests.append(digest.hexdigest()[:16])

    handle = nn.modules.module.register_module_forward_pre_hook(note)
    try:
        yield digests
    finally:
        handle.remove()


@contextmanager
def working_in(directory: Path) -> Iterator[None]:
    """Runs name their tables and models by relative paths, which they keep in their settings."""
    before = Path.cwd()
    os.chdir(directory)
    try:
        yield
    finally:
        os.chdir(before)


def check_same(was: Any, now: Any, *, rel: float, where: str = "") -> None:
    """See that a record is what it was: labels, spans and whole numbers exactly.

    Keys may be added, and of `PROSE` it is compared only whether there is any.

    Args:
        was: the record of the fixtures.
        now: the present one.
        rel: the tolerance of floats relative to the largest of the array or mapping that they are
            in; 0 for equality.
        where: its name, for the message.

    Raises:
        AssertionError: something differs.
    """
    if isinstance(was, Mapping):
        assert isinstance(now, Mapping), where
        missing = was.keys() - now.keys()
        assert not missing, f"{where}: {sorted(missing)} are missing"
        for key, value in was.items():
            if key in PROSE and not isinstance(value, Mapping):
                assert bool(now[key]) == bool(value), f"{where}/{key}: {now[key]!r}"
                continue
            own = rel
            if key == "metrics":  # in what order an evaluator sums up is its own affair
                own = max(rel, 1e-12)
            elif key in CORRELATIONS and rel > 1e-12:
                own = 1e-3  # a correlation divides by the predictions' spread, however small it is
            check_same(value, now[key], rel=own, where=f"{where}/{key}")
    elif isinstance(was, Sequence) and not isinstance(was, str):
        assert isinstance(now, Sequence) and len(was) == len(now), f"{where}: another length"
        if was and all(isinstance(value, float) for value in was):
            scale = max(map(abs, was))
            close = np.allclose(now, was, rtol=rel, atol=rel * scale)
            assert close, f"{where}: {np.abs(np.subtract(now, was)).max()} of {scale}"
            return
        for at, (one, other) in enumerate(zip(was, now, strict=True)):
            check_same(one, other, rel=rel, where=f"{where}/{at}")
    elif isinstance(was, float):
        same = isinstance(now, int | float) and math.isclose(was, now, rel_tol=rel, abs_tol=rel)
        assert same, f"{where}: {now!r}, and was {was!r}"
    else:
        assert type(was) is type(now) and was == now, f"{where}: {now!r}, and was {was!r}"


def _processor() -> str:
    """The processor's name and family: clouds call processors of several generations alike."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    facts = {
        name.strip(): value.strip() for name, _, value in (one.partition(":") for one in lines)
    }
    name = facts.get("model name", platform.processor() or platform.machine())
    return f"{name}, family {facts['cpu family']}" if "cpu family" in facts else name
