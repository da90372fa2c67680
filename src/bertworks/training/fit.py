"""The training loop of all tasks.

A run is a sequence of phases, each a source of examples and a number of steps. A step is one update
of the weights:

    unfreeze the parameters whose training starts now                         freezing.py
    take the next global batch, this rank's share of it, in micro-batches     stream.py
    sum the batch's counts (masked tokens, rows) over micro-batches and ranks
    for each micro-batch: loss = Σ over losses of  sum / total count; backward
    sum the gradients over ranks, and clip them to a norm of `max_grad_norm`
    in float16, if the gradients overflowed: compute them again                loss_scaling.py
    stop if the loss or the norm is not finite: the weights are still unchanged
    optimizer step at this step's learning rate                               optimizer.py
    at intervals: a line in the journal, an evaluation, a checkpoint          recorder.py, state.py

The next step depends only on the weights, the optimizer, the random states and `TrainState`. A
checkpoint contains all of them: a killed run resumes and computes the same bits.
"""

from __future__ import annotations

import gc
import math
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch

from ..errors import TrainingError
from ..nn.cpu import keep_freed_memory
from ..nn.device import autocast_to, dtype_of, is_finite, tf32_products
from ..runs.run_directory import RunDirectory
from ..tasks.best_metric import BestMetric
from ..tasks.network import Network
from ..tasks.task import Task
from ..utils.progress import Progress
from . import machine, sharding
from .checkpoint import save_weights
from .distributed import ProcessGroup, check_can_split, process_group
from .freezing import frozen_parameters, unfreeze
from .loss_scaling import LossScale
from .optimizer import Average, build_optimizer, clip_gradients, set_step
from .plan import Phase, Plan, batch_of
from .precision import activation_checkpointing, cuda_graphs, determinism
from .prefetch import prefetch
from .random_state import unchanged_random_state
from .recorder import Recorder
from .settings import FitSettings
from .signals import RunInterrupted, StopRequest, stop_request
from .state import Checkpointer, FitResult, TrainState
from .stream import GlobalBatch, Position, stream

Evaluate = Callable[[Network], Mapping[str, float]]
"""Evaluates a network, in evaluation mode and without gradients, and returns its metrics.

Every rank calls it; the result of rank 0 is used."""


def fit(
    network: Network,
    task: Task[Any],
    phases: Sequence[Phase],
    *,
    settings: FitSettings,
    run: RunDirectory,
    evaluate: Evaluate | None = None,
    best: BestMetric | None = None,
    device: torch.device | str = "auto",
    progress: Progress | None = None,
) -> FitResult:
    """Train a network in place; resume from the run's newest checkpoint if there is one.

    Args:
        network: newly initialised with `settings.seed`, or with loaded weights. When a run is
            resumed, pass the same (the checkpoint's weights then replace its weights).
        phases: the phases of the run, in order.
        evaluate: called every `eval_every` steps and at the end, by every rank.
        best: the metric of `evaluate` that selects the best weights; they are saved as
            `run.best_weights(result.state.best_step)`.
        device: device to train on; under `torchrun`, "cuda" is the rank's GPU.

    Raises:
        TrainingError: a loss, gradient or weight is not finite; or another process has ended, or
            hangs.
        OutputError: the disk is full.
        RunInterrupted: SIGTERM or Ctrl-C was received; the run is saved and can be resumed.
        CheckpointError: there are checkpoints, but all are damaged or belong to another network.
        SettingsError: batches would be split, but the task's losses cannot be summed over parts
            of a batch.
    """
    with ExitStack() as stack:
        group = stack.enter_context(process_group(device, settings.rank_timeout))
        check_can_split(task, settings, group)
        stack.enter_context(determinism(settings.deterministic))
        keep_freed_memory(of_any_size=True)
        dtype = dtype_of(settings.precision, group.device)
        stack.enter_context(tf32_products(settings.precision == "tf32"))
        unfreeze_steps = stack.enter_context(frozen_parameters(network, settings))
        if settings.sharding == "full" and group.world > 1:
            sharding.check_can_shard(settings)
            trained_network = sharding.shard(network.to("cpu"), group.device, group.world)
        else:
            trained_network = network.to(group.device)
        stack.enter_context(autocast_to(trained_network, dtype))
        stack.enter_context(
            activation_checkpointing(trained_network, settings.gradient_checkpointing)
        )
        has_graphs = settings.cuda_graphs and group.device.type == "cuda" and group.world == 1
        stack.enter_context(cuda_graphs(trained_network, has_graphs))
        recorder = Recorder(run, progress, trained_network, sum(phase.steps for phase in phases))
        loop = _Loop(
            whole=network,
            network=trained_network,
            task=task,
            phases=phases,
            settings=settings,
            dtype=dtype or torch.float32,
            group=group,
            recorder=recorder,
            unfreeze_steps=unfreeze_steps,
            evaluate=evaluate,
            best=best,
        )
        resumed_step = loop.start_or_resume()
        # Objects that exist now live until the run ends: the garbage collector can skip them.
        gc.collect()
        gc.freeze()
        stack.callback(gc.unfreeze)
        stack.callback(lambda: recorder.end(loop.state.step))
        loop.train(stack.enter_context(stop_request()))
        loop.average.apply()
        loop.gather_full_weights()
        return FitResult(loop.state, resumed_step)


