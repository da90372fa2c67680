"""Question answering: alignment by property, decoding by brute force, the official scores."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from bertworks.errors import DataError
from bertworks.inference.writers import write_predictions
from bertworks.model.config import EncoderConfig
from bertworks.tasks.answering.metrics import best_threshold, exact_match, f1, normalized
from bertworks.tasks.answering.network import AnsweringNetwork
from bertworks.tasks.answering.settings import AnsweringOptions
from bertworks.tasks.answering.spans import candidates, locate, passage_tokens
from bertworks.tasks.answering.task import AnsweringTask
from bertworks.tasks.rows import read_rows
from bertworks.text.tokenizer import Tokenizer

DATA = Path(os.environ.get("BERTWORKS_DATA", "../shared/data"))
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdé中", *(f"##{c}" for c in "abcdé")]
TOKENIZER = Tokenizer.from_vocabulary(PIECES, lowercase=False, strip_accents=False)


def make_task(**values: Any) -> AnsweringTask:
    return AnsweringTask.from_dict({"max_seq_length": 16, "stride": 5, **values}, TOKENIZER)


def row(context: str, answer: str | None, start: object = None) -> Mapping[str, Any]:
    answers = {"text": [], "answer_start": []}
    if answer is not None:
        answers = {"text": [answer], "answer_start": [start]}
    return {"question": "a b", "context": context, "answers": answers}


PASSAGES = st.lists(st.text("abcdé中", min_size=1, max_size=4), min_size=1, max_size=25)


@given(words=PASSAGES, data=st.data())
@settings(max_examples=200, deadline=None)
def test_an_answer_comes_back(words, data):
    """Encode, let the network point at the targets, decode: the answer, by its characters."""
    context = "  ".join(words)
    first = data.draw(st.integers(0, len(words) - 1))
    last = data.draw(st.integers(first, min(len(words) - 1, first + 1)))
    start = len("  ".join(words[:first])) + 2 * (first > 0)
    answer = "  ".join(words[first : last + 1])
    task = make_task()
    example = task.example(row(context, answer, start), 7)
    assert example.found == "as given"
    assume(any(target != (0, 0) for target in example.targets))
    batch = task.collate([example]).to("cpu")
    ends = batch.packed.cu_seqlens.tolist()
    logits = torch.zeros(batch.packed.num_tokens, 2)
    for at, (begin, end) in enumerate(batch.targets["spans"].tolist()):
        if (begin, end) != (0, 0):
            logits[ends[at] + begin, 0] = 9
            logits[ends[at] + end, 1] = 9
    told = task.decode({"logits": logits}, batch)[7]
    # A window that sees less around the beginning has no say; then another begins where it begins.
    if told["probability"] > 0.5:
        assert (told["answer"], told["start"]) == (answer, start)
    assert context[told["start"] : told["end"]] == told["answer"]


def test_the_window_with_the_whole_answer_has_the_target():
    task = make_task()
    example = task.example(row("a b c d a b c d a b c d a b", "d a", 14), 0)
    for window, target in zip(example.windows, example.targets, strict=True):
        if target == (0, 0):
            tokens = window.offsets[passage_tokens(window)]
            assert not (tokens[0, 0] <= 14 and tokens[-1, 1] >= 17)
        else:
            assert (window.offsets[target[0], 0], window.offsets[target[1], 1]) == (14, 17)
    assert sum(target != (0, 0) for target in example.targets) >= 1
    assert len(task.training_examples(example)) == len(example.windows)


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (3, (3, "as given")),
        (0, (0, "as given")),
        (3.0, (3, "as given")),
        (float("nan"), (0, "moved")),
        (4, (3, "moved")),
        (None, (0, "moved")),
        (-1, (0, "moved")),
        (99, (3, "moved")),
        ("3", (0, "moved")),
    ],
)
def test_an_answer_is_looked_for_where_it_is_said_to_be(start, expected):
    assert locate("ab ab", "ab", start) == expected


def test_a_lost_answer_is_counted_and_not_learned():
    task = make_task()
    examples = task.examples([row("a b", "x", 0), row("a b", "b", 2), row("a b", None)], 0)
    counts = task.count_targets(examples)
    assert counts == {"answered": 1, "without an answer": 1, "lost": 1}
    assert [len(task.training_examples(example)) for example in examples] == [0, 1, 1]


LOGITS = st.floats(-9, 9, allow_subnormal=False)


@given(
    pairs=st.lists(st.tuples(LOGITS, LOGITS, st.booleans()), min_size=1, max_size=12),
    longest=st.integers(1, 6),
    count=st.integers(1, 5),
)
def test_the_best_spans_are_the_best_of_all(pairs, longest, count):
    start, end = np.array([p[0] for p in pairs]), np.array([p[1] for p in pairs])
    may = np.array([p[2] for p in pairs])
    offsets = np.stack([np.arange(len(pairs)), np.arange(len(pairs)) + 1], 1)
    found = candidates(start, end, offsets, may, max_answer_tokens=longest, count=count)
    every = [
        start[i] + end[j]
        for i in range(len(pairs))
        if may[i]
        for j in range(i, min(len(pairs), i + longest))
    ]
    assert [one.score for one in found] == pytest.approx(sorted(every, reverse=True)[:count])
    for one in found:
        assert 1 <= one.end - one.start <= longest
        assert one.score == pytest.approx(start[one.start] + end[one.end - 1])


@pytest.mark.parametrize("loss", ["mean", "sum"])
@pytest.mark.parametrize("softmax", ["sequence", "passage"])
def test_the_loss_is_that_of_the_paper(loss, softmax):
    config = EncoderConfig(
        vocab_size=len(PIECES),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
    )
    task = make_task(span_loss=loss, softmax=softmax)
    network = task.network(config).double().eval()
    assert isinstance(network, AnsweringNetwork)
    rows = [row("a b c d a b c d a b", "c d", 4), row("a", None)]
    batch = task.collate(task.examples(rows, 0)).to("cpu")
    logits = network.predict(batch)["logits"]
    ends = batch.packed.cu_seqlens.tolist()
    expected = 0.0
    for at, target in enumerate(batch.targets["spans"]):
        own = logits[ends[at] : ends[at + 1]].clone()
        if softmax == "passage":
            first = 4  # [CLS] a b [SEP] passage [SEP]
            own[1:first] = own[-1:] = -torch.inf
        for side in range(2):
            expected += F.cross_entropy(own[:, side], target[side])
    if loss == "mean":
        expected = expected / 2
    assert network(batch)["answering"].item() == pytest.approx(expected.item(), rel=1e-10)
    assert batch.counts["answering"] == batch.packed.num_sequences


def test_no_answer_is_told_where_it_scores_better():
    for threshold, told in ((0.0, ""), (3.0, "b")):
        task = make_task(unanswerable=True, null_threshold=threshold)
        batch = task.collate([task.example(row("a b", None), 0, labelled=False)]).to("cpu")
        logits = torch.zeros(7, 2)  # [CLS] a b [SEP] a b [SEP]
        logits[0], logits[5] = 2.0, 1.0
        answer = task.decode({"logits": logits}, batch)[0]
        assert answer["answer"] == told
        chances = {one["answer"]: one["probability"] for one in answer["alternatives"]}
        assert sum(chances.values()) == pytest.approx(1)
        assert chances[""] / chances["b"] == pytest.approx(np.exp(2))


@given(
    rows=st.lists(
        st.tuples(st.floats(-9, 9, allow_subnormal=False), st.floats(0, 1), st.booleans()),
        min_size=1,
        max_size=8,
    )
)
def test_the_threshold_is_the_best(rows):
    margins = [margin for margin, _, _ in rows]
    if_told = [0.0 if empty else score for _, score, empty in rows]
    if_none = [float(empty) for _, _, empty in rows]

    def mean(threshold):
        parts = [
            none if margin > threshold else told
            for margin, told, none in zip(margins, if_told, if_none, strict=True)
        ]
        return sum(parts) / len(parts)

    threshold, best = best_threshold(margins, if_told, if_none)
    assert mean(threshold) == pytest.approx(best)
    assert best >= max(map(mean, [*margins, -10.0])) - 1e-12


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "em", "score"),
    [("rnet-plus", 82.469, 88.478), ("match-lstm", 67.635, 76.756)],
)
def test_scores_are_those_of_the_official_scorer(name, em, score):
    """Two published systems' answers, scored by the official script."""
    folder = DATA / "squad"
    if not folder.is_dir():
        pytest.skip(f"there is no {folder}")
    told = json.loads((folder / f"predictions-{name}.json").read_text())
    rows = [row.values for part in ("train", "dev") for row in read_rows(folder / f"{part}.json")]
    assert len(rows) == 10_570
    pairs = [(told[one["id"]], one["answers"]["text"]) for one in rows]
    assert 100 * np.mean([exact_match(*pair) for pair in pairs]) == pytest.approx(em, abs=5e-4)
    assert 100 * np.mean([f1(*pair) for pair in pairs]) == pytest.approx(score, abs=5e-4)


