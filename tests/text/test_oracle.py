"""Token for token the same as an independent implementation."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bertworks.text.tokenizer import Tokenizer
from bertworks.text.wordpiece import Normalization

from .oracle import DIFFERENCES, DIFFERING, UNICODE_VERSION, Oracle, code_points

VOCABULARIES = ("uncased", "cased", "chinese")
LANGUAGES = ("en", "de", "zh", "ar", "hi", "th")

same_unicode = pytest.mark.skipif(
    unicodedata.unidata_version != UNICODE_VERSION,
    reason=f"the differences are listed for Unicode {UNICODE_VERSION}",
)


@pytest.fixture(scope="module", params=VOCABULARIES)
def both(request: pytest.FixtureRequest, data_dir: Path) -> tuple[Tokenizer, Oracle]:
    tokenizer = Tokenizer.load(data_dir / "vocab" / f"bert-base-{request.param}-vocab.txt")
    assert tokenizer.lowercase == (request.param != "cased")
    return tokenizer, Oracle(tokenizer.pieces, lowercase=tokenizer.lowercase)


def assert_same(both: tuple[Tokenizer, Oracle], texts: list[str]) -> None:
    tokenizer, oracle = both
    for text, ids in zip(texts, tokenizer.piece_ids(texts), strict=True):
        assert tokenizer.tokens(ids) == oracle.tokenize(text)


def xquad(data_dir: Path, language: str) -> list[str]:
    tree = json.loads((data_dir / "xquad" / f"xquad.{language}.json").read_text(encoding="utf-8"))
    texts = []
    for article in tree["data"]:
        for paragraph in article["paragraphs"]:
            texts.append(paragraph["context"])
            for question in paragraph["qas"]:
                texts.append(question["question"])
                texts.extend(answer["text"] for answer in question["answers"])
    return texts


@pytest.mark.long
@pytest.mark.parametrize("language", LANGUAGES)
def test_xquad_sample_matches_the_oracle(both, data_dir, language):
    texts = xquad(data_dir, language)
    assert len(texts) > 2 * 1190
    assert_same(both, texts[::7])


@pytest.mark.slow
@pytest.mark.parametrize("language", LANGUAGES)
def test_all_xquad_texts_match_the_oracle(both, data_dir, language):
    assert_same(both, xquad(data_dir, language))


@pytest.mark.slow
def test_wikipedia_matches_the_oracle(both, data_dir):
    size = 0
    for file in sorted((data_dir / "wiki").iterdir()):
        lines = file.read_text(encoding="utf-8").split("\n")
        size += sum(len(line.encode()) for line in lines)
        assert_same(both, lines)
        if size > 20e6:
            return
    pytest.fail("less than 20 MB of text")


# The clean-up and the words, over all of Unicode.

assigned_characters = st.characters(exclude_categories=["Cs", "Cn"], exclude_characters=DIFFERING)
# What is likely to go wrong: case, accents, joiners, ideographs, blanks and controls, old and new.
tricky = st.sampled_from(
    "aAzZ09'.,[]#$_ΣσςΑαΟİıIiẞßéÉ가각ᄀเ้าम ि中㐀豈𠀀𫜀𫠠𫤟丽👩\u200d🚀🇩🇪"
    "\u0301\u0307\u0323\u00ad\u200c\u200b\ufeff\u2028\u2029\u00a0\u3000\u1680\u180e\x00\ufffd\x01\x0b\x0c"
    "\x1c\x85\t\n\r \ue000\U000f0000\U0001d7ce\U0001f600ﬁⅣ①Ωµ"
)
texts = st.text(assigned_characters | tricky, max_size=60) | st.text(tricky, max_size=30)


@pytest.mark.long
@same_unicode
@settings(max_examples=150, deadline=None)
@given(text=texts, lowercase=st.booleans(), strip_accents=st.sampled_from([None, True, False]))
@example("ΟΔΥΣΣΕΥΣ ΑΣ. Σ ΑΣ\u00adΑ ΑΣ'Α ΑΣ\x01Α ΑΣ\u0301 ΑΣİ ΑΣ中", True, None)
@example("a\U0002b820b\U0002b91fc\U0002b920d\U0002b81d", True, None)
@example("[SEP] [MASK] ##a", True, None)
def test_words_match_the_oracle_in_all_of_unicode(text, lowercase, strip_accents):
    ours = Normalization(lowercase=lowercase, strip_accents=strip_accents)
    oracle = Oracle(lowercase=lowercase, strip_accents=strip_accents)
    assert ours.words(text) == oracle.words(text)


@pytest.mark.parametrize("char", ["\ufffe", "\U0010ffff"])  # never to be assigned
def test_an_unassigned_character_is_kept_and_ends_a_word_in_sigma(char):
    assert Normalization().words(f"ΑΣ.{char}Α") == ["ας", ".", f"{char}α"]


def differences(code_points: Iterator[int], lowercase: bool) -> set[int]:
    """The characters that are treated differently from the oracle between two letters."""
    ours, oracle = Normalization(lowercase=lowercase), Oracle(lowercase=lowercase)
    return {
        number
        for number in code_points
        if ours.words(f"x{chr(number)}y") != oracle.words(f"x{chr(number)}y")
    }


def listed_code_points(lowercase: bool) -> set[int]:
    numbers_by_category = {
        category: code_points(ranges) for category, ranges in DIFFERENCES.items()
    }
    for category, numbers in numbers_by_category.items():
        assert {unicodedata.category(chr(number)) for number in numbers} == {category}
    if not lowercase:  # marks matter only where accents are stripped
        del numbers_by_category["Mc"]
        numbers_by_category["Mn"] = {0x111C9}
    return set().union(*numbers_by_category.values())


@pytest.mark.long
@same_unicode
def test_single_characters_differ_only_where_listed():
    # Letters (ideographs and syllables mostly) and private use are left to the slow test.
    rest = {"Cs", "Cn", "Co", "Lo"}
    numbers = (n for n in range(0x110000) if unicodedata.category(chr(n)) not in rest)
    assert differences(numbers, lowercase=True) == listed_code_points(lowercase=True)


@same_unicode
@pytest.mark.slow
@pytest.mark.parametrize("lowercase", [True, False])
def test_every_character_differs_only_where_listed(lowercase):
    numbers = (n for n in range(0x110000) if unicodedata.category(chr(n)) not in {"Cs", "Cn"})
    assert differences(numbers, lowercase) == listed_code_points(lowercase)
    ours, oracle = Normalization(lowercase=lowercase), Oracle(lowercase=lowercase)
    for number in range(0x110000):
        if unicodedata.category(chr(number)) == "Cn":
            text = f"x{chr(number)}y"
            assert len("".join(ours.words(text))) >= 3
            assert oracle.words(text) == ["xy"]


@settings(max_examples=80, deadline=None)
@given(text=st.text(st.sampled_from("eE\u0301\u0302éÉΩ\u2126가각ᄀᆨ豈a. "), max_size=20))
def test_uncased_words_do_not_change_with_unicode_composition(text):
    composing = Oracle(lowercase=True, compose=True)
    assert Normalization(lowercase=True).words(text) == composing.words(text)
    if unicodedata.is_normalized("NFC", text):
        composing = Oracle(lowercase=False, compose=True)
        assert Normalization(lowercase=False).words(text) == composing.words(text)


# The pieces of a word.

vocabulary = st.sets(st.text("abc", min_size=1, max_size=4), max_size=12)


@pytest.mark.long
@settings(max_examples=80, deadline=None)
@given(starts=vocabulary, continuations=vocabulary, words=st.lists(st.text("abcd", max_size=12)))
def test_pieces_of_words_are_those_of_the_oracle(starts, continuations, words):
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces += sorted(starts) + sorted("##" + piece for piece in continuations)
    tokenizer = Tokenizer.from_vocabulary(pieces, max_word_characters=10)
    oracle = Oracle(pieces, lowercase=True, max_word_characters=10)
    text = " ".join(words)
    assert tokenizer.tokens(tokenizer.piece_ids([text])[0]) == oracle.tokenize(text)


def test_words_over_the_length_limit_are_unknown_tokens(both):
    tokenizer, _ = both
    words = [
        letter * length
        for length in (99, 100, 101, 199, 200, 201, 300)
        for letter in ("a", "é", "\U0001d41a")
    ]
    assert_same(both, words)
    hugging_face = Tokenizer.from_vocabulary(
        tokenizer.pieces, lowercase=tokenizer.lowercase, max_word_characters=100
    )
    oracle = Oracle(tokenizer.pieces, lowercase=tokenizer.lowercase, max_word_characters=100)
    assert_same((hugging_face, oracle), words)
    assert tokenizer.piece_ids(["a" * 101])[0].tolist() != [tokenizer.unk_id]
    assert hugging_face.piece_ids(["a" * 101])[0].tolist() == [tokenizer.unk_id]


@pytest.fixture(scope="module")
def uncased(data_dir: Path) -> tuple[Tokenizer, Oracle]:
    tokenizer = Tokenizer.load(data_dir / "vocab" / "bert-base-uncased-vocab.txt")
    return tokenizer, Oracle(tokenizer.pieces, lowercase=True)


@pytest.mark.long
@pytest.mark.parametrize(
    "count", [40_000, pytest.param(250_000, marks=pytest.mark.slow, id="megabyte")]
)
@pytest.mark.parametrize(
    "parts",
    [
        pytest.param(["aaaa"], id="letters"),
        pytest.param(["é", "Σ"], id="accents and sigmas"),
        pytest.param(["\u0301\u0301"], id="marks"),
        pytest.param(["中"], id="ideographs"),
        pytest.param(["-1"], id="punctuation"),
    ],
)
def test_long_texts_without_spaces_match_the_oracle(uncased, parts, count):
    assert_same(uncased, ["".join(part * count for part in parts)])
