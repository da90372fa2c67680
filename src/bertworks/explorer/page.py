"""The explorer's page: as files that a server sends, and as one file with its data.

Both show the same views (`static/`, plain JavaScript modules). Neither requests anything from
another host: a content security policy, in the server's header and in the file, forbids it.
"""

from __future__ import annotations

import base64
import json
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

from ..reports import page as html

_STATIC = Path(__file__).parent / "static"
_TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html"}
_IMPORT = re.compile(r'(from |import\()"(\.{1,2}/[^"]+)"')
_STYLE = re.compile(r'<link rel="stylesheet" href="\./explore/static/([^"]+)">')
_CHARSET = '<meta charset="utf-8">'
_SCRIPT = '<script type="module" src="./explore/static/app.js"></script>'
_NOSCRIPT = re.compile(r"<noscript>.*?</noscript>", re.DOTALL)
_FILE_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' data:; style-src 'unsafe-inline'; "
    "img-src data: blob:; base-uri 'none'; form-action 'none'"
)

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The content security policy of the page that a server sends."""

KEY_POLICY = POLICY.replace("style-src 'self'", "style-src 'self' 'unsafe-inline'")
"""That of the page that asks for a key, and then shows another page, with its style."""


@cache
def assets() -> Mapping[str, tuple[bytes, str]]:
    """The page's files: content and media type, by their path in `static/`."""
    return {
        path.relative_to(_STATIC).as_posix(): (path.read_bytes(), _TYPES[path.suffix])
        for path in sorted(_STATIC.rglob("*.*"))
    }


def page(data: Mapping[str, Any]) -> str:
    """Return one self-contained HTML file about a text.

    Args:
        data: the result of `explain`; the views read it instead of requesting it from a server.
    """
    files = {name: content.decode() for name, (content, _) in assets().items()}
    modules = {
        f"explorer/{name}": _data_url(_absolute_imports(name, text))
        for name, text in files.items()
        if name.endswith(".js")
    }
    script = (
        f'<script type="importmap">{json.dumps({"imports": modules})}</script>\n'
        '<script type="module">import "explorer/app.js";</script>'
    )
    policy = f'<meta http-equiv="Content-Security-Policy" content="{_FILE_POLICY}">'
    json_text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    tables = "\n".join(_tables(data))
    text = files["index.html"]
    text = text.replace(_CHARSET, f"{_CHARSET}\n{policy}")
    text = _STYLE.sub(lambda match: f"<style>\n{files[match[1]]}</style>", text)
    text = _NOSCRIPT.sub(lambda _: f"<noscript>\n{tables}\n</noscript>", text)
    text = text.replace(_SCRIPT, script)
    json_text = f'<script type="application/json" id="data">{json_text}</script>'
    return text.replace("</body>", f"{json_text}\n</body>")


def _absolute_imports(name: str, text: str) -> str:
    """A module's text, with relative imports replaced by the names in the import map."""
    folder = posixpath.join("explorer", posixpath.dirname(name))

    def replace(match: re.Match[str]) -> str:
        return f'{match[1]}"{posixpath.normpath(posixpath.join(folder, match[2]))}"'

    return _IMPORT.sub(replace, text)


def _data_url(text: str) -> str:
    return f"data:text/javascript;base64,{base64.b64encode(text.encode()).decode()}"


def _tables(data: Mapping[str, Any]) -> Iterator[str]:
    """The main numbers as tables, for readers without JavaScript."""
    words = [word["text"] for word in data["pieces"]["words"]]
    masked = data["masked"]
    results = masked or data
    note = f", with “{words[masked['word']]}” masked" if masked else ""
    prediction = results["prediction"]
    blanks = (data["fill"] or {"blanks": ()})["blanks"]
    hidden = [(one["word"], blank) for one in data["masks"] or () for blank in one["blanks"]]
    changes = (results["occlusion"] or {"words": ()})["words"]
    heads = (results["heads"] or {"ranked": ()})["ranked"][:10]
    yield f"<h1>{escape(' · '.join(filter(None, [data['text'], data['pair']])))}</h1>"
    yield html.paragraph(f"Results of the model {data['model']['name']}.")
    yield _section(
        "Pieces",
        ("Piece", "Id", "Position", "Segment"),
        [
            (one["token"], one["id"], one["position"], one["segment"])
            for one in data["pieces"]["tokens"]
        ],
        numbers=3,
    )
    yield _section(
        f"Prediction{note}",
        ("", "Probability"),
        [] if prediction is None else _prediction_rows(prediction),
        numbers=1,
    )
    yield _section(
        "Blanks",
        ("Blank", "Most probable"),
        [
            (at, _most_probable(blank["both"] or blank["left"]))
            for at, blank in enumerate(blanks, 1)
        ],
    )
    yield _section(
        "Each word masked",
        ("Word", "Original piece", "Most probable"),
        [
            (words[word], _original(blank["both"]), _most_probable(blank["both"]))
            for word, blank in hidden
        ],
    )
    yield _section(
        f"Which words decided{note}",
        ("Hidden word", "Change in probability"),
        [(words[one["word"]], f"{one['change']:+.4f}") for one in changes],
        numbers=1,
    )
    yield _section(
        f"Heads by their effect{note}",
        ("Layer", "Head switched off", "Change in probability"),
        [(one["layer"] + 1, one["head"] + 1, f"{one['change']:+.4f}") for one in heads],
        numbers=1,
    )


def _section(
    heading: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], numbers: int = 0
) -> str:
    """A table with its heading; empty without rows."""
    return html.section(heading, html.table(columns, rows, numbers=numbers) if rows else "")


def _prediction_rows(prediction: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows = [(one["name"], f"{one['probability']:.2%}") for one in prediction["distribution"]]
    return rows or [(prediction["target"]["name"], f"{prediction['probability']:.4g}")]


def _original(answer: Mapping[str, Any]) -> str:
    """The piece that was hidden, and its probability."""
    return f"{answer['original']['token']} {answer['original']['probability']:.2%}"


def _most_probable(answer: Mapping[str, Any]) -> str:
    return ", ".join(f"{one['token']} {one['probability']:.1%}" for one in answer["top"][:3])
