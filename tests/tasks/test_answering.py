"""Question answering: alignment by property, decoding by brute force, the official scores."""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from bertworks.analysis import scoring
from bertworks.data.tables import read_rows
from bertworks.errors import BertworksWarning, DataError
from bertworks.inference.prediction_files import write_predictions
from bertworks.nn.config import EncoderConfig
from bertworks.tasks.answering.answers import USUAL_COLUMNS, read_answers
from bertworks.tasks.answering.network import AnsweringNetwork
from bertworks.tasks.answering.scores import exact_match, f1, find_best_threshold
from bertworks.tasks.answering.settings import AnsweringSettings
from bertworks.tasks.answering.spans import (
    find_best_spans,
    find_max_context,
    find_passage_tokens,
    locate_answer,
)
from bertworks.tasks.answering.task import AnsweringTask
from bertworks.text.definition import Frame
from bertworks.text.tokenizer import Tokenizer

DATA = Path(os.environ.get("BERTWORKS_DATA", "../shared/data"))
LETTERS = [*"abcdé中", *(f"##{c}" for c in "abcdé")]
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, "ab", "##cd"]
TOKENIZER = Tokenizer.from_vocabulary(PIECES, lowercase=False, strip_accents=False)


def make_task(**values: Any) -> AnsweringTask:
    return AnsweringTask.from_dict(
        {**USUAL_COLUMNS, "max_seq_length": 16, "stride": 5, **values}, TOKENIZER
    )


def row(context: str, answer: str | None, start: object = None) -> Mapping[str, Any]:
    answers = {"text": [], "answer_start": []}
    if answer is not None:
        answers = {"text": [answer], "answer_start": [start]}
    return {"question": "a b", "context": context, "answers": answers}


PASSAGES = st.lists(st.text("abcdé中", min_size=1, max_size=4), min_size=1, max_size=25)


@pytest.mark.long
@given(words=PASSAGES, data=st.data())
@settings(max_examples=60, deadline=None)
def test_an_answer_comes_back(words, data):
    """Encode, let the network point at the targets, decode: the answer, by its characters."""
    context = "  ".join(words)
    first = data.draw(st.integers(0, len(words) - 1))
    last = data.draw(st.integers(first, min(len(words) - 1, first + 1)))
    start = len("  ".join(words[:first])) + 2 * (first > 0)
    answer = "  ".join(words[first : last + 1])
    task = make_task()
    example = task.example(row(context, answer, start), 7)
    # Windows of 11 tokens of the passage overlap by 6: an answer of 8 may be in none.
    is_in_window = any(target != (0, 0) for target in example.target)
    assert is_in_window or len(answer.replace(" ", "")) > 7
    assert example.match == ("exact" if is_in_window else "in no window")
    assume(is_in_window)
    batch = task.collate([example]).to("cpu")
    ends = batch.packed.cu_seqlens.tolist()
    logits = torch.zeros(batch.packed.num_tokens, 2)
    for number, (begin, end) in enumerate(batch.targets["spans"].tolist()):
        if (begin, end) != (0, 0):
            logits[ends[number] + begin, 0] = 9
            logits[ends[number] + end, 1] = 9
    predicted = task.decode({"logits": logits}, batch)[7]
    # A window that sees less around the beginning has no say; then another begins where it begins.
    if predicted["probability"] > 0.5:
        assert (predicted["answer"], predicted["start"]) == (answer, start)
    assert context[predicted["start"] : predicted["end"]] == predicted["answer"]


@pytest.mark.parametrize(("answer", "start"), [("ab", 2), (None, None)])
def test_answer_comes_back_where_cls_is_last(answer, start):
    """XLNet's frame: the token that stands for "no answer" is the last one."""
    frame = Frame((), ("[SEP]",), ("[SEP]", "[CLS]"), 1, (("[CLS]", 2),))
    tokenizer = Tokenizer(replace(TOKENIZER.definition, frame=frame))
    values = {**USUAL_COLUMNS, "max_seq_length": 16, "stride": 5, "unanswerable": True}
    task = AnsweringTask.from_dict(values, tokenizer)
    example = task.example(row("c ab é", answer, start), 7)
    batch = task.collate([example]).to("cpu")
    ids = example.sequences[0].input_ids
    (target,) = batch.targets["spans"].tolist()
    if answer is None:
        assert tokenizer.tokens(ids[target]) == ["[CLS]", "[CLS]"]
    else:
        assert tokenizer.tokens(ids[target]) == ["ab", "ab"]
    marked = tokenizer.tokens(ids[batch.targets["may_answer"].numpy()])
    assert marked == ["c", "ab", "é", "[CLS]"]
    logits = torch.zeros(len(ids), 2)
    logits[target[0], 0] = logits[target[1], 1] = 9
    predicted = task.decode({"logits": logits}, batch)[7]
    assert predicted["answer"] == (answer or "") and predicted["probability"] > 0.99


