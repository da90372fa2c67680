"""Read and write a tokenizer's files: `tokenizer.json`, `tokenizer_config.json`, vocabularies."""

from __future__ import annotations

import warnings
from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path
from typing import Any

from ..errors import BertworksWarning, DataError, truncate_repr
from ..utils.atomic_writes import write_file
from ..utils.json_files import read_json, write_json
from ..utils.regular_files import read_content
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
    Frame,
    Roles,
    WordPieceDefinition,
)
from .normalization import Normalization, check_text
from .readers import read_albert, read_bpe, read_fairseq
from .schemas import AddedToken, ConfigFile, TokenizerFile, parse
from .tree import NO_LIMITS, TreeDefinition, find_frame, template

VOCAB, TOKENIZER, CONFIG = "vocab.txt", "tokenizer.json", "tokenizer_config.json"
MERGES, BPE_VOCAB = "merges.txt", "vocab.json"
ALBERT, FAIRSEQ = "spiece.model", "sentencepiece.bpe.model"
_IN_ORDER = (TOKENIZER, VOCAB, MERGES, ALBERT, FAIRSEQ)
ADDED_TOKENS_FILE, SPECIAL = "added_tokens.json", "special_tokens_map.json"
_OTHERS = {VOCAB, MERGES, BPE_VOCAB, ALBERT, FAIRSEQ, ADDED_TOKENS_FILE, SPECIAL}
FILES = frozenset({TOKENIZER, CONFIG, *_OTHERS})
"""The names of all files of a tokenizer."""
# The usual special pieces, for tokenizers that do not name theirs.
_USUAL = {
    "pad": (PAD, "<pad>"),
    "unk": (UNK, "<unk>"),
    "cls": (CLS, "<s>"),
    "sep": (SEP, "</s>"),
    "mask": (MASK, "<mask>"),
}
# The `transformers` class of a family, if no file names one.
_CLASSES = {
    **dict.fromkeys(("bert", "distilbert", "electra", "ernie"), "BertTokenizer"),
    "mpnet": "MPNetTokenizer",
    "roformer": "RoFormerTokenizer",
    "roberta": "RobertaTokenizer",
    "gpt2": "GPT2Tokenizer",
}
# The classes that read BERT's files as BERT's class does.
_BERTS = {
    *("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "ErnieTokenizer"),
    *("MobileBertTokenizer", "SqueezeBertTokenizer", "ConvBertTokenizer", "LayoutLMTokenizer"),
    *("LxmertTokenizer", "RetriBertTokenizer", "DPRReaderTokenizer"),
    *("DPRQuestionEncoderTokenizer", "DPRContextEncoderTokenizer"),
}
# The classes that read `vocab.json` and `merges.txt` as GPT-2's, RoBERTa's or the first GPT's do.
_BPES = {
    *("RobertaTokenizer", "BartTokenizer", "LongformerTokenizer", "LEDTokenizer"),
    *("GPT2Tokenizer", "OpenAIGPTTokenizer"),
}
# Classes that use `tokenizer.json` unchanged.
_GENERAL = {"PreTrainedTokenizer", "TokenizersBackend", "PythonBackend"}
# Classes that read `add_prefix_space` only from `tokenizer_config.json`.
_PREFIXING = {
    *("RobertaTokenizer", "BartTokenizer", "LongformerTokenizer", "LEDTokenizer"),
    "GPT2Tokenizer",
}


def read_definition(path: Path, *, lowercase: bool | None) -> Definition:
    """Read a tokenizer; see `Tokenizer.load`."""
    file = path
    if path.is_dir():
        file = next((path / name for name in _IN_ORDER if (path / name).exists()), path)
    if file.is_dir() or not file.exists():
        what = f"there is no {', no '.join(_IN_ORDER)}" if path.is_dir() else "no such file"
        raise DataError(what, where=str(path))
    config = _read_optional(path / CONFIG)
    try:
        if file.suffix == ".model":
            definition = _read_sentencepiece(file, config, lowercase)
            added_tokens, source = _read_added(path, config)
            # SentencePiece tokenises the text before an added piece separately, without a last ▁.
            added_tokens = [token.model_copy(update={"lstrip": True}) for token in added_tokens]
            return _with_added(definition, added_tokens, source)
        if file.name in (MERGES, BPE_VOCAB):
            _check_class(path, config, _BPES)
            _keep_case(lowercase, file)
            definition = read_bpe(file.with_name(BPE_VOCAB), file.with_name(MERGES), config)
            return _with_added(definition, *_read_added(path, config))
        if file.suffix == ".json":
            tree = read_json(file, DataError)
            model = tree.get("model")
            if isinstance(model, dict) and model.get("type") not in ("WordPiece", None):
                _keep_case(lowercase, file)
                return _read_tree(file, tree, config, _find_class(path, config))
        _check_class(path, config, _BERTS)
        _check_roles(path, config)
        return _read_wordpiece(file, config, lowercase, directory=path)
    except FileNotFoundError as error:
        raise DataError("no such file", where=str(error.filename)) from None
    except DataError as error:
        raise DataError(error.what, where=error.where or str(file), fix=error.fix) from None


def _find_class(directory: Path, config: dict[str, Any]) -> str | None:
    """The `transformers` class that opens a directory.

    None: a class that uses `tokenizer.json` unchanged, as for a single file.
    """
    model = _read_optional(directory / "config.json")
    family = model.get("model_type")
    if family == "modernbert":  # its files often name a wrong class
        return None
    class_name = config.get("tokenizer_class") or model.get("tokenizer_class")
    if isinstance(class_name, str):
        class_name = class_name.removesuffix("Fast")
        return None if class_name in _GENERAL else class_name
    return _CLASSES.get(family, family) if isinstance(family, str) else None


def _check_class(directory: Path, config: dict[str, Any], supported: Container[str]) -> None:
    """Check that a directory's files are those of a class that reads them as it is done here.

    BERT's files are also those of classes that first split words otherwise
    (`BertJapaneseTokenizer`) or put other pieces around texts (`MPNetTokenizer`).

    Raises:
        DataError: another class is named.
    """
    opener = _find_class(directory, config)
    is_named = opener in _CLASSES.values() or (opener or "")[:1].isupper()
    if opener is not None and is_named and opener not in supported:
        raise DataError(
            f"the tokenizer class {opener} is not supported",
            where=str(directory),
            fix="Its ids would be others. If the files are BERT's, set tokenizer_class to "
            "BertTokenizer in tokenizer_config.json.",
        )


def _check_roles(directory: Path, config: dict[str, Any]) -> None:
    """Check that a WordPiece tokenizer has BERT's special pieces.

    Raises:
        DataError: its settings name another piece.
    """
    entries = {**_read_optional(directory / SPECIAL), **config}
    for role, (usual, *_) in _USUAL.items():
        piece = _piece_of_entry(entries.get(f"{role}_token"))
        if piece not in (None, usual):
            raise DataError(
                f"{role}_token is {piece!r}: WordPiece tokenizers are supported with BERT's "
                f"{usual} only",
                where=str(directory),
            )


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
    family = _read_optional(file.with_name("config.json")).get("model_type")
    camembert = family == "camembert" or config.get("tokenizer_class") == "CamembertTokenizer"
    return read_fairseq(file, config, camembert=camembert)


def _read_tree(
    file: Path, tree: dict[str, Any], config: dict[str, Any], opener: str | None
) -> TreeDefinition:
    """Read any other `tokenizer.json`; `opener` is the result of `_find_class`."""
    try:
        missing = {"added_tokens", "normalizer", "pre_tokenizer", "decoder"} - tree.keys()
        if missing:
            raise DataError(f"{min(missing)} is missing")
        tree = {**tree, **NO_LIMITS}
        splitter = tree["pre_tokenizer"]
        if opener in _PREFIXING and splitter is not None and splitter["type"] == "ByteLevel":
            prefix = bool(config.get("add_prefix_space", False))
            tree["pre_tokenizer"] = {**splitter, "add_prefix_space": prefix}
        if opener is None and "tokenizer_class" in config:
            # Else a copy saved without the model's `config.json` would be read as another class.
            config = {**config, "tokenizer_class": "PreTrainedTokenizerFast"}
        known = {entry["content"] for entry in tree["added_tokens"]}
        said = {**_read_optional(file.with_name(SPECIAL)), **config}
        roles = Roles(**{role: _role(role, said, known) for role in _USUAL})
        others = {name: file.with_name(name) for name in sorted(_OTHERS)}
        files = {
            name: read_content(path, DataError) for name, path in others.items() if path.exists()
        }
        return TreeDefinition(tree, roles, find_frame(tree), config, files)
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"is not a tokenizer ({error!r})") from None


