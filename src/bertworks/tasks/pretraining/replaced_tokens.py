"""Replaced-token detection: predict, of each token of a text, whether it was replaced.

    masked text ─► generator ─► a piece drawn for each masked place ─► discriminator ─► replaced?
                      └ mlm                                                └ rtd, over all tokens

ELECTRA's objective. Both networks learn at once, from the generator's masked-language-model loss
and the discriminator's, weighted; the draw lets no gradient through. They share their embeddings.
The discriminator is the model that is kept.

Source: Clark et al. (2020, arXiv 2003.10555), §2 and §3.2; the original code for what is shared.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from ...checkpoints.heads import RTD, Published
from ...errors import DataError, SettingsError
from ...model.config import EncoderConfig
from ...model.encoder import Encoder
from ...model.heads import MLMHead, ReplacedTokenHead, wide
from ...packed import Batch, Padded
from ...settings import Settings
from ...tables.rows import Row
from ...text.encoding import Encoding
from ...text.tokenizer import Tokenizer
from ..task import Evaluator, Network, Prediction, Task, by_row
from . import hashing
from .masking import MaskingSettings
from .pairs import InstanceSettings
from .settings import ReplacedTokensSettings
from .source import PretrainingExample
from .task import PretrainingEvaluator, PretrainingNetwork, PretrainingTask, typed

DRAW_BITS = 31
"""How many random bits a replacement is drawn from."""

_SAMPLE = np.uint64(4 << 60)  # mixed into a token's bits, as masking.py mixes 1 to 3 into them


class DiscriminatorNetwork(Network):
    """An encoder with a head that detects replaced tokens."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.encoder = Encoder(config, pooler=False)
        self.rtd_head = ReplacedTokenHead(config)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """The summed loss `rtd` over all tokens; `targets["is_replaced"]` is `[tokens]` bool."""
        logits = self.rtd_head(self.encoder(batch.packed))
        return {"rtd": binary_cross_entropy_sum(logits, batch.targets["is_replaced"])}

    def predict(self, batch: Batch) -> dict[str, Tensor]:
        """`rtd_logits` `[tokens]`."""
        return {"rtd_logits": self.rtd_head(self.encoder(batch.packed))}

    def padded(self, padded: Padded) -> dict[str, Tensor]:
        """`logits` `[rows, length]`."""
        return {"logits": by_row(self.rtd_head(self.encoder(padded)), padded)}


@dataclass(frozen=True, eq=False, slots=True)
class TypedText(PretrainingExample):
    """A text whose tokens are classified, and their places in it."""

    encoding: Encoding | None = None


class _Description(Settings):
    """What `ReplacedTokensTask.to_dict` gives."""

    instances: InstanceSettings
    masking: MaskingSettings
    replaced_tokens: ReplacedTokensSettings
    max_length: int = Field(ge=1)


class ReplacedTokensTask(Task[PretrainingExample]):
    """Which tokens of a text are not the original ones.

    Examples come from a `PretrainingSource`, to be masked, filled and learned from, or from rows
    with a `text` (and a `pair`) whose tokens are to be classified.

    Args:
        instances: the format of the instances; nothing is asked of pairs.
        masking: which tokens the generator fills.
        settings: the two networks' part in the loss.
        max_length: the most tokens a typed row may have.

    Attributes:
        masked_lm: the generator's task.
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
        instances = instances or InstanceSettings(format="full-sentences")
        if instances.next_sentence:
            raise SettingsError(
                f"instances.format={instances.format!r} predicts next sentences, which "
                "replaced_tokens does not",
                fix="Set instances.format=full-sentences or doc-sentences.",
            )
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
    def published(cls, of: Published) -> Self | None:
        if not of.family.has(f"{RTD.name}.dense.weight", of.tensors):
            return None
        return cls(of.tokenizer, max_length=of.config.max_seqlen)

    def network(self, config: EncoderConfig) -> DiscriminatorNetwork:
        """A fresh discriminator; `with_generator` has it trained.

        Raises:
            SettingsError: its tokens only see what is behind them.
        """
        if config.attention != "bidirectional":
            raise SettingsError(
                f"attention={config.attention!r}: replaced tokens are predicted from both sides"
            )
        return DiscriminatorNetwork(config)

    def example(
        self, row: Row, index: int, *, where: str | None = None, labelled: bool = True
    ) -> TypedText:
        """A text, or a pair, as it was typed; nothing is masked."""
        del labelled  # the original is not known
        found, first = typed(self.tokenizer, row, where, self.max_length, typed_mask=False)
        return TypedText(found.input_ids, first, row=index, encoding=found)

    def collate(self, examples: Sequence[PretrainingExample]) -> Batch:
        """Pack examples in order of length, and mask those that have a key.

        For those, `targets` are `masked_positions` and `masked_labels` `[masked]`, and `draws`
        `[masked]`, what each replacement is drawn from: whole numbers below 2 to the `DRAW_BITS`,
        a pure function of the sequence's key and the token's place. `counts` are `mlm` and
        `weighted_rtd`.
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

    def decode(self, outputs: Mapping[str, Tensor], batch: Batch) -> dict[int, Prediction]:
        """For each row `tokens`, and `pair_tokens` for pairs: how likely each was replaced.

        Each is a list of entries `token`, `start`, `end` (characters of its text) and
        `probability`, without the special tokens around the texts.
        """
        chances = torch.sigmoid(outputs["rtd_logits"].float()).cpu()
        parts = itertools.pairwise(batch.packed.cu_seqlens.tolist())
        rows = batch.packed.sequence_row.tolist()
        of_row = {row: chances[slice(*part)] for row, part in zip(rows, parts, strict=True)}
        answers: dict[int, Prediction] = {}
        for example in batch.examples:
            assert isinstance(example, TypedText) and example.encoding is not None
            found, row = example.encoding, example.row
            assert row is not None
            tokens: list[list[dict[str, Any]]] = [[], []]
            for at in np.flatnonzero(~found.special_tokens_mask).tolist():
                start, end = found.offsets[at].tolist()
                tokens[at >= example.first_segment].append(
                    {
                        "token": self.tokenizer.id_to_token(int(found.input_ids[at])),
                        "start": start,
                        "end": end,
                        "probability": of_row[row][at].item(),
                    }
                )
            answers[row] = {"tokens": tokens[0]}
            if example.first_segment < example.num_tokens:
                answers[row]["pair_tokens"] = tokens[1]
        return answers

    def evaluator(self) -> ReplacedTokensEvaluator:
        return ReplacedTokensEvaluator(self.settings.weight)


