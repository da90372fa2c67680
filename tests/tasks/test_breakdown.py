"""What an evaluation's metrics are made of, against what others count from the same predictions."""

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


def untrained(task: str, rows: list[dict[str, Any]], **options: Any) -> Model:
    """A model that is often wrong, and as often sure of it."""
    tokenizer = Tokenizer.from_vocabulary(PIECES)
    kind = find_labelled_task(task)
    made = kind.from_table(
        tokenizer, read_rows(rows), kind.options.parse({"max_seq_length": 32, **options})
    )
    torch.manual_seed(0)
    network = made.network(CONFIG).eval()
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if not name.startswith("encoder.") or ".pooler." in name:
                parameter.mul_(20)
    return Model(tokenizer, made, network)


def expected_error(probabilities: np.ndarray, right: np.ndarray) -> float:
    """Guo et al. 2017, equations 2 and 3, as they stand there."""
    total = 0.0
    for m in range(1, NUM_BINS + 1):
        chosen = (probabilities > (m - 1) / NUM_BINS) & (probabilities <= m / NUM_BINS)
        if chosen.any():
            gap = abs(right[chosen].mean() - probabilities[chosen].mean())
            total += chosen.sum() / len(right) * gap
    return total


def check_calibration(found: Calibration | None, sure: Any, right: Any) -> None:
    sure, right = np.array(sure), np.array(right)
    assert 0.05 < right.mean() < 0.95, "a test of both"
    assert found is not None
    assert sum(one.count for one in found.bins) == len(right)
    assert found.expected_error == pytest.approx(expected_error(sure, right), abs=1e-6)
    assert found.accuracy == pytest.approx(right.mean())
    assert found.confidence == pytest.approx(sure.mean(), abs=1e-6)


def check_rates(table: ScoreTable, report: dict[str, Any], names: list[str]) -> None:
    """Against a report of scikit-learn's or seqeval's."""
    assert [row.name for row in table.rows] == names
    for row in table.rows:
        theirs = report[row.name]
        assert row.count == theirs["support"]
        for ours, name in (("precision",) * 2, ("recall",) * 2, ("f1", "f1-score")):
            assert row.metrics[ours] == pytest.approx(theirs[name])


def test_classification() -> None:
    rows = [{"text": text(), "label": str(RANDOM.choice(["x", "y", "z"]))} for _ in range(150)]
    model = untrained("classification", rows)
    found = model.evaluate(rows).breakdown
    predicted = model.predict([row["text"] for row in rows])
    true, told = [row["label"] for row in rows], [one["label"] for one in predicted]
    sure = [one["probabilities"][one["label"]] for one in predicted]
    assert found.confusion is not None
    dense = np.zeros((3, 3), int)
    for truth, guess, count in found.confusion.cells:
        dense[truth, guess] = count
    np.testing.assert_array_equal(dense, sklearn.metrics.confusion_matrix(true, told))
    report = sklearn.metrics.classification_report(true, told, output_dict=True, zero_division=0)
    check_rates(found.tables[0], report, ["x", "y", "z"])
    right = [own == other for own, other in zip(true, told, strict=True)]
    check_calibration(found.calibration, sure, right)
    wrong = sorted((at for at in range(150) if not right[at]), key=lambda at: -sure[at])
    assert len(wrong) > MAX_MISTAKES == len(found.mistakes)
    assert [one.row - 1 for one in found.mistakes] == wrong[:MAX_MISTAKES]
    for one, at in zip(found.mistakes, wrong, strict=False):
        assert (one.text, one.gold, one.predicted) == (rows[at]["text"], true[at], told[at])
        assert one.probability == pytest.approx(sure[at], abs=1e-6)


