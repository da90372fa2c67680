"""Try new pieces of a tokenizer: does it find them in texts?

A piece of a vocabulary is useless if no text is ever split so that it occurs. Whether this happens
depends on the normalisation, the splitting into words, and the other pieces, so it is tried.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ..errors import DataError
from .tokenizer import Tokenizer

# Scripts that are written without spaces between words: Thai, Lao, Tibetan, Burmese, Khmer, kana,
# ideographs.
_UNSPACED_SCRIPTS = (
    "[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u2e80-\u2fdf\u3005-\u3007\u3041-\u30ff\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U000323af]"
)
_TEXTS_WITH_SPACES = ("a {} a", "({}).")
# Several, since another new piece may begin with a neighbour of the word.
_TEXTS_WITHOUT_SPACES = ("の{}の", "的{}的", "が{}が")


def is_unspaced(word: str) -> bool:
    """Whether a word has a character of a script that has no spaces between words."""
    return re.search(_UNSPACED_SCRIPTS, word) is not None


def running_texts(word: str) -> list[str]:
    """A word in running text: between other words, without spaces if its script has none."""
    return [
        text.format(word)
        for text in (_TEXTS_WITHOUT_SPACES if is_unspaced(word) else _TEXTS_WITH_SPACES)
    ]


def check_pieces_found(
    tokenizer: Tokenizer, words: Iterable[tuple[str, Sequence[str], str]]
) -> None:
    """Check that the tokenizer finds each word's piece in the word alone, and in running text.

    Args:
        words: of each word its text, its pieces, of which one must be found, and its place.

    Raises:
        DataError: a word's pieces are not found; the error names the first such word.
    """
    words = list(words)
    alone = tokenizer.piece_ids([text for text, _, _ in words])
    for (text, pieces, place), ids in zip(words, alone, strict=True):
        expected = {tokenizer.token_to_id(piece) for piece in pieces}
        running = tokenizer.piece_ids(running_texts(text))
        if expected.isdisjoint(ids.tolist()):
            missed_text = text
        elif all(expected.isdisjoint(one.tolist()) for one in running):
            missed_text = running_texts(text)[0]
        else:
            continue
        parts = " ".join(tokenizer.tokens(tokenizer.piece_ids([missed_text])[0]))
        raise DataError(
            f"would never be found in texts: {missed_text!r} is split into {parts}",
            where=place,
            fix="Leave it out.",
        )
