"""Text to token ids and back, with character offsets and word numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import numpy as np

from ..errors import DataError, exists_error, row_name
from ..utils.directories import new_directory
from ..utils.outputs import locked_output
from .definition import Definition, Side
from .encoding import (
    Encoding,
    Encodings,
    Ints,
    Segment,
    TokenIds,
    Truncation,
    fit_segments,
    special_tokens,
)
from .file_names import FILES
from .files import read_definition, write_definition
from .segmenter import Segmenter
from .tokenizer_pieces import TokenizerPieces
from .wordpiece import MAX_WORD_CHARACTERS, Normalization, WordPieceDefinition


class Tokenizer(TokenizerPieces):
    """Converts text to ids and back.

    BERT's tokenizer cleans up a text, splits it into words, and takes the longest known pieces from
    the left; the tokenizers of other families have other definitions. Special tokens typed in a
    text (`"[SEP]"`) are ordinary text; only with `typed_mask=True`, a typed `[MASK]` is the mask
    token.

    Example:
        >>> letters = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "un", "##aff", "##able"]
        >>> tokenizer = Tokenizer.from_vocabulary(letters)
        >>> tokenizer.tokens(tokenizer.encode("Unaffable").input_ids)
        ['[CLS]', 'un', '##aff', '##able', '[SEP]']
        >>> tokenizer(["Unaffable", "able"]).input_ids[1].tolist()
        [2, 1, 3]

    Args:
        definition: its pieces and settings.
    """

    def __init__(self, definition: Definition) -> None:
        super().__init__(definition)
        frame = definition.frame
        self._start, self._separator, self._end = (
            [definition.ids[piece] for piece in part]
            for part in (frame.start, frame.between, frame.end)
        )
        self._special_types = [(definition.ids[piece], n) for piece, n in frame.special_types]
        self._segmenter = Segmenter(definition)

    @classmethod
    def from_vocabulary(
        cls,
        pieces: Sequence[str],
        *,
        lowercase: bool = True,
        strip_accents: bool | None = None,
        max_word_characters: int = MAX_WORD_CHARACTERS,
    ) -> Tokenizer:
        """Make a tokenizer from pieces in the order of their ids.

        Args:
            pieces: the vocabulary; the index of a piece is its id.
            lowercase: lower-case text and strip accents, as in the uncased models.
            strip_accents: whether to strip accents, overriding `lowercase`.
            max_word_characters: a longer word is `[UNK]`.

        Raises:
            DataError: [UNK], [CLS] or [SEP] is missing, or a piece occurs twice.
        """
        normalization = Normalization(lowercase=lowercase, strip_accents=strip_accents)
        definition = WordPieceDefinition(
            tuple(pieces), normalization=normalization, max_word_characters=max_word_characters
        )
        return cls(definition)

    @classmethod
    def load(cls, path: str | Path, *, lowercase: bool | None = None) -> Tokenizer:
        """Load a tokenizer from a directory in the Hugging Face layout, or from one of its files.

        The files are `tokenizer.json`, `vocab.txt` (WordPiece), `merges.txt` with `vocab.json`
        (BPE), and SentencePiece's (`spiece.model`, `spm.model` and others); in a directory, the
        first of these that exists is read, as its `transformers` class does
        (`tokenizer_classes.py` lists the classes). `tokenizer_config.json` overrides what the class
        reads from it: for WordPiece `do_lower_case`, `strip_accents` and `tokenize_chinese_chars`,
        for RoBERTa, GPT-2 and DeBERTa `add_prefix_space`; the general class,
        `PreTrainedTokenizerFast`, uses `tokenizer.json` unchanged. The word-length limit is that of
        `tokenizer.json`. Its padding and maximum length are ignored. Without `tokenizer.json`, the
        pieces added to the vocabulary are read from `tokenizer_config.json`, or else from
        `added_tokens.json`.

        A warning says where these files contradict each other, and which one is used. A class that
        is not read here, or that contradicts the files, is an error. In `vocab.txt`, as in
        `transformers`, the last of equal lines counts, an empty line is no piece, and `[PAD]` and
        `[MASK]` may be missing.

        Args:
            path: the directory or file.
            lowercase: whether to lower-case text, overriding the files. If neither specifies it, a
                vocabulary with capital letters is cased.

        Raises:
            DataError: the file is missing or invalid, or another class's.
        """
        return cls(read_definition(Path(path), lowercase=lowercase))

    def save(
        self,
        directory: str | Path,
        *,
        model_max_length: int | None = None,
        overwrite: bool = False,
    ) -> None:
        """Write `tokenizer.json`, `tokenizer_config.json` and the vocabulary, also for other tools.

        Args:
            directory: output directory; created if missing. Its other files are not changed.
            model_max_length: maximum sequence length of the model, for other tools.
            overwrite: replace the files of a tokenizer in the directory.

        Raises:
            OutputError: the directory has files of a tokenizer, or cannot be written; then nothing
                in it has changed.
        """
        with locked_output(directory, kind="whole directory"):
            existing = [path for name in FILES if (path := Path(directory, name)).exists()]
            if existing and not overwrite:
                raise exists_error(min(existing))
            with new_directory(directory, last="tokenizer.json") as new:
                write_definition(self.definition, new, model_max_length=model_max_length)

    def __reduce__(self) -> tuple[type[Tokenizer], tuple[Definition]]:
        return Tokenizer, (self.definition,)

    def __repr__(self) -> str:
        case = "lowercase" if self.lowercase else "cased"
        return f"<Tokenizer: {self.definition.kind}, {self.vocab_size:,} pieces, {case}>"

    @overload
    def __call__(  # type: ignore[overload-overlap]  # a text is a sequence of texts too
        self,
        texts: str,
        pairs: str | None = None,
        *,
        max_length: int | None = None,
        truncation: Truncation = "error",
    ) -> Encoding: ...
    @overload
    def __call__(
        self,
        texts: Iterable[str],
        pairs: Iterable[str] | None = None,
        *,
        max_length: int | None = None,
        truncation: Truncation = "error",
    ) -> Encodings: ...
    def __call__(
        self,
        texts: str | Iterable[str],
        pairs: str | Iterable[str] | None = None,
        *,
        max_length: int | None = None,
        truncation: Truncation = "error",
    ) -> Encoding | Encodings:
        """Encode one text or several; see `encode` and `encode_batch`.

        Nothing is padded: there is no `attention_mask`, since arrays have different lengths.

        Raises:
            DataError: a text has a lone surrogate, or is too long.
            SettingsError: `truncation` is unknown.
        """
        options: dict[str, Any] = {"max_length": max_length, "truncation": truncation}
        if isinstance(texts, str):
            if pairs is not None and not isinstance(pairs, str):
                raise DataError("one first text, but several second ones")
            return self.encode(texts, pairs, **options)
        if isinstance(pairs, str):
            raise DataError("several first texts, but one second one")
        seconds = None if pairs is None else list(pairs)
        return Encodings(tuple(self.encode_batch(list(texts), seconds, **options)))

    def to_lowercase(self) -> Tokenizer:
        """Return a tokenizer that converts texts to lower case, and keeps accents as this does."""
        return type(self)(self.definition.to_lowercase())

    def num_special_tokens(self, *, pair: bool) -> int:
        """The number of special tokens around a text, or around a pair of texts."""
        return len(self._start) + len(self._end) + (len(self._separator) if pair else 0)

    def segments(
        self,
        texts: Sequence[str] | Sequence[Sequence[str]],
        *,
        typed_mask: bool = False,
        where: Sequence[str] | None = None,
    ) -> list[Segment]:
        """The tokens of each text, without special tokens and never truncated.

        Args:
            texts: texts, or lists of words. Each word of a list is tokenised separately, word
                numbers are indices in the list, and offsets are within the word. A word of only
                control characters has no tokens.
            typed_mask: whether `[MASK]` in a text is the mask token.
            where: the name of each row in errors; if omitted, `row 1` and so on.

        Raises:
            DataError: a row is not a text, or has a lone surrogate.
        """
        return self._segmenter.segments(texts, typed_mask=typed_mask, where=where)

    def frame(
        self, first: Segment, second: Segment | None = None, *, truncated_tokens: int = 0
    ) -> Encoding:
        """Add special tokens around one segment or two: in BERT, `[CLS]` and `[SEP]`."""
        start, end = special_tokens(self._start), special_tokens(self._end)
        parts = [start, first]
        if second is not None:
            parts += [special_tokens(self._separator), second]
        parts.append(end)
        lengths = [len(part) for part in parts]
        special = [part is not first and part is not second for part in parts]
        types = np.zeros(sum(lengths), np.int8)
        if second is not None:
            types[sum(lengths[:3]) :] = self.definition.frame.second_type
        input_ids = np.concatenate([part.input_ids for part in parts])
        special_tokens_mask = np.repeat(special, lengths)
        for number, kind in self._special_types:
            types[special_tokens_mask & (input_ids == number)] = kind
        return Encoding(
            input_ids=input_ids,
            token_type_ids=types,
            offsets=np.concatenate([part.offsets for part in parts]),
            word_ids=np.concatenate([part.word_ids for part in parts]),
            special_tokens_mask=special_tokens_mask,
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
        """Encode texts or pairs of texts, on as many threads as the library uses.

        Args:
            texts: texts, or lists of words (see `segments`).
            pairs: the second text of each row.
            max_length: maximum tokens of a sequence, special tokens included.
            truncation: what to do with a longer one. `"error"`: raise an error. `"longest_first"`:
                remove tokens, one by one, from the end of the longer segment, or of the second if
                both are equally long, as in the original code. `"first"`, `"second"`: truncate only
                this segment. Tokens are removed from the start if `truncation_side` is "left".
            typed_mask: whether `[MASK]` in a text is the mask token.
            where: the name of each row in errors.

        Raises:
            DataError: a row is not a text, has a lone surrogate, or is too long.
            SettingsError: `truncation` is unknown.
        """
        firsts = self.segments(texts, typed_mask=typed_mask, where=where)
        seconds: Sequence[Segment | None] = [None] * len(firsts)
        if pairs is not None:
            if len(pairs) != len(firsts):
                raise DataError(f"{len(firsts)} first texts, but {len(pairs)} second ones")
            seconds = self.segments(pairs, typed_mask=typed_mask, where=where)
        encodings = []
        for number, (first, second) in enumerate(zip(firsts, seconds, strict=True)):
            num_special = self.num_special_tokens(pair=second is not None)
            length = len(first) + (0 if second is None else len(second)) + num_special
            if max_length is None or length <= max_length:
                encodings.append(self.frame(first, second))
            else:
                segments = fit_segments(
                    first,
                    second,
                    max_length,
                    num_special,
                    truncation,
                    self.truncation_side,
                    where=row_name(number, where),
                )
                encodings.append(self.frame(*segments, truncated_tokens=length - max_length))
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
        """Encode a text or a pair of texts; see `encode_batch`.

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
        """Encode words that are already split; word numbers are indices in the list.

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
        """The ids of each text, int32 [tokens]: fast, without offsets.

        Raises:
            DataError: a row is not a text, or has a lone surrogate.
        """
        return self._segmenter.piece_ids(texts, where=where)

    def sequences(
        self,
        texts: Sequence[str] | Sequence[Sequence[str]] | Sequence[Sequence[int]],
        *,
        max_length: int | None = None,
        truncation: Truncation = "error",
        side: Side | None = None,
        start: Ints | None = None,
        where: Sequence[str] | None = None,
    ) -> list[TokenIds]:
        """The ids that `encode_batch` gives single texts: in half the time, without offsets.

        Args:
            texts: texts, lists of words (see `segments`), or lists of ids.
            max_length, truncation, where: as in `encode_batch`.
            side: the side at which tokens are removed; `truncation_side` if omitted.
            start: the ids before each text, which are kept; those of `encode_batch` if omitted.

        Raises:
            DataError: a row is not a text, has a lone surrogate or an unknown id, or is too long.
            SettingsError: `truncation` is unknown.
        """
        own_start, end = self._frame_ids
        start = own_start if start is None else start
        special = len(start) + len(end)
        side = side or self.truncation_side
        sequences = []
        for number, ids in enumerate(self._ids_of_rows(texts, where)):
            part, excess = ids, 0
            if max_length is not None and (length := len(ids) + special) > max_length:
                excess, name = length - max_length, row_name(number, where)
                part, _ = fit_segments(ids, None, max_length, special, truncation, side, where=name)
            sequences.append(TokenIds(np.concatenate([start, part, end]), excess))
        return sequences

    def _ids_of_rows(self, rows: Sequence[Any], where: Sequence[str] | None) -> Sequence[Ints]:
        """Return the ids of texts, of lists of words, or of lists of ids.

        Raises:
            DataError: a row is not a text, has a lone surrogate, or an id is not in the vocabulary.
        """
        first = rows[0] if len(rows) else ""
        if not isinstance(first, list):
            return self.piece_ids(rows, where=where)
        if not isinstance(next(iter(first), None), int):
            return [segment.input_ids for segment in self.segments(rows, where=where)]
        for number, ids in enumerate(rows):
            if not all(isinstance(one, int) and 0 <= one < self.vocab_size for one in ids):
                raise DataError(
                    f"ids are from 0 to {self.vocab_size - 1}: they are of this model's vocabulary",
                    where=row_name(number, where),
                )
        return [np.array(ids, np.int32) for ids in rows]

    @property
    def truncation_side(self) -> Side:
        """The side at which texts that are too long lose their tokens, as the files say."""
        return self.definition.truncation_side

    @property
    def special_types(self) -> list[tuple[int, int]]:
        """The ids of special pieces that have a token type of their own, and these types."""
        return self._special_types

    @property
    def puts_cls_last(self) -> bool:
        """Whether `[CLS]` is the last piece of a text, after `[SEP]` (XLNet)."""
        return self.has("cls") and self._end[-1:] == [self.cls_id]

    @cached_property
    def _frame_ids(self) -> tuple[Ints, Ints]:
        """The ids before and after a single text."""
        return np.array(self._start, np.int32), np.array(self._end, np.int32)
