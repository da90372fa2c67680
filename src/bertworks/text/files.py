"""A tokenizer's files: `tokenizer.json`, `tokenizer_config.json`, and those of its vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ValidationError

from .. import files
from ..errors import DataError
from .definition import (
    CLS,
    CONTINUATION,
    MASK,
    MAX_WORD_CHARACTERS,
    PAD,
    SEP,
    SPECIAL_PIECES,
    UNK,
    AddedPiece,
    Definition,
    Roles,
    WordPieceDefinition,
)
from .normalization import Normalization, check_text
from .readers import read_albert, read_bpe, read_camembert, read_xlm_roberta
from .tree import TreeDefinition, find_frame

VOCAB, TOKENIZER, CONFIG = "vocab.txt", "tokenizer.json", "tokenizer_config.json"
MERGES, BPE_VOCAB = "merges.txt", "vocab.json"
ALBERT, FAIRSEQ = "spiece.model", "sentencepiece.bpe.model"
_IN_ORDER = (TOKENIZER, VOCAB, MERGES, ALBERT, FAIRSEQ)
_OTHERS = {VOCAB, MERGES, BPE_VOCAB, ALBERT, FAIRSEQ, "special_tokens_map.json"}
FILES = frozenset({TOKENIZER, CONFIG, *_OTHERS})
"""All that a tokenizer may be written as."""
# The special pieces that tokenizers usually have, for those that do not say.
_USUAL = {
    "pad": (PAD, "<pad>"),
    "unk": (UNK, "<unk>"),
    "cls": (CLS, "<s>"),
    "sep": (SEP, "</s>"),
    "mask": (MASK, "<mask>"),
}
# Hugging Face's names for the settings of `Normalization`.
_CONFIG_NAMES = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "split_ideographs",
}


class _Normalizer(BaseModel):
    type: Literal["BertNormalizer"]
    clean_text: bool
    handle_chinese_chars: bool
    strip_accents: bool | None
    lowercase: bool


class _PreTokenizer(BaseModel):
    type: Literal["BertPreTokenizer"]


class _WordPiece(BaseModel):
    type: Literal["WordPiece"]
    unk_token: Literal["[UNK]"]
    continuing_subword_prefix: Literal["##"]
    max_input_chars_per_word: int
    vocab: dict[str, int]


class _AddedToken(BaseModel):
    id: int
    content: str
    special: bool
    single_word: bool
    lstrip: bool
    rstrip: bool
    normalized: bool


class _TokenizerFile(BaseModel):
    """What we take from a `tokenizer.json`; its padding and truncation are not ours."""

    normalizer: _Normalizer
    pre_tokenizer: _PreTokenizer
    model: _WordPiece
    added_tokens: list[_AddedToken] = []


class _ConfigFile(BaseModel):
    """What we take from a `tokenizer_config.json`, if it is there."""

    do_lower_case: bool = True
    strip_accents: bool | None = None
    tokenize_chinese_chars: bool = True


_File = TypeVar("_File", bound=BaseModel)


def read_definition(path: Path, *, lowercase: bool | None) -> Definition:
    """Read a tokenizer; see `Tokenizer.load`."""
    file = path
    if path.is_dir():
        file = next((path / name for name in _IN_ORDER if (path / name).is_file()), path)
    if not file.is_file():
        what = f"there is no {', no '.join(_IN_ORDER)}" if path.is_dir() else "no such file"
        raise DataError(what, where=str(path))
    config = files.read_json(path / CONFIG, DataError) if (path / CONFIG).is_file() else {}
    where = str(path / CONFIG)
    try:
        if file.suffix == ".model":
            return _read_sentencepiece(file, config, lowercase)
        if file.name in (MERGES, BPE_VOCAB):
            _keep_case(lowercase, file)
            return read_bpe(file.with_name(BPE_VOCAB), file.with_name(MERGES), config)
        if file.suffix == ".json":
            tree = files.read_json(file, DataError)
            model = tree.get("model")
            if isinstance(model, dict) and model.get("type") not in ("WordPiece", None):
                _keep_case(lowercase, file)
                return _read_tree(file, tree, config)
    except FileNotFoundError as error:
        raise DataError("no such file", where=str(error.filename)) from None
    except DataError as error:
        raise DataError(error.what, where=error.where or str(file), fix=error.fix) from None
    return _read_wordpiece(file, config, lowercase, where=where)


def _keep_case(lowercase: bool | None, file: Path) -> None:
    if lowercase is not None:
        raise DataError(
            "this tokenizer's case is part of it", where=str(file), fix="Leave `lowercase` out."
        )


def _read_sentencepiece(
    file: Path, config: dict[str, Any], lowercase: bool | None
) -> TreeDefinition:
    """A SentencePiece model of one of three families: known by its name and `config.json`."""
    if file.name == ALBERT:
        return read_albert(file, config, lowercase=lowercase)
    _keep_case(lowercase, file)
    beside = file.with_name("config.json")
    family = files.read_json(beside, DataError).get("model_type") if beside.is_file() else None
    is_camembert = family == "camembert" or config.get("tokenizer_class") == "CamembertTokenizer"
    return (read_camembert if is_camembert else read_xlm_roberta)(file, config)


def _read_tree(file: Path, tree: dict[str, Any], config: dict[str, Any]) -> TreeDefinition:
    """A `tokenizer.json` of any other kind."""
    try:
        missing = {"added_tokens", "normalizer", "pre_tokenizer", "decoder"} - tree.keys()
        if missing:
            raise DataError(f"{min(missing)} is missing", where=str(file))
        tree = {**tree, "truncation": None, "padding": None}
        known = {entry["content"] for entry in tree["added_tokens"]}
        said = {**_read_special(file.with_name("special_tokens_map.json")), **config}
        roles = Roles(**{role: _role(role, said, known) for role in _USUAL})
        others = {name: file.with_name(name) for name in sorted(_OTHERS)}
        files = {name: path.read_bytes() for name, path in others.items() if path.is_file()}
        return TreeDefinition(tree, roles, find_frame(tree), config, files)
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"is no tokenizer ({error!r})", where=str(file)) from None


def _read_special(file: Path) -> dict[str, Any]:
    return files.read_json(file, DataError) if file.is_file() else {}


def _role(role: str, said: Mapping[str, Any], known: set[str]) -> str | None:
    """The piece that has a role: the one that is named, or the usual one."""
    named = said.get(f"{role}_token")
    if isinstance(named, dict):
        named = named.get("content")
    if isinstance(named, str):
        return named
    return next((piece for piece in _USUAL[role] if piece in known), None)


def _read_wordpiece(
    file: Path, config_tree: dict[str, Any], lowercase: bool | None, *, where: str
) -> WordPieceDefinition:
    """BERT's own tokenizer, from `tokenizer.json` or `vocab.txt`."""
    added: list[AddedPiece] = []
    limit = MAX_WORD_CHARACTERS
    if file.suffix == ".json":
        tree = _parse(_TokenizerFile, files.read_json(file, DataError), where=str(file))
        pieces, added = _number_pieces(tree.model.vocab, tree.added_tokens, where=str(file))
        limit = tree.model.max_input_chars_per_word
        found = tree.normalizer
        normalization = Normalization(
            lowercase=found.lowercase,
            strip_accents=found.strip_accents,
            clean_text=found.clean_text,
            split_ideographs=found.handle_chinese_chars,
        )
    else:
        pieces = _read_vocabulary(file)
        normalization = Normalization(lowercase=not _is_cased(pieces))
    if config_tree:
        config = _parse(_ConfigFile, config_tree, where=where)
        said = {name: getattr(config, name) for name in config.model_fields_set}
        normalization = replace(
            normalization, **{_CONFIG_NAMES[name]: value for name, value in said.items()}
        )
    if lowercase is not None:
        normalization = replace(normalization, lowercase=lowercase)
    try:
        return WordPieceDefinition(tuple(pieces), tuple(added), normalization, limit)
    except DataError as error:
        raise DataError(error.what, where=str(file)) from None


