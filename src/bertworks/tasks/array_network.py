"""What a task computes with, where its network is made of arrays instead of PyTorch's modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from ..packed import Packed

if TYPE_CHECKING:
    from jaxtyping import Float, Shaped

SequencePooling = Literal["sum", "mean", "max"]
"""How the outputs for a row's sequences become those of the row."""

CHUNK_TOKENS = 8192
"""The most tokens that go through the encoder at once, if rows have several sequences."""


class ArrayNetwork(Protocol):
    """An encoder and the heads of a task, by the names of `Task.head_layouts`."""

    def hidden(self, packed: Packed) -> Shaped[np.ndarray, "tokens hidden_size"]:
        """The last layer's output: float32, or the bits of bfloat16 numbers."""
        ...

    def head(
        self, name: str, hidden: Shaped[np.ndarray, "tokens hidden_size"], packed: Packed | None
    ) -> Float[np.ndarray, "rows outputs"]:
        """Apply a head to hidden states; of all tokens of `packed`, if the head pools."""
        ...

    def vectors(self, packed: Packed, pooling: str) -> Float[np.ndarray, "sequences width"]:
        """A vector of length 1 of each sequence."""
        ...


def compute_in_chunks(
    function: Callable[[Packed], NDArray[np.float32]], packed: Packed
) -> NDArray[np.float32]:
    """Apply a function to parts of a pack, so that memory does not grow with it."""
    return np.concatenate([function(part) for part in packed.split(CHUNK_TOKENS)])


def head_outputs(
    network: ArrayNetwork, head: str, packed: Packed
) -> Float[np.ndarray, "rows outputs"]:
    """The outputs of a head for each token, or each sequence if it pools, in the pack's order."""
    return compute_in_chunks(lambda part: network.head(head, network.hidden(part), part), packed)


def pool_rows(
    outputs: Float[np.ndarray, "sequences outputs"], packed: Packed, pooling: SequencePooling
) -> Float[np.ndarray, "rows outputs"]:
    """Pool the outputs of each row's sequences; see `text_network.pool_sequences`."""
    firsts = np.flatnonzero(packed.sequence_number == 0)
    if len(firsts) == len(outputs):
        return outputs
    if pooling == "max":
        return np.maximum.reduceat(outputs, firsts)
    sums: NDArray[Any] = np.add.reduceat(outputs, firsts)
    if pooling == "mean":
        sums = sums / np.diff(firsts, append=len(outputs))[:, None].astype(np.float32)
    return sums
