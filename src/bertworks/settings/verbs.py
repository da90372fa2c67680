"""The names of the verbs, and the classes of their settings."""

from __future__ import annotations

VERBS = (
    *("demo", "vocab", "prepare", "pretrain", "finetune", "glue", "probe", "ablate", "lab"),
    *("evaluate", "score", "predict", "fill-mask", "next-sentence", "generate", "explain"),
    *("embed", "features", "search", "neighbours", "serve", "estimate", "merge"),
    *("tokenize", "inspect", "convert", "quantize", "distil", "add-tokens", "shrink", "extend"),
    "settings",
)
"""All verbs, in the order in which `bertworks --help` lists them."""

VERB_SETTINGS = {
    "vocab": "data.settings:VocabularySettings",
    "prepare": "data.settings:PrepareSettings",
    "pretrain": "training.recipe:PretrainSettings",
    "finetune": "training.settings:FinetuneSettings",
    "glue": "training.settings:FinetuneSettings",
    "probe": "inference.settings:TextProbeSettings",
    "lab": "inference.settings:TextProbeSettings",  # compare takes them
    "ablate": "lab.features:FeatureAblationSettings",
    "evaluate": "inference.settings:EvaluateSettings",
    "predict": "inference.settings:EngineSettings",
    "fill-mask": "inference.settings:EngineSettings",
    "next-sentence": "inference.settings:EngineSettings",
    "generate": "inference.settings:GenerateSettings",
    "embed": "inference.settings:EmbeddingSettings",
    "features": "inference.settings:FeatureSettings",
    "search": "inference.settings:EngineSettings",
    "serve": "serving.settings:ServeSettings",
    "distil": "convert.static_settings:DistilSettings",
}
"""The class of the settings of each verb that has some."""

TEXT_VERBS = frozenset(
    {"predict", "fill-mask", "next-sentence", "generate", "embed", "features", "search"}
)
"""The verbs with settings whose arguments are texts."""
