"""What the lab measures, on vectors and files that are made so that the values are known."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import bertworks as bw
from bertworks.lab import looking, probes
from bertworks.lab.claims import MEASURES


def make_lab(**attributes: Any) -> Any:
    return SimpleNamespace(**{"model": None, **attributes})


def test_senses_are_compared_in_the_last_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four sentences of one sense and four of another: cosines .75 within, .25 between."""
    is_same = np.kron(np.eye(2), np.ones((4, 4))).astype(bool)
    cosines = np.where(is_same, 0.75, 0.25)
    np.fill_diagonal(cosines, 1.0)
    answer = {"similarity": [np.zeros((8, 8)), cosines.tolist()], "static": np.full((8, 8), 0.5)}
    monkeypatch.setattr(looking, "contexts", lambda model, word, texts: answer)
    assert all(len(texts) == 8 for texts in looking.SENSES.values())
    for arms in MEASURES["senses"](make_lab(), 0).values():
        assert arms == {"same sense": 0.75, "other sense": 0.25}
    apart = 1 - (12 * 0.75 + 16 * 0.25) / 28
    for arms in MEASURES["context-differs"](make_lab(), 0).values():
        assert arms == {"apart, in context": pytest.approx(apart), "apart, static": 0.5}


def test_tables_of_probes_are_read_from_published_files(tmp_path: Path) -> None:
    for part, (word, position, text) in {
        "train": ("bank", 2, "the bank paid"),
        "dev": ("stick", 1, "a stick"),
    }.items():
        (tmp_path / f"{part}_examples.txt").write_text(f"{word}\t{position}\t{text}\n" * 2)
        (tmp_path / f"{part}_definitions.txt").write_text(f"{part} sense\nother\n")
        (tmp_path / f"{part}_labels.txt").write_text("T\nF\n")
    lab = make_lab(data_path=lambda path: tmp_path / path)
    train, dev = probes._in_context(lab, "train", "dev")
    assert train == [
        {"sentence1": "the bank paid", "sentence2": "bank: train sense", "label": "T"},
        {"sentence1": "the bank paid", "sentence2": "bank: other", "label": "F"},
    ]
    assert [row["sentence2"] for row in dev] == ["stick: dev sense", "stick: other"]

    questions = [f"NUM:count How many {at} caf\xe9s ?" for at in range(21)]
    (tmp_path / "questions").write_text("\n".join(questions), "latin-1")
    train, dev = probes._questions(lab, "questions")
    assert [row["text"] for row in dev] == [f"How many {at} caf\xe9s ?" for at in (0, 10, 20)]
    assert len(train) == 18 and {row["label"] for row in [*train, *dev]} == {"NUM:count"}


@pytest.mark.long
def test_order_is_lost_without_positions() -> None:
    lab = make_lab(model=bw.load("mini", device="cpu"))
    for arms in MEASURES["order"](lab, 0).values():
        assert arms["with positions"] > 1e-3 and arms["without positions"] < 1e-5
    for arms in MEASURES["river"](lab, 0).values():
        for name in ("to the telling word", "to another word"):
            assert 0 < arms[name] < arms[f"{name}, one head"] < 1
