"""RoFormer (Su et al. 2021): BERT with rotary positions."""

from __future__ import annotations

from typing import Any

from ..nn.config import EncoderConfig
from .family import (
    NO_DECODER,
    Family,
    embedding_keys,
    key_map,
    layer_keys,
    same_names,
    unused_heads,
)
from .heads import CHOICES, model_classes, task_tensors


def _convert_config(raw: dict[str, Any]) -> dict[str, Any]:
    """Embeddings as wide as the layers, or of no given width, have no projection."""
    has_projection = raw.get("embedding_size") != raw.get("hidden_size")
    return raw if has_projection else {**raw, "embedding_size": None}


def _extra(config: EncoderConfig) -> dict[str, Any]:
    return {"embedding_size": config.embedding_width}


ROFORMER = Family(
    name="roformer",
    settings=same_names("embedding_size"),
    keys=key_map(
        {
            **embedding_keys("roformer.embeddings", ("word", "token_type")),
            "encoder.embeddings.projection": "roformer.embeddings_project",
            "encoder.rotary": "roformer.encoder.embed_positions",
            **layer_keys("roformer.encoder.layer.{}"),
            "mlm_head.transform.dense": "cls.predictions.transform.dense",
            "mlm_head.transform.norm": "cls.predictions.transform.LayerNorm",
            "mlm_head.bias": "cls.predictions.bias",
            "mlm_head.decoder": "cls.predictions.decoder.weight",
            "head.transform": "classifier.dense",
            "head.linear": "classifier.out_proj",
            **task_tensors(),
        }
    ),
    prefix="roformer.",
    bare_prefixes=("embeddings.", "embeddings_project.", "encoder."),
    # Their model for choices uses the last token of a padded batch, which may be padding.
    classes=model_classes("RoFormer", exclude=[CHOICES]),
    dropouts={},
    fixed_settings={"positions": "rotary", "rotary.kind": "table", "classifier": "hidden_act"},
    defaults={"vocab_size": 50000, "max_position_embeddings": 1536},
    required_values={"rotary_value": False, **NO_DECODER},
    convert_config=_convert_config,
    adjust_settings=_convert_config,
    extra=_extra,
    unused_tensors=unused_heads("cls", "classifier|qa_outputs|sequence_summary"),
)
