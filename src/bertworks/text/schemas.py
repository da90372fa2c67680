"""The parts of a tokenizer's JSON files that are read; all others are ignored."""

from __future__ import annotations

from typing import Any, Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError

from ..errors import DataError


class _Normalizer(BaseModel):
    type: Literal["BertNormalizer"]
    clean_text: bool
    split_ideographs: bool = Field(alias="handle_chinese_chars")
    strip_accents: bool | None
    lowercase: bool


class _PreTokenizer(BaseModel):
    type: Literal["BertPreTokenizer"]


class _WordPiece(BaseModel):
    type: Literal["WordPiece"]
    unk_token: str
    continuing_subword_prefix: Literal["##"]
    max_input_chars_per_word: int
    vocab: dict[str, int]


class AddedToken(BaseModel):
    id: int
    content: str = Field(min_length=1)
    special: bool
    single_word: bool
    lstrip: bool
    rstrip: bool
    normalized: bool


class TokenizerFile(BaseModel):
    """The parts of a `tokenizer.json` that are read; its padding and truncation are ignored."""

    normalizer: _Normalizer
    pre_tokenizer: _PreTokenizer
    model: _WordPiece
    added_tokens: list[AddedToken] = []


class ConfigFile(BaseModel):
    """The parts of a `tokenizer_config.json` that are read, if it exists."""

    lowercase: bool = Field(True, alias="do_lower_case")
    strip_accents: bool | None = None
    split_ideographs: bool = Field(True, alias="tokenize_chinese_chars")


_File = TypeVar("_File", bound=BaseModel)


def parse(
    kind: type[_File],
    tree: dict[str, Any],
    *,
    where: str,
    fix: str | None = "Only WordPiece tokenizers of BERT's kind are read.",
) -> _File:
    """Validate a tree; the DataError names the first invalid part, and has `fix`."""
    try:
        return kind.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        value = "missing" if first["type"] == "missing" else f"{first['input']!r:.60}"
        raise DataError(
            f"{key} is {value}: {first['msg'][:1].lower()}{first['msg'][1:]}",
            where=where,
            fix=fix,
        ) from None
