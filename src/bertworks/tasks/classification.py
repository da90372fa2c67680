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
import torch.nn.functional as F
from jaxtyping import Float
from pydantic import Field, model_validator
from torch import Tensor

from ..errors import DataError, SettingsError, nearest
from ..model.encoder import Encoder
from ..model.heads import ClassificationHead, cross_entropy_sum, next_piece_loss_sum
from ..packed import Batch, Packed, Padded
from .labelled import TaskOptions, TaskSettings, check_length
from .labels import count_labels, label_name, label_names, sort_labels
from .metrics import ClassificationEvaluator, MultiLabelEvaluator
from .placed import Rows
from .pooled import Pooling, in_one, row_logits
from .task import Evaluator, Network, Prediction, Row, Task
from .texts import TextExample, TextOptions, TextSettings, TextTask, labelled_batch, rows_of

if TYPE_CHECKING:
    from ..model.config import EncoderConfig
    from ..text.tokenizer import Tokenizer


class ClassificationOptions(TextOptions):
    """What a user may say of a classifier when it is learned."""

    positive_label: str | None = Field(None, description="of two labels the one F1 is about")
    multi_label: bool = Field(
        False,
        description="a row may have any number of labels: a list, or parted by label_separator",
    )
    label_separator: str = Field(",", min_length=1, description="between the labels of a row")
    balance_classes: bool = Field(
        False, description="rows of rare classes count for more: all classes for the same"
    )
    label_smoothing: float = Field(
        0.0, ge=0, lt=1, description="share of the target that all classes get alike"
    )
    lm_weight: float = Field(
        0.0, ge=0, description="of the loss of guessing each next piece too (GPT: 0.5)"
    )


class ClassificationSettings(TextSettings):
    """What a classifier is, beside its weights."""

    labels: tuple[str, ...] = Field(min_length=1, description="the classes' names, in order")
    positive_label: str | None = Field(
        None, description="of two classes the one whose F1 is reported; the last, if left out"
    )
    multi_label: bool = False
    label_separator: str = ","
    class_weights: tuple[float, ...] | None = Field(
        None, description="of the classes' rows in the loss; all 1, if left out"
    )
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    lm_weight: float = Field(
        0.0, ge=0, description="of the loss of guessing each next piece (GPT: 0.5)"
    )

    @model_validator(mode="after")
    def _labels_are_names(self) -> Self:
        if len(self.labels) < 2 and not self.multi_label:
            raise ValueError("a classifier needs two classes at least")
        if len(set(self.labels)) < len(self.labels):
            raise ValueError("two classes have the same name")
        if self.positive_label is not None and self.positive_label not in self.labels:
            raise ValueError(
                f"positive_label={self.positive_label!r} is none of the labels "
                + ", ".join(map(repr, self.labels))
            )
        if self.class_weights is not None and len(self.class_weights) != len(self.labels):
            raise ValueError("class_weights must have a weight for each label")
        if self.lm_weight and self.truncation == "windows":
            raise ValueError("lm_weight is not for truncation=windows")
        if self.multi_label and self.label_smoothing:
            raise ValueError("label_smoothing is for rows of one label each")
        return self


class ClassificationNetwork(Network):
    """An encoder with a classification head on its pooler.

    Args:
        config: the geometry.
        num_labels: how many classes there are.
        dropout: before the output layer; `hidden_dropout_prob`, if left out.
        multi_label: whether a row may have any number of classes.
        class_weights: what a row of each class counts in the loss; 1, if left out.
        label_smoothing: share of the target that is spread over all classes.
        lm_weight: of the auxiliary loss of guessing each next piece (Radford et al. 2018, §3.2).
        pooling: of the logits of a row's sequences, where it has several.
    """

    def __init__(
        self,
        config: EncoderConfig,
        num_labels: int,
        dropout: float | None = None,
        *,
        multi_label: bool = False,
        class_weights: Sequence[float] | None = None,
        label_smoothing: float = 0.0,
        lm_weight: float = 0.0,
        pooling: Pooling = "mean",
    ) -> None:
        super().__init__()
        self.lm_weight, self.pooling = lm_weight, pooling
        self.encoder = Encoder(config, pooler=config.classifier == "pooler")
        self.head = ClassificationHead(config, num_labels, dropout)
        self._multi_label, self._smoothing = multi_label, label_smoothing
        self._weights = class_weights

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """The summed cross-entropies of the rows: `classification` (and `weighted_lm`)."""
        packed, lm = batch.packed, None
        if self.lm_weight:
            hidden = self.encoder(packed)
            lm = next_piece_loss_sum(self.encoder, hidden, packed)
            logits = in_one(self.head(self.encoder, hidden, packed), packed, self.pooling)
        else:
            logits = self._logits(packed)
        labels = batch.targets["labels"]
        if self._multi_label:
            loss = multi_label_loss_sum(logits, labels, self._weights_like(logits))
        elif self._weights is None and not self._smoothing:
            loss = cross_entropy_sum(logits, labels)
        else:
            # Each row by its class's weight, then summed: PyTorch's own weighting of smoothed
            # targets weighs the classes, not the rows.
            rows = F.cross_entropy(
                logits.float() if logits.dtype == torch.bfloat16 else logits,
                labels,
                reduction="none",
                label_smoothing=self._smoothing,
            )
            weights = self._weights_like(rows)
            loss = (rows if weights is None else rows * weights[labels]).sum()
        losses = {"classification": loss}
        if lm is not None:
            losses["weighted_lm"] = self.lm_weight * lm
        return losses

    def predict(self, batch: Batch) -> dict[str, Tensor]:
        """`logits` `[rows, num_labels]`."""
        return {"logits": self._logits(batch.packed)}

    def padded(self, padded: Padded) -> dict[str, Tensor]:
        """`logits` `[rows, num_labels]`."""
        return {"logits": self.head(self.encoder, self.encoder(padded), padded)}

    def _weights_like(self, values: Tensor) -> Tensor | None:
        if self._weights is None:
            return None
        return torch.tensor(self._weights, device=values.device, dtype=torch.float32)

    def _logits(self, packed: Packed) -> Float[Tensor, "rows num_labels"]:
        return row_logits(self.encoder, self.head, packed, self.pooling)


