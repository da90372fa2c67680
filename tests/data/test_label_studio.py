"""Label Studio's exports: the full JSON has the rows of its JSON-MIN."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bertworks.data.rows import SAMPLE_ROWS, WholeLabel
from bertworks.data.tables import read_rows
from bertworks.data.unlabelled import UnlabelledError, without_unlabelled
from bertworks.errors import BertworksWarning, DataError
from bertworks.tasks.classification import ClassificationTask, MultiLabelTask
from bertworks.tasks.labelled import LabelledTask
from bertworks.tasks.labels import read_finite_number, read_label_name, read_label_names
from bertworks.tasks.regression import RegressionTask
from bertworks.tasks.tagging.columns import read_tagged_words
from bertworks.tasks.tagging.settings import TaggingSettings
from bertworks.tasks.tagging.task import TaggingTask
from bertworks.text.tokenizer import Tokenizer


def region(name: str, kind: str, **value: Any) -> dict[str, Any]:
    return {"id": "r1", "from_name": name, "to_name": "text", "type": kind, "value": value}


def annotation(*results: Any, **more: Any) -> dict[str, Any]:
    return {"completed_by": 1, "was_cancelled": False, "result": list(results), **more}


SPAN = {"start": 0, "end": 5, "text": "Obama", "labels": ["PER"]}


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ([annotation(region("topic", "choices", choices=["sport"]))], [{"topic": "sport"}]),
        ([annotation(region("topic", "choices", choices=["a", "b"]))], [{"topic": ["a", "b"]}]),
        (
            [
                annotation(region("topic", "choices", choices=["a"])),
                annotation(region("topic", "choices", choices=["c"]), was_cancelled=True),
                annotation(region("topic", "choices", choices=["b"]), completed_by=2),
            ],
            [{"topic": "a"}, {"topic": "b"}],
        ),
        ([], [{}]),
        ([annotation()], [{}]),
        (
            [
                annotation(
                    region("label", "labels", **SPAN),
                    {"type": "relation", "from_id": "r1", "to_id": "r2"},
                    region("stars", "rating", rating=4),
                    region("note", "textarea", text=["of two", "parts"]),
                    region("best", "pairwise", selected="left"),
                )
            ],
            [{"label": [SPAN], "stars": 4, "note": ["of two", "parts"], "best": "left"}],
        ),
    ],
)
def test_task_has_a_row_for_each_annotation(
    tmp_path: Path, annotations: Any, expected: list[dict[str, Any]]
) -> None:
    data = {"text": "Obama spoke.", "title": "News"}
    task = {"id": 7, "data": data, "annotations": annotations, "predictions": []}
    (tmp_path / "export.json").write_text(json.dumps([task, {"data": {}, "annotations": []}, task]))
    rows = list(read_rows(str(tmp_path / "export.json")))
    own = [{**data, **columns} for columns in expected]
    assert [row.values for row in rows] == [*own, {}, *own]


def test_labels_are_those_of_every_export(tmp_path: Path) -> None:
    """Several choices are a cell in CSV, and an object in JSON-MIN; one choice may have commas."""
    cell = {"choices": ["a, b", "c"]}
    for value in (cell, json.dumps(cell), ["a, b", "c"]):
        assert read_label_names({"topic": value}, "topic", None, ",") == ["a, b", "c"]
    task = {"data": {}, "annotations": [annotation(region("topic", "choices", choices=["a, b"]))]}
    (tmp_path / "export.jsonl").write_text(json.dumps(task))
    (row,) = read_rows(str(tmp_path / "export.jsonl"))
    assert isinstance(row.values["topic"], WholeLabel)
    assert read_label_names(row.values, "topic", None, ",") == ["a, b"]


@pytest.mark.parametrize("name", ["export.json", "export.jsonl", None])
def test_tasks_with_cancelled_annotations_only_are_counted(tmp_path: Path, name: str) -> None:
    topic = region("topic", "choices", choices=["sport"])
    lists = [
        [annotation(was_cancelled=True)],
        [annotation(topic)],
        [annotation(was_cancelled=1)] * 2,
    ]
    tasks = [{"data": {"text": "Obama spoke."}, "annotations": one} for one in lists]
    table: Any = tasks
    if name is not None:
        table = str(tmp_path / name)
        lines = "\n".join(map(json.dumps, tasks))
        (tmp_path / name).write_text(lines if name.endswith("l") else json.dumps(tasks))
    with pytest.warns(BertworksWarning, match=r"left out 2 × task with cancelled .*( row |:)1$"):
        rows = read_rows(table)
    for _ in range(2):  # which warn no more
        assert [row.values for row in rows] == [{"text": "Obama spoke.", "topic": "sport"}]


def test_annotator_who_marked_nothing_gave_no_labels() -> None:
    """A text without entities, or without labels; a task that nobody has annotated has neither."""
    data = {"text": "No one."}
    whole = {"data": data, "annotations": [annotation(region("stars", "rating", rating=4))]}
    bare: dict[str, Any] = {"data": data, "annotations": []}
    (row, unread) = read_rows([whole, bare])
    for values in (row.values, {**data, "annotation_id": 7, "annotator": 1}):  # JSON-MIN
        assert read_tagged_words(values, "text", "label", "row 1").tags == ["O", "O", "O"]
        assert read_label_names(values, "topic", None, ",") == []
        with pytest.raises(UnlabelledError, match=r"the label .* is empty"):
            read_label_name(values, "topic", None)
    with pytest.raises(DataError, match="not a list"):
        read_tagged_words(unread.values, "text", "label", "row 2")
    with pytest.raises(DataError, match="no column 'topic'"):
        read_label_names(unread.values, "topic", None, ",")


@pytest.mark.parametrize(
    ("kind", "column", "num_dropped"),
    [
        (TaggingTask, "label", 1),
        (MultiLabelTask, "topic", 1),
        (ClassificationTask, "topic", 2),
        (RegressionTask, "stars", 2),
    ],
)
def test_unlabelled_rows_are_those_whose_missing_marks_are_no_answer(
    kind: type[LabelledTask[Any]], column: str, num_dropped: int
) -> None:
    """Of one that is marked, one in which nothing was, and one that nobody has annotated."""
    marks = (
        region("label", "labels", **SPAN),
        region("topic", "choices", choices=["sport"]),
        region("stars", "rating", rating=4),
    )
    lists = [[annotation(*marks)], [annotation()], []]
    rows = read_rows([{"data": {"text": "Obama spoke."}, "annotations": one} for one in lists])
    with pytest.warns(BertworksWarning, match=f"{num_dropped} of 3 rows have no label"):
        left = list(without_unlabelled(rows, [column], may_have_no_label=kind.may_have_no_label))
    assert len(left) == 3 - num_dropped
    if kind is RegressionTask:
        unmarked = list(rows)[1]
        with pytest.raises(UnlabelledError, match="is not a finite number"):
            read_finite_number(unmarked.values, column, unmarked.where)


@pytest.mark.parametrize("count", [1, SAMPLE_ROWS, SAMPLE_ROWS + 5])
def test_tagger_learns_from_texts_without_entities(count: int) -> None:
    entity = [annotation(region("label", "labels", **SPAN))]
    tasks = [
        {"data": {"text": "Obama spoke."}, "annotations": one}
        for one in (*([annotation()] for _ in range(count)), entity)
    ]
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "obama", "spoke", "."]
    tokenizer = Tokenizer.from_vocabulary(pieces)
    rows = read_rows(tasks)
    task = TaggingTask.from_table(tokenizer, rows, TaggingSettings())
    examples = task.examples([row.values for row in rows], 0)
    assert [[*map(str, task.settings.labels)]] == [["O", "B-PER", "I-PER"]]
    assert [example.target.tolist() for example in examples] == [*[[0, 0, 0]] * count, [1, 0, 0]]


@pytest.mark.parametrize("more", [{"_task_hash": 1}, {"_input_hash": 1, "spans": []}])
def test_examples_that_were_rejected_in_prodigy_are_counted(more: dict[str, Any]) -> None:
    """They were read as gold."""
    answers = ["accept", "reject", "accept", "ignore"]
    rows = [{"text": "a", "label": "x", "answer": answer, **more} for answer in answers]
    with pytest.warns(BertworksWarning, match=r"left out 2 × example that was rejected.* row 2$"):
        assert [row.where[-1] for row in read_rows(rows)] == ["1", "3"]


def test_an_answer_to_a_question_may_be_ignore() -> None:
    rows = [
        {"question": "What do they do?", "context": "They ignore it.", "answer": "ignore"},
        {"question": "And now?", "options": ["accept", "reject"], "answer": "reject"},
        {"meta": {}},
    ]
    assert len(list(read_rows(rows))) == 3
