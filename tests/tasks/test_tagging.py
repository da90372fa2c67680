"""Tagging: schemes, spans and alignment by property, and against independent scorers."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from seqeval.metrics import f1_score, precision_score, recall_score
from seqeval.scheme import IOB1, IOBES
from seqeval.scheme import Entities as SeqevalEntities

import bertworks as bw
from bertworks.data.tables import read_rows
from bertworks.errors import DataError
from bertworks.nn.config import EncoderConfig
from bertworks.tasks.tagging.columns import read_strings
from bertworks.tasks.tagging.notation import find_notation, read_tag
from bertworks.tasks.tagging.scores import compute_span_rates
from bertworks.tasks.tagging.settings import TaggingSettings
from bertworks.tasks.tagging.tags import (
    Span,
    build_labels,
    find_best_path,
    find_legal_transitions,
    find_spans,
    write_spans,
)
from bertworks.tasks.tagging.task import TaggingTask
from bertworks.tasks.tagging.text_words import Spellings
from bertworks.text.tokenizer import Tokenizer

PIECES = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    *"abcdefgh",
    *(f"##{c}" for c in "abcdefgh"),
]
CONFIG = EncoderConfig(
    vocab_size=len(PIECES),
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=64,
)
TYPES = ("LOC", "PER")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("हिन्दी भाषा।", ["हिन्दी", "भाषा", "।"]),
        (
            "Jose\u0301's e\u0301te\u0301-la, \u0301a",
            ["Jose\u0301", "'", "s", "e\u0301te\u0301", "-", "la", ",", "a"],
        ),
        ("می\u200cخواهم", ["می\u200cخواهم"]),
        ("it's 3.5 km", ["it", "'", "s", "3", ".", "5", "km"]),
    ],
)
def test_marks_belong_to_their_letters(text, words):
    (read,) = Spellings(Tokenizer.from_vocabulary(PIECES)).read([text])
    assert read.words_in(text) == words


@st.composite
def spans(draw):
    """Some spans over some words, in order."""
    result, end = [], 0
    for _ in range(draw(st.integers(0, 5))):
        start = end + draw(st.integers(0, 3))
        end = start + draw(st.integers(1, 4))
        result.append(Span(draw(st.sampled_from(TYPES)), start, end))
    return result, end + draw(st.integers(0, 3))


def as_iob1(spans, length):
    tags = ["O"] * length
    previous = None
    for span in spans:
        tags[span.start : span.end] = [f"I-{span.type}"] * (span.end - span.start)
        if previous is not None and previous.end == span.start and previous.type == span.type:
            tags[span.start] = f"B-{span.type}"
        previous = span
    return tags


def as_bilou(spans, length):
    return [
        tag.replace("E-", "L-").replace("S-", "U-") for tag in write_spans(spans, length, "bioes")
    ]


def read_tags(tags):
    """Tags in any notation as this package writes them."""
    return [read_tag(tag, find_notation([*tags, "B-Q"]).types) for tag in tags]


@given(spans())
def test_every_scheme_has_the_same_spans(spans_and_length):
    expected, length = spans_and_length
    for scheme in ("bio", "bioes"):
        tags = write_spans(expected, length, scheme)
        assert find_spans(tags) == expected
    assert find_spans(read_tags(as_bilou(expected, length))) == expected
    iob1 = as_iob1(expected, length)
    assert find_spans(iob1) == expected
    for tags, peer_scheme in ((iob1, IOB1), (write_spans(expected, length, "bioes"), IOBES)):
        read = [e.to_tuple()[1:] for e in SeqevalEntities([tags], peer_scheme).entities[0]]
        assert [Span(*one) for one in read] == expected


def test_tags_that_mark_spans_are_known_from_others():
    assert find_notation(["O", "I-PER", "B-LOC"])
    assert find_notation(["U-PER"])
    assert not find_notation(["NOUN", "VERB"])
    assert not find_notation(["O", "B-PER", "NOUN"])
    assert not find_notation(["O"])


TAGS = st.lists(st.sampled_from(["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]), min_size=1, max_size=12)


@pytest.mark.long
@given(st.lists(st.tuples(TAGS, TAGS), min_size=1, max_size=6))
@settings(max_examples=60)
def test_scores_are_those_of_seqeval(rows):
    """Tags in any disorder: seqeval's default mode follows conlleval."""
    true = [own[: min(len(own), len(other))] for own, other in rows]
    predicted = [other[: min(len(own), len(other))] for own, other in rows]
    precision, recall, f1, _ = compute_span_rates(
        map(find_spans, true), map(find_spans, predicted)
    ).total
    assert precision == pytest.approx(precision_score(true, predicted, zero_division=0))
    assert recall == pytest.approx(recall_score(true, predicted, zero_division=0))
    assert f1 == pytest.approx(f1_score(true, predicted, zero_division=0))


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["bio", "bioes"])
@given(data=st.data())
def test_the_best_path_is_legal_and_the_best(scheme, data):
    labels = build_labels(["X"], scheme)
    is_legal = find_legal_transitions(labels)
    words = data.draw(st.integers(1, 4))
    numbers = st.floats(-5, 5, allow_subnormal=False)
    scores = np.array(
        data.draw(
            st.lists(
                st.lists(numbers, min_size=len(labels), max_size=len(labels)),
                min_size=words,
                max_size=words,
            )
        )
    )
    paths = np.array(np.meshgrid(*[range(len(labels))] * words, indexing="ij")).reshape(words, -1).T

    def total(path):
        way = [-1, *path, -1]
        if not all(is_legal[a, b] for a, b in pairwise(way)):
            return -np.inf
        return scores[range(words), path].sum()

    assert total(find_best_path(scores, is_legal)) == pytest.approx(max(map(total, paths.tolist())))
    names = [labels[number] for number in find_best_path(scores, is_legal)]
    assert write_spans(find_spans(names), len(names), scheme) == names


