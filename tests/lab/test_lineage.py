"""BERT and its ancestors, on a little made-up data."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from bertworks.cli import app
from bertworks.errors import SettingsError
from bertworks.lab import bench, lineage, probes
from bertworks.lab.bench import Lab
from bertworks.loading import load
from bertworks.reports import charts

_PAIRS = "king queen\nman woman\nboy girl\ncity town\nriver lake".splitlines()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Some of what the probes need: a corpus, questions, tagged words, questions of words."""
    data_dir = tmp_path / "data"
    documents = [
        "\n".join(
            f"The {first} {verb} the {second} in {1900 + at}."
            for first, second in map(str.split, _PAIRS)
            for verb in ("saw", "met", "left")
        )
        for at in range(30)
    ]
    files = {
        "wiki/part": "\n\n".join(documents),
        "trec/TREC.train.all": "\n".join(
            f"{at % 2} {('Who', 'Where')[at % 2]} is the {['king', 'boy', 'city'][at % 3]} ?"
            for at in range(60)
        ),
        "words/EN-WS-353-ALL.txt": "\n".join(
            f"{pair.replace(' ', chr(9))}\t{at}" for at, pair in enumerate(_PAIRS)
        ),
        "words/questions-words.txt": ": family\nKing Queen Man Woman\nman woman boy girl\n",
    }
    for part in ("train", "dev"):
        files[f"wnut17/{part}.conll"] = 40 * "the\tO\nking\tB-person\n\nin\tO\ntown\tB-place\n\n"
    for path, text in files.items():
        (data_dir / path).parent.mkdir(parents=True, exist_ok=True)
        (data_dir / path).write_text(text, encoding="utf-8")
    return data_dir


