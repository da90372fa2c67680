"""`python docs/mini_curve.py` draws `images/mini.svg` from `mini.tsv`, its evaluations."""

from __future__ import annotations

import csv
from pathlib import Path

from bertworks.reports.charts import Axis, Chart, Colour

FOLDER = Path(__file__).parent
LINES: dict[str, Colour] = {"next sentence": "faint", "predicted tokens": "first"}


def main() -> None:
    with (FOLDER / "mini.tsv").open(encoding="utf-8", newline="") as file:
        rows = [*csv.DictReader(file, delimiter="\t")]
    tokens = [float(row["million tokens"]) for row in rows]
    chart = Chart(Axis(0), Axis(0, 1, is_percent=True))
    for name, colour in LINES.items():
        accuracies = [float(row[name]) / 100 for row in rows]
        points = list(zip(tokens, accuracies, strict=True))
        chart.line(points, colour, name=name)
        chart.dots(points, colour)
    (FOLDER / "images/mini.svg").write_text(chart.picture(), encoding="utf-8")


if __name__ == "__main__":
    main()
