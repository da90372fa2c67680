"""What the tables of a fine-tuning run look like: label balance, lengths, and what was cut."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..dev_share import DevShare
from . import charts, diagrams, page

_LENGTHS = ("min", "p50", "p90", "p95", "p99", "max")


def is_labelled(data: Mapping[str, Any]) -> bool:
    """Whether `data.json` is a fine-tuning run's (see `tasks.summary.DataSummary`)."""
    train = data.get("train")
    return isinstance(train, Mapping) and "labels" in train


def labelled_data(data: Mapping[str, Any]) -> str:
    """Rows of each label, tokens of a row, and what the length limit cuts, for each table."""
    tables = {name: data[name] for name in ("train", "dev") if data.get(name)}
    rest = {key: item for key, item in data.items() if key not in ("train", "dev")}
    sizes = [
        (
            name,
            page.value(table["rows"]),
            page.value(table["tokens"]),
            *(page.value(table["lengths"][length]) for length in _LENGTHS),
            f"{table['cut_rows']:,}",
            f"{table['cut_tokens']:,}",
        )
        for name, table in tables.items()
    ]
    if (split := rest.pop("split", None)) is not None:
        rest["dev"] = DevShare(**split).text
    columns = ("", "Rows", "Tokens", *_LENGTHS, "Rows cut", "Tokens cut")
    if "shared" in rest:
        shared = rest.pop("shared")
        rest["rows of dev that are in train too"] = shared
    balance = [
        (label, *(_share(table, label) for table in tables.values()))
        for label in sorted(tables["train"]["labels"], key=tables["train"]["labels"].get)[::-1]
    ]
    return "".join(
        (
            page.table(columns, sizes, numbers=len(columns) - 1),
            page.paragraph("min to max: tokens of a row, before anything is cut."),
            _histograms(tables),
            page.subheading("Labels") if balance else "",
            page.table(("", *tables), balance, numbers=len(tables)) if balance else "",
            page.facts(rest),
        )
    )


def _histograms(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """Rows by length; runs of earlier versions have only the percentiles."""
    if not charts.can_draw() or not all("bins" in table for table in tables.values()):
        return ""
    drawn = (
        page.chart(
            f"Rows of {name}, by tokens",
            diagrams.lengths(table["bin_width"], table["bins"], table["cut_bins"]),
            f"{table['cut_rows']:,} rows are cut, by {table['cut_tokens']:,} tokens in all"
            if table["cut_rows"]
            else "no row is cut",
        )
        for name, table in tables.items()
    )
    return f'<div class="charts">{"".join(drawn)}</div>'


def _share(table: Mapping[str, Any], label: str) -> str:
    count = table["labels"].get(label, 0)
    return f"{count:,} ({count / max(table['rows'], 1):.1%})"
