"""Training of a static model: its vectors of texts are fitted to another model's, in closed form.

    the model's vectors of texts ─► principal axes ─► length 1 ─► targets y
    the table ─► rotated towards the targets, scaled ─► prior v0
    Σ texts |mean of v - s y|² + ridge Σ pieces |v - v0|² is minimised by conjugate gradients

This is ridge regression of the targets on the counts of pieces, so the minimum is unique, and
needs no learning rate, batches or random numbers. Only directions matter, so the lengths s of the
targets are free: they are 1 in the first round, and then the length of each text's mean along its
target. A piece that no text has keeps its vector, rotated and scaled.

Source: Tulkens and van Dongen (2025), "Tokenlearn", for fitting means of vectors to a model's
vectors of texts (there by gradient steps); Hoerl and Kennard (1970), "Ridge Regression"; Hestenes
and Stiefel (1952), "Methods of Conjugate Gradients", with the diagonal as preconditioner (Saad
2003, §9.2.1); Schönemann (1966), "Orthogonal Procrustes Problem", for the rotation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from ..data.rows import chunks
from ..data.text_inputs import Texts
from ..errors import DataError, SettingsError
from ..inference.static_vectors import StaticEmbedder
from ..model import Model
from ..settings.keywords import StaticTrainingKeywords
from ..tasks.retrieval.distillation import principal_axes, teacher_targets
from ..utils.formatting import format_count
from .static_settings import StaticTrainingSettings

NUM_ROUNDS, NUM_ITERATIONS = 3, 8
"""Rounds, each with new lengths of the targets, and iterations of each.

