"""Retrieval, trained: what other tools open, what is measured, and batches in chunks."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertworks.data.tables import read_rows
from bertworks.errors import BertworksWarning, DataError, SettingsError
from bertworks.loading import load
from bertworks.model import Model
from bertworks.tasks.pretraining.instances import InstanceSettings
from bertworks.tasks.pretraining.task import PretrainingTask
from bertworks.tasks.retrieval.settings import RetrievalSettings
from bertworks.tasks.retrieval.task import RetrievalTask
from bertworks.text.tokenizer import Tokenizer
from bertworks.training.finetune import finetune
from bertworks.training.settings import settings_of

from .letters import GEOMETRY, WORD_PIECES, question_and_answer

RANDOM = np.random.default_rng(5)
ROWS = [question_and_answer(RANDOM) for _ in range(64)]
FAST: dict[str, Any] = {"max_seq_length": 12, "learning_rate": 5e-3, "batch_size": 16, "epochs": 2}


def fresh(**geometry: Any) -> Model:
    return Model.fresh(GEOMETRY.with_values(**geometry), Tokenizer.from_vocabulary(WORD_PIECES))


@pytest.mark.long
def test_directory_of_a_refused_run_is_usable(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="Leave micro_batch_tokens out"):
        finetune(
            fresh(),
            "retrieval",
            train=ROWS[:40],
            out=tmp_path,
            **{**FAST, "micro_batch_tokens": 50},
        )
    result = finetune(fresh(), "retrieval", train=ROWS, out=tmp_path, **FAST)
    assert json.loads((tmp_path / "data.json").read_bytes())["train"]["rows"] == len(ROWS)
    assert result.run.settings()["micro_batch_tokens"] is None


@pytest.mark.long
def test_the_settings_of_a_run_are_those_of_another(tmp_path: Path) -> None:
    run = finetune(fresh(), "retrieval", train=ROWS, out=tmp_path / "a", seed=7, **FAST).run
    settings = settings_of(RetrievalTask).resolve(run.settings_file, ["seed=8"])
    assert {key: getattr(settings, key) for key in FAST} == FAST
    assert (settings.seed, run.settings()["seed"]) == (8, 7)


def test_a_task_without_a_head_cannot_begin_with_it(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="unfreeze_epochs: retrieval has no head to train"):
        finetune(fresh(), "retrieval", train=ROWS, out=tmp_path, **FAST, unfreeze_epochs=1)


def with_score(row: dict[str, Any], number: int) -> dict[str, Any]:
    """Half of the pairs belong together."""
    other = row["positive"] if number % 2 else ROWS[number - 1]["positive"]
    return {"sentence1": row["query"], "sentence2": other, "score": 5 * (number % 2)}


ROWS_WITH_SCORES = [with_score(row, number) for number, row in enumerate(ROWS)]


@pytest.mark.long
@pytest.mark.parametrize("pooling", ["cls", "weighted-mean"])
def test_sentence_transformers_opens_what_is_saved(tmp_path: Path, pooling: str) -> None:
    from sentence_transformers import SentenceTransformer

    result = finetune(
        fresh(), "retrieval", train=ROWS, out=tmp_path / "run", pooling=pooling, **FAST
    )
    texts = ["a b c", "h g f e d c b a a b c d e f g h"]  # the second one is cut
    directory = result.run.model
    modules = json.loads((directory / "modules.json").read_text())
    assert [part["path"] for part in modules] == ["", "1_Pooling", "2_Normalize"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = SentenceTransformer(str(directory), device="cpu")
        expected = theirs.encode(texts)
    assert theirs.max_seq_length == 12
    loaded_model = load(directory, device="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        own = [model.embed(texts) for model in (loaded_model, result.model)]
    for vectors in own:
        assert np.abs(vectors - expected).max() < 1e-6
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    with pytest.warns(BertworksWarning, match="6 tokens cut off"):
        (predicted,) = loaded_model.predict([(texts[0], texts[1])])
    assert predicted["similarity"] == pytest.approx(float(expected[0] @ expected[1]), abs=1e-6)


@pytest.mark.long
def test_the_pooling_of_a_sentence_encoder_is_inherited(tmp_path: Path) -> None:
    once = finetune(fresh(), "retrieval", train=ROWS, out=tmp_path / "a", pooling="max", **FAST)
    again = load(once.run.model, device="cpu")
    for name, asked, expected in (("b", {}, "max"), ("c", {"pooling": "cls"}, "cls")):
        more = finetune(again, "retrieval", train=ROWS, out=tmp_path / name, **asked, **FAST)
        assert more.model.sentence is not None
        assert more.model.sentence.pooling == expected
        assert more.new_parameters == ()


@pytest.mark.long
def test_the_prompts_of_a_sentence_encoder_are_inherited(tmp_path: Path) -> None:
    prompts = {"query_prompt": "a ", "passage_prompt": "b "}
    once = finetune(fresh(), "retrieval", train=ROWS, out=tmp_path / "a", **prompts, **FAST)
    again = load(once.run.model, device="cpu")
    for name, asked, expected in (("b", {}, "a "), ("c", {"query_prompt": ""}, "")):
        more = finetune(again, "retrieval", train=ROWS, out=tmp_path / name, **asked, **FAST)
        sentence = load(more.run.model, device="cpu").sentence
        assert sentence is not None
        assert sentence.prompt("query") == expected
        assert sentence.prompt("document") == "b "


@pytest.mark.long
@pytest.mark.parametrize(("pooling", "expected"), [("mean", 20.0), ("none", 1.0)])
def test_the_usual_factor_of_scores_is_that_of_the_vectors(
    tmp_path: Path, pooling: str, expected: float
) -> None:
    settings = {**FAST, "epochs": 1, "pooling": pooling}
    first = finetune(fresh(), "retrieval", train=ROWS, out=tmp_path / "a", **settings)
    second = finetune(
        fresh(), "retrieval", train=ROWS, out=tmp_path / "b", scale=expected, **settings
    )
    losses = [
        [line["loss"] for line in result.history if line["kind"] == "train"]
        for result in (first, second)
    ]
    assert losses[0] == losses[1] != []


@pytest.mark.long
@pytest.mark.parametrize("loss", ["triplet", "cosine"])
def test_other_losses_learn(tmp_path: Path, loss: str) -> None:
    train = ROWS_WITH_SCORES
    if loss == "triplet":
        others = [*ROWS[1:], ROWS[0]]
        train = [
            {**row, "negative": other["positive"]} for row, other in zip(ROWS, others, strict=True)
        ]
    settings = {**FAST, "epochs": 30, "eval_every": 60}
    result = finetune(
        fresh(),
        "retrieval",
        train=train,
        dev=ROWS_WITH_SCORES,
        out=tmp_path / "run",
        loss=loss,
        **settings,
    )
    assert result.metrics.keys() == {"loss", "pearson", "spearman"}
    assert result.metrics["spearman"] > 0.8
    initial_model = fresh()
    predicted = load(result.run.model, device="cpu").predict(ROWS_WITH_SCORES)
    scores = [row["score"] for row in ROWS_WITH_SCORES]
    vectors = [
        initial_model.embed([row[name] for row in ROWS_WITH_SCORES])
        for name in ("sentence1", "sentence2")
    ]
    untrained = np.corrcoef([(vectors[0] * vectors[1]).sum(1), scores])[0, 1]
    trained = np.corrcoef([[row["similarity"] for row in predicted], scores])[0, 1]
    assert trained > untrained + 0.3


@pytest.mark.long
def test_pairs_can_be_measured_by_scores(tmp_path: Path) -> None:
    given = {**FAST, "best_metric": "pearson"}
    result = finetune(
        fresh(), "retrieval", train=ROWS, dev=ROWS_WITH_SCORES, out=tmp_path / "run", **given
    )
    assert result.metrics.keys() == {"loss", "pearson", "spearman"}
    assert load(result.run.model).evaluate(ROWS_WITH_SCORES).metrics == result.metrics
    with pytest.raises(SettingsError, match=r"best_metric='mrr@10' is not a metric"):
        finetune(
            *(fresh(), "retrieval"),
            **{
                "train": ROWS,
                "dev": ROWS_WITH_SCORES,
                "out": tmp_path / "x",
                "best_metric": "mrr@10",
            },
        )


@pytest.mark.long
def test_a_run_in_chunks_is_the_run_in_one(tmp_path: Path) -> None:
    model, rows = fresh(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0), ROWS[:32]
    runs = [
        finetune(model, "retrieval", train=rows, dev=rows, out=tmp_path / name, **FAST, **more)
        for name, more in (("whole", {}), ("chunks", {"chunk_tokens": 20}))
    ]
    vectors = [run.model.embed([row["query"] for row in rows]) for run in runs]
    np.testing.assert_allclose(vectors[0], vectors[1], atol=1e-4)


@pytest.mark.long
def test_a_batch_of_negatives_is_not_split(tmp_path: Path) -> None:
    settings = {**FAST, "micro_batch_tokens": 50}
    with pytest.raises(SettingsError, match="'retrieval' do not add up"):
        finetune(fresh(), "retrieval", train=ROWS, out=tmp_path / "a", **settings)
    finetune(fresh(), "retrieval", train=ROWS_WITH_SCORES, out=tmp_path / "b", **settings)


@pytest.mark.long
def test_the_limit_of_the_model_is_taken_over(tmp_path: Path) -> None:
    rows = [question_and_answer(np.random.default_rng(seed)) for seed in range(8)]
    model = Model.fresh(GEOMETRY, Tokenizer.from_vocabulary(WORD_PIECES))
    first = finetune(
        model, "retrieval", train=rows, out=tmp_path / "a", epochs=1, max_seq_length=20
    )
    second_result = finetune(first.model, "retrieval", train=rows, out=tmp_path / "b", epochs=1)
    other = finetune(
        first.model, "retrieval", train=rows, out=tmp_path / "c", epochs=1, max_seq_length=10
    )
    limits = [found.model.task.settings.max_seq_length for found in (first, second_result, other)]
    assert limits == [20, 20, 10]


def test_several_tables_are_read_by_their_own_columns_and_prompts(tmp_path: Path) -> None:
    names = [str(tmp_path / f"{name}.jsonl") for name in "ab"]
    other_rows = [{"text1": row["query"], "text2": row["positive"]} for row in ROWS[40:]]
    for name, rows in zip(names, (ROWS[:40], other_rows), strict=True):
        Path(name).write_text("\n".join(map(json.dumps, rows)))
    settings = {**FAST, "batch_size": 8, "epochs": 1, "passage_prompt": "b "}
    result = finetune(
        fresh(),
        "retrieval",
        train=names,
        dev=ROWS[:8],
        out=tmp_path / "run",
        query_prompt=("x ", "y "),
        table_sampling="round-robin",
        **settings,
    )
    losses = [line for line in result.history if line["kind"] == "train"]
    assert losses[-1]["step"] == 6  # three of each table
    sentence = load(result.run.model, device="cpu").sentence
    assert sentence is not None
    assert (sentence.prompt("query"), sentence.prompt("document")) == ("x ", "b ")
    task = RetrievalTask(
        Tokenizer.from_vocabulary(WORD_PIECES),
        RetrievalSettings(
            query_column="query", passage_column="positive", query_prompt=("x ", "y ")
        ),
    )
    tables = [read_rows(name) for name in names]
    for number, (table, prompt) in enumerate(zip(tables, ("x ", "y "), strict=True)):
        row = next(iter(task.for_training_table(table, number).labelled_examples(table)))
        expected = (ROWS[0], ROWS[40])[number]
        assert list(row.texts) == [expected["query"], expected["positive"]]
        encoding = task.tokenizer.encode(prompt + expected["query"])
        assert row.sequences[0].input_ids.tolist() == encoding.input_ids.tolist()


_FRACTIONS = [{"query": "x", "passage": "y", "score": score} for score in (0.0, 0.5, 1.0)]
_OTHER_SCALE = [{**row, "score": 5 * row["score"]} for row in _FRACTIONS]
_PAIRS = [{"query": "x", "passage": "y"}, {"query": "y", "passage": "x"}]


@pytest.mark.parametrize(
    ("first", "second", "says"),
    [
        (_FRACTIONS, _OTHER_SCALE, "from 0 to 5, those of the first training table from 0 to 1"),
        (_OTHER_SCALE, _FRACTIONS, "from 0 to 1, those of the first training table from 0 to 5"),
        (_PAIRS, _FRACTIONS, r"has scores \(column 'score'\), unlike the first"),
        (_FRACTIONS, _PAIRS, "has no scores, unlike the first"),
    ],
)
def test_tables_of_another_kind_are_refused(first: Any, second: Any, says: str) -> None:
    tokenizer = Tokenizer.from_vocabulary(WORD_PIECES)
    task = RetrievalTask.from_table(tokenizer, read_rows(first), RetrievalSettings())
    with pytest.raises(DataError, match=says):
        task.for_training_table(read_rows(second), 1)
    assert task.for_training_table(read_rows(first), 1).columns == task.columns


def test_negatives_of_a_later_table_are_read() -> None:
    tokenizer = Tokenizer.from_vocabulary(WORD_PIECES)
    task = RetrievalTask.from_table(tokenizer, read_rows(_PAIRS), RetrievalSettings())
    table = read_rows([{**row, "negative": "x y"} for row in _PAIRS])
    reader = task.for_training_table(table, 1)
    example = next(iter(reader.labelled_examples(table)))
    assert list(example.texts) == ["x", "y", "x y"]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"dev": 0.5}, "a share is split off one training table"),
        ({"query_prompt": ("a", "b", "c")}, "query_prompt has 3 values for 2 training tables"),
        ({"loss": ("in-batch",)}, "loss has 1 values for 2 training tables"),
        ({"bucket_batches": 2}, "bucket_batches is for one training table"),
    ],
)
def test_settings_for_one_table_are_refused_for_several(
    tmp_path: Path, settings: dict[str, Any], says: str
) -> None:
    names = [str(tmp_path / f"{name}.jsonl") for name in "ab"]
    for name in names:
        Path(name).write_text("\n".join(map(json.dumps, ROWS)))
    with pytest.raises(SettingsError, match=says):
        finetune(fresh(), "retrieval", train=names, out=tmp_path / "run", **{**FAST, **settings})
    with pytest.raises(SettingsError, match="there is one training table"):
        finetune(
            fresh(), "retrieval", train=ROWS, out=tmp_path, table_sampling="round-robin", **FAST
        )


@pytest.mark.long
@pytest.mark.parametrize("pooling", ["splade-max", "splade-sum-log"])
def test_sparse_encoder_is_trained_and_opened_by_sentence_transformers(
    tmp_path: Path, pooling: str
) -> None:
    peers = pytest.importorskip("sentence_transformers.sparse_encoder")
    tokenizer, weight = Tokenizer.from_vocabulary(WORD_PIECES), "mlm_head.transform.dense.weight"
    task = PretrainingTask(tokenizer, InstanceSettings(format="full-sentences", max_seq_length=12))
    start = Model(tokenizer, task, task.network(GEOMETRY))
    result = finetune(
        start,
        "retrieval",
        train=ROWS,
        dev=ROWS[:16],
        out=tmp_path / "run",
        pooling=pooling,
        chunk_tokens=100,
        **{**FAST, "epochs": 4},
    )
    assert result.new_parameters == ()  # the head is that of the masked-language model
    losses = [line["loss"] for line in result.history if line["kind"] == "train"]
    assert losses[-1] < losses[0]
    assert 0 < result.metrics["mrr@10"] <= 1
    texts = [row["query"] for row in ROWS[:5]]
    own = result.model.embed(texts, precision="fp32").toarray()
    assert not np.allclose(
        result.model.network.state_dict()[weight], start.network.state_dict()[weight]
    )
    model = load(result.run.model, device="cpu")
    np.testing.assert_array_equal(model.embed(texts, precision="fp32").toarray(), own)
    assert model.similarity_function == "dot"
    theirs = peers.SparseEncoder(str(result.run.model), device="cpu").encode(texts)
    np.testing.assert_allclose(theirs.to_dense().numpy(), own, atol=1e-5)
    (prediction,) = model.predict([(texts[0], texts[1])], precision="fp32")
    assert prediction["similarity"] == pytest.approx(own[0] @ own[1], rel=1e-5)
