"""Tags are scored as conlleval and seqeval score them."""

from __future__ import annotations

import contextlib
import io
import random
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seqeval.metrics import f1_score as span_f1
from seqeval.metrics import precision_score, recall_score
from sklearn.metrics import accuracy_score, f1_score

import bertworks as bw
from bertworks.errors import BertworksWarning, DataError
from bertworks.inference.prediction_files import write_predictions
from bertworks.utils.formatting import format_count


@pytest.mark.parametrize("separator", [" ", "\t"])
@pytest.mark.parametrize("words", [True, False])
def test_tag_metrics_equal_seqeval_and_scikit_learn(tmp_path, separator, words):
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
    score = bw.score("tagging", file)
    true, predicted = ([[word[at] for word in one] for one in sentences] for at in (1, 2))
    assert score.rows == 40
    assert score.metrics["f1"] == pytest.approx(span_f1(true, predicted))
    flat = [list(chain(*part)) for part in (true, predicted)]
    assert score.metrics["accuracy"] == pytest.approx(accuracy_score(*flat))
    assert score.breakdown.confusion is not None
    assert score.breakdown.confusion.labels == ("LOC", "PER", "O")
    first = score.breakdown.mistakes[0]
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
    score = bw.score("tagging", file)
    assert (score.metrics["precision"], score.metrics["recall"]) == (1 / 3, 1 / 2)
    assert score.metrics["accuracy"] == 1 / 2
    assert score.notes[-1] == "these predicted tags mark no span, and count as none: 'Q'"
    file.write_text("\n".join(lines).replace("O Q", "O O"))
    clean = bw.score("tagging", file)
    assert clean.metrics["f1"] == score.metrics["f1"]
    assert clean.notes == score.notes[:-1]
    file.write_text("\n".join(lines).replace("O Q", "Q O"))
    mixed = bw.score("tagging", file)
    assert "macro_f1" in mixed.metrics
    assert mixed.notes == ["tags are read one by one, not as spans, since these mark none: 'Q'"]


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


@pytest.mark.long
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
        score = bw.score("tagging", file)
    names = ("accuracy", "precision", "recall", "f1")
    assert [score.metrics[name] for name in names] == pytest.approx(conlleval(lines))
    assert score.rows == sum(map(len, documents))
    count = format_count(len(documents), "line")
    assert f"-DOCSTART- counts as a word, as in conlleval: {count}" in score.notes


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


def test_tags_are_scored_in_rows_of_equal_lengths():
    row = {"words": ["a", "b"], "tags": ["X", "Y"], "prediction": {"tags": ["X", "X"]}}
    assert bw.score("tagging", [row]).metrics["accuracy"] == 0.5
    with pytest.raises(DataError, match=r"row 1: 2 word\(s\), 2 tag\(s\) and 1 predicted"):
        bw.score("tagging", [{**row, "prediction": ["X"]}])
    with pytest.raises(DataError, match="cannot be both the label and the prediction"):
        bw.score("tagging", [row], prediction_column="tags")


PREDICTIONS = [
    ({"words": ["Ann", "left"], "tags": ["B-PER", "O"]}, {"tags": ["B-PER", "O"]}),
    ({"words": ["Bonn"], "tags": ["B-LOC"]}, {"tags": ["B-PER"]}),
    ({"words": ["a", "b,", '"'], "tags": ["O", "O", "O"]}, {"tags": ["O", "O", "O"]}),
]


@pytest.mark.parametrize("suffix", ["csv", "tsv", "txt"])
@pytest.mark.parametrize("columns", [{}, {"label_column": "2"}, {"prediction_column": "told"}])
def test_tags_that_predict_writes_score_the_same_in_every_format(tmp_path, suffix, columns):
    key = "told" if "prediction_column" in columns else "prediction"
    file, lines = tmp_path / f"predicted.{suffix}", tmp_path / "predicted.jsonl"
    write_predictions(file, PREDICTIONS)
    if key == "told":
        file.write_text(file.read_text().replace("prediction.tags", key, 1))
    write_predictions(lines, PREDICTIONS)
    score, expected = bw.score("tagging", file, **columns), bw.score("tagging", lines)
    assert expected.metrics["f1"] == 0.5
    assert score.metrics == expected.metrics
    assert [one.text for one in score.breakdown.mistakes] == ["Bonn"]


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
def test_tags_are_read_from_standard_input(monkeypatch, lines):
    stream = io.BufferedReader(io.BytesIO(lines.encode()))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(stream))
    found = bw.score("tagging", "-")
    assert found.rows == 2
    assert (found.metrics["precision"], found.metrics["recall"]) == (1, 0.5)
