"""Pre-training: from a recipe and a prepared corpus to a BERT and its run directory."""

from __future__ import annotations

import hashlib
import itertools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch

from ..checkpoints.card_usage import load_card
from ..checkpoints.locate import local_directory, locate
from ..checkpoints.network_weights import LoadReport
from ..data.shards import Corpus
from ..errors import BertworksWarning, OtherRunError
from ..inference.engine import outputs_of
from ..inference.evaluate import evaluate
from ..inference.settings import EngineSettings
from ..reports.report import write_report
from ..runs.run_directory import MAY_CHANGE, RunDirectory
from ..runs.run_files import read_data
from ..settings.keywords import PretrainKeywords
from ..tasks.network import Network
from ..tasks.pretraining.network import PretrainingNetwork
from ..tasks.pretraining.source import (
    PretrainingExample,
    PretrainingSource,
    describe,
    split_held_out,
)
from ..tasks.pretraining.task import PretrainingTask
from ..text.tokenizer import Tokenizer
from ..utils.formatting import format_count, format_metrics, format_number, html_facts
from ..utils.json_files import write_json
from ..utils.progress import Progress, say, usual_progress
from .cards import pretrained_card
from .checkpoint import list_checkpoints
from .distributed import ProcessGroup, process_group
from .fit import fit
from .objective import (
    Objective,
    check_shapes,
    check_vocabulary,
    initial_lines,
    load_initial,
    with_geometry,
)
from .plan import Phase, Plan, batch_of
from .precision import resolve_precision
from .random_state import seed_everything
from .recipe import PretrainSettings, read_recipe
from .settings import suitable_rate
from .state import find_plan_conflict

# Data are identified by their checksum, not by their path.
_MAY_CHANGE = MAY_CHANGE | {"data"}


@dataclass(frozen=True)
class PretrainResult:
    """The result of a pre-training run.

    Attributes:
        run: the run directory; the model is in `run.model`, the report in `run.report`.
        metrics: metrics of the last evaluation on held-out documents.
        steps: number of updates done.
        tokens: number of tokens trained on.
        resumed_step: the step from which this session resumed; None if it started the run.
        start: how each tensor of `init_checkpoint` was used, if this session started from it.
    """

    run: RunDirectory
    metrics: dict[str, float]
    steps: int
    tokens: int
    resumed_step: int | None
    start: LoadReport | None = None

    def __repr__(self) -> str:
        steps = format_count(self.steps, "step")
        done = f"{steps}, {format_number(self.tokens)} tokens"
        return f"<PretrainResult {self.run.model}: {done}; {format_metrics(self.metrics)}>"

    def _repr_html_(self) -> str:
        steps = format_count(self.steps, "step")
        done = f"Pre-trained for {steps}, {format_number(self.tokens)} tokens"
        facts = {**self.metrics, "model": self.run.model, "report": self.run.report}
        return html_facts(done, facts)


def pretrain(
    recipe: str | Path | None = None,
    overrides: Sequence[str] = (),
    *,
    out: str | Path,
    device: torch.device | str = "auto",
    overwrite: bool = False,
    progress: Progress | None = None,
    **values: Unpack[PretrainKeywords],
) -> PretrainResult:
    """Pre-train a BERT; called again with the same settings, it resumes.

    Args:
        recipe: a YAML file, or the name of a recipe of the package, such as "tiny".
        overrides: `key=value` words that override settings of the recipe.
        out: the run directory.
        device: device to run on; under `torchrun`, "cuda" is each process's own GPU.
        overwrite: delete an existing run, finished or not, and start again.
        progress: reports progress; in a notebook it is shown by default.
        values: settings of `PretrainSettings` that override those of the recipe.

    Raises:
        SettingsError: a setting is unknown or impossible, or the data or the recipe's geometry
            does not match `init_checkpoint`.
        DataError: `data` is not a prepared corpus, or is too small.
        TrainingError: the run directory holds another run, or a loss is not finite.
        OutputError: the run directory cannot be written (the disk is full), or another process
            uses it.
        RunInterrupted: SIGTERM or Ctrl-C was received; the run is saved and can be resumed.
        CheckpointError: the run's checkpoints, the corpus, or `init_checkpoint` are damaged.
    """
    progress = usual_progress(progress)
    settings = with_geometry(read_recipe(recipe, overrides, **values))
    if overwrite or not list_checkpoints(
        Path(out) / "checkpoints"
    ):  # a resumed run has its own weights
        check_shapes(settings)
    data = PretrainingData.open(settings)
    check_vocabulary(settings, data.tokenizer)
    plan = Plan.from_phases(data.phases, settings)
    for phase in data.phases:
        batch_of(phase, settings)  # raises for a phase without a size, before anything is written
    with process_group(device, settings.rank_timeout) as group:
        precision = resolve_precision(settings.precision, None if overwrite else out, group.device)
        settings = settings.model_copy(update={"precision": precision})
        teacher = settings.distillation and settings.distillation.teacher
        models = [name and local_directory(name) for name in (settings.init_checkpoint, teacher)]
        with RunDirectory.open(
            out,
            settings,
            may_change=_MAY_CHANGE,
            resume_checks={"steps": lambda run: find_plan_conflict(run, plan)},
            check=data.check,
            inputs=[settings.data, *models],
            is_main=group.is_main,
            overwrite=overwrite,
        ) as run:
            if group.is_main:
                data.write_summary(run)
            return _pretrain(settings, data, run, group, progress if group.is_main else None)


