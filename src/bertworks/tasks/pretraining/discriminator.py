"""The networks of replaced-token detection: a discriminator, and the generator it is trained with.

Source: Clark et al. (2020, arXiv 2003.10555), §2 and §3.2; the original code for which embeddings
are shared. For gradient-disentangled sharing see `embedding_sharing`.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...nn.config import EncoderConfig
from ...nn.encoder import Encoder
from ...nn.heads import MLMHead, ReplacedTokenHead
from ...nn.layers import promote_to_float32
from ...packed import Batch, Padded
from ..network import Network, reshape_by_row
from .embedding_sharing import DISENTANGLED_EMBEDDINGS, ResidualEmbedding
from .network import PretrainingNetwork
from .settings import DRAW_BITS, ReplacedTokensSettings

_CHUNK_ROWS = 256  # masked tokens whose logits are in memory at a time
_SHARED_EMBEDDINGS = ("word_embeddings", "position_embeddings", "token_type_embeddings", "norm")


class DiscriminatorNetwork(Network):
    """An encoder with a head that detects replaced tokens."""

    has_array_form = True

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.encoder = Encoder(config, pooler=False)
        self.rtd_head = ReplacedTokenHead(config)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Return `rtd`, the summed loss of tokens; `targets["is_replaced"]` is `[tokens]` bool."""
        logits = self.rtd_head(self.encoder(batch.packed), batch.packed)
        return {"rtd": binary_cross_entropy_sum(logits, batch.targets["is_replaced"])}

    def predict(self, batch: Batch) -> dict[str, Tensor]:
        """Return `rtd_logits` `[tokens]`."""
        return {"rtd_logits": self.rtd_head(self.encoder(batch.packed), batch.packed)}

    def padded(self, padded: Padded) -> dict[str, Tensor]:
        """Return `logits` `[rows, length]`."""
        return {"logits": reshape_by_row(self.rtd_head(self.encoder(padded), padded), padded)}


class ReplacedTokensNetwork(Network):
    """A discriminator and the generator that it is trained with.

    Args:
        discriminator: the network that is trained; see `with_generator` for the one that is saved.
        generator: its embeddings must be as wide as the discriminator's.
        weight: of the discriminator's loss.
    """

    def __init__(
        self, discriminator: DiscriminatorNetwork, generator: PretrainingNetwork, weight: float
    ) -> None:
        super().__init__()
        self.discriminator, self.generator, self.weight = discriminator, generator, weight

    @property
    def encoder(self) -> Encoder:  # type: ignore[override]  # a property, which nothing sets
        """The discriminator's encoder."""
        return self.discriminator.encoder

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Return the summed losses: `mlm` over masked tokens, `weighted_rtd` over all tokens."""
        hidden = self.generator.encoder(batch.packed)
        masked = hidden.index_select(0, batch.targets["masked_positions"])
        head = self.generator.mlm_head
        with torch.no_grad():
            pieces = _sample_in_chunks(masked, batch.targets["draws"], head)
        losses = self.discriminator(_replace_masked_tokens(batch, pieces))
        return {
            "mlm": head.loss_sum(masked, batch.targets["masked_labels"]),
            "weighted_rtd": self.weight * losses["rtd"],
        }

    def predict(self, batch: Batch) -> dict[str, Tensor]:
        """Return the outputs of both networks, and the discriminator's labels.

        These are `mlm_logits` `[masked, vocab_size]`, and `rtd_logits` and `is_replaced`
        `[tokens]`.
        """
        outputs = self.generator.predict(batch)
        discriminator_batch = _replace_masked_tokens(
            batch, _sample_in_chunks(outputs["mlm_logits"], batch.targets["draws"])
        )
        is_replaced = discriminator_batch.targets["is_replaced"]
        return {
            **outputs,
            **self.discriminator.predict(discriminator_batch),
            "is_replaced": is_replaced,
        }


def with_generator(
    discriminator: DiscriminatorNetwork, settings: ReplacedTokensSettings
) -> ReplacedTokensNetwork:
    """Combine a discriminator with a new generator, with which it shares embeddings.

    With gradient-disentangled sharing, the network trains another discriminator, which has all
    parts of the given one but the shared tables: `ResidualEmbedding.write_sum` fills those.
    """
    config = derive_generator_config(discriminator.encoder.config, settings)
    generator = PretrainingNetwork(config, next_sentence=False)
    widths = {net.encoder.config.embedding_width for net in (discriminator, generator)}
    assert len(widths) == 1, "both have the same embeddings"
    if settings.sharing == "tied":
        _tie_embeddings(discriminator, generator)
        return ReplacedTokensNetwork(discriminator, generator, settings.weight)
    trained_discriminator = _with_residual_embeddings(discriminator, generator)
    return ReplacedTokensNetwork(trained_discriminator, generator, settings.weight)


def _tie_embeddings(discriminator: DiscriminatorNetwork, generator: PretrainingNetwork) -> None:
    """Give the generator the discriminator's embeddings."""
    embeddings = discriminator.encoder.embeddings
    for name in _SHARED_EMBEDDINGS:
        setattr(generator.encoder.embeddings, name, getattr(embeddings, name))
    if generator.encoder.config.tie_word_embeddings:
        word_embeddings = embeddings.word_embeddings.weight
        assert isinstance(word_embeddings, nn.Parameter)
        generator.mlm_head.decoder = word_embeddings


