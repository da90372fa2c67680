"""Low-rank adapters in a model's own directory, one for each use; one of them may be loaded.

    model.safetensors       Jina embeddings v3: next to each matrix `x.weight`, which is named
                            `x.parametrizations.weight.original`, `0.lora_A` and `0.lora_B` of all
                            adapters; `lora_adaptations` in `config.json` has their names, in order
    retrieval_query/, …     a folder for each, as the `peft` library saves it

They are merged: `W + alpha / rank · B A`, and `A B` for a table of embeddings, whose rows are its
inputs. Source: Sturua et al. (2024), "jina-embeddings-v3", §3; Hu et al. (2021), "LoRA", §4.1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import CheckpointError, truncate_repr
from .locate import ADAPTER_CONFIG
from .sentence_settings import SentenceSettings
from .weight_files import PARAMETRIZATIONS, read_json

_ORIGINAL = f"{PARAMETRIZATIONS}weight.original"
_LOW_RANK = (f"{PARAMETRIZATIONS}weight.0.lora_A", f"{PARAMETRIZATIONS}weight.0.lora_B")
UNUSED = "an adapter, and none was chosen"
"""Why the tensors of adapters inside the weights were dropped."""


class TaskAdapter(NamedTuple):
    """An adapter in a model's directory.

    Attributes:
        name: as its files write it.
        folder: where it is; None if it is inside the weights.
    """

    name: str
    folder: Path | None


def list_adapters(directory: Path, config: Mapping[str, Any]) -> tuple[TaskAdapter, ...]:
    """Return the adapters in a model's directory, those inside its weights first.

    Args:
        config: its `config.json`.
    """
    inside = config.get("lora_adaptations")
    names = inside if isinstance(inside, list) else []
    folders = sorted(file.parent for file in directory.glob(f"*/{ADAPTER_CONFIG}"))
    return (
        *(TaskAdapter(str(name), None) for name in names),
        *(TaskAdapter(folder.name, folder) for folder in folders),
    )


def find_adapter(name: str, adapters: Sequence[TaskAdapter], where: str) -> TaskAdapter:
    """Return the adapter of a name, which may be written with dots, hyphens or underscores.

    Raises:
        CheckpointError: no adapter has this name.
    """
    for adapter in adapters:
        if _plain(adapter.name) == _plain(name):
            return adapter
    names = ", ".join(adapter.name for adapter in adapters)
    fix = f"It has {names}." if names else "It has none; leave adapter out."
    raise CheckpointError(f"there is no adapter {truncate_repr(name)}", where=where, fix=fix)


def split_adapter(directory: Path, name: str) -> tuple[str, str]:
    """Return the names of the adapters of queries and of documents that a name stands for.

    "retrieval" stands for "retrieval.query" and "retrieval.passage", if there are these two and no
    adapter of the name itself; any other name for one adapter.
    """
    file = directory / "config.json"
    adapters = list_adapters(directory, read_json(file) if file.exists() else {})
    names = {_plain(adapter.name): adapter.name for adapter in adapters}
    query, document = (names.get(f"{_plain(name)}_{end}") for end in ("query", "passage"))
    if _plain(name) in names or query is None or document is None:
        return name, name
    return query, document


def _plain(name: str) -> str:
    return re.sub(r"[.-]", "_", name)


def has_unused_adapters(
    adapters: Sequence[TaskAdapter], dropped_tensors: Mapping[str, str]
) -> bool:
    """Whether a model that was read without an adapter has some.

    `config.json` alone does not tell: it may name adapters that the weights do not have.
    """
    is_in_folder = any(adapter.folder is not None for adapter in adapters)
    return is_in_folder or UNUSED in dropped_tensors.values()


def with_adapter_prompt(
    sentence: SentenceSettings | None, config: Mapping[str, Any], adapter: str | None
) -> SentenceSettings | None:
    """Return a sentence encoder's settings with the prompt of its adapter as the default one.

    Args:
        config: the model's `config.json`, whose `task_instructions` count if the settings have no
            prompt of the adapter's name.
    """
    if adapter is None:
        return sentence
    prompts = {} if sentence is None else sentence.entries.get("prompts") or {}
    instructions = config.get("task_instructions")
    for texts in (prompts, instructions if isinstance(instructions, Mapping) else {}):
        for name, text in texts.items():
            if _plain(name) == _plain(adapter):
                own = sentence or SentenceSettings()
                entries = {
                    **own.entries,
                    "prompts": {**prompts, name: str(text)},
                    "default_prompt_name": name,
                }
                return own.with_values(entries=entries)
    return sentence


def merge_inner_adapter(
    tensors: Mapping[str, Tensor], config: Mapping[str, Any], adapter: str | None, where: str
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Give matrices with adapters inside the weights their usual names, perhaps with one merged.

    Args:
        tensors: under their names in the files.
        config: the model's `config.json`.
        adapter: one of its `lora_adaptations`.

    Returns:
        the tensors; and the names of adapters' tensors that were not used, with the reason.

    Raises:
        CheckpointError: the tensors, and what `config.json` says about them, do not fit together.
    """
    modules = [name.removesuffix(_ORIGINAL) for name in tensors if name.endswith(_ORIGINAL)]
    parts = {f"{module}{end}" for module in modules for end in (_ORIGINAL, *_LOW_RANK)}
    result = {name: tensor for name, tensor in tensors.items() if name not in parts}
    drop_reasons: dict[str, str] = {}
    if adapter is not None and not modules:
        what = f"config.json names the adapter {adapter!r}, which the weights do not have"
        raise CheckpointError(what, where=where)
    names = config.get("lora_adaptations")
    for module in modules:
        weight = tensors[module + _ORIGINAL]
        low_rank = [tensors[module + end] for end in _LOW_RANK if module + end in tensors]
        if adapter is None:
            drop_reasons |= {module + end: UNUSED for end in _LOW_RANK if module + end in tensors}
        else:
            assert isinstance(names, list), "the adapter is one of them"
            weight = _merge(weight, low_rank, config, names.index(adapter), f"{where}: {module}")
        result[f"{module}.weight"] = weight
    return result, drop_reasons


