"""The networks of pre-training: an encoder with heads for masked tokens and next sentences."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...errors import CheckpointError
from ...nn.config import EncoderConfig
from ...nn.encoder import Encoder
from ...nn.heads import MLMHead, NSPHead
from ...nn.losses import cross_entropy_sum
from ...nn.two_stream import Steps, query_stream
from ...packed import Batch, Padded
from ..network import Network, reshape_by_row


class PretrainingNetwork(Network):
    """An encoder with a masked-language-model head and optionally a next-sentence head.

    Args:
        next_sentence: whether there is a next-sentence head, with a pooler.
        causal: whether each next token is predicted; if None, true unless attention is
            bidirectional.
    """

    has_array_form = True

    def __init__(
        self, config: EncoderConfig, *, next_sentence: bool = True, causal: bool | None = None
    ) -> None:
        super().__init__()
        self.encoder = Encoder(config.with_global_tokens("none"), pooler=next_sentence)
        word_embeddings = self.encoder.embeddings.word_embeddings.weight
        assert isinstance(word_embeddings, nn.Parameter)
        self.mlm_head = MLMHead(config, word_embeddings)
        self.nsp_head = NSPHead(config) if next_sentence else None
        is_causal = config.attention != "bidirectional" if causal is None else causal
        self.loss_name = "lm" if is_causal else "mlm"

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Return the summed losses: `mlm` (or `lm`) over predicted tokens, `nsp` over sequences.

        For a two-way encoder, `lm` is the sum of both directions' losses (Peters et al. 2018,
        §3.1).
        """
        hidden = self.encoder(batch.packed)
        positions, labels = (batch.targets[f"masked_{name}"] for name in ("positions", "labels"))
        masked = hidden.index_select(0, positions)
        if self.encoder.config.attention == "two-way":
            next_hidden = hidden.index_select(
                0, positions + 1
            )  # its second half predicts backwards
            halves = masked.chunk(2, -1)[0], next_hidden.chunk(2, -1)[1]
            masked, labels = (
                torch.cat(halves),
                torch.cat([labels, batch.packed.input_ids[positions]]),
            )
        losses = {self.loss_name: self.mlm_head.loss_sum(masked, labels)}
        if self.nsp_head is not None:
            logits = self.nsp_head(self.encoder.pool(hidden, batch.packed))
            losses["nsp"] = cross_entropy_sum(logits, batch.targets["next_sentence_labels"])
        return losses

    def predict(self, batch: Batch) -> dict[str, Tensor]:
        """Return `mlm_logits` `[masked, vocab_size]`, and with a next-sentence head `nsp_logits`
        `[sequences, 2]`."""
        hidden = self.encoder(batch.packed)
        masked = hidden.index_select(0, batch.targets["masked_positions"])
        outputs = {"mlm_logits": self.mlm_head(masked)}
        if self.nsp_head is not None:
            outputs["nsp_logits"] = self.nsp_head(self.encoder.pool(hidden, batch.packed))
        return outputs

    def padded(self, padded: Padded) -> dict[str, Tensor]:
        """Return `logits` `[rows, length, vocab_size]`; with a next-sentence head, these are named
        `prediction_logits`, and there are also `seq_relationship_logits` `[rows, 2]`."""
        hidden = self.encoder(padded)
        logits = reshape_by_row(self.mlm_head(hidden), padded)
        if self.nsp_head is None:
            return {"logits": logits}
        pairs = self.nsp_head(self.encoder.pool(hidden, padded))
        return {"prediction_logits": logits, "seq_relationship_logits": pairs}


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


class NextSentenceNetwork(Network):
    """An encoder with a pooler and a next-sentence head."""

    has_array_form = True

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.encoder = Encoder(config, pooler=True)
        self.nsp_head = NSPHead(config)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Return the summed loss `nsp` over sequences."""
        logits = self.predict(batch)["nsp_logits"]
        return {"nsp": cross_entropy_sum(logits, batch.targets["next_sentence_labels"])}

    def predict(self, batch: Batch) -> dict[str, Tensor]:
        """Return `nsp_logits` `[sequences, 2]`."""
        hidden = self.encoder(batch.packed)
        return {"nsp_logits": self.nsp_head(self.encoder.pool(hidden, batch.packed))}

    def padded(self, padded: Padded) -> dict[str, Tensor]:
        """Return `logits` `[rows, 2]`."""
        return {"logits": self.nsp_head(self.encoder.pool(self.encoder(padded), padded))}
