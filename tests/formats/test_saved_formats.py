"""The files that released versions wrote (`tests/formats/write.py`) are read by this one."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bertworks as bw
from bertworks.analysis.retrieval.store import VectorStore
from bertworks.runs.run_directory import RunDirectory, read_run
from tests.formats.write import FOLDER, IDS, MODEL, SENTENCES, finetune

VERSIONS = sorted(path.name for path in FOLDER.iterdir() if path.name[0].isdigit())


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of a version's files."""
    return Path(shutil.copytree(FOLDER / request.param, tmp_path / request.param))


@pytest.fixture
def model(version: Path) -> bw.Model:
    loaded_model = bw.load(version / "run", device="cpu")
    assert isinstance(loaded_model, bw.Model)
    return loaded_model


@pytest.fixture
def metrics(version: Path) -> dict[str, float]:
    tree: dict[str, float] = json.loads((version / "expected.json").read_text())
    return tree


def test_version_has_files() -> None:
    assert bw.__version__ in VERSIONS, "run python -m tests.formats.write"


def test_corpus_has_the_documents_of_its_text(version: Path) -> None:
    corpus = bw.Corpus.open(version / "corpus", verify=True)
    tokenizer, expected = corpus.load_tokenizer(), bw.Tokenizer.load(MODEL)
    assert corpus.manifest.documents == 6
    ids, offsets = corpus.document(5)
    sentences = [tokenizer.decode(ids[a:b]) for a, b in itertools.pairwise(offsets)]
    assert sentences == [expected.decode(row) for row in expected.piece_ids(list(SENTENCES))]


def test_finished_run_has_its_results(version: Path, metrics: dict[str, float]) -> None:
    run = read_run(version / "run")
    outcome = run.outcome()
    assert outcome is not None
    assert outcome["metrics"] == pytest.approx(metrics)  # as written
    assert [line["step"] for line in run.lines() if line["kind"] == "eval"] == [4, 8]
    assert run.settings()["batch_size"] == 4
    assert {line["event"] for line in run.sessions()} >= {"start", "stop"}
    assert bw.load(version / "run", device="cpu").labels == ("no", "yes")


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:the run resumes with:UserWarning")  # another processor
def test_stopped_run_resumes_from_its_checkpoint(version: Path, metrics: dict[str, float]) -> None:
    result = finetune(version / "stopped-run")
    assert result.metrics == pytest.approx(metrics, abs=1e-3)
    starts = [line["step"] for line in result.run.sessions() if line["event"] == "start"]
    assert starts[0] == 0 and starts[-1] >= 3


def test_vectors_are_complete_and_the_models(version: Path, model: bw.Model) -> None:
    file = version / "vectors.npy"
    vectors, time = np.load(file), file.stat().st_mtime_ns
    np.testing.assert_allclose(model.embed(SENTENCES, precision="fp32"), vectors, atol=1e-5)
    model.embed_to(file, list(SENTENCES), precision="fp32")
    assert file.stat().st_mtime_ns == time, "they are finished"


def test_predictions_are_complete_and_the_models(version: Path, model: bw.Model) -> None:
    file = version / "predictions.tsv"
    content = file.read_bytes()
    model.predict_to(file, version / "rows.tsv", precision="fp32")
    assert file.read_bytes() == content
    header, *rows = (line.split("\t") for line in content.decode().splitlines())
    column = header.index("prediction.probabilities.yes")
    expected = [one["probabilities"]["yes"] for one in model.predict(SENTENCES, precision="fp32")]
    assert [float(row[column]) for row in rows] == pytest.approx(expected, abs=1e-4)


def test_8_bit_weights_are_near_those_of_32_bits(version: Path, model: bw.Model) -> None:
    int8_vectors: Any = bw.load(version / "int8", device="cpu").embed(SENTENCES, precision="fp32")
    fp32_vectors: Any = model.embed(SENTENCES, precision="fp32")
    norms = np.linalg.norm(fp32_vectors, axis=1) * np.linalg.norm(int8_vectors, axis=1)
    assert ((fp32_vectors * int8_vectors).sum(1) / norms).min() > 0.99


def test_store_has_its_texts(version: Path, model: bw.Model) -> None:
    store = VectorStore.open(model, version / "store", create=False, precision="fp32")
    assert sorted(store.ids) == sorted(IDS)
    assert store.texts(IDS) == dict(zip(IDS, SENTENCES, strict=True))
    assert store.add(SENTENCES, IDS) == 0


def test_another_format_is_refused_by_name(version: Path) -> None:
    file = version / "run" / "settings.yaml"
    file.write_text(file.read_text().replace("format_version: ", "format_version: 9"))
    with pytest.raises(bw.DataError, match=r"settings\.yaml.*format"):
        RunDirectory(version / "run").settings()
