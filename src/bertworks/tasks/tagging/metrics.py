"""Metrics of tags: of words, and of the spans that they mark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from .tags import spans_of


def span_scores(
    true: Iterable[Sequence[str]], told: Iterable[Sequence[str]]
) -> dict[str, tuple[float, float, float, int]]:
    """Precision, recall, F1 and number of true spans, by type; all together under "".

    A span is right if its type and both of its ends are, as `conlleval` counts. What is undefined
    is 0.
    """
    right: Counter[str] = Counter()
    wanted: Counter[str] = Counter()
    found: Counter[str] = Counter()
    for own, other in zip(true, told, strict=True):
        own_spans, other_spans = set(spans_of(own)), set(spans_of(other))
        for counter, spans in (
            (wanted, own_spans),
            (found, other_spans),
            (right, own_spans & other_spans),
        ):
            for span in spans:
                counter[span.type] += 1
                counter[""] += 1
    return {
        kind: (*_rates(right[kind], found[kind], wanted[kind]), wanted[kind])
        for kind in ("", *sorted(({*wanted} | {*found}) - {""}))
    }


def _rates(right: int, found: int, wanted: int) -> tuple[float, float, float]:
    precision = right / found if found else 0.0
    recall = right / wanted if wanted else 0.0
    both = found + wanted
    return precision, recall, 2 * right / both if both else 0.0


def word_scores(
    true: Sequence[Sequence[str]], told: Sequence[Sequence[str]]
) -> Mapping[str, float]:
    """`accuracy` over all words, and `majority`, that of always telling the commonest tag."""
    pairs = [
        pair for own, other in zip(true, told, strict=True) for pair in zip(own, other, strict=True)
    ]
    counts = Counter(own for own, _ in pairs)
    return {
        "majority": counts.most_common(1)[0][1] / len(pairs),
        "accuracy": float(np.mean([own == other for own, other in pairs])),
    }


def tag_scores(
    true: Iterable[Sequence[str]], told: Iterable[Sequence[str]]
) -> dict[str, tuple[float, float, float, int]]:
    """Precision, recall, F1 and number of words, of each tag that occurs or is told.

    What is undefined is 0.
    """
    right: Counter[str] = Counter()
    wanted: Counter[str] = Counter()
    found: Counter[str] = Counter()
    for own_tags, other_tags in zip(true, told, strict=True):
        wanted.update(own_tags)
        found.update(other_tags)
        right.update(own for own, other in zip(own_tags, other_tags, strict=True) if own == other)
    return {
        kind: (*_rates(right[kind], found[kind], wanted[kind]), wanted[kind])
        for kind in sorted({*wanted} | {*found})
    }


def macro_f1(true: Sequence[Sequence[str]], told: Sequence[Sequence[str]]) -> float:
    """The mean of the tags' F1, of those that occur or are told."""
    scores = tag_scores(true, told).values()
    return sum(f1 for _, _, f1, _ in scores) / len(scores)
