"""The splitters of `BertJapaneseTokenizer`: BERT's own, MeCab, Sudachi and Juman++."""

from __future__ import annotations

import importlib.util
import re
import unicodedata
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar, Literal

from ..errors import BertworksError, import_optional
from .aligned_text import AlignedText
from .definition import Origin
from .word_splitters import Spans, WordSplitter
from .wordpiece import Normalization

SubwordType = Literal["wordpiece", "character", "sentencepiece"]
SudachiMode = Literal["A", "B", "C"]

_WORDS = re.compile(r"\S+")
_WHAT = "The tokenizer class BertJapaneseTokenizer"


@dataclass(frozen=True, kw_only=True)
class JapaneseSplitter(WordSplitter):
    """Words of one of the class's libraries."""

    subword_type: SubwordType = "wordpiece"  # how words are split into pieces
    composes: bool = True  # whether to compose characters (NFKC) first
    lowercases: bool = False  # whether words are lower-cased
    trims: bool = False  # whether white space is removed around words

    class_name = "BertJapaneseTokenizer"
    word_type: ClassVar[str]  # `word_tokenizer_type` in the settings

    @property
    def normalization(self) -> Normalization:
        return Normalization(self.lowercases, False, clean_text=False, split_ideographs=False)

    @property
    def characters(self) -> bool:
        return self.subword_type == "character"

    def correct(self, text: str) -> tuple[str, Origin]:
        if not self.composes or text.isascii():
            return text, None
        composed = AlignedText(text)
        composed.normalize("NFKC")
        return composed.text, composed.origin

    @abstractmethod
    def load_words(self) -> Callable[[str], Iterable[str]]:
        """Return what yields the words of a text, in their order."""

    def load(self, vocabulary: Mapping[str, int]) -> Callable[[str], Spans]:
        del vocabulary
        words_of = self.load_words()
        lock = Lock()  # the next text overwrites the words of the last one

        def spans(text: str) -> Spans:
            with lock:
                words = list(words_of(text))
            return self._parts(text, words)

        return spans

    def _parts(self, text: str, words: Iterable[str]) -> Iterator[tuple[int, int]]:
        end = 0
        for word in words:
            start = text.find(word, end)
            if start < 0:
                raise ValueError(
                    f"the word {word!r}, which {self.word_type} found, is not in the text"
                )
            end = start + len(word)
            if self.subword_type == "wordpiece":
                yield from (part.span() for part in _WORDS.finditer(text, start, end))
            elif self.trims:
                cut = len(word) - len(word.lstrip())
                if cut < len(word):
                    yield start + cut, start + len(word.rstrip())
            else:
                yield start, end

    def settings(self) -> dict[str, Any]:
        return {
            "do_lower_case": self.lowercases,
            "word_tokenizer_type": self.word_type,
            "subword_tokenizer_type": self.subword_type,
            **self.own_settings(),
        }

    def own_settings(self) -> dict[str, Any]:
        """The entries that only this library has."""
        return {}


@dataclass(frozen=True, kw_only=True)
class MecabSplitter(JapaneseSplitter):
    """MeCab's words."""

    dictionary: str | None = "unidic_lite"  # the package of the dictionary; None: MeCab's own
    options: str = ""  # more options of MeCab's command line

    word_type = "mecab"

    def load_words(self) -> Callable[[str], Iterable[str]]:
        fugashi = import_optional("fugashi", "japanese", _WHAT)
        options = self.options
        if self.dictionary is not None:
            folder = Path(import_optional(self.dictionary, "japanese", _WHAT).DICDIR)
            if self.dictionary == "unidic" and not folder.is_dir():
                raise BertworksError(
                    f"{_WHAT} needs the dictionary unidic, which is not downloaded",
                    fix="Run: python -m unidic download",
                )
            options = f'-d "{folder}" -r "{folder / "mecabrc"}" {options}'
        tagger = fugashi.GenericTagger(options)
        return lambda text: (word.surface for word in tagger(text))

    def own_settings(self) -> dict[str, Any]:
        mecab = {
            "mecab_dic": self.dictionary,
            "mecab_option": self.options or None,
            "normalize_text": self.composes,
        }
        return {"mecab_kwargs": mecab}


