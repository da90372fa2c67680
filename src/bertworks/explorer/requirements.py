"""What a view needs of a model, and the error for a model that lacks it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import WrongModelError
from ..tasks.answering.task import AnsweringTask
from ..tasks.classification import TextClassifierTask
from ..tasks.pretraining.replaced_tokens import ReplacedTokensTask
from ..tasks.pretraining.task import PretrainingTask
from ..tasks.regression import RegressionTask
from ..tasks.tagging.task import TaggingTask
from ..tasks.texts import TextTask

if TYPE_CHECKING:
    from ..model import Model


_TASK_CLAUSES: dict[type, str] = {
    PretrainingTask: "is only pre-trained",
    TextClassifierTask: "is a classifier",
    RegressionTask: "predicts a value",
    TaggingTask: "is a tagger",
    AnsweringTask: "answers questions",
    ReplacedTokensTask: "is pre-trained to find replaced pieces",
}


_TASKS_WITH_PREDICTIONS = (
    *(TextClassifierTask, RegressionTask, TaggingTask, AnsweringTask, ReplacedTokensTask),
)


@dataclass(frozen=True)
class Requirement:
    """Something that a view needs.

    Attributes:
        lack: what a model that does not meet it lacks, as a clause with "it".
        remedy: what to serve instead.
        is_met: whether a model meets it.
    """

    lack: str
    remedy: str
    is_met: Callable[[Model], bool]

    def find_error(self, model: Model, name: str | None = None) -> WrongModelError | None:
        """Return the error for a model that does not meet it; None for one that does.

        Args:
            model: any.
            name: the model's name in the message; derived from its source if omitted.
        """
        if self.is_met(model):
            return None
        task = model.task
        clauses = (clause for kind, clause in _TASK_CLAUSES.items() if isinstance(task, kind))
        other = "is an encoder without a head" if task is None else f"is trained for {task.name}"
        return WrongModelError(
            f"{name or name_of(model)} {next(clauses, other)}: {self.lack}",
            fix=f"Serve {self.remedy}.",
        )

    def check(self, model: Model) -> None:
        """Check that a model meets it.

        Raises:
            WrongModelError: it does not.
        """
        error = self.find_error(model)
        if error is not None:
            raise error


def name_of(model: Model) -> str:
    """The last part of a model's path, or its whole name on the hub."""
    source = Path(model.source or "the model")
    return source.resolve().name if source.exists() else str(source)


def is_masked_lm(model: Model) -> bool:
    """Whether the model predicts masked pieces, from the vectors that its layers have of them."""
    task = model.task
    if not isinstance(task, PretrainingTask) or task.has_two_streams:
        return False
    return task.has_masked_lm and not task.causal


def can_take_pairs(model: Model) -> bool:
    """Whether the model reads a second text: not a tagger, nor a classifier of single texts."""
    task = model.task
    if isinstance(task, TextTask):
        return task.settings.is_pair_optional or task.settings.pair_column is not None
    return not isinstance(task, TaggingTask) and not is_causal_lm(model)


def is_causal_lm(model: Model) -> bool:
    """Whether the model predicts the next piece."""
    return isinstance(model.task, PretrainingTask) and model.task.causal


def predicts_next_sentence(model: Model) -> bool:
    """Whether the model predicts whether a text follows another."""
    task = model.task
    return isinstance(task, PretrainingTask) and task.instances.next_sentence


MASKED_WORDS = Requirement(
    "it predicts no masked words",
    "a masked language model, such as mini or bert-base-uncased",
    is_masked_lm,
)
ATTENTION_HEADS = Requirement(
    "it has no attention heads (models without layers, with LSTMs or with two encoders side by "
    "side have none)",
    "another model, such as mini",
    lambda model: model.config.has_heads and model.config.num_hidden_layers > 0,
)
PREDICTION = Requirement(
    "it predicts nothing",
    "a pre-trained or fine-tuned model, such as mini",
    lambda model: (
        is_masked_lm(model)
        or is_causal_lm(model)
        or predicts_next_sentence(model)
        or isinstance(model.task, _TASKS_WITH_PREDICTIONS)
    ),
)
NEXT_SENTENCES = Requirement(
    "it predicts no next sentences",
    "a model pre-trained on pairs, such as mini or bert-base-uncased",
    predicts_next_sentence,
)
