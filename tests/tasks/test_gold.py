"""Rows without a gold label are left out and counted; a label that looks like a mark may be one."""

from __future__ import annotations

import json
import re
import shlex
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score

import bertworks as bw
from bertworks.data.tables import read_rows
from bertworks.errors import BertworksWarning, DataError, SettingsError
from bertworks.tasks.classification import (
    ClassificationSettings,
    ClassificationTask,
    MultiLabelSettings,
)
from bertworks.tasks.gold import GoldRows
from bertworks.tasks.labels import find_other_spellings, find_unlabelled_marks
from bertworks.text.tokenizer import Tokenizer
from tests.training.letters import GEOMETRY, WORD_PIECES

TOKENIZER = Tokenizer.from_vocabulary(WORD_PIECES)
NLI = ["entailment", "neutral", "contradiction"]
FAST: dict[str, Any] = {"epochs": 1, "max_seq_length": 16, "batch_size": 8}


def model() -> bw.Model:
    return bw.Model.fresh(GEOMETRY, TOKENIZER)


def rows_of(labels: list[Any]) -> list[dict[str, Any]]:
    return [
        {"premise": f"{chr(97 + n % 26)} b", "hypothesis": f"{chr(97 + n // 26)} c", "label": label}
        for n, label in enumerate(labels)
    ]


def labels_of(labels: list[Any], **options: Any) -> tuple[str, ...]:
    rows, asked = read_rows(rows_of(labels)), ClassificationSettings.parse(options)
    return ClassificationTask.from_table(TOKENIZER, rows, asked).labels


@pytest.mark.parametrize(
    ("labels", "marks"),
    [
        ([*NLI, "-"], {"-"}),
        (["0", "1", "2", "-1"], {"-1"}),
        (["0", "1", "2", "-"], {"-"}),
        (["1", "2", "3", "-1"], {"-1"}),
        (["0", "1", "-100"], {"-100"}),
        (["0.0", "1.0", "2.0", "-1.0"], {"-1.0"}),  # as pandas writes them
        (["0.0", "1.0", "-100.0"], {"-100.0"}),
        (["-1.0", "0.0", "1.0"], set()),
        (["0", "1", "2", "-1", "-"], {"-", "-1"}),
        (["-1", "0", "1"], set()),  # sentiment
        (["-1", "1"], set()),
        (["-2", "-1", "0", "1", "2"], set()),
        (["-1", "0", "1", "3"], set()),
        (["+", "-"], set()),
        (["+", "-", "0"], set()),
        (["yes", "-"], set()),  # one class would remain
        (["a", "b", "-1"], set()),
        (NLI, set()),
    ],
)
def test_mark_is_distinguished_from_a_class_by_the_other_labels(
    labels: list[str], marks: set[str]
) -> None:
    assert find_unlabelled_marks(labels) == marks
    assert find_unlabelled_marks(reversed(labels)) == marks
    assert find_unlabelled_marks(labels, no_label="") == set()


@settings(max_examples=30)
@given(
    count=st.integers(3, 6),
    mark=st.sampled_from(["-", -1, "-1", -1.0, "–"]),
    has_names=st.booleans(),
    marked_rows=st.lists(st.integers(0, 11), min_size=1, max_size=4, unique=True),
)
def test_marked_rows_add_no_class(
    count: int, mark: Any, has_names: bool, marked_rows: list[int]
) -> None:
    """By the definition: the labels are those of the same table without the marked rows."""
    if (has_names and not isinstance(mark, str)) or (has_names and mark == "-1"):
        mark = "-"
    labels: list[Any] = [f"c{n % count}" if has_names else n % count for n in range(12)]
    labels_with_marks = [mark if n in marked_rows else label for n, label in enumerate(labels)]
    rest = [label for n, label in enumerate(labels) if n not in marked_rows]
    if len(set(rest)) < count:
        return
    assert labels_of(labels_with_marks) == labels_of(rest)


