"""SqueezeBERT (Iandola et al. 2020): BERT with groups in its linear maps, as convolutions."""

from __future__ import annotations

from typing import Any

from ..nn.config import EncoderConfig
from .bert import bert_keys
from .family import NO_DECODER, Family, key_map, same_names, unused_tensors
from .heads import model_classes

_LAYER = "encoder.layers.{}"
_THEIR_LAYER = "transformer.encoder.layers.{}"
_MATRICES: dict[str, str | tuple[str, ...]] = {
    f"{_LAYER}.attention.query_key_value": tuple(
        f"{_THEIR_LAYER}.attention.{part}" for part in ("query", "key", "value")
    ),
    f"{_LAYER}.attention.output": f"{_THEIR_LAYER}.post_attention.conv1d",
    f"{_LAYER}.feed_forward.intermediate": f"{_THEIR_LAYER}.intermediate.conv1d",
    f"{_LAYER}.feed_forward.output": f"{_THEIR_LAYER}.output.conv1d",
}


def _convert_config(raw: dict[str, Any]) -> dict[str, Any]:
    """Replace by null what must be, and is, the same as another value."""
    twins = {"k_groups": "q_groups", "v_groups": "q_groups", "embedding_size": "hidden_size"}
    equal_names = [name for name, twin in twins.items() if raw.get(name) == raw.get(twin)]
    return {**raw, **dict.fromkeys(equal_names)}


def _extra(config: EncoderConfig) -> dict[str, Any]:
    groups = config.groups.query_key_value
    # The norms of their layers have this epsilon, whatever their config.json says.
    return {
        **{"k_groups": groups, "v_groups": groups, "embedding_size": config.hidden_size},
        **{"layer_norm_eps": config.layer_norm_eps},
    }


SQUEEZEBERT = Family(
    name="squeezebert",
    settings={
        **same_names(exclude={"layer_norm_eps"}),
        "linear_groups.query_key_value": "q_groups",
        "linear_groups.attention_output": "post_attention_groups",
        "linear_groups.intermediate": "intermediate_groups",
        "linear_groups.output": "output_groups",
    },
    keys=key_map(
        {
            **bert_keys("transformer"),
            **_MATRICES,
            f"{_LAYER}.attention_norm": f"{_THEIR_LAYER}.post_attention.layernorm",
            f"{_LAYER}.feed_forward_norm": f"{_THEIR_LAYER}.output.layernorm",
        },
        is_convolution=_MATRICES,
    ),
    prefix="transformer.",
    bare_prefixes=("embeddings.", "encoder.", "pooler."),
    classes=model_classes("SqueezeBert"),
    dropouts={},
    fixed_settings={"layer_norm_eps": 1e-12, "keep_pooler": True},
    defaults={
        **{f"{part}_groups": 4 for part in ("q", "k", "v", "intermediate", "output")},
        "post_attention_groups": 1,
    },
    required_values={
        **{"k_groups": None, "v_groups": None, "embedding_size": None, "layer_norm_eps": 1e-12},
        **NO_DECODER,
    },
    convert_config=_convert_config,
    extra=_extra,
    unused_tensors=unused_tensors("transformer.", "cls"),
)
