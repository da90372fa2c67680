"""The task and networks of a pre-training recipe, its initial checkpoint, and the models it saves.

Further pre-training on text of a domain adapts a model to this domain: Lee et al. (2020),
"BioBERT"; Gururangan et al. (2020), "Don't Stop Pretraining". Geometry and vocabulary are then
those of the initial checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..checkpoints.families import family_of
from ..checkpoints.locate import locate_transformer
from ..checkpoints.network_weights import LoadReport, load_weights
from ..checkpoints.saving import check_layout
from ..checkpoints.store import check_geometry, read_config, read_task
from ..checkpoints.tensors import read_tensors
from ..errors import SettingsError
from ..loading import load
from ..model import Model
from ..nn.config import EncoderConfig
from ..nn.encoder import BareEncoder, Encoder
from ..nn.neighbour_attention import initialize_neighbour_attention
from ..tasks.network import Network
from ..tasks.pretraining.discriminator import (
    read_shared_embeddings,
    with_generator,
    write_shared_embeddings,
)
from ..tasks.pretraining.distillation import (
    DistillationNetwork,
    DistillationTask,
    init_from_teacher,
)
from ..tasks.pretraining.masked_permutation import MaskedPermutationNetwork, MaskedPermutationTask
from ..tasks.pretraining.network import PretrainingNetwork
from ..tasks.pretraining.permutation import PermutationTask
from ..tasks.pretraining.replaced_tokens import ReplacedTokensTask
from ..tasks.pretraining.settings import DistillationSettings
from ..tasks.pretraining.skip_gram import SkipGramNetwork, SkipGramTask
from ..tasks.pretraining.source import PretrainingExample
from ..tasks.pretraining.task import PretrainingTask
from ..tasks.task import Task
from ..text.tokenizer import Tokenizer
from ..utils.progress import Progress, say
from .recipe import PretrainSettings, first_difference


@dataclass(frozen=True)
class Objective:
    """The task and networks of a recipe."""

    task: Task[PretrainingExample]  # makes the batches and evaluates
    network: Network  # the network to train
    # the models to save, by their directory in the run; fine-tuning starts from `model`
    models: dict[str, Model]

    @classmethod
    def from_settings(
        cls, settings: PretrainSettings, tokenizer: Tokenizer, progress: Progress | None
    ) -> Objective:
        """Return the objective of a recipe, with newly initialised networks.

        Raises:
            SettingsError: settings do not fit together, or the teacher is not suitable.
            CheckpointError: a model of the objective could not be saved.
        """
        config = settings.model.config(tokenizer.vocab_size)
        if settings.objective == "skip_gram":
            objective = _skip_gram(settings, config, tokenizer)
        elif settings.objective == "replaced_tokens":
            objective = _replaced_tokens(settings, config, tokenizer)
        elif settings.objective == "masked_permutation":
            objective = _masked_permutation(settings, config, tokenizer)
        else:
            objective = _masked_lm(settings, config, tokenizer, progress)
        if settings.initial_attention == "neighbours":
            initialize_neighbour_attention(objective.models["model"].encoder)
            read_shared_embeddings(objective.network, keep_generator=False)
        for model in objective.models.values():
            kind = "encoder" if model.task is None else model.task.model_class
            check_layout(model.network, model.encoder.config, kind)
        return objective

    def update_models(self) -> None:
        """Write into the models what they do not share with the trained network."""
        write_shared_embeddings(self.network)

    @property
    def masked_lm(self) -> tuple[PretrainingTask, PretrainingNetwork] | None:
        """The task and network that predict masked tokens, if any: the model's or generator's."""
        for model in self.models.values():
            task, network = model.task, model.network
            if isinstance(task, PretrainingTask) and isinstance(network, PretrainingNetwork):
                return None if task.causal else (task, network)
        return None


def _masked_lm(
    settings: PretrainSettings,
    config: EncoderConfig,
    tokenizer: Tokenizer,
    progress: Progress | None,
) -> Objective:
    """Return the objective of masked, next or permuted tokens, possibly with a teacher."""
    parts = (tokenizer, settings.instances, settings.masking)
    causal, max_length = settings.objective == "causal", config.max_seqlen
    kind = PermutationTask if settings.objective == "permutation" else PretrainingTask
    pretraining_task = kind(*parts, causal=causal, max_length=max_length)
    student = pretraining_task.network(config)
    models = {"model": Model(tokenizer, pretraining_task, student)}
    if settings.distillation is None:
        return Objective(pretraining_task, student, models)
    network = _with_teacher(
        student, tokenizer, settings.distillation, settings.max_seq_length, progress
    )
    task = DistillationTask(*parts, settings=settings.distillation, max_length=max_length)
    return Objective(task, network, models)


def _skip_gram(
    settings: PretrainSettings, config: EncoderConfig, tokenizer: Tokenizer
) -> Objective:
    """Return the objective of static vectors; the context vectors are not saved."""
    assert settings.skip_gram is not None
    if not settings.data:  # for an estimate
        fix = "Give data=PREPARED."
        raise SettingsError("objective=skip_gram counts the pieces of a corpus", fix=fix)
    network, bare = SkipGramNetwork(config), BareEncoder(Encoder(config, pooler=False))
    bare.encoder = network.encoder
    task = SkipGramTask(tokenizer, settings.instances, settings.skip_gram, settings.data)
    return Objective(task, network, {"model": Model(tokenizer, None, bare)})


def _replaced_tokens(
    settings: PretrainSettings, config: EncoderConfig, tokenizer: Tokenizer
) -> Objective:
    """Return the objective of a discriminator and the generator that replaces its tokens."""
    assert settings.replaced_tokens is not None
    task = ReplacedTokensTask(
        tokenizer,
        settings.instances,
        settings.masking,
        settings.replaced_tokens,
        max_length=config.max_seqlen,
    )
    discriminator = task.network(config)
    network = with_generator(discriminator, settings.replaced_tokens)
    models = {
        "model": Model(tokenizer, task, discriminator),
        "generator": Model(tokenizer, task.masked_lm, network.generator),
    }
    return Objective(task, network, models)


def _masked_permutation(
    settings: PretrainSettings, config: EncoderConfig, tokenizer: Tokenizer
) -> Objective:
    """Return the objective of a masked language model that is trained on permuted tokens."""
    parts = (tokenizer, settings.instances, settings.masking)
    pretraining_task = PretrainingTask(*parts, max_length=config.max_seqlen)
    model = pretraining_task.network(config)
    task = MaskedPermutationTask(*parts, max_length=config.max_seqlen)
    models = {"model": Model(tokenizer, pretraining_task, model)}
    return Objective(task, MaskedPermutationNetwork(model), models)


def _with_teacher(
    student: PretrainingNetwork,
    tokenizer: Tokenizer,
    settings: DistillationSettings,
    longest: int,
    progress: Progress | None,
) -> DistillationNetwork:
    """Return student and teacher as one network; with `initialize`, copy teacher layers first."""
    teacher = load(settings.teacher, device="cpu")
    if not isinstance(teacher.network, PretrainingNetwork):
        raise SettingsError(
            "the teacher has no masked-language-modelling head", where=settings.teacher
        )
    if teacher.tokenizer.pieces != tokenizer.pieces:
        raise SettingsError(
            "the teacher's vocabulary is not that of the corpus",
            where=settings.teacher,
            fix="Prepare the corpus with the teacher's tokenizer.",
        )
    if (room := teacher.encoder.config.max_seqlen) < longest:
        raise SettingsError(
            f"max_seq_length={longest} is longer than the {room} tokens that the teacher allows",
            where=settings.teacher,
        )
    if settings.initialize:
        layer_numbers = init_from_teacher(student, teacher.network)
        say(progress, f"starts from the teacher's layers {', '.join(map(str, layer_numbers))}")
    return DistillationNetwork(student, teacher.network, settings)


def with_geometry(settings: PretrainSettings) -> PretrainSettings:
    """Return a recipe with the geometry of its initial checkpoint, if it has one.

    A checkpoint without bidirectional attention sets `objective` to "causal", and XLNet's to
    "permutation", unless it is given.

    Raises:
        SettingsError: the recipe asks for another geometry.
        CheckpointError: there is no such checkpoint, or it is damaged.
    """
    if settings.init_checkpoint is None:
        return settings
    config, _ = read_config(locate_transformer(settings.init_checkpoint))
    model = settings.model.of_checkpoint(config, where=settings.init_checkpoint)
    objective = {}
    if "objective" not in settings.model_fields_set:
        if config.attention != "bidirectional":
            objective = {"objective": "causal"}
        elif config.is_transformer_xl:
            objective = {"objective": "permutation"}
    # An objective has defaults of its own for settings that were not given.
    own_values = settings.model_dump(exclude_unset=bool(objective))
    return PretrainSettings.parse({**own_values, "model": model, **objective})


def check_shapes(settings: PretrainSettings) -> None:
    """Check that the tensors of the initial checkpoint have the geometry in its settings."""
    if (name := settings.init_checkpoint) is None:
        return
    directory = locate_transformer(name)
    config, _ = read_config(directory)
    family = family_of(config)
    tensors, _ = read_tensors(directory, family)
    check_geometry(config, tensors, family, name)


def check_vocabulary(settings: PretrainSettings, tokenizer: Tokenizer) -> None:
    """Raise `SettingsError` if the corpus and the initial checkpoint have different tokenizers."""
    if (name := settings.init_checkpoint) is None:
        return
    if Tokenizer.load(locate_transformer(name)).fingerprint != tokenizer.fingerprint:
        raise SettingsError(
            f"the corpus {settings.data} was prepared with another tokenizer",
            where=name,
            fix=f"Run bertworks prepare with --tokenizer {name}.",
        )


def load_initial(settings: PretrainSettings, objective: Objective) -> LoadReport | None:
    """Load the weights of the recipe's initial checkpoints into new networks, if it has any.

    Returns:
        A report of all tensors of the model's checkpoint; None without an initial checkpoint.

    Raises:
        SettingsError: the generator's checkpoint has another geometry than the recipe's generator.
        CheckpointError: a checkpoint is damaged, or lacks a tensor of the encoder.
    """
    if settings.init_checkpoint is None:
        return None
    if settings.init_generator is not None:
        # First, because the embeddings must be those of the discriminator, which is loaded next.
        generator = objective.models["generator"]
        config, _ = read_config(locate_transformer(settings.init_generator))
        expected, values = generator.encoder.config.model_dump(), config.model_dump()
        if (key := first_difference(expected, values)) is not None:
            raise SettingsError(
                f"the generator has {key}={values[key]}, not {expected[key]}",
                where=settings.init_generator,
                fix="Set replaced_tokens.generator_share and generator_layers to what it is.",
            )
        _fill(generator.network, settings.init_generator)
    report = _fill(objective.models["model"].network, settings.init_checkpoint)
    has_generator = settings.init_generator is not None
    read_shared_embeddings(objective.network, keep_generator=has_generator)
    return report


def _fill(network: Network | BareEncoder, name: str) -> LoadReport:
    family = family_of(network.encoder.config)
    directory = locate_transformer(name)
    tensors, dropped_tensors = read_tensors(directory, family)
    described = read_task(directory)
    heads = () if described is None else described.heads
    report = load_weights(network, tensors, family, name, unused_heads=heads)
    return replace(report, dropped_tensors={**dropped_tensors, **report.dropped_tensors})


def initial_lines(name: str, report: LoadReport) -> list[str]:
    """Return messages about an initial checkpoint: new tensors, and unused ones."""
    messages = [f"starts from {name}"]
    if report.new_tensors:
        messages.append(f"newly initialised: {', '.join(report.new_tensors)}")
    tensors_by_reason: dict[str, list[str]] = {}
    for tensor, reason in report.dropped_tensors.items():
        tensors_by_reason.setdefault(reason, []).append(tensor)
    messages += [
        f"not used: {', '.join(names)} ({reason})" for reason, names in tensors_by_reason.items()
    ]
    return messages
