"""Pieces of words that another library splits: MeCab for Japanese, jieba for Chinese.

    BertJapaneseTokenizer   words of MeCab, Sudachi, Juman++ or BERT (`japanese_words.py`), then
                            WordPiece, single characters or SentencePiece
    RoFormerTokenizer       jieba's words if they are pieces, else single ideographs

Such a tokenizer cannot be described in `tokenizer.json`; its files are a vocabulary (`vocab.txt`
or `spiece.model`) and the settings.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import tokenizers
from tokenizers import normalizers, pre_tokenizers

from ..errors import DataError, import_optional
from .definition import Definition, Origin, check_text
from .tree import TreeDefinition
from .wordpiece import Normalization, WordPieceDefinition

Spans = Iterator[tuple[int, int]]
_ISOLATION = tokenizers.normalizers.BertNormalizer(
    clean_text=False, handle_chinese_chars=True, strip_accents=False, lowercase=False
)
"""Puts spaces around ideographs."""


class WordSplitter(ABC):
    """Splits texts into the words in which pieces are looked up; a frozen dataclass of settings."""

    class_name: ClassVar[str]  # the `transformers` class that splits like this
    writes_json: ClassVar[bool] = (
        False  # whether that class reads its vocabulary from `tokenizer.json`
    )

    @property
    @abstractmethod
    def normalization(self) -> Normalization:
        """What BERT's clean-up would do to words like these."""

    @property
    def normalizer(self) -> tokenizers.normalizers.Normalizer | None:
        """The library's normaliser, which is applied before the text is split."""
        return None

    def correct(self, text: str) -> tuple[str, Origin]:
        """Return the text to give to the library, and the original positions of its characters."""
        return text, None

    @abstractmethod
    def load(self, vocabulary: Mapping[str, int]) -> Callable[[str], Spans]:
        """Return what yields the first and the last character, exclusive, of each word of a text.

        Raises:
            BertworksError: the library is not installed.
        """

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """The entries of `tokenizer_config.json`."""

    @property
    def characters(self) -> bool:
        """Whether each character of a word is looked up alone."""
        return False

    @property
    @abstractmethod
    def lowercases(self) -> bool:
        """Whether text is lower-cased."""

    @property
    def lowercases_words(self) -> bool:
        """Whether words are lower-cased after they are split."""
        return self.lowercases


@dataclass(frozen=True)
class JiebaSplitter(WordSplitter):
    """Words of jieba that are pieces; other words are split around ideographs."""

    lowercases: bool = True
    strip_accents: bool | None = None

    class_name = "RoFormerTokenizer"
    writes_json = True

    @property
    def lowercases_words(self) -> bool:
        return False  # the normaliser lower-cases the text

    @property
    def normalization(self) -> Normalization:
        return Normalization(self.lowercases, self.strip_accents, split_ideographs=False)

    @property
    def normalizer(self) -> tokenizers.normalizers.Normalizer:
        return self.normalization.normalizer

    def load(self, vocabulary: Mapping[str, int]) -> Callable[[str], Spans]:
        jieba = import_optional("rjieba", "chinese", f"The tokenizer class {self.class_name}")

        def spans(text: str) -> Spans:
            for word, start, end in jieba.tokenize(text, hmm=False):
                if word in vocabulary:
                    yield start, end
                    continue
                for part in _ISOLATION.normalize_str(word).split():
                    yield start, start + len(part)
                    start += len(part)  # noqa: PLW2901  # of the next part

        return spans

    def settings(self) -> dict[str, Any]:
        return {"do_lower_case": self.lowercases, "strip_accents": self.strip_accents}


class _SplitWords(Definition):
    """A tokenizer whose words are those of a splitter."""

    splitter: WordSplitter

    @property
    def lowercase(self) -> bool:
        return self.splitter.lowercases

    def to_lowercase(self) -> Self:
        if self.lowercase:
            return self
        raise DataError("this tokenizer cannot lower-case text before it is split into words")

    @property
    def context_free(self) -> bool:
        return False  # a text may have other words next to other text

    @property
    def breaks(self) -> None:
        return None

    def description(self) -> Mapping[str, Any]:
        settings = {"class": self.splitter.class_name, **self.splitter.settings()}
        # The other base class has this method.
        return {**super().description(), "splitter": settings}  # type: ignore[safe-super]

    def correct(self, text: str, *, where: str) -> tuple[str, Origin]:
        check_text(text, where=where)
        return self.splitter.correct(text)


@dataclass(frozen=True)
class SplitWordsDefinition(_SplitWords, WordPieceDefinition):
    """WordPiece on the words of a splitter."""

    splitter: WordSplitter = field(kw_only=True)

    def library(self, *, typed_mask: bool, split: bool) -> tokenizers.Tokenizer:
        library = super().library(typed_mask=typed_mask, split=split)
        library.normalizer = self.splitter.normalizer
        pre_tokenizer = _PreTokenizer(self.splitter, self.ids)
        library.pre_tokenizer = pre_tokenizers.PreTokenizer.custom(pre_tokenizer)
        return library


@dataclass(frozen=True)
class SplitWordsTree(_SplitWords, TreeDefinition):
    """SentencePiece on each of the words of a splitter."""

    splitter: WordSplitter = field(kw_only=True)

    def make_library(self, *, typed_mask: bool, split: bool) -> tokenizers.Tokenizer:
        library = super().make_library(typed_mask=typed_mask, split=split)
        normalizer = library.normalizer
        if self.cluster_correction is not None:
            correction = normalizers.Normalizer.custom(self.cluster_correction)
            normalizer = normalizers.Sequence([correction, normalizer])
        words = _PreTokenizer(self.splitter, self.ids, normalizer)
        library.normalizer = None
        splitters = [pre_tokenizers.PreTokenizer.custom(words), library.pre_tokenizer]
        library.pre_tokenizer = pre_tokenizers.Sequence(splitters)
        return library


class _PreTokenizer:
    """A splitter in the form that the library calls.

    Args:
        splitter: splits texts into words.
        vocabulary: the ids of pieces.
        normalizer: applied to each word.
    """

    def __init__(
        self,
        splitter: WordSplitter,
        vocabulary: Mapping[str, int],
        normalizer: tokenizers.normalizers.Normalizer | None = None,
    ) -> None:
        self.spans = splitter.load(vocabulary)
        self.lowercases = splitter.lowercases_words
        self.characters = splitter.characters
        self.normalizer = normalizer

    def pre_tokenize(self, text: tokenizers.PreTokenizedString) -> None:
        text.split(self._split)

    def _split(
        self, _: int, text: tokenizers.NormalizedString
    ) -> list[tokenizers.NormalizedString]:
        parts = (text[start:end] for start, end in self.spans(text.normalized))
        words = [part for part in parts if part is not None]
        for word in words:
            if self.lowercases:
                _lowercase(word)
            if self.normalizer is not None:
                self.normalizer.normalize(word)
        words = [word for word in words if word.normalized]
        return [part for word in words for part in _characters(word)] if self.characters else words


def _lowercase(word: tokenizers.NormalizedString) -> None:
    """Lower-case a word; a capital sigma at its end becomes ς, which the library does not do."""
    characters = iter(word.normalized.lower())
    has_sigma = "Σ" in word.normalized
    word.lowercase()
    if has_sigma:
        word.map(lambda _: next(characters))


def _characters(word: tokenizers.NormalizedString) -> list[tokenizers.NormalizedString]:
    """The characters of a word; as in `transformers`, they are composed whatever the settings."""
    word.nfkc()
    parts = (word[at : at + 1] for at in range(len(word.normalized)))
    return [part for part in parts if part is not None]
