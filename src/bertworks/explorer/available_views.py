"""The requirement of each view of the page and each route."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..errors import WrongModelError, has_pytorch
from ..inference.native_model import NativeModel
from ..nn.config import EncoderConfig
from ..tasks.answering.task import AnsweringTask
from ..tasks.classification import TextClassifierTask
from ..tasks.regression import RegressionTask
from ..tasks.tagging.task import TaggingTask
from .requirements import (
    ATTENTION_HEADS,
    NEXT_SENTENCES,
    PREDICTION,
    Requirement,
    is_causal_lm,
    is_masked_lm,
)

if TYPE_CHECKING:
    from ..model import Model


def has_plain_layers(config: EncoderConfig) -> bool:
    """Whether the steps of the layers are attention, feed-forward, norms and a convolution."""
    return (
        config.bottleneck is None
        and config.norm != "none"
        and not config.has_global_tokens
        and not (config.norm_first and config.convolution is not None)
    )


def _is_trained_for(*tasks: type) -> Callable[[Model], bool]:
    return lambda model: isinstance(model.task, tasks)


_QUESTIONS = Requirement(
    "it answers no questions",
    "a model for questions: bertworks finetune answering trains one",
    _is_trained_for(AnsweringTask),
)
_DENSE_VECTORS = Requirement(
    "it makes no single dense vector of a text",
    "a model that does, such as mini-sentences",
    lambda model: model.sentence is None or model.sentence.is_dense,
)
_STEPS = Requirement(
    "its layers are of a kind whose steps are not shown (with bottlenecks, with global tokens, "
    "with factors in place of norms, or without attention heads)",
    "another model, such as mini",
    lambda model: ATTENTION_HEADS.is_met(model) and has_plain_layers(model.config),
)
REQUIREMENTS: dict[str, Requirement | None] = {
    **dict.fromkeys(("pieces", "pair", "contexts", "steps")),
    **dict.fromkeys(("similarity", "search"), _DENSE_VECTORS),
    "fill": Requirement(
        "it predicts no words",
        "a pre-trained model, such as mini or bert-base-uncased",
        lambda model: is_masked_lm(model) or is_causal_lm(model),
    ),
    **dict.fromkeys(("predict", "occlusion"), PREDICTION),
    "heads": Requirement(
        "it has no prediction or no attention heads to switch off",
        "a pre-trained or fine-tuned BERT, such as mini",
        lambda model: PREDICTION.is_met(model) and ATTENTION_HEADS.is_met(model),
    ),
    **dict.fromkeys(("attention", "claim"), ATTENTION_HEADS),
    **dict.fromkeys(("layer", "weights"), _STEPS),
    "next-sentence": NEXT_SENTENCES,
    "classify": Requirement(
        "it has no labels",
        "a classifier: bertworks finetune classification trains one",
        _is_trained_for(TextClassifierTask, RegressionTask),
    ),
    "tag": Requirement(
        "it has no tags",
        "a tagger: bertworks finetune tagging trains one",
        _is_trained_for(TaggingTask),
    ),
    **dict.fromkeys(("answer", "corpus"), _QUESTIONS),
    "generate": Requirement(
        "it continues no texts",
        "a causal model, such as openai-gpt",
        lambda model: is_causal_lm(model) and model.config.can_generate,
    ),
}
"""The requirement of each view; None if every model has the view."""


NETWORK_VIEWS = frozenset(
    (
        *("fill", "attention", "layer", "weights", "predict", "heads", "occlusion", "steps"),
        *("pair", "contexts", "claim"),
    )
)
"""The views that a network of PyTorch's computes."""

_NETWORK = Requirement(
    "the view needs PyTorch, which is not installed on the server",
    'it with PyTorch: pip install "bertworks[train]"',
    lambda _: False,
)


def view_error(model: Model, view: str, name: str | None = None) -> WrongModelError | None:
    """The error for a view that the model does not support; None if it does.

    Args:
        model: any.
        view: its name.
        name: the model's name in the message; derived from its source if omitted.
    """
    if view in NETWORK_VIEWS and isinstance(model, NativeModel) and not has_pytorch():
        return _NETWORK.find_error(model, name)
    requirement = REQUIREMENTS[view]
    return None if requirement is None else requirement.find_error(model, name)


def check(model: Model, view: str) -> None:
    """Check that a model supports a view.

    Raises:
        WrongModelError: it does not.
    """
    error = view_error(model, view)
    if error is not None:
        raise error
