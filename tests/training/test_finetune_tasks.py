"""Every task from its rows to a model that is saved, loaded and predicts what it has learned."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bertworks.data.tables import read_rows
from bertworks.errors import DataError, SettingsError
from bertworks.loading import load
from bertworks.model import Model
from bertworks.reports.report import write_report
from bertworks.tasks import LABELLED_TASKS, find_labelled_task
from bertworks.tasks.answering.task import AnsweringTask
from bertworks.tasks.breakdown import Breakdown
from bertworks.tasks.classification import ClassificationSettings, ClassificationTask
from bertworks.tasks.distilled_classification import DistilledTask
from bertworks.text.tokenizer import Tokenizer
from bertworks.training.finetune import finetune
from bertworks.training.settings import settings_of
from bertworks.training.teachers import read_with_teacher

from .letters import (
    CONFIG,
    FAST,
    GEOMETRY,
    WORD_PIECES,
    letters,
    make_rows,
    question_and_answer,
    tagged_row,
)


def question(random: np.random.Generator) -> dict[str, Any]:
    """The answer is the letter behind the `x`; without one there is none."""
    context = letters(random, 3, 12)
    answers = {"text": [], "answer_start": []}
    if random.random() < 0.7:
        position = int(random.integers(0, len(context)))
        context[position:position] = ["x"]
        start = 2 * (position + 1)
        if position + 1 < len(context):
            answers = {"text": [context[position + 1]], "answer_start": [start]}
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


def ending(random: np.random.Generator) -> dict[str, Any]:
    """The label is the last letter, windows behind the limit."""
    last = str(random.choice(["x", "y"]))
    return {"text": " ".join([*letters(random, 6, 9), last]), "label": last}


SECTIONS = {
    "classification": ("Confusions", "By label", "Calibration"),
    "tagging": ("Confusions", "By type", "Calibration", "Rows of train, by tokens"),
    "answering": ("By length of the answer", "By first word", "Most confident mistakes"),
    "choice": ("Calibration", "Rows of dev, by tokens"),
    "regression": ("Gold and predicted", "Largest errors"),
    "retrieval": (),
}
"""What the report on a run of the task has."""

TASKS = {
    "classification": (
        ending,
        "accuracy",
        0.9,
        {"truncation": "windows", "max_seq_length": 8},
    ),
    "tagging": (tagged_row, "f1", 0.9, {}),
    "answering": (
        question,
        "f1",
        0.8,
        {"stride": 4, "max_seq_length": 20, "learning_rate": 5e-3, "epochs": 16, "eval_every": 100},
    ),
    "choice": (choice, "accuracy", 0.9, {}),
    "regression": (number, "pearson", 0.9, {"label_column": "score"}),
    "retrieval": (question_and_answer, "mrr@10", 0.8, {}),
}


@pytest.mark.long
@pytest.mark.parametrize("task", TASKS)
def test_learns_and_is_saved(task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make, metric, least, settings = TASKS[task]
    random = np.random.default_rng(0)
    rows = 300 if task == "answering" else 200
    train, dev = ([make(random) for _ in range(count)] for count in (rows, 60))
    model = Model.fresh(GEOMETRY, Tokenizer.from_vocabulary(WORD_PIECES))
    run_settings = {
        "max_seq_length": 32,
        "learning_rate": 1e-2,
        "batch_size": 16,
        "epochs": 6,
        **settings,
    }
    result = finetune(model, task, train=train, dev=dev, out=tmp_path / "run", **run_settings)
    assert result.metrics[metric] > least
    loaded_model = load(tmp_path / "run", device="cpu")
    assert loaded_model.task is not None
    assert loaded_model.task.name == task
    assert loaded_model.predict(dev) == result.model.predict(dev)
    assert loaded_model.evaluate(dev).metrics[metric] >= least
    # What the metrics are made of is kept, and the report is made of it without the model.
    kept = json.loads((tmp_path / "run" / "evaluation.json").read_bytes())
    assert kept["metrics"] == result.metrics
    assert Breakdown.parse(kept["breakdown"], where="here") == result.breakdown
    copy = tmp_path / "copy"
    ignored = shutil.ignore_patterns("model", "best", "checkpoints")
    shutil.copytree(tmp_path / "run", copy, ignore=ignored)
    text = write_report(copy).read_text(encoding="utf-8")
    for section in SECTIONS[task]:
        assert section in text, section
    # Going on from the result keeps its head.
    run_settings["epochs"] = 0.1
    more = finetune(loaded_model, task, train=train, dev=dev, out=tmp_path / "more", **run_settings)
    assert more.new_parameters == ()


@pytest.mark.long
def test_an_interrupted_run_with_windows_is_resumed(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    rows = [question(random) for _ in range(60)]
    model = Model.fresh(GEOMETRY, Tokenizer.from_vocabulary(WORD_PIECES))
    run_settings: dict[str, Any] = {
        "max_seq_length": 12,
        "stride": 3,
        "batch_size": 8,
        "eval_every": 5,
    }
    whole = finetune(model, "answering", train=rows, dev=rows, out=tmp_path / "a", **run_settings)
    assert whole.data.train.rows == 60
    again = finetune(model, "answering", train=rows, dev=rows, out=tmp_path / "a", **run_settings)
    assert again.metrics == whole.metrics


@pytest.mark.long
def test_the_figures_are_those_of_the_saved_model_with_its_threshold(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    rows = [question(random) for _ in range(60)]
    model = Model.fresh(GEOMETRY, Tokenizer.from_vocabulary(WORD_PIECES))
    given: dict[str, Any] = {"max_seq_length": 20, "stride": 4, "learning_rate": 5e-3, "epochs": 2}
    result = finetune(model, "answering", train=rows, dev=rows, out=tmp_path / "run", **given)
    assert isinstance(result.model.task, AnsweringTask)
    assert result.model.task.settings.null_threshold
    again = load(tmp_path / "run", device="cpu").evaluate(rows)
    assert dict(result.metrics) == again.metrics
    assert result.metrics["f1"] == result.metrics["best_f1"]
    *_, last = [line for line in result.run.lines() if line["kind"] == "eval"]
    assert last["metrics"]["f1"] <= result.metrics["f1"]


def test_rows_that_teach_nothing_are_an_error(tmp_path: Path) -> None:
    row = {"question": "x", "context": "a b", "answers": {"text": ["h"], "answer_start": [0]}}
    model = Model.fresh(GEOMETRY, Tokenizer.from_vocabulary(WORD_PIECES))
    with pytest.raises(DataError, match="rows in memory: no row teaches anything"):
        finetune(model, "answering", train=[row], out=tmp_path / "run", max_seq_length=16)


@pytest.mark.parametrize("task", LABELLED_TASKS)
def test_columns_can_be_called_by_their_numbers(task: str) -> None:
    options = find_labelled_task(task).user_settings()
    columns = [name for name in options.model_fields if name.endswith("_column")]
    assert columns
    numbers = {name: number for number, name in enumerate(columns, 1)}
    needed = {"document_context": True} if "document_column" in numbers else {}
    found = settings_of(find_labelled_task(task)).parse({**numbers, **needed})
    assert {name: getattr(found, name) for name in columns} == {
        name: str(number) for name, number in numbers.items()
    }


@pytest.mark.parametrize("task", LABELLED_TASKS)
def test_the_settings_of_a_task_are_strict(task: str) -> None:
    settings = settings_of(find_labelled_task(task))
    assert settings.parse({"seed": 3}).seed == 3
    with pytest.raises(SettingsError, match="max_seq_length"):
        settings.parse({"max_seq_lenght": 3})


def test_teacher_predicts_in_the_precision_of_the_run(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_vocabulary(WORD_PIECES)
    rows = make_rows(8, 1)
    teacher = finetune(
        Model.fresh(GEOMETRY, tokenizer), train=rows, out=tmp_path / "teacher", **FAST
    ).model
    for precision in ("fp32", "bf16"):
        settings = settings_of(ClassificationTask).parse(
            {"teacher": str(tmp_path / "teacher"), "precision": precision}
        )
        options = ClassificationSettings.parse({"text_column": "text", "label_column": "label"})
        cpu = torch.device("cpu")
        _, examples = read_with_teacher(
            ClassificationTask, tokenizer, read_rows(rows), None, options, settings, cpu, None, None
        )
        expected = [
            [answer["probabilities"][label] for label in teacher.task.labels]
            for answer in teacher.predict(rows, precision=precision)
        ]
        np.testing.assert_array_equal([one.target for one in examples], np.float32(expected))


@pytest.mark.long
def test_a_student_learns_from_a_teacher_on_rows_without_labels(tmp_path: Path) -> None:
    teacher = finetune(
        Model.fresh(GEOMETRY, Tokenizer.from_vocabulary(WORD_PIECES)),
        train=make_rows(300, 1),
        out=tmp_path / "teacher",
        **{**FAST, "epochs": 8},
    ).model

    def rename_columns(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The texts are in another column than the teacher's."""
        return [{**row, "body": row["text"], "text": "a"} for row in rows]

    texts = rename_columns([{"text": row["text"]} for row in make_rows(300, 3)])
    # The student has another vocabulary: the letters in another order.
    pieces = [*WORD_PIECES[:5], *reversed(WORD_PIECES[5:])]
    small = Model.fresh(
        CONFIG.with_values(vocab_size=len(pieces)), Tokenizer.from_vocabulary(pieces)
    )
    student_settings = {
        **FAST,
        "epochs": 12,
        "teacher": str(tmp_path / "teacher"),
        "temperature": 2.0,
    }
    dev = make_rows(60, 2)
    result = finetune(
        small,
        train=texts,
        dev=rename_columns(dev),
        out=tmp_path / "student",
        text_column="body",
        **student_settings,
    )
    assert result.metrics["accuracy"] > 0.9
    predicted = [row["probabilities"]["yes"] for row in teacher.predict(dev)]
    own = [row["probabilities"]["yes"] for row in load(tmp_path / "student").predict(dev)]
    assert np.abs(np.subtract(predicted, own)).mean() < 0.15
    with pytest.raises(SettingsError, match="tagging takes no teacher"):
        finetune(
            small,
            "tagging",
            train=[tagged_row(np.random.default_rng(0))],
            out=tmp_path / "x",
            **student_settings,
        )


