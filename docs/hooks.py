"""What the site adds to Markdown: pages from other folders, and pictures in its colours."""

from __future__ import annotations

import posixpath
import re
from html import escape
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
PAGES = {
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changes.md": "CHANGELOG.md",
    "benchmarks.md": "benchmarks/README.md",
}
"""Pages of the site that are files of the repository, by their path on the site."""

_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\((?!https?:|#)([^)\s]+)\)")
_PICTURE = re.compile(r'<img alt="([^"]*)" src="([^":]+\.svg)" ?/?>')


def on_files(files: Files, config: Any) -> Files:
    for path, source in PAGES.items():
        page = (ROOT / source).read_text(encoding="utf-8")
        folder = posixpath.dirname(source)
        content = _LINK.sub(lambda link, folder=folder: _resolve_link(link, folder), page)
        files.append(File.generated(config, path, content=content))
    return files


def _resolve_link(link: re.Match[str], folder: str) -> str:
    """A link of a repository's file as one of the site; what the site lacks is no link."""
    mark, words, target = link.groups()
    path, _, anchor = target.partition("#")
    target_path = posixpath.normpath(posixpath.join(folder, path))
    pages = {source: page for page, source in PAGES.items()}
    if target_path.startswith("docs/"):
        page = target_path.removeprefix("docs/")
    elif target_path in pages:
        page = pages[target_path]
    else:
        return words
    return f"{mark}[{words}]({page}{'#' + anchor if anchor else ''})"


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """The page with its drawn pictures inline, so that they take the page's colours."""
    folder = Path(page.file.abs_src_path or ROOT / "docs" / "index.md").parent

    def inline(image: re.Match[str]) -> str:
        words, source = image.groups()
        svg = (folder / source).read_text(encoding="utf-8")
        if "var(--card" not in svg:  # of another drawing tool: as it is
            return image[0]
        label = f'<svg role="img" class="picture" aria-label="{escape(words)}"'
        return svg.strip().replace("<svg", label, 1)

    return _PICTURE.sub(inline, html)
