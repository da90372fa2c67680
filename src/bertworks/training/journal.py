"""The run directory: everything that a training run did, readable without the program.

run/
  settings.yaml      the settings as resolved
  journal.jsonl      losses and metrics by step; the same for a broken and an unbroken run,
                     but for each line's "time", which alone depends on the clock
  sessions.jsonl     when, where and with what versions the run was started and stopped
  checkpoints/       to go on from
  best/              the weights with the best metric so far, where one is asked for
  tensorboard/       the journal again, for TensorBoard
  evaluation.json    of a fine-tuned model on dev: metrics, and what they are made of
  model/             the trained model
  outcome.json       how it was chosen; written last: a fine-tuning run that has it is finished
  report.html        the whole as one page
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from typing import IO, Any

import yaml

from ..corpus.manifest import whole_lines
from ..errors import DataError, TrainingError, nearest
from ..settings import Settings
from ..wording import as_json

MAY_CHANGE = frozenset({"loader_workers", "keep_checkpoints", "tensorboard"})
"""Settings that a run may be gone on with differently, since its bits do not depend on them."""

_AT_THE_START = {".lock", ".settings.yaml.new"}
_BEFORE_A_STEP = {
    *_AT_THE_START,
    *("settings.yaml", "journal.jsonl", "sessions.jsonl", "tensorboard"),
    *("data.json", ".data.json.new"),
}


class RunDirectory:
    """A run's directory, opened for training by `open`, or for reading by `RunDirectory(path)`."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._journal: FileIO | None = None
        self._lock: IO[bytes] | None = None

    @property
    def settings_file(self) -> Path:
        return self.path / "settings.yaml"

    @property
    def journal_file(self) -> Path:
        return self.path / "journal.jsonl"

    @property
    def sessions_file(self) -> Path:
        return self.path / "sessions.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def best(self) -> Path:
        return self.path / "best"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    @property
    def model(self) -> Path:
        return self.path / "model"

    @property
    def evaluation(self) -> Path:
        return self.path / "evaluation.json"

    @property
    def outcome_file(self) -> Path:
        return self.path / "outcome.json"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    @property
    def is_begun(self) -> bool:
        """Whether anything was learned here, or made for learning, that settings decided."""
        if not self.path.is_dir():
            return False
        is_told = self.journal_file.is_file() and self.journal_file.stat().st_size > 0
        return is_told or any(_others(self.path, _BEFORE_A_STEP))

    @classmethod
    def open(
        cls,
        path: str | Path,
        settings: Settings | Mapping[str, Any] | None = None,
        *,
        may_change: frozenset[str] = MAY_CHANGE,
        is_main: bool = True,
    ) -> RunDirectory:
        """Begin a run, or go on with one that was made with the same settings.

        As long as nothing was learned, nothing is lost by another go with a mistake mended: until
        then every setting may be another.

        Args:
            path: the directory; made if absent.
            settings: the resolved settings, written down.
            may_change: the settings in which the run may be gone on with differently.
            is_main: false for the ranks that leave the writing to rank 0: they may write lines,
                which go nowhere.

        Raises:
            TrainingError: the directory holds something else, a run with other settings, or a run
                that another process is at.
        """
        run = cls(path)
        if not is_main:
            return run
        if run.path.exists() and not run.path.is_dir():
            raise TrainingError("is a file", where=str(path), fix="Give another directory.")
        is_new = not run.settings_file.exists()
        if is_new and run.path.exists() and any(_others(run.path, _AT_THE_START)):
            raise TrainingError(
                "the directory is not empty and holds no run", where=str(path), fix="Give another."
            )
        run.path.mkdir(parents=True, exist_ok=True)
        run._take_lock()
        tree = settings.model_dump(mode="json") if isinstance(settings, Settings) else settings
        if run.is_begun:
            run._check_settings(tree or {}, may_change)
        text = yaml.safe_dump(dict(tree or {}), sort_keys=False, allow_unicode=True)
        write_atomically(run.settings_file, text.encode())
        run._journal = run.journal_file.open("a+b", buffering=0)
        whole_lines(run._journal)
        return run

    def close(self) -> None:
        """Let go of the directory; others may open it."""
        for file in (self._journal, self._lock):
            if file is not None:
                file.close()
        self._journal = self._lock = None

    def write(self, line: Mapping[str, Any]) -> None:
        """Add a line to the journal. Numbers that are not finite become null."""
        if self._journal is None:
            return
        try:
            rest = _json(line)
            while rest:  # an almost full disk takes a part, and refuses the next
                rest = rest[self._journal.write(rest) :]
        except OSError as error:
            raise TrainingError(
                f"the journal cannot be written ({error.strerror})",
                where=str(self.journal_file),
                fix="Make room, and run the same command again: it goes on from the last "
                "checkpoint.",
            ) from None

    def sync_journal(self) -> int:
        """See the journal safely on the disk, and return its length in bytes."""
        if self._journal is None:
            return 0
        os.fsync(self._journal.fileno())
        return os.fstat(self._journal.fileno()).st_size

    def cut_journal(self, length: int) -> None:
        """Forget what the journal says beyond `length`: those steps are done again."""
        if self._journal is None:
            return
        if os.fstat(self._journal.fileno()).st_size < length:
            raise TrainingError(
                f"the journal is shorter than the {length} bytes that the checkpoint knows",
                where=str(self.journal_file),
                fix="It was changed by something else; restore it, or begin a new run.",
            )
        self._journal.truncate(length)

    def note_session(self, event: str, **facts: Any) -> None:
        """Add a line to the sessions: `event` is "start", "stop" or "note"."""
        if self._journal is None:
            return
        now = datetime.now(UTC).isoformat(timespec="seconds")
        # On a full disk the run has worse to say than that this line is missing.
        with suppress(OSError), self.sessions_file.open("a+b") as file:
            whole_lines(file)
            file.write(_json({"event": event, "at": now, **facts}))

    def note_outcome(self, **facts: Any) -> None:
        """Say how the run was chosen: it is finished."""
        write_atomically(self.outcome_file, _json(facts))

    def outcome(self) -> dict[str, Any] | None:
        """What came of the run: that, and its evaluation if there is one; None if not finished."""
        if not self.outcome_file.is_file():
            return None
        facts: dict[str, Any] = json.loads(self.outcome_file.read_bytes())
        measured = json.loads(self.evaluation.read_bytes()) if self.evaluation.is_file() else {}
        return {**measured, **facts}

    def lines(self) -> Iterator[dict[str, Any]]:
        """The journal's lines, in order."""
        return _read_lines(self.journal_file)

    def sessions(self) -> Iterator[dict[str, Any]]:
        """The lines of the sessions, in order."""
        return _read_lines(self.sessions_file)

    def settings(self) -> dict[str, Any]:
        """The resolved settings, as written."""
        tree = yaml.safe_load(self.settings_file.read_text(encoding="utf-8"))
        return tree if isinstance(tree, dict) else {}

    def _take_lock(self) -> None:
        self._lock = (self.path / ".lock").open("ab")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise TrainingError(
                "another process is training here", where=str(self.path), fix="Wait or stop it."
            ) from None

    def _check_settings(self, tree: Mapping[str, Any], may_change: frozenset[str]) -> None:
        before, now = _flatten(self.settings()), _flatten(tree)
        for key in sorted(before.keys() | now.keys()):
            if before.get(key) != now.get(key) and key.split(".")[0] not in may_change:
                self.close()
                was = f"{key}={before.get(key)}, not {now.get(key)}"
                *parents, name = key.split(".")
                if name == "fingerprint" and key in before:
                    was = "another model: its weights or its vocabulary are not the same"
                elif name == "sha256" and key in before:
                    was = f"other rows for {'.'.join(parents)}"
                raise TrainingError(
                    f"the run was begun with {was}",
                    where=str(self.path),
                    fix="Go on with the same settings, or give another directory.",
                )


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


def write_atomically(file: Path, content: bytes) -> None:
    """Replace a file's content, wholly or not at all.

    Raises:
        TrainingError: the disk is full or not writable.
    """
    temporary = file.with_name(f".{file.name}.new")
    try:
        with temporary.open("wb") as handle:
            handle.write(content)
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(file)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise TrainingError(f"cannot be written ({error.strerror})", where=str(file)) from None


def _others(directory: Path, known: set[str]) -> Iterator[Path]:
    """What lies in a directory under other names than these."""
    return (child for child in directory.iterdir() if child.name not in known)


def _json(line: Mapping[str, Any]) -> bytes:
    return (as_json(line) + "\n").encode()


def _read_lines(file: Path) -> Iterator[dict[str, Any]]:
    """Lines of a JSON Lines file; a last one that was cut short by a kill is left out."""
    if not file.exists():
        return
    with file.open("rb") as handle:
        for line in handle:
            if line.endswith(b"\n"):
                yield json.loads(line)


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
