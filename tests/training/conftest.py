"""One thread, which trains networks of a few hundred weights fastest; and a small corpus."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from bertworks.data.prepare import prepare
from bertworks.lab.demo.texts import topics
from bertworks.text.vocabulary import train_vocabulary


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="session")
def prepared_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python's own reference text, prepared with a vocabulary of 1,000 pieces."""
    directory = tmp_path_factory.mktemp("corpus")
    documents = topics()
    text = "\n\n".join("\n".join(document) for document in documents)
    (directory / "corpus.txt").write_text(text, encoding="utf-8")
    paragraphs = (paragraph for document in documents for paragraph in document)
    tokenizer = train_vocabulary(paragraphs, size=1000)
    prepare(directory / "corpus.txt", tokenizer=tokenizer, out=directory / "data")
    return directory / "data"
