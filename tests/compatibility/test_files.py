"""A prepared corpus, one half-way, and vectors half-way."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import bertworks as bw

from . import accepted, look


@pytest.fixture
def same_libraries() -> None:
    """A corpus is prepared with the versions that its manifest names, and no others."""
    made = json.loads((look.DIRECTORY / "libraries.json").read_bytes())
    changed = [name for name, one in look.libraries().items() if made[name] != one]
    if changed:
        pytest.skip(f"made with another version of {', '.join(changed)}")


def content(directory: Path) -> dict[str, bytes]:
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


def test_the_corpus_loads(root: Path) -> None:
    expected = json.loads((root / "expected/documents.json").read_bytes())
    corpus = bw.Corpus.open(root / "prepared", verify=True)
    assert corpus.num_documents == expected["count"]
    for number, document in enumerate(expected["first"]):
        assert [part.tolist() for part in corpus.document(number)] == document
    assert corpus.load_tokenizer().fingerprint == bw.Tokenizer.load(root / "vocab").fingerprint


@pytest.mark.usefixtures("same_libraries")
def test_there_is_nothing_left_to_prepare(root: Path) -> None:
    before = content(root / "prepared")
    command = json.loads((root / "commands.json").read_bytes())["prepared"]
    assert "nothing to do" in accepted.invoke(command).output
    assert content(root / "prepared") == before == content(look.DIRECTORY / "prepared")


@pytest.mark.usefixtures("same_libraries")
def test_the_corpus_is_prepared_the_same_again(root: Path, tmp_path: Path) -> None:
    command = json.loads((root / "commands.json").read_bytes())["prepared"]
    place = command.index("--out") + 1
    accepted.invoke([*command[:place], str(tmp_path / "again"), *command[place + 1 :]])
    assert content(tmp_path / "again") == content(look.DIRECTORY / "prepared")


@pytest.mark.usefixtures("same_libraries")
def test_preparing_goes_on(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / "preparing", tmp_path / "half-way")
    settings = json.loads((root / "preparing.json").read_bytes())
    seen: list[Any] = []
    bw.prepare("corpus.txt", out=tmp_path / "half-way", progress=seen.append, **settings)
    assert seen[-1].reused_shards == 2 < seen[-1].shards
    made = (tmp_path / "half-way" / "manifest.json").read_bytes()
    assert made == (root / "expected/preparing.json").read_bytes()  # it has the shards' digests
    bw.Corpus.open(tmp_path / "half-way", verify=True)


VECTORS = json.loads((look.DIRECTORY / "vectors.json").read_bytes())


@pytest.mark.parametrize("name", VECTORS)
def test_vectors_go_on(root: Path, tmp_path: Path, name: str) -> None:
    method, settings = VECTORS[name]
    for file in (root / "vectors").glob(f"{name}*"):
        shutil.copy(file, tmp_path)
    model = bw.load("models/small", device="cpu")
    with accepted.deprecations():
        written = getattr(model, method)(tmp_path / name, "texts.txt", **settings)
    assert 0 < written.new < written.rows
    look.check_same(read(root / "expected/vectors" / name), read(tmp_path / name), rel=1e-6)
    was, now = (folder / f"{name}.json" for folder in (root / "expected/vectors", tmp_path))
    look.check_same(json.loads(was.read_bytes()), json.loads(now.read_bytes()), rel=0)


def read(file: Path) -> Any:
    return np.load(file).tolist() if file.suffix == ".npy" else pq.read_table(file).to_pydict()