@dataclass(frozen=True, kw_only=True)
class SudachiSplitter(JapaneseSplitter):
    """Sudachi's words."""

    mode: SudachiMode = "A"  # how long words are: A short, B middle, C long
    dictionary: str = "core"  # small, core or full

    word_type = "sudachi"

    def load_words(self) -> Callable[[str], Iterable[str]]:
        sudachi = import_optional("sudachipy", "sudachi", _WHAT)
        package = f"sudachidict_{self.dictionary}"
        if importlib.util.find_spec(package) is None:
            raise BertworksError(
                f"{_WHAT} needs the package {package!r}, which is not installed",
                fix=f"Run: pip install {package}",
            )
        dictionary = sudachi.Dictionary(dict=self.dictionary)
        make = getattr(dictionary, "tokenizer", dictionary.create)  # its name since version 0.7
        tagger = make(getattr(sudachi.SplitMode, self.mode))
        return lambda text: (word.surface() for word in tagger.tokenize(text))

    def own_settings(self) -> dict[str, Any]:
        sudachi = {
            "normalize_text": self.composes,
            "trim_whitespace": self.trims,
            "sudachi_split_mode": self.mode,
            "sudachi_dict_type": self.dictionary,
        }
        return {"sudachi_kwargs": sudachi}


@dataclass(frozen=True, kw_only=True)
class JumanppSplitter(JapaneseSplitter):
    """Words of Juman++, a program that is installed on its own."""

    word_type = "jumanpp"

    def load_words(self) -> Callable[[str], Iterable[str]]:
        juman = import_optional("rhoknp", "jumanpp", _WHAT).Jumanpp()
        if not juman.is_available():
            raise BertworksError(
                f"{_WHAT} needs the program jumanpp, which is not installed",
                fix="Install Juman++ (github.com/ku-nlp/jumanpp).",
            )

        def words(text: str) -> Iterator[str]:
            return (word.text for word in juman.apply_to_sentence(text.strip()).morphemes)

        return words

    def own_settings(self) -> dict[str, Any]:
        juman = {"normalize_text": self.composes, "trim_whitespace": self.trims}
        return {"jumanpp_kwargs": juman}


@dataclass(frozen=True, kw_only=True)
class WholeTextSplitter(JapaneseSplitter):
    """No words (`do_word_tokenize: false`): the text is split into pieces as it is."""

    composes: bool = False

    word_type = "basic"

    def load_words(self) -> Callable[[str], Iterable[str]]:
        return lambda text: [text]

    @property
    def lowercases_words(self) -> bool:
        return False

    def own_settings(self) -> dict[str, Any]:
        return {"do_word_tokenize": False}


@dataclass(frozen=True, kw_only=True)
class BasicSplitter(JapaneseSplitter):
    """BERT's words, without splitting around ideographs, on composed characters (NFC)."""

    word_type = "basic"

    @property
    def lowercases_words(self) -> bool:
        return False  # the text is lower-cased first

    def correct(self, text: str) -> tuple[str, Origin]:
        clean = AlignedText(text)
        clean.replace_matches(_ANY, _clean)
        clean.normalize("NFC")
        if self.lowercases:
            clean.lower()
            clean.normalize("NFD")
            clean.select(lambda char: unicodedata.category(char) != "Mn")
        return clean.text, clean.origin

    def load_words(self) -> Callable[[str], Iterable[str]]:
        return _basic_words


_ANY = re.compile(r"[^a-zA-Z0-9 ]")
_ASCII_PUNCTUATION = re.compile(r"[!-/:-@\[-`{-~]")


def _clean(match: re.Match[str]) -> str:
    char = match[0]
    category = unicodedata.category(char)
    if char in "\t\n\r" or category == "Zs":
        return " "
    return "" if char == "\ufffd" or category[0] == "C" else char


def _basic_words(text: str) -> Iterator[str]:
    for word in text.split():
        start = 0
        for place, char in enumerate(word):
            if _ASCII_PUNCTUATION.match(char) or unicodedata.category(char)[0] == "P":
                if start < place:
                    yield word[start:place]
                yield char
                start = place + 1
        if start < len(word):
            yield word[start:]