@dataclass(frozen=True)
class PretrainingData:
    """A prepared corpus, its held-out documents, and the sources of the phases."""

    corpus: Corpus
    tokenizer: Tokenizer
    phases: list[Phase]
    held_out: PretrainingSource
    held_out_documents: np.ndarray

    @classmethod
    def open(cls, settings: PretrainSettings) -> PretrainingData:
        corpus = Corpus.open(settings.data, verify=True)
        tokenizer = corpus.load_tokenizer()
        if settings.instances.has_random_pairs:
            for note in corpus.notes:
                warnings.warn(note, BertworksWarning, stacklevel=3)
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
                with_units=masked and settings.masking.unit == "knowledge",
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
        # Evaluate with the same length in all phases, so that results can be compared.
        held_out = source(parts[1], settings.phases[0].max_seq_length, seed)
        return cls(corpus, tokenizer, phases, held_out, parts[1])

    @property
    def checksum(self) -> str:
        """The SHA-256 of the corpus's manifest, which has the checksums of all its files."""
        return hashlib.sha256((self.corpus.directory / "manifest.json").read_bytes()).hexdigest()

    def check(self, run: RunDirectory) -> None:
        """Check that a run that has started used the same data.

        Raises:
            OtherRunError: it was started with other data.
        """
        file = run.path / "data.json"
        if file.is_file() and read_data(file).get("checksum") != self.checksum:
            raise OtherRunError(
                "the run was started with other data",
                where=str(self.corpus.directory),
                fix=f"Give the same prepared corpus, another directory than {run.path}, or start "
                "again with --overwrite (overwrite=True).",
            )

    def write_summary(self, run: RunDirectory) -> None:
        """Write `data.json`."""
        manifest = self.corpus.manifest
        counts: Mapping[str, Any] = {
            "corpus": {
                "documents": manifest.documents,
                "sentences": manifest.sentences,
                "tokens": manifest.tokens,
                "unknown_rate": manifest.unknown_rate,
                "vocabulary": manifest.vocabulary_size,
            },
            **{phase.name: describe(_source(phase)) for phase in self.phases},
            "held out": describe(self.held_out),
            "checksum": self.checksum,
        }
        write_json(run.path / "data.json", counts, indent=1)


def _source(phase: Phase) -> PretrainingSource:
    assert isinstance(phase.source, PretrainingSource)
    return phase.source


def _pretrain(
    settings: PretrainSettings,
    data: PretrainingData,
    run: RunDirectory,
    group: ProcessGroup,
    progress: Progress | None,
) -> PretrainResult:
    seed_everything(settings.seed)  # every rank starts with the same weights
    objective = Objective.from_settings(settings, data.tokenizer, progress)
    is_new = not list_checkpoints(run.checkpoints)
    start = load_initial(settings, objective) if is_new else None
    if start is not None:
        for line in initial_lines(str(settings.init_checkpoint), start):
            run.log_session("note", text=line)
            say(progress, line)
    held_out = list(data.held_out.examples(limit=settings.held_out.sequences))
    inference = EngineSettings(precision=settings.precision)

    def compute_metrics(network: Network) -> dict[str, float]:
        return evaluate(network, objective.task, held_out, inference, group=group).metrics

    result = fit(
        objective.network,
        objective.task,
        data.phases,
        settings=settings,
        run=run,
        evaluate=compute_metrics,
        device=group.device,
        progress=progress,
    )
    if group.is_main:
        _finish(settings, objective, data, run, inference, result.metrics)
    state = result.state
    return PretrainResult(run, result.metrics, state.step, state.tokens, result.resumed_step, start)


