"""Shared files for the command line: corpus, vocabulary, shards, a model, and a fine-tuned one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from bertworks.cli import app

SMALL = (
    "model.hidden_size=16",
    "model.num_attention_heads=2",
    "model.intermediate_size=32",
    "model.max_position_embeddings=64",
    "phases=[{max_seq_length: 32}]",
    "steps=4",
    "batch_size=4",
    "precision=fp32",
    "held_out={documents: 2, sequences: 8}",
    "eval_every=2",
    "checkpoint_every=2",
    "tensorboard=false",
)

CPU = ("--device", "cpu", "--threads", 1)


@dataclass(frozen=True)
class World:
    """The files and directories that the tests of the command line share."""

    corpus: Path
    vocab: Path
    data: Path
    pretrained: Path
    classifier: Path
    train: Path
    dev: Path


def bertworks(*words: object, stdin: str | bytes | None = None) -> Result:
    """Run a command line, at 80 columns and on one thread."""
    return CliRunner(env={"COLUMNS": "80"}).invoke(app, [str(word) for word in words], input=stdin)


def succeeds(*words: object, stdin: str | bytes | None = None) -> Result:
    """Run a command line, which must succeed."""
    result = bertworks(*words, stdin=stdin)
    assert result.exit_code == 0, (words, result.output, result.exception)
    return result


def json_lines_of(*words: object, stdin: str | None = None) -> list[Any]:
    """The documents that a command line prints with `--json`."""
    lines = succeeds(*words, "--json", stdin=stdin).stdout.splitlines()
    return [json.loads(line) for line in lines]


def json_of(*words: object, stdin: str | None = None) -> Any:
    """The one document that a command line prints with `--json`."""
    (document,) = json_lines_of(*words, stdin=stdin)
    return document


def fails(*words: object, says: str, status: int = 1, stdin: str | bytes | None = None) -> Result:
    """Run a command line, which must print one line of error, and nothing else.

    Args:
        says: is in the line.
    """
    result = bertworks(*words, stdin=stdin)
    assert result.exit_code == status, (words, result.output, result.exception)
    assert result.stdout == "", (words, result.stdout)
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: "), (words, line)
    assert says in line, (words, line)
    return result


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Give the tests a cache of their own: it has records of finished commands."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    root = tmp_path_factory.mktemp("world")
    make_world(root)
    return world_at(root)


def world_at(root: Path) -> World:
    """The paths of what `make_world` made in a folder."""
    return World(
        corpus=root / "corpus.txt",
        vocab=root / "vocab",
        data=root / "prepared",
        pretrained=root / "pretrained",
        classifier=root / "finetuned",
        train=root / "train.jsonl",
        dev=root / "dev.jsonl",
    )


def make_world(root: Path) -> None:
    """Make a corpus, tables and models with the command line."""
    world = world_at(root)
    nouns = ("door", "window", "train", "river", "letter", "garden")
    verbs = ("opened", "closed", "followed", "painted", "forgot")
    documents = [
        "\n".join(
            f"The {nouns[(i * j) % 6]} was {verbs[(i + j) % 5]} by the {nouns[(i + j) % 6]}."
            for j in range(8)
        )
        for i in range(12)
    ]
    world.corpus.write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    rows = [
        json.dumps({"text": f"the {noun} was {verb}", "label": "wet" if noun == "river" else "dry"})
        for noun in nouns
        for verb in verbs
    ]
    world.train.write_text("\n".join(rows) + "\n", encoding="utf-8")
    world.dev.write_text("\n".join(rows[::3]) + "\n", encoding="utf-8")
    for words in (
        ("vocab", world.corpus, "--out", world.vocab, "--size", 250),
        ("prepare", world.corpus, "--tokenizer", world.vocab, "--out", world.data, "--workers", 1),
        ("pretrain", "tiny", *SMALL, f"data={world.data}", *CPU, "--out", world.pretrained),
        (
            *("finetune", "classification", "--model", world.pretrained, "--train", world.train),
            *("--dev", world.dev, "--out", world.classifier, *CPU, "epochs=1", "max_seq_length=32"),
        ),
    ):
        succeeds(*words)
