"""MobileBERT (Sun et al. 2020): narrow layers with bottlenecks, embeddings of three tokens."""

from __future__ import annotations

from typing import Any

from ..nn.config import EncoderConfig
from .bert import bert_classes, bert_keys
from .family import NO_DECODER, Family, key_map, same_names, unused_tensors

_LAYER = "encoder.layers.{}"
_THEIR_LAYER = "mobilebert.encoder.layer.{}"
_ATTENTION = f"{_THEIR_LAYER}.attention.self"
_NORMS = {"no_norm": "none", "layer_norm": "layer"}  # their name, ours
_EXTENSION = "mlm_head.decoder_extension"


def _convert_config(raw: dict[str, Any]) -> dict[str, Any]:
    """Replace names and truth values by the names of our settings."""
    norm, classifier = raw["normalization_type"], raw["classifier_activation"]
    if isinstance(classifier, bool):
        classifier = "pooler" if classifier else "linear"
    return {
        **raw,
        "normalization_type": _NORMS.get(norm, norm) if isinstance(norm, str) else norm,
        "classifier_activation": classifier,
    }


def _extra(config: EncoderConfig) -> dict[str, Any]:
    theirs = {ours: theirs for theirs, ours in _NORMS.items()}
    return {
        "normalization_type": theirs.get(config.norm, config.norm),
        "classifier_activation": config.classifier != "linear",
    }


MOBILEBERT = Family(
    name="mobilebert",
    settings={
        "output_embedding_size": "hidden_size",
        **same_names("embedding_size"),
        "word_map.trigrams": "trigram_input",
        "bottleneck.size": "intra_bottleneck_size",
        "bottleneck.attention": "use_bottleneck_attention",
        "bottleneck.shared_query_key": "key_query_shared_bottleneck",
        "bottleneck.num_feed_forward": "num_feedforward_networks",
        "norm": "normalization_type",
        "classifier": "classifier_activation",
    },
    keys=key_map(
        {
            **bert_keys("mobilebert"),
            "encoder.embeddings.word_map": "mobilebert.embeddings.embedding_transformation",
            f"{_LAYER}.attention.query_key_value.query_key": (
                f"{_ATTENTION}.query",
                f"{_ATTENTION}.key",
            ),
            f"{_LAYER}.attention.query_key_value.value": f"{_ATTENTION}.value",
            f"{_LAYER}.bottleneck.dense": f"{_THEIR_LAYER}.bottleneck.input.dense",
            f"{_LAYER}.bottleneck.norm": f"{_THEIR_LAYER}.bottleneck.input.LayerNorm",
            f"{_LAYER}.query_key_bottleneck.dense": f"{_THEIR_LAYER}.bottleneck.attention.dense",
            f"{_LAYER}.query_key_bottleneck.norm": f"{_THEIR_LAYER}.bottleneck.attention.LayerNorm",
            f"{_LAYER}.feed_forward_blocks.{{}}.feed_forward.intermediate": (
                f"{_THEIR_LAYER}.ffn.{{}}.intermediate.dense"
            ),
            f"{_LAYER}.feed_forward_blocks.{{}}.feed_forward.output": (
                f"{_THEIR_LAYER}.ffn.{{}}.output.dense"
            ),
            f"{_LAYER}.feed_forward_blocks.{{}}.norm": f"{_THEIR_LAYER}.ffn.{{}}.output.LayerNorm",
            f"{_LAYER}.output": f"{_THEIR_LAYER}.output.bottleneck.dense",
            f"{_LAYER}.output_norm": f"{_THEIR_LAYER}.output.bottleneck.LayerNorm",
            _EXTENSION: "cls.predictions.dense.weight",
        },
        is_transposed=(_EXTENSION,),
    ),
    prefix="mobilebert.",
    bare_prefixes=("embeddings.", "encoder.", "pooler."),
    classes=bert_classes("MobileBert"),
    # The published code leaves out `layer_norm_eps` here.
    fixed_settings={"word_map.norm_eps": 1e-5, "bottleneck.norm_eps": 1e-5},
    defaults={
        **{"hidden_size": 512, "num_hidden_layers": 24, "num_attention_heads": 4},
        **{"intermediate_size": 512, "hidden_act": "relu", "hidden_dropout_prob": 0.0},
        **{"embedding_size": 128, "trigram_input": True, "intra_bottleneck_size": 128},
        **{"use_bottleneck_attention": False, "key_query_shared_bottleneck": True},
        **{"num_feedforward_networks": 4, "normalization_type": "no_norm"},
        **{"classifier_activation": True},
    },
    required_values={
        **{"use_bottleneck": True, "tie_word_embeddings": True},
        **{"position_embedding_type": "absolute", **NO_DECODER},
    },
    convert_config=_convert_config,
    extra=_extra,
    unused_tensors=unused_tensors("mobilebert.", "cls"),
)
