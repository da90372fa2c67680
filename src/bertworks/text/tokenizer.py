"""Text to token ids and back, with character offsets and word numbers."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, cast, overload

import numpy as np
import tokenizers
from numpy.typing import NDArray

from ..errors import DataError
from ..utils.directories import new_directory
from ..utils.outputs import exists_error, locked_output
from .definition import MAX_WORD_CHARACTERS, Definition, WordPieceDefinition
from .encoding import (
    Encoding,
    Encodings,
    Ints,
    Segment,
    TokenIds,
    Truncation,
    concatenate_segments,
    move_offsets,
    special_tokens,
    trim_offsets,
    truncated,
)
from .files import FILES, read_definition, write_definition
from .normalization import Normalization, Origin
from .portions import Portion, group_portions, portions
from .tree import TreeDefinition


class Tokenizer:
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
        self.definition = definition
        self.pieces = definition.pieces
        frame = definition.frame
        self._start, self._separator, self._end = (
            [definition.ids[piece] for piece in part]
            for part in (frame.start, frame.between, frame.end)
        )
        self._libraries: dict[tuple[bool, bool], tokenizers.Tokenizer] = {}

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
        (BPE), `spiece.model` and `sentencepiece.bpe.model`; in a directory, the first of these that
        exists is read. `tokenizer_config.json` overrides what the directory's `transformers` class
        reads from it: for WordPiece `do_lower_case`, `strip_accents` and `tokenize_chinese_chars`,
        for RoBERTa and GPT-2 `add_prefix_space`; the general class, `PreTrainedTokenizerFast`, uses
        `tokenizer.json` unchanged. The word-length limit is that of `tokenizer.json`. Its padding
        and truncation are ignored. Without `tokenizer.json`, the pieces added to the vocabulary are
        read from `tokenizer_config.json`, or else from `added_tokens.json`.

        A warning says where these files contradict each other, and which one is used. BERT's files
        of a class that reads them in another way (`BertJapaneseTokenizer`, `MPNetTokenizer`) are
        refused. In `vocab.txt`, as in `transformers`, the last of equal lines counts, an empty line
        is no piece, and `[PAD]` and `[MASK]` may be missing.

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
        kind = type(self.definition).__name__.removesuffix("Definition")
        case = "lowercase" if self.lowercase else "cased"
        return f"<Tokenizer: {kind}, {self.vocab_size:,} pieces, {case}>"

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

    def num_special_tokens(self, *, pair: bool) -> int:
        """The number of special tokens around a text, or around a pair of texts."""
        return len(self._start) + len(self._end) + (len(self._separator) if pair else 0)

    @cached_property
    def unused_ids(self) -> Ints:
        """int32 [unused]: the ids of unused entries, `[unused0]` and so on."""
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
        _check_rows(texts)
        split = len(texts) > 0 and isinstance(texts[0], (list, tuple))
        rows: list[str | list[str]] = []
        origins_of_rows: list[Origin | list[Origin]] = []
        for number, row in enumerate(texts):
            name = _name(number, where)
            if split:
                if not isinstance(row, (list, tuple)):
                    raise DataError("not a list of words, like the rows before", where=name)
                words = [self.definition.correct(word, where=name) for word in row]
                rows.append([word for word, _ in words])
                origins_of_rows.append([origin for _, origin in words])
            else:
                text, origin = self.definition.correct(cast(str, row), where=name)
                rows.append(text)
                origins_of_rows.append(origin)
        library = self._library(typed_mask=typed_mask, split=split)
        encode = partial(library.encode_batch, is_pretokenized=split)
        parts: list[list[Segment]] = [[] for _ in rows]
        for part, encoding in self._encode_portions(rows, encode, may_cut=not typed_mask):
            segment = Segment(
                np.array(encoding.ids, np.int32),
                np.array(encoding.offsets, np.int32).reshape(-1, 2),
                np.array(encoding.word_ids, np.int32),
            )
            parts[part.row].append(_of_text(segment, part, parts[part.row]))
        segments = [concatenate_segments(part) for part in parts]
        for segment, origins in zip(segments, origins_of_rows, strict=True):
            move_offsets(segment, origins)
        if isinstance(self.definition, TreeDefinition):
            for segment, row in zip(segments, texts, strict=True):
                trim_offsets(segment, row, self.definition.marks)
        return segments

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
        """Encode texts or pairs of texts, on as many threads as the library uses.

        Args:
            texts: texts, or lists of words (see `segments`).
            pairs: the second text of each row.
            max_length: maximum tokens of a sequence, special tokens included.
            truncation: what to do with a longer one. `"error"`: raise an error. `"longest_first"`:
                remove tokens, one by one, from the end of the longer segment, or of the second if
                both are equally long, as in the original code. `"first"`, `"second"`: truncate only
                this segment.
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
                segments = truncated(
                    first, second, max_length, num_special, truncation, where=_name(number, where)
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
        _check_rows(texts)
        texts_to_split = [
            self.definition.correct(text, where=_name(number, where))[0]
            for number, text in enumerate(texts)
        ]
        parts: list[list[Ints]] = [[] for _ in texts_to_split]
        for part, found in self._encode_portions(texts_to_split, self._library().encode_batch_fast):
            parts[part.row].append(np.array(found.ids, np.int32))
        return [part[0] if len(part) == 1 else np.concatenate(part) for part in parts]

    def sequences(
        self,
        texts: Sequence[str],
        *,
        max_length: int | None = None,
        truncation: Truncation = "error",
        where: Sequence[str] | None = None,
    ) -> list[TokenIds]:
        """The ids that `encode_batch` gives single texts: in half the time, without offsets.

        Args:
            max_length, truncation, where: as in `encode_batch`.

        Raises:
            DataError: a row is not a text, has a lone surrogate, or is too long.
            SettingsError: `truncation` is unknown.
        """
        start, end = self._frame_ids
        special = len(start) + len(end)
        sequences = []
        for number, ids in enumerate(self.piece_ids(texts, where=where)):
            excess = 0 if max_length is None else max(0, len(ids) + special - max_length)
            if excess:
                assert max_length is not None
                name = _name(number, where)
                ids, _ = truncated(ids, None, max_length, special, truncation, where=name)  # noqa: PLW2901
            sequences.append(TokenIds(np.concatenate([start, ids, end]), excess))
        return sequences

    @cached_property
    def _frame_ids(self) -> tuple[Ints, Ints]:
        """The ids before and after a single text."""
        return np.array(self._start, np.int32), np.array(self._end, np.int32)

    def _encode_portions(
        self,
        rows: Sequence[str | list[str]],
        encode: Callable[..., list[tokenizers.Encoding]],
        *,
        may_cut: bool = True,
    ) -> Iterator[tuple[Portion, tokenizers.Encoding]]:
        """Yield the portions of texts, each with the library's encoding."""
        definition = self.definition
        longest_word = sys.maxsize
        # An added piece may be inside a word, and split it into shorter ones.
        if isinstance(definition, WordPieceDefinition) and not definition.added:
            longest_word = definition.max_word_characters
        breaks = definition.breaks if may_cut else None
        for group in group_portions(portions(rows, breaks, longest_word)):
            encoded = encode([part.text for part in group], add_special_tokens=False)
            yield from zip(group, encoded, strict=True)

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

    def _library(self, *, typed_mask: bool = False, split: bool = False) -> tokenizers.Tokenizer:
        key = typed_mask, split
        if key not in self._libraries:
            if typed_mask:
                self._role("mask")
            self._libraries[key] = self.definition.library(typed_mask=typed_mask, split=split)
        return self._libraries[key]


def _of_text(segment: Segment, part: Portion, previous: Sequence[Segment]) -> Segment:
    """The tokens of a portion with positions in the whole text; `before`: its earlier segments."""
    offsets = segment.offsets + np.where(segment.offsets >= part.gap, part.missing, 0)
    last = next((one for one in reversed(previous) if len(one)), None)
    words = 0 if last is None else int(last.word_ids[-1]) + 1
    return Segment(
        segment.input_ids,
        (offsets + part.start).astype(np.int32),
        (segment.word_ids + words).astype(np.int32),
    )


def _name(number: int, where: Sequence[str] | None) -> str:
    """The name of a row in errors."""
    return f"row {number + 1}" if where is None else where[number]


def _check_rows(texts: object) -> None:
    """Reject a single string: it is also a sequence of strings, but never meant as one."""
    if isinstance(texts, str):
        raise DataError("one text was given where a list of texts should be")