@dataclass(eq=False)
class _Loop:
    """One session of a run."""

    whole: Network  # the network that is evaluated and saved
    network: Network  # the network that is trained: the same, or a sharded copy
    task: Task[Any]
    phases: Sequence[Phase]
    settings: FitSettings
    dtype: torch.dtype
    group: ProcessGroup
    recorder: Recorder
    unfreeze_steps: Mapping[torch.Tensor, int]  # first update of parameters unfrozen later
    evaluate: Evaluate | None
    best: BestMetric | None
    state: TrainState = field(default_factory=TrainState)
    saved_step: int = -1
    is_over: bool = False

    def __post_init__(self) -> None:
        self.run, device = self.recorder.run, self.group.device
        self.plan = Plan.from_phases(self.phases, self.settings)
        self.total = self.plan.total
        steps = (step for step in self.unfreeze_steps.values() if step < self.total)
        self.last_unfreeze_step = max(steps, default=0)  # early stopping waits for it
        self.parameters = [p for p in self.network.parameters() if p.requires_grad]
        self.optimizer = build_optimizer(self.network, self.settings, self.unfreeze_steps)
        self.average = Average(self.optimizer, self.settings.ema)
        self.model = self.group.wrap(self.network)
        self.is_sharded = sharding.is_sharded(self.network)
        rounding = ", TF32 products" if self.settings.precision == "tf32" else ""
        self.facts = {
            **machine.describe(device),
            "processes": self.group.world,
            "sharding": "full" if self.is_sharded else "none",
            "computes in": str(self.dtype).removeprefix("torch.") + rounding,
        }
        keep = self.settings.keep_checkpoints
        self.checkpointer = Checkpointer(
            self.run, self.network, self.optimizer, self.group, self.facts, self.plan, keep
        )

    def start_or_resume(self) -> int | None:
        """Start the run, or resume it from the newest checkpoint; return that checkpoint's step."""
        state = self.checkpointer.resume(self.settings.seed)
        if state is not None:
            self.state, self.saved_step = state, state.step
        is_half = self.dtype is torch.float16
        self.state.loss_scale = (self.state.loss_scale or LossScale()) if is_half else None
        self.recorder.begin(
            self.state.step,
            self.state.seconds,
            self.facts,
            events=self.settings.tensorboard and self.group.is_main,
            tracking=self.settings.tracking if self.group.is_main else None,
            peak=(self.dtype, self.group.device),
        )
        if (why := self.early_stop()) is not None:
            self.is_over = True
            self.recorder.note(why)
        return None if state is None else state.step

    def train(self, request: StopRequest) -> None:
        """Train for all remaining steps."""
        self.network.train()
        if self.saved_step < 0 and self.settings.eval_first:
            self.run_evaluation()
        end = 0
        for number, phase in enumerate(self.phases):
            end += phase.steps
            if self.state.step >= end or self.is_over:
                continue
            if self.state.phase != number:
                self.state.phase, self.state.position = number, Position()
            batches = stream(
                phase.source,
                self.task.collate,
                batch_of(phase, self.settings),
                self.state.position,
                rank=self.group.rank,
                world=self.group.world,
                workers=self.settings.loader_workers,
            )
            if self.group.device.type == "cuda":
                batches = prefetch(batches)
            with closing(batches):
                while self.state.step < end and not self.is_over:
                    self.record(self.update(batches, request))

    def update(self, batches: Iterator[GlobalBatch], request: StopRequest) -> float:
        """Update the weights once, and return the learning rate of the update."""
        start = time.perf_counter()
        if self.unfreeze_steps:
            unfreeze(self.unfreeze_steps, self.state.step)
        self.group.report_activity(f"the data of step {self.state.step + 1}")
        batch = next(batches)
        self.group.report_activity(f"the computation of step {self.state.step + 1}")
        sizes = {"tokens": batch.num_tokens, "examples": batch.num_examples}
        stop = {"stop": request.signal_number}
        counts = {f"loss/{name}": count for name, count in batch.counts.items()}
        totals = self.group.sum_counts({**sizes, **stop, **counts})
        if totals["stop"]:
            self.stop(request.signal_number or signal.SIGTERM)
        loss, losses, grad_norm = self.finite_gradients(batch, totals)
        lr = set_step(self.optimizer, self.settings, self.state.step, self.total)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

        state = self.state
        state.step, state.position = state.step + 1, batch.end
        self.average.update(state.step)
        if state.loss_scale is not None:
            state.loss_scale.grow()
        state.tokens += totals["tokens"]
        state.examples += totals["examples"]
        for name, value in {"loss": loss, "grad_norm": grad_norm, "steps": 1, **losses}.items():
            state.recent[name] = state.recent.get(name, 0) + value
        self.recorder.record_step(
            state.step,
            phase=self.phases[state.phase].name,
            loss=loss,
            tokens=totals["tokens"],
            batch=batch,
            seconds=time.perf_counter() - start,
        )
        return lr

    def record(self, lr: float) -> None:
        """Write the journal line, evaluation and checkpoint that are due after an update."""
        state, settings = self.state, self.settings
        is_last = state.step == self.total
        is_evaluated = is_last or state.step % settings.eval_every == 0
        is_saved = (
            is_last
            or state.step % settings.checkpoint_every == 0
            or state.step == self.plan.decay_start
        )
        if is_last or state.step % settings.log_every == 0:
            self.log(lr)
        if is_evaluated or is_saved:
            self.check_weights()
        if is_evaluated:
            self.run_evaluation()
            if (why := self.early_stop()) is not None:
                self.is_over = True
                if state.recent:
                    self.log(lr)
                self.recorder.write_stop(state.step, why)
        if is_saved or self.is_over:
            self.save()

    def finite_gradients(
        self, batch: GlobalBatch, totals: Mapping[str, int]
    ) -> tuple[float, dict[str, float], float]:
        """Do as `gradients`; in float16, again with a smaller scale while gradients overflow."""
        scale = self.state.loss_scale
        while True:
            loss, losses, grad_norm = self.gradients(batch, totals)
            if math.isfinite(loss + grad_norm):
                return loss, losses, grad_norm
            if scale is None or not math.isfinite(loss) or not scale.shrink():
                self.raise_non_finite(batch, "gradient" if math.isfinite(loss) else "loss")
            self.optimizer.zero_grad(set_to_none=True)

    def gradients(
        self, batch: GlobalBatch, totals: Mapping[str, int]
    ) -> tuple[float, dict[str, float], float]:
        """Compute the clipped gradients of the global batch; return loss, part losses and norm."""
        scale = 1.0 if self.state.loss_scale is None else self.state.loss_scale.value
        self.network.num_updates = self.state.step
        sums: dict[str, torch.Tensor] = {}
        rounds = batch.rounds if self.is_sharded else len(batch.micro_batches)
        for number in range(1, rounds + 1):
            # All ranks must gather the layers of a sharded network together: a rank that has no
            # micro-batch left computes its last one again, and the result is not counted.
            is_counted = number <= len(batch.micro_batches)
            micro_batch = batch.micro_batches[number - 1 if is_counted else -1]
            is_last = number == len(batch.micro_batches)
            with self.group.backward_context(self.model, is_last=is_last):
                losses = self.model(micro_batch.to(self.group.device))
                assert losses.keys() == micro_batch.counts.keys(), "a count for each loss"
                means = {
                    name: losses[name] * is_counted / max(1, totals[f"loss/{name}"])
                    for name in losses
                }
                # The process group averages gradients over ranks; the update needs their sum.
                (sum(means.values()) * (self.group.world * scale)).backward()
            for name, mean in means.items():
                sums[f"loss/{name}"] = sums.get(f"loss/{name}", 0) + mean.detach()
        values = self.group.sum_tensor(torch.stack(list(sums.values())))
        if scale != 1:
            gradients = [one.grad for one in self.parameters if one.grad is not None]
            torch._foreach_mul_(gradients, 1 / scale)
        norm = clip_gradients(self.parameters, self.settings.max_grad_norm)
        norm = sharding.full_tensor(norm) if self.is_sharded else norm
        *parts, grad_norm = torch.cat((values, norm[None])).tolist()  # waits for the device, once
        return sum(parts), dict(zip(sums, parts, strict=True)), grad_norm

    def log(self, lr: float) -> None:
        """Write a journal line: means over the steps since the last line."""
        steps = self.state.recent.pop("steps")
        means = {name: value / steps for name, value in self.state.recent.items()}
        self.state.recent = {}
        scale = self.state.loss_scale
        scaling = scale and {"loss_scale": scale.value, "overflows": scale.num_overflows}
        self.recorder.write_train(
            {
                "step": self.state.step,
                "phase": self.phases[self.state.phase].name,
                "epoch": self.state.position.epoch,
                "loss": means.pop("loss"),
                "grad_norm": means.pop("grad_norm"),
                "losses": {name.removeprefix("loss/"): mean for name, mean in means.items()},
                "lr": lr,
                "tokens": self.state.tokens,
                "examples": self.state.examples,
                **(scaling or {}),
            }
        )

    def run_evaluation(self) -> None:
        """Evaluate, and save the weights if they are the best; random states do not change."""
        if self.evaluate is None:
            return
        state = self.state
        self.group.report_activity(f"the evaluation after step {state.step}")
        with torch.no_grad(), self.average.in_place():
            self.gather_full_weights()
            self.whole.to(self.group.device)
            with unchanged_random_state(self.group.device):
                self.whole.eval()
                state.metrics = self.group.gather(dict(self.evaluate(self.whole)))[0]
                self.whole.train()
            if self.whole is not self.network:  # it must not take the device's memory in training
                self.whole.to("cpu")
            self.recorder.write_eval(state.step, state.tokens, state.metrics)
            if self.best is None:
                return
            value = state.metrics[self.best.metric]
            if self.best.is_better(value, state.best_value):
                state.best_step, state.best_value = state.step, value
                if self.group.is_main:
                    state.best_sha256 = save_weights(self.run.best_weights(state.step), self.whole)

    def gather_full_weights(self) -> None:
        """Copy the trained weights to the whole network if it is sharded for training."""
        if self.whole is not self.network:
            sharding.gather_full_weights(self.network, self.whole.to("cpu"))

    def early_stop(self) -> str | None:
        """Return why the run stops early: its metric has not improved for too long; None if not.

        Every rank has the same metrics, so all ranks decide alike.
        """
        state, best, every = self.state, self.best, self.settings.eval_every
        if best is None or best.patience is None or state.best_step is None:
            return None
        num_evaluations = state.step // every
        reference_step = max(state.best_step, self.last_unfreeze_step)
        if num_evaluations - reference_step // every < best.patience or state.step >= self.total:
            return None
        return (
            f"stopped early after step {state.step} of {self.total}: {best.metric} was best at "
            f"step {state.best_step}, and no better in "
            f"{num_evaluations - state.best_step // every} evaluations since"
        )

    def save(self) -> None:
        """Save a checkpoint, unless the newest one is of this step."""
        if self.saved_step == self.state.step:
            return
        self.state.seconds = self.recorder.seconds
        self.group.report_activity(f"the checkpoint of step {self.state.step}")
        self.checkpointer.save(self.state)
        self.saved_step = self.state.step

    def stop(self, signal_number: int) -> None:
        """Save a checkpoint and raise `RunInterrupted`."""
        self.check_weights()
        self.save()
        raise RunInterrupted(
            f"stopped after step {self.state.step} of {self.total} "
            "(saved; the same command resumes)",
            signal_number=signal_number,
        )

    def check_weights(self) -> None:
        """Raise `TrainingError` if weights are not finite, before they are evaluated or saved."""
        bad = not all(is_finite(sharding.local_tensor(parameter)) for parameter in self.parameters)
        if self.group.sum_counts({"bad": bad})["bad"]:
            raise TrainingError(
                f"the weights are not finite after step {self.state.step}",
                fix="Lower the learning rate, in a new run directory; the last checkpoint is "
                "untouched.",
            )

    def raise_non_finite(self, batch: GlobalBatch, what: str) -> NoReturn:
        """Raise `TrainingError` for a value that is not finite, before it changes the weights."""
        phase = self.phases[self.state.phase].name
        is_half = self.dtype is torch.float16
        precision = ", or train with precision=fp32 (float16 ends at 65,504)" if is_half else ""
        raise TrainingError(
            f"the {what} of step {self.state.step + 1} is not finite; "
            f"its batch begins at {batch.start} of phase {phase!r}",
            fix=f"Look at that data, or lower the learning rate{precision}; the last checkpoint is "
            "untouched.",
        )
