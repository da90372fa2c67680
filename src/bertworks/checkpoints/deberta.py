"""DeBERTa v2 and v3 (He et al. 2021): scores with products of contents and distances."""

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
    unused_constants,
)
from .heads import task_classes, task_tensors

_ATTENTION = "deberta.encoder.layer.{}.attention.self"
_HEAD = "lm_predictions.lm_head"
_PROJECTIONS = ("query_proj", "key_proj", "value_proj")


def _convert_config(raw: dict[str, Any]) -> dict[str, Any]:
    """The terms of distances as one group; positions by name."""
    values = dict(raw)
    values["position_biased_input"] = "learned" if raw["position_biased_input"] else "none"
    if values.get("embedding_size") == values.get("hidden_size"):
        values.pop("embedding_size", None)
    values["relative_attention"] = _score_bias(raw) if raw["relative_attention"] else None
    return values


def _score_bias(raw: dict[str, Any]) -> dict[str, Any]:
    terms = raw["pos_att_type"] or []
    if isinstance(terms, str):
        terms = [term.strip() for term in terms.lower().split("|")]
    distance, buckets = raw["max_relative_positions"], raw["position_buckets"]
    is_number = isinstance(distance, int) and isinstance(buckets, int)
    return {
        "kind": "disentangled",
        "max_distance": raw["max_position_embeddings"] if is_number and distance < 1 else distance,
        "num_buckets": None if is_number and buckets < 1 else buckets,
        "terms": terms,
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
    return entries


_SETTINGS = same_names()
del _SETTINGS["tie_word_embeddings"]

DEBERTA_V2 = Family(
    name="deberta-v2",
    settings={
        **_SETTINGS,
        "positions": "position_biased_input",
        "score_bias": "relative_attention",
    },
    keys=key_map(
        {
            **embedding_keys("deberta.embeddings"),
            "encoder.score_bias.table": "deberta.encoder.rel_embeddings",
            "encoder.score_bias.norm": "deberta.encoder.LayerNorm",
            **layer_keys("deberta.encoder.layer.{}"),
            "encoder.layers.{}.attention.query_key_value": tuple(
                f"{_ATTENTION}.{part}" for part in _PROJECTIONS
            ),
            "encoder.layers.{}.attention.distance_maps.key": f"{_ATTENTION}.pos_key_proj",
            "encoder.layers.{}.attention.distance_maps.query": f"{_ATTENTION}.pos_query_proj",
            "mlm_head.transform.dense": f"{_HEAD}.dense",
            "mlm_head.transform.norm": f"{_HEAD}.LayerNorm",
            "mlm_head.bias": f"{_HEAD}.bias",
            "mlm_head.decoder": f"{_HEAD}.decoder.weight",
            "head.transform": "pooler.dense",
            "head.linear": "classifier",
            **task_tensors(),
            "choice_head.transform": "pooler.dense",
        }
    ),
    prefix="deberta.",
    bare_prefixes=("embeddings.", "encoder."),
    alternative_names=((r"cls\.predictions\.(transform\.)?(.*)", rf"{_HEAD}.\2"),),
    classes={
        "encoder": "DebertaV2Model",
        "masked-lm": "DebertaV2ForMaskedLM",
        **task_classes("DebertaV2"),
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
    },
    required_values={
        "embedding_size": None,
        "pooler_hidden_act": "gelu",
        "pooler_dropout": 0,
        "conv_kernel_size": 0,
        "tie_word_embeddings": True,
        **NO_DECODER,
    },
    convert_config=_convert_config,
    extra=_extra,
    unused_tensors=(
        *unused_constants("deberta."),
        (
            r"deberta\.embeddings\.position_embeddings\..*",
            "positions that config.json does not use",
        ),
        (rf"{_HEAD}\..*", "the head of pre-training, which this task does not have"),
        (r"mask_predictions\..*", "the head of the discriminator, which this task does not have"),
        (r"(pooler|classifier|qa_outputs)\..*", "the head of another task"),
    ),
)
