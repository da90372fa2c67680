"""The first GPT (Radford et al. 2018): BERT's layers with causal attention."""

from __future__ import annotations

from typing import Any

from .family import Family, key_map, unused_heads

_LAYER = "transformer.h.{}"


def _convert_config(raw: dict[str, Any]) -> dict[str, Any]:
    """Add the intermediate size, always four times the width; "gelu" means the tanh form."""
    width = raw["n_embd"]
    values = {**raw, "intermediate_size": 4 * width if isinstance(width, int) else width}
    if values["afn"] == "gelu":
        values["afn"] = "gelu_new"
    return values


GPT = Family(
    name="openai-gpt",
    settings={
        "vocab_size": "vocab_size",
        "hidden_size": "n_embd",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "intermediate_size": "intermediate_size",
        "hidden_act": "afn",
        "hidden_dropout_prob": "resid_pdrop",
        "attention_probs_dropout_prob": "attn_pdrop",
        "max_position_embeddings": "n_positions",
        "initializer_range": "initializer_range",
        "layer_norm_eps": "layer_norm_epsilon",
        "tie_word_embeddings": "tie_word_embeddings",
    },
    keys=key_map(
        {
            "encoder.embeddings.word_embeddings": "transformer.tokens_embed",
            "encoder.embeddings.position_embeddings": "transformer.positions_embed",
            "encoder.layers.{}.attention.query_key_value": f"{_LAYER}.attn.c_attn",
            "encoder.layers.{}.attention.output": f"{_LAYER}.attn.c_proj",
            "encoder.layers.{}.attention_norm": f"{_LAYER}.ln_1",
            "encoder.layers.{}.feed_forward.intermediate": f"{_LAYER}.mlp.c_fc",
            "encoder.layers.{}.feed_forward.output": f"{_LAYER}.mlp.c_proj",
            "encoder.layers.{}.feed_forward_norm": f"{_LAYER}.ln_2",
            "mlm_head.decoder": "lm_head.weight",
            "head.linear": "score",
            "choice_head.linear": "multiple_choice_head.summary",
        },
        is_transposed=(
            "encoder.layers.{}.attention.query_key_value",
            "encoder.layers.{}.attention.output",
            "encoder.layers.{}.feed_forward.intermediate",
            "encoder.layers.{}.feed_forward.output",
        ),
    ),
    prefix="transformer.",
    bare_prefixes=("tokens_embed.", "positions_embed.", "h."),
    classes={
        "encoder": "OpenAIGPTModel",
        "masked-lm": "OpenAIGPTLMHeadModel",
        "classification": "OpenAIGPTForSequenceClassification",
        "choice": "OpenAIGPTDoubleHeadsModel",
    },
    fixed_settings={
        "type_vocab_size": 0,
        "attention": "causal",
        "embedding_norm": False,
        "mlm_transform": False,
        "mlm_bias": False,
        "classifier": "none",
    },
    required_values={
        **{"summary_type": "cls_index", "summary_use_proj": True, "summary_activation": None},
        "summary_proj_to_labels": True,
    },
    dropouts={"choice": "summary_first_dropout"},
    defaults={
        "classifier_pooling": "last",
        "vocab_size": 40478,
        "n_embd": 768,
        "n_layer": 12,
        "n_head": 12,
        "n_positions": 512,
        "afn": "gelu",
        "layer_norm_epsilon": 1e-5,
    },
    convert_config=_convert_config,
    extra=lambda config: {"afn": config.hidden_act.removesuffix("_new")},
    unused_tensors=(
        (r"transformer\.h\.\d+\.attn\.bias", "a constant that old transformers saved"),
        (r"transformer\.position_ids", "a constant that old transformers saved"),
        *unused_heads("lm_head", "multiple_choice_head|score"),
    ),
)
