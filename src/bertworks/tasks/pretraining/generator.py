"""ELECTRA's pre-training: a generator fills masked places, a discriminator tells what it filled.

    masked text ─► generator ─► a piece drawn for each masked place ─► discriminator ─► replaced?
                      └ mlm                                                └ rtd, over all tokens

Both learn at once, from the generator's masked-language-model loss and the discriminator's,
weighted; the draw lets no gradient through. They share their embeddings.

Source: Clark et al. (2020), §2 and §3.2; the original code for what is shared.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ...model.encoder import Encoder
from ...model.heads import MLMHead
from ...packed import Batch
from ..task import Network
from .replaced_tokens import DRAW_BITS, DiscriminatorNetwork
from .settings import ReplacedTokensSettings
from .task import PretrainingNetwork

if TYPE_CHECKING:
    from ...model.config import EncoderConfig

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
        own, shared = generator.encoder.embeddings, discriminator.encoder.embeddings
        widths = {net.encoder.config.embedding_width for net in (discriminator, generator)}
        assert len(widths) == 1, "both have the same embeddings"
        for name in _SHARED:
            setattr(own, name, getattr(shared, name))
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
        told = self.discriminator(_filled(batch, drawn))
        return {
            "mlm": head.loss_sum(masked, batch.targets["masked_labels"]),
            "weighted_rtd": self.weight * told["rtd"],
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
    sums = torch.promote_types(logits.dtype, torch.float32)
    chances = torch.softmax(logits.to(sums), -1) * 2**DRAW_BITS
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
    """The discriminator's batch: what was drawn stands in the masked places.

    A piece that was drawn as it stood there is none that was replaced (§2).
    """
    positions, packed = batch.targets["masked_positions"], batch.packed
    original = torch.zeros_like(packed.input_ids, dtype=torch.bool)
    is_replaced = original.index_copy(0, positions, drawn != batch.targets["masked_labels"])
    input_ids = packed.input_ids.index_copy(0, positions, drawn)
    return Batch(replace(packed, input_ids=input_ids), {"is_replaced": is_replaced})
