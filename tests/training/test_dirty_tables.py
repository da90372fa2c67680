"""Tables with empty cells and misspelled labels: the same in every format, counted and reported."""

from __future__ import annotations

import csv
import json
import math
import warnings
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import bertworks as bw
from bertworks.data.tables import read_rows
from bertworks.data.text_inputs import read_texts
from bertworks.errors import BertworksWarning, DataError
from bertworks.tasks import find_labelled_task
from bertworks.tasks.labels import find_misspellings
from bertworks.text.tokenizer import Tokenizer
from bertworks.training.labelled_data import LabelledData
from bertworks.training.settings import settings_of

from .letters import CONFIG, PIECES

Cells = list[tuple[str | None, str | None]]
FORMATS = ["csv", "tsv", "jsonl", "json", "parquet", "pandas", "pandas of csv", "rows"]
TOKENIZER = Tokenizer.from_vocabulary(PIECES)


def as_table(cells: Cells, format: str, folder: Path) -> Any:
    """The same table in a format; None is an empty cell."""
    rows = [{"text": text, "label": label} for text, label in cells]
    path = folder / f"dirty.{format.split()[-1]}"
    if format == "rows":
        return rows
    if format == "pandas":
        return pd.DataFrame(rows)
    if format == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif format == "json":
        path.write_text(json.dumps(rows))
    elif format == "parquet":
        text = pa.schema([("text", pa.string()), ("label", pa.string())])
        pq.write_table(pa.Table.from_pylist(rows, schema=text), path)
    else:
        with path.open("w", newline="") as file:
            writer = csv.writer(file, delimiter="\t" if format == "tsv" else ",")
            writer.writerows([("text", "label"), *((t or "", label or "") for t, label in cells)])
    return pd.read_csv(path) if format == "pandas of csv" else path


def read(table: Any, task: str = "classification", **options: Any) -> LabelledData:
    kind = find_labelled_task(task)
    resolved = settings_of(kind).parse({"max_seq_length": 32, **options})
    return LabelledData.read(kind, TOKENIZER, table, None, resolved, torch.device("cpu"))


def read_with_warnings(table: Any, **options: Any) -> tuple[LabelledData, list[str]]:
    with warnings.catch_warnings(record=True) as warning_list:
        warnings.simplefilter("always")
        data = read(table, **options)
    return data, [str(one.message) for one in warning_list]


CELLS: Cells = [("a b", "x"), (None, "y"), ("b", None), ("c d", "y"), ("d", None), (None, "x")]


@pytest.mark.parametrize("format", FORMATS)
def test_empty_cells_are_the_same_in_every_format(tmp_path: Path, format: str) -> None:
    table = as_table(CELLS, format, tmp_path)
    says = r"the label \(column 'label'\) is empty, as in 2 of 6 rows\. .*--drop-unlabelled"
    with pytest.raises(DataError, match=says) as error_info:
        read(table)
    header = 0 if format == "jsonl" else 1
    assert str(error_info.value.where).endswith((f":{3 + header}", ", row 3"))
    data, messages = read_with_warnings(table, drop_unlabelled=True)
    assert [list(example.texts) for example in data.train] == [["a b"], [""], ["c d"], [""]]
    assert [data.task.labels[example.target] for example in data.train] == ["x", "y", "y", "x"]
    assert len(messages) == 2
    assert messages[0].endswith("2 of 6 rows have no label, and are left out")
    assert messages[1].startswith("2 of 4 rows have an empty text; the first is ")
    assert messages[1].endswith((f":{2 + header}", ", row 2"))
    assert [text for _, text in read_texts(table)] == ["a b", "", "b", "c d", "d", ""]
    assert [text for _, text in read_texts(table).without_blank()] == ["a b", "b", "c d", "d"]


cells = st.lists(
    st.tuples(st.sampled_from([None, "a", "b c"]), st.sampled_from([None, "x", "y"])),
    min_size=1,
    max_size=12,
).filter(lambda rows: {"x", "y"} <= {label for _, label in rows})


@pytest.mark.long
@settings(max_examples=30, deadline=None)
@given(cells=cells, format=st.sampled_from(FORMATS))
def test_rows_without_labels_are_counted(
    tmp_path_factory: pytest.TempPathFactory, cells: Cells, format: str
) -> None:
    table = as_table(cells, format, tmp_path_factory.getbasetemp())
    data, messages = read_with_warnings(table, drop_unlabelled=True)
    labelled = [(text or "", label) for text, label in cells if label is not None]
    found = [(one.texts[0], data.task.labels[one.target]) for one in data.train]
    assert found == labelled
    missing = len(cells) - len(labelled)
    assert any(f"{missing} of {len(cells)} rows have no label" in one for one in messages) == (
        missing > 0
    )
    if missing:
        with pytest.raises(DataError, match=f"as in {missing} of {len(cells)} rows"):
            read(table)


