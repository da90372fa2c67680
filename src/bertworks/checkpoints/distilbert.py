"""DistilBERT (Sanh et al. 2019): BERT without segments and pooler."""

from __future__ import annotations

from .family import Family, embedding_keys, key_map, unused_constants, unused_heads
from .heads import model_classes, task_tensors

_LAYER = "distilbert.transformer.layer.{}"

DISTILBERT = Family(
    name="distilbert",
    settings={
        "vocab_size": "vocab_size",
        "hidden_size": "dim",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "intermediate_size": "hidden_dim",
        "hidden_act": "activation",
        "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "attention_dropout",
        "classifier_dropout": "seq_classif_dropout",
        "answering_dropout": "qa_dropout",
        "max_position_embeddings": "max_position_embeddings",
        "initializer_range": "initializer_range",
        "tie_word_embeddings": "tie_word_embeddings",
    },
    keys=key_map(
        {
            **embedding_keys("distilbert.embeddings", ("word", "position")),
            "encoder.layers.{}.attention.query_key_value": tuple(
                f"{_LAYER}.attention.{part}" for part in ("q_lin", "k_lin", "v_lin")
            ),
            "encoder.layers.{}.attention.output": f"{_LAYER}.attention.out_lin",
            "encoder.layers.{}.attention_norm": f"{_LAYER}.sa_layer_norm",
            "encoder.layers.{}.feed_forward.intermediate": f"{_LAYER}.ffn.lin1",
            "encoder.layers.{}.feed_forward.output": f"{_LAYER}.ffn.lin2",
            "encoder.layers.{}.feed_forward_norm": f"{_LAYER}.output_layer_norm",
            "mlm_head.transform.dense": "vocab_transform",
            "mlm_head.transform.norm": "vocab_layer_norm",
            "mlm_head.bias": "vocab_projector.bias",
            "mlm_head.decoder": "vocab_projector.weight",
            "head.transform": "pre_classifier",
            "head.linear": "classifier",
            **task_tensors(),
            "choice_head.transform": "pre_classifier",
        }
    ),
    prefix="distilbert.",
    bare_prefixes=("embeddings.", "transformer."),
    classes=model_classes("DistilBert"),
    fixed_settings={"type_vocab_size": 0, "layer_norm_eps": 1e-12, "classifier": "relu"},
    dropouts={
        "classification": "seq_classif_dropout",
        "choice": "seq_classif_dropout",
        "answering": "qa_dropout",
    },
    defaults={"n_layers": 6, "seq_classif_dropout": 0.2, "qa_dropout": 0.1},
    unused_tensors=(
        *unused_constants("distilbert."),
        *unused_heads(r"vocab_\w+", "pre_classifier|classifier|qa_outputs"),
    ),
)