def test_a_single_label_is_counted_as_itself() -> None:
    rows = [{"text": text(), "label": "spam" if at % 4 == 0 else ""} for at in range(40)]
    model = untrained("classification", rows, multi_label=True)
    with torch.no_grad():  # so that some are told, rightly and wrongly
        model.network.head.linear.bias.fill_(9)
    found = model.evaluate(rows)
    true = [row["label"] == "spam" for row in rows]
    told = [bool(one["labels"]) for one in model.predict([row["text"] for row in rows])]
    assert any(told)
    expected = sklearn.metrics.f1_score(true, told)
    assert found.metrics["micro_f1"] == pytest.approx(expected)
    assert found.metrics["macro_f1"] == pytest.approx(expected)
    (row,) = found.breakdown.tables[0].rows
    assert (row.name, row.count, row.metrics["f1"]) == ("spam", 10, pytest.approx(expected))


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_a_network_whose_outputs_are_not_finite_is_not_measured(task: str) -> None:
    rows = [{"text": text(), "label": str(at % 2)} for at in range(6)]
    model = untrained(task, rows)
    with torch.no_grad():
        for parameter in model.network.parameters():
            parameter.fill_(torch.nan)
    with pytest.raises(CheckpointError, match=r"row \d: the model's output is not finite"):
        model.evaluate(rows)


def test_batches_change_nothing() -> None:
    rows = [{"text": text(), "label": str(RANDOM.choice(["x", "y"]))} for _ in range(60)]
    model = untrained("classification", rows)
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
    mistakes = untrained("classification", rows).evaluate(rows).breakdown.mistakes
    assert [one.text for one in mistakes] == ["a b | c"]


def test_several_labels_of_a_row() -> None:
    names = ["p", "q", "r"]
    rows = [
        {"text": text(), "label": [name for name in names if RANDOM.random() < 0.4]}
        for _ in range(60)
    ]
    model = untrained("classification", rows, multi_label=True)
    found = model.evaluate(rows).breakdown
    predicted = model.predict([row["text"] for row in rows])
    told = [one["labels"] for one in predicted]
    ones = [
        np.array([[name in own for name in names] for own in every])
        for every in ([row["label"] for row in rows], told)
    ]
    report = sklearn.metrics.classification_report(
        *ones, target_names=names, output_dict=True, zero_division=0
    )
    check_rates(found.tables[0], report, names)
    sure = {
        at: max(
            max(chance, 1 - chance)
            for name, chance in one["probabilities"].items()
            if (name in one["labels"]) != (name in rows[at]["label"])
        )
        for at, one in enumerate(predicted)
        if one["labels"] != rows[at]["label"]
    }
    expected = sorted(sure, key=lambda at: (-sure[at], at))[:MAX_MISTAKES]
    assert [one.row - 1 for one in found.mistakes] == expected
    worst = expected[0]
    assert found.mistakes[0].predicted == (", ".join(told[worst]) or "none")
    assert found.mistakes[0].gold == (", ".join(rows[worst]["label"]) or "none")


def tagged(tags: list[str]) -> list[dict[str, Any]]:
    rows = []
    for _ in range(60):
        own = words(1, 9)
        rows.append({"words": own, "tags": RANDOM.choice(tags, len(own)).tolist()})
    return rows


def told_of(model: Model, rows: list[dict[str, Any]]) -> tuple[list[list[str]], list[float]]:
    predicted = model.predict([{"words": row["words"]} for row in rows])
    return [one["tags"] for one in predicted], [
        p for one in predicted for p in one["probabilities"]
    ]


def flat(rows: list[list[str]]) -> list[str]:
    return [tag for tags in rows for tag in tags]


def test_spans() -> None:
    rows = tagged(["B-PER", "O", "B-LOC"])
    model = untrained("tagging", rows)
    found = model.evaluate(rows).breakdown
    true = [row["tags"] for row in rows]
    told, sure = told_of(model, rows)
    report = span_report(true, told, output_dict=True, mode="strict", zero_division=0)
    check_rates(found.tables[0], report, ["LOC", "PER"])
    assert found.confusion is not None
    labels = found.confusion.labels
    kinds = [
        [tag.removeprefix("B-").removeprefix("I-") for tag in flat(every)] for every in (true, told)
    ]
    cells = {(labels[own], labels[other]): n for own, other, n in found.confusion.cells}
    assert cells == Counter(zip(*kinds, strict=True))
    right = [own == other for own, other in zip(flat(true), flat(told), strict=True)]
    check_calibration(found.calibration, sure, right)


