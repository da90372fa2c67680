"""A checkpoint that pre-training begins as, rather than as random weights.

Going on with a domain's text makes a model of that domain: Lee et al. (2020), "BioBERT"; Gururangan
et al. (2020), "Don't Stop Pretraining". Geometry and vocabulary are the checkpoint's.
"""

from __future__ import annotations

from dataclasses import replace

from ..api import BareEncoder
from ..checkpoints.families import family_of
from ..checkpoints.locate import locate
from ..checkpoints.store import (
    LoadReport,
    check_geometry,
    load_weights,
    read_config,
    read_task,
    read_tensors,
)
from ..errors import SettingsError
from ..tasks.task import Network
from ..text.tokenizer import Tokenizer
from .objective import Objective
from .recipe import PretrainSettings, first_difference


def with_geometry(settings: PretrainSettings) -> PretrainSettings:
    """A recipe with the geometry of the checkpoint that it begins as, if it does.

    Raises:
        SettingsError: the recipe asks for another geometry.
        CheckpointError: there is no such checkpoint, or it is damaged.
    """
    if settings.init_checkpoint is None:
        return settings
    config, _ = read_config(locate(settings.init_checkpoint))
    model = settings.model.of_checkpoint(config, where=settings.init_checkpoint)
    is_causal = config.attention == "causal" and "objective" not in settings.model_fields_set
    return settings.with_values(model=model, **({"objective": "causal"} if is_causal else {}))


def check_shapes(settings: PretrainSettings) -> None:
    """See that the checkpoint that a recipe begins as has the geometry that it says it has.

    Raises:
        CheckpointError: it has another, or is damaged.
    """
    if (name := settings.init_checkpoint) is None:
        return
    directory = locate(name)
    config, _ = read_config(directory)
    family = family_of(config)
    tensors, _ = read_tensors(directory, family)
    check_geometry(config, tensors, family, name)


def check_vocabulary(settings: PretrainSettings, tokenizer: Tokenizer) -> None:
    """See that a corpus has the vocabulary of the checkpoint that the recipe begins as.

    Args:
        settings: the recipe.
        tokenizer: the corpus's.

    Raises:
        SettingsError: it has another.
        CheckpointError: the checkpoint has no tokenizer, or a damaged one.
    """
    if (name := settings.init_checkpoint) is None:
        return
    if Tokenizer.load(locate(name)).fingerprint != tokenizer.fingerprint:
        raise SettingsError(
            f"the corpus {settings.data} was prepared with another tokenizer",
            where=name,
            fix=f"Run bertworks prepare with --tokenizer {name}.",
        )


def begin(settings: PretrainSettings, objective: Objective) -> LoadReport | None:
    """Give fresh networks the weights of the checkpoints that the recipe begins as, if it does.

    Returns:
        What became of each tensor.

    Raises:
        SettingsError: the generator's checkpoint has another geometry than the recipe's generator.
        CheckpointError: a checkpoint is damaged, or a tensor of the encoder is missing.
    """
    if settings.init_checkpoint is None:
        return None
    if settings.init_generator is not None:
        # First, since the embeddings are the discriminator's.
        generator = objective.kept["generator"]
        config, _ = read_config(locate(settings.init_generator))
        wanted, found = generator.encoder.config.model_dump(), config.model_dump()
        if (key := first_difference(wanted, found)) is not None:
            raise SettingsError(
                f"the generator has {key}={found[key]}, not {wanted[key]}",
                where=settings.init_generator,
                fix="Set replaced_tokens.generator_share and generator_layers to what it is.",
            )
        _fill(generator.network, settings.init_generator)
    return _fill(objective.kept["model"].network, settings.init_checkpoint)


def _fill(network: Network | BareEncoder, name: str) -> LoadReport:
    family = family_of(network.encoder.config)
    directory = locate(name)
    tensors, dropped = read_tensors(directory, family)
    described = read_task(directory)
    heads = () if described is None else described.heads
    report = load_weights(network, tensors, family, name, unused_heads=heads)
    return replace(report, dropped={**dropped, **report.dropped})


def lines(name: str, report: LoadReport) -> list[str]:
    """What to say of a beginning: what is fresh, and what of the checkpoint is not used."""
    said = [f"begins as {name}"]
    if report.initialized:
        said.append(f"newly initialised: {', '.join(report.initialized)}")
    unused: dict[str, list[str]] = {}
    for tensor, reason in report.dropped.items():
        unused.setdefault(reason, []).append(tensor)
    said += [f"not used: {', '.join(names)} ({reason})" for reason, names in unused.items()]
    return said
