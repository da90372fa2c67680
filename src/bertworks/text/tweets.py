"""BERTweet's normalization of tweets (Nguyen et al. 2020, §2).

Words are those of the first version of NLTK's `TweetTokenizer` that BERTweet was trained with; a
mention becomes `@USER`, an address `HTTPURL`, an emoji its name, and contractions are split.
"""

from __future__ import annotations

import html.entities
import re
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from ..errors import BertworksWarning, import_optional
from .aligned_text import AlignedText
from .definition import Origin

EMOJI_VERSION = "0.6.0"
"""The version of `emoji` whose names of emojis are in BERTweet's vocabulary."""

_MARKS = {"’": "'", "…": "..."}
_MARK = re.compile("[’…]")
_ENTITY = re.compile(r"&(#?x?)([^&;\s]+);")
_WHITE_SPACE = re.compile(r"\s+")
_FOUR_OR_MORE = re.compile(r"([^a-zA-Z0-9])\1{3,}")

_BRACKETS = r"\([^\s()]*?\([^\s()]+\)[^\s()]*?\)|\(\S{1,1000}?\)"
_MOUTH = r"[()\[\]{}dp/\\:@|]"
_EYES = "[:;=8]"
_NOSE = "[-o*']?"
_GAP = "[ *.)-]*"
# Domains and names of mail addresses are at most as long as in the DNS and in SMTP, tags and
# brackets 1,000 characters: unlimited, the time would grow with the square or cube of a text.
_KINDS_OF_WORDS = (
    # An address with its protocol, or with a slash after its domain.
    r"(?:https?:(?:/{1,3}|[a-z0-9%])|[a-z0-9.-]{1,253}\.[a-z]{2,13}/)"
    rf"(?:[^\s(){{}}<>\[\]]|{_BRACKETS})+"
    rf"(?:{_BRACKETS}|[^\s(){{}}<>\[\]`!;:'\".,?«»“”‘’])",
    # A domain that belongs to no mail address.
    r"(?<!@)[a-z0-9]{1,63}(?:[.-][a-z0-9]{1,63}){0,60}\.[a-z]{2,13}\b/?(?!@)",
    # A phone number.
    rf"(?:\+?[01]{_GAP})?(?:\(?\d{{3}}{_GAP})?\d{{3}}{_GAP}\d{{4}}",
    # An emoticon, from either side; a heart.
    rf"[<>]?{_EYES}{_NOSE}{_MOUTH}|{_MOUTH}{_NOSE}{_EYES}[<>]?|<3",
    # A tag of HTML; an arrow.
    r"<[^>\s]{1,1000}>|-+>|<-+",
    # A mention, a hashtag, a mail address.
    r"@\w+|\#+\w+[\w'-]*\w+|[\w.+-]{1,64}+@[\w-]+\.(?:[\w-]\.?)+[\w-]",
    # A word with apostrophes or dashes; a number with a sign or a separator; any other word.
    r"[^\W\d_](?:[^\W\d_]|['_-])+[^\W\d_]|[+-]?\d+[,/.:-]\d+[+-]?|\w+",
    # An ellipsis; any other character.
    r"\.(?:\s*\.)+|\S",
)

# Only spaces are put in or removed, in this order.
_SPACES = (
    *(("cannot ", "can not "), ("n't ", " n't "), ("n 't ", " n't ")),
    *(("ca n't", "can't"), ("ai n't", "ain't")),
    *((f"'{end} ", f" '{end} ") for end in ("m", "re", "s", "ll", "d", "ve")),
    *((" p . m .", "  p.m."), (" p . m ", " p.m ")),
    *((" a . m .", " a.m."), (" a . m ", " a.m ")),
)


def normalize_tweet(text: str, mask: str) -> tuple[str, Origin]:
    """Normalise a tweet.

    Args:
        text: the tweet.
        mask: a piece that is kept; as in `transformers`, the texts before and after it are
            normalised separately.

    Returns:
        The words of the tweet with spaces between them, and the original positions of their
        characters.

    Raises:
        BertworksError: a package that this needs is not installed.
    """
    parts: list[AlignedText] = []
    position = 0
    for number, part in enumerate(text.split(mask)):
        if number:
            parts.append(AlignedText(mask, position - len(mask)))
        parts.append(_normalize_part(AlignedText(part, position)))
        position += len(part) + len(mask)
    spaced = [(f"{part.text} ", [*part.origins, (0, 0)]) for part in parts]
    origins = [origin for _, origins in spaced for origin in origins]
    return "".join(text for text, _ in spaced), np.array(origins, np.int64).reshape(-1, 2)


def _normalize_part(tweet: AlignedText) -> AlignedText:
    pattern, name_of = _load()
    tweet.replace_matches(_MARK, lambda match: _MARKS[match[0]])
    tweet.replace_matches(_ENTITY, _character)
    tweet.replace_matches(_FOUR_OR_MORE, lambda match: match[1] * 3)
    words = [(match.start(), match.end()) for match in pattern.finditer(tweet.text)]
    normalized_words: list[str] = []
    origins: list[tuple[int, int]] = []
    for start, end in words:
        word = tweet.text[start:end]
        normalized = _normalize_word(word, name_of)
        sources = tweet.origins[start:end]
        space = sources[-1]
        if normalized != word:
            sources = [(sources[0][0], sources[-1][1])] * len(normalized)
        normalized_words.append(normalized)
        origins += [*sources, space]
    tweet.text, tweet.origins = " ".join(normalized_words), origins[:-1]
    for old, new in _SPACES:
        tweet.respace(old, new)
    tweet.replace_matches(_WHITE_SPACE, lambda _: " ")  # an ellipsis may include some
    return tweet


@cache
def _load() -> tuple[Any, Callable[[str], str]]:
    """The pattern of words, and the function that gives the name of an emoji."""
    what = "BertweetTokenizer's normalization"
    regex = import_optional("regex", "tweets", what)
    emoji = import_optional("emoji", "tweets", what)
    if emoji.__version__ != EMOJI_VERSION:
        warnings.warn(
            f"emoji {emoji.__version__} is installed, but BERTweet was trained with the names of "
            f"emojis of version {EMOJI_VERSION}; 80 of 1,299 have changed since then",
            BertworksWarning,
            stacklevel=2,
        )
    return regex.compile("|".join(_KINDS_OF_WORDS), regex.I | regex.UNICODE), emoji.demojize


def _normalize_word(word: str, name_of: Callable[[str], str]) -> str:
    if word.startswith("@"):
        return "@USER"
    if word.lower().startswith(("http", "www")):
        return "HTTPURL"
    if len(word) > 1:
        return word
    return _MARKS.get(word) or name_of(word)


def _character(entity: re.Match[str]) -> str:
    """The character that an entity of HTML 4 stands for; empty if there is none."""
    kind, name = entity.groups()
    if not kind:
        number = html.entities.name2codepoint.get(name)
        return "" if number is None else chr(number)
    try:
        number = int(name, 16 if kind.endswith("x") else 10)
        if 0x80 <= number <= 0x9F:  # as browsers read them
            return bytes([number]).decode("cp1252")
        char = chr(number)
    except (ValueError, OverflowError):
        return ""
    # Half of a character is unknown to every vocabulary, like this.
    return "\uffff" if 0xD800 <= number < 0xE000 else char
