"""Classification of texts and of pairs of texts: one class for each row, or any number of them.

    [CLS] text [SEP] (second text [SEP]) ─► encoder ─► pooler on [CLS] ─► dropout ─► W ─► logits
                                                 one class: softmax; any number: a sigmoid each ◄─┘

Source: paper §4.1; the original `run_classifier.py`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from ..checkpoints.heads import CLASSIFIER, PublishedCheckpoint
from ..data.rows import NoLabel, Row, Rows
from ..data.schema import RoleColumns
from ..errors import SettingsError
from ..nn.config import EncoderConfig
from ..nn.head_layouts import HeadLayout
from ..packed import Batch, to_array
from ..settings.base import Need
from .array_network import ArrayNetwork
from .calibration import LogitScaling, conformal_quantile
from .classifier import ClassifierTask
from .evaluators import ClassificationEvaluator, MultiLabelEvaluator
from .example import LabelledExample, collate_labelled
from .labelled import LabelledTask
from .labels import count_labels, read_label_names, sort_labels
from .task import (
    DisplayValue,
    Evaluator,
    Outputs,
    Prediction,
    Task,
    TaskSettings,
    detected_setting,
    has_no_teacher,
)
from .texts import TextSettings, TextTask, columns_of_checkpoint, has_single_output, sigmoid

if TYPE_CHECKING:
    from .text_network import TextClassifierNetwork
else:
    TextClassifierNetwork = Any


class TextClassifierSettings(TextSettings):
    """Classes."""

    needs: ClassVar[tuple[Need, ...]] = (
        Need(("lm_weight", "balance_classes"), "with a teacher", has_no_teacher),
    )
    lm_weight: float = Field(
        0.0, ge=0, le=1000, description="weight of an added next-piece prediction loss (GPT: 0.5)"
    )
    balance_classes: bool = Field(
        False, description="weight rare classes higher, so that all classes count the same"
    )
    labels: tuple[str, ...] = detected_setting((), "names of the classes, in order")
    class_weights: tuple[float, ...] | None = detected_setting(
        None, "weight of each class in the loss; all 1 if omitted"
    )
    calibrate: bool = Field(
        True, description="fit temperatures on dev at the end, so that probabilities can be trusted"
    )
    temperatures: tuple[float, ...] = detected_setting(
        (), "divisors of the logits: one, or one for each class"
    )
    logit_shifts: tuple[float, ...] = detected_setting((), "added to the divided logits")

    @model_validator(mode="after")
    def _check_classes(self) -> Self:
        if len(set(self.labels)) < len(self.labels):
            raise ValueError("two classes have the same name")
        if self.class_weights is not None and len(self.class_weights) != len(self.labels):
            raise ValueError("class_weights must have a weight for each label")
        counts = len(self.temperatures), len(self.logit_shifts)
        if counts not in ((0, 0), (1, 0), (len(self.labels), len(self.labels))):
            raise ValueError("temperatures: one; or one, and a logit shift, for each label")
        if not all(temperature > 0 for temperature in self.temperatures):
            raise ValueError("temperatures must be above 0")
        return self

    def check_together(self) -> None:
        super().check_together()
        if self.lm_weight and self.truncation == "windows":
            raise SettingsError("lm_weight is not for truncation=windows")


class TextClassifierTask(ClassifierTask[LabelledExample], TextTask):
    """Assign classes to a text or a pair of texts.

    Attributes:
        problem_type: the name of this kind of task in other tools' `config.json`.
    """

    head = CLASSIFIER
    problem_type: ClassVar[str]
    settings: TextClassifierSettings

    @classmethod
    def settings_of_checkpoint(cls, checkpoint: PublishedCheckpoint) -> dict[str, Any] | None:
        if not cls._is_trained_for(checkpoint):
            return None
        return {"labels": checkpoint.labels(cls.head), **columns_of_checkpoint(checkpoint)}

    @classmethod
    @abstractmethod
    def _is_trained_for(cls, checkpoint: PublishedCheckpoint) -> bool:
        """Whether another tool's classification head was trained for this kind of task."""

    def config_entries(self) -> dict[str, Any]:
        return {**super().config_entries(), "problem_type": self.problem_type}

    def network(self, config: EncoderConfig) -> TextClassifierNetwork:
        """Return a freshly initialised network.

        Raises:
            SettingsError: the encoder has fewer positions than `max_seq_length`, or `lm_weight` is
                set and the encoder cannot predict next pieces.
        """
        settings = self.settings
        config = settings.encoder_config(config)
        predicts_next = config.attention == "causal" and config.tie_word_embeddings
        if settings.lm_weight and (not predicts_next or config.mlm_transform or config.mlm_bias):
            raise SettingsError(
                f"lm_weight={settings.lm_weight}: a {config.family} model has no head that "
                "predicts each next piece by its embeddings alone, as GPT's has"
            )
        return self._build_network(config)

    def head_layouts(self, config: EncoderConfig) -> Mapping[str, HeadLayout]:
        return self._layouts(config, len(self.labels))

    def compute(self, network: ArrayNetwork, batch: Batch) -> dict[str, NDArray[Any]]:
        return {"logits": self.compute_logits(network, batch)}

    @abstractmethod
    def _build_network(self, config: EncoderConfig) -> TextClassifierNetwork:
        """Return a freshly initialised network for a configuration that fits the settings."""

    @property
    def logit_scaling(self) -> LogitScaling | None:
        settings = self.settings
        if not settings.temperatures:
            return None
        return LogitScaling(settings.temperatures, settings.logit_shifts)

    def is_head_compatible(self, other: Task[Any]) -> bool:
        return (
            isinstance(other, TextClassifierTask)
            and other.problem_type == self.problem_type
            and other.labels == self.labels
        )

    def collate(self, examples: Sequence[LabelledExample]) -> Batch:
        """Pack rows in order of length; `targets` and `counts` are set if labels are known.

        `targets["labels"]` is `[rows]` int64, or `[rows, classes]` float32 if a row may have
        several classes; `counts["classification"]` is the number of rows. With `lm_weight`,
        `counts["weighted_lm"]` is the number of predicted next pieces.
        """
        target = examples[0].target
        dtype = np.float32 if isinstance(target, np.ndarray) else np.int64
        batch = collate_labelled(examples, dtype, "classification")
        if not self.settings.lm_weight or not batch.counts:
            return batch
        more = {"weighted_lm": batch.packed.num_tokens - batch.packed.num_sequences}
        return replace(batch, counts={**batch.counts, **more})


