"""Logistic regression on frozen vectors equals scikit-learn's, on rows of any table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import threadpoolctl
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score

import bertworks as bw
from bertworks.analysis.probing import _paired_difference
from bertworks.errors import DataError, SettingsError
from tests.training.letters import CONFIG, PIECES, make_rows

TRAIN, DEV = make_rows(120, 1), make_rows(60, 2)


@pytest.fixture
def model() -> bw.Model:
    return bw.Model.fresh(CONFIG, bw.Tokenizer.from_vocabulary(PIECES), seed=1)


@pytest.mark.parametrize("quantization", ["int8", "binary"])
def test_quantized_vectors_are_decoded(model: bw.Model, quantization: str) -> None:
    texts, labels = [row["text"] for row in TRAIN], [row["label"] for row in TRAIN]
    codes = model.embed(texts, quantization=quantization)
    vectors = np.unpackbits(codes, axis=1) * 2.0 - 1 if quantization == "binary" else codes * 1.0
    expected = LogisticRegression(solver="newton-cholesky", tol=1e-10).fit(vectors, labels)
    result = bw.probe(model, train=TRAIN, dev=TRAIN, quantization=quantization)
    assert result.metrics["accuracy"] == expected.score(vectors, labels)
    assert result.width == vectors.shape[1]


def test_models_of_a_matrix_for_each_text_are_refused(tmp_path: Path) -> None:
    start = bw.Model.fresh(CONFIG, bw.Tokenizer.from_vocabulary(PIECES), seed=1)
    pairs = [{"query": row["text"], "positive": row["text"]} for row in TRAIN[:16]]
    run = bw.finetune(
        start, "retrieval", train=pairs, out=tmp_path, pooling="none", epochs=1, max_seq_length=16
    )
    with pytest.raises(SettingsError, match=r"matrix for each text.*pooling=mean"):
        bw.probe(run.model, train=TRAIN, dev=DEV)
    assert bw.probe(run.model, train=TRAIN, dev=DEV, pooling="mean").width == CONFIG.hidden_size


@pytest.mark.parametrize(
    "settings", [{}, {"pooling": "mean+max", "layers": [0, -1]}, {"inverse_regularization": 0.01}]
)
def test_probe_equals_scikit_learns_regression(model: bw.Model, settings: dict[str, Any]) -> None:
    weights = {name: value.clone() for name, value in model.network.state_dict().items()}
    result = bw.probe(model, train=TRAIN, dev=DEV, **settings)
    strength = settings.get("inverse_regularization", 1.0)
    options = {name: value for name, value in settings.items() if name in ("pooling", "layers")}
    texts, labels = [row["text"] for row in TRAIN], [row["label"] for row in TRAIN]
    # Another way to the same optimum.
    by_hand = LogisticRegression(C=strength, solver="newton-cholesky", tol=1e-10)
    by_hand.fit(model.embed(texts, **options).astype(np.float64), labels)
    predicted = by_hand.predict(model.embed([row["text"] for row in DEV], **options))
    wanted = [row["label"] for row in DEV]
    assert result.metrics["accuracy"] == pytest.approx(np.mean(predicted == np.array(wanted)))
    assert result.metrics["f1"] == pytest.approx(f1_score(wanted, predicted, pos_label="yes"))
    assert result.metrics["majority"] == 0.5
    assert result.labels == ("no", "yes")
    assert result.width == by_hand.coef_.shape[1]
    np.testing.assert_allclose(result.classifier.coef_, by_hand.coef_, atol=1e-4)
    after = model.network.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in weights.items())


@pytest.mark.long
def test_regression_has_the_threads_of_pytorch(
    model: bw.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit, counts = LogisticRegression.fit, []

    def count_threads(*arguments: Any) -> Any:
        pools = threadpoolctl.ThreadpoolController().select(user_api="blas").info()
        counts.extend(pool["num_threads"] for pool in pools)
        return fit(*arguments)

    monkeypatch.setattr(LogisticRegression, "fit", count_threads)
    num_threads = torch.get_num_threads()
    try:
        for threads in (2, 1):
            torch.set_num_threads(threads)
            counts.clear()
            bw.probe(model, train=TRAIN, dev=DEV)
            assert set(counts) <= {threads, 1}
    finally:
        torch.set_num_threads(num_threads)
    assert set(counts) == {1}


def test_vectors_with_the_class_words_predict_the_classes() -> None:
    # A mean of embeddings has a share of the x's, in as many directions as there are letters.
    wide = CONFIG.with_values(hidden_size=64)
    model = bw.Model.fresh(wide, bw.Tokenizer.from_vocabulary(PIECES))
    found = bw.probe(model, train=TRAIN, dev=DEV, pooling="mean", layers=[0])
    assert found.metrics["accuracy"] > 0.95


def test_files_without_a_header_are_read_by_column_number(model: bw.Model, tmp_path: Path) -> None:
    for name, rows in (("train", TRAIN), ("dev", DEV)):
        lines = [f"{row['label']}\t0\t{row['text']}\n" for row in rows]
        (tmp_path / f"{name}.tsv").write_text("".join(lines))
    result = bw.probe(
        model,
        train=tmp_path / "train.tsv",
        dev=tmp_path / "dev.tsv",
        text_column="3",
        label_column="1",
        header=False,
    )
    assert result.metrics == bw.probe(model, train=iter(TRAIN), dev=iter(DEV)).metrics


def test_the_labels_of_a_data_set_keep_their_names(model: bw.Model) -> None:
    datasets = pytest.importorskip("datasets")
    kinds = {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])}
    train, dev = (
        datasets.Dataset.from_list(rows, features=datasets.Features(kinds)) for rows in (TRAIN, DEV)
    )
    assert bw.probe(model, train=train, dev=dev).labels == ("no", "yes")


def test_bad_inputs_are_refused(model: bw.Model, tmp_path: Path) -> None:
    pairs = [{"sentence1": row["text"], "sentence2": "a", "label": row["label"]} for row in TRAIN]
    with pytest.raises(DataError, match="the rows are pairs of texts"):
        bw.probe(model, train=pairs, dev=pairs)
    with pytest.raises(DataError, match="row 1: the label 'maybe' was not seen in training"):
        bw.probe(model, train=TRAIN, dev=[{"text": "a", "label": "maybe"}])
    with pytest.raises(DataError, match="row 2: the column 'text' holds 5"):
        bw.probe(model, train=TRAIN, dev=[DEV[0], {"text": 5, "label": "yes"}])
    (tmp_path / "dev.tsv").write_text("text\tlabel\n")
    with pytest.raises(DataError, match=r"dev\.tsv: there are no rows"):
        bw.probe(model, train=TRAIN, dev=tmp_path / "dev.tsv")
    with pytest.raises(SettingsError, match="there is no layer 7"):
        bw.probe(model, train=TRAIN, dev=DEV, layers=[7])
    with pytest.raises(SettingsError, match=r"unknown setting 'poling'.*'pooling'"):
        bw.probe(model, train=TRAIN, dev=DEV, poling="cls")


def test_difference_of_paired_rows_has_the_normal_interval() -> None:
    first, second = np.array([[True, False, True, True], [False, False, True, False]])
    differences = second.astype(float) - first
    deviation = np.sqrt(((differences - differences.mean()) ** 2).sum() / 3)
    expected = differences.mean(), 1.96 * deviation / 2
    assert _paired_difference(second, first) == pytest.approx(expected)
    assert _paired_difference(first[:1], second[:1]) == (1.0, 0.0)
