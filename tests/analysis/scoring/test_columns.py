"""The columns of gold and predicted labels are found by name or place."""

from __future__ import annotations

import warnings

import pytest

import bertworks as bw
from bertworks.errors import BertworksWarning, DataError

PREDICTIONS = [{"y": "a", "n": "a"}, {"y": "b", "n": "a"}, {"y": "b", "n": "b"}]


@pytest.mark.parametrize(
    ("gold", "predicted"),
    [
        *(("y_true", "y_pred"), ("Gold Label", "Model prediction"), ("expected", "actual")),
        *(("actual", "predicted"), ("reference", "hypothesis"), ("true", "pred_label")),
        *(("label", "prediction.label"), ("gold_topic", "predicted_topic"), ("class", "guess")),
    ],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_columns_are_found_by_usual_names_in_any_order(gold, predicted, is_first):
    rows = [{gold: row["y"], predicted: row["n"]} for row in PREDICTIONS]
    rows = rows if is_first else [dict(reversed(row.items())) for row in rows]
    (mistake,) = bw.score("classification", rows).breakdown.mistakes
    assert (mistake.gold, mistake.predicted) == ("b", "a")


def test_columns_that_could_be_another_are_reported():
    two = [{"wahr": row["y"], "geraten": row["n"]} for row in PREDICTIONS]
    says = "the label is read from 'wahr', and the prediction from 'geraten'.*--label-column"
    with pytest.warns(BertworksWarning, match=says):
        assert bw.score("classification", two).metrics["accuracy"] == pytest.approx(2 / 3)
    swapped = [{"guess": row["n"], "wahr": row["y"]} for row in PREDICTIONS]
    with pytest.warns(BertworksWarning, match="the label is read from 'wahr'"):
        bw.score("classification", swapped)
    both = [{"label": row["n"], "gold": row["y"], "pred": row["y"]} for row in PREDICTIONS]
    with pytest.warns(BertworksWarning, match="label is read from 'gold', not from 'label'"):
        assert bw.score("classification", both).metrics["accuracy"] == 1
    less_likely = [{"correct": row["n"], "ref": row["y"], "pred": row["y"]} for row in PREDICTIONS]
    with warnings.catch_warnings(action="error"):
        assert bw.score("classification", less_likely).metrics["accuracy"] == 1
    for rows in ([{"label": "a", "comment": "some text"}], [{"premise": "a", "hypothesis": "b"}]):
        with pytest.raises(DataError, match="cannot tell which column holds the"):
            bw.score("classification", [*rows, *rows])


def test_columns_without_names_are_the_last_two(tmp_path):
    file = tmp_path / "predicted.tsv"
    file.write_text("0\ta text\tx\tx\n1\tanother\tx\ty\n")
    assert bw.score("classification", file, header=False).metrics["accuracy"] == 0.5
    named = bw.score("classification", file, header=False, label_column="4", prediction_column="3")
    assert named.breakdown.mistakes[0].gold == "y"
    with pytest.raises(DataError, match=r"holds the prediction; .*--prediction-column"):
        bw.score("classification", [{"label": "x", "text": "a"}])
    with pytest.raises(DataError, match="there is no column 'lable'"):
        bw.score("classification", [{"label": "x", "predicted": "a"}], label_column="lable")
    with pytest.raises(DataError, match=r"row 1: the label \(column 'predicted'\) is empty"):
        bw.score("classification", [{"label": "x", "predicted": ""}])


@pytest.mark.parametrize("classes", [(True, False), ("gold", "truth"), ("pred", "true")])
def test_columns_of_probabilities_are_not_labels(tmp_path, classes):
    names = [str(one).lower() for one in classes]
    header = ["label", "prediction.label", *(f"prediction.probabilities.{one}" for one in names)]
    pairs = [(names[0], names[0]), (names[1], names[1]), (names[0], names[1])]
    lines = [header, *([*pair, "0.9", "0.1"] for pair in pairs)]
    file = tmp_path / "predictions.csv"
    file.write_text("".join(",".join(line) + "\n" for line in lines))
    with warnings.catch_warnings(action="error"):
        assert bw.score("classification", file).metrics["accuracy"] == pytest.approx(2 / 3)
