"""Damaged and invented files: one line names the fault, and little memory is allocated.

Each case is drawn from a seed. Whatever the damage, a model is loaded or a `BertworksError` of one
line is raised; the program's memory stays where it was.
"""

from __future__ import annotations

import copy
import json
import math
import random
import shutil
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import bertworks as bw
from bertworks.checkpoints.bundle import masked_checksum, read_bundle
from bertworks.checkpoints.store import FORMAT_VERSION
from bertworks.convert.export import write_tensorflow
from bertworks.errors import BertworksError, CheckpointError
from bertworks.utils.protobuf import bytes_field, fields, number_field, read_varint, varint
from tests.checkpoints import journeys
from tests.checkpoints.oracles import CONFIG_CLASSES
from tests.checkpoints.test_store import tiny

FAMILIES = list(CONFIG_CLASSES)
ODD: list[Any] = [
    *(None, True, False, -1, 0, 1, 7, 10**9, 2**63, 10**30, 1.5, math.nan, math.inf),
    *("", "x", "gelu", "\ud800", "a\x00b", [], [1], ["x"], [[]], {}, {"a": 1}, {"x": []}),
]
each_seed = pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 8))]
)
KEYS = [
    *("architectures", "classifier_dropout", "embedding_size", "id2label", "is_decoder"),
    *("layer_types", "model_type", "n_embd", "num_hidden_groups", "problem_type"),
    *("rope_parameters", "task_type_vocab_size", "use_task_id", "classifier_pooling"),
]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of each family, of ours and of TensorFlow's layout."""
    root = tmp_path_factory.mktemp("models")
    for family in FAMILIES:
        journeys.saved_by_them(family, "masked-lm", root / family)
    tiny().save(root / "pretraining")
    tiny("classification").save(root / "classification")
    write_tensorflow(tiny(), root / "tensorflow")
    return root


def edit(directory: Path, **values: Any) -> None:
    """Change entries of a model's `config.json`."""
    file = directory / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def use(directory: Path) -> None:
    """Load a model and have it compute; the error, if there is one, is one line for people."""
    message = "nothing"
    try:
        bw.load(directory, device="cpu").embed(["a b", "c"])
    except BertworksError as error:
        message = str(error)
    assert message
    assert "\n" not in message
    assert len(message) < 1500


def places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all parts of a JSON value."""
    if path:
        yield path
    if isinstance(tree, dict | list):
        parts = tree.items() if isinstance(tree, dict) else enumerate(tree[:5])
        for key, part in parts:
            yield from places(part, (*path, key))


def make_odd(rng: random.Random, tree: Any) -> None:
    """Replace a part of a JSON value, or leave it out."""
    *path, last = rng.choice(list(places(tree)))
    for key in path:
        tree = tree[key]
    if isinstance(tree, dict) and rng.random() < 0.15:
        del tree[last]
    else:
        tree[last] = copy.deepcopy(rng.choice(ODD))


# Without `model_type` SqueezeBERT's names look like a BERT's in a wrapper, and layers are missing.
@pytest.mark.filterwarnings("ignore:.*are read without:bertworks.errors.BertworksWarning")
@pytest.mark.long
@each_seed
@pytest.mark.parametrize(
    ("name", "file"),
    [
        *((family, "config.json") for family in FAMILIES),
        *((name, "bertworks.json") for name in ("pretraining", "classification")),
        ("classification", "tokenizer.json"),
        ("classification", "tokenizer_config.json"),
        ("tensorflow", "bert_config.json"),
    ],
)
def test_odd_values_in_json_are_refused_or_read(
    models: Path, tmp_path: Path, name: str, file: str, seed: int
) -> None:
    rng = random.Random(f"{name} {file} {seed}")
    shutil.copytree(models / name, tmp_path / "m")
    whole = (tmp_path / "m" / file).read_text()
    # All families' settings are read by the same code: fewer draws for each of so many.
    for _ in range(6 if name in FAMILIES else 12):
        tree = json.loads(whole)
        if file == "config.json" and rng.random() < 0.3:
            tree[rng.choice(KEYS)] = rng.choice(ODD)
        make_odd(rng, tree)
        (tmp_path / "m" / file).write_text(json.dumps(tree))
        use(tmp_path / "m")


@pytest.mark.parametrize("depth", [150, 900, 100_000])
@pytest.mark.parametrize(
    "file", ["config.json", "bertworks.json", "tokenizer.json", "tokenizer_config.json"]
)
def test_json_that_is_nested_too_deeply(
    models: Path, tmp_path: Path, file: str, depth: int
) -> None:
    shutil.copytree(models / "classification", tmp_path / "m")
    (tmp_path / "m" / file).write_text('{"a": ' + "[" * depth + "]" * depth + "}")
    with pytest.raises(BertworksError, match=f"{file}.*nested more than 100 levels"):
        bw.load(tmp_path / "m", device="cpu")


def resident() -> int:
    """The most memory that this process has had, in kB."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0])


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux tells what is resident")
@pytest.mark.parametrize("family", FAMILIES)
def test_a_geometry_beyond_measure_is_refused_at_once(
    models: Path, tmp_path: Path, family: str
) -> None:
    raw = json.loads((models / family / "config.json").read_text())
    sizes = [
        *("hidden_size", "num_hidden_layers", "intermediate_size", "vocab_size"),
        *("max_position_embeddings", "type_vocab_size", "embedding_size"),
        *("task_type_vocab_size", "dim", "n_layers", "hidden_dim", "n_embd", "n_layer"),
        "n_positions",
    ]
    too_large = (
        r"not \(|is missing|less than or equal|(embedding_size|head_dim)=\d+ is not supported"
    )
    # Rotated positions take no memory, and GPT's inner width is always four times the outer.
    free = {"modernbert": "max_position_embeddings", "openai-gpt": "intermediate_size"}
    for size in (key for key in sizes if raw.get(key) and key != free.get(family)):
        for number in (10**9, 10**18):
            shutil.copytree(models / family, tmp_path / "m")
            edit(tmp_path / "m", **{size: number})
            initial_memory, start = resident(), time.perf_counter()
            with pytest.raises(CheckpointError, match=too_large):
                bw.load(tmp_path / "m", device="cpu")
            assert time.perf_counter() - start < 5
            assert resident() - initial_memory < 50_000, size
            shutil.rmtree(tmp_path / "m")


