"""Processes that share an evaluation have the outcome of one process."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.tasks.test_breakdown import (
    CONFIG,
    PIECES,
    RANDOM,
    question,
    random_model,
    tagged_rows,
    text,
)

from bertworks.inference.evaluate import Evaluation, evaluate
from bertworks.inference.settings import EngineSettings
from bertworks.nn.config import EncoderConfig
from bertworks.tasks.network import Network
from bertworks.tasks.pretraining.discriminator import DiscriminatorNetwork, with_generator
from bertworks.tasks.pretraining.instances import InstanceSettings
from bertworks.tasks.pretraining.replaced_tokens import ReplacedTokensTask
from bertworks.tasks.pretraining.settings import ReplacedTokensSettings
from bertworks.tasks.pretraining.source import PretrainingExample
from bertworks.tasks.pretraining.task import PretrainingTask
from bertworks.tasks.task import Evaluator, Task
from bertworks.text.tokenizer import Tokenizer

ENGINE = EngineSettings(batch_tokens=40, window_rows=25, precision="fp32")


class AskedError(Exception):
    """A rank has come to where it needs what the others have gathered."""


@dataclass
class OneAfterTheOther:
    """A rank of several, each of which is run alone: first up to where it needs the others."""

    rank: int
    world: int
    states: list[bytes] = field(default_factory=list)

    def gather(self, value: Any) -> list[Any]:
        if len(self.states) < self.world:
            self.states.append(pickle.dumps(value))
            raise AskedError
        return [pickle.loads(state) for state in self.states]


def in_shares(
    world: int, network: Network, task: Task[Any], examples: Sequence[Any]
) -> tuple[list[Evaluation], list[int]]:
    """What each rank comes to, and how many batches each computed."""
    num_batches = [0] * world
    states: list[bytes] = []
    evaluator_class = type(task.evaluator())
    add = evaluator_class.add
    for rank in range(world):

        def count_batch(self: Evaluator, *batch: Any, rank: int = rank) -> None:
            num_batches[rank] += 1
            add(self, *batch)

        group = OneAfterTheOther(rank, world, states)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(evaluator_class, "add", count_batch)
            with pytest.raises(AskedError):
                evaluate(network, task, examples, ENGINE, group=group)
    groups = [OneAfterTheOther(rank, world, states) for rank in range(world)]
    return [evaluate(network, task, examples, ENGINE, group=group) for group in groups], num_batches


def check(network: Network, task: Task[Any], examples: Sequence[Any]) -> None:
    expected = evaluate(network, task, examples, ENGINE)
    for world in (2, 3):
        every, computed = in_shares(world, network, task, examples)
        assert max(computed) - min(computed) <= 4, "one of each window at most"
        assert min(computed) > 0
        assert all(evaluation == every[0] for evaluation in every), "to the bit"
        evaluation = every[0]
        assert evaluation.metrics == pytest.approx(expected.metrics, rel=1e-12)
        assert (evaluation.rows, evaluation.notes) == (expected.rows, expected.notes)
        ours, theirs = (one.breakdown.model_dump() for one in (evaluation, expected))
        for key in ("calibration", "tables"):  # means
            assert str(round_numbers(ours.pop(key))) == str(round_numbers(theirs.pop(key)))
        assert ours == theirs


def round_numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: round_numbers(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [round_numbers(part) for part in value]
    return round(value, 12) if isinstance(value, float) else value


ROWS: dict[str, tuple[str, list[dict[str, Any]], dict[str, Any]]] = {
    "classes": (
        "classification",
        [{"text": text(), "label": str(RANDOM.choice(["x", "y", "z"]))} for _ in range(60)],
        {},
    ),
    "several labels": (
        "multilabel",
        [
            {"text": text(), "label": [name for name in "pqr" if RANDOM.random() < 0.4]}
            for _ in range(60)
        ],
        {},
    ),
    "numbers": (
        "regression",
        [{"text": text(), "label": float(RANDOM.normal())} for _ in range(60)],
        {},
    ),
    "spans": ("tagging", tagged_rows(["B-PER", "O", "B-LOC"]), {}),
    "answers": ("answering", [question(number % 12) for number in range(48)], {"stride": 8}),
    "choices": (
        "choice",
        [
            {
                "prompt": text(),
                "choices": [text() for _ in range(3)],
                "label": int(RANDOM.integers(3)),
            }
            for _ in range(60)
        ],
        {},
    ),
    "passages": (
        "retrieval",
        [
            {
                "query": f"{RANDOM.choice(list('abc'))} {text()}",
                "positive": text(),
                "negative": [text()],
            }
            for _ in range(40)
        ],
        {},
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("name", ROWS)
def test_evaluation_of_labelled_rows_is_shared(name: str) -> None:
    task_name, rows, options = ROWS[name]
    model = random_model(task_name, rows, **options)
    assert model.task is not None
    examples = [model.task.example(row, at, where=f"r{at}") for at, row in enumerate(rows)]
    check(model.network, model.task, examples)


def instances(tokenizer: Tokenizer) -> list[PretrainingExample]:
    return [
        PretrainingExample(
            RANDOM.integers(5, len(PIECES), RANDOM.integers(6, 30)),
            first_segment=4,
            next_sentence_label=key % 2,
            key=key,
        )
        for key in range(40)
    ]


@pytest.mark.long
def test_shares_of_pretraining_have_the_whole_result() -> None:
    tokenizer = Tokenizer.from_vocabulary(PIECES)
    task = PretrainingTask(tokenizer, InstanceSettings(max_seq_length=32))
    check(task.network(CONFIG), task, instances(tokenizer))


@pytest.mark.long
def test_evaluation_of_replaced_tokens_is_shared() -> None:
    tokenizer = Tokenizer.from_vocabulary(PIECES)
    settings = ReplacedTokensSettings(generator_share=0.5)
    task = ReplacedTokensTask(tokenizer, settings=settings, max_length=32)
    config = EncoderConfig(**{**CONFIG.model_dump(), "family": "electra"})
    network = with_generator(DiscriminatorNetwork(config), settings)
    check(network, task, instances(tokenizer))
