"""Classification of texts and of pairs of texts, into one of several classes or into any of them.

    [CLS] text [SEP] (second text [SEP]) ─► encoder ─► pooler on [CLS] ─► dropout ─► W ─► softmax

With `multi_label`, each class is a question of its own, answered by a sigmoid.

Source: paper §4.1; the original `run_classifier.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from ...checkpoints.heads import CLASSIFIER
from ...errors import DataError, SettingsError, brief, nearest
from ...packed import Batch
from ..example import LabelledExample
from ..labelled import TaskOptions, TaskSettings
from ..labels import count_labels, label_name, label_names, sort_labels
from ..metrics import ClassificationEvaluator, MultiLabelEvaluator
from ..placed import Rows
from ..schema import RoleColumns
from ..task import Evaluator, Prediction, Row, Shown, Task
from ..texts import (
    TextTask,
    is_single_value,
    labelled_batch,
    rows_of,
    shared_settings,
)
from .network import ClassificationNetwork
from .settings import ClassificationOptions, ClassificationSettings

if TYPE_CHECKING:
    from ...checkpoints.published import Published
    from ...model.config import EncoderConfig
    from ...text.tokenizer import Tokenizer


class ClassificationTask(TextTask):
    """Which of several classes a text, or a pair of texts, belongs to.

    Args:
        tokenizer: the model's.
        settings: class names, columns, limits.
    """

    name: ClassVar[str] = "classification"
    head = CLASSIFIER
    best_metric = "accuracy"
    takes_teacher = True
    is_stratified = True
    options: ClassVar[type[TaskOptions]] = ClassificationOptions
    settings_class: ClassVar[type[TaskSettings]] = ClassificationSettings
    settings: ClassificationSettings

    def __init__(self, tokenizer: Tokenizer, settings: ClassificationSettings) -> None:
        super().__init__(tokenizer, settings)
        self._numbers = {name: number for number, name in enumerate(settings.labels)}

    @classmethod
    def learned(cls, rows: Rows, columns: RoleColumns, options: TaskOptions) -> dict[str, Any]:
        assert isinstance(options, ClassificationOptions)
        column = columns["label"]
        assert isinstance(column, str), "labels were asked for"
        counts = count_labels(
            rows, column, options.label_separator if options.multi_label else None
        )
        labels = sort_labels(counts)
        weights = None
        if options.balance_classes:
            if options.multi_label:
                total = sum(1 for _ in rows)
                # A label that every row has keeps a little: it would never be learned.
                weights = [max(1, total - counts[name]) / counts[name] for name in labels]
            else:
                weights = [counts.total() / len(labels) / counts[name] for name in labels]
        return {"labels": labels, "class_weights": weights}

    @classmethod
    def published(cls, of: Published) -> Self | None:
        if not of.has_head(cls.head) or is_single_value(of):
            return None
        settings = ClassificationSettings(
            labels=of.labels(cls.head),
            multi_label=of.raw.get("problem_type") == "multi_label_classification",
            **shared_settings(of),
        )
        return cls(of.tokenizer, settings)

    @property
    def labels(self) -> tuple[str, ...]:
        return self.settings.labels

    def config_entries(self) -> dict[str, Any]:
        kind = "multi" if self.settings.multi_label else "single"
        return {
            "id2label": {str(number): name for name, number in self._numbers.items()},
            "label2id": dict(self._numbers),
            "problem_type": f"{kind}_label_classification",
        }

    def network(self, config: EncoderConfig) -> ClassificationNetwork:
        """A fresh network.

        Raises:
            SettingsError: the encoder has fewer positions than `max_seq_length`, or cannot guess
                next pieces where `lm_weight` asks for it.
        """
        own = self.settings
        config = own.geometry(config)
        tells_next = config.attention == "causal" and config.tie_word_embeddings
        if own.lm_weight and (not tells_next or config.mlm_transform or config.mlm_bias):
            raise SettingsError(
                f"lm_weight={own.lm_weight}: a {config.family} model has no head that guesses each "
                "next piece by its embeddings alone, as GPT's has"
            )
        return ClassificationNetwork(
            config,
            len(own.labels),
            own.dropout,
            multi_label=own.multi_label,
            class_weights=own.class_weights,
            label_smoothing=own.label_smoothing,
            lm_weight=own.lm_weight,
            pooling=own.pooling,
        )

    def same_head(self, other: Task[Any]) -> bool:
        return isinstance(other, ClassificationTask) and (
            (other.settings.labels, other.settings.multi_label)
            == (self.settings.labels, self.settings.multi_label)
        )

    def label_of(self, row: Row, column: str, where: str) -> Any:
        """The number of the row's class; with `multi_label`, `[classes]` of 0 and 1."""
        if not self.settings.multi_label:
            return self._number(label_name(row, column, where), where)
        found = np.zeros(len(self._numbers), np.float32)
        for name in label_names(row, column, where, self.settings.label_separator):
            found[self._number(name, where)] = 1
        return found

    def _number(self, name: str, where: str) -> int:
        if name not in self._numbers:
            raise DataError(
                f"the label {brief(name)} was not seen in training",
                where=where,
                fix=f"{nearest(name, self._numbers)}.",
            )
        return self._numbers[name]

    def collate(self, examples: Sequence[LabelledExample]) -> Batch:
        """Pack rows in order of length; `targets` and `counts` are there if labels are known.

        `targets["labels"]` is `[rows]` int64, with `multi_label` `[rows, classes]`
        float32; `counts["classification"]` the rows.
        """
        dtype = np.float32 if self.settings.multi_label else np.int64
        batch = labelled_batch(examples, dtype, "classification")
        if not self.settings.lm_weight or not batch.counts:
            return batch
        more = {"weighted_lm": batch.packed.num_tokens - batch.packed.num_sequences}
        return replace(batch, counts={**batch.counts, **more})

    def decode(self, outputs: Mapping[str, Tensor], batch: Batch) -> dict[int, Prediction]:
        """For each row its `label` (with `multi_label`: `labels`, those over one half), and
        `probabilities` of every label."""
        logits = outputs["logits"].double().cpu()
        names = self.settings.labels
        multi = self.settings.multi_label
        probabilities = (torch.sigmoid(logits) if multi else torch.softmax(logits, -1)).tolist()
        found: dict[int, Prediction] = {}
        for row, chances in zip(rows_of(batch), probabilities, strict=True):
            named = dict(zip(names, chances, strict=True))
            best: Prediction = {"label": max(named, key=named.__getitem__)}
            if multi:
                best = {"labels": [name for name, chance in named.items() if chance > 0.5]}
            found[row] = {**best, "probabilities": named}
        return found

    def shown(self, prediction: Prediction) -> list[Shown] | None:
        if not self.settings.multi_label:
            return super().shown(prediction)
        return [(name, prediction["probabilities"][name]) for name in prediction["labels"]]

    def count_targets(self, examples: Sequence[LabelledExample]) -> Mapping[str, int]:
        names = self.settings.labels
        if self.settings.multi_label:
            totals = np.sum([example.target for example in examples], axis=0).astype(int)
            return dict(zip(names, totals.tolist(), strict=True))
        counts = Counter(example.target for example in examples)
        return {name: counts[number] for number, name in enumerate(names)}

    def guessing_losses(self, counts: Mapping[str, int]) -> Mapping[str, float]:
        """The entropy of the labels' shares, where the loss is the plain cross-entropy."""
        own = self.settings
        if own.multi_label or own.class_weights is not None or own.label_smoothing:
            return {}
        shares = np.array([count for count in counts.values() if count]) / sum(counts.values())
        return {"classification": -float((shares * np.log(shares)).sum())}

    @property
    def metrics(self) -> tuple[str, ...]:
        """What the evaluator measures."""
        if self.settings.multi_label:
            return MultiLabelEvaluator.metrics
        f1 = ("f1",) if len(self.settings.labels) == 2 else ()
        return ("loss", "majority", "accuracy", *f1, "macro_f1", "matthews_correlation")

    def evaluator(self) -> Evaluator:
        names = self.settings.labels
        if self.settings.multi_label:
            return MultiLabelEvaluator(names)
        positive = self.settings.positive if len(names) == 2 else None
        number = None if positive is None else names.index(positive)
        return ClassificationEvaluator(names, number)
