"""Settings of late-interaction models (ColBERT), in the three layouts that people have.

The original release: `linear.weight` next to BERT's weights, the class `HF_ColBERT` in
`config.json`, and lengths and prefixes in `artifact.metadata`. PyLate: `modules.json` with
`pylate.models.Dense`, and all settings in `config_sentence_transformers.json`; ours are written so.
sentence-transformers' `MultiVectorEncoder`: `modules.json` with `MultiVectorMask`, lengths in the
transformer's `sentence_bert_config.json`, and prompts; a model that came so is written so.

Source: Khattab and Zaharia (2020), "ColBERT", §3.2; Santhanam et al. (2022), "ColBERTv2".
"""

from __future__ import annotations

import string
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from ..errors import BertworksWarning, CheckpointError, SettingsError, truncate_repr
from ..settings.base import Settings
from .weight_files import read_json

ORIGINAL_CLASS, PROJECTION = "HF_ColBERT", "linear.weight"
"""In the original layout, the class in `config.json` and the tensor of the projection."""

_METADATA = "artifact.metadata"
_PYLATE_KEYS: Mapping[str, str] = {
    "query_prefix": "query_prefix",
    "document_prefix": "document_prefix",
    "query_length": "query_length",
    "document_length": "document_length",
    "do_query_expansion": "expands_queries",
    "attend_to_expansion_tokens": "attends_to_expansion",
    "skiplist_words": "skipped_words",
}
_ORIGINAL_KEYS: Mapping[str, str] = {
    "query_token_id": "query_prefix",
    "doc_token_id": "document_prefix",
    "query_maxlen": "query_length",
    "doc_maxlen": "document_length",
    "attend_to_mask_tokens": "attends_to_expansion",
}
_MODEL_TYPE = "ColBERT"


class LateInteractionSettings(Settings):
    """How a late-interaction model makes the matrix of a text's token vectors."""

    query_prefix: str = Field("[Q] ", description="piece after [CLS] in queries; none if empty")
    document_prefix: str = Field("[D] ", description="the same in documents")
    query_length: int | None = Field(
        32, ge=4, description="tokens of a query, with its expansion; no limit if null"
    )
    document_length: int | None = Field(
        180, ge=4, description="maximum tokens of a document; no limit if null"
    )
    expands_queries: bool = Field(
        True, description="fill queries with [MASK] up to query_length; these are compared too"
    )
    keeps_long_queries: bool = Field(
        False, description="whether query_length only says how far a query is filled"
    )
    attends_to_expansion: bool = Field(
        False, description="whether a query's tokens attend to that [MASK]"
    )
    skipped_words: tuple[str, ...] = Field(
        tuple(string.punctuation), description="pieces of documents that are not compared"
    )
    normalize: bool = Field(True, description="whether rows have length 1")
    layout: Literal["pylate", "multi-vector"] = Field(
        "pylate",
        description="of its files; multi-vector: that of sentence-transformers",
    )


def read_pylate_settings(entries: Mapping[str, Any], where: str) -> LateInteractionSettings | None:
    """Return the settings in PyLate's `config_sentence_transformers.json`; None if it has none.

    Raises:
        CheckpointError: a value is not valid.
    """
    if entries.get("model_type") != _MODEL_TYPE and "query_prefix" not in entries:
        return None
    values = {
        ours: entries[theirs]
        for theirs, ours in _PYLATE_KEYS.items()
        if entries.get(theirs) is not None
    }
    return _parse(values, where)


def pylate_entries(settings: LateInteractionSettings) -> dict[str, Any]:
    """The entries that `read_pylate_settings` reads."""
    values = settings.model_dump(mode="json")
    entries = {theirs: values[ours] for theirs, ours in _PYLATE_KEYS.items()}
    return {"model_type": _MODEL_TYPE, **entries, "similarity_fn_name": "MaxSim"}


