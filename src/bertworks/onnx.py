"""Models as ONNX, for engines that know neither packs nor PyTorch.

    model.onnx           input_ids, attention_mask (and token_type_ids) [rows, length], any of both
    config.json, tokenizer.json and what else belongs to the tokenizer

A padded batch goes in, as everywhere outside this package; what comes out is named as Hugging
Face's models name it.
"""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .api import Model
from .errors import CheckpointError, need
from .packed import Padded
from .tasks.classification import ClassificationNetwork
from .tasks.pretraining.replaced_tokens import DiscriminatorNetwork
from .tasks.pretraining.task import PretrainingNetwork


class PaddedNetwork(nn.Module):
    """A network on padded batches.

    Args:
        network: a bare encoder's, a classifier's, or one of pre-training.
    """

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of what `forward` returns."""
        if isinstance(self.network, ClassificationNetwork | DiscriminatorNetwork):
            return ("logits",)
        if isinstance(self.network, PretrainingNetwork):
            pairs = self.network.nsp_head is not None
            return ("prediction_logits", "seq_relationship_logits") if pairs else ("logits",)
        pooled = self.network.encoder.pooler is not None
        return ("last_hidden_state", "pooler_output") if pooled else ("last_hidden_state",)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """What the names in `outputs` say, for `[rows, length]` tensors."""
        padded = Padded.of(input_ids, attention_mask, token_type_ids)
        network = self.network
        hidden = network.encoder(padded)
        if isinstance(network, ClassificationNetwork):
            return (network.head(network.encoder, hidden, padded),)
        shape = input_ids.shape
        if isinstance(network, DiscriminatorNetwork):
            return (network.rtd_head(hidden).unflatten(0, shape),)
        if isinstance(network, PretrainingNetwork):
            found = [network.mlm_head(hidden).unflatten(0, shape)]
            if network.nsp_head is not None:
                found.append(network.nsp_head(network.encoder.pooled(hidden, padded)))
            return tuple(found)
        found = [hidden.unflatten(0, shape)]
        if network.encoder.pooler is not None:
            found.append(network.encoder.pooled(hidden, padded))
        return tuple(found)


def write_onnx(model: Model, directory: str | Path) -> Path:
    """Write a model as ONNX, with its configuration and tokenizer beside it.

    Args:
        model: a bare encoder, a classifier, or one of pre-training.
        directory: where to; it must not exist, or be empty.

    Raises:
        CheckpointError: the directory is not empty, or cannot be written.
        BertworksError: a package that is needed is not installed.
    """
    need("onnxscript", "onnx", "The ONNX format")
    directory = Path(directory)
    if directory.exists() and any(directory.iterdir()):
        raise CheckpointError("the directory is not empty", where=str(directory))
    network = PaddedNetwork(model.network).eval()
    shape = (2, min(7, model.encoder.config.max_seqlen))
    inputs = {
        "input_ids": torch.ones(shape, dtype=torch.int64),
        "attention_mask": torch.ones(shape, dtype=torch.int64),
    }
    if model.encoder.config.type_vocab_size > 1:
        inputs["token_type_ids"] = torch.zeros(shape, dtype=torch.int64)
    rows, length = (torch.export.Dim(name) for name in ("rows", "length"))
    try:
        model.save(directory)
        for name in ("model.safetensors", "bertworks.json"):
            (directory / name).unlink(missing_ok=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the exporter's, about itself
            torch.onnx.export(
                network,
                kwargs=inputs,
                f=directory / "model.onnx",
                input_names=list(inputs),
                output_names=list(network.outputs),
                dynamic_shapes={name: {0: rows, 1: length} for name in inputs},
                dynamo=True,
                external_data=False,
                verbose=False,
            )
    except OSError as error:
        shutil.rmtree(directory, ignore_errors=True)
        raise CheckpointError(f"cannot be written ({error})", where=str(directory)) from None
    return directory