def multi_label_loss_sum(
    logits: Float[Tensor, "rows classes"],
    labels: Float[Tensor, "rows classes"],
    weights: Float[Tensor, " classes"] | None = None,
) -> Float[Tensor, ""]:
    """The sum over rows of the mean over classes of the binary cross-entropies.

    `weights` are of a class's positive rows.
    """
    sums = torch.promote_types(logits.dtype, torch.float32)
    each = F.binary_cross_entropy_with_logits(
        logits.to(sums), labels.to(sums), pos_weight=weights, reduction="none"
    )
    return each.mean(-1).sum()


class ClassificationTask(TextTask):
    """Which of several classes a text, or a pair of texts, belongs to.

    Args:
        tokenizer: the model's.
        settings: class names, columns, limits.
    """

    name: ClassVar[str] = "classification"
    best_metric = "accuracy"
    takes_teacher = True
    options: ClassVar[type[TaskOptions]] = ClassificationOptions
    settings_class: ClassVar[type[TaskSettings]] = ClassificationSettings
    settings: ClassificationSettings

    def __init__(self, tokenizer: Tokenizer, settings: ClassificationSettings) -> None:
        super().__init__(tokenizer, settings)
        self._numbers = {name: number for number, name in enumerate(settings.labels)}

    @classmethod
    def from_table(cls, tokenizer: Tokenizer, rows: Rows, options: TaskOptions) -> Self:
        assert isinstance(options, ClassificationOptions)
        columns = options.find_columns(rows)
        assert columns.label is not None, "labels were asked for"
        separator = options.label_separator if options.multi_label else None
        counts = count_labels(rows, columns.label, separator)
        labels = sort_labels(counts)
        weights = None
        if options.balance_classes:
            if options.multi_label:
                total = sum(1 for _ in rows)
                # A label that every row has keeps a little: it would never be learned.
                weights = [max(1, total - counts[name]) / counts[name] for name in labels]
            else:
                weights = [counts.total() / len(labels) / counts[name] for name in labels]
        settings = ClassificationSettings.parse(
            {
                "labels": labels,
                "columns": columns,
                "class_weights": weights,
                **options.shared(),
                **options.model_dump(
                    include={
                        *("positive_label", "multi_label", "label_separator"),
                        *("label_smoothing", "lm_weight"),
                    }
                ),
            }
        )
        return cls(tokenizer, settings)

    def config_entries(self) -> dict[str, Any]:
        kind = "multi" if self.settings.multi_label else "single"
        return {
            "id2label": {str(number): name for name, number in self._numbers.items()},
            "label2id": dict(self._numbers),
            "classifier_dropout": self.settings.dropout,
            "problem_type": f"{kind}_label_classification",
        }

    def network(self, config: EncoderConfig) -> ClassificationNetwork:
        """A fresh network.

        Raises:
            SettingsError: the encoder has fewer positions than `max_seq_length`, or cannot guess
                next pieces where `lm_weight` asks for it.
        """
        own = self.settings
        check_length(own.max_seq_length, config)
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
                f"the label {name!r} is none of those of the training data",
                where=where,
                fix=f"{nearest(name, self._numbers)}.",
            )
        return self._numbers[name]

    def collate(self, examples: Sequence[TextExample]) -> Batch:
        """Pack rows in order of length; `targets` and `counts` are there if labels are known.

        `targets["labels"]` is `[rows]` int64, with `multi_label` `[rows, classes]`
        float32; `counts["classification"]` the rows.
        """
        dtype = np.float32 if self.settings.multi_label else np.int64
        batch = labelled_batch(*self.pack(examples), dtype, "classification")
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

    def count_targets(self, examples: Sequence[TextExample]) -> Mapping[str, int]:
        names = self.settings.labels
        if self.settings.multi_label:
            totals = np.sum([example.label for example in examples], axis=0).astype(int)
            return dict(zip(names, totals.tolist(), strict=True))
        counts = Counter(example.label for example in examples)
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
        positive = None
        if len(names) == 2:
            chosen = self.settings.positive_label
            positive = 1 if chosen is None else names.index(chosen)
        return ClassificationEvaluator(names, positive)
