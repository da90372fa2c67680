"""BM25 and the fusion of rankings, by their formulas, and the evaluation of stages."""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertworks.analysis.retrieval.bm25 import BM25Index, split_words
from bertworks.analysis.retrieval.evaluation import evaluate_retrieval
from bertworks.analysis.retrieval.fusion import fuse_rankings
from bertworks.analysis.retrieval.index import Index
from bertworks.analysis.retrieval.judgements import write_run
from bertworks.analysis.retrieval.opening import open_index
from bertworks.analysis.scoring import score
from bertworks.errors import BertworksError, DataError, SettingsError
from bertworks.model import Model
from bertworks.tasks.classification import ClassificationSettings, ClassificationTask
from bertworks.tasks.regression import RegressionSettings, RegressionTask
from bertworks.text.tokenizer import Tokenizer

from ...tasks.hard_cases import CONFIG, LETTERS, PIECES
from .test_index import PAIR, TOKENIZER, reranker
from .test_judgements import write_lines

RANDOM = np.random.default_rng(0)
TEXTS = [" ".join(RANDOM.choice(list(LETTERS), RANDOM.integers(1, 9))) for _ in range(60)]
QUERIES = ["a b b", "x y", "q unknown"]


@pytest.fixture(scope="module")
def model() -> Model:
    return Model.fresh(CONFIG, Tokenizer.from_vocabulary(PIECES))


def bm25(query: str, text: str) -> float:
    """Robertson and Zaragoza's equation 3.15 with Lucene's inverse document frequency."""
    length = sum(len(one.split()) for one in TEXTS) / len(TEXTS)
    score = 0.0
    for word in query.split():
        holders = sum(word in one.split() for one in TEXTS)
        idf = math.log(1 + (len(TEXTS) - holders + 0.5) / (holders + 0.5))
        count = Counter(text.split())[word]
        norm = 1.2 * (1 - 0.75 + 0.75 * len(text.split()) / length)
        score += idf * count / (count + norm)
    return score


@pytest.mark.parametrize("query", QUERIES)
def test_bm25_equals_its_formula(query: str) -> None:
    scores, rows = BM25Index.open(TEXTS).rank([query], len(TEXTS))
    expected = {row: value for row, text in enumerate(TEXTS) if (value := bm25(query, text)) > 0}
    matches = {row: score for row, score in zip(rows[0], scores[0], strict=True) if row >= 0}
    assert matches == pytest.approx(expected, rel=1e-5)
    assert [*matches] == sorted(matches, key=lambda row: (-matches[row], row))


def test_words_have_no_case_or_accents_and_chinese_characters_are_words() -> None:
    assert split_words("Élan, it's 東京-2") == ["elan", "it", "s", "東", "京", "2"]


@pytest.mark.parametrize("text", ["हिन्दी, भाषा!", "தமிழ் மொழி", "বাংলা-ভাষা", "తెలుగు (భాష)", "မြန်မာ စာ"])
def test_vowel_signs_are_parts_of_words(text: str) -> None:
    words = split_words(text)
    assert len(words) == 2
    assert [*"".join(words)] == [
        one
        for one in unicodedata.normalize("NFD", text)
        if unicodedata.category(one) in ("Lo", "Mc")
    ]


def test_blank_texts_are_no_hits_and_keep_their_numbers() -> None:
    hits = BM25Index.open(["", "a b", " ", "c"]).search(["c", "z"], 5)
    assert [[hit.row for hit in one] for one in hits] == [[3], []]
    with pytest.raises(BertworksError, match="BM25 compares all texts"):
        BM25Index.open(TEXTS).search("a", approximate=True)


def test_fusion_sums_reciprocal_ranks() -> None:
    first, second = np.array([[3, 1, 2]]), np.array([[1, 5, -1]])
    scores, rows = fuse_rankings([first, second], 5)
    assert rows.tolist() == [[1, 3, 5, 2, -1]]
    expected = [1 / 62 + 1 / 61, 1 / 61, 1 / 62, 1 / 63, 0]
    np.testing.assert_allclose(scores[0], expected, rtol=1e-6)


def test_hybrid_search_fuses_the_rankings_of_its_parts(model: Model, tmp_path: Path) -> None:
    parts = [Index.open(model, TEXTS), BM25Index.open(TEXTS)]
    rankings = [index.rank(QUERIES, 60)[1] for index in parts]
    _, expected = fuse_rankings(rankings, 6)
    hybrid = open_index([model, "bm25"], TEXTS, tmp_path / "kept")
    hits = hybrid.search(QUERIES, 6)
    assert [[hit.row for hit in one] for one in hits] == expected.tolist()
    assert (tmp_path / "kept/vectors.npy").exists()
    for retrievers in ("bm25", [model, model]):
        with pytest.raises(SettingsError, match="an index keeps the vectors of one model"):
            open_index(retrievers, TEXTS, tmp_path / "other")


