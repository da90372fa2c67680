"""Select the trainable parameters: frozen parts, gradual unfreezing, low-rank adapters.

A frozen parameter gets no gradient, so neither gradients nor weight decay nor the optimizer's
averages change it. If everything below a layer is frozen, autograd stops at that layer.

Which parameters are trainable depends only on the step: a resumed run needs no extra state.

Source of gradual unfreezing: Howard and Ruder (2018), ULMFiT, §3.3. Their first stage trains only
the head. Each further stage adds the next layer from the top; the last stage adds the embeddings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from ..errors import SettingsError, did_you_mean, import_optional
from ..nn.encoder import Encoder
from ..tasks.network import Network
from ..utils.formatting import format_count
from .settings import AdapterSettings, FreezingSettings


@contextmanager
def frozen_parameters(
    network: nn.Module, settings: FreezingSettings
) -> Iterator[dict[Tensor, int]]:
    """Freeze parameters according to the settings, until the block ends.

    The context value gives, for each parameter that is unfrozen later, the number of its first
    update, from 0 (see `unfreeze`). These parameters still require gradients when the block starts,
    because the optimizer and `DistributedDataParallel` must know them.

    Raises:
        SettingsError: the encoder has fewer layers than the settings freeze, or nothing remains
            trainable.
    """
    trainable = [parameter for parameter in network.parameters() if parameter.requires_grad]
    unfreeze_steps: dict[Tensor, int] = {}
    frozen_forever: set[Tensor] = set()
    lowest = settings.freeze_layers or (0 if settings.freeze_embeddings else -1)  # 0: embeddings
    for encoder in (module for module in network.modules() if isinstance(module, Encoder)):
        check_layers(encoder, "freeze_layers", settings.freeze_layers)
        for number, part in enumerate(encoder.parts):
            num_above = len(encoder.parts) - number
            parameters = [parameter for parameter in part.parameters() if parameter.requires_grad]
            if number <= lowest:
                frozen_forever.update(parameters)
            elif settings.unfreeze_every is not None:
                unfreeze_steps |= dict.fromkeys(parameters, num_above * settings.unfreeze_every)
    if frozen_forever.union(unfreeze_steps).issuperset(trainable):
        raise SettingsError("the whole network is frozen", fix="Freeze less.")
    try:
        for parameter in frozen_forever:
            parameter.requires_grad_(False)
        yield {one: step for one, step in unfreeze_steps.items() if one not in frozen_forever}
    finally:
        for parameter in trainable:
            parameter.requires_grad_(True)


def unfreeze(unfreeze_steps: Mapping[Tensor, int], step: int) -> None:
    """Make those of the parameters trainable that update number `step` trains."""
    for parameter, first_step in unfreeze_steps.items():
        parameter.requires_grad_(step >= first_step)


def check_layers(encoder: Encoder, key: str, count: int) -> None:
    """Raise `SettingsError` if an encoder has fewer layers than the setting `key` asks for."""
    if count > len(encoder.layers):
        raise SettingsError(
            f"{key}={count}: the encoder has "
            f"{format_count(len(encoder.layers), 'layer')} with separate weights"
        )


class Adapters:
    """Low-rank adapters of a network's encoder: two small trainable matrices for each matrix W.

        W x  ─►  W x + (alpha / rank) · B A x    A: [rank, inputs]    B: [outputs, rank], 0 at first

    The layers and the embeddings are frozen; heads and poolers are trained as usual. At the end the
    products B A are added to the matrices, so that the saved model is a plain one.

    Source: Hu et al. (2021), LoRA, §4. The library `peft` implements the adapters. Query, key and
    value are one matrix here, `attention.query_key_value`; its adapter has one A for all three.

    Args:
        network: changed in place. The initial values use the global random generator.
        settings: settings of the adapters; `lora_rank` must be set.

    Raises:
        SettingsError: a target is not a matrix of a layer.
        BertworksError: `peft` is not installed.
    """

    def __init__(self, network: Network, settings: AdapterSettings) -> None:
        rank = settings.lora_rank
        assert rank is not None
        peft: Any = import_optional("peft", "peft", "Training low-rank adapters")
        parts = network.encoder.parts
        self._trainable = [one for one in network.parameters() if one.requires_grad]
        encoder_parameters = {parameter for part in parts for parameter in part.parameters()}
        config = peft.LoraConfig(
            r=rank,
            lora_alpha=settings.lora_alpha or 2.0 * rank,
            lora_dropout=settings.lora_dropout,
            target_modules=_targets(network, settings.lora_targets),
        )
        self._model = peft.LoraModel(network, config, "default")
        for parameter in self._trainable:  # peft has frozen all but its own
            parameter.requires_grad_(parameter not in encoder_parameters)

    def merge(self) -> None:
        """Add the products to the matrices, and remove the adapters from the network."""
        self._model.merge_and_unload()
        for parameter in self._trainable:
            parameter.requires_grad_(True)


def _targets(network: Network, names: tuple[str, ...]) -> list[str]:
    """Return the full names of the matrices that have these names within their layer."""
    paths = []
    for number, layer in enumerate(network.encoder.layers):
        matrices = {path for path, part in layer.named_modules() if isinstance(part, nn.Linear)}
        for name in names:
            if name not in matrices:
                raise SettingsError(
                    f"lora_targets: a layer has no matrix {name!r}",
                    fix=did_you_mean(name, sorted(matrices)),
                )
            paths.append(f"encoder.layers.{number}.{name}")
    return paths
