"""Estimate a pre-training run before it starts: parameters, memory, operations, hours.

Nothing is trained. The network has only shapes (on PyTorch's device "meta"): a forward pass there
shows which tensors autograd keeps, and `operations.flops_of_batch` counts the operations of a step.
Every sequence is assumed to have full length.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import nn

from ..checkpoints.locate import locate_transformer
from ..data.manifest import Manifest
from ..errors import SettingsError
from ..nn.device import autocast_to, dtype_of, pick_device, without_weights
from ..nn.encoder import Encoder
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

PAPER_DAYS, PAPER_CHIPS = 4, {"base": 16, "large": 64}
"""The paper's runs (§A.2): days, and TPU chips by size."""

_MEASURED_TOKENS = 4096  # of a measured micro-batch, at most


@dataclass(frozen=True)
class Machine:
    """A machine for which a run is estimated."""

    name: str  # as the user gives it
    # operations per second of dense matrix products on one device, by precision, as the
    # manufacturer states them
    peak: Mapping[str, float]
    memory: float  # bytes of one device; 0 if unknown
    share: float  # of the peak that training reaches; assumed, but for cpu2
    devices: int = 1


MACHINES = {
    one.name: one
    for one in (
        Machine("h200", {"bf16": 989e12, "fp32": 67e12}, 141e9, 0.4),
        Machine("h100", {"bf16": 989e12, "fp32": 67e12}, 80e9, 0.4),
        Machine("a100", {"bf16": 312e12, "fp32": 19.5e12}, 80e9, 0.4),
        Machine("l4", {"bf16": 121e12, "fp32": 30.3e12}, 24e9, 0.4),
        # Two cores of AMD's Zen 4; peak and share measured (docs/scale.md).
        Machine("cpu2", {"bf16": 440e9, "fp32": 207e9}, 0, 0.5),
    )
}


_MIN_STEP_SECONDS = 0.05
"""Below it, what is not counted takes longer: an update starts thousands of kernels, 5 µs each."""

_DEVICES_OF_A_MACHINE = 8


@dataclass(frozen=True)
class Estimate:
    """The estimated cost of a run.

    Attributes:
        parameters, trained: number of all parameters, and of the trainable ones.
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
        machine: a name of `MACHINES`, optionally with a number of devices (`h100x8`); "here"
            measures a few steps on this machine.
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
            sharded = _ShardedMemory.from_network(network)
    parameters = sum(p.numel() for p in network.parameters())
    activations = workspace = flops = 0.0
    computed_flops = 0.0  # as if each device had the most sequences that one has
    tokens = largest = 0
    for phase, steps in zip(settings.phases, settings.phase_steps(), strict=True):
        step_tokens = _step_tokens(phase, settings)
        num_sequences = _num_sequences(phase, settings, -(-step_tokens // devices))
        batch = _batch(objective, settings, phase, num_sequences)
        kept, layer = _activation_bytes(objective, settings, batch, computes_in)
        activations, workspace = max(activations, kept), max(workspace, layer)
        each = operations.flops_of_batch(network, batch) / batch.packed.num_tokens
        flops += each * step_tokens * steps
        most = -(-(step_tokens // phase.max_seq_length) // devices) * phase.max_seq_length
        computed_flops += each * max(step_tokens, most * devices) * steps
        tokens += step_tokens * steps
        largest = max(largest, batch.packed.num_tokens)
    if settings.gradient_checkpointing and target is not None:
        target = replace(target, share=target.share * 3 / 4)  # one more forward pass
    if target is None:
        rate, peak = _measure_speed(settings, pick_device(device), computes_in, seconds)
        name = "fp32" if computes_in is None else "bf16"
        target = Machine("here", {name: peak}, 0, rate / peak)
    else:
        rate = target.peak["fp32" if computes_in is None else "bf16"] * target.share * devices
        if computed_flops:  # of an encoder; devices wait for the one with the most sequences
            rate *= flops / computed_flops
    memory = {
        "weights": 4 * parameters,
        # Several processes exchange gradients through buffers of the same size.
        "gradients": 4 * num_trained * (1 if devices == 1 else 2),
        "optimizer": 4 * num_trained * (2 if settings.ema is None else 3),
        "activations": round(activations),
        # A layer's backward pass temporarily needs about as much memory again.
        "workspace": round(workspace),
    }
    if sharded is not None:
        memory = sharded.of_process(memory, devices, on_cpu=target.name.startswith("cpu"))
    return Estimate(
        parameters=parameters,
        num_trained=num_trained,
        memory=memory,
        batch=largest,
        tokens=tokens,
        flops=flops,
        machine=target,
        flops_per_second=rate,
        share=target.share,
        tolerance=0.15 if sharded is None else 0.2,
        steps=sum(settings.phase_steps()),
    )


@dataclass(frozen=True)
class _ShardedMemory:
    """Bytes of the groups of parameters that processes gather together (see `sharding.shard`)."""

    all: int  # of all parameters
    rest: int  # of those outside the layers, whole during a forward and backward pass
    rest_trained: int  # of their gradients
    layer: int  # of the largest layer; two at most are whole at a time

    @classmethod
    def from_network(cls, network: nn.Module) -> Self:
        encoders = (module for module in network.modules() if isinstance(module, Encoder))
        layers = [set(layer.parameters()) for one in encoders for layer in one.layers]
        rest = set(network.parameters()).difference(*layers)
        trained = {parameter for parameter in rest if parameter.requires_grad}
        largest = max(map(_bytes, layers), default=0)
        return cls(_bytes(network.parameters()), _bytes(rest), _bytes(trained), largest)

    def of_process(
        self, memory: Mapping[str, int], devices: int, *, on_cpu: bool
    ) -> dict[str, int]:
        """Return the memory of a process of several, from that of an unsharded one.

        Args:
            on_cpu: whether the whole network, which waits in the host's memory, is in the same.
        """
        whole_weights = self.rest + 2 * self.layer
        whole_gradients = self.rest_trained + self.layer
        # Without activations there is room for the exchange of the rest's gradients, and in an
        # evaluation for the whole network.
        room = memory["activations"]
        evaluation_weights = 0 if on_cpu else self.all - whole_weights - whole_gradients
        return {
            **memory,
            "weights": -(-self.all // devices) + whole_weights + (self.all if on_cpu else 0),
            "gradients": -(-memory["gradients"] // (2 * devices)) + whole_gradients,
            "optimizer": -(-memory["optimizer"] // devices),
            "workspace": max(
                memory["workspace"], self.rest_trained - room, evaluation_weights - room
            ),
        }


def _bytes(parameters: Iterable[nn.Parameter]) -> int:
    return 4 * sum(parameter.numel() for parameter in parameters)


def paper_flops(size: str) -> float:
    """Return the operations of the paper's run of size "base" or "large", counted likewise."""
    words = [f"model.size={size}", "micro_batch_size=1"]  # the count does not depend on it
    return estimate("paper", words, machine="a100").flops


