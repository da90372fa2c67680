"""Inputs of each task, in every form in which the same rows may be written; published models."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from hypothesis import strategies as st

import bertworks as bw
from bertworks.tasks.classification import ClassificationSettings, ClassificationTask
from bertworks.tasks.retrieval.settings import RetrievalSettings
from bertworks.tasks.retrieval.task import RetrievalTask
from bertworks.text.tokenizer import Tokenizer
from bertworks.utils.json_files import write_json
from tests.checkpoints.oracles import geometry, theirs_of
from tests.serving.conftest import LIMIT, PIECES, WORDS, config

Rows = Sequence[Any]
Forms = Mapping[str, Callable[[Rows], Any]]

text = st.lists(st.sampled_from((*WORDS, "Door", "so?")), min_size=1, max_size=8).map(" ".join)
texts = st.lists(text, min_size=1, max_size=5)
pairs = st.lists(st.tuples(text, text), min_size=1, max_size=5)
choices = st.lists(st.tuples(text, text, text), min_size=1, max_size=4)


def columns(*names: str) -> Callable[[Rows], list[dict[str, Any]]]:
    """The form in which rows are mappings with these columns, and another that nobody reads."""

    def rows_of(rows: Rows) -> list[dict[str, Any]]:
        parts = ((row,) if isinstance(row, str) else row for row in rows)
        return [{"id": n, **dict(zip(names, row, strict=True))} for n, row in enumerate(parts)]

    return rows_of


def frame(*names: str) -> Callable[[Rows], pd.DataFrame]:
    return lambda rows: pd.DataFrame(columns(*names)(rows))


def table(*names: str) -> Callable[[Rows], pa.Table]:
    return lambda rows: pa.Table.from_pylist(columns(*names)(rows))


SINGLE: Forms = {
    "texts": list,
    "an iterator": iter,
    "an array": np.array,
    "tuples of one": lambda rows: [(row,) for row in rows],
    "mappings": columns("text"),
    "mappings with another name": lambda rows: [{"review": row} for row in rows],
    "a usual name": columns("sentence"),
    "pandas": frame("text"),
    "pandas with a usual name": frame("content"),
    "Arrow": table("text"),
}
PLAIN: Forms = {form: SINGLE[form] for form in ("texts", "an array", "mappings", "pandas", "Arrow")}
"""A tagger reads a plain text only from the column text."""
PAIRS: Forms = {
    "tuples": list,
    "lists": lambda rows: [list(row) for row in rows],
    "an iterator": iter,
    "mappings": columns("text", "pair"),
    "sentences": columns("sentence1", "sentence2"),
    "inference": columns("premise", "hypothesis"),
    "search": columns("query", "passage"),
    "pandas": frame("text", "pair"),
    "pandas with usual names": frame("question1", "question2"),
    "Arrow": table("text", "pair"),
}
QUESTIONS: Forms = {
    "tuples": list,
    "mappings": columns("question", "context"),
    "pandas": frame("question", "context"),
}
PASSAGES: Forms = {
    "tuples": list,
    "mappings": columns("query", "passage"),
    "a usual name": columns("anchor", "positive"),
    "pandas": frame("query", "passage"),
}
WORD_LISTS: Forms = {
    "words": lambda rows: [{"words": row.split()} for row in rows],
    "tokens": lambda rows: [{"id": "a", "tokens": row.split()} for row in rows],
    "with tags": lambda rows: [{"words": row.split(), "tags": ["?"]} for row in rows],
    "pandas": lambda rows: pd.DataFrame({"words": [row.split() for row in rows]}),
}
CHOICES: Forms = {
    "lists": lambda rows: [{"prompt": a, "choices": [b, c]} for a, b, c in rows],
    "a column each": columns("prompt", "ending0", "ending1"),
    "usual names": columns("question", "option1", "option2"),
    "pandas": frame("startphrase", "choice_1", "choice_2"),
}


@dataclass(frozen=True)
class Kind:
    """What a task takes: rows, and the forms in which the same rows may be written."""

    rows: st.SearchStrategy[Any]
    forms: Forms
    route: Callable[[Rows], tuple[str, dict[str, Any]]] | None = None  # its own, and the request


def classify(rows: Rows) -> tuple[str, dict[str, Any]]:
    return "/classify", {"inputs": [[row] if isinstance(row, str) else list(row) for row in rows]}


def answer(rows: Rows) -> tuple[str, dict[str, Any]]:
    inputs = [{"question": question, "context": context} for question, context in rows]
    return "/answer", {"inputs": inputs, "n_best": 100}


KINDS = {
    "texts": Kind(texts, SINGLE, classify),
    "pairs": Kind(pairs, PAIRS, classify),
    "questions": Kind(pairs, QUESTIONS, answer),
    "passages": Kind(pairs, PASSAGES),
    "plain": Kind(texts, PLAIN, lambda rows: ("/tag", {"inputs": list(rows)})),
    "words": Kind(texts, WORD_LISTS),
    "choices": Kind(choices, CHOICES),
}  # fmt: skip
BOTH = ("texts", "pairs")
TASKS = {
    "classifier": ("texts",),
    "topics": ("texts",),
    "inference": ("pairs",),
    "reranker": ("pairs",),
    "tagger": ("plain", "words"),
    "answering": ("questions",),
    "choice": ("choices",),
    "retriever": ("passages",),
    "classifier, bare": BOTH,
    "topics, bare": BOTH,
    "inference, bare": BOTH,
    "reranker, bare": ("pairs",),
    "tagger, bare": ("plain", "words"),
    "answering, bare": ("questions",),
    "choice, bare": ("choices",),
    "bge": BOTH,
    "xlm-roberta": BOTH,
    "nli": BOTH,
    "cross-encoder": ("pairs",),
    "cross-encoder, identity": ("pairs",),
}
"""The kinds of rows that each model takes; `bare` ones are without `bertworks.json`."""


def save_with_transformers(folder: Path, family: str, num_labels: int, **entries: Any) -> None:
    """Save a classifier as transformers saves it, with other entries in `config.json`."""
    own = geometry(family, vocab_size=len(PIECES))
    theirs = theirs_of(own, "classification", torch.float32, num_labels=num_labels)
    theirs.save_pretrained(folder)
    Tokenizer.from_vocabulary(PIECES).save(folder)
    file = folder / "config.json"
    write_json(file, {**json.loads(file.read_text()), **entries})


@pytest.fixture(scope="module")
def models(directories: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Directories of all models: the fixture's, the same without `bertworks.json`, others'."""
    root = tmp_path_factory.mktemp("same")
    tokenizer, paths = Tokenizer.from_vocabulary(PIECES), dict(directories)
    own = {
        "inference": ClassificationTask(
            tokenizer,
            ClassificationSettings(
                labels=("no", "so", "yes"),
                text_column="text",
                pair_column="pair",
                max_seq_length=LIMIT,
            ),
        ),
        "retriever": RetrievalTask(
            tokenizer,
            RetrievalSettings(
                query_column="query",
                passage_column="passage",
                loss="in-batch",
                max_seq_length=LIMIT,
            ),
        ),
    }
    for name, task in own.items():
        torch.manual_seed(5)
        bw.Model(tokenizer, task, task.network(config()).eval()).save(root / name)
        paths[name] = str(root / name)
    for name, source in tuple(paths.items()):
        bare = root / f"{name}, bare"
        shutil.copytree(source, bare)
        (bare / "bertworks.json").unlink(missing_ok=True)  # a bare encoder has none
        paths[bare.name] = str(bare)
    module = "torch.nn.modules"
    save_with_transformers(root / "bge", "bert", 1)
    save_with_transformers(root / "xlm-roberta", "xlm-roberta", 1)
    save_with_transformers(root / "nli", "bert", 3)
    save_with_transformers(root / "cross-encoder", "bert", 1,
              sentence_transformers={"activation_fn": f"{module}.activation.Sigmoid"})  # fmt: skip
    save_with_transformers(root / "cross-encoder, identity", "bert", 1,
              sbert_ce_default_activation_function=f"{module}.linear.Identity")  # fmt: skip
    save_with_transformers(root / "cross-encoder, tanh", "bert", 1,
              sentence_transformers={"activation_fn": f"{module}.activation.Tanh"})  # fmt: skip
    others = ("bge", "xlm-roberta", "nli", "cross-encoder", "cross-encoder, identity")
    others += ("cross-encoder, tanh",)
    return paths | {name: str(root / name) for name in others}
