"""One answer for a row of several sequences: a pair in both orders, or the windows of a long text.

    windows of a row ─► encoder ─► head ─► logits of each ─► their mean or maximum: the row's logits

A row's sequences follow one another in the pack, in order of their numbers. Logits are pooled, not
probabilities: the loss is that of the pooled ones, and values without a softmax are pooled alike.
The mean is that of all windows' evidence; the maximum lets one passage speak for the whole.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ..model.encoder import Encoder
from ..model.heads import ClassificationHead
from ..packed import Packed
from .parts import in_parts

WindowPooling = Literal["mean", "max"]
Pooling = Literal["sum", "mean", "max"]

AT_ONCE = 8192
"""Tokens of rows of several sequences that go through the encoder at a time."""


def row_logits(
    encoder: Encoder, head: ClassificationHead, packed: Packed, pooling: Pooling
) -> Tensor:
    """`[rows, outputs]`: what a head says of each row.

    Memory does not grow with the windows of a row, but for their logits; where gradients are taken,
    each part is computed a second time for them.
    """

    def told(part: Packed) -> Tensor:
        logits: Tensor = head(encoder, encoder(part), part)
        return logits

    made = in_parts(told, packed, AT_ONCE) if packed.sequence_number.any() else told(packed)
    return in_one(made, packed, pooling)


def in_one(logits: Tensor, packed: Packed, pooling: Pooling) -> Tensor:
    """Logits of rows from those of their sequences.

    The sum of both orders of a pair is what the output layer makes of the sum of the two vectors
    (Radford et al. 2018, §3.3), but for its bias, which counts twice.
    """
    firsts = (packed.sequence_number == 0).nonzero().squeeze(-1)
    if len(firsts) == len(logits):
        return logits
    counts = torch.diff(firsts, append=firsts.new_tensor([len(logits)]))
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return torch.segment_reduce(wide, pooling, lengths=counts, axis=0)