def test_plain_tags() -> None:
    rows = tagged(["NOUN", "VERB", "X"])
    model = untrained("tagging", rows)
    found = model.evaluate(rows).breakdown
    true = [row["tags"] for row in rows]
    told, _ = told_of(model, rows)
    report = sklearn.metrics.classification_report(
        flat(true), flat(told), output_dict=True, zero_division=0
    )
    check_rates(found.tables[0], report, ["NOUN", "VERB", "X"])
    assert len({one.row for one in found.mistakes}) == len(found.mistakes), "one of a row"
    for one in found.mistakes:
        row, tags = rows[one.row - 1], told[one.row - 1]
        assert one.mark is not None
        at = one.text[: one.mark[0]].count(" ")
        assert one.text[slice(*one.mark)] == row["words"][at]
        assert (one.gold, one.predicted) == (row["tags"][at], tags[at])
        assert one.gold != one.predicted


def test_choice() -> None:
    rows = [
        {"prompt": text(), "choices": [text() for _ in range(3)], "label": int(RANDOM.integers(3))}
        for _ in range(60)
    ]
    model = untrained("choice", rows)
    found = model.evaluate(rows).breakdown
    predicted = model.predict([{**row, "label": None} for row in rows])
    right = [one["choice"] == row["label"] for one, row in zip(predicted, rows, strict=True)]
    sure = [max(one["probabilities"]) for one in predicted]
    check_calibration(found.calibration, sure, right)
    worst = max((at for at in range(60) if not right[at]), key=sure.__getitem__)
    first, row = found.mistakes[0], rows[worst]
    assert (first.row, first.text) == (worst + 1, row["prompt"])
    assert (first.gold, first.predicted) == (row["choices"][row["label"]], predicted[worst]["text"])


def test_regression() -> None:
    rows = [{"text": text(), "score": float(RANDOM.normal())} for _ in range(60)]
    model = untrained("regression", rows, label_column="score")
    found = model.evaluate(rows).breakdown
    told = [one["value"] for one in model.predict([row["text"] for row in rows])]
    true = [row["score"] for row in rows]
    pairs = sorted(zip(true, told, strict=True))
    np.testing.assert_allclose(sorted(found.values), pairs, rtol=1e-4, atol=1e-5)
    errors = np.abs(np.subtract(true, told))
    assert [one.row - 1 for one in found.mistakes] == np.argsort(-errors)[:MAX_MISTAKES].tolist()
    assert found.mistakes[0].error == pytest.approx(errors.max(), rel=1e-4)


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


def test_answering() -> None:
    rows = [question(number % 12) for number in range(48)]
    model = untrained("answering", rows, stride=8)
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
        row, told = rows[one.row - 1], answers[one.row - 1]
        assert one.text.startswith(f"{row['question']} | ")
        assert one.predicted == (told["answer"] or "no answer")
        assert one.gold == (row["answers"]["text"] or ["no answer"])[0]
        assert one.probability == pytest.approx(told["probability"], abs=1e-6)
        if told["answer"]:
            assert one.mark is not None
            assert one.text[slice(*one.mark)] == told["answer"]


