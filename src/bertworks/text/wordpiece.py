"""BERT's tokenizer: clean-up, word splitting, and pieces of words.

The `tokenizers` library does the work (`BertNormalizer`, `BertPreTokenizer`). Where it differs from
BERT's original code for reasons other than the version of its Unicode tables, the text is corrected
first:

* A capital sigma at the end of a Greek word becomes ς, not σ, when text is lower-cased.
* The ideographs U+2B820 to U+2B91F are split off like all other ideographs.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import decoders, models, normalizers, pre_tokenizers

from .definition import (
    BERT_ROLES,
    SPECIAL_PIECES,
    AddedPiece,
    Definition,
    Frame,
    Origin,
    Roles,
    Side,
    check_text,
)

CONTINUATION = "##"
# The original code's limit; Hugging Face's is 100.
MAX_WORD_CHARACTERS = 200

# Everything that may need correction, in one pass: lone surrogates, capital sigma, ideographs.
_UNUSUAL = re.compile("[\ud800-\udfffΣ\U0002b820-\U0002b91f]")
_MISSED_IDEOGRAPH = re.compile("[\U0002b820-\U0002b91f]")

# Patterns that take milliseconds to compile are compiled when they are first used.
# White space and punctuation in every version of Unicode; ideographs.
_WORDS = r"[ \t\n\r!-/:-@\[-`{-~\u3001\u3002\uff0c]"
_WORDS_AND_IDEOGRAPHS = f"{_WORDS[:-1]}\u4e00-\u9fff]"


@dataclass(frozen=True)
class Normalization:
    """Normalisation of a text before it is split into pieces."""

    lowercase: bool = True  # fold to lower case
    # remove accents; None: as `lowercase` says, like the original
    strip_accents: bool | None = None
    clean_text: bool = True  # remove control characters, and make every white space a space
    split_ideographs: bool = True  # make every Chinese ideograph a separate word

    @property
    def breaks(self) -> re.Pattern[str]:
        """White space, and characters that are always words: a split before one changes no word."""
        return re.compile(_WORDS_AND_IDEOGRAPHS if self.split_ideographs else _WORDS)

    @property
    def options(self) -> dict[str, Any]:
        """The settings under the library's names."""
        return {
            "clean_text": self.clean_text,
            "handle_chinese_chars": self.split_ideographs,
            "strip_accents": self.strip_accents,
            "lowercase": self.lowercase,
        }

    @cached_property
    def normalizer(self) -> normalizers.Normalizer:
        """The library's normaliser with these settings."""
        return normalizers.BertNormalizer(**self.options)

    @cached_property
    def word_splitter(self) -> pre_tokenizers.PreTokenizer:
        """The library's splitter at white space and around punctuation."""
        return pre_tokenizers.BertPreTokenizer()

    def correct(self, text: str, *, where: str) -> tuple[str, Origin]:
        """See `Definition.correct`."""
        if isinstance(text, str) and (text.isascii() or _UNUSUAL.search(text) is None):
            return text, None
        check_text(text, where=where)
        if self.lowercase:
            text = self._with_final_sigmas(text)
        if self.split_ideographs and _MISSED_IDEOGRAPH.search(text) is not None:
            return _with_spaced_ideographs(text)
        return text, None

    def words(self, text: str, *, where: str = "text") -> list[str]:
        """The normalised words of a text, in which pieces are looked up."""
        text, _ = self.correct(text, where=where)
        normalized = self.normalizer.normalize_str(text)
        return [word for word, _ in self.word_splitter.pre_tokenize_str(normalized)]

    def piece(self, word: str) -> str:
        """The form of a word in a vocabulary: normalised, without spaces around its ideographs."""
        compact = replace(self, split_ideographs=False)
        text, _ = compact.correct(word, where="word")
        return compact.normalizer.normalize_str(text).strip()

    def _with_final_sigmas(self, text: str) -> str:
        """Replace each word-final capital sigma by ς.

        Whether a sigma is final depends on its neighbours after the clean-up, so characters that
        the clean-up removes are ignored. `İ` is the only character that `str.lower` turns into two;
        it is replaced by another letter, so that positions stay the same.
        """
        positions = [
            at for at, char in enumerate(text) if not (self.clean_text and is_removed(char))
        ]
        cleaned = "".join(text[at] for at in positions).replace("İ", "I")
        lower_case = cleaned.lower()
        assert len(lower_case) == len(positions)
        characters = list(text)
        for at, char in zip(positions, lower_case, strict=True):
            if char == "ς":
                characters[at] = char
        return "".join(characters)


@dataclass(frozen=True)
class WordPieceDefinition(Definition):
    """BERT's tokenizer: clean-up, word splitting, then the longest known pieces from the left."""

    base_pieces: Sequence[str]  # the vocabulary, in the order of ids
    added: Sequence[AddedPiece] = ()  # pieces added later; their ids follow
    normalization: Normalization = field(default_factory=Normalization)
    max_word_characters: int = MAX_WORD_CHARACTERS  # a longer word is `[UNK]`
    frame: Frame = field(default_factory=Frame)  # the special pieces around texts
    # The special piece of each role. A vocabulary may lack those of pad and mask, as that of the
    # original code's tests does; then the tokenizer has none.
    roles: Roles = BERT_ROLES
    truncation_side: Side = "right"

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
        pieces = [self.pieces[number] for number in ids]
        text: str = decoders.WordPiece(prefix=CONTINUATION, cleanup=True).decode(pieces)
        return text


def is_removed(char: str) -> bool:
    """Whether the clean-up removes a character."""
    if char in "\t\n\r":
        return False
    # The library and the original keep unassigned characters (Cn).
    return char in "\0\ufffd" or unicodedata.category(char) in ("Cc", "Cf", "Co")


def _with_spaced_ideographs(text: str) -> tuple[str, Origin]:
    """Put spaces around the ideographs that the library misses."""
    parts: list[str] = []
    origin: list[int] = []
    for index, char in enumerate(text):
        part = f" {char} " if _MISSED_IDEOGRAPH.match(char) else char
        parts.append(part)
        origin.extend([index] * len(part))
    return "".join(parts), np.array(origin, dtype=np.int64)
