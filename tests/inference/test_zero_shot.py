"""Labels that a model was not trained for: transformers' pipeline, and cosines of vectors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.training.letters import CONFIG, WORD_PIECES
from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline
from typer.testing import CliRunner

from bertworks.cli import app
from bertworks.errors import DataError, SettingsError
from bertworks.inference.native_model import NativeModel
from bertworks.inference.settings import PredictSettings
from bertworks.loading import load
from bertworks.model import Model
from bertworks.tasks.classification import ClassificationSettings, ClassificationTask
from bertworks.text.tokenizer import Tokenizer

TEXTS = ["a b c", "x y " * 30, "hello", "a"]
LABELS = ("zoo", "b", "cab ab")
TEMPLATE = "it is {} now"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier of entailment with random weights."""
    torch.manual_seed(0)
    tokenizer = Tokenizer.from_vocabulary(WORD_PIECES)
    values = {"text_column": "text", "pair_column": "pair", "label_column": "label"}
    labels = ("contradiction", "neutral", "Entailment")
    windows = {"truncation": "windows", "stride": 16, "window_pooling": "max"}
    settings = ClassificationSettings.parse(
        {**values, **windows, "labels": labels, "max_seq_length": 32}
    )
    task = ClassificationTask(tokenizer, settings)
    network = task.network(CONFIG.with_values(vocab_size=len(WORD_PIECES), initializer_range=0.5))
    path = tmp_path_factory.mktemp("nli") / "model"
    Model(tokenizer, task, network.eval()).save(path)
    return path


def test_entailment_is_that_of_the_pipeline_of_transformers(directory: Path) -> None:
    peer = AutoModelForSequenceClassification.from_pretrained(directory)
    tokenizer = AutoTokenizer.from_pretrained(directory, model_max_length=32)
    classify = pipeline("zero-shot-classification", model=peer, tokenizer=tokenizer)
    expected = []
    for answer in classify(TEXTS, list(LABELS), hypothesis_template=TEMPLATE):
        scores = dict(zip(answer["labels"], answer["scores"], strict=True))
        expected.append([scores[label] for label in LABELS])
    for model in (load(directory), NativeModel.load(directory)):
        with pytest.warns(UserWarning, match="1 of 4 rows were too long"):
            answers = model.predict(TEXTS, labels=LABELS, hypothesis_template=TEMPLATE)
        ours = [list(answer["probabilities"].values()) for answer in answers]
        np.testing.assert_allclose(ours, expected, atol=1e-5)
        best = [LABELS[at] for at in np.argmax(expected, 1)]
        assert [answer["label"] for answer in answers] == best


def test_other_braces_of_a_template_are_text(directory: Path) -> None:
    model = load(directory)
    (answer,) = model.predict(["a"], labels=("b", "c"), hypothesis_template="{} is {now} {}")
    names = ("b is {now} b", "c is {now} c")
    (whole,) = model.predict(["a"], labels=names, hypothesis_template="{}")
    assert [*answer["probabilities"].values()] == [*whole["probabilities"].values()]


def test_table_resumes_and_command_line_takes_labels(directory: Path, tmp_path: Path) -> None:
    table, out = tmp_path / "texts.tsv", tmp_path / "answers.jsonl"
    table.write_text("sentence\tnumber\n" + "".join(f"{text}\t1\n" for text in TEXTS))
    command = ["predict", str(directory), "--data", str(table), "--labels", ", ".join(LABELS)]
    result = CliRunner().invoke(app, [*command, "--out", str(out), "--device", "cpu"])
    assert result.exit_code == 0, result.output
    rows = [json.loads(line)["prediction"] for line in out.read_text().splitlines()]
    with pytest.warns(UserWarning, match="too long"):
        assert rows == load(directory).predict(TEXTS, labels=LABELS)
    with pytest.raises(DataError, match="other"):
        load(directory).predict_to(out, table, labels=("zoo", "b"))


def test_sentence_encoder_compares_vectors_of_texts_and_labels() -> None:
    model = load("mini-sentences")
    texts = ["The cat sleeps on the sofa.", "The bank raised its interest rates."]
    answers = model.predict(texts, labels=("money", "pets"))
    assert [answer["label"] for answer in answers] == ["pets", "money"]
    expected = model.similarity(texts, ["money", "pets"])
    ours = [list(answer["similarities"].values()) for answer in answers]
    np.testing.assert_allclose(ours, expected, atol=1e-6)


def test_labels_of_the_command_line_are_texts() -> None:
    settings = PredictSettings.resolve(overrides=["labels=yes, no,1,bug: old, [x]"])
    assert settings.labels == ("yes", "no", "1", "bug: old", "[x]")
    assert PredictSettings.resolve(overrides=["labels='a, b',c"]).labels == ("a, b", "c")
    command = ["predict", "mini-sentences", "a", "--labels", "a,b", "--device", "cpu"]
    result = CliRunner().invoke(app, [*command, "hypothesis_template=it is {}"])
    assert "does nothing with a sentence encoder" in result.stderr


def test_impossible_labels_are_refused(directory: Path) -> None:
    model = load(directory)
    with pytest.raises(SettingsError, match="at least two names, each once"):
        model.predict("a", labels=("b", "b"))
    with pytest.raises(SettingsError, match=r"has no \{\}"):
        model.predict("a", labels=("b", "c"), hypothesis_template="it is")
    with pytest.raises(SettingsError, match=r"hypothesis_template.*without labels"):
        model.predict("a", hypothesis_template="it is {}")
    with pytest.raises(SettingsError, match=r"hypothesis_template.* with a sentence encoder"):
        load("mini-sentences").predict("a", labels=("b", "c"), hypothesis_template="it is {}")
    with pytest.raises(SettingsError, match="a classifier of entailment"):
        load("mini").predict("a", labels=("b", "c"))