def test_no_answer_is_scored_as_the_official_scorer_does():
    assert exact_match("", []) == f1("", []) == 1
    assert exact_match("x", []) == f1("x", []) == 0
    assert f1("the", ["x"]) == 0
    assert normalized("The  Cat's, a hat!") == "cats hat"


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"context": "a", "answers": "a"}, "f:3: the row has no column 'question'"),
        ({"question": 3, "context": "a", "answers": "a"}, "f:3: the column 'question' holds 3"),
        ({"question": "a", "context": "a", "answers": 5}, "f:3: the column 'answers' holds no ans"),
        ({"question": "a", "context": "a"}, "f:3: the column 'answers' holds no answers"),
    ],
)
def test_bad_rows(values, says):
    with pytest.raises(DataError, match=says):
        make_task().example(values, 0, where="f:3")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "a.json:1: no JSON"),
        ("[\n1]", "a.json, row 1: a JSON int, not an object"),
        ('{"data": 3}', "there is no list 'data', as SQuAD"),
        (
            '{"data": [{"paragraphs": [{"qas": []}]}]}',
            "article 1, paragraph 1: there is no text 'co",
        ),
        (
            '{"data": [{"paragraphs": [{"context": "a", "qas": [{"id": "q"}]}]}]}',
            "question 'q': ther",
        ),
        (
            '{"data": [{"paragraphs": [{"context": "a", "qas": [{"id": "q", "question": "b", '
            '"is_impossible": "false"}]}]}]}',
            "question 'q': is_impossible='false' is neither true nor false",
        ),
    ],
)
def test_bad_files(tmp_path, text, says):
    file = tmp_path / "a.json"
    file.write_text(text)
    with pytest.raises(DataError, match=says):
        list(read_rows(file))


