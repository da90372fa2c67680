"""Results of claims: records on disk, a page in Markdown, and a picture for each claim."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..errors import DataError
from ..reports import charts
from ..training.machine import describe
from ..utils.atomic_writes import write_file
from ..utils.formatting import format_duration, markdown_table
from ..utils.json_files import read_json, write_json
from ..utils.progress import say
from .bench import Lab
from .claims import SPREADS, Claim, Finding, Verdict, find_claims, overall


@dataclass(frozen=True)
class Record:
    """A claim and its measurements.

    Attributes:
        claim: the claim.
        seeds: for each seed, `cases` (numbers by case and arm) and `seconds` of processor time.
    """

    claim: Claim
    seeds: Mapping[str, Mapping[str, Any]]

    @property
    def cases(self) -> list[Mapping[str, float]]:
        """The cases of all seeds."""
        return [arms for seed in self.seeds.values() for arms in seed["cases"].values()]

    @property
    def findings(self) -> list[Finding]:
        return self.claim.decide(self.cases)

    @property
    def verdict(self) -> Verdict:
        return overall(self.findings)

    @property
    def seconds(self) -> float:
        """The processor time of all seeds."""
        return sum(float(seed["seconds"]) for seed in self.seeds.values())

    @property
    def arms(self) -> dict[str, list[float]]:
        """For each arm, its numbers in all cases."""
        return {arm: [case[arm] for case in self.cases] for arm in self.cases[0]}

    def to_dict(self) -> dict[str, Any]:
        """Return the claim, its measurements and findings as JSON values."""
        one = self.claim
        claim = {"claim": one.name, "says": one.says, "source": one.source, "method": one.method}
        findings = [{**f._asdict(), "expected": str(f.expected)} for f in self.findings]
        return {**claim, "verdict": self.verdict, "findings": findings, "seeds": dict(self.seeds)}


def measure(lab: Lab, claim: Claim, seeds: Sequence[int]) -> Record:
    """Measure a claim, without the seeds that are measured already.

    Raises:
        BertworksError: a run failed.
    """
    measurements = _read_record(lab, claim)
    for seed in claim.seeds(seeds):
        if str(seed) in measurements:
            continue
        say(lab.progress, f"{claim.name}, seed {seed}" if claim.has_seeds else claim.name)
        start = time.process_time()
        cases = claim.measure(lab, seed)
        measurements[str(seed)] = {"cases": cases, "seconds": time.process_time() - start}
        write_json(_file(lab, claim), Record(claim, measurements).to_dict(), indent=1)
    return Record(claim, {str(seed): measurements[str(seed)] for seed in claim.seeds(seeds)})


def _file(lab: Lab, claim: Claim) -> Path:
    return lab.out / "claims" / f"{claim.name}.json"


def _read_record(lab: Lab, claim: Claim) -> dict[str, Any]:
    """Return the earlier measurements, by seed."""
    file = _file(lab, claim)
    seeds: dict[str, Any] = read_json(file, DataError)["seeds"] if file.exists() else {}
    return seeds


def measure_all(
    lab: Lab, claims: Sequence[Claim], seeds: Sequence[int], budget: float | None = None
) -> tuple[list[Record], list[str]]:
    """Measure claims, as long as there is time.

    Args:
        budget: minutes; a claim is skipped if its missing seeds would take more than the remaining
            time. No limit if omitted.

    Returns:
        The records, and the names of the skipped claims.
    """
    end = None if budget is None else time.monotonic() + 60 * budget
    records, skipped_claims = [], []
    for claim in claims:
        missing = {str(seed) for seed in claim.seeds(seeds)} - _read_record(lab, claim).keys()
        cost = 60 * claim.minutes * len(missing)
        if end is not None and missing and time.monotonic() + cost > end:
            skipped_claims.append(claim.name)
            continue
        records.append(measure(lab, claim, seeds))
    return records, skipped_claims


def write_page(lab: Lab) -> Path:
    """Write `results.json`, `lab.md` and a picture under `images` of each claim measured so far."""
    records = [
        Record(claim, known) for claim in find_claims() if (known := _read_record(lab, claim))
    ]
    write_json(lab.out / "results.json", [one.to_dict() for one in records], indent=1)
    write_file(lab.out / "lab.md", page(lab, records))
    for record in records:
        write_file(lab.out / _picture(record), charts.bars(record.arms))
    return lab.out / "lab.md"


def _picture(record: Record) -> str:
    return f"images/lab-{record.claim.name}.svg"


def page(lab: Lab, records: Sequence[Record]) -> str:
    """Return the page: a table of verdicts, then each claim with its measurements."""
    machine = describe(lab.device)
    duration = format_duration(sum(record.seconds for record in records))
    threads = torch.get_num_threads()
    cores = "one thread" if threads == 1 else f"{threads} threads"
    rows = [
        [f"[{r.claim.name}](#{r.claim.name})", f"“{r.claim.says}”", r.verdict, str(len(r.seeds))]
        for r in records
    ]
    lines = [
        "# Claims about BERT, tested",
        "",
        f"Written by `bertworks lab all`. Text: {lab.data or 'docstrings of Python'}. "
        f"Model: {lab.name}. Machine: {machine['cpu']}, {cores}, {machine['device']}; "
        f"{duration} of processor time in total.",
        "",
        f"An effect is *shown* if it is more than {SPREADS:g} times its spread, *contradicted* if "
        "it is that far below zero, else *not shown* at this size. The spread is the standard "
        "deviation over seeds; for an experiment without randomness, the standard error over the "
        "items.",
        "",
        *markdown_table(["claim", "quotation", "verdict", "seeds"], rows, numbers=1),
    ]
    known = {record.claim.name for record in records}
    if left := [claim.name for claim in find_claims() if claim.name not in known]:
        lines += ["", f"Not measured yet: {', '.join(left)}."]
    for record in records:
        lines += ["", *_section(record)]
    return "\n".join([*lines, ""])


def _section(record: Record) -> list[str]:
    claim = record.claim
    arms = [
        [arm, number(statistics.fmean(values)), _deviation(values), str(len(values))]
        for arm, values in record.arms.items()
    ]
    findings = [
        [str(f.expected), number(f.effect), number(f.spread), f.verdict] for f in record.findings
    ]
    return [
        f"## {claim.name}",
        "",
        f"> “{claim.says}” ({claim.source})",
        "",
        f"{claim.method} **{record.verdict.capitalize()}** ({format_duration(record.seconds)}).",
        "",
        *markdown_table(["measured", "mean", "±", "cases"], arms, numbers=3),
        "",
        *markdown_table(["expected", "effect", "spread", "verdict"], findings, numbers=3),
        "",
        f"![{claim.name}]({_picture(record)})",
    ]


def _deviation(values: Sequence[float]) -> str:
    return number(statistics.stdev(values) if len(values) > 1 else None)


def number(value: float | None) -> str:
    """Format a number for a table, with four digits."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"