def _merge(
    weight: Tensor, low_rank: Sequence[Tensor], config: Mapping[str, Any], number: int, where: str
) -> Tensor:
    """A matrix with the change by the adapter of a number."""
    alpha, rank = config.get("lora_alpha", 1), config.get("lora_rank", 4)
    if not _is_positive(alpha) or not _is_positive(rank):
        what = f"lora_alpha={truncate_repr(alpha)}, lora_rank={truncate_repr(rank)} in config.json"
        raise CheckpointError(what, where=where)
    dtype = torch.promote_types(weight.dtype, torch.float32)  # a rounded sum would lose the change
    rows, columns = weight.shape
    shapes = [tuple(tensor.shape[1:]) for tensor in low_rank]
    is_long_enough = all(tensor.ndim == 3 and len(tensor) > number for tensor in low_rank)
    if is_long_enough and shapes == [(rank, columns), (rows, rank)]:
        inputs, outputs = (tensor[number].to(dtype) for tensor in low_rank)
        change = outputs @ inputs
    elif is_long_enough and shapes == [(rows, rank), (rank, columns)]:  # of embeddings
        inputs, outputs = (tensor[number].to(dtype) for tensor in low_rank)
        change = inputs @ outputs
    else:
        sizes = ", ".join(str(tuple(tensor.shape)) for tensor in low_rank) or "none"
        raise CheckpointError(
            f"adapters of the shapes {sizes} do not fit a matrix {rows} × {columns} and "
            f"lora_rank={rank}",
            where=where,
        )
    return torch.add(weight.to(dtype), change, alpha=alpha / rank)


def _is_positive(number: object) -> bool:
    return isinstance(number, int | float) and not isinstance(number, bool) and number > 0
