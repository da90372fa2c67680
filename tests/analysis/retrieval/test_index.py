"""Search: equal to a full sort, checked saved vectors, and rerankers."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bertworks as bw
from bertworks.analysis.retrieval.index import Index
from bertworks.analysis.retrieval.mining import mine
from bertworks.analysis.retrieval.opening import open_index
from bertworks.analysis.retrieval.reranking import (
    relevance_of_model,
    rerank_hits,
    text_scorer,
)
from bertworks.analysis.retrieval.text_index import Hit, sort_ranking
from bertworks.data.text_inputs import read_texts
from bertworks.errors import (
    BertworksError,
    BertworksWarning,
    DataError,
    OutputError,
    SettingsError,
)
from bertworks.loading import load
from bertworks.model import Model
from bertworks.tasks.classification import ClassificationSettings, ClassificationTask
from bertworks.tasks.regression import RegressionSettings, RegressionTask
from bertworks.text.tokenizer import Tokenizer

from ...tasks.hard_cases import CONFIG, LETTERS, PIECES

TOKENIZER = Tokenizer.from_vocabulary(PIECES)
RANDOM = np.random.default_rng(0)
TEXTS = [" ".join(RANDOM.choice(list(LETTERS), RANDOM.integers(1, 9))) for _ in range(200)]
QUERIES = ["a b c", "x y", "q"]


@pytest.fixture
def model() -> Model:
    return Model.fresh(CONFIG, TOKENIZER)


def by_full_sort(model: Model, queries: list[str], k: int) -> list[list[tuple[int, float]]]:
    products = model.embed(queries, normalize=True) @ model.embed(TEXTS, normalize=True).T
    orders = np.argsort(-products, axis=1, kind="stable")[:, :k]
    return [
        [(int(row), float(own[row])) for row in order]
        for own, order in zip(products, orders, strict=True)
    ]


def check(results: list[list[Hit]], expected: list[list[tuple[int, float]]]) -> None:
    for hits, rows in zip(results, expected, strict=True):
        assert [hit.row for hit in hits] == [row for row, _ in rows]
        assert [hit.score for hit in hits] == pytest.approx([score for _, score in rows], abs=1e-6)
        assert [hit.similarity for hit in hits] == [hit.score for hit in hits]
        assert [hit.text for hit in hits] == [TEXTS[row] for row, _ in rows]


@pytest.mark.long
def test_search_finds_what_a_full_sort_finds(model: Model, tmp_path: Path) -> None:
    expected = by_full_sort(model, QUERIES, 7)
    results = bw.Index.open(model, TEXTS).search(QUERIES, top_k=7)
    check(results, expected)
    assert results[0][0].where == f"text {results[0][0].row + 1}"
    check(Index.open(model, iter(TEXTS)).search(QUERIES, top_k=7), expected)
    file = tmp_path / "texts.txt"
    file.write_text("".join(f"{text}\n \n" for text in TEXTS))  # blank lines are no texts
    results = Index.open(model, file, tmp_path / "kept").search(QUERIES, top_k=7)
    assert all(hit.where == f"{file}:{hit.row + 1}" for hits in results for hit in hits)
    check([[hit._replace(row=hit.row // 2) for hit in hits] for hits in results], expected)
    table = tmp_path / "texts.jsonl"
    table.write_text("".join(json.dumps({"id": 1, "body": text}) + "\n" for text in TEXTS))
    check(Index.open(model, table, column="body").search(QUERIES, top_k=7), expected)
    every = Index.open(model, TEXTS).search(["a"], top_k=1000)[0]
    assert sorted(hit.row for hit in every) == list(range(len(TEXTS)))


def test_rows_are_those_of_the_texts_given(model: Model) -> None:
    """Blank texts have no vector, and keep their numbers."""
    texts = [" ", "a b", "", "\t", "c d", "x", ""]
    index = Index.open(model, texts)
    assert len(index) == len(index.vectors) == 3
    (hits,) = index.search("a b", top_k=9)
    assert sorted(hit.row for hit in hits) == [1, 4, 5]
    for hit in hits:
        assert (hit.text, hit.where) == (texts[hit.row], f"text {hit.row + 1}")


def test_kept_vectors_are_of_this_file_and_this_model(model: Model, tmp_path: Path) -> None:
    file, index_dir = tmp_path / "texts.txt", tmp_path / "kept"
    file.write_text("\n".join(TEXTS))
    first = Index.open(model, file, index_dir)
    modified_ns = (index_dir / "vectors.npy").stat().st_mtime_ns
    reports: list[int] = []
    reopened_index = Index.open(
        model, file, index_dir, progress=lambda done, total: reports.append(done)
    )
    assert not reports
    assert (index_dir / "vectors.npy").stat().st_mtime_ns == modified_ns
    assert isinstance(reopened_index.vectors, np.memmap)
    assert len(reopened_index) == len(TEXTS)
    assert reopened_index.search(QUERIES) == first.search(QUERIES)
    with pytest.raises(DataError, match=r"vectors\.npy: was started with another model"):
        Index.open(Model.fresh(CONFIG, TOKENIZER, seed=1), file, index_dir)
    file.write_text("\n".join(["z", *TEXTS[1:]]))
    with pytest.raises(DataError, match=r"started with other texts.*start again with --overwrite"):
        Index.open(model, file, index_dir)


def test_texts_of_an_iterator_are_read_by_each_index(model: Model) -> None:
    indexes = [open_index([model, "bm25"], texts) for texts in (iter(TEXTS), TEXTS)]
    assert indexes[0].search(QUERIES) == indexes[1].search(QUERIES)


def test_texts_that_are_truncated_are_counted_whoever_embeds_them(
    model: Model, tmp_path: Path
) -> None:
    texts = ["a b", "c " * 100, "d"]
    folder, truncation = tmp_path / "index", r"1 of 3 texts were too long .* and truncated"
    for _ in range(2):  # the second time, the vectors are there
        with pytest.warns(BertworksWarning, match=truncation):
            Index.open(model, texts, folder)
    with pytest.warns(BertworksWarning, match=truncation):
        open_index([model, "bm25"], texts)
    pairs = [{"query": "q", "positive": text} for text in texts]
    with pytest.warns(BertworksWarning, match=truncation):
        mine(model, pairs, tmp_path / "negatives.jsonl")


@pytest.mark.long
def test_an_approximation_returns_the_requested_number_of_texts(model: Model) -> None:
    """Also if the cells that it visits have fewer."""
    pytest.importorskip("faiss")
    vectors = np.random.default_rng(2).standard_normal((3000, 32)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    index = Index(model, read_texts(["a"] * 3000), vectors)
    exact, some = (index.rank(QUERIES, 1000, approximate=which) for which in (False, True))
    assert np.array_equal(exact[1], some[1])


@pytest.mark.long
def test_an_approximation_misses_little_and_is_kept(model: Model, tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    random = np.random.default_rng(1)
    centres = random.standard_normal((40, 32))
    vectors = centres[random.integers(0, 40, 5000)] + 0.4 * random.standard_normal((5000, 32))
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    texts = read_texts([LETTERS[at % 26] for at in range(5000)])
    cells = tmp_path / "vectors.npy.faiss"
    index = Index(model, texts, vectors, cells=cells)
    queries = [" ".join(LETTERS[at : at + 3]) for at in range(20)]
    exact, some = (index.search(queries, 10, approximate=which) for which in (False, True))
    num_matches = 0
    for own, other in zip(exact, some, strict=True):
        scores = {hit.row: hit.score for hit in own}
        for hit in other:
            assert hit.score == pytest.approx(scores.get(hit.row, hit.score), abs=1e-5)
        assert max(hit.score for hit in other) <= own[0].score + 1e-5
        num_matches += len(scores.keys() & {hit.row for hit in other})
    assert num_matches >= 160  # of 200; one cell in 16 is looked at
    made = cells.stat().st_mtime_ns
    assert index.search(queries, 10, approximate=True) == some
    assert cells.stat().st_mtime_ns == made


def test_approximate_index_follows_its_vectors(model: Model, tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    for texts in (TEXTS, TEXTS[:50]):
        index = Index.open(model, texts, tmp_path)
        (hits,) = index.search(["a"], 1000, approximate=True)
        assert sorted(hit.row for hit in hits) == list(range(len(texts)))
        (tmp_path / "vectors.npy").unlink()


def test_a_damaged_approximation_is_made_anew(model: Model, tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    search = {"top_k": 5, "approximate": True}
    expected = Index.open(model, TEXTS, tmp_path).search(QUERIES, **search)
    for content in (b"", b"damaged"):
        (tmp_path / "vectors.npy.faiss").write_bytes(content)
        assert Index.open(model, TEXTS, tmp_path).search(QUERIES, **search) == expected


@pytest.mark.long
def test_files_that_changed_after_indexing_are_refused(model: Model, tmp_path: Path) -> None:
    file = tmp_path / "texts.txt"
    file.write_text("a\nb\nc\n")
    index = Index.open(model, file, tmp_path / "index")
    file.write_text("a\n")
    with pytest.raises(DataError, match=r"texts\.txt: has fewer texts"):
        index.search("c", top_k=3)
    for index_dir in (tmp_path / "other", None):
        file.write_text("a\n\nb\nc\n")
        for _ in range(2):  # the second time, the vectors in the directory are reused
            index = Index.open(model, file, index_dir)
            assert {hit.text for hit in index.search("c", top_k=3)[0]} == {"a", "b", "c"}
        file.write_text("new\na\nb\nc\n")  # as many, and more: hits would be of other lines
        with pytest.raises(DataError, match=r"texts\.txt: has other texts than when"):
            index.search("c", top_k=3)
    with pytest.raises(OutputError, match=r"texts\.txt: is a file, not a directory"):
        Index.open(model, TEXTS, file)
    with pytest.raises(DataError, match=r"^query 2: .* tokens, but at most"):
        index.search(["a", "a " * 1000])


def reranker(task: Any) -> Model:
    return Model(TOKENIZER, task, task.network(CONFIG).eval())


PAIR = {"text_column": "one", "pair_column": "two", "label_column": "label"}


def _scoring(columns: dict[str, str]) -> RegressionSettings:
    return RegressionSettings(max_seq_length=32, **columns)


@pytest.mark.long
def test_a_reranker_has_the_last_word(model: Model) -> None:
    regression = reranker(RegressionTask(TOKENIZER, _scoring(PAIR)))
    settings = {**PAIR, "labels": ("bad", "good"), "max_seq_length": 32}
    classes = {
        label: reranker(
            ClassificationTask(
                TOKENIZER, ClassificationSettings.parse({**settings, "positive_label": label})
            )
        )
        for label in (None, "bad")
    }
    index = Index.open(model, TEXTS)
    candidates = {
        query: [hit.text for hit in hits]
        for query, hits in zip(QUERIES, index.search(QUERIES, 20), strict=True)
    }
    for one, score in (
        (regression, lambda reported: reported["value"]),
        (classes[None], lambda reported: reported["probabilities"]["good"]),
        (classes["bad"], lambda reported: reported["probabilities"]["bad"]),
    ):
        found = index.search(QUERIES, 3, rerank=one, candidates=20)
        for query, hits in zip(QUERIES, found, strict=True):
            texts = candidates[query]
            scores = [
                score(reported) for reported in one.predict([(query, text) for text in texts])
            ]
            best = sorted(scores, reverse=True)[:3]
            assert [hit.score for hit in hits] == pytest.approx(best, abs=1e-6)
            assert {hit.text for hit in hits} <= set(texts)
            (own,) = model.embed([query], normalize=True)
            (vector,) = model.embed([hits[0].text], normalize=True)
            assert hits[0].similarity == pytest.approx(float(own @ vector), abs=1e-6)


def test_blank_query_has_no_hits(model: Model) -> None:
    own, *blank = Index.open(model, TEXTS).search(["a", "", " \n"], 3)
    assert len(own) == 3 and blank == [[], []]


def test_equal_scores_keep_the_order_of_the_texts(model: Model) -> None:
    texts = ["a b", "b a", "c"] * 40
    index = Index.open(model, texts)
    (hits,) = index.search("a b", 120)
    numbers = [hit.row for hit in hits]
    for text in set(texts):
        same = [row for row in numbers if texts[row] == text]
        assert same == sorted(same)
    by_score = np.array([[0.5, 0.9, 0.5, 0.9]], np.float32), np.array([[7, 3, 2, 1]])
    assert sort_ranking(*by_score)[1].tolist() == [[1, 3, 2, 7]]


@pytest.mark.parametrize("texts", [["a b"] * 40, [*"abcdefghij"] * 4])
def test_reranking_equal_scores_keeps_the_order_of_the_candidates(
    texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = {text: float(at // 3) for at, text in enumerate(sorted(set(texts)))}
    task = RegressionTask(TOKENIZER, _scoring(PAIR))
    one = reranker(task)
    monkeypatch.setattr(one, "predict", lambda pairs: [{"value": scores[b]} for _, b in pairs])
    hits = [Hit(0.0, 0.0, row, f"text {row}", text) for row, text in enumerate(texts)]
    (hits_by_score,) = rerank_hits(["q"], [hits], text_scorer(one, {}))
    keys = [(-scores[hit.text], hit.row) for hit in hits_by_score]
    assert keys == sorted(keys)
    assert [hit.score for hit in hits_by_score] == [scores[hit.text] for hit in hits_by_score]


def test_reranking_orders_probabilities_that_are_rounded_to_one() -> None:
    settings = {**PAIR, "labels": ("bad", "good"), "max_seq_length": 32}
    one = reranker(ClassificationTask(TOKENIZER, ClassificationSettings.parse(settings)))
    relevance = relevance_of_model(one)
    logits = np.array([40.0, 45.0, -800.0, 0.0, 42.0, -50.0, 900.0])
    odds = torch.softmax(torch.tensor(np.stack([0 * logits, logits], 1)), -1).tolist()
    scored = [relevance({"probabilities": {"bad": bad, "good": good}}) for bad, good in odds]
    assert [one.score for one in scored].count(1.0) > 2
    assert np.argsort([one.order for one in scored]).tolist() == np.argsort(logits).tolist()


def test_rerankers_that_do_not_tell(model: Model) -> None:
    index = Index.open(model, TEXTS)
    single = {"text_column": "one", "label_column": "label"}
    three = {**PAIR, "labels": ("a", "b", "c"), "max_seq_length": 32}
    for one, says in (
        (model, "trained for nothing"),
        (
            reranker(RegressionTask(TOKENIZER, _scoring(single))),
            "takes single texts",
        ),
        (
            reranker(ClassificationTask(TOKENIZER, ClassificationSettings.parse(three))),
            "positive_label=NAME",
        ),
    ):
        with pytest.raises(BertworksError, match=says):
            index.search(QUERIES, rerank=one)


@pytest.mark.long
@pytest.mark.parametrize("version", [4, 6])
def test_a_published_cross_encoder_is_one_of_pairs(tmp_path: Path, version: int) -> None:
    from sentence_transformers import CrossEncoder

    task = RegressionTask(TOKENIZER, _scoring(PAIR))
    reranker(task).save(tmp_path / "ours")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of sentence-transformers
        sigmoid = torch.nn.Sigmoid()  # which published ones end with, and ours do not
        theirs = CrossEncoder(str(tmp_path / "ours"), device="cpu", activation_fn=sigmoid)
        theirs.save_pretrained(str(tmp_path / "theirs"))
        pairs = [("a b", "c"), ("a", "x y z")]
        expected = theirs.predict(pairs, activation_fn=None, convert_to_numpy=True)
    if version == 4:  # of which the hub's are
        for name in ("modules.json", "config_sentence_transformers.json"):
            (tmp_path / "theirs" / name).unlink()
        file = tmp_path / "theirs" / "config.json"
        said = {"activation_fn": "torch.nn.modules.activation.Sigmoid", "version": "4.0.1"}
        file.write_text(json.dumps({**json.loads(file.read_text()), "sentence_transformers": said}))
    again = load(tmp_path / "theirs", device="cpu")
    assert again.sentence is None
    reported = [answer["value"] for answer in again.predict(pairs)]
    assert reported == pytest.approx(expected.tolist(), abs=1e-6)


def test_impossible_searches_are_refused(model: Model, tmp_path: Path) -> None:
    index = Index.open(model, TEXTS)
    assert index.search([]) == []
    wrong: Any
    for wrong in (0, -1, 2.0, None, "3"):
        with pytest.raises(SettingsError, match=f"top_k={wrong}: must be a whole number"):
            index.search(["a"], wrong)
        with pytest.raises(SettingsError, match=f"candidates={wrong}: must be a whole number"):
            index.search(["a"], candidates=wrong)
    assert index.search("a", np.int64(2)) == index.search("a", 2)  # type: ignore[arg-type]
    for wrong in (None, 3):
        with pytest.raises(DataError, match="expected a text, or several, got"):
            index.search(wrong)
    with pytest.raises(DataError, match="query 1: 42 tokens, but at most 32 fit"):
        index.search(["a " * 40])
    with pytest.raises(DataError, match="there are no texts"):
        Index.open(model, [" ", ""])
    with pytest.raises(DataError, match="standard input"):
        Index.open(model, "-")
    with pytest.raises(DataError, match="no such file"):
        Index.open(model, tmp_path / "none.txt")