def write_definition(
    definition: Definition, directory: Path, *, model_max_length: int | None = None
) -> None:
    """Write a tokenizer's files into a directory; see `Tokenizer.save`."""
    if isinstance(definition, TreeDefinition):
        _write_tree(definition, directory, model_max_length)
        return
    assert isinstance(definition, WordPieceDefinition)
    config: dict[str, Any] = {
        "tokenizer_class": _tokenizer_class(definition),
        **{ours: getattr(definition.normalization, name) for ours, name in _CONFIG_NAMES.items()},
        "unk_token": UNK,
        "sep_token": SEP,
        "pad_token": PAD,
        "cls_token": CLS,
        "mask_token": MASK,
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
    }
    if model_max_length is not None:
        config["model_max_length"] = model_max_length
    files.write(directory / VOCAB, "".join(f"{piece}\n" for piece in definition.pieces))
    files.write_json(directory / TOKENIZER, _tokenizer_json(definition))
    files.write_json(directory / CONFIG, config)


def _write_tree(definition: TreeDefinition, directory: Path, model_max_length: int | None) -> None:
    """Hand back what was read, and a `tokenizer.json` where there was none."""
    roles = asdict(definition.roles)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **definition.config,
        **{f"{role}_token": piece for role, piece in roles.items() if piece is not None},
    }
    if model_max_length is not None:
        config["model_max_length"] = model_max_length
    for name, content in definition.files.items():
        files.write(directory / name, content)
    for name, tree in ((TOKENIZER, definition.tree), (CONFIG, config)):
        files.write_json(directory / name, tree)


