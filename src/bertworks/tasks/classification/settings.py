"""The settings of classification: what a user may say of it, and what a classifier is."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from ...settings import Settings
from ..texts import TextOptions, TextSettings


class _Shared(Settings):
    """Labels of classification."""

    positive_label: str | None = Field(
        None, description="of two classes the one whose F1 is reported; the last, if left out"
    )
    multi_label: bool = Field(
        False,
        description="a row may have any number of labels: a list, or parted by label_separator",
    )
    label_separator: str = Field(",", min_length=1, description="between the labels of a row")
    label_smoothing: float = Field(
        0.0, ge=0, lt=1, description="share of the target that all classes get alike"
    )
    lm_weight: float = Field(
        0.0, ge=0, description="of the loss of guessing each next piece too (GPT: 0.5)"
    )


class ClassificationOptions(_Shared, TextOptions):
    """Weights of classes."""

    balance_classes: bool = Field(
        False, description="rows of rare classes count for more: all classes for the same"
    )

    @model_validator(mode="after")
    def _one_label_or_several(self) -> Self:
        if self.label_separator != "," and not self.multi_label:
            raise ValueError(f"label_separator={self.label_separator!r} is for multi_label=true")
        if self.multi_label and self.positive_label is not None:
            raise ValueError(
                f"positive_label={self.positive_label!r} is for rows of one label each, not for "
                "multi_label=true"
            )
        return self


class ClassificationSettings(_Shared, TextSettings):
    """What a classifier is, beside its weights."""

    labels: tuple[str, ...] = Field(min_length=1, description="the classes' names, in order")
    class_weights: tuple[float, ...] | None = Field(
        None, description="of the classes' rows in the loss; all 1, if left out"
    )

    @property
    def positive(self) -> str | None:
        """The class that two are told apart by: the one named, or of two the last."""
        if self.positive_label is None and len(self.labels) == 2:
            return self.labels[-1]
        return self.positive_label

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
