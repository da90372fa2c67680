"""Models with other modules for queries than for documents: `Router` of sentence-transformers.

    router_config.json      `types`: each module's class, by its folder; `structure`: the folders of
                            each route, in order; `parameters`: the default route, and perhaps
                            routes by task and kind of input
    config.json             the same in older models, where the class is `Asym`

A route's folders replace the router among a model's modules. What is written here has the modules
for documents in the model's own directory and the others in `query`.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from ..errors import CheckpointError
from ..utils.json_files import write_json
from .weight_files import read_json

Route = Literal["query", "document"]

KINDS = ("Router", "Asym")
_FILES = ("router_config.json", "config.json")
ROUTER_FILE = _FILES[0]
QUERY = "query"
"""The folder of the modules for queries."""

_OTHER_NAMES: Mapping[Route, tuple[str, ...]] = {
    "query": (),
    "document": ("doc", "passage", "corpus"),
}


def read_route(directory: Path, route: Route) -> list[tuple[str, Path]]:
    """Return the kinds of a route's modules, and their folders in a router's directory.

    Raises:
        CheckpointError: the router's file is missing or damaged, or no route is for this.
    """
    file = next((directory / name for name in _FILES if (directory / name).exists()), None)
    if file is None:
        raise CheckpointError(f"there is no {_FILES[0]}", where=str(directory))
    raw = read_json(file)
    try:
        types = {folder: str(kind).rpartition(".")[2] for folder, kind in raw["types"].items()}
        routes = {
            name: [(types[folder], Path(folder)) for folder in folders]
            for name, folders in raw["structure"].items()
        }
        name = _find_route(routes, raw.get("parameters") or {}, route)
    except (KeyError, TypeError, AttributeError, ValueError, SyntaxError) as error:
        raise CheckpointError(f"is not a router's ({error!r})", where=str(file)) from None
    if name not in routes:
        raise CheckpointError(
            f"of the routes {', '.join(routes)}, none is for a {route}",
            where=str(file),
            fix=f"Rename one to {route!r}, or name it in route_mappings.",
        )
    return routes[name]


def write_routes(
    directory: Path, types: Mapping[str, str], structure: Mapping[Route, Sequence[str]]
) -> None:
    """Write a router's file.

    Args:
        types: the full name of each module's class, by its folder.
        structure: the folders of each route's modules.
    """
    parameters = {"default_route": "document", "allow_empty_key": True}
    content = {"types": types, "structure": structure, "parameters": parameters}
    write_json(directory / ROUTER_FILE, content)


def _find_route(
    routes: Mapping[str, Any], parameters: Mapping[str, Any], route: Route
) -> str | None:
    """The name of a route, in the order in which sentence-transformers looks for it.

    It would not use the default route if a route is asked for; documents do here, since `embed`
    makes vectors of documents by default, and of queries with `is_query`.
    """
    entries = (parameters.get("route_mappings") or {}).items()
    mappings = {ast.literal_eval(key): name for key, name in entries}
    for key in ((route, "text"), (route, None), (None, "text"), (None, None)):
        if key in mappings:
            return str(mappings[key])
    names = (route, "text", *_OTHER_NAMES[route])
    default = parameters.get("default_route") if route == "document" else None
    return next((name for name in (*names, default) if name in routes), None)