@pytest.mark.long
@given(words=PASSAGES, data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_window_has_the_target_if_it_has_the_whole_answer(words, data):
    """Any characters of the passage, also parts of pieces, against the tokens of all of it."""
    context = " ".join(words)
    start = data.draw(st.integers(0, len(context) - 1))
    end = data.draw(st.integers(start + 1, min(len(context), start + 8)))
    assume(context[start:end].strip())
    task = make_task()
    example = task.example(row(context, context[start:end], start), 0)
    tokens = TOKENIZER.encode(context).offsets[1:-1].tolist()
    answer_tokens = [
        token for token, (first, stop) in enumerate(tokens) if first < end and stop > start
    ]
    question = 2
    room = 16 - 3 - question
    for number, (window, target) in enumerate(zip(example.sequences, example.target, strict=True)):
        window_tokens = range(5 * number, min(5 * number + room, len(tokens)))
        assert window.num_tokens == len(window_tokens) + 3 + question
        expected = (0, 0)
        if answer_tokens[0] in window_tokens and answer_tokens[-1] in window_tokens:
            expected = tuple(
                token - window_tokens.start + 2 + question
                for token in (answer_tokens[0], answer_tokens[-1])
            )
        assert target == expected


class OriginalPredictions:
    """What is predicted for a passage, by the rules of the original, token by token.

    Args:
        logits: of a window and a position in it, the start's and the end's.
        tokens: characters of each token of the passage.
        windows: first token and number of tokens of each window.
        offset: number of tokens before the passage in each window.
    """

    def __init__(self, logits, tokens, windows, offset, longest, n_best):
        self.null = min(sum(logits[number, 0]) for number in range(len(windows)))
        spans = []
        for number, (first, length) in enumerate(windows):
            spans_of_window = []
            for start in range(length):
                if number != most_context(windows, first + start):
                    continue
                for end in range(start, min(length, start + longest)):
                    score = logits[number, offset + start][0] + logits[number, offset + end][1]
                    spans_of_window.append(
                        (score, tokens[first + start][0], tokens[first + end][1])
                    )
            spans += sorted(spans_of_window, reverse=True)[:n_best]
        self.spans = sorted(spans, reverse=True)
        self.n_best = n_best

    def best(self, context):
        """The best spans of different texts."""
        span_by_text = {}
        for score, start, end in self.spans:
            span_by_text.setdefault(context[start:end], (score, start, end))
        return list(span_by_text.values())[: self.n_best]


def most_context(windows, token):
    """The window that sees most around a token: the original's `_check_is_max_context`."""
    context = {}
    for number, (start, length) in enumerate(windows):
        left, right = token - start, start + length - 1 - token
        if min(left, right) >= 0:
            context[number] = min(left, right) + 0.01 * length
    return max(context, key=context.__getitem__)  # of equals the first


@pytest.mark.long
@given(
    words=st.lists(st.text("abcd中", min_size=1, max_size=4), max_size=25),
    question=st.integers(1, 6),
    stride=st.integers(1, 12),
    longest=st.integers(1, 5),
    n_best=st.integers(1, 6),
    threshold=st.none() | st.floats(-6, 6),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=80, deadline=None)
def test_predictions_are_those_of_the_original(
    words, question, stride, longest, n_best, threshold, seed
):
    context = " ".join(words)
    values = {"stride": stride, "max_answer_tokens": longest, "n_best": n_best}
    values |= {"max_question_tokens": 4, "unanswerable": threshold is not None}
    task = make_task(**values, null_threshold=threshold or 0.0)
    rows = [
        {"question": "b " * question, "context": context},
        {"question": "a", "context": "d c b a"},  # another row, whose windows lie between
    ]
    examples = task.examples(rows, 3, labelled=False)
    assert [example.truncated_tokens for example in examples] == [max(0, question - 4), 0]
    batch = task.collate(examples).to("cpu")
    packed = batch.packed
    lengths = np.diff(packed.cu_seqlens)
    assert (np.sort(lengths) == lengths).all()
    logits = np.random.default_rng(seed).normal(0, 3, (packed.num_tokens, 2))
    predictions = task.decode({"logits": torch.from_numpy(logits)}, batch)
    assert set(predictions) == {3, 4}

    tokens = TOKENIZER.encode(context).offsets[1:-1].tolist()
    room = 16 - 3 - min(question, 4)
    step = min(stride, room)
    starts = [0]
    while starts[-1] + room < len(tokens):
        starts.append(starts[-1] + step)
    windows = [(start, min(room, len(tokens) - start)) for start in starts]
    logits_by_position = {}
    for index, first in enumerate(packed.cu_seqlens[:-1].tolist()):
        if packed.sequence_row[index] == 3:
            for position in range(packed.cu_seqlens[index + 1] - first):
                logits_by_position[int(packed.sequence_number[index]), position] = logits[
                    first + position
                ].tolist()
    rules = OriginalPredictions(
        logits_by_position, tokens, windows, 2 + min(question, 4), longest, n_best
    )
    best = rules.best(context)
    every = [*best, (rules.null, 0, 0)] if threshold is not None else best
    total = sum(np.exp(score) for score, _, _ in every)
    probabilities = [(np.exp(score) / total, start, end) for score, start, end in every]
    expected = probabilities[0] if probabilities else (0.0, 0, 0)
    if threshold is not None and (not best or rules.null - best[0][0] > threshold):
        expected = probabilities[-1]
    predicted = predictions[3]
    assert (predicted["start"], predicted["end"]) == expected[1:]
    assert predicted["answer"] == context[predicted["start"] : predicted["end"]]
    assert predicted["probability"] == pytest.approx(expected[0])
    others = [
        (alternative["probability"], alternative["start"], alternative["end"])
        for alternative in predicted["alternatives"]
    ]
    assert [alternative[1:] for alternative in others] == [
        alternative[1:] for alternative in sorted(probabilities, reverse=True)
    ]
    assert [alternative[0] for alternative in others] == pytest.approx(
        sorted([c[0] for c in probabilities])[::-1]
    )


def test_the_window_with_the_whole_answer_has_the_target():
    task = make_task()
    example = task.example(row("a b c d a b c d a b c d a b", "d a", 14), 0)
    for window, target in zip(example.sequences, example.target, strict=True):
        if target == (0, 0):
            tokens = window.offsets[find_passage_tokens(window)]
            assert not (tokens[0, 0] <= 14 and tokens[-1, 1] >= 17)
        else:
            assert (window.offsets[target[0], 0], window.offsets[target[1], 1]) == (14, 17)
    assert sum(target != (0, 0) for target in example.target) >= 1
    assert len(task.training_examples(example)) == len(example.sequences)


@pytest.mark.parametrize("removed_sign", ["\u0301", "\u200b", "\u00ad", "\ufeff"])
@pytest.mark.parametrize(
    ("passage", "answer"),
    [
        ("b ~a~", "~a~"),
        ("~a~ b", "~a~"),
        ("~a b~", "~a b~"),
        (f"~a~ {'b ' * 30}", "~a~"),
        (f"{'b ' * 9}~a~ {'b ' * 20}", "~a~"),
        (f"{'b ' * 9}~a b~ {'b ' * 20}", "~a b~"),
        (f"{'b ' * 10}~a~ {'b ' * 20}", "~a~"),  # a window begins or ends with the answer
    ],
)
def test_removed_characters_at_an_answers_ends_change_no_target(passage, answer, removed_sign):
    """Accents that are stripped and signs without width have no token, nor have they here."""
    tokenizer = Tokenizer.from_vocabulary(PIECES, lowercase=True)
    task = AnsweringTask.from_dict({**USUAL_COLUMNS, "max_seq_length": 16, "stride": 5}, tokenizer)
    example, plain_example = (
        task.example(row(passage.replace("~", sign), answer.replace("~", sign)), 0)
        for sign in (removed_sign, "")
    )
    assert example.target == plain_example.target
    assert any(target != (0, 0) for target in plain_example.target)


@pytest.mark.parametrize("answer", ["a\u0301", "a\u0301b\u0327\u0301", "\u0915\u094d"])
@pytest.mark.parametrize("passage", ["b ~", "b ~ c", "~. b"])
def test_the_answer_has_the_marks_of_its_last_character(passage, answer):
    tokenizer = Tokenizer.from_vocabulary([*PIECES, "."], lowercase=True)
    task = AnsweringTask.from_dict({**USUAL_COLUMNS, "max_seq_length": 16, "stride": 5}, tokenizer)
    context = passage.replace("~", answer)
    example = task.example(row(context, answer, context.index(answer)), 0)
    batch = task.collate([example]).to("cpu")
    logits = torch.zeros(batch.packed.num_tokens, 2)
    logits[torch.tensor(example.target[0]), torch.arange(2)] = 9
    predicted = task.decode({"logits": logits}, batch)[0]
    assert predicted["answer"] == answer
    assert context[predicted["start"] : predicted["end"]] == answer
    evaluator = task.evaluator()
    evaluator.add({"logits": logits}, batch)
    assert evaluator.result()["exact_match"] == 1


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (3, (3, "exact")),
        (0, (0, "exact")),
        (4, (3, "moved")),
        (None, (0, "exact")),
        (-1, (0, "moved")),
        (-2, (0, "moved")),
        (99, (3, "moved")),
    ],
)
def test_an_answer_is_located_at_its_start_or_nearest_to_it(start, expected):
    assert locate_answer("ab ab", "ab", start) == expected


