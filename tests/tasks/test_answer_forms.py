"""Answers are read with their starts from every common form of file."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import bertworks as bw
from bertworks.data.tables import Table, read_rows
from bertworks.errors import DataError
from bertworks.tasks.answering.answers import read_answers
from bertworks.tasks.answering.settings import AnsweringSettings
from bertworks.tasks.answering.task import AnsweringTask
from bertworks.text.tokenizer import Tokenizer
from tests.training.letters import GEOMETRY, WORD_PIECES

TOKENIZER = Tokenizer.from_vocabulary(WORD_PIECES)
PASSAGE = "ann saw a boat. then ann got it, and ann sold it. so ann was glad."
PLACES = [at for at in range(len(PASSAGE)) if PASSAGE.startswith("ann", at)]

Question = list[tuple[str, int]]  # the answers with their starts; none: unanswerable


def _common(number: int) -> dict[str, Any]:
    return {"id": f"q{number}", "question": f"who {number}", "context": PASSAGE}


def _write_json(path: Path, document: Any) -> Path:
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def _write_lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def _write_csv(path: Path, rows: list[dict[str, Any]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def _objects(question: Question, write_start: Callable[[int], Any]) -> list[dict[str, Any]]:
    return [{"text": text, "answer_start": write_start(start)} for text, start in question]


def _lists(question: Question, write_start: Callable[[int], Any] = int) -> dict[str, list[Any]]:
    texts, starts = [text for text, _ in question], [write_start(start) for _, start in question]
    return {"text": texts, "answer_start": starts}


def _paragraphs(
    questions: list[Question], write_start: Callable[[int], Any] = int
) -> dict[str, Any]:
    qas = [
        {
            "id": f"q{number}",
            "question": f"who {number}",
            "answers": _objects(question, write_start),
            "is_impossible": not question,
        }
        for number, question in enumerate(questions)
    ]
    return {"context": PASSAGE, "qas": qas}


def _rows(
    questions: list[Question], values: Callable[[Question], dict[str, Any]]
) -> list[dict[str, Any]]:
    return [_common(number) | values(question) for number, question in enumerate(questions)]


# For each form, a function that writes questions, or puts them in memory.
FORMS: dict[str, Callable[[list[Question], Path], Table]] = {
    "SQuAD": lambda qs, to: _write_json(
        to / "a.json", {"data": [{"title": "t", "paragraphs": [_paragraphs(qs)]}]}
    ),
    "SQuAD, numeric texts": lambda qs, to: _write_json(
        to / "a.json", {"data": [{"paragraphs": [_paragraphs(qs, str)]}]}
    ),
    "SQuAD in memory": lambda qs, _: {"data": [{"paragraphs": [_paragraphs(qs)]}]},
    "simpletransformers": lambda qs, to: _write_json(to / "a.json", [_paragraphs(qs)]),
    "one paragraph": lambda qs, to: _write_json(to / "a.json", _paragraphs(qs)),
    "paragraphs, JSON Lines": lambda qs, to: _write_lines(to / "a.jsonl", [_paragraphs(qs)] * 1),
    "simpletransformers in memory": lambda qs, _: [_paragraphs(qs)],
    "list of objects": lambda qs, to: _write_lines(
        to / "a.jsonl", _rows(qs, lambda q: {"answers": _objects(q, int)})
    ),
    "list of objects, JSON array": lambda qs, to: _write_json(
        to / "a.json", _rows(qs, lambda q: {"answers": _objects(q, str)})
    ),
    "datasets' lists": lambda qs, to: _write_lines(
        to / "a.jsonl", _rows(qs, lambda q: {"answers": _lists(q)})
    ),
    "datasets' lists, floats": lambda qs, _: _rows(qs, lambda q: {"answers": _lists(q, float)}),
    "JSON in CSV": lambda qs, to: _write_csv(
        to / "a.csv", _rows(qs, lambda q: {"answers": json.dumps(_lists(q))})
    ),
    "JSON objects in CSV": lambda qs, to: _write_csv(
        to / "a.csv", _rows(qs, lambda q: {"answers": json.dumps(_objects(q, int))})
    ),
    "flattened": lambda qs, _: pd.json_normalize(_rows(qs, lambda q: {"answers": _lists(q)})),
    "flattened in CSV": lambda qs, to: _write_csv(
        to / "a.csv",
        _rows(
            qs,
            lambda q: {
                "answers.text": json.dumps(_lists(q)["text"]),
                "answers.answer_start": json.dumps(_lists(q)["answer_start"]),
            },
        ),
    ),
    "two columns of lists": lambda qs, to: _parquet(
        to, _rows(qs, lambda q: {"answer": _lists(q)["text"], "start": _lists(q)["answer_start"]})
    ),
    "Parquet": lambda qs, to: _parquet(to, _rows(qs, lambda q: {"answers": _lists(q)})),
}

# These hold one answer or none for each question.
SINGLE: dict[str, Callable[[list[Question], Path], Table]] = {
    f"{text} and {start} in {kind}": (
        lambda qs, to, text=text, start=start, write=write: write(
            to, _rows(qs, lambda q: {text: q[0][0] if q else "", start: q[0][1] if q else ""})
        )
    )
    for kind, write in {
        "CSV": lambda to, rows: _write_csv(to / "a.csv", rows),
        "JSON Lines": lambda to, rows: _write_lines(to / "a.jsonl", rows),
        "memory": lambda _, rows: rows,
    }.items()
    for text, start in (
        ("answer", "answer_start"),
        ("answer_text", "start"),
        ("answers", "answer_start_index"),
        ("text", "answer_start"),
    )
}


def _parquet(to: Path, rows: list[dict[str, Any]]) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), to / "a.parquet")
    return to / "a.parquet"


def read_all_answers(table: Table) -> list[list[tuple[str, int | None]]]:
    rows = read_rows(table)
    columns = AnsweringTask.schema.find(rows, labelled=True)
    return [list(zip(*read_answers(row, columns, where), strict=True)) for where, row in rows]


ANSWERS = st.lists(
    st.tuples(st.just("ann"), st.sampled_from(PLACES)) | st.just(("boat", 10)), max_size=3
)


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(questions=st.lists(ANSWERS, min_size=1, max_size=4))
def test_answers_have_the_starts_that_the_file_gives(
    form: str, questions: list[Question], tmp_path: Path
) -> None:
    if "Parquet" in form or "two columns" in form:  # Arrow needs a value to know a column's type
        questions = [[("ann", 0)], *questions]
    assert read_all_answers(FORMS[form](questions, tmp_path)) == questions


@pytest.mark.parametrize("form", SINGLE)
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(places=st.lists(st.none() | st.sampled_from(PLACES), min_size=1, max_size=4))
def test_single_answers_have_the_starts_of_their_column(
    form: str, places: list[int | None], tmp_path: Path
) -> None:
    questions: list[Question] = [[] if at is None else [("ann", at)] for at in [0, *places]]
    assert read_all_answers(SINGLE[form](questions, tmp_path)) == questions


@pytest.mark.parametrize("form", [*FORMS, *SINGLE])
def test_targets_are_at_the_places_that_the_file_gives(form: str, tmp_path: Path) -> None:
    questions: list[Question] = [[("ann", at)] for at in PLACES]
    rows = read_rows((FORMS | SINGLE)[form](questions, tmp_path))
    task = AnsweringTask.from_table(TOKENIZER, rows, AnsweringSettings(max_seq_length=128))
    examples = task.examples([row.values for row in rows], 0)
    for example, place in zip(examples, PLACES, strict=True):
        ((first, last),) = example.target
        offsets = example.sequences[0].offsets
        assert (offsets[first][0], offsets[last][1]) == (place, place + 3)
    assert task.count_targets(examples) == {"answered": len(PLACES)}


@pytest.mark.parametrize("start", ["x", "3.5", 3.5, True, "1e3", [1, 2], {"a": 1}])
def test_start_that_is_no_number_is_an_error_of_its_row(start: object) -> None:
    columns = {"answers": "answer", "start": "answer_start"}
    with pytest.raises(DataError, match=r"f:7: .*start"):
        read_answers({"answer": "ann", "answer_start": start}, columns, "f:7")


@pytest.mark.parametrize("start", [None, "", " ", float("nan")])
def test_start_that_is_missing_leaves_the_first_mention(start: object) -> None:
    columns = {"answers": "answer", "start": "answer_start"}
    assert read_answers({"answer": "ann", "answer_start": start}, columns, None) == (
        ["ann"],
        [None],
    )


def test_column_start_that_holds_times_is_not_a_place() -> None:
    rows = [{"question": "who", "context": PASSAGE, "answer": "ann", "start": "12:30"}]
    assert read_all_answers(rows) == [[("ann", None)]]


@pytest.mark.parametrize(
    ("value", "is_impossible"),
    [
        *((truth, True) for truth in (True, "True", "true", 1, "1")),
        *((untruth, False) for untruth in (False, "False", 0, "", None, float("nan"))),
    ],
)
def test_impossible_question_has_no_answer(value: object, is_impossible: bool) -> None:
    row = {"question": "who", "context": PASSAGE, "answers": "ann", "is_impossible": value}
    assert read_all_answers([row]) == ([[]] if is_impossible else [[("ann", None)]])


def test_impossible_that_is_neither_is_an_error() -> None:
    row = {"question": "who", "context": PASSAGE, "answers": "ann", "is_impossible": "perhaps"}
    with pytest.raises(DataError, match="is_impossible='perhaps' is neither true nor false"):
        read_all_answers([row])


def test_mapping_as_python_prints_it_is_an_error() -> None:
    row = {"question": "who", "context": PASSAGE, "answers": str(_lists([("ann", 0)]))}
    with pytest.raises(DataError, match="not valid JSON"):
        read_all_answers([row])


@pytest.mark.long
def test_table_of_another_form_than_training_is_evaluated_by_its_own_columns(
    tmp_path: Path,
) -> None:
    """The starts of a dev table count, wherever those of the training rows were."""
    questions: list[Question] = [[("ann", at)] for at in PLACES]
    model = bw.Model.fresh(GEOMETRY.with_values(max_position_embeddings=160), TOKENIZER)
    settings: dict[str, Any] = {"epochs": 1, "max_seq_length": 128}
    losses = []
    for number, form in enumerate(("SQuAD", "answer and answer_start in CSV", "flattened")):
        train = (FORMS | SINGLE)[form](questions, tmp_path)
        out = tmp_path / str(number)
        model_of_form = bw.finetune(model, "answering", train=train, out=out, **settings).model
        every = {name: (FORMS | SINGLE)[name](questions, tmp_path) for name in ("SQuAD",)}
        every |= {"CSV": SINGLE["answer and answer_start in CSV"](questions, tmp_path)}
        losses.append(
            {name: model_of_form.evaluate(of).metrics["loss"] for name, of in every.items()}
        )
        (prediction,) = model_of_form.predict([{"question": "who 1", "context": PASSAGE}])
        assert prediction["answer"] in PASSAGE
    for loss in losses:
        assert loss["SQuAD"] == loss["CSV"]
    assert len({loss["SQuAD"] for loss in losses}) == 1, "all trained on the same targets"


@pytest.mark.parametrize("form", ["list of objects", "simpletransformers", "JSON in CSV"])
def test_predictions_are_scored_against_every_form(form: str, tmp_path: Path) -> None:
    table = FORMS[form]([[("ann", 0)], [("boat", 10)]], tmp_path)
    evaluation = bw.score("answering", table, predictions={"q0": "ann", "q1": "ann"})
    assert evaluation.metrics["exact_match"] == 0.5


def test_questions_may_be_numbered() -> None:
    rows = [{"id": 7, "question": "who", "context": PASSAGE, "answer": "ann"}]
    assert bw.score("answering", rows, predictions={"7": "ann"}).metrics["f1"] == 1
