"""Pre-training as a task: predict the masked tokens, and whether B follows A.

The loss is the sum of two mean losses (paper §3.1 and §A.2): the mean over all masked tokens, and
the mean over all sequences. An encoder whose tokens attend only to earlier tokens
(`attention: causal`) predicts each next token instead, and nothing is masked: the paper's
"left-to-right" baseline (§5.1), and GPT.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ...checkpoints.heads import MLM, NSP, POOLER, RTD, PublishedCheckpoint
from ...data.rows import Row, Rows
from ...errors import DataError, SettingsError
from ...nn.config import EncoderConfig
from ...nn.head_layouts import (
    HeadLayout,
    masked_lm_layout,
    next_sentence_layout,
    pooler_layout,
)
from ...packed import Batch, Packed, to_array
from ...settings.base import Settings
from ...text.encoding import Encoding
from ...text.tokenizer import Tokenizer
from ..array_network import ArrayNetwork
from ..probabilities import softmax
from ..task import Outputs, Prediction, Task
from .instances import Format, InstanceSettings
from .masking import MaskedSequences, Masker, MaskingSettings
from .source import PretrainingExample

if TYPE_CHECKING:
    from jaxtyping import Float

    from .evaluator import PretrainingEvaluator
    from .network import PretrainingNetwork
else:
    PretrainingEvaluator = PretrainingNetwork = Any


def encode_row(
    tokenizer: Tokenizer, row: Row, where: str | None, max_length: int, *, typed_mask: bool
) -> tuple[Encoding, int]:
    """Encode the `text` (and `pair`) of a row; also return the number of tokens of token type 0.

    Args:
        typed_mask: whether `[MASK]` in the text becomes the mask token.

    Raises:
        DataError: the row has no text, or it is longer than `max_length`.
    """
    text, pair = row.get("text"), row.get("pair")
    if not isinstance(text, str) or not isinstance(pair, str | None):
        raise DataError("the row has no text", where=where, fix="Give it as 'text'.")
    (encoding,) = tokenizer.encode_batch(
        [text],
        None if pair is None else [pair],
        max_length=max_length,
        typed_mask=typed_mask,
        where=[where or "text"],
    )
    return encoding, int((encoding.token_type_ids == 0).sum())


class _Description(Settings):
    """The output of `PretrainingTask.to_dict`."""

    instances: InstanceSettings
    masking: MaskingSettings
    causal: bool = False
    max_length: int = Field(ge=1)


class PretrainingTask(Task[PretrainingExample]):
    """Masked-language modelling, and next-sentence prediction where the format has pairs.

    Examples for training come from a `PretrainingSource`. Examples for prediction come from rows
    with a `text` and possibly a `pair`, in which each `[MASK]` is predicted.

    Args:
        instances: the format of the instances; decides whether there is a next-sentence head.
        causal: whether each next token is predicted, instead of masked tokens.
        max_length: maximum tokens of a row.
        top_k: number of pieces that are predicted for each `[MASK]` of a row.
    """

    name: ClassVar[str] = "pretraining"
    has_masked_lm: ClassVar[bool] = True  # or, if the task is causal, a head for the next token
    has_two_streams: ClassVar[bool] = False  # whether queries do not know their tokens (XLNet)
    best_metric = "loss"
    lower_is_better: ClassVar[frozenset[str]] = frozenset(
        {"loss", "mlm_loss", "mlm_perplexity", "lm_loss", "lm_perplexity", "nsp_loss"}
    )

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
        self.tokenizer = tokenizer
        self.causal = causal
        self.instances = instances or InstanceSettings()
        self.masking = masking or MaskingSettings()
        self.max_length = max_length
        self.top_k = top_k
        self._masker = None if causal else Masker(self.masking, tokenizer)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], tokenizer: Tokenizer) -> Self:
        return cls(tokenizer, **dict(_Description.parse(values)))

    def to_dict(self) -> dict[str, Any]:
        return {
            "instances": self.instances.model_dump(mode="json"),
            "masking": self.masking.model_dump(mode="json"),
            "causal": self.causal,
            "max_length": self.max_length,
        }

    @property
    def model_class(self) -> str:
        return (NSP if self.instances.next_sentence else MLM).model_class

    @classmethod
    def from_published_checkpoint(cls, checkpoint: PublishedCheckpoint) -> Self | None:
        config, family = checkpoint.config, checkpoint.family
        if not _has_mlm_head(checkpoint) or config.is_transformer_xl != cls.has_two_streams:
            return None
        if family.has(f"{RTD.name}.dense.weight", checkpoint.tensors):
            return None  # DeBERTa v3: the head of masked words is its generator's
        pairs: Format = "sentence-order" if config.family == "albert" else "segment-pair"
        has_pairs = family.has(f"{NSP.name}.weight", checkpoint.tensors)
        return cls(
            checkpoint.tokenizer,
            InstanceSettings(format=pairs if has_pairs else "full-sentences"),
            causal=config.attention != "bidirectional",
            max_length=config.max_seqlen,
        )

    def network(self, config: EncoderConfig) -> PretrainingNetwork:
        """A new network.

        Raises:
            SettingsError: attention is not bidirectional, but masked tokens are to be predicted.
        """
        from .network import PretrainingNetwork

        if config.attention != "bidirectional" and not self.causal:
            raise SettingsError(f"attention={config.attention!r} does not fit the objective")
        return PretrainingNetwork(
            config, next_sentence=self.instances.next_sentence, causal=self.causal
        )

    def head_layouts(self, config: EncoderConfig) -> Mapping[str, HeadLayout] | None:
        if self.causal or config.attention != "bidirectional" or self.has_two_streams:
            return None
        layouts = {MLM.name: masked_lm_layout(config)}
        if not self.instances.next_sentence:
            return layouts
        return {**layouts, **next_sentence_layouts(config)}

    def is_computed_by_arrays(self, batch: Batch) -> bool:
        # Instances have many tokens to predict, which PyTorch does faster.
        return "masked_labels" not in batch.targets

    def compute(self, network: ArrayNetwork, batch: Batch) -> dict[str, NDArray[Any]]:
        hidden = network.hidden(batch.packed)
        masked = hidden[batch.targets["masked_positions"]]
        outputs = {"mlm_logits": network.head(MLM.name, masked, None)}
        if self.instances.next_sentence:
            outputs["nsp_logits"] = network.head(NSP.name, hidden, batch.packed)
        return outputs

    def for_table(self, rows: Rows, *, labelled: bool) -> Self:
        """The same task.

        Raises:
            DataError: `labelled` is true; tables have no targets for this task.
        """
        if labelled:
            raise DataError(
                "the model is only pre-trained, and is evaluated on the output of `bertworks "
                "prepare`",
                where=rows.name,
                fix="Give that directory, or a model that was fine-tuned.",
            )
        return self

    def example(
        self, row: Row, index: int, *, where: str | None = None, labelled: bool = True
    ) -> PretrainingExample:
        """The example of a text or a pair, to predict its `[MASK]`s; nothing else is masked."""
        del labelled  # the original word of a [MASK] is unknown
        encoding, first_segment = encode_row(
            self.tokenizer, row, where, self.max_length, typed_mask=True
        )
        return PretrainingExample(encoding.input_ids, first_segment, index=index)

    def collate(self, examples: Sequence[PretrainingExample]) -> Batch:
        """Pack examples in order of length, and mask those that have a key.

        `targets` are `masked_positions` `[masked]` (indices in the pack) and, for instances,
        `masked_labels` `[masked]` and, if the format has pairs, `next_sentence_labels`
        `[sequences]`. `counts` are `mlm` (or `lm`) and `nsp`. If the task is causal, nothing is
        masked: `masked_positions` are all tokens except the last of each sequence, and
        `masked_labels` the tokens after them.
        """
        lengths = np.fromiter((len(x.input_ids) for x in examples), np.int64, len(examples))
        order = np.argsort(lengths, kind="stable").tolist()
        first_segments = np.array([examples[at].first_segment for at in order])
        position = np.concatenate([np.arange(lengths[at]) for at in order])
        ids = np.concatenate([examples[at].input_ids for at in order])
        types = (position >= np.repeat(first_segments, lengths[order])).astype(np.int64)
        for number, kind in self.tokenizer.special_types:
            types[ids == number] = kind
        packed = Packed.from_arrays(
            [examples[at].input_ids for at in order],
            [types],
            rows=[at if examples[at].index < 0 else examples[at].index for at in order],
        )
        keys = [key for at in order if (key := examples[at].key) is not None]
        if self._masker is None:  # causal
            is_predicted = np.ones(packed.num_tokens, np.bool_)
            is_predicted[packed.last_tokens] = False
            positions = np.flatnonzero(is_predicted)
            masked = MaskedSequences(packed.input_ids, positions, packed.input_ids[positions + 1])
        elif not keys:
            positions = np.flatnonzero(packed.input_ids == self.tokenizer.mask_id)
            return Batch(packed, {"masked_positions": positions})
        else:
            assert len(keys) == len(order), "instances and typed rows are not mixed in a batch"
            units = None
            if self.masking.unit == "knowledge":
                unit_parts = [
                    part for at in order if (part := examples[at].continues_unit) is not None
                ]
                assert len(unit_parts) == len(order), "the source was asked for units"
                units = np.concatenate(unit_parts)
            masked = self._masker(
                packed.input_ids, packed.cu_seqlens, np.array(keys, np.uint64), units
            )
        targets = {"masked_positions": masked.positions, "masked_labels": masked.labels}
        counts = {"lm" if self.causal else "mlm": len(masked.positions)}
        if self.instances.next_sentence:
            labels = [examples[at].next_sentence_label for at in order]
            targets["next_sentence_labels"] = np.array(labels, np.int64)
            counts["nsp"] = len(order)
        return Batch(replace(packed, input_ids=masked.input_ids), targets, counts)

    def decode(self, outputs: Outputs, batch: Batch) -> dict[int, Prediction]:
        """For each row: the most likely pieces for each `[MASK]`, and whether B follows A.

        `masks` has a list for each `[MASK]`, of `top_k` entries `token`, `id` and `probability`.
        Pairs also have `next_sentence_probability`, if the network has a next-sentence head.
        """
        packed = batch.packed.on_host
        positions = to_array(batch.targets["masked_positions"])
        rows = packed.sequence_row.tolist()
        answers: dict[int, Prediction] = {row: {"masks": []} for row in rows}
        # The embeddings may have more rows than there are pieces.
        probabilities = softmax(to_array(outputs["mlm_logits"]))[:, : self.tokenizer.vocab_size]
        owners = np.searchsorted(packed.cu_seqlens, positions, side="right") - 1
        for owner, pieces in zip(owners.tolist(), probabilities, strict=True):
            answers[rows[owner]]["masks"].append(
                [
                    {
                        "token": self.tokenizer.id_to_token(piece),
                        "id": piece,
                        "probability": float(pieces[piece]),
                    }
                    for piece in _largest(pieces, self.top_k)
                ]
            )
        if "nsp_logits" in outputs:
            follows = softmax(to_array(outputs["nsp_logits"]))[:, 0].tolist()
            is_pair = packed.token_type_ids[packed.last_tokens].tolist()
            for row, pair, probability in zip(rows, is_pair, follows, strict=True):
                if pair:
                    answers[row]["next_sentence_probability"] = probability
        return answers

    def evaluator(self) -> PretrainingEvaluator:
        from .evaluator import PretrainingEvaluator

        return PretrainingEvaluator("lm" if self.causal else "mlm")


def next_sentence_layouts(config: EncoderConfig) -> dict[str, HeadLayout]:
    """The layouts of the next-sentence head and of the pooler before it."""
    return {NSP.name: next_sentence_layout(config), POOLER.name: pooler_layout(config)}


def _largest(values: Float[np.ndarray, " pieces"], count: int) -> list[int]:
    """Return the indices of the largest values, the largest first; of equal ones, the lower."""
    candidates = np.arange(len(values))
    if count < len(values):
        candidates = np.flatnonzero(values >= np.partition(values, -count)[-count])
    order = np.argsort(-values[candidates], kind="stable")[:count]
    return [int(index) for index in candidates[order]]


def _has_mlm_head(checkpoint: PublishedCheckpoint) -> bool:
    """Whether a checkpoint has a masked-language-model head."""
    config, family = checkpoint.config, checkpoint.family
    parts = {
        f"{MLM.name}.bias": config.mlm_bias,
        f"{MLM.name}.transform.dense.weight": config.mlm_transform,
        f"{MLM.name}.decoder": not config.tie_word_embeddings,
    }
    for part, is_part in parts.items():
        if is_part:
            return family.has(part, checkpoint.tensors)
    # Such a head has no tensors, so the class names have to decide.
    classes = checkpoint.architectures
    return not classes or family.classes.get(MLM.model_class) in classes