def test_nearest_of_overlapping_answers_is_located():
    assert locate_answer("aaab", "aa", 2) == (1, "moved")
    assert locate_answer("aaab", "aa", None) == (0, "exact")


def test_an_answer_that_is_not_found_is_counted_and_not_learned():
    task = make_task()
    rows = [row("a b", "x", 0), row("a b", "b", 2), row("a b", None), row("a b", "b", 0)]
    examples = task.examples(rows, 0)
    counts = task.count_targets(examples)
    assert counts == {"answered": 1, "without an answer": 1, "moved": 1, "not found": 1}
    assert [len(task.training_examples(example)) for example in examples] == [0, 1, 1, 1]


def test_an_answer_that_is_in_no_window_is_counted_and_not_learned():
    """It would be learned as a question without an answer, as the original learns it."""
    task = make_task(max_seq_length=8, stride=2)
    passage = " ".join("ab" * 5)
    rows = [row(passage, passage[:15], 0), row(passage, passage[:5], 0), row(passage, None)]
    examples = task.examples(rows, 0)
    assert task.count_targets(examples) == dict.fromkeys(
        ("answered", "without an answer", "in no window"), 1
    )
    lengths = [len(task.training_examples(example)) for example in examples]
    assert lengths[0] == 0 and lengths[1] == lengths[2] == len(examples[0].sequences) > 1