_NOT_FEW_SHOT = (
    *("dropout", "label_smoothing", "balance_classes", "lm_weight"),
    *("unfreeze_every", "unfreeze_epochs", "lora_rank"),
)


class ClassificationSettings(TextClassifierSettings):
    """Labels of classification."""

    needs: ClassVar[tuple[Need, ...]] = (
        Need(("label_smoothing", "few_shot"), "with a teacher", has_no_teacher),
        Need(("pairs_per_row",), "without few_shot", lambda own: own.few_shot),
        Need(
            _NOT_FEW_SHOT,
            "with few_shot, where the encoder is trained on pairs of rows",
            lambda own: not own.few_shot,
        ),
    )
    positive_label: str | None = Field(
        None,
        description="of two classes, the one whose F1 is reported; the last if omitted; of any "
        "number, the one whose probability `search --rerank` ranks by",
    )
    no_label: str | None = Field(
        None,
        description="label of rows without a gold label, which are left out; if omitted: -, or -1 "
        'below classes 0, 1, 2; "": none',
    )
    label_smoothing: float = Field(
        0.0, ge=0, lt=1, description="share of the target that is spread over all classes"
    )
    few_shot: bool = Field(
        False,
        description="train the encoder on pairs of rows, whose vectors become similar if their "
        "labels are equal, then fit the head by logistic regression (SetFit, Tunstall et al. 2022)",
    )
    pairs_per_row: int = Field(
        10,
        ge=1,
        le=1000,
        description="few_shot: pairs of each row with its label, and as many with other labels, in "
        "an epoch",
    )
    conformal_scores: tuple[float, ...] = detected_setting(
        (), "1 - the probability of the gold label, of rows of dev, ascending; for label sets"
    )
    coverage: float | None = detected_setting(
        None, "the probability with which the set that is predicted for a row has its label"
    )

    @model_validator(mode="after")
    def _check_labels(self) -> Self:
        if len(self.labels) == 1:
            raise ValueError("a classifier needs two labels")
        if self.labels and self.positive_label not in (None, *self.labels):
            raise ValueError(
                f"positive_label={self.positive_label!r} is not one of the labels "
                + ", ".join(map(repr, self.labels))
            )
        return self


