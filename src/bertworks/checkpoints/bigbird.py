"""BigBird (Zaheer et al. 2020) for sequences so short that its attention is BERT's.

A sequence of at most `(5 + 2 × num_random_blocks) × block_size` tokens has full attention in other
tools too; the sparse attention of longer ones is not supported.
"""

from __future__ import annotations

from typing import Any

from ..nn.config import EncoderConfig
from .bert import bert_keys
from .family import NO_DECODER, Family, key_map, same_names, unused_constants, unused_heads
from .heads import SPANS, model_classes

_BLOCK_SIZE, _NUM_RANDOM_BLOCKS = 64, 3  # of all published models
_MAX_FULL_ATTENTION = (5 + 2 * _NUM_RANDOM_BLOCKS) * _BLOCK_SIZE
_SPARSE, _FULL = "block_sparse", "original_full"


def _convert_config(raw: dict[str, Any]) -> dict[str, Any]:
    """Add the length up to which attention is full; null if it always is."""
    kind = raw["attention_type"]
    limit = {_SPARSE: _MAX_FULL_ATTENTION, _FULL: None}.get(str(kind), kind)
    return {**raw, "max_full_attention": limit}


def _extra(config: EncoderConfig) -> dict[str, Any]:
    is_sparse = config.max_full_attention is not None
    return {
        "attention_type": _SPARSE if is_sparse else _FULL,
        "block_size": _BLOCK_SIZE,
        "num_random_blocks": _NUM_RANDOM_BLOCKS,
    }


BIG_BIRD = Family(
    name="big_bird",
    settings=same_names("max_full_attention"),
    keys=key_map(
        {
            **bert_keys("bert"),
            "encoder.pooler.dense": "bert.pooler",
            "head.transform": "classifier.dense",
            "head.linear": "classifier.out_proj",
        }
    ),
    prefix="bert.",
    bare_prefixes=("embeddings.", "encoder.", "pooler."),
    # Their model for answers has a layer of its own.
    classes={**model_classes("BigBird", exclude=[SPANS]), "pretraining": "BigBirdForPreTraining"},
    dropouts=dict.fromkeys(("classification", "tagging"), "classifier_dropout"),
    fixed_settings={"classifier": "hidden_act", "keep_pooler": True},
    defaults={
        **{"vocab_size": 50358, "hidden_act": "gelu_new", "max_position_embeddings": 4096},
        **{"attention_type": _SPARSE},
    },
    required_values={
        **{"block_size": _BLOCK_SIZE, "num_random_blocks": _NUM_RANDOM_BLOCKS},
        **{"use_bias": True, "rescale_embeddings": False, **NO_DECODER},
    },
    convert_config=_convert_config,
    extra=_extra,
    token_ids={"bos_token_id": "cls", "eos_token_id": "sep", "sep_token_id": "sep"},
    unused_tensors=(
        *unused_constants("bert."),
        *unused_heads("cls", "classifier|qa_outputs|qa_classifier"),
    ),
)
