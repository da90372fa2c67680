"""Regression against PyTorch's loss and SciPy's correlations; several labels; class weights."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score
from torch.nn import functional as F

import bertworks as bw
from bertworks.data.tables import read_rows
from bertworks.errors import DataError, SettingsError
from bertworks.inference.prediction_files import write_predictions
from bertworks.tasks.classification import (
    ClassificationSettings,
    ClassificationTask,
    MultiLabelSettings,
    MultiLabelTask,
)
from bertworks.tasks.labels import count_labels, read_label_names
from bertworks.tasks.regression import RegressionTask
from bertworks.tasks.texts import TextSettings
from tests.tasks.test_choice import CONFIG, TOKENIZER

ROWS = [{"text": "a b", "score": 1.5}, {"text": "c", "score": -2}, {"text": "d a b", "score": "3"}]


def regression():
    options = TextSettings(label_column="score", max_seq_length=16)
    return RegressionTask.from_table(TOKENIZER, read_rows(ROWS), options)


def test_the_loss_is_the_squared_error():
    task = regression()
    network = task.network(CONFIG).eval()
    batch = task.collate(task.examples(ROWS, 0)).to("cpu")
    values = network.predict(batch)["values"]
    assert batch.targets["labels"].tolist() == [-2, 1.5, 3]  # in order of length
    expected = F.mse_loss(values, batch.targets["labels"], reduction="sum")
    assert network(batch)["regression"].item() == pytest.approx(expected.item())
    assert task.decode({"values": values}, batch)[1]["value"] == pytest.approx(values[0].item())


def test_metrics_equal_those_by_hand():
    evaluator = regression().evaluator()
    batch = regression().collate(regression().examples(ROWS, 0)).to("cpu")
    evaluator.add({"values": torch.tensor([0.0, 4.0, 2.0])}, batch)
    metrics = evaluator.result()
    assert metrics["loss"] == pytest.approx((4 + 2.5**2 + 1) / 3)
    assert metrics["spearman"] == pytest.approx(0.5)
    gold, predicted = np.array([-2, 1.5, 3]), np.array([0.0, 4, 2])
    assert metrics["pearson"] == pytest.approx(np.corrcoef(gold, predicted)[0, 1])
    evaluator = regression().evaluator()
    evaluator.add({"values": torch.zeros(3)}, batch)
    assert evaluator.result()["pearson"] == 0
    assert "every row is predicted to be 0" in evaluator.notes()[0]


@pytest.mark.parametrize("value", ["x", None, math.nan, "inf", True, [1], 10**400])
def test_value_that_is_no_number_is_refused(value):
    with pytest.raises(DataError, match=r"f:3: .* \(column 'score'\) is not a finite number"):
        regression().example({"text": "a", "score": value}, 0, where="f:3")


@pytest.mark.parametrize("value", [1e39, "-1e39", 10**39])
def test_number_beyond_float32_is_refused(value):
    with pytest.raises(DataError, match=r"f:3: -?1e\+39 .* is beyond the numbers of float32"):
        regression().example({"text": "a", "score": value}, 0, where="f:3")
    assert regression().example({"text": "a", "score": "-3.4e38"}, 0).target == -3.4e38


def multilabel_task(**values):
    rows = [{"text": "a", "label": "x,y"}, {"text": "b", "label": ""}, {"text": "c", "label": "y"}]
    options = MultiLabelSettings(max_seq_length=16, **values)
    return MultiLabelTask.from_table(TOKENIZER, read_rows(rows), options), rows


def test_multilabel_classes_are_predicted_independently():
    task, rows = multilabel_task()
    assert task.settings.labels == ("x", "y")
    network = task.network(CONFIG).eval()
    batch = task.collate(task.examples(rows, 0)).to("cpu")
    assert batch.targets["labels"].tolist() == [[1, 1], [0, 0], [0, 1]]
    logits = network.predict(batch)["logits"]
    expected = F.binary_cross_entropy_with_logits(logits, batch.targets["labels"]) * 3
    assert network(batch)["classification"].item() == pytest.approx(expected.item())
    predicted = torch.tensor([[2.0, -1], [-1, -1], [3, 1]])
    answers = task.decode({"logits": predicted}, batch)
    assert [answers[at]["labels"] for at in range(3)] == [["x"], [], ["x", "y"]]
    evaluator = task.evaluator()
    evaluator.add({"logits": predicted}, batch)
    metrics = evaluator.result()
    assert tuple(metrics) == task.metrics
    assert metrics["accuracy"] == pytest.approx(1 / 3)
    true = batch.targets["labels"].numpy()
    assert metrics["micro_f1"] == pytest.approx(
        f1_score(true, predicted.numpy() > 0, average="micro")
    )
    assert metrics["loss"] == pytest.approx(
        F.binary_cross_entropy_with_logits(predicted, batch.targets["labels"]).item()
    )


def test_predicted_labels_can_be_training_labels(tmp_path):
    file = tmp_path / "predictions.tsv"
    predicted = (["x", "y, z"], [], ["[w"])
    write_predictions(file, [({"text": "a"}, {"labels": labels}) for labels in predicted])
    rows = read_rows(file)
    counts = count_labels(rows, "prediction.labels", ",")
    assert counts == {"x": 1, "y, z": 1, "[w": 1}
    assert read_label_names({"label": "[1], [2]"}, "label", None, ",") == ["[1]", "[2]"]


def test_rare_classes_can_count_for_more():
    rows = [{"text": "a", "label": "x"}] * 3 + [{"text": "b", "label": "y"}]
    options = ClassificationSettings(balance_classes=True, label_smoothing=0.1, max_seq_length=16)
    task = ClassificationTask.from_table(TOKENIZER, read_rows(rows), options)
    assert task.settings.class_weights == pytest.approx((4 / 2 / 3, 4 / 2))
    network = task.network(CONFIG).eval()
    batch = task.collate(task.examples(rows, 0)).to("cpu")
    logits = network.predict(batch)["logits"].detach()
    labels = batch.targets["labels"]
    each = F.cross_entropy(logits, labels, reduction="none", label_smoothing=0.1)
    weights = torch.tensor(task.settings.class_weights)[labels]
    assert network(batch)["classification"].item() == pytest.approx((each * weights).sum().item())
    weighted, _ = multilabel_task(balance_classes=True)
    assert weighted.settings.class_weights == pytest.approx((2.0, 0.5))


@pytest.mark.parametrize("balance", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.6])
def test_smoothed_loss_is_the_formula(balance, smoothing):
    """Szegedy et al. 2016, section 7: the target is (1 - e) for the label, plus e / K for each."""
    texts = ("a", "b", "c", "a b", "b c", "c a", "a b c")
    rows = [{"text": text, "label": label} for text, label in zip(texts, "xxxxyyz", strict=True)]
    options = ClassificationSettings(
        balance_classes=balance, label_smoothing=smoothing, max_seq_length=16
    )
    task = ClassificationTask.from_table(TOKENIZER, read_rows(rows), options)
    network = task.network(CONFIG).eval()
    with torch.no_grad():  # logits that are far apart, so that the target matters
        network.head.linear.bias.copy_(torch.tensor([3.0, -1.0, -4.0]))
    # Not all rows: on balanced rows, the smoothed part of the loss cancels.
    batch = task.collate(task.examples(rows[:5], 0)).to("cpu")
    logits = network.predict(batch)["logits"].detach().double().numpy()
    log_probabilities = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    gold = batch.targets["labels"].numpy()
    target = (1 - smoothing) * np.eye(3)[gold] + smoothing / 3
    losses = -(target * log_probabilities).sum(1)
    weights = np.array([7 / 3 / 4, 7 / 3 / 2, 7 / 3 / 1])[gold] if balance else 1
    loss = network(batch)["classification"].item()
    assert loss == pytest.approx((losses * weights).sum(), rel=1e-6)


@pytest.mark.parametrize("name", ["label_smoothing", "positive_label", "no_label"])
def test_multilabel_has_no_settings_of_single_labels(name):
    with pytest.raises(SettingsError, match=f"unknown setting '{name}'"):
        MultiLabelSettings.parse({name: 0.1})


@pytest.mark.parametrize("kind", [ClassificationTask, RegressionTask])
def test_vectors_of_both_orders_are_added(kind):
    """GPT's similarity: what the output layer makes of the sum of both vectors."""
    rows = [{"text": "a b", "pair": "c", "label": 1}, {"text": "d", "pair": "a", "label": 0}]
    columns = {f"{role}_column": role for role in ("text", "pair", "label")}
    settings = {**columns, "max_seq_length": 16, "both_orders": True}
    if kind is ClassificationTask:
        settings["labels"] = ("0", "1")
    task = kind.from_dict(settings, TOKENIZER)
    network = task.network(CONFIG).double().eval()
    batch = task.collate(task.examples(rows, 3)).to("cpu")
    name = "logits" if kind is ClassificationTask else "values"
    outputs = network.predict(batch)[name]
    plain = kind.from_dict({**settings, "both_orders": False}, TOKENIZER)
    swapped_rows = [{**row, "text": row["pair"], "pair": row["text"]} for row in rows]
    one, other = (
        network.predict(plain.collate(plain.examples(order, 0)).to("cpu"))[name]
        for order in (rows, swapped_rows)
    )
    assert torch.allclose(outputs, one + other)
    assert network(batch)[task.name].item() > 0
    assert batch.counts == {task.name: 2}
    answers = task.decode({name: outputs}, batch)
    assert sorted(answers) == [3, 4]
    backwards = network.predict(task.collate(task.examples(swapped_rows, 3)).to("cpu"))[name]
    assert torch.allclose(backwards, outputs)


