"""The run directory: everything that a training run writes, in formats readable without bertworks.

run/
  settings.yaml      the settings as resolved, and the format of all these files
  journal.jsonl      losses and metrics by step; a resumed run has the same as an uninterrupted
                     one, except for each line's "time"
  sessions.jsonl     when, where and with which versions the run was started and stopped
  checkpoints/       the checkpoints from which the run resumes
  best/              the weights with the best metric, by step, if the run selects them: the current
                     ones, and those that are needed again if it resumes from an older checkpoint
  tensorboard/       the contents of the journal, for TensorBoard
  tracking.json      the ids of the run in MLflow or Weights & Biases, if it is sent there
  evaluation.json    evaluation of a fine-tuned model on dev: metrics and breakdown
  model/             the trained model
  outcome.json       how the model was selected; written last: it marks a finished fine-tuning run
  report.html        all of this on one page
"""

from __future__ import annotations

import os
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from ..errors import DamagedError, DataError, OtherRunError, OutputError, did_you_mean
from ..settings.base import RUN_FORMAT, Settings
from ..settings.yaml_values import dump_yaml
from ..utils.atomic_writes import write_file
from ..utils.directories import LOCK_NAME
from ..utils.formatting import escape_surrogates
from ..utils.json_files import to_json, with_checksum
from ..utils.line_files import LineFile
from ..utils.outputs import locked_output
from .run_files import (
    EVALUATION,
    JOURNAL_LINE,
    OUTCOME,
    SESSION,
    read_lines,
    read_sealed_json,
    read_settings,
)

WITHOUT_EFFECT = frozenset(
    {"loader_workers", "keep_checkpoints", "tensorboard", "tracking", "rank_timeout"}
)
"""Settings on which the bits of a run's model do not depend."""

MAY_CHANGE = WITHOUT_EFFECT | {"sharding"}
"""Settings that may change when a run is resumed.

The bits depend on `sharding`, as on the number of processes: a run that resumes with another value
warns."""

_KINDS = {
    "search": "a grid of fine-tuning runs",
    "probe": "an ablation",
    "phases": "a pre-training run",
    "learning_rate": "a fine-tuning run",
}
"""The kind of a run, by a setting that only this kind has."""

TEACHER_VECTORS = "teacher.npy"
"""The vectors that a teacher (a sentence encoder) computes for the training rows."""

_AT_THE_START = {
    *(LOCK_NAME, ".settings.yaml.new"),
    *(f"{TEACHER_VECTORS}{ending}" for ending in ("", ".json", ".part", ".journal")),
    *(f".{TEACHER_VECTORS}{ending}" for ending in (".lock", ".json.new")),
}
_BEFORE_A_STEP = {
    *_AT_THE_START,
    *("settings.yaml", "journal.jsonl", "sessions.jsonl", "tensorboard"),
    *("tracking.json", ".tracking.json.new"),
    *("data.json", ".data.json.new"),
}


