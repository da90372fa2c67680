"""Sentences with their neighbours in the document as context."""

from __future__ import annotations

from itertools import accumulate, chain, groupby, pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bertworks.data.tables import read_rows
from bertworks.errors import DataError
from bertworks.model import Model
from bertworks.tasks.tagging.settings import TaggingSettings
from bertworks.tasks.tagging.task import TaggingTask
from bertworks.text.tokenizer import Tokenizer

from .test_tagging import CONFIG, PIECES

pytestmark = pytest.mark.filterwarnings("ignore:.*the tokenizer removes all characters")

ROOM = 10
TOKENIZER = Tokenizer.from_vocabulary(PIECES)


def tagger(**values: Any) -> TaggingTask:
    return TaggingTask.from_dict(
        {
            "labels": ("X", "Y", "Z"),
            "spans": False,
            "word_column": "words",
            "tag_column": "tags",
            "document_column": "document",
            "document_context": True,
            "max_seq_length": ROOM + 2,
            **values,
        },
        TOKENIZER,
    )


WORDS = st.lists(st.text("abcdefgh", min_size=1, max_size=4) | st.just("\x00"), max_size=14)
DOCUMENTS = st.lists(st.lists(WORDS, min_size=1, max_size=4), min_size=1, max_size=3)


def rows_of(documents: list[list[list[str]]], tags: str = "XYZ") -> list[dict[str, Any]]:
    return [
        {"words": words, "tags": [tags[len(word) % 3] for word in words], "document": number}
        for number, sentences in enumerate(documents)
        for words in sentences
    ]


def ids_of(word: str) -> list[int]:
    """A piece for each character, without the tokenizer's help."""
    if word == "\x00":
        return [PIECES.index("[UNK]")]
    return [PIECES.index("##" * (at > 0) + character) for at, character in enumerate(word)]


@pytest.mark.long
@given(documents=DOCUMENTS, stride=st.sampled_from([None, 1, 4]))
@settings(max_examples=30, deadline=None)
def test_each_word_is_tagged_once_in_its_place_of_the_document(documents, stride):
    task, rows = tagger(stride=stride), rows_of(documents)
    examples = list(task.labelled_examples(read_rows(rows)))
    number = 0
    for sentences in documents:
        words = list(chain.from_iterable(sentences))
        ids = [ids_of(word) for word in words]
        ends = list(accumulate(map(len, ids), initial=0))
        flat = list(chain.from_iterable(ids))
        first = 0  # the sentence's first word, in its document
        for sentence in sentences:
            example = examples[number]
            labelled = np.concatenate([window.words for window in example.sequences])
            assert sorted(labelled.tolist()) == list(range(len(sentence)))
            for window in example.sequences:
                window_ids = window.input_ids[1:-1].tolist()
                assert len(window_ids) <= ROOM
                for position, word in zip(window.positions, window.words, strict=True):
                    start = ends[first + word] - (int(position) - 1)
                    assert start >= 0
                    assert flat[start : start + len(window_ids)] == window_ids
                    assert start in ends
            if sentence and len(example.sequences) == 1:
                size = ends[first + len(sentence)] - ends[first]
                _check_the_window_is_full(start, len(window_ids), ends, own=(ends[first], size))
            first += len(sentence)
            number += 1
    if any(row["words"] for row in rows):
        batch = task.collate(examples).to("cpu")
        logits = torch.nn.functional.one_hot(batch.targets["labels"], 3).float()
        answers = task.decode({"logits": logits}, batch)
        assert [answers[n]["words"] for n in range(len(rows))] == [row["words"] for row in rows]
        assert [answers[n]["tags"] for n in range(len(rows))] == [row["tags"] for row in rows]


def _check_the_window_is_full(start: int, size: int, ends: list[int], own: tuple[int, int]) -> None:
    """No further word of the document fits; where both sides have words left, they are even."""
    stop = start + size
    words = {left: right - left for left, right in pairwise(ends)}
    size_before = next((right - left for left, right in pairwise(ends) if right == start), None)
    size_after = words.get(stop)
    assert size_before is None or size + size_before > ROOM
    assert size_after is None or size + size_after > ROOM
    if size_before is not None and size_after is not None:
        longest = max(words.values())
        assert abs((own[0] - start) - (stop - own[0] - own[1])) <= 2 * longest


@pytest.mark.long
@given(documents=DOCUMENTS, chunk=st.integers(1, 5))
@settings(max_examples=25, deadline=None)
def test_examples_do_not_depend_on_the_number_of_rows_read_at_once(documents, chunk):
    task, table = tagger(), read_rows(rows_of(documents))
    chunk_examples, all_examples = (
        list(task.labelled_examples(table, size)) for size in (chunk, 1000)
    )
    assert [example.content for example in chunk_examples] == [
        example.content for example in all_examples
    ]


def test_predictions_are_of_the_rows_themselves():
    task = tagger()
    torch.manual_seed(0)
    model = Model(TOKENIZER, task, task.network(CONFIG).eval())
    rows = rows_of([[["a", "b"], ["c"]], [["d"]]])
    predictions = list(model.stream(rows, window_rows=1))
    assert [row for row, _ in predictions] == rows
    assert [answer["words"] for _, answer in predictions] == [["a", "b"], ["c"], ["d"]]
    # The context of a row may be given with it; its document is not needed then.
    without_context, with_context = model.predict(
        [{"words": ["c"]}, {"words": ["c"], "context_before": ["a", "b"]}]
    )
    assert with_context["probabilities"] == pytest.approx(predictions[1][1]["probabilities"])
    assert without_context["probabilities"] != pytest.approx(with_context["probabilities"])
    ((_, sentence),) = model.stream([{"text": "c"}])
    assert sentence["probabilities"] == pytest.approx(without_context["probabilities"]), (
        "a text is a document by itself"
    )


