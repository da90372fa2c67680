"""Commands in the documentation exist: their verbs, options and settings."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from bertworks.cli import app

ROOT = Path(__file__).resolve().parent.parent
_BLOCK = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.M | re.S)
_OPERATORS = frozenset("|>&;<…")
_PREFIX = re.compile(r"^\$ |^(?:\w+=\S+ |nohup |sudo )+")
_PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def shell_words(command: str) -> list[str]:
    """Split a command as a shell does; operators are words, and a comment is left out."""
    words = shlex.shlex(command, posix=True, punctuation_chars=True)
    words.whitespace_split = True
    return list(words)


def documented_commands(page: Path) -> Iterator[list[str]]:
    """The words of each command line in a page's blocks, without what stands around it."""
    for language, block in _BLOCK.findall(page.read_text(encoding="utf-8")):
        if language not in ("", "sh", "bash", "console"):
            continue
        for line in block.replace("\\\n", " ").splitlines():
            command = _PREFIX.sub("", line.strip())
            if command.startswith("bertworks "):
                yield list(takewhile(_OPERATORS.isdisjoint, shell_words(command)))[1:]


def find_command(words: list[str]) -> tuple[Any, list[str]]:
    """The command that the first words name, and the others."""
    command: Any = get_command(app)
    while hasattr(command, "commands"):
        assert words and words[0] in command.commands, f"no command {words[:1]}"
        command, words = command.commands[words[0]], words[1:]
    return command, words


@pytest.mark.long
@pytest.mark.parametrize("page", _PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_command_of_a_page_is_one_that_exists(page: Path) -> None:
    for words in documented_commands(page):
        command, others = find_command(words)
        options = {name for part in command.params for name in (*part.opts, *part.secondary_opts)}
        names = [word.split("=")[0] for word in others if word.startswith("--")]
        assert {*names} <= {*options, "--help"}, shlex.join(words)


def test_pages_have_commands() -> None:
    counts = [len(list(documented_commands(page))) for page in _PAGES]
    assert counts[0] >= 8 and sum(counts) > 100  # the first is the README


def test_every_verb_is_on_the_page_of_commands() -> None:
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    verbs = {name for name, verb in get_command(app).commands.items() if not verb.hidden}
    assert set(re.findall(r"^\| `bertworks ([\w-]+)", page, re.M)) == verbs
