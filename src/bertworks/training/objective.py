"""What a pre-training recipe trains, and what of it is kept."""

from __future__ import annotations

from dataclasses import dataclass

from ..api import Model, load
from ..checkpoints.store import check_layout
from ..errors import SettingsError
from ..model.config import EncoderConfig
from ..tasks.pretraining.distillation import DistillationNetwork, DistillationTask, begin_like
from ..tasks.pretraining.generator import with_generator
from ..tasks.pretraining.replaced_tokens import ReplacedTokensTask
from ..tasks.pretraining.settings import DistillationSettings
from ..tasks.pretraining.source import PretrainingExample
from ..tasks.pretraining.task import PretrainingNetwork, PretrainingTask
from ..tasks.task import Network, Task
from ..text.tokenizer import Tokenizer
from .progress import Progress, say
from .recipe import PretrainSettings


@dataclass(frozen=True)
class Objective:
    """What a recipe trains.

    Attributes:
        task: what makes its batches and measures it.
        network: what is trained.
        kept: the models that are saved of it, by the directory in the run; `model` is the one that
            other tasks begin with.
    """

    task: Task[PretrainingExample]
    network: Network
    kept: dict[str, Model]

    @classmethod
    def of(
        cls, settings: PretrainSettings, tokenizer: Tokenizer, progress: Progress | None
    ) -> Objective:
        """The objective of a recipe, its networks freshly initialised.

        Raises:
            SettingsError: settings do not fit together, or the teacher is none.
            CheckpointError: what is to be kept could not be saved.
        """
        config = settings.model.config(tokenizer.vocab_size)
        made = (
            _masked_lm(settings, config, tokenizer, progress)
            if settings.objective != "replaced_tokens"
            else _replaced_tokens(settings, config, tokenizer)
        )
        for model in made.kept.values():
            assert model.task is not None
            check_layout(model.network, model.encoder.config, model.task.model_class)
        return made

    @property
    def masked_lm(self) -> tuple[PretrainingTask, PretrainingNetwork] | None:
        """What fills masks, if anything does: the model, or its generator."""
        for model in self.kept.values():
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
    """Masked or next pieces, and next sentences; from a teacher too, if there is one."""

    parts = (tokenizer, settings.instances, settings.masking)
    causal, max_length = config.attention == "causal", config.max_seqlen
    kept = PretrainingTask(*parts, causal=causal, max_length=max_length)
    student = kept.network(config)
    models = {"model": Model(tokenizer, kept, student)}
    if settings.distillation is None:
        return Objective(kept, student, models)
    network = _with_teacher(
        student, tokenizer, settings.distillation, settings.max_seq_length, progress
    )
    task = DistillationTask(*parts, settings=settings.distillation, max_length=max_length)
    return Objective(task, network, models)


def _replaced_tokens(
    settings: PretrainSettings, config: EncoderConfig, tokenizer: Tokenizer
) -> Objective:
    """A discriminator, and the generator that it learns from."""
    assert settings.replaced_tokens is not None
    task = ReplacedTokensTask(
        tokenizer,
        settings.instances,
        settings.masking,
        settings.replaced_tokens,
        max_length=config.max_seqlen,
    )
    network = with_generator(task.network(config), settings.replaced_tokens)
    models = {
        "model": Model(tokenizer, task, network.discriminator),
        "generator": Model(tokenizer, task.masked_lm, network.generator),
    }
    return Objective(task, network, models)


def _with_teacher(
    student: PretrainingNetwork,
    tokenizer: Tokenizer,
    settings: DistillationSettings,
    longest: int,
    progress: Progress | None,
) -> DistillationNetwork:
    """The student beside its teacher; it begins as some of the teacher's layers, if that is asked.

    Raises:
        SettingsError: the teacher is none, or the two do not fit together.
    """
    teacher = load(settings.teacher, device="cpu")
    if not isinstance(teacher.network, PretrainingNetwork):
        raise SettingsError(
            "the teacher has no head of masked language modelling", where=settings.teacher
        )
    if teacher.tokenizer.pieces != tokenizer.pieces:
        raise SettingsError(
            "the teacher's vocabulary is not that of the corpus",
            where=settings.teacher,
            fix="Prepare the corpus with the teacher's tokenizer.",
        )
    if (room := teacher.encoder.config.max_seqlen) < longest:
        raise SettingsError(
            f"max_seq_length={longest} is longer than the {room} tokens that the teacher has room "
            "for",
            where=settings.teacher,
        )
    if settings.initialize:
        taken = begin_like(student, teacher.network)
        say(progress, f"begins as the teacher's layers {', '.join(map(str, taken))}")
    return DistillationNetwork(student, teacher.network, settings)
