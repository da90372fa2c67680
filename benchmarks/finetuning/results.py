"""Every task on real data, ours and the peer's plain loop with the same settings and seeds.

    python benchmarks/finetuning/results.py run MODEL [TASK…] [--seeds 0 1 2]
        [--who ours peer random] [--set learning_rate=5e-5 …] [--paired]
        [--precisions fp32 bf16 int8]
    python benchmarks/finetuning/results.py table
    python benchmarks/finetuning/results.py pairs
    python benchmarks/finetuning/results.py precisions

Each run, on one thread, adds a line to `results.jsonl` (`--out`); a run that is there is not
repeated. A line has the metric of the best evaluation on dev, and the processor seconds of the
whole command, so that both may run next to other work. `random` is ours from random weights.
`--paired`: both begin with the same head and learn from the same batches, by the seed, so
that dropout alone differs; `pairs` prints their differences. `--precisions`: the model of each of
our runs is measured on dev in each of these, too; `precisions` prints them.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import yaml

FOLDER = Path(__file__).parent
DATA = Path(os.environ.get("BERTWORKS_DATA", "../shared/data"))


@dataclass(frozen=True)
class Benchmark:
    """A task of the table.

    Attributes:
        label: what the table calls it.
        task: ours.
        train: its file under the data's folder.
        dev: likewise; None: a part of `train` (`_split`).
        metric: its best evaluation is reported.
        other_metrics: of the same evaluation.
        settings: of `bertworks finetune`.
        pretask: the task that MODEL must have learned; this one is run only if it is named.
    """

    label: str
    task: str
    train: str
    dev: str | None
    metric: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    other_metrics: tuple[str, ...] = ()
    pretask: str = ""

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names of all metrics that are reported."""
        return self.metric, *self.other_metrics

    def select_metrics(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """The reported ones of an evaluation's metrics."""
        return {name: metrics[name] for name in self.metrics}


_SMALL = {"learning_rate": 1e-4, "epochs": 3, "batch_size": 32}
_PAIR = {"text_column": "sentence1", "pair_column": "sentence2"}
BENCHMARKS = {
    "sst2": Benchmark(
        "SST-2",
        "classification",
        "glue/sst2/train.tsv",
        "glue/sst2/dev.tsv",
        "accuracy",
        # The encoder was made to be read by the mean. More epochs are no better: README.md
        {**_SMALL, "epochs": 1, "eval_every": 700, "classifier_pooling": "mean"},
    ),
    "mrpc": Benchmark(
        "MRPC",
        "classification",
        "glue/mrpc/train.tsv",
        "glue/mrpc/dev.tsv",
        "accuracy",
        {
            **_SMALL,
            "text_column": "#1 String",
            "pair_column": "#2 String",
            "label_column": "Quality",
        },
        ("f1",),
    ),
    "cola": Benchmark(
        "CoLA",
        "classification",
        "glue/cola/train.tsv",
        "glue/cola/dev.tsv",
        "matthews_correlation",
        {**_SMALL, "header": False, "text_column": 4, "label_column": 2},
    ),
    "rte": Benchmark(
        "RTE",
        "classification",
        "glue/rte/train.tsv",
        "glue/rte/dev.tsv",
        "accuracy",
        {**_SMALL, **_PAIR, "max_seq_length": 256},
    ),
    "stsb": Benchmark(
        "STS-B",
        "regression",
        "glue/stsb/train.tsv",
        "glue/stsb/dev.tsv",
        "pearson",
        {**_SMALL, **_PAIR, "label_column": "score"},
        ("spearman",),
    ),
    "qnli": Benchmark(
        "QNLI, dev in two",
        "classification",
        "glue/qnli/dev.tsv",
        None,
        "accuracy",
        {**_SMALL, "text_column": "question", "pair_column": "sentence"},
    ),
    "ewt": Benchmark(
        "UD-EWT, parts of speech",
        "tagging",
        "ud-ewt/en_ewt-ud-train.conllu",
        "ud-ewt/en_ewt-ud-dev.conllu",
        "accuracy",
        {"learning_rate": 2e-4, "epochs": 2, "batch_size": 16},
    ),
    "wnut": Benchmark(
        "WNUT17, names",
        "tagging",
        "wnut17/train.conll",
        "wnut17/dev.conll",
        "f1",
        {"learning_rate": 2e-4, "epochs": 4, "batch_size": 16},
    ),
    "squad": Benchmark(
        "SQuAD 1.1, dev by article",
        "answering",
        "squad/train.json",
        "squad/dev.json",
        "f1",
        # The peer's hours: benchmarks/finetuning/results.jsonl has two epochs of ours.
        {"learning_rate": 2e-4, "epochs": 1, "batch_size": 16},
        ("exact_match",),
    ),
    "squad2": Benchmark(
        "SQuAD 2.0, half of dev by article, after SQuAD 1.1",
        "answering",
        "squad/dev-v2.0-half.json",
        None,
        "best_f1",
        {"learning_rate": 2e-4, "epochs": 0.5, "batch_size": 16},
        pretask="squad",
    ),
    "codah": Benchmark(
        "CODAH",
        "choice",
        "codah/train.tsv",
        "codah/dev.tsv",
        "accuracy",
        {
            **_SMALL,
            "header": False,
            "prompt_column": 2,
            "choice_columns": "3,4,5,6",
            "label_column": 7,
        },
    ),
}


def tables(one: Benchmark, folder: Path) -> tuple[Path, Path]:
    """The files of rows to learn from and to measure on."""
    whole = DATA / one.train
    if one.dev is not None:
        return whole, DATA / one.dev
    return _split(whole, folder)


def _split(whole: Path, folder: Path) -> tuple[Path, Path]:
    """A table in two: the halves of its rows, or four fifths and a fifth of its articles."""
    parts = folder / f"train{whole.suffix}", folder / f"dev{whole.suffix}"
    if whole.suffix == ".json":
        document = json.loads(whole.read_text(encoding="utf-8"))
        articles = document["data"]
        cut = len(articles) * 4 // 5
        for path, part in zip(parts, (articles[:cut], articles[cut:]), strict=True):
            path.write_text(json.dumps({**document, "data": part}), encoding="utf-8")
        return parts
    header, *lines = whole.read_text(encoding="utf-8").splitlines(keepends=True)
    half = len(lines) // 2
    for path, part in zip(parts, (lines[:half], lines[half:]), strict=True):
        path.write_text(header + "".join(part), encoding="utf-8")
    return parts


def processor_seconds(command: Sequence[str]) -> tuple[float, str]:
    """Run a command; the processor's seconds it took, and what it printed."""
    start = _children_seconds()
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return round(_children_seconds() - start, 1), output


def _children_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def write_start(one: Benchmark, model: str, settings: Mapping[str, Any], folder: Path) -> str:
    """Save a model with the head that a run of ours would begin with; returns its directory."""
    from bertworks.data.tables import read_rows
    from bertworks.loading import load
    from bertworks.model import Model
    from bertworks.tasks import find_labelled_task
    from bertworks.training.random_state import seed_everything
    from bertworks.training.settings import settings_of
    from bertworks.training.start import Start

    kind = find_labelled_task(one.task)
    run_settings = settings_of(kind).parse(settings)
    options = kind.user_settings_in(run_settings)
    rows = read_rows(tables(one, folder)[0], columns=options.named_columns())
    start_model = load(model)
    task = kind.from_table(start_model.tokenizer, rows, options)
    seed_everything(run_settings.seed)
    network = Start.from_model(start_model, task, run_settings).network
    return str(Model(task.tokenizer, task, network).save(folder / "start"))


def run_ours(
    one: Benchmark,
    model: str,
    settings: Mapping[str, Any],
    folder: Path,
    precisions: Sequence[str] = (),
) -> dict[str, Any]:
    """One run of `bertworks finetune`, and the best evaluation in its journal.

    Of what it saves, `by_precision` has the metric in each of `precisions`.
    """
    train, dev = tables(one, folder)
    out = folder / "run"
    seconds, _ = processor_seconds(
        [
            *(sys.executable, "-m", "bertworks", "finetune", one.task, "--model", model),
            *("--train", str(train), "--dev", str(dev), "--out", str(out), "--threads", "1"),
            *(f"{name}={value}" for name, value in settings.items()),
        ]
    )
    journal = (out / "journal.jsonl").read_text(encoding="utf-8").splitlines()
    evaluations = [line["metrics"] for line in map(json.loads, journal) if line["kind"] == "eval"]
    best = max(evaluations, key=lambda metrics: metrics[one.metric])
    result = {**one.select_metrics(best), "processor_seconds": seconds}
    if precisions:
        result["by_precision"] = {
            precision: evaluate(out, dev, precision)[one.metric] for precision in precisions
        }
    return result


def evaluate(model: Path, dev: Path, precision: str) -> dict[str, float]:
    """The metrics of `bertworks evaluate`."""
    command = [sys.executable, "-m", "bertworks", "evaluate", str(model), "--data", str(dev)]
    _, printed = processor_seconds([*command, "--json", "--threads", "1", f"precision={precision}"])
    metrics: dict[str, float] = json.loads(printed)
    return metrics


def run_peer(
    one: Benchmark, model: str, settings: Mapping[str, Any], folder: Path, *more: str
) -> dict[str, Any]:
    """One run of the peer's loop, and what it prints."""
    train, dev = tables(one, folder)
    file = folder / "settings.yaml"
    file.write_text(yaml.safe_dump({"task": one.task, **settings}))
    seconds, output = processor_seconds(
        [
            *(sys.executable, str(FOLDER / "peer.py"), model, str(file), str(train), str(dev)),
            *("--threads", "1", *more),
        ]
    )
    return {**one.select_metrics(json.loads(output.splitlines()[-1])), "processor_seconds": seconds}


def run(options: argparse.Namespace) -> None:
    """Do the runs that are not in the results."""
    for name in options.tasks or [name for name, one in BENCHMARKS.items() if not one.pretask]:
        one = BENCHMARKS[name]
        for seed in options.seeds:
            settings = {"best_metric": one.metric, **one.settings, **options.set, "seed": seed}
            for who in options.who:
                this = {"task": name, "who": who, "settings": settings}
                if options.paired:
                    this["paired"] = True
                if this in [identity(line) for line in read_results(options.out)]:
                    continue
                with tempfile.TemporaryDirectory() as work:
                    folder, model = Path(work), str(options.model)
                    if options.paired:
                        model = write_start(one, model, settings, folder)
                    if who == "peer":
                        arguments = ["--same-batches"] if options.paired else []
                        result = run_peer(one, model, settings, folder, *arguments)
                    else:
                        more = {"reinitialize": "true"} if who == "random" else {}
                        run_settings = {**settings, **more}
                        result = run_ours(one, model, run_settings, folder, options.precisions)
                with options.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({**this, **result}) + "\n")
                print(name, who, result, flush=True)


