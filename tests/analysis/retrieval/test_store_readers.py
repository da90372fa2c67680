"""Readers of a store while others write it: each sees one whole state until it calls `refresh`."""

from __future__ import annotations

import shutil
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertworks.analysis.retrieval.store_files import DirectoryBackend
from bertworks.errors import OutputError

from ...forking import start

NUM_IDS, WIDTH = 12, 8


def open_store(path: Path, quantization: Any) -> DirectoryBackend:
    return DirectoryBackend(path, "model", quantization=quantization, create=True)


def vectors_of(texts: list[str]) -> np.ndarray:
    """A vector that follows from the text, of length 1."""
    seeds = [list(text.encode()) for text in texts]
    vectors = np.array([np.random.default_rng(seed).normal(size=WIDTH) for seed in seeds])
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def put(store: DirectoryBackend, texts: dict[str, str]) -> None:
    store.put(list(texts), list(texts.values()), vectors_of(list(texts.values())))


def contents(store: DirectoryBackend) -> dict[str, str]:
    """All texts by their ids, as a search finds them, which must agree with every other method."""
    if not len(store):
        assert store.ids() == []
        return {}
    scores, rows = store.nearest(vectors_of(["a query"]), len(store), approximate=False)
    placed_texts = store.texts_in_rows(set(rows[0].tolist()))
    texts = dict(placed_texts.values())
    assert len(texts) == len(store)
    assert sorted(texts) == sorted(store.ids())
    assert store.texts(texts) == texts
    vectors = vectors_of([placed_texts[row][1] for row in rows[0].tolist()])
    assert scores[0] == pytest.approx(vectors @ vectors_of(["a query"])[0], abs=1e-5)
    return texts


@pytest.mark.parametrize("quantization", ["none", "int8", "binary"])
@pytest.mark.parametrize("seed", range(3))
def test_reader_keeps_the_state_at_which_it_opened(
    tmp_path: Path, quantization: Any, seed: int
) -> None:
    random = np.random.default_rng(seed)
    writer, expected = open_store(tmp_path, quantization), dict[str, str]()
    readers: list[tuple[DirectoryBackend, dict[str, str]]] = []
    for step in range(15):
        names = [f"id{n}" for n in random.choice(NUM_IDS, 4, replace=False)]
        match random.choice(["add", "add", "delete", "compact"]):
            case "add":
                texts = {name: f"text {step} of {name}" for name in names}
                put(writer, texts)
                expected = expected | texts
            case "delete":
                writer.delete(names)
                expected = {name: text for name, text in expected.items() if name not in names}
            case _:
                writer.compact()
        readers.append((open_store(tmp_path, None), expected))
        for reader, state in random.permutation(np.array(readers, object))[:3]:
            assert contents(reader) == state
    for reader, state in readers:
        assert contents(reader) == state
        reader.refresh()
        assert contents(reader) == expected


@pytest.mark.parametrize("quantization", ["none", "binary"])
def test_many_additions_leave_few_segments(tmp_path: Path, quantization: Any) -> None:
    store, expected = open_store(tmp_path, quantization), dict[str, str]()
    for number in range(120):
        texts = {f"id{number}": f"text {number}", f"id{number // 2}": f"new text {number}"}
        put(store, texts)
        expected |= texts
        if number % 10 == 7:
            store.delete([f"id{number - 1}"])
            del expected[f"id{number - 1}"]
        assert len(list(tmp_path.glob("segment-*"))) <= 2 + np.log2(len(expected))
    assert contents(store) == contents(open_store(tmp_path, None)) == expected
    assert store.ids()[-1] == "id59"  # in the order of addition


def test_store_at_the_limit_of_open_files_is_not_called_damaged(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    put(open_store(tmp_path, "none"), {"a": "text"})
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with (tmp_path / "store.json").open() as file:
        number = file.fileno()
    resource.setrlimit(resource.RLIMIT_NOFILE, (number + 1, limits[1]))
    try:
        with pytest.raises(OutputError, match=r"too many files are open\. Raise the limit"):
            open_store(tmp_path, None)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.parametrize("quantization", ["none", "binary"])
def test_memory_of_a_search_does_not_grow_with_the_texts(tmp_path: Path, quantization: Any) -> None:
    peaks = []
    for count in (20_000, 80_000):
        store = open_store(tmp_path / str(count), quantization)
        vectors = np.random.default_rng(0).normal(size=(count, WIDTH)).astype(np.float32)
        names = [str(number) for number in range(count)]
        store.put(names, names, vectors)
        tracemalloc.start()
        try:
            store.nearest(vectors[:50], 3, approximate=False)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]


def write_versions(path: Path, seed: int) -> None:
    """Replace all texts by those of the next version, again and again; compact; delete another."""
    store, random = open_store(path, None), np.random.default_rng(seed)
    while True:
        version = int(next(iter(contents(store).values()), "0").split()[0]) + 1
        put(store, {f"id{n}": f"{version} of id{n}" for n in range(NUM_IDS)})
        if random.random() < 0.5:
            put(store, {"extra": f"{version} of extra"})
            store.delete(["extra"])
        if random.random() < 0.5:
            store.compact()


@pytest.mark.long
@pytest.mark.parametrize("quantization", ["none", "binary"])
def test_readers_see_whole_states_while_writers_are_killed(
    tmp_path: Path, quantization: Any
) -> None:
    path, random = tmp_path / "store", np.random.default_rng(7)
    store = open_store(path, quantization)
    put(store, {f"id{n}": f"0 of id{n}" for n in range(NUM_IDS)})
    for seed in range(3):
        writer = start(write_versions, path, seed)
        try:
            old, versions = open_store(path, None), set()
            end = time.monotonic() + 60
            while len(versions) < 4 and time.monotonic() < end:
                store.refresh()
                for reader in (store, open_store(path, None)):
                    texts = contents(reader)
                    texts.pop("extra", None)
                    assert texts.keys() == {f"id{n}" for n in range(NUM_IDS)}
                    (version,) = {int(text.split()[0]) for text in texts.values()}
                    assert version >= max(versions, default=0)
                    versions.add(version)
            assert len(versions) >= 4
            assert len(contents(old)) >= NUM_IDS
            time.sleep(random.uniform(0, 0.3))
        finally:
            writer.kill()
            writer.join()


def test_reader_notices_a_store_that_was_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "store"
    put(open_store(path, None), {"a": "cats sleep"})
    reader = open_store(path, None)
    shutil.rmtree(path)
    put(open_store(path, None), {"a": "planes fly"})
    reader.refresh()
    assert contents(reader) == {"a": "planes fly"}
