"""Replaced-token detection: predict for each token of a text whether it was replaced.

    masked text ─► generator ─► a piece drawn for each masked token ─► discriminator ─► replaced?
                      └ mlm                                                └ rtd, over all tokens

This is ELECTRA's objective. Both networks are trained together, on the sum of the generator's
masked-language-model loss and the discriminator's weighted loss. No gradient flows through the
drawing of pieces. The networks share their embeddings. The discriminator is the model that is
saved.

Source: Clark et al. (2020, arXiv 2003.10555), §2 and §3.2; the original code for which embeddings
are shared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ...checkpoints.heads import RTD, PublishedCheckpoint
from ...data.rows import Row
from ...errors import SettingsError
from ...nn.config import EncoderConfig
from ...nn.head_layouts import HeadLayout, replaced_token_layout
from ...packed import Batch, to_array
from ...settings.base import Settings
from ...text.encoding import Encoding
from ...text.tokenizer import Tokenizer
from ..array_network import ArrayNetwork, head_outputs
from ..task import Outputs, Prediction, Task
from ..texts import sigmoid
from . import hashing
from .instances import InstanceSettings, instances_without_pairs
from .masking import MaskingSettings
from .settings import DRAW_BITS, ReplacedTokensSettings
from .source import PretrainingExample
from .task import PretrainingTask, encode_row

if TYPE_CHECKING:
    from .discriminator import DiscriminatorNetwork
    from .evaluator import ReplacedTokensEvaluator
else:
    DiscriminatorNetwork = ReplacedTokensEvaluator = Any

_SAMPLE = np.uint64(4 << 60)  # mixed into a token's bits; masking.py uses 1 to 3


@dataclass(frozen=True, eq=False, slots=True)
class TypedText(PretrainingExample):
    """A text whose tokens are classified; `encoding` has their offsets."""

    encoding: Encoding | None = None


class _Description(Settings):
    """The output of `ReplacedTokensTask.to_dict`."""

    instances: InstanceSettings
    masking: MaskingSettings
    replaced_tokens: ReplacedTokensSettings
    max_length: int = Field(ge=1)


class ReplacedTokensTask(Task[PretrainingExample]):
    """Replaced-token detection: predict which tokens of a text are not the original ones.

    Examples for training come from a `PretrainingSource`. Examples for prediction come from rows
    with a `text` and possibly a `pair`.

    Args:
        instances: the format of the instances; it must not have pairs.
        masking: which tokens the generator predicts.
        settings: those of generator and discriminator.
        max_length: maximum tokens of a row.

    Attributes:
        masked_lm: the generator's task.

    Raises:
        SettingsError: the format has pairs.
    """

    name: ClassVar[str] = "replaced-tokens"
    head = RTD
    best_metric = "loss"
    lower_is_better: ClassVar[frozenset[str]] = PretrainingTask.lower_is_better | {"rtd_loss"}

    def __init__(
        self,
        tokenizer: Tokenizer,
        instances: InstanceSettings | None = None,
        masking: MaskingSettings | None = None,
        settings: ReplacedTokensSettings | None = None,
        *,
        max_length: int = 512,
    ) -> None:
        self.tokenizer, self.max_length = tokenizer, max_length
        self.settings = settings or ReplacedTokensSettings()
        instances = instances_without_pairs(instances, "replaced_tokens")
        self.masked_lm = PretrainingTask(tokenizer, instances, masking, max_length=max_length)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], tokenizer: Tokenizer) -> Self:
        described = dict(_Description.parse(values))
        return cls(tokenizer, settings=described.pop("replaced_tokens"), **described)

    def to_dict(self) -> dict[str, Any]:
        masked = self.masked_lm.to_dict()
        return {
            "instances": masked["instances"],
            "masking": masked["masking"],
            "replaced_tokens": self.settings.model_dump(mode="json"),
            "max_length": self.max_length,
        }

    @classmethod
    def from_published_checkpoint(cls, checkpoint: PublishedCheckpoint) -> Self | None:
        if not checkpoint.family.has(f"{RTD.name}.dense.weight", checkpoint.tensors):
            return None
        return cls(checkpoint.tokenizer, max_length=checkpoint.config.max_seqlen)

    def network(self, config: EncoderConfig) -> DiscriminatorNetwork:
        """A new discriminator; `with_generator` prepares it for training.

        Raises:
            SettingsError: its attention is not bidirectional.
        """
        from .discriminator import DiscriminatorNetwork

        if config.attention != "bidirectional":
            raise SettingsError(
                f"attention={config.attention!r}: replaced tokens are predicted from both sides"
            )
        return DiscriminatorNetwork(config)

    def head_layouts(self, config: EncoderConfig) -> Mapping[str, HeadLayout] | None:
        is_bidirectional = config.attention == "bidirectional"
        return {RTD.name: replaced_token_layout(config)} if is_bidirectional else None

    def is_computed_by_arrays(self, batch: Batch) -> bool:
        # Instances have many tokens to predict, which PyTorch does faster.
        return "masked_labels" not in batch.targets

    def compute(self, network: ArrayNetwork, batch: Batch) -> dict[str, NDArray[Any]]:
        return {"rtd_logits": head_outputs(network, RTD.name, batch.packed)[:, 0]}

    def example(
        self, row: Row, index: int, *, where: str | None = None, labelled: bool = True
    ) -> TypedText:
        """The example of a text or a pair, to classify its tokens; nothing is masked."""
        del labelled  # the original text is unknown
        encoding, first_segment = encode_row(
            self.tokenizer, row, where, self.max_length, typed_mask=False
        )
        return TypedText(encoding.input_ids, first_segment, index=index, encoding=encoding)

    def collate(self, examples: Sequence[PretrainingExample]) -> Batch:
        """Pack examples in order of length, and mask those that have a key.

        For those, `targets` are `masked_positions`, `masked_labels` and `draws`, each `[masked]`.
        `draws` are the random integers that replacements are drawn from: below 2 ** `DRAW_BITS`,
        and a pure function of the sequence's key and the token's position in it. `counts` are
        `mlm` and `weighted_rtd`.
        """
        batch = self.masked_lm.collate(examples)
        packed, positions = batch.packed, batch.targets["masked_positions"]
        if "masked_labels" not in batch.targets:
            return Batch(packed, examples=examples)
        sequence = np.searchsorted(packed.cu_seqlens, positions, side="right") - 1
        keys = [examples[at].key for at in packed.sequence_row[sequence]]
        bits = hashing.draw(np.array(keys, np.uint64), packed.position_ids[positions])
        draws = hashing.mix(bits ^ _SAMPLE) >> np.uint64(64 - DRAW_BITS)
        targets = {**batch.targets, "draws": draws.astype(np.int64)}
        return Batch(packed, targets, {**batch.counts, "weighted_rtd": packed.num_tokens})

    def decode(self, outputs: Outputs, batch: Batch) -> dict[int, Prediction]:
        """For each row `tokens`, and `pair_tokens` for pairs: the probabilities of replacement.

        Each is a list of entries `token`, `start`, `end` (characters of its text) and
        `probability`, without special tokens.
        """
        probabilities = [*map(sigmoid, to_array(outputs["rtd_logits"]).tolist())]
        parts = [probabilities[tokens] for tokens in batch.packed.slices]
        rows = batch.packed.on_host.sequence_row.tolist()
        row_probabilities = dict(zip(rows, parts, strict=True))
        answers: dict[int, Prediction] = {}
        for example in batch.examples:
            assert isinstance(example, TypedText) and example.encoding is not None
            encoding, row = example.encoding, example.index
            tokens: list[list[dict[str, Any]]] = [[], []]
            for token_number in np.flatnonzero(~encoding.special_tokens_mask).tolist():
                start, end = encoding.offsets[token_number].tolist()
                tokens[token_number >= example.first_segment].append(
                    {
                        "token": self.tokenizer.id_to_token(int(encoding.input_ids[token_number])),
                        "start": start,
                        "end": end,
                        "probability": row_probabilities[row][token_number],
                    }
                )
            answers[row] = {"tokens": tokens[0]}
            if example.first_segment < example.num_tokens:
                answers[row]["pair_tokens"] = tokens[1]
        return answers

    def evaluator(self) -> ReplacedTokensEvaluator:
        from .evaluator import ReplacedTokensEvaluator

        return ReplacedTokensEvaluator(self.settings.weight)
