"""Distillation of sentence vectors: a student learns to compute its teacher's vector of a text.

    text ─► encoder ─► pooling ─► length 1 ─────────────────────────────────────┐
    text ─► teacher, once, before training ─► principal axes ─► length 1 ─► squared distance

The teacher's vectors are projected onto their first principal axes, as many as the student's width.
This keeps most of their inner products, so that no projection has to be trained. If the student is
wider than its teacher, the target is padded with zeros.

Source: Reimers and Gurevych (2020), "Making Monolingual Sentence Embeddings Multilingual using
Knowledge Distillation", §2, equation 1, with one language; sentence-transformers' "model
distillation" also uses principal axes if the teacher is wider.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from ...data.rows import Row, Rows, texts_of
from ...errors import SettingsError
from ...nn.config import EncoderConfig
from ...packed import Batch
from ...text.tokenizer import Tokenizer
from ..example import LabelledExample, collate_labelled
from .network import RetrievalNetwork
from .settings import RetrievalSettings
from .task import RetrievalTask


class StudentNetwork(RetrievalNetwork):
    """A bi-encoder that learns the teacher's vectors of single texts.

    Args:
        axes: `[other_width, other_width]`, the principal axes of the teacher's vectors; see
            `principal_axes`.
    """

    axes: Tensor

    def __init__(
        self, config: EncoderConfig, settings: RetrievalSettings, axes: NDArray[np.float32]
    ) -> None:
        super().__init__(config, settings)
        self.register_buffer("axes", torch.from_numpy(axes), persistent=False)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Return `retrieval`: the sum of the rows' losses."""
        vectors = self._vectors(batch.packed)
        return {"retrieval": vector_loss_sum(vectors, batch.targets["labels"], self.axes)}


def principal_axes(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """The principal axes of vectors `[rows, width]`: `[width, width]`, one per column, in
    descending order of the vectors' length along them.

    The vectors are not centred, because their own inner products are to be preserved.
    """
    _, axes = np.linalg.eigh((vectors.T @ vectors).astype(np.float64))
    return np.ascontiguousarray(axes[:, ::-1], np.float32)


def vector_loss_sum(
    student: Float[Tensor, "rows width"],
    teacher: Float[Tensor, "rows other_width"],
    axes: Float[Tensor, "other_width other_width"],
) -> Float[Tensor, ""]:
    """The sum over rows of the squared distance between the student's vector and its target.

    Args:
        student: vectors of length 1.
        teacher: see `teacher_targets`.
    """
    targets = teacher_targets(teacher.to(student.dtype), axes.to(student.dtype), student.shape[1])
    return (student - targets).square().sum()


def teacher_targets(
    teacher: Float[Tensor, "rows other_width"],
    axes: Float[Tensor, "other_width other_width"],
    width: int,
) -> Float[Tensor, "rows width"]:
    """A teacher's vectors on the first principal axes, of length 1; padded with zeros if `width`
    is more than theirs."""
    targets = F.normalize(teacher @ axes[:, :width], dim=-1)
    return F.pad(targets, (0, width - targets.shape[1]))


class StudentTask(RetrievalTask):
    """Retrieval whose training rows are single texts, labelled with a teacher's vectors.

    It is saved, loaded and evaluated as a `RetrievalTask`.

    Args:
        text_column: the column of training texts; None if rows are pairs, as in dev.
        axes: the principal axes of the teacher's vectors; None for a task that is not trained.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        settings: RetrievalSettings,
        text_column: str | None = None,
        axes: NDArray[np.float32] | None = None,
    ) -> None:
        super().__init__(tokenizer, settings)
        self.additive = True  # rows are not compared with each other
        self.text_column, self._axes = text_column, axes

    def network(self, config: EncoderConfig) -> RetrievalNetwork:
        if self._axes is None:
            return super().network(config)
        if self.settings.is_sparse or self.settings.is_late:
            raise SettingsError(f"pooling={self.pooling}: a teacher's vectors are dense")
        config.check_length(self.settings.max_seq_length)
        return StudentNetwork(config, self.settings, self._axes)

    @property
    def columns_text(self) -> str:
        if self.text_column is None:
            return super().columns_text
        return f"text = {self.text_column!r}, with its teacher's vector"

    def for_table(self, rows: Rows, *, labelled: bool) -> Self:
        task = super().for_table(rows, labelled=labelled)
        # Other tables have pairs, also if their columns have the same names.
        return type(self)(self.tokenizer, self.settings) if task is self else task

    def build_examples(
        self, rows: Sequence[Row], first_index: int, where: Sequence[str], *, labelled: bool
    ) -> list[LabelledExample]:
        """Examples of single texts, or of pairs if `text_column` is None."""
        if self.text_column is None:
            return super().build_examples(rows, first_index, where, labelled=labelled)
        texts = [[text] for text in texts_of(rows, self.text_column, where)]
        return self.build_examples_from_texts(texts, first_index, where, [None] * len(texts))

    def collate(self, examples: Sequence[LabelledExample]) -> Batch:
        """Pack texts in order of length; pairs are collated by `RetrievalTask`.

        `targets["labels"]` are the teacher's vectors, `[rows, other_width]` float32;
        `counts["retrieval"]` is the number of rows.
        """
        if len(examples[0].sequences) > 1:
            return super().collate(examples)
        return collate_labelled(examples, np.float32, "retrieval")