def test_an_answer_that_is_too_long_to_be_predicted_is_counted_and_learned():
    task = make_task(max_answer_tokens=2)
    examples = task.examples([row("a b c", "a b c", 0), row("a b c", "a b", 0)], 0)
    counts = task.count_targets(examples)
    assert counts == {"answered": 1, "longer than max_answer_tokens": 1}
    assert [len(task.training_examples(example)) for example in examples] == [1, 1]


def test_answers_of_impossible_questions_are_counted_and_ignored():
    rows = [row("a b", "b", 2) | {"is_impossible": value} for value in ("true", 1, False, None)]
    rows += [row("a b", None) | {"is_impossible": True}]
    table = read_rows(rows)
    task = make_task().for_table(table, labelled=True)
    examples = task.examples([values for _, values in table], 0)
    assert [example.answers for example in examples] == [(), (), ("b",), ("b",), ()]
    assert task.count_targets(examples) == {
        "answered": 2,
        "without an answer": 1,
        "is_impossible, with answers": 2,
    }
    questions = [{**values, "id": str(number)} for number, values in enumerate(rows)]
    with pytest.warns(BertworksWarning, match="2 question.* is_impossible have answers, which"):
        evaluation = scoring.score("answering", questions, predictions={"0": "", "1": "b"})
    assert evaluation.metrics["exact_match"] == 0.2


