"""Every verb reads the same rows of a table without options, with or without a header."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from .conftest import CPU, World, fails, succeeds

TEXTS = ["The river was opened, slowly.", "the door was painted", "a letter: forgot it"]
HEADERS = ["comment", "text", "Customer Feedback", "tweet_text", None]
FORMS = ["plain", "quoted", "crlf", "bom", "utf-16", "tsv"]


def header_and_form(header: str | None, form: str) -> Any:
    """A slow case, unless the form is plain or the header is hard to recognise, or is missing."""
    is_quick = form == "plain" or header in ("Customer Feedback", None)
    return pytest.param(header, form, marks=() if is_quick else pytest.mark.slow)


def table(header: str | None, form: str) -> bytes:
    rows = [*([] if header is None else [header]), *TEXTS]
    quoted = [f'"{row}"' if "," in row or form == "quoted" else row for row in rows]
    end = "\r\n" if form == "crlf" else "\n"
    text = "".join(f"{row}{end}" for row in (rows if form == "tsv" else quoted))
    return text.encode("utf-16" if form == "utf-16" else "utf-8-sig" if form == "bom" else "utf-8")


@pytest.mark.long
@pytest.mark.parametrize(
    ("header", "form"), [header_and_form(header, form) for header in HEADERS for form in FORMS]
)
def test_texts_are_counted_alike(
    world: World, tmp_path: Path, header: str | None, form: str
) -> None:
    file = tmp_path / ("texts.tsv" if form == "tsv" else "texts.csv")
    file.write_bytes(table(header, form))
    options = ("--encoding", "utf-16") if form == "utf-16" else ()
    messages = []
    vectors = tmp_path / "vectors.npy"
    result = succeeds("embed", world.pretrained, "--data", file, "--out", vectors, *CPU, *options)
    assert len(np.load(vectors)) == len(TEXTS)
    messages.append(result.stderr)
    result = succeeds("search", world.pretrained, file, "a river", "--json", *CPU, *options)
    hits = json.loads(result.stdout)["hits"]
    assert {hit["text"] for hit in hits} == set(TEXTS)
    messages.append(result.stderr)
    predicted = tmp_path / "predicted.jsonl"
    result = succeeds(
        "predict", world.classifier, "--data", file, "--out", predicted, *CPU, *options
    )
    assert len(predicted.read_text().splitlines()) == len(TEXTS)
    messages.append(result.stderr)
    is_clear = header != "Customer Feedback"  # a text might say that
    assert [("--no-header" not in one) == is_clear for one in messages] == [True] * 3


@pytest.mark.long
@pytest.mark.parametrize(
    "names", [("text", "label"), ("Comment", "y_true"), ("review_body", "gold label"), None]
)
def test_labelled_rows_are_counted_alike(
    world: World, tmp_path: Path, names: tuple[str, str] | None
) -> None:
    rows = [json.loads(line) for line in world.train.read_text().splitlines()]
    lines = [f"{row['text']}, slowly\t{row['label']}" for row in rows]
    file = tmp_path / "rows.tsv"
    file.write_text("\n".join([*([] if names is None else ["\t".join(names)]), *lines]) + "\n")
    result = succeeds("evaluate", world.classifier, "--data", file, "--json", *CPU)
    assert json.loads(result.stdout)["rows"] == len(rows)
    assert "header" not in result.stderr
    run = tmp_path / "run"
    words = ("--model", world.pretrained, "--train", file, "--out", run, *CPU)
    settings = ("epochs=0.1", "max_seq_length=32")
    result = succeeds("finetune", "classification", *words, *settings)
    assert json.loads((run / "data.json").read_text())["train"]["rows"] == len(rows)


@pytest.mark.long
def test_rows_without_labels_are_left_out_by_every_verb(world: World, tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("text,label,prediction\na,wet,wet\nb,,wet\nc,dry,wet\nd, ,dry\n")
    words = (
        ("evaluate", world.classifier, "--data", file, *CPU),
        ("score", "classification", "--data", file),
        (
            *("finetune", "classification", "--model", world.pretrained, "--train", file),
            *("--out", tmp_path / "run", *CPU, "epochs=1", "max_seq_length=32"),
        ),
    )
    for verb in words:
        fails(*verb, says="is empty, as in 2 of 4 rows. Leave such rows out with --drop-unlabelled")
        result = succeeds(*verb, "--drop-unlabelled")
        assert "2 of 4 rows have no label, and are left out" in " ".join(result.stderr.split())
