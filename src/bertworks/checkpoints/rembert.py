"""RemBERT (Chung et al. 2021): narrow input embeddings, wide output embeddings."""

from __future__ import annotations

from typing import Any

from .family import (
    NO_DECODER,
    Family,
    embedding_keys,
    key_map,
    layer_keys,
    same_names,
    unused_tensors,
)
from .heads import model_classes, task_tensors

_DEFAULTS = {
    "vocab_size": 250300,
    "hidden_size": 1152,
    "num_hidden_layers": 32,
    "num_attention_heads": 18,
    "input_embedding_size": 256,
    "output_embedding_size": 1664,
    "intermediate_size": 4608,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "classifier_dropout_prob": 0.1,
    "tie_word_embeddings": False,
}


def _convert_config(raw: dict[str, Any]) -> dict[str, Any]:
    """Replace null by the default: every RemBERT has two kinds of embeddings."""
    sizes = ("input_embedding_size", "output_embedding_size")
    return {**raw, **{name: raw[name] or _DEFAULTS[name] for name in sizes}}


REMBERT = Family(
    name="rembert",
    settings={
        **same_names("output_embedding_size"),
        "embedding_size": "input_embedding_size",
        "classifier_dropout": "classifier_dropout_prob",
        "tagging_dropout": "classifier_dropout_prob",
    },
    keys=key_map(
        {
            **embedding_keys("rembert.embeddings"),
            "encoder.embeddings.projection": "rembert.encoder.embedding_hidden_mapping_in",
            **layer_keys("rembert.encoder.layer.{}"),
            "encoder.pooler.dense": "rembert.pooler.dense",
            "mlm_head.transform.dense": "cls.predictions.dense",
            "mlm_head.transform.norm": "cls.predictions.LayerNorm",
            "mlm_head.bias": "cls.predictions.decoder.bias",
            "mlm_head.decoder": "cls.predictions.decoder.weight",
            "head.linear": "classifier",
            **task_tensors(),
        }
    ),
    prefix="rembert.",
    bare_prefixes=("embeddings.", "encoder.", "pooler."),
    classes=model_classes("RemBert"),
    dropouts=dict.fromkeys(("classification", "tagging", "choice"), "classifier_dropout_prob"),
    defaults=_DEFAULTS,
    convert_config=_convert_config,
    token_ids={"bos_token_id": "cls", "eos_token_id": "sep"},
    required_values={
        "position_embedding_type": "absolute",
        "tie_word_embeddings": False,
        **NO_DECODER,
    },
    unused_tensors=unused_tensors("rembert.", "cls"),
)
