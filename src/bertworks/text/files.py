"""Read and write a tokenizer's files: `tokenizer.json`, `tokenizer_config.json`, vocabularies."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import DataError
from ..utils.atomic_writes import write_file
from ..utils.json_files import read_json, write_json
from ..utils.regular_files import read_content
from .added_pieces import read_added, with_added
from .definition import Definition, Roles, WordPieceDefinition
from .file_names import (
    ALBERT,
    BPE_VOCAB,
    CONFIG,
    IN_ORDER,
    MERGES,
    SPECIAL,
    TOKENIZER,
    VOCAB,
    VOCABULARY_FILES,
    read_optional,
)
from .readers import read_albert, read_bpe, read_fairseq
from .special_pieces import USUAL_PIECES, check_roles, find_role, named_roles
from .static_tokenizer import read_static_tokenizer, static_directory
from .tokenizer_classes import BERTS, BPES, PREFIXING, check_class, find_class
from .tree import NO_LIMITS, TreeDefinition, find_frame
from .wordpiece_files import read_wordpiece, tokenizer_class, tokenizer_json, vocabulary_text


def read_definition(path: Path, *, lowercase: bool | None) -> Definition:
    """Read a tokenizer; see `Tokenizer.load`."""
    file = path
    if path.is_dir() and (module := static_directory(path)) is not None:
        _keep_case(lowercase, module)
        return read_static_tokenizer(path, module)
    if path.is_dir():
        file = next((path / name for name in IN_ORDER if (path / name).exists()), path)
    if file.is_dir() or not file.exists():
        what = f"there is no {', no '.join(IN_ORDER)}" if path.is_dir() else "no such file"
        raise DataError(what, where=str(path))
    config = read_optional(path / CONFIG)
    try:
        if file.suffix == ".model":
            definition = _read_sentencepiece(file, config, lowercase)
            added_tokens, source = read_added(path, config)
            # SentencePiece tokenises the text before an added piece separately, without a last ▁.
            added_tokens = [token.model_copy(update={"lstrip": True}) for token in added_tokens]
            return with_added(definition, added_tokens, source)
        if file.name in (MERGES, BPE_VOCAB):
            check_class(path, config, BPES)
            _keep_case(lowercase, file)
            definition = read_bpe(file.with_name(BPE_VOCAB), file.with_name(MERGES), config)
            return with_added(definition, *read_added(path, config))
        if file.suffix == ".json":
            tree = read_json(file, DataError)
            model = tree.get("model")
            if isinstance(model, dict) and model.get("type") not in ("WordPiece", None):
                _keep_case(lowercase, file)
                return _read_tree(file, tree, config, find_class(path, config))
        check_class(path, config, BERTS)
        check_roles(path, config)
        return read_wordpiece(file, config, lowercase, directory=path)
    except FileNotFoundError as error:
        raise DataError("no such file", where=str(error.filename)) from None
    except DataError as error:
        raise DataError(error.what, where=error.where or str(file), fix=error.fix) from None


def _keep_case(lowercase: bool | None, file: Path) -> None:
    if lowercase is not None:
        raise DataError(
            "this tokenizer's case cannot be changed", where=str(file), fix="Leave `lowercase` out."
        )


def _read_sentencepiece(
    file: Path, config: dict[str, Any], lowercase: bool | None
) -> TreeDefinition:
    """Read a SentencePiece model of one of three families, by its name and `config.json`."""
    if file.name == ALBERT:
        return read_albert(file, config, lowercase=lowercase)
    _keep_case(lowercase, file)
    family = read_optional(file.with_name("config.json")).get("model_type")
    camembert = family == "camembert" or config.get("tokenizer_class") == "CamembertTokenizer"
    return read_fairseq(file, config, camembert=camembert)


def _read_tree(
    file: Path, tree: dict[str, Any], config: dict[str, Any], opener: str | None
) -> TreeDefinition:
    """Read any other `tokenizer.json`; `opener` is the result of `find_class`."""
    try:
        missing = {"added_tokens", "normalizer", "pre_tokenizer", "decoder"} - tree.keys()
        if missing:
            raise DataError(f"{min(missing)} is missing")
        tree = {**tree, **NO_LIMITS}
        splitter = tree["pre_tokenizer"]
        if opener in PREFIXING and splitter is not None and splitter["type"] == "ByteLevel":
            prefix = bool(config.get("add_prefix_space", False))
            tree["pre_tokenizer"] = {**splitter, "add_prefix_space": prefix}
        if opener is None and "tokenizer_class" in config:
            # Else a copy saved without the model's `config.json` would be read as another class.
            config = {**config, "tokenizer_class": "PreTrainedTokenizerFast"}
        known = {entry["content"] for entry in tree["added_tokens"]}
        said = {**read_optional(file.with_name(SPECIAL)), **config}
        roles = Roles(**{role: find_role(role, said, known) for role in USUAL_PIECES})
        others = {name: file.with_name(name) for name in sorted(VOCABULARY_FILES)}
        files = {
            name: read_content(path, DataError) for name, path in others.items() if path.exists()
        }
        return TreeDefinition(tree, roles, find_frame(tree), config, files)
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"is not a tokenizer ({error!r})") from None


def write_definition(
    definition: Definition, directory: Path, *, model_max_length: int | None = None
) -> None:
    """Write a tokenizer's files to a directory; see `Tokenizer.save`."""
    contents: Mapping[str, str | bytes]
    tree: Mapping[str, Any]
    if isinstance(definition, TreeDefinition):  # its files are written as they were read
        contents, tree = definition.files, definition.tree
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            **definition.config,
            **named_roles(definition.roles),
        }
    else:
        assert isinstance(definition, WordPieceDefinition)
        contents = {VOCAB: vocabulary_text(definition)}
        tree = tokenizer_json(definition)
        config = {
            "tokenizer_class": tokenizer_class(definition),
            "do_lower_case": definition.normalization.lowercase,
            "strip_accents": definition.normalization.strip_accents,
            "tokenize_chinese_chars": definition.normalization.split_ideographs,
            **named_roles(definition.roles),
            "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        }
    if model_max_length is not None:
        config["model_max_length"] = model_max_length
    for name, content in contents.items():
        write_file(directory / name, content)
    write_json(directory / TOKENIZER, tree)
    write_json(directory / CONFIG, config)