def find_machine(name: str, share: float | None = None) -> Machine | None:
    """Return a machine by its name, such as `h100x8`; None for "here".

    Raises:
        SettingsError: the name is unknown, or `share` is not above 0 and at most 1.
    """
    if share is not None and not 0 < share <= 1:
        raise SettingsError(f"share={share} is not above 0 and at most 1")
    if name == "here":
        return None
    match = re.fullmatch(r"(\w+?)(?:x([1-9]\d{0,5}))?", name)
    if match is None or match[1] not in MACHINES:
        known = ", ".join(["here", *MACHINES])
        raise SettingsError(f"unknown machine {name!r}", fix=f"Valid: {known}; or h100x8.")
    one = MACHINES[match[1]]
    return Machine(name, one.peak, one.memory, share or one.share, int(match[2] or 1))


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


def _activation_bytes(
    objective: Objective,
    settings: PretrainSettings,
    batch: Batch,
    dtype: torch.dtype | None,
) -> tuple[float, float]:
    """Return the bytes that autograd keeps of a micro-batch for the backward pass, and of a layer.

    With gradient checkpointing, autograd keeps the inputs of all layers, and all tensors of one.
    """
    saved_bytes: float = _saved_bytes(objective.network, batch, dtype, recompute=False)
    layer = saved_bytes / max(1, objective.models["model"].encoder.config.num_hidden_layers)
    if settings.gradient_checkpointing:
        saved_bytes = layer + _saved_bytes(objective.network, batch, dtype, recompute=True)
    return saved_bytes, layer


def _saved_bytes(
    network: nn.Module, batch: Batch, dtype: torch.dtype | None, *, recompute: bool
) -> int:
    weights = {p.untyped_storage()._cdata for p in network.parameters()}
    storages: dict[int, torch.UntypedStorage] = {}  # kept alive: no address is reused

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in weights:
            storages[storage._cdata] = storage
        return tensor

    network.train()
    with (
        autocast_to(network, dtype),
        activation_checkpointing(network, recompute),
        torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor),
    ):
        network(batch.to(torch.device("meta")))
    return sum(storage.nbytes() for storage in storages.values())


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
