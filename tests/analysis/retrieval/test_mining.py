"""Hard negatives: their order and limits, a reranker's scores, resuming, any number of workers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bertworks.analysis.retrieval.index import Index
from bertworks.analysis.retrieval.mining import MinedNegatives, mine
from bertworks.errors import BertworksError, DataError, OutputError, SettingsError
from bertworks.jobs.parallel import Workers
from bertworks.loading import load
from bertworks.model import Model
from bertworks.tasks.regression import RegressionSettings, RegressionTask
from bertworks.text.tokenizer import Tokenizer
from bertworks.training.finetune import finetune

from ...tasks.hard_cases import CONFIG, LETTERS, PIECES

TOKENIZER = Tokenizer.from_vocabulary(PIECES)
RANDOM = np.random.default_rng(3)
PASSAGES = [" ".join(RANDOM.choice(list(LETTERS), RANDOM.integers(2, 8))) for _ in range(30)]
PAIRS = [
    *({"query": f"{text[:3]} z", "positive": text} for text in PASSAGES[:8]),
    {"query": f"{PASSAGES[0][:3]} z", "positive": PASSAGES[9]},  # a second one of a query
    {"query": PASSAGES[2], "positive": PASSAGES[10]},  # a query that is a passage
]
POSITIVES: dict[str, set[str]] = {}
for row in PAIRS:
    POSITIVES.setdefault(row["query"], {row["query"]}).add(row["positive"])


@pytest.fixture(scope="module")
def model() -> Model:
    return Model.fresh(CONFIG, TOKENIZER)


def lines_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.long
@pytest.mark.parametrize(("skip", "margin"), [(0, None), (2, None), (0, 0.01)])
def test_negatives_are_the_best_passages_of_other_queries(
    model: Model, tmp_path: Path, skip: int, margin: float | None
) -> None:
    out = tmp_path / "negatives.jsonl"
    settings = {"skip": skip, "margin": margin, "num_negatives": 3}
    counts = mine(model, PAIRS, out, corpus=PASSAGES, **settings)
    lines, num_short, total = lines_of(out), 0, 0
    for pair, line in zip(PAIRS, lines, strict=True):
        passages = list(dict.fromkeys([*(one["positive"] for one in PAIRS), *PASSAGES]))
        cosines = model.embed(passages, normalize=True) @ model.embed([pair["query"]])[0]
        cosines /= np.linalg.norm(model.embed([pair["query"]])[0])
        order = np.argsort(-cosines, kind="stable")
        others = [at for at in order if passages[at] not in POSITIVES[pair["query"]]][skip:]
        if margin is not None:
            limit = cosines[passages.index(pair["positive"])] - margin
            others = [at for at in others if cosines[at] <= limit]
        assert line == {**pair, "negatives": [passages[at] for at in others[:3]]}
        num_short += len(others) < 3
        total += len(others[:3])
    assert counts == MinedNegatives(len(PAIRS), total, num_short)
    assert sorted(path.name for path in tmp_path.iterdir()) == [out.name, f"{out.name}.json"]


def test_passage_in_another_case_or_with_other_blanks_is_no_negative(tmp_path: Path) -> None:
    pairs = [
        {"query": "what is a cat?", "positive": "A cat is an animal."},
        {"query": "What is a cat? ", "positive": "a cat purrs"},
        {"query": "what is a dog?", "positive": "a dog is no cat"},
    ]
    corpus = ["a  CAT is an animal.", "is a cat a bird?", "Is a cat a bird? ", "what is a CAT?"]
    mine("bm25", pairs, tmp_path / "out.jsonl", corpus=corpus)
    first, second, third = (set(line["negatives"]) for line in lines_of(tmp_path / "out.jsonl"))
    assert first == second == {"a dog is no cat", "is a cat a bird?"}
    assert third == {"A cat is an animal.", "a cat purrs", "is a cat a bird?", "what is a CAT?"}


def test_passage_with_its_title_is_no_negative(tmp_path: Path) -> None:
    """Texts of BEIR's layout begin with their titles, and those of a table of pairs may not."""
    corpus = tmp_path / "corpus.jsonl"
    documents = [("Cats", "a cat purrs"), ("Dogs", "a dog is no cat"), ("", "a cat sleeps")]
    rows = [
        {"_id": str(number), "title": title, "text": text}
        for number, (title, text) in enumerate(documents)
    ]
    corpus.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    pairs = [{"query": "what is a cat?", "positive": "A cat purrs"}]
    mine("bm25", pairs, tmp_path / "out.jsonl", corpus=corpus)
    (line,) = lines_of(tmp_path / "out.jsonl")
    assert set(line["negatives"]) == {"Dogs a dog is no cat", "a cat sleeps"}


def test_column_of_titles_does_not_change_the_texts_of_a_table(tmp_path: Path) -> None:
    corpus = [{"title": "Paris", "text": "Paris is big"}]
    mine("bm25", [{"query": "big", "positive": "is big"}], tmp_path / "out.jsonl", corpus=corpus)
    (line,) = lines_of(tmp_path / "out.jsonl")
    assert line["negatives"] == ["Paris is big"]


