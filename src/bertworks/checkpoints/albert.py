"""ALBERT (Lan et al. 2020): narrow embeddings, layers that share their weights."""

from __future__ import annotations

from typing import Any

from .family import NO_DECODER, Family, embedding_keys, key_map, same_names, unused_tensors
from .heads import model_classes, task_tensors

_LAYER = "albert.encoder.albert_layer_groups.{}.albert_layers.0"

_DEFAULTS = {
    "vocab_size": 30000,
    "embedding_size": 128,
    "hidden_size": 4096,
    "num_hidden_groups": 1,
    "num_attention_heads": 64,
    "intermediate_size": 16384,
    "hidden_act": "gelu_new",
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "classifier_dropout_prob": 0.1,
}


def _convert_config(raw: dict[str, Any]) -> dict[str, Any]:
    """Replace null by the default: every ALBERT has narrow embeddings and shared layers."""
    needed = ("embedding_size", "num_hidden_groups")
    return {**raw, **{name: raw[name] or _DEFAULTS[name] for name in needed}}


ALBERT = Family(
    name="albert",
    settings={
        **same_names("embedding_size", "num_hidden_groups"),
        "classifier_dropout": "classifier_dropout_prob",
        "tagging_dropout": "classifier_dropout_prob",
    },
    keys=key_map(
        {
            **embedding_keys("albert.embeddings"),
            "encoder.embeddings.projection": "albert.encoder.embedding_hidden_mapping_in",
            "encoder.layers.{}.attention.query_key_value": tuple(
                f"{_LAYER}.attention.{part}" for part in ("query", "key", "value")
            ),
            "encoder.layers.{}.attention.output": f"{_LAYER}.attention.dense",
            "encoder.layers.{}.attention_norm": f"{_LAYER}.attention.LayerNorm",
            "encoder.layers.{}.feed_forward.intermediate": f"{_LAYER}.ffn",
            "encoder.layers.{}.feed_forward.output": f"{_LAYER}.ffn_output",
            "encoder.layers.{}.feed_forward_norm": f"{_LAYER}.full_layer_layer_norm",
            "encoder.pooler.dense": "albert.pooler",
            "mlm_head.transform.dense": "predictions.dense",
            "mlm_head.transform.norm": "predictions.LayerNorm",
            "mlm_head.bias": "predictions.bias",
            "mlm_head.decoder": "predictions.decoder.weight",
            "nsp_head": "sop_classifier.classifier",
            "head.linear": "classifier",
            **task_tensors(),
        }
    ),
    prefix="albert.",
    bare_prefixes=("embeddings.", "encoder.", "pooler."),
    classes={**model_classes("Albert"), "pretraining": "AlbertForPreTraining"},
    dropouts=dict.fromkeys(("classification", "tagging", "choice"), "classifier_dropout_prob"),
    defaults=_DEFAULTS,
    convert_config=_convert_config,
    token_ids={"bos_token_id": "cls", "eos_token_id": "sep"},
    required_values={"inner_group_num": 1, "position_embedding_type": "absolute", **NO_DECODER},
    unused_tensors=unused_tensors("albert.", "predictions|sop_classifier"),
)