CONLL = "{}a X\nb Y\n\nc X\n{}\nd Y\n"


@pytest.mark.parametrize(
    ("text", "documents"),
    [
        (CONLL.format("", ""), ["ab c d"]),
        (CONLL.format("-DOCSTART- O\n\n", "\n-DOCSTART- O\n"), ["ab c", "d"]),
        (CONLL.format("", "\n-DOCSTART- O\n"), ["ab c", "d"]),
    ],
)
def test_borders_of_conll_documents_are_read(tmp_path, text, documents):
    file = tmp_path / "a.conll"
    file.write_text(text)
    rows = read_rows(file)
    documents_in_file = groupby(rows, lambda row: row.values["document"])
    joined = [" ".join("".join(row.values["1"]) for row in group) for _, group in documents_in_file]
    assert joined == documents
    task = TaggingTask.from_table(TOKENIZER, rows, TaggingSettings(document_context=True))
    assert task.columns_text == "words = '1', tags = '2', document = 'document'"
    examples = list(task.labelled_examples(rows))
    texts = ["".join(TOKENIZER.tokens(one.sequences[0].input_ids)[1:-1]) for one in examples]
    assert texts == [group.replace(" ", "") for group in documents for _ in group.split()]
    assert [one.target.tolist() for one in examples] == [[0, 1], [0], [1]]
    plain_task = TaggingTask.from_table(TOKENIZER, rows, TaggingSettings())
    plain_examples = plain_task.labelled_examples(rows)
    assert [len(one.sequences[0].input_ids) for one in plain_examples] == [
        4,
        3,
        3,
    ]


def test_borders_of_conllu_documents_are_read(tmp_path):
    word = "1\t{}\t_\tNOUN" + 6 * "\t_" + "\n\n"
    file = tmp_path / "a.conllu"
    file.write_text(
        "# newdoc id = x\n# text = a\n"
        + word.format("a")
        + word.format("b")
        + "# newdoc\n"
        + word.format("c")
        + "# newdocument\n"
        + word.format("d")
    )
    assert [row.values["document"] for row in read_rows(file)] == [1, 1, 2, 2]


def test_a_table_needs_a_column_of_documents(tmp_path):
    rows = [{"words": ["a"], "tags": ["X"], "book": 1}, {"words": ["b"], "tags": ["Y"], "book": 1}]
    table, options = read_rows(rows), {"document_context": True}
    with pytest.raises(DataError, match=r"which rows are of one document.*document_column=NAME"):
        TaggingTask.from_table(TOKENIZER, table, TaggingSettings(**options))
    task = TaggingTask.from_table(
        TOKENIZER, table, TaggingSettings(document_column="book", **options)
    )
    rebuilt_task = TaggingTask.from_dict(task.to_dict(), TOKENIZER)
    first, _ = rebuilt_task.labelled_examples(table)
    assert TOKENIZER.tokens(first.sequences[0].input_ids) == ["[CLS]", "a", "b", "[SEP]"]
    other = read_rows([{"words": ["a"], "tags": ["X"]}])
    with pytest.raises(DataError, match="which rows are of one document"):
        task.for_table(other, labelled=True)
    (row_without_document,) = task.for_table(other, labelled=False).add_context(other)
    assert row_without_document[1] == {"words": ["a"], "tags": ["X"]}
    broken = read_rows([{"words": ["a"], "document": 1}, {"words": "b", "document": 1}])
    with pytest.raises(DataError, match="row 2: the column 'words' holds 'b', not a list"):
        list(tagger().add_context(broken))


def test_a_long_document_is_read_as_far_ahead_as_the_limit():
    num_read = 0

    def rows():
        nonlocal num_read
        for _ in range(10_000):
            num_read += 1
            yield {"words": ["a", "b"], "document": "one"}

    first, values = next(tagger().add_context(read_rows(rows())))
    assert first.values["words"] == ["a", "b"]
    assert len(values["context_after"]) == ROOM + 2
    assert num_read <= 1000 + 10, "the rows that are looked at to know the columns, and a few"


def test_a_plain_text_has_no_context_whatever_document_it_names():
    task = tagger()
    model = Model(TOKENIZER, task, task.network(CONFIG).eval())
    rows = [{"text": "ab c"}, {"text": "ab c", "document": 1}, {"text": "d", "document": 1}]
    first, second, third = model.predict(rows)
    assert second["tags"] == first["tags"]
    assert second["probabilities"] == pytest.approx(first["probabilities"])
    assert third["words"] == ["d"]


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize(
    ("words_before", "words_after"), [(9, 9), (9, 1), (1, 9), (9, 0), (0, 9), (1, 1)]
)
def test_a_sentence_has_as_much_context_on_each_side(
    words_before: int, words_after: int, size: int
) -> None:
    """Words of one length: half of the room each, and what one side leaves is the other's."""
    rows = rows_of([[["a" * size] * words_before, ["b" * size] * 2, ["c" * size] * words_after]])
    example = list(tagger().labelled_examples(read_rows(rows)))[1]
    (window,) = example.sequences
    words = "".join(PIECES[number].removeprefix("##") for number in window.input_ids[1:-1])
    room = (ROOM - 2 * size) // size  # in words
    half = room // 2
    num_before = min(words_before, max(half, room - words_after))
    num_after = min(words_after, room - num_before)
    assert words == "a" * size * num_before + "b" * size * 2 + "c" * size * num_after