More iterations change the measures of docs/static.md by less than .005.
"""
SMALLEST_LENGTH = 0.1
"""Of a target: a text whose mean points away from its target is nevertheless pulled towards it."""
HELDOUT_INTERVAL = 50
"""One of this many texts is not trained on."""
_CHUNK_TEXTS = 1 << 14


@dataclass(frozen=True)
class StaticTraining:
    """A trained static model, and what it was trained on.

    Attributes:
        num_texts: the number of texts that it was trained on.
        num_unknown: the number of texts without a known piece, which were left out.
        cosines: the mean cosine with the other model's vectors of held-out texts, before and after
            the training; None if there are fewer than `HELDOUT_INTERVAL` texts.
    """

    model: Model
    num_texts: int
    num_unknown: int
    cosines: tuple[float, float] | None


def train_static(
    student: Model,
    texts: Texts,
    vectors: NDArray[np.float32],
    *,
    progress: Callable[[int, int], None] | None = None,
    **settings: Unpack[StaticTrainingKeywords],
) -> StaticTraining:
    """Fit a static model's vectors of texts to another model's vectors of these texts.

    Args:
        student: a static model; it is left unchanged.
        vectors: `[texts, other_width]`. Their cosines are learned; if they are wider than the
            student's, those of their projections onto the first principal axes.
        progress: called with the number of iterations done, and of all.
        settings: settings of `StaticTrainingSettings`.

    Raises:
        SettingsError: a setting is not valid, or the model is not static.
        DataError: there are more or fewer vectors than texts, or no text has a known piece.
    """
    values = StaticTrainingSettings.parse(settings)
    embedder = student.embedder()
    if not isinstance(embedder, StaticEmbedder):
        raise SettingsError("only static models are trained in closed form")
    ids, lengths = _read_ids(embedder, texts)
    if len(lengths) != len(vectors):
        what = f"{format_count(len(vectors), 'vector')}, but {format_count(len(lengths), 'text')}"
        raise DataError(what, where=texts.rows.name)
    is_known = lengths > 0
    is_heldout = np.arange(len(lengths)) % HELDOUT_INTERVAL == HELDOUT_INTERVAL - 1
    is_trained = is_known & ~is_heldout
    if not is_trained.any():
        raise DataError("no text has a known piece", where=texts.rows.name)
    weight = student.encoder.embeddings.word_embeddings.weight
    table = weight.detach().float().cpu()
    targets = _targets(vectors, table.shape[1])
    means, heldout_means = (
        PieceShares.from_ids(ids, lengths, len(table), mask)
        for mask in (is_trained, is_known & is_heldout)
    )
    trained_targets, heldout_targets = targets[is_trained], targets[is_known & is_heldout]
    with torch.inference_mode():
        table = table @ _rotation(means @ table, trained_targets)
        untrained_cosine = _mean_cosine(heldout_means @ table, heldout_targets)
        table = _fit(table, means, trained_targets, values.ridge, progress)
        trained_cosine = _mean_cosine(heldout_means @ table, heldout_targets)
    result = Model.fresh(student.encoder.config, student.tokenizer)
    result.encoder.embeddings.word_embeddings.weight = nn.Parameter(table.clone())
    result.sentence, result.card = student.sentence, student.card
    num_trained = int(is_trained.sum())
    cosines = None
    if untrained_cosine is not None and trained_cosine is not None:
        cosines = untrained_cosine, trained_cosine
    return StaticTraining(result, num_trained, int((~is_known).sum()), cosines)


class PieceShares:
    """The share of each piece in each text, as a sparse matrix `[texts, pieces]`.

    `shares @ table` are the means of rows of the table.
    """

    def __init__(
        self,
        texts: NDArray[np.int64],
        pieces: NDArray[np.int64],
        shares: NDArray[np.float32],
        shape: tuple[int, int],
    ) -> None:
        order = np.argsort(pieces, kind="stable")
        squares = np.bincount(pieces, shares.astype(np.float64) ** 2, shape[1])
        self.squares = torch.from_numpy(squares.astype(np.float32))
        """The sum of each piece's squared shares: the diagonal of `shares.T @ shares`."""
        self._rows = _Bags.from_arrays(texts, pieces, shares, shape[0])
        self._columns = _Bags.from_arrays(pieces[order], texts[order], shares[order], shape[1])

    @classmethod
    def from_ids(
        cls,
        ids: NDArray[np.int32],
        lengths: NDArray[np.int64],
        num_pieces: int,
        is_selected: NDArray[np.bool_],
    ) -> PieceShares:
        """Count the pieces of some texts.

        Args:
            ids: those of all texts, laid end to end.
            is_selected: the texts that are rows of the matrix; each has a piece.
        """
        ids = ids[np.repeat(is_selected, lengths)]
        lengths = lengths[is_selected]
        texts = np.repeat(np.arange(len(lengths)), lengths)
        places, counts = np.unique(texts * num_pieces + ids, return_counts=True)
        texts, pieces = np.divmod(places, num_pieces)
        shares = (counts / lengths[texts]).astype(np.float32)
        return cls(texts, pieces, shares, (len(lengths), num_pieces))

    def __matmul__(self, table: Float[Tensor, "pieces width"]) -> Float[Tensor, "texts width"]:
        return self._rows.sums(table)

    def multiply_transpose(
        self, values: Float[Tensor, "texts width"]
    ) -> Float[Tensor, "pieces width"]:
        """Return the product of the transposed matrix and `values`."""
        return self._columns.sums(values)


@dataclass(frozen=True)
class _Bags:
    """Weighted sums of rows of a matrix."""

    indices: Tensor
    starts: Tensor
    weights: Tensor

    @classmethod
    def from_arrays(
        cls,
        bags: NDArray[np.int64],
        indices: NDArray[np.int64],
        weights: NDArray[np.float32],
        num_bags: int,
    ) -> _Bags:
        """Args: the bag of each row, in ascending order; the row; and its weight."""
        counts = np.bincount(bags, minlength=num_bags)
        starts = np.cumsum(counts) - counts
        arrays: tuple[NDArray[Any], ...] = (indices, starts, weights)
        return cls(*(torch.from_numpy(np.ascontiguousarray(array)) for array in arrays))

    def sums(self, matrix: Tensor) -> Tensor:
        return F.embedding_bag(
            self.indices, matrix, self.starts, mode="sum", per_sample_weights=self.weights
        )


