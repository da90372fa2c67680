"""The names of the verbs, and the classes of their settings."""

from __future__ import annotations

VERBS = (
    *("demo", "vocab", "prepare", "pretrain", "finetune", "glue", "probe", "ablate", "lab"),
    *("evaluate", "score", "check-labels", "predict", "fill-mask", "next-sentence", "generate"),
    "explain",
    *("embed", "features", "search", "answer", "index", "mine", "neighbours", "serve", "estimate"),
    "merge",
    *("tokenize", "inspect", "convert", "quantize", "distil", "add-tokens", "shrink", "extend"),
    "push",
    *("settings", "report-environment"),
)
"""All verbs, in the order in which `bertworks --help` lists them."""

_ENGINE = "inference.settings:EngineSettings"
_TABLE = "data.reading:TableOptions"
_LABELLED = "data.unlabelled:LabelledTableOptions"
_CORPUS = "data.reading:CorpusOptions"
_RANKING = "analysis.retrieval.settings:RankingSettings"
_RETRIEVAL = "analysis.retrieval.settings:RetrievalEvaluationSettings"

VERB_SETTINGS: dict[str, tuple[str, ...]] = {
    "vocab": ("data.settings:VocabularySettings", _CORPUS),
    "prepare": ("data.settings:PrepareSettings", _CORPUS),
    "pretrain": ("training.recipe:PretrainSettings",),
    "estimate": ("training.recipe:PretrainSettings",),
    "finetune": ("training.settings:FinetuneSettings",),
    "glue": ("training.settings:FinetuneSettings",),
    "probe": ("inference.settings:TextProbeSettings",),
    "lab": ("inference.settings:TextProbeSettings",),  # compare takes them
    "ablate": ("lab.features:FeatureAblationSettings",),
    "evaluate": ("inference.settings:EvaluateSettings", _LABELLED, _RETRIEVAL),
    "score": (_LABELLED, _RANKING),
    "check-labels": ("analysis.label_check:CheckLabelsSettings",),
    "predict": ("inference.settings:PredictSettings", _TABLE),
    "fill-mask": (_ENGINE,),
    "next-sentence": (_ENGINE,),
    "generate": ("inference.settings:GenerateSettings",),
    "embed": ("inference.settings:EmbeddingSettings", _TABLE),
    "features": ("inference.settings:FeatureSettings", _TABLE),
    "search": (_ENGINE, _TABLE),
    "answer": (_ENGINE, _TABLE),
    "index": (_ENGINE, _TABLE),
    "mine": ("analysis.retrieval.settings:MineSettings", _ENGINE, _TABLE),
    "serve": ("serving.settings:ServeSettings",),
    "distil": ("convert.static_settings:DistilSettings", _TABLE),
    "add-tokens": (_TABLE,),
    "shrink": (_CORPUS,),
}
"""The classes of the settings of each verb that has some."""

TEXT_VERBS = frozenset(
    {"predict", "fill-mask", "next-sentence", "generate", "embed", "features", "search", "answer"}
)
"""The verbs with settings whose arguments are texts."""
