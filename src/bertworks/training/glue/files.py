"""GLUE's files where they need a hand: rows that are broken, and answers for the server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ... import files
from ...api import Model
from ...corpus.lines import ReadCounts, Reading, read_lines
from ...tasks.delimited import split_tsv


def without_broken_rows(file: Path, copy: Path) -> tuple[Path, int]:
    """A file without the lines that have not as many fields as the header.

    The official QQP has a few questions with a line end in them, whose rows are in pieces; everyone
    leaves them out.

    Args:
        file: the table.
        copy: where one without them is written, if there are any.

    Returns:
        The table to read, and how many lines it lacks.
    """
    kept: list[str] = []
    lines = width = 0
    for _, fields in split_tsv(read_lines(str(file), Reading(ReadCounts()))):
        lines += 1
        width = width or len(fields)
        if len(fields) == width:
            kept.append("\t".join(fields))
    if len(kept) == lines:
        return file, 0
    files.make_directory(copy.parent)
    files.write(copy, "".join(f"{line}\n" for line in kept))
    return copy, lines - len(kept)


def write_answers(model: Model, test: Path, out: Path) -> None:
    """Answer a test file in the form that the benchmark's server takes.

    Two columns, `index` and `prediction`: labels by their names, STS-B's numbers cut to 0–5.

    Raises:
        DataError: a row is not one of the model's task.
    """
    lines = ["index\tprediction"]
    for number, (row, answer) in enumerate(model.stream(data=test)):
        index = row.get("index", row.get("id", number))
        lines.append(f"{index}\t{_answer(answer)}")
    files.make_directory(out.parent)
    files.write(out, "".join(f"{line}\n" for line in lines))


def _answer(answer: dict[str, Any]) -> str:
    if "value" in answer:
        return f"{min(5.0, max(0.0, answer['value'])):.3f}"
    return str(answer["label"])
