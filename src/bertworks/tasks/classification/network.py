"""The network of classification: an encoder, and a head on a vector of each text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from ...model.encoder import Encoder
from ...model.heads import ClassificationHead, cross_entropy_sum, next_piece_loss_sum
from ...packed import Batch, Packed, Padded
from ..pooled import Pooling, in_one, row_logits
from ..task import Network

if TYPE_CHECKING:
    from ...model.config import EncoderConfig


class ClassificationNetwork(Network):
    """An encoder with a classification head on its pooler.

    Args:
        config: the geometry.
        num_labels: how many classes there are.
        dropout: before the output layer; `config.classifier_dropout`, if left out.
        multi_label: whether a row may have any number of classes.
        class_weights: what a row of each class counts in the loss; 1, if left out.
        label_smoothing: share of the target that is spread over all classes.
        lm_weight: of the auxiliary loss of guessing each next piece (Radford et al. 2018, §3.2).
        pooling: of the logits of a row's sequences, where it has several.
    """

    def __init__(
        self,
        config: EncoderConfig,
        num_labels: int,
        dropout: float | None = None,
        *,
        multi_label: bool = False,
        class_weights: Sequence[float] | None = None,
        label_smoothing: float = 0.0,
        lm_weight: float = 0.0,
        pooling: Pooling = "mean",
    ) -> None:
        super().__init__()
        self.lm_weight, self.pooling = lm_weight, pooling
        self.encoder = Encoder(config, pooler=config.has_pooler)
        self.head = ClassificationHead(config, num_labels, dropout)
        self._multi_label, self._smoothing = multi_label, label_smoothing
        self._weights = class_weights

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """The summed cross-entropies of the rows: `classification` (and `weighted_lm`)."""
        packed, lm = batch.packed, None
        if self.lm_weight:
            hidden = self.encoder(packed)
            lm = next_piece_loss_sum(self.encoder, hidden, packed)
            logits = in_one(self.head(self.encoder, hidden, packed), packed, self.pooling)
        else:
            logits = self._logits(packed)
        labels = batch.targets["labels"]
        if self._multi_label:
            loss = multi_label_loss_sum(logits, labels, self._weights_like(logits))
        elif self._weights is None and not self._smoothing:
            loss = cross_entropy_sum(logits, labels)
        else:
            # Each row by its class's weight, then summed: PyTorch's own weighting of smoothed
            # targets weighs the classes, not the rows.
            rows = F.cross_entropy(
                logits.float() if logits.dtype == torch.bfloat16 else logits,
                labels,
                reduction="none",
                label_smoothing=self._smoothing,
            )
            weights = self._weights_like(rows)
            loss = (rows if weights is None else rows * weights[labels]).sum()
        losses = {"classification": loss}
        if lm is not None:
            losses["weighted_lm"] = self.lm_weight * lm
        return losses

    def predict(self, batch: Batch) -> dict[str, Tensor]:
        """`logits` `[rows, num_labels]`."""
        return {"logits": self._logits(batch.packed)}

    def padded(self, padded: Padded) -> dict[str, Tensor]:
        """`logits` `[rows, num_labels]`."""
        return {"logits": self.head(self.encoder, self.encoder(padded), padded)}

    def _weights_like(self, values: Tensor) -> Tensor | None:
        if self._weights is None:
            return None
        return torch.tensor(self._weights, device=values.device, dtype=torch.float32)

    def _logits(self, packed: Packed) -> Float[Tensor, "rows num_labels"]:
        return row_logits(self.encoder, self.head, packed, self.pooling)


def multi_label_loss_sum(
    logits: Float[Tensor, "rows classes"],
    labels: Float[Tensor, "rows classes"],
    weights: Float[Tensor, " classes"] | None = None,
) -> Float[Tensor, ""]:
    """The sum over rows of the mean over classes of the binary cross-entropies.

    `weights` are of a class's positive rows.
    """
    sums = torch.promote_types(logits.dtype, torch.float32)
    each = F.binary_cross_entropy_with_logits(
        logits.to(sums), labels.to(sums), pos_weight=weights, reduction="none"
    )
    return each.mean(-1).sum()
