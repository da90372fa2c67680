"""How well a pre-trained model predicts masked tokens of documents that it never saw.

The measure is the same whatever a model was trained with: 15 % of the tokens are chosen one by one,
of which 80 % are masked, 10 % replaced and 10 % left (paper §3.1). It is a function of the corpus
and the settings alone, so that models with one vocabulary compare.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from ..corpus.shards import Corpus
from ..errors import DataError
from ..packed import Batch
from ..tasks.evaluation import Evaluation
from ..tasks.pretraining.source import PretrainingSource, split_held_out
from ..tasks.pretraining.task import PretrainingEvaluator, PretrainingTask
from ..tasks.task import Network, Task
from .evaluate import evaluate
from .settings import EngineSettings, MeasuredSettings


class _Task(PretrainingTask):
    """Pre-training as it is measured."""

    def evaluator(self) -> PretrainingEvaluator:
        return super().evaluator() if self.causal else _Evaluator(self.tokenizer.mask_id)


class _Evaluator(PretrainingEvaluator):
    """Also `mlm_mask_accuracy`: of the tokens that are `[MASK]` alone."""

    def __init__(self, mask_id: int) -> None:
        super().__init__()
        self._mask_id = mask_id
        self._asked = self._right = 0

    def add(self, outputs: Mapping[str, Tensor], batch: Batch) -> None:
        super().add(outputs, batch)
        seen = batch.packed.input_ids[batch.targets["masked_positions"]]
        is_mask = seen == self._mask_id
        right = outputs["mlm_logits"].argmax(-1) == batch.targets["masked_labels"]
        self._asked += int(is_mask.sum())
        self._right += int((right & is_mask).sum())

    def result(self) -> dict[str, float]:
        found = super().result()
        if self._asked:
            found["mlm_mask_accuracy"] = self._right / self._asked
        return found


def is_corpus(data: Any) -> bool:
    """Whether data are a directory that `prepare` made."""
    return isinstance(data, str | Path) and (Path(data) / "manifest.json").is_file()


def evaluate_held_out(
    network: Network,
    task: Task[Any],
    data: str | Path,
    measured: MeasuredSettings,
    engine: EngineSettings,
) -> Evaluation:
    """Measure a pre-trained network on held-out documents of a prepared corpus.

    Args:
        network: the task's.
        task: as the model is saved with it.
        data: the corpus; its tokenizer must be the model's.
        measured: which documents, and how many of their sequences.
        engine: batching and precision.

    Raises:
        DataError: the model was trained for something else; or the corpus was prepared with another
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
    _, documents = split_held_out(corpus, measured.documents, seed=measured.seed)
    instances = task.instances.with_values(max_seq_length=measured.max_seq_length)
    source = PretrainingSource(corpus, documents, task.tokenizer, instances, seed=measured.seed)
    plain = _Task(task.tokenizer, instances, causal=task.causal, max_length=task.max_length)
    examples = list(source.examples(limit=measured.sequences))
    found = evaluate(network, plain, examples, engine)
    return replace(found, remarks=[*found.remarks, f"{len(documents):,} documents are held out"])
