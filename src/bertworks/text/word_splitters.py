"""WordPiece on words that another library splits: MeCab for Japanese, jieba for Chinese.

    BertJapaneseTokenizer   Japanese BERT: MeCab's words, then WordPiece or single characters
    RoFormerTokenizer       RoFormer: jieba's words if they are pieces, else single ideographs

Such a tokenizer cannot be described in `tokenizer.json`; its files are `vocab.txt` and the
settings.
"""

from __future__ import annotations

import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar

import numpy as np
import tokenizers
from tokenizers import pre_tokenizers

from ..errors import DataError, import_optional
from .definition import WordPieceDefinition
from .normalization import Normalization, Origin, check_text

Spans = Iterator[tuple[int, int]]
_ISOLATION = tokenizers.normalizers.BertNormalizer(
    clean_text=False, handle_chinese_chars=True, strip_accents=False, lowercase=False
)
"""Puts spaces around ideographs."""
_WORDS = re.compile(r"\S+")


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


@dataclass(frozen=True)
class MecabSplitter(WordSplitter):
    """Words of MeCab, on composed characters (NFKC)."""

    dictionary: str | None = "unidic_lite"  # the package of the dictionary; None: MeCab's own
    options: str = ""  # more options of MeCab's command line
    composes: bool = True  # whether to compose characters (NFKC) first
    lowercases: bool = False  # whether words are lower-cased
    characters: bool = False  # whether each character of a word is looked up alone

    class_name = "BertJapaneseTokenizer"

    @property
    def normalization(self) -> Normalization:
        return Normalization(self.lowercases, False, clean_text=False, split_ideographs=False)

    def correct(self, text: str) -> tuple[str, Origin]:
        return compose(text) if self.composes else (text, None)

    def load(self, vocabulary: Mapping[str, int]) -> Callable[[str], Spans]:
        del vocabulary
        what = f"The tokenizer class {self.class_name}"
        fugashi = import_optional("fugashi", "japanese", what)
        options = self.options
        if self.dictionary is not None:
            folder = Path(import_optional(self.dictionary, "japanese", what).DICDIR)
            options = f'-d "{folder}" -r "{folder / "mecabrc"}" {options}'
        tagger = fugashi.GenericTagger(options)
        lock = Lock()  # the next text overwrites the words of the last one

        def spans(text: str) -> Spans:
            with lock:
                words = [word.surface for word in tagger(text)]
            end = 0
            for word in words:
                start = text.index(word, end)
                end = start + len(word)
                if self.characters:
                    yield start, end
                else:
                    yield from (part.span() for part in _WORDS.finditer(text, start, end))

        return spans

    def settings(self) -> dict[str, Any]:
        mecab = {
            "mecab_dic": self.dictionary,
            "mecab_option": self.options or None,
            "normalize_text": self.composes,
        }
        return {
            "do_lower_case": self.lowercases,
            "word_tokenizer_type": "mecab",
            "subword_tokenizer_type": "character" if self.characters else "wordpiece",
            "mecab_kwargs": mecab,
        }


@dataclass(frozen=True)
class JiebaSplitter(WordSplitter):
    """Words of jieba that are pieces; other words are split around ideographs."""

    lowercases: bool = True
    strip_accents: bool | None = None

    class_name = "RoFormerTokenizer"
    writes_json = True

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
                    start += len(part)  # noqa: PLW2901

        return spans

    def settings(self) -> dict[str, Any]:
        return {"do_lower_case": self.lowercases, "strip_accents": self.strip_accents}


@dataclass(frozen=True)
class SplitWordsDefinition(WordPieceDefinition):
    """WordPiece on the words of a splitter."""

    splitter: WordSplitter = MecabSplitter()

    @property
    def lowercase(self) -> bool:
        return self.splitter.lowercases

    def to_lowercase(self) -> SplitWordsDefinition:
        if self.lowercase:
            return self
        raise DataError("this tokenizer cannot lower-case text before it is split into words")

    @property
    def context_free(self) -> bool:
        return False  # a text may have other words beside other text

    @property
    def breaks(self) -> None:
        return None

    def description(self) -> Mapping[str, Any]:
        settings = {"class": self.splitter.class_name, **self.splitter.settings()}
        return {**super().description(), "splitter": settings}

    def correct(self, text: str, *, where: str) -> tuple[str, Origin]:
        check_text(text, where=where)
        return self.splitter.correct(text)

    def library(self, *, typed_mask: bool, split: bool) -> tokenizers.Tokenizer:
        library = super().library(typed_mask=typed_mask, split=split)
        library.normalizer = self.splitter.normalizer
        pre_tokenizer = _PreTokenizer(self.splitter, self.ids)
        library.pre_tokenizer = pre_tokenizers.PreTokenizer.custom(pre_tokenizer)
        return library


class _PreTokenizer:
    """A splitter in the form that the library calls."""

    def __init__(self, splitter: WordSplitter, vocabulary: Mapping[str, int]) -> None:
        self.spans = splitter.load(vocabulary)
        self.lowercases = splitter.lowercases and splitter.normalizer is None
        self.characters = splitter.characters

    def pre_tokenize(self, text: tokenizers.PreTokenizedString) -> None:
        text.split(self._split)

    def _split(
        self, _: int, text: tokenizers.NormalizedString
    ) -> list[tokenizers.NormalizedString]:
        parts = (text[start:end] for start, end in self.spans(text.normalized))
        words = [part for part in parts if part is not None]
        if self.lowercases:
            for word in words:
                word.lowercase()
        return [part for word in words for part in _characters(word)] if self.characters else words


def _characters(word: tokenizers.NormalizedString) -> list[tokenizers.NormalizedString]:
    """The characters of a word; as in `transformers`, they are composed whatever the settings."""
    word.nfkc()
    parts = (word[at : at + 1] for at in range(len(word.normalized)))
    return [part for part in parts if part is not None]


def compose(text: str) -> tuple[str, Origin]:
    """Compose the characters of a text (NFKC).

    Returns:
        The composed text, and of each of its characters the first one in `text` that it came from,
        and one after the last.
    """
    if text.isascii():
        return text, None
    chunks: list[str] = []
    for char in text:
        is_apart = not chunks or _nfkc(chunks[-1] + char) == _nfkc(chunks[-1]) + _nfkc(char)
        if is_apart:
            chunks.append(char)
        else:
            chunks[-1] += char
    parts: list[str] = []
    origins: list[tuple[int, int]] = []
    start = 0
    for chunk in chunks:
        end = start + len(chunk)
        part = _nfkc(chunk)
        parts.append(part)
        origins += [(start, end)] * len(part)
        start = end
    return "".join(parts), np.array(origins, np.int64).reshape(-1, 2)


def _nfkc(text: str) -> str:
    return unicodedata.normalize("NFKC", text)
