"""The table of features and fine-tuning: its rows, its files, and resuming after a kill."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bertworks.errors import DataError, SettingsError, TrainingError
from bertworks.lab import features as ablations
from bertworks.lab.features import TITLE, Choice, ResultRow, Results, ablate_features, choices
from bertworks.lab.tagging_probe import LayerChoice, ProbeResult
from bertworks.model import Model
from bertworks.text.tokenizer import Tokenizer
from tests.training.letters import GEOMETRY, WORD_PIECES, Lines, tagged_row

random = np.random.default_rng(0)
TRAIN, DEV = ([tagged_row(random) for _ in range(count)] for count in (120, 30))
FAST: dict[str, Any] = {
    "max_seq_length": 32,
    "probe": {"lstm_hidden_size": 16, "epochs": 4, "batch_size": 16, "learning_rate": 1e-2},
    "finetune": {"learning_rate": 5e-3, "epochs": 4, "batch_size": 16},
}


@pytest.fixture
def model() -> Model:
    return Model.fresh(GEOMETRY, Tokenizer.from_vocabulary(WORD_PIECES))


def run(model: Model, out: Path, **settings: Any) -> Results:
    given = {"train": TRAIN, "dev": DEV, **FAST, **settings}
    return ablate_features(model, out=out, **given)


def test_the_six_choices_are_the_papers():
    assert choices(12) == [
        Choice("embeddings", LayerChoice((0,)), 91.0),
        Choice("second-to-last", LayerChoice((11,)), 95.6),
        Choice("last", LayerChoice((12,)), 94.9),
        Choice("weighted sum, last 4", LayerChoice((9, 10, 11, 12), mixed=True), 95.9),
        Choice("concatenated, last 4", LayerChoice((9, 10, 11, 12)), 96.1),
        Choice("weighted sum, all", LayerChoice(tuple(range(1, 13)), mixed=True), 95.5),
    ]


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_choices_that_would_be_the_same_are_made_once(count):
    rows = choices(count)
    assert max(max(row.layers.layers) for row in rows) == count
    single = [row.layers.layers for row in rows if len(row.layers.layers) == 1]
    assert single == [(0,), (1,)] if count == 1 else [(0,), (count - 1,), (count,)]
    assert len({row.layers for row in rows}) == len(rows)
    assert len(rows) == {1: 2}.get(count, 5)


def test_choices_without_layers_are_the_embeddings() -> None:
    assert choices(0) == [Choice("embeddings", LayerChoice((0,)), 91.0)]


def probes_made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The directories of the probes that are trained from now on."""
    directories: list[str] = []
    train_probe = ablations.train_probe

    def record_directory(*arguments: Any, out: Path, **more: Any) -> ProbeResult:
        directories.append(out.name)
        return train_probe(*arguments, out=out, **more)

    monkeypatch.setattr(ablations, "train_probe", record_directory)
    return directories


@pytest.mark.long
def test_an_interrupted_table_is_resumed(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = {name: value.clone() for name, value in model.network.state_dict().items()}
    results = run(model, tmp_path / "a")
    names = [row.name for row in results.rows]
    assert names == [
        *("embeddings", "second-to-last", "last"),
        *("weighted sum, last 2", "concatenated, last 2", "fine-tuned"),
    ]
    for row in results.rows:
        (score,) = row.scores("f1")
        assert score > 90, row
    mixed = results.rows[3].outcomes[0]
    assert sum(mixed["shares"].values()) == pytest.approx(1)
    assert mixed["shares"].keys() == {"1", "2"}
    after = model.network.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in weights.items())
    assert {file.name for file in (tmp_path / "a").iterdir()} == {
        *("settings.yaml", "data.json", "journal.jsonl"),
        *("table.md", "results.json", "rows"),
    }
    assert not list(tmp_path.glob("a/rows/*/checkpoints"))

    # Interrupted in the fourth row, and resumed: the same to the last digit, and no finished row
    # is computed again.
    with pytest.raises(RuntimeError, match="switched off"):
        run(model, tmp_path / "b", progress=OffInRow("weighted sum", step=10))
    kept = list(tmp_path.glob("b/rows/*/result.json"))
    assert len(kept) == 3
    made = probes_made(monkeypatch)
    resumed_results = run(model, tmp_path / "b")
    assert made == ["weighted-sum-last-2-seed0", "concatenated-last-2-seed0"]
    for name in ("results.json", "table.md"):
        assert (tmp_path / "b" / name).read_bytes() == (tmp_path / "a" / name).read_bytes()
    assert resumed_results.rows == results.rows