@pytest.mark.parametrize("value", [10**9, 10**18])
def test_layers_that_share_their_weights_are_not_without_end(
    models: Path, tmp_path: Path, value: int
) -> None:
    """ALBERT's tensors do not show how many layers there are."""
    shutil.copytree(models / "albert", tmp_path / "m")
    edit(tmp_path / "m", num_hidden_layers=value)
    with pytest.raises(CheckpointError, match="num_hidden_layers"):
        bw.load(tmp_path / "m", device="cpu")


def test_values_of_config_json_have_their_types(models: Path, tmp_path: Path) -> None:
    for values, says in (
        ({"model_type": ["bert"]}, "model_type"),
        ({"model_type": 5}, "model_type"),
        ({"architectures": 5}, "architectures"),
        ({"id2label": ["a"]}, "id2label"),
        ({"problem_type": {}}, "problem_type"),
        ({"classifier_dropout": "x"}, "classifier_dropout"),
        ({"hidden_act": ["gelu"]}, "hidden_act"),
        ({"layer_norm_eps": math.nan}, "layer_norm_eps"),
    ):
        shutil.copytree(models / "bert", tmp_path / "m")
        edit(tmp_path / "m", **values)
        with pytest.raises(CheckpointError, match=rf"config\.json: .*{says}"):
            bw.load(tmp_path / "m", device="cpu")
        shutil.rmtree(tmp_path / "m")


def test_a_model_in_another_format_is_refused(models: Path, tmp_path: Path) -> None:
    shutil.copytree(models / "classification", tmp_path / "m")
    file = tmp_path / "m" / "bertworks.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "format_version": 1}))
    with pytest.raises(CheckpointError) as error:
        bw.load(tmp_path / "m", device="cpu")
    assert str(error.value) == (
        f"{file}: written in another format (1, not {FORMAT_VERSION}). "
        "Train the model again, or remove this file to use the weights without the task."
    )
    file.unlink()
    assert bw.load(tmp_path / "m", device="cpu").task is not None  # that of the published head


def test_bertworks_json_is_checked(models: Path, tmp_path: Path) -> None:
    for values, says in (
        ({"task": None}, "task"),
        ({"task": "no such"}, "the task 'no such' is not one of this package"),
        ({"task_settings": []}, "task_settings"),
        ({"task_settings": {}}, "instances"),
    ):
        shutil.copytree(models / "pretraining", tmp_path / "m")
        file = tmp_path / "m" / "bertworks.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **values}))
        with pytest.raises(CheckpointError, match=rf"bertworks\.json: .*{says}"):
            bw.load(tmp_path / "m", device="cpu")
        shutil.rmtree(tmp_path / "m")


