"""MPNet (Song et al. 2020): BERT without segments, with a bias for each distance in the scores."""

from __future__ import annotations

from .family import (
    NO_DECODER,
    Family,
    embedding_keys,
    key_map,
    roberta_head_keys,
    same_names,
    unused_tensors,
)
from .heads import model_classes

_LAYER = "mpnet.encoder.layer.{}"

MPNET = Family(
    name="mpnet",
    settings={
        **same_names(exclude={"type_vocab_size"}),
        "score_bias.num_buckets": "relative_attention_num_buckets",
    },
    keys=key_map(
        {
            **embedding_keys("mpnet.embeddings", ("word", "position")),
            "encoder.score_bias.table": "mpnet.encoder.relative_attention_bias",
            "encoder.layers.{}.attention.query_key_value": tuple(
                f"{_LAYER}.attention.attn.{part}" for part in ("q", "k", "v")
            ),
            "encoder.layers.{}.attention.output": f"{_LAYER}.attention.attn.o",
            "encoder.layers.{}.attention_norm": f"{_LAYER}.attention.LayerNorm",
            "encoder.layers.{}.feed_forward.intermediate": f"{_LAYER}.intermediate.dense",
            "encoder.layers.{}.feed_forward.output": f"{_LAYER}.output.dense",
            "encoder.layers.{}.feed_forward_norm": f"{_LAYER}.output.LayerNorm",
            "encoder.pooler.dense": "mpnet.pooler.dense",
            **roberta_head_keys(),
        }
    ),
    prefix="mpnet.",
    bare_prefixes=("embeddings.", "encoder.", "pooler."),
    classes=model_classes("MPNet"),
    dropouts={},
    fixed_settings={
        "type_vocab_size": 0,
        "position_offset": 2,  # padding has position 1
        "classifier": "tanh",
        "mlm_act": "gelu",
        "score_bias.kind": "buckets",
        "score_bias.max_distance": 128,
    },
    defaults={"vocab_size": 30527, "pad_token_id": 1, "relative_attention_num_buckets": 32},
    extra=lambda config: {"pad_token_id": config.position_offset - 1},
    token_ids={"bos_token_id": "cls", "eos_token_id": "sep"},
    # The published code has 32 buckets, whatever the size of the table.
    required_values={"pad_token_id": 1, "relative_attention_num_buckets": 32, **NO_DECODER},
    unused_tensors=unused_tensors("mpnet.", "lm_head"),
)
