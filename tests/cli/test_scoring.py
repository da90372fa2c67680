"""`score`: its output, which equals that of `evaluate` for a model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .conftest import CPU, World, bertworks, fails, json_of, succeeds


@pytest.fixture
def squad(tmp_path: Path) -> Path:
    """Two questions of version 2.0, one of them without an answer."""
    qas: list[dict[str, Any]] = [
        {
            "id": "q0",
            "question": "Who came?",
            "answers": [{"text": "the cat", "answer_start": 4}],
            "is_impossible": False,
        },
        {"id": "q1", "question": "Who left?", "answers": [], "is_impossible": True},
    ]
    paragraph = {"context": "Now the cat came.", "qas": qas}
    file = tmp_path / "dev.json"
    file.write_text(json.dumps({"data": [{"title": "t", "paragraphs": [paragraph]}]}))
    return file


def test_answers_are_scored_with_and_without_probabilities(squad: Path, tmp_path: Path) -> None:
    answers, chances = tmp_path / "answers.json", tmp_path / "chances.json"
    answers.write_text(json.dumps({"q0": "a black cat", "q1": "cat"}))
    chances.write_text(json.dumps({"q0": 0.1, "q1": 0.9}))
    words = ("score", "answering", "--data", squad, "--predictions", answers)
    page = tmp_path / "errors.html"
    result = succeeds(*words, "--report", page)
    assert "0.3333" in result.stdout  # two words, one of them right: 2/3, and 0
    text = page.read_text()
    assert "Who came? | Now the cat came." in text, "the passage holds no black cat to mark"
    assert "Who left? | Now the <mark>cat</mark> came." in text
    assert "Mistakes" in text
    assert "confident" not in text
    values = json_of(*words, "--no-answer-probs", chances)
    assert values["rows"] == 2
    assert values["best_f1"] == pytest.approx((2 / 3 + 1) / 2)
    assert values["best_null_threshold"] == 0.1
    answers.write_text(json.dumps({"q1": ""}))
    result = succeeds(*words)
    assert "1 of 2 questions have no prediction; they score 0" in result.stdout
    answers.write_text(json.dumps({"q2": ""}))
    fails(*words, says="none of its 1 ids is that of a question in")
    answers.write_text(json.dumps({"q1": "", "q2": "", "q3": ""}))
    result = succeeds(*words)
    assert "2 of 3 ids are not those of a question in" in " ".join(result.stderr.split())


@pytest.mark.long
def test_no_torch_is_loaded(squad: Path, tmp_path: Path) -> None:
    answers = tmp_path / "answers.json"
    answers.write_text(json.dumps({"q0": "the cat", "q1": ""}))
    page = tmp_path / "page.html"
    code = f"""
import sys
from typer.testing import CliRunner
from bertworks.cli import app
words = ["score", "answering", "--data", {str(squad)!r}, "--predictions", {str(answers)!r}]
result = CliRunner().invoke(app, [*words, "--report", {str(page)!r}])
assert result.exit_code == 0, result.output
assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert page.is_file()


@pytest.mark.long
def test_the_predictions_of_a_model_score_as_it_evaluates(world: World, tmp_path: Path) -> None:
    metrics = json_of("evaluate", world.classifier, "--data", world.dev, *CPU)
    for name in ("out.tsv", "out.jsonl"):
        out = tmp_path / name
        succeeds("predict", world.classifier, "--data", world.dev, "--out", out, *CPU)
        scored = json_of("score", "classification", "--data", out)
        assert scored == {key: value for key, value in metrics.items() if key != "loss"}


def test_tags_and_values_are_scored(tmp_path: Path) -> None:
    tags = tmp_path / "predicted.conll"
    tags.write_text("Ann B-PER B-PER\nleft O O\n\nBonn B-LOC B-PER\n")
    result = succeeds("score", "tagging", "--data", tags)
    assert "LOC: precision 0.0%, recall 0.0%, F1 0.0%, 1 span" in result.stdout
    values = tmp_path / "values.tsv"
    values.write_text("text\tscore\tguess\na\t1\t1\nb\t2\t3\nc\t3\t5\n")
    words = ("score", "regression", "--data", values)
    columns = ("--label-column", "score", "--prediction-column", "guess", "--json")
    found = json.loads(bertworks(*words, *columns).stdout)
    assert found["pearson"] == pytest.approx(1)
    assert found["mean_squared_error"] == pytest.approx(5 / 3)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("tagging", "--data", "x", "--predictions", "x"), "predictions is not for tagging"),
        (("answering", "--data", "x"), "predictions are missing"),
        (("answering", "--data", "absent.json", "--predictions", "p"), "absent.json: no such file"),
        (("tagging", "--data", "x", "--report", "no/page.html"), "no/page.html: cannot be written"),
    ],
)
def test_invalid_arguments_are_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x").touch()
    fails("score", *words, says=says)
