"""Classifiers from few labels, calibration and wrong labels: the figures of docs/labels.md.

    python benchmarks/few_labels.py few MODEL --rows 8 16 --seeds 5
    python benchmarks/few_labels.py calibration MODEL
    python benchmarks/few_labels.py wrong MODEL --draws 8

`few` compares a logistic regression on frozen vectors, `finetune … few_shot=true` with its default
settings, and ordinary fine-tuning of a classifier on the mean of the tokens. SST-2 is measured on
its dev rows, TREC on 1,000 rows that no training uses.

`calibration` fine-tunes a model on 2,500 rows of TREC, and divides the others ten times into 1,000
rows, on which scalings and conformal scores are fitted, and the rows that are measured.

`wrong` changes 5 % of the labels of 2,000 phrases of SST-2 with at least eight words, and counts
how many of these rows are among the first 7 % of `check-labels`.
"""

from __future__ import annotations

import argparse
import csv
import os
import tempfile
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

import bertworks as bw
from bertworks.analysis.label_check import check_labels
from bertworks.analysis.probing import probe
from bertworks.errors import BertworksWarning
from bertworks.tasks.calibration import (
    LogitScaling,
    compute_conformal_scores,
    conformal_quantile,
    fit_scaling,
)
from bertworks.tasks.evaluators import ProbabilityCounter
from bertworks.tasks.probabilities import cross_entropy_sum, softmax

DATA = Path(os.environ.get("BERTWORKS_DATA", "../shared/data"))
HELD_OUT = 1000
COVERAGES = (0.8, 0.9, 0.95, 0.98)
NUM_PHRASES = 2000
WRONG_SHARE, READ_SHARE = 0.05, 0.07

Row = dict[str, Any]


def read_trec() -> list[Row]:
    lines = (DATA / "trec" / "TREC.train.all").read_text("latin-1").splitlines()
    pairs = (line.split(" ", 1) for line in lines)
    rows = [{"text": text, "label": f"class {label}"} for label, text in pairs]
    order = np.random.default_rng(0).permutation(len(rows))
    return [rows[at] for at in order]