@pytest.mark.long
def test_the_label_of_a_student_may_be_a_column_of_dev_alone(tmp_path: Path) -> None:
    model = Model.fresh(GEOMETRY, Tokenizer.from_vocabulary(WORD_PIECES))
    few: dict[str, Any] = {**FAST, "epochs": 0.5}
    finetune(model, train=make_rows(40, 1), out=tmp_path / "teacher", **few)
    few["teacher"] = str(tmp_path / "teacher")
    texts = [{"text": row["text"]} for row in make_rows(40, 2)]
    dev = [{"text": row["text"], "id": "a", "verdict": row["label"]} for row in make_rows(20, 3)]
    dev_file, train_file = tmp_path / "dev.jsonl", tmp_path / "train.jsonl"
    dev_file.write_text("\n".join(map(json.dumps, dev)))
    train_file.write_text("\n".join(map(json.dumps, texts)))
    arguments = {"train": train_file, "dev": dev_file, **few}
    result = finetune(model, out=tmp_path / "a", label_column="verdict", **arguments)
    assert result.model.evaluate(dev_file).metrics == pytest.approx(dict(result.metrics))
    assert (
        finetune(model, out=tmp_path / "b", label_column="3", **arguments).metrics == result.metrics
    )
    with pytest.raises(DataError, match=r"dev\.jsonl: there is no column 'verdct'.*'verdict'"):
        finetune(model, out=tmp_path / "c", label_column="verdct", **arguments)
    with pytest.raises(DataError, match=r"train\.jsonl: there is no column 'verdict'"):
        finetune(model, out=tmp_path / "c", label_column="verdict", **{**arguments, "dev": 0.5})


