"""The names that users type are still there, or are aliases that work."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import bertworks as bw

from . import accepted, look, surface

FORMER_OPTIONS: dict[str, list[str]] = {}
"""Lines of `options.txt` that are no longer there, and a command line that has to work still.

For example `{"embed --pooling cls": ["embed", "models/small", "a text", "--pooling", "cls", …]}`.
"""


def with_header(method: str, *given: Any) -> Callable[[], Any]:
    """A use of `header=`, which is one of the options of tables now."""

    def use() -> Any:
        model = bw.load("models/classification", device="cpu")
        made = getattr(model, method)(*given, header=True)
        return list(made) if method == "stream" else made

    return use


FORMER_NAMES: dict[str, Callable[[], Any]] = {
    "Model.stream(header)": with_header("stream", ["Ben drew the door"]),
    "Model.evaluate(header)": with_header("evaluate", "tables/single-dev.jsonl"),
    "Model.embed_to(header)": with_header("embed_to", "header.npy", "tables/single-dev.jsonl"),
    "Model.features_to(header)": with_header(
        "features_to", "header.parquet", "tables/single-dev.jsonl"
    ),
    "Index.open(header)": lambda: bw.Index.open(
        bw.load("models/classification", device="cpu"), "tables/single-dev.jsonl", header=True
    ),
}
"""Lines of `api.txt` that are no more as such, and what has to work all the same."""


def lines(file: str) -> set[str]:
    return set((look.DIRECTORY / file).read_text(encoding="utf-8").splitlines())


def test_the_options_are_there() -> None:
    assert lines("options.txt") - set(surface.options()) == FORMER_OPTIONS.keys()


def test_former_options_work() -> None:
    for command in FORMER_OPTIONS.values():
        accepted.invoke(command)


def test_the_names_are_there() -> None:
    assert lines("api.txt") - set(surface.names()) == FORMER_NAMES.keys()


def test_former_names_work() -> None:
    with accepted.deprecations():
        for use in FORMER_NAMES.values():
            use()


CALLS = json.loads((look.DIRECTORY / "calls.json").read_bytes())["calls"]
GIVEN: dict[str, Any] = {
    "embed": ["the door"],
    "generate": "the river",
    "predict": ["Ben drew the door"],
    "evaluate": "tables/single-dev.jsonl",
}


@pytest.mark.parametrize("method", sorted({method for _, method, _ in CALLS}))
def test_each_setting_of_a_method_is_taken_by_name(root: Path, tmp_path: Path, method: str) -> None:
    name = next(model for model, of, _ in CALLS if of == method)
    call = getattr(bw.load(root / "models" / name, device="cpu"), method)
    with accepted.deprecations():
        for number, settings in enumerate(settings for _, of, settings in CALLS if of == method):
            given = [GIVEN[method]] if method in GIVEN else [tmp_path / f"{number}.parquet", ["a"]]
            call(*given, **settings)
