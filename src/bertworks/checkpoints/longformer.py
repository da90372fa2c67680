"""Longformer (Beltagy et al. 2020): RoBERTa with windows of attention, and global tokens."""

from __future__ import annotations

from typing import Any

from ..nn.part_settings import GlobalPosition
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
from .heads import CHOICES, CLASSIFIER, SPANS, model_classes

_ATTENTION = "longformer.encoder.layer.{}.attention.self"
_CLASSES = model_classes("Longformer")
_GLOBAL_TOKENS: dict[str, GlobalPosition] = {
    _CLASSES[CLASSIFIER.model_class]: "first",
    _CLASSES[SPANS.model_class]: "question",
    _CLASSES[CHOICES.model_class]: "choice",
}
"""Which tokens are global, by a model's class; none in the others."""


def _convert_config(raw: dict[str, Any]) -> dict[str, Any]:
    """The class of a published model decides which tokens are global."""
    names = raw.get("architectures")
    names = names if isinstance(names, list) else []
    position = next((_GLOBAL_TOKENS[name] for name in names if name in _GLOBAL_TOKENS), "none")
    windows = raw["attention_window"]
    if isinstance(windows, list) and windows and all(one == windows[0] for one in windows):
        windows = windows[0]
    return {"global_tokens": position, **raw, "attention_window": windows}


LONGFORMER = Family(
    name="longformer",
    settings={
        **same_names(),
        "local_attention": "attention_window",
        # A key of this package: others know the class of a model.
        "global_tokens.position": "global_tokens",
        "global_tokens.separator_id": "sep_token_id",
    },
    keys=key_map(
        {
            **embedding_keys("longformer.embeddings"),
            **layer_keys("longformer.encoder.layer.{}"),
            "encoder.layers.{}.attention.global_query_key_value": tuple(
                f"{_ATTENTION}.{part}_global" for part in ("query", "key", "value")
            ),
            "encoder.pooler.dense": "longformer.pooler.dense",
            **roberta_head_keys(),
        }
    ),
    prefix="longformer.",
    bare_prefixes=("embeddings.", "encoder.", "pooler."),
    classes=_CLASSES,
    dropouts={},
    # Padding has position 1, so that a sequence begins at position 2.
    fixed_settings={"position_offset": 2, "classifier": "tanh", "mlm_act": "gelu"},
    defaults={"pad_token_id": 1, "sep_token_id": 2, "attention_window": 512},
    # Other tools derive the first position from pad_token_id, whatever the tokenizer pads with.
    extra=lambda config: {"pad_token_id": config.position_offset - 1},
    token_ids={"bos_token_id": "cls", "eos_token_id": "sep", "sep_token_id": "sep"},
    required_values={"position_embedding_type": "absolute", "pad_token_id": 1, **NO_DECODER},
    convert_config=_convert_config,
    decided_by_class="which tokens are global",
    unused_tensors=unused_tensors("longformer.", "lm_head"),
)