def _read_optional(file: Path) -> dict[str, Any]:
    return read_json(file, DataError) if file.exists() else {}


def _role(role: str, config: Mapping[str, Any], pieces: set[str]) -> str | None:
    """The piece of a role: the one that the settings name, or else a usual one."""
    named = _piece_of_entry(config.get(f"{role}_token"))
    return named or next((piece for piece in _USUAL[role] if piece in pieces), None)


def _piece_of_entry(entry: Any) -> str | None:
    """The piece that a setting names, either alone or with its flags."""
    named = entry.get("content") if isinstance(entry, dict) else entry
    return named if isinstance(named, str) else None


def _read_added(directory: Path, config: dict[str, Any]) -> tuple[list[AddedToken], str]:
    """Read the pieces added to a vocabulary without `tokenizer.json`; also return the file's name.

    Since version 4.34 of `transformers` they are in `tokenizer_config.json`; before, they were in a
    separate file, without flags.
    """
    in_config = "added_tokens_decoder" in config
    where = str(directory / (CONFIG if in_config else ADDED_TOKENS_FILE))
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "special": False}
    try:
        if in_config:
            said = config["added_tokens_decoder"].items()
            entries_of_file = [{**entry, "id": number} for number, entry in said]
        else:
            entries_of_file = _read_bare(directory, config)
        entries = [
            {"normalized": not entry.get("special"), **plain, **entry} for entry in entries_of_file
        ]
    except (AttributeError, TypeError) as error:
        raise DataError(f"holds no added pieces ({error!r})", where=where) from None
    added = [parse(AddedToken, entry, where=where, fix=None) for entry in entries]
    return sorted(added, key=lambda token: token.id), where


