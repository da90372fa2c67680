"""The names of a tokenizer's files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import DataError
from ..utils.json_files import read_json

VOCAB, TOKENIZER, CONFIG = "vocab.txt", "tokenizer.json", "tokenizer_config.json"
MERGES, BPE_VOCAB, CODES = "merges.txt", "vocab.json", "bpe.codes"
ALBERT, FAIRSEQ = "spiece.model", "sentencepiece.bpe.model"
DEBERTA_V2, REMBERT, KOBERT = "spm.model", "sentencepiece.model", "tokenizer_78b3253a26.model"
SENTENCEPIECES = (ALBERT, FAIRSEQ, DEBERTA_V2, REMBERT, KOBERT)
IN_ORDER = (TOKENIZER, VOCAB, MERGES, *SENTENCEPIECES)
ADDED_TOKENS_FILE, SPECIAL = "added_tokens.json", "special_tokens_map.json"
VOCABULARY_FILES = {VOCAB, MERGES, BPE_VOCAB, CODES, *SENTENCEPIECES, ADDED_TOKENS_FILE, SPECIAL}
FILES = frozenset({TOKENIZER, CONFIG, *VOCABULARY_FILES})
"""The names of all files of a tokenizer."""


def read_optional(file: Path) -> dict[str, Any]:
    return read_json(file, DataError) if file.exists() else {}
