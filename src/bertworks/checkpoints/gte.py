"""GTE (Zhang et al. 2024, "mGTE"): post-norm, rotary positions, gated feed-forward layers.

Its models were published for code of their own, where the `model_type` is "new"; `transformers` 5
calls it "gte". Tensors have the same names but for the prefix. A model is written in the layout
that it came in. Their training also drops values within the feed-forward layers; here it does not.
"""

from __future__ import annotations

from typing import Any

from ..nn.config import EncoderConfig
from .family import Family, embedding_keys, key_map, same_names, unused_heads, unused_pooler
from .heads import CHOICES, SPANS, model_classes, task_tensors
from .rope import NO_ROPE_SCALING, ROPE_SETTINGS, flatten_rope, write_rope

_INTERMEDIATE = "encoder.layers.{}.feed_forward.intermediate"
_OWN_VALUES = {
    "position_embedding_type": "rope",
    "layer_norm_type": "layer_norm",
    "logn_attention_scale": False,
    "pack_qkv": True,
}
"""Settings of the published code, with the only values that its models have here."""


def _read_own_rope(raw: dict[str, Any]) -> dict[str, Any]:
    return flatten_rope(raw, "ntk")


def _write_own_rope(config: EncoderConfig) -> dict[str, Any]:
    """The entries of `config.json` for rotary positions, in the form of the published code."""
    scaling = None
    if config.rotary.factor != 1:
        scaling = {"type": config.rotary.scaling, "factor": config.rotary.factor}
    return {"rope_theta": config.rotary.theta, "rope_scaling": scaling, **_OWN_VALUES}


def _family(name: str, classes: dict[str, str], rope_theta: float) -> Family:
    is_own = name == "new"
    layer = f"{name}.encoder.layer.{{}}"
    module, tensor = r"(?:new|gte)\.layers\.(\d+)", rf"{name}.encoder.layer.\1"
    return Family(
        name=name,
        settings={**same_names(), **ROPE_SETTINGS},
        keys=key_map(
            {
                **embedding_keys(f"{name}.embeddings", ("word", "token_type")),
                "encoder.layers.{}.attention.query_key_value": f"{layer}.attention.qkv_proj",
                "encoder.layers.{}.attention.output": f"{layer}.attention.o_proj",
                "encoder.layers.{}.attention_norm": f"{layer}.attn_ln",
                _INTERMEDIATE: f"{layer}.mlp.up_gate_proj",
                "encoder.layers.{}.feed_forward.output": f"{layer}.mlp.down_proj",
                "encoder.layers.{}.feed_forward_norm": f"{layer}.mlp_ln",
                "encoder.pooler.dense": f"{name}.pooler.dense",
                "mlm_head.transform.dense": "lm_head.dense",
                "mlm_head.transform.norm": "lm_head.norm",
                "mlm_head.bias": "lm_head.decoder.bias",
                "mlm_head.decoder": "lm_head.decoder.weight",
                "head.linear": "classifier",
                **task_tensors(),
            },
            is_swapped=(_INTERMEDIATE,),  # the half with the activation is their second
        ),
        prefix=f"{name}.",
        bare_prefixes=("embeddings.", "encoder.", "pooler."),
        classes=classes,
        fixed_settings={
            "positions": "rotary",
            "gated": True,
            "intermediate_bias": False,
            "mlm_act": "gelu",
        },
        defaults={
            "vocab_size": 250048,
            "attention_probs_dropout_prob": 0.0,
            "max_position_embeddings": 8192,
            "type_vocab_size": 1,
            "rope_theta": rope_theta,
        },
        required_values={**_OWN_VALUES, **NO_ROPE_SCALING},
        convert_config=_read_own_rope if is_own else flatten_rope,
        extra=_write_own_rope if is_own else write_rope,
        has_bare_encoders=True,
        # The names of modules in `transformers`, which adapters have:
        alternative_names=(
            (rf"{module}\.self_attn\.o_proj(\..+)", rf"{tensor}.attention.o_proj\2"),
            (rf"{module}\.mlp\.down_proj(\..+)", rf"{tensor}.mlp.down_proj\2"),
        ),
        row_parts=(
            *(
                (
                    rf"{module}\.self_attn\.{part}_proj(\..+)",
                    rf"{tensor}.attention.qkv_proj\2",
                    n,
                    3,
                )
                for n, part in enumerate("qkv")
            ),
            *(
                (rf"{module}\.mlp\.{part}_proj(\..+)", rf"{tensor}.mlp.up_gate_proj\2", n, 2)
                for n, part in enumerate(("up", "gate"))
            ),
        ),
        unused_tensors=(unused_pooler(f"{name}."), *unused_heads("lm_head")),
    )


GTE = _family("gte", model_classes("Gte", exclude=[SPANS, CHOICES]), 160_000.0)
NEW = _family("new", model_classes("New"), 10_000.0)
"""The layout of the published code."""
