"""What a tokenizer is made of: its pieces, and what is done to a text before."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property

from ..errors import DataError
from .normalization import Normalization

PAD, UNK, CLS, SEP, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
SPECIAL_PIECES = (PAD, UNK, CLS, SEP, MASK)
# What stands at the ids 0 to 103 of the published English vocabularies.
ORIGINAL_SPECIAL_PIECES = (PAD, *(f"[unused{n}]" for n in range(99)), UNK, CLS, SEP, MASK)

# The original code's limit; Hugging Face has 100.
MAX_WORD_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class AddedPiece:
    """A piece added to a vocabulary later, which is looked for in the text before its words are.

    A special one never matches text; it only has an id.
    """

    content: str
    special: bool = False
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = True


@dataclass(frozen=True)
class Definition:
    """All that decides which ids a text gets.

    Attributes:
        base_pieces: the vocabulary; a piece's place is its id.
        added: pieces added later, whose ids follow.
        normalization: what is done to a text before.
        max_word_characters: a longer word is `[UNK]`.

    Raises:
        DataError: a special piece is missing, or a piece stands twice.
    """

    base_pieces: Sequence[str]
    added: Sequence[AddedPiece] = ()
    normalization: Normalization = field(default_factory=Normalization)
    max_word_characters: int = MAX_WORD_CHARACTERS

    def __post_init__(self) -> None:
        if len(self.ids) < len(self.pieces):
            twice = next(p for number, p in enumerate(self.pieces) if self.ids[p] != number)
            raise DataError(f"the vocabulary has {twice!r} more than once")
        for piece in SPECIAL_PIECES:
            if piece not in self.ids:
                raise DataError(f"the vocabulary has no {piece}")

    @cached_property
    def pieces(self) -> tuple[str, ...]:
        """All pieces in the order of their ids."""
        return (*self.base_pieces, *(piece.content for piece in self.added))

    @cached_property
    def ids(self) -> dict[str, int]:
        """The id of each piece."""
        return {piece: number for number, piece in enumerate(self.pieces)}

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over everything, as 64 hexadecimal digits."""
        everything = {
            "pieces": self.pieces,
            "added": [asdict(piece) for piece in self.added],
            "normalization": asdict(self.normalization),
            "max_word_characters": self.max_word_characters,
        }
        return hashlib.sha256(json.dumps(everything).encode()).hexdigest()
