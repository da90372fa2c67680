"""Evaluate a network: on labelled rows, or on held-out documents of a corpus."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from ..checkpoints.locate import local_directory
from ..data.shards import Corpus
from ..errors import CheckpointError, DataError, SettingsError
from ..nn.device import dtype_of
from ..packed import Batch
from ..settings.base import read_yaml, without_format_version
from ..tasks.breakdown import Breakdown
from ..tasks.evaluation import Evaluation
from ..tasks.pretraining.evaluator import PretrainingEvaluator
from ..tasks.pretraining.source import PretrainingSource, split_held_out
from ..tasks.pretraining.task import PretrainingTask
from ..tasks.task import Example, Network, Task
from .engine import DEFAULTS, NOT_FINITE, chunks, outputs_of, row_name
from .settings import EngineSettings, HeldOutEvaluationSettings


class ProcessGroup(Protocol):
    """Processes that evaluate one network together; see `training.distributed`."""

    @property
    def rank(self) -> int: ...

    @property
    def world(self) -> int: ...

    def gather(self, value: Any) -> list[Any]: ...


def evaluate(
    network: Network,
    task: Task[Any],
    examples: Iterable[Example],
    settings: EngineSettings = DEFAULTS,
    *,
    breakdown: bool = True,
    group: ProcessGroup | None = None,
) -> Evaluation:
    """Evaluate a network by its task's metrics.

    Args:
        network: of the task; it is not changed.
        examples: with targets (see `engine.labelled_examples`); any number.
        group: processes that share the batches, if the task's evaluator can add up their
            results; each of them calls this function, and gets the result of all batches.

    Raises:
        DataError: there are no examples.
        BertworksError: the metrics need a package that is not installed.
        CheckpointError: the output for a row, or the total loss, is not finite.
    """
    evaluator = task.evaluator()
    if group is not None and not (group.world > 1 and evaluator.state_fields):
        group = None
    share = (0, 1) if group is None else (group.rank, group.world)
    rows = 0
    for window in chunks(examples, settings.window_rows):
        names = [row_name(index) for index in range(rows, rows + len(window))]
        for outputs, batch in outputs_of(network, task, window, settings, names.__getitem__, share):
            evaluator.add(outputs, batch)
        rows += len(window)
    if not rows:
        raise DataError("there is nothing to evaluate")
    if group is not None:
        parts = group.gather(evaluator.state())
        evaluator = task.evaluator()
        for part in parts:  # in the order of ranks, so that all processes get the same bits
            evaluator.merge(part)
    metrics = evaluator.result()
    if not math.isfinite(metrics.get("loss", 0.0)):
        raise CheckpointError(f"the loss of the {rows:,} rows is not finite", fix=NOT_FINITE)
    remarks = evaluator.remarks()
    if settings.precision == "int8":
        remarks = [*remarks, "computed with 8-bit weights"]
    elif dtype_of(settings.precision, next(network.parameters()).device) is torch.bfloat16:
        remarks = [*remarks, "computed in bfloat16"]
    return Evaluation(metrics, rows, remarks, evaluator.breakdown() if breakdown else Breakdown())


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


def is_corpus(data: Any) -> bool:
    """Whether `data` is a directory made by `prepare`."""
    return isinstance(data, str | Path) and (Path(data) / "manifest.json").is_file()


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
    if "held_out" not in run:
        return {}
    run = without_format_version(run, file)
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
    can be compared.

    Args:
        data: the corpus; its tokenizer must be the model's.
        held_out: which documents, and how many of their sequences. If its seed is omitted, a remark
            reports the one that was used.

    Raises:
        DataError: the model was trained for another task; or the corpus was prepared with another
            tokenizer, or is too small.
    """
    if not isinstance(task, PretrainingTask):
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
    plain = _Task(task.tokenizer, instances, causal=task.causal, max_length=task.max_length)
    examples = list(source.examples(limit=held_out.sequences))
    evaluation = evaluate(network, plain, examples, engine)
    remarks = [*evaluation.remarks, f"{len(documents):,} documents are held out"]
    if "seed" not in held_out.model_fields_set:
        remarks.append(
            f"they are selected by seed={held_out.seed}, since the model is not in a run "
            "directory; give seed= if training used another"
        )
    return replace(evaluation, remarks=remarks)