def _read_bare(directory: Path, config: dict[str, Any]) -> list[dict[str, Any]]:
    """Read the pieces of `added_tokens.json`; other files tell which of them are special."""
    marks = {**config, **_read_optional(directory / SPECIAL)}
    special_entries = [entry for key, entry in marks.items() if key.endswith("_token")]
    for kind in ("additional", "extra"):
        special_entries += marks.get(f"{kind}_special_tokens") or []
    special = {_piece_of_entry(entry) for entry in special_entries}
    return [
        {"id": number, "content": piece, "special": piece in special}
        for piece, number in _read_optional(directory / ADDED_TOKENS_FILE).items()
    ]


def _check_added(added_tokens: Sequence[AddedToken], ids: Mapping[str, int], where: str) -> None:
    """Check that each has its id in the vocabulary, or the next id after it."""
    end = max(ids.values(), default=-1) + 1
    for token in added_tokens:
        due = ids.get(token.content, end)
        if token.id != due:
            raise DataError(
                f"{token.content!r} has the id {token.id}, but the vocabulary leaves {due} for it",
                where=where,
                fix="The vocabulary is another one, or ids are missing.",
            )
        end += token.content not in ids


def _with_added(
    definition: TreeDefinition, added_tokens: Sequence[AddedToken], where: str
) -> TreeDefinition:
    """The tokenizer with the pieces that were added to its vocabulary."""
    _check_added(added_tokens, definition.ids, where)
    entries = definition.tree["added_tokens"]
    new = [token.model_dump() for token in added_tokens if token.content not in definition.added]
    if not new:
        return definition
    return replace(definition, tree={**definition.tree, "added_tokens": [*entries, *new]})