@pytest.mark.long
def test_marked_rows_are_left_out_of_training_with_a_warning(tmp_path: Path) -> None:
    labels = [-1 if n % 9 == 0 else n % 3 for n in range(36)]
    with pytest.warns(BertworksWarning, match=r"4 of 36 rows have no gold label \('-1'\)"):
        result = bw.finetune(model(), train=rows_of(labels), out=tmp_path / "a", **FAST)
    assert result.model.labels == ("0", "1", "2")
    assert result.data.train.rows == 32
    assert any("4 of 36 rows have no gold label" in note for note in result.notes)
    rest = rows_of(labels)
    rest = [row for row in rest if row["label"] != -1]
    same = bw.finetune(model(), train=rest, out=tmp_path / "b", **FAST)
    assert same.data.train.labels == result.data.train.labels
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # at its evaluation, a note is enough
        evaluation = result.model.evaluate(rows_of(labels))
    assert evaluation.rows == 32
    assert evaluation.metrics == result.model.evaluate(rest).metrics
    assert "4 of 36 rows have no gold label ('-1') and are left out" in evaluation.notes


@pytest.mark.long
def test_share_for_dev_is_taken_from_labelled_rows(tmp_path: Path) -> None:
    labels = ["-" if n % 9 == 0 else NLI[n % 3] for n in range(90)]
    with pytest.warns(BertworksWarning, match="10 of 90 rows have no gold label"):
        result = bw.finetune(model(), train=rows_of(labels), dev=0.25, out=tmp_path / "a", **FAST)
    assert result.data.dev is not None
    assert result.data.train.rows + result.data.dev.rows == 80


@pytest.mark.long
def test_grid_leaves_out_marked_rows(tmp_path: Path) -> None:
    labels = ["-" if n % 9 == 0 else NLI[n % 3] for n in range(36)]
    data = {"train": rows_of(labels), "dev": rows_of(labels)}
    with pytest.warns(BertworksWarning, match="no gold label"):
        found = bw.finetune_grid(model(), out=tmp_path / "g", seeds=1, **data, **FAST)
    assert bw.load(found.best.directory).labels == tuple(sorted(NLI))


def test_user_may_keep_a_mark_as_a_class_or_name_one() -> None:
    assert labels_of([*NLI, "-"], no_label="") == tuple(sorted([*NLI, "-"]))
    assert labels_of([*NLI, "hidden"], no_label="hidden") == tuple(sorted(NLI))
    with pytest.warns(BertworksWarning, match="the label '-1' is a class"):
        assert labels_of([-1, 0, 1] * 2) == ("-1", "0", "1")
    assert labels_of([-1, 0, 1] * 2, no_label="-1") == ("0", "1")
    with pytest.raises(SettingsError, match="no_label"):
        MultiLabelSettings.parse({"no_label": "-"})


