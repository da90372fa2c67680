"""What fine-tuning begins with: a model's weights, and fresh ones for what it does not have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from ..api import Model
from ..checkpoints.store import check_layout
from ..errors import SettingsError
from ..model.encoder import Encoder
from ..model.heads import ClassificationHead
from ..tasks.labelled import LabelledTask
from ..tasks.task import Network
from .adapters import Adapters
from .finetune_settings import FinetuneSettings
from .freezing import check_layers


@dataclass(frozen=True)
class Start:
    """A task's network, before anything is learned.

    Attributes:
        network: with the given model's weights, and fresh ones.
        adapters: those in it, if there are any.
        initialized: the parameters that the given model did not have, or that were to begin afresh;
            none, where all of them were.
    """

    network: Network
    adapters: Adapters | None
    initialized: tuple[str, ...]

    @classmethod
    def of(cls, model: Model, task: LabelledTask[Any], settings: FinetuneSettings) -> Self:
        """The start from a given model; fresh weights are drawn from the global generator.

        Raises:
            SettingsError: the settings do not fit the model.
            CheckpointError: what is learned could not be saved.
        """
        _check_layers(model.encoder, settings)
        network = task.network(model.encoder.config)
        check_layout(network, network.encoder.config, task.model_class)
        thaws = settings.unfreeze_epochs or settings.unfreeze_every
        if thaws is not None and not _has_head(network):
            raise SettingsError(
                f"unfreeze_epochs: {task.name} has no head that could begin alone",
                fix="Leave it out.",
            )
        _check_pooling(network, settings)
        initialized = _take_over(model, task, network, settings)
        adapters = None if settings.lora_rank is None else Adapters(network, settings)
        return cls(network, adapters, initialized)

    @property
    def fresh(self) -> list[str]:
        """`initialized` for people, a layer's as one."""
        kept = (
            ".".join(name.split(".")[:3]) if name.startswith("encoder.layers.") else name
            for name in self.initialized
        )
        return list(dict.fromkeys(kept))


def _check_pooling(network: Network, settings: FinetuneSettings) -> None:
    """See that a classifier is not by default on a token that sees nothing but itself."""
    config = network.encoder.config
    is_first = config.attention == "causal" and config.classifier_pooling == "cls"
    has_head = any(isinstance(module, ClassificationHead) for module in network.modules())
    if is_first and has_head and getattr(settings, "classifier_pooling", None) is None:
        raise SettingsError(
            "the encoder is causal: its first token, [CLS], sees nothing of the text",
            fix="Give classifier_pooling=last, or mean.",
        )


def _check_layers(encoder: Encoder, settings: FinetuneSettings) -> None:
    frozen, fresh = settings.freeze_layers, settings.reinitialize_layers
    check_layers(encoder, "freeze_layers", frozen)
    check_layers(encoder, "reinitialize_layers", fresh)
    if frozen + fresh > len(encoder.layers):
        raise SettingsError(
            f"freeze_layers={frozen} and reinitialize_layers={fresh}: of {len(encoder.layers)} "
            "layers some would be random and never learn"
        )


def _has_head(network: Network) -> bool:
    """Whether anything stands on the layers."""
    below = {parameter for part in network.encoder.parts for parameter in part.parameters()}
    return not below.issuperset(network.parameters())


def _take_over(
    model: Model, task: LabelledTask[Any], network: Network, settings: FinetuneSettings
) -> tuple[str, ...]:
    """Copy the given model's weights into a fresh network, its head's if it tells the same apart.

    Returns:
        The parameters that keep their fresh values; none, where all of them do by intent.
    """
    if settings.reinitialize:
        return ()
    top, count = len(network.encoder.layers), settings.reinitialize_layers
    stands_on = network.encoder.config.classifier_pooling
    is_same = (
        not count
        and model.task is not None
        and task.same_head(model.task)
        and stands_on == model.encoder.config.classifier_pooling
    )
    theirs = model.network.state_dict() if is_same else model.encoder.state_dict(prefix="encoder.")
    fresh = [f"encoder.layers.{number}." for number in range(top - count, top)]
    if count:
        fresh += ["encoder.pooler.", "encoder.final_norm."]
    if network.encoder.pooler is None:  # the head has a layer of its own instead, or none
        fresh += ["encoder.pooler."]
    theirs = {name: value for name, value in theirs.items() if not name.startswith(tuple(fresh))}
    keys = network.load_state_dict(theirs, strict=False)
    assert not keys.unexpected_keys, keys.unexpected_keys
    return tuple(keys.missing_keys)
