"""AdamW and LAMB as BERT uses them, the learning rate of a step, and averaged weights.

AdamW is PyTorch's fused version. LAMB (You et al. 2019, arXiv 1904.00962, Algorithm 2) is
implemented here. Weight decay does not apply to biases and to the weights of normalization layers
(paper, appendix A.2; the original code).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn

from ..checkpoints.families import family_of
from ..nn.encoder import Encoder
from ..nn.layers import NoNorm
from .settings import DECAY_SHARE, OptimizerSettings
from .sharding import full_tensor, shard_like

_RATIO = 32  # of the highest to the lowest rate of a slanted triangle


def parameter_groups(
    network: nn.Module,
    weight_decay: float,
    layer_decay: float = 1.0,
    unfreeze_steps: Mapping[Tensor, int] | None = None,
) -> list[dict[str, Any]]:
    """Group the trainable parameters, each once, by weight decay, learning rate and first step.

    Weight decay does not apply to biases and to parameters of normalization layers.

    Args:
        unfreeze_steps: for each parameter that is unfrozen later, the first step with a
            gradient, from 0.
    """
    with_decay: list[Tensor] = []
    without_decay: list[Tensor] = []
    all_parameters: set[Tensor] = set()
    for module in network.modules():
        is_norm = isinstance(module, nn.LayerNorm | nn.RMSNorm | NoNorm)
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.requires_grad and parameter not in all_parameters:
                all_parameters.add(parameter)
                is_bias = name.startswith("bias") or name.endswith("_bias")
                (without_decay if is_norm or is_bias else with_decay).append(parameter)
    scales = _scales(network, layer_decay)
    kinds = {
        parameter: (scales[parameter], (unfreeze_steps or {}).get(parameter, 0))
        for parameter in all_parameters
    }
    groups: list[dict[str, Any]] = []
    for scale, start in sorted(set(kinds.values()), key=lambda kind: (-kind[0], kind[1])):
        for decay, is_adapted, parameters in (
            (weight_decay, True, with_decay),
            (0.0, False, without_decay),
        ):
            members = [one for one in parameters if kinds[one] == (scale, start)]
            if members:
                group = {"params": members, "lr_scale": scale, "start": start}
                group |= {"weight_decay": decay, "base_weight_decay": decay}
                groups.append({**group, "layer_adaptation": is_adapted})
    return groups


def _scales(network: nn.Module, layer_decay: float) -> dict[Tensor, float]:
    """Return the factor of each parameter's learning rate.

    The factor is 1 for heads and poolers and `layer_decay` for the top layer. For each layer below,
    and then for the embeddings, it is `layer_decay` times the factor of the layer above.
    """
    scales: dict[Tensor, float] = dict.fromkeys(network.parameters(), 1.0)
    for module in network.modules():
        if isinstance(module, Encoder):
            for above, part in enumerate(reversed(module.parts), 1):
                scales |= dict.fromkeys(part.parameters(), layer_decay**above)
    return scales


def _stacks(network: nn.Module) -> dict[Tensor, list[int]]:
    """Return the encoder parameters that combine several published tensors, with their rows."""
    rows: dict[Tensor, list[int]] = {}
    for module in network.modules():
        if isinstance(module, Encoder):
            keys = family_of(module.config).keys
            for name, parameter in module.named_parameters():
                with suppress(KeyError):  # an adapter's matrices have no published name
                    shapes = keys.parts(f"encoder.{name}", parameter.shape).values()
                    if len(shapes) > 1:
                        rows[parameter] = [shape[0] for shape in shapes]
    return rows


def build_optimizer(
    network: nn.Module,
    settings: OptimizerSettings,
    unfreeze_steps: Mapping[Tensor, int] | None = None,
) -> torch.optim.Optimizer:
    """Return an optimizer of the network's trainable parameters, on their device."""
    groups = parameter_groups(network, settings.weight_decay, settings.layer_decay, unfreeze_steps)
    if settings.optimizer == "lamb":
        return Lamb(groups, settings, _stacks(network))
    return torch.optim.AdamW(
        groups, lr=settings.learning_rate, betas=settings.betas, eps=settings.eps, fused=True
    )


