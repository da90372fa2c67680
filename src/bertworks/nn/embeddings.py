"""Embeddings of tokens, positions and segments."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ..packed import Padded, Sequences
from .config import EncoderConfig
from .layers import Dropout, Linear, make_norm


class Embeddings(nn.Module):
    """The sum of token, position and segment embeddings, normalised (paper §3, figure 2).

    Computed in the precision of the parameters, since a few small numbers are added. Parts that a
    family lacks (learned positions, segments, the norm) are None.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        width = config.embedding_sum_width
        self.position_offset = config.position_offset
        self.word_embeddings = nn.Embedding(config.vocab_size, config.embedding_width)
        learned = config.positions == "learned"
        self.sinusoidal = config.positions == "sinusoidal"
        positions = config.max_position_embeddings if learned else 0
        types, tasks = config.type_vocab_size, config.task_type_vocab_size
        self.position_embeddings = nn.Embedding(positions, width) if positions else None
        self.token_type_embeddings = nn.Embedding(types, width) if types else None
        self.task_type_embeddings = nn.Embedding(tasks, width) if tasks else None
        eps = None if config.word_map is None else config.word_map.norm_eps
        self.norm = make_norm(config, width, eps) if config.embedding_norm else None
        self.dropout = Dropout(config.hidden_dropout_prob)
        has_projection = config.embedding_size is not None and config.word_map is None
        self.projection = Linear(width, config.hidden_size) if has_projection else None

    def words(self, packed: Sequences) -> Float[Tensor, "tokens width"]:
        """Return the tokens' word embeddings.

        With sinusoidal positions they are multiplied by the square root of their width, since the
        sinusoids' values are about 1 (Vaswani et al. 2017, §3.4).
        """
        vectors: Tensor = self.word_embeddings(packed.input_ids)
        return vectors * vectors.shape[-1] ** 0.5 if self.sinusoidal else vectors

    def forward(self, packed: Sequences) -> Float[Tensor, "tokens hidden_size"]:
        total = self.words(packed)
        if self.sinusoidal:
            total = total + sinusoids(packed.position_ids, total)
        if self.position_embeddings is not None:
            total = total + self.position_embeddings(packed.position_ids + self.position_offset)
        if self.token_type_embeddings is not None:
            table = self.token_type_embeddings
            is_single = table.num_embeddings == 1  # then the ids, which may be 1, are ignored
            total = total + (table.weight[0] if is_single else table(packed.token_type_ids))
        if self.task_type_embeddings is not None:
            total = total + self.task_type_embeddings.weight[0]
        if self.norm is not None:
            total = self.norm(total)
        result: Tensor = self.dropout(total)
        return result if self.projection is None else self.projection(result)


class ZeroedMaskEmbeddings(Embeddings):
    """Embeddings in which [MASK] is zero, and the other pieces are scaled instead.

    In training 12 % of the pieces were [MASK]: a sequence's other pieces are multiplied by 0.88 and
    divided by their share, as dropout would. Source: the original code of Rives et al. (2021).
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        assert config.zeroed_token_id is not None
        self.zeroed_token_id = config.zeroed_token_id

    def words(self, packed: Sequences) -> Float[Tensor, "tokens width"]:
        vectors = super().words(packed)
        is_zeroed = packed.input_ids == self.zeroed_token_id
        shares = 1 - _share_of_sequence(is_zeroed, packed)  # in float32, as in the original code
        factors = torch.where(is_zeroed, 0.0, _TRAINING_SHARE / shares.to(vectors.dtype))
        return vectors * factors[:, None]


_TRAINING_SHARE = 1 - 0.15 * 0.8


def _share_of_sequence(
    values: Bool[Tensor, " tokens"], packed: Sequences
) -> Float[Tensor, " tokens"]:
    """Return, for each token, the share of its sequence's tokens for which a value is true."""
    if isinstance(packed, Padded):
        counts = (values.view(packed.mask.shape) & packed.mask).sum(1, keepdim=True)
        shares = counts / packed.mask.sum(1, keepdim=True)
        return shares.expand(packed.mask.shape).flatten()
    edges = packed.cu_seqlens.long()
    sums = F.pad(values.cumsum(0), (1, 0))[edges]
    shares = sums.diff() / edges.diff()
    return torch.repeat_interleave(shares, edges.diff(), output_size=packed.num_tokens)


class MappedEmbeddings(Embeddings):
    """Embeddings in which a linear map widens those of words, of up to three neighbours.

    The layers are as wide as the positions. Source: Sun et al. (2020), "MobileBERT", §3.1.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        assert config.word_map is not None
        self.trigrams = config.word_map.trigrams
        inputs = config.embedding_width * (3 if self.trigrams else 1)
        self.word_map = Linear(inputs, config.hidden_size)

    def words(self, packed: Sequences) -> Float[Tensor, "tokens hidden_size"]:
        vectors = super().words(packed)
        if self.trigrams:
            following = F.pad(vectors[1:], (0, 0, 0, 1)).index_fill(0, packed.last_tokens, 0)
            previous = F.pad(vectors[:-1], (0, 0, 1, 0)).index_fill(0, packed.first_tokens, 0)
            vectors = torch.cat([following, vectors, previous], -1)
        result: Tensor = self.word_map(vectors)
        return result


def make_embeddings(config: EncoderConfig) -> Embeddings:
    """Return the embeddings of an encoder."""
    if config.word_map is not None:
        return MappedEmbeddings(config)
    has_zeroed = config.zeroed_token_id is not None
    return ZeroedMaskEmbeddings(config) if has_zeroed else Embeddings(config)


def sinusoids(
    position_ids: Int[Tensor, " tokens"], words: Float[Tensor, "tokens width"]
) -> Float[Tensor, "tokens width"]:
    """Return alternating sines and cosines of positions, at wavelengths from 2π to 20,000π.

    Source: Vaswani et al. (2017), §3.5.
    """
    width = words.shape[-1]
    pairs = torch.arange(0, width, 2, device=words.device, dtype=torch.float64)
    angles = position_ids[:, None] * 10_000.0 ** (-pairs / width)
    both = torch.stack([angles.sin(), angles.cos()], -1).flatten(1)
    return both[:, :width].to(words.dtype)
