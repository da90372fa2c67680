"""The documentation as a site: no broken links, and no files from other hosts."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.explorer.browser import browsers

pytest.importorskip("mkdocs", reason="pip install '.[docs]'")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    # Not --quiet: what is not logged is not counted, and warnings of links are to fail.
    command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(out)]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    return out


@pytest.mark.long  # the whole documentation
def test_pages_load_no_file_from_another_host(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert {page.stem for page in pages} >= {
        file.stem for file in (ROOT / "docs").rglob("*.md") if file.stem != "README"
    }
    loads = re.compile(r'<(?:script|img|iframe|source|link)\b[^>]*\b(?:src|href)="?(https?:)?//')
    for page in pages:
        assert not loads.search(page.read_text(encoding="utf-8")), page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\(\W?(https?:)?//", sheet.read_text(encoding="utf-8")), sheet


@pytest.mark.long  # the whole documentation
def test_a_list_is_a_list(site: Path) -> None:
    for page in sorted(site.rglob("*.html")):
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"^- <(strong|em|code)>", text, re.M), f"{page}: no empty line before"


@pytest.mark.long  # the whole documentation
def test_pictures_are_inline_and_the_api_is_there(site: Path) -> None:
    for page in sorted((site / "learn").glob("[01]*.html")):
        assert page.read_text(encoding="utf-8").count('<svg role="img" class="picture"') >= 2, page
    reference = (site / "reference.html").read_text(encoding="utf-8")
    for name in ("loading.load", "model.Model.fill_mask", "training.finetune.finetune"):
        assert f'id="bertworks.{name}"' in reference, name
    settings = (site / "settings.html").read_text(encoding="utf-8")
    for name in ('id="embed"', 'id="finetune-tagging"', "<code>decoding</code>"):
        assert name in settings, name
    files = (site / "files.html").read_text(encoding="utf-8")
    assert files.count("<h2") == 10 and "manifest.json" in files


@pytest.mark.long  # a browser
@pytest.mark.parametrize(("width", "colours"), [(360, "dark"), (1280, "light")])
def test_pages_fit_and_ask_no_other_host(site: Path, width: int, colours: str) -> None:
    with browsers() as browser:
        context = browser.new_context(
            viewport={"width": width, "height": 800}, color_scheme=colours
        )
        page = context.new_page()
        urls: list[str] = []
        page.on("request", lambda request: urls.append(request.url))
        page.set_default_timeout(60_000)
        for name in ("index", "01-words-as-vectors", "07-four-shapes", "which-model"):
            file = site / "learn" / f"{name}.html"
            page.goto(file.as_uri(), wait_until="load")
            wide = page.evaluate("document.documentElement.scrollWidth")
            assert wide <= width, f"{file.name} is {wide} wide"
        assert all(url.startswith(("file:", "data:", "blob:")) for url in urls), urls