WORDS = st.lists(st.text("abcdefgh", min_size=1, max_size=5) | st.just("\x00"), max_size=40)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*the tokenizer removes all characters")
@given(
    rows=st.lists(WORDS, min_size=1, max_size=3),
    piece=st.sampled_from(["first", "last", "all"]),
    stride=st.sampled_from([None, 1, 3, 8]),
    data=st.data(),
)
@settings(max_examples=50, deadline=None)
def test_decoding_gold_tags_gives_them_again(rows, piece, stride, data):
    """Encode, let the network say the truth, decode: the words, each with its tag, once."""
    tags = [
        data.draw(st.lists(st.sampled_from("XYZ"), min_size=len(w), max_size=len(w))) for w in rows
    ]
    task = TaggingTask.from_dict(
        {
            "labels": ("X", "Y", "Z"),
            "spans": False,
            "word_column": "words",
            "tag_column": "tags",
            "max_seq_length": 10,
            "stride": stride,
            "labelled_piece": piece,
        },
        Tokenizer.from_vocabulary(PIECES),
    )
    table = [{"words": w, "tags": t} for w, t in zip(rows, tags, strict=True)]
    batch = task.collate(task.examples(table, 0)).to("cpu")
    assert batch.packed.max_seqlen <= 10
    logits = torch.nn.functional.one_hot(batch.targets["labels"], 3).float()
    answers = task.decode({"logits": logits}, batch)
    for index, (words, expected) in enumerate(zip(rows, tags, strict=True)):
        assert answers[index]["words"] == words
        assert answers[index]["tags"] == expected
    pieces = [part for example in batch.examples for part in task.training_examples(example)]
    training_batch = task.collate(pieces).to("cpu") if pieces else batch
    assert training_batch.counts == batch.counts
    assert sorted(training_batch.targets["labels"].tolist()) == sorted(
        batch.targets["labels"].tolist()
    )


def test_a_word_is_tagged_in_the_window_with_most_context():
    tokenizer = Tokenizer.from_vocabulary(PIECES)
    task = TaggingTask.from_dict(
        {
            "labels": ("X",),
            "spans": False,
            "word_column": "words",
            "tag_column": "tags",
            "max_seq_length": 8,
            "stride": 3,
        },
        tokenizer,
    )
    example = task.example({"words": list("abcdefgha"), "tags": ["X"] * 9}, 0)
    # Windows of 6 words, each 3 further. Word 3 has 2 behind it in the first and 0 before it in the
    # second; word 4 has 1 in both, and stays with the first.
    tagged = [window.words.tolist() for window in example.sequences]
    assert tagged == [
        [0, 1, 2, 3, 4],
        [5, 6, 7, 8],
    ]


