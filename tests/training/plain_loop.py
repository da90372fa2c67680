"""The peer of runs: a model of Hugging Face in the plainest loop of PyTorch."""

from __future__ import annotations

from typing import Any

import torch


class PlainLoop:
    """AdamW as the paper has it: biases and the weights of LayerNorms do not decay.

    Args:
        model: whose outputs have a `loss`.
        weight_decay: of what decays.
    """

    def __init__(self, model: Any, weight_decay: float) -> None:
        self.model = model.train()
        plain = [p for n, p in model.named_parameters() if "LayerNorm" in n or n.endswith("bias")]
        decayed = [p for p in model.parameters() if not any(p is q for q in plain)]
        groups = [
            {"params": decayed, "weight_decay": weight_decay},
            {"params": plain, "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, eps=1e-6)

    def step(self, inputs: dict[str, torch.Tensor], lr: float) -> float:
        """One update, its gradients cut to a norm of 1; the loss before it."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        loss = self.model(**inputs).loss
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return float(loss.item())
