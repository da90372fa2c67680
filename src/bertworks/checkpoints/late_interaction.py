"""Settings of late-interaction models (ColBERT), in the two layouts that people have.

The original release: `linear.weight` beside BERT's weights, the class `HF_ColBERT` in
`config.json`, and lengths and prefixes in `artifact.metadata`. PyLate: `modules.json` with
`pylate.models.Dense`, and all settings in `config_sentence_transformers.json`; ours are written so.

Source: Khattab and Zaharia (2020), "ColBERT", §3.2; Santhanam et al. (2022), "ColBERTv2".
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from ..errors import CheckpointError, SettingsError, truncate_repr
from ..settings.base import Settings
from .weights import read_json

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
    query_length: int = Field(32, ge=4, description="tokens of a query, with its expansion")
    document_length: int = Field(180, ge=4, description="maximum tokens of a document")
    expands_queries: bool = Field(
        True, description="fill queries with [MASK] up to query_length; these are compared too"
    )
    attends_to_expansion: bool = Field(
        False, description="whether a query's tokens attend to that [MASK]"
    )
    skipped_words: tuple[str, ...] = Field(
        tuple(string.punctuation), description="pieces of documents that are not compared"
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


def _parse(values: Mapping[str, Any], where: str) -> LateInteractionSettings:
    try:
        return LateInteractionSettings.parse(values, where=where)
    except SettingsError as error:
        raise CheckpointError(error.what, where=where) from None
