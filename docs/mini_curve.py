"""`python docs/mini_curve.py` draws `images/mini.svg` from `mini.tsv`, its evaluations."""

from __future__ import annotations

import csv
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure

HERE = Path(__file__).parent
LINES = {"next sentence": ("#8a8f96", "^"), "predicted tokens": ("#22577a", "o")}


def main() -> None:
    with (HERE / "mini.tsv").open(encoding="utf-8", newline="") as file:
        rows = [*csv.DictReader(file, delimiter="\t")]
    with rc_context({"svg.hashsalt": "mini", "font.size": 9}):
        figure = Figure(figsize=(6.4, 3.4), layout="constrained")
        axes = figure.add_subplot()
        tokens = [float(row["million tokens"]) for row in rows]
        for name, (colour, marker) in LINES.items():
            right = [float(row[name]) for row in rows]
            axes.plot(tokens, right, marker=marker, markersize=3.5, linewidth=1.4, color=colour)
            axes.annotate(
                name,
                (tokens[-1], right[-1]),
                (0, 8),
                textcoords="offset points",
                ha="right",
                color=colour,
            )
        axes.set(xlabel="million tokens", ylabel="right, %", ylim=(0, 100), xlim=(0, None))
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#e4e6e9", linewidth=0.6)
        figure.savefig(HERE / "images/mini.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
