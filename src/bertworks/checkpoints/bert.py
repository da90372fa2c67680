"""BERT as Hugging Face lays it out: the names of its tensors and of its settings."""

from __future__ import annotations

import re

from .keymap import KeyMap, Rule

MODEL_TYPE = "bert"
PREFIX = "bert."

_LAYER = "bert.encoder.layer.{}"
_HEADS = "cls.predictions.transform"

KEYS = KeyMap(
    Rule(ours, theirs if isinstance(theirs, tuple) else (theirs,))
    for ours, theirs in {
        "encoder.embeddings.word_embeddings": "bert.embeddings.word_embeddings",
        "encoder.embeddings.position_embeddings": "bert.embeddings.position_embeddings",
        "encoder.embeddings.token_type_embeddings": "bert.embeddings.token_type_embeddings",
        "encoder.embeddings.norm": "bert.embeddings.LayerNorm",
        "encoder.layers.{}.attention.query_key_value": (
            f"{_LAYER}.attention.self.query",
            f"{_LAYER}.attention.self.key",
            f"{_LAYER}.attention.self.value",
        ),
        "encoder.layers.{}.attention.output": f"{_LAYER}.attention.output.dense",
        "encoder.layers.{}.attention_norm": f"{_LAYER}.attention.output.LayerNorm",
        "encoder.layers.{}.feed_forward.intermediate": f"{_LAYER}.intermediate.dense",
        "encoder.layers.{}.feed_forward.output": f"{_LAYER}.output.dense",
        "encoder.layers.{}.feed_forward_norm": f"{_LAYER}.output.LayerNorm",
        "encoder.pooler.dense": "bert.pooler.dense",
        "mlm_head.dense": f"{_HEADS}.dense",
        "mlm_head.norm": f"{_HEADS}.LayerNorm",
        "mlm_head.bias": "cls.predictions.bias",
        "nsp_head": "cls.seq_relationship",
        "head.linear": "classifier",
    }.items()
)

TIED = {"mlm_head.decoder": "encoder.embeddings.word_embeddings.weight"}
"""Our names of one parameter that has two; it is written once."""

NEW_IF_ABSENT = ("encoder.pooler.", "mlm_head.", "nsp_head.", "head.")
"""What may be newly initialised: the heads, and the pooler, which is one."""

DROPPED = (
    (r"bert\.embeddings\.(position_ids|token_type_ids)", "a constant that older releases saved"),
    (r"cls\.predictions\.decoder\.(weight|bias)", "tied to the embeddings and the bias"),
    (r"cls\..*", "a head of pre-training, which this task does not have"),
    (r"bert\.pooler\..*", "the pooler, which this task does not have"),
    (r"(classifier|qa_outputs)\..*", "the head of another task"),
)
"""Their tensors that may stay unused, and why."""


def normalize_name(name: str) -> str:
    """A tensor's name in today's spelling: with the `bert.` prefix, without gamma and beta."""
    name = re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", name))
    return PREFIX + name if name.startswith(("embeddings.", "encoder.", "pooler.")) else name
