"""What `/info` says of a model and the server, in text-embeddings-inference's format, and more."""

from __future__ import annotations

from typing import Any

from ... import __version__
from ...tasks.tagging.task import TaggingTask
from ...tasks.task import Task
from ..loaded_model import LoadedModel
from ..service import Service

_DTYPES = {"fp32": "float32", "tf32": "float32", "bf16": "bfloat16", "fp16": "float16"} | {
    "int8": "int8"
}
"""The names in `/info` of the precisions of the encoder."""


def describe_server(service: Service, loaded_model: LoadedModel) -> dict[str, Any]:
    """Return the content of `/info` for a model."""
    limits = service.settings
    return {
        "model_id": loaded_model.source,
        "model_sha": loaded_model.digest,
        "load_time": int(loaded_model.load_time),
        "model_dtype": _DTYPES[loaded_model.precision],
        "served_model_name": loaded_model.name,
        "model_type": describe_model_type(loaded_model),
        "max_concurrent_requests": limits.max_concurrent_requests,
        "max_input_length": loaded_model.get_embed_runner().embedder.limit,
        "max_batch_tokens": service.queue.batch_tokens,
        "max_batch_requests": None,
        "max_client_batch_size": limits.max_texts,
        "auto_truncate": False,
        "tokenization_workers": 1,
        "version": __version__,
        "sha": None,
        "docker_label": None,
        "task": None if loaded_model.task is None else loaded_model.task.name,
        "capabilities": sorted(loaded_model.capabilities),
        "precision": loaded_model.make_engine_settings().precision,
        "prompts": dict(loaded_model.prompts.texts),
        "default_prompt_name": loaded_model.prompts.default,
        "similarity_fn_name": loaded_model.model.similarity_function,
        "compares_queries": loaded_model.model.compares_queries,
        "models": service.models.available,
        "unavailable_models": {
            name: str(failure.error) for name, failure in service.models.failures.items()
        },
        "row_context": describe_row_context(loaded_model.task),
    }


def describe_row_context(task: Task[Any] | None) -> dict[str, Any] | None:
    """Return on which neighbouring rows a prediction depends, for clients that split rows.

    Returns:
        None: on none. Else the columns of a row's words and document, and the number of its
        document's words on each side that are read; empty for a user's task, whose rows are not
        known.
    """
    method = None if task is None else type(task).add_context
    if isinstance(task, TaggingTask) and method is TaggingTask.add_context:
        settings = task.settings
        if not settings.document_context:
            return None
        words = settings.max_seq_length
        return {"word": task.column("word"), "document": settings.document_column, "words": words}
    return None if method in (None, Task.add_context) else {}


def describe_model_type(loaded_model: LoadedModel) -> dict[str, Any]:
    """Return the model's type in text-embeddings-inference's format."""
    labels = loaded_model.model.labels or ("LABEL_0",)
    names = {
        "id2label": {str(number): name for number, name in enumerate(labels)},
        "label2id": {name: number for number, name in enumerate(labels)},
    }
    if "rerank" in loaded_model.capabilities:
        return {"reranker": names}
    if "classify" in loaded_model.capabilities:
        return {"classifier": names}
    pooling = loaded_model.get_embed_runner().embedder.pooling
    return {"embedding": {"pooling": pooling}}
