"""The files of a sentence encoder's modules after the transformer, as sentence-transformers has
them: in each module's directory a `config.json` and, if it has weights, `model.safetensors`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import CheckpointError, SettingsError, truncate_repr
from ..nn.vector_module_settings import (
    DenseSettings,
    DropoutSettings,
    LayerNormSettings,
    ModuleSettings,
    NormalizeSettings,
    find_activation,
    path_of_activation,
)
from ..settings.literals import PoolingMode
from ..utils.json_files import write_json
from .weight_files import SAFETENSORS, read_json

if TYPE_CHECKING:
    from ..nn.vector_modules import VectorModules
else:
    VectorModules = Any  # settings are read without PyTorch

_POOLING_MODES: Mapping[str, PoolingMode] = {
    "cls": "cls",
    "max": "max",
    "mean": "mean",
    "mean_sqrt_len_tokens": "mean-sqrt",
    "weightedmean": "weighted-mean",
    "lasttoken": "sep",
}
# The keys of versions before 6, in the order in which vectors are put side by side.
_OLD_POOLING_KEYS: Mapping[str, PoolingMode] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean-sqrt",
    "pooling_mode_weightedmean_tokens": "weighted-mean",
    "pooling_mode_lasttoken": "sep",
}
_VECTOR = "sentence_embedding"
"""Their name of a text's vector, among the inputs and outputs of modules."""


def read_pooling(directory: Path) -> dict[str, Any]:
    """Read a pooling's settings, `pooling` and `include_prompt`, from its directory.

    Raises:
        CheckpointError: they are missing or not supported.
    """
    file = directory / "config.json"
    config = read_json(file)
    if "pooling_mode" in config:
        value = config["pooling_mode"]
        names = value if isinstance(value, list) else [value]
        modes = [_POOLING_MODES.get(name) if isinstance(name, str) else None for name in names]
    else:
        names = [key for key, value in config.items() if key.startswith("pooling_mode_") and value]
        keys = [key for key in _OLD_POOLING_KEYS if key in names]
        keys += [key for key in names if key not in _OLD_POOLING_KEYS]
        modes = [_OLD_POOLING_KEYS.get(key) for key in keys] or ["mean"]
    plain_modes = [mode for mode in modes if mode is not None]
    if len(plain_modes) < len(modes) or not modes:
        raise CheckpointError(
            f"asks for a pooling ({', '.join(map(str, names))}) that is not one of "
            + ", ".join(_POOLING_MODES),
            where=str(file),
        )
    return {
        "pooling": "+".join(plain_modes),
        "include_prompt": config.get("include_prompt", True) is not False,
    }


def write_settings(directory: Path, settings: Mapping[str, Any]) -> None:
    """Write the settings of a module in its new directory."""
    directory.mkdir()
    write_json(directory / "config.json", settings)


def write_pooling(directory: Path, pooling: str, hidden_size: int, *, include_prompt: bool) -> None:
    """Write a new directory that `read_pooling` and every version of sentence-transformers read."""
    modes = pooling.split("+")
    config: dict[str, Any] = {"word_embedding_dimension": hidden_size}
    config |= {key: mode in modes for key, mode in _OLD_POOLING_KEYS.items()}
    if modes != [mode for mode in _OLD_POOLING_KEYS.values() if mode in modes]:
        # Versions before 6 have only one order.
        names: dict[str, str] = {mode: name for name, mode in _POOLING_MODES.items()}
        config = {
            "embedding_dimension": hidden_size,
            "pooling_mode": [names[mode] for mode in modes],
        }
    if not include_prompt:
        config["include_prompt"] = False
    write_settings(directory, config)


def read_sparse_pooling(directory: Path) -> dict[str, Any]:
    """Read the pooling of a SPLADE model from its directory.

    Raises:
        CheckpointError: it is missing or not supported.
    """
    file = directory / "config.json"
    config = read_json(file)
    strategy = config.get("pooling_strategy", "max")
    activation = config.get("activation_function", "relu")
    if strategy not in ("max", "sum") or activation not in _SPARSE_ACTIVATIONS:
        raise CheckpointError(
            f"pooling_strategy {truncate_repr(strategy)} with activation_function "
            f"{truncate_repr(activation)} is not supported",
            where=str(file),
        )
    return {"pooling": f"splade-{strategy}{_SPARSE_ACTIVATIONS[activation]}"}


_SPARSE_ACTIVATIONS = {"relu": "", "log1p_relu": "-log"}


def write_sparse_pooling(directory: Path, pooling: str) -> None:
    """Write a new directory that `read_sparse_pooling` reads."""
    config = {
        "pooling_strategy": pooling.split("-")[1],
        "activation_function": "log1p_relu" if pooling.endswith("-log") else "relu",
    }
    write_settings(directory, config)


def read_layer_weights(directory: Path) -> dict[str, Any]:
    """Read the settings `layers`, `combine` and `layer_weights` of a weighted mean of layers.

    Raises:
        CheckpointError: the file is damaged.
    """
    config = read_json(directory / "config.json")
    from .weights import read_weights

    start, count = config.get("layer_start", 4), config.get("num_hidden_layers", 12)
    weights = read_weights(directory).get("layer_weights")
    if not isinstance(start, int) or not isinstance(count, int) or weights is None:
        raise CheckpointError("layer_start or layer_weights is missing", where=str(directory))
    if weights.shape != (count + 1 - start,):
        raise CheckpointError(
            f"layer_weights has shape {tuple(weights.shape)}, not ({count + 1 - start},)",
            where=str(directory),
        )
    return {
        "layers": tuple(range(start, count + 1)),
        "combine": "mean",
        "layer_weights": tuple(weights.double().tolist()),
    }


