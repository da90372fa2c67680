"""A self-contained HTML page about a run, from its run directory alone; or about one evaluation.

The page needs no network and no scripts: styles and curves are embedded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from ..errors import DataError
from ..runs.run_directory import read_run
from ..runs.run_files import is_labelled
from ..tasks.evaluation import Evaluation
from ..utils.atomic_writes import write_file
from ..utils.formatting import format_count, format_duration, format_number
from . import charts, evaluation, page
from .evaluation import fill_ins, labelled_data
from .facts import RunFacts, charts_of

__all__ = ["write_evaluation_report", "write_report"]

_MAX_ROWS = 30
_PEAK = "Matmul peak: the highest measured rate of large matrix products on this machine."
_MAX_RUNS = 12


def write_report(run_directory: str | Path) -> Path:
    """Write `report.html` into a run directory, and return its path.

    It can be written at any time during a run, and any number of times.

    Raises:
        DataError: the directory contains no run, one in another format, or a grid of runs; or a
            file of the run is damaged.
        OutputError: the page cannot be written.
    """
    run = read_run(run_directory)
    if (run.path / "grid.json").is_file():
        raise _grid_error(run.path)
    facts = RunFacts.read(run)
    body = [
        *map(page.warning, facts.failures),
        page.headline(list(_headline(facts))),
        page.paragraph(_PEAK) if any("peak_share" in line["time"] for line in facts.train) else "",
        page.section("Curves", _curves(facts)),
        *evaluation.sections(facts.breakdown, f"the kept weights on {facts.evaluated_data}"),
        page.section("Fill-ins", fill_ins(facts.samples)),
        page.section("Evaluations", _evaluations(facts)),
        page.section("Data", _data(facts)),
        page.section("Sessions", _sessions(facts)),
        page.section("Settings", page.code(facts.settings)),
    ]
    footer = "Made by bertworks from the run directory."
    text = page.page(facts.name, _subtitle(facts), filter(None, body), footer)
    write_file(run.report, text)
    return run.report


def write_evaluation_report(file: str | Path, result: Evaluation, *, model: str, data: str) -> Path:
    """Write a page about one evaluation, and return its path.

    Args:
        file: the page; replaced if it exists.
        model: the title of the page.
        data: the name of the evaluated data.

    Raises:
        OutputError: the page cannot be written.
    """
    body = [
        page.headline(list(_metrics(result.metrics, ""))),
        "".join(map(page.paragraph, result.notes)),
        *evaluation.sections(result.breakdown, f"{data}, {format_count(result.rows, 'row')}"),
    ]
    text = page.page(
        model,
        [f"Measured on {data}, {format_count(result.rows, 'row')}"],
        filter(None, body),
        "Made by bertworks.",
    )
    write_file(file, text)
    return Path(file)


def _grid_error(path: Path) -> DataError:
    """The error for a directory that contains runs, but is not a run."""
    runs = sorted(file.parent.name for file in path.glob("*/settings.yaml"))
    more = len(runs) - _MAX_RUNS
    names = ", ".join(runs[:_MAX_RUNS]) + (f", and {more} more" if more > 0 else "")
    return DataError(
        f"a grid of runs, not a run; its runs are {names}",
        where=str(path),
        fix=f"Give one of them, or read {path / 'grid.md'}.",
    )


def _subtitle(facts: RunFacts) -> list[str]:
    state = "Finished after" if facts.is_finished else "Not finished: at"
    parts = [f"{state} {format_count(facts.last_step, 'step')}", facts.early_end]
    starts = [line for line in facts.sessions if line["event"] == "start"]
    if starts:
        parts.append(f"started {page.moment(starts[0]['time'])} UTC")
        machine = starts[-1].get("cpu" if starts[-1].get("device") == "cpu" else "device")
        parts.append(str(machine or ""))
    return list(filter(None, parts))


def _headline(facts: RunFacts) -> Iterator[page.Figure]:
    """The metrics of the kept weights, and the tokens, time and speed of the run."""
    kept = facts.kept_evaluation or {"step": 0, "metrics": {}}
    yield from _metrics(facts.metrics or kept["metrics"], f"held out, step {kept['step']:,}")
    if facts.train:
        last = facts.train[-1]
        yield page.Figure("Tokens", format_number(last["tokens"]), f"{last['examples']:,} rows")
        yield page.Figure("Time", format_duration(last["time"]["seconds"]), "all sessions")
        speeds = sorted(line["time"]["tokens_per_second"] for line in facts.train)
        peaks = sorted(line["time"].get("peak_share", 0) for line in facts.train)
        peak = peaks[len(peaks) // 2]
        note = f"median; {peak:.0%} of matmul peak" if peak else "median"
        yield page.Figure("Tokens per second", format_number(speeds[len(speeds) // 2]), note)


def _metrics(metrics: Mapping[str, float | None], note: str) -> Iterator[page.Figure]:
    """Figures of metrics; if an accuracy has a majority baseline, that is its note."""
    for name, number in metrics.items():
        if name.endswith("majority") or (
            name == "loss" and {"mlm_loss", "lm_loss"} & metrics.keys()
        ):
            continue
        majority = metrics.get(page.majority_of(name))
        said = note if majority is None else f"majority {page.metric('majority', majority)}"
        yield page.Figure(page.label(name), page.metric(name, number), said)


def _curves(facts: RunFacts) -> str:
    if not facts.train:
        return page.paragraph("No step has been logged yet.")
    charts_of_run = (
        page.chart(
            chart.title,
            charts.draw(chart.curves, percent=chart.is_percent, zero=chart.from_zero),
            chart.caption,
        )
        for chart in charts_of(facts)
    )
    return f'<div class="charts">{"".join(charts_of_run)}</div>'


def _evaluations(facts: RunFacts) -> str:
    if not facts.evaluations:
        return ""
    every = -(-len(facts.evaluations) // _MAX_ROWS)
    lines = facts.evaluations[::-1][::every][::-1]  # always includes the last one
    names = facts.metric_names
    rows = [
        (f"{line['step']:,}", *(page.metric(name, line["metrics"].get(name)) for name in names))
        for line in lines
    ]
    columns = ("Step", *map(page.label, names))
    return page.table(columns, rows, numbers=len(names))


def _data(facts: RunFacts) -> str:
    if is_labelled(facts.data):
        return labelled_data(facts.data)
    return page.facts(facts.data) if facts.data else ""


def _sessions(facts: RunFacts) -> str:
    rows = []
    for line in facts.sessions:
        rest = {key: item for key, item in line.items() if key not in ("event", "time", "step")}
        said = rest.get("text") or ", ".join(f"{key} {page.value(x)}" for key, x in rest.items())
        rows.append((page.moment(line["time"]), line["event"], line.get("step", ""), said))
    table = page.table(("UTC", "Event", "Step", ""), rows)
    return f'<div class="sessions">{table}</div>' if rows else ""
