"""Comparison of BERT with its ancestors: equal text, vocabulary and training time, equal probes.

Each system is a configuration of the same encoder (docs/ancestors.md). A probe trains its output
layer alone (frozen) or the whole network (fine-tuned).
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import SettingsError, did_you_mean
from ..loading import load
from ..reports import charts
from ..runs.run_directory import RunDirectory
from ..training.machine import describe
from ..training.recipe import PretrainSettings
from ..utils.atomic_writes import write_file
from ..utils.formatting import format_duration, markdown_table
from ..utils.json_files import write_json
from ..utils.progress import say
from .bench import Lab, merge_settings
from .pretraining import CAUSAL, CENTRED_WINDOW, FULL_SENTENCES, LEFT, RANDOM_ATTENTION, Changes
from .probes import PROBES, ROWS, Probe

_LSTM: Changes = {"mixer": "lstm", "positions": "none", "family": "bertworks"}
_STATIC: Changes = {"num_hidden_layers": 0, "positions": "none", "type_vocab_size": 0}

SYSTEMS: Mapping[str, Changes] = {
    "skip-gram": {
        **FULL_SENTENCES,
        **RANDOM_ATTENTION,  # it has none to initialize; nor have LSTMs
        "objective": "skip_gram",
        "masking": None,
        "model": _STATIC,
    },
    "ELMo": {**CAUSAL, **RANDOM_ATTENTION, "model": {**CENTRED_WINDOW["model"], **_LSTM}},
    "shallow": CENTRED_WINDOW,
    "ULMFiT": {**CAUSAL, **RANDOM_ATTENTION, "model": {**LEFT["model"], **_LSTM}},
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


def system_changes(name: str) -> Changes:
    """Return the changed settings of a system, such as `BERT masking.mlm_probability=0.15`.

    Raises:
        SettingsError: the system is unknown, or the other words are not settings.
    """
    system, *words = name.split()
    if system not in SYSTEMS:
        raise SettingsError(f"unknown system {system!r}", fix=did_you_mean(system, SYSTEMS))
    return merge_settings(SYSTEMS[system], PretrainSettings.parse_words(words))


def lineage(
    lab: Lab,
    budgets: Sequence[float],
    seeds: Sequence[int],
    systems: Sequence[str] = tuple(SYSTEMS),
) -> dict[str, Any]:
    """Train and probe each system with each budget; earlier runs are used again.

    `lineage.md`, `lineage.json` and the pictures are rewritten after each system.

    Args:
        lab: the directory, the data and the device; the vocabulary is its model's.
        budgets: processor time of each pre-training, in minutes.
        seeds: seeds for both pre-training and probes.
        systems: names of systems, each with settings of `pretrain` that differ, if any.

    Returns:
        `budgets`: by minutes, for each system its `parameters`, `updates`, `predictions` (of the
        training, None for skip-gram), `minutes` (measured mean over seeds; None if a
        run was resumed) and `scores`: for each probe, by `frozen` and `fine-tuned`, a
        number per seed; `skipped`: for each probe that was left out, the data that is missing.

    Raises:
        SettingsError: the lab has no data, or there is no such system.
        BertworksError: a run failed.
    """
    if lab.data is None:
        fix = "Give --data DIR with wiki/, glue/, trec/, words/ and others (docs/ancestors.md)."
        raise SettingsError("lab lineage needs evaluation data", fix=fix)
    changes = {name: system_changes(name) for name in systems}
    missing_files = {
        name: path
        for name, probe in PROBES.items()
        for path in probe.needs
        if not any(lab.data.glob(f"{path}*"))  # for WiC, the path is only the beginning of names
    }
    probes = {name: probe for name, probe in PROBES.items() if name not in missing_files}
    results: dict[str, Any] = {"budgets": {}, "skipped": missing_files}
    for minutes in sorted(budgets):
        for name in systems:
            of_budget = results["budgets"].setdefault(f"{minutes:g}", {})
            of_budget[name] = _measure(lab, name, changes[name], minutes, seeds, probes)
            write_json(lab.out / "lineage.json", results, indent=1)
            pictures = _pictures(results)
            for path, picture in pictures.items():
                write_file(lab.out / path, picture)
            write_file(lab.out / "lineage.md", page(lab, results, seeds, list(pictures)))
    return results


def _measure(
    lab: Lab,
    name: str,
    changes: Changes,
    minutes: float,
    seeds: Sequence[int],
    probes: Mapping[str, Probe],
) -> dict[str, Any]:
    """Train a system with each seed, and probe it."""
    updates = max(1, round(60 * minutes / lab.measure_step_time(by_model=True, **changes)))
    scores: dict[str, dict[str, list[float]]] = {}
    minutes_spent: list[float] = []
    run = Path()
    for seed in seeds:
        say(lab.progress, f"{name}, seed {seed}: {updates} updates")
        run, _ = lab.pretrained(seed, by_model=True, steps=updates, **changes)
        if not _is_resumed(run):
            minutes_spent.append(lab.seconds(run.name) / 60)
        for probe in probes:
            for way, number in probes[probe].measure(lab, run, seed).items():
                scores.setdefault(probe, {}).setdefault(way, []).append(number)
    return {
        "parameters": sum(one.numel() for one in load(run, device="cpu").encoder.parameters()),
        "updates": updates,
        "predictions": _num_predictions(run),
        "minutes": statistics.fmean(minutes_spent) if len(minutes_spent) == len(seeds) else None,
        "scores": scores,
    }


def _is_resumed(directory: Path) -> bool:
    """Whether more than one process trained a run: only the last one's time is recorded."""
    return [line["event"] for line in RunDirectory(directory).sessions()].count("start") > 1