def write_layer_weights(
    directory: Path, layers: tuple[int, ...], weights: tuple[float, ...], hidden_size: int
) -> None:
    """Write a new directory that `read_layer_weights` reads."""
    config = {
        "word_embedding_dimension": hidden_size,
        "layer_start": layers[0],
        "num_hidden_layers": layers[-1],
    }
    import torch

    from .weights import write_weights

    write_settings(directory, config)
    write_weights(directory / SAFETENSORS, {"layer_weights": torch.tensor(weights)}, format="pt")


def check_names(config: Mapping[str, Any], file: Path, vectors: str = _VECTOR) -> None:
    """Check that a module reads and writes the vectors with sentence-transformers' name for them.

    Raises:
        CheckpointError: it reads or writes others.
    """
    for key in ("module_input_name", "module_output_name"):
        if config.get(key) not in (None, vectors):
            raise CheckpointError(
                f"{key} is {truncate_repr(config[key])}, which is not supported", where=str(file)
            )


def read_dense(config: Mapping[str, Any], file: Path, vectors: str = _VECTOR) -> DenseSettings:
    """Read the settings of a linear map.

    Args:
        vectors: sentence-transformers' name of the vectors that it maps; None also counts.

    Raises:
        CheckpointError: it maps others, or a value is not supported.
    """
    check_names(config, file, vectors)
    path = config.get("activation_function", path_of_activation("tanh"))
    activation = find_activation(str(path))
    if activation is None:
        raise CheckpointError(
            f"activation_function is {truncate_repr(path)}, which is not supported",
            where=str(file),
        )
    names = ("in_features", "out_features", "bias", "use_residual")
    values = {name: config[name] for name in names if name in config}
    return DenseSettings.parse({**values, "activation": activation}, where=str(file))


def _read_normalize(config: Mapping[str, Any], file: Path) -> NormalizeSettings:
    check_names(config, file)
    return NormalizeSettings()


_READERS: Mapping[str, Callable[[Mapping[str, Any], Path], ModuleSettings]] = {
    "Dense": read_dense,
    "LayerNorm": lambda config, file: LayerNormSettings.parse(
        {"dimension": config.get("dimension")}, where=str(file)
    ),
    "Normalize": _read_normalize,
    "Dropout": lambda config, file: DropoutSettings.parse(
        {key: config[key] for key in ("dropout",) if key in config}, where=str(file)
    ),
}
VECTOR_MODULES = frozenset(_READERS)
"""The kinds of modules that `read_vector_module` reads."""


def read_vector_module(kind: str, directory: Path) -> ModuleSettings:
    """Read the settings of a module that follows pooling.

    Raises:
        CheckpointError: they are missing or not supported.
    """
    file = directory / "config.json"
    has_settings = kind != "Normalize" or file.exists()  # which may have no directory at all
    config = read_json(file) if has_settings else {}
    try:
        return _READERS[kind](config, file)
    except SettingsError as error:
        raise CheckpointError(error.what, where=str(file)) from None


class ModuleFiles(NamedTuple):
    """Modules that follow pooling, their directories, and the file that lists them."""

    settings: tuple[ModuleSettings, ...]
    directories: tuple[Path, ...]
    where: str


def load_vector_modules(files: ModuleFiles) -> VectorModules:
    """Make modules with the weights in their directories.

    Raises:
        CheckpointError: widths do not fit together; or a tensor is missing, has another shape, is
            not one of the module's, or is not finite.
    """
    from ..nn.vector_modules import VectorModules
    from .weights import read_weights

    try:
        modules = VectorModules(files.settings)
    except SettingsError as error:
        raise CheckpointError(error.what, where=files.where) from None
    for step, directory in zip(modules.steps, files.directories, strict=True):
        shapes = {name: tuple(tensor.shape) for name, tensor in step.state_dict().items()}
        if not shapes:
            continue
        tensors = read_weights(directory)
        if shapes != {name: tuple(tensor.shape) for name, tensor in tensors.items()}:
            expected = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
            raise CheckpointError(
                f"the weights of the module are not {expected}", where=str(directory)
            )
        for name, tensor in tensors.items():
            if not tensor.isfinite().all():
                raise CheckpointError(f"the tensor {name!r} is not finite", where=str(directory))
        step.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
    return modules.eval()


def write_vector_module(directory: Path, modules: VectorModules, index: int) -> None:
    """Write a module to a new directory, which `read_vector_module` and `read_dense` read."""
    settings, step = modules.settings[index], modules.steps[index]
    config = settings.model_dump(exclude={"kind"})
    if isinstance(settings, DenseSettings):
        config["activation_function"] = path_of_activation(config.pop("activation"))
        if not config["use_residual"]:
            del config["use_residual"]  # which older versions of sentence-transformers do not know
    write_settings(directory, config)
    if tensors := {name: part.cpu().contiguous() for name, part in step.state_dict().items()}:
        from .weights import write_weights

        write_weights(directory / SAFETENSORS, tensors, format="pt")