@pytest.mark.parametrize("truncation", ["first", "second"])
def test_same_text_is_truncated_in_both_orders(truncation):
    settings = {
        "text_column": "text",
        "pair_column": "pair",
        "label_column": "label",
        "max_seq_length": 6,
        "both_orders": True,
        "truncation": truncation,
    }
    task = RegressionTask.from_dict(settings, TOKENIZER)
    texts = ["a b c d", "a b"] if truncation == "first" else ["a b", "a b c d"]
    (example,) = task.examples([dict(zip(("text", "pair"), texts, strict=True))], 0, labelled=False)
    (first_ids, _), (second_ids, _) = example.sequences
    assert len(first_ids) == len(second_ids) == 6
    long = TOKENIZER.encode("a b c d").input_ids[1:-1].tolist()
    short = TOKENIZER.encode("a b").input_ids[1:-1].tolist()
    kept = long[: 6 - 3 - len(short)]
    expected = (kept, short) if truncation == "first" else (short, kept)
    cls, sep = first_ids[0], first_ids[-1]
    assert first_ids.tolist() == [cls, *expected[0], sep, *expected[1], sep]
    assert second_ids.tolist() == [cls, *expected[1], sep, *expected[0], sep]


def test_multilabel_learns_a_label_that_every_row_has():
    rows = [{"text": "a", "label": "x,y"}, {"text": "b", "label": "x"}]
    options = MultiLabelSettings(balance_classes=True)
    task = MultiLabelTask.from_table(TOKENIZER, read_rows(rows), options)
    assert dict(zip(task.settings.labels, task.settings.class_weights, strict=True)) == {
        "x": 0.5,
        "y": 1.0,
    }