def _read_wordpiece(
    file: Path, config_tree: dict[str, Any], lowercase: bool | None, *, directory: Path
) -> WordPieceDefinition:
    """Read BERT's tokenizer from `tokenizer.json` or `vocab.txt`."""
    added_pieces: list[AddedPiece] = []
    limit = MAX_WORD_CHARACTERS
    frame = Frame()
    uses_config = True  # whether to use the settings next to the file
    if file.suffix == ".json":
        whole = read_json(file, DataError)
        tree = parse(TokenizerFile, whole, where=str(file))
        uses_config = (
            _find_class(directory, config_tree) is not None
        )  # BERT's class uses BERT's frame
        if not uses_config:
            frame = _find_wordpiece_frame(whole, config_tree)
        pieces, added_pieces = _number_pieces(tree.model.vocab, tree.added_tokens, where=str(file))
        limit = tree.model.max_input_chars_per_word
        normalization = Normalization(**tree.normalizer.model_dump(exclude={"type"}))
    else:
        ids = _read_vocabulary(file)
        tokens, source = _read_added(directory, config_tree)
        _check_added(tokens, ids, source)
        pieces, added_pieces = _number_pieces(ids, tokens, where=source)
        normalization = Normalization(lowercase=not _is_cased(pieces))
    if uses_config:
        config = parse(ConfigFile, config_tree, where=str(directory / CONFIG))
        entries = config.model_dump(exclude_unset=True)
        if file.suffix == ".json" and lowercase is None:
            _compare_settings(file, normalization, entries)
        normalization = replace(normalization, **entries)
    if lowercase is not None:
        normalization = replace(normalization, lowercase=lowercase)
    definition = WordPieceDefinition(
        tuple(pieces), tuple(added_pieces), normalization, limit, frame
    )
    if file.suffix == ".json" and file.with_name(VOCAB).is_file():
        _compare_vocabularies(file, tree.model.vocab, definition)
    return definition


def _compare_vocabularies(
    file: Path, vocabulary: Mapping[str, int], definition: WordPieceDefinition
) -> None:
    """Warn if `vocab.txt` has other ids than the `tokenizer.json` beside it.

    Args:
        vocabulary: what the words of texts are split into, which `vocab.txt` must have.
        definition: has the same pieces, and those added later, which `vocab.txt` may have.
    """
    vocabulary_file, ids = file.with_name(VOCAB), definition.ids
    if vocabulary_file.read_bytes() == _vocabulary_text(definition).encode():  # usual, and fast
        return
    lines = _read_vocabulary(vocabulary_file)
    differing = sorted(number for piece, number in lines.items() if ids.get(piece) != number)
    missing = sorted(vocabulary.items() - lines.items(), key=lambda entry: entry[1])
    if differing or missing:
        number = differing[0] if differing else missing[0][1]
        of_lines = {at: piece for piece, at in lines.items()}.get(number, "")
        of_tree = {at: piece for piece, at in ids.items()}.get(number, "")
        warnings.warn(
            f"{vocabulary_file}:{number + 1}: {truncate_repr(of_lines)}, but {TOKENIZER} has "
            f"{truncate_repr(of_tree)} with the id {number}; {TOKENIZER} is used",
            BertworksWarning,
            stacklevel=2,
        )


