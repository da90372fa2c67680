"""An encoder that native code computes as a whole, without PyTorch: from a pack to vectors.

    arrays of a file, or a network's tensors ─► packed weights ─► embeddings, layers, pooling

It computes in float32, in bfloat16, or with products of 8-bit integers. A model without PyTorch and
the frozen form of a network use the same code, so their vectors have the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..native.embeddings_and_pooling import NativeEmbeddings, mean_of_sequences
from ..native.layer import ACTIVATION_NUMBERS, LayerGeometry, NativeLayers, Rotations
from ..native.quantization import to_floats
from ..nn.config import EncoderConfig
from ..packed import Packed
from ..settings.pooling import modes_of
from .native_bias import DistanceNumbers
from .native_rotary import RotaryAngles

if TYPE_CHECKING:
    from jaxtyping import Float, Shaped

    from .native_modules import NativeModules
    from .text_embedding import TextReader, VectorEmbedder

Vectors = NDArray[np.float32]

POOLINGS = frozenset(("mean", "cls", "sep", "max", "mean-sqrt", "weighted-mean"))
"""The modes of pooling that `NativeEncoder.vectors` computes."""
_LEAST_LENGTH = 1e-12  # by which a vector is divided at least


class NativeEncoder:
    """Embeddings and layers in native code.

    Args:
        embeddings: of the tokens.
        layers: from the lowest up.
        bias: what all layers add to the scores of attention; None: nothing.
        angles: of rotary positions; None: positions are not rotary.
    """

    def __init__(
        self,
        embeddings: NativeEmbeddings,
        layers: NativeLayers,
        bias: DistanceNumbers | None = None,
        angles: RotaryAngles | None = None,
    ) -> None:
        self.embeddings, self.layers, self.bias, self.angles = embeddings, layers, bias, angles

    @property
    def num_bytes(self) -> int:
        """The bytes of the packed weights."""
        return self.embeddings.num_bytes + self.layers.num_bytes

    def __call__(self, packed: Packed) -> Shaped[np.ndarray, "tokens hidden_size"]:
        """The last layer's output: float32, or the bits of bfloat16 numbers.

        Raises:
            IndexError: a token, position or type is not in its table.
            MemoryError: there is no memory for intermediate results.
        """
        return self.layers(
            self._embed(packed), packed, self._numbers(packed), self._rotations(packed)
        )

    def states(self, packed: Packed) -> Iterator[Shaped[np.ndarray, "tokens hidden_size"]]:
        """Yield the embeddings, then each layer's output; see `__call__`."""
        hidden = self._embed(packed)
        yield hidden
        yield from self.layers.states(
            hidden, packed, self._numbers(packed), self._rotations(packed)
        )

    def _numbers(self, packed: Packed) -> Float[np.ndarray, "heads distances"] | None:
        return None if self.bias is None else self.bias(packed.max_seqlen)

    def _rotations(self, packed: Packed) -> Rotations | None:
        return None if self.angles is None else self.angles(np.asarray(packed.position_ids))

    def _embed(self, packed: Packed) -> Shaped[np.ndarray, "tokens hidden_size"]:
        hidden = self.embeddings(packed)
        if hidden is None:
            raise IndexError("a token, its position or its type is not in its table")
        return hidden

    def means(
        self, packed: Packed, *, unit_length: bool
    ) -> Float[np.ndarray, "sequences hidden_size"]:
        """The mean of each sequence's last states; optionally scaled to length 1."""
        return mean_of_sequences(self(packed), packed, unit_length=unit_length)

    @staticmethod
    def pool(
        hidden: Shaped[np.ndarray, "tokens hidden_size"],
        packed: Packed,
        pooling: str,
        *,
        first: int = 0,
    ) -> Float[np.ndarray, "sequences width"]:
        """A vector of each sequence from its hidden states, by pooling modes of `POOLINGS`.

        Args:
            first: the number of tokens at the start of each sequence that are left out.
        """
        edges = np.asarray(packed.cu_seqlens)
        if first:
            tokens = np.arange(len(hidden)) - np.repeat(edges[:-1], np.diff(edges))
            hidden = hidden[tokens >= first]
            packed = Packed.from_arrays(
                [np.zeros(length - first, np.int64) for length in np.diff(edges)]
            )
            edges = np.asarray(packed.cu_seqlens)
        parts: list[NDArray[np.float32]] = []
        for mode in modes_of(pooling):
            if mode == "mean":
                parts.append(mean_of_sequences(hidden, packed, unit_length=False))
            elif mode == "max":
                parts.append(np.maximum.reduceat(to_floats(hidden), edges[:-1], axis=0))
            elif mode == "mean-sqrt":
                means = mean_of_sequences(hidden, packed, unit_length=False)
                parts.append(means * np.sqrt(np.diff(edges).astype(np.float32))[:, None])
            elif mode == "weighted-mean":
                parts.append(_weighted_means(to_floats(hidden), edges, first))
            else:
                parts.append(to_floats(hidden[edges[:-1] if mode == "cls" else edges[1:] - 1]))
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)


def _weighted_means(
    hidden: Float[np.ndarray, "tokens hidden_size"], edges: NDArray[np.int32], first: int
) -> Float[np.ndarray, "sequences hidden_size"]:
    """Means with the tokens' numbers as weights; `first` tokens were left out at each start."""
    lengths = np.diff(edges).astype(np.int64)
    numbers = np.arange(len(hidden)) - np.repeat(edges[:-1], lengths) + first + 1
    sums = lengths * (lengths + 1 + 2 * first) / 2
    weights = (numbers / np.repeat(sums, lengths)).astype(np.float32)
    means: NDArray[np.float32] = np.add.reduceat(hidden * weights[:, None], edges[:-1], axis=0)
    return means


