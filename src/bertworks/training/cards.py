"""Model cards of the models that runs train."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..checkpoints.card_training import DataFact, Results, describe_training, public_name
from ..checkpoints.card_usage import PIPELINES
from ..checkpoints.model_card import ModelCard
from ..data.shards import Corpus
from ..runs.run_directory import WITHOUT_EFFECT, RunDirectory
from ..settings.base import Settings
from ..tasks.evaluation import Evaluation
from ..tasks.summary import DataSummary
from ..utils.formatting import format_count
from .recipe import PretrainSettings
from .settings import FinetuneSettings

_IMPORTANT = ("epochs", "batch_size", "learning_rate", "seed", "precision")


def finetuned_card(
    base: ModelCard | None,
    run: RunDirectory,
    data: DataSummary,
    evaluation: Evaluation,
    settings: FinetuneSettings,
) -> ModelCard:
    """Return the card of a fine-tuned model.

    Args:
        base: the card of the model that it started from.
        evaluation: on dev; without metrics if there is no dev.
    """
    start = run.settings()
    task, model = start["task"], public_name(start["model"])
    tables = {"train": data.train, "dev": data.dev}
    facts = [
        DataFact(use, public_name(table.name), format_count(table.rows, "row"))
        for use, table in tables.items()
        if table is not None
    ]
    results = None
    if data.dev is not None:
        details = {"rows": data.dev.rows, "seed": settings.seed}
        pipeline = PIPELINES.get(task, "feature-extraction")
        results = Results(pipeline, public_name(data.dev.name), evaluation.metrics, details)
    sentence = f"Fine-tuned from {model} for {task}"
    name = run.path.resolve().name
    return describe_training(base, name, sentence, _settings_of(settings), facts, results)


def pretrained_card(
    base: ModelCard | None,
    run: RunDirectory,
    corpus: Corpus,
    metrics: Mapping[str, float],
    settings: PretrainSettings,
) -> ModelCard:
    """Return the card of a pre-trained model.

    Args:
        base: the card of its initial checkpoint, if there is one.
        metrics: of held-out documents; empty for a model that they do not evaluate.
    """
    manifest, name = corpus.manifest, public_name(corpus.directory)
    size = f"{format_count(manifest.documents, 'document')}, {manifest.tokens:,} tokens"
    start = settings.init_checkpoint
    origin = "from random weights" if start is None else f"from {public_name(start)}"
    details = {"documents": settings.held_out.documents, "seed": settings.seed}
    results = Results("fill-mask", f"{name}, held out", metrics, details) if metrics else None
    sentence = f"Pre-trained {origin} ({settings.objective})"
    facts = [DataFact("pre-training", name, size)]
    title = run.path.resolve().name
    return describe_training(base, title, sentence, _settings_of(settings), facts, results)


def _settings_of(settings: Settings) -> dict[str, Any]:
    """The settings that differ from their defaults, and the most important of all others.

    Those without an effect on the model are left out.
    """
    names = {*settings.model_dump(mode="json", exclude_defaults=True), *_IMPORTANT} - WITHOUT_EFFECT
    return {
        name: value for name, value in settings.model_dump(mode="json").items() if name in names
    }