def _finish(
    settings: PretrainSettings,
    objective: Objective,
    data: PretrainingData,
    run: RunDirectory,
    inference: EngineSettings,
    metrics: Mapping[str, float],
) -> None:
    """Save the trained models, sample fill-ins and the report."""
    objective.network.eval()
    objective.update_models()
    samples = []
    if (masked_lm := objective.masked_lm) is not None:
        task, network = masked_lm
        samples = sample_fill_ins(
            network, task, data.corpus, data.held_out_documents, settings=inference
        )
    write_json(run.path / "samples.json", samples, indent=1)
    start = settings.init_checkpoint
    base = None if start is None else load_card(start, locate(start))
    for name, model in reversed(objective.models.items()):  # `model` last: it marks the end
        model.learning_rate = suitable_rate(model.encoder.config.hidden_size)
        results = metrics if name == "model" else {}
        model.card = pretrained_card(base, run, data.corpus, results, settings)
        model.save(run.path / name, overwrite=True, keep_others=True)
    write_report(run.path)


_SHORTEST, _LONGEST = 10, 32  # tokens of a sentence with enough context, but not too much
_MASKS = 2
_MAX_SAMPLES = 12


def sample_fill_ins(
    network: PretrainingNetwork,
    task: PretrainingTask,
    corpus: Corpus,
    documents: np.ndarray,
    *,
    settings: EngineSettings,
) -> list[dict[str, Any]]:
    """Predict masked words of one sentence from each of the first documents with a suitable one.

    Args:
        documents: numbers of held-out documents.

    Returns:
        For each sample: `text`, with `[MASK]` for each masked word; `answers`, the masked words;
        and `guesses`, for each answer a list of `token` and `probability`, most probable first.
    """
    tokenizer = task.tokenizer
    samples: list[dict[str, Any]] = []
    examples: list[PretrainingExample] = []
    for ids, places in _sentences(tokenizer, corpus, documents):
        masked = ids.copy()
        masked[places] = tokenizer.mask_id
        samples.append(
            {
                "text": tokenizer.decode(masked, skip_special_tokens=False),
                "answers": [tokenizer.id_to_token(int(piece)) for piece in ids[places]],
            }
        )
        if tokenizer.puts_cls_last:
            input_ids = np.concatenate((masked, [tokenizer.sep_id, tokenizer.cls_id]))
        else:
            input_ids = np.concatenate(([tokenizer.cls_id], masked, [tokenizer.sep_id]))
        examples.append(PretrainingExample(input_ids, len(input_ids), index=len(examples)))
        if len(samples) == _MAX_SAMPLES:
            break
    if examples:
        for outputs, batch in outputs_of(network, task, examples, settings):
            for row, answer in task.decode(outputs, batch).items():
                samples[row]["guesses"] = [
                    [{key: guess[key] for key in ("token", "probability")} for guess in guesses]
                    for guesses in answer["masks"]
                ]
    return samples


def _sentences(
    tokenizer: Tokenizer, corpus: Corpus, documents: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield a sentence's ids from each document, and the positions of the words to mask."""
    for number in documents.tolist():
        ids, offsets = corpus.document(number)
        for start, end in itertools.pairwise(offsets):
            sentence = ids[start:end].astype(np.int64)
            if not _SHORTEST <= len(sentence) <= _LONGEST:
                continue
            words = _whole_words(tokenizer, sentence)
            if len(words) >= 3 * _MASKS:
                # Short words are often easy to predict, so the longest words are masked.
                lengths = [len(tokenizer.id_to_token(int(sentence[at]))) for at in words]
                chosen = words[np.argsort(lengths, kind="stable")[-_MASKS:]]
                yield sentence, np.sort(chosen)
                break


def _whole_words(tokenizer: Tokenizer, sentence: np.ndarray) -> np.ndarray:
    """The positions of words that are a single piece."""
    continues = np.append(tokenizer.continues_word(sentence), False)
    pieces = [tokenizer.id_to_token(int(piece)) for piece in sentence]
    is_word = np.array([piece.isalpha() for piece in pieces])
    return np.flatnonzero(is_word & ~continues[:-1] & ~continues[1:])
