"""The promises of every task: readable answers, and the same numbers for a padded batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from bertworks.packed import Padded
from bertworks.tasks import find_labelled_task
from bertworks.tasks.task import DisplayValue, Task

from .test_choice import CONFIG, TOKENIZER
from .test_edges import TASKS


def task_of(name: str, **values: Any) -> Task[Any]:
    return find_labelled_task(name).from_dict(
        {**TASKS[name], **values, "max_seq_length": 16}, TOKENIZER
    )


SURE = {"a": 0.25, "b": 0.75}
PERSON = {"type": "PER", "text": "a b", "probability": 0.5}
TAGGING = {"words": ["a", "b"], "tags": ["O", "X"], "probabilities": [0.5, 0.75]}


@pytest.mark.parametrize(
    ("name", "values", "prediction", "lines"),
    [
        ("classification", {}, {"label": "b", "probabilities": SURE}, [("b", 0.75)]),
        ("classification", {}, {"label": "b"}, [("b", None)]),
        (
            "multilabel",
            {},
            {"labels": ["b", "a"], "probabilities": SURE},
            [("b", 0.75), ("a", 0.25)],
        ),
        ("regression", {}, {"value": 1.5}, [(1.5, None)]),
        ("tagging", {"spans": False}, TAGGING, [("a: O", 0.5), ("b: X", 0.75)]),
        ("tagging", {}, {**TAGGING, "entities": [PERSON]}, [("PER: a b", 0.5)]),
        ("answering", {}, {"answer": "a b", "probability": 0.5}, [("a b", 0.5)]),
        ("answering", {}, {"answer": "", "probability": 0.5}, [("no answer", 0.5)]),
        ("choice", {}, {"choice": 1}, None),
        ("retrieval", {}, {"similarity": 0.5}, [(0.5, None)]),
        ("translation", {}, {"translation": "a b"}, [("a b", None)]),
    ],
)
def test_a_prediction_is_shown_line_by_line(
    name: str, values: dict[str, Any], prediction: dict[str, Any], lines: list[DisplayValue] | None
) -> None:
    assert task_of(name, **values).display_values(prediction) == lines


ROWS: dict[str, list[dict[str, Any]]] = {
    "classification": [{"text": "a"}, {"text": "b c d"}],
    "multilabel": [{"text": "a"}, {"text": "b c d"}],
    "regression": [{"text": "a"}, {"text": "b c d"}],
    "tagging": [{"words": ["a"]}, {"words": ["b", "c"]}],
    "answering": [{"question": "a", "context": "b"}, {"question": "a b", "context": "c d"}],
    "choice": [{"prompt": "a", "choices": ["b", "c d"]}, {"prompt": "a b", "choices": ["c", "d"]}],
    "retrieval": [{"a": "a", "b": "b c"}],
    "translation": [{"text": "a"}, {"text": "b c d"}],
}


@pytest.mark.parametrize("name", ROWS)
def test_a_padded_batch_gives_what_a_pack_does(name: str) -> None:
    """The rows are in order of length, which is that of a pack."""
    task = task_of(name)
    torch.manual_seed(0)
    network = task.network(CONFIG).eval()
    examples = [task.example(row, at, labelled=False) for at, row in enumerate(ROWS[name])]
    batch = task.collate(examples).to("cpu")
    ids, mask = batch.packed.to_padded()
    types, _ = batch.packed.to_padded(batch.packed.token_type_ids)
    outputs = network.padded(Padded.from_tensors(ids, mask, types))

    expected: dict[str, Tensor]
    if name in ("retrieval", "translation"):  # their exports are those of an encoder
        outputs = {"hidden": outputs["last_hidden_state"][mask]}
        expected = {"hidden": network.encoder(batch.packed)}
    else:
        expected = network.predict(batch)
        match name:
            case "regression":
                expected = {"logits": expected["values"][:, None]}
            case "choice":
                expected = {"logits": expected["logits"].reshape(-1, 1)}
            case "tagging":
                outputs = {"logits": outputs["logits"][mask][batch.targets["positions"]]}
            case "answering":
                outputs = {key: values[mask] for key, values in outputs.items()}
                start, end = expected["logits"].unbind(-1)
                expected = {"start_logits": start, "end_logits": end}
    assert outputs.keys() == expected.keys()
    for key, values in expected.items():
        torch.testing.assert_close(outputs[key], values, rtol=0, atol=1e-6)
