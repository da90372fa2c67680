"""Measurements of pre-trained models for the comparison of BERT with its ancestors.

A probe trains its output layer alone (frozen) or the whole network (fine-tuned); probes of words
compare frozen vectors.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..analysis.word_vectors import WordVectors
from ..data.tables import read_rows
from ..errors import import_optional
from ..inference.features import NetworkTokenFeatures
from ..inference.settings import EngineSettings, TokenSettings
from ..loading import load
from ..tasks.scores import EXTRA
from .bench import Lab, LabelledRows, Metrics, Rows

ROWS = 1000
"""The most training rows of a probe."""

_TUNING: Mapping[str, Any] = {
    "max_seq_length": 128,
    "bucket_batches": 16,  # an LSTM runs once for each length of a batch
}

Measure = Callable[[Lab, Path, int], Metrics]


class Probe(NamedTuple):
    """A measurement of a pre-trained model: the data that it needs, and its function."""

    needs: tuple[str, ...]
    measure: Measure


def _finetuning_probe(
    task: str,
    metric: str,
    read: Callable[..., tuple[Rows, Rows]],
    *needs: str,
    **task_settings: Any,
) -> Probe:
    """Return a probe on a task, frozen and fine-tuned; `read` reads rows from the files `needs`."""
    read = cache(read)

    def measure(lab: Lab, run: Path, seed: int) -> Metrics:
        train, dev = read(lab, *needs)
        some = random.Random(f"rows {seed}").sample(train, min(ROWS, len(train)))
        data = LabelledRows(", ".join(needs), some, dev)
        layers = load(run, device="cpu").encoder.config.num_hidden_layers
        frozen = {"freeze_embeddings": True, "freeze_layers": layers, "learning_rate": 1e-2}
        metrics = {}
        for name, way in {"frozen": frozen, "fine-tuned": {"learning_rate": 1e-3}}.items():
            settings: dict[str, Any] = {**_TUNING, **task_settings, **way, "seed": seed}
            metrics[name] = lab.finetuned_metrics(run, task, data, **settings)[metric]
        return metrics

    return Probe(needs, measure)


def _files(lab: Lab, *paths: str) -> tuple[Rows, Rows]:
    train, dev = ([dict(row.values) for row in read_rows(lab.data_path(path))] for path in paths)
    return train, dev


def _lines(lab: Lab, path: str, encoding: str = "utf-8") -> list[str]:
    return lab.data_path(path).read_text(encoding=encoding).splitlines()


def _questions(lab: Lab, path: str) -> tuple[Rows, Rows]:
    """Read TREC's questions and their classes; every tenth is for evaluation."""
    parts = (line.partition(" ") for line in _lines(lab, path, "latin-1"))
    rows = [{"text": question, "label": kind} for kind, _, question in parts]
    return [row for at, row in enumerate(rows) if at % 10], rows[::10]


def _in_context(lab: Lab, *parts: str) -> tuple[Rows, Rows]:
    """Read WiC-TSV: whether a word has, in its context, the sense of a definition."""
    tables: list[Rows] = []
    for part in parts:
        kinds = ("examples", "definitions", "labels")
        columns = (_lines(lab, f"{part}_{kind}.txt") for kind in kinds)
        tables.append([])
        for example, sense, label in zip(*columns, strict=True):
            word, _, text = example.split("\t")
            row = {"sentence1": text, "sentence2": f"{word}: {sense}", "label": label}
            tables[-1].append(row)
    return tables[0], tables[1]


def _of_words(measure: Callable[[Lab, Path, str], float], path: str) -> Probe:
    """Return a probe on the frozen vectors of words."""
    return Probe(
        (path,),
        lambda lab, run, _: lab.cached_run(
            "words",
            {"model": run.name, "data": path},
            lambda _: {"frozen": measure(lab, run, path)},
        )[1],
    )


def _vectors(run: Path, words: Sequence[str]) -> NDArray[np.float32]:
    """Encode each word alone; return the mean of its pieces' vectors in the last layer."""
    model = load(run, device="cpu")
    settings = TokenSettings(), EngineSettings(precision="fp32")
    vectors = NetworkTokenFeatures(model.network, model.tokenizer, *settings).embed(words)
    sums = np.zeros((len(words), vectors.vectors.shape[1]), np.float32)
    np.add.at(sums, vectors.rows, vectors.vectors)
    counts: NDArray[np.float32] = np.bincount(vectors.rows, minlength=len(words)).astype(np.float32)
    return sums / counts[:, None]


def _similarity_probe(lab: Lab, run: Path, path: str) -> float:
    """Return the rank correlation of cosines with human similarity ratings of pairs of words."""
    stats: Any = import_optional("scipy.stats", EXTRA, "A correlation")
    first, second, gold = zip(*(line.split("\t") for line in _lines(lab, path)), strict=True)
    ones, others = (_vectors(run, words) for words in (first, second))
    lengths = np.linalg.norm(ones, axis=1) * np.linalg.norm(others, axis=1)
    cosines = (ones * others).sum(1) / lengths
    return float(stats.spearmanr(cosines, list(map(float, gold))).statistic)


def _analogies(lab: Lab, run: Path, path: str) -> float:
    """Return how often, for a question a b c d, d is the word nearest to b - a + c.

    The candidates are all words of the questions.
    """
    questions = [line.lower().split() for line in _lines(lab, path) if line[:1] != ":"]
    words = sorted({word for question in questions for word in question})
    table = WordVectors(words, _vectors(run, words))
    right = [table.neighbours((b, c), (a,), top_k=1)[0][0] == d for a, b, c, d in questions]
    return statistics.fmean(right)


_of_texts = partial(_finetuning_probe, "classification", "accuracy", classifier_pooling="mean")
_UD = "ud-ewt/en_ewt-ud"

PROBES: Mapping[str, Probe] = {
    "SST-2": _of_texts(_files, "glue/sst2/train.tsv", "glue/sst2/dev.tsv"),
    "TREC": _of_texts(_questions, "trec/TREC.train.all"),
    "MRPC": _of_texts(_files, "glue/mrpc/train.tsv", "glue/mrpc/dev.tsv"),
    "word in context": _of_texts(_in_context, "wic-tsv/Training/train", "wic-tsv/Development/dev"),
    "UD tags": _finetuning_probe(
        "tagging", "accuracy", _files, f"{_UD}-train.conllu", f"{_UD}-dev.conllu"
    ),
    "WNUT17, F1": _finetuning_probe(
        "tagging", "f1", _files, "wnut17/train.conll", "wnut17/dev.conll"
    ),
    "similarity, MEN": _of_words(_similarity_probe, "words/EN-MEN-TR-3k.txt"),
    "similarity, WordSim": _of_words(_similarity_probe, "words/EN-WS-353-ALL.txt"),
    "analogies": _of_words(_analogies, "words/questions-words.txt"),
}
"""Scores are accuracies, unless the name says F1; for similarity, rank correlations."""