_KEYS = {
    "lowercase": ("do_lower_case", "lowercase"),
    "strip_accents": ("strip_accents", "strip_accents"),
    "split_ideographs": ("tokenize_chinese_chars", "handle_chinese_chars"),
}
"""The settings of the normalisation in `tokenizer_config.json` and in `tokenizer.json`."""


def _compare_settings(file: Path, normalization: Normalization, entries: Mapping[str, Any]) -> None:
    """Warn if `tokenizer_config.json` contradicts `tokenizer.json`, or is silent where the
    `transformers` class has another default.

    Args:
        normalization: that of `tokenizer.json`.
        entries: the settings in `tokenizer_config.json`.
    """
    usual = Normalization(**entries)
    for name, (key, own_key) in _KEYS.items():
        own, other = getattr(normalization, name), getattr(usual, name)
        if own == other:
            continue
        what = f"{own_key} is {_json_value(own)}"
        if name in entries:
            what += f", but {key} in {CONFIG} is {_json_value(other)}, which is used"
        else:
            what += f", which is used; {CONFIG} has no {key}, so transformers takes "
            what += _json_value(other)
        warnings.warn(f"{file}: {what}", BertworksWarning, stacklevel=2)


def _json_value(value: bool | None) -> str:
    """A setting as it is in a JSON file."""
    return "null" if value is None else str(value).lower()


