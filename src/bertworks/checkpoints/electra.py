"""ELECTRA (Clark et al. 2020): generator and discriminator are BERTs with narrow embeddings."""

from __future__ import annotations

from typing import Any

from .family import (
    NO_DECODER,
    Family,
    embedding_keys,
    key_map,
    layer_keys,
    same_names,
    unused_constants,
)
from .heads import model_classes, task_tensors


def _convert_config(raw: dict[str, Any]) -> dict[str, Any]:
    """Embeddings as wide as the layers have no projection."""
    same = raw.get("embedding_size") == raw.get("hidden_size")
    return {**raw, "embedding_size": None} if same else raw


ELECTRA = Family(
    name="electra",
    settings=same_names("embedding_size"),
    keys=key_map(
        {
            **embedding_keys("electra.embeddings"),
            "encoder.embeddings.projection": "electra.embeddings_project",
            **layer_keys("electra.encoder.layer.{}"),
            "mlm_head.transform.dense": "generator_predictions.dense",
            "mlm_head.transform.norm": "generator_predictions.LayerNorm",
            "mlm_head.bias": "generator_lm_head.bias",
            "mlm_head.decoder": "generator_lm_head.weight",
            "rtd_head.dense": "discriminator_predictions.dense",
            "rtd_head.dense_prediction": "discriminator_predictions.dense_prediction",
            "head.transform": "classifier.dense",
            "head.linear": "classifier.out_proj",
            **task_tensors(),
            "choice_head.transform": "sequence_summary.summary",
        }
    ),
    prefix="electra.",
    bare_prefixes=("embeddings.", "embeddings_project.", "encoder."),
    classes={**model_classes("Electra"), "replaced-tokens": "ElectraForPreTraining"},
    dropouts={
        **dict.fromkeys(("classification", "tagging"), "classifier_dropout"),
        "choice": "summary_last_dropout",
    },
    fixed_settings={"classifier": "gelu", "mlm_act": "gelu"},
    defaults={
        "embedding_size": 128,
        "hidden_size": 256,
        "num_attention_heads": 4,
        "intermediate_size": 1024,
    },
    required_values={
        "position_embedding_type": "absolute",
        **{"summary_type": "first", "summary_use_proj": True, "summary_activation": "gelu"},
        **NO_DECODER,
    },
    convert_config=_convert_config,
    adjust_settings=_convert_config,
    extra=lambda config: {"embedding_size": config.embedding_width},
    unused_tensors=(
        *unused_constants("electra."),
        (
            r"generator_(predictions|lm_head)\..*",
            "the generator's head, which this task does not have",
        ),
        (
            r"discriminator_predictions\..*",
            "the discriminator's head, which this task does not have",
        ),
        (r"(classifier|qa_outputs|sequence_summary)\..*", "the head of another task"),
    ),
)
