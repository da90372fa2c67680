"""A model without PyTorch: the vectors of the frozen form, and errors that say why not."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.native_precisions import PRECISIONS, SHORTEST_FLOAT, needs_kernels

import bertworks as bw
from bertworks.checkpoints.sentence_settings import SentenceSettings
from bertworks.errors import CheckpointError, NeedsPyTorchError
from bertworks.inference import native_network, native_weights
from bertworks.inference.native_model import NativeModel
from bertworks.inference.settings import FeatureSettings
from bertworks.nn.distance_buckets import buckets_of
from bertworks.nn.part_settings import ScoreBiasSettings
from bertworks.nn.score_bias import BucketBias
from bertworks.nn.vector_module_settings import DenseSettings, DropoutSettings, NormalizeSettings
from bertworks.nn.vector_modules import VectorModules

pytestmark = needs_kernels

TEXTS = ["a b c", "cab", "b", "abc cab " * 4, "c a"]
_SCRIPT = """
import importlib.abc, sys
class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "pyarrow"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
import numpy as np
import bertworks as bw
model = bw.load(sys.argv[1])
precisions = sys.argv.pop().split()
np.save(sys.argv[2], np.stack([model.embed(sys.argv[3:], precision=p) for p in precisions]))
try:
    model.generate("a")
except bw.BertworksError as error:
    print(error)
"""


@pytest.fixture(autouse=True)
def _native_code_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The network's frozen form, too, as on a processor with fast bfloat16 but without AMX."""
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    monkeypatch.setattr("bertworks.nn.device.is_fast_at_bfloat16", lambda _: "bf16" in PRECISIONS)
    monkeypatch.setattr(
        "bertworks.inference.native_network.is_fast_at_bfloat16", lambda: "bf16" in PRECISIONS
    )


def make_model(**values: object) -> bw.Model:
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c", "##a", "##b", "##c"]
    config = bw.EncoderConfig(
        **{
            "vocab_size": 11,
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 96,
            "max_position_embeddings": 40,
            "initializer_range": 0.2,
            **values,
        }
    )
    model = bw.Model.fresh(config, bw.Tokenizer.from_vocabulary(pieces))
    generator = torch.Generator().manual_seed(1)
    for name, weight in model.network.named_parameters():
        if name.endswith("bias"):
            weight.data.normal_(0, 0.1, generator=generator)
    model.sentence = SentenceSettings(pooling="mean", normalize=True)
    return model


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[bw.Model, NativeModel]:
    """A model with a pooler, with PyTorch and without."""
    directory = tmp_path_factory.mktemp("models") / "model"
    make_model(family="bertworks", keep_pooler=True).save(directory)
    return bw.load(directory, backend="torch"), bw.load(directory, backend="native")