def identity(line: Mapping[str, Any]) -> dict[str, Any]:
    """What a line of the results is a run of."""
    return {key: line[key] for key in ("task", "who", "settings", "paired") if key in line}


def read_results(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write_table(options: argparse.Namespace) -> None:
    """Print a table of the results, each task with its own settings."""
    print("| task | metric | ours | peer | seeds | processor minutes, ours : peer |")
    print("|---|---|---|---|---|---|")
    for name, one in BENCHMARKS.items():
        usual = {"best_metric": one.metric, **one.settings}
        lines = [
            line
            for line in read_results(options.out)
            if line["task"] == name
            and "paired" not in line
            and {k: v for k, v in line["settings"].items() if k != "seed"} == usual
        ]
        runs = [[line for line in lines if line["who"] == who] for who in ("ours", "peer")]
        seeds = [", ".join(str(line["settings"]["seed"]) for line in own) for own in runs]
        minutes = [_mean([line["processor_seconds"] / 60 for line in own]) for own in runs]
        rest = [one.label, " : ".join(dict.fromkeys(filter(None, seeds))), " : ".join(minutes)]
        for metric in one.metrics:
            cells = [_mean([100 * line[metric] for line in own if metric in line]) for own in runs]
            print(f"| {rest[0]} | {metric} | {' | '.join(cells)} | {' | '.join(rest[1:])} |")
            rest = [""] * len(rest)


def write_pairs(options: argparse.Namespace) -> None:
    """Print the differences of ours and the peer, from the same head and batches.

    Each mean has the standard deviation of the seeds, the mean difference its standard error.
    """
    print("| task | metric | precision | ours | peer | difference | seeds |")
    print("|---|---|---|---|---|---|---|")
    kinds: dict[str, dict[int, dict[str, Any]]] = {}
    for line in read_results(options.out):
        if "paired" in line:
            key = json.dumps([line["task"], {**line["settings"], "seed": 0}])
            by_seed = kinds.setdefault(key, {})
            by_seed.setdefault(line["settings"]["seed"], {})[line["who"]] = line
    for key, by_seed in kinds.items():
        name, settings = json.loads(key)
        both = {seed: own for seed, own in sorted(by_seed.items()) if {"ours", "peer"} <= set(own)}
        for metric in BENCHMARKS[name].metrics:
            ours, peer = (
                [100 * own[who][metric] for own in both.values()] for who in ("ours", "peer")
            )
            gaps = [a - b for a, b in zip(ours, peer, strict=True)]
            error = f" ± {stdev(gaps) / len(gaps) ** 0.5:.2f}" if len(gaps) > 1 else ""
            cells = [
                BENCHMARKS[name].label,
                metric,
                settings.get("precision", "fp32"),
                _mean(ours),
                _mean(peer),
                f"{mean(gaps):+.2f}{error}" if gaps else "–",
                ", ".join(map(str, both)),
            ]
            print(f"| {' | '.join(cells)} |")


def write_precisions(options: argparse.Namespace) -> None:
    """Print our runs that were evaluated in several precisions, by the precision of training."""
    kinds: dict[tuple[str, str], list[dict[str, float]]] = {}
    for line in read_results(options.out):
        if "by_precision" in line:
            key = line["task"], str(line["settings"].get("precision", "auto"))
            kinds.setdefault(key, []).append(line["by_precision"])
    columns = sorted({name for runs in kinds.values() for one in runs for name in one})
    print(f"| task | metric | learned in | {' | '.join(columns)} | seeds |")
    print("|---" * (4 + len(columns)) + "|")
    for (name, learned_in), runs in kinds.items():
        cells = [_mean([100 * one[column] for one in runs if column in one]) for column in columns]
        row = [BENCHMARKS[name].label, BENCHMARKS[name].metric, learned_in, *cells, str(len(runs))]
        print(f"| {' | '.join(row)} |")


def _mean(values: Sequence[float]) -> str:
    if not values:
        return "–"
    spread = f" ± {stdev(values):.1f}" if len(values) > 1 else ""
    return f"{mean(values):.1f}{spread}"


def _assignment(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    return name, yaml.safe_load(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=FOLDER / "results.jsonl")
    verbs = parser.add_subparsers(required=True)
    runs = verbs.add_parser("run")
    runs.add_argument("model", type=Path)
    runs.add_argument("tasks", nargs="*", choices=[[], *BENCHMARKS])
    runs.add_argument("--seeds", type=int, nargs="+", default=[0])
    runs.add_argument(
        "--who", nargs="+", choices=("ours", "peer", "random"), default=["ours", "peer"]
    )
    runs.add_argument("--set", type=_assignment, nargs="+", action="extend", default=[])
    runs.add_argument("--paired", action="store_true", help="the same head and batches for both")
    runs.add_argument("--precisions", nargs="+", default=[], help="to measure ours in, on dev")
    runs.set_defaults(do=run)
    verbs.add_parser("table").set_defaults(do=write_table)
    verbs.add_parser("pairs").set_defaults(do=write_pairs)
    verbs.add_parser("precisions").set_defaults(do=write_precisions)
    options = parser.parse_args()
    if hasattr(options, "set"):
        options.set = dict(options.set)
    options.do(options)


if __name__ == "__main__":
    main()