class RunDirectory:
    """The directory of a run: `open` opens it for training, `RunDirectory(path)` for reading.

    As a context manager it closes itself. If an error ends a new run before training starts, its
    files are deleted.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.settings_file = self.path / "settings.yaml"
        self.journal_file = self.path / "journal.jsonl"
        self.sessions_file = self.path / "sessions.jsonl"
        self.checkpoints = self.path / "checkpoints"
        self.best = self.path / "best"
        self.tensorboard = self.path / "tensorboard"
        self.tracking = self.path / "tracking.json"
        self.model = self.path / "model"
        self.evaluation = self.path / "evaluation.json"
        self.outcome_file = self.path / "outcome.json"
        self.report = self.path / "report.html"
        self._journal: LineFile | None = None
        self._lock = ExitStack()
        self._is_new = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None and self._is_new and not self.is_started:
            for name in _BEFORE_A_STEP - {LOCK_NAME}:
                with suppress(OSError):
                    (self.path / name).unlink(missing_ok=True)
        self.close()

    def __repr__(self) -> str:
        return f"RunDirectory({str(self.path)!r})"

    def best_weights(self, step: int) -> Path:
        """Return the file of the weights of a step that was the best so far."""
        return self.best / f"step-{step:08d}.safetensors"

    def remove_checkpoints(self) -> None:
        """Remove the checkpoints and the best weights: they are large, and no longer needed."""
        for directory in (self.checkpoints, self.best):
            shutil.rmtree(directory, ignore_errors=True)

    @property
    def is_started(self) -> bool:
        """Whether the training loop was started, or there are training results (`is_begun`)."""
        return self.is_begun or any(line["event"] == "start" for line in self.sessions())

    @property
    def is_begun(self) -> bool:
        """Whether the directory contains training results, which depend on the settings."""
        if not self.path.is_dir():
            return False
        has_lines = self.journal_file.is_file() and self.journal_file.stat().st_size > 0
        return has_lines or any(_others(self.path, _BEFORE_A_STEP))

    @classmethod
    def open(
        cls,
        path: str | Path,
        settings: Settings | Mapping[str, Any] | None = None,
        *,
        may_change: frozenset[str] = MAY_CHANGE,
        resume_checks: Mapping[str, Callable[[RunDirectory], str | None]] | None = None,
        check: Callable[[RunDirectory], None] | None = None,
        inputs: Iterable[object] = (),
        is_main: bool = True,
        overwrite: bool = False,
    ) -> RunDirectory:
        """Start a run, or resume one that has the same settings.

        Before `is_begun`, all settings may change: the user can correct a mistake and run the
        command again.

        Args:
            path: the directory; created if absent.
            may_change: the settings that may differ when the run is resumed.
            resume_checks: functions for settings that may change in some runs: each returns why
                the run cannot be resumed with the new value, or None if it can.
            check: called for a run that is resumed, before anything is written; raises an error if
                the run cannot be resumed.
            inputs: paths of inputs, which must not overlap with the directory.
            is_main: false for all ranks but 0: what they write is discarded.
            overwrite: delete an existing run, finished or not, and start again.

        Raises:
            OtherRunError: the directory contains something else, or a run with other settings.
            DataError: the settings file is damaged, or the run was written in another format.
            OutputError: the directory cannot be written, is in use by another process, or is,
                contains or is inside an input.
        """
        run = cls(path)
        if overwrite and int(os.environ.get("WORLD_SIZE", "1")) > 1 and run.settings_file.exists():
            raise OutputError(  # other processes, and torchrun's restarts, would resume it
                "a run cannot be overwritten by several processes",
                where=str(path),
                fix="Remove it first.",
            )
        if not is_main:
            return run
        tree = settings.model_dump(mode="json") if isinstance(settings, Settings) else settings
        run._lock.enter_context(
            locked_output(path, inputs, kind="directory", overwrite=overwrite or None)
        )
        try:
            run._is_new = not run.settings_file.exists()
            run.check_free()
            if run.is_begun:
                run._check_settings(tree or {}, may_change, resume_checks or {})
                if check is not None:
                    check(run)
            content = {"format_version": RUN_FORMAT, **(tree or {})}
            write_file(run.settings_file, dump_yaml(content))
            run._journal = LineFile(run.journal_file)
        except BaseException:
            run.close()
            raise
        return run

    def check_free(self) -> None:
        """Raise `OtherRunError` if the directory contains files, but no run."""
        is_run = self.settings_file.exists() or not self.path.is_dir()
        if not is_run and any(_others(self.path, _AT_THE_START)):
            raise OtherRunError(
                "the directory is not empty and holds no run",
                where=str(self.path),
                fix="Give another.",
            )

    def close(self) -> None:
        """Close the journal and release the directory, so that other processes may open it."""
        if self._journal is not None:
            self._journal.close()
        self._journal = None
        self._lock.close()

    def write(self, line: Mapping[str, Any]) -> None:
        """Append a line to the journal. Numbers that are not finite become null."""
        if self._journal is None:
            return
        try:
            self._journal.append(_json(line))
        except OutputError as error:
            fix = "Make room, and run the same command again: it resumes from the last checkpoint."
            raise OutputError(error.what, where=error.where, fix=fix) from None

    def sync_journal(self) -> int:
        """Flush the journal to the disk, and return its length in bytes."""
        return 0 if self._journal is None else self._journal.sync()

    def journal_checksum(self) -> int:
        """Return the CRC-32 of the journal."""
        return 0 if self._journal is None else zlib.crc32(self._journal.read())

    def truncate_journal(self, length: int, checksum: int | None = None) -> None:
        """Truncate the journal to `length` bytes: the run repeats the later steps.

        Args:
            checksum: the expected `journal_checksum` of the rest; None if unknown.

        Raises:
            DamagedError: the journal is shorter than `length`, or its checksum is wrong.
            DataError: a remaining line is damaged.
        """
        if self._journal is None:
            return
        what = None
        if self._journal.size < length:
            what = f"the journal is shorter than the {length} bytes that the checkpoint records"
        else:
            self._journal.truncate(length)
            for _ in self.lines():  # finds a damaged line now, not at the end of the run
                pass
            if checksum not in (None, self.journal_checksum()):
                what = "the journal is damaged: its checksum is wrong"
        if what is not None:
            raise DamagedError(
                what,
                where=str(self.journal_file),
                fix="Something else changed it; restore it, or start a new run.",
            )

    def log_session(self, event: str, **facts: Any) -> None:
        """Append a line to the sessions: `event` is "start", "stop", "note" or "failure"."""
        if self._journal is None:
            return
        now = datetime.now(UTC).isoformat(timespec="seconds")
        # On a full disk, the run reports a more important error than this missing line.
        with suppress(OutputError), LineFile(self.sessions_file) as file:
            file.append(_json({"event": event, "time": now, **facts}))

    def write_outcome(self, **facts: Any) -> None:
        """Write how the model was selected; this marks the run as finished."""
        write_file(self.outcome_file, _json(with_checksum(facts)))

    def outcome(self) -> dict[str, Any] | None:
        """Return the outcome and the evaluation, if there is one; None if the run is not finished.

        Raises:
            DataError: one of the two files is damaged.
        """
        if not self.outcome_file.is_file():
            return None
        facts = read_sealed_json(self.outcome_file, OUTCOME)
        if not self.evaluation.is_file():
            return {**facts}
        evaluation = read_sealed_json(self.evaluation, EVALUATION)
        if facts["best_metric"] not in evaluation["metrics"]:
            raise DataError(
                f"has no {facts['best_metric']!r}, by which the weights were chosen (outcome.json)",
                where=str(self.evaluation),
                fix="Evaluate the model again.",
            )
        return {**evaluation, **facts}

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield the journal's lines, in order.

        Raises:
            DataError: a line is damaged.
        """
        return read_lines(self.journal_file, JOURNAL_LINE)

    def sessions(self) -> Iterator[dict[str, Any]]:
        """Yield the lines of the sessions, in order.

        Raises:
            DataError: a line is damaged.
        """
        return read_lines(self.sessions_file, SESSION)

    def settings(self) -> dict[str, Any]:
        """Return the resolved settings, as written.

        Raises:
            DataError: the file is damaged, or of another format.
        """
        return read_settings(self.settings_file)

    def _check_settings(
        self,
        tree: Mapping[str, Any],
        may_change: frozenset[str],
        resume_checks: Mapping[str, Callable[[RunDirectory], str | None]],
    ) -> None:
        settings = self.settings()
        existing_kind, new_kind = _kind_of(settings), _kind_of(tree)
        if existing_kind != new_kind:
            raise OtherRunError(
                f"the directory holds {existing_kind}, and this would be {new_kind}",
                where=str(self.path),
                fix="Give another directory, or start again with --overwrite (overwrite=True).",
            )
        existing, now = _flatten(settings), _flatten(tree)
        for key in {**existing, **now}:  # in the file's order: the task, the model, the data, …
            if existing.get(key) != now.get(key) and key.split(".")[0] not in may_change:
                difference = f"{key}={existing.get(key)}, not {now.get(key)}"
                if key in resume_checks:
                    reason = resume_checks[key](self)
                    if reason is None:
                        continue
                    difference += f", and {reason}"
                *parents, name = key.split(".")
                if name == "fingerprint" and key in existing:
                    difference = "another model: its weights or its vocabulary are not the same"
                elif name == "sha256" and key in existing:
                    difference = f"other rows for {'.'.join(parents)}"
                raise OtherRunError(
                    f"the run was started with {difference}",
                    where=str(self.path),
                    fix="Resume with the same settings, give another directory, or start again "
                    "with --overwrite (overwrite=True).",
                )


def _kind_of(settings: Mapping[str, Any]) -> str:
    return next((kind for key, kind in _KINDS.items() if key in settings), "another kind of run")


def read_run(path: str | Path) -> RunDirectory:
    """Open a run directory for reading.

    Raises:
        DataError: the directory contains no run, or one in another format.
    """
    run = RunDirectory(path)
    if not run.settings_file.is_file():
        runs = [file.parent.name for file in run.path.parent.glob("*/settings.yaml")]
        fix = did_you_mean(run.path.name, runs) if runs else None
        raise DataError("no run directory", where=str(path), fix=fix)
    run.settings()
    return run


def _others(directory: Path, names: set[str]) -> Iterator[Path]:
    """Yield the entries of a directory that are not in `names`."""
    return (child for child in directory.iterdir() if child.name not in names)


def _json(line: Mapping[str, Any]) -> bytes:
    return f"{escape_surrogates(to_json(line))}\n".encode()


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
