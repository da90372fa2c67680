"""The lab: its rule, its records, and that every claim can be measured."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from bertworks.cli import app
from bertworks.errors import DataError, SettingsError, TrainingError
from bertworks.lab import bench
from bertworks.lab.bench import Lab
from bertworks.lab.claims import ARMS, MEASURES, Claim, Expect, Verdict, find_claims, overall
from bertworks.lab.demo import texts
from bertworks.lab.finished_runs import finish_run
from bertworks.lab.report import measure, number
from bertworks.reports import charts
from tests.lab.demo.test_cycle import _library


@pytest.mark.parametrize(
    ("effects", "is_seeded", "verdict"),
    [
        ((3.0, 4.0, 5.0), True, "shown"),  # 4 is more than twice 1
        ((0.5, 2.0, 3.5), True, "not shown"),  # 2 is less than twice 1.5
        ((-3.0, -4.0, -5.0), True, "contradicted"),
        ((4.0,), True, "not shown"),  # one seed says nothing of the spread
        ((4.0,), False, "shown"),
        ((0.0,), False, "not shown"),
        ((0.5, 2.0, 3.5), False, "shown"),  # the mean of items: 2 against 1.5 / √3
    ],
)
def test_a_verdict_follows_the_rule(
    effects: tuple[float, ...], is_seeded: bool, verdict: Verdict
) -> None:
    claim = Claim("c", 1, is_seeded, "", "", "", (Expect("a", "b", 2),), lambda *_: {})
    (finding,) = claim.decide([{"a": 10 + effect, "b": 5.0} for effect in effects])
    assert finding.verdict == verdict
    assert finding.effect == pytest.approx(sum(effects) / len(effects))
    assert str(finding.expected) == "a > 2 × b"
    assert Expect.parse(str(finding.expected)) == finding.expected


def test_verdict_needs_every_expectation() -> None:
    claim = Claim("c", 1, False, "", "", "", (Expect("a", "b"), Expect("a", "c")), lambda *_: {})
    verdicts = [
        overall(claim.decide([{"a": 2.0, "b": 1.0, "c": other}])) for other in (1.0, 2.0, 3.0)
    ]
    assert verdicts == ["shown", "not shown", "contradicted"]


def test_numbers_of_a_table_are_short() -> None:
    shown = [number(x) for x in (None, 0.0, 0.5, -0.12341, 109.482, 1.5e-8, 32768.0)]
    assert shown == ["–", "0", "0.5", "-0.1234", "109.5", "1.5e-08", "32,768"]


def test_claims_are_found_by_name() -> None:
    claims = find_claims()
    assert {claim.name for claim in claims} == set(MEASURES)
    assert all(claim.method and claim.source and len(claim.says.split()) <= 12 for claim in claims)
    for claim in claims:
        arms = {arm for expected in claim.rule for arm in (expected.more, expected.less)}
        assert arms <= ARMS.get(claim.name, arms), claim.name
    assert [claim.name for claim in find_claims(["order", "senses"])] == ["order", "senses"]
    with pytest.raises(SettingsError, match="ordr"):
        find_claims(["ordr"])


@pytest.mark.long
def test_a_claim_is_measured_once_and_its_page_is_written(tmp_path: Path) -> None:
    def lab(*words: str) -> str:
        result = CliRunner().invoke(app, ["lab", *words, "--out", str(tmp_path)])
        assert result.exit_code == 0, result.output
        return result.output

    assert "square-of-length" in lab("list")
    assert "contradicted" in lab("run", "square-of-length", "base-110m")
    page = (tmp_path / "lab.md").read_text(encoding="utf-8")
    assert "109.5" in page  # millions of parameters
    found = {one["claim"]: one for one in json.loads((tmp_path / "results.json").read_bytes())}
    assert found["base-110m"]["verdict"] == "shown"
    record = tmp_path / "claims" / "base-110m.json"
    before = record.stat().st_mtime_ns
    lab("run", "base-110m")
    assert record.stat().st_mtime_ns == before
    assert "square-of-length" in (tmp_path / "lab.md").read_text(encoding="utf-8")
    assert CliRunner().invoke(app, ["lab", "run", "--out", str(tmp_path)]).exit_code == 1


def test_an_unknown_claim_is_answered_with_where_they_are_listed(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["lab", "run", "nosuch", "--out", str(tmp_path)])
    assert result.exit_code == 1
    assert "no claim is called 'nosuch'" in result.stderr
    assert "bertworks lab list" in result.stderr


def test_lab_in_another_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lab.json").write_text('{"model": {}, "data": "docstrings of Python"}')
    message = r"lab\.json: written in another format \(none, not 1\)\. Give another --out\.$"
    with pytest.raises(TrainingError, match=message):
        Lab(tmp_path)


def test_a_picture_is_a_file_of_its_own() -> None:
    picture = charts.bars({"one": [0.5, 0.7], "a & b": [-0.25]})
    assert ElementTree.fromstring(picture).tag == "{http://www.w3.org/2000/svg}svg"
    for name in re.findall(r"var\(--(\w+)\)", picture):
        assert picture.count(f"--{name}:#") == 2, name  # light and dark


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Lab:
    monkeypatch.setattr(texts, "standard_library", _library)
    monkeypatch.setattr(bench, "VOCABULARY_SIZE", 600)
    return Lab(tmp_path / "lab")


@pytest.mark.long
def test_a_run_is_made_once_and_its_metrics_are_kept(
    small: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, metrics = small.pretrained(0, steps=2)
    monkeypatch.setattr(bench, "pretrain", None)  # nothing is trained again
    reopened_lab = Lab(small.out)
    assert reopened_lab.pretrained(0, steps=2) == (run, metrics)
    assert 0 <= metrics["mlm_accuracy"] <= 1
    with pytest.raises(TypeError):
        reopened_lab.pretrained(1, steps=2)
    with pytest.raises(TrainingError, match="another data"):
        Lab(small.out, data="elsewhere")


@pytest.mark.slow  # forty claims, minutes
@pytest.mark.parametrize("part", range(4))
def test_every_claim_can_be_measured(
    small: Lab, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    pretrained, finetuned_model = Lab.pretrained, Lab.finetuned_model

    def short(lab: Lab, seed: int, **changes: Any) -> Any:
        return pretrained(lab, seed, **{**changes, "steps": 2, "batch_size": 4})

    def few(lab: Lab, model: str | Path, seed: int, settings: Any = None, rows: int = 0) -> float:
        del rows
        return finetuned_model(lab, model, seed, {**(settings or {}), "epochs": 1}, rows=16)

    monkeypatch.setattr(Lab, "pretrained", short)
    monkeypatch.setattr(Lab, "finetuned_model", few)
    for claim in find_claims()[part::4]:
        record = measure(small, claim, [0])
        assert len(record.findings) == len(claim.rule), claim.name


def test_damaged_results_of_a_run_are_an_error_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text("{")
    with pytest.raises(DataError, match=r"result\.json: not valid JSON"):
        finish_run(tmp_path, lambda _: {})
