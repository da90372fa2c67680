"""Which parameters learn, and from which step on: frozen parts, and gradual unfreezing.

A frozen parameter takes no gradient, so that neither its gradient nor its weight decay nor the
optimizer's averages touch it. Where everything below a layer is frozen, autograd does not go there.

What learns is a pure function of the step: a run that is gone on with needs no note of it.

Source: Howard and Ruder (2018), ULMFiT, §3.3. Their first stage trains the head alone, each further
one the next layer from the top as well, and the embeddings come last.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor, nn

from ..errors import SettingsError
from ..model.encoder import Encoder
from .settings import FreezingSettings


class Thaw:
    """The parameters that begin frozen and learn later.

    Attributes:
        starts: by parameter, the number of the update, from 0, with which it begins to learn.
    """

    def __init__(self, starts: Mapping[Tensor, int]) -> None:
        self.starts = starts

    def set_step(self, step: int) -> None:
        """Let those parameters take gradients that learn in update number `step`, no others."""
        for parameter, start in self.starts.items():
            parameter.requires_grad_(step >= start)


@contextmanager
def frozen(network: nn.Module, settings: FreezingSettings) -> Iterator[Thaw]:
    """Freeze what the settings say, until the block ends.

    Where it begins, parameters that never learn take no gradient; those that do so later still do,
    since an optimizer and `DistributedDataParallel` must know them.

    Raises:
        SettingsError: there are fewer layers than are to be frozen, or nothing is left to learn.
    """
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    starts: dict[Tensor, int] = {}
    never: set[Tensor] = set()
    lowest = settings.freeze_layers or (0 if settings.freeze_embeddings else -1)  # 0: embeddings
    for encoder in (module for module in network.modules() if isinstance(module, Encoder)):
        check_layers(encoder, "freeze_layers", settings.freeze_layers)
        for number, part in enumerate(encoder.parts):
            above = len(encoder.parts) - number
            own = [parameter for parameter in part.parameters() if parameter.requires_grad]
            if number <= lowest:
                never.update(own)
            elif settings.unfreeze_every is not None:
                starts |= dict.fromkeys(own, above * settings.unfreeze_every)
    if never.union(starts).issuperset(trained):
        raise SettingsError(
            "nothing is left to learn: all of the network is frozen", fix="Freeze less."
        )
    try:
        for parameter in never:
            parameter.requires_grad_(False)
        yield Thaw({own: start for own, start in starts.items() if own not in never})
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)


def check_layers(encoder: Encoder, key: str, count: int) -> None:
    """See that an encoder has as many layers as a setting asks for.

    Raises:
        SettingsError: it has fewer.
    """
    if count > len(encoder.layers):
        raise SettingsError(
            f"{key}={count}: the encoder has {len(encoder.layers)} layers with weights of their own"
        )
