"""Labels that are probably wrong: cleanlab's suspects, flipped labels, conflicts, misspellings."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from bertworks.analysis import label_check
from bertworks.analysis.label_check import check_labels
from bertworks.cli import app
from bertworks.data.rows import LocatedRow
from bertworks.errors import BertworksError, BertworksWarning, DataError, SettingsError
from bertworks.reports import label_check as label_report
from bertworks.tasks.label_check import (
    CheckedLabel,
    LabelCheck,
    find_suspects,
    group_similar_texts,
)

ANIMALS = ["cat", "dog", "horse", "cow", "bird"]
MONEY = ["bank", "price", "interest", "market", "money"]
# cleanlab 2.9.0: find_label_issues(labels, probabilities, filter_by="confident_learning",
# return_indices_ranked_by="self_confidence")
CLEANLAB = [
    *(191, 176, 64, 53, 181, 77, 14, 90, 10, 68, 104, 157, 85, 173, 87, 118, 170, 101, 112, 186),
    *(177, 110, 73, 96, 141, 2, 75, 194, 162, 38, 123, 179, 60, 199, 131, 89),
]


def make_rows() -> list[dict[str, str]]:
    """Sentences about animals and about money."""
    return [
        {"text": f"the {one} and the {other}", "label": label}
        for words, label in ((ANIMALS, "animals"), (MONEY, "money"))
        for one in words
        for other in words
        if one != other
    ]


def test_rows_without_a_label_are_counted() -> None:
    rows = [*make_rows(), {"text": "a cat", "label": ""}, {"text": "a cow", "label": " "}]
    with pytest.raises(
        DataError, match=r"is empty, as in 2 of 42 rows\. Label such rows, or remove"
    ):
        check_labels("mini", rows, device="cpu")


def test_suspects_are_those_of_cleanlab() -> None:
    generator = np.random.default_rng(7)
    gold = generator.integers(0, 4, 200)
    labels = gold.copy()
    flips = generator.choice(200, 24, replace=False)
    labels[flips] = (labels[flips] + generator.integers(1, 4, 24)) % 4
    logits = generator.normal(0, 1.3, (200, 4))
    logits[np.arange(200), gold] += 2
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    suspects = np.flatnonzero(find_suspects(labels, probabilities))
    order = np.argsort(probabilities[suspects, labels[suspects]])
    assert suspects[order].tolist() == CLEANLAB


def test_label_of_a_single_row_makes_no_other_row_suspect() -> None:
    """Classifiers that were not trained on the row know nothing of its label."""
    labels = np.repeat([0, 1], 10)
    probabilities = np.where(labels[:, None] == [0, 1], 0.9, 0.1)
    probabilities[0] = 0.45, 0.55  # not as probable as is usual for label 1
    assert not find_suspects(labels, probabilities).any()
    with_another = np.vstack([np.pad(probabilities, ((0, 0), (0, 1))), [0.5, 0.5, 0]])
    assert not find_suspects(np.append(labels, 2), with_another).any()


@pytest.mark.long
def test_flipped_labels_come_first() -> None:
    rows = make_rows()
    for number in (3, 30):
        rows[number]["label"] = "money" if number == 3 else "animals"
    result = check_labels("mini-sentences", rows)
    assert {row.number for row in result.rows[:2]} == {4, 31}
    assert {row.number for row in result.suspects} >= {4, 31}
    assert result.accuracy >= 0.9
    first = result.rows[0]
    assert (first.predicted != first.label) and first.label_probability < 0.5
    assert len(result.rows) == len(rows)


@pytest.mark.long
def test_rows_keep_their_numbers_where_others_have_no_label() -> None:
    rows = make_rows()
    rows[30]["label"] = "animals"
    unlabelled = [{"text": "a word", "label": "-"}] * 3
    with pytest.warns(BertworksWarning, match="6 of 46 rows have no gold label"):
        result = check_labels("mini-sentences", [*unlabelled, *rows[:10], *unlabelled, *rows[10:]])
    assert result.rows[0].number == 3 + 3 + 31
    assert sorted(row.number for row in result.rows) == [*range(4, 14), *range(17, 47)]


@pytest.mark.long
def test_rows_are_in_the_order_of_the_probability_of_their_label() -> None:
    labels = np.random.default_rng(1).choice(["a", "b", "c"], 40)
    rows = [{**row, "label": str(label)} for row, label in zip(make_rows(), labels, strict=True)]
    result = check_labels("mini-sentences", rows, device="cpu")
    probabilities = [row.label_probability for row in result.rows]
    assert probabilities == sorted(probabilities)
    last_suspect = max(at for at, row in enumerate(result.rows) if row.is_suspect)
    assert last_suspect >= len(result.suspects)  # a less probable label may be no suspect


@pytest.mark.long
def test_rows_that_are_the_only_one_of_their_label_are_last() -> None:
    """A classifier that was not trained on the row gives its label the probability 0."""
    rows = make_rows()
    rows[3]["label"] = "money"
    rows += [{"text": "the kitten", "label": "kittens"}, {"text": "the coin", "label": "coins"}]
    result = check_labels("mini-sentences", rows, device="cpu")
    assert result.rows[0].number == result.suspects[0].number == 4
    assert {row.number for row in result.rows[-2:]} == {41, 42}
    assert result.single_labels == ("coins", "kittens")
    assert result.notes[0].endswith("listed last: 'coins', 'kittens'")
    assert not check_labels("mini-sentences", make_rows(), device="cpu").notes


def test_similar_texts_are_grouped() -> None:
    texts = ["A cat!", "a  CAT", "one two three four five", "One, two three four 5.", "a dog"]
    texts += ["one two three five", "", "!", "a b c d e f", "a x c d e", "a c d e"]
    assert group_similar_texts(texts) == [[0, 1], [2, 3, 5], [9, 10]]


@pytest.mark.long
def test_command_writes_table_and_page(tmp_path: Path) -> None:
    rows = make_rows()
    rows += [
        {"text": "The cat, and the dog", "label": "money"},
        {"text": "a bank", "label": "mony"},
    ]
    rows[7]["label"] = "money"
    data, out, report = (tmp_path / name for name in ("rows.jsonl", "out.jsonl", "page.html"))
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = ["check-labels", "--model", "mini-sentences", "--data", str(data), "folds=3"]
    command += ["--out", str(out), "--report", str(report), "--device", "cpu"]
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "'mony' (1) may be a misspelling of 'money' (22)" in " ".join(result.output.split())
    shown = " ".join(result.output.split())
    assert re.search(r"different labels: row \d+ '\w+', row \d+ '\w+'", shown)
    assert "Rows are counted from 1" in shown
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(lines) == len(rows)
    assert {8, 41} <= {
        line["prediction"]["row"] for line in lines if line["prediction"]["is_suspect"]
    }
    page = report.read_text()
    for text in ("Suspect labels", "different labels", "The cat, and the dog", "mony"):
        assert text in page


def test_shortened_lists_say_how_many_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = CheckedLabel(1, LocatedRow("rows.tsv:2", {}), "a cat", "cats", 0.1, "dogs", 0.9, True)
    result = LabelCheck((row,) * 21, ((row, row),) * 30, (), 0.5, ())
    monkeypatch.setattr(label_check, "check_labels", lambda *args, **settings: result)
    monkeypatch.setattr(label_report, "MAX_ROWS", 20)
    data, report = tmp_path / "rows.tsv", tmp_path / "page.html"
    data.write_text("text\tlabel\n")
    command = ["check-labels", "--model", "mini-sentences", "--data", str(data)]
    output = CliRunner().invoke(app, command, catch_exceptions=False).output
    assert "and 1 more suspect on the page of --report FILE" in output
    assert "and 25 more conflicts on the page of --report FILE" in output
    command += ["--report", str(report)]
    output = " ".join(CliRunner().invoke(app, command, catch_exceptions=False).output.split())
    assert f"and 25 more conflicts in {report}" in output
    assert report.read_text().count("The first 20 are shown.") == 2


def test_impossible_tables_are_refused() -> None:
    with pytest.raises(DataError, match="fewer rows than folds=5"):
        check_labels("mini-sentences", make_rows()[18:22])
    with pytest.raises(DataError, match="fewer than two labels with more than one row"):
        check_labels("mini-sentences", make_rows()[10:21])


def test_solver_is_imported_before_the_model_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.linear_model", None)
    with pytest.raises(BertworksError, match="'sklearn', which is not installed"):
        check_labels("no-such-model", make_rows())
    with pytest.raises(SettingsError, match="folds"):
        check_labels("mini-sentences", make_rows(), folds=1)