def test_the_distillation_loss_is_zero_where_the_student_agrees() -> None:
    config = GEOMETRY.with_values(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    tokenizer = Tokenizer.from_vocabulary(WORD_PIECES)
    settings = ClassificationSettings(labels=("a", "b"), text_column="text", max_seq_length=32)
    task = DistilledTask(tokenizer, settings, 3.0)
    network = task.network(config).double()
    examples = task.examples([{"text": "x"}, {"text": "a b"}], 0, labelled=False)
    logits = network.predict(task.collate(examples).to("cpu"))["logits"].detach()
    for expected_logits, least, most in (
        (logits, -1e-9, 1e-9),
        (logits + torch.tensor([1.0, 0]), 1e-3, 9),
    ):
        chances = torch.softmax(expected_logits, -1).numpy().astype(np.float64)
        soft = [replace(one, target=row) for one, row in zip(examples, chances, strict=True)]
        batch = task.collate(soft).to("cpu")
        loss = network(batch)["classification"].item()
        assert least <= loss <= most
        p = torch.softmax(expected_logits / 3, -1)
        q = torch.log_softmax(logits / 3, -1)
        assert loss == pytest.approx((9 * (p * (p.log() - q)).sum()).item(), abs=1e-6)


@pytest.mark.long
def test_a_student_of_pairs_keeps_its_settings(tmp_path: Path) -> None:
    def pairs(seed: int) -> list[dict[str, Any]]:
        return [{**row, "pair": "a b"} for row in make_rows(40, seed)]

    columns = {"text_column": "text", "pair_column": "pair"}
    teacher = tmp_path / "teacher"
    model = Model.fresh(GEOMETRY, Tokenizer.from_vocabulary(WORD_PIECES))
    finetune(model, train=pairs(1), out=teacher, **FAST, **columns)
    arguments = {**FAST, **columns, "teacher": str(teacher)}
    student = finetune(
        model, train=pairs(2), out=tmp_path / "a", both_orders=True, **arguments
    ).model
    assert student.task is not None
    assert student.task.to_dict()["both_orders"]
    student = finetune(
        model, train=pairs(2), out=tmp_path / "mean", classifier_pooling="mean", **arguments
    ).model
    assert student.encoder.config.classifier_pooling == "mean"
    assert load(tmp_path / "mean").predict(pairs(3)) == student.predict(pairs(3))
    for option in ({"label_smoothing": 0.1}, {"lm_weight": 0.5}, {"balance_classes": True}):
        with pytest.raises(
            SettingsError, match=f"{next(iter(option))}=.* does nothing with a teacher"
        ):
            finetune(model, train=pairs(2), out=tmp_path / "b", **arguments, **option)
