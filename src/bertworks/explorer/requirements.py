"""The requirements of views on a model, and the errors where a model does not meet them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ..errors import BertworksError
from ..model import Model
from ..nn.config import EncoderConfig
from ..tasks.answering.task import AnsweringTask
from ..tasks.pretraining.replaced_tokens import ReplacedTokensTask
from ..tasks.pretraining.task import PretrainingTask
from ..tasks.regression import RegressionTask
from ..tasks.tagging.task import TaggingTask
from ..tasks.text_classifier import TextClassifierTask


class NoHeadError(BertworksError):
    """A view needs a head that the model lacks."""


class Requirement(NamedTuple):
    """A view's requirement.

    Attributes:
        lack: what a model that does not meet it lacks, as a clause with "it".
        remedy: what to serve instead.
        has: whether a model meets it.
    """

    lack: str
    remedy: str
    has: Callable[[Model], bool]


_KINDS = {
    TextClassifierTask: "label",
    RegressionTask: "value",
    TaggingTask: "tag",
    AnsweringTask: "answer",
    ReplacedTokensTask: "replaced",
}


def is_masked_lm(model: Model) -> bool:
    """Whether the model predicts masked pieces, from the vectors that its layers have of them."""
    task = model.task
    if not isinstance(task, PretrainingTask) or task.has_two_streams:
        return False
    return task.has_masked_lm and not task.causal


def is_causal_lm(model: Model) -> bool:
    """Whether the model predicts the next piece."""
    return isinstance(model.task, PretrainingTask) and model.task.causal


def kinds_of(model: Model) -> list[str]:
    """The kinds of a model's predictions; empty for a model of vectors alone."""
    task = model.task
    if isinstance(task, PretrainingTask):
        has_kind = task.has_masked_lm and not task.has_two_streams
        kinds = ["next" if task.causal else "blank"] if has_kind else []
        return [*kinds, *(["next-sentence"] if task.instances.next_sentence else [])]
    return [name for kind, name in _KINDS.items() if isinstance(task, kind)]


def _predicts(*kinds: str) -> Callable[[Model], bool]:
    return lambda model: bool(set(kinds) & set(kinds_of(model)))


def _training_remedy(what: str, task: str) -> str:
    return f"{what}: bertworks finetune {task} trains one"


def has_plain_layers(config: EncoderConfig) -> bool:
    """Whether the steps of the layers are attention, feed-forward and norms alone."""
    has_global = config.num_global_tokens > 0
    return config.bottleneck is None and config.norm != "none" and not has_global


_ANY = Requirement(
    "it predicts nothing",
    "a pre-trained or fine-tuned model, such as mini",
    lambda model: bool(kinds_of(model)),
)
_HEADS = Requirement(
    "it has no attention heads (models without layers, with LSTMs or with two encoders side by "
    "side have none)",
    "another model, such as mini",
    lambda model: model.encoder.config.has_heads and model.encoder.config.num_hidden_layers > 0,
)
_STEPS = Requirement(
    "its layers are of a kind whose steps are not shown (with bottlenecks, with global tokens, "
    "with factors in place of norms, or without attention heads)",
    "another model, such as mini",
    lambda model: _HEADS.has(model) and has_plain_layers(model.encoder.config),
)
REQUIREMENTS: dict[str, Requirement | None] = {
    **dict.fromkeys(("pieces", "pair", "contexts", "steps", "similarity", "search")),
    "fill": Requirement(
        "it predicts no words",
        "a pre-trained model, such as mini or bert-base-uncased",
        _predicts("blank", "next"),
    ),
    "mask": Requirement(
        "it predicts no masked words",
        "a masked language model, such as mini or bert-base-uncased",
        is_masked_lm,
    ),
    **dict.fromkeys(("predict", "occlusion"), _ANY),
    "heads": Requirement(
        "it has no prediction or no attention heads to switch off",
        "a pre-trained or fine-tuned BERT, such as mini",
        lambda model: bool(kinds_of(model)) and model.encoder.config.has_heads,
    ),
    **dict.fromkeys(("attention", "claim"), _HEADS),
    **dict.fromkeys(("layer", "weights"), _STEPS),
    "next-sentence": Requirement(
        "it predicts no next sentences",
        "a model pre-trained on pairs, such as mini or bert-base-uncased",
        _predicts("next-sentence"),
    ),
    "classify": Requirement(
        "it has no labels",
        _training_remedy("a classifier", "classification"),
        _predicts("label", "value"),
    ),
    "tag": Requirement("it has no tags", _training_remedy("a tagger", "tagging"), _predicts("tag")),
    "answer": Requirement(
        "it answers no questions",
        _training_remedy("a model for questions", "answering"),
        _predicts("answer"),
    ),
    "generate": Requirement(
        "it continues no texts",
        "a causal model, such as openai-gpt",
        lambda model: is_causal_lm(model) and model.encoder.config.can_generate,
    ),
}
"""The requirement of each view of the page and each route; None if every model has the view.

`mask` is no view but a part of some.
"""

_TASK_CLAUSES: dict[type, str] = {
    PretrainingTask: "is only pre-trained",
    TextClassifierTask: "is a classifier",
    RegressionTask: "predicts a value",
    TaggingTask: "is a tagger",
    AnsweringTask: "answers questions",
    ReplacedTokensTask: "is pre-trained to find replaced pieces",
}


def name_of(model: Model) -> str:
    """The last part of a model's path, or its whole name on the hub."""
    source = Path(model.source or "the model")
    return source.resolve().name if source.exists() else str(source)


def view_error(model: Model, view: str, name: str | None = None) -> NoHeadError | None:
    """The error for a view that the model does not support; None if it does.

    Args:
        model: any.
        view: its name.
        name: the model's name in the message; derived from its source if omitted.
    """
    requirement = REQUIREMENTS[view]
    if requirement is None or requirement.has(model):
        return None
    task = model.task
    clauses = (clause for kind, clause in _TASK_CLAUSES.items() if isinstance(task, kind))
    other = "is an encoder without a head" if task is None else f"is trained for {task.name}"
    return NoHeadError(
        f"{name or name_of(model)} {next(clauses, other)}: {requirement.lack}",
        fix=f"Serve {requirement.remedy}.",
    )


def check(model: Model, view: str) -> None:
    """Check that a model supports a view.

    Raises:
        NoHeadError: it does not.
    """
    error = view_error(model, view)
    if error is not None:
        raise error
