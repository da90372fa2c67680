"""What the site adds to Markdown: pages from other folders, and pictures in its colours."""

from __future__ import annotations

import ast
import posixpath
import re
from html import escape
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from bertworks.analysis.settings_help import SettingHelp, describe, settings_class
from bertworks.settings.verbs import VERB_SETTINGS
from bertworks.tasks import LABELLED_TASKS

ROOT = Path(__file__).resolve().parent.parent
PAGES = {
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changes.md": "CHANGELOG.md",
    "benchmarks.md": "benchmarks/README.md",
    **{
        f"results/{file.name}": f"benchmarks/results/{file.name}"
        for file in sorted((ROOT / "benchmarks" / "results").glob("*.md"))
    },
}
"""Pages of the site that are files of the repository, by their path on the site."""

FORMATS = {
    "Saved models": "checkpoints/store.py",
    "Run directories": "runs/run_directory.py",
    "Checkpoints of a run": "training/checkpoint.py",
    "Grids and searches": "tuning/grid.py",
    "Prepared corpora": "data/manifest.py",
    "Shards of a corpus": "data/shards.py",
    "Vectors": "inference/vectors.py",
    "Files next to vectors and predictions": "inference/window_files.py",
    "Token vectors": "inference/token_vectors.py",
    "Stores of texts and vectors": "analysis/retrieval/store_files.py",
}
"""The modules whose docstrings describe the formats of files, by the title on the page of them."""

_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\((?!https?:|#)([^)\s]+)\)")
_PICTURE = re.compile(r'<img alt="([^"]*)" src="([^":]+\.svg)" ?/?>')


def on_files(files: Files, config: Any) -> Files:
    for path, source in PAGES.items():
        files.append(File.generated(config, path, content=(ROOT / source).read_text("utf-8")))
    files.append(File.generated(config, "settings.md", content=settings_page()))
    files.append(File.generated(config, "files.md", content=files_page()))
    return files


def files_page() -> str:
    """The formats of files, from the docstrings of the modules that write them."""
    lines = ["# Files", "", "What the commands write."]
    for title, module in FORMATS.items():
        source = (ROOT / "src" / "bertworks" / module).read_text("utf-8")
        lines += ["", f"## {title}"]
        for paragraph in (ast.get_docstring(ast.parse(source)) or "").split("\n\n"):
            is_listing = re.search(r"^ +\S|^\w+/$", paragraph, re.M)
            lines += ["", f"```text\n{paragraph}\n```" if is_listing else paragraph]
    return "\n".join(lines) + "\n"


def settings_page() -> str:
    """Every setting of every verb, from the classes that read them."""
    lines = [
        "# Settings",
        "",
        "What `bertworks settings VERB [TASK]` prints. Options: `bertworks VERB --help`.",
    ]
    for verb in VERB_SETTINGS:
        lines += _settings_section(verb, describe(settings_class(verb)))
    for task in LABELLED_TASKS:
        lines += _settings_section(f"finetune {task}", describe(settings_class("finetune", task)))
    return "\n".join(lines) + "\n"


def _settings_section(title: str, settings: list[SettingHelp]) -> list[str]:
    lines = ["", f"## {title}"]
    group = None
    for setting in settings:
        if setting.group != group:
            group = setting.group
            lines += [
                "",
                f"**{group}**",
                "",
                "| setting | default | values | meaning |",
                "|---|---|---|---|",
            ]
        cells = (f"`{setting.key}`", f"`{setting.default_text}`", setting.kind, setting.description)
        lines.append(f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |")
    return lines


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The page with links between files of the repository as links of the site."""
    path = page.file.src_uri
    source = PAGES.get(path, f"docs/{path}")
    return _LINK.sub(lambda link: _resolve_link(link, source, path), markdown)


def _resolve_link(link: re.Match[str], source: str, path: str) -> str:
    """A link of a file as one of its page; a link to what the site lacks becomes its words."""
    mark, words, target = link.groups()
    target, _, anchor = target.partition("#")
    target = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    if not (ROOT / target).exists():
        return link[0]  # for MkDocs to report, or no link at all
    pages = {file: page for page, file in PAGES.items()}
    if target.startswith("docs/"):
        page = target.removeprefix("docs/")
    elif target in pages:
        page = pages[target]
    else:
        return words
    relative = posixpath.relpath(page, posixpath.dirname(path) or ".")
    return f"{mark}[{words}]({relative}{'#' + anchor if anchor else ''})"


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
