"""ModernBERT (Warner et al. 2024): pre-norm, rotary positions, gated feed-forward layers, mostly
local attention, no biases."""

from __future__ import annotations

from typing import Any

from ..nn.config import EncoderConfig
from .family import Family, equal_names, key_map, unused_heads
from .heads import model_classes

_FULL, _LOCAL = "full_attention", "sliding_attention"
_LAYER = "model.layers.{}"


def _convert_config(raw: dict[str, Any]) -> dict[str, Any]:
    """The form of Hugging Face transformers 4: numbers rather than lists and tables."""
    values = dict(raw)
    if isinstance(tables := values.get("rope_parameters") or {}, dict):
        values.pop("rope_parameters", None)
        for kind, name in ((_FULL, "global_rope_theta"), (_LOCAL, "local_rope_theta")):
            table = tables.get(kind) or {}
            if not isinstance(table, dict) or table.get("rope_type", "default") != "default":
                values["rope_parameters"] = table
            elif "rope_theta" in table:
                values[name] = table["rope_theta"]
    every_given = values["global_attn_every_n_layers"]
    if isinstance(kinds := values.get("layer_types"), list) and isinstance(every_given, int):
        del values["layer_types"]
        seen = kinds[1:].index(_FULL) + 1 if _FULL in kinds[1:] else max(1, len(kinds))
        for every in (max(1, every_given), seen):
            if kinds == [_LOCAL if number % every else _FULL for number in range(len(kinds))]:
                values["global_attn_every_n_layers"] = every
                break
        else:
            values["layer_types"] = kinds
    return values


def _extra(config: EncoderConfig) -> dict[str, Any]:
    """The same settings in the form of version 5, which reads no other form."""
    kinds = [_LOCAL if config.is_local(n) else _FULL for n in range(config.num_hidden_layers)]
    thetas = {_FULL: config.rotary.theta, _LOCAL: config.rotary.local_theta}
    return {
        "layer_types": kinds,
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": theta} for kind, theta in thetas.items()
        },
        "attention_bias": False,
        "mlp_bias": False,
        "norm_bias": False,
        "classifier_bias": False,
        "classifier_activation": config.mlm_act,
        "embedding_dropout": config.hidden_dropout_prob,
    }


MODERNBERT = Family(
    name="modernbert",
    settings={
        **equal_names(
            *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"),
            *("intermediate_size", "max_position_embeddings", "initializer_range"),
            *("local_attention", "classifier_pooling", "tie_word_embeddings"),
        ),
        "hidden_act": "hidden_activation",
        "mlm_act": "classifier_activation",
        "mlm_bias": "decoder_bias",
        "hidden_dropout_prob": "mlp_dropout",
        "attention_probs_dropout_prob": "attention_dropout",
        "layer_norm_eps": "norm_eps",
        "global_attention_every": "global_attn_every_n_layers",
        "rotary.theta": "global_rope_theta",
        "rotary.local_theta": "local_rope_theta",
    },
    keys=key_map(
        {
            "encoder.embeddings.word_embeddings": "model.embeddings.tok_embeddings",
            "encoder.embeddings.norm": "model.embeddings.norm",
            "encoder.layers.{}.attention_norm": f"{_LAYER}.attn_norm",
            "encoder.layers.{}.attention.query_key_value": f"{_LAYER}.attn.Wqkv",
            "encoder.layers.{}.attention.output": f"{_LAYER}.attn.Wo",
            "encoder.layers.{}.feed_forward_norm": f"{_LAYER}.mlp_norm",
            "encoder.layers.{}.feed_forward.intermediate": f"{_LAYER}.mlp.Wi",
            "encoder.layers.{}.feed_forward.output": f"{_LAYER}.mlp.Wo",
            "encoder.final_norm": "model.final_norm",
            "mlm_head.transform.dense": "head.dense",
            "mlm_head.transform.norm": "head.norm",
            "mlm_head.bias": "decoder.bias",
            "mlm_head.decoder": "decoder.weight",
            "head.transform.dense": "head.dense",
            "head.transform.norm": "head.norm",
            "head.linear": "classifier",
            **{
                f"{head}.{ours}": theirs
                for head in ("tag_head", "span_head", "choice_head")
                for ours, theirs in (
                    ("transform.dense", "head.dense"),
                    ("transform.norm", "head.norm"),
                    ("linear", "classifier"),
                )
            },
        }
    ),
    prefix="model.",
    bare_prefixes=("embeddings.", "layers.", "final_norm."),
    classes=model_classes("ModernBert"),
    dropouts=dict.fromkeys(
        ("classification", "tagging", "answering", "choice"), "classifier_dropout"
    ),
    poolings=("cls", "mean"),
    fixed_settings={
        "type_vocab_size": 0,
        "positions": "rotary",
        "norm_first": True,
        "use_bias": False,
        "norm_bias": False,
        "gated": True,
        "classifier": "norm",
    },
    defaults={
        "vocab_size": 50368,
        "hidden_size": 768,
        "num_hidden_layers": 22,
        "num_attention_heads": 12,
        "intermediate_size": 1152,
        "hidden_activation": "gelu",
        "classifier_activation": "gelu",
        "decoder_bias": True,
        "mlp_dropout": 0.0,
        "attention_dropout": 0.0,
        "max_position_embeddings": 8192,
        "norm_eps": 1e-5,
        "local_attention": 128,
        "global_attn_every_n_layers": 3,
        "global_rope_theta": 160_000.0,
        "local_rope_theta": 10_000.0,
    },
    token_ids={
        "bos_token_id": "cls",
        "eos_token_id": "sep",
        "cls_token_id": "cls",
        "sep_token_id": "sep",
    },
    required_values={
        "attention_bias": False,
        "mlp_bias": False,
        "norm_bias": False,
        "classifier_bias": False,
        "rope_parameters": None,
        "layer_types": None,
    },
    convert_config=_convert_config,
    extra=_extra,
    unused_tensors=unused_heads("head|decoder", "classifier"),
)
