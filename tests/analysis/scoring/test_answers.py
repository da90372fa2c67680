"""Answers by question id are scored as SQuAD's official scorers score them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bertworks as bw
from bertworks.data.tables import read_rows
from bertworks.errors import BertworksWarning, DataError, SettingsError

from ...tasks import squad_oracle

DATA = Path(os.environ.get("BERTWORKS_DATA", "../shared/data"))
# Articles, punctuation of ASCII and of others, and words of which some hold an article.
PARTS = st.sampled_from(["a", "the", "An", ".", "-", "–", "cat", "Cats", "x", "y's", "theory", " "])
TEXTS = st.lists(PARTS, max_size=4).map(" ".join)
ANSWERS = TEXTS.filter(str.strip)


def rows_of(answers: dict[str, list[str]]) -> list[dict[str, Any]]:
    """Questions as SQuAD's reader gives them."""
    return [
        {
            "id": identity,
            "question": f"What is {identity}?",
            "context": f"so: {' '.join(texts)}",
            "answers": {"text": texts, "answer_start": [0] * len(texts)},
        }
        for identity, texts in answers.items()
    ]


def by_id(values: list[Any]) -> dict[str, Any]:
    return {f"q{number}": value for number, value in enumerate(values)}


@pytest.mark.long
@given(
    questions=st.lists(
        st.tuples(st.lists(ANSWERS, min_size=1, max_size=3), st.none() | TEXTS), min_size=1
    )
)
@settings(max_examples=50, deadline=None)
def test_version_1_is_scored_as_the_official_scorer_does(questions):
    answers = by_id([texts for texts, _ in questions])
    predictions = {f"q{n}": text for n, (_, text) in enumerate(questions) if text is not None}
    score = bw.score("answering", rows_of(answers), predictions=predictions)
    expected = squad_oracle.compute_scores(answers, predictions, "1.1")
    assert score.metrics == pytest.approx(expected)
    missing = len(questions) - len(predictions)
    assert [str(missing) in note for note in score.notes] == [True] * bool(missing)
    nothing = sum(not any(map(squad_oracle.words_of, texts)) for texts in answers.values())
    lengths = {row.name: row.count for row in score.breakdown.tables[0].rows}
    assert lengths.get("no answer", 0) == nothing
    mistakes = {one.row - 1 for one in score.breakdown.mistakes}
    wrong = [
        number
        for number, (texts, text) in enumerate(questions)
        if text is not None and not squad_oracle.of_version_1(text, texts)[0]
    ]
    assert mistakes <= set(wrong)
    assert len(mistakes) == min(25, len(wrong))


@pytest.mark.long
@given(
    questions=st.lists(
        st.tuples(st.lists(ANSWERS, max_size=3), TEXTS, st.integers(-3, 3)), min_size=1
    )
)
@settings(max_examples=50, deadline=None)
def test_version_2_is_scored_as_the_official_scorer_does(questions):
    """And the best threshold is the best of all; a wordless answer is none everywhere."""
    answers, predictions = by_id([q[0] for q in questions]), by_id([q[1] for q in questions])
    margins = by_id([q[2] for q in questions])
    score = bw.score(
        "answering",
        rows_of(answers),
        predictions=predictions,
        no_answer_probabilities={key: float(value) for key, value in margins.items()},
    )
    metrics = dict(score.metrics)

    def scores_at(threshold: float) -> dict[str, float]:
        kept = {k: "" if margins[k] > threshold else text for k, text in predictions.items()}
        return squad_oracle.compute_scores(answers, kept, "2.0")

    assert {key: metrics[key] for key in ("exact_match", "f1")} == pytest.approx(scores_at(9))
    best = max(scores_at(threshold)["f1"] for threshold in range(-4, 4))
    assert metrics["best_f1"] == pytest.approx(best)
    assert scores_at(metrics["best_null_threshold"])["f1"] == pytest.approx(best)
    none = {k: texts for k, texts in answers.items() if not any(map(squad_oracle.words_of, texts))}
    some = {k: texts for k, texts in answers.items() if k not in none}
    if some:
        expected = squad_oracle.compute_scores(some, predictions, "2.0")["f1"]
        assert metrics["answered_f1"] == pytest.approx(expected)
    if none:
        expected = squad_oracle.compute_scores(none, predictions, "2.0")["f1"]
        assert metrics["unanswered_accuracy"] == pytest.approx(expected)
    lengths = {row.name: row.count for row in score.breakdown.tables[0].rows}
    assert lengths.get("no answer", 0) == len(none)


def test_a_question_without_an_answer_makes_it_version_2():
    answers = {"q0": ["."], "q1": []}
    found = bw.score("answering", rows_of(answers), predictions={"q0": "", "q1": ""})
    assert found.metrics == {
        **{"exact_match": 1.0, "f1": 1.0, "answered_f1": 0.0, "unanswered_accuracy": 1.0},
    }
    only = bw.score("answering", rows_of({"q0": ["."]}), predictions={"q0": ""})
    assert only.metrics == {"exact_match": 1.0, "f1": 0.0}


