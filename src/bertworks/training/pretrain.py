"""Pre-training: a recipe and a prepared corpus in, a BERT and the directory of its run out."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch

from .. import files
from ..checkpoints.locate import local_directory
from ..checkpoints.store import LoadReport
from ..corpus.shards import Corpus
from ..errors import TrainingError
from ..inference.evaluate import evaluate
from ..inference.settings import EngineSettings
from ..keywords import PretrainKeywords
from ..tasks.pretraining.source import PretrainingSource, describe, split_held_out
from ..tasks.task import Network
from ..text.tokenizer import Tokenizer
from ..wording import measured, short
from . import initial
from .checkpoint import list_checkpoints
from .conditions import settled_precision
from .distributed import Team, team
from .fit import fit
from .journal import MAY_CHANGE, RunDirectory
from .objective import Objective
from .plan import Phase, Plan
from .progress import Progress, say
from .random_state import seed_everything
from .recipe import PretrainSettings, read_recipe
from .report import write_report
from .run_files import read_data
from .samples import sample_fill_ins
from .state import refusal

# Where the data lie is told by their checksum, not by their path.
_MAY_CHANGE = MAY_CHANGE | {"data"}


@dataclass(frozen=True)
class PretrainResult:
    """What came of a pre-training run.

    Attributes:
        run: the run directory; the model is in `run.model`, the page about it all in `run.report`.
        metrics: those of the last evaluation on held-out documents.
        steps: the updates done.
        tokens: the tokens learned from.
        resumed_from: the step that this session went on from, if it did not begin the run.
        start: what became of each tensor of `init_checkpoint`, if this session began with it.
    """

    run: RunDirectory
    metrics: dict[str, float]
    steps: int
    tokens: int
    resumed_from: int | None
    start: LoadReport | None = None

    def __repr__(self) -> str:
        done = f"{self.steps:,} steps, {short(self.tokens)} tokens"
        return f"<PretrainResult {self.run.model}: {done}; {measured(self.metrics)}>"


def pretrain(
    recipe: str | Path | None = None,
    overrides: Sequence[str] = (),
    *,
    out: str | Path,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
    **values: Unpack[PretrainKeywords],
) -> PretrainResult:
    """Pre-train a BERT; called again with the same settings, go on where it stopped.

    Args:
        recipe: a YAML file, or the name of one that comes with the package, such as "tiny".
        overrides: `key=value` words that replace settings of the recipe.
        out: the run directory.
        device: where to compute; under `torchrun`, "cuda" is each process's own GPU.
        progress: shows how it goes.
        values: settings of `PretrainSettings` that replace those of the recipe.

    Raises:
        SettingsError: a setting is unknown or impossible, or the data or the recipe's geometry are
            not those of `init_checkpoint`.
        DataError: `data` is no prepared corpus, or too small a one.
        TrainingError: the run directory holds another run, or a loss is not finite.
        OutputError: the run directory cannot be written (the disk is full), or another process is
            at it.
        Interrupted: SIGTERM or Ctrl-C came; the run is saved and can go on.
        CheckpointError: the run's checkpoints, the corpus, or `init_checkpoint` are damaged.
    """
    settings = initial.with_geometry(read_recipe(recipe, overrides, **values))
    if not list_checkpoints(Path(out) / "checkpoints"):  # a resumed run needs its weights no more
        initial.check_shapes(settings)
    data = PretrainingData.open(settings)
    initial.check_vocabulary(settings, data.tokenizer)
    plan = Plan.of(data.phases, settings)
    with team(device) as members:
        precision = settled_precision(settings.precision, out, members.device)
        settings = settings.model_copy(update={"precision": precision})
        teacher = settings.distillation and settings.distillation.teacher
        models = [name and local_directory(name) for name in (settings.init_checkpoint, teacher)]
        with RunDirectory.open(
            out,
            settings,
            may_change=_MAY_CHANGE,
            refusals={"steps": lambda run: refusal(run, plan)},
            inputs=[settings.data, *models],
            is_main=members.is_main,
        ) as run:
            if members.is_main:
                data.note_in(run)
            return _pretrain(settings, data, run, members, progress if members.is_main else None)


@dataclass(frozen=True)
class PretrainingData:
    """A prepared corpus, its documents parted, and the sources of the phases."""

    corpus: Corpus
    tokenizer: Tokenizer
    phases: list[Phase]
    held_out: PretrainingSource
    held_out_documents: np.ndarray

    @classmethod
    def open(cls, settings: PretrainSettings) -> PretrainingData:
        corpus = Corpus.open(settings.data)
        tokenizer = corpus.load_tokenizer()
        masked = settings.objective != "causal"
        seed = settings.seed if settings.held_out.seed is None else settings.held_out.seed
        parts = split_held_out(corpus, settings.held_out.documents, seed=seed)

        def source(documents: np.ndarray, length: int, seed: int) -> PretrainingSource:
            return PretrainingSource(
                corpus,
                documents,
                tokenizer,
                settings.instances.with_values(max_seq_length=length),
                seed=seed,
                repeat_every=settings.masking.repeat_every,
                units=masked and settings.masking.unit == "knowledge",
            )

        phases = [
            Phase(
                source(parts[0], phase.max_seq_length, settings.seed + number),
                steps,
                f"length {phase.max_seq_length}",
                phase.batch_size,
                phase.batch_tokens,
            )
            for number, (phase, steps) in enumerate(
                zip(settings.phases, settings.phase_steps(), strict=True)
            )
        ]
        # Measured at one length throughout, so that the run's evaluations compare.
        held_out = source(parts[1], settings.phases[0].max_seq_length, seed)
        return cls(corpus, tokenizer, phases, held_out, parts[1])

    def note_in(self, run: RunDirectory) -> None:
        """Write the data's counts down, or see that they are those of the run so far.

        Raises:
            TrainingError: the run was begun with other data.
        """
        file = run.path / "data.json"
        checksum = hashlib.sha256((self.corpus.directory / "manifest.json").read_bytes())
        if run.is_begun and file.is_file():
            if read_data(file).get("checksum") != checksum.hexdigest():
                raise TrainingError(
                    "the run was begun with other data",
                    where=str(self.corpus.directory),
                    fix="Give the same prepared corpus, or another run directory.",
                )
            return
        manifest = self.corpus.manifest
        counts: Mapping[str, Any] = {
            "corpus": {
                "documents": manifest.documents,
                "sentences": manifest.sentences,
                "tokens": manifest.tokens,
                "unknown_rate": manifest.unknown_rate,
                "vocabulary": manifest.vocabulary_size,
            },
            **{phase.name: describe(_source(phase), blocks=1) for phase in self.phases},
            "held out": describe(self.held_out, blocks=1),
            "checksum": checksum.hexdigest(),
        }
        files.write_json(file, counts, indent=1)


def _source(phase: Phase) -> PretrainingSource:
    assert isinstance(phase.source, PretrainingSource)
    return phase.source


def _pretrain(
    settings: PretrainSettings,
    data: PretrainingData,
    run: RunDirectory,
    members: Team,
    progress: Progress | None,
) -> PretrainResult:
    seed_everything(settings.seed)  # every rank begins with the same weights
    objective = Objective.of(settings, data.tokenizer, progress)
    is_new = not list_checkpoints(run.checkpoints)
    start = initial.begin(settings, objective) if is_new else None
    if start is not None:
        for line in initial.lines(str(settings.init_checkpoint), start):
            run.note_session("note", text=line)
            say(progress, line)
    held_out = list(data.held_out.examples(limit=settings.held_out.sequences))
    inference = EngineSettings(precision=settings.precision)

    def measure(network: Network) -> dict[str, float]:
        return evaluate(network, objective.task, held_out, inference).metrics

    result = fit(
        objective.network,
        objective.task,
        data.phases,
        settings=settings,
        run=run,
        evaluate=measure,
        device=members.device,
        progress=progress,
    )
    if members.is_main:
        _finish(objective, data, run, inference)
    state = result.state
    return PretrainResult(run, result.metrics, state.step, state.tokens, result.resumed_from, start)


def _finish(
    objective: Objective, data: PretrainingData, run: RunDirectory, inference: EngineSettings
) -> None:
    """Write the trained models, sample fill-ins, and the report."""
    objective.network.eval()
    samples = []
    if (masked_lm := objective.masked_lm) is not None:
        task, network = masked_lm
        samples = sample_fill_ins(
            network, task, data.corpus, data.held_out_documents, settings=inference
        )
    files.write_json(run.path / "samples.json", samples, indent=1)
    for name, model in reversed(objective.kept.items()):  # `model` last: then the run is finished
        model.save(run.path / name, keep_others=True)
    write_report(run.path)
