"""The requirements of views on a model, and the errors where a model does not meet them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ..api import Model
from ..errors import BertworksError
from ..tasks.answering.task import AnsweringTask
from ..tasks.classification import ClassificationTask
from ..tasks.pretraining.replaced_tokens import ReplacedTokensTask
from ..tasks.pretraining.task import PretrainingTask
from ..tasks.regression import RegressionTask
from ..tasks.tagging.task import TaggingTask


class NoHeadError(BertworksError):
    """A view needs a head that the model lacks."""


class Need(NamedTuple):
    """A view's requirement.

    Attributes:
        what: what the model must do, for messages.
        which: models that do it, for messages.
        has: whether a model does it.
    """

    what: str
    which: str
    has: Callable[[Model], bool]


_KINDS = {
    ClassificationTask: "label",
    RegressionTask: "value",
    TaggingTask: "tag",
    AnsweringTask: "answer",
    ReplacedTokensTask: "replaced",
}


def is_masked_lm(model: Model) -> bool:
    """Whether the model predicts masked pieces."""
    return isinstance(model.task, PretrainingTask) and not model.task.causal


def is_causal_lm(model: Model) -> bool:
    """Whether the model predicts the next piece."""
    return isinstance(model.task, PretrainingTask) and model.task.causal


def kinds_of(model: Model) -> list[str]:
    """The kinds of a model's predictions; empty for a model of vectors alone."""
    task = model.task
    if isinstance(task, PretrainingTask):
        more = ["next-sentence"] if task.instances.next_sentence else []
        return ["next" if task.causal else "blank", *more]
    return [name for kind, name in _KINDS.items() if isinstance(task, kind)]


def _predicts(*kinds: str) -> Callable[[Model], bool]:
    return lambda model: bool(set(kinds) & set(kinds_of(model)))


_ANY = Need(
    "predict anything of a text",
    "a pre-trained or fine-tuned model (bertworks finetune)",
    lambda model: bool(kinds_of(model)),
)
_HEADS = Need(
    "attend to anything, without layers, with LSTMs or with two encoders side by side",
    "another model",
    lambda model: model.encoder.config.has_heads and model.encoder.config.num_hidden_layers > 0,
)
NEEDS = {
    "fill": Need(
        "predict pieces",
        "a pre-trained model (bertworks pretrain; bert-base-uncased)",
        _predicts("blank", "next"),
    ),
    "mask": Need(
        "predict masked pieces",
        "a masked language model (bertworks pretrain; bert-base-uncased)",
        is_masked_lm,
    ),
    **dict.fromkeys(("predict", "occlusion"), _ANY),
    "heads": Need(
        "predict anything with attention heads that could be switched off",
        "a pre-trained or fine-tuned BERT",
        lambda model: bool(kinds_of(model)) and model.encoder.config.has_heads,
    ),
    **dict.fromkeys(("attention", "claim"), _HEADS),
    "next-sentence": Need(
        "predict next sentences",
        "a model pre-trained on pairs (bertworks pretrain; bert-base-uncased)",
        _predicts("next-sentence"),
    ),
    "classify": Need(
        "classify",
        "a classifier (bertworks finetune classification)",
        _predicts("label", "value"),
    ),
    "tag": Need("tag words", "a tagger (bertworks finetune tagging)", _predicts("tag")),
    "answer": Need(
        "answer questions",
        "a model for questions (bertworks finetune answering)",
        _predicts("answer"),
    ),
    "generate": Need(
        "continue texts",
        "a causal model (openai-gpt)",
        lambda model: is_causal_lm(model) and model.encoder.config.continues,
    ),
}
"""The requirement of each view; other views have none."""


def missing(model: Model, view: str) -> NoHeadError | None:
    """The error for a view that the model does not support; None if it does."""
    need = NEEDS.get(view)
    if need is None or need.has(model):
        return None
    trained = "nothing but vectors" if model.task is None else model.task.name
    return NoHeadError(
        f"the model was trained for {trained}, and does not {need.what}", fix=f"Take {need.which}."
    )


def check(model: Model, view: str) -> None:
    """Check that a model supports a view.

    Raises:
        NoHeadError: it does not.
    """
    error = missing(model, view)
    if error is not None:
        raise error
