"""Estimate a pre-training run before it starts: parameters, memory, operations, hours.

Nothing is trained. The network has only shapes (on PyTorch's device "meta"): a forward pass there
shows which tensors autograd keeps, and `operations.flops_of_batch` counts the operations of a step.
Every sequence is assumed to have full length.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import nn

from ..checkpoints.locate import locate_transformer
from ..data.manifest import Manifest
from ..nn.device import autocast_to, dtype_of, pick_device, without_weights
from ..packed import Batch
from ..settings.base import REQUIRED
from ..settings.yaml_values import read_yaml
from ..tasks.pretraining.source import PretrainingExample
from ..text.definition import ORIGINAL_SPECIAL_PIECES
from ..text.tokenizer import Tokenizer
from ..training import operations
from ..training.freezing import frozen_parameters
from ..training.objective import Objective, with_geometry
from ..training.optimizer import build_optimizer
from ..training.plan import batch_of
from ..training.precision import activation_checkpointing
from ..training.recipe import PhaseSettings, PretrainSettings, find_recipe, read_recipe
from .machines import Machine, find_machine
from .step_memory import ShardedMemory, activation_bytes

PAPER_DAYS, PAPER_CHIPS = 4, {"base": 16, "large": 64}
"""The paper's runs (§A.2): days, and TPU chips by size."""

PAPER_FLOPS = {"base": 2.37835212816384e19, "large": 8.15086084030464e19}
"""Their operations, counted as for `Estimate.flops`."""

_MEASURED_TOKENS = 4096  # of a measured micro-batch, at most


_MIN_STEP_SECONDS = 0.05
"""Below it, what is not counted takes longer: an update starts thousands of kernels, 5 µs each."""

_DEVICES_OF_A_MACHINE = 8


@dataclass(frozen=True)
class Estimate:
    """The estimated cost of a run.

    Attributes:
        parameters, num_trained: number of all parameters, and of the trainable ones.
        memory: bytes on one device, by part: weights, gradients, optimizer, activations, workspace;
            without the memory of Python and PyTorch. Real runs took from 7 % less to 5 % more.
        batch: tokens of the largest micro-batch on one device.
        tokens: of the whole run.
        flops: operations of the whole run.
        machine: the machine of the estimate.
        flops_per_second: operations per second that training reaches on all devices together.
        share: share of the machine's peak that training reaches, assumed or measured.
        tolerance: share by which the memory may differ from that of a run.
        steps: updates of the whole run.
    """

    parameters: int
    num_trained: int
    memory: Mapping[str, int]
    batch: int
    tokens: int
    flops: float
    machine: Machine
    flops_per_second: float
    share: float
    tolerance: float
    steps: int

    @property
    def caveats(self) -> list[str]:
        """What is not counted, and may take longer than what is; a sentence for each."""
        step_seconds, devices = self.seconds / self.steps, self.machine.devices
        texts = []
        if step_seconds < _MIN_STEP_SECONDS and self.machine.name != "here":
            texts.append(
                f"An update would take {1000 * step_seconds:.2g} ms. Starting kernels, making "
                "batches and exchanging gradients are not counted, and take longer: expect a "
                "fraction of this speed."
            )
        elif devices > 1:
            texts.append("The exchange of gradients between devices is not counted.")
        if devices > _DEVICES_OF_A_MACHINE:
            texts.append(f"{devices:,} devices are several machines: their network decides.")
        return texts

    @property
    def seconds(self) -> float:
        return self.flops / self.flops_per_second

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds


