"""English text that comes with Python, as a corpus and as a labelled data set.

The corpus is the language reference (`pydoc_data.topics`), and the docstrings and comments of the
standard library, one document per module. The labelled rows are first paragraphs of docstrings; the
label is the package that they document. Sources are parsed, never imported, so that none of their
code runs.

Rows that are held out for evaluation are excluded from the corpus too.
"""

from __future__ import annotations

import ast
import json
import random
import re
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from ...errors import DataError
from ...utils.atomic_writes import write_file
from ...utils.directories import make_directory

_NOT_PROSE = {"site-packages", "dist-packages", "test", "tests", "idle_test", "lib2to3"}
_DEFINITIONS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Passage:
    """A docstring or a block of comments: its paragraphs, each one line of prose."""

    paragraphs: tuple[str, ...]
    is_docstring: bool


@dataclass(frozen=True)
class Module:
    """The docstrings and comments of a module of the standard library, in source order."""

    package: str
    passages: tuple[Passage, ...]


@dataclass(frozen=True)
class DemoData:
    """The files that `write` wrote, and their counts."""

    corpus: Path
    train: Path
    dev: Path
    num_documents: int
    num_characters: int
    num_train: int
    num_dev: int
    labels: tuple[str, ...]


def write(directory: Path, *, seed: int = 1) -> DemoData:
    """Write `corpus.txt`, `train.jsonl` and `dev.jsonl` into `directory`.

    A quarter of the labelled rows is held out.

    Args:
        directory: created if it does not exist.
        seed: determines which rows are held out.

    Raises:
        DataError: this Python installation lacks the sources of the standard library.
    """
    modules = list(standard_library())
    rows = labelled_rows(modules, num_labels=8)
    random.Random(seed).shuffle(rows)
    num_dev = len(rows) // 4
    dev, train = rows[:num_dev], rows[num_dev:]
    documents = [
        *topics(),
        *module_documents(modules, excluded_names={_key(text) for text, _ in dev}),
    ]

    make_directory(directory)
    corpus = directory / "corpus.txt"
    write_file(corpus, "\n".join("\n".join(lines) + "\n" for lines in documents))
    for name, part in (("train", train), ("dev", dev)):
        lines = (json.dumps({"text": text, "label": label}) + "\n" for text, label in part)
        write_file(directory / f"{name}.jsonl", "".join(lines))
    return DemoData(
        corpus=corpus,
        train=directory / "train.jsonl",
        dev=directory / "dev.jsonl",
        num_documents=len(documents),
        num_characters=sum(len(line) for lines in documents for line in lines),
        num_train=len(train),
        num_dev=len(dev),
        labels=tuple(sorted({label for _, label in rows})),
    )


def topics() -> list[list[str]]:
    """The language reference as documents: a list of paragraphs for each topic."""
    texts: dict[str, str] = import_module("pydoc_data.topics").topics
    documents = (prose(text) for _, text in sorted(texts.items()))
    return [document for document in documents if document]


def module_documents(modules: Sequence[Module], excluded_names: set[str]) -> list[list[str]]:
    """One document per module; passages with a key in `excluded_names` are left out."""
    documents = []
    for module in modules:
        lines = [
            line
            for passage in module.passages
            if not any(_key(line) in excluded_names for line in passage.paragraphs)
            for line in passage.paragraphs
        ]
        if lines:
            documents.append(lines)
    return documents


def labelled_rows(modules: Sequence[Module], num_labels: int) -> list[tuple[str, str]]:
    """Distinct first paragraphs of docstrings, each with the package that it documents.

    The `num_labels` packages with the most are labels. A text that occurs in several packages is
    dropped.
    """
    packages: dict[str, set[str]] = {}
    texts: dict[str, str] = {}
    for module in modules:
        for passage in module.passages:
            if passage.is_docstring:
                text = passage.paragraphs[0]
                packages.setdefault(_key(text), set()).add(module.package)
                texts.setdefault(_key(text), text)
    owned = {key: next(iter(names)) for key, names in packages.items() if len(names) == 1}
    largest = {name for name, _ in Counter(sorted(owned.values())).most_common(num_labels)}
    return [(texts[key], package) for key, package in owned.items() if package in largest]


def standard_library() -> Iterator[Module]:
    """Yield the modules of the standard library, in the order of their paths.

    Raises:
        DataError: this Python installation lacks the sources of the standard library.
    """
    root = Path(sysconfig.get_path("stdlib"))
    has_text = False
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        if _NOT_PROSE.intersection(parts) or parts[0].startswith("config-"):
            continue
        source = path.read_text(encoding="utf-8", errors="replace")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # invalid escapes in old modules
                tree = ast.parse(source)
        except SyntaxError:
            continue
        has_text = True
        passages = [passage for _, passage in sorted(_passages(tree, source), key=lambda at: at[0])]
        yield Module(parts[0].removesuffix(".py"), tuple(passages))
    if not has_text:
        raise DataError(
            "the sources of the standard library, which the demo reads, are missing",
            where=str(root),
            fix="Run the demo with a Python that has them.",
        )


def _passages(tree: ast.Module, source: str) -> Iterator[tuple[int, Passage]]:
    """Docstrings, each with its first line number, and comment blocks, each with the line after."""
    nested_lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, _DEFINITIONS) and (text := ast.get_docstring(node)):
            string = node.body[0]
            nested_lines.update(range(string.lineno, (string.end_lineno or string.lineno) + 1))
            if paragraphs := prose(text):
                yield string.lineno, Passage(tuple(paragraphs), is_docstring=True)
    block: list[str] = []
    for number, line in enumerate([*source.splitlines(), ""], 1):
        stripped = line.strip()
        if stripped.startswith("#") and number not in nested_lines:
            block.append(stripped.lstrip("#"))
        elif block:
            if len(block) > 1 and (paragraphs := prose(_dedent("\n".join(block)))):
                yield number, Passage(tuple(paragraphs), is_docstring=False)
            block = []


def _dedent(text: str) -> str:
    return re.sub(r"^ ", "", text, flags=re.MULTILINE)


def prose(text: str) -> list[str]:
    """The paragraphs of a text that are prose, each on one line; code and rules are dropped."""
    paragraphs = []
    for paragraph in re.split(r"\n[ \t]*\n", text.expandtabs(4)):
        lines = [line for line in paragraph.splitlines() if re.search(r"\w", line)]
        if lines and not any(line.lstrip().startswith(">>>") for line in lines):
            line = " ".join(" ".join(lines).split())
            if _reads_as_prose(line):
                paragraphs.append(line)
    return paragraphs


def _reads_as_prose(line: str) -> bool:
    """Whether a line has at least four words, and 90 % letters, spaces and punctuation."""
    if len(line.split()) < 4:
        return False
    plain = sum(character.isalpha() or character in " .,;:'\"-" for character in line)
    return plain >= 0.9 * len(line)


def _key(text: str) -> str:
    """A text's key for comparison: its words in lower case, without punctuation."""
    return re.sub(r"\W+", " ", text.lower()).strip()
