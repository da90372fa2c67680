"""The page from a server, and as one file."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest

import bertworks.explorer.page
from bertworks.explorer.limits import LIMITS
from bertworks.explorer.page import assets, page
from bertworks.serving.security import Keys
from tests.conftest import ROOT

STATIC = Path(bertworks.explorer.page.__file__).parent / "static"
HTML = {"accept": "text/html,application/xhtml+xml"}
IMPORT = re.compile(r'(?:from |import\()"([^"]+)"')

TOKEN = {"token": "</script>", "id": 7, "segment": 0, "position": 1}
ANSWER = {
    "top": [{"token": "sea", "id": 9, "probability": 0.5}],
    "original": {"token": "river", "id": 3, "probability": 0.25, "rank": 2},
}
DATA: dict[str, Any] = {
    "model": {"name": "mini"},
    "text": "a </script><b>",
    "pair": None,
    "pieces": {"tokens": [TOKEN], "words": [{"number": 0, "text": "<b>"}]},
    "prediction": None,
    "heads": {"ranked": [{"layer": 0, "head": 1, "change": 0.25}]},
    "occlusion": {"words": [{"word": 0, "change": -0.125}]},
    "fill": None,
    "masks": [{"word": 0, "blanks": [{"both": ANSWER}]}],
    "masked": None,
}


@pytest.mark.parametrize("file", ["explorer.md", "serving.md"])
def test_limit_of_tokens_is_that_of_the_manual(file: str) -> None:
    text = (ROOT / "docs" / file).read_text("utf-8")
    assert f"at most {LIMITS['tokens']} tokens" in text


def test_a_browser_gets_the_page_and_others_the_servers_health(server) -> None:
    page = server.http.get("/", headers=HTML)
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    assert "script-src 'self'" in page.headers["content-security-policy"]
    for found in re.findall(r'(?:href|src)="\./([^"]+\.(?:css|js))"', page.text):
        assert server.http.get(f"/{found}").status_code == 200, found
    health = server.http.get("/")
    assert (health.status_code, health.content) == (200, b"")


@pytest.mark.long
def test_page_and_files_need_no_key_and_nothing_else_is_given_out(directories, start) -> None:
    with start({"m": directories["encoder"]}, keys=Keys({"me": "0123456789abcdef"})) as site:
        assert site.http.get("/", headers=HTML).status_code == 200
        assert site.http.get("/explore/static/views/fill.js").status_code == 200
        assert site.http.get("/explore/static/../page.py").status_code in (401, 404)
        assert site.http.get("/explore/static/%2e%2e/page.py").status_code == 404
        assert site.http.get("/explore/static/views").status_code == 404
        assert site.http.get("/info").status_code == 401


def test_every_module_imports_modules_that_are_there_and_is_used() -> None:
    modules = {"app.js", "key-page.js"}
    for name in filter(lambda name: name.endswith(".js"), assets()):
        for found in IMPORT.findall((STATIC / name).read_text()):
            target = (STATIC / name).parent / found
            assert target.is_file(), f"{name} imports {found}"
            modules.add(target.resolve().relative_to(STATIC.resolve()).as_posix())
    assert modules == {name for name in assets() if name.endswith(".js")}


def test_a_file_holds_all_that_it_needs_and_its_text_cannot_leave_its_place() -> None:
    text = page(DATA)
    (imports,) = re.findall(r'<script type="importmap">(.*?)</script>', text)
    modules = json.loads(imports)["imports"]
    for name, url in modules.items():
        code = base64.b64decode(url.partition(",")[2]).decode()
        assert set(IMPORT.findall(code)) <= modules.keys(), name
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text)
    assert json.loads(data) == DATA
    assert not re.search(r'(?:src|href)="(?!data:|#)', text), "it asks for nothing"
    assert "default-src 'none'" in text


def test_page_has_tables_without_javascript() -> None:
    (noscript,) = re.findall(r"<noscript>(.*?)</noscript>", page(DATA), re.DOTALL)
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in noscript.split("<tr>")]
    assert list(filter(None, rows)) == [
        ["&lt;/script&gt;", "7", "1", "0"],
        ["&lt;b&gt;", "river 25.00%", "sea 50.0%"],
        ["&lt;b&gt;", "-0.1250"],
        ["1", "2", "+0.2500"],  # counted from 1, as in the views
    ]


def test_page_names_results_of_a_masked_word_without_javascript() -> None:
    masked = {"word": 0, "prediction": None, "heads": None, "occlusion": DATA["occlusion"]}
    (noscript,) = re.findall(r"<noscript>(.*?)</noscript>", page(DATA | {"masked": masked}), re.S)
    assert "Which words decided, with “&lt;b&gt;” masked" in noscript
    assert "Heads by their effect" not in noscript
