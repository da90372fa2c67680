"""Read the files of WordPiece on words that another library splits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import DataError
from .added_pieces import check_added, read_added
from .schemas import JapaneseSettings, RoFormerSettings, parse
from .special_pieces import named_pieces
from .tokenizer_classes import TokenizerClass
from .word_splitters import JiebaSplitter, MecabSplitter, SplitWordsDefinition, WordSplitter
from .wordpiece_vocabulary import number_pieces, read_vocabulary

_MAX_WORD_CHARACTERS = 100  # of these classes; a longer word is unknown


def read_split_words(
    file: Path,
    settings: Mapping[str, Any],
    lowercase: bool | None,
    opener: TokenizerClass,
) -> SplitWordsDefinition:
    """Read `vocab.txt` and the settings of a class that splits words with another library.

    Raises:
        DataError: a file is invalid, or the settings name a splitter that is not supported.
    """
    ids, directory = read_vocabulary(file), file.parent
    tokens, source = read_added(directory, dict(settings))
    check_added(tokens, ids, source)
    pieces, added_pieces = number_pieces(ids, tokens, where=source)
    roles = named_pieces(directory, settings, opener.roles)
    splitter = _read_splitter(settings, lowercase, opener.name, str(directory))
    return SplitWordsDefinition(
        tuple(pieces),
        tuple(added_pieces),
        splitter.normalization,
        _MAX_WORD_CHARACTERS,
        opener.frame.frame_for(roles),
        roles,
        splitter,
    )


def _read_splitter(
    settings: Mapping[str, Any], lowercase: bool | None, class_name: str, where: str
) -> WordSplitter:
    if class_name == RoFormerSettings.CLASS:
        chinese = parse(RoFormerSettings, dict(settings), where=where, fix=None)
        lowercases = chinese.do_lower_case if lowercase is None else lowercase
        return JiebaSplitter(lowercases, chinese.strip_accents)
    japanese = parse(JapaneseSettings, dict(settings), where=where, fix=_FIX)
    if not (japanese.do_word_tokenize and japanese.do_subword_tokenize):
        raise DataError("BertJapaneseTokenizer must split words and pieces", where=where)
    mecab = japanese.mecab_kwargs
    return MecabSplitter(
        mecab.mecab_dic,
        mecab.mecab_option or "",
        mecab.normalize_text,
        japanese.do_lower_case if lowercase is None else lowercase,
        japanese.subword_tokenizer_type == "character",
    )


_FIX = "Of BertJapaneseTokenizer, MeCab's words with pieces or characters are supported."
