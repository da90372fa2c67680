"""Read a checkpoint's tensors in any layout, under the current names of their family."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from torch import Tensor

from . import tensorflow
from .family import Family
from .keras import KERAS, read_keras_weights
from .network_weights import equal_tensors
from .static import STATIC, read_static_tensors
from .task_adapters import merge_inner_adapter
from .weight_files import PARAMETRIZATIONS, find_weight_files, has_weights, read_json
from .weights import read_weights
from .wrappers import remove_wrapper_names


def read_tensors(
    directory: Path, family: Family, adapter: str | None = None
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read all tensors of a directory, under the current names of their family.

    Args:
        adapter: the adapter inside the weights that is merged; none if omitted.

    Returns:
        the tensors; and the names of dropped tensors, with the reasons.

    Raises:
        CheckpointError: there are no weights, or a file is damaged, or holds more than weights,
            or several models.
    """
    drop_reasons: dict[str, str] = {}
    if family is STATIC:
        return read_static_tensors(directory), drop_reasons
    keras_files = [] if has_weights(directory) else find_weight_files(directory, KERAS)
    if keras_files:
        tensors = read_keras_weights(keras_files)
    elif has_weights(directory) or (prefix := tensorflow.find_checkpoint(directory)) is None:
        tensors = read_weights(directory, lambda names: _group_stacks(names, family))
        tensors, drop_reasons = _merge_adapter(tensors, directory, adapter)
    else:
        tensors, drop_reasons = tensorflow.read_checkpoint(prefix)
    tensors = remove_wrapper_names(tensors, family, str(directory))
    tensors = {family.normalize_tensor_name(name): tensor for name, tensor in tensors.items()}
    # Some classes save the tied tensor only under the decoder's name.
    (embeddings,) = family.keys.theirs("encoder.embeddings.word_embeddings.weight")
    (decoder,) = family.keys.theirs("mlm_head.decoder")
    if embeddings not in tensors and decoder in tensors:
        tensors[embeddings] = tensors.pop(decoder)
    if family.decoder_bias is not None:
        drop_reasons |= _merge_decoder_biases(tensors, *family.decoder_bias)
    return tensors, drop_reasons


def _merge_adapter(
    tensors: dict[str, Tensor], directory: Path, adapter: str | None
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """See `merge_inner_adapter`, which only reads `config.json` of models that have adapters."""
    if adapter is None and not any(PARAMETRIZATIONS in name for name in tensors):
        return tensors, {}
    return merge_inner_adapter(
        tensors, read_json(directory / "config.json"), adapter, str(directory)
    )


def _merge_decoder_biases(
    tensors: dict[str, Tensor], head_bias: str, decoder_bias: str
) -> dict[str, str]:
    """Keep one of a decoder's two biases, `decoder_bias`, under the name `head_bias`.

    Models whose decoder is not tied to the embeddings have two that differ. Returns the name of
    the dropped bias, with the reason.
    """
    if decoder_bias not in tensors:
        return {}
    bias = tensors.pop(decoder_bias)
    other = tensors.get(head_bias)
    tensors[head_bias] = bias
    if other is None:
        return {}
    if equal_tensors(bias, other):
        return {decoder_bias: "the same as the head's bias"}
    return {head_bias: "redundant with the decoder's bias"}


def _group_stacks(names: Iterable[str], family: Family) -> Iterator[list[str]]:
    """Yield groups of a file's tensor names that form one tensor of ours, in its order."""
    file_names_of: dict[tuple[str, ...], dict[str, str]] = {}
    for name in names:
        current_name = family.normalize_name(name)
        if stack := family.keys.stack(current_name):
            file_names_of.setdefault(stack, {})[current_name] = name
    for stack, file_names in file_names_of.items():
        if len(file_names) == len(stack):  # else some are in another file, or missing
            yield [file_names[current_name] for current_name in stack]