def read_sst2(part: str) -> list[Row]:
    with (DATA / "glue" / "sst2" / f"{part}.tsv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    return [{"text": row["sentence"], "label": f"class {row['label']}"} for row in rows]


def choose_rows(pool: list[Row], count: int, seed: int) -> list[Row]:
    """The first `count` rows of each class, in an order that depends on the seed."""
    by_label: dict[str, list[Row]] = defaultdict(list)
    for at in np.random.default_rng(seed).permutation(len(pool)):
        by_label[pool[at]["label"]].append(pool[at])
    return [row for label in sorted(by_label) for row in by_label[label][:count]]


def measure_few(options: argparse.Namespace) -> None:
    trec = read_trec()
    data = {
        "SST-2": (read_sst2("train"), read_sst2("dev")),
        "TREC": (trec[HELD_OUT:], trec[:HELD_OUT]),
    }
    accuracies: dict[tuple[str, int, str], list[float]] = defaultdict(list)
    cases = [(name, count) for name in options.data for count in options.rows]
    for seed in range(options.seeds):
        for name, count in cases:
            pool, held_out = data[name]
            rows = choose_rows(pool, count, seed)
            for way, accuracy in _accuracies(rows, held_out, seed, options).items():
                accuracies[name, count, way].append(accuracy)
                print(
                    f"{name}, {count} rows a class, seed {seed}, {way}: {accuracy:.4f}", flush=True
                )
    for (name, count, way), own in accuracies.items():
        mean, deviation = np.mean(own), np.std(own, ddof=1)
        print(f"| {name} | {count} | {way} | {mean:.3f} ± {deviation:.3f} |")


def _accuracies(
    rows: list[Row], held_out: list[Row], seed: int, options: argparse.Namespace
) -> dict[str, float]:
    """The accuracy of each way of training on some rows."""
    model = bw.load(options.model, device="cpu")
    ways = {
        "few_shot=true": {"few_shot": True, "learning_rate": options.pair_rate},
        "fine-tuning": {
            **{"epochs": options.epochs, "learning_rate": options.learning_rate},
            "classifier_pooling": "mean",
        },
    }
    accuracies = {"frozen vectors": probe(model, train=rows, dev=held_out).metrics["accuracy"]}
    for way, options_of_way in ways.items():
        settings = {name: value for name, value in options_of_way.items() if value is not None}
        with tempfile.TemporaryDirectory() as out:
            common: dict[str, Any] = {"train": rows, "out": out, "seed": seed, "device": "cpu"}
            result = bw.finetune(model, "classification", **common, **settings)
        accuracies[way] = result.model.evaluate(held_out).metrics["accuracy"]
    return accuracies


def measure_calibration(options: argparse.Namespace) -> None:
    rows = read_trec()
    train, others = rows[:2500], rows[2500:]
    with tempfile.TemporaryDirectory() as folder:
        result = bw.finetune(
            options.model, "classification", train=train, out=folder, epochs=8, device="cpu"
        )
        predictions = list(result.model.predict([row["text"] for row in others]))
    names = sorted(predictions[0]["probabilities"])
    shares = np.array([[one["probabilities"][name] for name in names] for one in predictions])
    logits = np.log(shares.clip(1e-30))  # logits, but for a constant of each row
    labels = np.array([names.index(row["label"]) for row in others])
    print(f"{len(labels) - HELD_OUT:,} rows are measured in each division")
    for name, values in calibration_figures(logits, labels).items():
        mean, deviation = np.mean(values), np.std(values, ddof=1)
        print(f"{name}: {mean:.4f} ± {deviation:.4f} ({min(values):.4f} to {max(values):.4f})")


def calibration_figures(logits: np.ndarray, labels: np.ndarray) -> dict[str, list[float]]:
    """The figures of ten divisions: of each scaling, and of label sets with the one chosen."""
    figures: dict[str, list[float]] = defaultdict(list)
    for seed in range(10):
        order = np.random.default_rng(seed).permutation(len(labels))
        dev, test = order[:HELD_OUT], order[HELD_OUT:]
        scalings = {
            "none": LogitScaling((1.0,)),
            "temperature": _fit_temperature(logits[dev], labels[dev]),
            "chosen": fit_scaling(logits[dev], labels[dev]),
        }
        figures["vector scaling is chosen"].append(len(scalings["chosen"].temperatures) > 1)
        for name, scaling in scalings.items():
            scaled_logits = scaling(logits[test])
            counter = ProbabilityCounter.from_logits(scaled_logits, labels[test])
            for metric, value in counter.result(name).metrics.items():
                figures[f"{name}: {metric}"].append(value)
            is_correct = scaled_logits.argmax(1) == labels[test]
            figures[f"{name}: accuracy"].append(float(is_correct.mean()))
        scaling = scalings["chosen"]
        scores = compute_conformal_scores(softmax(scaling(logits[dev])), labels[dev])
        own = softmax(scaling(logits[test]))
        for coverage in COVERAGES:
            is_in = own >= 1 - conformal_quantile(scores, coverage)
            figures[f"{coverage:.0%}: coverage"].append(
                float(is_in[np.arange(len(own)), labels[test]].mean())
            )
            figures[f"{coverage:.0%}: labels"].append(float(is_in.sum(1).mean()))
    return figures


def _fit_temperature(logits: np.ndarray, labels: np.ndarray) -> LogitScaling:
    """The temperature of the lowest cross-entropy, by a search."""
    temperatures = np.geomspace(0.2, 10, 400)
    losses = [cross_entropy_sum(logits / one, labels) for one in temperatures]
    return LogitScaling((float(temperatures[int(np.argmin(losses))]),))


def measure_wrong(options: argparse.Namespace) -> None:
    phrases = [row for row in read_sst2("train") if len(row["text"].split()) >= 8]
    order = np.random.default_rng(5).permutation(len(phrases))[:NUM_PHRASES]
    model = bw.load(options.model, device="cpu")
    shares, accuracies = [], []
    for seed in range(1, options.draws + 1):
        wrong = np.random.default_rng(seed).choice(
            NUM_PHRASES, round(WRONG_SHARE * NUM_PHRASES), replace=False
        )
        rows = [dict(phrases[at]) for at in order]
        for at in wrong:
            rows[at]["label"] = "class 0" if rows[at]["label"] == "class 1" else "class 1"
        check = check_labels(model, rows)
        first = [row.number - 1 for row in check.rows[: round(READ_SHARE * NUM_PHRASES)]]
        shares.append(len(np.intersect1d(first, wrong)) / len(wrong))
        accuracies.append(check.accuracy)
        print(f"draw {seed}: {shares[-1]:.2f} found, accuracy {accuracies[-1]:.3f}", flush=True)
    spread = f" ± {np.std(shares, ddof=1):.3f}" if len(shares) > 1 else ""
    print(f"found {np.mean(shares):.3f}{spread}, accuracy {np.mean(accuracies):.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True)
    few = commands.add_parser("few")
    few.set_defaults(measure=measure_few)
    few.add_argument("--rows", type=int, nargs="+", default=[8, 16], help="of each class")
    few.add_argument("--data", nargs="+", default=["SST-2", "TREC"], choices=["SST-2", "TREC"])
    few.add_argument("--seeds", type=int, default=5)
    few.add_argument("--pair-rate", type=float, help="of few_shot; the model's own if omitted")
    few.add_argument("--learning-rate", type=float, help="of fine-tuning; the model's own likewise")
    few.add_argument("--epochs", type=int, default=50, help="of fine-tuning")
    calibration = commands.add_parser("calibration")
    calibration.set_defaults(measure=measure_calibration)
    wrong = commands.add_parser("wrong")
    wrong.set_defaults(measure=measure_wrong)
    wrong.add_argument("--draws", type=int, default=8)
    for one in (few, calibration, wrong):
        one.add_argument("model")
    options = parser.parse_args()
    warnings.simplefilter("ignore", BertworksWarning)  # few rows, and rates
    options.measure(options)


if __name__ == "__main__":
    main()