def _tokenizer_class(definition: WordPieceDefinition) -> str:
    """The class of `transformers` that gives the same ids.

    From its version 5 on, `BertTokenizer` makes a new tokenizer from the vocabulary, with a limit
    of 100 characters to a word; the general class takes `tokenizer.json` as it is.
    """
    plain = definition.normalization.clean_text and not definition.added
    same = plain and definition.max_word_characters == 100
    return "BertTokenizer" if same else "PreTrainedTokenizerFast"


def _read_vocabulary(file: Path) -> list[str]:
    """Read one piece a line; the line's number is the id."""
    content = file.read_bytes()
    try:
        # Only line feeds end a line: the Chinese vocabulary has U+2028 for a piece.
        lines = content.decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError("not UTF-8", where=f"{file}:{line}") from None
    if lines[-1] == "":
        lines.pop()
    pieces = [line.removesuffix("\r") for line in lines]
    seen: dict[str, int] = {}
    for number, piece in enumerate(pieces, 1):
        if not piece:
            raise DataError("an empty line", where=f"{file}:{number}", fix="Each line is a piece.")
        if piece in seen:
            raise DataError(f"{piece!r} is in line {seen[piece]} already", where=f"{file}:{number}")
        seen[piece] = number
    return pieces


def _is_cased(pieces: list[str]) -> bool:
    """Whether a vocabulary has capital letters, but for names in brackets like `[CLS]`."""
    words = (piece.removeprefix(CONTINUATION) for piece in pieces)
    return any(word.isalpha() and word != word.lower() for word in words)


def _parse(kind: type[_File], tree: dict[str, Any], *, where: str) -> _File:
    try:
        return kind.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        value = "missing" if first["type"] == "missing" else f"{first['input']!r:.60}"
        raise DataError(
            f"{key} is {value}: {first['msg'][:1].lower()}{first['msg'][1:]}",
            where=where,
            fix="Only WordPiece tokenizers of BERT's kind are read.",
        ) from None


def _number_pieces(
    vocabulary: dict[str, int], added_tokens: list[_AddedToken], *, where: str
) -> tuple[list[str], list[AddedPiece]]:
    """Pieces in the order of their ids, and those added after them.

    An added token that is in the vocabulary, or has an id inside its range, is an ordinary piece:
    nothing is looked for in a text before its words but what was added at the end.
    """
    ids = dict(vocabulary)
    end = max(ids.values(), default=-1) + 1
    added: list[AddedPiece] = []
    for token in sorted(added_tokens, key=lambda token: token.id):
        if token.content in ids:
            continue
        if token.id == end + len(added):
            added.append(AddedPiece(**token.model_dump(exclude={"id"})))
        else:
            ids[token.content] = token.id
    pieces = sorted(ids, key=ids.__getitem__)
    if [ids[piece] for piece in pieces] != list(range(len(pieces))):
        raise DataError("the ids of the vocabulary are not 0, 1, 2, …", where=where)
    for piece in pieces:
        check_text(piece, where=where)
    return pieces, added


def _tokenizer_json(definition: WordPieceDefinition) -> dict[str, Any]:
    """The same tokenizer as the `tokenizers` library stores one."""
    base = len(definition.base_pieces)
    normalization = definition.normalization
    special = {piece: definition.ids[piece] for piece in SPECIAL_PIECES}
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [
        {"id": number, "content": piece, **plain, "special": True}
        for piece, number in special.items()
        if number < base
    ]
    added += [{"id": base + place, **asdict(piece)} for place, piece in enumerate(definition.added)]
    start = [_template(CLS, 0), _template("A", 0), _template(SEP, 0)]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": sorted(added, key=lambda entry: int(entry["id"])),
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": normalization.clean_text,
            "handle_chinese_chars": normalization.split_ideographs,
            "strip_accents": normalization.strip_accents,
            "lowercase": normalization.lowercase,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": start,
            "pair": [*start, _template("B", 1), _template(SEP, 1)],
            "special_tokens": {
                piece: {"id": piece, "ids": [special[piece]], "tokens": [piece]}
                for piece in (CLS, SEP)
            },
        },
        "decoder": {"type": "WordPiece", "prefix": CONTINUATION, "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": UNK,
            "continuing_subword_prefix": CONTINUATION,
            "max_input_chars_per_word": definition.max_word_characters,
            "vocab": {piece: number for number, piece in enumerate(definition.base_pieces)},
        },
    }


def _template(name: str, type_id: int) -> dict[str, Any]:
    kind = "Sequence" if name in ("A", "B") else "SpecialToken"
    return {kind: {"id": name, "type_id": type_id}}
