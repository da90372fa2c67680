"""Label Studio's exports: the full JSON has the rows of its JSON-MIN."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bertworks.data.rows import WholeLabel
from bertworks.data.tables import read_rows
from bertworks.tasks.labels import read_label_names


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
        ([annotation(was_cancelled=True)], []),
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
