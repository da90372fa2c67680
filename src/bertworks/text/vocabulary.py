"""Training a WordPiece vocabulary from any stream of text."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable

from ..errors import DataError, SettingsError
from .definition import MAX_WORD_CHARACTERS, ORIGINAL_SPECIAL_PIECES
from .normalization import Normalization, check_text
from .portions import portions
from .tokenizer import Tokenizer
from .wordpiece import CONTINUATION, learn_pieces

# The counting of raw strings is emptied into that of words whenever it holds this much, so that
# its size does not depend on the corpus.
_MAX_STRINGS = 1 << 18
_MAX_CHARACTERS = 1 << 25

Progress = Callable[[str, int], None]


def train_vocabulary(
    texts: Iterable[str],
    *,
    size: int = 30522,
    lowercase: bool = True,
    strip_accents: bool | None = None,
    min_frequency: int = 2,
    character_coverage: float = 0.99995,
    max_word_characters: int = MAX_WORD_CHARACTERS,
    progress: Progress | None = None,
) -> Tokenizer:
    """Train a vocabulary; the same texts give the same one, in any order.

    Special pieces stand at the ids of the published English vocabularies (`[PAD]` 0, `[unused0]` to
    `[unused98]` 1–99, `[UNK]` 100, `[CLS]` 101, `[SEP]` 102, `[MASK]` 103), then come the single
    characters, then the pieces learned, most frequent first. The texts are streamed; memory is
    bounded by their distinct words.

    Args:
        texts: paragraphs.
        size: number of pieces, special ones included. A corpus with too few pairs of at least
            `min_frequency` gives fewer: see the tokenizer's `vocab_size`.
        lowercase: fold to lower case and strip accents, as for the uncased models.
        strip_accents: strip accents, or not, whatever `lowercase` says.
        min_frequency: how often a pair must occur to become a piece.
        character_coverage: the rarest characters are left out as long as those that stay make up
            this share of the text; words with others become `[UNK]`.
        max_word_characters: longer words are `[UNK]`, and are left out here.
        progress: called with a stage (`"paragraphs"`, `"pieces"`) and a count, now and then.

    Raises:
        DataError: there are no words, or a text has a lone surrogate.
        SettingsError: `size` has no room for the special pieces and the characters, or a setting
            is out of range.
    """
    if min_frequency < 1:
        raise SettingsError(f"min_frequency={min_frequency} is less than 1")
    if not 0.0 < character_coverage <= 1.0:
        raise SettingsError(f"character_coverage={character_coverage} is not between 0 and 1")
    normalization = Normalization(lowercase=lowercase, strip_accents=strip_accents)
    counts = _count_words(texts, normalization, max_word_characters, progress)
    alphabet = _alphabet(counts, character_coverage)
    if not alphabet:
        raise DataError("no words to train a vocabulary from", fix="Give texts that are not empty.")
    pieces = [
        *ORIGINAL_SPECIAL_PIECES,
        *alphabet,
        *(CONTINUATION + char for char in alphabet if not _stands_alone(char, normalization)),
    ]
    if len(pieces) > size:
        raise SettingsError(
            f"size={size} has no room for {len(ORIGINAL_SPECIAL_PIECES)} special pieces and "
            f"{len(pieces) - len(ORIGINAL_SPECIAL_PIECES)} for the text's characters",
            fix=f"Ask for more than {len(pieces)}, or for less character_coverage.",
        )
    known = set(alphabet)
    words = sorted(w for w in counts if len(w) <= max_word_characters and known.issuperset(w))
    learned = learn_pieces(
        words,
        [counts[word] for word in words],
        pieces,
        size=size,
        min_frequency=min_frequency,
        progress=None if progress is None else lambda done: progress("pieces", done),
    )
    return Tokenizer.from_vocabulary(
        learned,
        lowercase=lowercase,
        strip_accents=strip_accents,
        max_word_characters=max_word_characters,
    )


def _count_words(
    texts: Iterable[str],
    normalization: Normalization,
    longest_word: int,
    progress: Progress | None,
) -> Counter[str]:
    """Count normalised words.

    Strings between spaces are counted first and normalised once for many occurrences; a space
    separates words before and after normalising, so this changes nothing. Long texts are taken in
    portions; of a word that takes more than one of them only the beginning counts.
    """
    words: Counter[str] = Counter()
    strings: Counter[str] = Counter()

    def empty() -> None:
        for string, count in strings.items():
            for word in normalization.words(string):
                words[word] += count
        strings.clear()

    characters = 0
    number = 0
    for number, text in enumerate(texts, 1):
        check_text(text, where=f"paragraph {number}")
        for part in portions([text], normalization.breaks, longest_word):
            assert isinstance(part.text, str)
            strings.update(part.text.split(" "))
            characters += len(part.text)
            if len(strings) > _MAX_STRINGS or characters > _MAX_CHARACTERS:
                empty()
                characters = 0
        if progress is not None and number % 10_000 == 0:
            progress("paragraphs", number)
    empty()
    if progress is not None:
        progress("paragraphs", number)
    return words


def _alphabet(counts: Counter[str], coverage: float) -> list[str]:
    """The most frequent characters that make up at least `coverage` of all, sorted."""
    characters: Counter[str] = Counter()
    for word, count in counts.items():
        for char in word:
            characters[char] += count
    wanted = math.ceil(coverage * characters.total())
    kept: list[str] = []
    covered = 0
    for char, count in sorted(characters.items(), key=lambda item: (-item[1], item[0])):
        if covered >= wanted:
            break
        kept.append(char)
        covered += count
    return sorted(kept)


def _stands_alone(char: str, normalization: Normalization) -> bool:
    """Whether a character is always a word of its own, as punctuation and ideographs are."""
    return len(normalization.words(f"a{char}")) > 1