def of_unit_length_by_row(
    vectors: Float[np.ndarray, "texts width"],
) -> Float[np.ndarray, "texts width"]:
    """Return vectors scaled to length 1, with the same bits whatever the other vectors are."""
    squares = np.square(vectors, dtype=np.float64)
    lengths = np.sqrt(np.array([row.sum() for row in squares]))
    divisors = np.maximum(lengths, _LEAST_LENGTH).astype(np.float32)
    result: NDArray[np.float32] = vectors / divisors[:, None]
    return result


def unsupported_part(config: EncoderConfig) -> str | None:
    """What of an encoder native code cannot compute, in words; None if it can compute all."""
    bias = config.score_bias
    checks = {
        f"attention={config.attention}": config.attention == "bidirectional",
        f"mixer={config.mixer}": config.mixer == "attention",
        "a score bias": bias is None or bias.has_numbers_only,
        "num_hidden_layers=0": config.num_hidden_layers > 0,
        f"hidden_act={config.hidden_act}": config.hidden_act in ACTIVATION_NUMBERS,
        f"norm={config.norm}": config.norm != "none",
        "global_tokens": config.global_tokens is None,
    }
    return next((part for part, is_supported in checks.items() if not is_supported), None)


def layer_geometry(config: EncoderConfig) -> LayerGeometry:
    """The geometry of an encoder's layers, for native code."""
    return LayerGeometry(
        heads=config.num_attention_heads,
        key_heads=config.num_key_heads,
        activation=config.hidden_act,
        epsilon=config.layer_norm_eps,
        norm_first=config.norm_first,
        has_rms_norms=config.norm == "rms",
        is_gated=config.gated,
        is_by_head=config.query_key_value_order == "head",
        rotates_neighbours=config.positions == "rotary" and config.rotary.rotates_neighbours,
    )


def map_shapes(config: EncoderConfig) -> list[tuple[int, int]]:
    """The shapes of a layer's maps, in the order of `native.layer.MAPS`."""
    width, inner = config.hidden_size, config.intermediate_size
    rows = (config.num_attention_heads + 2 * config.num_key_heads) * config.head_size
    return [(rows, width), (width, width), (inner * (1 + config.gated), width), (width, inner)]


def layer_windows(config: EncoderConfig) -> list[int | None]:
    """The window of each layer's attention; see `EncoderGeometry.window`."""
    return [config.window(number) for number in range(config.num_hidden_layers)]


def unsupported_pooling(pooling: str) -> str | None:
    """The first mode of pooling that native code does not compute; None if there is none."""
    modes: Sequence[str] = modes_of(pooling)
    return next((mode for mode in modes if mode not in POOLINGS), None)


class NativeParts(NamedTuple):
    """What computes the vectors of texts in native code.

    Attributes:
        encoder: in a precision.
        modules: those that follow pooling; None: there are none.
        pool: returns the pooler's output for each sequence; only for the pooling "pooler".
    """

    encoder: NativeEncoder
    modules: NativeModules | None
    pool: Callable[[Packed], Vectors] | None


def layer_vectors(
    reader: TextReader,
    encoder: NativeEncoder,
    packed: Packed,
    reduce: Callable[[NDArray[Any]], Vectors],
) -> Float[np.ndarray, "vectors width"]:
    """The vectors of each layer, or of all layers combined, after `reduce`, side by side.

    Args:
        reader: says which layers, and how they are combined.
    """
    if reader.is_of_last:  # all layers are computed in one call
        return reduce(encoder(packed))
    parts = combine_layers(reader, encoder.states(packed), reduce, to_floats)
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)


def combine_layers(
    reader: TextReader,
    states: Iterable[Any],
    reduce: Callable[[Any], Any],
    float_states: Callable[[Any], Any],
) -> list[Any]:
    """Return the vectors to concatenate: of each layer, or of all combined, after `reduce`.

    Args:
        reader: see `layer_vectors`.
        states: of all layers, the embeddings first: arrays, or tensors of PyTorch.
        reduce: makes float32 vectors of states.
        float_states: converts states to float32.
    """
    layers, settings = reader.layers, reader.settings
    weights = dict.fromkeys(layers, 0.0)
    for number, weight in zip(layers, settings.layer_weights or repeat(1.0), strict=False):
        weights[number] += weight
    needed_states = ((number, one) for number, one in enumerate(states) if number in weights)
    if settings.combine == "concat":
        vectors = {number: reduce(hidden) for number, hidden in needed_states}
        return [vectors[layer] for layer in layers]
    total = sum(weights[number] * float_states(hidden) for number, hidden in needed_states)
    return [reduce(total / sum(weights.values()) if settings.combine == "mean" else total)]


def text_vectors(
    embedder: VectorEmbedder, parts: NativeParts, packed: Packed, num_excluded: int
) -> Float[np.ndarray, "sequences width"]:
    """The vector of each text of a pack.

    Args:
        embedder: says which layers, how they are pooled, and whether vectors have length 1.
        num_excluded: the number of tokens at the start of each text that pooling leaves out.
    """
    encoder, modules, pool = parts
    pooling, has_unit_length = embedder.pooling, embedder.settings.normalize
    if pooling == "mean" and not num_excluded and embedder.is_of_last:
        vectors = encoder.means(packed, unit_length=has_unit_length and modules is None)
        if modules is None:
            return vectors
    elif pool is not None:
        vectors = pool(packed)
    else:
        vectors = layer_vectors(
            *(embedder, encoder, packed),
            lambda hidden: NativeEncoder.pool(hidden, packed, pooling, first=num_excluded),
        )
    if modules is not None:
        vectors = modules(vectors)
    return of_unit_length_by_row(vectors) if has_unit_length else vectors
