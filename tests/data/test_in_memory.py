"""Tables that Python holds already: the same rows, in whatever form they are given."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from bertworks.data.tables import read_rows
from bertworks.data.text_inputs import read_texts
from bertworks.errors import DataError

TEXTS, LABELS = ["a good one", "a bad one", "so so"], ["pos", "neg", "pos"]
ROWS = [{"text": text, "label": label} for text, label in zip(TEXTS, LABELS, strict=True)]


class PolarsFrame:
    """Has the methods of a table of polars that are used; polars is not installed here."""

    columns: tuple[str, ...] = ("text", "label")

    def to_dicts(self) -> list[dict[str, Any]]:
        return ROWS


def values(table: Any) -> list[dict[str, Any]]:
    return [row.values for row in read_rows(table)]


@pytest.mark.parametrize(
    "table",
    [
        ROWS,
        list(zip(TEXTS, LABELS, strict=True)),
        [[text, label] for text, label in zip(TEXTS, LABELS, strict=True)],
        (TEXTS, LABELS),
        (np.array(TEXTS), np.array(LABELS)),
        (pd.Series(TEXTS), pd.Series(LABELS, dtype="category")),
        (pa.array(TEXTS), pa.chunked_array([LABELS[:1], LABELS[1:]])),
        (pd.DataFrame({"text": TEXTS}), LABELS),
        pd.DataFrame(ROWS),
        pa.Table.from_pylist(ROWS),
        pa.RecordBatch.from_pylist(ROWS),
        PolarsFrame(),
    ],
)
def test_rows_are_the_same_in_any_form(table: Any) -> None:
    assert values(table) == ROWS
    assert values(table) == ROWS, "a second time too"


def test_an_iterator_of_pairs_is_read_as_it_comes() -> None:
    def pairs() -> Iterator[tuple[str, str]]:
        yield from zip(TEXTS, LABELS, strict=True)

    assert values(pairs()) == ROWS


def test_pairs_and_tagged_words_are_read() -> None:
    pair = {"text1": "a", "text2": "b", "label": 1}
    assert values([("a", "b", 1)]) == values([(("a", "b"), 1)]) == [pair]
    assert values(([("a", "b")], [1])) == values((np.array([["a", "b"]]), np.array([1]))) == [pair]
    tagged = [{"words": ["Ada", "left"], "tags": ["B", "O"]}]
    assert values(([["Ada", "left"]], [["B", "O"]])) == tagged
    assert values([(["Ada", "left"], ["B", "O"])]) == tagged


def test_cells_hold_plain_values() -> None:
    frame = pd.DataFrame({"words": [np.array(["Ada", "left"])], "tags": [np.array(["B", "O"])]})
    assert values(frame) == [{"words": ["Ada", "left"], "tags": ["B", "O"]}]
    nested_rows = [
        {"answers": {"text": np.array(["x"]), "answer_start": np.array([3])}, "n": np.int64(1)}
    ]
    assert values(nested_rows) == [{"answers": {"text": ["x"], "answer_start": [3]}, "n": 1}]
    assert type(values(nested_rows)[0]["n"]) is int
    assert values([{0: "a", 1: "b"}]) == [{"0": "a", "1": "b"}]


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ((TEXTS, LABELS[:2]), "rows in memory: 3 rows, but 2 labels"),
        ((pd.DataFrame(ROWS), LABELS), "row 1: X has a column 'label', and there is y too"),
        (["a text"], r"row 1: expected a row, got str. A row is a mapping of columns, \(text, la"),
        ([("a", "b", "c", "d")], "row 1: expected a row, got tuple"),
        (5, "expected a table, got int"),
        ([], "there are no rows"),
        ((TEXTS[:0], LABELS[:0]), "there are no rows"),
        (pd.DataFrame([["a", "b"]], columns=["text", "text"]), "2 columns are called 'text'"),
        (
            pd.DataFrame([["a", "b"]], columns=pd.MultiIndex.from_tuples([("x", "a"), ("x", "b")])),
            "rows in memory: its columns have names of 2 levels. Make them one",
        ),
        (pa.table([["a"], ["b"]], ["text", "text"]), "2 columns are called 'text'"),
    ],
)
def test_values_other_than_tables_are_refused(table: Any, says: str) -> None:
    with pytest.raises(DataError, match=says):
        list(read_rows(table))


def test_texts_are_read_from_columns_and_frames() -> None:
    for texts in (pd.Series(TEXTS), np.array(TEXTS), pa.array(TEXTS), pd.DataFrame(ROWS)):
        assert [text for _, text in read_texts(texts)] == TEXTS
    numbered = pd.DataFrame(list(zip(TEXTS, LABELS, strict=True)))
    assert [text for _, text in read_texts(numbered, column="0")] == TEXTS
