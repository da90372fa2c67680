"""Evaluate a pre-trained network on held-out documents of a corpus."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from ..checkpoints.locate import local_directory
from ..data.shards import Corpus
from ..errors import DataError, SettingsError
from ..packed import Batch
from ..settings.base import without_format_version
from ..settings.yaml_values import read_yaml
from ..tasks.evaluation import Evaluation
from ..tasks.network import Network
from ..tasks.pretraining.evaluator import PretrainingEvaluator
from ..tasks.pretraining.permutation import PermutationTask
from ..tasks.pretraining.source import PretrainingSource, split_held_out
from ..tasks.pretraining.task import PretrainingTask
from ..tasks.task import Task
from ..utils.formatting import format_count
from .evaluate import evaluate
from .settings import EngineSettings, HeldOutEvaluationSettings


class _Task(PretrainingTask):
    """The pre-training task with the evaluator below."""

    def evaluator(self) -> PretrainingEvaluator:
        return super().evaluator() if self.causal else _Evaluator(self.tokenizer.mask_id)


class _Evaluator(PretrainingEvaluator):
    """Adds `mlm_mask_accuracy`: the accuracy on tokens replaced by `[MASK]`."""

    state_fields = (*PretrainingEvaluator.state_fields, "_num_masks", "_num_correct")

    def __init__(self, mask_id: int) -> None:
        super().__init__()
        self._mask_id = mask_id
        self._num_masks = self._num_correct = 0

    def add(self, outputs: Mapping[str, Tensor], batch: Batch) -> None:
        super().add(outputs, batch)
        input_ids = batch.packed.input_ids[batch.targets["masked_positions"]]
        is_mask = input_ids == self._mask_id
        is_correct = outputs["mlm_logits"].argmax(-1) == batch.targets["masked_labels"]
        self._num_masks += int(is_mask.sum())
        self._num_correct += int((is_correct & is_mask).sum())

    def result(self) -> dict[str, float]:
        metrics = super().result()
        if self._num_masks:
            metrics["mlm_mask_accuracy"] = self._num_correct / self._num_masks
        return metrics


def held_out_of_run(source: str | None) -> dict[str, Any]:
    """Return the held-out part of the pre-training run that a model belongs to.

    Args:
        source: where the model was loaded from.

    Returns:
        `HeldOutEvaluationSettings` by name; empty if the model is not in the directory of a
        pre-training run.

    Raises:
        SettingsError: the run's settings cannot be read, or are damaged.
        DataError: the run was written in another format.
    """
    directory = None if source is None else local_directory(source)
    file = None if directory is None else directory.resolve().parent / "settings.yaml"
    if file is None or not file.is_file():
        return {}
    run = read_yaml(file)
    is_run = (file.parent / "journal.jsonl").is_file()
    if not is_run and {"format_version", "held_out"}.isdisjoint(run):
        return {}  # a file of another program
    run = without_format_version(run, file)
    if "held_out" not in run:
        return {}
    try:
        held_out = {**run["held_out"], "max_seq_length": run["phases"][0]["max_seq_length"]}
        if held_out.get("seed") is None:
            held_out["seed"] = run["seed"]
    except (LookupError, TypeError):
        raise SettingsError("the file is damaged", where=str(file)) from None
    return HeldOutEvaluationSettings.parse(held_out, where=str(file)).model_dump()


def evaluate_held_out(
    network: Network,
    task: Task[Any],
    data: str | Path,
    held_out: HeldOutEvaluationSettings,
    engine: EngineSettings,
) -> Evaluation:
    """Evaluate a pre-trained network on held-out documents of a prepared corpus.

    The masking does not depend on the model's training: 15 % of the tokens are chosen individually;
    of these, 80 % are replaced by `[MASK]`, 10 % by a random token, and 10 % are unchanged (paper
    §3.1). It is a function of the corpus and the settings only, so models with the same vocabulary
    can be compared. A permutation language model predicts a sixth of the tokens instead.

    Args:
        data: the corpus; its tokenizer must be the model's.
        held_out: which documents, and how many of their sequences. If its seed is omitted, a note
            reports the one that was used.

    Raises:
        DataError: the model was trained for another task; or the corpus was prepared with another
            tokenizer, or is too small.
    """
    if not isinstance(task, PretrainingTask) or not task.has_masked_lm:
        raise DataError(
            f"is a prepared corpus, and the model was trained for {task.name}",
            where=str(data),
            fix="Give a table of rows with labels.",
        )
    corpus = Corpus.open(data)
    if corpus.load_tokenizer().fingerprint != task.tokenizer.fingerprint:
        raise DataError(
            "the corpus was prepared with another tokenizer than the model's",
            where=str(data),
            fix="Run bertworks prepare with --tokenizer MODEL.",
        )
    _, documents = split_held_out(corpus, held_out.documents, seed=held_out.seed)
    instances = task.instances.with_values(max_seq_length=held_out.max_seq_length)
    source = PretrainingSource(corpus, documents, task.tokenizer, instances, seed=held_out.seed)
    kind = PermutationTask if task.has_two_streams else _Task
    plain = kind(task.tokenizer, instances, causal=task.causal, max_length=task.max_length)
    examples = list(source.examples(limit=held_out.sequences))
    evaluation = evaluate(network, plain, examples, engine)
    notes = [*evaluation.notes, f"{format_count(len(documents), 'document')} held out"]
    if "seed" not in held_out.model_fields_set:
        notes.append(
            f"selected by seed={held_out.seed}, since the model is not in a run "
            "directory; give seed= if training used another"
        )
    return replace(evaluation, notes=notes)
