"""The run directory: everything that a training run did, readable without the program.

run/
  settings.yaml      the settings as resolved
  journal.jsonl      losses and metrics by step; the same for a broken and an unbroken run,
                     but for each line's "time", which alone depends on the clock
  sessions.jsonl     when, where and with what versions the run was started and stopped
  checkpoints/       to resume from
  best/              the weights with the best metric so far, by step, where one is asked for: those
                     of the journal's end, and those that a checkpoint may go back to
  tensorboard/       the journal again, for TensorBoard
  evaluation.json    of a fine-tuned model on dev: metrics, and what they are made of
  model/             the trained model
  outcome.json       how it was chosen; written last: a fine-tuning run that has it is finished
  report.html        the whole as one page
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from .. import files
from ..errors import DamagedError, DataError, OtherRunError, OutputError, nearest
from ..locks import claim
from ..settings import Settings, dump_yaml
from ..wording import as_json, printable
from .run_files import (
    EVALUATION,
    JOURNAL_LINE,
    OUTCOME,
    SESSION,
    read_json,
    read_lines,
    read_settings,
)

MAY_CHANGE = frozenset(
    {"loader_workers", "keep_checkpoints", "tensorboard", "rank_timeout", "sharding"}
)
"""Settings that may change when a run is resumed, since its bits do not depend on them (on
`sharding` they do, as on the number of processes; a run that resumes with another warns)."""

_KINDS = {
    "search": "a grid of fine-tuning runs",
    "probe": "an ablation",
    "phases": "a pre-training run",
    "learning_rate": "a fine-tuning run",
}
"""What a directory holds, by a setting that only its kind has."""

TEACHER_VECTORS = "teacher.npy"
"""What a sentence encoder that is learned from says of the training rows."""

_AT_THE_START = {
    *(files.LOCK, ".settings.yaml.new"),
    *(f"{TEACHER_VECTORS}{ending}" for ending in ("", ".json", ".part")),
    *(f".{TEACHER_VECTORS}{ending}" for ending in (".lock", ".json.new")),
}
_BEFORE_A_STEP = {
    *_AT_THE_START,
    *("settings.yaml", "journal.jsonl", "sessions.jsonl", "tensorboard"),
    *("data.json", ".data.json.new"),
}


class RunDirectory:
    """A run's directory, opened for training by `open`, or for reading by `RunDirectory(path)`.

    As a context manager it closes itself; a run that an error ended before it started leaves
    nothing behind.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.settings_file = self.path / "settings.yaml"
        self.journal_file = self.path / "journal.jsonl"
        self.sessions_file = self.path / "sessions.jsonl"
        self.checkpoints = self.path / "checkpoints"
        self.best = self.path / "best"
        self.tensorboard = self.path / "tensorboard"
        self.model = self.path / "model"
        self.evaluation = self.path / "evaluation.json"
        self.outcome_file = self.path / "outcome.json"
        self.report = self.path / "report.html"
        self._journal: files.LineFile | None = None
        self._claimed = ExitStack()
        self._is_new = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None and self._is_new and not self.is_started:
            for name in _BEFORE_A_STEP - {files.LOCK}:
                with suppress(OSError):
                    (self.path / name).unlink(missing_ok=True)
        self.close()

    def __repr__(self) -> str:
        return f"RunDirectory({str(self.path)!r})"

    def best_weights(self, step: int) -> Path:
        """The file of the weights that were the best of all until a later step."""
        return self.best / f"step-{step:08d}.safetensors"

    @property
    def is_started(self) -> bool:
        """Whether the training loop was entered, or anything is here that settings decided."""
        return self.is_begun or any(line["event"] == "start" for line in self.sessions())

    @property
    def is_begun(self) -> bool:
        """Whether anything was learned here, or made for learning, that settings decided."""
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
        refusals: Mapping[str, Callable[[RunDirectory], str | None]] | None = None,
        schema: type[Settings] | None = None,
        inputs: Iterable[object] = (),
        is_main: bool = True,
    ) -> RunDirectory:
        """Begin a run, or resume one that was made with the same settings.

        As long as nothing was learned, nothing is lost by another go with a mistake mended: until
        then every setting may be another.

        Args:
            path: the directory; made if absent.
            may_change: the settings that may differ when the run is resumed.
            refusals: for settings that may change in some runs: says why a run cannot be resumed
                with the new value, or None if it can.
            schema: with the defaults of the settings that an older version has not written
                down, and which knows former keys; the class of `settings`, if that is one.
            is_main: false for the ranks that leave the writing to rank 0: they may write lines,
                which go nowhere.

        Raises:
            OtherRunError: the directory holds something else, or a run with other settings.
            DataError: the settings that were written down are damaged.
            OutputError: it cannot be written, is being written by another process, or is,
                contains or lies in an input.
        """
        run = cls(path)
        if not is_main:
            return run
        tree = settings.model_dump(mode="json") if isinstance(settings, Settings) else settings
        if schema is None:
            schema = type(settings) if isinstance(settings, Settings) else Settings
        run._claimed.enter_context(claim(path, inputs, kind="directory"))
        try:
            run._is_new = not run.settings_file.exists()
            run.check_free()
            if run.is_begun:
                run._check_settings(tree or {}, may_change, refusals or {}, schema)
            files.write(run.settings_file, dump_yaml(tree or {}))
            run._journal = files.LineFile(run.journal_file)
        except BaseException:
            run.close()
            raise
        return run

    def check_free(self) -> None:
        """See that the directory holds nothing else than a run."""
        is_run = self.settings_file.exists() or not self.path.is_dir()
        if not is_run and any(_others(self.path, _AT_THE_START)):
            raise OtherRunError(
                "the directory is not empty and holds no run",
                where=str(self.path),
                fix="Give another.",
            )

    def close(self) -> None:
        """Let go of the directory; others may open it."""
        if self._journal is not None:
            self._journal.close()
        self._journal = None
        self._claimed.close()

    def write(self, line: Mapping[str, Any]) -> None:
        """Add a line to the journal. Numbers that are not finite become null."""
        if self._journal is None:
            return
        try:
            self._journal.append(_json(line))
        except OutputError as error:
            fix = "Make room, and run the same command again: it resumes from the last checkpoint."
            raise OutputError(error.what, where=error.where, fix=fix) from None

    def sync_journal(self) -> int:
        """See the journal safely on the disk, and return its length in bytes."""
        return 0 if self._journal is None else self._journal.sync()

    def journal_checksum(self) -> int:
        """The CRC-32 of the journal."""
        return 0 if self._journal is None else zlib.crc32(self._journal.read())

    def cut_journal(self, length: int, checksum: int | None = None) -> None:
        """Forget what the journal says beyond `length`: those steps are done again.

        Args:
            checksum: the `journal_checksum` of what is left; None if it was not noted.

        Raises:
            DamagedError: the journal is shorter, or another.
            DataError: a line of what is left is damaged.
        """
        if self._journal is None:
            return
        what = None
        if self._journal.size < length:
            what = f"the journal is shorter than the {length} bytes that the checkpoint records"
        else:
            self._journal.truncate(length)
            for _ in self.lines():  # a damaged one is found now, not when the run is done
                pass
            if checksum not in (None, self.journal_checksum()):
                what = "the journal is damaged: its checksum is wrong"
        if what is not None:
            raise DamagedError(
                what,
                where=str(self.journal_file),
                fix="Something else changed it; restore it, or start a new run.",
            )

    def note_session(self, event: str, **facts: Any) -> None:
        """Add a line to the sessions: `event` is "start", "stop" or "note"."""
        if self._journal is None:
            return
        now = datetime.now(UTC).isoformat(timespec="seconds")
        # On a full disk the run has worse to say than that this line is missing.
        with suppress(OutputError), files.LineFile(self.sessions_file) as file:
            file.append(_json({"event": event, "at": now, **facts}))

    def note_outcome(self, **facts: Any) -> None:
        """Say how the run was chosen: it is finished."""
        files.write(self.outcome_file, _json(files.sealed(facts)))

    def outcome(self) -> dict[str, Any] | None:
        """What came of the run: that, and its evaluation if there is one; None if not finished.

        Raises:
            DataError: one of the two files is damaged.
        """
        if not self.outcome_file.is_file():
            return None
        facts = read_json(self.outcome_file, OUTCOME)
        if not self.evaluation.is_file():
            return {**facts}
        measured = read_json(self.evaluation, EVALUATION)
        if facts["best_metric"] not in measured["metrics"]:
            raise DataError(
                f"has no {facts['best_metric']!r}, by which the weights were chosen (outcome.json)",
                where=str(self.evaluation),
                fix="Evaluate the model again.",
            )
        return {**measured, **facts}

    def lines(self) -> Iterator[dict[str, Any]]:
        """The journal's lines, in order.

        Raises:
            DataError: one is damaged.
        """
        return read_lines(self.journal_file, JOURNAL_LINE)

    def sessions(self) -> Iterator[dict[str, Any]]:
        """The lines of the sessions, in order.

        Raises:
            DataError: one is damaged.
        """
        return read_lines(self.sessions_file, SESSION)

    def settings(self) -> dict[str, Any]:
        """The resolved settings, as written.

        Raises:
            DataError: the file is damaged.
        """
        return read_settings(self.settings_file)

    def _check_settings(
        self,
        tree: Mapping[str, Any],
        may_change: frozenset[str],
        refusals: Mapping[str, Callable[[RunDirectory], str | None]],
        schema: type[Settings],
    ) -> None:
        held, asked = _kind_of(self.settings()), _kind_of(tree)
        if held != asked:
            raise OtherRunError(
                f"the directory holds {held}, and this would be {asked}",
                where=str(self.path),
                fix="Give another directory.",
            )
        was = schema.as_now(self.settings())
        usual, now = _flatten(schema.defaults()), _flatten(tree)
        before = {key: usual[key] for key in now.keys() & usual.keys()} | _flatten(was)
        for key in sorted(before.keys() | now.keys()):
            if before.get(key) != now.get(key) and key.split(".")[0] not in may_change:
                difference = f"{key}={before.get(key)}, not {now.get(key)}"
                if key in refusals:
                    reason = refusals[key](self)
                    if reason is None:
                        continue
                    difference += f", and {reason}"
                *parents, name = key.split(".")
                if name == "fingerprint" and key in before:
                    difference = "another model: its weights or its vocabulary are not the same"
                elif name == "sha256" and key in before:
                    difference = f"other rows for {'.'.join(parents)}"
                raise OtherRunError(
                    f"the run was started with {difference}",
                    where=str(self.path),
                    fix="Resume with the same settings, or give another directory.",
                )


def _kind_of(settings: Mapping[str, Any]) -> str:
    return next((kind for key, kind in _KINDS.items() if key in settings), "another kind of run")


def read_run(path: str | Path) -> RunDirectory:
    """Open a run directory for reading.

    Raises:
        DataError: there is no run.
    """
    run = RunDirectory(path)
    if not run.settings_file.is_file():
        runs = [file.parent.name for file in run.path.parent.glob("*/settings.yaml")]
        fix = nearest(run.path.name, runs) if runs else None
        raise DataError("no run directory", where=str(path), fix=fix)
    return run


def _others(directory: Path, known: set[str]) -> Iterator[Path]:
    """What lies in a directory under other names than these."""
    return (child for child in directory.iterdir() if child.name not in known)


def _json(line: Mapping[str, Any]) -> bytes:
    return f"{printable(as_json(line))}\n".encode()


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
