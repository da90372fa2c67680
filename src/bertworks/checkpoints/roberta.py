"""RoBERTa and the families with its names of settings and heads.

XLM-RoBERTa and CamemBERT differ from it in their vocabularies, data2vec in what it was trained for
(Baevski et al. 2022). XLM-RoBERTa-XL (Goyal et al. 2021) and RoBERTa-PreLayerNorm (Ott et al. 2019,
"fairseq") normalise the input of each half of a layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .family import (
    NO_DECODER,
    Family,
    embedding_keys,
    key_map,
    layer_keys,
    roberta_head_keys,
    same_names,
    unused_tensors,
)
from .heads import model_classes

_LAYER, _THEIR_LAYER = "encoder.layers.{}", "encoder.layer.{}"
_FINAL_NORM = "LayerNorm"  # after RoBERTa-PreLayerNorm's layers


def _family(
    name: str,
    classes: str,
    prefix: str = "roberta.",
    *,
    norms: Mapping[str, str] | None = None,
    fixed_settings: Mapping[str, Any] | None = None,
) -> Family:
    """Return a family with RoBERTa's names.

    Args:
        prefix: the beginning of the encoder's tensor names.
        norms: the names of the norms that RoBERTa lacks or names otherwise, after the prefix.
        fixed_settings: settings that all of its models have, and RoBERTa's have not.
    """
    norm_keys = {ours: prefix + theirs for ours, theirs in (norms or {}).items()}
    return Family(
        name=name,
        settings=same_names(),
        keys=key_map(
            {
                **embedding_keys(f"{prefix}embeddings"),
                **layer_keys(f"{prefix}encoder.layer.{{}}"),
                **norm_keys,
                "encoder.pooler.dense": f"{prefix}pooler.dense",
                **roberta_head_keys(),
            }
        ),
        prefix=prefix,
        bare_prefixes=("embeddings.", "encoder.", "pooler.", f"{_FINAL_NORM}."),
        classes=model_classes(classes),
        dropouts=dict.fromkeys(("classification", "tagging"), "classifier_dropout"),
        # Padding has position 1, so that a sequence begins at position 2.
        fixed_settings={
            **{"position_offset": 2, "classifier": "tanh", "mlm_act": "gelu"},
            **(fixed_settings or {}),
        },
        defaults={
            "pad_token_id": 1,
            "max_position_embeddings": 514,
            "type_vocab_size": 1,
            "layer_norm_eps": 1e-5,
        },
        # Other tools derive the first position from pad_token_id, whatever the tokenizer pads with.
        extra=lambda config: {"pad_token_id": config.position_offset - 1},
        token_ids={"bos_token_id": "cls", "eos_token_id": "sep"},
        required_values={"position_embedding_type": "absolute", "pad_token_id": 1, **NO_DECODER},
        unused_tensors=unused_tensors(prefix, "lm_head"),
    )


ROBERTA = _family("roberta", "Roberta")
XLM_ROBERTA = _family("xlm-roberta", "XLMRoberta")
CAMEMBERT = _family("camembert", "Camembert")
DATA2VEC = _family("data2vec-text", "Data2VecText", "data2vec_text.")
ROBERTA_PRELAYERNORM = _family(
    "roberta-prelayernorm",
    "RobertaPreLayerNorm",
    "roberta_prelayernorm.",
    norms={
        f"{_LAYER}.attention_norm": f"{_THEIR_LAYER}.attention.LayerNorm",
        f"{_LAYER}.feed_forward_norm": f"{_THEIR_LAYER}.intermediate.LayerNorm",
        "encoder.final_norm": _FINAL_NORM,
    },
    fixed_settings={"norm_first": True, "first_layer_norm": True},
)
XLM_ROBERTA_XL = _family(
    "xlm-roberta-xl",
    "XLMRobertaXL",
    norms={
        f"{_LAYER}.attention_norm": f"{_THEIR_LAYER}.attention.self_attn_layer_norm",
        f"{_LAYER}.feed_forward_norm": f"{_THEIR_LAYER}.LayerNorm",
        "encoder.final_norm": "encoder.LayerNorm",
    },
    fixed_settings={"norm_first": True, "embedding_norm": False},
)
