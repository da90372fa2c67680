"""Distillation of sentence vectors: a text's vector is to be the one that a teacher gives it.

    text ─► encoder ─► pooling ─► length 1 ─────────────────────────────────────┐
    text ─► teacher, once, before training ─► principal axes ─► length 1 ─► squared distance

The teacher's vectors are seen along their principal axes, as many as the student is wide, which
keep most of their products; so nothing has to be learned beside the student. Of a student that is
wider than its teacher the other numbers are to be 0.

Source: Reimers and Gurevych (2020), "Making Monolingual Sentence Embeddings Multilingual using
Knowledge Distillation", §2, equation 1, with one language; the axes are sentence-transformers' way
(its "model distillation") with a teacher that is wider.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from ...model.config import EncoderConfig
from ...packed import Batch
from ...tables.rows import Row
from ...text.tokenizer import Tokenizer
from ..example import LabelledExample, labelled_batch
from ..labelled import check_length, texts_of
from .columns import RetrievalSettings
from .network import RetrievalNetwork
from .task import RetrievalTask


class StudentNetwork(RetrievalNetwork):
    """A bi-encoder that learns from single texts with their teacher's vectors.

    Args:
        axes: of the teacher's vectors, `[other_width, other_width]`; see `principal_axes`.
    """

    axes: Tensor

    def __init__(
        self, config: EncoderConfig, settings: RetrievalSettings, axes: NDArray[np.float32]
    ) -> None:
        super().__init__(config, settings)
        self.register_buffer("axes", torch.from_numpy(axes), persistent=False)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """The summed losses of the rows: `retrieval`."""
        vectors = self._vectors(batch.packed)
        return {"retrieval": vector_loss_sum(vectors, batch.targets["labels"], self.axes)}


def principal_axes(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """The directions in which vectors `[rows, width]` have most of their length: `[width, width]`,
    one a column, the first first.

    They are not centred, since it is products of the vectors themselves that are to be kept.
    """
    _, axes = np.linalg.eigh((vectors.T @ vectors).astype(np.float64))
    return np.ascontiguousarray(axes[:, ::-1], np.float32)


def vector_loss_sum(
    student: Float[Tensor, "rows width"],
    teacher: Float[Tensor, "rows other_width"],
    axes: Float[Tensor, "other_width other_width"],
) -> Float[Tensor, ""]:
    """The sum over rows of the squared distance of the two vectors, both of length 1.

    Args:
        student: of length 1.
        teacher: seen along its first axes, as many as there are numbers of the student's.
    """
    width = student.shape[1]
    wanted = teacher.to(student.dtype) @ axes[:, :width].to(student.dtype)
    wanted = F.pad(F.normalize(wanted, dim=-1), (0, width - wanted.shape[1]))
    return (student - wanted).square().sum()


class StudentTask(RetrievalTask):
    """Retrieval whose training rows are texts, with a teacher's vectors for labels.

    It is saved, used and measured as the retrieval that it is.

    Args:
        text_column: of training rows; None of a task that reads pairs, as dev's.
        axes: of the teacher's vectors; of a task that is not trained, left out.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        settings: RetrievalSettings,
        text_column: str | None = None,
        axes: NDArray[np.float32] | None = None,
    ) -> None:
        super().__init__(tokenizer, settings)
        self.additive = True  # no row is compared with another
        self.text_column, self._axes = text_column, axes

    def network(self, config: EncoderConfig) -> RetrievalNetwork:
        if self._axes is None:
            return super().network(config)
        check_length(self.settings.max_seq_length, config)
        return StudentNetwork(config, self.settings, self._axes)

    @property
    def columns_text(self) -> str:
        if self.text_column is None:
            return super().columns_text
        return f"text = {self.text_column!r}, with its teacher's vector"

    def placed_examples(
        self, rows: Sequence[Row], first_index: int, where: Sequence[str], *, labelled: bool
    ) -> list[LabelledExample]:
        """Texts, or pairs where there is no column of texts."""
        if self.text_column is None:
            return super().placed_examples(rows, first_index, where, labelled=labelled)
        texts = [[text] for text in texts_of(rows, self.text_column, where)]
        return self.of_texts(texts, first_index, where, [None] * len(texts))

    def collate(self, examples: Sequence[LabelledExample]) -> Batch:
        """Pack texts in order of length; `targets["labels"]` are the teacher's vectors, `[rows,
        other_width]` float32, and `counts["retrieval"]` the rows. Pairs as `RetrievalTask` does."""
        if len(examples[0].sequences) > 1:
            return super().collate(examples)
        return labelled_batch(examples, np.float32, "retrieval")
