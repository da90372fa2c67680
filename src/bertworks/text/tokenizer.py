"""Text to token ids and back, with character offsets and word numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import decoders, models

from ..errors import DataError
from .definition import CLS, MASK, MAX_WORD_CHARACTERS, PAD, SEP, UNK, Definition
from .encoding import (
    Encoding,
    Ints,
    Segment,
    Truncation,
    move_offsets,
    one_token,
    truncated,
)
from .files import read_definition, write_definition
from .normalization import Normalization, Origin
from .wordpiece import CONTINUATION


class Tokenizer:
    """BERT's tokenizer: clean-up, words, then the longest known pieces from the left.

    Special tokens that are typed in a text (`"[SEP]"`) are text like any other; only with
    `typed_mask=True` is a typed `[MASK]` the mask.

    Example:
        >>> letters = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "un", "##aff", "##able"]
        >>> tokenizer = Tokenizer.from_vocabulary(letters)
        >>> tokenizer.tokens(tokenizer.encode("Unaffable").input_ids)
        ['[CLS]', 'un', '##aff', '##able', '[SEP]']

    Args:
        definition: its pieces and settings.
    """

    def __init__(self, definition: Definition) -> None:
        self.definition = definition
        self.normalization = definition.normalization
        self.pieces = definition.pieces
        ids = definition.ids
        self.pad_id, self.unk_id, self.mask_id = ids[PAD], ids[UNK], ids[MASK]
        self.cls_id, self.sep_id = ids[CLS], ids[SEP]
        self._library = self._build(typed_mask=False)

    @classmethod
    def from_vocabulary(
        cls,
        pieces: Sequence[str],
        *,
        lowercase: bool = True,
        strip_accents: bool | None = None,
        max_word_characters: int = MAX_WORD_CHARACTERS,
    ) -> Tokenizer:
        """A tokenizer from pieces in the order of their ids.

        Args:
            pieces: the vocabulary; a piece's place is its id.
            lowercase: fold text to lower case and strip accents, as for the uncased models.
            strip_accents: strip accents, or not, whatever `lowercase` says.
            max_word_characters: a longer word is `[UNK]`.

        Raises:
            DataError: a special piece is missing, or a piece stands twice.
        """
        normalization = Normalization(lowercase=lowercase, strip_accents=strip_accents)
        definition = Definition(
            tuple(pieces), normalization=normalization, max_word_characters=max_word_characters
        )
        return cls(definition)

    @classmethod
    def load(cls, path: str | Path, *, lowercase: bool | None = None) -> Tokenizer:
        """Read a directory in the Hugging Face layout, a `tokenizer.json`, or a `vocab.txt`.

        In a directory `tokenizer.json` goes before `vocab.txt`, and `tokenizer_config.json` has the
        last word on `do_lower_case`, `strip_accents` and `tokenize_chinese_chars`. The word-length
        limit is that of `tokenizer.json`. Padding and truncation stored there are not taken over.

        Args:
            path: the directory or file.
            lowercase: fold to lower case or not, whatever the files say. Where nothing says it, a
                vocabulary with capital letters is cased.

        Raises:
            DataError: the file is missing or not what it should be.
        """
        return cls(read_definition(Path(path), lowercase=lowercase))

    def save(self, directory: str | Path, *, model_max_length: int | None = None) -> None:
        """Write `vocab.txt`, `tokenizer.json` and `tokenizer_config.json` for all tools.

        Args:
            directory: where to; made if need be.
            model_max_length: the longest sequence of the model that belongs to it, for others.
        """
        write_definition(self.definition, Path(directory), model_max_length=model_max_length)

    def __reduce__(self) -> tuple[type[Tokenizer], tuple[Definition]]:
        return Tokenizer, (self.definition,)

    @property
    def vocab_size(self) -> int:
        """The number of pieces, special and added ones included."""
        return len(self.pieces)

    @property
    def lowercase(self) -> bool:
        """Whether text is folded to lower case."""
        return self.normalization.lowercase

    @cached_property
    def continuation(self) -> NDArray[np.bool_]:
        """bool [vocab_size]: which pieces go on a word, that is, begin with `##`."""
        return np.array([_continues(piece) for piece in self.pieces])

    @cached_property
    def special_ids(self) -> Ints:
        """int32 [4]: `[PAD]`, `[CLS]`, `[SEP]` and `[MASK]`, which are never masked, sorted."""
        return np.array(sorted((self.pad_id, self.cls_id, self.sep_id, self.mask_id)), np.int32)

    @cached_property
    def unused_ids(self) -> Ints:
        """int32 [unused]: the places kept free, `[unused0]` and so on."""
        unused = re.compile(r"\[unused\d+\]")
        found = [number for number, piece in enumerate(self.pieces) if unused.fullmatch(piece)]
        return np.array(found, np.int32)

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the vocabulary and all settings, as 64 hexadecimal digits."""
        return self.definition.fingerprint

    def segments(
        self,
        texts: Sequence[str] | Sequence[Sequence[str]],
        *,
        typed_mask: bool = False,
        where: Sequence[str] | None = None,
    ) -> list[Segment]:
        """Tokens of each text without special tokens, never cut.

        Args:
            texts: texts, or lists of words: then each word is tokenised by itself, word numbers
                are places in the list, and offsets are within the word. A word of control
                characters alone has no tokens.
            typed_mask: take `[MASK]` in a text for the mask token.
            where: what to call each row in an error; without it, `row 1` and so on.

        Raises:
            DataError: a row is no text, or has a lone surrogate.
        """
        _check_rows(texts)
        split = len(texts) > 0 and isinstance(texts[0], (list, tuple))
        rows: list[str | list[str]] = []
        moved: list[Origin | list[Origin]] = []
        for number, row in enumerate(texts):
            name = _name(number, where)
            if split:
                if not isinstance(row, (list, tuple)):
                    raise DataError("not a list of words, like the rows before", where=name)
                words = [self.normalization.corrected(word, where=name) for word in row]
                rows.append([word for word, _ in words])
                moved.append([origin for _, origin in words])
            else:
                text, origin = self.normalization.corrected(cast(str, row), where=name)
                rows.append(text)
                moved.append(origin)
        library = self._with_typed_mask if typed_mask else self._library
        encoded = library.encode_batch(rows, is_pretokenized=split, add_special_tokens=False)
        segments = [
            Segment(
                np.array(row.ids, np.int32),
                np.array(row.offsets, np.int32).reshape(-1, 2),
                np.array(row.word_ids, np.int32),
            )
            for row in encoded
        ]
        for segment, origins in zip(segments, moved, strict=True):
            move_offsets(segment, origins)
        return segments

    def frame(
        self, first: Segment, second: Segment | None = None, *, truncated_tokens: int = 0
    ) -> Encoding:
        """Put `[CLS]` and `[SEP]` around one segment or two."""
        cls, sep = one_token(self.cls_id), one_token(self.sep_id)
        parts = [cls, first, sep] if second is None else [cls, first, sep, second, sep]
        special = [part is cls or part is sep for part in parts]
        lengths = [len(part) for part in parts]
        types = np.zeros(sum(lengths), np.int8)
        types[sum(lengths[:3]) :] = 1
        return Encoding(
            input_ids=np.concatenate([part.input_ids for part in parts]),
            token_type_ids=types,
            offsets=np.concatenate([part.offsets for part in parts]),
            word_ids=np.concatenate([part.word_ids for part in parts]),
            special_tokens_mask=np.repeat(special, lengths),
            truncated_tokens=truncated_tokens,
        )

    def encode_batch(
        self,
        texts: Sequence[str] | Sequence[Sequence[str]],
        pairs: Sequence[str] | Sequence[Sequence[str]] | None = None,
        *,
        max_length: int | None = None,
        truncation: Truncation = "error",
        typed_mask: bool = False,
        where: Sequence[str] | None = None,
    ) -> list[Encoding]:
        """Sequences from texts or pairs of texts, on as many threads as the library takes.

        Args:
            texts: texts, or lists of words (see `segments`).
            pairs: the second text of each row.
            max_length: the most tokens a sequence may have, special ones included.
            truncation: what to do with a longer one: `"error"`; cut the end of the longer segment,
                token by token, the second one among equals (`"longest_first"`, as in the original);
                or cut only the `"first"` or the `"second"` segment.
            typed_mask: take `[MASK]` in a text for the mask token.
            where: what to call each row in an error.

        Raises:
            DataError: a row is no text, has a lone surrogate, or is too long.
            SettingsError: there is no such `truncation`.
        """
        firsts = self.segments(texts, typed_mask=typed_mask, where=where)
        seconds: Sequence[Segment | None] = [None] * len(firsts)
        if pairs is not None:
            if len(pairs) != len(firsts):
                raise DataError(f"{len(firsts)} first texts, but {len(pairs)} second ones")
            seconds = self.segments(pairs, typed_mask=typed_mask, where=where)
        encodings = []
        for number, (first, second) in enumerate(zip(firsts, seconds, strict=True)):
            length = len(first) + 2 + (0 if second is None else len(second) + 1)
            if max_length is None or length <= max_length:
                encodings.append(self.frame(first, second))
            else:
                kept = truncated(first, second, max_length, truncation, where=_name(number, where))
                encodings.append(self.frame(*kept, truncated_tokens=length - max_length))
        return encodings

    def encode(
        self,
        text: str,
        pair: str | None = None,
        *,
        max_length: int | None = None,
        truncation: Truncation = "error",
        typed_mask: bool = False,
    ) -> Encoding:
        """One sequence from a text or a pair of texts; see `encode_batch`.

        Raises:
            DataError: a text has a lone surrogate, or is too long.
        """
        return self.encode_batch(
            [text],
            None if pair is None else [pair],
            max_length=max_length,
            truncation=truncation,
            typed_mask=typed_mask,
            where=["text"],
        )[0]

    def encode_words(
        self,
        words: Sequence[str],
        pair_words: Sequence[str] | None = None,
        *,
        max_length: int | None = None,
        truncation: Truncation = "error",
    ) -> Encoding:
        """One sequence from words that are already split; word numbers are places in the list.

        Raises:
            DataError: a word has a lone surrogate, or there are too many tokens.
        """
        return self.encode_batch(
            [list(words)],
            None if pair_words is None else [list(pair_words)],
            max_length=max_length,
            truncation=truncation,
            where=["words"],
        )[0]

    def piece_ids(self, texts: Sequence[str], *, where: Sequence[str] | None = None) -> list[Ints]:
        """The ids of each text alone, int32 [tokens]: the fast way, without offsets.

        Raises:
            DataError: a row is no text, or has a lone surrogate.
        """
        _check_rows(texts)
        corrected = [
            self.normalization.corrected(text, where=_name(number, where))[0]
            for number, text in enumerate(texts)
        ]
        encoded = self._library.encode_batch_fast(corrected, add_special_tokens=False)
        return [np.array(row.ids, np.int32) for row in encoded]

    def id_to_token(self, number: int) -> str:
        """The piece with an id.

        Raises:
            DataError: the id is outside the vocabulary.
        """
        if not 0 <= number < len(self.pieces):
            raise DataError(f"id {number} is outside the vocabulary of {len(self.pieces)} pieces")
        return self.pieces[number]

    def token_to_id(self, token: str) -> int | None:
        """The id of a piece, or None where the vocabulary does not have it."""
        return self.definition.ids.get(token)

    def tokens(self, ids: Sequence[int] | NDArray[Any]) -> list[str]:
        """The pieces with these ids.

        Raises:
            DataError: an id is outside the vocabulary.
        """
        return [self.id_to_token(int(number)) for number in ids]

    def decode(self, ids: Sequence[int] | NDArray[Any], *, skip_special_tokens: bool = True) -> str:
        """Text from ids: pieces joined to words, and no space before punctuation.

        What the clean-up took away (case, accents, spacing) is not in the ids.

        Args:
            ids: token ids.
            skip_special_tokens: leave out `[PAD]`, `[CLS]`, `[SEP]` and `[MASK]`. `[UNK]` stands
                for a word and is kept.

        Raises:
            DataError: an id is outside the vocabulary.
        """
        skipped = set(self.special_ids.tolist()) if skip_special_tokens else set()
        kept = [self.id_to_token(int(number)) for number in ids if int(number) not in skipped]
        text: str = decoders.WordPiece(prefix=CONTINUATION, cleanup=True).decode(kept)
        return text

    @cached_property
    def _with_typed_mask(self) -> tokenizers.Tokenizer:
        return self._build(typed_mask=True)

    def _build(self, *, typed_mask: bool) -> tokenizers.Tokenizer:
        """The library's tokenizer, which knows of no special tokens in a text."""
        definition = self.definition
        model = models.WordPiece(
            {piece: number for number, piece in enumerate(definition.base_pieces)},
            unk_token=UNK,
            max_input_chars_per_word=definition.max_word_characters,
        )
        library = tokenizers.Tokenizer(model)
        library.normalizer = self.normalization.normalizer
        library.pre_tokenizer = self.normalization.word_splitter
        for piece in definition.added:
            library.add_tokens([tokenizers.AddedToken(**asdict(piece))])
            assert library.token_to_id(piece.content) == definition.ids[piece.content]
        if typed_mask:
            library.add_tokens([tokenizers.AddedToken(MASK, normalized=False)])
        library.encode_special_tokens = True
        return library


def _name(number: int, where: Sequence[str] | None) -> str:
    """What to call a row in an error."""
    return f"row {number + 1}" if where is None else where[number]


def _check_rows(texts: object) -> None:
    """A string is a sequence of strings too, but never what was meant."""
    if isinstance(texts, str):
        raise DataError("one text was given where a list of texts should be")


def _continues(piece: str) -> bool:
    return piece.startswith(CONTINUATION) and len(piece) > len(CONTINUATION)