def test_next_pieces_are_not_learned_of_windows():
    with pytest.raises(SettingsError, match="lm_weight is not for truncation=windows"):
        ClassificationTask.from_dict(
            {
                "labels": ("x", "y"),
                "text_column": "text",
                "lm_weight": 0.5,
                "truncation": "windows",
            },
            TOKENIZER,
        )


def test_orders_are_of_pairs():
    with pytest.raises(SettingsError, match="both_orders=true is for pairs of texts"):
        RegressionTask.from_dict({"text_column": "text", "both_orders": True}, TOKENIZER)


@pytest.mark.parametrize(
    ("columns", "label"),
    [
        (("sentence1", "sentence2", "score"), "score"),
        (("sentence1", "sentence2", "similarity_score"), "similarity_score"),
        (("sentence_A", "sentence_B", "relatedness_score"), "relatedness_score"),
        (("text1", "text2", "gold value"), "gold value"),  # the only column of numbers
        (("text1", "text2", "label"), "label"),
    ],
)
@pytest.mark.parametrize("as_text", [True, False])
def test_column_of_numbers_is_the_target(
    columns: tuple[str, str, str], label: str, as_text: bool
) -> None:
    values = [0.5 * n for n in range(12)]
    rows = [
        dict(zip(columns, (f"a {n}", f"b {n}", str(v) if as_text else v), strict=True))
        for n, v in enumerate(values)
    ]
    rows = [{"kind": "x" if n % 2 else "y", **row} for n, row in enumerate(rows)]
    named = RegressionTask.schema.find(read_rows(rows), {}, labelled=True)
    assert named == {"text": columns[0], "pair": columns[1], "label": label}


def test_score_is_preferred_to_a_class_as_the_target() -> None:
    rows = [{"text": "a b", "label": "good", "score": 0.5 * n} for n in range(4)]
    assert RegressionTask.schema.find(read_rows(rows), {}, labelled=True)["label"] == "score"
    rows = [{"text": "a b", "label": n, "kind": "good"} for n in range(4)]
    assert RegressionTask.schema.find(read_rows(rows), {}, labelled=True)["label"] == "label"


def test_number_of_a_row_is_not_the_target() -> None:
    rows = [{"text": f"a text {n}", "idx": n} for n in range(12)]
    with pytest.raises(DataError, match="label"):
        RegressionTask.schema.find(read_rows(rows), {}, labelled=True)


def test_correlations_with_equal_gold_values_are_undefined() -> None:
    rows = [{"label": 1, "prediction": value} for value in (1, 2, 3)]
    score = bw.score("regression", rows)
    assert score.metrics["pearson"] == score.metrics["spearman"] == 0
    assert score.notes == ["every gold value is 1: the correlations are undefined, given as 0"]
