"""Terms that depend on the distance of two tokens, added to attention's scores.

    score(i, j) = scale · (q_i · k_j + q_i · a(j - i) + k_j · b(j - i)) + c(j - i)

For each head and distance, `a` and `b` are vectors and `c` is a number. A family has some of them:

- MPNet: `c`, a learned number for each bucket of distances, the same in all layers;
- ALiBi (Jina BERT v2): `c`, minus the distance times a fixed slope of the head;
- DeBERTa: `a` and `b`, a layer's maps of vectors of distances that all layers share;
- XLNet: `a`, a layer's map of sinusoids of distances (`transformer_xl.py`).

They are computed for all distances in a pack. Those of a shorter sequence are the ones in the
middle, so that no sequence needs padding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from ..packed import to_tensor
from .config import EncoderConfig
from .cpu import align_columns
from .distance_buckets import slopes_of
from .layers import Dropout, LayerNorm, Linear
from .part_settings import ScoreBiasSettings

_MULTIPLE_OF_LENGTH = 32  # kernels pad sequences to a multiple of it at most


@dataclass(frozen=True, eq=False)
class ScoreBias:
    """The terms for the distances from `1 - length` to `length - 1`, in this order."""

    length: int  # of the longest sequence, or more
    numbers: Float[Tensor, "heads distances"] | None = None  # c
    keys: Float[Tensor, "heads distances head_size"] | None = None  # a
    queries: Float[Tensor, "heads distances head_size"] | None = None  # b
    scale: float | None = None  # the factor of all products; 1 / √head_size by default

    @property
    def has_vectors(self) -> bool:
        """Whether there are terms that depend on the queries and keys too."""
        return self.keys is not None or self.queries is not None

    @property
    def has_numbers_only(self) -> bool:
        """Whether it is a number for each distance, added to the usual scores."""
        return self.numbers is not None and not self.has_vectors and self.scale is None

    @cached_property
    def matrix(self) -> Float[Tensor, "heads length length"] | None:
        """`c` of each query and key of a sequence of `length` tokens."""
        if self.numbers is None:
            return None
        rows = self.numbers.unsqueeze(1).expand(-1, self.length, -1)
        return by_pair(rows.contiguous())

    def in_graph(self) -> ScoreBias:
        """Return the same with the matrix in the caller's autograd graph, for all layers."""
        bias = replace(self)
        _ = bias.matrix
        return bias

    def with_aligned_columns(self, scale: float) -> ScoreBias:
        """Return the same for queries and keys of `align_columns`, whose scale was `scale`."""
        keys, queries = (
            None if part is None else align_columns(part) for part in (self.keys, self.queries)
        )
        return replace(self, keys=keys, queries=queries, scale=scale)

    def of_group(
        self,
        query: Float[Tensor, "sequences heads queries head_size"],
        key: Float[Tensor, "sequences heads keys head_size"],
    ) -> Float[Tensor, "#sequences heads queries keys"]:
        """Return the terms of sequences of equal length, whose queries are their last tokens."""
        queries, keys = query.shape[2], key.shape[2]
        terms: list[Tensor] = []
        if self.matrix is not None:
            part = self.matrix[:, keys - queries : keys, :keys]
            terms.append(part.to(query.dtype).unsqueeze(0))
        tables = self.tables(keys)
        scale = scale_of(query, self)
        if tables[0] is not None:
            terms.append(multiply_by_pair(query, tables[0]) * scale)
        if tables[1] is not None:
            terms.append(multiply_by_pair(key, tables[1]).transpose(2, 3) * scale)
        return sum(terms[1:], terms[0])

    def tables(self, length: int) -> tuple[Tensor | None, Tensor | None]:
        """Return `a`, and `b` in the order of queries' distances from keys, of shorter sequences.

        Those are the orders that `multiply_by_pair` takes.
        """
        middle = slice(self.length - length, self.length + length - 1)
        keys = None if self.keys is None else self.keys[:, middle]
        queries = None if self.queries is None else self.queries[:, middle].flip(1)
        return keys, queries

    def of_distances(
        self,
        query: Float[Tensor, "rows heads queries head_size"],
        key: Float[Tensor, "rows heads keys head_size"],
        distances: Int64[Tensor, "queries keys"],
    ) -> Float[Tensor, "#rows heads queries keys"]:
        """Return the terms of any pairs of tokens; pairs that are masked may have any distance."""
        index = (distances + self.length - 1).clamp(0, 2 * self.length - 2)
        terms: list[Tensor] = []
        if self.numbers is not None:
            terms.append(self.numbers[:, index].to(query.dtype).unsqueeze(0))
        scale = scale_of(query, self)
        if self.keys is not None:
            products = query @ self.keys.transpose(1, 2)
            terms.append(products.gather(-1, index.expand(*query.shape[:2], -1, -1)) * scale)
        if self.queries is not None:
            products = key @ self.queries.transpose(1, 2)
            columns = index.t().expand(*key.shape[:2], -1, -1)
            terms.append(products.gather(-1, columns).transpose(2, 3) * scale)
        return sum(terms[1:], terms[0])

    def of_positions(
        self, positions: Int64[Tensor, "sequences length"]
    ) -> Float[Tensor, "sequences heads length length"]:
        """Return the terms of sequences whose tokens are at any positions, if they are numbers."""
        assert self.numbers is not None and self.has_numbers_only
        index = positions[:, None, :] - positions[:, :, None] + self.length - 1
        return self.numbers[:, index].transpose(0, 1)


