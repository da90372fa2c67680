"""HTML elements of a page; all text from data is escaped here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import Any, NamedTuple

_SHARES = ("accuracy", "f1", "majority", "share", "rate", "precision", "recall", "match")
_SPELLINGS = {
    "lm": "LM",
    "mlm": "MLM",
    "nsp": "NSP",
    "rtd": "RTD",
    "sop": "SOP",
    "auc": "AUC",
    "f1": "F1",
    "lr": "learning rate",
    "cpu": "CPU",
    "id": "id",
}

_LABELS = {
    "has_majority_baseline": "Accuracy is compared with the most frequent label",
    "not_next_share": "Pairs whose second text does not follow the first",
    "full_length_share": "Sequences of the maximum length",
    "mean_length": "Mean tokens per sequence",
}
"""Keys whose words do not explain them."""


class Figure(NamedTuple):
    """A headline figure."""

    name: str
    value: str
    note: str = ""


def page(title: str, subtitle: Sequence[str], body: Iterable[str], footer: str) -> str:
    """The whole page; the title, the parts of the subtitle and the footer are plain text."""
    template = Template((files(__package__) / "template.html").read_text(encoding="utf-8"))
    return template.substitute(
        title=escape(title),
        subtitle=" · ".join(f"<span>{escape(part)}</span>" for part in subtitle),
        body="\n".join(body),
        footer=escape(footer),
    )


def section(heading: str, *content: str) -> str:
    """A heading and its content; nothing, if there is no content."""
    inner = "\n".join(part for part in content if part)
    return f"<section>\n<h2>{escape(heading)}</h2>\n{inner}\n</section>" if inner else ""


def subheading(text: str) -> str:
    """A heading inside a section."""
    return f"<h3>{escape(text)}</h3>"


def paragraph(text: str) -> str:
    """A paragraph in small print."""
    return f'<p class="soft small">{escape(text)}</p>'


def warning(text: str) -> str:
    """A note that is not to be overlooked."""
    return f'<p role="note"><strong>{escape(text)}</strong></p>'


def headline(figures: Sequence[Figure]) -> str:
    """The most important figures, shown at the top."""
    cells = (
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}"
        f'<span class="note">{escape(note)}</span></dd></div>'
        for name, value, note in figures
    )
    return f'<dl class="figures">{"".join(cells)}</dl>'


def chart(title: str, svg: str, caption: str = "") -> str:
    """A chart with title and caption; `svg` is trusted and not escaped."""
    below = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return f"<figure><h3>{escape(title)}</h3>{svg}{below}</figure>"


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, numbers: int = 0) -> str:
    """A table; its last `numbers` columns are numbers; without headings if all `columns` are ""."""
    first = len(columns) - numbers

    def line(cells: Sequence[Any], kind: str) -> str:
        marks = ("" if at < first else ' class="number"' for at in range(len(cells)))
        pairs = zip(cells, marks, strict=True)
        texts = (f"<{kind}{mark}>{escape(str(cell))}</{kind}>" for cell, mark in pairs)
        return f"<tr>{''.join(texts)}</tr>"

    head = f"<thead>{line(columns, 'th')}</thead>" if any(columns) else ""
    body = "".join(line(cells, "td") for cells in rows)
    return f'<div class="wide"><table>{head}<tbody>{body}</tbody></table></div>'


def facts(tree: Mapping[str, Any]) -> str:
    """A mapping as tables in columns: one of its plain values, then one for each nested mapping."""
    rows = [(label(k), _fact(k, item)) for k, item in tree.items() if not isinstance(item, Mapping)]
    parts = [f"<div>{table(('', ''), rows, numbers=1)}</div>"] if rows else []
    for key, item in tree.items():
        if isinstance(item, Mapping) and item:
            parts.append(f"<div><h3>{escape(label(key))}</h3>{facts(item)}</div>")
    return f'<div class="columns">{"".join(parts)}</div>'


def details(summary: str, content: str) -> str:
    """Content that opens when its summary is clicked."""
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"


def code(text: str) -> str:
    """Preformatted text."""
    return f"<pre><code>{escape(text)}</code></pre>"


def label(key: str) -> str:
    """A key as readable text: `mlm_accuracy` is “MLM accuracy”."""
    if key in _LABELS:
        return _LABELS[key]
    words = [_SPELLINGS.get(word, word) for word in key.split("_") if word]
    text = " ".join(words)
    return text[:1].upper() + text[1:]


def _fact(key: str, item: Any) -> str:
    return f"{item:.1%}" if key.endswith("_share") and isinstance(item, float) else value(item)


def value(item: Any) -> str:
    """A value as readable text."""
    if isinstance(item, bool):
        return "yes" if item else "no"
    if item is None:
        return "–"
    if isinstance(item, int):
        return f"{item:,}"
    if isinstance(item, float):
        return f"{item:.4g}"
    if isinstance(item, list | tuple):
        return ", ".join(value(part) for part in item)
    return str(item)


def metric(name: str, number: float | None) -> str:
    """A metric's value as readable text; shares in percent."""
    if number is None:
        return "–"
    if is_share(name):
        return f"{100 * number:.1f} %"
    return f"{number:,.1f}" if abs(number) >= 100 else f"{number:.3f}"


def is_share(name: str) -> bool:
    """Whether a metric lies between 0 and 1 and is shown in percent."""
    return name.partition("@")[0].endswith(_SHARES)


def majority_of(name: str) -> str:
    """The name of the majority share of an accuracy; "" for other metrics, which have none."""
    return f"{name.removesuffix('accuracy')}majority" if name.endswith("accuracy") else ""


def moment(iso: str) -> str:
    """A UTC time stamp as readable text, without its zone."""
    return iso.replace("T", " ").removesuffix("+00:00")
