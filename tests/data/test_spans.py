"""Spans: from characters of a text to tokens that are masked together, and errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertworks.data.document_formats import split_paragraphs
from bertworks.data.documents import read_documents
from bertworks.data.prepare import prepare
from bertworks.data.shards import Corpus
from bertworks.data.spans import find_chunks, mark_units, of_paragraphs, parse_spans
from bertworks.errors import BertworksError, DataError
from bertworks.text.tokenizer import Tokenizer

LETTERS = "abcdeéx中力😀"


@pytest.fixture(scope="module")
def letters() -> Tokenizer:
    """Each character is a piece; one that continues a word has its `##`."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *LETTERS]
    return Tokenizer.from_vocabulary([*pieces, *(f"##{c}" for c in LETTERS)], lowercase=False)


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def units(corpus: Corpus, tokenizer: Tokenizer, number: int = 0) -> list[str]:
    """The document's units, each as the text of its tokens."""
    ids, continues_unit = corpus.document(number)[0], corpus.continues_unit(number)
    texts: list[str] = []
    for piece, more in zip(tokenizer.tokens(ids), continues_unit.tolist(), strict=True):
        text = piece.removeprefix("##")
        if more:
            texts[-1] += text
        else:
            texts.append(text)
    return texts


def prepare_rows(
    tokenizer: Tokenizer, folder: Path, rows: list[dict[str, Any]], **values: Any
) -> Any:
    path = write(folder / "f.jsonl", rows)
    values = {"spans": "given", **values}
    prepare(path, tokenizer=tokenizer, out=folder / "out", **values)
    return Corpus.open(folder / "out", verify=True)


@pytest.mark.parametrize(
    ("text", "spans", "expected"),
    [
        ("ab cd. xé a", [[3, 5]], ["ab", "cd", ".", "xé", "a"]),
        ("ab cd. xé a", [[0, 5], [7, 11]], ["abcd", ".", "xéa"]),
        ("ab cd. xé a", [[7, 11], [0, 5]], ["abcd", ".", "xéa"]),
        ("ab cd. xé a", [[0, 11]], ["abcd.xéa"]),
        ("é😀 中 力 e", [[0, 4]], ["é😀中", "力", "e"]),
        ("é😀 中力 e", [[3, 5]], ["é😀", "中力", "e"]),
        ("  ab \n\n cd  e\n", [[2, 10]], ["abcd", "e"]),
        ("  ab \n\n cd  e\n", [[0, 2], [4, 8]], ["ab", "cd", "e"]),
        # A span's edge within a word: the pieces that it touches, and the rest of the word.
        ("abcde x", [[1, 3]], ["a", "bc", "de", "x"]),
        ("abcde x", [[0, 2], [2, 4]], ["ab", "cd", "e", "x"]),
        ("ab cd", [], ["ab", "cd"]),
    ],
)
def test_given_spans_are_units(
    letters: Tokenizer, tmp_path: Path, text: str, spans: list[Any], expected: list[str]
) -> None:
    corpus = prepare_rows(letters, tmp_path, [{"text": text, "spans": spans}])
    assert units(corpus, letters) == expected


