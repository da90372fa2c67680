"""Masked and permuted language modelling: predict tokens in a random order, and see all positions.

As in permutation language modelling, each predicted token sees the context and the predicted tokens
before it in a random order. Besides, it sees a [MASK] at the position of each token that is not yet
predicted, its own included: so it knows how long the text is, as in masked language modelling and
in fine-tuning. This is MPNet's objective.

A sequence of the network's input is the text, then a copy of each predicted token's position, with
[MASK], a random piece or the token itself, as in masked language modelling:

    The  cat  sat  on  it  [MASK] [MASK]        predicted: sat, then cat
     0    1    2   3   4     1      2           position
     0    2    1   0   0     0      0           seen from this step on
     ∞    ∞    ∞   ∞   ∞     1      0           up to this step

The model that is saved predicts [MASK]s as every other: all of them at step 0.

Source: Song et al. (2020), "MPNet", §2.2 and §2.3, and the original code for the masks of the
content stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
from torch import Tensor

from ...errors import SettingsError
from ...nn.config import EncoderConfig
from ...nn.encoder import Encoder
from ...nn.two_stream import Steps, query_stream
from ...packed import Batch, Packed
from ..network import Network
from .network import PretrainingNetwork
from .permutation import draw_order
from .source import PretrainingExample
from .task import PretrainingTask

_FOREVER = np.iinfo(np.int64).max


class MaskedPermutationNetwork(Network):
    """A masked language model whose tokens are predicted in a random order while it is trained.

    Args:
        model: the network that is saved.

    Raises:
        SettingsError: its encoder cannot compute a second stream.
    """

    def __init__(self, model: PretrainingNetwork) -> None:
        super().__init__()
        check_encoder(model.encoder.config)
        self.model = model

    @property
    def encoder(self) -> Encoder:  # type: ignore[override]  # a property, which nothing sets
        """The model's encoder."""
        return self.model.encoder

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Return `mlm`, the summed loss of the predicted tokens."""
        labels = batch.targets["masked_labels"]
        return {"mlm": self.model.mlm_head.loss_sum(self._vectors(batch), labels)}

    def predict(self, batch: Batch) -> dict[str, Tensor]:
        """Return `mlm_logits` `[masked, vocab_size]`."""
        return {"mlm_logits": self.model.mlm_head(self._vectors(batch))}

    def _vectors(self, batch: Batch) -> Tensor:
        """The last vectors of the query stream: `[masked, hidden_size]`.

        It begins with the embeddings of the masked copies, as the content stream does.
        """
        targets, packed = batch.targets, batch.packed
        positions, first, last = (
            targets[name] for name in ("masked_positions", "first_steps", "last_steps")
        )
        # A token sees itself from its first step on, and a masked copy sees what the context does.
        steps = Steps(positions, last[positions], first, first, last)
        queries = self.encoder.embeddings(packed).index_select(0, positions)
        return query_stream(self.encoder, packed, steps, queries)


class MaskedPermutationTask(PretrainingTask):
    """Masked and permuted language modelling, while a model is trained."""

    name: ClassVar[str] = "masked-permutation"

    def collate(self, examples: Sequence[PretrainingExample]) -> Batch:
        """Pack examples in order of length, each with masked copies of its predicted tokens.

        `targets` are `masked_positions`, the indices of the masked copies, `masked_labels`, and
        `first_steps` and `last_steps` `[tokens]`: the steps at which a token is seen.
        """
        batch = super().collate(examples)
        packed, positions = batch.packed, batch.targets["masked_positions"]
        numbers = draw_order(batch, examples)
        sequence = np.searchsorted(packed.cu_seqlens, positions, side="right") - 1
        lengths = packed.lengths
        counts = np.bincount(sequence, minlength=len(lengths))
        # Where each row of the longer sequences is from: the texts' tokens, and then the copies.
        starts = np.cumsum(lengths + counts) - (lengths + counts)
        tokens = np.arange(packed.num_tokens)
        of_tokens = tokens + np.repeat(starts - packed.cu_seqlens[:-1], lengths)
        rank = np.arange(len(positions)) - np.repeat(np.cumsum(counts) - counts, counts)
        of_copies = starts[sequence] + lengths[sequence] + rank
        source = np.empty(len(tokens) + len(positions), np.int64)
        source[of_tokens], source[of_copies] = tokens, positions
        input_ids = packed.input_ids[source]
        input_ids[of_tokens[positions]] = batch.targets["masked_labels"]
        first, last = np.zeros_like(source), np.full_like(source, _FOREVER)
        first[of_tokens[positions]] = numbers
        last[of_copies] = numbers - 1
        edges = np.cumsum(lengths + counts)
        longer = Packed.from_arrays(
            np.split(input_ids, edges[:-1]),
            np.split(packed.token_type_ids[source], edges[:-1]),
            rows=packed.sequence_row,
            numbers=packed.sequence_number,
        )
        targets = {
            "masked_positions": of_copies,
            "masked_labels": batch.targets["masked_labels"],
            "first_steps": first,
            "last_steps": last,
        }
        return Batch(
            replace(longer, position_ids=packed.position_ids[source]), targets, batch.counts
        )


def check_encoder(config: EncoderConfig) -> None:
    """Check that an encoder can compute a second stream of attention.

    Raises:
        SettingsError: it has a part whose terms are not known for tokens at any positions.
    """
    bias = config.score_bias
    reasons = {
        "attention": not config.has_heads or config.attention != "bidirectional",
        "local_attention": config.local_attention is not None,
        "convolution": config.convolution is not None,
        "bottleneck": config.bottleneck is not None,
        "num_key_value_heads": config.num_key_heads != config.num_attention_heads,
        "zeroed_token_id": config.zeroed_token_id is not None,
        "score_bias": bias is not None and not bias.has_numbers_only,
    }
    for name, is_unsuitable in reasons.items():
        if is_unsuitable:
            raise SettingsError(
                f"model.{name}={getattr(config, name)} does not fit objective=masked_permutation",
                fix="Take model.family=mpnet, for which it was made.",
            )
