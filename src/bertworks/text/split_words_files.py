"""Read the files of tokenizers whose words another library splits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import DataError
from .added_pieces import check_added, extend_vocabulary, read_added
from .file_names import ALBERT, VOCAB
from .japanese_words import (
    BasicSplitter,
    JapaneseSplitter,
    JumanppSplitter,
    MecabSplitter,
    SudachiSplitter,
    WholeTextSplitter,
)
from .schemas import JapaneseSettings, RoFormerSettings, parse
from .sentencepiece_files import read_sentencepiece
from .special_pieces import named_pieces
from .tokenizer_classes import TokenizerClass
from .word_splitters import (
    JiebaSplitter,
    SplitWordsDefinition,
    SplitWordsTree,
    WordSplitter,
)
from .wordpiece_vocabulary import number_pieces, read_vocabulary

_MAX_WORD_CHARACTERS = 100  # of these classes; a longer word is unknown


def read_split_words(
    directory: Path,
    settings: Mapping[str, Any],
    lowercase: bool | None,
    opener: TokenizerClass,
) -> SplitWordsDefinition | SplitWordsTree:
    """Read the vocabulary and the settings of a class that splits words with another library.

    Raises:
        DataError: a file is missing or invalid, or the settings name what is not supported.
    """
    splitter = _read_splitter(settings, lowercase, opener.name, str(directory))
    is_sentencepiece = isinstance(splitter, JapaneseSplitter) and (
        splitter.subword_type == "sentencepiece"
    )
    file = directory / (ALBERT if is_sentencepiece else VOCAB)
    if not file.exists():
        raise DataError(f"there is no {file.name}", where=str(directory))
    tokens, source = read_added(directory, dict(settings))
    if is_sentencepiece:
        read = read_sentencepiece(file, {**settings}, opener, lowercase=None)
        tree = extend_vocabulary(read, tokens, source).tree
        config = {**settings, **splitter.settings(), "tokenizer_class": opener.name}
        return SplitWordsTree(tree, read.roles, read.frame, config, read.files, splitter=splitter)
    ids = read_vocabulary(file)
    check_added(tokens, ids, source)
    pieces, added_pieces = number_pieces(ids, tokens, where=source)
    roles = named_pieces(directory, settings, opener.roles)
    return SplitWordsDefinition(
        tuple(pieces),
        tuple(added_pieces),
        splitter.normalization,
        _MAX_WORD_CHARACTERS,
        opener.frame.frame_for(roles),
        roles,
        splitter=splitter,
    )


def _read_splitter(
    settings: Mapping[str, Any], lowercase: bool | None, class_name: str, where: str
) -> WordSplitter:
    if class_name == RoFormerSettings.CLASS:
        chinese = parse(RoFormerSettings, dict(settings), where=where, fix=None)
        lowercases = chinese.do_lower_case if lowercase is None else lowercase
        return JiebaSplitter(lowercases, chinese.strip_accents)
    japanese = parse(JapaneseSettings, dict(settings), where=where, fix=None)
    common: dict[str, Any] = {
        "subword_type": japanese.subword_tokenizer_type,
        "lowercases": japanese.do_lower_case if lowercase is None else lowercase,
    }
    if not japanese.do_word_tokenize:
        return WholeTextSplitter(**{**common, "lowercases": False})
    if japanese.word_tokenizer_type == "mecab":
        mecab = japanese.mecab_kwargs
        return MecabSplitter(
            **common,
            composes=mecab.normalize_text,
            dictionary=mecab.mecab_dic,
            options=mecab.mecab_option or "",
        )
    if japanese.word_tokenizer_type == "sudachi":
        sudachi = japanese.sudachi_kwargs
        return SudachiSplitter(
            **common,
            composes=sudachi.normalize_text,
            trims=sudachi.trim_whitespace,
            mode=sudachi.sudachi_split_mode,
            dictionary=sudachi.sudachi_dict_type,
        )
    if japanese.word_tokenizer_type == "jumanpp":
        juman = japanese.jumanpp_kwargs
        return JumanppSplitter(**common, composes=juman.normalize_text, trims=juman.trim_whitespace)
    return BasicSplitter(**common)