def test_the_worst_mistakes_come_first():
    answers = {"q0": ["x cat"], "q1": ["x"], "q2": ["x"]}
    predictions = {"q0": "x", "q1": "y", "q2": "x"}
    mistakes = bw.score("answering", rows_of(answers), predictions=predictions).breakdown.mistakes
    assert [one.row for one in mistakes] == [2, 1]
    assert [one.probability for one in mistakes] == [None, None]


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "em", "score"),
    [("rnet-plus", 82.469, 88.478), ("match-lstm", 67.635, 76.756)],
)
def test_published_answers_have_their_published_scores(name, em, score):
    """Two published systems' answers, as scored by the official script."""
    folder = DATA / "squad"
    if not folder.is_dir():
        pytest.skip(f"there is no {folder}")
    rows = [row.values for part in ("train", "dev") for row in read_rows(folder / f"{part}.json")]
    assert len(rows) == 10_570
    found = bw.score("answering", rows, predictions=folder / f"predictions-{name}.json")
    assert 100 * found.metrics["exact_match"] == pytest.approx(em, abs=5e-4)
    assert 100 * found.metrics["f1"] == pytest.approx(score, abs=5e-4)


QUESTIONS = rows_of({"q0": ["cat"], "q1": ["x"]})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "answers.json:1: not valid JSON"),
        ("[]", "answers.json: a JSON list, not an object"),
        (
            '{"q0": "a", "q0": "b"}',
            "the key 'q0' occurs twice",
        ),
        ('{"q0": 5}', "answers.json: expected a text, got int 5 of the question 'q0'"),
        ('{"q0": null}', "expected a text, got NoneType None of the question 'q0'"),
        (
            '{"zz": "a", "yy": "b"}',
            "answers.json: none of its 2 ids is that of a question in rows in memory, such as 'zz'",
        ),
        ("\udcff", "answers.json: not UTF-8"),
    ],
)
def test_bad_predictions_are_refused(tmp_path, text, says):
    file = tmp_path / "answers.json"
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(DataError, match=says) as caught:
        bw.score("answering", QUESTIONS, predictions=file)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("chances", "says"),
    [
        ({"q0": 0.5}, "the question 'q1' is missing"),
        ({"q0": 0.5, "q1": "1"}, "expected a finite number, got str '1' of the question 'q1'"),
        ({"q0": 0.5, "q1": float("nan")}, "got float nan of the question 'q1'"),
        ({"q0": 0.5, "q1": True}, "got bool True of the question 'q1'"),
        ({"q0": 0.5, "q1": 10**400}, "got int 1000.*… of the question 'q1'"),
        ({"q2": 1}, "none of its 1 ids is that of a question in rows in memory"),
    ],
)
def test_bad_probabilities_are_refused(chances, says):
    with pytest.raises(DataError, match=says):
        bw.score("answering", QUESTIONS, predictions={}, no_answer_probabilities=chances)


@pytest.mark.long
@given(others=st.dictionaries(st.text(min_size=3), st.text(), min_size=1, max_size=5))
@settings(max_examples=20, deadline=None)
def test_answers_to_other_questions_are_ignored_and_counted(others):
    answers = {"q0": "cat", "q1": "y"}
    chances = {"q0": 0.1, "q1": 0.4}
    expected = bw.score(
        "answering", QUESTIONS, predictions=answers, no_answer_probabilities=chances
    )
    says = f"{len(others)} of {len(others) + 2} ids are not those of a question in rows in memory"
    with pytest.warns(BertworksWarning, match=f"the predictions: {says}"):
        score = bw.score(
            "answering",
            QUESTIONS,
            predictions={**others, **answers},
            no_answer_probabilities=chances,
        )
    assert score == expected
    with pytest.warns(BertworksWarning, match=f"the no-answer probabilities: {says}"):
        score = bw.score(
            "answering",
            QUESTIONS,
            predictions=answers,
            no_answer_probabilities={**chances, **dict.fromkeys(others, 0.5)},
        )
    assert score == expected


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"id": ""}, "row 2: the question has no id"),
        ({"id": "q0"}, "row 2: two questions have the id 'q0'"),
        ({"answers": None}, "row 2: the column 'answers' holds no answers"),
        ({"id": 7.5}, "row 2: the column 'id' holds 7.5"),
    ],
)
def test_bad_questions_are_refused(change, says):
    with pytest.raises(DataError, match=says):
        bw.score("answering", [QUESTIONS[0], {**QUESTIONS[1], **change}], predictions={})


def test_arguments_are_of_their_task():
    with pytest.raises(SettingsError, match="'taging' cannot be scored"):
        bw.score("taging", [])
    with pytest.raises(SettingsError, match="predictions are missing"):
        bw.score("answering", QUESTIONS)
    with pytest.raises(SettingsError, match="label_column is not for answering"):
        bw.score("answering", QUESTIONS, predictions={}, label_column="x")
    with pytest.raises(SettingsError, match="predictions is not for tagging"):
        bw.score("tagging", [], predictions={})