def estimate(
    recipe: str | Path | None,
    overrides: Sequence[str] = (),
    *,
    machine: str = "here",
    share: float | None = None,
    device: torch.device | str = "auto",
    seconds: float = 10.0,
) -> Estimate:
    """Estimate the cost of a pre-training run.

    Args:
        recipe, overrides: as in `pretrain`. Without `data`, the vocabulary has `model.vocab_size`
            pieces.
        machine: a name of `machines.MACHINES`, optionally with a number of devices (`h100x8`);
            "here" measures a few steps on this machine.
        share: share of the peak that training reaches; the machine's usual one if omitted.
        device: device for "here".
        seconds: minimum time that "here" measures.

    Raises:
        SettingsError: the recipe or the machine is unknown.
    """
    settings, target = _settings(recipe, overrides), find_machine(machine, share)
    objective = _objective(settings, on_meta=True)
    network = objective.network
    computes_in = None if settings.precision in ("fp32", "tf32") else torch.bfloat16
    if target is None:
        computes_in = dtype_of(settings.precision, pick_device(device))
    devices = 1 if target is None else target.devices
    with frozen_parameters(network, settings):
        num_trained = sum(p.numel() for p in network.parameters() if p.requires_grad)
        sharded = None
        if settings.sharding == "full" and devices > 1:
            sharded = ShardedMemory.from_network(network)
        work = _Work.of_run(objective, settings, devices, computes_in)
    parameters = sum(p.numel() for p in network.parameters())
    name = "fp32" if computes_in is None else "bf16"
    if target is None:
        rate, peak = _measure_speed(settings, pick_device(device), computes_in, seconds)
        target = Machine("here", {name: peak}, 0, rate / peak)
    else:
        if settings.gradient_checkpointing:
            target = replace(target, share=target.share * 3 / 4)  # one more forward pass
        rate = target.peak[name] * target.share * devices * work.balance
    memory = {
        "weights": 4 * parameters,
        # Several processes exchange gradients through buffers of the same size.
        "gradients": 4 * num_trained * (1 if devices == 1 else 2),
        "optimizer": 4 * num_trained * (2 if settings.ema is None else 3),
        "activations": round(work.activations),
        # A layer's backward pass temporarily needs about as much memory again.
        "workspace": round(work.workspace),
    }
    if sharded is not None:
        memory = sharded.of_process(memory, devices, on_cpu=target.name.startswith("cpu"))
    return Estimate(
        parameters=parameters,
        num_trained=num_trained,
        memory=memory,
        batch=work.largest_batch,
        tokens=work.tokens,
        flops=work.flops,
        machine=target,
        flops_per_second=rate,
        share=target.share,
        tolerance=0.15 if sharded is None else 0.2,
        steps=sum(settings.phase_steps()),
    )


