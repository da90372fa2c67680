"""The command line and Python, where only the light core is installed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import bertworks as bw
from bertworks.cli import app
from bertworks.native.library import has_kernels
from tests.conftest import HAS_PYTORCH
from tests.light.models import PIECES, SavedBert, save_bert

pytestmark = [
    pytest.mark.light,
    pytest.mark.skipif(not has_kernels("fp32"), reason="no native code for this processor"),
]
needs_absence = pytest.mark.skipif(HAS_PYTORCH, reason="PyTorch is installed")

_TRAIN = ("--train", "{t}", "--out", "{o}")
TEXTS = ("the door was open", "a deep river", "london")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> SavedBert:
    return save_bert(tmp_path_factory.mktemp("light") / "encoder")


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> SavedBert:
    return save_bert(tmp_path_factory.mktemp("light") / "tickets", labels=("no", "so", "yes"))


@pytest.fixture(scope="module")
def masked_lm(tmp_path_factory: pytest.TempPathFactory) -> SavedBert:
    return save_bert(tmp_path_factory.mktemp("light") / "words", masked_lm=True)


def run(*words: object) -> Result:
    return CliRunner(env={"COLUMNS": "80"}).invoke(app, [str(word) for word in words])


def succeed(*words: object) -> Result:
    result = run(*words)
    assert result.exit_code == 0, (words, result.output, result.exception)
    return result


def fail(*words: object) -> str:
    """The one line of error of a command that fails."""
    result = run(*words)
    assert result.exit_code == 1, (words, result.output, result.exception)
    (line,) = result.stderr.splitlines()
    return line


def test_embed_writes_the_vectors_of_the_formulas(encoder: SavedBert, tmp_path: Path) -> None:
    out = tmp_path / "v.npy"
    words = ("embed", encoder.directory, *TEXTS, "--out", out, "--backend", "native")
    succeed(*words, "precision=fp32", "pooling=mean")
    assert np.load(out) == pytest.approx(np.stack([*map(encoder.embed, TEXTS)]), abs=2e-5)
    assert "nothing to do" in succeed(*words, "precision=fp32", "pooling=mean").stdout


def test_embed_reads_a_table(encoder: SavedBert, tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text("".join(f"{json.dumps({'text': one})}\n" for one in TEXTS))
    succeed("embed", encoder.directory, "--data", tmp_path / "t.jsonl", "--out", tmp_path / "v.npy")
    assert np.load(tmp_path / "v.npy").shape == (3, 64)


@pytest.mark.long
def test_search_prints_the_nearest_text(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("The river is cold.\nThey opened the door.\n")
    words = ("search", "mini-sentences", tmp_path / "t.txt", "who opened the door?")
    for index in ((), ("--index", tmp_path / "index"), ("--index", tmp_path / "index")):
        (line,) = succeed(*words, *index, "--top-k", 1, "--json").stdout.splitlines()
        assert json.loads(line)["hits"][0]["text"] == "They opened the door."


def test_inspect_counts_parameters(encoder: SavedBert) -> None:
    result = json.loads(succeed("inspect", encoder.directory, "--json").stdout)
    assert result["parameters"]["total"] == sum(one.size for one in encoder.tensors.values())
    assert result["engine"].startswith("native code for ")


def test_predict_gives_the_probabilities_of_the_formulas(
    classifier: SavedBert, tmp_path: Path
) -> None:
    (tmp_path / "t.tsv").write_text("text\n" + "".join(f"{text}\n" for text in TEXTS))
    words = ("predict", classifier.directory, "--data", tmp_path / "t.tsv", "--backend", "native")
    succeed(*words, "--out", tmp_path / "p.jsonl", "precision=fp32")
    rows = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    actual = [[*row["prediction"]["probabilities"].values()] for row in rows]
    expected = np.stack([*map(classifier.probabilities, TEXTS)])
    assert np.array(actual) == pytest.approx(expected, abs=1e-5)


def test_fill_mask_gives_the_probabilities_of_the_formulas(masked_lm: SavedBert) -> None:
    text = "the [MASK] was open"
    words = ("fill-mask", masked_lm.directory, text, "--backend", "native", "--json")
    (guesses,) = json.loads(succeed(*words, "precision=fp32", "--top-k", 14).stdout)
    expected = masked_lm.pieces(text)
    assert sorted(guess["id"] for guess in guesses) == [*range(len(PIECES))]
    for guess in guesses:
        assert guess["probability"] == pytest.approx(expected[guess["id"]], abs=1e-5)


def test_tokenize_needs_no_network(encoder: SavedBert) -> None:
    result = succeed("tokenize", encoder.directory, "the door", "--json")
    assert "[CLS]" in result.stdout


@needs_absence
@pytest.mark.parametrize(
    ("words", "package", "extra"),
    [
        (("finetune", "regression", "--model", "mini", *_TRAIN), "torch", "train"),
        (("pretrain", "tiny", "--out", "{o}"), "torch", "train"),
        (("explain", "mini", "a", "--out", "{o}.html"), "torch", "train"),
        (("evaluate", "mini", "--data", "{t}"), "torch", "train"),
        (("estimate", "tiny"), "torch", "train"),
        (("distil", "static", "mini", "--out", "{o}"), "torch", "train"),
        (("convert", "mini", "{o}"), "torch", "train"),
        (("lab", "list"), "torch", "train"),
        (("embed", "mini-sentences", "a", "--out", "{o}.parquet"), "pyarrow", "parquet"),
        (("prepare", "{t}", "--tokenizer", "mini", "--out", "{o}"), "sentencex", "train"),
    ],
)
def test_verbs_name_the_missing_extra(
    words: tuple[str, ...], package: str, extra: str, tmp_path: Path
) -> None:
    (tmp_path / "t.tsv").write_text("text\tlabel\na\tb\n")
    places = {"t": tmp_path / "t.tsv", "o": tmp_path / "out"}
    line = fail(*(word.format(**places) for word in words))
    assert line.startswith("error: ")
    assert line.endswith(f'Run: pip install "bertworks[{extra}]"')
    assert package in line or "PyTorch" in line


@needs_absence
def test_settings_that_need_pytorch_say_so(encoder: SavedBert, tmp_path: Path) -> None:
    words = ("embed", encoder.directory, "a", "--out", tmp_path / "v.npy")
    for more in (("--backend", "torch"), ("--device", "cuda")):
        line = fail(*words, *more)
        assert line.endswith('needs PyTorch. Run: pip install "bertworks[train]"'), line


@needs_absence
@pytest.mark.parametrize("name", ["Model", "Encoder", "finetune"])
def test_names_that_need_pytorch_say_so(name: str) -> None:
    with pytest.raises(bw.BertworksError, match=f"bertworks.{name} needs the package 'torch'"):
        getattr(bw, name)


def test_a_model_in_native_code_gives_vectors(encoder: SavedBert) -> None:
    model: Any = bw.load(encoder.directory, backend="native")
    expected = np.stack([*map(encoder.embed, TEXTS)])
    assert model.embed(list(TEXTS), precision="fp32") == pytest.approx(expected, abs=2e-5)
    unit = expected / np.linalg.norm(expected, axis=1)[:, None]
    actual = model.similarity(list(TEXTS), list(TEXTS), precision="fp32")
    assert actual == pytest.approx(unit @ unit.T, abs=2e-5)