def _with_residual_embeddings(
    discriminator: DiscriminatorNetwork, generator: PretrainingNetwork
) -> DiscriminatorNetwork:
    """Return a discriminator with the same parts, and differences from the generator's tables."""
    network = DiscriminatorNetwork(discriminator.encoder.config)
    pairs: tuple[tuple[nn.Module, nn.Module], ...] = (
        (discriminator, network),
        (discriminator.encoder, network.encoder),
        (discriminator.encoder.embeddings, network.encoder.embeddings),
    )
    own_parts = {"encoder", "embeddings"}
    for source, target in pairs:
        for name, part in source.named_children():
            if name not in own_parts:
                setattr(target, name, part)
    tables, bases = network.encoder.embeddings, generator.encoder.embeddings
    for name in DISENTANGLED_EMBEDDINGS:
        if (saved := getattr(tables, name)) is not None:
            residual = ResidualEmbedding(getattr(bases, name), saved)
            setattr(tables, name, residual)
            residual.write_sum()
    return network


def write_shared_embeddings(network: nn.Module) -> None:
    """Write what a network learned into the tables of the discriminator that is saved."""
    for module in network.modules():
        if isinstance(module, ResidualEmbedding):
            module.write_sum()


def read_shared_embeddings(network: nn.Module, *, keep_generator: bool) -> None:
    """Start from the tables of the discriminator that is saved.

    Args:
        keep_generator: whether the generator keeps its own tables; else it starts from them too.
    """
    for module in network.modules():
        if isinstance(module, ResidualEmbedding):
            module.read_sum(keep_base=keep_generator)


def derive_generator_config(
    config: EncoderConfig, settings: ReplacedTokensSettings
) -> EncoderConfig:
    """The configuration of a generator: smaller, with embeddings as wide as the discriminator's.

    Source: Clark et al. (2020), table 6: the multiplier applies to hidden size, feed-forward size
    and number of heads.
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
    """Draw a piece for each row from the softmax of its logits: `[rows]`.

    The method is inverse transform sampling with probabilities that are rounded down to integers.
    Sums of integers are exact in any order and on any device. Pieces with a probability below
    2 ** -`DRAW_BITS` are never drawn.

    Args:
        logits: `[rows, vocab_size]`.
        draws: `[rows]` integers below 2 ** `DRAW_BITS`, uniformly distributed.
    """
    scaled_probabilities = torch.softmax(promote_to_float32(logits), -1) * 2**DRAW_BITS
    ends = scaled_probabilities.long().cumsum(-1)
    thresholds = (ends[:, -1:] * draws[:, None]) >> DRAW_BITS
    return torch.searchsorted(ends, thresholds, right=True).squeeze(-1)


def _sample_in_chunks(rows: Tensor, draws: Tensor, head: MLMHead | None = None) -> Tensor:
    """Draw a piece per row, in chunks. Rows are logits, or hidden states if there is a head."""
    parts = []
    for start in range(0, max(1, len(rows)), _CHUNK_ROWS):
        part = rows[start : start + _CHUNK_ROWS]
        logits = part if head is None else head(part)
        parts.append(sample_pieces(logits, draws[start : start + _CHUNK_ROWS]))
    return torch.cat(parts)


def _replace_masked_tokens(batch: Batch, pieces: Tensor) -> Batch:
    """The discriminator's batch: masked tokens are replaced by the drawn pieces.

    A drawn piece that equals the original is not labelled as replaced (§2).
    """
    positions, packed = batch.targets["masked_positions"], batch.packed
    original = torch.zeros_like(packed.input_ids, dtype=torch.bool)
    is_replaced = original.index_copy(0, positions, pieces != batch.targets["masked_labels"])
    input_ids = packed.input_ids.index_copy(0, positions, pieces)
    return Batch(replace(packed, input_ids=input_ids), {"is_replaced": is_replaced})


def binary_cross_entropy_sum(logits: Tensor, labels: Tensor) -> Tensor:
    """The sum of the tokens' binary cross-entropies, in float32 at least."""
    logits = promote_to_float32(logits)
    return F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype), reduction="sum")
