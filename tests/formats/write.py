"""Write one of each of this version's formats, which later versions must read:

    python -m tests.formats.write        into tests/formats/VERSION

A released version's files are never written again.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import torch

import bertworks as bw
from bertworks.analysis.retrieval.store import VectorStore

FOLDER = Path(__file__).parent
MODEL = FOLDER.parent / "saved_models" / "encoder"
SENTENCES = ("the door was open .", "a river is deep .", "who opened the door ?", "it is cold .")
IDS = ("a", "b", "c", "d")
ROWS = [(text, "yes" if "door" in text else "no") for text in SENTENCES * 4]
DOCUMENTS = "\n\n".join("\n".join(SENTENCES) for _ in range(6))
SETTINGS: dict[str, Any] = {
    "epochs": 2,
    "learning_rate": 0.03,
    "batch_size": 4,
    "max_seq_length": 16,
    "checkpoint_every": 3,
    "eval_every": 4,
    "tensorboard": False,
    "precision": "fp32",
}


class StopError(Exception):
    """Stands for a kill."""


class StopAfter:
    """Progress of a training that ends at a step."""

    def __init__(self, step: int) -> None:
        self._step = step

    def train(self, step: int, total: int, **facts: Any) -> None:
        if step == self._step:
            raise StopError

    def __getattr__(self, name: str) -> Any:
        return lambda *values, **facts: None


def finetune(out: Path, **options: Any) -> Any:
    model = bw.load(MODEL, device="cpu")  # in memory: the run has no path of this machine
    options |= {"train": ROWS, "dev": ROWS[:8], **SETTINGS}
    return bw.finetune(model, "classification", out=out, device="cpu", **options)


def write_run(out: Path) -> None:
    """Write a run that is stopped after a checkpoint, or nothing."""
    try:
        finetune(out, progress=StopAfter(5))
    except StopError:
        return


def write_all(directory: Path) -> None:
    torch.set_num_threads(1)
    directory.mkdir()
    text = directory / "text.txt"
    text.write_text(DOCUMENTS)
    bw.prepare(text, tokenizer=MODEL, out=directory / "corpus")
    write_run(directory / "stopped-run")
    result = finetune(directory / "run")
    (directory / "run" / "report.html").unlink()  # for people
    for name in ("checkpoints", "best"):
        shutil.rmtree(directory / "run" / name)
    model = bw.load(directory / "run", device="cpu")
    assert isinstance(model, bw.Model)
    model.embed_to(directory / "vectors.npy", list(SENTENCES), precision="fp32")
    table = directory / "rows.tsv"
    table.write_text("text\n" + "".join(f"{text}\n" for text in SENTENCES))
    model.predict_to(directory / "predictions.tsv", table, precision="fp32")
    model.save(directory / "int8", precision="int8")
    store = VectorStore.open(model, directory / "store", precision="fp32")
    store.add(SENTENCES, IDS)
    (directory / "expected.json").write_text(json.dumps(dict(result.metrics), indent=1) + "\n")


if __name__ == "__main__":
    target = FOLDER / bw.__version__
    if target.exists():
        sys.exit(f"{target} exists: if {bw.__version__} is not released yet, remove it first")
    write_all(target)
