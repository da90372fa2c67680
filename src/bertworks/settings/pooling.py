"""The settings that name a pooling: one of the modes, or several side by side."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, get_args

from pydantic import AfterValidator

from ..errors import did_you_mean
from .literals import PoolingMode, SparsePooling

SPARSE_POOLINGS = get_args(SparsePooling)
PIECE_WEIGHTS = "piece-weights"
"""That of a static model with one number for each piece."""
NO_POOLING = "none"
"""That of late interaction: a matrix of token vectors for each text."""

_OTHERS = (*SPARSE_POOLINGS, NO_POOLING)


def _check_dense(value: str) -> str:
    """Check the name of a pooling of token vectors."""
    names, modes = get_args(PoolingMode), value.split("+")
    for mode in modes:
        if mode in _OTHERS:
            raise ValueError(f"{mode} gives no dense vector, and cannot be used here")
        if mode not in names:
            raise ValueError(f"{mode!r} is not a pooling; {did_you_mean(mode, names)}")
    if len(set(modes)) < len(modes):
        raise ValueError("a pooling is given twice")
    if "pooler" in modes and len(modes) > 1:
        raise ValueError("pooler cannot be combined with others")
    return value


def _check_trained(value: str) -> str:
    if value == "pooler":
        raise ValueError("sentence-transformers' layout has no name for the pooler")
    return _check_dense(value)


PoolingName = Annotated[
    str, AfterValidator(lambda value: value if value in _OTHERS else _check_dense(value))
]
"""One of `PoolingMode` or `SparsePooling`, or several modes joined by `+`."""

SPLADE_POOLINGS = tuple(name for name in SPARSE_POOLINGS if name != PIECE_WEIGHTS)
"""Those of the logits of a masked-language-model head."""

_TRAINED_OTHERS = (*SPLADE_POOLINGS, NO_POOLING)

RetrievalPooling = Annotated[
    str, AfterValidator(lambda value: value if value in _TRAINED_OTHERS else _check_trained(value))
]
"""That of vectors which retrieval trains."""

SentencePooling = Annotated[
    str, AfterValidator(lambda value: value if value in _OTHERS else _check_trained(value))
]
"""That of a saved sentence encoder: all but the pooler."""


@cache
def modes_of(pooling: str) -> tuple[PoolingMode, ...]:
    """The modes whose vectors a pooling puts side by side."""
    modes: Any = tuple(pooling.split("+"))
    return modes  # type: ignore[no-any-return]  # the settings check the names
