"""The settings of tagging: what a user may say of it, and what a trained model is."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from ..labelled import TaskOptions, TaskSettings
from .columns import WordColumns
from .tags import Scheme, parts_of
from .words import LabelledPiece

Decoding = Literal["constrained", "free"]


class TaggingOptions(TaskOptions):
    """Columns, tags and windows of tagging."""

    word_column: str | None = Field(None, description="name or number; guessed if left out")
    tag_column: str | None = Field(None, description="name or number; guessed if left out")
    scheme: Scheme = Field("bio", description="what tags of spans are brought into")
    labelled_piece: LabelledPiece = Field(
        "first", description="which pieces of a word its tag is predicted from"
    )
    decoding: Decoding = Field(
        "constrained",
        description="the likeliest legal tags of a text together; or `free`: of each word alone",
    )
    stride: int | None = Field(
        None, ge=1, description="tokens between the beginnings of windows; half of one, if left out"
    )
    document_context: bool = Field(
        False, description="fill max_seq_length with the words around a sentence in its document"
    )
    document_column: str | None = Field(
        None, description="name or number; CoNLL's borders, or a column document, if left out"
    )

    @model_validator(mode="after")
    def _documents_are_context(self) -> Self:
        if self.document_column is not None and not self.document_context:
            what = f"document_column={self.document_column!r} is for document_context=true"
            raise ValueError(what)
        return self


class TaggingSettings(TaskSettings):
    """What a tagger is, beside its weights."""

    labels: tuple[str, ...] = Field(min_length=1, description="the tags, in order")
    spans: bool = Field(description="whether tags mark spans")
    columns: WordColumns = Field(description="the columns that rows are read from")
    stride: int | None = Field(None, ge=1)
    labelled_piece: LabelledPiece = "first"
    decoding: Decoding = "constrained"
    document_context: bool = False

    @property
    def scheme(self) -> Scheme:
        """The scheme of tags that mark spans."""
        return "bioes" if any(parts_of(label)[0] in "ES" for label in self.labels) else "bio"
