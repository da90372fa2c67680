"""Numbers, spans of time, lines and tables as people read them; values as JSON."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any


def short(number: float) -> str:
    """A number in three digits: 950, 12.3k, 1.2M."""
    for size, mark in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{mark}"
    return f"{number:.3g}"


def listed(names: Sequence[str], most: int = 6) -> str:
    """Names in quotes, the first `most` of them: 'a', 'b', … (12 in all)."""
    shown = ", ".join(map(repr, names[:most]))
    return shown if len(names) <= most else f"{shown}, … ({len(names):,} in all)"


def measured(metrics: Mapping[str, float], remarks: Sequence[str] = ()) -> str:
    """Metrics in a line, and what to know beside them."""
    shown = ", ".join(f"{name} {value:.4g}" for name, value in metrics.items()) or "not measured"
    return "; ".join([shown, *remarks])


def duration(seconds: float) -> str:
    """A span of time: 4.2 s, 48 s, 3 min 20 s, 2 h 05 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def clock(seconds: float | None) -> str:
    """A span of time as a clock shows it: 0:42, 12:05, 3:07:00, 2d 04h; -:-- if it is not known."""
    if seconds is None:
        return "-:--"
    whole = int(max(0.0, seconds))
    if whole >= 86400:
        return f"{whole // 86400}d {whole % 86400 // 3600:02d}h"
    hours, minutes = whole // 3600, whole % 3600 // 60
    if hours:
        return f"{hours}:{minutes:02d}:{whole % 60:02d}"
    return f"{minutes}:{whole % 60:02d}"


def printable(name: str) -> str:
    """A text that UTF-8 can hold: half of a character, as in the name of a file that is not UTF-8,
    becomes `\\udcff`, which is also how JSON writes it."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")


def wrapped(text: str, width: int = 80) -> str:
    """Text whose lines are no wider than a terminal; what goes on stands four columns further in.

    Words are not broken, so that paths and settings can be copied.
    """
    lines: list[str] = []
    for line in text.split("\n"):
        indent = line[: len(line) - len(line.lstrip())]
        lines += textwrap.wrap(
            line,
            width,
            subsequent_indent=f"{indent}    ",
            break_long_words=False,
            break_on_hyphens=False,
        ) or [""]
    return "\n".join(lines)


def as_json(value: Any) -> str:
    """A value as JSON on one line. What JSON has no number for, NaN and infinities, is null."""
    return json.dumps(_finite(value), allow_nan=False, ensure_ascii=False, default=_plain)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def _plain(value: Any) -> Any:
    """What JSON has no word for: NumPy's numbers and arrays as Python's, all else as text."""
    return _finite(value.tolist()) if hasattr(value, "tolist") else str(value)


def markdown(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: int = 0
) -> list[str]:
    """A table's lines in Markdown; the last `numbers` columns are set to the right."""
    rule = ["---"] * (len(columns) - numbers) + ["--:"] * numbers
    return [f"| {' | '.join(cells)} |" for cells in (columns, rule, *rows)]