def _read_ids(
    embedder: StaticEmbedder, texts: Texts
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """The ids of all texts, laid end to end, and how many each text has."""
    ids, lengths = [np.empty(0, np.int32)], [np.empty(0, np.int64)]
    for chunk in chunks(texts, _CHUNK_TEXTS):
        places, values = zip(*chunk, strict=True)
        chunk_ids, chunk_lengths = embedder.piece_ids(values, places)
        ids.append(chunk_ids)
        lengths.append(chunk_lengths)
    return np.concatenate(ids), np.concatenate(lengths)


def _targets(vectors: NDArray[np.float32], width: int) -> Float[Tensor, "texts width"]:
    axes = torch.from_numpy(principal_axes(vectors))
    targets = torch.empty(len(vectors), width)
    for start in range(0, len(vectors), _CHUNK_TEXTS):
        rows = torch.from_numpy(np.array(vectors[start : start + _CHUNK_TEXTS], np.float32))
        targets[start : start + _CHUNK_TEXTS] = teacher_targets(rows, axes, width)
    return targets


def _rotation(
    vectors: Float[Tensor, "texts width"], targets: Float[Tensor, "texts width"]
) -> Float[Tensor, "width width"]:
    """The rotation that brings vectors nearest to their targets (orthogonal Procrustes)."""
    u, _, vt = torch.linalg.svd((F.normalize(vectors, dim=-1).T @ targets).double())
    rotation: Tensor = (u @ vt).float()
    return rotation


def _fit(
    table: Float[Tensor, "pieces width"],
    means: PieceShares,
    targets: Float[Tensor, "texts width"],
    ridge: float,
    progress: Callable[[int, int], None] | None,
) -> Float[Tensor, "pieces width"]:
    """Return the table whose means are nearest to targets, and which is near the given one."""
    vectors = means @ table
    scale = (vectors * targets).sum() / vectors.square().sum().clamp(min=1e-30)
    table = prior = table * scale
    for number in range(NUM_ROUNDS):
        lengths = torch.ones(len(targets), 1)
        if number:
            lengths = ((means @ table) * targets).sum(1, keepdim=True).clamp(min=SMALLEST_LENGTH)

        def report(iteration: int, number: int = number) -> None:
            if progress is not None:
                done = number * NUM_ITERATIONS + iteration
                progress(done, NUM_ROUNDS * NUM_ITERATIONS)

        table = _minimise(table, means, targets * lengths, prior * lengths.mean(), ridge, report)
    return table


def _minimise(
    table: Float[Tensor, "pieces width"],
    means: PieceShares,
    targets: Float[Tensor, "texts width"],
    prior: Float[Tensor, "pieces width"],
    ridge: float,
    report: Callable[[int], None],
) -> Float[Tensor, "pieces width"]:
    """Take `NUM_ITERATIONS` of conjugate gradients from a table; each column is a system."""
    scale = 1 / (means.squares + ridge)[:, None]
    residual = means.multiply_transpose(targets - means @ table) + ridge * (prior - table)
    direction = scale * residual
    norm = (residual * direction).sum(0)
    for iteration in range(NUM_ITERATIONS):
        product = means.multiply_transpose(means @ direction) + ridge * direction
        step = norm / (direction * product).sum(0).clamp(min=1e-30)
        table = table + step * direction
        residual = residual - step * product
        scaled = scale * residual
        previous_norm, norm = norm, (residual * scaled).sum(0)
        direction = scaled + norm / previous_norm.clamp(min=1e-30) * direction
        report(iteration + 1)
    return table


def _mean_cosine(
    vectors: Float[Tensor, "texts width"], targets: Float[Tensor, "texts width"]
) -> float | None:
    """The mean cosine of vectors with targets of length 1; None if there are none."""
    if not len(vectors):
        return None
    return float((F.normalize(vectors, dim=-1) * targets).sum(1).mean())
