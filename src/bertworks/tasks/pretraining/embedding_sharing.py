"""Embeddings of a discriminator that start from a generator's, whose gradients they leave alone.

    the discriminator's table = the generator's table, without a gradient + a difference of its own

Both networks learn from the same table, but the discriminator moves only its difference, which is
0 at first: its gradients do not pull the generator's embeddings in another direction. Source: He et
al. (2021, arXiv 2111.09543), "DeBERTaV3", §3.2, "gradient-disentangled embedding sharing".
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

DISENTANGLED_EMBEDDINGS = ("word_embeddings", "position_embeddings")
"""The tables that are shared in this way, as in the original code."""


class ResidualEmbedding(nn.Module):
    """A table that is the sum of another table, without its gradient, and a difference.

    Args:
        base: the other table; it is not a part of this module.
        saved_table: a table that holds the sum in the model that is saved; it is not a part either.
    """

    def __init__(self, base: nn.Embedding, saved_table: nn.Embedding) -> None:
        super().__init__()
        self.difference = nn.Parameter(torch.zeros_like(base.weight))
        self._tables = (
            base,
            saved_table,
        )  # a tuple, since a module as an attribute would be a part

    def forward(self, ids: Int[Tensor, " tokens"]) -> Float[Tensor, "tokens width"]:
        base, _ = self._tables
        return F.embedding(ids, base.weight.detach()) + F.embedding(ids, self.difference)

    @torch.no_grad()
    def write_sum(self) -> None:
        """Write the sum into the table that is saved."""
        base, saved_table = self._tables
        saved_table.weight.copy_(base.weight + self.difference)

    @torch.no_grad()
    def read_sum(self, *, keep_base: bool) -> None:
        """Make the sum the table that is saved.

        Args:
            keep_base: whether the difference is chosen for that; else the other table is replaced,
                and the difference is 0.
        """
        base, saved_table = self._tables
        if not keep_base:
            base.weight.copy_(saved_table.weight)
        self.difference.copy_(saved_table.weight - base.weight)
