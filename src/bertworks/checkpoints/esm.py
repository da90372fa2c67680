"""ESM-1b and ESM-2 (Rives et al. 2021, Lin et al. 2023), encoders of proteins: pre-norm, learned or
rotary positions."""

from __future__ import annotations

from typing import Any

from ..nn.config import EncoderConfig
from .family import (
    NO_DECODER,
    Family,
    embedding_keys,
    key_map,
    layer_keys,
    roberta_head_keys,
    same_names,
    unused_constants,
    unused_heads,
    unused_pooler,
)
from .heads import CHOICES, SPANS, model_classes

_LAYER = "esm.encoder.layer.{}"
_POSITIONS = {"absolute": "learned"}  # their name, ours
_FREQUENCIES = "rotary_embeddings.inv_freq"


def _convert_config(raw: dict[str, Any]) -> dict[str, Any]:
    """Settings that mean something only together with another have the meaning alone."""
    kind = raw["position_embedding_type"]
    return {
        **raw,
        "position_embedding_type": _POSITIONS.get(kind, kind) if isinstance(kind, str) else kind,
        "mask_token_id": raw.get("mask_token_id") if raw.get("token_dropout") else None,
        "emb_layer_norm_before": raw.get("emb_layer_norm_before") or False,
    }


def _extra(config: EncoderConfig) -> dict[str, Any]:
    theirs = {ours: theirs for theirs, ours in _POSITIONS.items()}
    return {
        "position_embedding_type": theirs.get(config.positions, config.positions),
        "token_dropout": config.zeroed_token_id is not None,
        # Other tools derive the first position from it, whatever the tokenizer pads with.
        "pad_token_id": config.position_offset - 1,
    }


ESM = Family(
    name="esm",
    settings={
        **same_names(exclude={"hidden_act", "type_vocab_size"}),
        "positions": "position_embedding_type",
        "rotary.theta": "rope_theta",
        "embedding_norm": "emb_layer_norm_before",
        "zeroed_token_id": "mask_token_id",
    },
    keys=key_map(
        {
            **embedding_keys("esm.embeddings", ("word", "position")),
            "encoder.embeddings.norm": "esm.embeddings.layer_norm",
            "encoder.rotary.frequencies": f"esm.{_FREQUENCIES}",
            **layer_keys(_LAYER),
            "encoder.layers.{}.attention_norm": f"{_LAYER}.attention.LayerNorm",
            "encoder.layers.{}.feed_forward_norm": f"{_LAYER}.LayerNorm",
            "encoder.final_norm": "esm.encoder.emb_layer_norm_after",
            "encoder.pooler.dense": "esm.pooler.dense",
            "encoder.contact_head": "esm.contact_head.regression",
            **roberta_head_keys(),
        }
    ),
    prefix="esm.",
    bare_prefixes=("embeddings.", "encoder.", "pooler.", "contact_head.", "rotary_embeddings."),
    classes=model_classes("Esm", exclude=[SPANS, CHOICES]),
    dropouts={},
    fixed_settings={
        **{"hidden_act": "gelu", "type_vocab_size": 0, "classifier": "tanh"},
        # Padding has position 1, so that a sequence begins at position 2.
        **{"position_offset": 2, "contact_head": True, "rotary.kind": "frequencies"},
        **{"norm_first": True, "first_layer_norm": True},
    },
    defaults={
        **{"vocab_size": 33, "pad_token_id": 1, "max_position_embeddings": 1026},
        **{"position_embedding_type": "absolute"},
    },
    required_values={"pad_token_id": 1, "is_folding_model": False, **NO_DECODER},
    convert_config=_convert_config,
    extra=_extra,
    token_ids={"mask_token_id": "mask", "bos_token_id": "cls", "eos_token_id": "sep"},
    unused_tensors=(
        *unused_constants("esm."),
        (r"esm\.embeddings\.position_embeddings\..*", "rotary positions need none"),
        unused_pooler("esm."),
        *unused_heads("lm_head", "classifier"),
    ),
    # Each layer had the same frequencies; some versions of transformers 5 write an asterisk.
    alternative_names=(
        (rf"esm\.encoder\.layer\.(\d+|\*)\.attention\.self\.{_FREQUENCIES}", f"esm.{_FREQUENCIES}"),
    ),
    has_second_bias=False,
)
