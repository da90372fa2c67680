"""A language of letters: its vocabulary and rows of it, models that learn it in seconds, and a
classifier small enough to look at every weight after every step of `fit`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bertworks.data.tables import read_rows
from bertworks.model import Model
from bertworks.nn.config import EncoderConfig
from bertworks.runs.run_directory import RunDirectory
from bertworks.tasks.classification import ClassificationTask
from bertworks.tasks.network import Network
from bertworks.tasks.text_network import ClassificationNetwork
from bertworks.text.tokenizer import Tokenizer
from bertworks.training.finetune import FinetuneResult, finetune
from bertworks.training.fit import fit
from bertworks.training.plan import Phase
from bertworks.training.row_source import RowSource
from bertworks.training.settings import FitSettings
from bertworks.training.state import FitResult
from bertworks.utils.progress import Progress

LETTERS = "abcdefghijklmnopqrstuvwxyz"
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS]
CONFIG = EncoderConfig(
    vocab_size=len(PIECES),
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=32,
)
WORD_PIECES = [*PIECES, *(f"##{c}" for c in LETTERS)]
GEOMETRY = CONFIG.with_values(vocab_size=len(WORD_PIECES), hidden_size=32, num_hidden_layers=2)
FAST: dict[str, Any] = {"max_seq_length": 32, "learning_rate": 1e-2, "batch_size": 16, "epochs": 4}


def make_rows(count: int, seed: int) -> list[dict[str, Any]]:
    """Texts with an `x` are "yes", the others "no"."""
    random = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        letters = random.choice(list("abcdefgh"), random.integers(2, 9)).tolist()
        if number % 2:
            letters[random.integers(len(letters))] = "x"
        rows.append({"text": " ".join(letters), "label": "yes" if number % 2 else "no"})
    return rows


TRAIN, DEV = make_rows(200, 1), make_rows(60, 2)


class Lines(Progress):
    """Records all calls and shows nothing; can stop the run after a step."""

    def __init__(self, stop_after: int | None = None) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._stop_after = stop_after

    def train(self, step: int, total: int, **facts: Any) -> None:
        if step == self._stop_after:
            raise RuntimeError("the machine was switched off")

    def note(self, text: str) -> None:
        self.lines.append(text)


def run(model: Model, out: Path, **settings: Any) -> FinetuneResult:
    """Fine-tune a classifier of the texts."""
    given = {"train": TRAIN, "dev": DEV, **FAST, **settings}
    return finetune(model, "classification", out=out, **given)


def letters(random: np.random.Generator, low: int, high: int) -> list[str]:
    return random.choice(list("abcdefgh"), random.integers(low, high)).tolist()


def tagged_row(random: np.random.Generator) -> dict[str, Any]:
    """Words with an `x` begin a name; `y` continues it."""
    words, tags = [], []
    for _ in range(random.integers(1, 6)):
        name = random.random() < 0.5
        words += ["x" + "".join(letters(random, 0, 3)), "y"] if name else letters(random, 1, 2)
        tags += ["B-NAME", "I-NAME"] if name else ["O"]
    return {"words": words, "tags": tags}


def question_and_answer(random: np.random.Generator) -> dict[str, Any]:
    """Each letter of a question has its own in the answer."""
    asked = letters(random, 2, 6)
    return {"query": " ".join(asked), "positive": " ".join(chr(ord(one) + 8) for one in asked)}


SETTINGS: dict[str, Any] = {
    "batch_size": 8,
    "learning_rate": 0.01,
    "warmup": 0,
    "weight_decay": 0.1,
    "log_every": 1,
    "eval_every": 1,
    "checkpoint_every": 3,
    "tensorboard": False,
}
ROWS = read_rows(TRAIN[:40])
TASK = ClassificationTask.from_table(
    Tokenizer.from_vocabulary(PIECES),
    ROWS,
    ClassificationTask.user_settings().parse({"max_seq_length": 32}),
)

Weights = dict[str, Tensor]


class StopError(Exception):
    """Stands for a kill: nothing after it is run."""


def examples() -> list[Any]:
    return list(TASK.labelled_examples(ROWS))


def letters_network(seed: int = 0, **geometry: Any) -> ClassificationNetwork:
    torch.manual_seed(seed)
    config: EncoderConfig = CONFIG.with_values(**{"num_hidden_layers": 3, **geometry})
    return TASK.network(config)


def weights_of(network: Network) -> Weights:
    return {name: own.detach().clone() for name, own in network.named_parameters()}


def equal(one: Weights, other: Weights) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def fit_letters(
    path: Path,
    network: Network,
    *,
    steps: int = 10,
    stop_at: int | None = None,
    note: Callable[[Network], None] | None = None,
    **settings: Any,
) -> tuple[list[Weights], FitResult]:
    """Train, and return the weights that each evaluation was made of.

    Args:
        path: the run directory.
        network: of `letters_network`.
        steps: of the run.
        stop_at: the evaluation, from 1, at which the run is killed.
        note: called with the network at each evaluation.
        settings: over `SETTINGS`.
    """
    weights_at_evaluations: list[Weights] = []

    def evaluate(evaluated_network: Network) -> dict[str, float]:
        weights_at_evaluations.append(weights_of(evaluated_network))
        if note is not None:
            note(evaluated_network)
        if len(weights_at_evaluations) == stop_at:
            raise StopError
        return {"loss": 1.0}

    fit_settings = FitSettings.parse({**SETTINGS, **settings})
    source = RowSource(examples(), seed=0, batch_size=8)
    run = RunDirectory.open(path, fit_settings)
    try:
        phases = [Phase(source, steps)]
        result = fit(network, TASK, phases, settings=fit_settings, run=run, evaluate=evaluate)
        return weights_at_evaluations, result
    finally:
        run.close()
