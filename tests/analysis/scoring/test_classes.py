"""Class labels are scored as scikit-learn scores them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

import bertworks as bw
from bertworks.errors import DataError
from bertworks.inference.prediction_files import write_predictions

LABELS = st.lists(st.tuples(st.sampled_from("xyz"), st.sampled_from("xyz")), min_size=1)


@pytest.mark.long
@given(pairs=LABELS)
@settings(max_examples=30, deadline=None)
def test_class_metrics_equal_scikit_learns(pairs):
    rows = [{"note": f"row {n}", "label": a, "predicted": b} for n, (a, b) in enumerate(pairs)]
    score = bw.score("classification", rows)
    true, predicted = zip(*pairs, strict=True)
    names = sorted({*true, *predicted})
    assert score.metrics["accuracy"] == pytest.approx(accuracy_score(true, predicted))
    macro = f1_score(true, predicted, labels=names, average="macro", zero_division=0)
    assert score.metrics["macro_f1"] == pytest.approx(macro)
    if len(names) == 2:
        positive = f1_score(true, predicted, pos_label=names[1], zero_division=0)
        assert score.metrics["f1"] == pytest.approx(positive)
    if len({*true, *predicted}) > 1:
        matthews = matthews_corrcoef(true, predicted)
        assert score.metrics["matthews_correlation"] == pytest.approx(matthews)
    wrong = [n for n, (a, b) in enumerate(pairs) if a != b]
    shown = [(one.row - 1, one.text, one.gold, one.predicted) for one in score.breakdown.mistakes]
    assert shown == [(n, f"row {n}", *pairs[n]) for n in wrong][:25]


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_table_without_rows_is_refused(tmp_path, task):
    file = tmp_path / "predicted.tsv"
    file.write_text("label\tpredicted\n")
    with pytest.raises(DataError, match=r"predicted.tsv: there are no rows"):
        bw.score(task, file)


def test_files_of_predict_are_scored(tmp_path):
    """TSV and JSON Lines with a prediction in each row."""
    rows = [
        {"text": "a", "label": "x", "prediction": {"label": "x", "probabilities": {"x": 0.9}}},
        {"text": "b", "label": "y", "prediction": {"label": "x", "probabilities": {"x": 0.6}}},
    ]
    lines = tmp_path / "predicted.jsonl"
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
    table = tmp_path / "predicted.tsv"
    table.write_text(
        "text\tlabel\tprediction.label\tprediction.probabilities.x\na\tx\tx\t0.9\nb\ty\tx\t0.6\n"
    )
    for file in (lines, table):
        found = bw.score("classification", file)
        assert found.metrics["accuracy"] == 0.5
        assert found.breakdown.mistakes[0].text == "b"


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl"])
def test_classes_that_are_floats_keep_their_names(tmp_path, suffix):
    """A model calls the label 1.0 `1`; a table has `1.0`."""
    file = tmp_path / f"predicted.{suffix}"
    pairs = [(0.0, "0"), (1.0, "1"), (1.0, "0"), (10.0, "10"), (-1.0, "-1")]
    write_predictions(file, [({"label": gold}, {"label": told}) for gold, told in pairs])
    score = bw.score("classification", file)
    assert score.metrics["accuracy"] == 0.8
    assert score.breakdown.confusion.labels == ("-1", "0", "1", "10")
    assert score.notes == []


def test_labels_whose_names_have_points_are_left_alone():
    versions = [("1.0", "1.0"), ("1", "1"), ("1.0", "1")]
    rows = [{"label": gold, "predicted": told} for gold, told in versions]
    assert bw.score("classification", rows).metrics["accuracy"] == pytest.approx(2 / 3)


def test_labels_with_nothing_in_common_are_noted():
    rows = [{"label": "good", "predicted": "1"}, {"label": "bad", "predicted": "0"}]
    (note,) = bw.score("classification", rows).notes
    assert "none in common: gold 'bad', 'good', predicted '0', '1'" in note
    rows.append({"label": "1", "predicted": "0"})
    assert bw.score("classification", rows).notes == []
