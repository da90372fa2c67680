"""The heads of a task's network as arrays, which need no PyTorch: from hidden states to outputs.

All numbers are float32, whatever the precision of the encoder is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..checkpoints.heads import POOLER
from ..native.linear import ACTIVATIONS, apply_linear
from ..native.quantization import to_floats
from ..nn.head_layouts import (
    Activate,
    AddFirst,
    ApplyPooler,
    Decode,
    DropOut,
    HeadLayout,
    LinearMap,
    Normalize,
    Pool,
    Step,
    tensors_of,
)
from ..packed import Packed
from .native_encoder import NativeEncoder, of_unit_length_by_row
from .native_weights import WORDS

if TYPE_CHECKING:
    from jaxtyping import Float, Shaped

Vectors = NDArray[np.float32]


def head_tensors(layouts: Mapping[str, HeadLayout]) -> dict[str, tuple[int, ...]]:
    """Return the names and shapes of the tensors of heads, by the names of these."""
    return {
        f"{head}.{name}": shape
        for head, layout in layouts.items()
        for name, shape in tensors_of(layout).items()
    }


def unsupported_head(layouts: Mapping[str, HeadLayout]) -> str | None:
    """What of heads arrays cannot compute, in words; None if they can compute all."""
    for name, layout in layouts.items():
        for step in layout:
            if isinstance(step, Decode) and step.extension:
                return f"the extended decoder of {name}"
            if isinstance(step, Normalize) and step.kind == "none":
                return f"a norm of {name}"
    return None


class NativeTaskNetwork:
    """An encoder in native code, and heads; see `Task.compute`.

    Args:
        encoder: in a precision.
        layouts: of the heads, by name; the pooler is one of them.
        arrays: float32, by the names of `head_tensors`; and the word embeddings, if a decoder is
            tied to them.
    """

    def __init__(
        self,
        encoder: NativeEncoder,
        layouts: Mapping[str, HeadLayout],
        arrays: Mapping[str, Vectors],
    ) -> None:
        self._encoder, self._layouts, self._arrays = encoder, layouts, arrays

    def hidden(self, packed: Packed) -> Shaped[np.ndarray, "tokens hidden_size"]:
        """The last layer's output: float32, or the bits of bfloat16 numbers."""
        return self._encoder(packed)

    def vectors(self, packed: Packed, pooling: str) -> Float[np.ndarray, "sequences width"]:
        """A vector of length 1 of each sequence."""
        return of_unit_length_by_row(self._encoder.pool(self.hidden(packed), packed, pooling))

    def pool(self, packed: Packed) -> Float[np.ndarray, "sequences hidden_size"]:
        """The output of the encoder's pooler for each sequence."""
        return self.head(POOLER.name, self.hidden(packed), packed)

    def head(
        self, name: str, hidden: Shaped[np.ndarray, "tokens hidden_size"], packed: Packed | None
    ) -> Float[np.ndarray, "rows outputs"]:
        """Apply a head to hidden states.

        Args:
            hidden: as the result of `hidden`; of all tokens, if the head pools.
            packed: the sequences, if it pools.
        """
        for step in self._layouts[name]:
            hidden = self._apply(step, name, hidden, packed)
        return to_floats(hidden)

    def _apply(self, step: Step, head: str, x: NDArray[Any], packed: Packed | None) -> Vectors:
        if isinstance(step, Pool | ApplyPooler | AddFirst):
            assert packed is not None, "the head pools"
            return self._pool(step, x, packed)
        x = to_floats(x)
        if isinstance(step, DropOut):
            return x
        if isinstance(step, Activate):
            return ACTIVATIONS[step.activation](x)
        names = {name.rpartition(".")[2]: f"{head}.{name}" for name, _ in step.tensors()}
        arrays = {name: self._arrays[whole] for name, whole in names.items()}
        if isinstance(step, Normalize):
            return _normalize(x, step, arrays)
        if isinstance(step, LinearMap):
            weight = arrays["weight"]
        else:
            weight = self._arrays[WORDS] if step.is_tied else arrays["decoder"]
        return apply_linear(np.ascontiguousarray(x), weight, arrays.get("bias"))

    def _pool(
        self, step: Pool | ApplyPooler | AddFirst, x: NDArray[Any], packed: Packed
    ) -> Vectors:
        if isinstance(step, ApplyPooler):
            return self.head(POOLER.name, x, packed)
        if isinstance(step, Pool):
            return self._encoder.pool(x, packed, step.mode)
        first = self._encoder.pool(x, packed, "cls")
        result: Vectors = to_floats(x) + np.repeat(first, packed.lengths, axis=0)
        return result


def _normalize(x: Vectors, step: Normalize, arrays: Mapping[str, Vectors]) -> Vectors:
    """Divide rows by their scale, in float64, so that rounding does not depend on other rows."""
    rows = x.astype(np.float64)
    if step.kind == "layer":
        rows -= rows.mean(1, keepdims=True)
    rows /= np.sqrt(np.square(rows).mean(1, keepdims=True) + step.epsilon)
    rows *= arrays["weight"]
    if step.has_bias:
        rows += arrays["bias"]
    return rows.astype(np.float32)
