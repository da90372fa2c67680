"""Servers of the small models of `tests/serving`, and a browser that opens their pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bertworks.explorer.page import page as page_of
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
CORPUS = ("the door was open in london", "a deep river", "the river was open")


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    with browsers() as opened:
        yield opened


@pytest.fixture(scope="package")
def site(directories: dict[str, str]) -> Iterator[Running]:
    """A server whose default model predicts masked words."""
    models = {name: directories[name] for name in MODELS}
    with running({**models, "other": directories["pretrained"]}, corpus=CORPUS) as started:
        yield started


@pytest.fixture(scope="package")
def _tabs() -> Iterator[list[Visit]]:
    """Tabs that no test uses."""
    tabs: list[Visit] = []
    yield tabs
    for tab in tabs:
        tab.close()


@pytest.fixture
def visit(
    browser: Any, site: Running, _tabs: list[Visit], tmp_path: Path
) -> Iterator[Callable[..., Visit]]:
    """A tab on a server's page, or on a file with `data`; its faults are known at the end."""
    visits: list[Visit] = []

    def begin(
        size: str = "desktop",
        *,
        server: Running = site,
        data: dict[str, Any] | None = None,
        **more: Any,
    ) -> Visit:
        url, file = f"{server.url}/", tmp_path / f"page-{len(visits)}.html"
        if data is not None:
            file.write_text(page_of(data), encoding="utf-8")
            url = file.as_uri()
        if _tabs:
            tab = _tabs.pop()
            tab.begin_again(url, size, **more)
        else:
            tab = Visit(browser, url, size, **more)
        visits.append(tab)
        return tab

    yield begin
    for tab in visits:
        tab.forget()
        _tabs.append(tab)


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
