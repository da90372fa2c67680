"""Digests that identify a model: of its weights, geometry and tokenizer."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..nn.config import EncoderConfig
from ..nn.encoder_geometry import HEAD_DROPOUTS
from ..nn.vector_module_settings import ModuleSettings
from ..text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from torch import nn

    from ..nn.encoder import Encoder
    from ..nn.vector_modules import VectorModules

POOLER_PREFIX = "pooler."
"""The prefix of the tensors that only the pooling "pooler" uses."""

MODULES_PREFIX = "modules."
"""The prefix of the tensors of the modules after pooling."""


def fingerprint(
    encoder: Encoder,
    tokenizer: Tokenizer,
    network: nn.Module | None = None,
    modules: VectorModules | None = None,
) -> str:
    """The digest of a network.

    Args:
        network: the encoder with its heads, if these count too.
        modules: those after pooling, if these count too.
    """
    arrays = arrays_of(encoder if network is None else network)
    if modules is None:
        return fingerprint_of_arrays(encoder.config, tokenizer, arrays)
    all_arrays = chain(arrays, arrays_of(modules, MODULES_PREFIX))
    return fingerprint_of_arrays(encoder.config, tokenizer, all_arrays, modules.settings)


def fingerprint_of_arrays(
    config: EncoderConfig,
    tokenizer: Tokenizer,
    arrays: Iterable[tuple[str, NDArray[Any]]],
    modules: Sequence[ModuleSettings] = (),
) -> str:
    """The digest of an encoder's arrays, with their names.

    Args:
        arrays: in the order of their names.
        modules: those after pooling, whose arrays are among the others.
    """
    digest = hashlib.sha256()  # for which processors have instructions: three times as fast
    digest.update(tokenizer.fingerprint.encode())
    # Without defaults, so that a new setting leaves the fingerprints of all other models unchanged.
    settings = config.model_dump_json(exclude=set(HEAD_DROPOUTS), exclude_defaults=True)
    digest.update(settings.encode())
    if modules:
        digest.update(repr(tuple(modules)).encode())
    for name, array in arrays:
        digest.update(name.encode())
        digest.update(memoryview(np.ascontiguousarray(array).data))
    return digest.hexdigest()[:32]


def arrays_of(
    module: nn.Module, prefix: str = "", *, skipped_prefix: str | None = None
) -> Iterable[tuple[str, NDArray[Any]]]:
    """Yield the names and the bytes of a module's tensors, in the order of the names.

    Args:
        prefix: put before the names.
        skipped_prefix: of the tensors that are left out.
    """
    import torch

    for name, tensor in sorted(module.state_dict().items()):
        if skipped_prefix is None or not name.startswith(skipped_prefix):
            values = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
            yield prefix + name, values.numpy()
