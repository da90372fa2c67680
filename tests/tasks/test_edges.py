"""Edge cases of each task: empty data, one word, too long texts, and constant labels.

`docs/edges.md` says the same in words.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from bertworks.data.tables import read_rows
from bertworks.errors import BertworksWarning, DataError
from bertworks.inference.prediction_files import write_predictions
from bertworks.model import Model
from bertworks.nn.config import EncoderConfig
from bertworks.tasks import LABELLED_TASKS, choice, find_labelled_task
from bertworks.tasks.answering import answers
from bertworks.text.definition import Frame
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.wordpiece import WordPieceDefinition

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]
LONG = "ab " * 100_000
COLUMNS = {"text_column": "text", "label_column": "label"}
TASKS: dict[str, dict[str, Any]] = {
    "classification": {"labels": ["n", "p"], **COLUMNS},
    "multilabel": {"labels": ["n", "p"], **COLUMNS},
    "regression": {**COLUMNS},
    "tagging": {
        "labels": ["O", "B-PER", "I-PER"],
        "spans": True,
        "word_column": "words",
        "tag_column": "tags",
    },
    "answering": {**answers.USUAL_COLUMNS, "stride": 16, "unanswerable": True},
    "choice": {**choice.USUAL_COLUMNS, "first_number": 0},
    "retrieval": {
        "query_column": "a",
        "passage_column": "b",
        "score_column": "score",
        "loss": "cosine",
        "score_range": [0, 5],
    },
    "translation": {"source_column": "text", "target_column": "other"},
}


def repr_short(value: object) -> str:
    return repr(value)[:12]


@pytest.fixture(scope="module")
def models() -> dict[str, Model]:
    tokenizer = Tokenizer.from_vocabulary(PIECES)
    config = EncoderConfig(
        vocab_size=len(PIECES),
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=8,
        max_position_embeddings=64,
    )
    models_by_task = {}
    torch.manual_seed(0)
    for name, values in TASKS.items():
        task = find_labelled_task(name).from_dict({**values, "max_seq_length": 64}, tokenizer)
        models_by_task[name] = Model(tokenizer, task, task.network(config).eval())
    return models_by_task


def expect_truncation_warning(*texts: str) -> AbstractContextManager[object]:
    """See that predicting says what it cuts off: of the long text."""
    if LONG not in texts:
        return nullcontext()
    return pytest.warns(BertworksWarning, match="1 of 1 rows were too long .* cut off")


def test_every_task_is_here() -> None:
    assert set(TASKS) == set(LABELLED_TASKS)


@pytest.mark.long
@pytest.mark.parametrize("text", ["", "  ", "a", "\x00\x01", "[SEP]", LONG], ids=repr_short)
@pytest.mark.parametrize("task", ["classification", "regression"])
def test_any_text_has_one_answer(models: dict[str, Model], task: str, text: str) -> None:
    with expect_truncation_warning(text):
        (answer,) = models[task].predict([{"text": text}])
    number = answer["value"] if task == "regression" else answer["probabilities"]["p"]
    assert abs(number) < 10


@pytest.mark.long
@pytest.mark.parametrize("text", ["", "  ", "a", "\x00\x01", "[SEP]", LONG], ids=repr_short)
def test_any_two_texts_have_a_cosine(models: dict[str, Model], text: str) -> None:
    with expect_truncation_warning(text):
        (answer,) = models["retrieval"].predict([{"a": text, "b": "b c"}])
    one, other = models["retrieval"].embed([text[: 62 * 3], "b c"])  # 62 words are the limit
    assert answer["similarity"] == pytest.approx(float(one @ other), abs=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("text", ["", "  ", "a", "\x00\x01", "[SEP]", LONG], ids=repr_short)
def test_any_text_has_a_translation(models: dict[str, Model], text: str) -> None:
    with expect_truncation_warning(text):
        (answer,) = models["translation"].predict([text])
    assert len(answer["translation"].split()) <= 63
    (example,) = models["translation"].task.examples([{"text": "a", "other": LONG}], 0)
    assert example.truncated_tokens == 100_000 - 62


@pytest.mark.long
@pytest.mark.parametrize("task", ["classification", "choice", "retrieval"])
def test_truncated_tokens_are_counted(models: dict[str, Model], task: str) -> None:
    rows = {
        "classification": {"text": LONG, "label": "p"},
        "choice": {"prompt": "a", "choices": [LONG, "b"], "label": 0},
        "retrieval": {"a": LONG, "b": "b", "score": 1},
    }
    own = models[task].task
    (example,) = own.examples([rows[task]], 0)
    frame = 3 + 1 if task == "choice" else 2
    assert example.truncated_tokens == 100_000 - (64 - frame)
    strict = type(own).from_dict({**own.to_dict(), "truncation": "error"}, own.tokenizer)
    with pytest.raises(DataError, match=r"row 1: .*64"):
        strict.examples([rows[task]], 0)


@pytest.mark.long
def test_windows_are_not_truncated(models: dict[str, Model]) -> None:
    own = models["classification"].task
    values = {**own.to_dict(), "truncation": "windows"}
    task = type(own).from_dict(values, own.tokenizer)
    (example,) = task.examples([{"text": LONG, "label": "p"}], 0)
    assert example.truncated_tokens == 0
    assert sum(len(ids) - 2 for ids, _ in example.sequences) == 100_000


@pytest.mark.parametrize(
    ("task", "row"),
    [
        ("classification", {"text": "\x00"}),
        ("choice", {"prompt": "", "choices": ["a", ""]}),
        ("retrieval", {"a": "a", "b": ""}),
    ],
)
def test_empty_text_without_a_frame_is_refused(task: str, row: dict[str, Any]) -> None:
    of_bert = Tokenizer.from_vocabulary(PIECES).definition
    assert isinstance(of_bert, WordPieceDefinition)
    tokenizer = Tokenizer(replace(of_bert, frame=Frame((), (), ())))
    own = find_labelled_task(task).from_dict(TASKS[task], tokenizer)
    with pytest.raises(DataError, match=r"a\.tsv:2: a text has no tokens. Leave the row out."):
        own.examples([row], 0, where=["a.tsv:2"], labelled=False)
    with pytest.raises(DataError, match="no special tokens around a question and its passage"):
        find_labelled_task("answering").from_dict(TASKS["answering"], tokenizer)


def test_training_rows_of_one_class_are_refused() -> None:
    tokenizer = Tokenizer.from_vocabulary(PIECES)
    kind = find_labelled_task("classification")
    rows = read_rows([{"text": "a", "label": "p"}] * 2)
    with pytest.raises(DataError, match=r"needs two different labels, .* holds 'p'"):
        kind.from_table(tokenizer, rows, kind.user_settings()())
    kind = find_labelled_task("tagging")
    rows = read_rows([{"words": ["a"], "tags": ["X"]}])
    assert kind.from_table(tokenizer, rows, kind.user_settings()()).settings.labels == ("X",)


@pytest.mark.filterwarnings("ignore:.*the tokenizer removes all characters")
@pytest.mark.parametrize("words", [[], [""], [" ", "\x00"], ["a"], ["a" * 100_000]], ids=repr_short)
def test_every_word_has_one_tag(models: dict[str, Model], words: list[str]) -> None:
    (answer,) = models["tagging"].predict([{"words": words}])
    assert answer["words"] == words
    assert len(answer["tags"]) == len(words)


@pytest.mark.long
def test_a_hundred_thousand_words_have_a_tag_each(models: dict[str, Model]) -> None:
    (answer,) = models["tagging"].predict([{"text": LONG}])
    assert len(answer["tags"]) == 100_000
    (answer,) = models["tagging"].predict([{"text": ""}])
    assert answer["tags"] == answer["entities"] == []


@pytest.mark.long
@pytest.mark.parametrize("passage", ["", " ", "\x00", "a", LONG], ids=repr_short)
@pytest.mark.parametrize("question", ["", "a"])
def test_any_passage_has_an_answer_or_none(
    models: dict[str, Model], question: str, passage: str
) -> None:
    (answer,) = models["answering"].predict([{"question": question, "context": passage}])
    assert answer["answer"] == passage[answer["start"] : answer["end"]]
    if not passage.strip(" \x00"):
        assert (answer["answer"], answer["probability"]) == ("", 1.0)


@pytest.mark.parametrize("empty", [None, float("nan")])
@pytest.mark.parametrize(
    ("task", "row"),
    [
        ("answering", {"question": "", "context": "a b"}),
        ("answering", {"question": "a", "context": ""}),
        ("tagging", {"text": ""}),
        ("classification", {"text": ""}),
        ("choice", {"prompt": "", "choices": ["a", "b"]}),
        ("retrieval", {"a": "", "b": "c"}),
    ],
)
def test_null_is_an_empty_text(
    models: dict[str, Model], task: str, row: dict[str, Any], empty: Any
) -> None:
    dirty = {name: empty if value == "" else value for name, value in row.items()}
    own = models[task]
    assert own.predict([dirty, row]) == own.predict([row, row])
    gold = {"answering": {"answers": ["a"]}, "choice": {"label": 1}, "retrieval": {"score": 1}}
    label = gold.get(task, {"label": "p"} if task == "classification" else {"tags": []})
    full = {name: value or "a" for name, value in row.items()} | label
    metrics = []
    for one in (dirty, row):
        with pytest.warns(BertworksWarning, match="1 of 2 rows have an empty text"):
            metrics.append(own.evaluate([{**one, **label}, full]).metrics)
    assert metrics[0] == metrics[1]


@pytest.mark.long
def test_a_long_question_is_cut_and_leaves_room_for_the_passage(models: dict[str, Model]) -> None:
    own = models["answering"]
    row = {"question": LONG, "context": "a b"}
    with pytest.raises(DataError, match=r"row 1: .*no room for a window"):
        own.predict([row])  # 64 tokens of a question are all that 64 have room for


@pytest.mark.long
@pytest.mark.parametrize("choices", [["", ""], ["a"], [LONG, "a"], ["b"] * 200], ids=repr_short)
def test_any_number_of_choices_is_predicted(models: dict[str, Model], choices: list[str]) -> None:
    with expect_truncation_warning(*choices):
        (answer,) = models["choice"].predict([{"prompt": "", "choices": choices}])
    assert len(answer["probabilities"]) == len(choices)
    assert sum(answer["probabilities"]) == pytest.approx(1)


@pytest.mark.parametrize(
    ("task", "row", "says"),
    [
        ("classification", {"text": "a", "label": "q"}, "label 'q' was not seen in training"),
        ("classification", {"text": "a", "label": None}, r"label \(column 'label'\) is empty"),
        ("classification", {"text": "a", "label": "\ud83d"}, "lone surrogate"),
        ("classification", {"text": "a", "label": float("nan")}, "label .* is empty"),
        ("classification", {"text": 5, "label": "p"}, "the column 'text' holds 5"),
        ("regression", {"text": "a", "label": float("nan")}, "nan .* is not a finite number"),
        ("regression", {"text": "a", "label": "inf"}, "'inf' .* is not a finite number"),
        ("regression", {"text": "a", "label": True}, "True .* is not a finite number"),
        ("tagging", {"words": ["a"], "tags": ["B-LOC"]}, "tag 'B-LOC' was not seen in training"),
        ("tagging", {"words": ["a"], "tags": []}, "1 word, but 0 tags"),
        ("answering", {"question": "a", "context": "a", "answers": float("nan")}, "no answers"),
        ("choice", {"prompt": "a", "choices": [], "label": 0}, "there are no choices"),
        ("retrieval", {"a": "a", "b": "b", "score": float("nan")}, "nan .* is not a finite number"),
        ("retrieval", {"a": "a", "b": [], "score": 1}, r"the column 'b' holds \[\]"),
        (
            "choice",
            {"prompt": "a", "choices": ["b"], "label": 1},
            "not the number of one of the 1 choices",
        ),
        ("choice", {"prompt": "a", "choices": ["b"], "label": float("nan")}, "label .* is empty"),
    ],
)
def test_invalid_target_is_an_error_of_its_row(
    models: dict[str, Model], task: str, row: dict[str, Any], says: str
) -> None:
    with pytest.raises(DataError, match=f"row 1: .*{says}"):
        models[task].evaluate([row])


LISTS: dict[str, list[dict[str, Any]]] = {
    "tagging": [{"words": ["a", '"'], "tags": ["O", "O"]}, {"words": ["b"], "tags": ["O"]}],
    "choice": [{"prompt": "a", "choices": ["b", "c, d"], "label": 1}],
    "answering": [{"question": "a", "context": "b", "answers": {"text": [], "answer_start": []}}],
}


@pytest.mark.parametrize("task", LISTS)
def test_lists_come_back_from_tsv(models: dict[str, Model], task: str, tmp_path: Path) -> None:
    file = tmp_path / "out.tsv"
    write_predictions(file, models[task].stream(LISTS[task]))
    assert models[task].evaluate(file).metrics == models[task].evaluate(LISTS[task]).metrics
    assert models[task].predict(data=file) == models[task].predict(LISTS[task])


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", "a b\nc\n"),
        ("a.csv", "sentence\na b\nc\n"),
        ("a.csv", "Text\na b\nc\n"),
        ("a.csv", "id,comment\n1,a b\n2,c\n"),
        ("a.csv", "id,remark\n1,a b\n2,c\n"),
        ("a.csv", "id,text,label\n1,a b,x\n2,c,y\n"),
        ("a.jsonl", '{"sentence": "a b"}\n{"sentence": "c"}\n'),
    ],
)
def test_texts_are_tagged_in_the_columns_of_other_tasks(
    models: dict[str, Model], name: str, content: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(content)
    options = {"header": True} if name == "a.csv" else {}
    if "remark" in content:  # not a usual name, and too short to be known as a text
        with pytest.raises(DataError, match=r"which column holds the words; .* Call it words\."):
            models["tagging"].predict(data=tmp_path / name, **options)
        return
    expected = models["tagging"].predict(["a b", "c"])
    assert models["tagging"].predict(data=tmp_path / name, **options) == expected


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.txt", "a\nb\n", r"holds 'a', not a list\. For a file with one word per line"),
        ("a.csv", "words\n\"['a', 'b']\"\n", r"not a list\. Write lists as JSON"),
        ("a.csv", 'words\n"[""a"", 1]"\n', r"not a list\. Write lists as JSON"),
    ],
)
def test_words_are_not_tagged_as_texts(
    models: dict[str, Model], name: str, content: str, says: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(content)
    own = models["tagging"].task
    values = {**own.to_dict(), "word_column": "1"} if name == "a.txt" else own.to_dict()
    task = type(own).from_dict(values, own.tokenizer)
    with pytest.raises(DataError, match=says):
        Model(own.tokenizer, task, models["tagging"].network).predict(data=tmp_path / name)


@pytest.mark.parametrize("task", LABELLED_TASKS)
def test_a_missing_column_is_renamed_where_no_option_names_it(
    models: dict[str, Model], task: str
) -> None:
    row = {"x1": "a b", "x2": "c d", "x3": "e f"}
    for use in (models[task].predict, models[task].evaluate):
        with pytest.raises(DataError, match=r"\. Call (it|them) ") as error_info:
            use([row, row])
        assert "_column" not in str(error_info.value)
    kind = find_labelled_task(task)
    with pytest.raises(DataError, match=r"_columns?=NAME"):
        kind.from_table(models[task].tokenizer, read_rows([row, row]), kind.user_settings()())


@pytest.mark.parametrize("task", LABELLED_TASKS)
def test_no_rows_have_no_predictions_and_cannot_be_measured(
    models: dict[str, Model], task: str
) -> None:
    assert models[task].predict([]) == []
    with pytest.raises(DataError, match="there are no rows"):
        models[task].evaluate([])


@pytest.mark.parametrize(
    ("task", "row", "metrics"),
    [
        ("classification", {"text": "a", "label": "p"}, {"majority": 1, "matthews_correlation": 0}),
        ("regression", {"text": "a", "label": 2.0}, {"pearson": 0, "spearman": 0}),
        ("tagging", {"words": ["a"], "tags": ["O"]}, {"majority": 1, "recall": 0}),
        ("retrieval", {"a": "a", "b": "b", "score": 2.0}, {"pearson": 0, "spearman": 0}),
        ("choice", {"prompt": "a", "choices": ["a"], "label": 0}, {"majority": 1, "accuracy": 1}),
    ],
)
def test_a_table_of_one_class_can_be_measured(
    models: dict[str, Model], task: str, row: dict[str, Any], metrics: dict[str, float]
) -> None:
    found = models[task].evaluate([row] * 3).metrics
    assert {name: found[name] for name in metrics} == metrics


@pytest.mark.parametrize(
    ("answers", "is_answered"),
    [
        ({"text": [], "answer_start": []}, False),
        ({"text": [""], "answer_start": [0]}, False),
        ({"text": ["h"], "answer_start": [0]}, True),  # not in the passage: measured all the same
        ({"text": ["b"], "answer_start": [-7]}, True),
        ("", False),
        ("b", True),
    ],
)
def test_unusual_answers_are_measured(
    models: dict[str, Model], answers: object, is_answered: bool
) -> None:
    row = {"question": "a", "context": "c b", "answers": answers}
    own = models["answering"]
    predicted = own.predict([row])[0]["answer"]
    metrics = own.evaluate([row]).metrics
    assert metrics["unanswered_accuracy" if is_answered else "answered_f1"] == 0
    if not is_answered:
        assert metrics["f1"] == metrics["unanswered_accuracy"] == (predicted == "")