_IGNORED_VALUES = [  # and the number of questions with answers, as rows and as SQuAD's JSON
    *((value, 0, 0) for value in (None, [], {}, "", [""], [None], -1, True, [["a", 0]], [{}])),
    *((value, 0, 0) for value in ({"input_text": "a"}, [{"text": None}], [{"text": ""}])),
    *(({"text": text, "answer_start": [-1]}, 0, 0) for text in ([], "", None, [None])),
    *((text, 0, 0) for text in ("{'text': [], 'answer_start': []}", '{"text": []}')),
    *((value, 1, 0) for value in ("no answer", ["a"], [{"answer": "a", "extra": 1}])),
    *(({"text": ["a"], "answer_start": starts}, 1, 1) for starts in ([], [0], [1.5], ["none"])),
    ([{"text": "a", "answer_start": "none"}], 1, 1),
]


@pytest.mark.parametrize(("value", "in_rows", "in_squad"), _IGNORED_VALUES, ids=repr)
def test_answers_of_impossible_questions_need_not_be_valid(value, in_rows, in_squad, tmp_path):
    one = {"id": "q", "question": "a", "answers": value, "is_impossible": True}
    other = {**one, "id": "r", "answers": {"text": ["b"], "answer_start": [2]}}
    questions = [one, {**other, "is_impossible": False}]
    squad = {"data": [{"paragraphs": [{"context": "a b", "qas": questions}]}]}
    (tmp_path / "a.json").write_text(json.dumps(squad))
    rows = [{**question, "context": "a b"} for question in questions]
    for source, count in ((rows, in_rows), (tmp_path / "a.json", in_squad)):
        table = read_rows(source)
        task = make_task().for_table(table, labelled=True)
        examples = task.examples([values for _, values in table], 0)
        name = "is_impossible, with answers" if count else "without an answer"
        assert task.count_targets(examples) == {"answered": 1, name: 1}
        with warnings.catch_warnings(record=True) as records:
            warnings.simplefilter("always")
            evaluation = scoring.score("answering", source, predictions={"q": "", "r": "b"})
        assert evaluation.metrics["exact_match"] == 1
        assert sum("is_impossible have answers" in str(one.message) for one in records) == count


def test_answers_as_plain_text_are_answered():
    rows = [{"question": "a", "context": "a b", "answers": text} for text in ("b", "c", "")]
    counts = make_task().count_targets(make_task().examples(rows, 0))
    assert counts == {"answered": 1, "without an answer": 1, "not found": 1}


@given(total=st.integers(1, 60), room=st.integers(1, 20), data=st.data())
@settings(max_examples=60, deadline=None)
def test_an_answer_starts_only_in_the_window_with_the_most_context(total, room, data):
    """As the original's `_check_is_max_context`, token by token; of equals the first window."""
    stride = data.draw(st.integers(1, room))
    starts = range(0, max(1, total - room + stride), stride)
    check_masks([(start, min(room, total - start)) for start in starts])


def test_a_much_longer_window_is_preferred_with_a_little_less_context():
    check_masks([(0, 384), (256, 244)])


def check_masks(windows):
    masks = find_max_context(windows)
    assert [len(own) for own in masks] == [length for _, length in windows]
    for token in range(sum(windows[-1])):
        windows_of_token = [
            n for n, (start, length) in enumerate(windows) if start <= token < start + length
        ]
        allowed_windows = [
            number for number in windows_of_token if masks[number][token - windows[number][0]]
        ]
        assert allowed_windows == [most_context(windows, token)]


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
    best = find_best_spans(start, end, offsets, may, max_answer_tokens=longest, count=count)
    every = [
        start[i] + end[j]
        for i in range(len(pairs))
        if may[i]
        for j in range(i, min(len(pairs), i + longest))
    ]
    assert [span.score for span in best] == pytest.approx(sorted(every, reverse=True)[:count])
    for span in best:
        assert 1 <= span.end - span.start <= longest
        assert span.score == pytest.approx(start[span.start] + end[span.end - 1])