def set_step(
    optimizer: torch.optim.Optimizer, settings: OptimizerSettings, step: int, total: int
) -> float:
    """Set the optimizer's step-dependent values for update number `step`, from 0, of `total`.

    Returns:
        The learning rate.
    """
    lr = learning_rate(settings, step, total)
    for group in optimizer.param_groups:
        # A parameter's averages start with its first gradient.
        number = max(1, step + 1 - group["start"])
        lr_factor = eps_factor = 1.0
        if settings.optimizer == "adamw" and not settings.bias_correction:
            # The fused step computes  lr / (1 - β1ᵗ) · m / (√v / √(1 - β2ᵗ) + eps).  These factors
            # turn it into  lr · m / (√v + eps);  the decay, lr · weight_decay, stays as it is.
            beta1, beta2 = settings.betas
            eps_factor = 1 / math.sqrt(1 - beta2**number)
            lr_factor = (1 - beta1**number) * eps_factor
        group["lr"] = lr * lr_factor * group["lr_scale"]
        group["eps"] = settings.eps * eps_factor
        group["weight_decay"] = group["base_weight_decay"] / lr_factor
        group["number"] = number
    return lr


def learning_rate(settings: OptimizerSettings, step: int, total: int) -> float:
    """Return the learning rate of update number `step`, counted from 0, of `total`."""
    highest = settings.learning_rate
    warmup = settings.warmup if settings.warmup >= 1 else settings.warmup * total
    if (start := decay_start(settings, total)) is not None:
        rise = step / warmup if step < warmup else 1.0
        return highest * min(rise, max(0.0, (total - step) / (total - start)))
    if settings.schedule == "slanted-triangular":
        return highest * _slanted_triangle(step, math.floor(warmup), total)
    if step < warmup:
        return highest * step / warmup
    if settings.schedule == "constant":
        return highest
    if settings.schedule == "linear":
        return highest * max(0.0, 1 - step / total)
    return highest * max(0.0, (total - step) / max(1.0, total - warmup))


def decay_start(settings: OptimizerSettings, total: int) -> int | None:
    """Return the number of steps before the decay of `warmup-stable-decay`, of `total`; None for
    other schedules.

    The next update after these steps is the last one at the full rate.
    """
    if settings.schedule != "warmup-stable-decay":
        return None
    return total - max(1, round((settings.decay_share or DECAY_SHARE) * total))


def _slanted_triangle(step: int, peak_step: int, total: int) -> float:
    """The rate as a share of the highest one: it rises for `cut` steps, then falls to 1/32.

    Howard and Ruder (2018), equation 3. Its `cut · (1/cut_frac - 1)` is `total - cut`, apart from
    rounding.
    """
    height = (
        step / peak_step if step < peak_step else 1 - (step - peak_step) / max(1, total - peak_step)
    )
    return (1 + height * (_RATIO - 1)) / _RATIO


