"""CUDA graphs of an encoder: small batches are launched by one call.

An encoder launches about fifteen kernels a layer, and eighty in a training step, one after the
other. For a small batch this takes the processor longer than the card computes. A graph records the
kernels of one shape, and is then launched as a whole. Packs have any shape, so they are padded to
one of a few: pad tokens follow the last token, as sequences of their own. Their outputs are cut
off, so their gradients are zero, and no weight depends on them.

A graph reads and writes fixed memory: the ids of a pack, the outputs and their gradient, and the
gradients of the weights, which all graphs of an encoder share.

Source: PyTorch's documentation, "CUDA Graphs".
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from threading import Lock
from typing import Any, NamedTuple, Protocol
from weakref import ref

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..packed import Group, Packed, to_tensor

_MAX_GRAPHS = 64
_MIN_TOKENS, _MIN_SEQUENCES, _MIN_LENGTH = 64, 8, 32


class PaddedShape(NamedTuple):
    """The size of a padded pack."""

    tokens: int
    sequences: int
    length: int  # the largest number of tokens of a sequence


def padded_shape(packed: Packed, max_length: int, steps: int) -> PaddedShape:
    """Return the shape that a pack is padded to.

    Args:
        max_length: the largest number of tokens of a sequence that the encoder takes.
        steps: numbers of tokens between a power of two and the next: with 8, at most an eighth of
            the tokens are pads, or 64.
    """
    tokens = _round_up(packed.num_tokens, _MIN_TOKENS, steps)
    longest = tokens if steps == 1 else packed.max_seqlen
    length = min(max_length, max(_MIN_LENGTH, 1 << (longest - 1).bit_length()))
    pads = -(-(tokens - packed.num_tokens) // length)
    sequences = _round_up(packed.num_sequences + pads, _MIN_SEQUENCES, steps)
    return PaddedShape(tokens, sequences, length)


def _round_up(size: int, least: int, steps: int) -> int:
    """Return the next multiple of `least` and of a step between powers of two."""
    if size <= least:
        return least
    step = max(least, (1 << (size - 1).bit_length() - 1) // steps)
    return -(-size // step) * step


def pad_packed(packed: Packed, shape: PaddedShape) -> Packed:
    """Return a pack of tensors with pad tokens after the last, and empty sequences at the end."""
    pads, device = _Pads(packed, shape), packed.input_ids.device
    num_tokens, num_sequences = len(pads.positions), len(pads.edges)
    return Packed(
        cu_seqlens=torch.cat((packed.cu_seqlens, to_tensor(pads.edges, device))),
        max_seqlen=shape.length,
        groups=packed.groups + pads.groups(),
        input_ids=F.pad(packed.input_ids, (0, num_tokens)),
        token_type_ids=F.pad(packed.token_type_ids, (0, num_tokens)),
        position_ids=torch.cat((packed.position_ids, to_tensor(pads.positions, device))),
        sequence_row=F.pad(packed.sequence_row, (0, num_sequences)),
        sequence_number=F.pad(packed.sequence_number, (0, num_sequences)),
    )


class _Pads:
    """What follows the tokens and sequences of a pack, on the host."""

    def __init__(self, packed: Packed, shape: PaddedShape) -> None:
        self._start, self._length = packed.num_tokens, shape.length
        self.positions = np.arange(shape.tokens - packed.num_tokens) % shape.length
        later = np.arange(1, shape.sequences - packed.num_sequences + 1) * shape.length
        self.edges = np.minimum(packed.num_tokens + later, shape.tokens).astype(np.int32)

    def groups(self) -> tuple[Group, ...]:
        """The groups of the pad tokens' sequences; those without a token are in none."""
        whole, rest = divmod(len(self.positions), self._length)
        end = self._start + whole * self._length
        groups = Group(self._start, whole, self._length), Group(end, 1, rest)
        return tuple(one for one in groups if one.sequences * one.length)


class Recordable(Protocol):
    """An encoder on a CUDA device. No operator takes sizes or indices from the host."""

    training: bool

    def compute(self, packed: Packed, /) -> Tensor:
        """Return the output for the tokens of a pack."""

    def modules(self) -> Iterator[nn.Module]: ...
    def parameters(self) -> Iterator[nn.Parameter]: ...