def test_the_first_of_equal_spans_are_the_best():
    offsets = np.stack([np.arange(4), np.arange(4) + 1], 1)
    zeros = np.zeros(4)
    best = find_best_spans(zeros, zeros, offsets, zeros == 0, max_answer_tokens=2, count=7)
    expected = [(0, 1), (0, 2), (1, 2), (1, 3), (2, 3), (2, 4), (3, 4)]
    assert [(one.start, one.end) for one in best] == expected


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
    rows = [row("a b c d a b c d a b c d a b", "c d", 4), row("a", None)]
    batch = task.collate(task.examples(rows, 0)).to("cpu")
    logits = network.predict(batch)["logits"]
    ends = batch.packed.cu_seqlens.tolist()
    expected = 0.0
    for number, target in enumerate(batch.targets["spans"]):
        own = logits[ends[number] : ends[number + 1]].clone()
        if softmax == "passage":
            first = 4  # [CLS] a b [SEP] passage [SEP]
            own[1:first] = own[-1:] = -torch.inf
        for side in range(2):
            expected += F.cross_entropy(own[:, side], target[side])
    if loss == "mean":
        expected = expected / 2
    assert network(batch)["answering"].item() == pytest.approx(expected.item(), rel=1e-10)
    assert batch.counts["answering"] == batch.packed.num_sequences
    evaluator = task.evaluator()
    with torch.no_grad():
        evaluator.add(network.predict(batch), batch)
    mean = expected.item() / batch.packed.num_sequences
    assert evaluator.result()["loss"] == pytest.approx(mean, rel=1e-10)


def test_no_answer_is_predicted_if_it_scores_better():
    for threshold, predicted in ((0.0, ""), (2.0, "b"), (3.0, "b")):
        task = make_task(unanswerable=True, null_threshold=threshold)
        batch = task.collate([task.example(row("a b", None), 0, labelled=False)]).to("cpu")
        logits = torch.zeros(7, 2)  # [CLS] a b [SEP] a b [SEP]
        logits[0], logits[5] = 2.0, 1.0
        answer = task.decode({"logits": logits}, batch)[0]
        assert answer["answer"] == predicted
        probabilities = {one["answer"]: one["probability"] for one in answer["alternatives"]}
        assert sum(probabilities.values()) == pytest.approx(1)
        assert probabilities[""] / probabilities["b"] == pytest.approx(np.exp(2))


@pytest.mark.parametrize(("unanswerable", "exact"), [(False, 1.0), (True, 0.0)])
def test_no_answer_is_measured_only_where_it_is_possible(unanswerable, exact):
    task = make_task(unanswerable=unanswerable)
    batch = task.collate([task.example(row("a b", "b", 2), 0)]).to("cpu")
    logits = torch.zeros(7, 2)  # [CLS] a b [SEP] a b [SEP]
    logits[0], logits[5] = 2.0, 1.0
    evaluator = task.evaluator()
    evaluator.add({"logits": logits}, batch)
    assert evaluator.result()["exact_match"] == exact


def test_the_lowest_of_equal_thresholds_is_the_best():
    assert find_best_threshold([0.0, 1.0], [1.0, 1.0], [1.0, 1.0]) == (-1.0, 1.0)
    assert find_best_threshold([0.0, 1.0, 2.0], [1.0, 0.5, 0.5], [0.0, 0.5, 0.5]) == (0.0, 2 / 3)


