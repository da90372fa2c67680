"""The network from which fine-tuning starts: the given model's weights, and new ones."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Self

from ..checkpoints.model_card import ModelCard
from ..checkpoints.saving import check_layout
from ..errors import BertworksWarning, SettingsError
from ..model import Model
from ..nn.encoder import Encoder
from ..nn.heads import ClassificationHead
from ..tasks.labelled import LabelledTask
from ..tasks.network import Network
from .freezing import Adapters, check_layers
from .settings import FinetuneSettings


@dataclass(frozen=True)
class Start:
    """A task's network before training."""

    network: Network  # with the given model's weights, and newly initialised ones
    adapters: Adapters | None  # the adapters in the network, if any
    # parameters that the given model does not have or the settings reinitialise; empty if the
    # settings reinitialise all
    new_parameters: tuple[str, ...]
    learning_rate: float | None = None  # the rate that the given model carries
    card: ModelCard | None = None  # that of the given model

    @classmethod
    def from_model(cls, model: Model, task: LabelledTask[Any], settings: FinetuneSettings) -> Self:
        """Prepare a network from a given model; new weights use the global random generator.

        Raises:
            SettingsError: the settings do not fit the model.
            CheckpointError: the trained model could not be saved.
        """
        _check_layers(model.encoder, settings)
        network = task.network(model.encoder.config)
        check_layout(network, network.encoder.config, task.model_class)
        unfreeze_interval = settings.unfreeze_epochs or settings.unfreeze_every
        if unfreeze_interval is not None and not _has_head(network):
            raise SettingsError(
                f"unfreeze_epochs: {task.name} has no head to train first",
                fix="Leave it out.",
            )
        _check_pooling(network, settings)
        new_parameters = _copy_pretrained_weights(model, task, network, settings)
        adapters = None if settings.lora_rank is None else Adapters(network, settings)
        return cls(network, adapters, new_parameters, model.learning_rate, model.card)

    @property
    def new_parameter_names(self) -> list[str]:
        """`new_parameters` for the user: the parameters of a layer are one entry."""
        names = (
            ".".join(name.split(".")[:3]) if name.startswith("encoder.layers.") else name
            for name in self.new_parameters
        )
        return list(dict.fromkeys(names))


def _check_pooling(network: Network, settings: FinetuneSettings) -> None:
    """Raise `SettingsError` if a classifier by default uses a token that sees only itself."""
    config = network.encoder.config
    is_first = config.attention == "causal" and config.classifier_pooling == "cls"
    has_head = any(isinstance(module, ClassificationHead) for module in network.modules())
    if is_first and has_head and getattr(settings, "classifier_pooling", None) is None:
        raise SettingsError(
            "the encoder is causal: its first token, [CLS], sees nothing of the text",
            fix="Give classifier_pooling=last, or mean.",
        )


def _check_layers(encoder: Encoder, settings: FinetuneSettings) -> None:
    num_frozen, fresh = settings.freeze_layers, settings.reinitialize_layers
    check_layers(encoder, "freeze_layers", num_frozen)
    check_layers(encoder, "reinitialize_layers", fresh)
    if num_frozen + fresh > len(encoder.layers):
        raise SettingsError(
            f"freeze_layers={num_frozen} and reinitialize_layers={fresh}: of {len(encoder.layers)} "
            "layers some would be random and never trained"
        )


def _has_head(network: Network) -> bool:
    """Return whether the network has parameters outside the encoder's parts."""
    below = {parameter for part in network.encoder.parts for parameter in part.parameters()}
    return not below.issuperset(network.parameters())


def _copy_pretrained_weights(
    model: Model, task: LabelledTask[Any], network: Network, settings: FinetuneSettings
) -> tuple[str, ...]:
    """Copy the given model's encoder weights into a new network, and those of a matching head.

    A head matches if the tasks have the same head and pooling, and no layers are reinitialised.

    Returns:
        The parameters that keep their initial values; empty if `reinitialize` asks for all.
    """
    if settings.reinitialize:
        return ()
    top, count = len(network.encoder.layers), settings.reinitialize_layers
    pooling = network.encoder.config.classifier_pooling
    is_same = (
        not count
        and model.task is not None
        and task.is_head_compatible(model.task)
        and pooling == model.encoder.config.classifier_pooling
    )
    theirs = model.network.state_dict() if is_same else model.encoder.state_dict(prefix="encoder.")
    if is_same and type(model.task) is not type(task):  # one of several heads
        own_names = network.state_dict().keys()
        theirs = {name: value for name, value in theirs.items() if name in own_names}
    fresh = [f"encoder.layers.{number}." for number in range(top - count, top)]
    if count:
        fresh += ["encoder.pooler.", "encoder.final_norm."]
    if network.encoder.pooler is None:  # the head may have a layer instead
        fresh += ["encoder.pooler."]
    theirs = {name: value for name, value in theirs.items() if not name.startswith(tuple(fresh))}
    _warn_of_another_form(model, task)
    own, given = network.vector_modules, model.modules
    if not count and own is not None and given is not None and own.settings == given.settings:
        (prefix,) = own.prefixes_in(network)
        theirs |= given.state_dict(prefix=prefix)
    keys = network.load_state_dict(theirs, strict=False)
    assert not keys.unexpected_keys, keys.unexpected_keys
    return tuple(keys.missing_keys)


def _warn_of_another_form(model: Model, task: LabelledTask[Any]) -> None:
    """Warn if late interaction will not write texts as the model that it starts from does."""
    theirs = None if model.sentence is None else model.sentence.late_interaction
    own = None if task.sentence is None else task.sentence.late_interaction
    if own is None or theirs is None:
        return
    names = [
        name
        for name in type(own).model_fields
        if name != "layout" and getattr(own, name) != getattr(theirs, name)
    ]
    if names:
        changes = ", ".join(
            f"{name}={getattr(own, name)!r} instead of {getattr(theirs, name)!r}" for name in names
        )
        what = f"queries and documents are not written as by the model before training: {changes}"
        warnings.warn(what, BertworksWarning, stacklevel=2)