@pytest.mark.parametrize("empty", [None, math.nan, "", " "])
@pytest.mark.parametrize(
    ("task", "rows", "column", "says"),
    [
        ("regression", [{"text": "a", "label": n / 10} for n in range(5)], "label", "not a finite"),
        (
            "retrieval",
            [{"text1": "a", "text2": "b", "score": n / 10} for n in range(5)],
            "score",
            "not a finite number",
        ),
        (
            "choice",
            [{"prompt": "a", "choices": ["b", "c"], "label": n % 2} for n in range(4)],
            "label",
            "is empty",
        ),
    ],
)
def test_empty_targets_are_refused_or_dropped(
    task: str, rows: list[dict[str, Any]], column: str, says: str, empty: Any
) -> None:
    dirty = [*rows, {**rows[0], column: empty}]
    with pytest.raises(DataError, match=f"{says}.*, as in 1 of {len(dirty)} rows.*--drop-unlab"):
        read(dirty, task)
    with pytest.warns(BertworksWarning, match=f"1 of {len(dirty)} rows have no label"):
        assert len(read(dirty, task, drop_unlabelled=True).train) == len(rows)


def test_evaluate_and_score_leave_the_same_rows_out(tmp_path: Path) -> None:
    model = bw.finetune(
        bw.Model.fresh(CONFIG, TOKENIZER),
        "classification",
        train=[{"text": "a", "label": "x"}, {"text": "b", "label": "y"}],
        out=tmp_path / "run",
        epochs=1,
        max_seq_length=32,
        device="cpu",
    ).model
    table = [{"text": "a", "label": label} for label in ("x", None, "y", "", "x")]
    with pytest.raises(DataError, match=r"is empty, as in 2 of 5 rows\. Leave such rows out"):
        model.evaluate(table)
    with pytest.raises(DataError, match=r"row 2: the label \(column 'label'\) is empty\. Leave"):
        model.evaluate(iter(table))  # which can be read only once
    with pytest.warns(BertworksWarning, match="2 of 5 rows have no label, and are left out"):
        result = model.evaluate(table, drop_unlabelled=True)
    assert result.rows == 3
    predicted = [{**row, "prediction": "x"} for row in table]
    with pytest.raises(DataError, match="is empty, as in 2 of 5 rows"):
        bw.score("classification", predicted)
    with pytest.warns(BertworksWarning, match="2 of 5 rows have no label, and are left out"):
        scored = bw.score("classification", predicted, drop_unlabelled=True)
    assert (scored.rows, scored.metrics["accuracy"]) == (3, pytest.approx(2 / 3))
    with pytest.raises(DataError, match=r"column 'prediction'\) is empty, as in 5 of 5 rows"):
        bw.score("classification", [{"label": "x", "prediction": " "}] * 5, drop_unlabelled=True)


@pytest.mark.parametrize(
    ("counts", "pairs"),
    [
        ({"location": 5, "person": 3, "loaction": 1}, [("loaction", "location")]),
        ({"positive": 5, "postive": 1, "negative": 5}, [("postive", "positive")]),
        ({"Positive": 5, "positive": 7}, [("Positive", "positive")]),
        ({"not spam": 5, "not_spam": 2, "spam": 2}, [("not_spam", "not spam")]),
        ({"location": 5, "loaction": 2}, []),
        ({"location": 500, "loaction": 5, "locaton": 6}, [("loaction", "location")]),
        ({"verified": 500, "unverified": 5}, []),
        ({"hypertension": 500, "hypotension": 5}, []),
        ({"topic_1": 5, "topic_2": 1, "topic_11": 1}, []),
        ({"C": 3, "C++": 1, "C#": 1, "A-": 1, "A+": 4}, []),
        ({"entailment": 5, "contradiction": 1, "neutral": 1}, []),
        ({"0": 4, "1": 1, "10": 1}, []),
        ({"1": 4, "01": 1, "2": 4}, [("01", "1")]),
        ({"1": 4, "1.0": 2, "2": 4, "2.5": 1}, [("1.0", "1")]),
        ({"10000001": 40, "10000002": 30, "1.1": 4, "1.10": 2, "250.00": 9}, []),
        ({"café": 5, "cafe\u0301": 2}, [("cafe\u0301", "café")]),
        ({"pos": 5, "pos\u200b": 2, "neg": 3}, [("pos\u200b", "pos")]),
        ({"\u2764": 5, "\u2764\ufe0f": 2}, [("\u2764\ufe0f", "\u2764")]),
    ],
)
def test_rare_labels_that_are_close_to_others(
    counts: dict[str, int], pairs: list[tuple[str, str]]
) -> None:
    assert find_misspellings(counts) == pairs