def _num_predictions(directory: Path) -> int | None:
    """Return how many tokens a run predicted while it trained; None for skip-gram's pairs.

    Each direction of a two-way language model predicts.
    """
    run = RunDirectory(directory)
    tokens: int = [line["tokens"] for line in run.lines() if line["kind"] == "eval"][-1]
    settings = run.settings()
    if settings["objective"] == "skip_gram":
        return None
    if settings["objective"] == "causal":
        return tokens * (2 if settings["model"]["attention"] == "two-way" else 1)
    share: float = settings["masking"]["mlm_probability"]
    return round(tokens * share)


def mean_scores(system: Mapping[str, Any], way: str) -> list[float]:
    """Return a system's means over seeds, frozen or fine-tuned, on the probes that have both."""
    return [statistics.fmean(ways[way]) for ways in system["scores"].values() if len(ways) > 1]


def arms(systems: Mapping[str, Any]) -> dict[str, list[float]]:
    """Return for each system, frozen and fine-tuned, its means on the probes that have both."""
    return {
        f"{name}, {way}": mean_scores(system, way)
        for name, system in systems.items()
        for way in _WAYS
    }


_WAYS = ("frozen", "fine-tuned")

Curves = dict[str, list[tuple[float, float]]]


def curves(results: Mapping[str, Any], way: str, quantity: str = "minutes") -> Curves:
    """Return for each system its mean score by the minutes, or by the predictions, of its budgets.

    The minutes are those that were asked for. Systems without predictions are left out.
    """
    points: Curves = {}
    for minutes, systems in results["budgets"].items():
        for name, system in systems.items():
            x = float(minutes) if quantity == "minutes" else system[quantity]
            scores = mean_scores(system, way)
            if x is not None and scores:
                points.setdefault(name, []).append((x, statistics.fmean(scores)))
    return points


def crossings(results: Mapping[str, Any], way: str) -> Iterator[str]:
    """Say for each other system when BERT passes it: a sentence for each.

    The minutes are interpolated between two budgets, on a logarithmic scale.
    """
    by_system = curves(results, way)
    for first, second in itertools.permutations(by_system, 2):
        if not first.startswith("BERT") or second.startswith("BERT"):
            continue
        leads = [
            (math.log(minutes), one - other)
            for (minutes, one), (_, other) in zip(by_system[first], by_system[second], strict=False)
        ]
        yield f"{first} and {second}, {way}: {_crossing(leads)}."


