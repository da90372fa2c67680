"""Models compared on a table, from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from scipy import stats
from typer.testing import CliRunner

import bertworks as bw
from bertworks.cli import app
from tests.training.letters import CONFIG, PIECES, make_rows


@pytest.mark.long
def test_each_model_is_measured_on_every_fourth_row(tmp_path: Path) -> None:
    rows = make_rows(80, 1)
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    tokenizer = bw.Tokenizer.from_vocabulary(PIECES)
    models = [
        str(bw.Model.fresh(CONFIG, tokenizer, seed=seed).save(tmp_path / f"{seed}"))
        for seed in (0, 1)
    ]
    words = ["lab", "compare", *models, "--data", str(tmp_path / "rows.jsonl"), "--json"]
    result = CliRunner().invoke(app, [*words, "--device", "cpu"])
    assert result.exit_code == 0, result.output
    rows_of_models = json.loads(result.stdout)
    assert [row["model"] for row in rows_of_models] == models
    train = [row for number, row in enumerate(rows, 1) if number % 4]
    for row, model in zip(rows_of_models, models, strict=True):
        wanted = bw.probe(model, train=train, dev=rows[3::4], pooling="mean").metrics
        assert row["accuracy"] == pytest.approx(wanted["accuracy"])
        assert row["majority"] == wanted["majority"]
        assert row["texts/s"] > 0
        assert row["parameters"] == bw.load(model).num_parameters
    is_correct = [
        bw.probe(model, train=train, dev=rows[3::4], pooling="mean").is_correct.astype(float)
        for model in models
    ]
    interval = stats.ttest_rel(*is_correct[::-1]).confidence_interval(0.95)
    assert rows_of_models[0]["difference"] is None
    assert rows_of_models[1]["difference"] == pytest.approx((interval.low + interval.high) / 2)
    # Student's t with 19 degrees of freedom is 7 % wider than the normal approximation.
    half = (interval.high - interval.low) / 2
    assert rows_of_models[1]["interval"] == pytest.approx(half * 1.96 / stats.t.ppf(0.975, 19))
    output = CliRunner().invoke(app, [*words[:-1], "--device", "cpu"]).stdout
    assert f"{rows_of_models[1]['difference']:+.3f} ± {rows_of_models[1]['interval']:.3f}" in output
    assert max(map(len, output.splitlines())) <= 80


def test_the_table_is_opened_as_settings_say_and_named_in_errors(tmp_path: Path) -> None:
    model = str(bw.Model.fresh(CONFIG, bw.Tokenizer.from_vocabulary(PIECES)).save(tmp_path / "m"))
    file = tmp_path / "rows.tsv"
    lines = [
        f"{number}\t{row['text']}\t{row['label']}" for number, row in enumerate(make_rows(40, 1))
    ]
    file.write_text("\n".join(["n\tsaid\tstars", *lines]) + "\n")

    def compare(*words: str) -> str:
        given = ["lab", "compare", model, "--data", str(file), "--device", "cpu", *words]
        result = CliRunner().invoke(app, given)
        return " ".join(result.output.split())

    columns = ("text_column=said", "--label-column", "stars", "--header")
    assert "accuracy majority" in compare(*columns)
    assert "rows.tsv: there is no column 'says'" in compare("text_column=says", *columns[1:])
    file.write_text(file.read_text().replace("\t".join(lines[6].split("\t")[1:]), "a b\t"))
    assert "rows.tsv:8: the label (column 'stars') is empty" in compare(*columns)
    file.write_text("\n".join(["n\tsaid\tstars", *lines[:3]]) + "\n")
    assert "rows.tsv: every fourth row is used for evaluation, and there is none" in compare(
        *columns
    )
    listed = CliRunner().invoke(app, ["lab", "list", "text_column=said"])
    assert "text_column is for lab compare" in listed.output


@pytest.mark.parametrize("words", [["mini"], ["--data", "rows.tsv"]])
def test_missing_arguments_are_named(words: list[str]) -> None:
    result = CliRunner().invoke(app, ["lab", "compare", *words])
    assert result.exit_code == 1
    assert "lab compare needs models and --data TABLE" in result.output
