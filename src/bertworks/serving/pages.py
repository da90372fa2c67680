"""Pages for browsers: the explorer's files, and the page that asks for a key."""

from __future__ import annotations

from starlette.responses import Response

from ..explorer.page import KEY_POLICY, POLICY, assets

_PATHS = frozenset({"/docs", "/openapi.json"})
"""What a browser may open that needs a key, besides the explorer."""


def accepts_html(accept: str | None) -> bool:
    """Whether a client with this header `accept` is a browser that opens a page."""
    return "text/html" in (accept or "")


def make_file_response(name: str, status: int = 200, policy: str = POLICY) -> Response:
    """Return a file of the explorer's page."""
    content, media_type = assets()[name]
    headers = {
        "cache-control": "no-cache",
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "content-security-policy": policy,
    }
    return Response(content, status, headers, media_type)


def make_key_page(method: str, path: str, accept: str) -> Response | None:
    """Return the page that asks for a key and then shows `path`.

    It is for browsers, which send no key by themselves; None for all other requests.
    """
    if method != "GET" or path not in _PATHS or not accepts_html(accept):
        return None
    return make_file_response("key.html", 401, KEY_POLICY)
