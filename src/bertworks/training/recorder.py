"""The records of a run: journal, sessions, TensorBoard events, and the progress line."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch

from ..errors import OutputError
from ..runs.run_directory import RunDirectory
from ..tasks.network import Network
from ..utils.progress import Progress, TimeLeft, say
from . import operations
from .settings import TrackerKind
from .stream import GlobalBatch
from .trackers import Tracking

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class Recorder:
    """Records one session of a run and shows its progress. Only rank 0 writes anything."""

    def __init__(
        self, run: RunDirectory, progress: Progress | None, network: Network, total: int
    ) -> None:
        self.run, self.progress = run, progress
        self._network, self._total = network, total
        self._events: SummaryWriter | None = None
        self._tracking: Tracking | None = None
        self._is_stopped = False
        self._meter, self._left = Meter(), TimeLeft()
        self._peak: float | None = None
        self._seconds = 0.0
        self._start = time.perf_counter()

    def begin(
        self,
        step: int,
        seconds: float,
        facts: Mapping[str, Any],
        *,
        events: bool,
        tracking: TrackerKind | None = None,
        peak: tuple[torch.dtype, torch.device],
    ) -> None:
        """Start the session.

        Args:
            step: the number of updates done before this session.
            seconds: the time of all earlier sessions.
            events: whether to write the journal also as TensorBoard events.
            tracking: the tracker to which its numbers are sent, too.
            peak: the precision and the device for which to measure the peak rate of matmuls.
        """
        self.run.log_session("start", step=step, **facts)
        if events and importlib.util.find_spec("tensorboard") is not None:
            from torch.utils.tensorboard import SummaryWriter

            # Hides later events of a killed run: these steps are done again.
            self._events = SummaryWriter(str(self.run.tensorboard), purge_step=step + 1)
        elif events:
            self.run.log_session("note", text="no TensorBoard events: TensorBoard is not installed")
        if tracking is not None:
            self._tracking = Tracking(tracking, self.run, self._report)
        if self.progress is not None:
            self._peak = operations.matmul_peak(*peak)
        self._seconds = seconds
        self._start = time.perf_counter()

    @property
    def seconds(self) -> float:
        """The time of the run so far, over all sessions."""
        return self._seconds + time.perf_counter() - self._start

    def record_step(
        self, step: int, *, phase: str, loss: float, tokens: int, batch: GlobalBatch, seconds: float
    ) -> None:
        """Record a step.

        Args:
            tokens: number of tokens in the whole global batch.
            batch: this rank's share of the global batch.
            seconds: seconds of the step.
        """
        flops = 0.0
        if self._peak is not None:
            parts = batch.micro_batches
            flops = sum(operations.flops_of_batch(self._network, part) for part in parts)
        self._meter.add(tokens, flops, seconds)
        if self.progress is not None:
            self._left.update(step, self._total, seconds)
            self.progress.train(
                step,
                self._total,
                phase=phase,
                loss=loss,
                tokens_per_second=self._meter.tokens_per_second,
                seconds_left=self._left.seconds,
            )

    def write_train(self, line: Mapping[str, Any]) -> None:
        """Write a journal line about training."""
        clock: dict[str, float] = {
            "seconds": round(self.seconds, 3),
            "tokens_per_second": round(self._meter.tokens_per_second, 1),
        }
        share = self._peak_share()
        if share is not None:
            clock["peak_share"] = round(share, 4)
        self._write({"kind": "train", **line, "time": clock})

    def write_eval(self, step: int, tokens: int, metrics: Mapping[str, float]) -> None:
        """Write a journal line about an evaluation, and show it."""
        line = {"kind": "eval", "step": step, "tokens": tokens, "metrics": dict(metrics)}
        self._write({**line, "time": {"seconds": round(self.seconds, 3)}})
        if self.progress is not None:
            self.progress.show_metrics(step, metrics)

    def write_stop(self, step: int, why: str) -> None:
        """Write a journal line that says why the run ends before its last step, and show it."""
        self.run.write({"kind": "stop", "step": step, "why": why})
        self._is_stopped = True
        self.note(why)

    def note(self, text: str) -> None:
        """Show a permanent line."""
        say(self.progress, text)

    def _report(self, text: str) -> None:
        self.run.log_session("note", text=text)
        self.note(text)

    def end(self, step: int) -> None:
        """End the session, also after an error."""
        self.run.log_session("stop", step=step, seconds=round(self.seconds, 3))
        if self._tracking is not None:
            self._tracking.close(is_finished=self._is_stopped or step == self._total)
        if self._events is not None:
            with suppress(OSError):  # the journal contains everything
                self._events.close()
        if self.progress is not None:
            self.progress.close()

    def _write(self, line: Mapping[str, Any]) -> None:
        self.run.write(line)
        if self._events is None and self._tracking is None:
            return
        kind, step = line["kind"], line["step"]
        numbers = {f"{kind}/{name}": value for name, value in line.items() if name != "step"}
        for name, value in line.items():
            if isinstance(value, Mapping):  # one level deep
                numbers |= {f"{kind}/{name}/{key}": number for key, number in value.items()}
        numbers = {tag: one for tag, one in numbers.items() if isinstance(one, int | float)}
        if self._tracking is not None:
            self._tracking.log(numbers, step)
        if self._events is None:
            return
        try:
            for tag, number in numbers.items():
                self._events.add_scalar(tag, number, step)
        except OSError as error:
            raise OutputError(
                f"events cannot be written ({error.strerror})",
                where=str(self.run.tensorboard),
                fix="Make room, or set tensorboard=false.",
            ) from None

    def _peak_share(self) -> float | None:
        """The steps' rate of operations as a share of the highest rate measured so far.

        On a busy machine, the peak measured at the start may be lower than the rate of later steps;
        then that rate becomes the peak.
        """
        flops = self._meter.flops_per_second  # 0 if the network's operations cannot be counted
        if not self._peak or not flops:
            return None
        self._peak = max(self._peak, flops)
        return flops / self._peak


class Meter:
    """Tokens and operations per second of the training steps, averaged over about 20 s."""

    def __init__(self) -> None:
        self._tokens = self._flops = self._seconds = 0.0

    def add(self, tokens: int, flops: float, seconds: float) -> None:
        """Add a step."""
        fade = 0.5 ** (seconds / 10)
        self._tokens = fade * self._tokens + tokens
        self._flops = fade * self._flops + flops
        self._seconds = fade * self._seconds + seconds

    @property
    def tokens_per_second(self) -> float:
        return self._tokens / max(self._seconds, 1e-9)

    @property
    def flops_per_second(self) -> float:
        return self._flops / max(self._seconds, 1e-9)
