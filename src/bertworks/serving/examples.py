"""A request of each route that can be run as it stands, for the OpenAPI page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .models import Models, Served

TEXT = "What is deep learning?"
EXAMPLES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "/v1/embeddings": ("embed", {"input": ["A first text.", "And a second one."]}),
    "/embeddings": ("embed", {"input": TEXT}),
    "/v1/rerank": (
        "rerank",
        {"query": TEXT, "documents": ["It learns layers of features.", "A river is deep."]},
    ),
    "/embed": ("embed", {"inputs": ["A first text.", "And a second one."]}),
    "/embed_all": ("embed", {"inputs": TEXT}),
    "/predict": ("classify", {"inputs": [["A fine film."], ["A dull one."]]}),
    "/rerank": ("rerank", {"query": TEXT, "texts": ["It learns features.", "A river is deep."]}),
    "/similarity": (
        "embed",
        {"inputs": {"source_sentence": TEXT, "sentences": ["What is learning?", "A river."]}},
    ),
    "/tokenize": ("embed", {"inputs": "Unaffable words are split."}),
    "/decode": ("embed", {"ids": [[5, 6, 7]]}),
    "/encode": (
        "embed",
        {"id": 1, "texts": ["hello world", "good day"], "pooling": "mean", "layers": [-1]},
    ),
    "/fill-mask": ("fill-mask", {"inputs": "The door was {mask}.", "top_k": 3}),
    "/classify": ("classify", {"inputs": ["A fine film.", "A dull one."]}),
    "/tag": ("tag", {"inputs": ["Ada Lovelace was born in London."]}),
    "/answer": (
        "answer",
        {
            "inputs": {
                "question": "Where was she born?",
                "context": "Ada Lovelace was born in London.",
            }
        },
    ),
    "/next-sentence": (
        "next-sentence",
        {"inputs": [["She opened the door.", "It was cold outside."]]},
    ),
    "/generate": ("generate", {"inputs": "once upon a time", "max_new_tokens": 8}),
    "/predict-rows": ("predict-rows", {"rows": [{"text": "A fine film."}]}),
}
"""The verb that a model must have, and the request, by route."""


def runnable(models: Models, path: str) -> dict[str, Any] | None:
    """The example of a route, with a model that can answer it; None if no loaded model can.

    Models that are not loaded yet may be able to: as long as there are such, there is an example.
    """
    if path not in EXAMPLES:
        return None if path != "/embed_sparse" else {"inputs": TEXT}
    verb, body = EXAMPLES[path]
    loaded = models.all_loaded()
    served = next((one for one in loaded if verb in one.verbs), None)
    if served is None:
        return None if len(loaded) == len(models.sources) else {**body, "model": models.default}
    return {"model": served.name, **_of_model(dict(body), path, served)}


def _of_model(body: dict[str, Any], path: str, served: Served) -> dict[str, Any]:
    """An example in the model's words: its mask, its columns, pairs if it takes these alone."""
    tokenizer = served.model.tokenizer
    if path == "/fill-mask":
        body["inputs"] = body["inputs"].format(mask=tokenizer.id_to_token(tokenizer.mask_id))
    settings = getattr(served.task, "settings", None)
    columns = getattr(settings, "columns", None)
    if path in ("/predict", "/classify") and getattr(columns, "pair", None) is not None:
        body["inputs"] = [[TEXT, "It learns layers of features."]]
    if path == "/predict-rows" and served.task is not None:
        body["rows"] = [dict.fromkeys(served.task.column_names, TEXT)]
    return body