@pytest.mark.long
def test_reranker_drops_relevant_passages_and_its_scores_are_written(
    model: Model, tmp_path: Path
) -> None:
    out = tmp_path / "negatives.jsonl"
    columns = RegressionSettings(
        text_column="a", pair_column="b", label_column="y", max_seq_length=32
    )
    task = RegressionTask(TOKENIZER, columns)
    torch.manual_seed(4)
    network_model = Model(TOKENIZER, task, task.network(CONFIG).eval())
    mine("bm25", PAIRS, out, corpus=PASSAGES, rerank=network_model, num_negatives=2)
    mine("bm25", PAIRS, tmp_path / "all.jsonl", corpus=PASSAGES, num_negatives=30)
    num_dropped = 0
    for line, all_negatives in zip(lines_of(out), lines_of(tmp_path / "all.jsonl"), strict=True):
        candidates = all_negatives["negatives"]
        assert line["negatives"] == [text for text in candidates if text in line["negatives"]]
        num_dropped += candidates[:2] != line["negatives"]
    assert num_dropped > 0
    for line in lines_of(out):
        texts = [line["positive"], *line["negatives"]]
        values = network_model.predict([(line["query"], text) for text in texts])
        assert line["scores"] == pytest.approx([value["value"] for value in values], abs=1e-5)
        assert all(score <= line["scores"][0] for score in line["scores"][1:])


@pytest.mark.long
def test_output_is_the_same_for_any_workers_and_is_not_made_twice(
    model: Model, tmp_path: Path
) -> None:
    one, two = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    mine(model, PAIRS, one, window_rows=3)
    mine(model, PAIRS, two, window_rows=2, workers=Workers(2))
    assert one.read_bytes() == two.read_bytes()
    changed = one.stat().st_mtime_ns
    mine(model, PAIRS, one, window_rows=3)
    assert one.stat().st_mtime_ns == changed
    for pairs, settings, message in (
        (PAIRS, {"skip": 1}, "was started with skip=0"),
        (PAIRS[1:], {}, "was started with other pairs"),
        (PAIRS, {"corpus": ["a"]}, "was started with other passages"),
    ):
        with pytest.raises(DataError, match=message):
            mine(model, pairs, one, **settings)
    with pytest.raises(DataError, match="was started with another model"):
        mine("bm25", PAIRS, one)
    mine("bm25", PAIRS, one, overwrite=True)


@pytest.mark.long
def test_interrupted_file_resumes(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, out = tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    mine(model, PAIRS, whole, window_rows=2)
    windows: list[int] = []
    from bertworks.analysis.retrieval import mining

    make = mining._Miner.__call__

    def fail_later(self: Any, window: Any) -> Any:
        windows.append(window.number)
        if len(windows) == 3:
            raise KeyboardInterrupt
        return make(self, window)

    monkeypatch.setattr(mining._Miner, "__call__", fail_later)
    with pytest.raises(KeyboardInterrupt):
        mine(model, PAIRS, out, window_rows=2)
    mine(model, PAIRS, out, window_rows=2)
    assert windows == [0, 1, 2, 2, 3, 4]
    assert out.read_bytes() == whole.read_bytes()


def test_unusable_outputs_and_settings_are_refused(model: Model, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"Name it \.jsonl"):
        mine(model, PAIRS, tmp_path / "negatives.tsv")
    (tmp_path / "other.jsonl").write_text("precious")
    with pytest.raises(OutputError, match="already exists"):
        mine(model, PAIRS, tmp_path / "other.jsonl")
    with pytest.raises(SettingsError, match="num_negatives"):
        mine(model, PAIRS, tmp_path / "negatives.jsonl", num_negatives=0)


@pytest.mark.parametrize("layout", ["pairs", "choices"])
def test_layouts_have_the_same_negatives_and_train_cross_encoders(
    model: Model, tmp_path: Path, layout: Any
) -> None:
    counts = mine(model, PAIRS, tmp_path / "lists.jsonl", corpus=PASSAGES)
    lists = lines_of(tmp_path / "lists.jsonl")
    out = tmp_path / "rows.jsonl"
    assert mine(model, PAIRS, out, corpus=PASSAGES, layout=layout) == counts
    texts = [(line["query"], [line["positive"], *line["negatives"]]) for line in lists]
    rows = lines_of(out)
    if layout == "choices":
        assert rows == [{"prompt": query, "choices": own, "label": 0} for query, own in texts]
    else:
        pairs = [(query, text, int(text == own[0])) for query, own in texts for text in own]
        assert [(row["text"], row["pair"], row["label"]) for row in rows] == pairs
    task_name, settings = ("choice", {}) if layout == "choices" else ("classification", {})
    if layout == "pairs":
        settings = {"positive_label": "1"}
    result = finetune(
        model,
        task_name,
        train=str(out),
        out=tmp_path / "run",
        epochs=1,
        max_seq_length=32,
        **settings,
    )
    reranker = load(result.run.model, device="cpu")
    index = Index.open(model, PASSAGES)
    queries = [PAIRS[0]["query"], PAIRS[3]["query"]]
    for query, hits in zip(queries, index.search(queries, 5, rerank=reranker), strict=True):
        nearest = [hit.text for hit in index.search(query, 50)[0]]
        if layout == "choices":
            (prediction,) = reranker.predict([{"prompt": query, "choices": nearest}])
            scores = prediction["probabilities"]
        else:
            predictions = reranker.predict([(query, text) for text in nearest])
            scores = [one["probabilities"]["1"] for one in predictions]
        order = np.argsort(-np.array(scores), kind="stable")[:5]
        assert [hit.score for hit in hits] == pytest.approx([scores[at] for at in order], abs=1e-5)
    (alone,) = index.search(queries[0], 5, rerank=reranker)
    for hits in index.search([queries[0]] * 2, 5, rerank=reranker):  # equal ones stay apart
        assert [hit.score for hit in hits] == pytest.approx([hit.score for hit in alone], abs=1e-5)
    if layout == "choices":
        with pytest.raises(BertworksError, match="use this one in search and evaluate"):
            mine("bm25", PAIRS, tmp_path / "more.jsonl", rerank=reranker)
