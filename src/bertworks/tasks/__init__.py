"""The tasks that encoders are trained for: one protocol for the package's and for users' tasks."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import BertworksError, SettingsError, did_you_mean, needs_pytorch_error

if TYPE_CHECKING:
    from ..checkpoints.heads import PublishedCheckpoint
    from .labelled import LabelledTask
    from .task import Task

_TASKS = {
    "pretraining": "pretraining.task:PretrainingTask",
    "next-sentence": "pretraining.next_sentence:NextSentenceTask",
    "replaced-tokens": "pretraining.replaced_tokens:ReplacedTokensTask",
    "permutation": "pretraining.permutation:PermutationTask",
    "classification": "classification:ClassificationTask",
    "multilabel": "classification:MultiLabelTask",
    "regression": "regression:RegressionTask",
    "tagging": "tagging.task:TaggingTask",
    "answering": "answering.task:AnsweringTask",
    "choice": "choice:ChoiceTask",
    "retrieval": "retrieval.task:RetrievalTask",
    "translation": "translation:TranslationTask",
}
_TASKS_OF_CHECKPOINTS = (
    *("answering", "tagging", "choice", "classification", "multilabel", "regression"),
    *("pretraining", "next-sentence", "replaced-tokens", "permutation"),
)
"""Tasks that other tools train, in the order in which a checkpoint is searched for their heads."""

_USER_TASKS: dict[str, type[Task[Any]]] = {}

LABELLED_TASKS = (
    *("classification", "multilabel", "regression", "tagging", "answering", "choice"),
    *("retrieval", "translation"),
)
"""The package's tasks that are trained on labelled rows."""


def find_task_class(task: str | type[Task[Any]]) -> type[Task[Any]]:
    """Return the class of a task.

    Args:
        task: the name, as on the command line and in saved models; for a user's task, the class, or
            `path/to/file.py:Class`, whose file is run as Python code. A user's task is registered
            under its name until the process ends.

    Raises:
        BertworksError: there is no such task, or the file does not define it; or it needs PyTorch,
            which is not installed.
    """
    if not isinstance(task, str):
        return _register(task)
    file, is_file, attribute = task.rpartition(":")
    if is_file:
        return _register(_load_from_file(file, attribute))
    if task in _USER_TASKS:
        return _USER_TASKS[task]
    if task not in _TASKS:
        raise BertworksError(f"unknown task {task!r}", fix=did_you_mean(task, _TASKS))
    module, _, attribute = _TASKS[task].partition(":")
    try:
        task_class: type[Task[Any]] = getattr(
            importlib.import_module(f".{module}", __package__), attribute
        )
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise needs_pytorch_error(f"the task {task}") from None
    return task_class


def find_labelled_task(task: str | type[LabelledTask[Any]]) -> type[LabelledTask[Any]]:
    """Return the class of a task that can be fine-tuned.

    Raises:
        SettingsError: there is no such task, or it is not trained on labelled rows.
    """
    from .labelled import LabelledTask

    if isinstance(task, str) and task not in (*LABELLED_TASKS, *_USER_TASKS) and ":" not in task:
        fix = (
            f"{did_you_mean(task, LABELLED_TASKS)}; your own task is given as path/to/file.py:Class"
        )
        raise SettingsError(f"no task {task!r} can be fine-tuned", fix=fix)
    task_type = find_task_class(task)
    if not issubclass(task_type, LabelledTask):
        raise SettingsError(f"{task_type.__name__} is not a LabelledTask", where=str(task))
    return task_type


def detect_task(checkpoint: PublishedCheckpoint) -> Task[Any] | None:
    """Return the task that another tool's checkpoint was trained for; None for a bare encoder."""
    if checkpoint.has_no_head:  # importing all tasks takes longer than embedding a text
        return None
    return next(
        (
            task
            for name in _TASKS_OF_CHECKPOINTS
            if (task := find_task_class(name).from_published_checkpoint(checkpoint)) is not None
        ),
        None,
    )


def is_registered(name: str) -> bool:
    """Whether the package has a task of this name, or this process has registered a user's."""
    return name in _TASKS or name in _USER_TASKS


def is_user_task(task: Task[Any] | None) -> bool:
    """Whether a task is a user's, whose file other processes have not run."""
    return task is not None and not type(task).__module__.startswith(f"{__name__}.")


def _register(task_type: Any) -> type[Task[Any]]:
    """Check a class, and register it under its name if it is a user's task."""
    from .task import Task

    if not isinstance(task_type, type) or not issubclass(task_type, Task):
        raise SettingsError(f"{task_type!r} is not a task", fix="Derive it from LabelledTask.")
    if task_type.__module__.startswith(f"{__name__}."):
        return task_type
    name = getattr(task_type, "name", None)
    if not isinstance(name, str) or not name or name in _TASKS:
        what = f"the name of {task_type.__name__} is {name!r}"
        raise SettingsError(what, fix='Give it a unique name: name = "my-task".')
    _USER_TASKS[name] = task_type
    return task_type


def _load_from_file(file: str, attribute: str) -> Any:
    """Run a user's Python file and return one of its classes."""
    path = Path(file)
    if path.suffix != ".py" or not path.is_file():
        raise SettingsError("no such Python file", where=file, fix="Give path/to/file.py:Class.")
    module_name = f"bertworks_user_{zlib.crc32(os.fsencode(path.resolve())):08x}"
    if module_name not in sys.modules:
        spec = importlib.util.spec_from_file_location(module_name, path)
        assert spec is not None, "its name ends in .py"
        assert spec.loader is not None, "its name ends in .py"
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module  # dataclasses look up their module
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            del sys.modules[module_name]
            what = f"cannot be imported ({type(error).__name__}: {error})"
            raise SettingsError(what, where=file) from error
    names = vars(sys.modules[module_name])
    if attribute not in names:
        tasks = [
            name
            for name, value in names.items()
            if isinstance(value, type)
            and value.__module__ == module_name
            and hasattr(value, "decode")
        ]
        fix = did_you_mean(attribute, tasks) if tasks else "Derive one from LabelledTask there."
        raise SettingsError(f"defines no task {attribute!r}", where=file, fix=fix)
    return names[attribute]
