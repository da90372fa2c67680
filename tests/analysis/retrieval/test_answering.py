"""Answers from a corpus: those of the reader on each passage, compared by logits and ranks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bertworks.analysis.retrieval.answering import (
    RANK_WEIGHT,
    CorpusAnswer,
    answer_questions,
    best_answers,
    evaluate_answers,
    passages_of,
)
from bertworks.analysis.retrieval.bm25 import BM25Index
from bertworks.errors import BertworksError, BertworksWarning, SettingsError
from bertworks.loading import load
from bertworks.packed import Packed

from ...tasks.squad_oracle import of_version_1

SAVED_MODELS = Path(__file__).parents[2] / "saved_models"
PASSAGES = ["the river was open", "a door near the river", "", "nothing of that"]
QUESTIONS = ["which river ?", "zzz"]


@pytest.mark.parametrize("name", ["answering", "unanswerable"])
def test_answers_are_the_spans_with_the_highest_logits_less_those_of_the_rank(name: str) -> None:
    reader = load(SAVED_MODELS / name, device="cpu")
    index = BM25Index.open(PASSAGES)
    answers, none = answer_questions(index, reader, QUESTIONS, top_k=100)
    assert none == []
    assert {one.row for one in answers} == {0, 1}
    ranks = {hit.row: rank for rank, hit in enumerate(index.search(QUESTIONS[0])[0], 1)}
    weight = RANK_WEIGHT if name == "answering" else 0
    orders = [one.score - weight * np.log(ranks[one.row]) for one in answers]
    assert orders == sorted(orders, reverse=True)
    assert len({one.answer for one in answers}) == len(answers)
    similarities = {hit.row: hit.similarity for hit in index.search(QUESTIONS[0])[0]}
    for one in answers:
        assert one.passage == PASSAGES[one.row]
        assert one.answer == one.passage[one.start : one.end]
        assert (one.similarity, one.where) == (similarities[one.row], f"text {one.row + 1}")
    # The best span of a passage, from the logits of the network itself.
    best = answers[0]
    tokenizer, network = reader.tokenizer, reader.network
    encoding = tokenizer.encode(QUESTIONS[0], best.passage)
    packed = Packed.from_arrays([encoding.input_ids], [encoding.token_type_ids]).to("cpu")
    logits = network.eval().predict(type("Batch", (), {"packed": packed}))["logits"]
    logits = logits.detach().numpy().astype(np.float64)
    tokens = [at for at, (start, end) in enumerate(encoding.offsets) if encoding.token_type_ids[at]]
    first = next(at for at in tokens if encoding.offsets[at][0] == best.start)
    last = next(at for at in tokens if encoding.offsets[at][1] == best.end)
    null = logits[0].sum() if name == "unanswerable" else 0.0
    assert best.score == pytest.approx(logits[first, 0] + logits[last, 1] - null, abs=1e-4)
    (top,) = answer_questions(index, reader, QUESTIONS[:1])
    assert top == [best]
    assert answer_questions(index, reader, QUESTIONS[0]) == [top]
    if name == "answering":  # the span is that of `predict`, character by character
        (predicted,) = reader.predict([(QUESTIONS[0], best.passage)])
        assert (predicted["start"], predicted["end"]) == (best.start, best.end)


def test_passage_of_rank_3_needs_a_score_that_is_higher_by_the_logarithm_of_9() -> None:
    def answer(text: str, score: float) -> CorpusAnswer:
        return CorpusAnswer(text, score, 0.5, 0, "text 1", 0, 1, "a passage")

    tasks = [load(SAVED_MODELS / name, device="cpu").task for name in ("answering", "unanswerable")]
    for excess, best, task in (
        (np.log(9) - 0.01, "first", tasks[0]),
        (np.log(9) + 0.01, "third", tasks[0]),
        (-0.01, "first", tasks[1]),  # scores are relative to "no answer"
        (0.01, "third", tasks[1]),
    ):
        third = answer("third", 5 + excess)
        answers = best_answers([[answer("first", 5)], [], [third]], 2, task)
        assert next(one.answer for one in answers) == best
        assert third in answers  # with the reader's own score


def test_models_and_numbers_that_cannot_answer_are_refused() -> None:
    index = BM25Index.open(PASSAGES)
    with pytest.raises(BertworksError, match="the reader was trained for classification"):
        answer_questions(index, load(SAVED_MODELS / "classification", device="cpu"), QUESTIONS)
    reader = load(SAVED_MODELS / "answering", device="cpu")
    with pytest.raises(SettingsError, match="both must be at least 1"):
        answer_questions(index, reader, QUESTIONS, passages=0)


def test_evaluation_has_the_official_scores_of_the_answers_of_each_cutoff(tmp_path: Path) -> None:
    reader = load(SAVED_MODELS / "answering", device="cpu")
    passages = [PASSAGES[0], PASSAGES[1], PASSAGES[3]]
    index = BM25Index.open(passages)
    questions = ["which river ?", "a door near what ?", "nothing of what ?"]
    gold = ["river", "the river", "that"]
    rows = [
        {"question": question, "context": passage, "answers": [answer]}
        for question, passage, answer in zip(questions, passages, gold, strict=True)
    ]
    evaluations = evaluate_answers(reader, rows, index, cutoffs=(1, 2))
    assert passages_of(reader, rows * 2) == passages
    assert evaluations["given"].metrics == reader.evaluate(rows).metrics
    for cutoff in (1, 2):
        answers = answer_questions(index, reader, questions, passages=cutoff)
        expected = np.mean(
            [of_version_1(own[0].answer, [one]) for own, one in zip(answers, gold, strict=True)], 0
        )
        metrics = evaluations[str(cutoff)].metrics
        assert (metrics["exact_match"], metrics["f1"]) == pytest.approx(tuple(expected))
        hits_of_questions = index.search(questions, cutoff)
        are_retrieved = [
            any(hit.text == passage for hit in hits)
            for hits, passage in zip(hits_of_questions, passages, strict=True)
        ]
        assert metrics["recall"] == sum(are_retrieved) / 3
    empty = {"question": None, "context": None, "answers": ["river"]}
    with pytest.warns(BertworksWarning, match="have an empty text"):
        of_empty = evaluate_answers(reader, [*rows, empty], index, cutoffs=(1,))
    assert of_empty["1"].metrics["recall"] == evaluations["1"].metrics["recall"] * 3 / 4
    assert passages_of(reader, [*rows, empty]) == [*passages, ""]
    with pytest.raises(SettingsError, match=r"cutoffs=\[0\]: give numbers"):
        evaluate_answers(reader, rows, index, cutoffs=(0,))