class ClassificationTask(TextClassifierTask):
    """Classify a text or a pair of texts."""

    name: ClassVar[str] = "classification"
    problem_type = "single_label_classification"
    teacher_outputs = "probabilities"
    marks_advice = '; if this is a class, give no_label=""'
    settings_class: ClassVar[type[TaskSettings]] = ClassificationSettings
    settings: ClassificationSettings

    @classmethod
    def for_settings(cls, settings: Any) -> type[LabelledTask[Any]]:
        if not settings.few_shot:
            return cls
        if cls is not ClassificationTask:
            raise SettingsError("few_shot=true is for the task classification", fix="Leave it out.")
        from .few_shot import FewShotTask  # derives from this class

        return FewShotTask

    @classmethod
    def settings_from_rows(
        cls, rows: Rows, columns: RoleColumns, settings: ClassificationSettings
    ) -> dict[str, Any]:
        column = columns["label"]
        assert isinstance(column, str), "the schema requires labels"
        counts = count_labels(rows, column, no_label=settings.no_label)
        labels = sort_labels(counts)
        weights = None
        if settings.balance_classes:
            weights = [counts.total() / len(labels) / counts[name] for name in labels]
        return {"labels": labels, "class_weights": weights}

    @classmethod
    def _is_trained_for(cls, checkpoint: PublishedCheckpoint) -> bool:
        is_multi_label = checkpoint.raw.get("problem_type") == "multi_label_classification"
        return not (is_multi_label or has_single_output(checkpoint))

    @property
    def positive(self) -> str | None:
        return self.settings.positive_label or super().positive

    @property
    def no_label(self) -> str | None:
        return self.settings.no_label

    def with_coverage(self, coverage: float) -> Self:
        """Return the task with label sets in its predictions; see `add_label_set`.

        Raises:
            SettingsError: the coverage is not between 0 and 1, or no scores are saved.
        """
        self._compute_quantile(coverage)
        return type(self)(self.tokenizer, self.settings.with_values(coverage=coverage))

    def add_label_set(self, prediction: Prediction, coverage: float) -> Prediction:
        """Return a prediction with a `label_set`: the labels that are probable enough.

        Of rows like those of dev, a share of at least `coverage` have their label in the set.
        If the model is right more often than that, sets are empty where it is least certain.

        Raises:
            SettingsError: the coverage is not between 0 and 1, or no scores are saved.
        """
        least = 1 - self._compute_quantile(coverage)
        probabilities = prediction["probabilities"]
        order = sorted(probabilities, key=probabilities.__getitem__, reverse=True)
        label_set = [name for name in order if probabilities[name] >= least]
        return {
            "label": prediction["label"],
            "label_set": label_set,
            "probabilities": probabilities,
        }

    def _compute_quantile(self, coverage: float) -> float:
        if not 0 < coverage < 1:
            raise SettingsError(f"coverage={coverage} is not between 0 and 1")
        if not self.settings.conformal_scores:
            raise SettingsError(
                "coverage: the model has no scores of labelled rows for label sets",
                fix="Fine-tune it with dev rows (--dev FILE, or --dev 0.1) and calibrate=true.",
            )
        return conformal_quantile(self.settings.conformal_scores, coverage)

    def decode(self, outputs: Outputs, batch: Batch) -> dict[int, Prediction]:
        """Return for each row its `label`, and the `probabilities` of all labels.

        With a coverage in the settings, also its `label_set`.
        """
        predictions, coverage = super().decode(outputs, batch), self.settings.coverage
        if coverage is None:
            return predictions
        return {row: self.add_label_set(one, coverage) for row, one in predictions.items()}

    def evaluator(self) -> Evaluator:
        return ClassificationEvaluator(self.scores, self.logit_scaling)

    def _build_network(self, config: EncoderConfig) -> TextClassifierNetwork:
        from .text_network import ClassificationNetwork

        return ClassificationNetwork(config, self.settings)

    def baseline_losses(self, counts: Mapping[str, int]) -> Mapping[str, float]:
        """Return the entropy of the label frequencies; empty unless the loss is plain
        cross-entropy."""
        if self.settings.class_weights is not None or self.settings.label_smoothing:
            return {}
        return super().baseline_losses(counts)