class ScoreBiasGradients:
    """Sums of the gradients of a bias's matrix, keys and queries, over groups of sequences."""

    def __init__(self, bias: ScoreBias) -> None:
        self._bias = bias
        parts = (bias.matrix, bias.keys, bias.queries)
        self.tensors = tuple(None if part is None else torch.zeros_like(part) for part in parts)

    def add_group(
        self,
        gradient: Float[Tensor, "sequences heads length length"],
        query: Float[Tensor, "sequences heads length head_size"],
        key: Float[Tensor, "sequences heads length head_size"],
    ) -> tuple[Tensor | None, Tensor | None]:
        """Add the gradients that scores of equal length have; return those of query and key.

        Args:
            gradient: of the scores.
            query: the queries with which the terms were computed.
            key: likewise.
        """
        bias, (d_matrix, d_keys, d_queries) = self._bias, self.tensors
        queries, length = gradient.shape[2:]
        if d_matrix is not None:
            d_matrix[:, length - queries : length, :length] += gradient.sum(0)
        tables, scale = bias.tables(length), scale_of(query, bias)
        middle = slice(bias.length - length, bias.length + length - 1)
        d_query = d_key = None
        if d_keys is not None and tables[0] is not None:
            d_query, d_table = multiply_by_pair_backward(gradient * scale, query, tables[0])
            d_keys[:, middle] += d_table
        if d_queries is not None and tables[1] is not None:
            crossed = gradient.transpose(2, 3) * scale
            d_key, d_table = multiply_by_pair_backward(crossed, key, tables[1])
            d_queries[:, middle] += d_table.flip(1)
        return d_query, d_key