def test_windows_are_half_a_window_apart_by_default():
    tokenizer = Tokenizer.from_vocabulary(PIECES)
    settings = {"labels": ("X",), "spans": False, "word_column": "words", "tag_column": "tags"}
    row = {"words": list("abcdefgha") * 5, "tags": ["X"] * 45}
    words = []
    for stride in (None, 6, 4):  # of windows of 12 words
        task = TaggingTask.from_dict(
            {**settings, "max_seq_length": 14, "stride": stride}, tokenizer
        )
        words.append([window.words.tolist() for window in task.example(row, 0).sequences])
    assert words[0] == words[1] != words[2]


def test_plain_text_gives_entities_with_characters():
    tokenizer = Tokenizer.from_vocabulary(PIECES)
    task = TaggingTask.from_dict(
        {
            "labels": build_labels(["PER"], "bio"),
            "spans": True,
            "word_column": "words",
            "tag_column": "tags",
        },
        tokenizer,
    )
    text = "  ab (cd ef)"
    batch = task.collate([task.example({"text": text}, 4, labelled=False)]).to("cpu")
    numbers = torch.tensor([0, 0, 1, 2, 0])  # ab ( cd ef )
    logits = 9.0 * torch.nn.functional.one_hot(numbers, 3)
    answer = task.decode({"logits": logits}, batch)[4]
    assert answer["words"] == ["ab", "(", "cd", "ef", ")"]
    (entity,) = answer["entities"]
    assert (entity["type"], entity["text"], entity["start"], entity["end"]) == (
        "PER",
        "cd ef",
        6,
        11,
    )
    assert entity["probability"] > 0.99


def test_an_illegal_tag_is_not_predicted():
    labels = build_labels(["PER"], "bio")
    scores = np.array([[0.0, -8, -9], [-9, -9, 0]])  # each by itself: O, I-PER
    path = [labels[number] for number in find_best_path(scores, find_legal_transitions(labels))]
    assert path == ["B-PER", "I-PER"]  # -8 + 0; the best without it is O, O: 0 - 9


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"tags": ["X"]}, "f:3: the row has no column 'words'"),
        ({"words": "ab", "tags": ["X"]}, "f:3: the column 'words' holds 'ab', not a list"),
        ({"words": ["ab"], "tags": ["X", "X"]}, "f:3: 1 word, but 2 tags"),
        ({"words": ["ab"], "tags": ["W"]}, "f:3: the tag 'W' was not seen in training"),
        (
            {"words": ["ab", 3], "tags": ["X", "X"]},
            "f:3: the column 'words' holds 3, which is not a text",
        ),
    ],
)
def test_bad_rows_are_refused(row, says):
    columns = {"word_column": "words", "tag_column": "tags"}
    task = TaggingTask.from_dict(
        {"labels": ("X", "Y"), "spans": False, **columns},
        Tokenizer.from_vocabulary(PIECES),
    )
    with pytest.raises(DataError, match=says):
        task.example(row, 0, where="f:3")


@pytest.mark.parametrize("tag", ["NOUN", "B-ORG", "PER_"])
def test_an_unknown_tag_among_those_of_spans_is_an_error(tag):
    task = TaggingTask.from_dict(
        {
            "labels": build_labels(["PER"], "bio"),
            "spans": True,
            "word_column": "words",
            "tag_column": "tags",
        },
        Tokenizer.from_vocabulary(PIECES),
    )
    with pytest.raises(DataError, match=f"f:3: the tag '{tag}' was not seen in training"):
        task.example({"words": ["ab", "cd"], "tags": ["B-PER", tag]}, 0, where="f:3")


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["bio", "bioes"])
@given(spans_and_length=spans())
def test_training_tags_of_any_scheme_are_learned_as_the_task_has_them(scheme, spans_and_length):
    expected, length = spans_and_length
    if not expected:
        return
    tokenizer = Tokenizer.from_vocabulary(PIECES)
    columns = {"word_column": "words", "tag_column": "tags"}
    for tags in (
        as_iob1(expected, length),
        write_spans(expected, length, "bio"),
        write_spans(expected, length, "bioes"),
        as_bilou(expected, length),
    ):
        rows = read_rows([{"words": ["ab"] * length, "tags": tags}])
        options = TaggingSettings(scheme=scheme, **columns)
        task = TaggingTask.from_table(tokenizer, rows, options)
        (example,) = task.examples([rows.sample[0]], 0)
        learned = [task.settings.labels[number] for number in example.target]
        assert learned == write_spans(expected, length, scheme)


