"""Write sentence encoders in the layout of sentence-transformers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..settings.pooling import PIECE_WEIGHTS, SPARSE_POOLINGS
from ..utils.json_files import write_json
from . import router
from .late_interaction import MASK_KIND, multi_vector_files, pylate_entries
from .late_interaction_files import TOKENS, add_pieces
from .sentence import LAYERS_KIND, SPARSE_KIND
from .sentence_directory import SPARSE_STATIC
from .sentence_modules import (
    VECTOR_MODULES,
    write_layer_weights,
    write_pooling,
    write_settings,
    write_sparse_pooling,
    write_vector_module,
)
from .sentence_settings import CONFIG, SentenceSettings
from .weight_files import SAFETENSORS

if TYPE_CHECKING:
    from ..nn.vector_modules import VectorModules
else:
    VectorModules = Any  # settings are read without PyTorch

_MODULES = "sentence_transformers.models"
_FILES = {"modules.json", "sentence_bert_config.json", CONFIG, router.ROUTER_FILE}
_PART_KINDS = ("Pooling", LAYERS_KIND, SPARSE_KIND, MASK_KIND, *sorted(VECTOR_MODULES))
_PART = re.compile(
    rf"[1-9]\d*_({'|'.join(_PART_KINDS)})"
    rf"(/config\.json|/{re.escape(SAFETENSORS)})?"
)


def is_sentence_file(name: str) -> bool:
    """Whether `write_sentence_encoder` may write a file or directory of this name."""
    return name in _FILES or _PART.fullmatch(name) is not None


Parts = list[tuple[str, str]]
"""The full names of modules' classes, and their folders."""


def write_modules(directory: Path, parts: Parts) -> None:
    """Write the list of a model's modules."""
    entries = [
        {"idx": number, "name": str(number), "path": path, "type": kind}
        for number, (kind, path) in enumerate(parts)
    ]
    write_json(directory / "modules.json", entries)


def write_routes(
    directory: Path, query_parts: Parts, parts: Parts, *, shares_transformer: bool
) -> None:
    """Write the list of modules of a model that has others for queries, and their router.

    Args:
        query_parts: the folders are in `router.QUERY`.
        shares_transformer: whether the first of them is that of documents.
    """
    own = [(kind, path or ".") for kind, path in parts]
    of_queries = [(kind, (Path(router.QUERY) / path).as_posix()) for kind, path in query_parts]
    if shares_transformer:
        of_queries[0] = own[0]
    structure: dict[router.Route, list[str]] = {
        "query": [path for _, path in of_queries],
        "document": [path for _, path in own],
    }
    types = {path: kind for kind, path in (*own, *of_queries)}
    router.write_routes(directory, types, structure)
    write_modules(directory, [(f"{_MODULES}.Router", "")])


def write_sentence_encoder(
    directory: Path,
    settings: SentenceSettings,
    modules: VectorModules | None,
    hidden_size: int,
) -> Parts:
    """Write the files that `read_sentence_encoder` reads, but the list of modules.

    Returns:
        The modules.
    """
    is_sparse = settings.pooling in SPARSE_POOLINGS
    is_late = settings.late_interaction is not None
    parts = [("MLMTransformer" if is_sparse else "Transformer", "")]

    def add(kind: str) -> Path:
        path = f"{len(parts)}_{kind}"
        parts.append((kind, path))
        return directory / path

    if settings.layer_weights is not None:
        write_layer_weights(add(LAYERS_KIND), settings.layers, settings.layer_weights, hidden_size)
    if is_sparse:
        write_sparse_pooling(add(SPARSE_KIND), settings.pooling)
    elif not is_late:
        include_prompt = settings.include_prompt
        write_pooling(add("Pooling"), settings.pooling, hidden_size, include_prompt=include_prompt)
    for index, one in enumerate(() if modules is None else modules.settings):
        assert modules is not None
        write_vector_module(add(one.kind), modules, index)
    if settings.normalize:
        add("Normalize")
    limits = {"max_seq_length": settings.max_seq_length, "do_lower_case": False}
    config = settings.entries
    late = settings.late_interaction
    if late is not None and late.layout == "multi-vector":
        late_entries, late_limits, mask = multi_vector_files(late)
        prompts = {**(config.get("prompts") or {}), **late_entries["prompts"]}
        config = config | late_entries | {"prompts": prompts}
        limits |= late_limits
        add_pieces(directory, late_entries["prompts"].values())
        write_settings(add(MASK_KIND), mask)
        if late.normalize:
            write_settings(add("Normalize"), {"module_input_name": TOKENS})
    elif late is not None:
        config = config | pylate_entries(late)
    is_pylate = late is not None and late.layout == "pylate"
    write_json(directory / "sentence_bert_config.json", limits)
    if config:
        write_json(directory / CONFIG, config)
    return [(_class_of(kind, is_pylate=is_pylate), path) for kind, path in parts]


def write_static_sentence(directory: Path, settings: SentenceSettings) -> Parts:
    """Write the files that `read_static_sentence` reads, but `config.json` and the list of modules.

    Returns:
        The modules.
    """
    if settings.entries:
        write_json(directory / CONFIG, settings.entries)
    kind = SPARSE_STATIC if settings.pooling == PIECE_WEIGHTS else "StaticEmbedding"
    parts = [(kind, "."), *([("Normalize", "1_Normalize")] * settings.normalize)]
    return [(_class_of(kind, is_pylate=False), path) for kind, path in parts]


def _class_of(kind: str, *, is_pylate: bool) -> str:
    """The full name of a module's class, which every version of sentence-transformers finds."""
    if is_pylate and kind == "Dense":
        return "pylate.models.Dense.Dense"
    if kind == MASK_KIND:
        return "sentence_transformers.multi_vector_encoder.modules.multi_vector_mask." + kind
    if kind in ("MLMTransformer", SPARSE_KIND, SPARSE_STATIC):
        return f"sentence_transformers.sparse_encoder.models.{kind}.{kind}"
    return f"{_MODULES}.{kind}"
