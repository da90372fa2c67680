"""Reranking: the relevance of texts to a query, by a model that reads both."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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


TextScorer = Callable[[Sequence[tuple[str, Sequence[str]]]], Iterable[Relevance]]
"""Computes the relevance of each text to its query, from queries with their texts."""


def rerank_hits(
    queries: Sequence[str], hits_of_queries: Sequence[Sequence[Hit]], score: TextScorer
) -> list[list[Hit]]:
    """Order each query's hits by their relevance; equal ones stay as retrieved."""
    texts = [[hit.text for hit in hits] for hits in hits_of_queries]
    relevances = iter(score(list(zip(queries, texts, strict=True))))
    reranked_hits = []
    for hits in hits_of_queries:
        scored = [(hit, next(relevances)) for hit in hits]
        scored.sort(key=lambda pair: -pair[1].order)
        reranked_hits.append([hit._replace(score=relevance.score) for hit, relevance in scored])
    return reranked_hits


def text_scorer(model: AnyModel, engine: Mapping[str, Any]) -> TextScorer:
    """Return the function of a reranker: late interaction, choices, or predictions for pairs.

    Scores of a model of multiple choice are shares of the texts of a query.

    Raises:
        BertworksError: the model does not score pairs of texts.
    """
    if model.similarity_function == "maxsim":

        def score_late(queries: Sequence[tuple[str, Sequence[str]]]) -> Iterator[Relevance]:
            for query, texts in queries:
                if texts:
                    (scores,) = model.similarity(query, texts, **engine)
                    yield from (Relevance(score, score) for score in scores.tolist())

        return score_late
    if isinstance(model.task, ChoiceTask):
        columns = [model.task.column("prompt"), *model.task.choice_columns]
        if len(columns) > 2 or model.task.settings.question_column is not None:
            raise BertworksError("the reranker was not trained with lists of choices")

        def score_choices(queries: Sequence[tuple[str, Sequence[str]]]) -> Iterator[Relevance]:
            rows = [dict(zip(columns, query, strict=True)) for query in queries if query[1]]
            for prediction in model.predict(rows, **engine):
                yield from (Relevance(share, share) for share in prediction["probabilities"])

        return score_choices
    relevance = relevance_of_model(model)

    def score_pairs(queries: Sequence[tuple[str, Sequence[str]]]) -> Iterator[Relevance]:
        pairs = [(query, text) for query, texts in queries for text in texts]
        return map(relevance, model.predict(pairs, **engine))

    return score_pairs


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
