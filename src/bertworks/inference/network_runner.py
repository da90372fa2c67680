"""Batches of a task through a network of PyTorch's, in its frozen form.

Where native code computes the encoder, the heads are computed by the same code as without PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from ..checkpoints.heads import POOLER
from ..errors import not_finite_error
from ..nn.device import is_finite
from ..nn.encoder import Pooler
from ..nn.heads import LayoutHead, NSPHead
from ..nn.layers import Dropout, LayerNorm, Linear, OutputLinear, RMSNorm
from ..packed import Batch
from ..tasks import is_user_task
from ..tasks.network import Network
from ..tasks.task import Example, Task
from .frozen_native import FrozenNativeEncoder, has_hooks
from .frozen_network import inference
from .native_heads import NativeTaskNetwork, head_tensors, unsupported_head
from .native_weights import WORDS
from .settings import EngineSettings

ExampleT = TypeVar("ExampleT", bound=Example)
_PARTS = (Pooler, NSPHead, Linear, OutputLinear, LayerNorm, RMSNorm, Dropout)


class NetworkRunner(Generic[ExampleT]):
    """Computes the outputs of batches.

    Args:
        network: of the task.
        task: collates examples.
        settings: precision, and whether results depend on the batch.
    """

    def __init__(self, network: Network, task: Task[ExampleT], settings: EngineSettings) -> None:
        self._network, self._task, self._settings = network, task, settings
        with inference(network, settings) as form:
            self._arrays = array_form_of(network, form, task)

    def __call__(self, examples: Sequence[ExampleT]) -> tuple[dict[str, Tensor], Batch]:
        """Return the outputs of a batch, and the batch, on the network's device."""
        batch = self._task.collate(examples)
        if self._arrays is not None and self._task.is_computed_by_arrays(batch):
            outputs = self._task.compute(self._arrays, batch)
            tensors = {name: torch.from_numpy(array) for name, array in outputs.items()}
            return tensors, batch.to("cpu")
        batch = batch.to(next(self._network.parameters()).device)
        with inference(self._network, self._settings) as form:
            return form.predict(batch), batch


def array_form_of(
    network: Network, form: Network, task: Task[ExampleT]
) -> NativeTaskNetwork | None:
    """Return the network's encoder in native code with its heads as arrays, which are shared.

    Args:
        form: the network's frozen form.

    Returns:
        None if PyTorch computes the encoder, or a part of a head is not one of this package's, or
        is changed by a hook.
    """
    has_form = vars(type(network)).get("has_array_form", False) and not is_user_task(task)
    if not has_form or has_hooks(network) or has_hooks(network.encoder):
        return None
    encoder = form.encoder
    native = encoder.native if isinstance(encoder, FrozenNativeEncoder) else None
    layouts = task.head_layouts(network.encoder.config)
    if native is None or layouts is None or unsupported_head(layouts) is not None:
        return None
    heads = [part for name, part in network.named_children() if name != "encoder"]
    if POOLER.name in layouts:
        if network.encoder.pooler is None:
            return None
        heads.append(network.encoder.pooler)
    if not all(map(_is_plain, chain.from_iterable(head.modules() for head in heads))):
        return None
    arrays = {name: network.get_parameter(name) for name in head_tensors(layouts)}
    if not all(one.dtype is torch.float32 and one.is_contiguous() for one in arrays.values()):
        return None
    return NativeTaskNetwork(
        native,
        layouts,
        {
            **{name: one.detach().numpy() for name, one in arrays.items()},
            WORDS: native.embeddings.words,
        },
    )


def _is_plain(part: nn.Module) -> bool:
    """Whether a part of a head computes what its layout says."""
    is_known = isinstance(part, LayoutHead) or type(part) in (nn.Module, *_PARTS)
    has_parameters = all(
        isinstance(one, nn.Parameter) for one in part._parameters.values() if one is not None
    )
    return is_known and not has_hooks(part) and has_parameters


def check_finite(vectors: Tensor, place: Callable[[int], str]) -> None:
    """Check that all numbers of `[vectors, …]` are finite.

    Args:
        vectors: computed by a network.
        place: returns the name in errors of the row to which the vector at an index belongs.

    Raises:
        CheckpointError: a number is NaN or infinite.
    """
    if not is_finite(vectors):
        is_right = vectors.isfinite().flatten(1).all(-1)
        raise not_finite_error(place(int(is_right.logical_not().nonzero()[0])))