class EncoderGraphs(ABC):
    """The graphs of one encoder, by the shape of the padded pack.

    They do not refer to the encoder, which refers to them: it is freed with its last user.

    Args:
        max_length: the largest number of tokens of a sequence.
    """

    max_tokens: int
    """Larger batches keep a card busy without graphs."""

    _steps: int

    def __init__(self, max_length: int) -> None:
        self._max_length = max_length
        self._graphs: dict[PaddedShape, _Graph] = {}
        self._pool: Any = None  # memory of the first graph, which the others use too

    def can_compute(self, encoder: Recordable, packed: Packed) -> bool:
        """Whether a graph may compute a pack."""
        has_hooks = any(map(_has_hooks, encoder.modules()))
        return packed.num_tokens <= self.max_tokens and not has_hooks

    def __call__(self, encoder: Recordable, packed: Packed) -> Tensor:
        """Return the encoder's output for the tokens of a pack."""
        shape = padded_shape(packed, self._max_length, self._steps)
        graph = self._graph(encoder, packed, shape)
        if graph is None:  # the same bits, by the same operators
            return encoder.compute(pad_packed(packed, shape))[: packed.num_tokens]
        graph.copy_in(packed, _Pads(packed, shape))
        return self._replay(graph, packed.num_tokens)

    def _graph(self, encoder: Recordable, packed: Packed, shape: PaddedShape) -> Any:
        """Return the graph of a shape, which is recorded if it is new; None beyond the most."""
        if shape not in self._graphs and len(self._graphs) < _MAX_GRAPHS:
            # No operator that is recorded may take sizes from the host: there are no groups.
            graph = self._record(encoder, replace(pad_packed(packed, shape), groups=()))
            self._graphs[shape], self._pool = graph, graph.pool
        return self._graphs.get(shape)

    @abstractmethod
    def _record(self, encoder: Recordable, inputs: Packed) -> _Graph:
        """Return the graph of a padded pack's shape."""

    @abstractmethod
    def _replay(self, graph: Any, size: int) -> Tensor:
        """Return the output for what was copied to a graph, of so many tokens."""


class InferenceGraphs(EncoderGraphs):
    """Graphs of a frozen encoder, which threads may share.

    A shape is recorded when it comes a second time.
    """

    max_tokens = 2048
    _steps = 1

    def __init__(self, max_length: int) -> None:
        super().__init__(max_length)
        self._lock, self._shapes = Lock(), set[PaddedShape]()

    def __call__(self, encoder: Recordable, packed: Packed) -> Tensor:
        with self._lock:
            return super().__call__(encoder, packed)

    def _graph(self, encoder: Recordable, packed: Packed, shape: PaddedShape) -> Any:
        if shape not in self._shapes:
            self._shapes.add(shape)
            return None
        return super()._graph(encoder, packed, shape)

    def _record(self, encoder: Recordable, inputs: Packed) -> _Graph:
        return _Graph(encoder.compute, inputs, self._pool)

    def _replay(self, graph: _Graph, size: int) -> Tensor:
        graph.forward()
        return graph.output[:size].clone()


class TrainingGraphs(EncoderGraphs):
    """Graphs of training steps.

    An encoder whose earlier outputs still wait for their backward pass is computed without a graph,
    from the same padded pack. Random numbers are those that the operators would draw.
    """

    max_tokens = 8192
    _steps = 8

    def __init__(self, max_length: int) -> None:
        super().__init__(max_length)
        self._parameters: list[nn.Parameter] = []
        self._gradients: list[Tensor] = []
        self._anchor = torch.zeros((), requires_grad=True)  # makes the output need a gradient
        self._pending: Callable[[], object] = lambda: None

    def can_compute(self, encoder: Recordable, packed: Packed) -> bool:
        is_trained = encoder.training and torch.is_grad_enabled()
        return is_trained and super().can_compute(encoder, packed)

    def _graph(self, encoder: Recordable, packed: Packed, shape: PaddedShape) -> Any:
        if self._pending() is not None:
            return None
        # Drop the graphs if other parameters are trained, or stand elsewhere in memory.
        parameters = [one for one in encoder.parameters() if one.requires_grad]
        places = [one.data_ptr() for one in parameters]
        if places != [one.data_ptr() for one in self._parameters]:
            self._graphs.clear()
            self._parameters = parameters
            self._gradients = [torch.zeros_like(one) for one in parameters]
        return super()._graph(encoder, packed, shape)

    def _record(self, encoder: Recordable, inputs: Packed) -> _TrainingGraph:
        weights = list(zip(self._parameters, self._gradients, strict=True))
        with _aliases(encoder, self._parameters) as aliases:
            return _TrainingGraph(encoder.compute, inputs, self._pool, weights, aliases)

    def _replay(self, graph: _TrainingGraph, size: int) -> Tensor:
        owner = _Owner()
        self._pending = ref(owner)
        return _replay(self._anchor, graph, owner, size)


def _has_hooks(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks)


