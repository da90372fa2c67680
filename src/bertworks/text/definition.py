"""The definition of a tokenizer: its pieces, the roles of special pieces, and normalisation.

There are two kinds: `WordPieceDefinition` for BERT's tokenizer, and `TreeDefinition` (`tree.py`)
for any other that the `tokenizers` library supports: byte-level BPE, SentencePiece.
"""

from __future__ import annotations

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import decoders, models

from ..errors import DataError
from .normalization import Normalization, Origin

PAD, UNK, CLS, SEP, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
SPECIAL_PIECES = (PAD, UNK, CLS, SEP, MASK)
# The pieces at the ids 0 to 103 of the published English vocabularies.
ORIGINAL_SPECIAL_PIECES = (PAD, *(f"[unused{n}]" for n in range(99)), UNK, CLS, SEP, MASK)

CONTINUATION = "##"
# The original code's limit; Hugging Face's is 100.
MAX_WORD_CHARACTERS = 200


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


@dataclass(frozen=True, slots=True)
class Frame:
    """The special pieces around one text or two."""

    start: tuple[str, ...] = (CLS,)  # before the first text
    between: tuple[str, ...] = (SEP,)  # between two texts
    end: tuple[str, ...] = (SEP,)  # after the last text
    second_type: int = 1  # the token type of the second text and what follows it
    # special pieces with a token type of their own, wherever they are
    special_types: tuple[tuple[str, int], ...] = ()

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

    @property
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
        """SHA-256 of `description()`, as 64 hexadecimal digits."""
        return hashlib.sha256(json.dumps(self.description()).encode()).hexdigest()

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


@dataclass(frozen=True)
class WordPieceDefinition(Definition):
    """BERT's tokenizer: clean-up, word splitting, then the longest known pieces from the left."""

    base_pieces: Sequence[str]  # the vocabulary, in the order of ids
    added: Sequence[AddedPiece] = ()  # pieces added later; their ids follow
    normalization: Normalization = field(default_factory=Normalization)
    max_word_characters: int = MAX_WORD_CHARACTERS  # a longer word is `[UNK]`
    frame: Frame = Frame()  # the special pieces around texts
    # The special piece of each role. A vocabulary may lack those of pad and mask, as that of the
    # original code's tests does; then the tokenizer has none.
    roles: Roles = Roles(PAD, UNK, CLS, SEP, MASK)

    def __post_init__(self) -> None:
        roles = self.roles
        pad, mask = (piece if piece in self.ids else None for piece in (roles.pad, roles.mask))
        object.__setattr__(self, "roles", replace(roles, pad=pad, mask=mask))
        self.check()

    @cached_property
    def pieces(self) -> tuple[str, ...]:
        return (*self.base_pieces, *(piece.content for piece in self.added))

    @property
    def kind(self) -> str:
        return "WordPiece"

    @property
    def lowercase(self) -> bool:
        return self.normalization.lowercase

    def to_lowercase(self) -> WordPieceDefinition:
        if self.lowercase:
            return self
        strips_accents = bool(self.normalization.strip_accents)
        normalization = replace(self.normalization, lowercase=True, strip_accents=strips_accents)
        return replace(self, normalization=normalization)

    @cached_property
    def continuation(self) -> NDArray[np.bool_]:
        """bool [pieces]: which pieces begin with `##` and are longer."""
        prefix = CONTINUATION
        return np.array([p.startswith(prefix) and len(p) > len(prefix) for p in self.pieces])

    @property
    def context_free(self) -> bool:
        return True

    @cached_property
    def breaks(self) -> re.Pattern[str] | None:
        """The breaks between words.

        None if a piece that was added later may match across a break: it has other characters than
        letters and digits, several ideographs, or includes the white space around it.
        """
        breaks = self.normalization.breaks
        crossing = any(
            piece.lstrip
            or piece.rstrip
            or not piece.content.isalnum()
            or breaks.search(piece.content)
            for piece in self.added
        )
        return None if crossing else breaks

    def description(self) -> Mapping[str, Any]:
        usual = {None, *SPECIAL_PIECES}
        names_others = not usual.issuperset(asdict(self.roles).values())
        return {
            "pieces": self.pieces,
            "added": [asdict(piece) for piece in self.added],
            "normalization": asdict(self.normalization),
            "max_word_characters": self.max_word_characters,
            "frame": self.frame.description(),
            **({"roles": asdict(self.roles)} if names_others else {}),
        }

    def correct(self, text: str, *, where: str) -> tuple[str, Origin]:
        return self.normalization.correct(text, where=where)

    def library(self, *, typed_mask: bool, split: bool) -> tokenizers.Tokenizer:
        del split  # a word has the same pieces alone and within a text
        model = models.WordPiece(
            {piece: number for number, piece in enumerate(self.base_pieces)},
            unk_token=self.roles.unk,
            max_input_chars_per_word=self.max_word_characters,
        )
        library = tokenizers.Tokenizer(model)
        library.normalizer = self.normalization.normalizer
        library.pre_tokenizer = self.normalization.word_splitter
        for piece in self.added:
            content, _ = self.correct(piece.content, where=piece.content)  # as texts are
            library.add_tokens([tokenizers.AddedToken(**asdict(replace(piece, content=content)))])
            assert library.token_to_id(content) == self.ids[piece.content]
        if typed_mask:
            library.add_tokens([tokenizers.AddedToken(self.roles.mask, normalized=False)])
        library.encode_special_tokens = True
        return library

    def decode(self, ids: Sequence[int]) -> str:
        kept = [self.pieces[number] for number in ids]
        text: str = decoders.WordPiece(prefix=CONTINUATION, cleanup=True).decode(kept)
        return text
