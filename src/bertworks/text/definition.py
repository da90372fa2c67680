"""The definition of a tokenizer: its pieces, the roles of special pieces, and normalisation.

There are two kinds: `WordPieceDefinition` (`wordpiece.py`) for BERT's tokenizer, and
`TreeDefinition` (`tree.py`) for any other that the `tokenizers` library supports: byte-level BPE,
SentencePiece.
"""

from __future__ import annotations

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import tokenizers
from numpy.typing import NDArray

from ..errors import DataError

PAD, UNK, CLS, SEP, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
SPECIAL_PIECES = (PAD, UNK, CLS, SEP, MASK)
# The pieces at the ids 0 to 103 of the published English vocabularies.
ORIGINAL_SPECIAL_PIECES = (PAD, *(f"[unused{n}]" for n in range(99)), UNK, CLS, SEP, MASK)

_SURROGATE = re.compile("[\ud800-\udfff]")

Side = Literal["left", "right"]

# The original position of each character of a corrected text, or its first and one after its last;
# None: unchanged.
Origin = NDArray[np.int64] | None


@dataclass(frozen=True, slots=True)
class AddedPiece:
    """A piece added to a vocabulary later; it is searched for before a text is split into words.

    A special one never matches text; it only has an id.
    """

    content: str
    special: bool = False
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = True


@dataclass(frozen=True, slots=True)
class Roles:
    """The special piece of each role; None if the tokenizer has no such piece."""

    pad: str | None = None
    unk: str | None = None
    cls: str | None = None
    sep: str | None = None
    mask: str | None = None

    @property
    def pieces(self) -> frozenset[str]:
        """The special pieces of all roles."""
        return frozenset(piece for piece in astuple(self) if piece is not None)


BERT_ROLES = Roles(PAD, UNK, CLS, SEP, MASK)


@dataclass(frozen=True, slots=True)
class Frame:
    """The special pieces around one text or two."""

    start: tuple[str, ...] = (CLS,)  # before the first text
    between: tuple[str, ...] = (SEP,)  # between two texts
    end: tuple[str, ...] = (SEP,)  # after the last text
    second_type: int = 1  # the token type of the second text and what follows it
    # special pieces with a token type of their own, wherever they are
    special_types: tuple[tuple[str, int], ...] = ()

    @property
    def pieces(self) -> frozenset[str]:
        """The special pieces around texts."""
        return frozenset((*self.start, *self.between, *self.end))

    def description(self) -> dict[str, Any]:
        """All settings, as JSON values; without special types if there are none."""
        entries = asdict(self)
        if not self.special_types:
            del entries["special_types"]
        return entries


class Definition(ABC):
    """Everything that determines the ids of a text."""

    roles: Roles
    frame: Frame
    unknown_id: int | None = None  # the id of unknown pieces, if they are left out of every text
    truncation_side: Side = "right"  # where texts that are too long lose their tokens

    @property
    @abstractmethod
    def pieces(self) -> tuple[str, ...]:
        """All pieces in the order of their ids."""

    @property
    @abstractmethod
    def kind(self) -> str:
        """How words are split into pieces: WordPiece, BPE, Unigram."""

    @property
    @abstractmethod
    def lowercase(self) -> bool:
        """Whether text is lower-cased."""

    @abstractmethod
    def to_lowercase(self) -> Definition:
        """Return the same definition with lower-casing, which keeps accents as this does."""

    @property
    @abstractmethod
    def continuation(self) -> NDArray[np.bool_]:
        """bool [pieces]: which pieces continue a word."""

    @cached_property
    def word_end(self) -> NDArray[np.bool_]:
        """bool [pieces]: which pieces end a word, if word ends are marked; otherwise all false."""
        return np.zeros(len(self.pieces), np.bool_)

    @property
    def context_free(self) -> bool:
        """Whether a sentence has the same pieces alone as after a space within a text."""
        return False  # a piece may stand for the space before it

    @property
    def breaks(self) -> re.Pattern[str] | None:
        """Matches a character before which a text may be split without changing a token.

        None: there is no such character.
        """
        return None

    @property
    def end(self) -> str | None:
        """The piece that ends a document, if there is one."""
        return self.roles.sep

    @abstractmethod
    def description(self) -> Mapping[str, Any]:
        """All settings and pieces, as JSON values."""

    @abstractmethod
    def correct(self, text: str, *, where: str) -> tuple[str, Origin]:
        """Return the text to give to the library, and the original positions of its characters.

        Raises:
            DataError: `text` is not a string, or has a lone surrogate; the error names `where`.
        """

    @cached_property
    def library_ids(self) -> NDArray[np.int32] | None:
        """int32 [library's pieces]: the id of each of them; None: the same."""
        return None

    @abstractmethod
    def library(self, *, typed_mask: bool, split: bool) -> tokenizers.Tokenizer:
        """Return the library's tokenizer, which does not recognise special tokens in a text.

        Args:
            typed_mask: whether it recognises the mask token.
            split: whether its input will be words instead of texts.
        """

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """Convert ids to text."""

    @cached_property
    def ids(self) -> dict[str, int]:
        """The id of each piece."""
        return {piece: number for number, piece in enumerate(self.pieces)}

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of `description()` and the side of truncation, as 64 hexadecimal digits.

        The order of the keys of a tree counts: a reader that builds a tree in another order makes
        prepared corpora invalid.
        """
        content = self.description()
        if self.truncation_side != "right":
            content = {**content, "truncation_side": self.truncation_side}
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    def check(self) -> None:
        """Raise DataError if a special piece is missing, or a piece occurs twice."""
        if len(self.ids) < len(self.pieces):
            twice = next(p for number, p in enumerate(self.pieces) if self.ids[p] != number)
            raise DataError(f"the vocabulary has {twice!r} more than once")
        needed = [getattr(self.roles, role) for role in Roles.__slots__]
        needed += [*self.frame.start, *self.frame.between, *self.frame.end]
        for piece in needed:
            if piece is not None and piece not in self.ids:
                raise DataError(f"the vocabulary has no {piece}")


def check_text(text: str, *, where: str | None = None) -> None:
    """Check that `text` can be tokenised.

    Raises:
        DataError: `text` is not a string, or has a lone surrogate; the error names `where`.
    """
    if not isinstance(text, str):
        raise DataError(f"expected a text, got {type(text).__name__}", where=where)
    if text.isascii():
        return
    surrogate = _SURROGATE.search(text)
    if surrogate is not None:
        raise DataError(
            f"lone surrogate U+{ord(surrogate[0]):04X} at character {surrogate.start()}",
            where=where,
            fix="It is half of a character: decode the source again, or remove it.",
        )


def check_texts(texts: Sequence[str], *, where: str | None = None) -> None:
    """Check many short texts as `check_text` does; one check of all takes a tenth of the time."""
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        for text in texts:
            check_text(text, where=where)