class _Graph:
    """The kernels of one shape."""

    def __init__(self, compute: Callable[[Packed], Tensor], inputs: Packed, pool: Any) -> None:
        self._inputs = inputs
        # Other threads may use the device meanwhile.
        self._options: dict[str, Any] = {"pool": pool, "capture_error_mode": "thread_local"}
        self._forward = torch.cuda.CUDAGraph()
        stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # PyTorch's
        stream.wait_stream(torch.cuda.current_stream())
        with torch.random.fork_rng([inputs.input_ids.device]), torch.cuda.stream(stream):
            self._warm_up(compute)
        torch.cuda.current_stream().wait_stream(stream)
        with torch.cuda.graph(self._forward, **self._options):
            self.output = compute(inputs)
        self.pool = self._forward.pool()
        self._options["pool"] = self.pool

    def _warm_up(self, compute: Callable[[Packed], Tensor]) -> Tensor:
        """Compute once, so that what libraries create at their first use is not recorded."""
        return compute(self._inputs)

    def copy_in(self, packed: Packed, pads: _Pads) -> None:
        """Copy a pack to the memory that the graph reads."""
        device, size = packed.input_ids.device, packed.num_tokens
        for name in ("input_ids", "token_type_ids"):
            ids = getattr(self._inputs, name)
            ids[:size].copy_(getattr(packed, name))
            ids[size:].zero_()
        for name, values in (("position_ids", pads.positions), ("cu_seqlens", pads.edges)):
            target, source = getattr(self._inputs, name), getattr(packed, name)
            target[: len(source)].copy_(source)
            target[len(source) :].copy_(to_tensor(values, device))

    def forward(self) -> None:
        """Compute `output` from what was copied in."""
        self._forward.replay()


class _TrainingGraph(_Graph):
    """The kernels of one shape's forward and backward pass.

    Args:
        weights: the parameters that are trained, and the memory of their gradients.
        aliases: the same parameters, as `compute` finds them now.
        others: arguments of `_Graph`.
    """

    def __init__(
        self,
        compute: Callable[[Packed], Tensor],
        inputs: Packed,
        pool: Any,
        weights: list[tuple[nn.Parameter, Tensor]],
        aliases: list[nn.Parameter],
    ) -> None:
        self._aliases = aliases
        super().__init__(compute, inputs, pool)
        self.output_gradient = torch.zeros_like(self.output)
        self._backward = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._backward, **self._options):
            results = self._gradients_of(self.output, self.output_gradient)
            self._weights = [
                weight
                for weight, result in zip(weights, results, strict=True)
                if result is not None
            ]
            added = [result for result in results if result is not None]
            torch._foreach_add_([gradient for _, gradient in self._weights], added)
        self.output = self.output.detach()

    def _gradients_of(self, output: Tensor, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return torch.autograd.grad(output, self._aliases, gradient, allow_unused=True)

    def _warm_up(self, compute: Callable[[Packed], Tensor]) -> Tensor:
        output = super()._warm_up(compute)
        self._gradients_of(output, torch.zeros_like(output))
        return output

    def backward(self) -> None:
        """Add the gradients of the weights, from `output_gradient`."""
        new = []
        for parameter, gradient in self._weights:
            if parameter.grad is None:
                new.append(gradient)
            elif parameter.grad is not gradient:  # a head that shares it came first
                gradient.copy_(parameter.grad)
            parameter.grad = gradient
        if new:
            torch._foreach_zero_(new)
        self._backward.replay()


@contextmanager
def _aliases(encoder: Recordable, parameters: list[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Let an encoder compute from other parameters in the same memory.

    A backward pass that is recorded must not meet those that another one uses on another stream.
    """
    aliases = {one: nn.Parameter(one.detach()) for one in parameters}
    places = [
        (module._parameters, name, parameter)
        for module in encoder.modules()
        for name, parameter in module._parameters.items()
        if parameter is not None and parameter in aliases
    ]
    for table, name, parameter in places:
        table[name] = aliases[parameter]
    try:
        yield list(aliases.values())
    finally:
        for table, name, parameter in places:
            table[name] = parameter


class _Owner:
    """Exists as long as outputs wait for their backward pass."""


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, graph: _TrainingGraph, owner: _Owner, size: int
    ) -> Tensor:
        del anchor
        ctx.graph, ctx.owner, ctx.size = graph, owner, size
        graph.forward()
        return graph.output[:size].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, None, None]:
        if ctx.owner is None:
            raise RuntimeError("the backward pass of a CUDA graph runs once")
        graph, ctx.owner = ctx.graph, None
        graph.output_gradient[: ctx.size].copy_(gradient)
        graph.output_gradient[ctx.size :].zero_()
        graph.backward()
        return None, None, None, None


_replay: Callable[..., Tensor] = _Replay.apply
