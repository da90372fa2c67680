"""Parts and estimates on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ..crashes import contents
from .conftest import CPU, Bertworks, World


@pytest.mark.long
def test_parts_are_merged(bertworks: Bertworks, world: World, tmp_path: Path) -> None:
    words = (*("prepare", world.corpus, "--tokenizer", world.vocab), "shard_bytes=500")
    whole, merged_corpus = tmp_path / "whole", tmp_path / "merged"
    parts = [tmp_path / f"part{number}" for number in (1, 2)]
    assert bertworks(*words, "--out", whole, "--workers", 1).exit_code == 0
    assert len(list(whole.glob("*.arrow"))) > 4
    for number, part in enumerate(parts, 1):
        made = bertworks(*words, "--out", part, "--part", f"{number}/2", "--workers", number)
        assert made.exit_code == 0, made.output
    missing = bertworks("merge", parts[0], "--out", merged_corpus)
    assert missing.exit_code == 1
    assert "error: of 2 parts, these are missing: '2/2'" in missing.stderr
    result = bertworks("merge", *parts, "--out", merged_corpus)
    assert result.exit_code == 0, result.output
    assert "documents   12" in result.stdout
    assert contents(merged_corpus) == contents(whole)


def test_parts_of_vectors_are_merged(bertworks: Bertworks, world: World, tmp_path: Path) -> None:
    words = ("embed", world.pretrained, "--data", world.dev, *CPU, "window_rows=3")
    parts = [tmp_path / f"part{number}.parquet" for number in (1, 2)]
    for number, part in enumerate(parts, 1):
        made = bertworks(*words, "--out", part, "--part", f"{number}/2")
        assert made.exit_code == 0, made.output
    assert bertworks(*words, "--out", tmp_path / "whole.parquet").exit_code == 0
    result = bertworks("merge", *parts, "--out", tmp_path / "merged.parquet")
    assert result.exit_code == 0, result.output
    assert "texts       10" in result.stdout
    merged, whole = (tmp_path / f"{name}.parquet" for name in ("merged", "whole"))
    assert merged.read_bytes() == whole.read_bytes()
    wrong = bertworks(*words, "--out", tmp_path / "no.npy", "--part", "3/2")
    assert "error: part='3/2' is not valid" in wrong.stderr


def test_parts_of_predictions_are_merged(
    bertworks: Bertworks, world: World, tmp_path: Path
) -> None:
    words = ("predict", world.classifier, "--data", world.dev, *CPU, "window_rows=3")
    parts = [tmp_path / f"part{number}.tsv" for number in (1, 2, 3)]
    for number, part in enumerate(parts, 1):
        made = bertworks(*words, "--out", part, "--part", f"{number}/3")
        assert made.exit_code == 0, made.output
    assert bertworks(*words, "--out", tmp_path / "whole.tsv").exit_code == 0
    missing = bertworks("merge", parts[0], parts[2], "--out", tmp_path / "merged.tsv")
    assert missing.exit_code == 1
    assert "error: of 3 parts, these are missing: '2/3'" in missing.stderr
    result = bertworks("merge", *parts, "--out", tmp_path / "merged.tsv")
    assert result.exit_code == 0, result.output
    assert "rows        10" in result.stdout
    assert (tmp_path / "merged.tsv").read_bytes() == (tmp_path / "whole.tsv").read_bytes()
    alone = bertworks("predict", world.classifier, "a door", "--part", "1/2")
    assert alone.exit_code == 2
    assert "--part, --workers and --on need --data FILE --out FILE." in alone.stderr


def test_several_files_are_measured(bertworks: Bertworks, world: World, tmp_path: Path) -> None:
    words = ("evaluate", world.classifier, "--data", world.dev, *CPU)
    one = json.loads(bertworks(*words, "--json").stdout)
    both = bertworks(*words, "--data", world.train, "--json")
    first, second = map(json.loads, both.stdout.splitlines())
    assert first == {"data": str(world.dev), **one}
    assert second["data"] == str(world.train)
    assert second["rows"] != one["rows"]
    shown = bertworks(*words, "--data", world.train)
    assert shown.exit_code == 0, shown.output
    assert f"{one['accuracy']:.4f}" in shown.stdout
    page = tmp_path / "page.html"
    alone = bertworks(*words, "--workers", 1, "--json", "--report", page)
    assert json.loads(alone.stdout) == one, "workers change nothing of what is printed"
    assert page.is_file()
    refused = bertworks(*words, "--data", world.train, "--report", page)
    assert refused.exit_code == 2
    assert "--report needs a single --data FILE." in refused.stderr


@pytest.mark.long
def test_estimate_shows_whether_a_run_fits(bertworks: Bertworks) -> None:
    words = ("estimate", "tiny", "model.vocab_size=300", "--machine", "h100x2")
    result = bertworks(*words)
    assert result.exit_code == 0, result.output
    assert "(40% of the peak, assumed)" in result.stdout
    said = " ".join(result.stdout.split())
    assert "BERT-Large as published" in said
    assert "4 days on 16 TPU chips" in said and "4 days on 64 TPU chips" in said  # §A.2
    found = json.loads(bertworks(*words, "--json").stdout)
    assert f"{found['parameters']:,}, " in result.stdout
    assert found["machine"]["devices"] == 2
    assert "does not fit" not in result.stdout
    large = bertworks("estimate", "paper", "--machine", "l4")
    assert "This does not fit" in large.stdout