KINDS = {
    "half": torch.float16,
    "double": torch.float64,
    "eight": torch.float8_e4m3fn,
}


def other(rng: random.Random, tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of another shape or type."""
    shapes = {
        "scalar": lambda: torch.tensor(1.0),
        "nothing": lambda: torch.empty(0),
        "flat": tensor.flatten,
        "more": tensor[None].clone,
        "longer": lambda: torch.cat([tensor, tensor]),
        "whole": tensor.long,
        "complex": lambda: tensor.to(torch.complex64),
        **{name: (lambda kind=kind: tensor.to(kind)) for name, kind in KINDS.items()},
    }
    return shapes[rng.choice(list(shapes))]()


@pytest.mark.long
@each_seed
@pytest.mark.parametrize("name", ["albert", "openai-gpt", "classification"])
def test_tensors_of_other_shapes_and_types_are_refused_or_read(
    models: Path, tmp_path: Path, name: str, seed: int
) -> None:
    rng = random.Random(f"{name} {seed}")
    shutil.copytree(models / name, tmp_path / "m")
    file = tmp_path / "m" / "model.safetensors"
    whole = {key: value.clone() for key, value in load_file(file).items()}
    for _ in range(12):
        key = rng.choice(list(whole))
        save_file({**whole, key: other(rng, whole[key])}, file)
        use(tmp_path / "m")


@pytest.mark.parametrize("part", ["query", "key"])
@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda t: torch.tensor(1.0), r"has shape \(\), not \(48, 48\)"),
        (lambda t: t.flatten(), r"has shape \(2304,\), not \(48, 48\)"),
        (lambda t: t.long(), "is of type int64"),
    ],
)
def test_parts_of_a_matrix_are_looked_at_one_by_one(
    models: Path, tmp_path: Path, part: str, make: Any, says: str
) -> None:
    shutil.copytree(models / "pretraining", tmp_path / "m")
    file = tmp_path / "m" / "model.safetensors"
    tensors = {key: value.clone() for key, value in load_file(file).items()}
    name = f"bert.encoder.layer.1.attention.self.{part}.weight"
    save_file({**tensors, name: make(tensors[name])}, file)
    with pytest.raises(CheckpointError, match=f"{part}.weight' {says}"):
        bw.load(tmp_path / "m", device="cpu")


def test_parts_of_several_types_are_put_together(models: Path, tmp_path: Path) -> None:
    shutil.copytree(models / "pretraining", tmp_path / "m")
    file = tmp_path / "m" / "model.safetensors"
    tensors = {key: value.clone() for key, value in load_file(file).items()}
    for part, kind in (("query", torch.float8_e4m3fn), ("key", torch.float16)):
        name = f"bert.encoder.layer.0.attention.self.{part}.weight"
        tensors[name] = tensors[name].to(kind)
    save_file(tensors, file)
    actual = (
        bw.load(tmp_path / "m", device="cpu").encoder.layers[0].attention.query_key_value.weight
    )
    for number, part in enumerate(("query", "key", "value")):
        expected = tensors[f"bert.encoder.layer.0.attention.self.{part}.weight"].float()
        assert torch.equal(actual[48 * number : 48 * (number + 1)], expected)


@pytest.mark.parametrize(
    "make",
    [
        lambda t: torch.zeros(1).expand(t.shape),
        lambda t: torch.zeros(1).expand(10**9, 10**9),
        lambda t: t.to_sparse(),
        lambda t: torch.quantize_per_tensor(t, 0.1, 0, torch.qint8),
        lambda t: torch.empty(t.shape, device="meta"),
    ],
)
@pytest.mark.parametrize("is_zip", [True, False])
@pytest.mark.filterwarnings("ignore")  # of what damage leaves, in any words
def test_a_pickles_tensors_are_stored_whole(
    models: Path, tmp_path: Path, make: Any, is_zip: bool
) -> None:
    shutil.copytree(models / "pretraining", tmp_path / "m")
    file = tmp_path / "m" / "model.safetensors"
    tensors = {key: value.clone() for key, value in load_file(file).items()}
    file.unlink()
    name = "bert.pooler.dense.weight"
    tensors[name] = make(tensors[name])
    file = tmp_path / "m" / "pytorch_model.bin"
    torch.save(tensors, file, _use_new_zipfile_serialization=is_zip)
    with pytest.raises(CheckpointError, match=r"pooler\.dense\.weight' is not stored as plain"):
        bw.load(tmp_path / "m", device="cpu")


def flip_bytes(rng: random.Random, content: bytes, end: int) -> bytes:
    """Bytes, of which some up to a place are others."""
    content = bytearray(content)
    for _ in range(rng.choice([1, 2, 5, 20])):
        content[rng.randrange(min(end, len(content)))] = rng.randrange(256)
    return bytes(content[: rng.randrange(1, end)] if rng.random() < 0.1 else content)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("name", "file", "end"),
    [
        ("pretraining", "model.safetensors", 4000),
        ("pretraining", "pytorch_model.bin", 4000),
        ("tensorflow", "bert_model.ckpt.index", 10**9),
    ],
)
@pytest.mark.filterwarnings("ignore")  # of what damage leaves, in any words
def test_flipped_bits_are_refused_or_read(
    models: Path, tmp_path: Path, name: str, file: str, end: int, seed: int
) -> None:
    rng = random.Random(f"{file} {seed}")
    shutil.copytree(models / name, tmp_path / "m")
    target = tmp_path / "m" / file
    if file.endswith(".bin"):
        weights = tmp_path / "m" / "model.safetensors"
        torch.save(dict(load_file(weights)), target, _use_new_zipfile_serialization=seed % 2 == 0)
        weights.unlink()
    whole = target.read_bytes()
    for _ in range(20):
        target.write_bytes(flip_bytes(rng, whole, min(end, len(whole))))
        use(tmp_path / "m")


def trailer(block: bytes) -> bytes:
    """What follows a block: that it is not compressed, and its checksum."""
    return b"\0" + struct.pack("<I", masked_checksum(block + b"\0"))


def bundle_index(*rows: tuple[bytes, bytes], shards: int = 1) -> bytes:
    """An index of TensorFlow's, of one block."""
    entries = ((b"", number_field(1, shards)), *rows)
    block = b"".join(
        varint(0) + varint(len(key)) + varint(len(value)) + key + value for key, value in entries
    )
    block += struct.pack("<2I", 0, 1)
    empty = struct.pack("<2I", 0, 1)
    table, handles = b"", []
    for part in (block, empty):
        handles.append(varint(len(table)) + varint(len(part)))
        table += part + trailer(part)
    key = rows[-1][0] if rows else b""
    index = varint(0) + varint(len(key)) + varint(len(handles[0])) + key + handles[0] + empty
    handles.append(varint(len(table)) + varint(len(index)))
    table += index + trailer(index)
    return (
        table + (handles[1] + handles[2]).ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57)
    )