def test_a_row_without_words_teaches_nothing():
    columns = {"word_column": "words", "tag_column": "tags"}
    task = TaggingTask.from_dict(
        {"labels": ("X", "Y"), "spans": False, **columns},
        Tokenizer.from_vocabulary(PIECES),
    )
    example = task.example({"words": [], "tags": []}, 0)
    assert list(task.training_examples(example)) == []


def test_files_of_conll_and_conllu_are_read(tmp_path):
    conll = tmp_path / "a.conll"
    conll.write_text("-DOCSTART- -X- O\n\nab NN I-PER\ncd NN I-PER\n\n\nef VB O\n")
    rows = read_rows(conll)
    assert [row.where.removeprefix(str(tmp_path)) for row in rows] == ["/a.conll:3", "/a.conll:7"]
    task = TaggingTask.from_table(Tokenizer.from_vocabulary(PIECES), rows, TaggingSettings())
    assert task.settings.labels == ("O", "B-PER", "I-PER")
    examples = task.examples([row.values for row in rows], 0)
    assert [example.target.tolist() for example in examples] == [[1, 2], [0]]
    conll.write_text("ab O\ncd\n")
    with pytest.raises(DataError, match=r"a.conll:2: 1 field\(s\), where the first line has 2"):
        list(read_rows(conll))
    # A document's mark may stand alone; a no-break space and its like are characters of a word.
    conll.write_text("-DOCSTART-\n\n10\u00a0000 O\n\u3000 O\nab B-X\n", encoding="utf-8")
    (row,) = read_rows(conll)
    assert row.values == {
        "1": ["10\u00a0000", "\u3000", "ab"],
        "2": ["O", "O", "B-X"],
        "document": 1,
    }
    conllu = tmp_path / "a.conllu"
    word = "\t_\t{}\t_\t_\t_\t_\t_\t_\n"
    conllu.write_text(
        f"# text = abcd\n1-2\tabcd{word.format('_')}1\tab{word.format('NOUN')}"
        f"2\tcd{word.format('VERB')}2.1\tx{word.format('X')}"
    )
    (row,) = read_rows(conllu)
    assert (row.values["form"], row.values["upos"]) == (["ab", "cd"], ["NOUN", "VERB"])


@pytest.mark.parametrize("tags", [["B-ORG", ""], ["O", " "]])
def test_an_empty_tag_is_no_class(tags: list[str]) -> None:
    """It was one, and no tag marked a span any more."""
    rows = [{"words": ["a", "b"], "tags": pair} for pair in (["B-ORG", "O"], tags)]
    with pytest.raises(DataError, match=r"row 2: the tag of word 2 \(column 'tags'\) is empty"):
        TaggingTask.from_table(
            Tokenizer.from_vocabulary(PIECES), read_rows(rows), TaggingSettings()
        )
    with pytest.raises(DataError, match=r"row 2: the tag of word 2"):
        bw.score("tagging", [{**row, "prediction": ["O", "O"]} for row in rows])


def test_blanks_around_a_tag_are_no_part_of_it() -> None:
    """Of a word that is a tab, in a file whose fields are separated by spaces (flair 3034)."""
    rows = [{"words": ["a", "\t"], "tags": ["B-ORG", " O"]}]
    task = TaggingTask.from_table(
        Tokenizer.from_vocabulary(PIECES), read_rows(rows), TaggingSettings()
    )
    assert set(task.settings.labels) == {"B-ORG", "I-ORG", "O"}


def test_lists_as_python_prints_them_are_refused_with_the_remedy() -> None:
    with pytest.raises(DataError, match="Write lists as JSON"):
        read_strings({"words": "['a', 'b']"}, "words", "row 1")
