"""The journal once more, for TensorBoard, where it is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..errors import OutputError


class TensorBoard:
    """Writes journal lines as TensorBoard events.

    Args:
        directory: where the events go.
        step: events after it, of a run that was killed, are no longer shown.
    """

    def __init__(self, directory: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._directory = directory
        self._writer = SummaryWriter(str(directory), purge_step=step + 1)

    @staticmethod
    def is_installed() -> bool:
        """Whether events can be written; `pip install "bertworks[plots]"` brings what is needed."""
        return importlib.util.find_spec("tensorboard") is not None

    def write(self, line: Mapping[str, Any]) -> None:
        """Add a line of the journal: its numbers, and those one level below.

        Raises:
            OutputError: the disk is full.
        """
        kind, step = line["kind"], line["step"]
        try:
            for name, value in line.items():
                if isinstance(value, Mapping):
                    for key, number in value.items():
                        self._add(f"{kind}/{name}/{key}", number, step)
                elif name not in ("kind", "step"):
                    self._add(f"{kind}/{name}", value, step)
        except OSError as error:
            raise OutputError(
                f"events cannot be written ({error.strerror})",
                where=str(self._directory),
                fix="Make room, or set tensorboard=false.",
            ) from None

    def close(self) -> None:
        """Write out what is still held back."""
        with suppress(OSError):  # the journal has it all
            self._writer.close()

    def _add(self, tag: str, value: Any, step: int) -> None:
        if isinstance(value, int | float):
            self._writer.add_scalar(tag, value, step)
