"""The classifier against Hugging Face's, its metrics against plain counts, and bad rows."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification

from bertworks.checkpoints.bert import BERT
from bertworks.checkpoints.network_weights import load_weights
from bertworks.data.tables import read_rows
from bertworks.errors import BertworksError, DataError, SettingsError
from bertworks.nn.config import EncoderConfig
from bertworks.packed import Batch
from bertworks.tasks.classification import (
    ClassificationSettings,
    ClassificationTask,
    MultiLabelSettings,
    MultiLabelTask,
)
from bertworks.tasks.labels import count_labels, read_label_names, sort_labels
from bertworks.tasks.summary import DataSummary
from bertworks.tasks.text_network import ClassificationNetwork
from bertworks.text.tokenizer import Tokenizer

WORDS = ["good", "bad", "film", "a", "the", "was", "very", "##ly", "not"]
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
CONFIG = EncoderConfig(
    vocab_size=len(PIECES),
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=32,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)


@pytest.fixture
def tokenizer() -> Tokenizer:
    return Tokenizer.from_vocabulary(PIECES)


def make_task(tokenizer: Tokenizer, **values: Any) -> ClassificationTask:
    settings = {
        "labels": ("neg", "pos", "meh"),
        "text_column": "text",
        "pair_column": "pair",
        "label_column": "label",
        "max_seq_length": 16,
        **values,
    }
    return ClassificationTask(tokenizer, ClassificationSettings.parse(settings))


def make_multilabel_task(tokenizer: Tokenizer) -> MultiLabelTask:
    settings = {
        "labels": ("neg", "pos", "meh"),
        "text_column": "text",
        "pair_column": "pair",
        "label_column": "label",
        "max_seq_length": 16,
    }
    return MultiLabelTask(tokenizer, MultiLabelSettings.parse(settings))


def batch_of(task: ClassificationTask, rows: Sequence[Mapping[str, Any]]) -> Batch:
    return task.collate(task.examples(rows, 0)).to("cpu")


ROWS = [
    {"text": "good film", "pair": "very good", "label": "pos"},
    {"text": "the film was not good", "pair": "bad", "label": "neg"},
    {"text": "a film", "pair": "the film", "label": "meh"},
    {"text": "badly", "pair": "good", "label": "neg"},
]


def test_loss_and_gradients_are_those_of_hugging_face(tokenizer: Tokenizer) -> None:
    torch.manual_seed(1)
    config = BertConfig(
        **BERT.write_config(CONFIG), num_labels=3, problem_type="single_label_classification"
    )
    theirs = BertForSequenceClassification(config).double()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(std=0.3)
    task = make_task(tokenizer)
    ours = task.network(CONFIG).double()
    tensors = {name: value for name, value in theirs.state_dict().items() if "_ids" not in name}
    report = load_weights(ours, tensors, BERT, "theirs")
    assert not report.new_tensors
    assert not report.dropped_tensors

    batch = batch_of(task, ROWS)
    losses = ours(batch)
    loss = losses["classification"] / batch.counts["classification"]
    loss.backward()
    input_ids, mask = batch.packed.to_padded()
    token_type_ids, _ = batch.packed.to_padded(batch.packed.token_type_ids)
    expected = theirs(
        input_ids=input_ids,
        attention_mask=mask.long(),
        token_type_ids=token_type_ids,
        labels=torch.tensor([1, 0, 2, 0]),
    )
    expected.loss.backward()
    assert torch.allclose(loss, expected.loss, rtol=1e-10)
    for mine, their_name in (
        ("head.linear.weight", "classifier.weight"),
        ("head.linear.bias", "classifier.bias"),
        ("encoder.pooler.dense.weight", "bert.pooler.dense.weight"),
        (
            "encoder.embeddings.word_embeddings.weight",
            "bert.embeddings.word_embeddings.weight",
        ),
    ):
        gradient = ours.get_parameter(mine).grad
        assert torch.allclose(gradient, theirs.get_parameter(their_name).grad, atol=1e-10)

    answers = task.decode(ours.predict(batch), batch)
    probabilities = torch.softmax(expected.logits, -1)
    for row in range(len(ROWS)):
        predicted = [answers[row]["probabilities"][label] for label in ("neg", "pos", "meh")]
        assert predicted == pytest.approx(probabilities[row].tolist(), abs=1e-9)
        assert answers[row]["label"] == ("neg", "pos", "meh")[int(np.argmax(predicted))]


def test_dropout_before_the_head_is_a_setting(tokenizer: Tokenizer) -> None:
    assert make_task(tokenizer, dropout=0.4).network(CONFIG).head.dropout.p == 0.4
    assert make_task(tokenizer).network(CONFIG).head.dropout.p == CONFIG.hidden_dropout_prob


def test_settings_survive_saving(tokenizer: Tokenizer) -> None:
    task = make_task(tokenizer, positive_label="meh", truncation="error")
    again = ClassificationTask.from_dict(task.to_dict(), tokenizer)
    assert again.settings == task.settings
    assert task.config_entries()["id2label"] == {"0": "neg", "1": "pos", "2": "meh"}


def test_metrics_equal_those_by_hand(tokenizer: Tokenizer) -> None:
    task = make_task(tokenizer, labels=("no", "yes"), pair_column=None)
    evaluator = task.evaluator()
    gold = ["yes"] * 5 + ["no"] * 5
    predicted = [
        1,
        1,
        1,
        0,
        0,
        0,
        0,
        0,
        0,
        1,
    ]  # 3 true positives, 1 false, 2 missed, 4 true negatives
    for start in (0, 4):
        rows = [{"text": "film", "label": label} for label in gold[start : start + 4 + start]]
        batch = batch_of(task, rows)
        logits = 2.0 * torch.nn.functional.one_hot(
            torch.tensor(predicted[start : start + len(rows)]), 2
        )
        evaluator.add({"logits": logits}, batch)
    right, wrong = -math.log(math.e**2 / (math.e**2 + 1)), -math.log(1 / (math.e**2 + 1))
    result = evaluator.result()
    assert tuple(result) == task.metrics
    assert result["loss"] == pytest.approx(0.7 * right + 0.3 * wrong)
    assert result["accuracy"] == pytest.approx(0.7)
    assert result["majority"] == pytest.approx(0.5)
    assert result["f1"] == pytest.approx(2 * 3 / (2 * 3 + 1 + 2))
    assert result["macro_f1"] == pytest.approx((6 / 9 + 8 / 11) / 2)
    expected = (3 * 4 - 1 * 2) / math.sqrt(4 * 5 * 5 * 6)
    assert result["matthews_correlation"] == pytest.approx(expected)
    assert evaluator.notes() == []


def test_one_class_for_all_is_noticed(tokenizer: Tokenizer) -> None:
    task = make_task(tokenizer)
    evaluator = task.evaluator()
    evaluator.add({"logits": torch.tensor([[0.0, 1, 0]]).repeat(4, 1)}, batch_of(task, ROWS))
    assert "every row is predicted to be 'pos'" in evaluator.notes()[0]
    assert evaluator.result()["matthews_correlation"] == 0
    assert "f1" not in evaluator.result()


def test_missing_metrics_package_is_named(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.metrics", None)
    with pytest.raises(BertworksError, match=r"pip install \"bertworks\[metrics\]\""):
        make_task(tokenizer).evaluator()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"pair": "a", "label": "pos"}, r"f:3: the row has no column 'text'; its columns are"),
        ({"text": "a", "label": "pos"}, r"f:3: the row has no column 'pair'"),
        ({"text": "a", "pair": "a"}, r"f:3: the row has no column 'label'"),
        ({"text": "a", "pair": "a", "label": " "}, r"f:3: the label \(column 'label'\) is empty"),
        ({"text": "a", "pair": "a", "label": None}, r"f:3: the label \(column 'label'\) is empty"),
        ({"text": "a", "pair": "a", "label": "po"}, r"f:3: the label 'po' was not seen .* 'pos'\."),
        ({"text": "a", "pair": "a", "label": [1]}, r"f:3: the label \[1\] .* is not a name"),
        (
            {"text": 5, "pair": "a", "label": "pos"},
            r"f:3: the column 'text' holds 5, which is not a text",
        ),
        ({"text": "\ud800", "pair": "a", "label": "pos"}, r"f:3: .*surrogate"),
    ],
)
def test_bad_rows_are_refused(tokenizer: Tokenizer, row: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        make_task(tokenizer).example(row, 0, where="f:3")


def test_labels_are_not_looked_at_when_predicting(tokenizer: Tokenizer) -> None:
    task = make_task(tokenizer)
    for row in ({"text": "a", "pair": "a"}, {"text": "a", "pair": "a", "label": "who knows"}):
        batch = task.collate([task.example(row, 7, labelled=False)])
        assert not batch.counts
        assert batch.packed.sequence_row.tolist() == [7]


def test_long_rows_are_cut_and_counted_or_refused(tokenizer: Tokenizer) -> None:
    row = {"text": "good " * 20, "pair": "bad " * 3, "label": "pos"}
    example = make_task(tokenizer).example(row, 0)
    assert example.num_tokens == 16
    assert example.truncated_tokens == 20 + 3 + 3 - 16
    with pytest.raises(DataError, match="f:3: 26 tokens, but at most 16 fit"):
        make_task(tokenizer, truncation="error").example(row, 0, where="f:3")
    with pytest.raises(SettingsError, match="max_seq_length=64 is more than the 32 tokens"):
        make_task(tokenizer, max_seq_length=64).network(CONFIG)


def test_labels_become_names() -> None:
    values = [np.int64(1), np.bool_(True), np.float32(2), " x ", 1]
    rows = read_rows([{"label": value} for value in values])
    assert count_labels(rows, "label") == {"1": 2, "true": 1, "2": 1, "x": 1}
    assert sort_labels(["10", "9", "-1"]) == ("-1", "9", "10")
    assert sort_labels(["b", "10", "a"]) == ("10", "a", "b")
    with pytest.raises(DataError, match="two different labels, and column 'label' holds '1'"):
        count_labels(read_rows([{"label": 1}]), "label")
    with pytest.raises(DataError, match=r"^rows in memory: a classifier needs"):
        count_labels(read_rows([{"label": 1}]), "label")


def test_lists_of_labels_in_text_are_json() -> None:
    def names(value: str) -> list[str]:
        return read_label_names({"label": value}, "label", "row 1", ",")

    assert names("[1, 2]") == ["1", "2"]
    assert names('["a", "b, c"]') == ["a", "b, c"]
    assert names("[a], [b]") == ["[a]", "[b]"]
    for text in ("['a', 'b']", "{'a', 'b'}", "('a',)"):
        with pytest.raises(DataError, match=r"row 1: the list .* is not valid JSON"):
            names(text)


@pytest.mark.parametrize(
    "value",
    [
        *([0, 0, 1], [1.0, 1.0], [True, False, False], "[0, 0, 1]", "1,0,0", "1.0,0.0,1.0"),
        *("True,False,True", "[True, True]", "[1 0 1]", "[0. 1. 0.]", "1;0;1", "0 0"),
    ],
)
def test_bits_for_each_class_are_no_names(value: Any) -> None:
    """As simpletransformers has the labels of a row: they were read as classes 0 and 1."""
    with pytest.raises(DataError, match="seem to be a 0 or 1 for each class"):
        read_label_names({"label": value}, "label", "row 1", ",")


@pytest.mark.parametrize("values", [["1,0", "0,1"], [[1.0, 0.0]], ["False,True", "True,False"]])
def test_bits_for_both_of_two_classes_are_no_names(values: list[Any]) -> None:
    rows = read_rows([{"text": "a", "label": value} for value in values])
    with pytest.raises(DataError, match="column 'label' seem to be a 0 or 1 for each class"):
        count_labels(rows, "label", ",")


def test_numbered_labels_of_which_a_row_has_several_are_names() -> None:
    rows = read_rows([{"text": "a", "label": value} for value in ("0,1", "1", "")])
    assert count_labels(rows, "label", ",") == {"0": 1, "1": 2}


def test_a_label_that_a_row_has_twice_counts_once() -> None:
    assert read_label_names({"label": "a,b,a"}, "label", None, ",") == ["a", "b"]
    assert read_label_names({"label": [2, 2, 0]}, "label", None, ",") == ["2", "0"]
    assert read_label_names({"label": [1, 0]}, "label", None, ",") == ["1", "0"]


def test_a_model_that_does_not_say_takes_texts_and_pairs(tokenizer: Tokenizer) -> None:
    task = make_task(tokenizer, pair_column=None, is_pair_optional=True)

    def texts_of(table: Any, *, labelled: bool = False) -> list[tuple[str, ...]]:
        rows = read_rows(table)
        values = [row for _, row in rows]
        made = task.for_table(rows, labelled=labelled).examples(values, 0, labelled=labelled)
        return [example.texts for example in made]

    assert texts_of([task.text_row("a")]) == [("a",)]
    assert texts_of([task.text_row("a", "b")]) == [("a", "b")]
    entailed = [{"premise": "a", "hypothesis": "b", "label": "pos"}]
    assert texts_of(entailed, labelled=True) == [("a", "b")]
    assert texts_of([{"sentence": "a", "label": "pos"}], labelled=True) == [("a",)]


def test_another_table_may_have_other_columns(tokenizer: Tokenizer) -> None:
    task = make_task(tokenizer, text_column="sentence", pair_column=None)
    same = read_rows([{"sentence": "a", "label": "pos"}])
    assert task.for_table(same, labelled=True) is task
    other = task.for_table(read_rows([{"text": "a"}]), labelled=False)
    assert other.columns == {"text": "text", "pair": None, "label": None}
    with pytest.raises(DataError, match="which column holds the label"):
        task.for_table(read_rows([{"text": "a"}]), labelled=True)
    with pytest.raises(DataError, match="takes single texts, and the table has pairs"):
        task.for_table(read_rows([{"premise": "a", "hypothesis": "b"}]), labelled=False)


def test_summary_counts_truncated_rows(tokenizer: Tokenizer) -> None:
    task = make_task(tokenizer, max_seq_length=8)
    train = task.examples(ROWS, 0)
    summary = DataSummary.from_examples(task, ("train", train), ("dev", train[:2] + train[:1]))
    # 7, 9, 7 and 6 tokens ("badly" is two)
    assert summary.train.labels == {"neg": 2, "pos": 1, "meh": 1}
    assert summary.train.lengths == {"min": 6, "p50": 7, "p90": 9, "p95": 9, "p99": 9, "max": 9}
    assert (
        summary.train.num_truncated_rows,
        summary.train.num_truncated_tokens,
        summary.train.tokens,
    ) == (1, 1, 28)
    assert summary.num_shared_rows == 3
    assert (summary.train.bin_width, sum(summary.train.length_histogram)) == (1, 4)
    assert summary.train.length_histogram == [0, 0, 0, 0, 0, 1, 2, 0, 1]
    assert summary.train.truncated_length_histogram == [0, 0, 0, 0, 0, 0, 0, 0, 1]
    text = "\n".join(summary.lines())
    assert "truncates 1 row (25.0%) by 1 token in total" in text
    assert "majority baseline: 66.7%" in text
    assert "labels that never occur: 'meh'" in text


def test_rows_without_any_label_have_no_majority(tokenizer: Tokenizer) -> None:
    task = make_multilabel_task(tokenizer)
    rows = [{"text": "good", "pair": "bad", "label": labels} for labels in (["pos"], [])]
    train, dev = task.examples(rows, 0), task.examples(rows[1:], 0)
    text = "\n".join(DataSummary.from_examples(task, ("train", train), ("dev", dev)).lines())
    assert "dev: 1 row\n" in text
    assert "majority" not in text


def test_rows_of_several_labels_have_shares_of_rows_and_no_majority(tokenizer: Tokenizer) -> None:
    """Their accuracy is of all labels of a row, which is not what the commonest label would get."""
    task = make_multilabel_task(tokenizer)
    labels = [["pos", "neg"], ["pos", "neg"], ["pos"], []]
    rows = [{"text": "good", "pair": "bad", "label": names} for names in labels]
    examples = task.examples(rows, 0)
    text = "\n".join(
        DataSummary.from_examples(task, ("train", examples), ("dev", examples)).lines()
    )
    assert text.count("labels: 'neg' 2 (50.0%), 'pos' 3 (75.0%), 'meh' 0 (0.0%)") == 2
    assert "majority" not in text


def test_network_needs_no_targets_to_predict(tokenizer: Tokenizer) -> None:
    task = make_task(tokenizer)
    network = task.network(CONFIG)
    assert isinstance(network, ClassificationNetwork)
    batch = task.collate(task.examples(ROWS, 0, labelled=False)).to("cpu")
    assert network.predict(batch)["logits"].shape == (4, 3)


@pytest.mark.parametrize("lm_weight", [0.0, 0.5])
@pytest.mark.parametrize("labelled", [False, True])
def test_next_pieces_are_counted_only_for_training(
    tokenizer: Tokenizer, lm_weight: float, labelled: bool
) -> None:
    """A loss is divided by its count: of rows, and of the tokens that have a next one."""
    task = make_task(tokenizer, lm_weight=lm_weight)
    batch = task.collate(task.examples(ROWS, 0, labelled=labelled))
    next_tokens = sum(len(example.sequences[0].input_ids) - 1 for example in batch.examples)
    rows, tokens = {"classification": len(ROWS)}, {"weighted_lm": next_tokens}
    expected = {**rows, **(tokens if lm_weight else {})} if labelled else {}
    assert batch.counts == expected
