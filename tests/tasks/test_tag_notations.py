"""Tags that mark spans, in every notation: against seqeval, conlleval's rules and transformers."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seqeval.metrics import f1_score, precision_score, recall_score
from seqeval.scheme import BILOU, IOB1, IOB2, IOBES, IOE1, IOE2

import bertworks as bw
from bertworks.data.tables import read_rows
from bertworks.errors import BertworksWarning, DataError
from bertworks.tasks.tagging.notation import find_notation, find_span_warning, read_tag
from bertworks.tasks.tagging.settings import TaggingSettings
from bertworks.tasks.tagging.tags import Span, find_spans
from bertworks.tasks.tagging.task import TaggingTask
from bertworks.text.tokenizer import Tokenizer

from .test_tagging import PIECES, as_iob1, spans

TOKENIZER = Tokenizer.from_vocabulary(PIECES)
Writer = Callable[[Sequence[Span], int], list[str]]


def writer(letters: str) -> Writer:
    """Writes spans with the letters of the first word, those inside, the last, and one alone."""
    first, middle, last, single = letters

    def write(spans: Sequence[Span], length: int) -> list[str]:
        tags = ["O"] * length
        for span in spans:
            size = span.end - span.start
            marks = single if size == 1 else first + middle * (size - 2) + last
            tags[span.start : span.end] = [f"{mark}-{span.type}" for mark in marks]
        return tags

    return write


def as_ioe1(spans: Sequence[Span], length: int) -> list[str]:
    tags = writer("IIII")(spans, length)
    for span, following in pairwise(spans):
        if span.end == following.start and span.type == following.type:
            tags[span.end - 1] = f"E-{span.type}"
    return tags


SCHEMES: dict[str, tuple[Writer, type | None]] = {
    "IOB1": (as_iob1, IOB1),
    "IOB2": (writer("BIIB"), IOB2),
    "IOE1": (as_ioe1, IOE1),
    "IOE2": (writer("IIEE"), IOE2),
    "IOBES": (writer("BIES"), IOBES),
    "BILOU": (writer("BILU"), BILOU),
    "BMES": (writer("BMES"), None),
    "BMEWO": (writer("BMEW"), None),
}
SPELLINGS: dict[str, Callable[[str, str], str]] = {
    "B-PER": lambda mark, kind: f"{mark}-{kind}",
    "B_PER": lambda mark, kind: f"{mark}_{kind}",
    "B:PER": lambda mark, kind: f"{mark}:{kind}",
    "B/PER": lambda mark, kind: f"{mark}/{kind}",
    "B.PER": lambda mark, kind: f"{mark}.{kind}",
    "b-PER": lambda mark, kind: f"{mark.lower()}-{kind}",
    "b_per": lambda mark, kind: f"{mark}_{kind}".lower(),
    "PER-B": lambda mark, kind: f"{kind}-{mark}",
    "PER_B": lambda mark, kind: f"{kind}_{mark}",
    "per.b": lambda mark, kind: f"{kind}.{mark}".lower(),
    "B PER": lambda mark, kind: f"{mark} {kind}",
    "<B-PER>": lambda mark, kind: f"<{mark}-{kind}>",
    "[PER_B]": lambda mark, kind: f"[{kind}_{mark}]",
}
# Without a joint, a table needs two markers of one type.
WITHOUT_JOINT: dict[str, Callable[[str, str], str]] = {
    "BPER": lambda mark, kind: f"{mark}{kind}",
    "PERB": lambda mark, kind: f"{kind}{mark}",
    "<PerB>": lambda mark, kind: f"<{kind}{mark}>",
}


def respell(tags: Sequence[str], spelling: str) -> list[str]:
    """Tags with `B-PER` in another spelling; those of spellings in small letters have `o`."""
    write = (SPELLINGS | WITHOUT_JOINT)[spelling]
    outside = "o" if spelling.islower() else "O"
    return [outside if tag == "O" else write(tag[0], tag[2:]) for tag in tags]


def conlleval(tags: Sequence[str]) -> list[tuple[str, int, int]]:
    """The spans by the rules of conlleval.pl, transcribed: its `startOfChunk` and `endOfChunk`."""
    chunks, start = [], None
    previous_mark, previous_kind = "O", ""
    for index, tag in enumerate([*tags, "O"]):
        mark, _, kind = tag.partition("-")
        ends = (
            (previous_mark in "BI" and mark in "BO")
            or previous_mark == "E"
            or (previous_mark not in "O." and previous_kind != kind)
        )
        starts = (
            (previous_mark in "BIEO" and mark == "B")
            or (previous_mark in "EO" and mark in "EI")
            or (mark not in "O." and previous_kind != kind)
        )
        if ends and start is not None:
            chunks.append((previous_kind, start, index))
            start = None
        if starts:
            start = index
        previous_mark, previous_kind = mark, kind
    return chunks


def score_of(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> bw.Evaluation:
    rows = [
        {"words": ["w"] * len(tags), "tags": list(tags), "predicted": list(others)}
        for tags, others in zip(gold, predicted, strict=True)
    ]
    return bw.score("tagging", rows, prediction_column="predicted")


@pytest.mark.long
@pytest.mark.parametrize("name", SCHEMES)
@given(spelling=st.sampled_from([*SPELLINGS]), data=st.data())
@settings(max_examples=25, deadline=None)
def test_scores_are_those_of_seqeval_in_every_scheme_and_spelling(name, spelling, data):
    write, strict = SCHEMES[name]
    (gold, length), (other, room) = data.draw(spans()), data.draw(spans())
    length = max(length, room, 1)
    both = write([Span("PER", 0, 3)], 3)  # so that there is a mark of each scheme
    sides = [[write(gold, length), both], [write(other, length), both]]
    metrics = score_of(*([respell(tags, spelling) for tags in side] for side in sides)).metrics
    gold_tags, predicted_tags = (
        [[tag.replace("M-", "I-").replace("W-", "S-") for tag in tags] for tags in side]
        for side in sides
    )
    oracles = [{"scheme": IOBES if strict is None else strict, "mode": "strict"}, {}]
    if name == "BILOU":  # seqeval's default mode does not know L and U
        del oracles[1]
    if name == "IOE1":  # seqeval's strict mode misses a span of one word before another
        del oracles[0]
    for mode in oracles:
        assert metrics["precision"] == pytest.approx(
            precision_score(gold_tags, predicted_tags, zero_division=0, **mode)
        )
        assert metrics["recall"] == pytest.approx(
            recall_score(gold_tags, predicted_tags, zero_division=0, **mode)
        )
        assert metrics["f1"] == pytest.approx(
            f1_score(gold_tags, predicted_tags, zero_division=0, **mode)
        )


MARKS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "E-PER", "E-LOC", "B", "I", "E"]


@given(tags=st.lists(st.sampled_from(MARKS), min_size=1, max_size=12))
def test_spans_are_those_of_conlleval(tags):
    assert [tuple(span) for span in find_spans(tags)] == conlleval(tags)


BARE = st.lists(st.sampled_from("BIO"), min_size=1, max_size=12)


@pytest.mark.long
@given(st.lists(st.tuples(BARE, BARE), min_size=1, max_size=6))
@settings(deadline=None)
def test_markers_alone_are_spans_of_one_type(rows):
    gold = [[*own[: len(other)], "B"] for own, other in rows]
    predicted = [[*other[: len(own)], "B"] for own, other in rows]
    metrics = score_of(gold, predicted).metrics
    num_correct = num_predicted = num_gold = 0
    for own, other in zip(gold, predicted, strict=True):
        num_correct += len({*conlleval(own)} & {*conlleval(other)})
        num_predicted += len(conlleval(other))
        num_gold += len(conlleval(own))
    assert metrics["precision"] == pytest.approx(num_correct / num_predicted)
    assert metrics["recall"] == pytest.approx(num_correct / num_gold)
    assert metrics["f1"] == pytest.approx(f1_score(gold, predicted))


TYPES = st.lists(st.sampled_from(["O", "PER", "LOC"]), min_size=1, max_size=12)


@pytest.mark.long
@given(st.lists(st.tuples(TYPES, TYPES), min_size=1, max_size=6))
@settings(deadline=None)
def test_types_alone_are_spans_of_adjacent_words(rows):
    gold = [[*own[: len(other)], "O", "PER"] for own, other in rows]
    predicted = [[*other[: len(own)], "O", "PER"] for own, other in rows]
    result = score_of(gold, predicted)
    gold_tags, predicted_tags = (
        [["O" if tag == "O" else f"I-{tag}" for tag in tags] for tags in side]
        for side in (gold, predicted)
    )
    assert result.metrics["f1"] == pytest.approx(f1_score(gold_tags, predicted_tags))
    assert "adjacent words of one are a span" in result.notes[-1]


def test_a_predicted_o_makes_no_spans_of_parts_of_speech():
    metrics = score_of([["NOUN", "NOUN", "VERB"]], [["NOUN", "O", "VERB"]]).metrics
    assert "macro_f1" in metrics
    assert score_of([["O", "O"]], [["PER", "O"]]).metrics["f1"] == 0


@pytest.mark.long
@given(spans_and_length=spans(), data=st.data())
def test_words_that_are_none_are_not_scored(spans_and_length, data):
    """`X`, `[CLS]` and `[SEP]` of scripts for BERT: leaving these words out changes no figure."""
    gold_spans, length = spans_and_length
    tags = [*SCHEMES["IOB2"][0](gold_spans, length), "B-PER"]
    others = [data.draw(st.sampled_from(["O", "B-PER", "I-PER"])) for _ in tags]
    clean = score_of([tags], [others]).metrics
    gold, predicted = ["[CLS]"], ["O"]
    for own, other in zip(tags, others, strict=True):
        some = data.draw(st.integers(0, 2))
        gold += [own, *["X"] * some]
        predicted += [other, *data.draw(st.permutations(["X", "O"]))[:some]]
    result = score_of([[*gold, "[SEP]"]], [[*predicted, "[SEP]"]])
    assert result.metrics == clean
    assert any("'X', '[CLS]', '[SEP]' are left out" in note for note in result.notes) or (
        "X" not in gold
    )


@pytest.mark.parametrize(
    "tags",
    [
        "NOUN VERB X",
        "N O V ^ ,",  # of tweets: O is a pronoun
        "n nr v o u",  # of Chinese: o is an onomatopoeia
        "S V O",
        "NOUN-S VERB-S NOUN-P",
        "NN-TL IN-TL NN-HL",
        "O 1",
    ],
)
def test_plain_tags_are_no_spans(tags):
    names = tags.split()
    assert find_notation(names) is None
    assert find_span_warning(dict.fromkeys(names, 1)) is None


@pytest.mark.parametrize(
    ("tags", "types"),
    [
        ("O start-date end-date", {"start-date", "end-date"}),
        ("O first-name last-name", {"first-name", "last-name"}),
        ("O OTHER PER", {"OTHER", "PER"}),
        ("BB_O_PER EE_O_PER MM_O WW_O_PER B_PER M_PER E_PER W_LOC", {"PER", "LOC"}),
        ("BEGIN-PER INSIDE-PER OUTSIDE", {"PER"}),
        ("0 B-PER I-PER", {"PER"}),
        ("B-a-b I-a-b O", {"a-b"}),
        ("B-PER I O", {"PER", ""}),
        ("B M E S", {""}),
        ("U-PER", {"PER"}),
        ("O BPER IPER BLOC", {"PER", "LOC"}),
        ("O PERSONB PERSONE PLACES", {"PERSON", "PLACE"}),
        ("BEGIN-PER IN-PER O", {"PER"}),
        ("<B-PER> <I-PER> <O>", {"PER"}),
        ("O JOB SUB", {"JOB", "SUB"}),  # names that end with a marker's letter
    ],
)
def test_types_of_spans_are_recognised(tags, types):
    notation = find_notation(tags.split())
    assert notation is not None
    assert notation.types == types


@pytest.mark.parametrize(
    "tags",
    [
        "O B-PER I-PER NOUN",
        "O BPER IPER NOUN",
        "O <B-PER> NOUN",
        "O B-PER PER-B",
        "(PER* * *)",
        "O O O DB-PER HB-PER",
        "O O O P L",
    ],
)
def test_tags_that_only_look_like_spans_are_warned_of(tags):
    names = tags.split()
    rows = read_rows([{"words": names, "tags": names}])
    with pytest.warns(BertworksWarning, match="tags are read one by one"):
        task = TaggingTask.from_table(TOKENIZER, rows, TaggingSettings())
    assert not task.settings.spans
    assert any("tags are read one by one" in one for one in score_of([names], [names]).notes)


@pytest.mark.parametrize("scheme", ["bio", "bioes"])
@pytest.mark.parametrize("spelling", [*SPELLINGS, *WITHOUT_JOINT])
@pytest.mark.parametrize("name", SCHEMES)
def test_all_notations_teach_the_same(name, spelling, scheme):
    expected = [Span("PER", 0, 1), Span("PER", 1, 4), Span("LOC", 5, 7), Span("LOC", 7, 8)]
    small = spelling in ("b_per", "per.b")
    tags = respell(SCHEMES[name][0](expected, 9), spelling)
    rows = read_rows([{"words": ["ab"] * 9, "tags": tags}])
    task = TaggingTask.from_table(TOKENIZER, rows, TaggingSettings(scheme=scheme))
    assert task.settings.spans
    assert task.best_metric == "f1"
    reader = task.for_table(rows, labelled=True)
    (example,) = reader.labelled_examples(rows)
    learned = [task.labels[number] for number in example.target]
    write = writer("BIIB" if scheme == "bio" else "BIES")
    assert learned == [
        re.sub("(?<=-).*", lambda kind: kind[0].lower(), tag) if small else tag
        for tag in write(expected, 9)
    ]
    assert (task.settings.notation is None) == (
        spelling == "B-PER" and name in ("IOB1", "IOB2", "IOE1", "IOE2", "IOBES")
    )
    if task.settings.notation is not None:
        assert task.settings.notation in task.columns_text


def test_another_notation_in_dev_is_read_by_the_types_of_training():
    train = read_rows([{"words": ["a", "b", "c"], "tags": ["B-PER", "I-PER", "O"]}])
    task = TaggingTask.from_table(TOKENIZER, train, TaggingSettings())
    dev = read_rows([{"words": ["a", "b", "c"], "tags": ["PER_B", "PER_E", "out"]}])
    reader = task.for_table(dev, labelled=True)
    (example,) = reader.labelled_examples(dev)
    assert [task.labels[number] for number in example.target] == ["B-PER", "I-PER", "O"]
    assert reader.settings.notation == "tags mark spans: IOBES ('PER_B')"
    with pytest.raises(DataError, match="the tag 'ORG_B' was not seen in training"):
        reader.example({"words": ["a"], "tags": ["ORG_B"]}, 0)


def test_words_that_are_none_are_not_trained():
    words = ["[CLS]", "ab", "##c", "d", "[SEP]"]
    rows = read_rows([{"words": words, "tags": ["[CLS]", "B-PER", "X", "O", "[SEP]"]}])
    task = TaggingTask.from_table(TOKENIZER, rows, TaggingSettings())
    assert task.labels == ("O", "B-PER", "I-PER")
    (example,) = task.labelled_examples(rows)
    assert example.words == ["ab", "d"]
    assert example.target.tolist() == [1, 0]
    assert "words with 'X', '[CLS]', '[SEP]' are left out" in task.columns_text


def test_plain_is_a_scheme():
    rows = read_rows([{"words": ["a", "b"], "tags": ["B-PER", "O"]}])
    task = TaggingTask.from_table(TOKENIZER, rows, TaggingSettings(scheme="plain"))
    assert (task.labels, task.settings.spans) == (("B-PER", "O"), False)


@given(tags=st.lists(st.text("BIO-_X.perPER0[]", min_size=1, max_size=7), min_size=1, max_size=6))
def test_every_tag_of_a_notation_is_read(tags):
    notation = find_notation(tags)
    if notation is None:
        return
    for tag in tags:
        assert (read_tag(tag, notation.types) is None) == (tag in notation.unlabelled)
    assert {
        span.type for tag in tags for span in find_spans([read_tag(tag, notation.types) or "O"])
    }
