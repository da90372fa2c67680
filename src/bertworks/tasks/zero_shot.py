"""Classification into labels that the model was not trained for, by a model of entailment.

    text, "This example is {label}." ─► logit of entailment of each label ─► softmax over labels

Source: Yin et al. (2019), "Benchmarking zero-shot text classification"; as in transformers'
`ZeroShotClassificationPipeline`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from ..data.rows import Row, texts_of
from ..packed import Batch, to_array
from .classification import ClassificationSettings, ClassificationTask
from .example import LabelledExample, Tokens, collate_labelled
from .probabilities import softmax
from .task import Outputs, Prediction, Task, TaskSettings, detected_setting


class ZeroShotSettings(ClassificationSettings):
    """Labels to choose from."""

    candidates: tuple[str, ...] = detected_setting((), "the labels to choose from")
    hypothesis_template: str = detected_setting("{}", "the second text, with {} for the label")


class ZeroShotTask(ClassificationTask):
    """Choose the label whose hypothesis a text entails most."""

    name: ClassVar[str] = "zero-shot"
    settings_class: ClassVar[type[TaskSettings]] = ZeroShotSettings
    settings: ZeroShotSettings

    @property
    def labels(self) -> tuple[str, ...]:
        return self.settings.candidates

    def build_examples(
        self, rows: Sequence[Row], first_index: int, where: Sequence[str], *, labelled: bool
    ) -> list[LabelledExample]:
        """Return examples with a sequence for each label."""
        assert not labelled, "it is not trained"
        texts = texts_of(rows, self.column("text"), where)
        hypotheses = [self.settings.hypothesis_template.replace("{}", name) for name in self.labels]
        count = len(hypotheses)
        encodings = self.tokenizer.encode_batch(
            [text for text in texts for _ in hypotheses],
            hypotheses * len(texts),
            max_length=self.settings.max_seq_length,
            truncation="first",
            where=[place for place in where for _ in hypotheses],
        )
        parts = [encodings[at * count : (at + 1) * count] for at in range(len(texts))]
        return [
            LabelledExample(
                index=first_index + at,
                sequences=[Tokens.from_encoding(encoding) for encoding in part],
                truncated_tokens=max(encoding.truncated_tokens for encoding in part),
                texts=(texts[at],),
                where=where[at],
            )
            for at, part in enumerate(parts)
        ]

    def collate(self, examples: Sequence[LabelledExample]) -> Batch:
        """Pack each sequence as a row of its own, so that logits are not pooled."""
        count = len(self.labels)
        rows = [
            replace(example, index=example.index * count + at, sequences=[sequence])
            for example in examples
            for at, sequence in enumerate(example.sequences)
        ]
        return collate_labelled(rows, np.int64, "classification")

    def decode(self, outputs: Outputs, batch: Batch) -> dict[int, Prediction]:
        count, column = len(self.labels), find_entailment(self.settings.labels)
        indices = np.array([example.index for example in batch.examples])
        order = np.argsort(indices)
        logits = to_array(outputs["logits"])[order, column].reshape(-1, count)
        shares = softmax(logits).tolist()
        predictions: dict[int, Prediction] = {}
        for row, values in zip((indices[order][::count] // count).tolist(), shares, strict=True):
            probabilities = dict(zip(self.labels, values, strict=True))
            label = max(probabilities, key=probabilities.__getitem__)
            predictions[row] = {"label": label, "probabilities": probabilities}
        return predictions


def find_entailment(labels: Sequence[str]) -> int | None:
    """Return the index of the label of entailment; None if there is none."""
    return next((at for at, name in enumerate(labels) if name.lower().startswith("entail")), None)


def zero_shot_task(
    task: Task[Any], candidates: Sequence[str], hypothesis_template: str
) -> ZeroShotTask | None:
    """Return the task that uses a classifier of entailment; None if the task is another."""
    if not isinstance(task, ClassificationTask) or find_entailment(task.labels) is None:
        return None
    values = {
        "labels": task.labels,
        "max_seq_length": task.settings.max_seq_length,
        "text_column": task.settings.text_column or "text",
        "truncation": "first",
        "candidates": candidates,
        "hypothesis_template": hypothesis_template,
    }
    return ZeroShotTask(task.tokenizer, ZeroShotSettings.parse(values))
