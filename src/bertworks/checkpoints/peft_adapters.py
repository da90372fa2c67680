"""Adapters that the `peft` library saved: low-rank changes to the matrices of a base model.

    adapter_config.json          the base model's name, the kind of adapter, its scale
    adapter_model.safetensors    two small matrices for each changed one, and whole new heads

They are merged on loading: `W + scale · B A`. Source: Hu et al. (2021), "LoRA", §4.1; with
`use_rslora` the scale is `alpha / √r` (Kalajdzievski 2023).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from ..errors import CheckpointError, first_line, truncate_repr
from .family import Family
from .locate import ADAPTER_CONFIG
from .weight_files import read_json
from .weights import read_weights_file

_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
_PREFIX = "base_model.model."
_MODEL_CLASSES = {
    "SEQ_CLS": "classification",
    "TOKEN_CLS": "tagging",
    "QUESTION_ANS": "answering",
}


def base_name(directory: Path) -> str:
    """The name of an adapter's base model.

    Raises:
        CheckpointError: the file is damaged, or names none.
    """
    config = read_json(directory / ADAPTER_CONFIG)
    _check_kind(config, str(directory / ADAPTER_CONFIG))
    name = config.get("base_model_name_or_path")
    if not isinstance(name, str) or not name:
        raise CheckpointError(
            "the adapter does not name its base model",
            where=str(directory / ADAPTER_CONFIG),
            fix='Give it: --base MODEL (load(…, base="…")). convert writes the merged model.',
        )
    return name


def merge_adapter(
    directory: Path, family: Family, tensors: dict[str, Tensor], raw: dict[str, Any]
) -> None:
    """Add an adapter's changes to the tensors of its base model, and its head.

    Args:
        tensors: the base model's, under the family's names; they are replaced.
        raw: the base model's `config.json`, which gets the class of the adapter's task.

    Raises:
        CheckpointError: a file is damaged, the kind of adapter is not supported, or it does not fit
            the base model.
    """
    config = read_json(directory / ADAPTER_CONFIG)
    where = str(directory / ADAPTER_CONFIG)
    _check_kind(config, where)
    weights = _read_weights(directory)
    lows: dict[str, dict[str, Tensor]] = {}
    for name, tensor in weights.items():
        # A trained bias of an adapted module is saved as that of the layer inside it.
        short = name.removeprefix(_PREFIX).replace(".base_layer.bias", ".bias")
        low_rank = re.fullmatch(r"(.+)\.lora_(?:([AB])\.weight|embedding_([AB]))", short)
        if low_rank:
            lows.setdefault(low_rank[1], {})[low_rank[2] or f"rows {low_rank[3]}"] = tensor
        elif "lora_" in short:
            raise CheckpointError(f"{name!r} is not supported", where=str(directory))
        else:  # a head, or a bias
            tensors[_own_name(short, family, tensors)] = tensor
    for module, pair in lows.items():
        own, part, num_parts = _own_rows(f"{module}.weight", family, tensors)
        kinds = ("A", "B") if "A" in pair else ("rows A", "rows B")
        if own not in tensors or pair.keys() != set(kinds):
            raise CheckpointError(
                f"the adapter changes {module!r}, which the base model does not have",
                where=str(directory),
                fix='Name its base model: --base MODEL (load(…, base="…")).',
            )
        low, high = (pair[kind].float() for kind in kinds)
        if not low.ndim == high.ndim == 2:
            raise CheckpointError(
                f"the adapter changes {module!r}, a convolution, which is not supported",
                where=str(directory),
                fix="Merge the adapter with peft, and save the whole model.",
            )
        change = high @ low * _scale(config, module, low, where)
        # A row of a table of embeddings is an input; rows of other matrices are outputs.
        if "A" not in pair or config.get("fan_in_fan_out"):
            change = change.T
        weight = tensors[own]
        rows = len(weight) // num_parts
        if change.shape != (rows, *weight.shape[1:]):
            raise CheckpointError(
                f"the adapter changes {module!r} of shape {tuple(change.shape)}, and the base "
                f"model's has {(rows, *weight.shape[1:])}",
                where=str(directory),
            )
        if num_parts > 1:
            others = change.new_zeros(weight.shape)
            others[part * rows : (part + 1) * rows] = change
            change = others
        tensors[own] = (weight.float() + change).to(weight.dtype)
    kind = _MODEL_CLASSES.get(str(config.get("task_type")))
    if kind is not None and kind in family.classes:
        raw["architectures"] = [family.classes[kind]]


_UNSUPPORTED_SETTINGS = (
    *("use_dora", "lora_bias", "use_qalora", "megatron_config", "layer_replication"),
    "alora_invocation_tokens",
)
_STARTS_THAT_CHANGE_THE_BASE = ("pissa", "corda", "olora", "loftq")
"""Initialisations of an adapter that also change the weights of the base model."""


def _check_kind(config: Mapping[str, Any], where: str) -> None:
    kind, fix = config.get("peft_type"), "Merge the adapter with peft, and save the whole model."
    if kind is None:
        raise CheckpointError("there is no peft_type: it is no adapter of peft", where=where)
    if kind != "LORA":
        raise CheckpointError(
            f"peft_type is {truncate_repr(kind)}, which is not supported",
            where=where,
            fix=fix,
        )
    for key in _UNSUPPORTED_SETTINGS:
        if config.get(key):
            raise CheckpointError(f"{key} is not supported", where=where, fix=fix)
    start = str(config.get("init_lora_weights")).lower()
    if start.startswith(_STARTS_THAT_CHANGE_THE_BASE):
        what = f"init_lora_weights={start} also changes the base model's weights"
        raise CheckpointError(what, where=where, fix=fix)


def _read_weights(directory: Path) -> dict[str, Tensor]:
    files = [directory / name for name in _WEIGHTS if (directory / name).exists()]
    if not files:
        raise CheckpointError(f"there is no {_WEIGHTS[0]}", where=str(directory))
    return read_weights_file(files[0])


def _own_name(name: str, family: Family, tensors: Mapping[str, Tensor]) -> str:
    """The family's name of an adapter's tensor, whose base may be a bare encoder."""
    own = family.normalize_name(name)
    with_prefix = family.normalize_name(family.prefix + name)
    return with_prefix if own not in tensors and with_prefix in tensors else own


def _own_rows(name: str, family: Family, tensors: Mapping[str, Tensor]) -> tuple[str, int, int]:
    """See `Family.find_rows`; the adapter's base may be a bare encoder."""
    own = family.find_rows(name)
    with_prefix = family.find_rows(family.prefix + name)
    return with_prefix if own[0] not in tensors and with_prefix[0] in tensors else own


def _scale(config: Mapping[str, Any], module: str, low: Tensor, where: str) -> float:
    """The factor of a module's change; `alpha_pattern` may name another alpha for some modules.

    Raises:
        CheckpointError: the alpha is not a number, or the patterns are none.
    """
    patterns = config.get("alpha_pattern") or {}
    try:
        if not isinstance(patterns, Mapping):
            raise TypeError("the patterns are not an object")
        matches = (patterns[key] for key in patterns if re.fullmatch(rf"(.*\.)?({key})", module))
        alpha = float(next(matches, config.get("lora_alpha", 8)))
        if not math.isfinite(alpha):
            raise ValueError("it is not finite")
    except (re.error, TypeError, ValueError, OverflowError) as error:
        what = f"lora_alpha or alpha_pattern is not valid ({first_line(error)})"
        raise CheckpointError(what, where=where) from None
    rank = low.shape[0]
    return float(alpha / rank**0.5 if config.get("use_rslora") else alpha / rank)
