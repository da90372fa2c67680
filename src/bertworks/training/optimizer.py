"""AdamW and LAMB as BERT uses them, and the learning rate as a pure function of the step.

AdamW is PyTorch's fused one. LAMB (You et al. 2019, arXiv 1904.00962, Algorithm 2) is written here.
Neither decays biases and the weights of LayerNorms (paper, appendix A.2; the original code).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from ..model.encoder import Encoder
from ..settings import Settings

Schedule = Literal[
    "linear", "linear-from-peak", "constant", "slanted-triangular", "warmup-stable-decay"
]

_DECAY_SHARE = 0.2  # of warmup-stable-decay
_RATIO = 32  # of the highest rate of a slanted triangle to the lowest


class OptimizerSettings(Settings):
    """How the weights follow the gradients. The defaults are the paper's."""

    name: Literal["adamw", "lamb"] = "adamw"
    lr: float = Field(1e-4, gt=0, description="the highest learning rate")
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = Field(1e-6, gt=0)
    weight_decay: float = Field(0.01, ge=0)
    layer_decay: float = Field(
        1.0,
        gt=0,
        le=1,
        description="each layer learns at this share of the rate of the layer above it; heads at "
        "the full rate (Howard and Ruder 2018, §3.2; Clark et al. 2020)",
    )
    bias_correction: bool = Field(
        True, description="false: Adam's averages are used as they are, as the original code does"
    )
    schedule: Schedule = Field(
        "linear",
        description="after the warm-up: `linear` follows the line from lr at step 0 to zero at the "
        "last step, as the original code does; `linear-from-peak` goes from lr at the end of the "
        "warm-up to zero, as Hugging Face does; `constant` stays at lr; `slanted-triangular` is "
        "ULMFiT's (Howard and Ruder 2018, equation 3), from lr / 32 up to lr and down again; "
        "`warmup-stable-decay` stays at lr, then falls linearly to zero over the last steps "
        "(Hu et al. 2024, §4), and with warmup in steps such a run can be extended: its steps may "
        "be raised later",
    )
    warmup: float = Field(
        0.01, ge=0, description="steps of linear warm-up; below 1: their share of all steps"
    )
    decay_share: float | None = Field(
        None,
        gt=0,
        le=1,
        description="the share of all steps in which the rate of warmup-stable-decay falls; "
        f"{_DECAY_SHARE}, if left out",
    )

    @model_validator(mode="after")
    def _check(self) -> OptimizerSettings:
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas={self.betas}: both must lie in [0, 1)")
        check_decay_share(self.decay_share, self.schedule)
        return self

    def learning_rate(self, step: int, total: int) -> float:
        """The learning rate of update number `step`, counted from 0, of `total`."""
        warmup = self.warmup if self.warmup >= 1 else self.warmup * total
        if (decay_start := self.decay_start(total)) is not None:
            rise = step / warmup if step < warmup else 1.0
            return self.lr * min(rise, max(0.0, (total - step) / (total - decay_start)))
        if self.schedule == "slanted-triangular":
            return self.lr * _slanted_triangle(step, math.floor(warmup), total)
        if step < warmup:
            return self.lr * step / warmup
        if self.schedule == "constant":
            return self.lr
        if self.schedule == "linear":
            return self.lr * max(0.0, 1 - step / total)
        return self.lr * max(0.0, (total - step) / max(1.0, total - warmup))

    def decay_start(self, total: int) -> int | None:
        """The steps before the decay of `warmup-stable-decay`, of `total`; None of other schedules.

        The update after them is the last one at the full rate.
        """
        if self.schedule != "warmup-stable-decay":
            return None
        return total - max(1, round((self.decay_share or _DECAY_SHARE) * total))


def check_decay_share(decay_share: float | None, schedule: Schedule) -> None:
    """See that `decay_share` is given only where there is a decay.

    Raises:
        ValueError: it is given with another schedule.
    """
    if decay_share is not None and schedule != "warmup-stable-decay":
        raise ValueError(
            f"decay_share={decay_share} does nothing without schedule=warmup-stable-decay"
        )


def _slanted_triangle(step: int, cut: int, total: int) -> float:
    """The rate's share of the highest one: up for `cut` steps, then down to 1/32.

    Howard and Ruder (2018), equation 3, whose `cut · (1/cut_frac - 1)` is `total - cut` where no
    rounding comes in between.
    """
    height = step / cut if step < cut else 1 - (step - cut) / max(1, total - cut)
    return (1 + height * (_RATIO - 1)) / _RATIO


