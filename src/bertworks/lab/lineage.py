"""Comparison of BERT with its ancestors: equal text, vocabulary and training time, equal probes.

Each system is a configuration of the same encoder (docs/ancestors.md). A probe trains its output
layer alone (frozen) or the whole network (fine-tuned).
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
from ..errors import SettingsError, import_optional
from ..inference.features import NetworkTokenFeatures
from ..inference.settings import EngineSettings, TokenSettings
from ..loading import load
from ..reports import charts
from ..tasks.scores import EXTRA
from ..training.machine import describe
from ..utils.atomic_writes import write_file
from ..utils.formatting import format_duration, markdown_table
from ..utils.json_files import write_json
from ..utils.progress import say
from .bench import Lab, LabelledRows, Metrics, Rows
from .pretraining import CAUSAL, CENTRED_WINDOW, FULL_SENTENCES, LEFT, Changes

_LSTM: Changes = {"mixer": "lstm", "positions": "none", "family": "bertworks"}
_PLAIN: Changes = {"initial_attention": "random"}  # these have no attention to initialize
_STATIC: Changes = {"num_hidden_layers": 0, "positions": "none", "type_vocab_size": 0}

SYSTEMS: Mapping[str, Changes] = {
    "skip-gram": {
        **FULL_SENTENCES,
        **_PLAIN,
        "objective": "skip_gram",
        "masking": None,
        "model": _STATIC,
    },
    "ELMo": {**CAUSAL, **_PLAIN, "model": {**CENTRED_WINDOW["model"], **_LSTM}},
    "shallow": CENTRED_WINDOW,
    "ULMFiT": {**CAUSAL, **_PLAIN, "model": {**LEFT["model"], **_LSTM}},
    "OpenAI": LEFT,
    "BERT": {},
}
"""For each system, the settings of pre-training that differ from the lab's, which are BERT's."""

DESCRIPTION = """\
Skip-gram: static vectors. ELMo: two LSTM language models, one for each direction, concatenated.
Shallow: the same with attention. ULMFiT: an LSTM language model. OpenAI: a language model with
attention. BERT: masked words and next sentences. Each is a small version of the system of its name,
and all other settings are equal; each network of a concatenated pair is as wide as a single one.
"""

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


def lineage(lab: Lab, minutes: float, seeds: Sequence[int]) -> dict[str, Any]:
    """Train and probe each system; earlier runs are used again.

    `lineage.md`, `lineage.json` and a picture are rewritten after each system.

    Args:
        lab: the directory, the data and the device; the vocabulary is its model's.
        minutes: processor time of each pre-training, in minutes.
        seeds: seeds for both pre-training and probes.

    Returns:
        `systems`: for each, its `parameters`, `updates`, `minutes` (measured mean over seeds) and
        `scores`: for each probe, by `frozen` and `fine-tuned`, a number per seed; `skipped`: for
        each probe that was left out, the data that is missing.

    Raises:
        SettingsError: the lab has no data.
        BertworksError: a run failed.
    """
    if lab.data is None:
        fix = "Give --data DIR with wiki/, glue/, trec/, words/ and others (docs/ancestors.md)."
        raise SettingsError("lab lineage needs evaluation data", fix=fix)
    skipped_systems = {
        name: path
        for name, probe in PROBES.items()
        for path in probe.needs
        if not any(lab.data.glob(f"{path}*"))  # for WiC, the path is only the beginning of names
    }
    results: dict[str, Any] = {"systems": {}, "skipped": skipped_systems}
    for name, changes in SYSTEMS.items():
        updates = max(1, round(60 * minutes / lab.measure_step_time(by_model=True, **changes)))
        scores: dict[str, dict[str, list[float]]] = {}
        minutes_spent = []
        for seed in seeds:
            say(lab.progress, f"{name}, seed {seed}: {updates} updates")
            run, _ = lab.pretrained(seed, by_model=True, steps=updates, **changes)
            minutes_spent.append(lab.seconds(run.name) / 60)
            for probe in [name for name in PROBES if name not in skipped_systems]:
                for way, number in PROBES[probe].measure(lab, run, seed).items():
                    scores.setdefault(probe, {}).setdefault(way, []).append(number)
        weights = load(run, device="cpu").encoder.parameters()
        results["systems"][name] = {
            **{"parameters": sum(one.numel() for one in weights), "updates": updates},
            **{"minutes": statistics.fmean(minutes_spent), "scores": scores},
        }
        write_json(lab.out / "lineage.json", results, indent=1)
        write_file(lab.out / "lineage.md", page(lab, results, minutes, seeds))
        if _is_drawn(results):
            write_file(lab.out / _PICTURE, charts.bars(arms(results)))
    return results


_PICTURE = "images/lineage.svg"


def _is_drawn(results: Mapping[str, Any]) -> bool:
    return all(arms(results).values())


def arms(results: Mapping[str, Any]) -> dict[str, list[float]]:
    """Return for each system, frozen and fine-tuned, its means on the probes that have both."""
    return {
        f"{name}, {way}": [
            statistics.fmean(ways[way]) for ways in of["scores"].values() if len(ways) > 1
        ]
        for name, of in results["systems"].items()
        for way in ("frozen", "fine-tuned")
    }


def table(results: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return headings and cells of the results: a row per probe, a column per system."""
    systems = results["systems"]
    rows = [
        [name, *(f"{one[name]:,.{digits}f}" for one in systems.values())]
        for name, digits in (("parameters", 0), ("updates", 0), ("minutes", 1))
    ]
    for way in ("frozen", "fine-tuned"):
        for probe, ways in next(iter(systems.values()), {"scores": {}})["scores"].items():
            if way in ways:
                every = (one["scores"][probe][way] for one in systems.values())
                rows.append([f"{probe}, {way}", *map(_cell, every)])
    return ["", *systems], rows


def _cell(values: Sequence[float]) -> str:
    spread = f" ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{100 * statistics.fmean(values):.1f}{spread}"


def page(lab: Lab, results: Mapping[str, Any], minutes: float, seeds: Sequence[int]) -> str:
    """Return the page: the table, and the conditions of the runs."""
    machine = describe(lab.device)
    headings, cells = table(results)
    lines = [
        "# BERT and its ancestors under equal conditions",
        "",
        f"Written by `bertworks lab lineage --minutes {minutes:g}`, seeds "
        f"{', '.join(map(str, seeds))}. Text: {lab.data}. "
        f"Vocabulary: that of {lab.name}. Machine: {machine['cpu']}, {machine['device']}; "
        f"{format_duration(lab.seconds())} of processor time in total.",
        "",
        DESCRIPTION,
        "Scores are in percent (similarity: rank correlation times 100). A probe learns from at "
        f"most {ROWS:,} rows; the epoch that is best on dev counts.",
        "",
        *markdown_table(headings, cells, numbers=len(headings) - 1),
    ]
    for name, path in results["skipped"].items():
        lines += ["", f"Left out: {name}; the data has no {path}."]
    if _is_drawn(results):
        lines += ["", "A bar is the mean over the probes with both scores; a dot is one probe."]
        lines += ["", f"![lineage]({_PICTURE})"]
    return "\n".join([*lines, ""])