@pytest.mark.long
def test_systems_are_trained_alike_and_probed(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "lab"
    (data / "wnut17/train.conll").unlink()
    monkeypatch.setattr(
        Lab, "measure_step_time", lambda self, **_: 60.0
    )  # so that a minute is one update
    words = ["lab", "lineage", "--data", str(data), "--out", str(out), "--minutes", "2"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    report = json.loads((out / "lineage.json").read_bytes())
    systems = report["budgets"]["2"]
    assert list(systems) == list(lineage.SYSTEMS)
    assert {one["updates"] for one in systems.values()} == {2}
    predictions = {name: one["predictions"] for name, one in systems.items()}
    assert predictions["skip-gram"] is None
    assert predictions["ELMo"] == predictions["shallow"] == 2 * predictions["ULMFiT"]
    assert predictions["OpenAI"] == predictions["ULMFiT"] > 2 * predictions["BERT"] > 0
    assert report["skipped"] == {
        "SST-2": "glue/sst2/dev.tsv",
        "MRPC": "glue/mrpc/dev.tsv",
        "word in context": "wic-tsv/Development/dev",
        "UD tags": "ud-ewt/en_ewt-ud-dev.conllu",
        "WNUT17, F1": "wnut17/train.conll",
        "similarity, MEN": "words/EN-MEN-TR-3k.txt",
    }
    for one in systems.values():
        assert one["scores"].keys() == {"TREC", "similarity, WordSim", "analogies"}
        assert one["scores"]["TREC"].keys() == {"frozen", "fine-tuned"}
        assert one["scores"]["analogies"].keys() == {"frozen"}
    page = (out / "lineage.md").read_text(encoding="utf-8")
    assert "| TREC, fine-tuned |" in page and "the data has no wic-tsv" in page
    drawn = charts.bars(lineage.arms(systems))
    assert all(f"{name}, frozen" in drawn for name in systems)

    configs = [load(run.parent).encoder.config for run in out.glob("runs/pretrain-*/model")]
    kinds = Counter((one.num_hidden_layers, one.mixer, one.attention) for one in configs)
    assert kinds == {
        (0, "attention", "bidirectional"): 1,
        (2, "lstm", "two-way"): 1,
        (2, "attention", "two-way"): 1,
        (2, "lstm", "causal"): 1,
        (2, "attention", "causal"): 1,
        (2, "attention", "bidirectional"): 1,
    }
    assert len({one.per_direction_config.hidden_size for one in configs}) == 1
    assert len({one.vocab_size for one in configs}) == 1

    for name in ("pretrain", "finetune"):  # nothing is trained again
        monkeypatch.setattr(bench, name, None)
    assert lineage.lineage(Lab(out, data=data), [2], [0])["budgets"] == {"2": systems}

    assert all(one["minutes"] > 0 for one in systems.values())
    for run in out.glob("runs/pretrain-*/sessions.jsonl"):  # as if a process had been killed
        run.write_bytes(run.read_bytes().splitlines(keepends=True)[0] + run.read_bytes())
    resumed = lineage.lineage(Lab(out, data=data), [2], [0])["budgets"]["2"]
    assert {one["minutes"] for one in resumed.values()} == {None}
    assert "not known" in (out / "lineage.md").read_text(encoding="utf-8")


@pytest.mark.long
@pytest.mark.parametrize("probe", ["TREC", "WNUT17, F1"])
def test_frozen_encoders_stay_as_they_are(
    probe: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = Lab(tmp_path / "lab", data=data)
    unchanged_weights: list[dict[str, Any]] = []
    finetune = bench.finetune

    def compare_weights(*arguments: Any, **settings: Any) -> Any:
        result = finetune(*arguments, **{**settings, "epochs": 1})
        weights_after = load(result.run.model).encoder.state_dict()
        weights_before = load(arguments[0], task="encoder").encoder.state_dict()
        unchanged_weights.append(
            {
                name: bool((weights_before[name] == weights_after[name]).all())
                for name in weights_after
            }
        )
        return result

    monkeypatch.setattr(bench, "finetune", compare_weights)
    run, _ = lab.pretrained(0, by_model=True, steps=1, **lineage.SYSTEMS["ULMFiT"])
    probes.PROBES[probe].measure(lab, run, 0)
    frozen, tuned = unchanged_weights
    assert all(frozen.values()) and not any(tuned.values())


def test_similarity_correlates_with_judgements(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cosines in the order of what people say correlate perfectly; turned, not at all."""
    lab = Lab(tmp_path / "lab", data=data)
    vectors = {
        word: [1.0, at / 10 * place]
        for at, pair in enumerate(_PAIRS)
        for place, word in enumerate(pair.split())
    }
    monkeypatch.setattr(
        probes, "_vectors", lambda _, words: np.array([vectors[word] for word in words])
    )
    found = probes.PROBES["similarity, WordSim"].measure(lab, Path("one"), 0)
    assert found == {"frozen": pytest.approx(-1)}


def test_a_lineage_needs_data(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="needs evaluation data"):
        lineage.lineage(Lab(tmp_path / "lab"), [1], [0])


@pytest.mark.long
def test_updates_are_timed(data: Path, tmp_path: Path) -> None:
    lab = Lab(tmp_path / "lab", data=data)
    small = {"num_hidden_layers": 1, "hidden_size": 8, "intermediate_size": 8}
    pace = lab.measure_step_time(
        by_model=True, batch_size=2, initial_attention="random", model=small
    )
    assert 0 < 50 * pace < lab.seconds()


def test_time_of_an_update_is_the_mean_after_the_first_ten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pretrain(lab: Lab, run: Path, settings: Any, by_model: bool, clock: Any) -> None:
        del lab, run, settings, by_model
        clock.times += [100.0] * 9 + [3.0 * number for number in range(51)]

    monkeypatch.setattr(Lab, "_pretrain", pretrain)
    assert Lab(tmp_path / "lab").measure_step_time() == 3.0


def test_systems_have_settings_of_their_own() -> None:
    name = "OpenAI learning_rate=1e-3 model.num_hidden_layers=3"
    changes = lineage.system_changes(name)
    assert changes["model"] == {"attention": "causal", "num_hidden_layers": 3}
    assert changes["learning_rate"] == 1e-3 and changes["objective"] == "causal"
    assert "learning_rate" not in lineage.SYSTEMS["OpenAI"]
    with pytest.raises(SettingsError, match="unknown system 'Bert'"):
        lineage.system_changes("Bert")
    with pytest.raises(SettingsError, match="not of the form key=value"):
        lineage.system_changes("BERT twice")


def _results(scores: dict[str, tuple[float, ...]]) -> dict[str, Any]:
    """Results of systems whose only probe has these scores, at 5, 20 and 80 minutes."""
    budgets = {
        minutes: {
            name: {"predictions": None, "scores": {"TREC": {"frozen": [values[at]], "tuned": []}}}
            for name, values in scores.items()
        }
        for at, minutes in enumerate(("5", "20", "80"))
    }
    return {"budgets": budgets}


@pytest.mark.parametrize(
    ("one", "other", "sentence"),
    [
        ((0.5, 0.6, 0.7), (0.6, 0.6, 0.8), "not ahead at 80 minutes (-10.0 points)"),
        ((0.5, 0.5, 0.9), (0.6, 0.7, 0.7), "ahead from about 40 minutes (+20.0 points at 80"),
        ((0.8, 0.5, 0.8), (0.7, 0.6, 0.7), "ahead from about 40 minutes (+10.0 points at 80"),
        ((0.8, 0.7, 0.8), (0.7, 0.6, 0.7), "ahead at every budget (+10.0 points at 80 minutes)"),
    ],
)
def test_crossings_are_interpolated(
    one: tuple[float, ...], other: tuple[float, ...], sentence: str
) -> None:
    """Minutes are on a logarithmic scale: half-way between 20 and 80 is 40."""
    results = _results({"OpenAI": other, "BERT": one, "BERT x=1": one})
    sentences = list(lineage.crossings(results, "frozen"))
    assert [line.split(", frozen: ")[0] for line in sentences] == [
        "BERT and OpenAI",
        "BERT x=1 and OpenAI",
    ]
    assert all(sentence in line for line in sentences), sentences