def parameter_groups(
    network: nn.Module,
    weight_decay: float,
    layer_decay: float = 1.0,
    starts: Mapping[Tensor, int] | None = None,
) -> list[dict[str, Any]]:
    """Trainable parameters, each once: those that decay, and biases and norms, that do not.

    Args:
        network: whose parameters.
        weight_decay: of those that decay.
        layer_decay: see `OptimizerSettings`.
        starts: the step before which a parameter gets no gradient, where that is not the first.
    """
    decayed: list[Tensor] = []
    plain: list[Tensor] = []
    seen: set[Tensor] = set()
    for module in network.modules():
        is_norm = isinstance(module, nn.LayerNorm | nn.RMSNorm)
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.requires_grad and parameter not in seen:
                seen.add(parameter)
                (plain if is_norm or name == "bias" else decayed).append(parameter)
    scales = _scales(network, layer_decay)
    kinds = {parameter: (scales[parameter], (starts or {}).get(parameter, 0)) for parameter in seen}
    return [
        {**group, "params": own, "lr_scale": scale, "start": start}
        for scale, start in sorted(set(kinds.values()), key=lambda kind: (-kind[0], kind[1]))
        for group, parameters in (
            ({"weight_decay": weight_decay, "layer_adaptation": True}, decayed),
            ({"weight_decay": 0.0, "layer_adaptation": False}, plain),
        )
        if (own := [parameter for parameter in parameters if kinds[parameter] == (scale, start)])
    ]


def _scales(network: nn.Module, layer_decay: float) -> dict[Tensor, float]:
    """What each parameter's learning rate is multiplied by.

    Heads and poolers learn at the full rate, the top layer at `layer_decay` of it, each layer below
    at as much of the one above, and the embeddings at as much of the lowest layer.
    """
    scales: dict[Tensor, float] = dict.fromkeys(network.parameters(), 1.0)
    for module in network.modules():
        if isinstance(module, Encoder):
            for above, part in enumerate(reversed(module.parts), 1):
                scales |= dict.fromkeys(part.parameters(), layer_decay**above)
    return scales


def build_optimizer(
    network: nn.Module, settings: OptimizerSettings, starts: Mapping[Tensor, int] | None = None
) -> torch.optim.Optimizer:
    """The optimizer of a network's trainable parameters, on their device.

    Args:
        network: whose parameters.
        settings: how they follow their gradients.
        starts: as `parameter_groups` takes them.
    """
    groups = parameter_groups(network, settings.weight_decay, settings.layer_decay, starts)
    for group in groups:
        group["base_weight_decay"] = group["weight_decay"]
    if settings.name == "lamb":
        return Lamb(groups, settings)
    return torch.optim.AdamW(
        groups, lr=settings.lr, betas=settings.betas, eps=settings.eps, fused=True
    )


def set_step(
    optimizer: torch.optim.Optimizer, settings: OptimizerSettings, step: int, total: int
) -> float:
    """Set what changes from step to step, for update number `step`, counted from 0, of `total`.

    Returns:
        The learning rate.
    """
    lr = settings.learning_rate(step, total)
    for group in optimizer.param_groups:
        # A parameter's averages begin with its first gradient.
        number = max(1, step + 1 - group["start"])
        lr_factor = eps_factor = 1.0
        if settings.name == "adamw" and not settings.bias_correction:
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


class Lamb(torch.optim.Optimizer):
    """LAMB: Adam's direction, scaled for each tensor by the ratio of its norms.

    Tensors that do not decay are not scaled either, as in the authors' code.
    """

    def __init__(self, groups: Iterable[dict[str, Any]], settings: OptimizerSettings) -> None:
        self._settings = settings
        super().__init__(groups, {"lr": settings.lr, "eps": settings.eps, "number": 1})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override] # no closure is taken
        """Update the parameters by their gradients."""
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
            for direction, ratio in zip(
                directions, _trust_ratios(parameters, directions), strict=True
            ):
                direction.mul_(ratio)
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
    """‖parameter‖ / ‖direction‖, and 1 where either is zero."""
    sizes = torch._foreach_norm(parameters)
    lengths = torch._foreach_norm(directions)
    return [
        torch.where((size > 0) & (length > 0), size / length, torch.ones_like(size))
        for size, length in zip(sizes, lengths, strict=True)
    ]