def _find_wordpiece_frame(tree: dict[str, Any], config: dict[str, Any]) -> Frame:
    """The frame of a file that is used unchanged.

    A file with neither a frame nor settings next to it has BERT's frame: programs that train a
    vocabulary write no frame, since the model's class adds it.
    """
    if tree.get("post_processor") is None:
        return Frame((), (), ()) if config else Frame()
    few = {**tree, "added_tokens": [], "model": {**tree["model"], "vocab": {UNK: 0}}}  # for speed
    return find_frame(few)


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
            **_named_roles(definition.roles),
        }
    else:
        assert isinstance(definition, WordPieceDefinition)
        contents = {VOCAB: _vocabulary_text(definition)}
        tree = _tokenizer_json(definition)
        config = {
            "tokenizer_class": _tokenizer_class(definition),
            "do_lower_case": definition.normalization.lowercase,
            "strip_accents": definition.normalization.strip_accents,
            "tokenize_chinese_chars": definition.normalization.split_ideographs,
            **_named_roles(definition.roles),
            "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        }
    if model_max_length is not None:
        config["model_max_length"] = model_max_length
    for name, content in contents.items():
        write_file(directory / name, content)
    write_json(directory / TOKENIZER, tree)
    write_json(directory / CONFIG, config)


def _vocabulary_text(definition: WordPieceDefinition) -> str:
    return "".join(f"{piece}\n" for piece in definition.pieces)


def _named_roles(roles: Roles) -> dict[str, str]:
    """The special pieces as entries of `tokenizer_config.json`."""
    return {f"{role}_token": piece for role, piece in asdict(roles).items() if piece is not None}


def _tokenizer_class(definition: WordPieceDefinition) -> str:
    """The `transformers` class that gives the same ids.

    Since version 5, `BertTokenizer` builds a new tokenizer from the vocabulary, with a limit of 100
    characters per word; the general class uses `tokenizer.json` unchanged.
    """
    plain = definition.normalization.clean_text and not definition.added
    same = plain and definition.max_word_characters == 100 and definition.frame == Frame()
    return "BertTokenizer" if same else "PreTrainedTokenizerFast"


def _read_vocabulary(file: Path) -> dict[str, int]:
    """Read one piece per line; the number of the line, from 0, is the id.

    As in `transformers`, a piece in several lines has the id of the last one, and an empty line is
    no piece.
    """
    content = read_content(file, DataError)
    try:
        # Only line feeds end a line: the Chinese vocabulary has the piece U+2028.
        lines = content.decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError("not UTF-8", where=f"{file}:{line}") from None
    pieces = [line.removesuffix("\r") for line in lines]
    while pieces and not pieces[-1]:
        pieces.pop()
    if 2 * sum(" " in piece for piece in pieces) > len(pieces):
        raise DataError("is no vocabulary: its lines are texts, not pieces", where=str(file))
    ids = {piece: number for number, piece in enumerate(pieces) if piece}
    idle = [number for number, piece in enumerate(pieces) if ids.get(piece) != number]
    if idle:
        first = idle[0]
        what = (
            "is empty"
            if not pieces[first]
            else f"has {truncate_repr(pieces[first])}, as a later line"
        )
        more = "" if len(idle) == 1 else f" (and {len(idle) - 1:,} more)"
        warnings.warn(
            f"{file}:{first + 1}: the line {what}{more}; no text gets its id",
            BertworksWarning,
            stacklevel=2,
        )
    return ids


def _is_cased(pieces: list[str]) -> bool:
    """Whether a vocabulary has capital letters, except in bracketed names like `[CLS]`."""
    words = (piece.removeprefix(CONTINUATION) for piece in pieces)
    return any(word.isalpha() and word != word.lower() for word in words)


def _number_pieces(
    vocabulary: dict[str, int], added_tokens: list[AddedToken], *, where: str
) -> tuple[list[str], list[AddedPiece]]:
    """Pieces in the order of their ids, and the pieces added after them.

    An added token that is in the vocabulary, or has an id inside its range, is an ordinary piece:
    only pieces added at the end are searched for before a text is split into words.
    """
    ids = dict(vocabulary)
    end = max(ids.values(), default=-1) + 1
    added_pieces: list[AddedPiece] = []
    for token in sorted(added_tokens, key=lambda token: token.id):
        if token.content in ids:
            continue
        if token.id == end + len(added_pieces):
            added_pieces.append(AddedPiece(**token.model_dump(exclude={"id"})))
        else:
            ids[token.content] = token.id
    pieces = _without_holes(ids, where=where)
    for piece in (*pieces, *(token.content for token in added_pieces)):
        check_text(piece, where=where)
    return pieces, added_pieces


def _without_holes(ids: Mapping[str, int], *, where: str) -> list[str]:
    """Return the pieces in the order of their ids; an id without a piece gets an unused one."""
    by_id = {number: piece for piece, number in ids.items()}
    end = max(by_id, default=-1) + 1
    if len(by_id) < len(ids) or min(by_id, default=0) < 0 or end > 2 * len(ids):
        raise DataError("the ids of the vocabulary are not 0, 1, 2, …", where=where)
    unused = (name for name in map("[unused{}]".format, count()) if name not in ids)
    return [by_id[number] if number in by_id else next(unused) for number in range(end)]


def _tokenizer_json(definition: WordPieceDefinition) -> dict[str, Any]:
    """The tokenizer in the format of the `tokenizers` library."""
    base = len(definition.base_pieces)
    special = {piece: definition.ids[piece] for piece in SPECIAL_PIECES if piece in definition.ids}
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added_tokens = [
        {"id": number, "content": piece, **plain, "special": True}
        for piece, number in special.items()
        if number < base
    ]
    added_tokens += [
        {"id": base + place, **asdict(piece)} for place, piece in enumerate(definition.added)
    ]
    return {
        "version": "1.0",
        **NO_LIMITS,
        "added_tokens": sorted(added_tokens, key=lambda entry: int(entry["id"])),
        "normalizer": {"type": "BertNormalizer", **definition.normalization.options},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": template(definition.frame, definition.ids),
        "decoder": {"type": "WordPiece", "prefix": CONTINUATION, "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": UNK,
            "continuing_subword_prefix": CONTINUATION,
            "max_input_chars_per_word": definition.max_word_characters,
            "vocab": {piece: number for number, piece in enumerate(definition.base_pieces)},
        },
    }
