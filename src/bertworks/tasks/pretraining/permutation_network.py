"""The network of permutation language modelling, with two streams."""

from __future__ import annotations

from torch import Tensor

from ...errors import CheckpointError
from ...nn.config import EncoderConfig
from ...nn.two_stream import Steps, query_stream
from ...packed import Batch, Padded
from .network import PretrainingNetwork


class PermutationNetwork(PretrainingNetwork):
    """An encoder of two streams with a head that predicts tokens."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config, next_sentence=False)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Return `mlm`, the summed loss of the predicted tokens."""
        return {"mlm": self.mlm_head.loss_sum(self._vectors(batch), batch.targets["masked_labels"])}

    def predict(self, batch: Batch) -> dict[str, Tensor]:
        """Return `mlm_logits` `[masked, vocab_size]`."""
        return {"mlm_logits": self.mlm_head(self._vectors(batch))}

    def padded(self, padded: Padded) -> dict[str, Tensor]:  # noqa: ARG002
        """Refuse: other engines have no query stream.

        Raises:
            CheckpointError: always.
        """
        raise CheckpointError(
            "a permutation language model has two streams, and is not exported with its head",
            fix="Fine-tune it first, or export its encoder for vectors.",
        )

    def _vectors(self, batch: Batch) -> Tensor:
        """The last vectors of the query stream: `[masked, hidden_size]`."""
        positions, order = batch.targets["masked_positions"], batch.targets["order"]
        encoder = self.encoder
        assert encoder.mask_vector is not None
        queries = encoder.mask_vector[0].expand(len(positions), -1)
        queries = encoder.embeddings.dropout(queries)
        return query_stream(encoder, batch.packed, Steps.from_order(positions, order), queries)
