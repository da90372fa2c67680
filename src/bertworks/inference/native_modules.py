"""The modules of a sentence encoder after pooling as arrays, which need no PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..checkpoints.sentence_modules import ModuleFiles
from ..checkpoints.weight_files import PYTORCH, SAFETENSORS, find_weight_files, list_arrays
from ..errors import CheckpointError, needs_pytorch_error
from ..native.quantization import to_floats
from ..nn.vector_module_settings import (
    DenseActivation,
    DenseSettings,
    DropoutSettings,
    ModuleSettings,
    NormalizeSettings,
)
from .native_encoder import of_unit_length_by_row

if TYPE_CHECKING:
    from jaxtyping import Float

Arrays = Mapping[str, NDArray[np.float32]]

_ACTIVATIONS: Mapping[DenseActivation, Callable[[NDArray[np.float32]], NDArray[np.float32]]] = {
    "identity": lambda x: x,
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": lambda x: np.reciprocal(1 + np.exp(-x)),
}


class NativeModules:
    """The modules of a sentence encoder after pooling: vectors in, vectors out.

    Args:
        settings: none that `unsupported_module` names.
        weights: the arrays of each module, float32, by their names.
    """

    def __init__(self, settings: Sequence[ModuleSettings], weights: Sequence[Arrays]) -> None:
        self.settings, self._weights = settings, weights

    @staticmethod
    def from_files(files: ModuleFiles) -> NativeModules:
        """Read the modules from their settings and directories.

        Raises:
            CheckpointError: the weights of a module are missing, or of another shape; or a module
                needs PyTorch.
        """
        all_weights: list[Arrays] = []
        for settings, directory in zip(files.settings, files.directories, strict=True):
            where = str(directory)
            if (what := unsupported_module(settings)) is not None:
                raise needs_pytorch_error(f"the module {what}", where=where)
            shapes = _shapes_of(settings)
            weight_files = find_weight_files(directory, SAFETENSORS) if shapes else []
            if shapes and not weight_files and find_weight_files(directory, PYTORCH):
                raise needs_pytorch_error(f"a module without {SAFETENSORS}", where=where)
            arrays = list_arrays(weight_files)
            if {name: one.shape for name, one in arrays.items()} != shapes:
                expected = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
                raise CheckpointError(
                    f"the weights of the module in {SAFETENSORS} are not {expected}", where=where
                )
            weights = {name: to_floats(one.read()) for name, one in arrays.items()}
            for name, weight in weights.items():
                if not np.isfinite(weight).all():
                    raise CheckpointError(f"the tensor {name!r} is not finite", where=where)
            all_weights.append(weights)
        return NativeModules(files.settings, all_weights)

    @property
    def num_bytes(self) -> int:
        """The bytes of the weights."""
        return sum(weight.nbytes for weights in self._weights for weight in weights.values())

    def named_arrays(self) -> Iterator[tuple[str, NDArray[np.float32]]]:
        """Yield the weights, with the names that a network of them has, in their order."""
        names = {
            f"modules.steps.{number}.{name}": weight
            for number, weights in enumerate(self._weights)
            for name, weight in weights.items()
        }
        yield from sorted(names.items(), key=itemgetter(0))

    def __call__(
        self, vectors: Float[np.ndarray, "texts inputs"]
    ) -> Float[np.ndarray, "texts outputs"]:
        for settings, weights in zip(self.settings, self._weights, strict=True):
            if isinstance(settings, DenseSettings):
                vectors = _dense(settings, weights, vectors)
            elif isinstance(settings, NormalizeSettings):
                vectors = of_unit_length_by_row(vectors)
        return vectors


def unsupported_module(settings: ModuleSettings) -> str | None:
    """What of a module arrays cannot compute, in words; None if they can compute it."""
    if isinstance(settings, NormalizeSettings | DropoutSettings):
        return None
    if not isinstance(settings, DenseSettings):
        return settings.kind
    if settings.use_residual:
        return "Dense with use_residual"
    if settings.activation not in _ACTIVATIONS:
        return f"Dense with activation {settings.activation}"
    return None


def _dense(
    settings: DenseSettings, weights: Arrays, vectors: Float[np.ndarray, "texts inputs"]
) -> Float[np.ndarray, "texts outputs"]:
    # Row by row: the bits of a product of matrices depend on the number of rows.
    result = np.stack([weights["linear.weight"] @ vector for vector in vectors])
    if settings.bias:
        result += weights["linear.bias"]
    return _ACTIVATIONS[settings.activation](result)


def _shapes_of(settings: ModuleSettings) -> dict[str, tuple[int, ...]]:
    """The names and shapes of a module's weights."""
    if not isinstance(settings, DenseSettings):
        return {}
    outputs = settings.out_features
    shapes: dict[str, tuple[int, ...]] = {"linear.weight": (outputs, settings.in_features)}
    return {**shapes, "linear.bias": (outputs,)} if settings.bias else shapes
