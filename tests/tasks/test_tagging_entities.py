"""Tagging of texts with marked entities, in the layouts of annotation tools."""

from __future__ import annotations

import json
import re
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import bertworks as bw
from bertworks.data.tables import read_rows
from bertworks.errors import BertworksWarning, DataError
from bertworks.tasks.tagging.columns import read_tagged_words
from bertworks.tasks.tagging.entities import _Utf16Units, read_tagged_text
from bertworks.tasks.tagging.settings import TaggingSettings
from bertworks.tasks.tagging.tags import find_spans
from bertworks.tasks.tagging.task import TaggingTask
from bertworks.text.definition import SPECIAL_PIECES
from bertworks.text.tokenizer import Tokenizer

TEXT = "Obama met Angela Merkel in Berlin."
WORDS = ["Obama", "met", "Angela", "Merkel", "in", "Berlin", "."]
TAGS = ["B-PER", "O", "B-PER", "I-PER", "O", "B-LOC", "O"]
ENTITIES = [(0, 5, "PER"), (10, 23, "PER"), (27, 33, "LOC")]
LAYOUTS: dict[str, tuple[str, list[Any]]] = {
    "doccano": ("label", [list(entity) for entity in ENTITIES]),
    "doccano with relations": (
        "entities",
        [{"id": 1, "label": kind, "start_offset": a, "end_offset": b} for a, b, kind in ENTITIES],
    ),
    "Prodigy": ("spans", [{"start": a, "end": b, "label": kind} for a, b, kind in ENTITIES]),
    "Label Studio": (
        "label",
        [{"start": a, "end": b, "text": TEXT[a:b], "labels": [kind]} for a, b, kind in ENTITIES],
    ),
    "predictions": (
        "entities",
        [{"type": kind, "text": TEXT[a:b], "start": a, "end": b} for a, b, kind in ENTITIES],
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_give_words_and_tags(layout: str) -> None:
    column, entities = LAYOUTS[layout]
    for value in (entities, json.dumps(entities)):  # as a cell of a TSV file
        sentence = read_tagged_words({"text": TEXT, column: value}, "text", column, "row 1")
        assert (sentence.words, sentence.tags, sentence.num_widened) == (WORDS, TAGS, 0)


def test_a_text_without_entities_is_outside() -> None:
    sentence = read_tagged_words({"text": "No one.", "label": []}, "text", "label", "row 1")
    assert (sentence.words, sentence.tags) == (["No", "one", "."], ["O", "O", "O"])
    row = {"text": "No.", "tokens": [{"text": "No", "id": 0}], "spans": []}  # as Prodigy writes it
    assert read_tagged_words(row, "tokens", "spans", "row 1").tags == ["O", "O"]
    with pytest.raises(DataError, match="2 words, but 0 tags"):  # not of a list of words
        read_tagged_words({"text": "No", "words": ["No", "."], "tags": []}, "words", "tags", "row")


def test_scripts_without_spaces_end_words_at_entities() -> None:
    sentence = read_tagged_text({"text": "ไปกรุงเทพแล้ว", "label": [[2, 9, "LOC"]]}, "label", "row 1")
    assert sentence.words == ["ไป", "กรุงเทพ", "แล้ว"] and sentence.tags == ["O", "B-LOC", "O"]
    sentence = read_tagged_text(
        {"text": "王明住在北京", "label": [[4, 6, "LOC"]]}, "label", "row 1"
    )
    assert sentence.tags == ["O", "O", "O", "O", "B-LOC", "I-LOC"]


def test_entities_inside_words_are_widened_and_counted() -> None:
    row = {"text": "The Obamas, 5kg", "label": [[4, 9, "PER"], [13, 15, "UNIT"]]}
    sentence = read_tagged_text(row, "label", "row 1")
    assert sentence.tags == ["O", "B-PER", "O", "B-UNIT"] and sentence.num_widened == 2
    row = {"text": "He met  Obama .", "label": [[7, 14, "PER"]]}  # with the spaces around it
    assert read_tagged_text(row, "label", "row 1").num_widened == 0


@pytest.mark.parametrize(
    ("entities", "message"),
    [
        ([[0, 5]], "has no start, end and type"),
        ([[0, 5, ""]], "has no start, end and type"),
        ([{"start": 0, "end": 5, "labels": ["A", "B"]}], "has no start, end and type"),
        ([["0", 5, "PER"]], "is not a pair of integers"),
        ([[0, 99, "PER"]], "is outside the text of 34 characters"),
        ([[5, 0, "PER"]], "ends before it begins"),
        ([[0, 9, "PER"], [6, 9, "VERB"]], "overlap"),
        ([[0, 5, "PER"], [0, 5, "ORG"]], "has two types, 'PER' and 'ORG'"),
        ([[5, 6, "PER"]], "has no word"),
        ([[10, 13, "A"], [13, 16, "B"]], "has no word"),  # both inside one word
    ],
)
def test_entities_that_mark_no_words_are_refused(entities: list[Any], message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        read_tagged_text({"text": TEXT, "label": entities}, "label", "data.jsonl:3")
    assert str(caught.value).startswith("data.jsonl:3: ")


def count_utf16(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2


@pytest.mark.parametrize("start", ["💩 ", "👨🏻\u200d🚒👩 ", "a 𝔅", "é\u0301💩💩💩💩 "])
@pytest.mark.parametrize("kind", ["doccano", "Label Studio"])
def test_positions_in_units_of_utf_16(start: str, kind: str) -> None:
    """As annotation tools in browsers count (doccano 2290, Label Studio 1347)."""
    text = f"{start}Bob met Alice in Paris"
    begin, length = text.index("Alice"), len("Alice")
    first = count_utf16(text[:begin])
    assert first > begin
    entity: Any = [first, first + length, "PER"]
    if kind == "Label Studio":
        entity = {"start": first, "end": first + length, "text": "Alice", "labels": ["PER"]}
        sentence = read_tagged_text({"text": text, "label": [entity]}, "label", "row 1")
        assert [*zip(sentence.words, sentence.tags, strict=True)][-4:] == [
            *(("met", "O"), ("Alice", "B-PER"), ("in", "O"), ("Paris", "O"))
        ]
        return
    with pytest.raises(DataError, match=r"JavaScript counts, it would be 'Alice'"):
        read_tagged_text({"text": text, "label": [entity]}, "label", "row 1")
    sentence = read_tagged_text(
        {"text": text, "label": [[begin, begin + length, "PER"]]}, "label", ""
    )
    assert sentence.tags[-4:] == ["O", "B-PER", "O", "O"] and sentence.num_widened == 0


@given(st.text("a é💩👨\u200d𝔅", min_size=1), st.data())
def test_each_character_is_found_in_units_of_utf_16(text: str, data: st.DataObject) -> None:
    span = [data.draw(st.integers(0, len(text))) for _ in range(2)]
    units = [count_utf16(text[:at]) for at in span]
    assert _Utf16Units(text).characters((units[0], units[1])) == (*span,)
    beyond = count_utf16(text) + 3
    assert _Utf16Units(text).characters((-1, beyond)) == (-1, len(text) + 3)


@pytest.mark.parametrize("kind", ["characters", "units with their texts"])
def test_many_entities_of_a_text_with_emoji_take_linear_time(kind: str) -> None:
    def seconds(count: int) -> float:
        text = "💩 " + "Bob ran. " * count
        starts = range(2, len(text), len("Bob ran. "))
        entities: list[Any] = [[start, start + 3, "PER"] for start in starts]
        if kind != "characters":
            entities = [
                {"start": start + 1, "end": start + 4, "text": "Bob", "label": "PER"}
                for start in starts
            ]
        begin = time.process_time()
        sentence = read_tagged_text({"text": text, "label": entities}, "label", "row 1")
        assert sentence.tags.count("B-PER") == count
        return time.process_time() - begin

    assert seconds(4_000) < 24 * seconds(500)


def test_an_entity_beyond_the_end_in_characters_may_be_in_units_of_utf_16() -> None:
    with pytest.raises(DataError, match=r"at \[3, 6\] is 'ob'; in units of UTF-16"):
        read_tagged_text({"text": "💩 Bob", "label": [[3, 6, "PER"]]}, "label", "row 1")
    with pytest.raises(DataError, match="outside the text of 5 characters"):
        read_tagged_text({"text": "💩 Bob", "label": [[3, 9, "PER"]]}, "label", "row 1")


def test_entities_inside_words_of_texts_with_emoji_are_widened() -> None:
    """Neither reading fits the words."""
    row = {"text": "💩 The Obamas", "label": [[6, 11, "PER"]]}
    assert read_tagged_text(row, "label", "row 1").num_widened == 1
    row = {"text": "💩我爱北京", "label": [[3, 5, "LOC"]]}  # any border fits
    assert read_tagged_text(row, "label", "row 1").tags == ["O", "O", "O", "B-LOC", "I-LOC"]


@pytest.mark.parametrize("own_text", ["anna smith", "", "Anna\\nSmith", "nna Smi"])
def test_an_entity_whose_text_is_written_otherwise_keeps_its_place(own_text: str) -> None:
    entity = {"start": 4, "end": 14, "text": own_text, "label": "PER"}
    sentence = read_tagged_text({"text": "And Anna Smith", "label": [entity]}, "label", "row 1")
    assert sentence.tags == ["O", "B-PER", "I-PER"]


def test_an_entity_whose_text_is_elsewhere_is_refused() -> None:
    entity = {"start": 4, "end": 9, "text": "Alice", "label": "PER"}
    with pytest.raises(DataError, match=r"at \[4, 9\] is 'Bob m', but the text .* is 'Alice'"):
        read_tagged_text({"text": "And Bob met Alice", "label": [entity]}, "label", "row 1")
    entity = {"start": 0, "end": 9, "text": "And\tBob", "label": "PER"}  # blanks do not count
    sentence = read_tagged_text({"text": "And  Bob ", "label": [entity]}, "label", "row 1")
    assert sentence.tags == ["B-PER", "I-PER"]


@given(st.data())
def test_tags_mark_the_same_characters(data: st.DataObject) -> None:
    """An independent way: the characters of the tagged words are those of the entities."""
    words = data.draw(st.lists(st.from_regex(r"[a-zA-Z]{1,6}", fullmatch=True), min_size=1))
    text = data.draw(st.sampled_from([" ", ", ", "-", "  "])).join(words)
    starts = [match.start() for match in re.finditer(r"[a-zA-Z]+", text)]
    entities, index = [], 0
    while index < len(words):
        length = data.draw(st.integers(0, 3))
        if 0 < length <= len(words) - index:
            end = starts[index + length - 1] + len(words[index + length - 1])
            entities.append([starts[index], end, data.draw(st.sampled_from("AB"))])
        index += max(1, length)
    sentence = read_tagged_text({"text": text, "label": entities}, "label", "row 1")
    places, position = [], 0
    for word in sentence.words:
        position = text.index(word, position)
        places.append((position, position := position + len(word)))
    spans = [(places[a][0], places[b - 1][1], kind) for kind, a, b in find_spans(sentence.tags)]
    assert spans == [tuple(entity) for entity in entities] and sentence.num_widened == 0


@pytest.mark.parametrize(
    ("words", "prefix"),
    [("en:Ann en:spoke en:.", "en:"), ("en:Ann spoke", None), ("a:b a:c", None)],
)
def test_languages_before_all_words_are_warned_of(words: str, prefix: str | None) -> None:
    """WikiANN's files write the language before each word, which other texts do not have."""
    rows = read_rows([{"words": words.split(), "tags": ["O"] * len(words.split())}])
    with warnings.catch_warnings(record=True) as messages:
        warnings.simplefilter("always")
        TaggingTask.from_table(Tokenizer.from_vocabulary(SPECIAL_PIECES), rows, TaggingSettings())
    texts = [str(warning.message) for warning in messages]
    assert len(texts) == (prefix is not None)
    assert all(f"all words begin with {prefix!r}" in text for text in texts)


@pytest.mark.long
def test_a_tagger_learns_from_texts_with_entities(tmp_path: Path) -> None:
    """The same model, to the bit, as from the words and tags that the texts stand for."""
    rows = [{"text": TEXT, "label": LAYOUTS["doccano"][1]}, {"text": "Ann spoke.", "label": []}]
    words = [{"words": WORDS, "tags": TAGS}, {"words": ["Ann", "spoke", "."], "tags": ["O"] * 3}]
    models = []
    for name, table in {"texts": rows, "words": words}.items():
        file = tmp_path / f"{name}.jsonl"
        file.write_text("\n".join(map(json.dumps, table)))
        result = bw.finetune("mini", "tagging", train=file, out=tmp_path / name, epochs=2)
        models.append(bw.load(result.run.model))
    for one, other in zip(
        models[0].network.parameters(), models[1].network.parameters(), strict=True
    ):
        assert one.equal(other)
    model = models[0]
    evaluation = model.evaluate(rows)
    assert evaluation.metrics == models[1].evaluate(words).metrics
    (prediction,) = model.predict([TEXT])
    assert prediction["words"] == WORDS
    assert model.predict([{"text": TEXT, "label": []}]) == [prediction]
    train = [{"text": "Obama", "label": [[0, 3, "PER"]]}]
    with pytest.warns(BertworksWarning, match="1 of the entities begin or end inside a word"):
        bw.finetune("mini", "tagging", train=train, out=tmp_path / "inside", epochs=1)
