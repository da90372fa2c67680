"""The engine: answers in the order of the rows, for any batches, in bounded memory."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bertworks.data.rows import LocatedRow
from bertworks.data.tables import read_rows
from bertworks.errors import BertworksWarning, CheckpointError, DataError, OutputError
from bertworks.inference.engine import predict
from bertworks.inference.evaluate import evaluate
from bertworks.inference.prediction_files import write_predictions
from bertworks.inference.settings import EngineSettings
from bertworks.model import Model
from bertworks.nn.config import EncoderConfig
from bertworks.packed import by_tokens
from bertworks.tasks.classification import (
    ClassificationSettings,
    ClassificationTask,
)
from bertworks.tasks.evaluators import SingleLabelEvaluator
from bertworks.tasks.text_network import ClassificationNetwork
from bertworks.text.tokenizer import Tokenizer

pytestmark = pytest.mark.filterwarnings("ignore:3 of 6. rows have an empty text")

LETTERS = "abcdefghijklmnopqrstuvwxyz"
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS]
CONFIG = EncoderConfig(
    vocab_size=len(PIECES),
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=64,
    max_position_embeddings=32,
    initializer_range=0.3,
)


@pytest.fixture
def task() -> ClassificationTask:
    tokenizer = Tokenizer.from_vocabulary(PIECES)
    columns = {"text_column": "text", "label_column": "label"}
    settings = ClassificationSettings(labels=("x", "y"), max_seq_length=32, **columns)
    return ClassificationTask(tokenizer, settings)


@pytest.fixture
def network(task: ClassificationTask) -> ClassificationNetwork:
    torch.manual_seed(0)
    return task.network(CONFIG)


@pytest.fixture
def rows() -> list[dict[str, Any]]:
    random = np.random.default_rng(0)
    return [
        {
            "text": " ".join(random.choice(list(LETTERS), random.integers(0, 30))),
            "label": "xy"[i % 2],
        }
        for i in range(60)
    ]


@pytest.mark.long
def test_answers_do_not_depend_on_batches(
    task: ClassificationTask, network: ClassificationNetwork, rows: list[dict[str, Any]]
) -> None:
    outcomes = []
    for batch_tokens, window_rows in ((1, 1), (8192, 4096), (100, 7), (33, 60)):
        settings = EngineSettings(batch_tokens=batch_tokens, window_rows=window_rows)
        answers = list(predict(network, task, read_rows(rows), settings))
        assert [row["text"] for row, _ in answers] == [row["text"] for row in rows]
        outcomes.append([answer["probabilities"]["y"] for _, answer in answers])
    assert np.ptp(outcomes[0]) > 0.01, "answers differ from row to row"
    for outcome in outcomes[1:]:
        np.testing.assert_allclose(outcome, outcomes[0], atol=1e-6)


def test_batches_keep_to_the_budget(task: ClassificationTask, rows: list[dict[str, Any]]) -> None:
    examples = list(task.labelled_examples(read_rows(rows), chunk_rows=9))
    assert [example.index for example in examples] == list(range(60))
    batches = list(by_tokens(examples, 50))
    assert sorted(example.index for batch in batches for example in batch) == list(range(60))
    sizes = [sum(example.num_tokens for example in batch) for batch in batches]
    assert max(sizes) <= 50
    assert all(len(batch) == 1 for batch in by_tokens(examples, 1))


def test_rows_are_read_as_a_stream(
    task: ClassificationTask, network: ClassificationNetwork
) -> None:
    num_read = 0

    def endless() -> Iterator[LocatedRow]:
        nonlocal num_read
        while True:
            num_read += 1
            yield LocatedRow(f"row {num_read}", {"text": "a b c"})

    answers = predict(network, task, endless(), EngineSettings(window_rows=10))
    for _ in range(25):
        next(answers)
    assert num_read == 30


def test_truncated_rows_are_reported(
    task: ClassificationTask, network: ClassificationNetwork, rows: list[dict[str, Any]]
) -> None:
    long = [*rows, {"text": "a " * 50, "label": "x"}, {"text": "b " * 33, "label": "y"}]
    predicted = "2 of 62 rows were too long for the model: 23 tokens cut off"
    with pytest.warns(BertworksWarning, match=predicted):
        assert (
            len(list(predict(network, task, read_rows(long), EngineSettings(window_rows=7)))) == 62
        )
    model = Model(task.tokenizer, task, network)
    assert model.evaluate(long).notes == [predicted]
    assert model.evaluate(rows).notes == []


def test_the_network_stays_as_it_is(
    task: ClassificationTask, network: ClassificationNetwork, rows: list[dict[str, Any]]
) -> None:
    network.train()
    network.encoder.compute_dtype = torch.bfloat16
    plain = [answer["probabilities"]["y"] for _, answer in predict(network, task, read_rows(rows))]
    assert network.training
    assert network.encoder.compute_dtype is torch.bfloat16
    half = EngineSettings(precision="bf16")
    rough = [
        answer["probabilities"]["y"] for _, answer in predict(network, task, read_rows(rows), half)
    ]
    assert plain != rough
    np.testing.assert_allclose(plain, rough, atol=0.05)


def test_evaluation_is_of_all_rows(
    task: ClassificationTask, network: ClassificationNetwork, rows: list[dict[str, Any]]
) -> None:
    examples = list(task.labelled_examples(read_rows(rows)))
    outcome = evaluate(network, task, iter(examples), EngineSettings(window_rows=11))
    said = [answer["label"] for _, answer in predict(network, task, read_rows(rows))]
    right = np.mean([label == row["label"] for label, row in zip(said, rows, strict=True)])
    assert outcome.rows == 60
    assert outcome.metrics["accuracy"] == pytest.approx(right)
    with pytest.raises(DataError, match="nothing to evaluate"):
        evaluate(network, task, [])


def test_an_evaluation_in_bfloat16_says_so(
    task: ClassificationTask, network: ClassificationNetwork, rows: list[dict[str, Any]]
) -> None:
    model = Model(task.tokenizer, task, network)
    assert model.evaluate(rows, precision="bf16").notes == ["computed in bfloat16"]


def test_bad_rows_are_placed(
    task: ClassificationTask, network: ClassificationNetwork, tmp_path: Path
) -> None:
    file = tmp_path / "data.tsv"
    file.write_text("text\tlabel\na\tx\nb\tz\n")
    with pytest.raises(DataError, match=r"data.tsv:3: the label 'z' was not seen in training"):
        list(task.labelled_examples(read_rows(file)))


def test_predictions_are_written_in_every_format(tmp_path: Path) -> None:
    answers = [({"text": "a", "n": 1}, {"label": "x", "probabilities": {"x": 0.75, "y": 0.25}})]
    assert write_predictions(tmp_path / "out.tsv", answers) == 1
    assert (tmp_path / "out.tsv").read_text() == (
        "text\tn\tprediction.label\tprediction.probabilities.x\tprediction.probabilities.y\n"
        "a\t1\tx\t0.75\t0.25\n"
    )
    assert write_predictions(tmp_path / "out.jsonl", answers) == 1
    line = json.loads((tmp_path / "out.jsonl").read_text())
    assert line == {"text": "a", "n": 1, "prediction": answers[0][1]}
    stream = io.StringIO()
    assert write_predictions(stream, [], format="jsonl") == 0
    with pytest.raises(DataError, match="already have a column 'prediction'"):
        write_predictions(stream, [({"prediction": 1}, {"label": "x"})], format="jsonl")


def test_a_table_that_was_written_is_read_with_its_values(tmp_path: Path) -> None:
    row = {"body": "a", "id": 123456789.0, "day": date(2024, 5, 17), "price": Decimal("1.5")}
    prediction = {"value": 0.123456789}
    write_predictions(tmp_path / "out.tsv", [(row, prediction)])
    (read,) = read_rows(tmp_path / "out.tsv")
    assert read.values == {
        **{"body": "a", "id": "123456789.0", "day": "2024-05-17", "price": "1.5"},
        "prediction.value": "0.123457",
    }
    # A table without names has numbers for them.
    write_predictions(tmp_path / "out.tsv", [({"1": "a b"}, prediction)], overwrite=True)
    assert read_rows(tmp_path / "out.tsv").columns == ("1", "prediction.value")


def test_lone_surrogate_in_another_column_changes_no_answers(tmp_path: Path) -> None:
    answers = [({"text": "a", "user": "\ud83d é"}, {"label": "x"})]
    write_predictions(tmp_path / "out.jsonl", answers)
    (read,) = read_rows(tmp_path / "out.jsonl")
    assert read.values == {**answers[0][0], "prediction": {"label": "x"}}
    with pytest.raises(DataError, match=r"line 2: '\\ud83d' cannot be encoded in UTF-8"):
        write_predictions(tmp_path / "out.tsv", answers)


@pytest.mark.parametrize("name", ["a.xlsx", "a.parquet", "a.jsonl.gz", "a.json", "a.tsv.gz"])
def test_no_table_is_written_under_the_name_of_another_format(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match=r"cannot be written as \.\w+\. Name it \.tsv, \.csv or"):
        write_predictions(tmp_path / name, [({"text": "a"}, {"label": "x"})])


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    def answers() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        yield {"text": "a"}, {"label": "x"}
        raise DataError("bad row", where="f:2")

    with pytest.raises(DataError, match="bad row"):
        write_predictions(tmp_path / "out.tsv", answers())
    assert not list(tmp_path.iterdir())
    with pytest.raises(OutputError, match="cannot be written"):
        write_predictions(tmp_path / "no" / "out.tsv", answers())


def overflowing(network: ClassificationNetwork, piece: int) -> None:
    """Have a network compute what is not finite wherever a piece is, from finite weights."""
    with torch.no_grad():
        network.encoder.embeddings.word_embeddings.weight[piece] = 3e38


def test_the_row_is_named_whose_output_is_not_finite(
    task: ClassificationTask, network: ClassificationNetwork
) -> None:
    overflowing(network, PIECES.index("q"))
    rows = [{"text": "a b"}, {"text": "c d e f g"}, {"text": "a q"}, {"text": "b"}]
    located_rows = [LocatedRow(f"t.tsv:{number}", row) for number, row in enumerate(rows, 2)]
    for settings in (EngineSettings(), EngineSettings(batch_tokens=4, window_rows=1)):
        predictions = predict(network, task, located_rows, settings)
        with pytest.raises(CheckpointError, match=r"^t\.tsv:4: the model's output is not finite"):
            list(predictions)
        labelled = [LocatedRow(row.where, {**row.values, "label": "x"}) for row in located_rows]
        with pytest.raises(CheckpointError, match=r"^row 3: the model's output is not finite"):
            evaluate(network, task, task.labelled_examples(labelled), settings)
    rows.pop(2)
    assert len(list(predict(network, task, [LocatedRow("", row) for row in rows]))) == 3


def test_the_text_is_named_whose_vectors_are_not_finite(
    task: ClassificationTask, network: ClassificationNetwork, tmp_path: Path
) -> None:
    overflowing(network, PIECES.index("q"))
    model = Model(task.tokenizer, task, network)
    texts = ["a b", "c d e f g", "b", "a b c q"]
    says = "^text 4: the model's output is not finite"
    for settings in ({}, {"normalize": True}, {"pooling": "cls"}):
        with pytest.raises(CheckpointError, match=says):
            model.embed(texts, window_rows=2, **settings)
    for of in ("tokens", "words"):
        with pytest.raises(CheckpointError, match="4: the model's output is not finite"):
            model.features_to(tmp_path / f"{of}.parquet", texts, unit=of)
    assert np.isfinite(model.embed(texts[:3])).all()


def test_a_loss_that_is_not_finite_is_no_metric(
    task: ClassificationTask, network: ClassificationNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SingleLabelEvaluator, "result", lambda _: {"loss": math.inf})
    rows = [LocatedRow(f"{number}", {"text": "a", "label": "y"}) for number in range(3)]
    with pytest.raises(CheckpointError, match="the loss of the 3 rows is not finite"):
        evaluate(network, task, task.labelled_examples(rows))
