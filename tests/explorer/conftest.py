"""Servers of the small models of `tests/serving`, and a browser that looks at them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.explorer.browser import Visit, browsers
from tests.serving.conftest import (
    Running,
    directories,
    directory,
    get_model,
    running,
    server,
    start,
)

__all__ = ["directories", "directory", "get_model", "server", "start"]

MODELS = ("pretrained", "encoder", "classifier", "tagger", "answering", "causal")


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    with browsers() as opened:
        yield opened


@pytest.fixture(scope="package")
def site(directories: dict[str, str]) -> Iterator[Running]:
    """A server whose default model predicts masked words."""
    models = {name: directories[name] for name in MODELS}
    with running({**models, "other": directories["pretrained"]}) as started:
        yield started


@pytest.fixture
def visit(browser: Any, site: Running) -> Iterator[Callable[..., Visit]]:
    """A tab on the server's page; what went wrong in it is known at the end."""
    visits: list[Visit] = []

    def begin(size: str = "desktop", **more: Any) -> Visit:
        visits.append(Visit(browser, f"{site.url}/", size, **more))
        return visits[-1]

    yield begin
    for one in visits:
        one.close()


@pytest.fixture(scope="package")
def _shared_tab(browser: Any, site: Running) -> Iterator[Visit]:
    permissions = ["clipboard-read", "clipboard-write"]
    visit = Visit(browser, f"{site.url}/", permissions=permissions)
    visit.open("#/pieces")
    yield visit
    visit.close()


@pytest.fixture
def tab(_shared_tab: Visit) -> Iterator[Visit]:
    """A tab on the server's page that several tests use one after the other."""
    yield _shared_tab
    faults, _shared_tab.faults = _shared_tab.faults, []
    assert faults == []
