"""Predictions in files: scored as the official scorers and other packages score them."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import pearsonr, spearmanr
from seqeval.metrics import f1_score as span_f1
from seqeval.metrics import precision_score, recall_score
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

import bertworks as bw
from bertworks.data.tables import read_rows
from bertworks.errors import BertworksError, BertworksWarning, DataError, SettingsError
from bertworks.inference.prediction_files import write_predictions

from ..tasks import squad_oracle

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


def named(values: list[Any]) -> dict[str, Any]:
    return {f"q{number}": value for number, value in enumerate(values)}


@pytest.mark.long
@given(
    questions=st.lists(
        st.tuples(st.lists(ANSWERS, min_size=1, max_size=3), st.none() | TEXTS), min_size=1
    )
)
@settings(max_examples=150, deadline=None)
def test_version_1_is_scored_as_the_official_scorer_does(questions):
    answers = named([texts for texts, _ in questions])
    predictions = {f"q{n}": text for n, (_, text) in enumerate(questions) if text is not None}
    found = bw.score("answering", rows_of(answers), predictions=predictions)
    expected = squad_oracle.compute_scores(answers, predictions, "1.1")
    assert found.metrics == pytest.approx(expected)
    missing = len(questions) - len(predictions)
    assert [str(missing) in remark for remark in found.remarks] == [True] * bool(missing)
    nothing = sum(not any(map(squad_oracle.words_of, texts)) for texts in answers.values())
    lengths = {row.name: row.count for row in found.breakdown.tables[0].rows}
    assert lengths.get("no answer", 0) == nothing
    mistakes = {one.row - 1 for one in found.breakdown.mistakes}
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
@settings(max_examples=150, deadline=None)
def test_version_2_is_scored_as_the_official_scorer_does(questions):
    """And the best threshold is the best of all; a wordless answer is none everywhere."""
    answers, predictions = named([q[0] for q in questions]), named([q[1] for q in questions])
    margins = named([q[2] for q in questions])
    found = bw.score(
        "answering",
        rows_of(answers),
        predictions=predictions,
        no_answer_probabilities={key: float(value) for key, value in margins.items()},
    )
    metrics = dict(found.metrics)

    def at(threshold: float) -> dict[str, float]:
        kept = {k: "" if margins[k] > threshold else text for k, text in predictions.items()}
        return squad_oracle.compute_scores(answers, kept, "2.0")

    assert {key: metrics[key] for key in ("exact_match", "f1")} == pytest.approx(at(9))
    best = max(at(threshold)["f1"] for threshold in range(-4, 4))
    assert metrics["best_f1"] == pytest.approx(best)
    assert at(metrics["best_null_threshold"])["f1"] == pytest.approx(best)
    none = {k: texts for k, texts in answers.items() if not any(map(squad_oracle.words_of, texts))}
    some = {k: texts for k, texts in answers.items() if k not in none}
    if some:
        expected = squad_oracle.compute_scores(some, predictions, "2.0")["f1"]
        assert metrics["answered_f1"] == pytest.approx(expected)
    if none:
        expected = squad_oracle.compute_scores(none, predictions, "2.0")["f1"]
        assert metrics["unanswered_accuracy"] == pytest.approx(expected)
    lengths = {row.name: row.count for row in found.breakdown.tables[0].rows}
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
        ('{"q0": "a", "q0": "b"}', "answers.json: the id 'q0' occurs twice"),
        ('{"q0": 5}', "answers.json: expected a text, got int 5 of the question 'q0'"),
        ('{"q0": null}', "expected a text, got NoneType None of the question 'q0'"),
        (
            '{"zz": "a", "yy": "b"}',
            "answers.json: none of its 2 ids is that of a question in rows in memory, such as 'zz'",
        ),
        ("\udcff", "answers.json: not UTF-8"),
    ],
)
def test_bad_predictions(tmp_path, text, says):
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
def test_bad_probabilities(chances, says):
    with pytest.raises(DataError, match=says):
        bw.score("answering", QUESTIONS, predictions={}, no_answer_probabilities=chances)


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
        found = bw.score(
            "answering",
            QUESTIONS,
            predictions={**others, **answers},
            no_answer_probabilities=chances,
        )
    assert found == expected
    with pytest.warns(BertworksWarning, match=f"the no-answer probabilities: {says}"):
        found = bw.score(
            "answering",
            QUESTIONS,
            predictions=answers,
            no_answer_probabilities={**chances, **dict.fromkeys(others, 0.5)},
        )
    assert found == expected


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"id": ""}, "row 2: the question has no id"),
        ({"id": "q0"}, "row 2: two questions have the id 'q0'"),
        ({"answers": None}, "row 2: the column 'answers' holds no answers"),
        ({"id": 7.5}, "row 2: the column 'id' holds 7.5"),
    ],
)
def test_bad_questions(change, says):
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


@pytest.mark.parametrize("separator", [" ", "\t"])
@pytest.mark.parametrize("words", [True, False])
def test_tags(tmp_path, separator, words):
    """A file as `conlleval` takes it, with and without words, under a name that says nothing."""
    draw = random.Random(0)
    tags = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
    sentences = [
        [(f"w{at}", draw.choice(tags), draw.choice(tags)) for at in range(draw.randint(1, 9))]
        for _ in range(40)
    ]
    lines = (
        "".join(separator.join(word[0 if words else 1 :]) + "\n" for word in sentence)
        for sentence in sentences
    )
    file = tmp_path / "system.out.txt"
    file.write_text("\n".join(lines))
    found = bw.score("tagging", file)
    true, predicted = ([[word[at] for word in one] for one in sentences] for at in (1, 2))
    assert found.rows == 40
    assert found.metrics["f1"] == pytest.approx(span_f1(true, predicted))
    flat = [list(chain(*part)) for part in (true, predicted)]
    assert found.metrics["accuracy"] == pytest.approx(accuracy_score(*flat))
    assert found.breakdown.confusion is not None
    assert found.breakdown.confusion.labels == ("LOC", "PER", "O")
    first = found.breakdown.mistakes[0]
    sentence = sentences[first.row - 1]
    wrong = next(at for at, word in enumerate(sentence) if word[1] != word[2])
    assert (first.gold, first.predicted) == sentence[wrong][1:]
    assert first.mark is not None
    assert first.text[slice(*first.mark)] == sentence[wrong][0 if words else 2]


def test_plain_tags_have_a_macro_f1(tmp_path):
    file = tmp_path / "tags.conll"
    file.write_text("a NOUN NOUN\nb VERB NOUN\n\nc VERB VERB\n")
    metrics = bw.score("tagging", file).metrics
    expected = f1_score(["N", "V", "V"], ["N", "N", "V"], average="macro")
    assert metrics["macro_f1"] == pytest.approx(expected)
    assert "f1" not in metrics


def test_a_predicted_tag_that_marks_no_span_counts_as_none(tmp_path):
    file = tmp_path / "system.conll"
    lines = ["Ann B-PER B-PER", "left O Q", "Bonn B-LOC B-LOC", "Rye I-LOC B-LOC"]
    file.write_text("\n".join(lines) + "\n")
    found = bw.score("tagging", file)
    assert (found.metrics["precision"], found.metrics["recall"]) == (1 / 3, 1 / 2)
    assert found.metrics["accuracy"] == 1 / 2
    assert found.remarks[-1] == "these predicted tags mark no span, and count as none: 'Q'"
    file.write_text("\n".join(lines).replace("O Q", "O O"))
    clean = bw.score("tagging", file)
    assert clean.metrics["f1"] == found.metrics["f1"]
    assert clean.remarks == found.remarks[:-1]
    file.write_text("\n".join(lines).replace("O Q", "Q O"))
    mixed = bw.score("tagging", file)
    assert "macro_f1" in mixed.metrics
    assert mixed.remarks == ["tags are read one by one, not as spans, since these mark none: 'Q'"]


def conlleval(lines: list[str]) -> tuple[float, float, float, float]:
    """Accuracy over all lines but blank ones, as in conlleval; span rates from seqeval."""
    words = [line.split() for line in lines if line]
    text = "\n".join("" if line.startswith("-DOC") else line for line in lines)
    parts = [part.split("\n") for part in text.split("\n\n")]
    sides = [
        [[line.split()[at] for line in part if line] for part in parts if any(part)]
        for at in (-2, -1)
    ]
    accuracy = sum(word[-1] == word[-2] for word in words) / len(words)
    rates = (rate(*sides, zero_division=0) for rate in (precision_score, recall_score, span_f1))
    return (accuracy, *rates)


TAGS = st.sampled_from(["O", "B-PER", "I-PER", "B-LOC"])


@settings(max_examples=40, deadline=None)
@given(
    documents=st.lists(
        st.lists(st.lists(st.tuples(TAGS, TAGS), min_size=1, max_size=4), min_size=1, max_size=3),
        min_size=1,
        max_size=3,
    ),
    only_outside=st.booleans(),
    header=st.booleans(),
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.UndefinedMetricWarning")
def test_lines_that_begin_documents_count_as_in_conlleval(
    tmp_path_factory, documents, only_outside, header
):
    lines = []
    for document in documents:
        lines += ["-DOCSTART- -X- O O", ""]
        for sentence in document:
            sides = [("O", "O") if only_outside else tags for tags in sentence]
            lines += [f"w{at} NN {gold} {told}" for at, (gold, told) in enumerate(sides)] + [""]
    file = tmp_path_factory.getbasetemp() / "documents.conll"
    file.write_text("\n".join(["token pos gold predicted"] * header + lines))
    warned = pytest.warns(BertworksWarning, match="are read as column names")
    with warned if header else contextlib.nullcontext():
        found = bw.score("tagging", file)
    names = ("accuracy", "precision", "recall", "f1")
    assert [found.metrics[name] for name in names] == pytest.approx(conlleval(lines))
    assert found.rows == sum(map(len, documents))
    assert f"{len(documents)} lines -DOCSTART- count as words, as in conlleval" in found.remarks


def test_a_short_line_that_begins_a_document_is_no_word(tmp_path):
    file = tmp_path / "documents.conll"
    file.write_text("-DOCSTART-\n\nAnn B-PER B-PER\nleft O B-PER\n")
    assert bw.score("tagging", file).metrics["accuracy"] == 0.5
    file.write_text("-DOCSTART- -X- -X-\n\nAnn B-PER B-PER\nleft O B-PER\n")
    found = bw.score("tagging", file)
    assert found.metrics["accuracy"] == pytest.approx(2 / 3)
    assert found.breakdown.mistakes[0].row == 1


@pytest.mark.parametrize("lines", ["a O O\nb O O\n", "O\tO\n\nO\tO\n"])
def test_tags_outside_spans_alone_score_zero_as_spans(tmp_path, lines):
    file = tmp_path / "outside.conll"
    file.write_text(lines)
    rates = {"precision": 0.0, "recall": 0.0, "f1": 0.0}
    assert bw.score("tagging", file).metrics == {"majority": 1.0, "accuracy": 1.0, **rates}


PREDICTIONS = [{"y": "a", "n": "a"}, {"y": "b", "n": "a"}, {"y": "b", "n": "b"}]


@pytest.mark.parametrize(
    ("gold", "predicted"),
    [
        *(("y_true", "y_pred"), ("Gold Label", "Model prediction"), ("expected", "actual")),
        *(("actual", "predicted"), ("reference", "hypothesis"), ("true", "pred_label")),
        *(("label", "prediction.label"), ("gold_topic", "predicted_topic"), ("class", "guess")),
    ],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_columns_are_found_by_usual_names_in_any_order(gold, predicted, is_first):
    rows = [{gold: row["y"], predicted: row["n"]} for row in PREDICTIONS]
    rows = rows if is_first else [dict(reversed(row.items())) for row in rows]
    (mistake,) = bw.score("classification", rows).breakdown.mistakes
    assert (mistake.gold, mistake.predicted) == ("b", "a")


def test_columns_that_could_be_another_are_reported():
    two = [{"wahr": row["y"], "geraten": row["n"]} for row in PREDICTIONS]
    says = "the label is read from 'wahr', and the prediction from 'geraten'.*--label-column"
    with pytest.warns(BertworksWarning, match=says):
        assert bw.score("classification", two).metrics["accuracy"] == pytest.approx(2 / 3)
    swapped = [{"guess": row["n"], "wahr": row["y"]} for row in PREDICTIONS]
    with pytest.warns(BertworksWarning, match="the label is read from 'wahr'"):
        bw.score("classification", swapped)
    both = [{"label": row["n"], "gold": row["y"], "pred": row["y"]} for row in PREDICTIONS]
    with pytest.warns(BertworksWarning, match="label is read from 'gold', not from 'label'"):
        assert bw.score("classification", both).metrics["accuracy"] == 1
    for rows in ([{"label": "a", "comment": "some text"}], [{"premise": "a", "hypothesis": "b"}]):
        with pytest.raises(DataError, match="cannot tell which column holds the"):
            bw.score("classification", [*rows, *rows])


def test_tags_of_rows():
    row = {"words": ["a", "b"], "tags": ["X", "Y"], "prediction": {"tags": ["X", "X"]}}
    assert bw.score("tagging", [row]).metrics["accuracy"] == 0.5
    with pytest.raises(DataError, match=r"row 1: 2 word\(s\), 2 tag\(s\) and 1 predicted"):
        bw.score("tagging", [{**row, "prediction": ["X"]}])
    with pytest.raises(DataError, match="cannot be both the label and the prediction"):
        bw.score("tagging", [row], prediction_column="tags")


LABELS = st.lists(st.tuples(st.sampled_from("xyz"), st.sampled_from("xyz")), min_size=1)


@pytest.mark.long
@given(pairs=LABELS)
@settings(max_examples=60, deadline=None)
def test_classes(pairs):
    rows = [{"note": f"row {n}", "label": a, "predicted": b} for n, (a, b) in enumerate(pairs)]
    found = bw.score("classification", rows)
    true, predicted = zip(*pairs, strict=True)
    names = sorted({*true, *predicted})
    assert found.metrics["accuracy"] == pytest.approx(accuracy_score(true, predicted))
    macro = f1_score(true, predicted, labels=names, average="macro", zero_division=0)
    assert found.metrics["macro_f1"] == pytest.approx(macro)
    if len(names) == 2:
        positive = f1_score(true, predicted, pos_label=names[1], zero_division=0)
        assert found.metrics["f1"] == pytest.approx(positive)
    if len({*true, *predicted}) > 1:
        matthews = matthews_corrcoef(true, predicted)
        assert found.metrics["matthews_correlation"] == pytest.approx(matthews)
    wrong = [n for n, (a, b) in enumerate(pairs) if a != b]
    shown = [(one.row - 1, one.text, one.gold, one.predicted) for one in found.breakdown.mistakes]
    assert shown == [(n, f"row {n}", *pairs[n]) for n in wrong][:25]


def test_columns_without_names_are_the_last_two(tmp_path):
    file = tmp_path / "predicted.tsv"
    file.write_text("0\ta text\tx\tx\n1\tanother\tx\ty\n")
    assert bw.score("classification", file, header=False).metrics["accuracy"] == 0.5
    named = bw.score("classification", file, header=False, label_column="4", prediction_column="3")
    assert named.breakdown.mistakes[0].gold == "y"
    with pytest.raises(DataError, match=r"holds the prediction; .*--prediction-column"):
        bw.score("classification", [{"label": "x", "text": "a"}])
    with pytest.raises(DataError, match="there is no column 'lable'"):
        bw.score("classification", [{"label": "x", "predicted": "a"}], label_column="lable")
    with pytest.raises(DataError, match=r"row 1: the label \(column 'predicted'\) is empty"):
        bw.score("classification", [{"label": "x", "predicted": ""}])


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_a_table_without_rows(tmp_path, task):
    file = tmp_path / "predicted.tsv"
    file.write_text("label\tpredicted\n")
    with pytest.raises(DataError, match=r"predicted.tsv: there are no rows"):
        bw.score(task, file)


def test_values():
    draw = random.Random(0)
    true = [draw.random() for _ in range(30)]
    predicted = [value + draw.gauss(0, 0.3) for value in true]
    pairs = zip(true, predicted, strict=True)
    found = bw.score("regression", [{"label": a, "prediction": {"value": b}} for a, b in pairs])
    errors = [abs(a - b) for a, b in zip(true, predicted, strict=True)]
    assert found.metrics == pytest.approx(
        {
            "mean_squared_error": sum(error**2 for error in errors) / 30,
            "pearson": pearsonr(true, predicted).statistic,
            "spearman": spearmanr(true, predicted).statistic,
        }
    )
    assert found.breakdown.mistakes[0].error == pytest.approx(max(errors))
    with pytest.raises(
        BertworksError, match=r"'nan' \(column 'predicted'\) is not a finite number"
    ):
        bw.score("regression", [{"label": 1, "predicted": "nan"}])


def test_what_predict_writes_can_be_scored(tmp_path):
    """TSV and JSON Lines with a prediction beside each row."""
    rows = [
        {"text": "a", "label": "x", "prediction": {"label": "x", "probabilities": {"x": 0.9}}},
        {"text": "b", "label": "y", "prediction": {"label": "x", "probabilities": {"x": 0.6}}},
    ]
    lines = tmp_path / "predicted.jsonl"
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
    table = tmp_path / "predicted.tsv"
    table.write_text(
        "text\tlabel\tprediction.label\tprediction.probabilities.x\na\tx\tx\t0.9\nb\ty\tx\t0.6\n"
    )
    for file in (lines, table):
        found = bw.score("classification", file)
        assert found.metrics["accuracy"] == 0.5
        assert found.breakdown.mistakes[0].text == "b"


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl"])
def test_classes_that_are_floats_keep_their_names(tmp_path, suffix):
    """A model calls the label 1.0 `1`; a table beside it has `1.0`."""
    file = tmp_path / f"predicted.{suffix}"
    pairs = [(0.0, "0"), (1.0, "1"), (1.0, "0"), (10.0, "10"), (-1.0, "-1")]
    write_predictions(file, [({"label": gold}, {"label": told}) for gold, told in pairs])
    found = bw.score("classification", file)
    assert found.metrics["accuracy"] == 0.8
    assert found.breakdown.confusion.labels == ("-1", "0", "1", "10")
    assert found.remarks == []


def test_labels_whose_names_have_points_are_left_alone():
    versions = [("1.0", "1.0"), ("1", "1"), ("1.0", "1")]
    rows = [{"label": gold, "predicted": told} for gold, told in versions]
    assert bw.score("classification", rows).metrics["accuracy"] == pytest.approx(2 / 3)


def test_labels_that_have_nothing_in_common_are_told():
    rows = [{"label": "good", "predicted": "1"}, {"label": "bad", "predicted": "0"}]
    (remark,) = bw.score("classification", rows).remarks
    assert "none in common: gold 'bad', 'good', predicted '0', '1'" in remark
    rows.append({"label": "1", "predicted": "0"})
    assert bw.score("classification", rows).remarks == []


TAGGED = [
    ({"words": ["Ann", "left"], "tags": ["B-PER", "O"]}, {"tags": ["B-PER", "O"]}),
    ({"words": ["Bonn"], "tags": ["B-LOC"]}, {"tags": ["B-PER"]}),
    ({"words": ["a", "b,", '"'], "tags": ["O", "O", "O"]}, {"tags": ["O", "O", "O"]}),
]


@pytest.mark.parametrize("suffix", ["csv", "tsv", "txt"])
@pytest.mark.parametrize("named", [{}, {"label_column": "2"}, {"prediction_column": "told"}])
def test_tags_that_predict_writes_score_the_same_in_every_format(tmp_path, suffix, named):
    key = "told" if "prediction_column" in named else "prediction"
    file, lines = tmp_path / f"predicted.{suffix}", tmp_path / "predicted.jsonl"
    write_predictions(file, TAGGED)
    if key == "told":
        file.write_text(file.read_text().replace("prediction.tags", key, 1))
    write_predictions(lines, TAGGED)
    found, expected = bw.score("tagging", file, **named), bw.score("tagging", lines)
    assert expected.metrics["f1"] == 0.5
    assert found.metrics == expected.metrics
    assert [one.text for one in found.breakdown.mistakes] == ["Bonn"]


@pytest.mark.parametrize(
    "lines",
    [
        "Ann B-PER\nleft O\n\nO O\nBonn B-LOC\n",
        "Ann\tNOUN\nleft\tVERB\n.\t.\n",
    ],
)
def test_words_and_gold_tags_alone_are_no_predictions(tmp_path, lines):
    file = tmp_path / "gold.tsv"
    file.write_text(lines)
    with pytest.raises(
        DataError, match=r"gold.tsv: its two columns seem to be words and"
    ) as caught:
        bw.score("tagging", file)
    assert "\n" not in str(caught.value)
    named = {"label_column": "1", "prediction_column": "2"}
    assert bw.score("tagging", file, **named).metrics["accuracy"] < 0.5


@pytest.mark.parametrize(
    "lines",
    [
        "B-PER\tB-PER\nO\tO\n\nB-PER\tO\n",
        "words\ttags\tprediction.words\tprediction.tags\tprediction.probabilities\n"
        '["Ann", "left"]\t["B-PER", "O"]\t["Ann", "left"]\t["B-PER", "O"]\t[0.9, 0.8]\n'
        '["Bob"]\t["B-PER"]\t["Bob"]\t["O"]\t[0.9]\n',
    ],
)
def test_tags_from_standard_input(monkeypatch, lines):
    stream = io.BufferedReader(io.BytesIO(lines.encode()))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(stream))
    found = bw.score("tagging", "-")
    assert found.rows == 2
    assert (found.metrics["precision"], found.metrics["recall"]) == (1, 0.5)