@pytest.mark.parametrize(
    "mark",
    [
        *("hidden", "No consensus", "no_label", "noLabel", "unlabeled", "Unlabelled", "NA", "N/A"),
        *("nan", "NaN", "null", "?", "-1", "-100", "missing", "no-gold-label"),
    ],
)
def test_class_that_may_mean_no_label_is_warned_of(mark: str) -> None:
    labels = [*NLI, mark]
    with pytest.warns(BertworksWarning, match=f"the label {re.escape(repr(mark))} is a class"):
        assert labels_of(labels) == tuple(sorted(labels))
    rows = [{"label": gold, "prediction": "neutral"} for gold in labels]
    with pytest.warns(BertworksWarning, match=f"the label {re.escape(repr(mark))} is a class"):
        bw.score("classification", rows)
    for row in rows:  # what is predicted is a class
        row["prediction"] = row["label"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bw.score("classification", rows)
        assert labels_of(labels, no_label=mark) == tuple(sorted(NLI))
        assert labels_of(labels, no_label="") == tuple(sorted(labels))


@pytest.mark.parametrize("no_label", ["-1", "-1.0", " -1 "])
@pytest.mark.parametrize("mark", [-1, -1.0, "-1", "-1.0"])
def test_mark_of_a_user_is_a_whole_number_in_any_spelling(no_label: str, mark: Any) -> None:
    labels = ["x", "y", mark] * 2
    asked = ClassificationSettings.parse({"no_label": no_label})
    task = ClassificationTask.from_table(TOKENIZER, read_rows(rows_of(labels)), asked)
    assert task.labels == ("x", "y")
    kept = list(GoldRows(task, read_rows(rows_of(labels))).rows)
    assert [row.values["label"] for row in kept] == ["x", "y"] * 2
    rows = [{"label": label, "prediction": "x"} for label in labels]
    assert bw.score("classification", rows, no_label=no_label).rows == 4


@pytest.mark.parametrize("no_label", ["hiden", "-1", "neutrall"])
def test_mark_that_no_row_has_is_warned_of(no_label: str) -> None:
    labels = [*NLI, "hidden"]
    says = f"no row has the label {no_label!r}"
    with pytest.warns(BertworksWarning, match=says):
        assert labels_of(labels, no_label=no_label) == tuple(sorted(labels))
    rows = [{"label": gold, "prediction": no_label} for gold in labels]
    with pytest.warns(BertworksWarning, match=says):  # a prediction marks no row
        bw.score("classification", rows, no_label=no_label)


@pytest.mark.parametrize("mark", ["null", "NULL", "?", "#n/a", "no consensus"])
def test_advice_to_name_a_mark_works_in_a_shell_and_in_python(mark: str) -> None:
    with pytest.warns(BertworksWarning, match="the label .* is a class") as messages:
        labels_of([*NLI, mark])
    _, _, advice = str(messages[0].message).rpartition(", give ")
    words = shlex.split(advice)
    if len(words) > 1 and words[-1] == "Python)":
        words = shlex.split(advice.partition(" (")[0])
        assert f'(no_label="{mark}" in Python)' in advice
    assert ClassificationSettings.resolve(None, words).no_label == mark
    with pytest.warns(BertworksWarning, match=re.escape(f'--no-label "{mark}"')):
        bw.score("classification", [{"label": one, "prediction": "x"} for one in [*NLI, mark]])


def test_labels_that_are_no_texts_are_not_called_other_spellings() -> None:
    for labels in ([True, False], [0.0, 1.0], [np.float64(1), np.float64(2)]):
        rows = read_rows(rows_of(labels))
        task = ClassificationTask.from_table(TOKENIZER, rows, ClassificationSettings())
        gold = GoldRows(task, rows)
        assert len(list(gold.rows)) == 2
        assert gold.notes() == []
    texts = GoldRows(task, read_rows(rows_of(["1.0", "2.0"])))
    assert len(list(texts.rows)) == 2
    assert "1.0 is read as 1" in texts.notes()[0]


@pytest.mark.parametrize(
    "labels", [[*NLI, "none"], [*NLI, "other"], ["-2", "-1", "0", "1"], ["-1", "1"], ["?", "!"]]
)
def test_usual_classes_are_read_without_a_warning(labels: list[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert set(labels_of(labels)) == set(labels)


@pytest.mark.long
def test_evaluation_follows_the_labels_of_the_model(tmp_path: Path) -> None:
    """-1 is a class where the model has it, and else a mark, whatever the table's other labels."""
    with pytest.warns(BertworksWarning, match="the label '-1' is a class"):
        three = bw.finetune(model(), train=rows_of([-1, 0, 1] * 4), out=tmp_path / "3", **FAST)
    two = bw.finetune(model(), train=rows_of([0, 1] * 6), out=tmp_path / "2", **FAST)
    table = rows_of([-1, 0, 1, 1])
    assert three.model.evaluate(table).rows == 4
    assert two.model.evaluate(table).rows == 3
    with pytest.raises(DataError, match="no row has a gold label: all have '-1'"):
        two.model.evaluate(rows_of([-1, -1]))  # as in GLUE's tables without labels


def test_empty_label_is_still_an_error() -> None:
    with pytest.raises(DataError, match="is empty"):
        labels_of([*NLI, ""])


def build_description(names: list[str], form: str) -> dict[str, Any]:
    label: Any = {"names": names, "_type": "ClassLabel"}
    if form != "single":
        label = [label] if form == "old list" else {"feature": label, "_type": form}
    return {"info": {"features": {"text": {"dtype": "string", "_type": "Value"}, "label": label}}}


@pytest.mark.parametrize("form", ["single", "Sequence", "List", "old list"])
def test_parquet_names_its_classes(form: str, tmp_path: Path) -> None:
    numbers: list[Any] = [0, 2, -1] if form == "single" else [[0, 2], [1]]
    table = pa.table({"text": ["a", "b", "c"][: len(numbers)], "label": numbers})
    metadata = {b"huggingface": json.dumps(build_description(NLI, form)).encode()}
    table = table.replace_schema_metadata(metadata)
    pq.write_table(table, tmp_path / "t.parquet")
    named = [NLI[0], NLI[2], "-1"] if form == "single" else [[NLI[0], NLI[2]], [NLI[1]]]
    for opened in (read_rows(tmp_path / "t.parquet"), read_rows(table)):
        assert [row.values["label"] for row in opened] == named


@pytest.mark.long
def test_parquet_of_datasets_equals_the_data_set(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = rows_of([-1 if n % 5 == 0 else n % 3 for n in range(30)])
    kind = {name: datasets.Value("string") for name in ("premise", "hypothesis")}
    features = datasets.Features({**kind, "label": datasets.ClassLabel(names=NLI)})
    data = datasets.Dataset.from_list(rows, features=features)
    data.to_parquet(tmp_path / "t.parquet")
    for number, table in enumerate((data, str(tmp_path / "t.parquet"), data.data.table)):
        with pytest.warns(BertworksWarning, match="6 of 30 rows have no gold label"):
            result = bw.finetune(model(), train=table, out=tmp_path / str(number), **FAST)
        assert result.model.labels == tuple(sorted(NLI))
        assert result.data.train.rows == 24


def test_two_classes_and_no_label_are_known_from_the_description() -> None:
    """With the class names, -1 is no class even if 0 and 1 occur."""
    table = pa.table({"text": ["a", "b", "c", "d"], "label": [0, 1, -1, 1]})
    metadata = {b"huggingface": json.dumps(build_description(["no", "yes"], "single")).encode()}
    rows = read_rows(table.replace_schema_metadata(metadata))
    assert ClassificationTask.from_table(TOKENIZER, rows, ClassificationSettings()).labels == (
        "no",
        "yes",
    )


def test_class_without_a_name_is_an_error_of_its_row() -> None:
    table = pa.table({"text": ["a", "b"], "label": [0, 3]})
    metadata = {b"huggingface": json.dumps(build_description(NLI, "single")).encode()}
    with pytest.raises(DataError, match=r"row 2: the class 3 .* has no name; there are 3"):
        read_rows(table.replace_schema_metadata(metadata))


def test_description_that_cannot_be_read_is_a_warning() -> None:
    table = pa.table({"text": ["a"], "label": [0]}).replace_schema_metadata({b"huggingface": b"{"})
    with pytest.warns(BertworksWarning, match="class numbers are not replaced by names"):
        assert next(iter(read_rows(table))).values["label"] == 0


def test_choice_without_a_gold_label_is_left_out(tmp_path: Path) -> None:
    rows = [{"prompt": "a", "choices": ["b", "c", "d"], "label": n % 4 - 1} for n in range(12)]
    with pytest.warns(BertworksWarning, match="3 of 12 rows have no gold label"):
        result = bw.finetune(model(), "choice", train=rows, out=tmp_path / "r", **FAST)
    assert result.data.train.rows == 9


@pytest.mark.parametrize("mark", ["-", "-1"])
def test_score_leaves_out_rows_without_a_gold_label(mark: str) -> None:
    gold = [0, 1, 2, 0, 1, 2]
    predicted = [0, 1, 1, 0, 2, 2]
    rows = [{"label": g, "prediction": p} for g, p in zip(gold, predicted, strict=True)]
    result = bw.score("classification", [*rows, {"label": mark, "prediction": 1}])
    assert result.rows == 6
    assert result.metrics["accuracy"] == accuracy_score(gold, predicted)
    assert result.metrics == bw.score("classification", rows).metrics
    assert f"1 of 7 rows have no gold label ('{mark}') and are left out" in result.notes
    kept = bw.score("classification", [*rows, {"label": mark, "prediction": 1}], no_label="")
    assert kept.rows == 7


def test_score_keeps_a_mark_that_is_predicted() -> None:
    rows = [{"label": str(n % 4 - 1), "prediction": str(n % 3 - 1)} for n in range(12)]
    assert bw.score("classification", rows).rows == 12


@pytest.mark.parametrize("side", ["label", "prediction"])
@pytest.mark.parametrize("prefix", ["LABEL_", "label_"])
def test_score_maps_unnamed_classes_to_their_numbers(side: str, prefix: str) -> None:
    gold, predicted = [0, 1, 2, 10, 1], [0, 2, 2, 10, 1]
    rows: list[dict[str, Any]] = [
        {"label": g, "prediction": p} for g, p in zip(gold, predicted, strict=True)
    ]
    plain = bw.score("classification", rows)
    named = bw.score("classification", [{**row, side: f"{prefix}{row[side]}"} for row in rows])
    assert named.metrics == plain.metrics
    assert any("labels are read by their number" in note for note in named.notes)


def test_score_does_not_map_names_that_are_not_numbers() -> None:
    rows = [{"label": "no", "prediction": "LABEL_0"}, {"label": "yes", "prediction": "LABEL_1"}]
    assert bw.score("classification", rows).metrics["accuracy"] == 0


@pytest.mark.long
def test_evaluation_reads_numbers_as_a_models_unnamed_classes(tmp_path: Path) -> None:
    labels = [f"LABEL_{n % 3}" for n in range(12)]
    trained = bw.finetune(model(), train=rows_of(labels), out=tmp_path / "r", **FAST).model
    expected = trained.evaluate(rows_of(labels))
    evaluation = trained.evaluate(rows_of([n % 3 for n in range(12)]))
    assert evaluation.metrics == expected.metrics
    assert any(
        "spelled otherwise than in training: 0 is read as LABEL_0" in one
        for one in evaluation.notes
    )
    assert expected.notes == evaluation.notes[: len(expected.notes)]


@pytest.mark.parametrize(
    ("labels", "other_spellings"),
    [
        (("0", "1"), ("0.0", "1.0")),
        (("-1", "0", "1"), ("-1.0", "0.0", "1.0")),
        (("0.0", "1.0"), ("0", "1")),
        (("false", "true"), ("False", "True")),
        (("False", "True"), (False, True)),
        (("FALSE", "TRUE"), (False, True)),
        (("0", "1"), (0.0, np.float32(1))),
    ],
)
def test_numbers_and_truth_values_are_read_in_every_spelling(
    labels: tuple[str, ...], other_spellings: tuple[Any, ...]
) -> None:
    """pandas writes 1 as 1.0 where a label is missing, and True where JSON has true."""
    settings = {"labels": labels, "text_column": "text", "label_column": "label"}
    task = ClassificationTask(TOKENIZER, ClassificationSettings.parse(settings))
    rows = [{"text": "a", "label": spelling} for spelling in other_spellings]
    examples = task.examples(rows, 0, labelled=True)
    assert [example.target for example in examples] == [*range(len(labels))]


def test_labels_that_are_spelled_alike_stay_apart() -> None:
    for labels in (["1", "1.0", "2"], ["True", "true", "false"], ["1.5", "2"], ["a", "1"]):
        assert find_other_spellings(labels) == {}


def test_score_reads_truth_values_in_any_case() -> None:
    rows = [{"label": "True", "prediction": "true"}, {"label": "False", "prediction": "true"}]
    assert bw.score("classification", rows).metrics["accuracy"] == 0.5


def test_score_warns_where_minus_one_may_be_a_class_or_a_mark() -> None:
    rows = [{"label": n % 3 - 1, "prediction": n % 2} for n in range(12)]
    with pytest.warns(BertworksWarning, match="the label '-1' is a class"):
        assert bw.score("classification", rows).rows == 12
    assert bw.score("classification", rows, no_label="-1").rows == 8
