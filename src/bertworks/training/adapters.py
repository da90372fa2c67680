"""Low-rank adapters: instead of a matrix W, two thin ones beside it learn.

    W x  ─►  W x + (alpha / rank) · B A x        A: [rank, inputs]    B: [outputs, rank], 0 at first

The layers and the embeddings are frozen; heads and poolers learn as ever. When all is learned, the
products are added to the matrices, so that what is saved is a plain model.

Source: Hu et al. (2021), LoRA, §4. The adapters are those of the library `peft`. Query, key and
value are one matrix here, `attention.query_key_value`, whose adapter has one A for all three.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from ..errors import SettingsError, nearest, need
from ..tasks.task import Network
from .finetune_settings import AdapterSettings


class Adapters:
    """The adapters of a network's encoder.

    Args:
        network: gets them, in place. Their first values are drawn from the global generator.
        settings: which; `lora_rank` is given.

    Raises:
        SettingsError: a target is no matrix of a layer.
        BertworksError: `peft` is not installed.
    """

    def __init__(self, network: Network, settings: AdapterSettings) -> None:
        rank = settings.lora_rank
        assert rank is not None
        peft: Any = need("peft", "peft", "Training low-rank adapters")
        parts = network.encoder.parts
        self._trained = [own for own in network.parameters() if own.requires_grad]
        frozen = {parameter for part in parts for parameter in part.parameters()}
        config = peft.LoraConfig(
            r=rank,
            lora_alpha=settings.lora_alpha or 2.0 * rank,
            lora_dropout=settings.lora_dropout,
            target_modules=_targets(network, settings.lora_targets),
        )
        self._model = peft.LoraModel(network, config, "default")
        for parameter in self._trained:  # the library has frozen all but its own
            parameter.requires_grad_(parameter not in frozen)

    def merge(self) -> None:
        """Add the products to the matrices; the network is then as it was, but for its values."""
        self._model.merge_and_unload()
        for parameter in self._trained:
            parameter.requires_grad_(True)


def _targets(network: Network, wanted: tuple[str, ...]) -> list[str]:
    """The whole names of the matrices that are called so within their layer."""
    found = []
    for number, layer in enumerate(network.encoder.layers):
        matrices = {name for name, part in layer.named_modules() if isinstance(part, nn.Linear)}
        for name in wanted:
            if name not in matrices:
                raise SettingsError(
                    f"lora_targets: a layer has no matrix {name!r}",
                    fix=nearest(name, sorted(matrices)),
                )
            found.append(f"encoder.layers.{number}.{name}")
    return found
