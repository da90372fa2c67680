"""Reranking: the relevance of texts to a query, by a model that reads both."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from ...errors import BertworksError
from ...tasks.choice import ChoiceTask

if TYPE_CHECKING:
    from ...tasks.task import Prediction
    from .text_index import AnyModel, Hit


class Relevance(NamedTuple):
    """The relevance of a text to a query."""

    score: float
    # rises with the score, but still differs where the score is rounded to 0 or 1
    order: float


PairScorer = Callable[[Sequence[tuple[str, str]]], Iterable[Relevance]]
"""Computes the relevance of each text to its query, from pairs of query and text."""


def rerank_hits(
    queries: Sequence[str], hits_of_queries: Sequence[Sequence[Hit]], score: PairScorer
) -> list[list[Hit]]:
    """Order each query's hits by their relevance; equal ones stay as retrieved."""
    pairs = [
        (query, hit.text)
        for query, hits in zip(queries, hits_of_queries, strict=True)
        for hit in hits
    ]
    relevances = iter(score(pairs))
    reranked_hits = []
    for hits in hits_of_queries:
        scored = [(hit, next(relevances)) for hit in hits]
        scored.sort(key=lambda pair: -pair[1].order)
        reranked_hits.append([hit._replace(score=relevance.score) for hit, relevance in scored])
    return reranked_hits


def pair_scorer(model: AnyModel, engine: Mapping[str, Any]) -> PairScorer:
    """Return the function of a reranker: late interaction, choices, or predictions for pairs.

    Scores of a model of multiple choice are shares of the texts that are scored together.

    Raises:
        BertworksError: the model does not score pairs of texts.
    """
    if model.similarity_function == "maxsim":

        def score_late(pairs: Sequence[tuple[str, str]]) -> Iterator[Relevance]:
            for query, group in groupby(pairs, itemgetter(0)):
                (scores,) = model.similarity(query, [text for _, text in group], **engine)
                yield from (Relevance(score, score) for score in scores.tolist())

        return score_late
    if isinstance(model.task, ChoiceTask):
        columns = [model.task.column("prompt"), *model.task.choice_columns]
        if len(columns) > 2 or model.task.settings.question_column is not None:
            raise BertworksError("the reranker was not trained with lists of choices")

        def score_choices(pairs: Sequence[tuple[str, str]]) -> Iterator[Relevance]:
            rows = [
                dict(zip(columns, (query, [text for _, text in group]), strict=True))
                for query, group in groupby(pairs, itemgetter(0))
            ]
            for prediction in model.predict(rows, **engine):
                yield from (Relevance(share, share) for share in prediction["probabilities"])

        return score_choices
    relevance = relevance_of_model(model)
    return lambda pairs: map(relevance, model.predict(pairs, **engine))


def _log_odds(probabilities: Mapping[str, float], label: str) -> float:
    """Return the logarithm of a label's probability over that of all others."""
    others = sum(share for name, share in probabilities.items() if name != label)
    if not probabilities[label] or not others:
        return math.inf if probabilities[label] else -math.inf
    return math.log(probabilities[label]) - math.log(others)


def relevance_of_model(model: AnyModel) -> Callable[[Prediction], Relevance]:
    """Return a function from a model's prediction for two texts to their relevance."""
    from ...tasks.classification import TextClassifierTask
    from ...tasks.regression import RegressionTask

    task = model.task
    if not isinstance(task, TextClassifierTask | RegressionTask):
        name = "nothing" if task is None else task.name
        raise BertworksError(
            f"the reranker was trained for {name}",
            fix="Give a classifier or a regression of pairs of texts, or a model of choices.",
        )
    if task.settings.pair_column is None and not task.settings.is_pair_optional:
        raise BertworksError("the reranker takes single texts, not pairs")
    if isinstance(task, RegressionTask):
        return lambda answer: Relevance(answer["value"], answer["value"])
    labels, positive = task.labels, task.positive
    if positive is None:
        raise BertworksError(
            f"the reranker does not say which of its labels {', '.join(labels)} is the "
            "positive one",
            fix="Train it with positive_label=NAME.",
        )

    def of_classes(answer: Prediction) -> Relevance:
        shares = answer["probabilities"]
        return Relevance(shares[positive], _log_odds(shares, positive))

    return of_classes
