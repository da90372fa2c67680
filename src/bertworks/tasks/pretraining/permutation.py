"""Permutation language modelling: predict tokens in a random order, each from those before it.

A share of a sequence's tokens is predicted; the others are their context. Each predicted token sees
the context, and the predicted tokens that come before it in a random order, wherever they are in
the text. So the model learns from both sides without a [MASK] in its input, and learns how
predicted tokens depend on each other.

A text's [MASK]s are predicted in the same way: each sees all other tokens, but no [MASK].

Source: Yang et al. (2019), "XLNet", §2.2 to §2.4. As in the original code, tokens of the context
see all of the context. Unlike there, special pieces always belong to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ...errors import SettingsError
from ...nn.config import EncoderConfig
from ...packed import Batch
from ...text.tokenizer import Tokenizer
from . import hashing
from .instances import InstanceSettings, instances_without_pairs
from .masking import MaskingSettings
from .settings import PREDICTED_SHARE
from .source import PretrainingExample
from .task import PretrainingTask

if TYPE_CHECKING:
    from .network import PermutationNetwork
else:
    PermutationNetwork = Any

_ORDER = np.uint64(5 << 60)  # mixed into a token's bits; other modules use 1 to 4


class PermutationTask(PretrainingTask):
    """Permutation language modelling.

    Args:
        instances: the format of the instances; it must not have pairs.
        masking: which tokens are predicted; nothing is replaced.

    Raises:
        SettingsError: the format has pairs.
    """

    name: ClassVar[str] = "permutation"
    has_two_streams = True

    def __init__(
        self,
        tokenizer: Tokenizer,
        instances: InstanceSettings | None = None,
        masking: MaskingSettings | None = None,
        *,
        causal: bool = False,
        max_length: int = 512,
        top_k: int = 5,
    ) -> None:
        instances = instances_without_pairs(instances, "permutation language modelling")
        masking = masking or MaskingSettings(mlm_probability=PREDICTED_SHARE)
        if causal:
            raise SettingsError("causal=true does not fit objective=permutation")
        super().__init__(tokenizer, instances, masking, max_length=max_length, top_k=top_k)

    def network(self, config: EncoderConfig) -> PermutationNetwork:
        """A new network.

        Raises:
            SettingsError: the encoder has no query stream.
        """
        from .network import PermutationNetwork

        if not config.is_transformer_xl:
            raise SettingsError(
                f"family={config.family}: the model has no query stream",
                fix="objective=permutation needs model.family=xlnet.",
            )
        return PermutationNetwork(config)

    def collate(self, examples: Sequence[PretrainingExample]) -> Batch:
        """Pack examples in order of length, and choose what is predicted, and in which order.

        `targets` are those of `PretrainingTask`, and `order` `[tokens]`: 0 for the context, and the
        number of each predicted token in its sequence's order, from 1. All [MASK]s of a text have
        the number 1.
        """
        batch = super().collate(examples)
        packed, positions = batch.packed, batch.targets["masked_positions"]
        order = np.zeros(packed.num_tokens, np.int64)
        if "masked_labels" not in batch.targets:
            order[positions] = 1
            return Batch(packed, {**batch.targets, "order": order}, batch.counts)
        input_ids = packed.input_ids.copy()
        input_ids[positions] = batch.targets["masked_labels"]  # nothing is replaced
        order[positions] = draw_order(batch, examples)
        packed = replace(packed, input_ids=input_ids)
        return Batch(packed, {**batch.targets, "order": order}, batch.counts)


def draw_order(batch: Batch, examples: Sequence[PretrainingExample]) -> np.ndarray:
    """Return each predicted token's number in the random order of its sequence, from 1.

    The order is a pure function of the sequence's key and the tokens' positions in it.

    Args:
        batch: of instances, as `PretrainingTask` collates them.
        examples: the instances.
    """
    packed, positions = batch.packed, batch.targets["masked_positions"]
    sequence = np.searchsorted(packed.cu_seqlens, positions, side="right") - 1
    keys = [examples[at].key for at in packed.sequence_row[sequence]]
    bits = hashing.draw(np.array(keys, np.uint64), packed.position_ids[positions])
    ranks = np.lexsort((hashing.mix(bits ^ _ORDER), sequence))
    counts = np.bincount(sequence, minlength=packed.num_sequences)
    numbers = np.empty_like(ranks)
    numbers[ranks] = 1 + np.arange(len(positions)) - np.repeat(counts.cumsum() - counts, counts)
    return numbers
