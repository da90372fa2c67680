"""What encoders are trained for: one file for each task, one protocol for all."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ..errors import BertworksError, SettingsError, nearest

if TYPE_CHECKING:
    from .labelled import LabelledTask
    from .task import Task

_TASKS = {
    "pretraining": "pretraining.task:PretrainingTask",
    "replaced-tokens": "pretraining.replaced_tokens:ReplacedTokensTask",
    "classification": "classification.task:ClassificationTask",
    "regression": "regression:RegressionTask",
    "tagging": "tagging.task:TaggingTask",
    "answering": "answering.task:AnsweringTask",
    "choice": "choice.task:ChoiceTask",
    "retrieval": "retrieval.task:RetrievalTask",
}


def task_class(name: str) -> type[Task[Any]]:
    """The class of a task, by the name that the command line and saved models call it.

    Raises:
        BertworksError: no task has that name.
    """
    if name not in _TASKS:
        raise BertworksError(f"no task is called {name!r}", fix=nearest(name, _TASKS))
    module, _, attribute = _TASKS[name].partition(":")
    found: type[Task[Any]] = getattr(importlib.import_module(f".{module}", __package__), attribute)
    return found


LABELLED = ("classification", "regression", "tagging", "answering", "choice", "retrieval")
"""The tasks that are learned from labelled rows."""


def labelled_task(name: str) -> type[LabelledTask[Any]]:
    """The class of a task that can be fine-tuned.

    Raises:
        SettingsError: no such task has that name.
    """
    if name not in LABELLED:
        raise SettingsError(f"no task {name!r} can be fine-tuned", fix=nearest(name, LABELLED))
    from .labelled import LabelledTask

    found = task_class(name)
    assert issubclass(found, LabelledTask)
    return found