@pytest.mark.parametrize("version", ["1.1", "2.0"])
def test_answers_without_words(version: str) -> None:
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
    model = untrained("answering", rows, stride=8)
    found = model.evaluate(rows)
    answers = {str(number): row["answers"]["text"] for number, row in enumerate(rows)}
    predicted = {str(number): one["answer"] for number, one in enumerate(model.predict(rows))}
    expected = squad_oracle.scored(answers, predicted, version)
    assert {key: found.metrics[key] for key in expected} == pytest.approx(expected)
    nothing = {key: texts for key, texts in answers.items() if set(texts) <= {"a"}}
    assert len(nothing) == (12 if version == "2.0" else 8)
    lengths = {row.name: row.count for row in found.breakdown.tables[0].rows}
    assert lengths["no answer"] == len(nothing)
    if version == "2.0":
        share = squad_oracle.scored(nothing, predicted, version)["f1"]
        assert found.metrics["unanswered_accuracy"] == pytest.approx(share)
        assert found.metrics["best_f1"] >= len(nothing) / len(rows)


def test_json_and_back() -> None:
    rows = [{"text": text(), "label": label} for label in "xyzxyz"]
    found = untrained("classification", rows).evaluate(rows)
    assert found.breakdown.mistakes
    tree = json.loads(found.to_json("rows.tsv"))
    assert (tree["data"], tree["rows"]) == ("rows.tsv", 6)
    assert tree["metrics"] == found.metrics
    assert Breakdown.parse(tree["breakdown"], where="x") == found.breakdown


def test_what_is_not_finite_is_null() -> None:
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
INSIDE = st.integers(1, 996).map(lambda number: number / 997)


@given(st.lists(st.tuples(INSIDE, st.booleans()), min_size=1, max_size=60), st.integers(1, 20))
def test_calibration_by_its_definition(answers: list[tuple[float, bool]], size: int) -> None:
    sure, right = (np.array(column) for column in zip(*answers, strict=True))
    counter = CalibrationCounter()
    for start in range(0, len(answers), size):
        counter.add(sure[start : start + size], right[start : start + size])
    found = counter.result("rows")
    assert found is not None
    assert found.expected_error == pytest.approx(expected_error(sure, right))


def test_a_bin_holds_its_upper_edge() -> None:
    counter = CalibrationCounter()
    counter.add(np.array([0.0, 1 / 3, 1.0]), np.array([False, True, True]))
    found = counter.result("rows")
    assert found is not None
    edges = [(one.low * NUM_BINS, one.high * NUM_BINS) for one in found.bins]
    assert edges == [pytest.approx(pair) for pair in ((0, 1), (4, 5), (14, 15))]


def test_calibration_of_nothing() -> None:
    assert CalibrationCounter().result("rows") is None


@given(st.permutations(list(range(40))))
def test_the_worst_whatever_the_order(order: list[int]) -> None:
    worst = WorstMistakes()
    for index in order:
        row = SimpleNamespace(index=index, where=f"f:{index}")
        worst.add(index // 2 / 20, row, "text", "a", "b")  # two of each probability
    expected = sorted(range(40), key=lambda index: (-(index // 2), index))[:MAX_MISTAKES]
    assert [one.row - 1 for one in worst.result()] == expected
    assert [one.where for one in worst.result()] == [f"f:{index}" for index in expected]


@given(st.integers(0, 900), st.data())
def test_excerpts_hold_what_they_are_about(length: int, data: st.DataObject) -> None:
    whole = "".join(chr(0x4E00 + at) for at in range(length))  # no character twice
    start = data.draw(st.integers(0, length))
    end = data.draw(st.integers(start, length))
    cut, mark = excerpt(whole, start, end)
    assert len(cut.strip("…")) == min(length, EXCERPT_LENGTH)
    assert cut.strip("…") in whole
    assert cut.startswith("…") == (not whole.startswith(cut.strip("…")))
    assert (mark is None) == (start == end)
    if mark is not None:
        assert cut[slice(*mark)] == whole[start : min(end, start + EXCERPT_LENGTH)]


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
    for mistake in untrained(task, rows).evaluate(file).breakdown.mistakes:
        assert mistake.where == f"{file}:{mistake.row + 1}"
        assert f"{file}:{mistake.row + 1}" in "".join(
            sections(Breakdown(mistakes=(mistake,)), "dev")
        )
