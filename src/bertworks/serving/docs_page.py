"""The page at `/docs`: each route with an example that runs."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from ..reports import page as html


def docs_page(description: Mapping[str, Any], base: str, model: str) -> str:
    """Return an HTML page of the routes of an OpenAPI description.

    Args:
        description: the OpenAPI description.
        base: the server's address, such as http://127.0.0.1:8080/.
        model: name of a served model, for paths that contain one.
    """
    sections: dict[str, list[str]] = {}
    for path, verbs in description["paths"].items():
        for verb, operation in verbs.items():
            tag = operation.get("tags", ["others"])[0]
            sections.setdefault(tag, []).extend(
                _route(path.format(name=model), verb, operation, base)
            )
    info = description["info"]
    return html.page(
        "Routes",
        [info["description"], f"bertworks {info['version']}"],
        [html.section(tag, *parts) for tag, parts in sections.items()],
        "The whole description, with the schema of every field: /openapi.json.",
    )


def _route(path: str, verb: str, operation: Mapping[str, Any], base: str) -> Iterator[str]:
    yield html.subheading(f"{verb.upper()} {path}")
    yield html.paragraph(" ".join(operation.get("description", "").split("\n\n")[0].split()))
    words = ["curl", "-s", base.rstrip("/") + path]
    if operation.get("security"):
        words += ["-H", "authorization: Bearer KEY"]
    if verb == "post":
        example = operation["requestBody"]["content"]["application/json"]["example"]
        body = json.dumps(example, ensure_ascii=False)
        words += ["-H", "content-type: application/json", "-d", body]
    yield f'<pre tabindex="0">{escape(shlex.join(words))}</pre>'
