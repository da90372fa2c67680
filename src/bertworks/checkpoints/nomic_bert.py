"""Nomic BERT (Nussbaum et al. 2024): post-norm, rotary positions, gated layers without biases.

Its models were published for code of their own, whose `config.json` has GPT-2's names; newer files
have both, and `transformers` 5 has BERT's names alone. All have the same names of tensors. That
code's masked-language-model head has no biases, and `transformers`' has: `mlm_dense_bias` tells
which layout a model came in, and is written back in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..nn.config import EncoderConfig
from .family import Family, embedding_keys, key_map, same_names, unused_heads, unused_pooler
from .heads import CHOICES, SPANS, model_classes, task_tensors
from .rope import NO_ROPE_SCALING, ROPE_SETTINGS, flatten_rope, write_rope

_LAYER = "nomic_bert.encoder.layers.{}"
_MODULE, _TENSOR = r"nomic_bert\.layers\.(\d+)", r"nomic_bert.encoder.layers.\1"
"""The beginnings of a layer's names: of modules in `transformers`, and of tensors in files."""
_HEAD = "cls.predictions"
_OWN_NAMES = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "hidden_dropout_prob": "resid_pdrop",
    "attention_probs_dropout_prob": "attn_pdrop",
    "max_position_embeddings": "n_positions",
    "layer_norm_eps": "layer_norm_epsilon",
    "rope_theta": "rotary_emb_base",
}
"""The names of settings in the published code, by those of `transformers`."""

_OWN_VALUES = {
    "activation_function": "swiglu",
    "causal": False,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "parallel_block": False,
    "prenorm": False,
    "qkv_proj_bias": False,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "rotary_scaling_factor": None,
    "use_rms_norm": False,
}
"""Settings of the published code, with the only values that its models have here."""

_DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 30528,
    "hidden_act": "silu",
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "max_position_embeddings": 2048,
    "rope_theta": 1000.0,
}


def _convert_config(raw: dict[str, Any]) -> dict[str, Any]:
    """The names of `transformers`, whichever a file has; those of the published code if both."""
    is_own = "mlp_fc1_bias" in raw
    values = {**_DEFAULTS, **flatten_rope(raw)}
    values |= {name: raw[own] for name, own in _OWN_NAMES.items() if own in raw}
    width, inner = values.get("hidden_size", 768), raw.get("n_inner")
    if "n_embd" in raw and isinstance(width, int):
        values["intermediate_size"] = _round_up(4 * width if inner is None else inner, 256)
        values["vocab_size"] = _round_up(
            values["vocab_size"], raw.get("pad_vocab_size_multiple") or 1
        )
    if values.get("embd_pdrop") == values["hidden_dropout_prob"]:
        values.pop("embd_pdrop")
    if not values.get("moe_every_n_layers") or not values.get("num_experts"):
        values["moe_every_n_layers"] = 0
    heads, head_size = values.get("num_attention_heads", 12), values.get("head_dim")
    if isinstance(heads, int) and isinstance(head_size, int) and width == heads * head_size:
        del values["head_dim"]
    return {**values, "mlm_dense_bias": not is_own, "mlm_bias": not is_own}


def _round_up(number: Any, multiple: int) -> Any:
    return number + -number % multiple if isinstance(number, int) else number


def _extra(config: EncoderConfig) -> dict[str, Any]:
    """The rotary table and, in the layout of the published code, its names as well."""
    entries = {**write_rope(config), "head_dim": config.head_size}
    if config.mlm_dense_bias or config.hidden_act != "silu":
        return entries
    values = {
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "hidden_dropout_prob": config.hidden_dropout_prob,
        "attention_probs_dropout_prob": config.attention_probs_dropout_prob,
        "max_position_embeddings": config.max_position_embeddings,
        "layer_norm_eps": config.layer_norm_eps,
        "rope_theta": config.rotary.theta,
    }
    own = {own: values[name] for name, own in _OWN_NAMES.items()}
    return {
        **entries,
        **own,
        **_OWN_VALUES,
        "n_inner": config.intermediate_size,
        "embd_pdrop": config.hidden_dropout_prob,
        "max_trained_positions": config.max_position_embeddings,
    }


NOMIC_BERT = Family(
    name="nomic_bert",
    settings={
        **same_names("mlm_dense_bias", "mlm_bias"),
        **ROPE_SETTINGS,
    },
    keys=key_map(
        {
            **embedding_keys("nomic_bert.embeddings", ("word", "token_type")),
            "encoder.embeddings.norm": "nomic_bert.emb_ln",
            "encoder.layers.{}.attention.query_key_value": f"{_LAYER}.attn.Wqkv",
            "encoder.layers.{}.attention.output": f"{_LAYER}.attn.out_proj",
            "encoder.layers.{}.attention_norm": f"{_LAYER}.norm1",
            "encoder.layers.{}.feed_forward.intermediate": (
                f"{_LAYER}.mlp.fc12",  # the half with the activation
                f"{_LAYER}.mlp.fc11",
            ),
            "encoder.layers.{}.feed_forward.output": f"{_LAYER}.mlp.fc2",
            "encoder.layers.{}.feed_forward_norm": f"{_LAYER}.norm2",
            "encoder.pooler.dense": "nomic_bert.pooler.dense",
            "mlm_head.transform.dense": f"{_HEAD}.transform.dense",
            "mlm_head.transform.norm": f"{_HEAD}.transform.layer_norm",
            "mlm_head.bias": f"{_HEAD}.bias",
            "mlm_head.decoder": f"{_HEAD}.decoder.weight",
            "head.linear": "classifier",
            "tag_head.linear": task_tensors()["tag_head.linear"],
        }
    ),
    prefix="nomic_bert.",
    bare_prefixes=("embeddings.", "emb_ln.", "encoder.", "pooler."),
    classes=model_classes("NomicBert", exclude=[SPANS, CHOICES]),
    dropouts=dict.fromkeys(("classification", "tagging"), "classifier_dropout"),
    fixed_settings={"positions": "rotary", "use_bias": False, "gated": True},
    required_values={
        **_OWN_VALUES,
        "embd_pdrop": None,
        "head_dim": None,
        "moe_every_n_layers": 0,
        **NO_ROPE_SCALING,
    },
    convert_config=_convert_config,
    extra=_extra,
    has_bare_encoders=True,
    alternative_names=(
        (r"bert\.(.+)", r"nomic_bert.\1"),
        # The names of modules in `transformers`, which adapters have:
        *(
            (rf"{_MODULE}\.{module}(\..+)", rf"{_TENSOR}.{tensor}\2")
            for module, tensor in (
                (r"self_attn\.o_proj", "attn.out_proj"),
                (r"mlp\.up_proj", "mlp.fc11"),
                (r"mlp\.gate_proj", "mlp.fc12"),
                (r"mlp\.down_proj", "mlp.fc2"),
            )
        ),
    ),
    row_parts=tuple(
        (rf"{_MODULE}\.self_attn\.{part}_proj(\..+)", rf"{_TENSOR}.attn.Wqkv\2", number, 3)
        for number, part in enumerate("qkv")
    ),
    unused_tensors=(unused_pooler("nomic_bert."), *unused_heads("cls", "classifier")),
)
