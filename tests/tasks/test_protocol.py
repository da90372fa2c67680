"""The task protocol holds for its hard cases: each is trained by the real loop and decoded.

Each case says how its rows are made, which loss is to fall below which share of its first value,
and how many held-out rows the engine is to get right.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bertworks.data.tables import read_rows
from bertworks.errors import SettingsError
from bertworks.inference.engine import predict
from bertworks.inference.evaluate import evaluate
from bertworks.inference.settings import EngineSettings
from bertworks.runs.run_directory import RunDirectory
from bertworks.text.tokenizer import Tokenizer
from bertworks.training.fit import fit
from bertworks.training.plan import Phase
from bertworks.training.row_source import RowSource
from bertworks.training.settings import FitSettings

from .hard_cases import (
    CONFIG,
    LETTERS,
    PIECES,
    ChoiceTask,
    DistilledNetwork,
    DistilledTask,
    ElectraTask,
    LetterTask,
    RetrievalTask,
    SpanTask,
)

Random = np.random.Generator


def letters(random: Random, count: int, among: str = LETTERS) -> list[str]:
    return random.choice(list(among), count).tolist()


def choice_row(random: Random) -> dict[str, Any]:
    choices = [" ".join(letters(random, random.integers(2, 8), "bcde")) for _ in range(5)]
    choices = choices[: random.integers(2, 6)]
    label = int(random.integers(len(choices)))
    choices[label] += " z"
    return {"prompt": "a b", "choices": choices, "label": label}


def span_row(random: Random) -> dict[str, Any]:
    words = letters(random, random.integers(5, 45), "bcdefgh")
    at = int(random.integers(len(words)))
    words[at] = "x" + ", y" * int(random.integers(2))
    return {"question": "a", "context": " ".join(words), "answer": words[at]}


def retrieval_row(random: Random) -> dict[str, Any]:
    word = LETTERS[random.integers(26)]
    other = LETTERS[25 - LETTERS.index(word)]
    noise = letters(random, 3)
    return {"query": word, "text": " ".join([*noise, *[other] * 3])}


def run_row(random: Random) -> dict[str, Any]:
    letter = LETTERS[random.integers(26)]
    return {"text": " ".join([letter] * int(random.integers(6, 12)))}


def odd_row(random: Random) -> dict[str, Any]:
    words = run_row(random)["text"].split()
    odd = int(random.integers(len(words)))
    words[odd] = LETTERS[(LETTERS.index(words[odd]) + 7) % 26]
    return {"text": " ".join(words), "odd": odd}


@dataclass(frozen=True)
class Case:
    task: type[LetterTask]
    row: Callable[[Random], dict[str, Any]]
    loss: str
    falls_to: float
    right: float
    steps: int = 60
    lr: float = 5e-3
    test_row: Callable[[Random], dict[str, Any]] | None = None


CASES = [
    Case(ChoiceTask, choice_row, "choice", 0.1, 0.95),
    Case(SpanTask, span_row, "span", 0.2, 0.9),
    Case(RetrievalTask, retrieval_row, "contrastive", 0.4, 0.8, steps=150),
    Case(ElectraTask, run_row, "replaced", 0.7, 0.8, steps=150, test_row=odd_row),
    Case(DistilledTask, run_row, "mimic", 0.5, 0.8, steps=100),
]


@pytest.mark.long
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.task.name)
def test_learns_and_decodes(case: Case, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    task = case.task(Tokenizer.from_vocabulary(PIECES))
    torch.manual_seed(0)
    network = task.network(CONFIG)
    teacher = None
    if isinstance(network, DistilledNetwork):
        teacher = {name: value.clone() for name, value in network.teacher.state_dict().items()}
    rows = read_rows([case.row(random) for _ in range(512)])
    test_rows = read_rows([(case.test_row or case.row)(random) for _ in range(100)])

    examples = list(task.labelled_examples(rows))
    settings = FitSettings(
        batch_size=32,
        learning_rate=case.lr,
        log_every=1,
        checkpoint_every=10_000,
        tensorboard=False,
    )
    run = RunDirectory.open(tmp_path / "run", settings)
    fit(
        network,
        task,
        [Phase(RowSource(examples, seed=0, batch_size=32), case.steps)],
        settings=settings,
        run=run,
    )
    losses = [line["losses"][case.loss] for line in run.lines() if line["kind"] == "train"]
    run.close()
    assert np.mean(losses[-5:]) < case.falls_to * np.mean(losses[:3])

    tests = list(task.labelled_examples(test_rows))
    outcome = evaluate(network, task, tests, EngineSettings(batch_tokens=1000))
    assert outcome.metrics["exact_match"] >= case.right
    answers = list(predict(network, task, test_rows, EngineSettings(window_rows=30)))
    assert [row for row, _ in answers] == [row.values for row in test_rows]
    if teacher is not None:
        for name, value in network.teacher.state_dict().items():
            assert torch.equal(value, teacher[name]), name


# ELECTRA masks and samples afresh for each batch, so that two halves are another draw.
DETERMINISTIC_CASES = [case for case in CASES if case.task is not ElectraTask]


@pytest.mark.parametrize("case", DETERMINISTIC_CASES, ids=lambda case: case.task.name)
def test_losses_add_up_as_the_task_says(case: Case) -> None:
    """Sums over two halves are the sum over the whole, for every task but the one that says no."""
    random = np.random.default_rng(1)
    task = case.task(Tokenizer.from_vocabulary(PIECES))
    torch.manual_seed(0)
    network = task.network(CONFIG).train()
    examples = list(task.labelled_examples(read_rows([case.row(random) for _ in range(12)])))
    with torch.no_grad():
        whole, first, second = (
            network(task.collate(part).to("cpu"))[case.loss].item()
            for part in (examples, examples[:5], examples[5:])
        )
    assert (abs(first + second - whole) < 1e-3) is task.additive


def test_losses_that_do_not_add_up_are_not_split(tmp_path: Path) -> None:
    task = RetrievalTask(Tokenizer.from_vocabulary(PIECES))
    random = np.random.default_rng(0)
    examples = list(task.labelled_examples(read_rows([retrieval_row(random) for _ in range(8)])))
    settings = FitSettings(batch_size=8, micro_batch_size=4, tensorboard=False)
    run = RunDirectory.open(tmp_path / "run", settings)
    phases = [Phase(RowSource(examples, seed=0, batch_size=8), 1)]
    with pytest.raises(SettingsError, match="do not add up"):
        fit(task.network(CONFIG), task, phases, settings=settings, run=run)
    run.close()


def test_windows_are_decoded_together() -> None:
    """The answer of a row comes from the window that holds it, wherever it was packed."""
    task = SpanTask(Tokenizer.from_vocabulary(PIECES))
    context = " ".join(["b"] * 30 + ["x, y"] + ["b"] * 9)
    row = {"question": "a", "context": context, "answer": "x, y"}
    examples = [task.example(row, index) for index in (7, 3)]
    assert len(examples[0].sequences) > 2
    batch = task.collate(examples).to("cpu")
    scores = torch.zeros(batch.packed.num_tokens, 2)
    scores[batch.packed.first_tokens] = 1.0
    x, y = (PIECES.index(letter) for letter in "xy")
    scores[batch.packed.input_ids == x, 0] = 5.0
    scores[batch.packed.input_ids == y, 1] = 5.0
    answers = task.decode({"scores": scores}, batch)
    assert answers == {7: {"answer": "x, y"}, 3: {"answer": "x, y"}}