@given(
    rows=st.lists(
        st.tuples(st.floats(-9, 9, allow_subnormal=False), st.floats(0, 1), st.booleans()),
        min_size=1,
        max_size=8,
    )
)
def test_the_threshold_is_the_best(rows):
    margins = [margin for margin, _, _ in rows]
    if_answered = [0.0 if empty else score for _, score, empty in rows]
    if_none = [float(empty) for _, _, empty in rows]

    def mean(threshold):
        parts = [
            none if margin > threshold else predicted
            for margin, predicted, none in zip(margins, if_answered, if_none, strict=True)
        ]
        return sum(parts) / len(parts)

    threshold, best = find_best_threshold(margins, if_answered, if_none)
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
    predicted = json.loads((folder / f"predictions-{name}.json").read_text())
    rows = [row.values for part in ("train", "dev") for row in read_rows(folder / f"{part}.json")]
    assert len(rows) == 10_570
    pairs = [(predicted[one["id"]], one["answers"]["text"]) for one in rows]
    exact = [exact_match(*pair, "1.1") for pair in pairs]
    assert 100 * np.mean(exact) == pytest.approx(em, abs=5e-4)
    assert 100 * np.mean([f1(*pair, "1.1") for pair in pairs]) == pytest.approx(score, abs=5e-4)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"context": "a", "answers": "a"}, "f:3: the row has no column 'question'"),
        ({"question": 3, "context": "a", "answers": "a"}, "f:3: the column 'question' holds 3"),
        ({"question": "a", "context": "a", "answers": 5}, "f:3: the column 'answers' holds no ans"),
        ({"question": "a", "context": "a"}, "f:3: the column 'answers' holds no answers"),
    ],
)
def test_bad_rows_are_refused(values, says):
    with pytest.raises(DataError, match=says):
        make_task().example(values, 0, where="f:3")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "a.json:1: not valid JSON"),
        ("[\n1]", "a.json, row 1: a JSON int, not an object"),
        ('{"data":\n3}', "there is no list 'data', as in SQuAD"),
        ('{"paragraphs": []}', "the file is empty"),
        (" \n\n", "the file is empty"),
        ('{"data":\n' + "[" * 10**5, "JSON that cannot be read: it is nested more than 100 levels"),
        ('{"data": [{"paragraphs": []},\n {}]}', "article 2: there is no list 'paragraphs'"),
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
def test_bad_files_are_refused(tmp_path, text, says):
    file = tmp_path / "a.json"
    file.write_text(text)
    with pytest.raises(DataError, match=says):
        list(read_rows(file))


def test_questions_are_read_from_a_file(tmp_path):
    """Answers of impossible questions are in the rows, so that they can be counted."""
    answer = {"text": "b", "answer_start": 2}
    qas = [
        {"id": 1, "question": "a", "answers": [answer, {"text": "a"}]},
        {"question": "c", "is_impossible": True},
        {"id": "3", "question": "d", "answers": [answer], "is_impossible": True},
        {"id": "4", "question": "e", "answers": [answer], "is_impossible": False},
        {"id": "5", "question": "of a test"},
    ]
    paragraphs = [{"context": "a b", "qas": qas}, {"context": "c", "qas": [{"question": "d"}]}]
    document = {"data": [{"title": "t", "paragraphs": paragraphs}, {"paragraphs": []}]}
    none: dict[str, list[Any]] = {"text": [], "answer_start": []}
    for indent in (None, 1):
        file = tmp_path / f"a{indent}.json"
        file.write_text(json.dumps(document, indent=indent))
        rows = list(read_rows(file))
        assert [row.values for row in rows] == [
            {
                "id": identity,
                "title": "t",
                "context": context,
                "question": text,
                "answers": own,
                "is_impossible": is_impossible,
            }
            for identity, context, text, own, is_impossible in (
                ("1", "a b", "a", {"text": ["b", "a"], "answer_start": [2, None]}, None),
                ("", "a b", "c", none, True),
                ("3", "a b", "d", {"text": ["b"], "answer_start": [2]}, True),
                ("4", "a b", "e", {"text": ["b"], "answer_start": [2]}, False),
                ("5", "a b", "of a test", None, None),
                ("", "c", "d", None, None),
            )
        ]
        places = [row.where.removeprefix(f"{file}, ") for row in rows]
        assert places[:2] == ["question '1'", "article 1, paragraph 1"]
        assert places[-1] == "article 1, paragraph 2"


@pytest.mark.parametrize("count", [1, 2])
def test_json_of_one_object_a_line_is_no_file_of_squad(tmp_path, count):
    file = tmp_path / "rows.json"
    rows = [{"question": "a", "context": "a b", "answers": "b"}] * count
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [row.values for row in read_rows(file)] == rows


