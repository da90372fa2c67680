"""Label Studio's full JSON export: tasks with annotations become rows, as its JSON-MIN has them.

    {"data": {"text": "…"}, "annotations": [{"was_cancelled": false, "result": [
        {"from_name": "topic", "type": "choices", "value": {"choices": ["sport"]}}]}]}
    -> {"text": "…", "topic": "sport"}

A task has a row for each annotator: its data, and a column for each control of the labelling page
(`from_name`) that something was marked with. Cancelled annotations are left out. A task without any
annotation is a row of its data alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .rows import AnnotatedRow, WholeLabel

_SPANS = ("labels", "hypertextlabels", "paragraphlabels")
_KEYS = {"textarea": "text", "pairwise": "selected"}
"""Where the value of a control is, if not under its type."""


def holds_annotations(values: Mapping[str, Any]) -> bool:
    """Whether a record is a task of Label Studio."""
    return isinstance(values.get("data"), dict) and isinstance(values.get("annotations"), list)


def rows_of_task(task: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the row of each annotation that was not cancelled."""
    if not task["annotations"]:
        yield dict(task["data"])
    for annotation in task["annotations"]:
        if isinstance(annotation, Mapping) and not annotation.get("was_cancelled"):
            yield AnnotatedRow(task["data"], _columns(annotation.get("result")))


def _columns(results: Any) -> dict[str, Any]:
    """Return the column of each control: a value, several of them, or spans."""
    spans: dict[str, list[Any]] = {}
    values: dict[str, list[Any]] = {}
    for result in results if isinstance(results, list) else ():
        name, kind, value = (result.get(key) for key in ("from_name", "type", "value"))
        if not isinstance(name, str) or not isinstance(value, Mapping):
            continue  # a relation of two spans
        if kind in _SPANS:
            spans.setdefault(name, []).append(dict(value))
        elif (content := value.get(_KEYS.get(kind, kind))) is not None:
            values.setdefault(name, []).extend(content if isinstance(content, list) else [content])
    return {**{name: _column_value(own) for name, own in values.items()}, **spans}


def _column_value(values: list[Any]) -> Any:
    """Return a single value as it is, a text as one label even if it has separators."""
    if len(values) != 1:
        return values
    return WholeLabel(values[0]) if isinstance(values[0], str) else values[0]
