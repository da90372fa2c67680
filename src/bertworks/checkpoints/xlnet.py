"""XLNet (Yang et al. 2019): relative positions and segments, and [CLS] last."""

from __future__ import annotations

from typing import Any

from .family import Family, key_map, unused_heads
from .heads import CHOICES, CLASSIFIER, MLM, SPANS, TAGS, model_classes

_LAYER = "transformer.layer.{}"
_OURS = "encoder.layers.{}"
_ATTENTION = f"{_OURS}.attention"
_TERMS = f"{_ATTENTION}.distance_maps"
_BY_HEAD: dict[str, str | tuple[str, ...]] = {
    f"{_ATTENTION}.query_key_value.weight": tuple(f"{_LAYER}.rel_attn.{part}" for part in "qkv"),
    f"{_ATTENTION}.output.weight": f"{_LAYER}.rel_attn.o",
    f"{_TERMS}.position.weight": f"{_LAYER}.rel_attn.r",
}
_DROPOUT = 0.1
_TRANSPOSED_MATRICES = [name for name in _BY_HEAD if ".output." not in name]


def _convert_config(raw: dict[str, Any]) -> dict[str, Any]:
    """A head's size follows from the others."""
    head, heads, size = (raw.get(name) for name in ("d_head", "n_head", "d_model"))
    if isinstance(head, int) and isinstance(heads, int) and head * heads == size:
        return {**raw, "d_head": None}
    return raw


def _adjust_settings(values: dict[str, Any]) -> dict[str, Any]:
    """There is one dropout: that of attention follows, unless it is given."""
    if values.get("attention_probs_dropout_prob") == _DROPOUT and "hidden_dropout_prob" in values:
        return {**values, "attention_probs_dropout_prob": values["hidden_dropout_prob"]}
    return values


XLNET = Family(
    name="xlnet",
    settings={
        "vocab_size": "vocab_size",
        "hidden_size": "d_model",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "intermediate_size": "d_inner",
        "hidden_act": "ff_activation",
        "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "dropout",
        "classifier_dropout": "summary_last_dropout",
        "max_position_embeddings": "max_seq_length",
        "initializer_range": "initializer_range",
        "layer_norm_eps": "layer_norm_eps",
        "tie_word_embeddings": "tie_word_embeddings",
    },
    keys=key_map(
        {
            "encoder.embeddings.word_embeddings": "transformer.word_embedding",
            "encoder.mask_vector": "transformer.mask_emb",
            **_BY_HEAD,
            f"{_TERMS}.content_bias": f"{_LAYER}.rel_attn.r_w_bias",
            f"{_TERMS}.position_bias": f"{_LAYER}.rel_attn.r_r_bias",
            f"{_TERMS}.segment_bias": f"{_LAYER}.rel_attn.r_s_bias",
            f"{_TERMS}.segments": f"{_LAYER}.rel_attn.seg_embed",
            f"{_OURS}.attention_norm": f"{_LAYER}.rel_attn.layer_norm",
            f"{_OURS}.feed_forward.intermediate": f"{_LAYER}.ff.layer_1",
            f"{_OURS}.feed_forward.output": f"{_LAYER}.ff.layer_2",
            f"{_OURS}.feed_forward_norm": f"{_LAYER}.ff.layer_norm",
            f"{MLM.name}.decoder": "lm_loss.weight",
            f"{MLM.name}.bias": "lm_loss.bias",
            f"{CLASSIFIER.name}.transform": "sequence_summary.summary",
            f"{CLASSIFIER.name}.linear": "logits_proj",
            f"{CHOICES.name}.transform": "sequence_summary.summary",
            f"{CHOICES.name}.linear": "logits_proj",
            f"{TAGS.name}.linear": "classifier",
            f"{SPANS.name}.linear": "qa_outputs",
        },
        is_transposed=_TRANSPOSED_MATRICES,
        is_by_head=_BY_HEAD,
    ),
    prefix="transformer.",
    bare_prefixes=("word_embedding.", "mask_emb", "layer."),
    classes={
        **model_classes("XLNet"),
        MLM.model_class: "XLNetLMHeadModel",
        SPANS.model_class: "XLNetForQuestionAnsweringSimple",
    },
    dropouts=dict.fromkeys((CLASSIFIER.model_class, CHOICES.model_class), "summary_last_dropout"),
    fixed_settings={
        "type_vocab_size": 0,
        "positions": "none",
        "score_bias": {"kind": "transformer-xl"},
        "embedding_norm": False,
        "mlm_transform": False,
        "classifier": "tanh",
    },
    # There is no limit to a text's length; 512 is that of training.
    defaults={
        "classifier_pooling": "last",
        "vocab_size": 32_000,
        "d_model": 1024,
        "n_layer": 24,
        "n_head": 16,
        "d_inner": 4096,
        "max_seq_length": 512,
        "dropout": _DROPOUT,
        "summary_last_dropout": 0.1,
    },
    required_values={
        "d_head": None,
        "attn_type": "bi",
        "bi_data": False,
        "clamp_len": -1,
        "untie_r": True,
        "summary_type": "last",
        "summary_use_proj": True,
        "summary_activation": "tanh",
    },
    convert_config=_convert_config,
    adjust_settings=_adjust_settings,
    unused_tensors=(
        *unused_heads("lm_loss", "sequence_summary|logits_proj|classifier|qa_outputs"),
        (
            r"(start_logits|end_logits|answer_class)\..*",
            "the head of answers by beam search, which is not supported",
        ),
    ),
)
