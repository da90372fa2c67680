"""Retrieval, trained: late interaction, weights that grow, losses for each table, texts by ids."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from bertworks.analysis.retrieval.index import Index
from bertworks.convert.model_editing import add_tokens, shrink
from bertworks.data.tables import read_rows
from bertworks.errors import BertworksWarning, SettingsError, TrainingError
from bertworks.loading import load
from bertworks.model import Model
from bertworks.tasks.retrieval.losses import loss_sum
from bertworks.tasks.retrieval.settings import RetrievalSettings
from bertworks.tasks.retrieval.sparse_network import regularization_share
from bertworks.tasks.retrieval.task import RetrievalTask
from bertworks.text.tokenizer import Tokenizer
from bertworks.training.finetune import FinetuneResult, finetune

from .letters import GEOMETRY, WORD_PIECES, Lines
from .test_retrieval import FAST, ROWS, ROWS_WITH_SCORES, fresh


@pytest.mark.long
def test_each_table_is_trained_with_its_own_loss_and_resumes_to_the_same_bits(
    tmp_path: Path,
) -> None:
    tables = {"a": ROWS[:40], "b": ROWS_WITH_SCORES[40:]}
    names = [str(tmp_path / f"{name}.jsonl") for name in tables]
    for name, rows in zip(names, tables.values(), strict=True):
        Path(name).write_text("\n".join(map(json.dumps, rows)))

    def train(out: str, **more: Any) -> FinetuneResult:
        settings = {**FAST, "batch_size": 8, "checkpoint_every": 3, **more}
        return finetune(fresh(), "retrieval", train=names, out=tmp_path / out, **settings)

    losses = ("in-batch", "cosent")
    own = train("whole", loss=losses)
    with pytest.raises(RuntimeError, match="switched off"):
        train("broken", loss=losses, progress=Lines(stop_after=8))
    second = train("broken", loss=losses)
    weights = own.model.network.state_dict()
    for name, value in second.model.network.state_dict().items():
        assert torch.equal(weights[name], value), name
    task = load(own.run.model, device="cpu").task
    assert isinstance(task, RetrievalTask)
    assert (task.settings.loss, task.best_metric) == (losses, "mrr@10")
    readers = [task.for_training_table(read_rows(name), at) for at, name in enumerate(names)]
    assert [reader.columns["score"] for reader in readers] == [None, "score"]
    assert readers[1].settings.score_range == (0, 5)
    for number, (reader, name) in enumerate(zip(readers, names, strict=True)):
        examples = list(reader.labelled_examples(read_rows(name)))[:8]
        batch = task.collate([replace(one, table=number) for one in examples]).to("cpu")
        expected = reader.network(GEOMETRY)
        network = task.network(GEOMETRY)
        network.load_state_dict(expected.state_dict())
        own_batch = reader.collate(examples).to("cpu")
        both = [one.eval()(each) for one, each in ((network, batch), (expected, own_batch))]
        assert both[0]["retrieval"].item() == both[1]["retrieval"].item() > 0


@pytest.mark.long
@pytest.mark.filterwarnings(r"ignore:\d+ of \d+ texts were truncated")
def test_late_interaction_learns_and_is_opened_by_sentence_transformers(tmp_path: Path) -> None:
    peers = pytest.importorskip("sentence_transformers.multi_vector_encoder")
    tokenizer = Tokenizer.from_vocabulary([*WORD_PIECES, "[unused0]", "[unused1]", "."])
    start = Model.fresh(GEOMETRY.with_values(vocab_size=tokenizer.vocab_size), tokenizer)
    late: dict[str, Any] = {"pooling": "none", "query_length": 8, "projection_size": 16}
    settings = {**FAST, "chunk_tokens": 100, **late}
    baseline = finetune(
        *(start, "retrieval"),
        **{**settings, "train": ROWS, "dev": ROWS, "out": tmp_path / "a", "learning_rate": 1e-12},
    )
    result = finetune(
        *(start, "retrieval"),
        **{**settings, "train": ROWS, "dev": ROWS, "out": tmp_path / "b", "epochs": 10},
    )
    assert result.metrics["mrr@10"] > baseline.metrics["mrr@10"] + 0.2
    model = load(result.run.model, device="cpu")
    queries, documents = ([row[name] for row in ROWS[:6]] for name in ("query", "positive"))
    documents[0] += " ."
    theirs = peers.MultiVectorEncoder(str(result.run.model), device="cpu")
    for texts, is_query, encode in (
        (queries, True, theirs.encode_query),
        (documents, False, theirs.encode_document),
    ):
        matrices: Any = model.embed(texts, is_query=is_query, precision="fp32")
        for own, expected in zip(matrices, encode(texts), strict=True):
            np.testing.assert_allclose(own, expected, atol=1e-5)
    predicted = model.predict(list(zip(queries, documents, strict=True)), precision="fp32")
    scores = model.similarity(queries, documents, precision="fp32")
    assert [one["similarity"] for one in predicted] == pytest.approx(scores.diagonal(), rel=1e-5)
    index = Index.open(model, documents, precision="fp32")
    for row, (hit, *_) in enumerate(index.search(queries, top_k=1)):
        assert hit.score == pytest.approx(scores[row].max(), rel=1e-5)
    add_tokens(model, ["abc"]).model.save(tmp_path / "c")
    for directory in (result.run.model, tmp_path / "c"):
        files = directory.rglob("*.safetensors")
        names = {path.parent.name: [*load_file(path)] for path in files}
        assert names.pop("1_Dense") == ["linear.weight"]
        assert not any("linear.weight" in name for own in names.values() for name in own)
    shrink(model, [*queries, *documents]).save(tmp_path / "d")
    for name in "cd":  # the markers of queries and documents are kept
        changed = load(tmp_path / name, device="cpu")
        actual = changed.similarity(queries, documents, precision="fp32")
        np.testing.assert_allclose(actual, scores, rtol=1e-5)


@pytest.mark.long
def test_late_interaction_keeps_the_form_of_the_model_that_it_starts_from(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_vocabulary([*WORD_PIECES, "[unused0]", "[unused1]", "."])
    start = Model.fresh(GEOMETRY.with_values(vocab_size=tokenizer.vocab_size), tokenizer)
    form = {"query_length": 8, "projection_size": 16, "skipped_words": ("a",), "query_marker": "."}
    first = finetune(
        *(start, "retrieval"),
        **{**FAST, "pooling": "none", "train": ROWS, "out": tmp_path / "first", **form},
    )
    model = load(first.run.model, device="cpu")
    more = finetune(model, "retrieval", train=ROWS, out=tmp_path / "more", **FAST)
    assert more.new_parameters == ()
    own, theirs = (one.sentence for one in (load(more.run.model, device="cpu"), model))
    assert own is not None and theirs is not None
    assert own.late_interaction == theirs.late_interaction
    assert own.late_interaction is not None
    assert own.late_interaction.query_prefix == "."
    with pytest.warns(BertworksWarning, match=r"query_prefix='\[unused0\]' instead of '\.'$"):
        finetune(
            *(model, "retrieval"),
            **{**FAST, "train": ROWS, "out": tmp_path / "c", "pooling": "none"},
            query_marker="[unused0]",
        )
    # The pooling is the model's.
    with pytest.warns(BertworksWarning, match="query_length=9 instead of 8"):
        longer = finetune(
            *(model, "retrieval"),
            **{**FAST, "train": ROWS, "out": tmp_path / "longer"},
            query_length=9,
        )
    sentence = longer.model.sentence
    assert sentence is not None and sentence.late_interaction is not None
    assert sentence.late_interaction.query_length == 9
    with pytest.raises(SettingsError, match="query_length=9 does nothing without late interaction"):
        finetune(model, "retrieval", train=ROWS, out=tmp_path / "e", pooling="mean", query_length=9)
    with pytest.warns(BertworksWarning, match=r"\(Dense\) are left out"):
        pooled = finetune(
            *(model, "retrieval"),
            **{**FAST, "train": ROWS, "out": tmp_path / "d", "pooling": "mean"},
        )
    assert pooled.model.similarity_function == "cosine"


def test_weights_of_flops_grow_with_the_square_of_the_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares: list[float] = []

    def note(settings: RetrievalSettings, num_updates: int) -> float:
        shares.append(regularization_share(settings, num_updates))
        return shares[-1]

    monkeypatch.setattr("bertworks.tasks.retrieval.sparse_network.regularization_share", note)
    settings = {**FAST, "pooling": "splade-max", "regularization_warmup": 4, "checkpoint_every": 3}
    arguments: dict[str, Any] = {"train": ROWS, "out": tmp_path, **settings}
    with pytest.raises(RuntimeError, match="switched off"):
        finetune(fresh(), "retrieval", progress=Lines(stop_after=5), **arguments)
    finetune(fresh(), "retrieval", **arguments)
    growing = [0, 1 / 16, 4 / 16, 9 / 16, 1, 1, 1, 1]
    assert shares == [*growing[:5], *growing[3:]]  # resumed after the third update


@pytest.mark.parametrize(("num_updates", "share"), [(0, 0.0), (2, 0.25), (4, 1.0), (9, 1.0)])
def test_flops_are_weighted_by_the_share_of_the_step(num_updates: int, share: float) -> None:
    tokenizer = Tokenizer.from_vocabulary(WORD_PIECES)
    columns = {"query_column": "query", "passage_column": "positive", "max_seq_length": 12}
    weights: dict[str, Any] = {"query_regularization": 0.7, "passage_regularization": 0.3}
    weights |= {"pooling": "splade-max", "regularization_warmup": 4}
    settings = RetrievalSettings.parse({**columns, **weights})
    task = RetrievalTask(tokenizer, settings)
    network, batch = task.network(GEOMETRY).eval(), task.collate(task.examples(ROWS[:8], 0))
    network.num_updates = num_updates
    outputs = network.predict(batch.to("cpu"))
    own = network(batch.to("cpu"))["retrieval"] / 8
    plain = loss_sum(
        task.settings, outputs["queries"], outputs["passages"], batch.to("cpu").targets
    )
    penalty = sum(
        weight * (outputs[name].mean(0) ** 2).sum()
        for name, weight in (("queries", 0.7), ("passages", 0.3))
    )
    assert own.item() == pytest.approx((plain / 8 + share * penalty).item(), rel=1e-6)


def test_empty_sparse_vectors_stop_the_training() -> None:
    settings = {"query_column": "query", "passage_column": "positive", "max_seq_length": 12}
    task = RetrievalTask(
        Tokenizer.from_vocabulary(WORD_PIECES),
        RetrievalSettings.parse({**settings, "pooling": "splade-max"}),
    )
    network, batch = task.network(GEOMETRY), task.collate(task.examples(ROWS[:8], 0)).to("cpu")
    assert network.train()(batch)["retrieval"].requires_grad
    torch.nn.init.constant_(network.mlm_head.bias, -1e4)
    with pytest.raises(TrainingError, match=r"of a batch are empty.*Lower learning_rate"):
        network(batch)
    network.eval()(batch)


@pytest.mark.long
def test_triples_of_ids_train_as_their_texts_do(tmp_path: Path) -> None:
    queries = "".join(f"{at}\t{row['query']}\n" for at, row in enumerate(ROWS))
    passages = "".join(f"{at}\t{row['positive']}\n" for at, row in enumerate(ROWS))
    triples = [(at, at, (at + 1) % 32) for at in range(32)]
    for name, text in (
        ("queries.tsv", queries),
        ("collection.tsv", passages),
        ("ids.tsv", "".join("\t".join(map(str, row)) + "\n" for row in triples)),
        ("qrels.dev.tsv", "".join(f"{at} 0 {at} 1\n".replace(" ", "\t") for at in range(32, 48))),
    ):
        (tmp_path / name).write_text(text)
    columns: dict[str, Any] = {"header": False, "query_column": "1", "passage_column": "2"}
    files = {
        "query_texts": str(tmp_path / "queries.tsv"),
        "passage_texts": str(tmp_path / "collection.tsv"),
    }
    own = finetune(
        *(fresh(), "retrieval"),
        **{"train": tmp_path / "ids.tsv", "out": tmp_path / "ids", "negative_columns": "3"},
        **{**FAST, **columns, **files},
    )
    rows = [
        {
            "query": ROWS[q]["query"],
            "positive": ROWS[p]["positive"],
            "negative": ROWS[n]["positive"],
        }
        for q, p, n in triples
    ]
    expected = finetune(fresh(), "retrieval", train=rows, out=tmp_path / "texts", **FAST)
    weights = own.model.network.state_dict()
    for name, value in expected.model.network.state_dict().items():
        assert torch.equal(weights[name], value), name
    assert str(tmp_path) not in (own.run.model / "bertworks.json").read_text()
    result = finetune(
        *(fresh(), "retrieval"),
        **{"train": tmp_path / "qrels.dev.tsv", "out": tmp_path / "qrels"},
        **{**FAST, **columns, **files, "passage_column": "3"},
    )
    assert result.data.train.rows == 16


@pytest.mark.parametrize(
    ("losses", "settings"),
    [
        (("in-batch", "triplet"), {"margin": 0.2}),
        (("triplet", "in-batch"), {"margin": 0.2, "symmetric": True}),
        (("in-batch", "cosine"), {"score_column": "rating", "score_range": (0, 5)}),
        (("cosine", "in-batch"), {"score_column": "rating", "score_range": (0, 5)}),
    ],
)
def test_settings_of_one_loss_are_for_the_tables_that_have_it(
    tmp_path: Path, losses: tuple[str, str], settings: dict[str, Any]
) -> None:
    texts = {"query": "a b", "positive": "b"}
    contents = {
        "in-batch": [texts],
        "triplet": [{**texts, "negative": "c"}],
        "cosine": [{"query": "a b", "passage": "c", "rating": rating} for rating in (2, 3)],
    }
    tables = []
    for loss in losses:
        file = tmp_path / f"{loss}.jsonl"
        file.write_text("\n".join(map(json.dumps, contents[loss])))
        tables.append(read_rows(file))
    parsed = RetrievalSettings.parse({"loss": losses, **settings})
    task = RetrievalTask.from_table(Tokenizer.from_vocabulary(WORD_PIECES), tables[0], parsed)
    for number, (loss, table) in enumerate(zip(losses, tables, strict=True)):
        own = task.for_training_table(table, number)
        targets = [example.target for example in own.labelled_examples(table)]
        if loss == "cosine":
            assert own.settings.score_range == (0, 5)
            assert targets == pytest.approx([0.4, 0.6])
        elif loss == "triplet":
            assert own.settings.margin == 0.2
        else:
            assert own.columns["score"] is None


@pytest.mark.parametrize("is_trec", [False, True], ids=["BEIR", "TREC"])
def test_irrelevant_passages_of_judgements_are_no_positives(tmp_path: Path, is_trec: bool) -> None:
    judgements = [("q1", "d1", 2), ("q1", "d2", 0), ("q2", "d2", 1), ("q2", "d3", -1)]
    for name, prefix in (("queries", "q"), ("corpus", "d")):
        rows = [{"_id": f"{prefix}{at}", "text": f"{prefix} {at}"} for at in (1, 2, 3)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    values: dict[str, Any] = {"query_column": "query-id", "passage_column": "corpus-id"}
    lines = ["query-id\tcorpus-id\tscore"]
    if is_trec:
        values, lines = {"query_column": "1", "passage_column": "3"}, []
    middle = "\t0\t" if is_trec else "\t"
    lines += [f"{query}{middle}{passage}\t{score}" for query, passage, score in judgements]
    (tmp_path / "qrels.tsv").write_text("\n".join(lines) + "\n")
    values |= {"query_texts": str(tmp_path / "queries.jsonl")}
    values |= {"passage_texts": str(tmp_path / "corpus.jsonl")}
    settings = RetrievalSettings.parse(values)
    rows = read_rows(tmp_path / "qrels.tsv", header=not is_trec)
    table = RetrievalTask.complete_rows(rows, settings)
    task = RetrievalTask.from_table(Tokenizer.from_vocabulary(WORD_PIECES), table, settings)
    assert task.settings.loss == "in-batch"
    query, passage = task.columns["query"], task.columns["passage"]
    pairs = [(row.values[query], row.values[passage]) for row in table]
    assert pairs == [("q 1", "d 1"), ("q 2", "d 2")]
