"""Send a run's numbers to MLflow or Weights & Biases, as their environment variables say.

A tracker is used in a thread of its own: a slow one does not delay the training, and one that fails
does not end it. A run that resumes continues the tracker's run, whose id is in `tracking.json`.
"""

from __future__ import annotations

import os
import re
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from typing import Any, Protocol

from ..checkpoints.card_training import without_folders
from ..errors import DataError, import_optional
from ..runs.run_directory import RunDirectory
from ..utils.json_files import read_json, write_json
from ..utils.memory import start_thread
from .settings import TrackerKind

_PROJECT = "bertworks"
_PRIVATE: Mapping[str, Any] = {
    "console": "off",
    "disable_code": True,
    "disable_git": True,
    "save_code": False,
    "host": "",
    "program": "",
    "x_disable_machine_info": True,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_save_requirements": False,
}
_NAME = re.compile(r"[^\w./ -]", re.ASCII)  # what MLflow refuses in a metric's name
_SECONDS_AT_END = 60.0
"""How long the end of a run waits for what is not sent yet."""


class Tracker(Protocol):
    """A run of a tracker."""

    def log(self, numbers: Mapping[str, float], step: int) -> None: ...

    def close(self, *, is_finished: bool) -> None: ...


class MlflowTracker:
    """A run of MLflow, at MLFLOW_TRACKING_URI in the experiment MLFLOW_EXPERIMENT_NAME."""

    def __init__(self, ids: dict[str, str], name: str, settings: Mapping[str, str]) -> None:
        mlflow: Any = import_optional("mlflow", "mlflow", "tracking=mlflow")
        self._client = mlflow.MlflowClient()
        self._metric: Any = mlflow.entities.Metric
        self._id = ids.get("mlflow") or self._create(name, settings)
        ids["mlflow"] = self._id
        self._client.update_run(self._id, status="RUNNING")

    def _create(self, name: str, settings: Mapping[str, str]) -> str:
        title = os.environ.get("MLFLOW_EXPERIMENT_NAME", _PROJECT)
        experiment = self._client.get_experiment_by_name(title)
        number = (
            self._client.create_experiment(title)
            if experiment is None
            else experiment.experiment_id
        )
        run: Any = self._client.create_run(number, run_name=name)
        for key, value in settings.items():
            self._client.log_param(run.info.run_id, key, value)
        return str(run.info.run_id)

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        now = int(time.time() * 1000)
        metrics = [
            self._metric(_NAME.sub("_", key.replace("@", "_at_")), value, now, step)
            for key, value in numbers.items()
        ]
        self._client.log_batch(self._id, metrics=metrics)

    def close(self, *, is_finished: bool) -> None:
        self._client.set_terminated(self._id, "FINISHED" if is_finished else "KILLED")


class WandbTracker:
    """A run of Weights & Biases, in the project WANDB_PROJECT."""

    def __init__(self, ids: dict[str, str], name: str, settings: Mapping[str, str]) -> None:
        wandb: Any = import_optional("wandb", "wandb", "tracking=wandb")
        ids.setdefault("wandb", uuid.uuid4().hex)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", _PROJECT),
            id=ids["wandb"],
            name=name,
            config=dict(settings),
            resume="allow",
            settings=_nothing_else(wandb),
        )
        # Not W&B's own step, which only rises: a killed run repeats those after its checkpoint.
        self._run.define_metric("*", step_metric="step")

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        self._run.log({**numbers, "step": step})

    def close(self, *, is_finished: bool) -> None:
        self._run.finish(exit_code=0 if is_finished else 1)


def _nothing_else(wandb: Any) -> Any:
    """Return settings by which W&B sends no more than it is given.

    By default it also sends the command line, the console, the code, and facts about the machine.
    """
    fields = wandb.Settings.model_fields
    return wandb.Settings(**{name: value for name, value in _PRIVATE.items() if name in fields})


_TRACKERS: Mapping[TrackerKind, Callable[[dict[str, str], str, Mapping[str, str]], Tracker]] = {
    "mlflow": MlflowTracker,
    "wandb": WandbTracker,
}


class Tracking:
    """Sends a run's numbers to a tracker, in a thread.

    Args:
        run: its settings and its name are sent, without folders of this machine.
        report: called with a message if the tracker fails; nothing is sent after that.

    Raises:
        BertworksError: the tracker's package is not installed.
        DataError: the run's file of ids is damaged.
    """

    def __init__(self, kind: TrackerKind, run: RunDirectory, report: Callable[[str], None]) -> None:
        import_optional(kind, kind, f"tracking={kind}")  # an error before the first step
        self._kind, self._report = kind, report
        self._failure: str | None = None
        self._is_reported = False
        self._queue: SimpleQueue[Callable[[Tracker], object] | None] = SimpleQueue()
        self._has_ended = threading.Event()
        start_thread(self._send_all, run, run.settings())

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Send numbers of a step."""
        self._queue.put(lambda tracker: tracker.log(numbers, step))
        self._report_failure()

    def close(self, *, is_finished: bool) -> None:
        """Send what is left, for at most `_SECONDS_AT_END`, and end the session."""
        self._queue.put(lambda tracker: tracker.close(is_finished=is_finished))
        self._queue.put(None)
        if not self._has_ended.wait(_SECONDS_AT_END):
            self._failure = f"it did not take everything within {_SECONDS_AT_END:.0f} s"
        self._report_failure()

    def _report_failure(self) -> None:
        """Report a failure once, from the thread that trains."""
        if self._failure is not None and not self._is_reported:
            self._is_reported = True
            self._report(f"tracking={self._kind} failed, the training goes on: {self._failure}")

    def _send_all(self, run: RunDirectory, settings: Mapping[str, Any]) -> None:
        """Connect, and send what is in the queue until its end."""
        try:
            ids = _read_ids(run)
            name = run.path.resolve().name
            tracker = _TRACKERS[self._kind](ids, name, _flatten(without_folders(settings)))
            write_json(run.tracking, ids)
            while (send := self._queue.get()) is not None:
                send(tracker)
        except Exception as error:  # a tracker's errors are of any kind
            first_line = next(iter(str(error).splitlines()), "")
            self._failure = f"{type(error).__name__}: {first_line}"
        finally:
            self._has_ended.set()


def _read_ids(run: RunDirectory) -> dict[str, str]:
    return dict(read_json(run.tracking, DataError)) if run.tracking.is_file() else {}


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return nested settings as texts by names with dots; MLflow takes at most 500 characters."""
    result: dict[str, str] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            result |= _flatten(value, f"{prefix}{key}.")
        else:
            result[f"{prefix}{key}"] = str(value)[:500]
    return result
