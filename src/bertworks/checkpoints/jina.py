"""Jina embeddings v3 (Sturua et al. 2024), XLM-RoBERTa with rotary positions; its code's layout.

It was published for code of its own, whose `config.json` has XLM-RoBERTa's `model_type`; names of
tensors are the same. The adapters in its weights are read by `task_adapters.py`. A model is written
in the layout of `transformers`.

The same code computes XLM-RoBERTa itself, with absolute positions, as in jina-reranker-v2. The
`config.json` may then have no `model_type`, and names the code in `auto_map`. Such a model is
written in the layout that it came in.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..nn.config import EncoderConfig
from .family import (
    Family,
    RawConfig,
    embedding_keys,
    key_map,
    roberta_head_keys,
    same_names,
    unused_heads,
    unused_pooler,
)
from .heads import CHOICES, model_classes
from .roberta import XLM_ROBERTA
from .rope import NO_ROPE_SCALING, ROPE_SETTINGS, flatten_rope, write_rope

_LAYER = "roberta.encoder.layers.{}"

_BARE_PREFIXES = ("embeddings.", "emb_ln.", "encoder.", "layers.", "pooler.")
_CODE_CONFIG = "XLMRobertaFlashConfig"
_CODE = "jinaai/xlm-roberta-flash-implementation--"
_KEYS: dict[str, str | tuple[str, ...]] = {
    **embedding_keys("roberta.embeddings", ("word", "token_type")),
    "encoder.embeddings.norm": "roberta.emb_ln",
    "encoder.layers.{}.attention.query_key_value": f"{_LAYER}.mixer.Wqkv",
    "encoder.layers.{}.attention.output": f"{_LAYER}.mixer.out_proj",
    "encoder.layers.{}.attention_norm": f"{_LAYER}.norm1",
    "encoder.layers.{}.feed_forward.intermediate": f"{_LAYER}.mlp.fc1",
    "encoder.layers.{}.feed_forward.output": f"{_LAYER}.mlp.fc2",
    "encoder.layers.{}.feed_forward_norm": f"{_LAYER}.norm2",
    "encoder.pooler.dense": "roberta.pooler.dense",
    **roberta_head_keys(),
}

_ATTENTION = r"roberta\.(?:encoder\.)?layers\.(\d+)\.self_attn"


def _convert_config(raw: dict[str, Any]) -> dict[str, Any]:
    """The names of `transformers`, whichever a file has."""
    values = flatten_rope(raw)
    if "rotary_emb_base" in raw:
        values["rope_theta"] = raw["rotary_emb_base"]
    if values.get("emb_pooler") == "mean":  # as without that setting
        values["emb_pooler"] = None
    return values


JINA_V3 = Family(
    name="jina_embeddings_v3",
    settings={**same_names(), **ROPE_SETTINGS},
    keys=key_map(_KEYS),
    prefix="roberta.",
    bare_prefixes=_BARE_PREFIXES,
    classes=model_classes("JinaEmbeddingsV3", exclude=[CHOICES]),
    dropouts=dict.fromkeys(("classification", "tagging"), "classifier_dropout"),
    fixed_settings={"positions": "rotary", "classifier": "tanh", "mlm_act": "gelu"},
    defaults={
        "vocab_size": 250002,
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
        "max_position_embeddings": 8194,
        "type_vocab_size": 1,
        "layer_norm_eps": 1e-5,
        "rope_theta": 20_000.0,
    },
    token_ids={"bos_token_id": "cls", "eos_token_id": "sep"},
    required_values={"emb_pooler": None, **NO_ROPE_SCALING},
    convert_config=_convert_config,
    extra=write_rope,
    # The names of modules in `transformers`, which its adapters have:
    alternative_names=(
        (rf"{_ATTENTION}\.o_proj(\..+)", r"roberta.encoder.layers.\1.mixer.out_proj\2"),
        (r"roberta\.layers\.(\d+)\.mlp(\..+)", r"roberta.encoder.layers.\1.mlp\2"),
    ),
    row_parts=tuple(
        (rf"{_ATTENTION}\.{part}_proj(\..+)", r"roberta.encoder.layers.\1.mixer.Wqkv\2", number, 3)
        for number, part in enumerate("qkv")
    ),
    unused_tensors=(unused_pooler("roberta."), *unused_heads("lm_head")),
)


def is_of_flash_code(raw: RawConfig) -> bool:
    """Whether a `config.json` names the code that Jina's models were published for."""
    code = raw.get("auto_map")
    return isinstance(code, dict) and str(code.get("AutoConfig")).endswith(f".{_CODE_CONFIG}")


def _extra_of_flash(config: EncoderConfig) -> dict[str, Any]:
    return {
        **XLM_ROBERTA.extra(config),
        "model_type": "xlm-roberta",
        "position_embedding_type": "absolute",
        "use_flash_attn": True,
        "auto_map": {
            "AutoConfig": f"{_CODE}configuration_xlm_roberta.{_CODE_CONFIG}",
            "AutoModel": f"{_CODE}modeling_xlm_roberta.XLMRobertaModel",
            "AutoModelForMaskedLM": f"{_CODE}modeling_xlm_roberta.XLMRobertaForMaskedLM",
            "AutoModelForSequenceClassification": (
                f"{_CODE}modeling_xlm_roberta.XLMRobertaForSequenceClassification"
            ),
        },
    }


XLM_ROBERTA_FLASH = replace(
    XLM_ROBERTA,
    name="xlm-roberta-flash",
    keys=key_map(
        {
            **_KEYS,
            "encoder.embeddings.position_embeddings": "roberta.embeddings.position_embeddings",
        }
    ),
    bare_prefixes=_BARE_PREFIXES,
    required_values={**XLM_ROBERTA.required_values, "emb_pooler": None},
    extra=_extra_of_flash,
)
"""XLM-RoBERTa in the layout of that code."""
