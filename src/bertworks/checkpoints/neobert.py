"""NeoBERT (Le Breton et al. 2025): pre-norm with RMS norms, rotary positions, gated layers.

Neighbouring features are rotated together. Its models were published for code of their own, whose
`intermediate_size` is that of a layer that is not gated: a third more than the gated one's.
"""

from __future__ import annotations

from typing import Any

from ..nn.config import EncoderConfig
from .family import Family, key_map, unused_heads

_LAYER = "model.transformer_encoder.{}"
_MULTIPLE = 8
"""Widths of gated layers are rounded up to a multiple of it."""


def _convert_config(raw: dict[str, Any]) -> dict[str, Any]:
    width = raw["intermediate_size"]
    if isinstance(width, int):
        width = -(-(2 * width // 3) // _MULTIPLE) * _MULTIPLE
    return {**raw, "intermediate_size": width}


def _extra(config: EncoderConfig) -> dict[str, Any]:
    return {
        "intermediate_size": 3 * config.intermediate_size // 2,
        "embedding_init_range": config.initializer_range,
    }


NEOBERT = Family(
    name="neobert",
    settings={
        "vocab_size": "vocab_size",
        "hidden_size": "hidden_size",
        "num_hidden_layers": "num_hidden_layers",
        "num_attention_heads": "num_attention_heads",
        "intermediate_size": "intermediate_size",
        "max_position_embeddings": "max_length",
        "initializer_range": "decoder_init_range",
        "layer_norm_eps": "norm_eps",
    },
    keys=key_map(
        {
            "encoder.embeddings.word_embeddings": "model.encoder",
            "encoder.layers.{}.attention_norm": f"{_LAYER}.attention_norm",
            "encoder.layers.{}.attention.query_key_value": f"{_LAYER}.qkv",
            "encoder.layers.{}.attention.output": f"{_LAYER}.wo",
            "encoder.layers.{}.feed_forward_norm": f"{_LAYER}.ffn_norm",
            "encoder.layers.{}.feed_forward.intermediate": f"{_LAYER}.ffn.w12",
            "encoder.layers.{}.feed_forward.output": f"{_LAYER}.ffn.w3",
            "encoder.final_norm": "model.layer_norm",
            "mlm_head.decoder": "decoder.weight",
            "mlm_head.bias": "decoder.bias",
            "head.transform": "dense",
            "head.linear": "classifier",
        }
    ),
    prefix="model.",
    bare_prefixes=("encoder.", "transformer_encoder.", "layer_norm."),
    classes={
        "encoder": "NeoBERT",
        "masked-lm": "NeoBERTLMHead",
        "classification": "NeoBERTForSequenceClassification",
    },
    dropouts={"classification": "classifier_dropout"},
    fixed_settings={
        "type_vocab_size": 0,
        "hidden_act": "silu",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "positions": "rotary",
        "rotary.kind": "neighbours",
        "query_key_value_order": "head",
        "norm_first": True,
        "embedding_norm": False,
        "norm": "rms",
        "norm_bias": False,
        "use_bias": False,
        "gated": True,
        "classifier": "tanh",
        "mlm_transform": False,
        "tie_word_embeddings": False,
    },
    defaults={
        "vocab_size": 30522,
        "num_hidden_layers": 28,
        "intermediate_size": 3072,
        "max_length": 1024,
        "norm_eps": 1e-6,
    },
    required_values={
        **{"rms_norm": True, "rope": True, "ngpt": False, "hidden_act": "SwiGLU", "dropout": 0},
        "tie_word_embeddings": False,
    },
    convert_config=_convert_config,
    extra=_extra,
    has_bare_encoders=True,
    unused_tensors=(
        (r"model\.freqs_cis", "a constant"),
        *unused_heads("decoder", "dense|classifier"),
    ),
)
