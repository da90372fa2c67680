"""The breakdown of an evaluation's metrics equals other libraries' counts."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import sklearn.metrics
import torch
from hypothesis import given
from hypothesis import strategies as st
from seqeval.metrics import classification_report as span_report

from bertworks.data.tables import read_rows
from bertworks.errors import CheckpointError, DataError
from bertworks.inference.evaluate import Evaluation
from bertworks.model import Model
from bertworks.nn.config import EncoderConfig
from bertworks.reports.evaluation import sections
from bertworks.tasks import find_labelled_task
from bertworks.tasks.breakdown import (
    EXCERPT_LENGTH,
    MAX_GROUPS,
    Breakdown,
    Calibration,
    ScoreTable,
    compute_mean_scores,
    excerpt,
)
from bertworks.tasks.measures import MAX_MISTAKES, NUM_BINS, CalibrationCounter, WorstMistakes
from bertworks.text.tokenizer import Tokenizer

from . import squad_oracle

LETTERS = "abcdefgh"
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS]
CONFIG = EncoderConfig(
    vocab_size=len(PIECES),
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=64,
)
RANDOM = np.random.default_rng(0)


def words(low: int, high: int) -> list[str]:
    return RANDOM.choice(list(LETTERS), RANDOM.integers(low, high)).tolist()


def text() -> str:
    return " ".join(words(1, 9))


def random_model(task: str, rows: list[dict[str, Any]], **options: Any) -> Model:
    """A model that is often wrong, and as often sure of it."""
    tokenizer = Tokenizer.from_vocabulary(PIECES)
    kind = find_labelled_task(task)
    task_object = kind.from_table(
        tokenizer, read_rows(rows), kind.user_settings().parse({"max_seq_length": 32, **options})
    )
    torch.manual_seed(0)
    network = task_object.network(CONFIG).eval()
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if not name.startswith("encoder.") or ".pooler." in name:
                parameter.mul_(20)
    return Model(tokenizer, task_object, network)


def expected_error(probabilities: np.ndarray, is_correct: np.ndarray) -> float:
    """Guo et al. 2017, equations 2 and 3, in plain code."""
    total = 0.0
    for m in range(1, NUM_BINS + 1):
        in_bin = (probabilities > (m - 1) / NUM_BINS) & (probabilities <= m / NUM_BINS)
        if in_bin.any():
            gap = abs(is_correct[in_bin].mean() - probabilities[in_bin].mean())
            total += in_bin.sum() / len(is_correct) * gap
    return total


def check_calibration(calibration: Calibration | None, confidences: Any, is_correct: Any) -> None:
    confidences, is_correct = np.array(confidences), np.array(is_correct)
    assert 0.05 < is_correct.mean() < 0.95, "a test of both"
    assert calibration is not None
    assert sum(one.count for one in calibration.bins) == len(is_correct)
    assert calibration.expected_error == pytest.approx(
        expected_error(confidences, is_correct), abs=1e-6
    )
    assert calibration.accuracy == pytest.approx(is_correct.mean())
    assert calibration.confidence == pytest.approx(confidences.mean(), abs=1e-6)


def check_rates(table: ScoreTable, report: dict[str, Any], names: list[str]) -> None:
    """Against a report of scikit-learn's or seqeval's."""
    assert [row.name for row in table.rows] == names
    for row in table.rows:
        theirs = report[row.name]
        assert row.count == theirs["support"]
        for ours, name in (("precision",) * 2, ("recall",) * 2, ("f1", "f1-score")):
            assert row.metrics[ours] == pytest.approx(theirs[name])


def test_classification_equals_scikit_learn() -> None:
    rows = [{"text": text(), "label": str(RANDOM.choice(["x", "y", "z"]))} for _ in range(150)]
    model = random_model("classification", rows)
    breakdown = model.evaluate(rows).breakdown
    predictions = model.predict([row["text"] for row in rows])
    gold, predicted = [row["label"] for row in rows], [one["label"] for one in predictions]
    confidences = [one["probabilities"][one["label"]] for one in predictions]
    assert breakdown.confusion is not None
    dense = np.zeros((3, 3), int)
    for truth, guess, count in breakdown.confusion.cells:
        dense[truth, guess] = count
    np.testing.assert_array_equal(dense, sklearn.metrics.confusion_matrix(gold, predicted))
    report = sklearn.metrics.classification_report(
        gold, predicted, output_dict=True, zero_division=0
    )
    check_rates(breakdown.tables[0], report, ["x", "y", "z"])
    is_correct = [own == other for own, other in zip(gold, predicted, strict=True)]
    check_calibration(breakdown.calibration, confidences, is_correct)
    wrong = sorted((at for at in range(150) if not is_correct[at]), key=lambda at: -confidences[at])
    assert len(wrong) > MAX_MISTAKES == len(breakdown.mistakes)
    assert [one.row - 1 for one in breakdown.mistakes] == wrong[:MAX_MISTAKES]
    for one, at in zip(breakdown.mistakes, wrong, strict=False):
        assert (one.text, one.gold, one.predicted) == (rows[at]["text"], gold[at], predicted[at])
        assert one.probability == pytest.approx(confidences[at], abs=1e-6)


def test_a_single_label_is_counted_as_itself() -> None:
    rows = [{"text": text(), "label": "spam" if at % 4 == 0 else ""} for at in range(40)]
    model = random_model("multilabel", rows)
    with torch.no_grad():  # so that some are predicted, correctly and wrongly
        model.network.head.linear.bias.fill_(9)
    evaluation = model.evaluate(rows)
    gold = [row["label"] == "spam" for row in rows]
    predicted = [bool(one["labels"]) for one in model.predict([row["text"] for row in rows])]
    assert any(predicted)
    expected = sklearn.metrics.f1_score(gold, predicted)
    assert evaluation.metrics["micro_f1"] == pytest.approx(expected)
    assert evaluation.metrics["macro_f1"] == pytest.approx(expected)
    (row,) = evaluation.breakdown.tables[0].rows
    assert (row.name, row.count, row.metrics["f1"]) == ("spam", 10, pytest.approx(expected))


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_a_network_whose_outputs_are_not_finite_is_not_measured(task: str) -> None:
    rows = [{"text": text(), "label": str(at % 2)} for at in range(6)]
    model = random_model(task, rows)
    with torch.no_grad():
        for parameter in model.network.parameters():
            parameter.fill_(torch.nan)
    with pytest.raises(CheckpointError, match=r"row \d: the model's output is not finite"):
        model.evaluate(rows)


@pytest.mark.long
def test_batches_change_nothing() -> None:
    rows = [{"text": text(), "label": str(RANDOM.choice(["x", "y"]))} for _ in range(60)]
    model = random_model("classification", rows)
    whole = model.evaluate(rows).breakdown
    parts = model.evaluate(rows, batch_tokens=20, window_rows=7).breakdown
    assert parts.confusion == whole.confusion
    assert parts.tables == whole.tables
    assert {one.row for one in parts.mistakes} == {one.row for one in whole.mistakes}
    assert parts.calibration is not None
    assert whole.calibration is not None
    assert [one.count for one in parts.calibration.bins] == [
        one.count for one in whole.calibration.bins
    ]


def test_pairs_are_shown_as_both_texts() -> None:
    rows = [{"premise": "a b", "hypothesis": "c", "label": label} for label in "xy"]
    mistakes = random_model("classification", rows).evaluate(rows).breakdown.mistakes
    assert [one.text for one in mistakes] == ["a b | c"]


def test_several_labels_of_a_row_equal_scikit_learn() -> None:
    names = ["p", "q", "r"]
    rows = [
        {"text": text(), "label": [name for name in names if RANDOM.random() < 0.4]}
        for _ in range(60)
    ]
    model = random_model("multilabel", rows)
    breakdown = model.evaluate(rows).breakdown
    predictions = model.predict([row["text"] for row in rows])
    predicted = [one["labels"] for one in predictions]
    ones = [
        np.array([[name in own for name in names] for own in every])
        for every in ([row["label"] for row in rows], predicted)
    ]
    report = sklearn.metrics.classification_report(
        *ones, target_names=names, output_dict=True, zero_division=0
    )
    check_rates(breakdown.tables[0], report, names)
    confidences = {
        at: max(
            max(chance, 1 - chance)
            for name, chance in one["probabilities"].items()
            if (name in one["labels"]) != (name in rows[at]["label"])
        )
        for at, one in enumerate(predictions)
        if one["labels"] != rows[at]["label"]
    }
    expected = sorted(confidences, key=lambda at: (-confidences[at], at))[:MAX_MISTAKES]
    assert [one.row - 1 for one in breakdown.mistakes] == expected
    worst = expected[0]
    assert breakdown.mistakes[0].predicted == (", ".join(predicted[worst]) or "none")
    assert breakdown.mistakes[0].gold == (", ".join(rows[worst]["label"]) or "none")


def tagged_rows(tags: list[str]) -> list[dict[str, Any]]:
    rows = []
    for _ in range(60):
        own = words(1, 9)
        rows.append({"words": own, "tags": RANDOM.choice(tags, len(own)).tolist()})
    return rows


def predict_tags(model: Model, rows: list[dict[str, Any]]) -> tuple[list[list[str]], list[float]]:
    predicted = model.predict([{"words": row["words"]} for row in rows])
    return [one["tags"] for one in predicted], [
        p for one in predicted for p in one["probabilities"]
    ]


def flat(rows: list[list[str]]) -> list[str]:
    return [tag for tags in rows for tag in tags]


def test_spans_equal_seqeval() -> None:
    rows = tagged_rows(["B-PER", "O", "B-LOC"])
    model = random_model("tagging", rows)
    breakdown = model.evaluate(rows).breakdown
    gold = [row["tags"] for row in rows]
    predicted, confidences = predict_tags(model, rows)
    report = span_report(gold, predicted, output_dict=True, mode="strict", zero_division=0)
    check_rates(breakdown.tables[0], report, ["LOC", "PER"])
    assert breakdown.confusion is not None
    labels = breakdown.confusion.labels
    kinds = [
        [tag.removeprefix("B-").removeprefix("I-") for tag in flat(every)]
        for every in (gold, predicted)
    ]
    cells = {(labels[own], labels[other]): n for own, other, n in breakdown.confusion.cells}
    assert cells == Counter(zip(*kinds, strict=True))
    is_correct = [own == other for own, other in zip(flat(gold), flat(predicted), strict=True)]
    check_calibration(breakdown.calibration, confidences, is_correct)


def test_plain_tags_equal_scikit_learn() -> None:
    rows = tagged_rows(["NOUN", "VERB", "X"])
    model = random_model("tagging", rows)
    breakdown = model.evaluate(rows).breakdown
    gold = [row["tags"] for row in rows]
    predicted, _ = predict_tags(model, rows)
    report = sklearn.metrics.classification_report(
        flat(gold), flat(predicted), output_dict=True, zero_division=0
    )
    check_rates(breakdown.tables[0], report, ["NOUN", "VERB", "X"])
    assert len({one.row for one in breakdown.mistakes}) == len(breakdown.mistakes), "one of a row"
    for one in breakdown.mistakes:
        row, tags = rows[one.row - 1], predicted[one.row - 1]
        assert one.mark is not None
        at = one.text[: one.mark[0]].count(" ")
        assert one.text[slice(*one.mark)] == row["words"][at]
        assert (one.gold, one.predicted) == (row["tags"][at], tags[at])
        assert one.gold != one.predicted


def test_choice_has_calibration_and_mistakes() -> None:
    rows = [
        {"prompt": text(), "choices": [text() for _ in range(3)], "label": int(RANDOM.integers(3))}
        for _ in range(60)
    ]
    model = random_model("choice", rows)
    breakdown = model.evaluate(rows).breakdown
    predictions = model.predict([{**row, "label": None} for row in rows])
    is_correct = [one["choice"] == row["label"] for one, row in zip(predictions, rows, strict=True)]
    confidences = [max(one["probabilities"]) for one in predictions]
    check_calibration(breakdown.calibration, confidences, is_correct)
    worst = max((at for at in range(60) if not is_correct[at]), key=confidences.__getitem__)
    first, row = breakdown.mistakes[0], rows[worst]
    assert (first.row, first.text) == (worst + 1, row["prompt"])
    assert (first.gold, first.predicted) == (
        row["choices"][row["label"]],
        predictions[worst]["text"],
    )


def test_regression_has_values_and_largest_errors() -> None:
    rows = [{"text": text(), "score": float(RANDOM.normal())} for _ in range(60)]
    model = random_model("regression", rows, label_column="score")
    breakdown = model.evaluate(rows).breakdown
    predicted = [one["value"] for one in model.predict([row["text"] for row in rows])]
    gold = [row["score"] for row in rows]
    pairs = sorted(zip(gold, predicted, strict=True))
    np.testing.assert_allclose(sorted(breakdown.values), pairs, rtol=1e-4, atol=1e-5)
    errors = np.abs(np.subtract(gold, predicted))
    assert [one.row - 1 for one in breakdown.mistakes] == np.argsort(-errors)[
        :MAX_MISTAKES
    ].tolist()
    assert breakdown.mistakes[0].error == pytest.approx(errors.max(), rel=1e-4)


def question(answer: int) -> dict[str, Any]:
    """A question whose answer has so many words, and not articles alone."""
    own = ["b", *words(11, 15)]
    spans = {"text": [" ".join(own[:answer])], "answer_start": [0]}
    nothing: dict[str, Any] = {"text": [], "answer_start": []}
    return {
        "question": f"{RANDOM.choice(['What', 'who'])} {text()}",
        "context": " ".join(own),
        "answers": spans if answer else nothing,
    }


def test_answering_has_scores_by_length_and_question_word() -> None:
    rows = [question(number % 12) for number in range(48)]
    model = random_model("answering", rows, stride=8)
    evaluation = model.evaluate(rows)
    lengths, beginnings = evaluation.breakdown.tables
    assert {row.name: row.count for row in lengths.rows} == {
        **{"no answer": 4, "1 word": 4, "2 words": 4},
        **{"3 to 5 words": 12, "6 to 10 words": 20, "more words": 4},
    }
    assert {row.name: row.count for row in beginnings.rows} == Counter(
        row["question"].split()[0].lower() for row in rows
    )
    for table in (lengths, beginnings):
        for metric in ("exact_match", "f1"):
            total = sum(row.count * row.metrics[metric] for row in table.rows)
            assert total / 48 == pytest.approx(evaluation.metrics[metric])
    assert evaluation.metrics["f1"] > 0
    answers = model.predict(rows)
    assert evaluation.breakdown.mistakes
    for one in evaluation.breakdown.mistakes:
        row, answer = rows[one.row - 1], answers[one.row - 1]
        assert one.text.startswith(f"{row['question']} | ")
        assert one.predicted == (answer["answer"] or "no answer")
        assert one.gold == (row["answers"]["text"] or ["no answer"])[0]
        assert one.probability == pytest.approx(answer["probability"], abs=1e-6)
        if answer["answer"]:
            assert one.mark is not None
            assert one.text[slice(*one.mark)] == answer["answer"]


@pytest.mark.parametrize("version", ["1.1", "2.0"])
def test_answers_without_words_are_counted(version: str) -> None:
    """A true answer without words, as the official scorers take it."""
    rows = [question(1 + number % 3) for number in range(24)]
    for row in rows[::3]:
        row["answers"] = {"text": ["a"], "answer_start": [0]}
        row["context"] = f"a {row['context']}"
    for row in rows[1::3]:
        row["answers"]["text"].append("a a")
        row["answers"]["answer_start"].append(0)
    if version == "2.0":
        rows += [question(0) for _ in range(4)]
    model = random_model("answering", rows, stride=8)
    evaluation = model.evaluate(rows)
    answers = {str(number): row["answers"]["text"] for number, row in enumerate(rows)}
    predicted = {str(number): one["answer"] for number, one in enumerate(model.predict(rows))}
    expected = squad_oracle.compute_scores(answers, predicted, version)
    assert {key: evaluation.metrics[key] for key in expected} == pytest.approx(expected)
    nothing = {key: texts for key, texts in answers.items() if set(texts) <= {"a"}}
    assert len(nothing) == (12 if version == "2.0" else 8)
    lengths = {row.name: row.count for row in evaluation.breakdown.tables[0].rows}
    assert lengths["no answer"] == len(nothing)
    if version == "2.0":
        share = squad_oracle.compute_scores(nothing, predicted, version)["f1"]
        assert evaluation.metrics["unanswered_accuracy"] == pytest.approx(share)
        assert evaluation.metrics["best_f1"] >= len(nothing) / len(rows)


def test_breakdown_is_read_from_its_json() -> None:
    rows = [{"text": text(), "label": label} for label in "xyzxyz"]
    evaluation = random_model("classification", rows).evaluate(rows)
    assert evaluation.breakdown.mistakes
    tree = json.loads(evaluation.to_json("rows.tsv"))
    assert (tree["data"], tree["rows"]) == ("rows.tsv", 6)
    assert tree["metrics"] == evaluation.metrics
    assert Breakdown.parse(tree["breakdown"], where="x") == evaluation.breakdown


def test_numbers_that_are_not_finite_become_null() -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    text = Evaluation({"loss": math.nan}, 1).to_json("x")
    assert json.loads(text, parse_constant=refuse)["metrics"] == {"loss": None}


def test_a_notebook_shows_an_evaluation() -> None:
    page = Evaluation({"loss": 0.25}, 1234, ["look here"])._repr_html_()
    for said in ("Evaluation of 1,234 rows", "0.25", "<p>look here</p>"):
        assert said in page


def test_another_file_is_refused() -> None:
    with pytest.raises(DataError, match=r"evaluation\.json: .*mistakes"):
        Breakdown.parse({"mistakes": [{"row": "first"}]}, where="evaluation.json")


# Of a prime's fractions none lies on an edge between bins, where rounding would decide.
FRACTIONS = st.integers(1, 996).map(lambda number: number / 997)


@given(st.lists(st.tuples(FRACTIONS, st.booleans()), min_size=1, max_size=60), st.integers(1, 20))
def test_calibration_equals_its_definition(answers: list[tuple[float, bool]], size: int) -> None:
    sure, right = (np.array(column) for column in zip(*answers, strict=True))
    counter = CalibrationCounter()
    for start in range(0, len(answers), size):
        counter.add(sure[start : start + size], right[start : start + size])
    calibration = counter.result("rows")
    assert calibration is not None
    assert calibration.expected_error == pytest.approx(expected_error(sure, right))


def test_a_bin_holds_its_upper_edge() -> None:
    counter = CalibrationCounter()
    counter.add(np.array([0.0, 1 / 3, 1.0]), np.array([False, True, True]))
    calibration = counter.result("rows")
    assert calibration is not None
    edges = [(one.low * NUM_BINS, one.high * NUM_BINS) for one in calibration.bins]
    assert edges == [pytest.approx(pair) for pair in ((0, 1), (4, 5), (14, 15))]


def test_calibration_of_no_predictions_is_none() -> None:
    assert CalibrationCounter().result("rows") is None


@given(st.permutations(list(range(40))))
def test_worst_mistakes_do_not_depend_on_the_order(order: list[int]) -> None:
    worst = WorstMistakes()
    for index in order:
        row = SimpleNamespace(index=index, where=f"f:{index}")
        worst.add(index // 2 / 20, row, "text", "a", "b")  # two of each probability
    expected = sorted(range(40), key=lambda index: (-(index // 2), index))[:MAX_MISTAKES]
    assert [one.row - 1 for one in worst.result()] == expected
    assert [one.where for one in worst.result()] == [f"f:{index}" for index in expected]


@given(st.integers(0, 900), st.data())
def test_excerpts_contain_the_marked_characters(length: int, data: st.DataObject) -> None:
    whole = "".join(chr(0x4E00 + at) for at in range(length))  # no character twice
    start = data.draw(st.integers(0, length))
    end = data.draw(st.integers(start, length))
    shortened_text, mark = excerpt(whole, start, end)
    assert len(shortened_text.strip("…")) == min(length, EXCERPT_LENGTH)
    assert shortened_text.strip("…") in whole
    assert shortened_text.startswith("…") == (not whole.startswith(shortened_text.strip("…")))
    assert (mark is None) == (start == end)
    if mark is not None:
        assert shortened_text[slice(*mark)] == whole[start : min(end, start + EXCERPT_LENGTH)]


def test_rare_kinds_are_one() -> None:
    kinds = [f"kind {at}" for at in range(MAX_GROUPS + 3) for _ in range(MAX_GROUPS + 3 - at)]
    table = compute_mean_scores(
        "kind", "rows", kinds, {"size": [float(kind[5:]) for kind in kinds]}
    )
    assert len(table.rows) == MAX_GROUPS + 1
    assert table.rows[0].metrics == {"size": 0.0}
    others = table.rows[-1]
    rest = [at for at in range(MAX_GROUPS, MAX_GROUPS + 3) for _ in range(MAX_GROUPS + 3 - at)]
    assert (others.name, others.count) == ("others", len(rest))
    assert others.metrics["size"] == pytest.approx(np.mean(rest))


@pytest.mark.parametrize(
    ("task", "rows"),
    [
        (
            "classification",
            [{"text": letter, "label": "xy"[at % 2]} for at, letter in enumerate("abcd")],
        ),
        ("regression", [{"text": letter, "label": at} for at, letter in enumerate("abcd")]),
        (
            "tagging",
            [{"words": [letter], "tags": ["xy"[at % 2]]} for at, letter in enumerate("abcd")],
        ),
        (
            "choice",
            [
                {"prompt": "a", "choice_1": "b", "choice_2": letter, "label": at % 2}
                for at, letter in enumerate("abcd")
            ],
        ),
        (
            "retrieval",
            [{"text1": letter, "text2": "b", "score": at / 3} for at, letter in enumerate("abcd")],
        ),
    ],
)
def test_mistakes_name_their_places(tmp_path: Path, task: str, rows: list[dict[str, Any]]) -> None:
    """In a file of lines by its line: a blank one makes it another than the row's number."""
    file = tmp_path / "dev.jsonl"
    file.write_text("\n" + "".join(json.dumps(row) + "\n" for row in rows))
    for mistake in random_model(task, rows).evaluate(file).breakdown.mistakes:
        assert mistake.where == f"{file}:{mistake.row + 1}"
        assert f"{file}:{mistake.row + 1}" in "".join(
            sections(Breakdown(mistakes=(mistake,)), "dev")
        )


def test_rows_of_a_table_have_the_same_metrics() -> None:
    rows = [{"name": name, "count": 1, "metrics": {name: 1.0}} for name in ("f1", "recall")]
    with pytest.raises(ValueError, match="the same metrics"):
        ScoreTable.model_validate({"grouping": "label", "unit": "rows", "rows": rows})
