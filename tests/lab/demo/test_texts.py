"""The demo's texts: real, distinct, and without a leak from the held-out rows."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from bertworks.lab.demo import texts
from bertworks.lab.demo.texts import Module, Passage, labelled_rows, module_documents, prose

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def demo_data(tmp_path_factory: pytest.TempPathFactory) -> texts.DemoData:
    return texts.write(tmp_path_factory.mktemp("demo"))


def _rows(file: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def _plain(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.lower()))


def test_the_data_have_enough_documents_and_rows(demo_data: texts.DemoData) -> None:
    assert demo_data.num_documents > 300
    assert demo_data.num_characters > 1_000_000
    assert demo_data.num_train + demo_data.num_dev > 1_500
    assert len(demo_data.labels) == 8


def test_held_out_rows_are_in_neither_the_training_rows_nor_the_corpus(
    demo_data: texts.DemoData,
) -> None:
    dev = {_plain(row["text"]) for row in _rows(demo_data.dev)}
    assert len(dev) == demo_data.num_dev
    assert dev.isdisjoint(_plain(row["text"]) for row in _rows(demo_data.train))
    corpus = demo_data.corpus.read_text(encoding="utf-8").splitlines()
    assert dev.isdisjoint(map(_plain, corpus))


def test_every_label_is_in_train_and_dev(demo_data: texts.DemoData) -> None:
    for file in (demo_data.train, demo_data.dev):
        counts = Counter(row["label"] for row in _rows(file))
        assert set(counts) == set(demo_data.labels)
        assert min(counts.values()) > 10


def test_the_corpus_has_a_blank_line_between_documents(demo_data: texts.DemoData) -> None:
    documents = demo_data.corpus.read_text(encoding="utf-8").strip("\n").split("\n\n")
    assert len(documents) == demo_data.num_documents
    assert all(line.strip() for text in documents for line in text.splitlines())


@pytest.mark.slow
def test_files_are_the_same_every_time(demo_data: texts.DemoData, tmp_path: Path) -> None:
    again = texts.write(tmp_path)
    for name in ("corpus", "train", "dev"):
        assert getattr(again, name).read_bytes() == getattr(demo_data, name).read_bytes()


def test_a_text_of_two_packages_is_no_row() -> None:
    def module(package: str, *lines: str) -> Module:
        return Module(package, tuple(Passage((line,), is_docstring=True) for line in lines))

    modules = [
        module("a", "Return the next item, please.", "Only a says this here."),
        module("b", "return THE next item please", "And only b says this.", "This too is b's own."),
    ]
    assert sorted(labelled_rows(modules, 2)) == [
        ("And only b says this.", "b"),
        ("Only a says this here.", "a"),
        ("This too is b's own.", "b"),
    ]
    assert {label for _, label in labelled_rows(modules, 1)} == {"b"}


def test_held_out_passages_leave_the_documents() -> None:
    passage = Passage(("This one may well stay.",), is_docstring=False)
    held_out = Passage(("This one is held out.", "So is what follows it."), is_docstring=True)
    documents = module_documents(
        [Module("a", (passage, held_out))], excluded_names={"this one is held out"}
    )
    assert documents == [["This one may well stay."]]


def test_prose_joins_lines_and_leaves_code_out() -> None:
    text = """Return the value that
    was given.

    >>> value_of(given) and some more
    7

    >>> give the value
    the value that was given before

    x = {1: [2, 3], 4: [5, 6]} + f(y)[0]

    --------
    It is never changed.
    """
    assert prose(text) == ["Return the value that was given.", "It is never changed."]
