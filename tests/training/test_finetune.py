"""Fine-tuning learns, keeps the best model, saves it for other libraries, and resumes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from bertworks.errors import DataError, SettingsError, TrainingError
from bertworks.loading import load
from bertworks.model import Model
from bertworks.text.tokenizer import Tokenizer
from bertworks.training.finetune import finetune
from bertworks.training.row_source import RowSource

from .letters import CONFIG, DEV, LETTERS, PIECES, TRAIN, Lines, make_rows, run
from .plain_loop import PlainLoop


@pytest.fixture
def model() -> Model:
    return Model.fresh(CONFIG, Tokenizer.from_vocabulary(PIECES))


@pytest.mark.long
def test_learns_and_is_saved(model: Model, tmp_path: Path) -> None:
    progress = Lines()
    result = run(model, tmp_path / "run", progress=progress, calibrate=False)
    assert result.metrics["accuracy"] > 0.9
    assert not result.notes
    assert result.history == list(result.run.lines())
    assert {line["kind"] for line in result.history} == {"train", "eval"}
    assert result.confusion.matrix.sum() == result.data.dev.rows
    assert result.report.startswith("loss ")
    assert result.new_parameters == ("head.linear.weight", "head.linear.bias")
    text = "\n".join(progress.lines)
    assert "columns: text = 'text', label = 'label'" in text
    assert "200 rows\n  labels: 'no' 100 (50.0%), 'yes' 100 (50.0%)\n" in text
    assert "newly initialised: head.linear.weight" in text

    directory = result.run.model
    loaded_model = load(directory)
    texts = [row["text"] for row in DEV]
    answers = loaded_model.predict(texts)
    assert answers == result.model.predict(texts)
    accuracy = np.mean([a["label"] == row["label"] for a, row in zip(answers, DEV, strict=True)])
    assert accuracy == pytest.approx(result.metrics["accuracy"])
    assert loaded_model.evaluate(DEV).metrics == pytest.approx(dict(result.metrics))

    theirs = AutoModelForSequenceClassification.from_pretrained(directory).eval()
    inputs = AutoTokenizer.from_pretrained(directory)(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        chances = torch.softmax(theirs(**inputs).logits, -1)[:, theirs.config.label2id["yes"]]
    ours = [answer["probabilities"]["yes"] for answer in answers]
    np.testing.assert_allclose(ours, chances, atol=1e-5)
    assert result.run.report.is_file()
    data = json.loads((result.run.path / "data.json").read_text())
    assert data["train"]["rows"] == 200


@pytest.mark.long
def test_a_run_is_that_of_hugging_face_in_a_plain_loop(tmp_path: Path) -> None:
    """From a head that is known, without dropout: the same batches end in the same answers."""
    config = CONFIG.with_values(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    model = Model.fresh(config, Tokenizer.from_vocabulary(PIECES))
    start = run(model, tmp_path / "start", epochs=0.1).run.model
    settings = {"eval_every": 1000, "weight_decay": 0.1, "calibrate": False}
    result = run(load(start), tmp_path / "run", **settings)
    assert not result.new_parameters
    assert result.metrics["accuracy"] > 0.9, "it has learned"

    peer = AutoModelForSequenceClassification.from_pretrained(start)
    tokenizer = AutoTokenizer.from_pretrained(start)
    loop = PlainLoop(peer, weight_decay=0.1)
    rows = RowSource([SimpleNamespace(num_tokens=1, **row) for row in TRAIN], seed=0, batch_size=16)
    order = [row for epoch in range(4) for row in rows.block(epoch, 0)]
    total = len(order) // 16
    warmup = 0.1 * total
    for step in range(total):
        part = order[step * 16 : (step + 1) * 16]
        inputs = tokenizer([row.text for row in part], padding=True, return_tensors="pt")
        labels = torch.tensor([peer.config.label2id[row.label] for row in part])
        lr = 1e-2 * (step / warmup if step < warmup else 1 - step / total)
        loop.step({**inputs, "labels": labels}, lr)

    texts = [row["text"] for row in DEV]
    inputs = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        chances = torch.softmax(peer.eval()(**inputs).logits, -1)
    ours = [list(p["probabilities"].values()) for p in result.model.predict(texts)]
    np.testing.assert_allclose(ours, chances, atol=1e-5)


@pytest.mark.long
def test_a_batch_larger_than_the_table_is_all_of_it(model: Model, tmp_path: Path) -> None:
    """Each epoch is one step of all rows; an interrupted run is resumed."""
    few: dict[str, Any] = {"train": TRAIN[:10], "dev": DEV[:10], "epochs": 3, "checkpoint_every": 1}
    progress = Lines()
    whole = run(model, tmp_path / "whole", progress=progress, batch_size=32, **few)
    said = "batch_size=32 is more than the 10 training examples: each step takes all of them"
    assert said in progress.lines
    (note,) = [line for line in progress.lines if line.startswith("only 3 steps in all")]
    assert ": epochs=200 takes about 200" in note
    last = [line for line in whole.run.lines() if line["kind"] == "train"][-1]
    assert (last["step"], last["examples"]) == (3, 30)
    exact = run(model, tmp_path / "exact", batch_size=10, **few)
    with pytest.raises(RuntimeError, match="switched off"):
        run(model, tmp_path / "broken", progress=Lines(stop_after=2), batch_size=32, **few)
    broken = run(model, tmp_path / "broken", batch_size=32, **few)
    weights = whole.model.network.state_dict()
    for other in (exact, broken):
        for name, value in other.model.network.state_dict().items():
            assert torch.equal(weights[name], value), name
    with pytest.raises(SettingsError, match=r"^batch_size=10+: .*1048576"):
        run(model, tmp_path / "absurd", batch_size=10**30, **few)


def test_a_header_of_ones_own_is_known_again(model: Model, tmp_path: Path) -> None:
    def table(name: str, rows: list[dict[str, Any]], columns: tuple[str, ...]) -> Path:
        lines = [columns, *((row["label"], row["text"])[-len(columns) :] for row in rows)]
        file = tmp_path / name
        file.write_text("".join("\t".join(line) + "\n" for line in lines))
        return file

    columns = {"text_column": "body", "label_column": "kind"}
    train = table("train.tsv", TRAIN[:40], ("kind", "body"))
    tuned_model = run(model, tmp_path / "run", train=train, dev=None, epochs=1, **columns).model
    few = table("few.tsv", DEV[:3], ("kind", "body"))  # too few rows to tell it by
    assert tuned_model.evaluate(few).rows == 3
    assert tuned_model.predict(data=few) == tuned_model.predict([row["text"] for row in DEV[:3]])
    assert len(tuned_model.predict(data=table("texts.tsv", DEV[:3], ("body",)))) == 3


def test_a_dev_set_of_a_header_alone_is_an_error(model: Model, tmp_path: Path) -> None:
    dev = tmp_path / "dev.tsv"
    dev.write_text("text\tlabel\n")
    with pytest.raises(DataError, match=r"dev\.tsv: there are no rows"):
        run(model, tmp_path / "run", train=TRAIN[:4], dev=dev)


@pytest.mark.long
def test_the_best_is_kept(model: Model, tmp_path: Path) -> None:
    settings = {"eval_every": 7, "learning_rate": 5e-2, "calibrate": False}
    result = run(model, tmp_path / "run", best_metric="loss", **settings)
    metrics_by_batch = {
        line["step"]: line["metrics"]["loss"]
        for line in result.run.lines()
        if line["kind"] == "eval"
    }
    assert len(metrics_by_batch) == 8
    assert result.best_step == min(metrics_by_batch, key=metrics_by_batch.__getitem__)
    assert result.metrics["loss"] == pytest.approx(min(metrics_by_batch.values()), rel=1e-4)


@pytest.mark.long
def test_an_interrupted_run_resumes_to_the_same_bits(model: Model, tmp_path: Path) -> None:
    whole = run(model, tmp_path / "whole", checkpoint_every=9)
    for step in (12, 31):
        with pytest.raises(RuntimeError, match="switched off"):
            run(model, tmp_path / "broken", checkpoint_every=9, progress=Lines(stop_after=step))
    interrupted_run = run(model, tmp_path / "broken", checkpoint_every=9)
    weights = interrupted_run.model.network.state_dict()
    for name, value in whole.model.network.state_dict().items():
        assert torch.equal(weights[name], value), name
    journals = [
        [{k: v for k, v in line.items() if k != "time"} for line in result.run.lines()]
        for result in (whole, interrupted_run)
    ]
    assert journals[0] == journals[1]


@pytest.mark.long
def test_another_start_is_refused(model: Model, tmp_path: Path) -> None:
    run(model, tmp_path / "run", epochs=0.1)
    for table in ("train", "dev"):
        with pytest.raises(TrainingError, match=f"started with other rows for {table}, or another"):
            run(model, tmp_path / "run", epochs=0.1, **{table: make_rows(200, 5)})
    reversed_tokenizer = Tokenizer.from_vocabulary([*PIECES[:5], *reversed(LETTERS)])
    for other in (
        Model.fresh(CONFIG, model.tokenizer, seed=1),
        Model(reversed_tokenizer, model.task, model.network),
    ):
        with pytest.raises(TrainingError, match="started with another model: its weights or its v"):
            run(other, tmp_path / "run", epochs=0.1)
    with pytest.raises(TrainingError, match=r"started with epochs=0\.1, not 0\.2"):
        run(model, tmp_path / "run", epochs=0.2)


@pytest.mark.long
def test_a_classifier_s_head_is_trained_further(model: Model, tmp_path: Path) -> None:
    first = run(model, tmp_path / "first")
    second = run(first.model, tmp_path / "second", epochs=0.01, learning_rate=1e-9)
    assert not second.new_parameters
    assert second.metrics["accuracy"] == first.metrics["accuracy"]
    random = run(first.model, tmp_path / "third", epochs=0.01, reinitialize=True)
    assert random.metrics["accuracy"] < 0.9
    other = [{"text": row["text"], "label": row["label"] * 2} for row in TRAIN]
    fourth = run(first.model, tmp_path / "fourth", epochs=0.01, train=other, dev=None)
    assert fourth.new_parameters == ("head.linear.weight", "head.linear.bias")


@pytest.mark.long
def test_a_classifier_on_the_mean_stays_one(model: Model, tmp_path: Path) -> None:
    first = run(model, tmp_path / "1", classifier_pooling="mean")
    assert first.metrics["accuracy"] > 0.9
    assert first.model.encoder.pooler is None
    assert first.model.encoder.config.classifier_pooling == "mean"
    # Its settings are the checkpoint's unless others are given; its head is trained further.
    second = run(first.model, tmp_path / "2", epochs=1)
    assert second.model.encoder.config.classifier_pooling == "mean"
    assert second.new_parameters == ()
    other = run(first.model, tmp_path / "3", epochs=1, classifier_pooling="cls")
    assert "encoder.pooler.dense.weight" in other.new_parameters
    assert "head.linear.weight" in other.new_parameters


@pytest.mark.long
def test_accumulation_gives_the_update_of_the_whole_batch(tmp_path: Path) -> None:
    config = CONFIG.with_values(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    model = Model.fresh(config, Tokenizer.from_vocabulary(PIECES))
    options: dict[str, Any] = {"dropout": 0.0, "learning_rate": 1e-3, "epochs": 1, "dev": None}
    whole = run(model, tmp_path / "whole", **options)
    parts = run(model, tmp_path / "parts", micro_batch_tokens=25, **options)
    theirs = whole.model.network.state_dict()
    start = model.network.state_dict()
    for name, value in parts.model.network.state_dict().items():
        torch.testing.assert_close(value, theirs[name], rtol=1e-4, atol=1e-5)
        assert name not in start or not torch.equal(value, start[name]), name


@pytest.mark.parametrize(
    "setting", [{"seed": -1}, {"epochs": math.inf}, {"unfreeze_epochs": math.inf}]
)
def test_numbers_that_no_run_can_have(
    model: Model, tmp_path: Path, setting: dict[str, Any]
) -> None:
    with pytest.raises(SettingsError, match=next(iter(setting))):
        run(model, tmp_path / "run", **setting)


@pytest.mark.long
def test_a_run_stops_early_without_improvement(model: Model, tmp_path: Path) -> None:
    progress = Lines()
    options: dict[str, Any] = {"learning_rate": 5e-2, "early_stopping": 2, "eval_every": 7}
    result = run(model, tmp_path / "run", epochs=40, progress=progress, **options)
    steps = [line["step"] for line in result.run.lines() if line["kind"] == "eval"]
    assert result.best_step == steps[-3]
    assert steps[-1] < 500
    assert any("stopped early after step" in line for line in progress.lines)


@pytest.mark.long
def test_patience_starts_when_all_layers_are_trained(model: Model, tmp_path: Path) -> None:
    options = {"learning_rate": 1e-9, "early_stopping": 2, "epochs": 12}
    result = run(model, tmp_path / "run", unfreeze_epochs=3, **options)
    steps = [line["step"] for line in result.run.lines() if line["kind"] == "eval"]
    assert result.best_step == steps[0]
    stopped = list(result.run.lines())[-1]
    assert stopped["why"].endswith("no better in 7 evaluations since")
    assert len(steps) == 8  # the layer learns after 3 epochs, the embeddings after 6
    # Nobody waits for what would come only after the end.
    late = run(model, tmp_path / "late", unfreeze_epochs=12, **options)
    assert len([line for line in late.run.lines() if line["kind"] == "eval"]) == 3


@pytest.mark.long
@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"epochs": 3}, "the top 2 of 3"),
        ({"epochs": 5}, None),
        ({"epochs": 4, "freeze_embeddings": True}, None),
        ({"epochs": 2, "freeze_layers": 1}, "the top 1 of 3"),
        ({"epochs": 3, "freeze_layers": 1}, None),
        ({"epochs": 4, "freeze_layers": 2}, None),
    ],
)
def test_layers_that_gradual_unfreezing_does_not_reach_are_reported(
    tmp_path: Path, settings: dict[str, Any], says: str | None
) -> None:
    model = Model.fresh(CONFIG.with_values(num_hidden_layers=3), Tokenizer.from_vocabulary(PIECES))
    initial_weights = model.encoder.state_dict()
    progress = Lines()
    options = {"unfreeze_epochs": 1, "dev": None, "train": TRAIN[:32], **settings}
    after = run(model, tmp_path / "run", progress=progress, **options).model.encoder.state_dict()
    num_changed = sum(
        not torch.equal(initial_weights[name], after[name])
        for name in (f"layers.{number}.attention.output.weight" for number in range(3))
    )
    assert [line for line in progress.lines if "gradual" in line] == (
        [] if says is None else [f"gradual unfreezing reaches only {says} layers"]
    )
    assert num_changed == (3 - settings.get("freeze_layers", 0) if says is None else int(says[8]))


@pytest.mark.long
def test_gradual_unfreezing_counts_in_epochs(model: Model, tmp_path: Path) -> None:
    progress = Lines()
    initial_weights = model.encoder.state_dict(prefix="encoder.")
    result = run(model, tmp_path / "run", unfreeze_epochs=1, epochs=2, dev=None, progress=progress)
    now = result.model.network.state_dict()
    for name in ("embeddings.word_embeddings.weight", "layers.0.attention.output.weight"):
        same = torch.equal(now[f"encoder.{name}"], initial_weights[f"encoder.{name}"])
        assert same == name.startswith("embeddings")
    assert "gradual unfreezing reaches only the top 1 of 1 layers" in progress.lines


@pytest.mark.long
def test_one_predicted_class_for_all_rows_is_reported(model: Model, tmp_path: Path) -> None:
    progress = Lines()
    lopsided = [*TRAIN[:2], *TRAIN[::2]]
    result = run(model, tmp_path / "run", train=lopsided, epochs=1, progress=progress)
    note = "every row is predicted to be 'no': nothing has been learned yet"
    assert note in result.notes
    assert note in progress.lines


@pytest.mark.long
def test_the_last_weights_are_saved_without_dev(model: Model, tmp_path: Path) -> None:
    result = run(model, tmp_path / "run", dev=None)
    assert result.metrics == {}
    assert result.model.evaluate(DEV).metrics["accuracy"] > 0.9


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"learning_rat": 1}, SettingsError, "'learning_rat'. The nearest .* 'learning_rate'"),
        (
            {"dev": None, "early_stopping": 2},
            SettingsError,
            "early_stopping=2: there are no evaluation rows",
        ),
        (
            {"dev": None, "best_metric": "loss"},
            SettingsError,
            "best_metric=loss: there are no evaluation rows",
        ),
        (
            {"dev": None, "eval_every": 5},
            SettingsError,
            "eval_every=5: there are no evaluation rows",
        ),
        ({"temperature": 2.0}, SettingsError, r"temperature=2\.0 does nothing without teacher"),
        ({"best_metric": "acuracy"}, SettingsError, "not a metric of this task.*'accuracy'"),
        (
            {"epochs": 2, "unfreeze_epochs": 2.5},
            SettingsError,
            r"unfreeze_epochs=2\.5 is more than epochs=2: only the head would learn",
        ),
        (
            {"multi_label": True},
            SettingsError,
            "The task multilabel is for rows with any number of labels",
        ),
        ({"positive_label": "yess"}, SettingsError, "not one of the labels 'no', 'yes'"),
        (
            {"max_seq_length": 64},
            SettingsError,
            "more than the 32 tokens that the encoder's max_position_embeddings",
        ),
        (
            {"label_column": "lable"},
            DataError,
            "no column 'lable'; its columns are 'text', 'label'",
        ),
        ({"train": TRAIN[::2]}, DataError, "two different labels"),
        ({"dev": [{"text": "a", "label": "maybe"}]}, DataError, "row 1: the label 'maybe' was not"),
        ({"train": "-"}, DataError, "standard input"),
        ({"max_seq_length": 5, "truncation": "error"}, DataError, "row 1: .* at most 5 fit"),
    ],
)
def test_mistakes_are_found_before_a_run_begins(
    model: Model, tmp_path: Path, settings: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        run(model, tmp_path / "run", **settings)
    assert not (tmp_path / "run" / "journal.jsonl").exists()


def test_only_tasks_that_there_are(model: Model, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no task 'clasification' can be fine-tuned"):
        finetune(model, "clasification", train=TRAIN, out=tmp_path / "run")
