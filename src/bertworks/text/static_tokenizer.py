"""Tokenizers of static models, in the layouts of model2vec and of sentence-transformers.

Such a model has a `tokenizer.json` alone, which is used unchanged, but without special pieces
around a text. A model2vec model also leaves unknown pieces out; `StaticEmbedding` of
sentence-transformers counts them like any other.

    config.json          model2vec's: `model_type` is "model2vec"
    modules.json         sentence-transformers': its first module is a `StaticEmbedding`
    tokenizer.json       here, or in the module's directory, `0_StaticEmbedding`
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from ..errors import DataError
from ..utils.json_files import read_json, read_json_value
from .definition import AddedPiece, Definition, Frame
from .special_pieces import usual_roles
from .tree import NO_LIMITS, TreeDefinition
from .tree_files import tree_of
from .wordpiece import CONTINUATION, WordPieceDefinition

DROPS_UNKNOWN = "model2vec"
"""The `model_type` of models that leave unknown pieces out."""
COUNTS_UNKNOWN = "static"
"""The `model_type` that this package writes for models that do not."""
MODULE = "StaticEmbedding"
_TENSORS_OF_MODULES = ({"embedding.weight"}, {"weight"})
"""Those of `StaticEmbedding`, and of `SparseStaticEmbedding`, whose pieces have a number each."""
_NO_FRAME = Frame((), (), (), 0)


def static_directory(directory: Path) -> Path | None:
    """Return where a static model's tokenizer and vectors are; None if it is another model.

    Raises:
        DataError: a file is damaged.
    """
    modules = directory / "modules.json"
    if modules.exists():
        entries = read_json_value(modules, DataError)
        first = entries[0] if isinstance(entries, list) and entries else None
        kind = first.get("type") if isinstance(first, dict) else None
        if isinstance(first, dict) and isinstance(kind, str):
            path = first.get("path", "")
            if kind.rpartition(".")[2] != MODULE:
                return None
            if not isinstance(path, str) or Path(path).is_absolute() or ".." in Path(path).parts:
                raise DataError("names a path outside its directory", where=str(modules))
            return directory / path
    is_whole = _model_type(directory) in (DROPS_UNKNOWN, COUNTS_UNKNOWN)
    return directory if is_whole or _is_module(directory) else None


def _is_module(directory: Path) -> bool:
    """Whether a directory is that of one module, which has no name of its kind in its files."""
    weights = directory / "model.safetensors"
    if not weights.is_file() or not (directory / "tokenizer.json").is_file():
        return False
    if (directory / "modules.json").exists() or _model_type(directory) is not None:
        return False
    try:
        with safe_open(weights, framework="numpy") as tensors:
            return set(tensors.keys()) in _TENSORS_OF_MODULES
    except SafetensorError as error:
        raise DataError(f"cannot be read ({error})", where=str(weights)) from None


def _model_type(directory: Path) -> Any:
    file = directory / "config.json"
    return read_json(file, DataError).get("model_type") if file.exists() else None


def read_static_tokenizer(directory: Path, module: Path) -> TreeDefinition:
    """Read the tokenizer of a static model.

    Args:
        directory: the model's.
        module: what `static_directory` returned for it.

    Raises:
        DataError: `tokenizer.json` is missing or invalid.
    """
    file = module / "tokenizer.json"
    if not file.exists():
        raise DataError("there is no tokenizer.json", where=str(module))
    tree = read_json(file, DataError)
    with tree_of(file, tree):
        return _static_tree(tree, drops_unknown=_model_type(directory) == DROPS_UNKNOWN)


def to_static(definition: Definition) -> TreeDefinition:
    """Return a tokenizer that splits texts as another does, without special pieces around them."""
    if isinstance(definition, TreeDefinition):
        return _static_tree(definition.tree, drops_unknown=True)
    if type(definition) is not WordPieceDefinition:
        raise DataError(
            "tokenizer.json cannot describe this tokenizer, so no static model can have it"
        )
    tree = json.loads(definition.library(typed_mask=False, split=False).to_str())
    special = sorted(definition.roles.pieces)
    plain = asdict(AddedPiece("", special=True, normalized=False))
    entries = [{"id": definition.ids[piece], **plain, "content": piece} for piece in special]
    tree["added_tokens"] = sorted([*entries, *tree["added_tokens"]], key=lambda entry: entry["id"])
    tree["decoder"] = {"type": "WordPiece", "prefix": CONTINUATION, "cleanup": True}
    return _static_tree(tree, drops_unknown=True)


def _static_tree(tree: Mapping[str, Any], *, drops_unknown: bool) -> TreeDefinition:
    tree = {**tree, **NO_LIMITS, "post_processor": None}
    pieces = {entry["content"] for entry in tree["added_tokens"]}
    definition = TreeDefinition(tree, usual_roles(pieces), _NO_FRAME)
    return replace(definition, unknown_id=_unknown_id(definition)) if drops_unknown else definition


def _unknown_id(definition: TreeDefinition) -> int | None:
    """The id that the model of a tree gives to what it does not know; None if it has none."""
    model = definition.tree["model"]
    if isinstance(model["vocab"], list):
        number: int | None = model.get("unk_id")
        return number
    return definition.ids.get(model.get("unk_token"))
