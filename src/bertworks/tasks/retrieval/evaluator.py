"""Evaluation of retrieval by exact search: each query searches all passages of a table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import Any, ClassVar

import numpy as np

from ...jobs.resumable import digest_texts
from ...packed import Batch, to_array
from ...utils.formatting import format_count
from ..breakdown import Breakdown, excerpt
from ..measures import Location, WorstMistakes
from ..task import Evaluator, Outputs
from .exact_search import top_k

DEPTH = 10


class RankingEvaluator(Evaluator):
    """Ranks all distinct passages, including negatives, for each distinct query.

    A relevant passage of a query is one that belongs to it in some row.

    - `accuracy@1`: the share of queries whose nearest passage is relevant;
    - `mrr@10`: the mean of 1 / rank of the first relevant passage, 0 for ranks above 10;
    - `recall@10`: the mean share of a query's relevant passages among the nearest 10.

    A passage that equals the query, by token ids or as it is in the table, without a prompt, and is
    not relevant is ignored.
    """

    state_fields = (
        *("_queries", "_passages", "_relevant", "_query_rows", "_passage_excerpts"),
        *("_query_digests", "_passage_digests"),
    )
    metrics: ClassVar[tuple[str, ...]] = ("accuracy@1", f"mrr@{DEPTH}", f"recall@{DEPTH}")

    def __init__(self) -> None:
        # Texts are identified by their token ids. The vector of each one:
        self._queries: dict[bytes, np.ndarray] = {}
        self._passages: dict[bytes, np.ndarray] = {}
        self._relevant: dict[bytes, set[bytes]] = defaultdict(set)  # the passages of each query
        # For each query its first row and an excerpt of its text; for each passage an excerpt.
        self._query_rows: dict[bytes, tuple[Location, str]] = {}
        self._passage_excerpts: dict[bytes, str] = {}
        # The token ids of each text, which has a prompt or a form of its own as query and passage.
        self._query_digests: dict[str, bytes] = {}
        self._passage_digests: dict[str, bytes] = {}

    def add(self, outputs: Outputs, batch: Batch) -> None:
        queries, passages = (
            to_array(outputs[name]).astype(np.float32) for name in ("queries", "passages")
        )
        others = iter(passages[len(queries) :])
        for example, query, passage in zip(batch.examples, queries, passages, strict=False):
            query_key, *passage_keys = (
                sequence.input_ids.tobytes() for sequence in example.sequences
            )
            query_text, *passage_texts = example.texts
            query_digest, *passage_digests = (digest_texts([text]) for text in example.texts)
            self._queries.setdefault(query_key, query)
            self._query_digests[query_digest] = query_key
            location = Location(example.index, example.where)
            self._query_rows.setdefault(query_key, (location, excerpt(query_text)[0]))
            self._relevant[query_key].add(passage_keys[0])
            vectors = [passage, *islice(others, len(passage_keys) - 1)]
            for key, vector, passage_text, digest in zip(
                passage_keys, vectors, passage_texts, passage_digests, strict=True
            ):
                self._passages.setdefault(key, vector)
                self._passage_digests[digest] = key
                self._passage_excerpts.setdefault(key, excerpt(passage_text)[0])

    def merge(self, state: Mapping[str, Any]) -> None:
        for name in self.state_fields:
            if name == "_relevant":
                continue
            own = getattr(self, name)
            for text, value in state[name].items():
                own.setdefault(text, value)
        for query, relevant in state["_relevant"].items():
            self._relevant[query] |= relevant

    @cached_property
    def _vectors(self) -> tuple[np.ndarray, np.ndarray]:
        """The vectors of all queries and passages. Cached: access it only after the last row."""
        return _stack([*self._queries.values()]), _stack([*self._passages.values()])

    @cached_property
    def _nearest(self) -> list[list[bytes]]:
        """The nearest passages of each query, without passages that are ignored."""
        assert self._queries, "nothing was evaluated"
        equal = {query: {query} for query in self._queries}  # passages that equal a query
        for digest in self._query_digests.keys() & self._passage_digests:
            equal[self._query_digests[digest]].add(self._passage_digests[digest])
        depth = DEPTH + max(map(len, equal.values()))
        compare = None if self._vectors[0].ndim == 2 else _similarities
        _, nearest_numbers = top_k(*self._vectors, depth, compare=compare)
        passages = list(self._passages)
        rankings = []
        for query, numbers in zip(self._queries, nearest_numbers.tolist(), strict=True):
            ignored = equal[query] - self._relevant[query]
            nearest = [passages[number] for number in numbers]
            rankings.append([passage for passage in nearest if passage not in ignored][:DEPTH])
        return rankings

    def result(self) -> dict[str, float]:
        hits, reciprocal_ranks, recalls = [], [], []
        for query, ranking in zip(self._queries, self._nearest, strict=True):
            relevant = self._relevant[query]
            ranks = [rank for rank, passage in enumerate(ranking, 1) if passage in relevant]
            hits.append(ranks[:1] == [1])
            reciprocal_ranks.append(1 / ranks[0] if ranks else 0.0)
            recalls.append(len(ranks) / len(relevant))
        values = (float(np.mean(each)) for each in (hits, reciprocal_ranks, recalls))
        return dict(zip(self.metrics, values, strict=True))

    def breakdown(self) -> Breakdown:
        """The queries whose nearest passage is not relevant, the largest margin first."""
        worst = WorstMistakes()
        numbers = {passage: number for number, passage in enumerate(self._passages)}
        queries, passages = self._vectors
        excerpts = self._passage_excerpts
        for (query, query_row), vector, ranking in zip(
            self._query_rows.items(), queries, self._nearest, strict=True
        ):
            relevant = sorted(self._relevant[query], key=numbers.__getitem__)
            if not ranking or ranking[0] in relevant:
                continue
            rows = [numbers[passage] for passage in (ranking[0], *relevant)]
            nearest_score, *scores = _similarities(vector[None], passages[rows])[0].tolist()
            margin = nearest_score - max(scores)
            best = relevant[scores.index(max(scores))]
            worst.add(margin, *query_row, excerpts[best], excerpts[ranking[0]], size_field="margin")
        return Breakdown(mistakes=worst.result())

    def notes(self) -> list[str]:
        count = len(self._passages)
        if count > DEPTH:
            return []
        return [f"recall@{DEPTH} is uninformative with only {format_count(count, 'passage')}"]


def _stack(vectors: Sequence[np.ndarray]) -> np.ndarray:
    """The vectors of texts, `[texts, width]`; or those of their tokens `[texts, tokens, width]`.

    Shorter texts are filled with copies of their first token's, which change no maximum.
    """
    length = max(len(one) for one in vectors)
    if vectors[0].ndim == 1:
        return np.stack(vectors)
    parts = [(one, np.repeat(one[:1], length - len(one), axis=0)) for one in vectors]
    return np.stack([np.concatenate(part) for part in parts])


def _similarities(queries: np.ndarray, passages: np.ndarray) -> np.ndarray:
    """The inner products of vectors `[queries, passages]`; or MaxSim, of those of tokens."""
    if queries.ndim == 2:
        products: np.ndarray = queries @ passages.T
        return products
    scores = [(queries @ passage.T).max(-1).sum(-1) for passage in passages]
    return np.stack(scores, axis=1)
