"""Rows of retrieval: their columns, their prompts, and errors in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
import pytest

from bertworks.data.tables import read_rows
from bertworks.errors import DataError, SettingsError
from bertworks.tasks.retrieval.settings import RetrievalSettings
from bertworks.tasks.retrieval.task import RetrievalTask
from bertworks.text.tokenizer import Tokenizer

from ..hard_cases import PIECES

TOKENIZER = Tokenizer.from_vocabulary(PIECES)


def task_from(rows: Sequence[dict[str, Any]], **options: Any) -> RetrievalTask:
    given = RetrievalSettings.parse({"max_seq_length": 8, **options})
    return RetrievalTask.from_table(TOKENIZER, read_rows(rows), given)


@pytest.mark.parametrize(
    ("row", "options", "loss", "columns"),
    [
        ({"query": "a", "positive": "b"}, {}, "in-batch", ("query", "positive")),
        ({"Anchor": "a", "Positive": "b"}, {}, "in-batch", ("Anchor", "Positive")),
        ({"question": "a", "answer": "b", "id": 3}, {}, "in-batch", ("question", "answer")),
        ({"left": "a", "right": "b"}, {}, "in-batch", ("left", "right")),
        (
            {"anchor": "a", "positive": "b", "negative_1": "c", "negative_2": "d", "score": 3},
            {},
            "in-batch",
            ("anchor", "positive", ("negative_1", "negative_2")),
        ),
        (
            {"query": "a", "pos": "b", "neg": ["c", "d"]},
            {"loss": "triplet"},
            "triplet",
            ("query", "pos", ("neg",)),
        ),
        (
            {"sentence1": "a", "sentence2": "b", "score": "2.5"},
            {"score_range": [0, 5]},
            "cosine",
            ("sentence1", "sentence2", (), "score"),
        ),
        (
            {"premise": "a", "hypothesis": "b", "label": "neutral"},
            {"loss": "in-batch"},
            "in-batch",
            None,
        ),
        ({"sentence1": "a", "sentence2": "b", "score": 1}, {"loss": "in-batch"}, "in-batch", None),
        (
            {"one": "a", "two": "b", "three": "c", "four": 0.5},
            {"query_column": "1", "passage_column": "two", "negative_columns": "three"},
            "in-batch",
            ("one", "two", ("three",)),
        ),
        (
            {"one": "a", "two": "b", "four": 0.5},
            {"query_column": "one", "passage_column": "two", "score_column": 3},
            "cosine",
            ("one", "two", (), "four"),
        ),
    ],
)
def test_columns_choose_the_loss(row: Any, options: Any, loss: str, columns: Any) -> None:
    rows = [row]
    if loss == "cosine":  # scores must not be all the same
        name = columns[3]
        rows.append({**row, name: 0.0})
    task = task_from(rows, **options)
    assert task.settings.loss == loss
    assert task.additive == (loss != "in-batch")
    assert task.best_metric == ("spearman" if loss == "cosine" else "mrr@10")
    if columns is not None:
        names = ("query", "passage", "negatives", "score")
        expected = {"negatives": (), "score": None, **dict(zip(names, columns, strict=False))}
        assert task.columns == expected


@pytest.mark.parametrize(
    ("scores", "expected"), [((0, 5, 2), (0, 5)), ((-1, 0.5), (0, 1)), ((1, 0), (0, 1))]
)
def test_range_of_scores_is_found(scores: Sequence[float], expected: tuple[float, float]) -> None:
    rows = [{"sentence1": "a", "sentence2": "b", "score": score} for score in scores]
    assert task_from(rows).settings.score_range == expected


@pytest.mark.parametrize("labels", [(0, 1), (0.0, 2.5, 5)])
def test_labels_that_can_only_be_scores_are_scores(labels: Sequence[float]) -> None:
    task = task_from([{"question1": "a", "question2": "b", "label": label} for label in labels])
    assert task.settings.loss == "cosine"
    assert task.settings.score_column == "label"


@pytest.mark.parametrize("labels", [(0, 1, 2), (1, 1), ("entailment", "neutral")])
def test_ambiguous_labels_are_an_error(labels: Sequence[Any]) -> None:
    rows = [{"premise": "a", "hypothesis": "b", "label": label} for label in labels]
    with pytest.raises(DataError, match=r"score_column=label; or loss=in-batch"):
        task_from(rows)
    assert task_from(rows, loss="in-batch").settings.score_column is None


def test_the_same_table_is_read_as_it_was_trained_on() -> None:
    rows = [{"question1": "a", "question2": "b", "label": label} for label in (0, 1)]
    task = task_from(rows, loss="in-batch")
    same = task.for_table(read_rows(rows), labelled=True)
    assert same.metrics == ("accuracy@1", "mrr@10", "recall@10")


def test_another_table_may_call_its_scores_otherwise() -> None:
    rows = [{"sentence1": "a", "sentence2": "b", "score": score} for score in (0, 5)]
    others = read_rows([{"sentence1": "a", "sentence2": "b", "similarity": 5}])
    same = task_from(rows).for_table(others, labelled=True)
    assert same.metrics == ("loss", "pearson", "spearman")
    assert [example.target for example in same.examples(others.sample, 0)] == [1]


def test_a_frame_may_lack_negatives() -> None:
    frame = pd.DataFrame({"query": ["a", "b"], "positive": ["c", "d"], "negative": ["e", None]})
    rows = [row.values for row in read_rows(frame)]
    examples = task_from(rows).examples(rows, 0)
    assert [len(example.sequences) for example in examples] == [3, 2]


def test_blank_negatives_are_none() -> None:
    rows = [
        {"query": "a", "positive": "b", "negative": "  "},
        {"query": "c", "positive": "d", "negative": ["e", "", " "]},
    ]
    examples = task_from(rows).examples(rows, 0)
    assert [example.texts for example in examples] == [["a", "b"], ["c", "d", "e"]]


def test_columns_are_known_by_canonical_names() -> None:
    rows = [{"Query": "a", "positivePassage": "x", "Hard Negative 1": "c", "Passage:": "b"}]
    columns = task_from(rows).columns
    assert (columns["query"], columns["passage"]) == ("Query", "Passage:")
    assert columns["negatives"] == ("Hard Negative 1",)


def test_another_table_may_have_other_columns() -> None:
    task = task_from([{"query": "a", "positive": "b", "negative": "c"}])
    same = task.for_table(read_rows([{"positive": "b", "query": "a"}]), labelled=True)
    assert same.columns == {"query": "query", "passage": "positive", "negatives": (), "score": None}
    assert same.metrics == ("accuracy@1", "mrr@10", "recall@10")
    sts = read_rows([{"sentence1": "a", "sentence2": "b", "score": s} for s in (1, 5)])
    scoring_task = task.for_table(sts, labelled=True)
    assert scoring_task.metrics == ("loss", "pearson", "spearman")
    assert [x.target for x in scoring_task.examples([row for _, row in sts], 0)] == [0, 1]
    unlabelled_task = scoring_task.for_table(
        read_rows([{"sentence1": "a", "sentence2": "b"}]), labelled=False
    )
    (example,) = unlabelled_task.examples([{"sentence1": "a", "sentence2": "b"}], 0, labelled=False)
    assert example.target is None
    assert example.content == scoring_task.examples([sts.sample[0]], 0)[0].content


def test_long_texts_are_cut_and_counted_or_refused() -> None:
    row = {"query": "a " * 9, "positive": "b", "negative": "c " * 7}
    (example,) = task_from([row]).examples([row], 0)
    assert [len(one.input_ids) for one in example.sequences] == [8, 3, 8]
    assert example.truncated_tokens == 4
    with pytest.raises(DataError, match="row 1: 11 tokens, but at most 8 fit"):
        task_from([row], truncation="error").examples([row], 0)


@pytest.mark.parametrize("label_column", ["1", "2", "topic"])
def test_column_of_few_short_values_is_refused_as_passages(label_column: str) -> None:
    """A table without a header, of texts and labels, is no table of pairs."""
    texts = [f"text {number}" for number in range(10)]
    other = "2" if label_column == "1" else "1"
    rows = [
        {other: text, label_column: ("no", "my bill")[number % 2]}
        for number, text in enumerate(texts)
    ]
    with pytest.raises(DataError, match=f"'{label_column}' has few, short values, as of labels"):
        task_from(rows)
    named = {"query_column": other, "passage_column": label_column}
    assert len(task_from(rows, **named).examples(rows, 0)) == 10
    answers = [{**row, label_column: f"{row[label_column]} is the answer"} for row in rows]
    assert len(task_from(answers).examples(answers, 0)) == 10
    known = [{"question": row[other], "answer": row[label_column]} for row in rows]
    assert len(task_from(known).examples(known, 0)) == 10
    assert len(task_from(rows[:9]).examples(rows[:9], 0)) == 9


@pytest.mark.parametrize(
    ("row", "options", "says"),
    [
        ({"text": "a", "label": "b", "id": 1}, {}, "query_column=NAME and passage_column=NAME"),
        ({"text": "a", "label": "b"}, {}, "'label' has labels, not passages to find"),
        ({"label": "a", "text": "b"}, {}, "'label' has labels, not passages to find"),
        ({"query": "a", "positive": "b"}, {"query_column": "x"}, "no column 'x'"),
        ({"query": "a", "positive": "b"}, {"loss": "cosine"}, "score_column=NAME"),
        ({"query": "a", "positive": "b"}, {"loss": "triplet"}, "negative_columns=NAME"),
        ({"query": "a", "positive": 5}, {}, "row 1: the column 'positive' holds 5"),
        ({"query": "a", "positive": "b", "negative": 3}, {}, "row 1: the column 'negative' holds"),
        ({"query": "a", "positive": "b", "neg": ""}, {"loss": "triplet"}, "row 1: the row has no"),
        ({"text1": "a", "text2": "b", "score": 7}, {}, "all scores .* are 7"),
        (
            {"text1": "a", "text2": "b", "sim": "high"},
            {"score_column": "sim"},
            "'high' .* not a finite number",
        ),
    ],
)
def test_faulty_tables_are_errors(row: Any, options: Any, says: str) -> None:
    with pytest.raises(DataError, match=says):
        task_from([row], **options).examples([row], 0)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"dropout": 0.1}, "retrieval has no output layer"),
        ({"score_range": [5, 0]}, "is not a range"),
        ({"pooling": "pooler"}, "pooling='pooler'"),
        ({"loss": "contrastive"}, "loss='contrastive'"),
    ],
)
def test_settings_that_do_not_fit(options: Any, says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        RetrievalSettings.parse(options)


def test_scores_have_one_loss_and_no_other_side() -> None:
    rows = [{"sentence1": "a", "sentence2": "b", "score": score} for score in (0.5, 1.0)]
    with pytest.raises(SettingsError, match="score_column='score' is not for loss=in-batch"):
        task_from(rows, loss="in-batch", score_column="score")
    with pytest.raises(SettingsError, match="symmetric=True does nothing without loss=in-batch"):
        task_from(rows, symmetric=True)
    triple = {"query": "a", "positive": "b", "negative": "c"}
    with pytest.raises(SettingsError, match="symmetric=True does nothing without loss=in-batch"):
        task_from([triple], symmetric=True, loss="triplet")


def test_one_text_is_no_pair() -> None:
    task = task_from([{"query": "a", "positive": "b"}])
    assert task.text_row("a", "b") == {"query": "a", "positive": "b"}
    with pytest.raises(DataError, match="bertworks search"):
        task.text_row("a")


@pytest.mark.parametrize("prompts", [("", ""), ("q: ", ""), ("", "p: "), ("q: ", "p: ")])
def test_saved_model_has_the_prompts_of_training(prompts: tuple[str, str]) -> None:
    query, passage = prompts
    task = task_from([{"query": "a", "positive": "b"}], query_prompt=query, passage_prompt=passage)
    assert (task.sentence.prompt("query"), task.sentence.prompt("document")) == prompts
    assert ("prompts" in task.sentence.entries) == any(prompts)