class Lamb(torch.optim.Optimizer):
    """LAMB: Adam's direction, multiplied for each tensor by its trust ratio ‖weights‖/‖direction‖.

    Tensors without weight decay are not scaled, as in the authors' code.

    Args:
        stacks: the parameters that combine several tensors by rows, with the number of rows of
            each. Each of these tensors has its own trust ratio, as if they were separate
            parameters.
    """

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        settings: OptimizerSettings,
        stacks: Mapping[Tensor, list[int]],
    ) -> None:
        self._settings, self._stacks = settings, stacks
        super().__init__(groups, {"lr": settings.learning_rate, "eps": settings.eps, "number": 1})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override] # no closure is taken
        """Update the parameters from their gradients."""
        assert closure is None, "closures are for other optimizers"
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if parameters:
                self._step_group(group, parameters)

    def _step_group(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        beta1, beta2 = self._settings.betas
        gradients = [p.grad for p in parameters if p.grad is not None]
        means, squares = self._averages(parameters)
        torch._foreach_lerp_(means, gradients, 1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - beta2)
        corrects, number = self._settings.bias_correction, group["number"]
        denominators = torch._foreach_div(squares, 1 - beta2**number if corrects else 1.0)
        torch._foreach_sqrt_(denominators)
        torch._foreach_add_(denominators, group["eps"])
        directions = list(torch._foreach_div(means, 1 - beta1**number if corrects else 1.0))
        torch._foreach_div_(directions, denominators)
        if group["weight_decay"]:
            torch._foreach_add_(directions, parameters, alpha=group["weight_decay"])
        if group["layer_adaptation"]:
            ratios = _trust_ratios(parameters, directions)
            for parameter, direction, ratio in zip(parameters, directions, ratios, strict=True):
                rows = self._stacks.get(parameter)
                direction.mul_(ratio if rows is None else _by_row(parameter, direction, rows))
        torch._foreach_add_(parameters, directions, alpha=-group["lr"])

    def _averages(self, parameters: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        for parameter in parameters:
            if not self.state[parameter]:
                self.state[parameter] = {
                    "exp_avg": torch.zeros_like(parameter),
                    "exp_avg_sq": torch.zeros_like(parameter),
                }
        states = [self.state[parameter] for parameter in parameters]
        return [state["exp_avg"] for state in states], [state["exp_avg_sq"] for state in states]


def _trust_ratios(parameters: list[Tensor], directions: list[Tensor]) -> list[Tensor]:
    """Return ‖parameter‖ / ‖direction‖, or 1 if either is zero, for each tensor."""
    sizes = torch._foreach_norm(parameters)
    lengths = torch._foreach_norm(directions)
    return [_ratio(size, length) for size, length in zip(sizes, lengths, strict=True)]


def _by_row(parameter: Tensor, direction: Tensor, rows: list[int]) -> Tensor:
    """Return `[rows, 1]`: the trust ratios of matrices with so many rows that are stacked.

    The norms are computed by row because a sharded parameter is split by rows: a process may have
    only a part of a matrix, and only the norms of rows are exchanged.
    """
    row_norms = [torch.linalg.vector_norm(matrix, dim=1) for matrix in (parameter, direction)]
    size, length = (
        torch.stack([norms.norm() for norms in torch.split(full_tensor(row_norm), rows)])
        for row_norm in row_norms
    )
    counts = torch.tensor(rows, device=size.device)
    ratios = _ratio(size, length).repeat_interleave(counts, output_size=sum(rows))
    return shard_like(row_norms[0], ratios).unsqueeze(1)


def _ratio(size: Tensor, length: Tensor) -> Tensor:
    return torch.where((size > 0) & (length > 0), size / length, torch.ones_like(size))


def clip_gradients(parameters: Sequence[Tensor], max_norm: float) -> Tensor:
    """Scale gradients so that their norm, all together, is at most `max_norm`; return the norm.

    On CPUs, PyTorch adds the squares of a tensor one after another in float32: the norm of 23
    million numbers, the embeddings of BERT-base, is too small by a thousandth. So norms are
    computed by row there. The rows of a sharded gradient are those of the whole one.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norms = [
        torch.linalg.vector_norm(gradient, dim=tuple(range(1, gradient.ndim)))
        if gradient.ndim > 1 and gradient.device.type == "cpu"
        else gradient
        for gradient in gradients
    ]
    norm = torch.nn.utils.get_total_norm(norms)
    torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
    return norm


class Average:
    """A running average of the weights, which is evaluated and saved in place of the weights.

        average ← d · average + (1 - d) · weights,   d = min(decay, (1 + t) / (10 + t)) at update t

    The average of the last steps is often better than the last step, and varies less between
    evaluations. d is smaller in early steps: otherwise a short run would end near its initial
    weights. Averages are part of the optimizer's state, so every checkpoint contains them. A
    parameter that was never updated has no average; its weights are used.

    Source: Polyak and Juditsky (1992); the form is TensorFlow's `ExponentialMovingAverage`.

    Args:
        decay: maximum of d, the share of the old average at each update; None: no averaging.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, decay: float | None) -> None:
        self._state, self._decay = optimizer.state, decay

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Add the weights after update number `step`, from 1, to the average."""
        if self._decay is None:
            return
        for parameter, state in self._state.items():
            if "average" not in state:
                state["average"] = parameter.detach().clone()
        weights, averages = self._pairs()
        decay = min(self._decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(averages, weights, 1 - decay)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Replace the network's weights by their averages until the block ends."""
        weights = self._pairs()[0]
        original_weights = [weight.clone() for weight in weights]
        self.apply()
        try:
            yield
        finally:
            for weight, value in zip(weights, original_weights, strict=True):
                weight.copy_(value)

    def apply(self) -> None:
        """Replace the network's weights by their averages."""
        for weight, average in zip(*self._pairs(), strict=True):
            weight.copy_(average)

    def _pairs(self) -> tuple[list[Tensor], list[Tensor]]:
        """Return the weights that have an average, and the averages."""
        pairs = [
            (parameter.detach(), state["average"])
            for parameter, state in self._state.items()
            if "average" in state
        ]
        return [weight for weight, _ in pairs], [average for _, average in pairs]
