"""Next-sentence prediction alone: checkpoints that have this head and none for masked words.

`transformers` saves them with `BertForNextSentencePrediction`. Source: paper §3.1, Task #2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

from numpy.typing import NDArray

from ...checkpoints.heads import MLM, NSP, PublishedCheckpoint
from ...nn.config import EncoderConfig
from ...nn.head_layouts import HeadLayout
from ...packed import Batch, to_array
from ..array_network import ArrayNetwork
from ..probabilities import softmax
from ..task import Outputs, Prediction
from .instances import InstanceSettings
from .task import PretrainingTask, next_sentence_layouts

if TYPE_CHECKING:
    from .network import NextSentenceNetwork
else:
    NextSentenceNetwork = Any


class NextSentenceTask(PretrainingTask):
    """Next-sentence prediction: whether the second text of a pair follows the first."""

    name: ClassVar[str] = "next-sentence"
    has_masked_lm = False

    @property
    def model_class(self) -> str:
        return "next-sentence"

    @classmethod
    def from_published_checkpoint(cls, checkpoint: PublishedCheckpoint) -> Self | None:
        family, tensors = checkpoint.family, checkpoint.tensors
        has_head = family.has(f"{NSP.name}.weight", tensors)
        if not has_head or family.has(f"{MLM.name}.bias", tensors):
            return None
        instances = InstanceSettings(format="segment-pair")
        return cls(checkpoint.tokenizer, instances, max_length=checkpoint.config.max_seqlen)

    # Of another class.
    def network(self, config: EncoderConfig) -> NextSentenceNetwork:  # type: ignore[override]
        """A new network."""
        from .network import NextSentenceNetwork

        return NextSentenceNetwork(config)

    def head_layouts(self, config: EncoderConfig) -> Mapping[str, HeadLayout]:
        return next_sentence_layouts(config)

    def compute(self, network: ArrayNetwork, batch: Batch) -> dict[str, NDArray[Any]]:
        hidden = network.hidden(batch.packed)
        return {"nsp_logits": network.head(NSP.name, hidden, batch.packed)}

    def decode(self, outputs: Outputs, batch: Batch) -> dict[int, Prediction]:
        """For each pair the `next_sentence_probability`: whether B follows A."""
        packed = batch.packed
        probabilities = softmax(to_array(outputs["nsp_logits"]))[:, 0].tolist()
        is_pair = packed.on_host.token_type_ids[packed.on_host.last_tokens].tolist()
        return {
            row: {"next_sentence_probability": probability} if pair else {}
            for row, pair, probability in zip(
                packed.on_host.sequence_row.tolist(), is_pair, probabilities, strict=True
            )
        }