@pytest.mark.long
@pytest.mark.parametrize("weights", ["fp32", "bf16", "int8", "calibrated"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_vectors_have_the_bits_of_the_network(weights: str, precision: str, tmp_path: Path) -> None:
    model = make_model(hidden_act="gelu_new" if weights == "fp32" else "gelu")
    if weights == "calibrated":
        model.calibrate(TEXTS)
    model.save(tmp_path / "model", precision="int8" if weights == "calibrated" else weights)
    network, native = (bw.load(tmp_path / "model", backend=one) for one in ("torch", "native"))
    assert isinstance(native, NativeModel)
    expected = network.embed(TEXTS, precision=precision)
    assert np.array_equal(native.embed(TEXTS, precision=precision), expected)
    assert np.array_equal(native.embed(TEXTS[3], precision=precision), expected[3:4])
    one, other = (one.similarity(TEXTS[0], TEXTS, precision=precision) for one in (network, native))
    assert np.array_equal(one, other)
    one, other = (one.embedder(precision=precision).provenance() for one in (network, native))
    assert one == other


POOLINGS = ("mean", "cls", "max", "sep", "mean+max", "mean-sqrt", "weighted-mean")
LAYERS: tuple[dict[str, Any], ...] = (
    {},
    {"layers": [0, -1]},
    {"layers": [-2, 1, -2]},
    {"layers": [0, -1], "combine": "sum"},
    {"layers": [0, 1, -1], "combine": "mean"},
    {"layers": [0, -1], "combine": "mean", "layer_weights": [0.3, 0.7]},
)


@pytest.mark.parametrize(
    ("pooling", "layers"), [("pooler", {}), *product(POOLINGS, LAYERS)], ids=str
)
def test_vectors_of_all_settings_have_the_bits_of_the_network(
    pooling: str, layers: dict[str, Any], both: tuple[bw.Model, NativeModel]
) -> None:
    network, native = both
    prompt = {"prompt": "a b", "include_prompt": False}
    for options in ({},) if pooling == "pooler" else ({}, prompt):
        for precision in PRECISIONS:
            settings = {"pooling": pooling, "precision": precision, **layers, **options}
            expected = network.embed(TEXTS, **settings)
            assert np.array_equal(native.embed(TEXTS, **settings), expected)
            assert np.array_equal(native.embed(TEXTS[3], **settings), expected[3:4])


def test_token_states_have_the_bits_of_the_network(both: tuple[bw.Model, NativeModel]) -> None:
    settings = FeatureSettings(layers=[0, -1], combine="mean", precision=SHORTEST_FLOAT)
    expected, actual = (one._token_features(settings).embed(TEXTS) for one in both)
    assert np.array_equal(actual.vectors, expected.vectors)


def test_modules_after_pooling_equal_the_networks(tmp_path: Path) -> None:
    model = make_model()
    dense = DenseSettings(in_features=64, out_features=24)
    torch.manual_seed(3)
    model.modules = VectorModules(
        [
            dense,
            NormalizeSettings(),
            dense.with_values(in_features=24, activation="identity", bias=False),
        ]
    ).eval()
    model.save(tmp_path / "model")
    network, native = (bw.load(tmp_path / "model", backend=one) for one in ("torch", "native"))
    actual, expected = (one.embed(TEXTS, precision=SHORTEST_FLOAT) for one in (native, network))
    assert actual.shape == (5, 24)
    assert np.array_equal(actual, expected)
    assert np.array_equal(native.embed(TEXTS[:1], precision=SHORTEST_FLOAT), actual[:1])
    assert native.embedder().fingerprint() == network.embedder().fingerprint()
    assert native.fingerprint() == network.fingerprint()
    network.modules.steps[0].linear.weight.data[0, 0] += 1
    assert native.fingerprint() != network.fingerprint()
    with network.modules.steps[0].register_forward_hook(lambda *_: torch.ones(5, 24)):
        hooked = network.embed(TEXTS, precision=SHORTEST_FLOAT)
    assert hooked == pytest.approx(hooked[:1].repeat(5, 0), abs=1e-6), "PyTorch computes them"
    (directory,) = (tmp_path / "model").glob("2_Dense")
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")
    with pytest.raises(NeedsPyTorchError, match=r"a module without model\.safetensors"):
        bw.load(tmp_path / "model", backend="native")


@pytest.mark.long
@pytest.mark.parametrize(
    "values",
    [
        {"family": "distilbert", "type_vocab_size": 0, "classifier": "relu"},
        {"family": "bertworks", "type_vocab_size": 1, "position_offset": 2},
        {
            **{"family": "mpnet", "type_vocab_size": 0, "position_offset": 2, "classifier": "tanh"},
            **{"mlm_act": "gelu", "score_bias": {"kind": "buckets"}},
        },
        {"family": "bertworks", "score_bias": {"kind": "alibi"}},
        {
            **{"family": "modernbert", "type_vocab_size": 0, "norm_first": True, "gated": True},
            **{"use_bias": False, "norm_bias": False, "positions": "rotary", "local_attention": 8},
            **{"global_attention_every": 2, "classifier": "norm", "num_hidden_layers": 3},
        },
        {
            **{"family": "nomic_bert", "positions": "rotary", "gated": True, "use_bias": False},
            **{"hidden_act": "silu", "mlm_dense_bias": True},
        },
        {
            **{"family": "gte", "positions": "rotary", "gated": True, "intermediate_bias": False},
            **{"mlm_act": "gelu", "type_vocab_size": 1},
        },
        {
            **{"family": "eurobert", "norm_first": True, "embedding_norm": False, "norm": "rms"},
            **{"norm_bias": False, "use_bias": False, "gated": True, "hidden_act": "silu"},
            **{"positions": "rotary", "type_vocab_size": 0, "num_key_value_heads": 1},
            **{"classifier": "gelu", "mlm_transform": False, "mlm_bias": False},
            **{"hidden_dropout_prob": 0.0, "tie_word_embeddings": False},
        },
        {
            **{"family": "bertworks", "norm_first": True, "embedding_norm": False, "norm": "rms"},
            **{"norm_bias": False, "use_bias": False, "gated": True, "hidden_act": "silu"},
            **{"positions": "rotary", "rotary": {"kind": "neighbours"}, "type_vocab_size": 0},
            "query_key_value_order": "head",
        },
        {"family": "bertworks", "positions": "rotary", "rotary": {"kind": "table"}},
        {"family": "electra", "embedding_size": 16, "classifier": "gelu", "mlm_act": "gelu"},
        {"family": "albert", "embedding_size": 24, "num_hidden_groups": 1},
        {"family": "bertworks", "task_type_vocab_size": 3, "type_vocab_size": 0},
        {"family": "ernie", "task_type_vocab_size": 3},
        {
            "family": "roberta-prelayernorm",
            "norm_first": True,
            "first_layer_norm": True,
            "type_vocab_size": 1,
            "position_offset": 2,
            "classifier": "tanh",
            "mlm_act": "gelu",
        },
    ],
    ids=lambda values: f"{values['family']} {'score_bias' in values}",
)
def test_other_families_equal_the_networks(values: dict[str, Any], tmp_path: Path) -> None:
    make_model(**values).save(tmp_path / "model")
    network, native = (bw.load(tmp_path / "model", backend=one) for one in ("torch", "native"))
    for precision in PRECISIONS:
        expected = network.embed(TEXTS, precision=precision)
        assert np.array_equal(native.embed(TEXTS, precision=precision), expected)


@pytest.mark.parametrize(("num_buckets", "max_distance"), [(32, 128), (8, 20), (64, 256), (4, 9)])
def test_buckets_of_distances_are_those_of_the_network(num_buckets: int, max_distance: int) -> None:
    settings = ScoreBiasSettings(kind="buckets", num_buckets=num_buckets, max_distance=max_distance)
    expected = BucketBias(bw.EncoderConfig(), settings).buckets(700)
    assert np.array_equal(buckets_of(700, num_buckets, max_distance), expected.numpy())


def test_modules_without_weights_equal_the_networks(tmp_path: Path) -> None:
    model = make_model()
    expected = model.embed(TEXTS, precision=SHORTEST_FLOAT)
    model.modules = VectorModules([NormalizeSettings(), DropoutSettings()]).eval()
    model.save(tmp_path / "model")
    for backend in ("torch", "native"):
        vectors = bw.load(tmp_path / "model", backend=backend).embed(
            TEXTS, precision=SHORTEST_FLOAT
        )
        assert vectors == pytest.approx(expected, abs=1e-6)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_weights_that_are_computed_from_others_are_used() -> None:
    model = make_model()
    expected = model.embed(TEXTS, precision=SHORTEST_FLOAT)
    torch.nn.utils.weight_norm(model.encoder.layers[0].feed_forward.output)  # type: ignore[arg-type]
    assert model.embed(TEXTS, precision=SHORTEST_FLOAT) == pytest.approx(expected, abs=0.01)


def test_size_is_that_of_the_arrays_in_memory(both: tuple[bw.Model, NativeModel]) -> None:
    directory = both[0].source
    assert directory is not None
    config, sizes = both[0].config, {}
    for precision in PRECISIONS:
        model = bw.load(directory, backend="native")
        model.network.encoder(precision)
        sizes[precision] = model.num_bytes
    parameters = both[0].num_parameters
    layer = config.hidden_size * (4 * config.hidden_size + 2 * config.intermediate_size)
    num_weights = config.num_hidden_layers * layer
    num_rows = config.num_hidden_layers * (5 * config.hidden_size + config.intermediate_size)
    assert sizes["fp32"] == 4 * parameters
    if "bf16" in PRECISIONS:
        assert sizes["bf16"] == sizes["fp32"] - 2 * num_weights
    # A row of 8-bit numbers has a scale and the sum of its numbers.
    assert sizes["int8"] == sizes["fp32"] - 3 * num_weights + 8 * num_rows
    model.network.encoder("fp32")
    assert sizes["fp32"] < model.num_bytes < sizes["fp32"] + sizes["int8"], (
        "layers are there in two precisions, and the table of words once"
    )


def test_changed_or_deleted_files_are_an_error_at_the_next_precision(tmp_path: Path) -> None:
    make_model().save(tmp_path / "model")
    native = bw.load(tmp_path / "model", backend="native")
    (tmp_path / "model" / "model.safetensors").unlink()
    for _ in range(2):
        with pytest.raises(CheckpointError, match="has changed since it was loaded"):
            native.embed("a", precision="int8")
        assert native.embed("a", precision=SHORTEST_FLOAT).shape == (1, 64)


@pytest.mark.parametrize("read", ["when loaded", "for a precision", "as float32"])
def test_a_file_that_is_written_while_it_is_read_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: str
) -> None:
    make_model().save(tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    native = bw.load(file.parent, backend="native")
    reads: dict[str, Callable[[], Any]] = {
        "when loaded": lambda: bw.load(file.parent, backend="native"),
        "for a precision": lambda: native.embed("a", precision="int8"),
        "as float32": lambda: dict(native.network.named_arrays(with_pooler=False)),
    }
    to_floats = native_network.to_floats

    def read_and_write(array: Any) -> Any:
        os.utime(file, ns=(0, 0))
        return to_floats(array)

    for module in (native_network, native_weights):
        monkeypatch.setattr(module, "to_floats", read_and_write)
    with pytest.raises(CheckpointError, match=r"model\.safetensors: was changed while it was read"):
        reads[read]()


@pytest.mark.long
def test_a_process_without_pytorch_computes_the_same_bits(tmp_path: Path) -> None:
    model = make_model()
    model.save(tmp_path / "model")
    command = [sys.executable, "-c", _SCRIPT, tmp_path / "model", tmp_path / "v.npy", *TEXTS]
    command.append(" ".join(PRECISIONS))
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.startswith("generate of a model needs PyTorch. Run: pip install ")
    for vectors, precision in zip(np.load(tmp_path / "v.npy"), PRECISIONS, strict=True):
        assert np.array_equal(vectors, model.embed(TEXTS, precision=precision))


@pytest.mark.parametrize("workers", [1, 2])
def test_a_file_of_vectors_is_resumed_by_the_other_engine(workers: int, tmp_path: Path) -> None:
    make_model().save(tmp_path / "model")
    network, native = (bw.load(tmp_path / "model", backend=one) for one in ("torch", "native"))
    texts, settings = TEXTS * 2, {"precision": SHORTEST_FLOAT, "window_rows": 5}

    def interrupt(num_rows: int, total: int) -> None:
        if num_rows > 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        network.embed_to(tmp_path / "v.npy", texts, progress=interrupt, **settings)
    result = native.embed_to(tmp_path / "v.npy", texts, workers=workers, **settings)
    assert (result.rows, result.new, result.width) == (10, 5, 64)
    assert np.array_equal(np.load(tmp_path / "v.npy"), network.embed(texts, **settings))


def test_methods_and_settings_that_need_pytorch_say_so(tmp_path: Path) -> None:
    make_model().save(tmp_path / "model")
    native = bw.load(tmp_path / "model", backend="native")
    with pytest.raises(bw.SettingsError, match=r"splade-max needs PyTorch"):
        native.embed("a", pooling="splade-max")
    with pytest.raises(NeedsPyTorchError, match=r"generate .* needs PyTorch"):
        native.generate("a")
    assert not hasattr(native, "calibrate")
    for name, value in (("positions", "sinusoidal"), ("num_hidden_layers", 0)):
        make_model(**{name: value}, family="bertworks").save(tmp_path / name)
        with pytest.raises(NeedsPyTorchError, match=name):
            bw.load(tmp_path / name, backend="native")
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    with pytest.raises(NeedsPyTorchError, match="an adapter needs PyTorch"):
        bw.load(tmp_path / "adapter", backend="native")
    with pytest.raises(NeedsPyTorchError, match="adapter=one"):
        bw.load(tmp_path / "model", backend="native", adapter="one")  # type: ignore[call-overload]


@pytest.mark.long
@pytest.mark.parametrize(
    ("end", "factor", "message"),
    [
        ("calibrated_inputs", None, "has no '.calibrated_inputs'"),
        ("calibrated_shift", None, "has no '.calibrated_shift'"),
        ("calibrated_inputs", 0, "holds an impossible number"),
        ("calibrated_shift", torch.nan, "holds an impossible number"),
    ],
)
def test_damaged_calibration_is_an_error(
    end: str, factor: float | None, message: str, tmp_path: Path
) -> None:
    model = make_model()
    model.calibrate(TEXTS)
    model.save(tmp_path / "model", precision="int8")
    file = tmp_path / "model" / "model.safetensors"
    tensors = load_file(file)
    for name in [name for name in tensors if name.endswith(f"layer.1.output.dense.weight.{end}")]:
        tensor = tensors.pop(name)
        if factor is not None:
            tensors[name] = tensor * factor
    save_file(tensors, file)
    for backend in ("native", "torch"):
        with pytest.raises(CheckpointError, match=message):
            bw.load(tmp_path / "model", backend=backend)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("bert.extra", torch.zeros(2), "is not known"),
        ("bert.embeddings.word_embeddings.weight", None, "is missing"),
        ("bert.encoder.layer.0.output.dense.bias", torch.zeros(3), r"shape \(3,\), not \(64,\)"),
        ("bert.encoder.layer.0.output.dense.bias", torch.full((64,), torch.nan), "not finite"),
        ("bert.encoder.layer.0.output.dense.bias", torch.zeros(64).int(), "of type I32"),
    ],
)
def test_wrong_tensors_are_errors(
    name: str, value: torch.Tensor | None, message: str, tmp_path: Path
) -> None:
    make_model().save(tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    tensors = {key: tensor for key, tensor in load_file(file).items() if key != name}
    save_file(tensors if value is None else {**tensors, name: value}, file)
    with pytest.raises(CheckpointError, match=message):
        bw.load(tmp_path / "model", backend="native")
