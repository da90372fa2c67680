"""Hostile files: no code is run, no path leaves its directory, memory is bounded."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

import bertworks as bw
from bertworks.data.documents import read_documents
from bertworks.data.tables import read_rows
from bertworks.errors import BertworksError, CheckpointError, DataError, SettingsError
from bertworks.inference.merging import merge
from bertworks.runs.run_files import read_settings
from bertworks.settings.yaml_values import load_yaml
from bertworks.training.recipe import read_recipe
from bertworks.utils.json_files import read_json
from tests.checkpoints.test_store import tiny


class Harm:
    """What runs a command when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self._file}",)


@pytest.fixture(scope="module")
def saved_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "model"
    tiny("classification").save(path)
    return path


@pytest.fixture
def model(saved_model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved_model, tmp_path / "model"))


def zip_of(value: object) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def old(value: object) -> bytes:
    file = io.BytesIO()
    torch.save(value, file, _use_new_zipfile_serialization=False)
    return file.getvalue()


def script(value: object) -> bytes:
    """As TorchScript's archives, whose pickles are called otherwise."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(value))
        archive.writestr("archive/constants.pkl", pickle.dumps(value))
        archive.writestr("archive/version", "3")
    return file.getvalue()


def array(value: object) -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([value], dtype=object), allow_pickle=True)
    return file.getvalue()


@pytest.mark.parametrize("is_nested", [False, True])
@pytest.mark.parametrize("serialize", [zip_of, old, pickle.dumps, script])
@pytest.mark.parametrize("name", ["pytorch_model.bin", "a.bin"])
@pytest.mark.filterwarnings("ignore")  # of PyTorch, about old files
def test_a_pickle_is_not_run(
    model: Path, tmp_path: Path, serialize: Callable[[object], bytes], is_nested: bool, name: str
) -> None:
    weights: dict[str, Any] = dict(load_file(model / "model.safetensors"))
    (model / "model.safetensors").unlink()
    harm = Harm(tmp_path / "ran")
    (model / name).write_bytes(serialize({**weights, "x": harm} if is_nested else harm))
    if name == "a.bin":
        index = {"weight_map": dict.fromkeys(weights, name)}
        (model / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=name):
        bw.load(model, device="cpu")
    assert not (tmp_path / "ran").exists()


def test_a_pickle_in_any_other_file_is_not_run(model: Path, tmp_path: Path) -> None:
    harm = Harm(tmp_path / "ran")
    for file in sorted(path for path in model.rglob("*") if path.is_file()):
        content = file.read_bytes()
        for serialize in (pickle.dumps, zip_of, array):
            file.write_bytes(serialize(harm))
            with suppress(BertworksError):  # not every file is needed
                bw.load(model, device="cpu")
        file.write_bytes(content)
    for name in ("a.parquet", "a.tsv", "a.jsonl", "a.txt.gz", "a.conll"):
        for serialize in (pickle.dumps, zip_of, array):
            (tmp_path / name).write_bytes(serialize(harm))
            with pytest.raises(BertworksError):
                list(read_rows(tmp_path / name))
    text = f"!!python/object/apply:os.system ['touch {tmp_path / 'ran'}']"
    for tag in (text, f"steps: {text}"):
        (tmp_path / "settings.yaml").write_text(tag)
        with pytest.raises(SettingsError, match="YAML"):
            read_recipe(tmp_path / "settings.yaml", [])
        with pytest.raises(DataError, match="damaged"):
            read_settings(tmp_path / "settings.yaml")
    for number in (1, 2):
        (tmp_path / f"{number}.npy").write_bytes(array(harm))
        manifest = {"provenance": {}, "width": 1, "complete": True, "part": f"{number}/2"}
        manifest["size"] = len(array(harm))
        (tmp_path / f"{number}.npy.json").write_text(json.dumps(manifest))
    with suppress(BertworksError):
        merge([tmp_path / "1.npy", tmp_path / "2.npy"], tmp_path / "out.npy")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("path", ["../outside", "/etc", "1_Pooling/../../outside"])
def test_modules_lie_in_their_directory(model: Path, tmp_path: Path, path: str) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "config.json").write_text('{"pooling_mode_cls_token": true}')
    kinds = ("Transformer", ""), ("Pooling", path)
    modules = [{"path": at, "type": f"models.{kind}"} for kind, at in kinds]
    (model / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(CheckpointError, match=r"modules\.json: names a path outside"):
        bw.load(model, device="cpu")


def test_weights_lie_in_their_directory(model: Path, tmp_path: Path) -> None:
    names = load_file(model / "model.safetensors").keys()
    (model / "model.safetensors").rename(tmp_path / "outside.safetensors")
    for path in ("../outside.safetensors", str(tmp_path / "outside.safetensors")):
        index = {"weight_map": dict.fromkeys(names, path)}
        (model / "model.safetensors.index.json").write_text(json.dumps(index))
        with pytest.raises(CheckpointError, match=r"'outside\.safetensors', which is missing"):
            bw.load(model, device="cpu")


@pytest.mark.parametrize("name", ["../outside.arrow", "/outside.arrow", "..", "a\\b", ".", "a/b"])
def test_shards_lie_in_their_directory(tmp_path: Path, name: str) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("a b\n\na c\n")
    bw.prepare([corpus], tokenizer=tiny().tokenizer, out=tmp_path / "data")
    manifest = read_json(tmp_path / "data" / "manifest.json", DataError)
    manifest["shards"][0]["file"] = name
    (tmp_path / "data" / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match=r"manifest\.json: damaged \(shards.0.file"):
        bw.Corpus.open(tmp_path / "data")


BOMB = "\n".join(
    ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    + [f"a{at}: &a{at} [{', '.join([f'*a{at - 1}'] * 9)}]" for at in range(1, 10)]
)


def test_references_in_yaml_are_bounded(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(BOMB)
    with pytest.raises(SettingsError, match=r"settings\.yaml:\d+: not valid YAML \(it has more"):
        read_recipe(file, [])
    with pytest.raises(DataError, match="more than 100,000 values"):
        read_settings(file)
    assert load_yaml("a: &a [1, 2]\nb: [*a, *a]") == {"a": [1, 2], "b": [[1, 2], [1, 2]]}


def resident() -> int:
    """The most memory that this process has had, in kB."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0])


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux tells what is resident")
@pytest.mark.parametrize("name", ["a.txt.gz", "a.jsonl.zst", "a.tsv.gz", "a.json.gz", "a.parquet"])
def test_archives_that_expand_without_end_need_bounded_memory(tmp_path: Path, name: str) -> None:
    """Some MB that would be 2 GB."""
    size, file = 2 << 30, tmp_path / name
    block = b" " * (1 << 20)
    if name.endswith(".gz"):
        with gzip.open(file, "wb", 1) as out:
            for _ in range(size >> 20):
                out.write(block)
    elif name.endswith(".zst"):
        with pa.output_stream(str(file), compression="zstd") as stream:
            for _ in range(size >> 20):
                stream.write(block)
    else:
        texts = pa.DictionaryArray.from_arrays(
            pa.array(np.zeros(size >> 20, np.int32)), pa.array(["x" * (1 << 20)])
        )
        pq.write_table(pa.table({"text": texts}), file)
    assert file.stat().st_size < 50 << 20
    resident_before = resident()
    for read in (read_rows, lambda path: read_documents([str(path)])):
        with suppress(BertworksError):  # a line is too long; of Parquet, each text is read
            for _ in read(file):
                pass
    assert resident() - resident_before < 600 << 10
