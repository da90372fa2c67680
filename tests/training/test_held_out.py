"""A pre-trained model on the held-out documents of a prepared corpus."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import torch

import bertworks as bw
from bertworks.data.shards import Corpus
from bertworks.errors import CheckpointError, DataError, SettingsError
from bertworks.settings.base import RUN_FORMAT
from bertworks.tasks.pretraining.instances import InstanceSettings
from bertworks.tasks.pretraining.source import PretrainingSource, split_held_out
from bertworks.tasks.pretraining.task import PretrainingTask
from tests.checkpoints.test_store import tiny
from tests.cli.conftest import bertworks
from tests.training.tiny_run import tiny_run

FORMAT = f"format_version: {RUN_FORMAT}\n"
HELD_OUT = {"documents": 5, "sequences": 8, "max_seq_length": 24}


@pytest.fixture(scope="module")
def run(prepared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("held-out") / "run"
    tiny_run(prepared_data, out, precision="fp32", steps=3)
    return out


@pytest.mark.long
def test_the_metrics_are_those_of_the_run_s_last_evaluation(prepared_data: Path, run: Path) -> None:
    last = tiny_run(prepared_data, run, precision="fp32", steps=3).metrics
    evaluation = bw.load(run).evaluate(prepared_data, precision="fp32", **HELD_OUT)
    assert evaluation.rows == 8
    assert evaluation.notes == ["5 documents held out"]
    assert last == pytest.approx({key: evaluation.metrics[key] for key in last}, rel=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("held_out_seed", [None, 5])
def test_held_out_documents_are_those_of_the_run(
    prepared_data: Path, tmp_path: Path, held_out_seed: int | None
) -> None:
    held_out = {"documents": 5, "sequences": 8, "seed": held_out_seed}
    values = {"precision": "fp32", "steps": 3, "seed": 7, "held_out": held_out}
    last = tiny_run(prepared_data, tmp_path / "run", **values).metrics
    for model in (tmp_path / "run", tmp_path / "run" / "model"):
        evaluation = bw.load(model).evaluate(prepared_data, precision="fp32")
        assert evaluation.rows == 8
        assert evaluation.notes == ["5 documents held out"]
        assert last == pytest.approx({key: evaluation.metrics[key] for key in last}, rel=1e-6)
    given = bw.load(tmp_path / "run").evaluate(prepared_data, precision="fp32", seed=1)
    assert given.rows == 8
    assert given.metrics["loss"] != evaluation.metrics["loss"]


def test_the_seed_is_reported_for_a_model_outside_a_run(
    prepared_data: Path, run: Path, tmp_path: Path
) -> None:
    shutil.copytree(run / "model", tmp_path / "model")
    for source in (tmp_path / "model", run):
        model = bw.load(source)
        found = model.evaluate(prepared_data, precision="fp32", **HELD_OUT)
        told = [note for note in found.notes if "seed=0" in note]
        assert len(told) == (source != run)
        assert model.evaluate(prepared_data, precision="fp32", seed=0, **HELD_OUT).notes == [
            "5 documents held out"
        ]


@pytest.mark.parametrize(
    "text", [f"{FORMAT}held_out: 5", f"{FORMAT}held_out: {{}}\nphases: []", "- held_out"]
)
def test_damaged_settings_of_a_run_are_named(
    prepared_data: Path, run: Path, tmp_path: Path, text: str
) -> None:
    shutil.copytree(run / "model", tmp_path / "model")
    (tmp_path / "settings.yaml").write_text(text)
    with pytest.raises(SettingsError) as error:
        bw.load(tmp_path).evaluate(prepared_data)
    assert error.value.where == str(tmp_path / "settings.yaml")


@pytest.mark.parametrize(
    ("settings", "files", "number"),
    [
        ("held_out: {documents: 5}\n", (), "none"),
        ("held_out_share: 5\n", ("journal.jsonl",), "none"),
        ("format_version: 99\nheld_out_share: 5\n", (), "99"),
    ],
)
def test_a_run_in_another_format_is_refused(
    prepared_data: Path,
    run: Path,
    tmp_path: Path,
    settings: str,
    files: tuple[str, ...],
    number: str,
) -> None:
    shutil.copytree(run / "model", tmp_path / "model")
    (tmp_path / "settings.yaml").write_text(settings)
    for name in files:
        (tmp_path / name).touch()
    message = rf"settings\.yaml: written in another format \({number}, not"
    with pytest.raises(DataError, match=message):
        bw.load(tmp_path).evaluate(prepared_data)


def test_a_settings_file_of_another_program_is_ignored(
    prepared_data: Path, run: Path, tmp_path: Path
) -> None:
    shutil.copytree(run / "model", tmp_path / "model")
    (tmp_path / "settings.yaml").write_text("theme: dark\n")
    notes = bw.load(tmp_path).evaluate(prepared_data, precision="fp32", **HELD_OUT).notes
    assert any("seed=0" in note for note in notes)


def test_evaluation_ignores_the_format_of_the_run(tmp_path: Path) -> None:
    """Only the model is read, which has a format of its own."""
    rows = [{"text": "a", "label": "yes"}, {"text": "b", "label": "no"}]
    model = tiny("classification")
    model.save(tmp_path / "model")
    (tmp_path / "settings.yaml").write_text("format_version: 99\n")
    (tmp_path / "journal.jsonl").touch()
    assert bw.load(tmp_path).evaluate(rows).metrics == model.evaluate(rows).metrics


def test_accuracy_of_masked_tokens_is_counted(prepared_data: Path, run: Path) -> None:
    """The share of `[MASK]`s that the network fills rightly, counted one by one."""
    corpus = Corpus.open(prepared_data)
    tokenizer = corpus.load_tokenizer()
    documents = split_held_out(corpus, 5, seed=3)[1]
    instances = InstanceSettings(max_seq_length=24)
    source = PretrainingSource(corpus, documents, tokenizer, instances, seed=3)
    model = bw.load(run)
    right = []
    for example in source.examples(limit=8):
        batch = PretrainingTask(tokenizer, instances).collate([example]).to("cpu")
        with torch.no_grad():
            predicted = model.network.predict(batch)["mlm_logits"].argmax(-1)
        positions = batch.targets["masked_positions"].tolist()
        for position, label, answer in zip(
            positions, batch.targets["masked_labels"].tolist(), predicted.tolist(), strict=True
        ):
            if batch.packed.input_ids[position] == tokenizer.mask_id:
                right.append(label == answer)
    found = model.evaluate(prepared_data, precision="fp32", seed=3, **HELD_OUT).metrics
    assert found["mlm_mask_accuracy"] == pytest.approx(sum(right) / len(right))
    assert len(right) > 10


def test_command_line_shows_held_out_metrics(prepared_data: Path, run: Path) -> None:
    words = [f"{key}={value}" for key, value in HELD_OUT.items()]
    found = bertworks("evaluate", run, "--data", prepared_data, "--device", "cpu", *words)
    assert found.exit_code == 0, found.output
    assert re.search(r"^mlm_mask_accuracy +0\.\d{4}$", found.output, re.MULTILINE)


def test_a_corpus_that_does_not_fit_is_refused(
    prepared_data: Path, run: Path, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match="is a prepared corpus, and the model was trained for clas"):
        tiny("classification").evaluate(prepared_data)
    with pytest.raises(DataError, match="prepared with another tokenizer"):
        tiny().evaluate(prepared_data)
    with pytest.raises(SettingsError, match=r"sequences=8 is for a prepared corpus"):
        tiny("classification").evaluate([{"text": "a", "label": "yes"}], sequences=8)
    shutil.copytree(prepared_data, tmp_path / "bad")
    (tmp_path / "bad" / "manifest.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"manifest\.json: written in another format"):
        bw.load(run).evaluate(tmp_path / "bad")
