"""Models on disk, in the Hugging Face layout, read and written strictly.

    config.json          geometry, class names
    model.safetensors    weights (or shards of it with model.safetensors.index.json)
    vocab.txt, tokenizer.json, tokenizer_config.json
    bertworks.json       what that layout has no place for: the task and its settings

Every tensor of a checkpoint is used, dropped with a reason, or an error; what is newly initialised
is listed.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ..errors import CheckpointError, SettingsError
from ..model.config import EncoderConfig
from . import bert

if TYPE_CHECKING:
    from ..text.tokenizer import Tokenizer

FORMAT_VERSION = 1

_ACTIVATIONS = {"gelu_pytorch_tanh": "gelu_new", "gelu_python": "gelu"}
_MUST_BE = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
}


@dataclass(frozen=True)
class LoadReport:
    """What became of each tensor when a checkpoint was loaded.

    Attributes:
        used: the network's tensors that were filled.
        dropped: the checkpoint's tensors that were not used, and why.
        initialized: the network's tensors that the checkpoint has not, newly initialised.
    """

    used: tuple[str, ...]
    dropped: Mapping[str, str] = field(default_factory=dict)
    initialized: tuple[str, ...] = ()


def read_config(directory: Path) -> tuple[EncoderConfig, dict[str, Any]]:
    """The geometry in a directory's `config.json`, and all that stands in the file.

    Raises:
        CheckpointError: the file is missing, no JSON, or describes another architecture.
    """
    raw = _read_json(directory / "config.json")
    where = str(directory / "config.json")
    family = raw.get("model_type", bert.MODEL_TYPE)
    if family != bert.MODEL_TYPE:
        raise CheckpointError(
            f"model_type {family!r} is not supported", where=where, fix="Supported: bert."
        )
    for key, value in _MUST_BE.items():
        if raw.get(key, value) != value:
            raise CheckpointError(f"{key}={raw[key]!r} is not supported", where=where)
    values = {key: raw[key] for key in EncoderConfig.model_fields if key in raw}
    if "hidden_act" in values:
        values["hidden_act"] = _ACTIVATIONS.get(values["hidden_act"], values["hidden_act"])
    try:
        return EncoderConfig.parse(values, where=where), raw
    except SettingsError as error:
        raise CheckpointError(error.what, where=where) from None


def read_task(directory: Path) -> tuple[str, dict[str, Any]] | None:
    """The name and settings of a directory's task, or None where another tool wrote it.

    Raises:
        CheckpointError: `bertworks.json` is damaged or from a later version.
    """
    path = directory / "bertworks.json"
    if not path.is_file():
        return None
    values = _read_json(path)
    if values.get("format_version") != FORMAT_VERSION:
        raise CheckpointError(
            f"format version {values.get('format_version')!r} is not {FORMAT_VERSION}",
            where=str(path),
            fix="Use the version of bertworks that wrote it.",
        )
    return values["task"], values["task_settings"]


def read_tensors(directory: Path) -> dict[str, Tensor]:
    """All tensors of a directory, under today's names.

    Raises:
        CheckpointError: there are no weights, or a file is damaged.
    """
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        names = sorted(set(_read_json(index)["weight_map"].values()))
    elif (directory / "model.safetensors").is_file():
        names = ["model.safetensors"]
    else:
        raise CheckpointError("there is no model.safetensors", where=str(directory))
    tensors: dict[str, Tensor] = {}
    for name in names:
        try:
            tensors.update(load_file(directory / name))
        except (SafetensorError, OSError) as error:
            raise CheckpointError(
                f"cannot be read ({error})", where=str(directory / name)
            ) from None
    return {bert.normalize_name(name): tensor for name, tensor in tensors.items()}


def load_weights(network: nn.Module, tensors: Mapping[str, Tensor], where: str) -> LoadReport:
    """Fill a network from a checkpoint's tensors.

    Args:
        network: freshly initialised; its encoder is its attribute `encoder`.
        tensors: under the names of the published layout.
        where: the checkpoint's name, for errors.

    Raises:
        CheckpointError: a tensor of the encoder is missing, one is of another shape, or one is
            unknown.
    """
    used: list[str] = []
    initialized: list[str] = []
    taken: set[str] = set()
    for name, own in _own_tensors(network).items():
        try:
            found = bert.KEYS.fetch(name, tensors)
        except KeyError as error:
            raise CheckpointError(f"the tensor {error} is missing", where=where) from None
        if found is None:
            if not name.startswith(bert.NEW_IF_ABSENT):
                raise CheckpointError(
                    f"the tensor {bert.KEYS.theirs(name)[0]!r} is missing", where=where
                )
            initialized.append(name)
            continue
        if found.shape != own.shape:
            if name.startswith("head."):
                initialized.append(name)
                continue
            raise CheckpointError(
                f"the tensor {bert.KEYS.theirs(name)[0]!r} has shape {tuple(found.shape)}, "
                f"not {tuple(own.shape)}",
                where=where,
            )
        with torch.no_grad():
            own.copy_(found)
        used.append(name)
        taken.update(bert.KEYS.theirs(name))
    dropped = {name: _why_dropped(name, where) for name in tensors if name not in taken}
    return LoadReport(tuple(used), dropped, tuple(initialized))


def save_model(
    directory: str | Path,
    *,
    network: nn.Module,
    config: EncoderConfig,
    task: str,
    task_settings: Mapping[str, Any],
    config_entries: Mapping[str, Any],
    tokenizer: Tokenizer,
) -> Path:
    """Write a model; a directory that is there is replaced once the new one is complete.

    Args:
        directory: where to.
        network: the network, its encoder as its attribute `encoder`.
        config: its geometry.
        task: the task's name.
        task_settings: what the task needs to be built again.
        config_entries: what the task adds to `config.json` (`architectures`, `id2label`).
        tokenizer: the model's tokenizer.

    Raises:
        CheckpointError: the directory cannot be written.
    """
    directory = Path(directory)
    new = directory.with_name(f".{directory.name}.new")
    old = directory.with_name(f".{directory.name}.old")
    raw = {
        "model_type": bert.MODEL_TYPE,
        **config.model_dump(mode="json"),
        "pad_token_id": tokenizer.pad_id,
        "dtype": "float32",
        **config_entries,
    }
    own = {"format_version": FORMAT_VERSION, "task": task, "task_settings": dict(task_settings)}
    try:
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(parents=True)
        _write_json(new / "config.json", raw)
        _write_json(new / "bertworks.json", own)
        exported = bert.KEYS.export(_own_tensors(network))
        contiguous = {key: value.contiguous().cpu() for key, value in exported.items()}
        save_file(contiguous, new / "model.safetensors", metadata={"format": "pt"})
        (new / "model.safetensors").chmod(0o644)  # safetensors leaves it to its owner alone
        tokenizer.save(new)
        shutil.rmtree(old, ignore_errors=True)
        if directory.exists():
            directory.rename(old)
        new.rename(directory)
        shutil.rmtree(old, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(new, ignore_errors=True)
        raise CheckpointError(f"cannot be written ({error})", where=str(directory)) from None
    return directory


def _own_tensors(network: nn.Module) -> dict[str, Tensor]:
    """A network's tensors, one that has two names under the first."""
    tensors = network.state_dict()
    return {name: tensor for name, tensor in tensors.items() if name not in bert.TIED}


def _why_dropped(name: str, where: str) -> str:
    for pattern, reason in bert.DROPPED:
        if re.fullmatch(pattern, name):
            return reason
    raise CheckpointError(f"the tensor {name!r} is not known", where=where)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(
            f"there is no {path.name}", where=str(path.parent), fix="Is it a model's directory?"
        ) from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"cannot be read ({error})", where=str(path)) from None
    if not isinstance(values, dict):
        raise CheckpointError("the file holds no JSON object", where=str(path))
    return values


def _write_json(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