def test_stages_are_evaluated(model: Model, tmp_path: Path) -> None:
    """The judged document is the first word's; a query that is a document is no hit of itself."""
    write_lines(
        tmp_path / "corpus.jsonl",
        *({"_id": str(number), "text": text} for number, text in enumerate(TEXTS[:30])),
        {"_id": "q", "text": "a b c"},
    )
    write_lines(tmp_path / "queries.jsonl", {"_id": "q", "text": "a b c"})
    write_lines(tmp_path / "qrels/dev.tsv", "q\t3\t1")
    stages = evaluate_retrieval(
        {"dense": model, "bm25": "bm25"}, tmp_path, metrics=["mrr@30", "recall@5"], depth=30
    )
    assert [stage.name for stage in stages] == ["dense", "bm25", "hybrid"]
    dense, words, hybrid = stages
    ranking = [hit.row for hit in Index.open(model, TEXTS[:30]).search("a b c", 30)[0]]
    assert dense.evaluation.metrics["mrr@30"] == 1 / (1 + ranking.index(3))
    assert len(dense.run["q"]) == 30
    assert all("q" not in stage.run["q"] for stage in stages)
    scored = [hit.row for hit in BM25Index.open([*TEXTS[:30], "a b c"]).search("a b c", 31)[0]]
    assert sorted(map(int, words.run["q"])) == sorted(set(scored) - {30})
    assert set(hybrid.run["q"]) == set(map(str, range(30)))
    with pytest.raises(SettingsError, match="depth=3 is less than a metric's cutoff, 5"):
        evaluate_retrieval({"bm25": "bm25"}, tmp_path, metrics=["recall@5"], depth=3)
    with pytest.raises(SettingsError, match="unknown metric 'ndgc@5'"):
        evaluate_retrieval({"bm25": "bm25"}, tmp_path, metrics=["ndgc@5"])
    with pytest.raises(SettingsError, match="'hybrid' is the name of the fusion"):
        evaluate_retrieval({"hybrid": "bm25", "dense": model}, tmp_path)


def test_document_that_is_the_query_is_no_candidate_for_reranking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = {"q": "a b c", "d1": "a b", "d2": "a", "d3": "a a x y z"}
    write_lines(tmp_path / "corpus.jsonl", *({"_id": key, "text": texts[key]} for key in texts))
    write_lines(tmp_path / "queries.jsonl", {"_id": "q", "text": "a b c"})
    write_lines(tmp_path / "qrels/test.tsv", "q\td2\t1")
    model = reranker(RegressionTask(TOKENIZER, RegressionSettings(max_seq_length=32, **PAIR)))
    monkeypatch.setattr(
        model, "predict", lambda pairs: [{"value": -len(text)} for _, text in pairs]
    )
    options: dict[str, Any] = {"rerank": model, "metrics": ["mrr"], "candidates": 2}
    words, reranked = evaluate_retrieval({"words": "bm25"}, tmp_path, **options)
    assert [*words.run["q"]] == ["d1", "d2", "d3"]
    assert [*reranked.run["q"]] == ["d2", "d1", "d3"]


