"""The commands that faults are tried on, and their outputs without times."""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..cli.conftest import CPU, SMALL, World
from . import processes

Words = tuple[object, ...]

_SHORT = ("epochs=1", "max_seq_length=32", "precision=fp32")


def _finetune(world: World, out: Path) -> Words:
    tables = ("--train", world.train, "--dev", world.dev, "--out", out)
    return (
        *("finetune", "classification", "--model", world.pretrained, *tables, *CPU, *_SHORT),
        "checkpoint_every=1",
        "batch_size=8",
    )


def _vectors(verb: str, *more: object) -> Callable[[World, Path], Words]:
    return lambda w, out: (
        *(verb, w.pretrained, "--data", w.train, "--out", out, *CPU, *more),
        *("precision=fp32", "window_rows=4"),
    )


def _mine(world: World, out: Path) -> Words:
    pairs = world.vocab.with_name("pairs.jsonl")
    rows = [{"query": f"the {noun}", "positive": f"a {noun}"} for noun in ("door", "river", "sea")]
    pairs.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return ("mine", world.pretrained, pairs, "--out", out, *CPU, "precision=fp32", "window_rows=1")


def _parts(world: World, kind: str) -> list[Path]:
    """Parts, made once."""
    parts_dir = world.vocab.with_name(f"parts-{kind}")
    paths = [parts_dir / f"{number}.{kind}" for number in (1, 2)]
    if not parts_dir.exists():
        new = parts_dir.with_name(f"new-{kind}")
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir()
        for number, path in enumerate(paths, 1):
            words = {
                "corpus": ("prepare", world.corpus, "--tokenizer", world.vocab, "--workers", 1),
                "tsv": ("predict", world.classifier, "--data", world.train, *CPU, "window_rows=4"),
            }.get(kind, (*_vectors("embed")(world, path)[:4], *CPU, "window_rows=4"))
            part = ("--out", new / path.name, "--part", f"{number}/2")
            outcome = processes.run((*words, *part), world.vocab.with_name("log"))
            assert outcome.status == 0, outcome.stderr
        new.rename(parts_dir)
    return paths


def _merge(kind: str) -> Callable[[World, Path], Words]:
    return lambda w, out: ("merge", *_parts(w, kind), "--out", out)


COMMANDS: dict[str, tuple[str, Callable[[World, Path], Words]]] = {
    "vocab": ("vocab", lambda w, out: ("vocab", w.corpus, "--out", out, "--size", 250)),
    "prepare": (
        "prepared",
        lambda w, out: (
            *("prepare", w.corpus, "--tokenizer", w.vocab, "--out", out, "--workers", 1),
            "shard_bytes=1024",
        ),
    ),
    "pretrain": (
        "run",
        lambda w, out: ("pretrain", "tiny", *SMALL, f"data={w.data}", *CPU, "--out", out),
    ),
    "finetune": ("run", _finetune),
    "grid": ("grid", lambda w, out: (*_finetune(w, out), "--grid", "learning_rate=1e-3,1e-4")),
    "embed": ("vectors.npy", _vectors("embed")),
    "embed to Parquet": ("vectors.parquet", _vectors("embed")),
    "features": ("vectors.parquet", _vectors("features")),
    "predict": (
        "answers.tsv",
        lambda w, out: (
            *("predict", w.classifier, "--data", w.train, "--out", out, *CPU),
            *("precision=fp32", "window_rows=4"),
        ),
    ),
    "part of predictions": (
        "answers.tsv",
        lambda w, out: (
            *("predict", w.classifier, "--data", w.train, "--out", out, *CPU, "--part", "2/2"),
            *("precision=fp32", "window_rows=4"),
        ),
    ),
    "search": (
        "index",
        lambda w, out: (
            *("search", w.pretrained, w.train, "a door", "--index", out, *CPU),
            "precision=fp32",
        ),
    ),
    "mine": ("negatives.jsonl", _mine),
    "merge": ("prepared", _merge("corpus")),
    "merge of vectors": ("vectors.npy", _merge("npy")),
    "merge of predictions": ("answers.tsv", _merge("tsv")),
    "merge to Parquet": ("vectors.parquet", _merge("parquet")),
    "convert": ("model", lambda w, out: ("convert", w.pretrained, out, "--to", "hf")),
    "convert to TensorFlow": (
        "model",
        lambda w, out: ("convert", w.pretrained, out, "--to", "tensorflow"),
    ),
    "distil": (
        "model",
        lambda w, out: ("distil", "static", w.pretrained, "--out", out, "--data", w.train, *CPU),
    ),
    "extend": ("model", lambda w, out: ("extend", w.pretrained, "--positions", 100, "--out", out)),
}
"""What is run, by a name: what its output is called, and the command line."""

_CLOCK, _TIMES = (
    {"sessions.jsonl", "report.html"},
    {"time", "seconds", "journal_bytes", "journal_crc32"},
)


def left(folder: Path) -> dict[str, Any]:
    """What a command left in a folder, but for what depends on the clock, and locks of nobody."""
    return {
        path.relative_to(folder).as_posix(): _content(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and path.name not in _CLOCK
        and "tensorboard" not in path.parts
        and not (path.name.endswith(".lock") and _is_free(path))
    }


def _is_free(lock: Path) -> bool:
    """Whether no process holds a lock; a disk that refuses to remove it leaves one."""
    with lock.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def _content(path: Path) -> Any:
    content = path.read_bytes()
    if path.name == "journal.jsonl":
        lines = [_timeless(json.loads(line)) for line in content.splitlines()]
        # A grid's journal also records failed runs, which are then repeated.
        return [json.dumps(line) for line in lines if line.get("error") is None]
    if "checkpoints" in path.parts and path.suffix == ".json":
        tree = json.loads(content)
        tree.pop("state.json", None)
        return json.dumps(_timeless(tree))
    return hashlib.sha256(content).hexdigest()


def _timeless(tree: Any) -> Any:
    if not isinstance(tree, dict):
        return tree
    return {name: _timeless(value) for name, value in tree.items() if name not in _TIMES}
