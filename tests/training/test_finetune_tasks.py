"""Every task from its rows to a model that is saved, loaded and tells what it has learned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertworks.api import Model, load
from bertworks.errors import SettingsError
from bertworks.tasks import LABELLED, labelled_task
from bertworks.training.finetune import finetune
from bertworks.training.finetune_settings import settings_of
from tests.training.test_finetune import CONFIG, LETTERS, Tokenizer

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{c}" for c in LETTERS)]

GEOMETRY = CONFIG.with_values(vocab_size=len(PIECES), hidden_size=32, num_hidden_layers=2)


def letters(random: np.random.Generator, low: int, high: int) -> list[str]:
    return random.choice(list("abcdefgh"), random.integers(low, high)).tolist()


def tagged(random: np.random.Generator) -> dict[str, Any]:
    """Words with an `x` are of a name; `y` goes on it."""
    words, tags = [], []
    for _ in range(random.integers(1, 6)):
        name = random.random() < 0.5
        words += ["x" + "".join(letters(random, 0, 3)), "y"] if name else letters(random, 1, 2)
        tags += ["B-NAME", "I-NAME"] if name else ["O"]
    return {"words": words, "tags": tags}


def question(random: np.random.Generator) -> dict[str, Any]:
    """The answer is the letter behind the `x`; without one there is none."""
    context = letters(random, 3, 12)
    answers = {"text": [], "answer_start": []}
    if random.random() < 0.7:
        at = int(random.integers(0, len(context)))
        context[at:at] = ["x"]
        start = 2 * (at + 1)
        if at + 1 < len(context):
            answers = {"text": [context[at + 1]], "answer_start": [start]}
    return {"question": "x", "context": " ".join(context), "answers": answers}


def choice(random: np.random.Generator) -> dict[str, Any]:
    """The right choice has an `x`."""
    choices = [" ".join(letters(random, 1, 4)) for _ in range(3)]
    label = int(random.integers(3))
    choices[label] += " x"
    return {"prompt": " ".join(letters(random, 1, 4)), "choices": choices, "label": label}


def number(random: np.random.Generator) -> dict[str, Any]:
    """How many there are of `x`."""
    count = int(random.integers(0, 3))
    words = letters(random, 1, 4) + ["x"] * count
    return {"text": " ".join(random.permutation(words)), "score": float(count)}


TASKS = {
    "tagging": (tagged, "f1", 0.9, {}),
    "answering": (question, "f1", 0.8, {"stride": 4, "max_seq_length": 20, "epochs": 16}),
    "choice": (choice, "accuracy", 0.9, {}),
    "regression": (number, "pearson", 0.9, {"label_column": "score"}),
}


@pytest.mark.parametrize("task", TASKS)
def test_learns_and_is_saved(task: str, tmp_path: Path) -> None:
    make, metric, least, settings = TASKS[task]
    random = np.random.default_rng(0)
    train, dev = ([make(random) for _ in range(count)] for count in (300, 60))
    model = Model.fresh(GEOMETRY, Tokenizer.from_vocabulary(PIECES))
    given = {"max_seq_length": 32, "learning_rate": 5e-3, "batch_size": 16, "epochs": 8, **settings}
    result = finetune(model, task, train=train, dev=dev, out=tmp_path / "run", **given)
    assert result.metrics[metric] > least
    again = load(tmp_path / "run", device="cpu")
    assert again.task is not None
    assert again.task.name == task
    assert again.predict(dev) == result.model.predict(dev)
    assert again.evaluate(dev).metrics[metric] >= least
    assert (tmp_path / "run" / "report.html").stat().st_size > 1000
    # Going on from the result keeps its head.
    given["epochs"] = 0.1
    more = finetune(again, task, train=train, dev=dev, out=tmp_path / "more", **given)
    assert more.initialized == ()


def test_a_run_goes_on_with_windows(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    rows = [question(random) for _ in range(60)]
    model = Model.fresh(GEOMETRY, Tokenizer.from_vocabulary(PIECES))
    given: dict[str, Any] = {"max_seq_length": 12, "stride": 3, "batch_size": 8, "eval_every": 5}
    whole = finetune(model, "answering", train=rows, dev=rows, out=tmp_path / "a", **given)
    assert whole.data.train.rows == 60
    again = finetune(model, "answering", train=rows, dev=rows, out=tmp_path / "a", **given)
    assert again.metrics == whole.metrics


@pytest.mark.parametrize("task", LABELLED)
def test_the_settings_of_a_task_are_strict(task: str) -> None:
    settings = settings_of(labelled_task(task))
    assert settings.parse({"seed": 3}).seed == 3
    with pytest.raises(SettingsError, match="max_seq_length"):
        settings.parse({"max_seq_lenght": 3})