@pytest.mark.long
@settings(max_examples=30, deadline=None)
@given(label=st.sampled_from(["location", "organisation", "complaint", "question"]), data=st.data())
def test_a_typing_error_in_a_label_is_reported(label: str, data: st.DataObject) -> None:
    position = data.draw(st.integers(0, len(label) - 2))
    slip = data.draw(st.sampled_from(["swap", "drop", "double"]))
    wrong = {
        "swap": label[:position] + label[position + 1] + label[position] + label[position + 2 :],
        "drop": label[:position] + label[position + 1 :],
        "double": label[: position + 1] + label[position:],
    }[slip]
    rows = [{"text": "a", "label": name} for name in [label] * 4 + ["other"] * 3 + [wrong]]
    if wrong == label:
        read(rows)
        return
    with pytest.warns(BertworksWarning, match=rf"'{wrong}' \(1\) of '{label}' \(4\)"):
        read(rows)


def test_labels_that_look_alike_are_escaped_in_the_warning() -> None:
    names = ["café"] * 3 + ["cafe\u0301"] * 2 + ["thé"]
    with pytest.warns(BertworksWarning, match=r"'cafe\\u0301' \(2\) of 'caf\\xe9' \(3\)"):
        read([{"text": "a", "label": name} for name in names])


def test_types_of_entities_that_are_close_to_others_are_reported() -> None:
    """Tags of one type (B-location, I-location) are no misspellings of each other."""
    tags = [["B-location", "I-location"]] * 3 + [["B-loaction", "O"], ["B-Person", "B-person"]]
    rows = [{"words": ["a", "b"], "tags": pair} for pair in tags]
    with pytest.warns(BertworksWarning) as warning_list:
        read(rows, "tagging")
    (message,) = [str(one.message) for one in warning_list]
    assert message.endswith("'loaction' (1) of 'location' (6), 'person' (1) of 'Person' (1)")


@pytest.mark.parametrize("format", ["csv", "rows"])
@pytest.mark.parametrize(
    ("task", "columns", "says"),
    [
        ("classification", {"text_column": "label"}, "the text and the label"),
        ("classification", {"text_column": "text", "label_column": "text"}, "text and the label"),
        ("classification", {"text_column": "text", "pair_column": "text"}, "text and the second t"),
        ("regression", {"text_column": "2", "label_column": "label"}, "the text and the label"),
        (
            "choice",
            {"prompt_column": "text", "choice_columns": "text", "label_column": "text"},
            "l",
        ),
    ],
)
def test_one_column_in_two_roles_is_an_error(
    tmp_path: Path, format: str, task: str, columns: dict[str, str], says: str
) -> None:
    table = as_table([("a", "x"), ("b", "y")], format, tmp_path)
    named = {"label_column": "label"} if task == "classification" else {}
    with pytest.raises(DataError, match=f"cannot be both .*{says}"):
        read(table, task, **{**named, **columns})


def test_an_empty_cell_is_none_in_every_column() -> None:
    frame = pd.DataFrame({"text": ["a", None], "note": [math.nan, "b"], "n": [1, 2]})
    assert [row.values for row in read_rows(frame)] == [
        {"text": "a", "note": None, "n": 1},
        {"text": None, "note": "b", "n": 2},
    ]


@pytest.mark.parametrize("empty", [None, math.nan, "", " "])
@pytest.mark.parametrize(("column", "value"), [("answer_start", 2), ("is_impossible", False)])
def test_answers_without_optional_columns_are_labelled(column: str, value: Any, empty: Any) -> None:
    row = {"question": "a", "context": "b c", "answer": "c"}
    rows = [{**row, column: cell} for cell in (value, empty, empty)]
    data = read(rows, "answering", drop_unlabelled=True)
    assert len(data.train) == len(rows)
    dirty = [*rows, {**rows[0], "answer": empty}]
    with pytest.warns(BertworksWarning, match="1 of 4 rows have no label"):
        assert len(read(dirty, "answering", drop_unlabelled=True).train) == len(rows)
