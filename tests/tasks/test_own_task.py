"""A user's own task: the example, from its file and as a class, trained, saved, opened."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import bertworks as bw
from bertworks import tasks
from bertworks.checkpoints.weights import read_weights
from bertworks.data.tables import read_rows
from bertworks.errors import BertworksError, CheckpointError, SettingsError
from tests.checkpoints.test_store import tiny
from tests.cli.conftest import bertworks
from tests.conftest import ROOT

EXAMPLE = ROOT / "examples" / "own_task.py"
SPEC = f"{EXAMPLE}:RelationTask"
SENTENCES = (
    "1\ta\t_\t_\t_\t_\t2\tdet\t_\t_\n2\tb\t_\t_\t_\t_\t3\tnsubj\t_\t_\n"
    "3\tc\t_\t_\t_\t_\t0\troot\t_\t_\n",
    "# text\n1\td\t_\t_\t_\t_\t2\tamod:x\t_\t_\n2-3\te f\t_\t_\t_\t_\t_\t_\t_\t_\n"
    "2\te\t_\t_\t_\t_\t3\tobj\t_\t_\n3\tf\t_\t_\t_\t_\t0\troot\t_\t_\n",
)
SETTINGS: dict[str, Any] = {
    "epochs": 100,
    "eval_every": 100,
    "dropout": 0.0,
    "batch_size": 4,
    "learning_rate": 2e-2,
    "precision": "fp32",
    "max_seq_length": 12,
}


@pytest.fixture
def empty_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if no task of a user's had been named in this process."""
    monkeypatch.setattr(tasks, "_USER_TASKS", {})


@pytest.fixture(scope="module")
def relation_task() -> Any:
    return tasks.find_labelled_task(SPEC)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("relations")
    treebank, rows = folder / "words.conllu", folder / "rows.jsonl"
    treebank.write_text("\n".join(SENTENCES))
    made = subprocess.run([sys.executable, EXAMPLE, treebank], capture_output=True, check=True)
    rows.write_bytes(made.stdout)
    return rows


