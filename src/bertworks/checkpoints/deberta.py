"""DeBERTa (He et al. 2021), in its versions 1, 2 and 3: scores with products of contents and
distances.

Version 1 has a vector for each distance, and no biases in the maps to keys. Later versions have
buckets of distances.
"""

from __future__ import annotations

from typing import Any

from ..nn.config import EncoderConfig
from .family import (
    ACTIVATIONS,
    NO_DECODER,
    Family,
    embedding_keys,
    key_map,
    layer_keys,
    same_names,
    unused_constants,
)
from .heads import CHOICES, model_classes, task_tensors

_ATTENTION = "deberta.encoder.layer.{}.attention.self"
_HEAD = "lm_predictions.lm_head"
_PROJECTIONS = ("query_proj", "key_proj", "value_proj")


def _convert_config(raw: dict[str, Any]) -> dict[str, Any]:
    """The terms of distances and the convolution as groups; positions by name."""
    values = _convert_embeddings(raw)
    values["relative_attention"] = _score_bias(raw) if raw["relative_attention"] else None
    size, activation = raw["conv_kernel_size"], raw["conv_act"]
    values["conv_kernel_size"] = None
    if not isinstance(size, int) or size > 0:
        values["conv_kernel_size"] = {
            "kernel_size": size,
            "groups": raw["conv_groups"],
            "activation": ACTIVATIONS.get(activation, activation),
        }
    return values


def _convert_embeddings(raw: dict[str, Any]) -> dict[str, Any]:
    values = dict(raw)
    values["position_biased_input"] = "learned" if raw["position_biased_input"] else "none"
    if values.get("embedding_size") == values.get("hidden_size"):
        values.pop("embedding_size", None)
    return values


def _convert_first_config(raw: dict[str, Any]) -> dict[str, Any]:
    """The same for version 1, which always has those terms here."""
    values = _convert_embeddings(raw)
    values["pos_att_type"] = {**_distances(raw), "num_buckets": None, "key_bias": False}
    return values


def _distances(raw: dict[str, Any]) -> dict[str, Any]:
    """What all versions say about the terms of distances."""
    terms = raw["pos_att_type"] or []
    if isinstance(terms, str):
        terms = [term.strip() for term in terms.lower().split("|")]
    distance = raw["max_relative_positions"]
    if isinstance(distance, int) and distance < 1:
        distance = raw["max_position_embeddings"]
    return {"kind": "disentangled", "max_distance": distance, "terms": terms}


def _score_bias(raw: dict[str, Any]) -> dict[str, Any]:
    buckets = raw["position_buckets"]
    return {
        **_distances(raw),
        "num_buckets": None if isinstance(buckets, int) and buckets < 1 else buckets,
        "shared_maps": raw["share_att_key"],
        "norm": raw["norm_rel_ebd"] == "layer_norm",
    }


def _extra(config: EncoderConfig) -> dict[str, Any]:
    """The same settings as a `config.json` has them."""
    bias = config.score_bias
    entries: dict[str, Any] = {
        "position_biased_input": config.positions == "learned",
        "relative_attention": bias is not None,
        "legacy": False,  # the layout of the published masked-language-model heads
    }
    if bias is not None:
        entries |= {
            "max_relative_positions": bias.max_distance,
            "position_buckets": bias.num_buckets or -1,
            "pos_att_type": list(bias.terms),
            "share_att_key": bias.shared_maps,
            "norm_rel_ebd": "layer_norm" if bias.norm else "none",
        }
    convolution = config.convolution
    entries["conv_kernel_size"] = 0 if convolution is None else convolution.kernel_size
    if convolution is not None:
        entries |= {"conv_groups": convolution.groups, "conv_act": convolution.activation}
    return entries


def _first_extra(config: EncoderConfig) -> dict[str, Any]:
    """The same for version 1."""
    bias = config.score_bias
    return {
        "position_biased_input": config.positions == "learned",
        "relative_attention": True,
        "max_relative_positions": -1 if bias is None else bias.max_distance,
        "pos_att_type": None if bias is None else list(bias.terms),
        "legacy": False,
    }


_SETTINGS = same_names(exclude={"tie_word_embeddings"})
_KEYS = {
    **embedding_keys("deberta.embeddings"),
    "encoder.score_bias.table": "deberta.encoder.rel_embeddings",
    **layer_keys("deberta.encoder.layer.{}"),
    "mlm_head.transform.dense": f"{_HEAD}.dense",
    "mlm_head.transform.norm": f"{_HEAD}.LayerNorm",
    "mlm_head.bias": f"{_HEAD}.bias",
    "mlm_head.decoder": f"{_HEAD}.decoder.weight",
    "head.transform": "pooler.dense",
    "head.linear": "classifier",
    **task_tensors(),
}
_LEGACY_HEAD = ((r"cls\.predictions\.(transform\.)?(.*)", rf"{_HEAD}.\2"),)
_REQUIRED_VALUES = {
    "embedding_size": None,
    "pooler_hidden_act": "gelu",
    "pooler_dropout": 0,
    "tie_word_embeddings": True,
    **NO_DECODER,
}
_UNUSED_TENSORS = (
    *unused_constants("deberta."),
    (
        r"deberta\.embeddings\.position_embeddings\..*",
        "positions that config.json does not use",
    ),
    (rf"{_HEAD}\..*", "the head of pre-training, which this task does not have"),
    (r"mask_predictions\..*", "the head of the discriminator, which this task does not have"),
    (r"(pooler|classifier|qa_outputs)\..*", "the head of another task"),
)