class ReplacedTokensEvaluator(Evaluator):
    """Held-out measures of both networks, over masked places and over all tokens.

    `mlm_loss`, `mlm_perplexity` and `mlm_accuracy` are the generator's. The discriminator has
    `rtd_loss`, `rtd_accuracy` beside `rtd_majority` (what calling every token original would
    reach), `rtd_precision` and `rtd_recall` of the tokens called replaced, `rtd_auc` (how often a
    replaced token is held more suspect than an original one), and `replaced_share`, how many were.
    `loss` is that of training: the MLM loss and the weighted other one.

    The generator's replacements are drawn as in training, but always the same for the same
    instance: two evaluations of the same networks give the same.
    """

    gathered = ("_masked", "_loss", "_logits", "_replaced")

    def __init__(self, weight: float) -> None:
        self._weight = weight
        self._masked = PretrainingEvaluator()
        self._loss = 0.0
        self._logits: list[np.ndarray] = []
        self._replaced: list[np.ndarray] = []

    def add(self, outputs: Mapping[str, Tensor], batch: Batch) -> None:
        """Take note of a batch of instances.

        Raises:
            DataError: the batch is of typed rows, which do not say what was replaced.
        """
        if "is_replaced" not in outputs:
            raise DataError(
                "a text alone does not say which of its tokens were replaced",
                fix="Measure pre-training on the held-out documents of a prepared corpus.",
            )
        self._masked.add(outputs, batch)
        logits, replaced = outputs["rtd_logits"].float(), outputs["is_replaced"]
        self._loss += binary_cross_entropy_sum(logits, replaced).item()
        self._logits.append(np.asarray(logits.cpu()))
        self._replaced.append(np.asarray(replaced.cpu()))

    def result(self) -> dict[str, float]:
        metrics = self._masked.result()
        logits, replaced = np.concatenate(self._logits), np.concatenate(self._replaced)
        called = logits > 0
        found = int((called & replaced).sum())
        share = float(replaced.mean())
        metrics |= {
            "rtd_loss": self._loss / len(logits),
            "rtd_accuracy": float((called == replaced).mean()),
            "rtd_majority": 1 - share,
            "rtd_precision": found / max(1, int(called.sum())),
            "rtd_recall": found / max(1, int(replaced.sum())),
            "replaced_share": share,
        }
        if 0 < share < 1:
            metrics["rtd_auc"] = area_under_curve(logits, replaced)
        metrics["loss"] += self._weight * metrics["rtd_loss"]
        return metrics


def binary_cross_entropy_sum(logits: Tensor, labels: Tensor) -> Tensor:
    """The sum of the tokens' cross-entropies, in float32 at least."""
    logits = wide(logits)
    return F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype), reduction="sum")


def area_under_curve(scores: np.ndarray, is_positive: np.ndarray) -> float:
    """How often a positive one scores higher than a negative one; a tie counts a half."""
    positive, negative = scores[is_positive], np.sort(scores[~is_positive])
    below = np.searchsorted(negative, positive) + np.searchsorted(negative, positive, "right")
    return float(below.mean() / (2 * len(negative)))


_ROWS = 256  # masked places whose logits are held at a time
_SHARED = ("word_embeddings", "position_embeddings", "token_type_embeddings", "norm")


