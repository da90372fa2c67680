"""The code blocks of `docs/learn`: reads them, runs them, and writes their outputs.

    python -m tests.lessons [FILE…]    # runs the blocks, and writes what they print below them

A block is a fence. `console` holds commands after `$ `, with what they print; `python` is executed,
and a bare `text` fence right below it holds what it prints; a fence whose title is a file's name is
that file. A title that begins with `long:` or `slow:` marks a block as a test is marked. The blocks
of a lesson share a directory and the names of Python.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from bertworks.cli import app

ROOT = Path(__file__).resolve().parent.parent
LESSONS = sorted((ROOT / "docs" / "learn").glob("*.md"))
_FENCE = re.compile(r'^( *)```(\w+)(?: title="([^"]*)")?\n(.*?)^\1```\n?', re.M | re.S)
_SERVER = "8080"  # of the lessons; a test takes a free port


@dataclass
class Block:
    """A fence of a lesson."""

    language: str
    title: str
    body: str
    line: int
    span: tuple[int, int]  # of the body, in the page
    indent: str = ""
    output: str | None = None  # below `python`
    output_span: tuple[int, int] = field(default=(0, 0))

    @property
    def mark(self) -> str:
        """`long`, `slow`, or nothing."""
        found = re.match(r"(long|slow):", self.title)
        return found[1] if found else ""


def blocks(page: str) -> list[Block]:
    """The fences of a page; a bare `text` below `python` belongs to it."""
    blocks_of_page: list[Block] = []
    last_end = -1
    for match in _FENCE.finditer(page):
        language, title, body = match[2], match[3] or "", textwrap.dedent(match[4])
        follows = page[last_end : match.start()].strip() == "" and last_end >= 0
        if language == "text" and not title and follows and blocks_of_page[-1].language == "python":
            blocks_of_page[-1].output, blocks_of_page[-1].output_span = body, match.span(4)
        else:
            line = page.count("\n", 0, match.start()) + 1
            blocks_of_page.append(Block(language, title, body, line, match.span(4), match[1]))
        last_end = match.end()
    fences = len(re.findall(r"^ *```", page, re.M))
    assert fences == 2 * len(_FENCE.findall(page)), "a fence is not of the form that is read"
    return blocks_of_page


def commands(body: str) -> list[tuple[str, str]]:
    """The commands of a console, each with its output."""
    pairs: list[tuple[str, str]] = []
    for part in re.split(r"^\$ ", body, flags=re.M)[1:]:
        lines = part.splitlines(keepends=True)
        at = next(i for i, line in enumerate(lines) if not line.endswith("\\\n"))
        pairs.append(("".join(lines[: at + 1]).rstrip("\n"), "".join(lines[at + 1 :])))
    return pairs


def run(block: Block, names: dict[str, Any]) -> list[str]:
    """Run a block in the present directory; what each of its commands printed.

    Raises:
        AssertionError: a command failed.
    """
    if block.language == "python":
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile(block.body, f"lesson, line {block.line}", "exec"), names)
        return [output.getvalue()]
    if block.language == "console":
        lines = [command for command, _ in commands(block.body)]
        if any(command.endswith("&") for command in lines):
            return [in_a_shell(lines)]
        return [in_process(command) for command in lines]
    assert re.fullmatch(r"[\w.-]+\.\w+", block.title), f"{block.language} is neither run nor a file"
    Path(block.title).write_text(block.body, encoding="utf-8")
    return []


def in_process(command: str) -> str:
    words = shlex.split(command.replace("\\\n", " "))
    assert words[0] == "bertworks", command
    result = CliRunner().invoke(app, words[1:], env={"COLUMNS": "80"})
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, f"{command}\n{result.output}"
    return result.stdout


def in_a_shell(lines: Sequence[str]) -> str:
    """Commands of which one stays in the background until the others are done."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = str(taken.getsockname()[1])
    script = "\n".join(["set -e", "trap 'kill $(jobs -p)' EXIT", *lines]).replace(_SERVER, port)
    script = script.replace("bertworks ", f"{shlex.quote(sys.executable)} -m bertworks ")
    process = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, timeout=240, check=False
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


@contextlib.contextmanager
def in_directory(directory: Path) -> Iterator[None]:
    with contextlib.chdir(directory):
        yield


def skeleton(block: Block, output: str) -> tuple[int, list[str]]:
    """What no other weights change: how many lines there are, and of a verb's output the words of
    the first."""
    lines = [line for line in output.splitlines() if line.strip()]
    is_table = block.language == "console" and lines
    return len(lines), re.sub(r"[-\d.,]+", "#", lines[0]).split() if is_table else []


def write_outputs(file: Path) -> None:
    """Run all blocks of a lesson, and write what they print into it."""
    page = file.read_text(encoding="utf-8")
    changes: list[tuple[tuple[int, int], str]] = []
    names: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as place, in_directory(Path(place)):
        for block in blocks(page):
            outputs = run(block, names)
            if block.output is not None:
                new = textwrap.indent(tidy(outputs[0]), block.indent)
                changes.append((block.output_span, new))
            if block.language == "console" and not block.body.rstrip().endswith("&"):
                new = ""
                for (command, shown), text in zip(commands(block.body), outputs, strict=False):
                    new += f"$ {command}\n{tidy(text) if shown.strip() else ''}"
                if len(outputs) == len(commands(block.body)):
                    changes.append((block.span, textwrap.indent(new, block.indent)))
    for (start, end), new in reversed(changes):
        page = page[:start] + new + page[end:]
    file.write_text(page, encoding="utf-8")


def tidy(output: str) -> str:
    return "".join(line.rstrip() + "\n" for line in output.splitlines() if line.strip())


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    for one in [Path(name).resolve() for name in sys.argv[1:]] or LESSONS:
        write_outputs(one)
        print(one.name)