def test_a_long_question_narrows_the_stride():
    task = make_task(stride=8, max_question_tokens=10)
    asked = {"question": "a " * 12, "context": "b c d " * 3}
    windows = task.example(asked, 0, labelled=False).windows
    starts = {
        tuple(place) for window in windows for place in window.offsets[passage_tokens(window)]
    }
    assert {start for start, _ in starts} == set(range(0, 18, 2)), "no token falls between windows"


def test_a_file_with_questions_without_answers_makes_such_a_task(tmp_path):
    file = tmp_path / "a.json"
    qas = [
        {"id": "1", "question": "a", "answers": [{"text": "b", "answer_start": 2}]},
        {"id": "2", "question": "a", "answers": [], "is_impossible": True},
    ]
    document = {"data": [{"title": "t", "paragraphs": [{"context": "a b", "qas": qas}]}]}
    file.write_text(json.dumps(document, indent=1))
    rows = read_rows(file)
    task = AnsweringTask.from_table(TOKENIZER, rows, AnsweringOptions(max_seq_length=16, stride=4))
    written = tmp_path / "a.tsv"  # where a list of answers is JSON
    write_predictions(written, [(row, {}) for _, row in rows])
    again = task.examples([row for _, row in read_rows(written)], 0)
    assert [example.answers for example in again] == [("b",), ()]
    assert task.example({**rows.sample[0], "answers": "{b}"}, 0).answers == ("{b}",)
    assert task.settings.unanswerable
    assert task.settings.stride == 4
    examples = task.examples([row.values for row in rows], 0)
    assert [example.answers for example in examples] == [("b",), ()]
    assert task.tuned({"best_null_threshold": 1.5}).settings.null_threshold == 1.5
    evaluator = task.evaluator()
    batch = task.collate(examples).to("cpu")
    evaluator.add({"logits": torch.zeros(batch.packed.num_tokens, 2)}, batch)
    assert tuple(evaluator.result()) == task.metrics
