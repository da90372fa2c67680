"""`embed` and `features`, as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from scipy import sparse

import bertworks as bw
from bertworks.analysis.retrieval.store import VectorStore
from bertworks.errors import needs_pytorch_error
from bertworks.inference.native_network import NativeNetwork

from .conftest import CPU, World, bertworks, fails, succeeds


@pytest.mark.long
def test_embed_writes_vectors_of_texts(world: World, tmp_path: Path) -> None:
    out = tmp_path / "v.npy"
    words = ("embed", world.pretrained, "the door", "a river", *CPU, "--out", out)
    result = succeeds(*words, "--layers", "-2,-1", "--pooling", "cls", "--normalize")
    assert "texts       2" in result.stdout
    assert max(map(len, result.stdout.splitlines()[:-1])) <= 80
    expected = bw.load(world.pretrained, device="cpu").embed(
        ["the door", "a river"], layers=[-2, -1], pooling="cls", normalize=True
    )
    np.testing.assert_allclose(np.load(out), expected, atol=1e-6)
    again = bertworks(*words, "--layers", "-2,-1", "--pooling", "cls", "--normalize")
    assert "nothing to do" in again.stdout
    fails(
        *(*words, "--layers", "-2,-1", "--pooling", "max", "--normalize"),
        says="pooling='cls', not 'max'",
    )


@pytest.mark.long
def test_embed_reads_lines_and_tables(world: World, tmp_path: Path) -> None:
    rows = [json.loads(line)["text"] for line in world.dev.read_text().splitlines()]
    expected = bw.load(world.classifier, device="cpu").embed(rows)
    one, two = tmp_path / "one.parquet", tmp_path / "two.npy"
    succeeds("embed", world.classifier, "--data", world.dev, *CPU, "--out", one)
    table = pq.read_table(one)
    assert table["text"].to_pylist() == rows
    np.testing.assert_allclose(np.stack(table["vector"].to_pylist()), expected, atol=1e-6)
    words = ("embed", world.classifier, "-", *CPU, "--out", two)
    succeeds(*words, stdin="".join(f"{row}\n" for row in rows))
    np.testing.assert_allclose(np.load(two), expected, atol=1e-6)


LINES = "the door\na river\nopen\n"


@pytest.fixture
def without_native_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a processor that has no native code for bfloat16: a network of PyTorch's has."""

    def resolve(network: NativeNetwork, precision: str) -> str:
        if precision == "bf16":
            raise needs_pytorch_error("precision=bf16")
        return "fp32"

    monkeypatch.setattr(NativeNetwork, "resolve_precision", resolve)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:precision=bf16")
@pytest.mark.parametrize(
    "words",
    [
        ["predict", "CLASSIFIER", "-", "--json", "precision=bf16"],
        ["predict", "CLASSIFIER", "--data", "-", "--json", "header=no", "precision=bf16"],
        ["predict", "mini-sentences", "-", "--json", "labels=door,river", "precision=bf16"],
        ["embed", "mini-sentences", "-", "--out", "v.npy", "precision=bf16"],
        ["embed", "mini", "--data", "-", "--out", "v.npz", "header=no", "pooling=splade-max"],
        ["features", "mini", "-", "--out", "v.parquet", "precision=bf16"],
        ["index", "mini-sentences", "store", "--add", "-", "precision=bf16"],
    ],
    ids=lambda words: " ".join([words[0], *words[2:]]),
)
def test_no_line_of_standard_input_is_lost_where_native_code_ends(
    words: list[str],
    world: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    without_native_bf16: None,
) -> None:
    monkeypatch.chdir(tmp_path)
    model = [str(world.classifier) if word == "CLASSIFIER" else word for word in words]
    result = succeeds(*model, stdin=LINES)
    if "--json" in words:
        rows = [json.loads(line) for line in result.stdout.splitlines()]
        assert [next(iter(row.values())) for row in rows] == LINES.splitlines()
        return
    file = tmp_path / (words[words.index("--out") + 1] if "--out" in words else "store")
    if file.suffix == ".npy":
        assert len(np.load(file)) == 3
    elif file.suffix == ".npz":
        assert sparse.load_npz(file).shape[0] == 3
    elif file.suffix == ".parquet":
        assert len(set(pq.read_table(file)["row"].to_pylist())) == 3
    else:
        assert len(VectorStore.open(bw.load("mini-sentences"), file)) == 3


def test_truncated_texts_are_counted(world: World, tmp_path: Path) -> None:
    result = bertworks(
        *("embed", world.pretrained, "door " * 9, "door", *CPU, "--max-seq-length", 8),
        *("--out", tmp_path / "v.npy"),
    )
    assert "1 text too long" in result.stdout


def test_features_are_written_for_each_word(world: World, tmp_path: Path) -> None:
    out = tmp_path / "f.parquet"
    words = ("features", world.pretrained, "the doors", "a river", *CPU, "--out", out)
    result = succeeds(*words, "--unit", "words", "--pieces", "mean", "--layers", "-2,-1")
    assert "width       32" in result.stdout
    table = pq.read_table(out)
    assert table["word"].to_pylist() == ["the", "doors", "a", "river"]
    assert table["row"].to_pylist() == [0, 0, 1, 1]
    other = bertworks(*words)
    assert "layers=[-2, -1], not [-1]" in other.stderr
    assert "are written as Parquet" in bertworks(*words[:-1], tmp_path / "f.npy").stderr


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (["text", "--out", "v.txt"], 1, "unknown file format"),
        (["text", "--out", "v.npy", "--layers", "last"], 1, "layers.0='last'"),
        (["text", "--out", "v.npy", "--layers", "7"], 1, "there is no layer 7"),
        (["text", "--out", "v.npy", "--pooling", "avg"], 1, "pooling='avg'"),
        (["--out", "v.npy"], 2, "either texts or --data"),
        (["text", "--data", "f.txt", "--out", "v.npy"], 2, "either texts or --data"),
        (["--data", "nowhere.txt", "--out", "v.npy"], 1, "nowhere.txt: no such file"),
        ([" ", "--out", "v.npy"], 1, "empty text"),
        (["text", "--out", "v.npy", "--max-seq-length", "100"], 1, "is more than the 64 tokens"),
    ],
)
def test_invalid_arguments_are_refused(
    world: World, tmp_path: Path, monkeypatch, words, status, says
) -> None:
    monkeypatch.chdir(tmp_path)
    fails("embed", world.pretrained, *words, says=says, status=status)
    assert not list(tmp_path.iterdir())
