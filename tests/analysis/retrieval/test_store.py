"""A store: additions, deletions, one writer, and a state that no interruption damages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bertworks as bw
from bertworks.analysis.retrieval import store_files as module
from bertworks.analysis.retrieval.opening import open_index
from bertworks.analysis.retrieval.store import VectorStore, is_store
from bertworks.analysis.retrieval.store_backend import public_address
from bertworks.checkpoints.sentence_settings import SentenceSettings
from bertworks.errors import DataError, OutputError, SettingsError
from bertworks.model import Model
from bertworks.text.tokenizer import Tokenizer
from bertworks.utils.outputs import locked_output

from ...tasks.hard_cases import CONFIG, LETTERS, PIECES

TOKENIZER = Tokenizer.from_vocabulary(PIECES)
RANDOM = np.random.default_rng(5)
TEXTS = {f"id{n}": " ".join(RANDOM.choice(list(LETTERS), 6)) for n in range(40)}
QUERIES = ["a b c", "x y"]


@pytest.fixture(scope="module")
def model() -> Model:
    return Model.fresh(CONFIG, TOKENIZER)


def add(store: VectorStore, texts: dict[str, str]) -> None:
    store.add(texts.values(), texts.keys())


def check(store: VectorStore, model: Model, texts: dict[str, str]) -> None:
    """The store has these texts, and finds what a full sort finds."""
    assert len(store) == len(texts)
    assert sorted(store.ids) == sorted(texts)
    vectors = model.embed(list(texts.values()), normalize=True)
    for query, hits in zip(QUERIES, store.search(QUERIES, 5), strict=True):
        cosines = vectors @ model.embed([query], normalize=True)[0]
        assert [hit.score for hit in hits] == pytest.approx(sorted(cosines)[::-1][:5], abs=1e-5)
        by_text = dict(zip(texts.values(), cosines, strict=True))
        for hit in hits:
            assert texts[hit.where] == hit.text
            assert hit.score == pytest.approx(by_text[hit.text], abs=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_store_finds_what_was_added_and_not_what_was_deleted(
    model: Model, tmp_path: Path, quantization: Any
) -> None:
    store = VectorStore.open(model, tmp_path / "store", quantization=quantization)
    assert store.search(QUERIES) == [[], []]
    names = list(TEXTS)
    expected = dict(TEXTS)
    add(store, {name: TEXTS[name] for name in names[:25]})
    add(store, {name: TEXTS[name] for name in names[25:]})
    check(store, model, expected)
    assert store.delete([*names[3:6], names[30], "unknown"]) == 4
    for name in (*names[3:6], names[30]):
        del expected[name]
    check(store, model, expected)
    changes = {names[0]: "z z z", "new": "q r s"}
    add(store, changes)  # one of them replaces a text
    expected |= changes
    check(store, model, expected)
    opened_index = open_index(model, tmp_path / "store")
    assert isinstance(opened_index, VectorStore)
    check(opened_index, model, expected)
    with pytest.raises(SettingsError, match="is searched by its model alone"):
        open_index([model, "bm25"], tmp_path / "store")
    store.compact()
    check(store, model, expected)
    assert len(list((tmp_path / "store").glob("segment-*"))) == 1
    store.delete(expected)
    assert len(store) == 0
    store.compact()
    assert store.search("a") == [[]]


@pytest.mark.parametrize("quantization", ["none", "int8", "binary"])
def test_equal_vectors_keep_their_order(tmp_path: Path, quantization: Any) -> None:
    vector, *queries = np.random.default_rng(0).standard_normal((6, 256)).astype(np.float32)
    for count in range(5, 40):  # linear algebra computes the last ones of some counts otherwise
        store = module.DirectoryBackend(
            tmp_path / str(count), "", quantization=quantization, create=True
        )
        names = [str(number) for number in range(count)]
        store.put(names, names, np.tile(vector, (count, 1)))
        for number in (1, 5):
            scores, rows = store.nearest(np.stack(queries[:number]), 5, approximate=False)
            assert rows.tolist() == [list(range(5))] * number
            assert (scores == scores[:, :1]).all()


def test_signs_choose_candidates_whose_scores_are_exact(model: Model, tmp_path: Path) -> None:
    store = VectorStore.open(model, tmp_path, quantization="binary")
    add(store, TEXTS)
    vectors = model.embed(list(TEXTS.values()), normalize=True)
    names = list(TEXTS)
    for query, hits in zip(QUERIES, store.search(QUERIES, 5), strict=True):
        (vector,) = model.embed([query], normalize=True)
        cosines = vectors @ vector
        for hit in hits:
            assert hit.score == pytest.approx(cosines[names.index(hit.where)], abs=1e-5)
        distances = ((vectors > 0) != (vector > 0)).sum(1)
        nearest = sorted(distances)[: module.RESCORING_FACTOR * 5][-1]
        assert all(distances[names.index(hit.where)] <= nearest for hit in hits)
    assert np.load(next(tmp_path.glob("*/codes.npy"))).shape == (40, CONFIG.hidden_size // 8)


@pytest.mark.parametrize("function", ["cosine", "dot"])
def test_scores_of_a_store_are_those_of_its_model(tmp_path: Path, function: str) -> None:
    """Cosines are limited to 1, inner products to nothing."""
    model = Model.fresh(CONFIG, TOKENIZER)
    entries = {"similarity_fn_name": function}
    model.sentence = SentenceSettings(normalize=function == "cosine", entries=entries)
    store = VectorStore.open(model, tmp_path)
    texts = list(TEXTS.values())
    add(store, TEXTS)
    best = np.array([hits[0].score for hits in store.search(texts, 1)])
    assert best == pytest.approx(model.similarity(texts, texts).max(1), rel=1e-5)
    assert (best <= 1).all() == (function == "cosine")


@pytest.mark.parametrize("step", ["write_file", "_write_manifest", "_remove_unlisted"])
def test_interrupted_change_is_whole_or_absent(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    store = VectorStore.open(model, tmp_path)
    add(store, {"a": "a b", "b": "c d"})
    reader = VectorStore.open(model, tmp_path)
    original = getattr(module, step)
    calls: list[int] = []

    def stop(*arguments: Any) -> None:
        calls.append(0)
        if step != "_remove_unlisted" or len(calls) > 1:  # the first one is before the change
            raise KeyboardInterrupt
        original(*arguments)

    monkeypatch.setattr(module, step, stop)
    with pytest.raises(KeyboardInterrupt):
        add(store, {"b": "x y", "c": "z"})
    monkeypatch.setattr(module, step, original)
    expected = {"a": "a b", "b": "c d"}
    assert {hit.where: hit.text for hit in reader.search("a")[0]} == expected
    if step == "_remove_unlisted":
        expected = {"a": "a b", "b": "x y", "c": "z"}
    reopened_store = VectorStore.open(model, tmp_path)
    assert {hit.where: hit.text for hit in reopened_store.search("a")[0]} == expected
    add(reopened_store, {"d": "e"})
    reader.refresh()
    assert {hit.where: hit.text for hit in reader.search("a")[0]} == {**expected, "d": "e"}
    listed = {one["name"] for one in reader._backend._manifest["segments"]}
    assert {path.name for path in tmp_path.glob("*segment*")} == listed


def test_store_has_one_writer_one_model_and_one_quantization(model: Model, tmp_path: Path) -> None:
    store = VectorStore.open(model, tmp_path, quantization="int8")
    add(store, TEXTS)
    assert is_store(tmp_path)
    with locked_output(tmp_path, kind="directory"), pytest.raises(OutputError, match="written by"):
        store.delete(["id1"])
    with pytest.raises(DataError, match="has vectors of another model"):
        VectorStore.open(Model.fresh(CONFIG, TOKENIZER, seed=1), tmp_path)
    with pytest.raises(SettingsError, match=r"quantization=binary: the store .* has int8"):
        VectorStore.open(model, tmp_path, quantization="binary")
    with pytest.raises(DataError, match="the text with the id 'x' is blank"):
        store.add([" "], ["x"])
    with pytest.raises(SettingsError, match=r"unknown quantization 'int4'\. The nearest .* 'int8'"):
        VectorStore.open(model, tmp_path / "new", quantization="int4")  # type: ignore[arg-type]
    assert not (tmp_path / "new").exists()
    with pytest.raises(DataError, match="the id 'x' occurs twice"):
        store.add(["a", "b"], ["x", "x"])
    with pytest.raises(DataError, match="1 text, but 2 ids"):
        store.add(["a"], ["x", "y"])
    (tmp_path / "store.json").write_text(
        (tmp_path / "store.json").read_text().replace("int8", "none")
    )
    with pytest.raises(DataError, match=r"store\.json: is damaged"):
        VectorStore.open(model, tmp_path)


def test_ids_are_texts_and_one_text_is_one_id(model: Model, tmp_path: Path) -> None:
    store = VectorStore.open(model, tmp_path)
    assert store.add(["a b", "c d", "e f"], ["1", "3", "13"]) == 0
    assert store.delete("13") == 1
    assert store.ids == ["1", "3"]
    numbers: Any = [np.int64(3), 7]
    assert store.add(["x y", "z"], numbers) == 1
    assert store.add("k", "7") == 1
    assert sorted(store.ids) == ["1", "3", "7"]
    assert [hit.text for hit in store.search("k", 1)[0]] == ["k"]
    for value in (None, 1.5, True, "", b"1"):
        wrong: Any = [value]
        with pytest.raises(DataError, match=r"is no id\. Ids are texts or"):
            store.add(["a"], wrong)
        with pytest.raises(DataError, match=r"is no id\. Ids are texts or"):
            store.delete(wrong)
    for value in (None, 3, ["a"]):
        wrong = [value]
        with pytest.raises(DataError, match="the text with the id '8' is no text, but"):
            store.add(wrong, ["8"])
    assert sorted(store.ids) == ["1", "3", "7"]


def test_directory_of_other_files_is_no_store(model: Model, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("a")
    with pytest.raises(OutputError, match=r"is no store of texts\. Choose a directory that is new"):
        VectorStore.open(model, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("postgresql://u:secret@host:5432/db?table=t&options=x", "postgresql://host:5432/db"),
        ("postgresql:///db", "postgresql:///db"),
        ("postgresql://u:se%40cret@h1:5432,h2:5432/db", "postgresql://h1:5432,h2:5432/db"),
        ("qdrant://host:6333/texts", "qdrant://host:6333/texts"),
        ("postgresql://u:se@cret@host/db", None),
        ("postgresql://u:se/cret@host/db", None),
        ("postgresql://u:se%zzcret@host/db", None),
    ],
)
def test_addresses_in_messages_have_no_password(address: str, public: str | None) -> None:
    if public is not None:
        assert public_address(address) == public
        return
    with pytest.raises(DataError, match="must be escaped") as caught:
        public_address(address)
    assert "cret" not in str(caught.value)


@pytest.mark.parametrize(
    "values", [{"pooling": "cls"}, {"entries": {"prompts": {"document": "passage: "}}}]
)
def test_store_of_another_pooling_or_prompt_is_refused(
    tmp_path: Path, values: dict[str, Any]
) -> None:
    """The same weights, but other vectors."""
    model = bw.load("mini-sentences")
    VectorStore.open(model, tmp_path / "store").add(["a"], ids=["1"])
    model.sentence = model.sentence.with_values(**values)
    with pytest.raises(DataError, match="another model"):
        VectorStore.open(model, tmp_path / "store")


def test_store_of_the_default_prompt_is_refused_without_prompt_of_documents(tmp_path: Path) -> None:
    model = bw.load("mini-sentences")
    assert model.sentence is not None
    entries: dict[str, Any] = {"default_prompt_name": "q", "prompts": {"q": "a cat "}}
    model.sentence = model.sentence.with_values(entries=entries)
    VectorStore.open(model, tmp_path / "store").add(["a"], ids=["1"])
    entries = {"default_prompt_name": "q", "prompts": {"q": "a cat ", "document": ""}}
    model.sentence = model.sentence.with_values(entries=entries)
    with pytest.raises(DataError, match="another model"):
        VectorStore.open(model, tmp_path / "store")
