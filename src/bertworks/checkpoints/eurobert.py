"""EuroBERT (Boizard et al. 2025): Llama's layers without a causal mask.

Pre-norm with RMS norms, rotary positions, gated feed-forward layers, keys shared by several heads,
no biases.
"""

from __future__ import annotations

from typing import Any

from ..nn.config import EncoderConfig
from .family import Family, equal_names, key_map, unused_heads
from .heads import CHOICES, SPANS, model_classes
from .rope import NO_ROPE_SCALING, ROPE_SETTINGS, flatten_rope, write_rope

_LAYER = "model.layers.{}"
_QUERY_KEY_VALUE = "encoder.layers.{}.attention.query_key_value"


def _convert_config(raw: dict[str, Any]) -> dict[str, Any]:
    values = flatten_rope(raw)
    if "clf_pooling" in values:  # as the authors' own code names it
        values["classifier_pooling"] = values.pop("clf_pooling")
    if values["classifier_pooling"] == "bos":
        values["classifier_pooling"] = "cls"
    if values.get("num_key_value_heads") == values["num_attention_heads"]:
        values["num_key_value_heads"] = None
    width, heads, head_size = (
        values.get(name) for name in ("hidden_size", "num_attention_heads", "head_dim")
    )
    if head_size is not None and width == heads * head_size:
        del values["head_dim"]
    return values


def _extra(config: EncoderConfig) -> dict[str, Any]:
    pooling = config.classifier_pooling
    return {
        "num_key_value_heads": config.num_key_heads,
        "head_dim": config.head_size,
        **write_rope(config),
        "classifier_pooling": "bos" if pooling == "cls" else pooling,
        "attention_bias": False,
        "mlp_bias": False,
    }


EUROBERT = Family(
    name="eurobert",
    settings={
        **equal_names(
            *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"),
            *("num_key_value_heads", "intermediate_size", "hidden_act", "max_position_embeddings"),
            *("initializer_range", "classifier_pooling", "tie_word_embeddings"),
        ),
        "attention_probs_dropout_prob": "attention_dropout",
        "layer_norm_eps": "rms_norm_eps",
        **ROPE_SETTINGS,
    },
    keys=key_map(
        {
            "encoder.embeddings.word_embeddings": "model.embed_tokens",
            "encoder.layers.{}.attention_norm": f"{_LAYER}.input_layernorm",
            _QUERY_KEY_VALUE: tuple(f"{_LAYER}.self_attn.{part}_proj" for part in "qkv"),
            "encoder.layers.{}.attention.output": f"{_LAYER}.self_attn.o_proj",
            "encoder.layers.{}.feed_forward_norm": f"{_LAYER}.post_attention_layernorm",
            "encoder.layers.{}.feed_forward.intermediate": (
                f"{_LAYER}.mlp.gate_proj",
                f"{_LAYER}.mlp.up_proj",
            ),
            "encoder.layers.{}.feed_forward.output": f"{_LAYER}.mlp.down_proj",
            "encoder.final_norm": "model.norm",
            "mlm_head.decoder": "lm_head.weight",
            "head.transform": "dense",
            "head.linear": "classifier",
            "tag_head.linear": "classifier",
        },
        first_is_square=(_QUERY_KEY_VALUE,),
    ),
    prefix="model.",
    bare_prefixes=("embed_tokens.", "layers.", "norm."),
    classes=model_classes("EuroBert", exclude=[SPANS, CHOICES]),
    dropouts={},
    poolings=("cls", "mean", "late"),
    fixed_settings={
        "type_vocab_size": 0,
        "positions": "rotary",
        "norm_first": True,
        "embedding_norm": False,
        "norm": "rms",
        "norm_bias": False,
        "use_bias": False,
        "gated": True,
        "hidden_dropout_prob": 0.0,
        "mlm_transform": False,
        "mlm_bias": False,
        "classifier": "gelu",
    },
    defaults={
        "vocab_size": 128256,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "hidden_act": "silu",
        "attention_dropout": 0.0,
        "max_position_embeddings": 8192,
        "initializer_range": 0.02,
        "rms_norm_eps": 1e-5,
        "classifier_pooling": "late",
        "tie_word_embeddings": False,
    },
    token_ids={
        "bos_token_id": "cls",
        "eos_token_id": "sep",
        "pad_token_id": "pad",
        "mask_token_id": "mask",
    },
    required_values={
        "attention_bias": False,
        "mlp_bias": False,
        "head_dim": None,
        "pretraining_tp": 1,
        **NO_ROPE_SCALING,
    },
    convert_config=_convert_config,
    extra=_extra,
    unused_tensors=unused_heads("lm_head", "dense|classifier"),
)