DEBERTA = Family(
    name="deberta",
    settings={
        **_SETTINGS,
        "positions": "position_biased_input",
        "score_bias": "pos_att_type",
    },
    keys=key_map(
        {
            **_KEYS,
            "encoder.layers.{}.attention.query_key_value": f"{_ATTENTION}.in_proj",
            "encoder.layers.{}.attention.query_bias": f"{_ATTENTION}.q_bias",
            "encoder.layers.{}.attention.value_bias": f"{_ATTENTION}.v_bias",
            "encoder.layers.{}.attention.distance_maps.key": f"{_ATTENTION}.pos_proj",
            "encoder.layers.{}.attention.distance_maps.query": f"{_ATTENTION}.pos_q_proj",
        }
    ),
    prefix="deberta.",
    bare_prefixes=("embeddings.", "encoder."),
    alternative_names=_LEGACY_HEAD,
    classes=model_classes("Deberta", exclude=[CHOICES]),
    dropouts={"classification": "cls_dropout"},
    fixed_settings={"classifier": "context", "query_key_value_order": "head"},
    defaults={
        "vocab_size": 50_265,
        "max_position_embeddings": 512,
        "type_vocab_size": 0,
        "layer_norm_eps": 1e-7,
        "relative_attention": True,
        "max_relative_positions": -1,
        "position_biased_input": True,
        "pos_att_type": ["c2p", "p2c"],
    },
    required_values={**_REQUIRED_VALUES, "relative_attention": True, "talking_head": False},
    convert_config=_convert_first_config,
    extra=_first_extra,
    unused_tensors=_UNUSED_TENSORS,
)
"""Version 1. The defaults of its terms are those of the published models; a file that lacks one,
and means that there are no terms, lacks their tensors too, and is refused for that."""

DEBERTA_V2 = Family(
    name="deberta-v2",
    settings={
        **_SETTINGS,
        "positions": "position_biased_input",
        "score_bias": "relative_attention",
        "convolution": "conv_kernel_size",
    },
    keys=key_map(
        {
            **_KEYS,
            "encoder.score_bias.norm": "deberta.encoder.LayerNorm",
            "encoder.convolution.linear": "deberta.encoder.conv.conv",
            "encoder.convolution.norm": "deberta.encoder.conv.LayerNorm",
            "encoder.layers.{}.attention.query_key_value": tuple(
                f"{_ATTENTION}.{part}" for part in _PROJECTIONS
            ),
            "encoder.layers.{}.attention.distance_maps.key": f"{_ATTENTION}.pos_key_proj",
            "encoder.layers.{}.attention.distance_maps.query": f"{_ATTENTION}.pos_query_proj",
            "choice_head.transform": "pooler.dense",
            "rtd_head.norm": "mask_predictions.LayerNorm",
            "rtd_head.dense": "mask_predictions.dense",
            "rtd_head.dense_prediction": "mask_predictions.classifier",
        }
    ),
    prefix="deberta.",
    bare_prefixes=("embeddings.", "encoder."),
    alternative_names=(
        *_LEGACY_HEAD,
        # as the original code spells it
        (r"mask_predictions\.classifer\.(.*)", r"mask_predictions.classifier.\1"),
    ),
    classes={
        **model_classes("DebertaV2"),
        "replaced-tokens": "DebertaV2Model",  # other tools have no class with this head
    },
    dropouts=dict.fromkeys(("classification", "choice"), "cls_dropout"),
    fixed_settings={"classifier": "context"},
    defaults={
        "vocab_size": 128_100,
        "hidden_size": 1536,
        "num_hidden_layers": 24,
        "num_attention_heads": 24,
        "intermediate_size": 6144,
        "max_position_embeddings": 512,
        "type_vocab_size": 0,
        "layer_norm_eps": 1e-7,
        "relative_attention": False,
        "max_relative_positions": -1,
        "position_buckets": -1,
        "position_biased_input": True,
        "pos_att_type": None,
        "share_att_key": False,
        "norm_rel_ebd": "none",
        "conv_kernel_size": 0,
        "conv_groups": 1,
        "conv_act": "tanh",
    },
    required_values=_REQUIRED_VALUES,
    convert_config=_convert_config,
    extra=_extra,
    unused_tensors=_UNUSED_TENSORS,
)
"""Versions 2 and 3."""
