"""BERT, ERNIE (BERT with one more embedding) and Megatron-BERT: names of settings and tensors."""

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

_HEAD = "cls.predictions"


def bert_keys(name: str) -> dict[str, str | tuple[str, ...]]:
    """The names of BERT's tensors, by our names."""
    return {
        **embedding_keys(f"{name}.embeddings"),
        **layer_keys(f"{name}.encoder.layer.{{}}"),
        "encoder.pooler.dense": f"{name}.pooler.dense",
        "mlm_head.transform.dense": f"{_HEAD}.transform.dense",
        "mlm_head.transform.norm": f"{_HEAD}.transform.LayerNorm",
        "mlm_head.bias": f"{_HEAD}.bias",
        "mlm_head.decoder": f"{_HEAD}.decoder.weight",
        "nsp_head": "cls.seq_relationship",
        "head.linear": "classifier",
        **task_tensors(),
    }


def bert_classes(name: str) -> dict[str, str]:
    """The Hugging Face classes that load its models."""
    return {
        **model_classes(name),
        "pretraining": f"{name}ForPreTraining",
        "next-sentence": f"{name}ForNextSentencePrediction",
    }


def _convert_bert_config(raw: dict[str, Any]) -> dict[str, Any]:
    """A decoder without cross-attention is an encoder whose tokens only see earlier tokens."""
    return {**raw, "is_decoder": "causal" if raw.get("is_decoder") else "bidirectional"}


_REQUIRED_VALUES = {"position_embedding_type": "absolute", **NO_DECODER}
_BARE = ("embeddings.", "encoder.", "pooler.")

BERT = Family(
    name="bert",
    settings={**same_names(), "attention": "is_decoder"},
    keys=key_map(bert_keys("bert")),
    prefix="bert.",
    bare_prefixes=_BARE,
    classes={**bert_classes("Bert"), "causal-lm": "BertLMHeadModel"},
    required_values={
        name: value for name, value in _REQUIRED_VALUES.items() if name != "is_decoder"
    },
    convert_config=_convert_bert_config,
    extra=lambda config: {"is_decoder": config.attention == "causal"},
    unused_tensors=(
        *unused_tensors("bert.", "cls"),
        (r"fit_dense(s\.\d+)?\.(weight|bias)", "a map of TinyBERT's distillation"),
    ),
)


def _convert_ernie_config(raw: dict[str, Any]) -> dict[str, Any]:
    """Without `use_task_id` there are no task embeddings, whatever `task_type_vocab_size` is."""
    return raw if raw.get("use_task_id") else {**raw, "task_type_vocab_size": 0}


ERNIE = Family(
    name="ernie",
    settings=same_names("task_type_vocab_size"),
    keys=key_map(
        {
            **bert_keys("ernie"),
            "encoder.embeddings.task_type_embeddings": "ernie.embeddings.task_type_embeddings",
        }
    ),
    prefix="ernie.",
    bare_prefixes=_BARE,
    classes=bert_classes("Ernie"),
    defaults={"task_type_vocab_size": 3},
    required_values=_REQUIRED_VALUES,
    convert_config=_convert_ernie_config,
    extra=lambda config: {"use_task_id": config.task_type_vocab_size > 0},
    unused_tensors=unused_tensors("ernie.", "cls"),
)

_MEGATRON_LAYER = "bert.encoder.layer.{}"

MEGATRON_BERT = Family(
    name="megatron-bert",
    settings=same_names(),
    keys=key_map(
        {
            **bert_keys("bert"),
            "encoder.layers.{}.attention_norm": f"{_MEGATRON_LAYER}.attention.ln",
            "encoder.layers.{}.feed_forward_norm": f"{_MEGATRON_LAYER}.ln",
            "encoder.final_norm": "bert.encoder.ln",
        }
    ),
    prefix="bert.",
    bare_prefixes=_BARE,
    classes=bert_classes("MegatronBert"),
    fixed_settings={"norm_first": True, "embedding_norm": False},
    dropouts={},
    defaults={
        **{"vocab_size": 29056, "hidden_size": 1024, "num_hidden_layers": 24},
        **{"num_attention_heads": 16, "intermediate_size": 4096},
    },
    required_values=_REQUIRED_VALUES,
    unused_tensors=unused_tensors("bert.", "cls"),
)
"""BERT's layers with the norms before attention and feed-forward (Shoeybi et al. 2019, §3 and
figure 7)."""