def _crossing(leads: Sequence[tuple[float, float]]) -> str:
    """Describe where leads, by the logarithm of minutes, become positive for good."""
    most = f"{math.exp(leads[-1][0]):g} minutes"
    if leads[-1][1] <= 0:
        return f"not ahead at {most} ({100 * leads[-1][1]:+.1f} points)"
    trailing = [at for at, (_, lead) in enumerate(leads) if lead <= 0]
    if not trailing:
        return f"ahead at every budget ({100 * leads[-1][1]:+.1f} points at {most})"
    (x1, y1), (x2, y2) = leads[trailing[-1] : trailing[-1] + 2]
    minutes = math.exp(x1 - y1 * (x2 - x1) / (y2 - y1))
    return f"ahead from about {minutes:.0f} minutes ({100 * leads[-1][1]:+.1f} points at {most})"


def _pictures(results: Mapping[str, Any]) -> dict[str, str]:
    """Return pictures by their paths; none of what has no values yet."""
    last = arms(list(results["budgets"].values())[-1])
    pictures = {}
    if last and all(last.values()):
        pictures["images/lineage.svg"] = charts.bars(last)
    if len(results["budgets"]) > 1:
        for way, quantity in itertools.product(_WAYS, ("minutes", "predictions")):
            if points := curves(results, way, quantity):
                pictures[f"images/lineage-{way}-by-{quantity}.svg"] = charts.lines(points)
    return pictures


def table(systems: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return headings and cells of a budget's results: a row per probe, a column per system."""
    rows = [
        [name, *(_number(one[name], digits) for one in systems.values())]
        for name, digits in (("parameters", 0), ("updates", 0), ("predictions", 0), ("minutes", 1))
    ]
    for way in _WAYS:
        for probe, ways in next(iter(systems.values()), {"scores": {}})["scores"].items():
            if way in ways:
                every = (one["scores"][probe][way] for one in systems.values())
                rows.append([f"{probe}, {way}", *map(_cell, every)])
    return ["", *systems], rows


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def _cell(values: Sequence[float]) -> str:
    spread = f" ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{100 * statistics.fmean(values):.1f}{spread}"


def page(
    lab: Lab, results: Mapping[str, Any], seeds: Sequence[int], pictures: Sequence[str]
) -> str:
    """Return the page: a table for each budget, and the conditions of the runs."""
    machine = describe(lab.device)
    budgets = results["budgets"]
    lines = [
        "# BERT and its ancestors under equal conditions",
        "",
        f"Written by `bertworks lab lineage --minutes {','.join(budgets)}`, seeds "
        f"{', '.join(map(str, seeds))}. Text: {lab.data}. "
        f"Vocabulary: that of {lab.name}. Machine: {machine['cpu']}, {machine['device']}; "
        f"{format_duration(lab.seconds())} of processor time in total.",
        "",
        DESCRIPTION,
        "Scores are in percent (similarity: rank correlation times 100). A probe learns from at "
        f"most {ROWS:,} rows; the epoch that is best on dev counts.",
        "",
    ]
    for minutes, systems in budgets.items():
        headings, cells = table(systems)
        lines += [f"## {minutes} minutes", ""]
        lines += [*markdown_table(headings, cells, numbers=len(headings) - 1), ""]
        if any(system["minutes"] is None for system in systems.values()):
            lines += ["The minutes of a run that was interrupted are not known.", ""]
    if len(budgets) > 1:
        lines += ["## Where BERT passes the others", ""]
        lines += [f"- {line}" for way in _WAYS for line in crossings(results, way)] + [""]
    for name, path in results["skipped"].items():
        lines += [f"Left out: {name}; the data has no {path}.", ""]
    if pictures:
        lines.append("A bar is the mean over the probes with both scores; a dot is one probe.")
        if len(budgets) > 1:
            lines[-1] += " Curves are means over these probes, by minutes or by predictions."
    for path in pictures:
        lines += ["", f"![{Path(path).stem}]({path})"]
    return "\n".join([*lines, ""])
