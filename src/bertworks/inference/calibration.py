"""Fixed codes for the inputs of a network's 8-bit linear maps, found from texts.

    texts ─► network in float32, its maps watched ─► ranges and samples ─► codes of least error

For each map some candidates are tried on a sample of its inputs. What is compared is the error of
the map's results, each relative to its token's: so that the few tokens with very large inputs
([CLS], full stops) do not decide about all others. Their inputs may then be out of range. A map
whose inputs no fixed codes suit keeps scales that are found for each token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ..errors import DataError
from ..model.eight_bits import InputCodes, codes_of, weight_of
from ..model.encoder import FeedForward, Layer
from ..model.layers import Linear
from .form import FUSED, forget, twins_of

_SAMPLE = 1024  # tokens of which a map's inputs are kept
_ALPHAS = 0.5, 0.65, 0.8, 0.9  # how much of an input's range goes into the weights
_SHARES = 1.0, 0.8  # of the ranges, where each input has its own
_COMMON_SHARES = 1.0, 0.8, 0.65, 0.5, 0.4, 0.3, 0.2  # of the range of all inputs together
_MUCH = 10  # times the error of a scale for each token: more is too much
_LEAST = 1e-6  # of a range or a weight: an input that never changes has a step too
_CODES, _ZERO = 255, 128  # steps between the unsigned codes, and what they are shifted by


def calibrate(network: nn.Module, run: Callable[[nn.Module], object]) -> None:
    """Give a network's 8-bit linear maps fixed codes for their inputs, in place.

    Only what it computes with `precision="int8"` changes.

    Args:
        network: in evaluation mode.
        run: calls a network of the same parts on texts, in float32.

    Raises:
        DataError: `run` has computed nothing.
    """
    seen = {
        part: _Seen(part)
        for layer in network.modules()
        if isinstance(layer, Layer)
        for part in layer.modules()
        if isinstance(part, Linear)
    }
    run(_watched(network, seen))
    common = {
        part.output
        for part in network.modules()
        if isinstance(part, FeedForward) and not part.gated and part.activation in FUSED
    }
    used = {part: inputs for part, inputs in seen.items() if inputs.tokens}
    if not used:
        raise DataError("there is no text to calibrate by")
    for part, inputs in used.items():
        part.input_codes = inputs.codes(is_common=part in common)
    forget(network)


@dataclass
class _Seen:
    """Of what a map was given: the range of each input, and some tokens."""

    linear: Linear
    tokens: int = 0
    least: Tensor = field(init=False)
    greatest: Tensor = field(init=False)
    sample: list[Tensor] = field(default_factory=list)
    every: int = 1  # of so many tokens one is in the sample

    def add(self, x: Float[Tensor, "*batch inputs"]) -> None:
        rows = x.detach().float().reshape(-1, x.shape[-1])
        rows = rows[rows.any(1)]  # rows of zeros belong to no text (`cpu.align_rows`)
        if not len(rows):
            return
        known = torch.stack([self.least, self.greatest]) if self.tokens else rows[:0]
        self.least, self.greatest = torch.cat([known, rows]).aminmax(dim=0)
        first = -self.tokens % self.every
        self.sample += [row.clone() for row in rows[first :: self.every]]
        self.tokens += len(rows)
        while len(self.sample) > _SAMPLE:
            self.sample, self.every = self.sample[::2], 2 * self.every

    def codes(self, is_common: bool) -> InputCodes | None:
        """Those with the least error; None if scales found for each token are much better.

        Args:
            is_common: with one step for all inputs.
        """
        weight = self.linear.weight.detach().float()
        rows = torch.stack(self.sample)
        exact = F.linear(rows, weight)
        size = exact.square().sum(1).clamp(min=_LEAST)

        def error(found: Tensor) -> float:
            return float(((found - exact).square().sum(1) / size).mean())

        def of_codes(codes: InputCodes) -> float:
            coded = weight_of(*codes_of(weight * codes.steps))
            return error(F.linear(codes.of(rows).float() - _ZERO, coded, codes.shift))

        usual = rows.median(0).values
        candidates = self._common(weight, usual) if is_common else self._each(weight, usual)
        errors = {of_codes(codes): codes for codes in candidates}
        least = min(errors)
        of_tokens = error(F.linear(weight_of(*codes_of(rows)), weight_of(*codes_of(weight))))
        return errors[least] if least <= _MUCH * of_tokens else None

    def _each(self, weight: Tensor, usual: Tensor) -> Iterator[InputCodes]:
        """Candidates with a step and an offset for each input."""
        middle = (self.least + self.greatest) / 2
        half = ((self.greatest - self.least) / 2).clamp(min=_LEAST)
        widest = weight.abs().amax(0).clamp(min=_LEAST)
        for alpha in _ALPHAS:
            steps = half**alpha / widest ** (1 - alpha)
            steps *= (half / steps).max() / (_ZERO - 1)
            for share in _SHARES:
                yield InputCodes.found(weight, steps * share, middle, usual)

    def _common(self, weight: Tensor, usual: Tensor) -> Iterator[InputCodes]:
        """Candidates with one step for all inputs, and a code for zero."""
        least, greatest = self.least.min().clamp(max=0), self.greatest.max().clamp(min=0)
        for share in _COMMON_SHARES:  # what is below zero, as GELU's results are, is kept whole
            step = ((greatest * share - least) / _CODES).clamp(min=_LEAST)
            zero = (-least / step).round()
            yield InputCodes.found(weight, step[None], ((_ZERO - zero) * step)[None], usual)


class _Watched(Linear):
    """The same; what it is given is seen."""

    seen: _Seen

    def forward(self, x: Float[Tensor, "*batch inputs"]) -> Float[Tensor, "*batch outputs"]:
        self.seen.add(x)
        return super().forward(x)


def _watched(network: nn.Module, seen: dict[Linear, _Seen]) -> nn.Module:
    """A network with the same tensors, whose maps are watched."""

    def watch(module: nn.Module, twin: nn.Module) -> None:
        if isinstance(module, Linear) and module in seen:
            twin.__class__ = _Watched
            twin.__dict__["seen"] = seen[module]

    return twins_of(network, watch)
