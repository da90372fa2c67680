"""A browser, if there is one: what the tests of the page share."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SIZES = {"desktop": (1280, 900), "phone": (360, 740)}
_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


@contextmanager
def browsers() -> Iterator[Any]:
    """Chromium, which Playwright drives; the test is skipped, with the reason, without it."""
    playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
    program = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, _NAMES)), None)
    if program is None:
        pytest.skip("no Chromium: install it, or say in CHROMIUM where it is")
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield opened
        opened.close()


def axe() -> str:
    """axe-core's script; the test is skipped, with the reason, without it."""
    places = [Path(os.environ.get("AXE_CORE", "")), ROOT / "node_modules" / "axe-core"]
    for place in places:
        file = place / "axe.min.js" if place.is_dir() else place
        if file.is_file():
            return file.read_text(encoding="utf-8")
    pytest.skip("no axe-core: npm install, or say in AXE_CORE where it is")


# Follow a link within the page; return whether it changes the page, which is then drawn again.
_SHOW = """link => {
    const before = location.href;
    document.querySelector("main h1").dataset.old = true;
    location.hash = link;
    return location.href !== before;
}"""


class Visit:
    """A tab in which nothing may go wrong: no error of a script or of the content policy, and no
    request to another host.

    Args:
        browser: Playwright's.
        url: the page's.
        size: of `SIZES`.
        more: of a browser's context.
    """

    def __init__(self, browser: Any, url: str, size: str = "desktop", **more: Any) -> None:
        width, height = SIZES[size]
        viewport = {"width": width, "height": height}
        self.url, self.width, self.faults = url, width, list[str]()
        self.context = browser.new_context(viewport=viewport, reduced_motion="reduce", **more)
        self.context.set_default_timeout(20_000)
        self.page = self.context.new_page()
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("console", self._note)
        self.page.on("request", self._check_host)

    def begin_again(self, url: str, size: str = "desktop", *, color_scheme: str = "light") -> None:
        """Use the tab like a new one, in a fraction of the time."""
        width, height = SIZES[size]
        self.url, self.width = url, width
        self.page.set_viewport_size({"width": width, "height": height})
        self.page.emulate_media(color_scheme=color_scheme, reduced_motion="reduce")

    def forget(self) -> None:
        """Leave the page, and remove what it has stored."""
        self.page.unroute_all()
        self.page.evaluate("localStorage.clear(); sessionStorage.clear()")
        self.context.clear_cookies()
        self.page.goto("about:blank")
        assert self.faults == []

    def _note(self, message: Any) -> None:
        refused = "Failed to load resource: the server responded"  # the page itself says why
        if message.type in ("error", "warning") and not message.text.startswith(refused):
            self.faults.append(message.text)

    def _check_host(self, request: Any) -> None:
        if not request.url.startswith((self.url, "data:", "blob:")):
            self.faults.append(f"asks {request.url}")

    def open(self, link: str = "") -> Any:
        """A view, once it has answered."""
        self.page.goto("about:blank")
        self.page.goto(f"{self.url}{link}")
        self.settle()
        return self.page

    def show(self, link: str) -> Any:
        """Another view of the page that is open, which is not loaded again."""
        if self.page.evaluate(_SHOW, link):
            self.page.wait_for_selector("main h1:not([data-old])")
        self.settle()
        return self.page

    def settle(self) -> None:
        """Wait until nothing is computed."""
        self.page.wait_for_selector("main h1")
        self.page.wait_for_selector('main:not([aria-busy="true"])')

    def close(self) -> None:
        self.context.close()
        assert self.faults == []
