"""The requirement of each view of the page and each route."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import WrongModelError
from ..model import Model
from ..nn.config import EncoderConfig
from .requirements import ATTENTION_HEADS, Requirement, is_causal_lm
from .target import Target
from .target_kinds import (
    NEXT_SENTENCES,
    PREDICTION,
    AnswerTarget,
    BlankTarget,
    LabelTarget,
    NextTarget,
    TagTarget,
    ValueTarget,
)


def has_plain_layers(config: EncoderConfig) -> bool:
    """Whether the steps of the layers are attention, feed-forward, norms and a convolution."""
    return (
        config.bottleneck is None
        and config.norm != "none"
        and not config.has_global_tokens
        and not (config.norm_first and config.convolution is not None)
    )


def _predicts(*targets: type[Target]) -> Callable[[Model], bool]:
    return lambda model: any(target.is_predicted_by(model) for target in targets)


_STEPS = Requirement(
    "its layers are of a kind whose steps are not shown (with bottlenecks, with global tokens, "
    "with factors in place of norms, or without attention heads)",
    "another model, such as mini",
    lambda model: ATTENTION_HEADS.is_met(model) and has_plain_layers(model.encoder.config),
)
REQUIREMENTS: dict[str, Requirement | None] = {
    **dict.fromkeys(("pieces", "pair", "contexts", "steps", "similarity", "search")),
    "fill": Requirement(
        "it predicts no words",
        "a pre-trained model, such as mini or bert-base-uncased",
        _predicts(BlankTarget, NextTarget),
    ),
    **dict.fromkeys(("predict", "occlusion"), PREDICTION),
    "heads": Requirement(
        "it has no prediction or no attention heads to switch off",
        "a pre-trained or fine-tuned BERT, such as mini",
        lambda model: PREDICTION.is_met(model) and model.encoder.config.has_heads,
    ),
    **dict.fromkeys(("attention", "claim"), ATTENTION_HEADS),
    **dict.fromkeys(("layer", "weights"), _STEPS),
    "next-sentence": NEXT_SENTENCES,
    "classify": Requirement(
        "it has no labels",
        "a classifier: bertworks finetune classification trains one",
        _predicts(LabelTarget, ValueTarget),
    ),
    "tag": Requirement(
        "it has no tags",
        "a tagger: bertworks finetune tagging trains one",
        _predicts(TagTarget),
    ),
    "answer": Requirement(
        "it answers no questions",
        "a model for questions: bertworks finetune answering trains one",
        _predicts(AnswerTarget),
    ),
    "generate": Requirement(
        "it continues no texts",
        "a causal model, such as openai-gpt",
        lambda model: is_causal_lm(model) and model.encoder.config.can_generate,
    ),
}
"""The requirement of each view; None if every model has the view."""


def view_error(model: Model, view: str, name: str | None = None) -> WrongModelError | None:
    """The error for a view that the model does not support; None if it does.

    Args:
        model: any.
        view: its name.
        name: the model's name in the message; derived from its source if omitted.
    """
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
