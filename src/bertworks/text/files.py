"""Read and write a tokenizer's files: `tokenizer.json`, `tokenizer_config.json`, vocabularies.

Classes and readers of rare files are imported when such a file is read or written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ..errors import DataError
from ..utils.atomic_writes import write_file
from ..utils.json_files import read_json, write_json
from .added_pieces import extend_vocabulary, read_added
from .definition import Definition
from .file_names import (
    BPE_VOCAB,
    CONFIG,
    IN_ORDER,
    MERGES,
    TOKENIZER,
    VOCAB,
    read_optional,
)
from .special_pieces import named_roles
from .static_tokenizer import read_static_tokenizer, static_directory
from .tokenizer_classes import (
    FILES_OF,
    GENERAL_CLASS,
    WITHOUT_JSON,
    TokenizerClass,
    check_algorithm,
    check_case_is_kept,
    find_class,
)
from .tree import TreeDefinition
from .tree_files import algorithm_of, is_berts, read_tree
from .wordpiece import WordPieceDefinition
from .wordpiece_files import class_name, read_wordpiece, tokenizer_json, vocabulary_text


def read_definition(path: Path, *, lowercase: bool | None) -> Definition:
    """Read a tokenizer; see `Tokenizer.load`."""
    file = path
    if path.is_dir() and (module := static_directory(path)) is not None:
        check_case_is_kept(lowercase, module)
        return read_static_tokenizer(path, module)
    config = read_optional(path / CONFIG)
    opener = find_class(path, config)
    names: tuple[str, ...] = IN_ORDER
    if path.is_dir():
        own = () if opener is None else FILES_OF[opener.algorithm]
        reads_json = opener is None or opener.algorithm not in WITHOUT_JSON
        names = tuple(dict.fromkeys((TOKENIZER, *own, *IN_ORDER))) if reads_json else own
        file = next((path / name for name in names if (path / name).exists()), path)
    if file.is_dir() or not file.exists():
        what = f"there is no {', no '.join(names)}" if path.is_dir() else "no such file"
        raise DataError(what, where=str(path))
    try:
        is_tree = file.suffix == ".json" and file.name != BPE_VOCAB
        tree = read_json(file, DataError) if is_tree else None
        definition = _read_file(path, file, tree, config, lowercase, opener)
    except FileNotFoundError as error:
        raise DataError("no such file", where=str(error.filename)) from None
    except DataError as error:
        raise DataError(error.what, where=error.where or str(file), fix=error.fix) from None
    if not _truncates_on_the_left(config, tree):
        return definition
    left: Any = definition  # every definition is a dataclass
    changed: Definition = replace(left, truncation_side="left")
    return changed


def _truncates_on_the_left(config: Mapping[str, Any], tree: Mapping[str, Any] | None) -> bool:
    """Whether long texts lose their start: as the settings say, or else `tokenizer.json`."""
    limits = None if tree is None else tree.get("truncation")
    direction = limits.get("direction") if isinstance(limits, dict) else None
    return config.get("truncation_side", direction) in ("left", "Left")


def _read_file(
    path: Path,
    file: Path,
    tree: dict[str, Any] | None,
    config: dict[str, Any],
    lowercase: bool | None,
    opener: TokenizerClass | None,
) -> Definition:
    """Read the definition in a file of the directory `path`, whose class is `opener`.

    Args:
        tree: the content of the file, if it is a `tokenizer.json`.
    """
    if opener is not None and opener.algorithm in WITHOUT_JSON:
        return _read_without_json(file, config, lowercase, opener)
    if file.suffix == ".model":
        from .sentencepiece_files import read_sentencepiece

        check_algorithm(opener, "Unigram", file)
        definition = read_sentencepiece(file, config, opener, lowercase=lowercase)
        added_tokens, source = read_added(path, config)
        # SentencePiece tokenises the text before an added piece separately, without a last ▁.
        added_tokens = [token.model_copy(update={"lstrip": True}) for token in added_tokens]
        return extend_vocabulary(definition, added_tokens, source)
    if file.name in (MERGES, BPE_VOCAB):
        from .bpe_files import read_bpe

        check_case_is_kept(lowercase, file)
        definition = read_bpe(file.with_name(BPE_VOCAB), file.with_name(MERGES), config, opener)
        return extend_vocabulary(definition, *read_added(path, config))
    if tree is not None and not is_berts(tree, opener):
        check_algorithm(opener, algorithm_of(tree), file)
        check_case_is_kept(lowercase, file)
        return read_tree(file, tree, config, opener)
    check_algorithm(opener, "WordPiece", file)
    return read_wordpiece(file, tree, config, lowercase, directory=path, opener=opener)


def _read_without_json(
    file: Path, config: dict[str, Any], lowercase: bool | None, opener: TokenizerClass
) -> Definition:
    """Read the vocabulary of a class that does not read `tokenizer.json`."""
    if opener.algorithm == "WordPiece of split words":
        from .split_words_files import read_split_words

        return read_split_words(file.parent, config, lowercase, opener)
    check_case_is_kept(lowercase, file)
    if opener.algorithm == "fastBPE":
        from .fast_bpe import read_fast_bpe

        return read_fast_bpe(file, config, opener)
    from .esm_files import read_esm

    return extend_vocabulary(read_esm(file, config, opener), *read_added(file.parent, config))


def write_definition(
    definition: Definition, directory: Path, *, model_max_length: int | None = None
) -> None:
    """Write a tokenizer's files to a directory; see `Tokenizer.save`."""
    from .fast_bpe import FastBpeDefinition
    from .word_splitters import SplitWordsDefinition, SplitWordsTree

    contents: Mapping[str, str | bytes]
    tree: Mapping[str, Any] | None
    if isinstance(definition, SplitWordsDefinition):
        contents = {VOCAB: "".join(f"{piece}\n" for piece in definition.base_pieces)}
        # RoFormer's class takes the vocabulary of this file, and splits words itself.
        tree = tokenizer_json(definition) if definition.splitter.writes_json else None
        config = {
            "tokenizer_class": definition.splitter.class_name,
            **definition.splitter.settings(),
            **named_roles(definition.roles),
        }
        if definition.added:
            entries = {definition.ids[piece.content]: asdict(piece) for piece in definition.added}
            config["added_tokens_decoder"] = {str(at): entry for at, entry in entries.items()}
    elif isinstance(definition, FastBpeDefinition | SplitWordsTree):
        contents, tree = definition.files, None
        config = {**definition.config, **named_roles(definition.roles)}
    elif isinstance(definition, TreeDefinition):  # its files are written as they were read
        contents, tree = definition.files, definition.tree
        config = {
            "tokenizer_class": GENERAL_CLASS,
            **definition.config,
            **named_roles(definition.roles),
        }
    else:
        assert isinstance(definition, WordPieceDefinition)
        contents = {VOCAB: vocabulary_text(definition)}
        tree = tokenizer_json(definition)
        config = {
            "tokenizer_class": class_name(definition),
            "do_lower_case": definition.normalization.lowercase,
            "strip_accents": definition.normalization.strip_accents,
            "tokenize_chinese_chars": definition.normalization.split_ideographs,
            **named_roles(definition.roles),
            "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        }
    if definition.truncation_side == "left":
        config["truncation_side"] = "left"
    if model_max_length is not None:
        config["model_max_length"] = model_max_length
    for name, content in contents.items():
        write_file(directory / name, content)
    if tree is not None:
        write_json(directory / TOKENIZER, tree)
    write_json(directory / CONFIG, config)
