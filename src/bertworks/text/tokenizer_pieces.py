"""The pieces of a tokenizer: their ids, their roles, and which of them make a word."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError
from .definition import Definition
from .encoding import Ints
from .wordpiece import Normalization, WordPieceDefinition


class TokenizerPieces:
    """What is known of a tokenizer's pieces without a text.

    Args:
        definition: the tokenizer's pieces and settings.
    """

    def __init__(self, definition: Definition) -> None:
        self.definition = definition
        self.pieces = definition.pieces

    @property
    def vocab_size(self) -> int:
        """The number of pieces, special and added ones included."""
        return len(self.pieces)

    @property
    def pad_id(self) -> int:
        """The id of `[PAD]`; this and the ids below raise DataError if there is no such piece."""
        return self._role("pad")

    @property
    def unk_id(self) -> int:
        """The id of `[UNK]`."""
        return self._role("unk")

    @property
    def cls_id(self) -> int:
        """The id of `[CLS]`, or of the piece that begins a sequence instead."""
        return self._role("cls")

    @property
    def sep_id(self) -> int:
        """The id of `[SEP]`, or of the piece that ends a text instead."""
        return self._role("sep")

    @property
    def mask_id(self) -> int:
        """The id of `[MASK]`."""
        return self._role("mask")

    def has(self, role: str) -> bool:
        """Whether the tokenizer has a piece with a role: pad, unk, cls, sep or mask."""
        return getattr(self.definition.roles, role) is not None

    def id_of(self, role: str) -> int | None:
        """The id of the piece with a role; None if there is none."""
        return self._role(role) if self.has(role) else None

    def _role(self, role: str) -> int:
        piece = getattr(self.definition.roles, role)
        if piece is None:
            raise DataError(f"the tokenizer has no {role} token")
        return self.definition.ids[piece]

    @property
    def normalization(self) -> Normalization:
        """The normalisation of texts; only for BERT's tokenizer."""
        assert isinstance(self.definition, WordPieceDefinition)
        return self.definition.normalization

    @property
    def lowercase(self) -> bool:
        """Whether text is lower-cased."""
        return self.definition.lowercase

    @property
    def continuation(self) -> NDArray[np.bool_]:
        """bool [vocab_size]: which pieces continue a word, such as those that begin with `##`."""
        return self.definition.continuation

    @property
    def word_end(self) -> NDArray[np.bool_]:
        """bool [vocab_size]: which pieces end a word, if word ends are marked (`</w>`)."""
        return self.definition.word_end

    def continues_word(self, ids: NDArray[Any]) -> NDArray[np.bool_]:
        """bool [tokens]: which tokens of a text continue the word of the previous token."""
        continues: NDArray[np.bool_] = self.continuation[ids]
        continues[:1] = False
        continues[1:] &= ~self.word_end[ids[:-1]]
        return continues

    @property
    def end_id(self) -> int | None:
        """The id of the piece that ends a document, if the tokenizer has one."""
        end = self.definition.end
        return None if end is None else self.definition.ids[end]

    @cached_property
    def special_ids(self) -> Ints:
        """int32, sorted: the ids of `[PAD]`, `[CLS]`, `[SEP]`, `[MASK]`, which are never masked."""
        roles = [role for role in ("pad", "cls", "sep", "mask") if self.has(role)]
        return np.array(sorted({self._role(role) for role in roles}), np.int32)

    @cached_property
    def unused_ids(self) -> Ints:
        """int32 [unused]: the ids of unused entries, `[unused0]` and so on."""
        unused = re.compile(r"\[unused\d+\]")
        ids = [number for number, piece in enumerate(self.pieces) if unused.fullmatch(piece)]
        return np.array(ids, np.int32)

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the vocabulary and all settings, as 64 hexadecimal digits."""
        return self.definition.fingerprint

    def id_to_token(self, number: int) -> str:
        """The piece with an id.

        Raises:
            DataError: the id is outside the vocabulary.
        """
        if not 0 <= number < len(self.pieces):
            raise DataError(f"id {number} is outside the vocabulary of {len(self.pieces)} pieces")
        return self.pieces[number]

    def token_to_id(self, token: str) -> int | None:
        """The id of a piece, or None if the vocabulary does not have it."""
        return self.definition.ids.get(token)

    def tokens(self, ids: Sequence[int] | NDArray[Any]) -> list[str]:
        """The pieces with these ids.

        Raises:
            DataError: an id is outside the vocabulary.
        """
        return [self.id_to_token(int(number)) for number in ids]

    def decode(self, ids: Sequence[int] | NDArray[Any], *, skip_special_tokens: bool = True) -> str:
        """Convert ids to text: pieces are joined to words, without spaces before punctuation.

        What normalisation removed (case, accents, spacing) cannot be restored.

        Args:
            ids: token ids.
            skip_special_tokens: leave out `[PAD]`, `[CLS]`, `[SEP]` and `[MASK]`. `[UNK]` is kept,
                since it stands for a word.

        Raises:
            DataError: an id is outside the vocabulary.
        """
        skipped = set(self.special_ids.tolist()) if skip_special_tokens else set()
        self.tokens(ids)  # raises if one is outside the vocabulary
        return self.definition.decode([int(n) for n in ids if int(n) not in skipped])
