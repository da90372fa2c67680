"""The parts of a tokenizer's JSON files that are read; all others are ignored."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from ..errors import DataError


class _Part(BaseModel):
    model_config = ConfigDict(defer_build=True)  # few are used


class _Normalizer(_Part):
    type: Literal["BertNormalizer"]
    clean_text: bool
    split_ideographs: bool = Field(alias="handle_chinese_chars")
    strip_accents: bool | None
    lowercase: bool


class _PreTokenizer(_Part):
    type: Literal["BertPreTokenizer"]


class _WordPiece(_Part):
    type: Literal["WordPiece"]
    unk_token: str
    continuing_subword_prefix: Literal["##"]
    max_input_chars_per_word: int
    vocab: dict[str, int]


class AddedToken(_Part):
    id: int
    content: str = Field(min_length=1)
    special: bool
    single_word: bool
    lstrip: bool
    rstrip: bool
    normalized: bool


class TokenizerFile(_Part):
    """The parts of a `tokenizer.json` that `read_wordpiece` reads."""

    normalizer: _Normalizer
    pre_tokenizer: _PreTokenizer
    model: _WordPiece
    added_tokens: list[AddedToken] = []


class ConfigFile(_Part):
    """The parts of a `tokenizer_config.json` that are read, if it exists."""

    lowercase: bool = Field(True, alias="do_lower_case")
    strip_accents: bool | None = None
    split_ideographs: bool = Field(True, alias="tokenize_chinese_chars")


class _MecabSettings(_Part):
    mecab_dic: Literal["unidic_lite", "unidic", "ipadic"] | None = "unidic_lite"
    mecab_option: str | None = None
    normalize_text: bool = True


class _SudachiSettings(_Part):
    normalize_text: bool = True
    trim_whitespace: bool = False
    sudachi_split_mode: Literal["A", "B", "C"] = "A"
    sudachi_config_path: None = None
    sudachi_resource_dir: None = None
    sudachi_dict_type: Literal["small", "core", "full"] = "core"
    sudachi_projection: Literal["surface"] | None = None


class _JumanppSettings(_Part):
    normalize_text: bool = True
    trim_whitespace: bool = False


class JapaneseSettings(_Part):
    """The parts of `BertJapaneseTokenizer`'s settings that are read."""

    do_lower_case: bool = False
    do_word_tokenize: bool = True
    do_subword_tokenize: Literal[True] = True
    never_split: tuple[()] | None = None
    word_tokenizer_type: Literal["basic", "mecab", "sudachi", "jumanpp"] = "basic"
    subword_tokenizer_type: Literal["wordpiece", "character", "sentencepiece"] = "wordpiece"
    mecab_kwargs: _MecabSettings = Field(default_factory=_MecabSettings)
    sudachi_kwargs: _SudachiSettings = Field(default_factory=_SudachiSettings)
    jumanpp_kwargs: _JumanppSettings = Field(default_factory=_JumanppSettings)

    @field_validator("mecab_kwargs", "sudachi_kwargs", "jumanpp_kwargs", mode="before")
    @classmethod
    def _none_is_default(cls, value: Any) -> Any:
        return {} if value is None else value


class RoFormerSettings(_Part):
    """The parts of `RoFormerTokenizer`'s settings that are read."""

    CLASS: ClassVar[str] = "RoFormerTokenizer"

    do_lower_case: bool = True
    strip_accents: bool | None = None


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
