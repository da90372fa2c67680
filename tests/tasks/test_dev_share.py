"""A share of the training rows for dev: which rows, that it is recorded, and that runs resume."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bertworks.errors import DataError, SettingsError, TrainingError
from bertworks.model import Model
from bertworks.tasks import find_labelled_task
from bertworks.tasks.dev_share import _choose_rows
from bertworks.text.tokenizer import Tokenizer
from bertworks.training.labelled_data import LabelledData
from bertworks.training.settings import FinetuneSettings, settings_of
from bertworks.tuning.grid import finetune_grid
from tests.training.letters import CONFIG, FAST, PIECES, TRAIN, WORD_PIECES, Lines, make_rows, run

TOKENIZER = Tokenizer.from_vocabulary(PIECES)


@pytest.fixture
def model() -> Model:
    return Model.fresh(CONFIG, TOKENIZER)


def read(task: str, rows: Any, dev: Any, **settings: Any) -> LabelledData:
    kind = find_labelled_task(task)
    resolved = settings_of(kind).parse({"max_seq_length": 32, **settings})
    tokenizer = Tokenizer.from_vocabulary(WORD_PIECES)
    return LabelledData.read(kind, tokenizer, rows, dev, resolved, torch.device("cpu"))


def dev_rows(task: str, rows: list[Any], dev: float, **settings: Any) -> list[Any]:
    data = read(task, rows, dev, **settings)
    assert data.split is not None
    split_rows = [rows[number - 1] for number in data.split.rows]
    assert data.dev is not None
    assert len(data.dev) == len(split_rows)
    assert len(data.train) == len(rows) - len(split_rows)
    return split_rows


def whole(split_rows: list[Any], rows: list[Any], column: str) -> bool:
    """Whether each source, as a column has it, is chosen wholly or not at all."""
    sources = {row[column] for row in split_rows}
    return [row for row in rows if row[column] in sources] == split_rows


def test_each_label_has_its_share() -> None:
    rows = [
        {"text": " ".join(f"{number:04d}".translate(str.maketrans("0123456789", "abcdefghij")))}
        | {"label": "often" if number % 10 else "seldom"}
        for number in range(1000)
    ]
    chosen = dev_rows("classification", rows, 0.1)
    assert Counter(row["label"] for row in chosen) == {"often": 90, "seldom": 10}
    few = dev_rows("classification", rows[:50], 0.1)
    assert Counter(row["label"] for row in few) in ({"often": 4, "seldom": 1}, {"often": 5})


def test_the_rows_decide_and_not_their_order_or_the_limit() -> None:
    rows = make_rows(100, 3)
    split_rows = dev_rows("classification", rows, 0.2)
    reversed_rows = dev_rows("classification", rows[::-1], 0.2, max_seq_length=4)
    assert sorted(row["text"] for row in split_rows) == sorted(row["text"] for row in reversed_rows)
    other = dev_rows("classification", rows, 0.2, dev_seed=1)
    assert sorted(row["text"] for row in split_rows) != sorted(row["text"] for row in other)


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 3)), min_size=1, max_size=200),
    st.floats(0.01, 0.99),
    st.integers(0, 5),
)
def test_sources_stay_together_and_every_stratum_is_learned(
    rows: list[tuple[int, int]], share: float, seed: int
) -> None:
    sources = [str(source).encode() for source, _ in rows]
    first = {source: rows[sources.index(source)][1] for source in set(sources)}
    split_numbers = _choose_rows(sources, [stratum for _, stratum in rows], share, seed)
    inside = {sources[number] for number in split_numbers}
    outside = {source for number, source in enumerate(sources) if number not in set(split_numbers)}
    assert not inside & outside
    assert {first[source] for source in outside} == set(first.values())
    if len(set(sources)) == len(sources) == 100 and len(set(first.values())) == 1:
        assert len(split_numbers) == round(share * 100)


def test_a_text_is_never_in_both_parts() -> None:
    rows = make_rows(60, 1) * 2
    data = read("classification", rows, 0.25)
    assert data.summary.num_shared_rows == 0
    assert data.summary.dev is not None
    assert data.summary.dev.rows == pytest.approx(30, abs=1)
    assert data.summary.dev.name == "0.25 of rows in memory"


@pytest.mark.long
def test_documents_articles_and_queries_stay_together() -> None:
    sentences = [
        {"words": ["x", chr(97 + number % 26)], "tags": ["B-N", "O"], "document": number // 5}
        for number in range(200)
    ]
    split_rows = dev_rows("tagging", sentences, 0.1)
    assert whole(split_rows, sentences, "document")
    assert len(split_rows) == 20
    questions = [
        {"title": f"t{number // 20}", "context": f"{chr(97 + number // 4)} b", "question": "a"}
        | {"id": str(number), "answers": {"text": ["b"], "answer_start": [2]}}
        for number in range(100)
    ]
    settings = {"max_question_tokens": 8, "stride": 4}
    split_rows = dev_rows("answering", questions, 0.2, **settings)
    assert whole(split_rows, questions, "title")
    assert len(split_rows) == 20
    # Two articles are too few for a tenth: then paragraphs stay together.
    data = read("answering", questions[:40], 0.1, **settings)
    assert data.split is not None
    assert data.split.group_columns == ("context",)
    assert whole([questions[number - 1] for number in data.split.rows], questions, "context")
    assert len(data.split.rows) == 4
    found = [{"query": f"{chr(97 + number // 3)}", "positive": "b"} for number in range(60)]
    split_rows = dev_rows("retrieval", found, 0.1)
    assert whole(split_rows, found, "query")
    assert len(split_rows) == 6


def test_a_sentence_of_several_documents_may_be_in_both_parts_and_is_counted() -> None:
    """Documents with a sentence in common ("Result :") cannot all stay together."""
    sentences = [
        {"words": ["x", chr(97 + number % 26)] if number % 5 else ["x", "x"], "tags": ["B-N", "O"]}
        | {"document": number // 5}
        for number in range(200)
    ]
    split_rows = dev_rows("tagging", sentences, 0.1)
    assert whole(split_rows, sentences, "document")
    data = read("tagging", sentences, 0.1)
    rest = [row["words"] for row in sentences if row not in split_rows]
    shared = sum(row["words"] in rest for row in split_rows)
    assert data.summary.num_shared_rows == shared >= 4
    assert any(f"{shared} of its rows are in the training data" in line for line in data.lines())


def test_choices_of_a_prompt_are_in_one_part() -> None:
    rows = [
        {"prompt": chr(97 + number // 4), "choices": ["a", "b"], "label": number % 2}
        for number in range(80)
    ]
    data = read("choice", rows, 0.1)
    assert data.split is not None
    assert data.split.group_columns == ("prompt",)
    prompts = {(row - 1) // 4 for row in data.split.rows}
    assert sorted(data.split.rows) == [4 * at + n for at in sorted(prompts) for n in (1, 2, 3, 4)]


def test_a_document_alone_is_split_by_sentences() -> None:
    sentences = [
        {"words": ["x", chr(97 + number)], "tags": ["B-N", "O"], "document": 0}
        for number in range(20)
    ]
    data = read("tagging", sentences, 0.1)
    assert data.split is not None
    assert data.split.group_columns == ("words",)
    assert len(data.split.rows) == 2


@pytest.mark.parametrize(
    ("rows", "dev", "error", "says"),
    [
        (TRAIN, 1.5, SettingsError, r"dev=1\.5: a share of the training rows is between 0 and 1"),
        (TRAIN, 10, SettingsError, "dev=10: a share"),
        (TRAIN, float("nan"), SettingsError, "dev=nan: a share"),
        (TRAIN[:4], 0.1, DataError, "dev=0.1 of 4 rows leaves no row .* larger share"),
        (
            [{**row, "text": "a b"} for row in TRAIN],
            0.3,
            DataError,
            r"rows leaves no row for dev\. Give a table: rows with the same text "
            r"are kept together, and too few others remain for training\.$",
        ),
    ],
)
def test_shares_that_are_none(rows: Any, dev: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        read("classification", rows, dev)


def test_a_seed_that_no_file_of_a_run_can_hold_is_refused() -> None:
    """`data.json` has it, and larger numbers are damage there."""
    FinetuneSettings.parse({"dev_seed": 2**63 - 1})
    with pytest.raises(SettingsError, match="dev_seed=9223372036854775808"):
        FinetuneSettings.parse({"dev_seed": 2**63})


@pytest.mark.long
def test_dev_share_is_recorded_and_resumed(model: Model, tmp_path: Path) -> None:
    texts, labels = [row["text"] for row in TRAIN], [row["label"] for row in TRAIN]
    progress = Lines()
    arguments: dict[str, Any] = {"train": (texts, labels), "dev": 0.1, "epochs": 2}
    whole = run(model, tmp_path / "whole", progress=progress, **arguments)
    split = json.loads((tmp_path / "whole" / "data.json").read_text())["split"]
    assert (split["share"], split["seed"], split["group_columns"]) == (0.1, 0, ["text"])
    rows = [(texts[number - 1], labels[number - 1]) for number in split["rows"]]
    assert Counter(label for _, label in rows) == {"no": 10, "yes": 10}
    assert whole.model.evaluate(rows).metrics == pytest.approx(dict(whole.metrics))
    assert any("20 rows split off the training rows (dev=0.1" in line for line in progress.lines)
    with pytest.raises(RuntimeError, match="switched off"):
        run(
            model,
            tmp_path / "broken",
            progress=Lines(stop_after=12),
            checkpoint_every=5,
            **arguments,
        )
    # The same rows in another form are the same rows.
    same_arguments = {**arguments, "train": [dict(row) for row in TRAIN]}
    broken = run(model, tmp_path / "broken", checkpoint_every=5, **same_arguments)
    weights = broken.model.network.state_dict()
    for name, value in whole.model.network.state_dict().items():
        assert torch.equal(weights[name], value), name
    with pytest.raises(TrainingError, match=r"started with dev=0\.1, not 0\.2"):
        run(model, tmp_path / "broken", checkpoint_every=5, **{**same_arguments, "dev": 0.2})
    with pytest.raises(TrainingError, match="started with dev_seed=0, not 1"):
        run(model, tmp_path / "broken", checkpoint_every=5, dev_seed=1, **same_arguments)
    with pytest.raises(SettingsError, match="dev_seed=1: nothing is split off"):
        run(model, tmp_path / "other", dev_seed=1)


@pytest.mark.long
def test_all_runs_of_a_grid_have_the_same_dev(model: Model, tmp_path: Path) -> None:
    arguments = {**FAST, "epochs": 0.2, "train": TRAIN, "dev": 0.1, "out": tmp_path / "grid"}
    grid = {key: value for key, value in arguments.items() if key != "max_seq_length"}
    finetune_grid(model, grid={"max_seq_length": [8, 32]}, seeds=2, **grid)
    files = sorted((tmp_path / "grid").glob("*/data.json"))
    assert len(files) == 4
    splits = [json.loads(file.read_text())["split"]["rows"] for file in files]
    assert all(rows == splits[0] for rows in splits)
    with pytest.raises(SettingsError, match="dev_seed cannot be set in a grid"):
        finetune_grid(model, grid={"dev_seed": [0, 1]}, **{**arguments, "out": tmp_path / "other"})


@pytest.mark.long
def test_a_grid_knows_rows_in_memory_again(model: Model, tmp_path: Path) -> None:
    texts, labels = [row["text"] for row in TRAIN], [row["label"] for row in TRAIN]
    arguments: dict[str, Any] = {**FAST, "epochs": 0.1, "dev": 0.1, "out": tmp_path / "grid"}
    finetune_grid(model, train=(np.array(texts), labels), **arguments)
    finetune_grid(model, train=TRAIN, seeds=2, **arguments)
    with pytest.raises(TrainingError, match="started with other rows for train"):
        finetune_grid(model, train=(texts, labels[::-1]), **arguments)