@dataclass
class _Work:
    """What the steps of a run compute, and what the largest of them keep in memory."""

    tokens: int = 0
    flops: float = 0.0
    waited_flops: float = 0.0  # as if each device had the most sequences that one has
    largest_batch: int = 0  # tokens of a micro-batch
    activations: float = 0.0  # bytes
    workspace: float = 0.0  # bytes

    @classmethod
    def of_run(
        cls,
        objective: Objective,
        settings: PretrainSettings,
        devices: int,
        dtype: torch.dtype | None,
    ) -> Self:
        total = cls()
        for phase, steps in zip(settings.phases, settings.phase_steps(), strict=True):
            step_tokens = _step_tokens(phase, settings)
            num_sequences = _num_sequences(phase, settings, -(-step_tokens // devices))
            batch = _batch(objective, settings, phase, num_sequences)
            activations, layer = activation_bytes(objective, settings, batch, dtype)
            total.activations = max(total.activations, activations)
            total.workspace = max(total.workspace, layer)
            total.largest_batch = max(total.largest_batch, batch.packed.num_tokens)
            flops = operations.flops_of_batch(objective.network, batch) / batch.packed.num_tokens
            most = -(-(step_tokens // phase.max_seq_length) // devices) * phase.max_seq_length
            total.tokens += step_tokens * steps
            total.flops += flops * step_tokens * steps
            total.waited_flops += flops * max(step_tokens, most * devices) * steps
        return total

    @property
    def balance(self) -> float:
        """The share of time that devices compute: they wait for the one with most sequences."""
        return self.flops / self.waited_flops if self.waited_flops else 1.0  # 0: no encoder


def _settings(recipe: str | Path | None, overrides: Sequence[str]) -> PretrainSettings:
    in_file = {} if recipe is None else read_yaml(find_recipe(recipe))
    has_data = in_file.get("data", REQUIRED) != REQUIRED
    has_data = has_data or any(word.startswith("data=") for word in overrides)
    no_data = [] if has_data else ["data=''"]
    return with_geometry(read_recipe(recipe, [*no_data, *overrides]))


def _objective(settings: PretrainSettings, *, on_meta: bool) -> Objective:
    """Return the recipe's objective for a synthetic vocabulary.

    The vocabulary has the size of the corpus's, or `model.vocab_size` pieces without a corpus. With
    a teacher, it is the teacher's.
    """
    teacher = None if settings.distillation is None else settings.distillation.teacher
    if teacher is not None:
        tokenizer = Tokenizer.load(locate_transformer(teacher))
    else:
        size = settings.model.vocab_size
        if settings.data:
            size = Manifest.read(Path(settings.data)).vocabulary_size
        special = ORIGINAL_SPECIAL_PIECES
        made_up = [*special, *(f"piece{number}" for number in range(size - len(special)))]
        tokenizer = Tokenizer.from_vocabulary(made_up)
    # A teacher's weights are read from its files.
    with without_weights() if on_meta and teacher is None else nullcontext():
        objective = Objective.from_settings(settings, tokenizer, None)
    if on_meta:
        _drop_weights(objective.network)
    return objective


def _drop_weights(network: nn.Module) -> None:
    """Move a network to the device "meta"; tied tensors stay tied, unlike with `network.to`."""
    meta_tensors: dict[Any, Any] = {}
    for module in network.modules():
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is None:
                    continue
                if tensor not in meta_tensors:
                    shape = tensor.detach().to("meta")
                    is_parameter = isinstance(tensor, nn.Parameter)
                    meta_tensors[tensor] = (
                        nn.Parameter(shape, tensor.requires_grad) if is_parameter else shape
                    )
                tensors[name] = meta_tensors[tensor]


def _step_tokens(phase: PhaseSettings, settings: PretrainSettings) -> int:
    """Return the number of tokens of an update."""
    size = batch_of(phase, settings)
    if size.tokens is not None:
        return size.tokens
    assert size.examples is not None, "one of the two"
    return size.examples * phase.max_seq_length


def _num_sequences(phase: PhaseSettings, settings: PretrainSettings, tokens: int) -> int:
    """Return the number of sequences in a micro-batch on one device.

    Args:
        tokens: the device's share of an update.
    """
    length = phase.max_seq_length
    most = min(tokens, settings.micro_batch_tokens or tokens) // length
    return max(1, min(most, settings.micro_batch_size or most))


def _batch(
    objective: Objective, settings: PretrainSettings, phase: PhaseSettings, sequences: int
) -> Batch:
    """Return a micro-batch of full-length sequences of random tokens."""
    tokenizer, length = objective.models["model"].tokenizer, phase.max_seq_length
    draw = np.random.default_rng(0)
    first = len(ORIGINAL_SPECIAL_PIECES)
    examples = []
    for number in range(sequences):
        ids = draw.integers(first, max(first + 1, tokenizer.vocab_size), length)
        ids[[0, -1]] = tokenizer.cls_id, tokenizer.sep_id
        is_pair = settings.instances.next_sentence
        examples.append(
            PretrainingExample(
                ids,
                length // 2 if is_pair else length,
                number % 2 if is_pair else None,
                number,
                continues_unit=np.zeros(length, np.bool_),
            )
        )
    return objective.task.collate(examples)


def _measure_speed(
    settings: PretrainSettings, device: torch.device, dtype: torch.dtype | None, seconds: float
) -> tuple[float, float]:
    """Measure the operations per second of updates, and of large matrix products, here."""
    objective, phase = _objective(settings, on_meta=False), settings.phases[0]
    network = objective.network.to(device).train()
    step_tokens = _step_tokens(phase, settings)
    num_sequences = _num_sequences(phase, settings, min(step_tokens, _MEASURED_TOKENS))
    batch = _batch(objective, settings, phase, num_sequences).to(device)
    flops = operations.flops_of_batch(network, batch)
    micro_batches = step_tokens / batch.packed.num_tokens
    with (
        frozen_parameters(network, settings),
        autocast_to(network, dtype),
        activation_checkpointing(network, settings.gradient_checkpointing),
    ):
        optimizer = build_optimizer(network, settings)

        def backward() -> None:
            losses: dict[str, Any] = network(batch)
            torch.autograd.backward(torch.stack(list(losses.values())).sum())

        backward()
        optimizer.step()  # the first step allocates the state: not timed
        each = _time_of(backward, device, seconds)
        each += _time_of(optimizer.step, device, 0) / micro_batches
    return flops / each, operations.matmul_peak(dtype or torch.float32, device)


def _time_of(work: Any, device: torch.device, seconds: float) -> float:
    """Return the time of a call in seconds: the median of three calls or more."""
    times: list[float] = []
    while len(times) < 3 or sum(times) < seconds:
        operations.synchronize(device)
        start = time.perf_counter()
        work()
        operations.synchronize(device)
        times.append(time.perf_counter() - start)
    return float(np.median(times))
