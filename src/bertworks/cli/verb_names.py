"""The names of the verbs."""

from __future__ import annotations

from ..settings.literals import VERB_SETTINGS

VERBS = (
    *("demo", "vocab", "prepare", "pretrain", "finetune", "glue", "probe", "ablate", "lab"),
    *("evaluate", "score", "predict", "fill-mask", "next-sentence", "generate", "explain"),
    *("embed", "features", "search", "neighbours", "serve", "estimate", "merge"),
    *("tokenize", "inspect", "convert", "quantize", "distil", "add-tokens", "shrink", "extend"),
    "settings",
)
"""All verbs, in the order in which `bertworks --help` lists them."""

SETTINGS_VERBS = tuple(VERB_SETTINGS)
"""The verbs that take settings."""

TEXT_VERBS = frozenset(
    {"predict", "fill-mask", "next-sentence", "generate", "embed", "features", "search"}
)
"""The verbs with settings whose arguments are texts."""
