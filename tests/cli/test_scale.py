"""Parts and estimates on the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import bertworks as bw

from ..crashes import contents
from .conftest import CPU, World, bertworks, fails, json_lines_of, json_of, succeeds

MERGES: dict[str, tuple[Callable[[World], tuple[object, ...]], int, str]] = {
    "corpus": (
        lambda w: ("prepare", w.corpus, "--tokenizer", w.vocab, "shard_bytes=500"),
        2,
        "documents   12",
    ),
    "vectors.parquet": (
        lambda w: ("embed", w.pretrained, "--data", w.dev, *CPU, "window_rows=3"),
        2,
        "texts       10",
    ),
    "predictions.tsv": (
        lambda w: ("predict", w.classifier, "--data", w.dev, *CPU, "window_rows=3"),
        3,
        "rows        10",
    ),
}
"""For each name of an output: the command, the number of parts, and what `merge` shows."""


@pytest.mark.long
@pytest.mark.parametrize("name", MERGES)
def test_parts_are_merged(world: World, tmp_path: Path, name: str) -> None:
    command, count, shown_text = MERGES[name]
    words = command(world)
    parts = [tmp_path / f"{number}-{name}" for number in range(1, count + 1)]
    whole, joint_output = tmp_path / name, tmp_path / f"merged-{name}"
    for number, part in enumerate(parts, 1):
        succeeds(*words, "--out", part, "--part", f"{number}/{count}", "--workers", number)
    succeeds(*words, "--out", whole, "--workers", 1)
    says = f"error: missing 1 part of {count}: '2/{count}'"
    fails("merge", *parts[:1], *parts[2:], "--out", joint_output, says=says)
    assert shown_text in succeeds("merge", *parts, "--out", joint_output).stdout
    read = contents if whole.is_dir() else Path.read_bytes
    assert read(joint_output) == read(whole)
    extra = ("--out", tmp_path / f"no-{name}", "--part", f"{count + 1}/{count}")
    fails(*words, *extra, says=f"part='{count + 1}/{count}' is not valid")


def test_parts_are_made_of_tables(world: World) -> None:
    says = "--part, --workers and --on need --data FILE --out FILE."
    fails("predict", world.classifier, "a door", "--part", "1/2", says=says, status=2)


@pytest.mark.long
def test_several_files_are_measured(world: World, tmp_path: Path) -> None:
    words = ("evaluate", world.classifier, "--data", world.dev, *CPU)
    one = json_of(*words)
    first, second = json_lines_of(*words, "--data", world.train)
    assert first == {"data": str(world.dev), **one}
    assert second["data"] == str(world.train)
    assert second["rows"] != one["rows"]
    shown = succeeds(*words, "--data", world.train)
    assert f"{one['accuracy']:.4f}" in shown.stdout
    page = tmp_path / "page.html"
    alone = json_of(*words, "--workers", 1, "--report", page)
    assert alone == one, "workers change nothing of what is printed"
    assert page.is_file()
    fails(
        *(*words, "--data", world.train, "--report", page),
        says="--report needs a single --data FILE.",
        status=2,
    )


@pytest.mark.long
def test_estimate_shows_whether_a_run_fits() -> None:
    words = ("estimate", "tiny", "model.vocab_size=300", "--machine", "h100x2")
    result = succeeds(*words)
    assert "(40% of the peak, assumed)" in result.stdout
    said = " ".join(result.stdout.split())
    assert "BERT-Large as published" in said
    assert "4 days on 16 TPU chips" in said and "4 days on 64 TPU chips" in said  # §A.2
    report = json_of(*words)
    assert json_of(*words, "--steps", "100")["tokens"] == json_of(*words, "steps=100")["tokens"]
    assert f"{report['parameters']:,}, " in result.stdout
    assert report["machine"]["devices"] == 2
    expected = bw.estimate("tiny", ["model.vocab_size=300"], machine="h100x2")
    assert report["parameters"] == expected.parameters
    assert "does not fit" not in result.stdout
    large = bertworks("estimate", "paper", "--machine", "l4")
    assert "This does not fit" in large.stdout