def test_accents_and_emoji_that_are_taken_away(tmp_path: Path) -> None:
    """Offsets are of the text as it is given, whatever the tokenizer folds or drops."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "e", "a", "中", "##e", "##a"]
    tokenizer = Tokenizer.from_vocabulary(pieces)
    text = "\u0301É\x07A e\u0301a 中中 aa"
    at = text.index("e\u0301a")
    spans = [[at, at + 5]]  # "éa 中" with the accent as a character of its own
    corpus = prepare_rows(tokenizer, tmp_path, [{"text": text, "spans": spans}])
    assert units(corpus, tokenizer) == ["ea", "ea中", "中", "aa"]


def test_a_span_over_sentences_is_one_unit(letters: Tokenizer, tmp_path: Path) -> None:
    rows = [{"text": "ab. cd\nxe a", "spans": [[4, 9]]}, {"text": "b a"}, {"text": "b a"}]
    corpus = prepare_rows(letters, tmp_path, rows, sentences="lines")
    assert units(corpus, letters) == ["ab", ".", "cdxe", "a"]
    assert units(corpus, letters, 1) == ["b", "a"]
    assert corpus.has_units
    assert corpus.manifest.spans == 1


@pytest.mark.long
@settings(deadline=None)
@given(
    words=st.lists(st.text(LETTERS, min_size=1, max_size=4), min_size=1, max_size=8),
    cuts=st.lists(st.integers(0, 40), max_size=8),
    breaks=st.sets(st.integers(0, 7)),
)
def test_tokens_of_a_span_are_one_unit(
    letters: Tokenizer,
    tmp_path_factory: pytest.TempPathFactory,
    words: list[str],
    cuts: list[int],
    breaks: set[int],
) -> None:
    """Against a plain account of which characters are in which span."""
    text = "".join(word + ("\n " if at in breaks else " ") for at, word in enumerate(words))
    edges = sorted({cut for cut in cuts if cut <= len(text)})
    spans = [[a, b] for a, b in zip(edges[::2], edges[1::2], strict=False)]
    corpus = prepare_rows(letters, tmp_path_factory.mktemp("s"), [{"text": text, "spans": spans}])
    expected: list[str] = []
    span_before, word, char_before = -1, 0, " "
    for position, char in enumerate(text):
        word_before, word = word, word + (char in "中力" or char_before in "中力 \n")
        char_before = char
        if char.isspace():
            continue
        span = next((n for n, (start, end) in enumerate(spans) if start <= position < end), -1)
        same_span, same_word = span == span_before, word == word_before
        if expected and same_span and (span >= 0 or same_word):
            expected[-1] += char
        else:
            expected.append(char)
        span_before = span
    assert units(corpus, letters) == expected


def test_a_token_of_two_spans_joins_them() -> None:
    offsets = np.array([[0, 2], [2, 5], [5, 7], [7, 9]])
    continues_unit, count = mark_units(offsets, np.zeros(4, np.bool_), ((0, 3), (3, 7)))
    assert continues_unit.tolist() == [False, True, True, False]
    assert count == 1


def test_separate_space_belongs_to_the_following_token() -> None:
    offsets = np.array([[0, 2], [3, 3], [3, 4], [4, 5]])
    words = np.array([False, False, True, True])
    continues_unit, count = mark_units(offsets, words, ((3, 5),))
    assert continues_unit.tolist() == [False, False, True, True]
    assert mark_units(offsets, words, ((0, 2),))[0].tolist() == [False, False, True, True]
    assert count == 1


@settings(deadline=None)
@given(text=st.text("a \n\t", max_size=15), data=st.data())
def test_spans_move_with_their_paragraphs(text: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    moved_spans = of_paragraphs(((start, end),), text)
    joined_text = "\n".join(split_paragraphs(text))
    letters_before = text[:start].count("a")
    letters_inside = text[start:end].count("a")
    if not letters_inside:
        assert all(not joined_text[a:b].strip() for a, b in moved_spans)
        return
    ((a, b),) = moved_spans
    assert joined_text[:a].count("a") == letters_before
    assert joined_text[a:b].count("a") == letters_inside


# -------------------------------------------------------------------------------------- what is bad


@pytest.mark.parametrize(
    ("spans", "says"),
    [
        ([[0, 6]], r"the span \[0, 6\] is outside the text of 5 characters"),
        ([[-1, 2]], r"\[-1, 2\] is outside"),
        ([[3, 1]], r"\[3, 1\] ends before it begins"),
        ([[2, 2]], r"\[2, 2\] ends before it begins"),
        ([[0, 3], [2, 4]], r"\[0, 3\] and \[2, 4\] overlap"),
        ([[0, 3], [1, 2]], r"\[0, 3\] and \[1, 2\] overlap"),
        ([[0, 1.0]], r"\[0, 1\.0\] is not a pair of integers.*\[\[start, end\]"),
        ([[0, True]], r"\[0, True\] is not a pair of integers"),
        ([[0, 1, "entity"]], "is not a pair of integers"),
        ([3, 4], "the span 3 is not a pair"),
        ([{"start": 0, "end": 1}], "not a pair of integers"),
        ("0-3", "'spans' is not a list but '0-3'"),
    ],
)
def test_bad_spans_are_refused(letters: Tokenizer, tmp_path: Path, spans: Any, says: str) -> None:
    rows = [{"text": "ab"}, {"text": "ab cd", "spans": spans}, {"text": "cd"}]
    path = write(tmp_path / "f.jsonl", rows)
    with pytest.raises(DataError, match=rf"f\.jsonl:2: .*{says}") as caught:
        list(read_documents(path, spans=True))
    assert "\n" not in str(caught.value)
    assert len(list(read_documents(path))) == 3  # nobody asked
    manifest = prepare(path, tokenizer=letters, out=tmp_path / "o", spans="given", skip_bad=True)
    assert manifest.num_skipped == {"bad spans": 1}
    assert manifest.documents == 2


def test_parquet_and_data_sets_carry_spans(letters: Tokenizer, tmp_path: Path) -> None:
    table = pa.table({"text": ["ab cd e", "a b"], "spans": [[[3, 7]], None]})
    pq.write_table(table, tmp_path / "f.parquet")
    prepare(tmp_path / "f.parquet", tokenizer=letters, out=tmp_path / "out", spans="given")
    assert units(Corpus.open(tmp_path / "out"), letters) == ["ab", "cde"]
    pq.write_table(table.slice(0, 1).set_column(1, "spans", [[[[3, 9]]]]), tmp_path / "g.parquet")
    with pytest.raises(DataError, match=r"g\.parquet, row 1: .*outside the text"):
        list(read_documents(tmp_path / "g.parquet", spans=True))


def test_corpus_without_spans_has_no_units(letters: Tokenizer, tmp_path: Path) -> None:
    rows = [{"text": "ab cd", "spans": [[0, 5]]}]
    corpus = prepare_rows(letters, tmp_path, rows, spans="none")
    assert not corpus.has_units
    with pytest.raises(BertworksError, match="spans='none', not 'given'"):
        prepare_rows(letters, tmp_path, rows)


def test_other_spans_are_another_text(letters: Tokenizer, tmp_path: Path) -> None:
    rows = [{"text": "ab cd", "spans": [[0, 5]]}]
    prepare_rows(letters, tmp_path, rows)
    with pytest.raises(DataError, match="was started with other texts"):
        prepare_rows(letters, tmp_path, [{"text": "ab cd", "spans": [[0, 2]]}])


@pytest.mark.long
def test_bytes_do_not_depend_on_workers(letters: Tokenizer, tmp_path: Path) -> None:
    rows = [{"text": "ab cd e. " * n, "spans": [[0, 5], [6, 7]]} for n in range(1, 30)]
    path = write(tmp_path / "f.jsonl", rows)
    for workers in (1, 2):
        out = tmp_path / str(workers)
        values: Any = {"tokenizer": letters, "shard_bytes": 500, "spans": "given"}
        prepare(path, out=out, workers=workers, **values)
    files = [sorted((tmp_path / name).glob("*.*")) for name in "12"]
    assert len(files[0]) > 4
    assert [file.read_bytes() for file in files[0]] == [file.read_bytes() for file in files[1]]
    corpus = Corpus.open(tmp_path / "1")
    for number in range(corpus.num_documents):
        assert units(corpus, letters, number)[:2] == ["abcd", "e"]


# -------------------------------------------------------------------------------------------- rules


@pytest.mark.parametrize(
    ("sentences", "expected"),
    [
        (["He met Marie Curie in Paris."], [["Marie Curie", "Paris"]]),
        (["The University of Oxford is old."], [["University of Oxford"]]),
        (["It was Apollo 11 and Ludwig van der Rohe."], [["Apollo 11", "Ludwig van der Rohe"]]),
        (["I saw Anna, Berta and Clara."], [["Anna", "Berta", "Clara"]]),
        (["Curie won.", "Then Curie won."], [["Curie"], ["Curie"]]),
        (["The end of the day."], [[]]),
        (["In the U.S. Senate of"], [["U.S", "Senate"]]),
        (["he paid $3.5 million for 20 km of 5 men."], [["$3.5 million", "20 km"]]),
        (["about 12,5 % or 40°C at 90 km/h"], [["12,5 %", "40°C", "90 km/h"]]),
        (["she read “war and peace” and «Les Misérables»"], [["war and peace", "Les Misérables"]]),
        (["he said “this is far too long to be the name of anything”"], [[]]),
        (["他读了《红楼梦》。"], [["红楼梦"]]),
        (["all in lower case, as by marie curie"], [[]]),
        (["Über Åsa Öberg"], [["Åsa Öberg"]]),
        ([], []),
        ([""], [[]]),
    ],
)
def test_chunks_are_names_quantities_and_titles(
    sentences: list[str], expected: list[list[str]]
) -> None:
    chunks = find_chunks(sentences)
    assert [
        [sentence[start:end] for start, end in own]
        for sentence, own in zip(sentences, chunks, strict=True)
    ] == expected


@settings(deadline=None)
@given(st.lists(st.text("aB .,\"“”5%km$of'\n", max_size=40), max_size=4))
def test_chunks_are_spans(sentences: list[str]) -> None:
    for sentence, chunks in zip(sentences, find_chunks(sentences), strict=True):
        assert list(parse_spans(list(map(list, chunks)), sentence, where="x")) == chunks


def test_rules_fill_in_for_documents_without_spans(tokenizer: Tokenizer, tmp_path: Path) -> None:
    text = "Ab met Cd Ef in Gh. Then Cd Ef."
    rows: list[dict[str, Any]] = [{"text": text}, {"text": text, "spans": [[3, 9]]}]
    corpus = prepare_rows(tokenizer, tmp_path, [*rows, {"text": text, "spans": []}], spans="rules")
    assert "cdef" in units(corpus, tokenizer)
    assert "cdef" not in units(corpus, tokenizer, 1)
    assert "cdef" not in units(corpus, tokenizer, 2)


@pytest.mark.long
@pytest.mark.parametrize("text", ["1" * 100_000, "1.5," * 50_000, "1kg " * 50_000, "$1 " * 50_000])
def test_rows_of_numbers_are_read_once(text: str) -> None:
    """It would take hours, were each digit a place to begin anew."""
    (found,) = find_chunks([text])
    assert len(found) == text.count("kg") + text.count("$")


def test_a_number_that_measures_nothing_hides_none_that_does() -> None:
    text = "1.5 and 2,000 m2.5kg, 3.4.5 % of 6\u00a0007 7\u00a0km, x8kg 9m9, $1.5million"
    (found,) = find_chunks([text])
    expected = ["2,000 m2", "5kg", "3.4.5 %", "7\u00a0km", "$1.5"]
    assert [text[start:end] for start, end in found] == expected
