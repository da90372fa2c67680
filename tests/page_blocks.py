"""The code blocks of pages: reads them, runs them, and writes their outputs.

    python -m tests.page_blocks [FILE…]   # runs the blocks, and writes what they print below them

A block is a fence. `console` holds commands after `$ `, with what they print, `sh` commands alone;
`python` is executed, and a bare `text` fence right below it holds what it prints; a fence whose
title is a file's name is that file. A title that begins with `long:` or `slow:` marks a block as a
test is marked. The blocks of a page share a directory and the names of Python.
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
HOW_TO = sorted(  # tests/test_moving.py runs the pairs of blocks of move.md
    {*(ROOT / "docs" / "how-to").glob("*.md")} - {ROOT / "docs" / "how-to" / "move.md"}
)
NOT_RUN = {
    "docs/how-to/machines.md": {
        "bertworks pretrain base": "a graphics card",
        "bertworks embed MODEL": "a cluster",
    },
    "README.md": {
        "pip install": "a network",
        "bertworks serve": "a server that stays; docs/how-to/serve.md runs one",
        "bertworks vocab": "twenty minutes; docs/how-to/pretrain.md runs a smaller one",
    },
}
"""Blocks of pages that run which are only checked: by their beginning, what they would need."""
_FENCE = re.compile(r'^( *)```(\w+)(?: title="([^"]*)")?\n(.*?)^\1```\n?', re.M | re.S)
_SERVER = "8080"  # of the pages; a test takes a free port
_OPERATORS = re.compile(r"[|<>&;]")


@dataclass
class Block:
    """A fence of a page."""

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
    return blocks_of_page


def has_only_blocks(page: str) -> bool:
    """Whether every fence of a page is the beginning or the end of a block with a language."""
    return len(re.findall(r"^ *```", page, re.M)) == 2 * len(_FENCE.findall(page))


def commands(body: str) -> list[tuple[str, str]]:
    """The commands of a console, each with its output."""
    pairs: list[tuple[str, str]] = []
    for part in re.split(r"^\$ ", body, flags=re.M)[1:]:
        lines = part.splitlines(keepends=True)
        at = next(i for i, line in enumerate(lines) if not line.endswith("\\\n"))
        pairs.append(("".join(lines[: at + 1]).rstrip("\n"), "".join(lines[at + 1 :])))
    return pairs


def shell_lines(block: Block) -> list[str]:
    """The commands of a block of a shell."""
    if block.language == "console":
        return [command for command, _ in commands(block.body)]
    lines = re.split(r"(?<!\\)\n", block.body)
    return [line for line in lines if line.strip() and not line.startswith("#")]


def runs(page: Path, block: Block) -> bool:
    """Whether a block of a page that runs is not among those that are only checked."""
    beginnings = NOT_RUN.get(str(page).removeprefix(f"{ROOT}/"), {})
    return not any(block.body.startswith(beginning) for beginning in beginnings)


def run(block: Block, names: dict[str, Any]) -> list[str]:
    """Run a block in the present directory; what each of its commands printed.

    Raises:
        AssertionError: a command failed.
    """
    if block.language == "python":
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile(block.body, f"page, line {block.line}", "exec"), names)
        return [output.getvalue()]
    if block.language in ("console", "sh"):
        lines = shell_lines(block)
        if any(command.endswith("&") for command in lines):
            return [in_a_shell(lines)]
        return [run_command(command) for command in lines]
    assert re.fullmatch(r"[\w.-]+\.\w+", block.title), f"{block.language} is neither run nor a file"
    Path(block.title).write_text(block.body, encoding="utf-8")
    return []


def run_command(command: str) -> str:
    """Run a verb in this process, which saves its start, and all else in a shell."""
    if not command.startswith("bertworks ") or _OPERATORS.search(
        re.sub(r"'.*?'|\".*?\"", "", command)
    ):
        return in_a_shell([command])
    words = shlex.split(command.replace("\\\n", " "))
    result = CliRunner().invoke(app, words[1:], env={"COLUMNS": "80"})
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, f"{command}\n{result.output}"
    return result.stdout


def in_a_shell(lines: Sequence[str]) -> str:
    """Commands of which one may stay in the background until the others are done."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = str(taken.getsockname()[1])
    stop = "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT"
    script = "\n".join(["set -e", stop, *lines]).replace(_SERVER, port)
    with tempfile.TemporaryDirectory() as folder:
        verb = Path(folder, "bertworks")  # of this environment, whatever is installed elsewhere
        verb.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m bertworks "$@"\n')
        verb.chmod(0o755)
        folders = [folder, str(Path(sys.executable).parent), os.environ["PATH"]]
        process = subprocess.run(
            ["bash", "-c", script],
            env={**os.environ, "PATH": os.pathsep.join(folders), "COLUMNS": "80"},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
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


def write_inputs(directory: Path) -> None:
    """The examples of the repository, and the files of the reader that the README names."""
    (directory / "examples").symlink_to(ROOT / "examples")
    texts = ["the screen stays black", "i was charged twice", "the door was opened by a man"]
    (directory / "texts.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    rows = [f"{text}\t{label}" for text, label in zip(texts * 4, "aba" * 4, strict=True)]
    for name in ("train.tsv", "dev.tsv", "new.tsv"):
        table = "\n".join(["text\tlabel", *rows])
        (directory / name).write_text(table + "\n", encoding="utf-8")


def write_outputs(file: Path) -> None:
    """Run all blocks of a page, and write what they print into it."""
    page = file.read_text(encoding="utf-8")
    changes: list[tuple[tuple[int, int], str]] = []
    names: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as place, in_directory(Path(place)):
        write_inputs(Path(place))
        for block in blocks(page):
            if not runs(file, block):
                continue
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
    for one in [Path(name).resolve() for name in sys.argv[1:]] or [*LESSONS, *HOW_TO]:
        write_outputs(one)
        print(one.name)