def read_original_settings(
    directory: Path, config: Mapping[str, Any]
) -> LateInteractionSettings | None:
    """Return the settings in the original release's files; None if it is no such model.

    Args:
        config: its `config.json`.

    Raises:
        CheckpointError: a file is damaged, or a value is not valid.
    """
    if ORIGINAL_CLASS not in (config.get("architectures") or []):
        return None
    file = directory / _METADATA
    metadata = read_json(file) if file.exists() else {}
    if not metadata:
        what = f"{directory}: there is no {_METADATA}: lengths and prefixes are ColBERT's own"
        warnings.warn(what, BertworksWarning, stacklevel=2)
    if metadata.get("similarity", "cosine") != "cosine":
        raise CheckpointError(
            f"similarity is {truncate_repr(metadata['similarity'])}, which is not supported",
            where=str(file),
        )
    values: dict[str, Any] = {"query_prefix": "[unused0]", "document_prefix": "[unused1]"}
    values |= {
        ours: metadata[theirs]
        for theirs, ours in _ORIGINAL_KEYS.items()
        if metadata.get(theirs) is not None
    }
    if metadata.get("mask_punctuation") is False:
        values["skipped_words"] = ()
    return _parse(values, str(file))


MULTI_VECTOR_TYPE, MASK_KIND = "MultiVectorEncoder", "MultiVectorMask"
"""sentence-transformers' names of such models, and of their last module."""


def read_multi_vector_settings(
    entries: Mapping[str, Any],
    prefixes: Mapping[str, str],
    limits: Mapping[str, Any],
    mask: Mapping[str, Any],
    where: str,
    *,
    normalize: bool,
) -> LateInteractionSettings:
    """Return the settings of a `MultiVectorEncoder`.

    Args:
        entries: its `config_sentence_transformers.json`.
        prefixes: those of its prompts "query" and "document" that are pieces.
        limits: its transformer's `sentence_bert_config.json`.
        mask: the settings of its `MultiVectorMask`.
        normalize: whether it has a `Normalize` of token vectors.

    Raises:
        CheckpointError: a value is not valid, or not supported.
    """
    expansion = limits.get("query_expansion")
    values = expansion if isinstance(expansion, Mapping) else {}
    function = str(entries.get("similarity_fn_name") or "maxsim").lower()
    required = {
        "similarity_fn_name": (function, ("maxsim",)),
        "query_expansion": (expansion, (None, values)),
        "query_expansion.strategy": (values.get("strategy", "fixed"), ("fixed", "min")),
        "query_expansion.token": (values.get("token"), (None, "[MASK]", "<mask>")),
        "skiplist_tasks": (mask.get("skiplist_tasks", ["document"]), (["document"],)),
        "keep_only_token_ids": (mask.get("keep_only_token_ids"), (None,)),
    }
    for name, (value, supported) in required.items():
        if value not in supported:
            raise CheckpointError(f"{name}={truncate_repr(value)} is not supported", where=where)
    length = limits.get("query_length") if expansion is None else values.get("length")
    if expansion is not None and length is None:
        raise CheckpointError("query_expansion has no length", where=where)
    return _parse(
        {
            "query_prefix": prefixes.get("query", ""),
            "document_prefix": prefixes.get("document", ""),
            "query_length": length,
            "document_length": limits.get("document_length"),
            "expands_queries": expansion is not None,
            "keeps_long_queries": values.get("strategy") == "min",
            "attends_to_expansion": values.get("attend", False),
            "skipped_words": mask.get("skiplist_words") or (),
            "normalize": normalize,
            "layout": "multi-vector",
        },
        where,
    )


def multi_vector_files(
    settings: LateInteractionSettings,
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """What `read_multi_vector_settings` reads: entries, limits, and the settings of the mask."""
    prefixes = {"query": settings.query_prefix, "document": settings.document_prefix}
    prompts = {role: prefix for role, prefix in prefixes.items() if prefix}
    entries = {"model_type": MULTI_VECTOR_TYPE, "prompts": prompts}
    limits: dict[str, Any] = {"document_length": settings.document_length}
    if settings.expands_queries:
        limits["query_expansion"] = {
            "strategy": "min" if settings.keeps_long_queries else "fixed",
            "attend": settings.attends_to_expansion,
            "length": settings.query_length,
        }
    else:
        limits["query_length"] = settings.query_length
    return entries, limits, {"skiplist_words": [*settings.skipped_words]}


def _parse(values: Mapping[str, Any], where: str) -> LateInteractionSettings:
    try:
        return LateInteractionSettings.parse(values, where=where)
    except SettingsError as error:
        raise CheckpointError(error.what, where=where) from None