class ReplacedTokensNetwork(Network):
    """A discriminator and the generator that it learns from.

    Args:
        discriminator: what is kept.
        generator: of embeddings as wide; they are replaced by the discriminator's.
        weight: of the discriminator's loss.
    """

    def __init__(
        self, discriminator: DiscriminatorNetwork, generator: PretrainingNetwork, weight: float
    ) -> None:
        super().__init__()
        self.discriminator, self.generator, self.weight = discriminator, generator, weight
        tied, shared = generator.encoder.embeddings, discriminator.encoder.embeddings
        widths = {net.encoder.config.embedding_width for net in (discriminator, generator)}
        assert len(widths) == 1, "both have the same embeddings"
        for name in _SHARED:
            setattr(tied, name, getattr(shared, name))
        if generator.encoder.config.tie_word_embeddings:
            word_embeddings = shared.word_embeddings.weight
            assert isinstance(word_embeddings, nn.Parameter)
            generator.mlm_head.decoder = word_embeddings

    @property
    def encoder(self) -> Encoder:  # type: ignore[override]
        """The discriminator's."""
        return self.discriminator.encoder

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """The summed losses: `mlm` over the masked places, `weighted_rtd` over all tokens."""
        hidden = self.generator.encoder(batch.packed)
        masked = hidden.index_select(0, batch.targets["masked_positions"])
        head = self.generator.mlm_head
        with torch.no_grad():
            drawn = _sample(masked, batch.targets["draws"], head)
        losses = self.discriminator(_filled(batch, drawn))
        return {
            "mlm": head.loss_sum(masked, batch.targets["masked_labels"]),
            "weighted_rtd": self.weight * losses["rtd"],
        }

    def predict(self, batch: Batch) -> dict[str, Tensor]:
        """What both say of instances, and what is right for the second of them.

        `mlm_logits` `[masked, vocab_size]`, `rtd_logits` and `is_replaced` `[tokens]`.
        """
        outputs = self.generator.predict(batch)
        filled = _filled(batch, _sample(outputs["mlm_logits"], batch.targets["draws"]))
        is_replaced = filled.targets["is_replaced"]
        return {**outputs, **self.discriminator.predict(filled), "is_replaced": is_replaced}


def with_generator(
    discriminator: DiscriminatorNetwork, settings: ReplacedTokensSettings
) -> ReplacedTokensNetwork:
    """A discriminator beside a fresh generator."""
    config = generator_config(discriminator.encoder.config, settings)
    generator = PretrainingNetwork(config, next_sentence=False)
    return ReplacedTokensNetwork(discriminator, generator, settings.weight)


def generator_config(config: EncoderConfig, settings: ReplacedTokensSettings) -> EncoderConfig:
    """The geometry of a discriminator's generator: narrower, its embeddings as wide.

    Source: Clark et al. (2020), table 6: the multiplier is for hidden size, feed-forward size and
    number of heads.
    """
    width = max(1, round(config.hidden_size * settings.generator_share))
    heads = max(1, round(config.num_attention_heads * settings.generator_share))
    while width % heads:
        heads -= 1
    embedding = config.embedding_width
    return config.with_values(
        hidden_size=width,
        num_attention_heads=heads,
        intermediate_size=max(1, round(config.intermediate_size * settings.generator_share)),
        num_hidden_layers=max(1, round(config.num_hidden_layers * settings.generator_layers)),
        embedding_size=None if embedding == width else embedding,
    )


def sample_pieces(logits: Tensor, draws: Tensor) -> Tensor:
    """Pieces drawn with the probabilities of a softmax over the logits: `[rows]`.

    The probabilities of a row are laid end to end, and a piece is where the draw falls. They are
    counted in whole numbers, whose sums are exact in any order and on any device, and by which no
    piece is drawn of a probability below 2 to the minus `DRAW_BITS`.

    Args:
        logits: `[rows, vocab_size]`.
        draws: `[rows]` whole numbers below 2 to the `DRAW_BITS`, all equally likely.
    """
    chances = torch.softmax(wide(logits), -1) * 2**DRAW_BITS
    ends = chances.long().cumsum(-1)
    places = (ends[:, -1:] * draws[:, None]) >> DRAW_BITS
    return torch.searchsorted(ends, places, right=True).squeeze(-1)


def _sample(rows: Tensor, draws: Tensor, head: MLMHead | None = None) -> Tensor:
    """A piece for each row, which holds logits, or what a head makes them of; some at a time."""
    parts = []
    for start in range(0, max(1, len(rows)), _ROWS):
        part = rows[start : start + _ROWS]
        logits = part if head is None else head(part)
        parts.append(sample_pieces(logits, draws[start : start + _ROWS]))
    return torch.cat(parts)


def _filled(batch: Batch, drawn: Tensor) -> Batch:
    """The discriminator's batch: what was drawn is in the masked places.

    A drawn piece that equals the original does not count as replaced (§2).
    """
    positions, packed = batch.targets["masked_positions"], batch.packed
    original = torch.zeros_like(packed.input_ids, dtype=torch.bool)
    is_replaced = original.index_copy(0, positions, drawn != batch.targets["masked_labels"])
    input_ids = packed.input_ids.index_copy(0, positions, drawn)
    return Batch(replace(packed, input_ids=input_ids), {"is_replaced": is_replaced})