@pytest.fixture(scope="module")
def run(table: Path, relation_task: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("own") / "run"
    found = bw.finetune(tiny(), relation_task, train=table, dev=table, out=out, **SETTINGS)
    assert found.metrics["accuracy"] == 1, "four rows are learned by heart"
    return out


def test_the_example_is_as_short_as_it_says() -> None:
    assert len(EXAMPLE.read_text(encoding="utf-8").splitlines()) <= 100


@pytest.mark.long
def test_example_reads_rows_of_a_treebank(table: Path) -> None:
    rows = [json.loads(line) for line in table.read_text().splitlines()]
    assert [row["label"] for row in rows] == ["det", "nsubj", "amod", "obj"]
    assert rows[0] == {"words": ["a", "b", "c"], "first": [0, 1], "second": [1, 2], "label": "det"}


@pytest.mark.long
@pytest.mark.usefixtures("empty_registry")
def test_command_line_runs_a_user_s_task(table: Path, tmp_path: Path) -> None:
    tiny().save(tmp_path / "model")
    words = [f"{key}={value}" for key, value in SETTINGS.items()]
    out = tmp_path / "run"
    finetuning = bertworks(
        *("finetune", SPEC, "--model", tmp_path / "model", "--train", table, "--dev", table),
        *("--out", out, "--device", "cpu", *words),
    )
    assert finetuning.exit_code == 0, finetuning.output
    tasks._USER_TASKS.clear()  # as in another process
    error_result = bertworks("predict", out, "--data", table, "--device", "cpu")
    assert error_result.exit_code == 1
    assert "the task 'relation' is not one of this package" in error_result.output
    assert "--task FILE.py:CLASS" in " ".join(error_result.output.split())
    measured = bertworks("evaluate", out, "--data", table, "--task", SPEC, "--device", "cpu")
    assert measured.exit_code == 0, measured.output
    assert re.search(r"^accuracy +1\.0000$", measured.output, re.MULTILINE)
    predicted = bertworks(
        "predict", out, "--data", table, "--task", SPEC, "--json", "--device", "cpu"
    )
    labels = [json.loads(line)["prediction"]["label"] for line in predicted.output.splitlines()]
    assert labels == ["det", "nsubj", "amod", "obj"]
    tasks._USER_TASKS.clear()
    seen = bertworks("inspect", out)
    assert "task        relation" in seen.output
    assert "heads       relation_head" in seen.output


@pytest.mark.long
@pytest.mark.usefixtures("empty_registry")
def test_a_saved_model_has_its_head_under_its_own_name(run: Path, table: Path) -> None:
    model = run / "model"
    assert json.loads((model / "bertworks.json").read_text())["heads"] == ["relation_head"]
    head = read_weights(model)["relation_head.weight"]
    with pytest.raises(CheckpointError, match="'relation' is not one of this package"):
        bw.load(run)
    model_by_file = bw.load(run, task=SPEC, device="cpu")
    assert torch.equal(model_by_file.network.relation_head.weight, head)
    rows = [row.values for row in read_rows(str(table))]
    labels = [answer["label"] for answer in model_by_file.predict(rows)]
    assert labels == ["det", "nsubj", "amod", "obj"]
    again = model_by_file.save(run.parent / "again")
    for name in ("model.safetensors", "bertworks.json"):
        assert (again / name).read_bytes() == (model / name).read_bytes()


@pytest.mark.parametrize("names", [("no", "yes"), ("no", "perhaps", "yes")])
def test_f1_is_of_the_last_of_two_classes(relation_task: Any, names: tuple[str, ...]) -> None:
    columns = {f"{role}_column": role for role in ("words", "first", "second", "label")}
    values = {**columns, "labels": names, "max_seq_length": 12}
    task = relation_task.from_dict(values, tiny().tokenizer)
    gold, logits = torch.tensor([0, 1, 1, 1]), torch.eye(len(names))[[0, 0, 1, 1]]
    rows = [{"words": ["a"], "first": [0, 1], "second": [0, 1]}] * 4
    batch = task.collate([task.example(row, at, labelled=False) for at, row in enumerate(rows)])
    batch = replace(batch.to("cpu"), targets={"labels": gold})
    evaluator = task.evaluator()
    evaluator.add({"logits": logits}, batch)
    metrics = evaluator.result()
    assert tuple(metrics) == task.metrics
    assert task.positive == ("yes" if len(names) == 2 else None)
    # Of three that are there two are found, and nothing else is taken for them.
    assert metrics.get("f1") == (pytest.approx(0.8) if len(names) == 2 else None)


@pytest.mark.usefixtures("empty_registry")
def test_encoder_alone_is_loaded(run: Path) -> None:
    model = bw.load(run, task="encoder", device="cpu")
    assert model.task is None
    assert model.report is not None
    assert model.report.dropped_tensors == dict.fromkeys(
        ("relation_head.bias", "relation_head.weight"), "the head of another task"
    )
    assert model.embed("a b").shape == (1, model.encoder.config.hidden_size)


def test_transformers_reports_the_head(run: Path) -> None:
    from transformers import AutoModel

    _, info = AutoModel.from_pretrained(run / "model", output_loading_info=True)
    assert set(info["unexpected_keys"]) == {"relation_head.weight", "relation_head.bias"}


@pytest.mark.long
def test_a_run_resumes(run: Path, table: Path, relation_task: Any) -> None:
    again = bw.finetune(tiny(), relation_task, train=table, dev=table, out=run, **SETTINGS)
    assert again.metrics["accuracy"] == 1
    with pytest.raises(BertworksError, match=r"started with learning_rate=0\.02, not 0\.5"):
        bw.finetune(
            tiny(),
            relation_task,
            train=table,
            dev=table,
            out=run,
            **SETTINGS | {"learning_rate": 0.5},
        )


@pytest.mark.usefixtures("empty_registry")
@pytest.mark.parametrize(
    ("code", "spec", "message"),
    [
        ("", "nothing.py:Task", "no such Python file"),
        ("x = 1 / 0", "own.py:Task", r"cannot be imported \(ZeroDivisionError"),
        ("class Task: ...", "own.py:Other", "defines no task 'Other'"),
        ("class Task: ...", "own.py:Task", "is not a task"),
        (
            "from bertworks.tasks.pretraining.task import PretrainingTask as Task",
            "own.py:Task",
            "PretrainingTask is not a LabelledTask",
        ),
        (
            "import bertworks\nclass Task(bertworks.ClassifierTask):\n    name = 'tagging'",
            "own.py:Task",
            "the name of Task is 'tagging'",
        ),
    ],
)
def test_files_without_a_task_are_refused(
    tmp_path: Path, code: str, spec: str, message: str
) -> None:
    if not spec.startswith("nothing"):
        (tmp_path / "own.py").write_text(code)
    with pytest.raises(SettingsError, match=message):
        tasks.find_labelled_task(str(tmp_path / spec))


@pytest.mark.usefixtures("empty_registry")
def test_a_model_of_another_task_is_refused(run: Path, tmp_path: Path) -> None:
    tiny("classification").save(tmp_path / "c")
    with pytest.raises(CheckpointError, match="its task is 'classification', not 'relation'"):
        bw.load(tmp_path / "c", task=SPEC)
    with pytest.raises(SettingsError, match="no task 'relatoin' can be fine-tuned"):
        bw.finetune(tiny(), "relatoin", train=[{"text": "a"}], out=tmp_path / "run")