class OffInRow(Lines):
    """The machine is switched off at a step of a row."""

    def __init__(self, row: str, step: int) -> None:
        super().__init__()
        self._row, self._step = row, step

    def train(self, step: int, total: int, **facts: Any) -> None:
        in_row = any(line.startswith(self._row) for line in self.lines)
        if in_row and step == self._step:
            raise RuntimeError("the machine was switched off")


SMALL = {"probe": {**FAST["probe"], "epochs": 0.1}, "finetune": None}


@pytest.mark.long
def test_seeds_can_be_added(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = run(model, tmp_path / "a", **SMALL)
    assert [row.name for row in results.rows][-1] == "concatenated, last 2"
    directories = probes_made(monkeypatch)
    assert run(model, tmp_path / "a", **SMALL).rows == results.rows
    assert directories == []
    both = run(model, tmp_path / "a", **SMALL, seeds=[0, 1])
    assert len(directories) == 5
    assert all("seed1" in name for name in directories)
    assert [row.outcomes[0] for row in both.rows] == [row.outcomes[0] for row in results.rows]
    assert "± (2 seeds)" in both.markdown()


@pytest.mark.long
def test_a_mistake_in_the_last_row_costs_no_probe(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = {"epochs": 0.1, "lora_rank": 2, "lora_targets": ["feed"]}
    with pytest.raises(SettingsError, match="no matrix 'feed'"):
        run(model, tmp_path / "a", **{**SMALL, "finetune": wrong})
    directories = probes_made(monkeypatch)
    mended = {**SMALL, "finetune": {"epochs": 0.1}}
    assert run(model, tmp_path / "a", **mended).rows[-1].name == "fine-tuned"
    assert directories == []
    with pytest.raises(TrainingError, match=r"started with finetune\.epochs=0\.1"):
        run(model, tmp_path / "a", **{**SMALL, "finetune": {"epochs": 0.2}})


@pytest.mark.long
def test_another_beginning_is_an_error(model: Model, tmp_path: Path) -> None:
    run(model, tmp_path / "a", **SMALL)
    other = Model.fresh(GEOMETRY, model.tokenizer, seed=1)
    with pytest.raises(TrainingError, match="the run was started with model="):
        run(other, tmp_path / "a", **SMALL)
    with pytest.raises(TrainingError, match="started with other rows for dev"):
        run(model, tmp_path / "a", **{**SMALL, "dev": DEV[:-1]})
    with pytest.raises(TrainingError, match="started with other rows for train"):
        run(model, tmp_path / "a", **{**SMALL, "train": TRAIN[:-1]})
    with pytest.raises(TrainingError, match=r"started with probe.epochs=0\.1, not 4"):
        run(model, tmp_path / "a", **{**SMALL, "probe": FAST["probe"]})


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"probe": {"lstm_size": 3}}, "unknown setting 'probe.lstm_size'.*'lstm_hidden_size'"),
        ({"finetune": {"seed": 3}}, r"finetune.seed=3: give seeds=\[…\] instead"),
        ({"seeds": [1, 1]}, r"seeds=\[1, 1\]: one is given twice"),
        ({"seeds": []}, "seeds"),
        ({"max_seq_length": 1000}, "max_seq_length=1000 is more than the 32 tokens"),
        ({"finetune": {"best_metric": "f2"}}, "best_metric='f2' is not a metric of this task"),
        ({"finetune": {"teacher": "m"}}, "teacher=m: tagging takes no teacher"),
    ],
)
def test_bad_settings_are_refused(
    model: Model, tmp_path: Path, settings: dict[str, Any], says: str
) -> None:
    with pytest.raises(SettingsError, match=says):
        run(model, tmp_path / "a", **settings)
    assert not (tmp_path / "a").exists()


def test_a_table_without_tags_is_an_error(model: Model, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot tell which column holds the tags"):
        run(model, tmp_path / "a", train=[{"words": ["a"], "x": ["O"]}])
    assert not (tmp_path / "a").exists()


def test_files_of_a_table_are_written(tmp_path: Path) -> None:
    results = Results(tmp_path, "f1")
    outcomes = {seed: {"metrics": {"f1": score}} for seed, score in ((0, 0.5), (3, 0.6), (4, 0.61))}
    results.add(ResultRow("last", 94.9, outcomes))
    assert (tmp_path / "table.md").read_text() == (
        f"# {TITLE}\n\n"
        "|  | paper, CoNLL-2003 | dev f1 | ± (3 seeds) |\n"
        "| --- | --: | --: | --: |\n"
        f"| last | 94.9 | 57.0 | {np.std([50, 60, 61], ddof=1):.1f} |\n"
    )
    (row,) = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert row["f1"] == pytest.approx(0.57)
    assert row["paper"] == pytest.approx(0.949)
    assert row["seeds"]["3"] == {"metrics": {"f1": 0.6}}
