"""The OpenAPI description, and the page at `/docs`: each route with an example that runs."""

from __future__ import annotations

import copy
import json
import shlex
from collections.abc import Callable, Iterator, Mapping
from html import escape
from typing import Any

from fastapi import FastAPI

from ..reports import page as html
from ..tasks.texts import TextTask
from .loaded_model import LoadedModel
from .models import Models
from .request_error import ERROR_SCHEMAS, ErrorFormat
from .service import Service

ERRORS = {
    400: "A value is impossible, or the body is not valid JSON.",
    401: "No valid API key.",
    403: "The request names another host.",
    404: "No such model.",
    408: "The deadline passed.",
    413: "Too many texts, or too long.",
    415: "The content type is not application/json.",
    422: "A value of a wrong type, or a text that cannot be tokenised.",
    424: "The model was not trained for it, or its output is not finite.",
    429: "The server is busy; see Retry-After.",
    431: "The headers are too long.",
    503: "The server stops, or the model cannot be loaded.",
}
"""What each status means, for the description."""

TEXT = "What is deep learning?"
Examples = Mapping[str, tuple[str, Mapping[str, Any]]]
"""For each described POST route, the capability that a model must have, and an example request.

The description leaves out the routes that no model can answer. It has examples of those that a
loaded model can answer.
"""


def find_example(examples: Examples, models: Models, path: str) -> dict[str, Any] | None:
    """Return the example of a route, for a loaded model that can answer it; None if none can."""
    capability, body = examples[path]
    for loaded_model in models.list_loaded():
        if capability in loaded_model.capabilities:
            return {"model": loaded_model.name, **_adapt_example(dict(body), path, loaded_model)}
    return None


def _adapt_example(body: dict[str, Any], path: str, loaded_model: LoadedModel) -> dict[str, Any]:
    """Adapt an example to a model: its mask token, its columns, pairs if it expects pairs."""
    tokenizer = loaded_model.model.tokenizer
    for field in ("inputs", "text"):
        if "{mask}" in body.get(field, ""):
            body[field] = body[field].format(mask=tokenizer.id_to_token(tokenizer.mask_id))
    task = loaded_model.task
    takes_pairs = isinstance(task, TextTask) and task.settings.pair_column is not None
    if path in ("/predict", "/classify") and takes_pairs:
        body["inputs"] = [[TEXT, "It learns layers of features."]]
    if path == "/predict-rows" and task is not None:
        body["rows"] = [dict.fromkeys(task.column_names, TEXT)]
    return body


def make_openapi(
    app: FastAPI, service: Service, examples: Examples
) -> Callable[[], dict[str, Any]]:
    """Return a function that makes the OpenAPI description, for the models loaded at that time."""
    default_openapi, with_keys = app.openapi, bool(service.keys)

    def openapi() -> dict[str, Any]:
        description = copy.deepcopy(default_openapi())
        schemas = description["components"]["schemas"]
        for model in ERROR_SCHEMAS.values():
            schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas |= schema.pop("$defs", {})
            schemas[model.__name__] = schema
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        for path, methods in tuple(description["paths"].items()):
            for operation in methods.values():
                error_format = service.error_formats.find(path)
                _describe(operation, path, error_format, with_keys=with_keys)
            if "post" in methods:
                example = find_example(examples, service.models, path)
                content = methods["post"]["requestBody"]["content"]["application/json"]
                if example is not None:
                    content["example"] = example
                elif not service.models.unloaded_names:
                    del description["paths"][path]
        if with_keys:
            description["components"]["securitySchemes"] = {
                "key": {"type": "http", "scheme": "bearer"}
            }
        return description

    return openapi


def _describe(
    operation: dict[str, Any], path: str, error_format: ErrorFormat, *, with_keys: bool
) -> None:
    """Add the error responses, and the API key if the route needs one."""
    name = ERROR_SCHEMAS[error_format].__name__
    schema = {"schema": {"$ref": f"#/components/schemas/{name}"}}
    for code, text in ERRORS.items():
        has_body = code != 401 or error_format != "tei"
        content = {"content": {"application/json": schema}} if has_body else {}
        operation["responses"][str(code)] = {"description": text, **content}
    if with_keys and path not in ("/health", "/ready"):
        operation["security"] = [{"key": []}]


def docs_page(description: Mapping[str, Any], base: str, model: str) -> str:
    """Return an HTML page of the routes of an OpenAPI description.

    Args:
        description: the OpenAPI description.
        base: the server's address, such as http://127.0.0.1:8080/.
        model: name of a served model, for paths that contain one.
    """
    sections: dict[str, list[str]] = {}
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            tag = operation.get("tags", ["others"])[0]
            sections.setdefault(tag, []).extend(
                _route(path.format(name=model), method, operation, base)
            )
    info = description["info"]
    return html.page(
        "Routes",
        [info["description"], f"bertworks {info['version']}"],
        [html.section(tag, *parts) for tag, parts in sections.items()],
        "The whole description, with the schema of every field: /openapi.json.",
    )


def _route(path: str, method: str, operation: Mapping[str, Any], base: str) -> Iterator[str]:
    yield html.subheading(f"{method.upper()} {path}")
    yield html.paragraph(" ".join(operation.get("description", "").split("\n\n")[0].split()))
    words = ["curl", "-s", base.rstrip("/") + path]
    if operation.get("security"):
        words += ["-H", "authorization: Bearer KEY"]
    if method == "post":
        example = operation["requestBody"]["content"]["application/json"].get("example")
        if example is None:
            yield html.paragraph("No model that is loaded can answer it.")
            return
        body = json.dumps(example, ensure_ascii=False)
        words += ["-H", "content-type: application/json", "-d", body]
    yield f'<pre tabindex="0">{escape(shlex.join(words))}</pre>'