def test_a_bundle_of_more_files_than_there_are(tmp_path: Path) -> None:
    (tmp_path / "b.index").write_bytes(bundle_index(shards=10**12))
    assert read_bundle(tmp_path / "b") == {}  # nothing lies in any of them
    row = number_field(1, 1) + number_field(3, 10**11)
    (tmp_path / "b.index").write_bytes(bundle_index((b"x", row), shards=10**12))
    with pytest.raises(CheckpointError, match="no such file"):
        read_bundle(tmp_path / "b")


@pytest.mark.parametrize(
    ("name", "row", "says"),
    [
        (b"x" * 5000, number_field(1, 1), "a name is too long"),
        (
            b"x",
            number_field(1, 1) + bytes_field(2, 2 * bytes_field(2, number_field(1, 2**62))),
            "a tensor is too large",
        ),
        (b"x", bytes_field(1, b"y"), "field 1 is not a number"),
    ],
)
def test_entries_that_no_bundle_has(tmp_path: Path, name: bytes, row: bytes, says: str) -> None:
    (tmp_path / "b.index").write_bytes(bundle_index((name, row)))
    with pytest.raises(CheckpointError, match=says):
        read_bundle(tmp_path / "b")


def test_a_number_without_end_is_not_read() -> None:
    with pytest.raises(ValueError, match="too long"):
        read_varint(b"\x80" * 10**7, 0)
    assert read_varint(varint(2**64 - 1), 0) == (2**64 - 1, 10)
    assert list(fields(number_field(1, 2**63))) == [(1, 2**63)]
