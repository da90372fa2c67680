"""Jina BERT v2 (Günther et al. 2023): BERT with ALiBi and gated feed-forward layers.

The model exists only as its authors' own code. Its `config.json` has the `model_type` of BERT, and
differs from one of BERT's in `position_embedding_type`.
"""

from __future__ import annotations

from typing import Any

from ..nn.config import EncoderConfig
from .bert import bert_classes, bert_keys
from .family import NO_DECODER, Family, key_map, same_names, unused_tensors

_LAYER = "bert.encoder.layer.{}"
_GATES = {"geglu": "gelu", "reglu": "relu"}
_CODE = "jinaai/jina-bert-implementation--"


def _convert_config(raw: dict[str, Any]) -> dict[str, Any]:
    """The activation of the gated feed-forward layers, by its usual name."""
    kind = str(raw["feed_forward_type"])
    return {**raw, "feed_forward_type": _GATES.get(kind, f"that of {kind}")}


def _extra(config: EncoderConfig) -> dict[str, Any]:
    names = {activation: kind for kind, activation in _GATES.items()}
    return {
        "model_type": "bert",
        "position_embedding_type": "alibi",
        "feed_forward_type": names.get(config.hidden_act, config.hidden_act),
        "hidden_act": config.hidden_act,
        "auto_map": {
            "AutoConfig": f"{_CODE}configuration_bert.JinaBertConfig",
            "AutoModel": f"{_CODE}modeling_bert.JinaBertModel",
            "AutoModelForMaskedLM": f"{_CODE}modeling_bert.JinaBertForMaskedLM",
            "AutoModelForSequenceClassification": (
                f"{_CODE}modeling_bert.JinaBertForSequenceClassification"
            ),
        },
    }


JINA_BERT_V2 = Family(
    name="jina_bert_v2",
    settings={**same_names(), "hidden_act": "feed_forward_type"},
    keys=key_map(
        {
            **bert_keys("bert"),
            "encoder.layers.{}.feed_forward.intermediate": f"{_LAYER}.mlp.gated_layers",
            "encoder.layers.{}.feed_forward.output": f"{_LAYER}.mlp.wo",
            "encoder.layers.{}.feed_forward_norm": f"{_LAYER}.mlp.layernorm",
        }
    ),
    prefix="bert.",
    bare_prefixes=("embeddings.", "encoder.", "pooler."),
    classes=bert_classes("JinaBert"),
    fixed_settings={
        "positions": "none",
        "gated": True,
        "intermediate_bias": False,
        "score_bias": {"kind": "alibi"},
    },
    defaults={"feed_forward_type": "geglu", "max_position_embeddings": 8192},
    required_values={"position_embedding_type": "alibi", **NO_DECODER},
    convert_config=_convert_config,
    extra=_extra,
    unused_tensors=unused_tensors("bert.", "cls"),
)