def test_columns_are_found_by_their_names():
    task = AnsweringTask.from_table(
        TOKENIZER,
        read_rows([{"query": "a", "passage": "a b", "answer": "b"}]),
        AnsweringSettings(max_seq_length=16, stride=4),
    )
    assert tuple(task.columns.values())[:3] == ("query", "passage", "answer")
    assert not task.settings.unanswerable
    unlabelled = read_rows([{"question": "a", "context": "b"}])
    assert task.for_table(unlabelled, labelled=False).settings.question_column == "question"
    with pytest.raises(DataError, match=r"cannot tell which column holds the answers; its columns"):
        task.for_table(unlabelled, labelled=True)
    with pytest.raises(DataError, match=r"cannot tell which column holds the passage"):
        task.for_table(read_rows([{"question": "a"}]), labelled=False)
    named = AnsweringSettings(question_column="2", context_column="c", answers_column="a")
    rows = read_rows([{"c": "a b", "q": "a", "a": "b"}])
    again = AnsweringTask.from_table(TOKENIZER, rows, named)
    assert tuple(again.columns.values())[:3] == ("q", "c", "a")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("b", (["b"], [None])),
        (" ", ([], [])),
        ({"text": ["b", " ", "c"], "answer_start": [2, 1, 0]}, (["b", "c"], [2, 0])),
        ({"text": ["b", "c"]}, (["b", "c"], [None, None])),
        ({"text": []}, ([], [])),
        ('{"text": ["b"], "answer_start": [2]}', (["b"], [2])),
        (["b"], (["b"], [None])),
        ({"text": "b"}, (["b"], [None])),
        ("[1] b", (["[1] b"], [None])),
        ("[1]", (["[1]"], [None])),
    ],
)
def test_answers_are_read_in_every_form(value, expected):
    assert read_answers({"own": value}, {"answers": "own"}, None) == expected


@pytest.mark.parametrize("value", [None, 3, [1], {"text": [1]}, ["b", {"text": "b"}], {"a": 1}])
def test_values_without_answers_are_errors(value):
    with pytest.raises(DataError, match="f:1: the column 'own' holds no answers"):
        read_answers({"own": value}, {"answers": "own"}, "f:1")


def test_a_long_question_narrows_the_stride():
    task = make_task(stride=8, max_question_tokens=10)
    row_ = {"question": "a " * 12, "context": "b c d " * 3, "answers": "c"}
    (training_example, *_) = task.training_examples(task.example(row_, 0))
    assert training_example.truncated_tokens == 0, "they are counted once a row"
    windows = task.example(row_, 0, labelled=False).sequences
    starts = {
        tuple(place) for window in windows for place in window.offsets[find_passage_tokens(window)]
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
    task = AnsweringTask.from_table(TOKENIZER, rows, AnsweringSettings(max_seq_length=16, stride=4))
    written = tmp_path / "a.tsv"  # where a list of answers is JSON
    write_predictions(written, [(row, {}) for _, row in rows])
    again = task.examples([row for _, row in read_rows(written)], 0)
    assert [example.answers for example in again] == [("b",), ()]
    assert task.example({**rows.sample[0], "answers": "{b}"}, 0).answers == ("{b}",)
    assert task.settings.unanswerable
    assert task.settings.stride == 4
    examples = task.examples([row.values for row in rows], 0)
    assert [example.answers for example in examples] == [("b",), ()]
    evaluator = task.evaluator()
    assert evaluator.tuned_settings({"best_null_threshold": 1.5}) == {"null_threshold": 1.5}
    batch = task.collate(examples).to("cpu")
    evaluator.add({"logits": torch.zeros(batch.packed.num_tokens, 2)}, batch)
    assert tuple(evaluator.result()) == task.metrics


@pytest.mark.parametrize("room", [1, 2, 4, 5, 7])
def test_every_token_of_a_passage_is_in_a_window_however_long_the_question(room: int) -> None:
    """13 tokens have room besides the special ones; the stride is 5."""
    question, context = " ".join("a" * (13 - room)), " ".join("abcde" * 3)
    example = make_task().example({"question": question, "context": context}, 0, labelled=False)
    tokens = {
        int(start)
        for window in example.sequences
        for start, _ in window.offsets[2 + 13 - room : -1]  # after [CLS], the question and [SEP]
    }
    assert tokens == set(range(0, len(context), 2))
    assert len(example.sequences) == 1 + math.ceil((15 - room) / min(5, room))


def test_a_question_without_room_for_the_passage_is_an_error() -> None:
    with pytest.raises(DataError, match="room"):
        make_task().example({"question": " ".join("a" * 13), "context": "a b"}, 0, labelled=False)