def test_runs_and_candidates_are_first_stages(tmp_path: Path) -> None:
    texts = {f"d{number}": text for number, text in enumerate(TEXTS[:30])}
    write_lines(
        tmp_path / "corpus.jsonl", *({"_id": name, "text": own} for name, own in texts.items())
    )
    names = dict(zip(("q1", "q2"), QUERIES[:2], strict=True))
    write_lines(tmp_path / "queries.jsonl", *({"_id": a, "text": b} for a, b in names.items()))
    write_lines(tmp_path / "qrels/dev.tsv", "q1\t0\td3\t1", "q2\t0\td4\t2")
    (words,) = evaluate_retrieval({"bm25": "bm25"}, tmp_path)
    write_run(tmp_path / "words.run", words.run, "bm25")
    (same,) = evaluate_retrieval({"run": tmp_path / "words.run"}, tmp_path)
    assert same.evaluation == words.evaluation
    assert same.run == {name: pytest.approx(own) for name, own in words.run.items()}
    rows = [f"{name}\td{row}\t{names[name]}\t{TEXTS[row]}" for name in names for row in (7, 2, 9)]
    file = write_lines(tmp_path / "top1000.dev.tsv", "q9\td1\tnot judged\ta", *rows)
    settings = {**PAIR, "labels": ("bad", "good"), "positive_label": "good", "max_seq_length": 32}
    task = ClassificationTask(TOKENIZER, ClassificationSettings.parse(settings))
    judge = reranker(task)
    _, reranked = evaluate_retrieval({"top": file}, tmp_path, rerank=judge)
    for name, query in names.items():
        answers = judge.predict([(query, TEXTS[row]) for row in (7, 2, 9)])
        scores = [one["probabilities"]["good"] for one in answers]
        best = [f"d{(7, 2, 9)[at]}" for at in np.argsort(scores)[::-1]]
        assert [*reranked.run[name]] == best
    with pytest.raises(DataError, match="3 candidates without scores, and 2 are ranked"):
        evaluate_retrieval({"top": file}, tmp_path, rerank=judge, candidates=2)
    options: dict[str, Any] = {"rerank": judge, "metrics": "recall@5", "depth": 9}
    first, some = evaluate_retrieval({"bm25": "bm25"}, tmp_path, candidates=2, **options)
    _, full_order = evaluate_retrieval({"bm25": "bm25"}, tmp_path, **{**options, "depth": 30})
    for name in names:
        ranking, order = [*first.run[name]], [*full_order.run[name]]
        best = sorted(ranking[:2], key=order.index)
        assert [*some.run[name]] == [*best, *ranking[2:]]
    with pytest.raises(SettingsError, match="candidates=2 does nothing without a reranker"):
        evaluate_retrieval({"bm25": "bm25"}, tmp_path, candidates=2)
    write_lines(file, "q1\td99\ta b b\ta text")
    with pytest.raises(DataError, match=r"top1000\.dev\.tsv: 'd99' is not in"):
        evaluate_retrieval({"top": file}, tmp_path)


def write_corpus(folder: Path, count: int) -> None:
    """Write documents 0, 1, ... and a query of which the last one is relevant."""
    names = map(str, range(count))
    write_lines(folder / "corpus.jsonl", *({"_id": name, "text": f"a {name}"} for name in names))
    write_lines(folder / "queries.jsonl", {"_id": "q", "text": "a"})
    write_lines(folder / "qrels/dev.tsv", f"q\t0\t{count - 1}\t1")


def test_candidates_without_scores_are_neither_cut_nor_fused(tmp_path: Path) -> None:
    write_corpus(tmp_path, 12)
    rows = [f"q\t{number}\ta\ta {number}" for number in range(12)]
    file = write_lines(tmp_path / "top1000.dev.tsv", *rows)
    with pytest.raises(DataError, match=r"12 candidates without scores.*: depth=12"):
        evaluate_retrieval({"top": file}, tmp_path, depth=11, metrics="recall@10")
    (stage,) = evaluate_retrieval({"top": file}, tmp_path, depth=12, metrics="recall@10")
    assert len(stage.run["q"]) == 12
    says = "the candidates have no order unless they are reranked; only their recall means anything"
    assert stage.evaluation.notes == [f"{file}: {says}"]
    with pytest.raises(DataError, match=r"top1000\.dev\.tsv: .*no scores.*cannot be fused"):
        evaluate_retrieval({"top": file, "bm25": "bm25"}, tmp_path)
    scored = write_lines(tmp_path / "a.run", *(f"q Q0 {n} 1 {n} x" for n in range(12)))
    (stage,) = evaluate_retrieval({"top": scored}, tmp_path, depth=10, metrics="mrr")
    assert [*stage.run["q"]] == [str(number) for number in range(11, 1, -1)]


def test_queries_that_only_the_run_or_the_judgements_have_are_noted(tmp_path: Path) -> None:
    write_corpus(tmp_path, 3)
    file = write_lines(tmp_path / "a.run", "other Q0 1 1 1 x")
    (stage,) = evaluate_retrieval({"run": file}, tmp_path)
    assert stage.evaluation.notes == [
        "not judged, and ignored: 1 query of the run",
        "1 judged query without a retrieved document, counted as 0",
    ]
    judgements = str(tmp_path / "qrels/dev.tsv")
    assert score("retrieval", judgements, predictions=file).notes == stage.evaluation.notes


@pytest.mark.parametrize(
    ("retriever", "says"),
    [
        ("mini-sentences", r"'mini-sentences' is neither a model nor 'bm25'. Give a loaded model"),
        ("bm52", "'bm52' is neither a model nor 'bm25'. Did you mean 'bm25'?"),
        (None, "None is neither a model nor 'bm25'"),
    ],
)
def test_retrievers_are_models_or_bm25(retriever: Any, says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        evaluate_retrieval({"dense": retriever}, "absent")
    with pytest.raises(SettingsError, match=says):
        open_index(["bm25", retriever], TEXTS)


def test_retrievers_to_evaluate_have_names(model: Model) -> None:
    unnamed: Any = [model]
    with pytest.raises(SettingsError, match="the retrievers are no mapping, but list"):
        evaluate_retrieval(unnamed, "absent")