def round_up_length(length: int) -> int:
    """Return a length for which a `ScoreBias` has the terms of padded sequences too."""
    return -(-length // _MULTIPLE_OF_LENGTH) * _MULTIPLE_OF_LENGTH


def scale_of(query: Float[Tensor, "*batch head_size"], bias: ScoreBias | None) -> float:
    """Return the factor of the products."""
    if bias is None or bias.scale is None:
        return 1 / math.sqrt(query.shape[-1])
    return bias.scale


def by_pair(
    by_distance: Float[Tensor, "*batch length distances"],
) -> Float[Tensor, "*batch length length"]:
    """Return a view of contiguous `x`: number (i, j) is `x[i, j - i + length - 1]`."""
    *batch, length, distances = by_distance.shape
    assert distances == 2 * length - 1 and by_distance.is_contiguous()
    strides = (*by_distance.stride()[:-2], distances - 1, 1)
    offset = by_distance.storage_offset() + length - 1
    return by_distance.as_strided((*batch, length, length), strides, offset)


def multiply_by_pair(
    vectors: Float[Tensor, "sequences heads length head_size"],
    table: Float[Tensor, "heads distances head_size"],
) -> Float[Tensor, "sequences heads length length"]:
    """Return `x_i · t(j - i)` for each pair of tokens, as a view.

    Args:
        vectors: x.
        table: t, for the distances from `1 - length` to `length - 1`.
    """
    columns = table.transpose(1, 2)
    if not vectors.is_cpu or vectors.requires_grad or table.requires_grad:
        return by_pair(torch.matmul(vectors, columns))
    # A product a sequence: with the rows of several, results may depend on how many there are.
    products = vectors.new_empty(*vectors.shape[:-1], table.shape[1])
    for one, product in zip(vectors, products, strict=True):
        torch.bmm(one, columns, out=product)
    return by_pair(products)


def multiply_by_pair_backward(
    gradient: Float[Tensor, "sequences heads length length"],
    vectors: Float[Tensor, "sequences heads length head_size"],
    table: Float[Tensor, "heads distances head_size"],
) -> tuple[
    Float[Tensor, "sequences heads length head_size"], Float[Tensor, "heads distances head_size"]
]:
    """Return the gradients of both arguments of `multiply_by_pair`."""
    sequences, heads, length, size = vectors.shape
    products = vectors.new_zeros(heads, sequences, length, table.shape[1])
    by_pair(products).copy_(gradient.transpose(0, 1))
    products = products.flatten(1, 2)
    d_vectors = torch.bmm(products, table).view(heads, sequences, length, size).transpose(0, 1)
    return d_vectors, torch.bmm(products.transpose(1, 2), vectors.transpose(0, 1).flatten(1, 2))


def distances_up_to(length: int, device: torch.device) -> Int64[Tensor, " distances"]:
    """Return the distances of keys from queries, from `1 - length` to `length - 1`."""
    return torch.arange(1 - length, length, device=device)


class BucketBias(nn.Module):
    """A learned number for each head and bucket of distances: MPNet's, from T5.

    Half of the buckets are for later tokens. Half of these hold one distance each, the others
    ranges that grow with the distance; the last one holds all from `max_distance` on.
    Source: Raffel et al. (2020), T5, §2.1.
    """

    def __init__(self, config: EncoderConfig, settings: ScoreBiasSettings) -> None:
        super().__init__()
        self.max_distance = settings.max_distance
        assert settings.num_buckets is not None
        self.table = nn.Embedding(settings.num_buckets, config.num_attention_heads)

    def forward(self, length: int, template: Tensor) -> ScoreBias:
        """Return the terms of sequences of up to `length` tokens."""
        weight = self.table.weight.to(template.dtype)
        return ScoreBias(length, weight[self.buckets(length)].t())

    def buckets(self, length: int) -> Int64[Tensor, " distances"]:
        """Return the bucket of each distance."""
        distances = distances_up_to(length, self.table.weight.device)
        half = self.table.num_embeddings // 2
        exact = half // 2
        size = distances.abs()
        # In float32, as in the training of the published weights.
        growth = torch.log(size.clamp(min=1).float() / exact) / math.log(self.max_distance / exact)
        ranges = exact + (growth * (half - exact)).long()
        return torch.where(size < exact, size, ranges.clamp(max=half - 1)) + half * (distances > 0)


class LinearBias(nn.Module):
    """Minus the distance times a slope of the head, without weights: ALiBi.

    Of n heads, where n is a power of two, head h has the slope 2^(-8 h / n), from h = 1 on. For
    another number of heads, those of the next smaller power of two come first, then every second
    one of twice this power. Source: Press et al. (2022), §3, and their code.
    """

    def __init__(self, config: EncoderConfig, _: ScoreBiasSettings) -> None:
        super().__init__()
        self.slopes = slopes_of(config.num_attention_heads)

    def forward(self, length: int, template: Tensor) -> ScoreBias:
        """Return the terms of sequences of up to `length` tokens."""
        slopes = to_tensor(torch.tensor(self.slopes, dtype=template.dtype), template.device)
        return ScoreBias(length, -slopes[:, None] * distances_up_to(length, template.device).abs())


class DistanceVectors(NamedTuple):
    """Vectors of distances, from which each layer makes its bias."""

    length: int  # of the longest sequence, or more
    vectors: Float[Tensor, "rows hidden_size"]
    # the row of each distance from `1 - length` to `length - 1`
    rows: Int64[Tensor, " distances"]


class RelativePositions(nn.Module):
    """A learned vector for each distance, or bucket of distances: DeBERTa's.

    With k buckets, distances below k / 2 have a bucket each, in both directions; the others are
    ranges that grow with the distance up to `max_distance`. Source: He et al. (2021), "DeBERTa",
    §3.1, and for the buckets the code of version 2.
    """

    def __init__(self, config: EncoderConfig, settings: ScoreBiasSettings) -> None:
        super().__init__()
        self.num_buckets, self.max_distance = settings.num_buckets, settings.max_distance
        self.span = settings.num_buckets or settings.max_distance
        self.table = nn.Embedding(2 * self.span, config.hidden_size)
        norm = LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.norm = norm if settings.norm else None

    def forward(self, length: int, template: Tensor) -> DistanceVectors:
        """Return the vectors of distances in sequences of up to `length` tokens."""
        index, weight = self.rows(length), self.table.weight
        if isinstance(length, int):  # not while a network is traced for an export
            first = int(index[-1])  # rows are in the order of a query's distance from a key
            weight = weight[first : int(index[0]) + 1]
            index = to_tensor(index - first, weight.device)
        vectors = weight.to(template.dtype)
        return DistanceVectors(length, vectors if self.norm is None else self.norm(vectors), index)

    def rows(self, length: int) -> Int64[Tensor, " distances"]:
        """Return the row of each distance, on the CPU, where reading it does not wait."""
        distances = -distances_up_to(length, torch.device("cpu"))
        if self.num_buckets is not None:
            distances = self._bucket(distances, self.num_buckets // 2)
        return (distances + self.span).clamp(0, 2 * self.span - 1)

    def _bucket(
        self, distances: Int64[Tensor, " distances"], exact: int
    ) -> Int64[Tensor, " distances"]:
        size = distances.abs()
        # In float32, as in the training of the published weights.
        growth = torch.log(size.clamp(min=exact).float() / exact)
        growth = growth / torch.log(torch.tensor((self.max_distance - 1) / exact))
        ranges = torch.ceil(growth * (exact - 1)).long() + exact
        return torch.where(size <= exact, distances, ranges * distances.sign())


class DistanceMaps(nn.Module):
    """A layer's maps of vectors of distances, to what its queries and keys are multiplied with."""

    def __init__(self, config: EncoderConfig, settings: ScoreBiasSettings) -> None:
        super().__init__()
        size = config.hidden_size
        self.terms, self.head_size = settings.terms, config.head_size
        # In float32, as in the training of the published weights.
        self.scale = 1 / float(np.float32(math.sqrt(config.score_divisor)))
        self.is_shared = settings.shared_maps
        has_keys, has_queries = (
            term in self.terms and not self.is_shared for term in ("c2p", "p2c")
        )
        self.key = Linear(size, size, bias=settings.key_bias) if has_keys else None
        self.query = Linear(size, size) if has_queries else None
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(
        self, distances: DistanceVectors, query_key_value: nn.Module, dtype: torch.dtype
    ) -> ScoreBias:
        """Return the layer's bias.

        Args:
            query_key_value: the layer's map, which may be that of distances too.
            dtype: of the layer's queries and keys.
        """
        vectors = self.dropout(distances.vectors.to(dtype))
        keys = queries = None
        if self.is_shared:
            queries, keys, _ = query_key_value(vectors).chunk(3, -1)
        if self.key is not None:
            keys = self.key(vectors)
        if self.query is not None:
            queries = self.query(vectors)
        return ScoreBias(
            distances.length,
            None,
            self._by_head(keys, distances.rows) if "c2p" in self.terms else None,
            self._by_head(queries, distances.rows) if "p2c" in self.terms else None,
            self.scale,
        )

    def _by_head(
        self, vectors: Tensor | None, rows: Int64[Tensor, " distances"]
    ) -> Float[Tensor, "heads distances head_size"]:
        assert vectors is not None
        return vectors.view(len(vectors), -1, self.head_size).transpose(0, 1)[:, rows]
