"""`probe` and `ablate`: their output, and their errors."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from .conftest import CPU, World, bertworks, fails, json_of, succeeds


@pytest.mark.long
def test_probe_shows_the_accuracy(world: World) -> None:
    words = ("probe", "--model", world.pretrained, "--train", world.train, "--dev", world.dev, *CPU)
    result = succeeds(*words, "pooling=cls", "layers=[0,-1]")
    values = json_of(*words, "pooling=cls", "layers=[0,-1]")
    assert values["width"] == 32
    assert f"{values['accuracy']:.4f}" in result.stdout
    fails(*words, "poling=cls", says="The nearest valid name is 'pooling'")


@pytest.fixture
def tagging_file(world: World, tmp_path: Path) -> Path:
    """Every noun is one, and nothing else."""
    rows = [json.loads(line)["text"].split() for line in world.train.read_text().splitlines()]
    sentences = [
        "".join(f"{word}\t{'NOUN' if at == 1 else 'X'}\n" for at, word in enumerate(words))
        for words in rows
    ]
    (tmp_path / "tagged.conll").write_text("\n".join(sentences))
    return tmp_path / "tagged.conll"


@pytest.mark.long
def test_ablate_features_writes_a_table_and_resumes(
    world: World, tagging_file: Path, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("ablate", "features", "--model", world.pretrained, "--train", tagging_file)
    words += ("--dev", tagging_file)
    more = ("max_seq_length=32", "probe.lstm_hidden_size=4", "probe.epochs=1", "finetune.epochs=1")
    result = succeeds(*words, *more, *CPU, "--out", "out")
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    for heading in ("paper, CoNLL-2003", "dev accuracy"):
        end = lines[0].index(heading) + len(heading)
        assert all(re.search(r"\d\.\d$", line[:end]) for line in lines[2:-2]), "right-aligned"
    table = (tmp_path / "out" / "table.md").read_text().splitlines()[4:]
    assert [line.split("  ")[0].strip() for line in lines[2:-2]] == [
        row.split("|")[1].strip() for row in table
    ]
    assert table[-1].startswith("| fine-tuned | 96.4 |")
    again = bertworks(*words, *more, *CPU, "--out", "out")
    assert again.stdout == result.stdout
    changed = [word.replace("probe.epochs=1", "probe.epochs=2") for word in more]
    fails(*words, *changed, *CPU, "--out", "out", says="started with probe.epochs=1.0, not 2.0")


def test_unknown_claim_is_refused() -> None:
    words = ("--model", "m", "--train", "t", "--dev", "d", "--out", "o")
    fails("ablate", "fetures", *words, says="'features'", status=2)
