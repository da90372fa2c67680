from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertworks.errors import DataError
from bertworks.text.sentences import LANGUAGES, split_sentences


def test_english_text_is_split_into_sentences():
    text = "It cost $4.50, e.g. at J. R. Smith's. Really?! Yes.  See fig. 3 of No. 7."
    assert split_sentences(text) == [
        "It cost $4.50, e.g. at J. R. Smith's.",
        "Really?!",
        "Yes.",
        "See fig. 3 of No. 7.",
    ]


@pytest.mark.parametrize(
    ("language", "text", "count"),
    [
        ("de", "Das ist z.B. gut. Am 3. Mai geht es los. Ja!", 3),
        ("zh", "你好。你是谁？我是学生。", 3),
        ("hi", "नमस्ते। आप कैसे हैं?", 2),
        ("ar", "مرحبا. كيف حالك؟ بخير.", 3),
    ],
)
def test_other_languages_are_split(language, text, count):
    assert len(split_sentences(text, language)) == count


def test_supported_languages_are_split():
    """With a region or without, and those that it splits by a related one's rules."""
    german = "Am 3. Mai geht es los."
    for language in ("de", "de-AT", "DE_ch", "lb"):
        assert split_sentences(german, language) == [german]
    assert len(split_sentences(german, "en")) == 2
    assert all(split_sentences("A b. C d.", language) for language in LANGUAGES)


@pytest.mark.long
@given(st.text())
def test_only_white_space_is_lost(text):
    sentences = split_sentences(text)
    assert "".join("".join(sentences).split()) == "".join(text.split())
    assert all(sentence and sentence == sentence.strip() for sentence in sentences)


@pytest.mark.parametrize("space", ["\u00a0", "\u202f", "\u2028", "\u3000", " \u00a0 ", "\u0085"])
@pytest.mark.parametrize("language", ["en", "de", "fr", "zh"])
def test_wide_white_space_before_a_dot_is_kept(space, language):
    """The library breaks down here; what is split keeps its own white space."""
    text = f"Mr M{space}. came. Then a{space}b went."
    sentences = split_sentences(text, language)
    assert "".join("".join(sentences).split()) == "".join(text.split())
    assert sentences[0].startswith(f"Mr M{space}.")
    assert sentences[-1].endswith(f"a{space}b went.")


@given(st.text('aBM.M.1 \u00a0\u2009\u3000!"'))
def test_text_with_wide_white_space_loses_no_characters(text):
    for language in ("en", "de"):
        sentences = split_sentences(text, language)
        assert "".join("".join(sentences).split()) == "".join(text.split())
        assert all(sentence in text for sentence in sentences)


@pytest.mark.parametrize("text", ["", "  ", "\n\n"])
def test_blank_text_has_no_sentences(text):
    assert split_sentences(text) == []


def test_unknown_language_and_lone_surrogate_are_refused():
    with pytest.raises(
        DataError, match=r"no rules for the language 'english'\. Give one of am, ar, bg"
    ):
        split_sentences("a", "english")
    with pytest.raises(DataError, match=r"lone surrogate U\+D800 at character 1"):
        split_sentences("a\ud800")
