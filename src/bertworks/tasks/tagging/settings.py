"""Settings of tagging."""

from __future__ import annotations

from functools import cached_property
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from ...settings.base import Need
from ..task import TaskSettings, detected_setting
from .notation import find_notation, read_tag
from .tags import Scheme, split_tag
from .windows import LabelledPiece

Decoding = Literal["constrained", "free"]


class TaggingSettings(TaskSettings):
    """Columns, tags and windows of tagging."""

    needs: ClassVar[tuple[Need, ...]] = (
        Need(
            ("document_column",),
            "without document_context=true",
            lambda own: own.document_context,
        ),
        Need(
            ("decoding",),
            "with tags that mark no spans",
            lambda own: own.spans or not (own.labels or own.scheme == "plain"),
        ),
    )

    word_column: str | None = Field(None, description="column name or number; detected if omitted")
    tag_column: str | None = Field(None, description="column name or number; detected if omitted")
    scheme: Literal[Scheme, "plain"] = Field(
        "bio",
        description="scheme that span tags are converted to; plain: tags are read one by one",
    )
    labelled_piece: LabelledPiece = Field(
        "first", description="pieces of a word that its tag is predicted from"
    )
    decoding: Decoding = Field(
        "constrained",
        description="constrained: the most likely sequence of legal tags; free: each word on "
        "its own",
    )
    stride: int | None = Field(
        None, ge=1, description="tokens between the starts of windows; half a window if omitted"
    )
    document_context: bool = Field(
        False, description="fill max_seq_length with the surrounding words of the document"
    )
    document_column: str | None = Field(
        None,
        description="column name or number; if omitted, CoNLL's document boundaries, or "
        "a column named document",
    )

    labels: tuple[str, ...] = detected_setting((), "the tags, in order")
    spans: bool = detected_setting(False, "whether tags mark spans")
    notation: str | None = detected_setting(
        None, "how the table writes tags that mark spans, if not as usual"
    )
    has_plain_texts: bool = detected_setting(
        False, "whether the word column of a table without tags holds texts, not lists of words"
    )
    spellings: tuple[str, ...] = detected_setting(
        (), "words of the training data that BERT's basic tokenization would split"
    )

    @model_validator(mode="after")
    def _check_labels(self) -> Self:
        if self.spans and find_notation(self.labels) is None:
            raise ValueError("spans=true, but the labels mark no spans")
        return self

    @cached_property
    def types(self) -> frozenset[str]:
        """The types of spans; empty if tags mark none."""
        notation = find_notation(self.labels) if self.spans else None
        return frozenset() if notation is None else notation.types

    @cached_property
    def tags(self) -> tuple[str, ...]:
        """The labels as this package writes tags (`B-PER`): those of published models differ."""
        if not self.spans:
            return self.labels
        return tuple(read_tag(label, self.types) or label for label in self.labels)

    @property
    def tag_scheme(self) -> Scheme:
        """The scheme of the tags, if these mark spans; those of published models may be another
        than `scheme`."""
        return "bioes" if any(split_tag(tag)[0] in "ES" for tag in self.tags) else "bio"
