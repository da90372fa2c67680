"""Keras weights: `tf_model.h5`, which versions of transformers before 5 wrote for TensorFlow.

An HDF5 file names its layers, and each layer its weights, in attributes:

    layer_names                  bert, mlm___cls
    bert: weight_names           tf_bert_for_masked_lm/bert/encoder/layer_._0/…/query/kernel:0
    bert/tf_bert_for_masked_lm/… the numbers

A shard, which `tf_model.h5.index.json` lists, has the weights' names in place of the layers',
without the first level. The names become those of PyTorch by a few rules: `layer_._0` is
`layer.0`, of `mlm___cls` only the second part counts, and a kernel is the transpose of a weight.

Source: `modeling_tf_utils.py` and `modeling_tf_pytorch_utils.py` of transformers 4.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, takewhile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import CheckpointError, first_line, import_optional
from ..utils.regular_files import check_regular_file

KERAS = "tf_model.h5"
_PARTS = {"kernel": "weight", "embeddings": "weight", "gamma": "weight", "beta": "bias"}


def read_keras_weights(files: list[Path]) -> dict[str, Tensor]:
    """Read all weights, under the names that transformers' PyTorch classes have.

    Raises:
        BertworksError: the package h5py is not installed.
        CheckpointError: a file is damaged, or not in this layout.
    """
    h5py: Any = import_optional("h5py", "keras", f"Reading {files[0].name}")
    tensors: dict[str, Tensor] = {}
    for path in files:
        try:
            check_regular_file(path)
            with h5py.File(path, "r") as file:
                for name, dataset in _weights(file, h5py):
                    tensors[_published_name(name)] = _tensor(name, dataset, path)
        except (OSError, KeyError, ValueError, RuntimeError) as error:
            raise CheckpointError(
                f"cannot be read ({first_line(error)})", where=str(path)
            ) from None
    if not tensors:
        raise CheckpointError("holds no weights of Keras layers", where=str(files[0]))
    return tensors


def _weights(file: Any, h5py: Any) -> Iterator[tuple[str, Any]]:
    """Yield the name and the dataset of each weight."""
    for layer in _names(file, "layer_names"):
        node = file[layer]
        if isinstance(node, h5py.Dataset):
            yield layer, node
            continue
        for name in _names(node, "weight_names"):
            yield name, node[name]


def _names(node: Any, key: str) -> list[str]:
    """The names in an attribute; a long list is in several: `key0`, `key1`, …"""
    numbered = (f"{key}{number}" for number in count())
    keys = [key] if key in node.attrs else takewhile(node.attrs.__contains__, numbered)
    values = [value for part in keys for value in np.asarray(node.attrs[part]).ravel().tolist()]
    return [value.decode() if isinstance(value, bytes) else str(value) for value in values]


def _tensor(name: str, dataset: Any, path: Path) -> Tensor:
    """The numbers of a weight, as PyTorch's classes have them.

    A file may declare a dataset of any size that it does not hold, or one in another file.
    """
    is_here = dataset.external is None and not dataset.is_virtual
    is_here = is_here and dataset.file.filename == str(path)
    if not is_here or dataset.id.get_storage_size() < dataset.nbytes:
        raise CheckpointError(
            f"the weight {name!r} is not stored as plain numbers", where=str(path)
        )
    if dataset.dtype.kind != "f":
        raise CheckpointError(f"the weight {name!r} is of type {dataset.dtype}", where=str(path))
    values = torch.from_numpy(np.array(dataset))
    if not name.partition(":")[0].endswith("/kernel"):
        return values
    if values.ndim != 2:
        shape = tuple(values.shape)
        raise CheckpointError(f"the kernel {name!r} has shape {shape}", where=str(path))
    return values.t().contiguous()


def _published_name(name: str) -> str:
    """A weight's name in transformers' PyTorch classes."""
    levels = [level for level in name.partition(":")[0].replace("_._", "/").split("/") if level]
    if len(levels) > 1 and levels[0].startswith("tf_"):  # the name of the whole model
        levels = levels[1:]
    levels = [level.rpartition("___")[2] for level in levels]
    return ".".join([*levels[:-1], _PARTS.get(levels[-1], levels[-1])])