def task_with_coverage(task: Task[Any], coverage: float) -> ClassificationTask:
    """Return a task with label sets in its predictions.

    Raises:
        SettingsError: as `ClassificationTask.with_coverage`; or the task is another.
    """
    if not isinstance(task, ClassificationTask):
        raise SettingsError(f"coverage: label sets are for classification, not for {task.name}")
    return task.with_coverage(coverage)


class MultiLabelSettings(TextClassifierSettings):
    """Labels of a row: a list, or one text."""

    label_separator: str = Field(
        ",", min_length=1, description="separator between the labels of a row"
    )


class MultiLabelTask(TextClassifierTask):
    """Assign any number of classes to a text or a pair of texts."""

    name: ClassVar[str] = "multilabel"
    problem_type = "multi_label_classification"
    settings_class: ClassVar[type[TaskSettings]] = MultiLabelSettings
    settings: MultiLabelSettings
    metrics: ClassVar[tuple[str, ...]] = MultiLabelEvaluator.metrics
    # Always predicting the most frequent label is no baseline: accuracy counts the rows in which
    # all labels are correct.
    has_majority_baseline = False
    no_label, may_have_no_label = "", True
    positive = None

    @classmethod
    def settings_from_rows(
        cls, rows: Rows, columns: RoleColumns, settings: MultiLabelSettings
    ) -> dict[str, Any]:
        column = columns["label"]
        assert isinstance(column, str), "the schema requires labels"
        counts = count_labels(rows, column, settings.label_separator)
        labels = sort_labels(counts)
        weights = None
        if settings.balance_classes:
            total = sum(not isinstance(row.get(column), NoLabel) for _, row in rows)
            # At least 1: with weight 0, a label that every row has would never be learned.
            weights = [max(1, total - counts[name]) / counts[name] for name in labels]
        return {"labels": labels, "class_weights": weights}

    @classmethod
    def _is_trained_for(cls, checkpoint: PublishedCheckpoint) -> bool:
        return checkpoint.raw.get("problem_type") == cls.problem_type

    def _build_network(self, config: EncoderConfig) -> TextClassifierNetwork:
        from .text_network import MultiLabelNetwork

        return MultiLabelNetwork(config, self.settings)

    def read_label(self, row: Row, column: str, where: str) -> Any:
        """Return a row's classes: `[classes]` of 0 and 1."""
        target = np.zeros(len(self.labels), np.float32)
        for name in read_label_names(row, column, where, self.settings.label_separator):
            target[super().read_label({column: name}, column, where)] = 1
        return target

    def decode(self, outputs: Outputs, batch: Batch) -> dict[int, Prediction]:
        """Return for each row its `labels`, whose probability is above 0.5, and the
        `probabilities` of all labels."""
        predictions: dict[int, Prediction] = {}
        logits = self.scale_logits(to_array(outputs["logits"]).astype(np.float64)).tolist()
        for example, row in zip(batch.examples, logits, strict=True):
            probabilities = dict(zip(self.labels, map(sigmoid, row), strict=True))
            likely = [name for name, value in probabilities.items() if value > 0.5]
            predictions[example.index] = {"labels": likely, "probabilities": probabilities}
        return predictions

    def display_values(self, prediction: Prediction) -> list[DisplayValue] | None:
        return [(name, prediction["probabilities"][name]) for name in prediction["labels"]]

    def count_targets(self, examples: Sequence[LabelledExample]) -> Mapping[str, int]:
        totals = np.sum([example.target for example in examples], axis=0).astype(int)
        return dict(zip(self.labels, totals.tolist(), strict=True))

    def baseline_losses(self, counts: Mapping[str, int]) -> Mapping[str, float]:  # noqa: ARG002
        return {}

    def evaluator(self) -> Evaluator:
        return MultiLabelEvaluator(self.labels, self.logit_scaling)
