"""What a model is, and which views it has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ..errors import has_pytorch
from ..tasks.answering.task import AnsweringTask
from ..tasks.texts import TextTask
from .available_views import REQUIREMENTS, view_error
from .requirements import can_take_pairs, is_masked_lm

if TYPE_CHECKING:
    from ..model import Model


def describe(model: Model, name: str | None = None) -> dict[str, Any]:
    """Describe a model and its views, as JSON.

    Args:
        model: any.
        name: the model's name in reasons; derived from its source if omitted.
    """
    config, task = model.config, model.task
    mask = model.tokenizer.id_of("mask") if is_masked_lm(model) else None
    return {
        "source": model.source,
        "task": None if task is None else task.name,
        "family": config.family,
        "layers": config.num_hidden_layers,
        "heads": config.num_attention_heads,
        "hidden_size": config.hidden_size,
        "vocab_size": model.tokenizer.vocab_size,
        "parameters": model.num_parameters,
        "causal": config.attention == "causal",
        "mask": None if mask is None else model.tokenizer.id_to_token(mask),
        "labels": list(model.labels),
        "pairs": takes_pairs(model),
        "second_text": can_take_pairs(model),
        "compares": model.sentence is not None,
        "document_prompt": model.sentence and model.sentence.prompt_name("document"),
        "checkpoints": [*_checkpoint_steps(model)],
        "views": {
            view: None if (error := view_error(model, view, name)) is None else str(error)
            for view in REQUIREMENTS
        },
    }


def takes_pairs(model: Model) -> bool:
    """Whether the model's task is about pairs of texts: a question and a passage, for example."""
    task = model.task
    is_of_pairs = isinstance(task, TextTask) and task.settings.pair_column is not None
    return is_of_pairs or isinstance(task, AnsweringTask)


def _checkpoint_steps(model: Model) -> Iterable[int]:
    """The steps of a run's checkpoints, from which PyTorch reads weights."""
    if not has_pytorch():
        return ()
    from .filling import checkpoints

    return checkpoints(model)
