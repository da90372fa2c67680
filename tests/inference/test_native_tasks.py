"""Tasks without PyTorch: the bits of the network's predictions, for each task and precision."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from tests.native_precisions import PRECISIONS, SHORTEST_FLOAT, needs_kernels
from tests.tasks.test_edges import TASKS

import bertworks as bw
from bertworks.errors import CheckpointError, NeedsPyTorchError
from bertworks.inference.frozen_network import frozen_form
from bertworks.inference.native_model import NativeModel
from bertworks.inference.network_runner import NetworkRunner, array_form_of
from bertworks.inference.settings import EngineSettings
from bertworks.native.linear import ACTIVATIONS, apply_linear
from bertworks.nn.layers import ACTIVATIONS as FORMULAS
from bertworks.tasks import find_task_class
from bertworks.tasks.pretraining.instances import InstanceSettings
from bertworks.tasks.pretraining.next_sentence import NextSentenceTask
from bertworks.tasks.pretraining.replaced_tokens import ReplacedTokensTask
from bertworks.tasks.pretraining.task import PretrainingTask
from bertworks.tasks.task import Task

pytestmark = needs_kernels

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abc", "##a", "##b", "##c"]
TOKENIZER = bw.Tokenizer.from_vocabulary(PIECES)
TEXTS = ["a b c", "cab", "b", "abc cab " * 4, "c a"]
ROWS: dict[str, list[dict[str, Any]]] = {
    "classification": [{"text": text, "label": "np"[len(text) % 2]} for text in TEXTS],
    "multilabel": [{"text": text, "label": "n,p"[: len(text) % 4]} for text in TEXTS],
    "regression": [{"text": text, "label": len(text)} for text in TEXTS],
    "tagging": [{"words": text.split(), "tags": ["O"] * len(text.split())} for text in TEXTS],
    "answering": [
        {"question": "a b", "context": text, "answers": {"text": ["b"], "answer_start": [0]}}
        for text in TEXTS
    ],
    "choice": [{"prompt": text, "choices": ["a", "b c", text[:6]], "label": 1} for text in TEXTS],
    "retrieval": [{"a": text, "b": text[::-1], "score": len(text) % 5} for text in TEXTS],
    "pretraining": [{"text": "a [MASK] c"}, {"text": "[MASK] [MASK]", "pair": "b"}],
    "next-sentence": [{"text": "a", "pair": "b c"}, {"text": "a b"}],
    "replaced-tokens": [{"text": text, "pair": "c b"} for text in TEXTS],
}
FAMILIES = {"replaced-tokens": {"family": "electra", "classifier": "gelu", "mlm_act": "gelu"}}


@pytest.fixture(autouse=True)
def _native_code_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The network's frozen form, too, as on a processor with fast bfloat16 but without AMX."""
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    monkeypatch.setattr("bertworks.nn.device.is_fast_at_bfloat16", lambda _: "bf16" in PRECISIONS)
    monkeypatch.setattr(
        "bertworks.inference.native_network.is_fast_at_bfloat16", lambda: "bf16" in PRECISIONS
    )


def make_task(name: str, **values: Any) -> Task[Any]:
    if name == "pretraining":
        return PretrainingTask(TOKENIZER, InstanceSettings(format="segment-pair"), max_length=40)
    if name == "next-sentence":
        return NextSentenceTask(TOKENIZER, InstanceSettings(format="segment-pair"), max_length=40)
    if name == "replaced-tokens":
        return ReplacedTokensTask(TOKENIZER, max_length=40)
    settings = {**TASKS[name], "max_seq_length": 40, **values}
    return find_task_class(name).from_dict(settings, TOKENIZER)


def make_model(task: Task[Any], **values: Any) -> bw.Model:
    config = bw.EncoderConfig(
        **{
            "vocab_size": len(PIECES),
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 96,
            "max_position_embeddings": 40,
            "initializer_range": 0.2,
            **values,
        }
    )
    torch.manual_seed(3)
    network = task.network(config).eval()
    for name, weight in network.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(weight, std=0.1)
    return bw.Model(TOKENIZER, task, network)


def save_and_load(model: bw.Model, folder: Path, **options: Any) -> tuple[bw.Model, NativeModel]:
    model.save(folder, **options)
    network, native = (bw.load(folder, backend=one) for one in ("torch", "native"))
    assert isinstance(network, bw.Model) and isinstance(native, NativeModel)
    return network, native


@pytest.fixture(scope="module")
def saved_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, Any]]:
    """The same models with PyTorch and without."""
    root = tmp_path_factory.mktemp("tasks")
    models = {name: make_model(make_task(name), **FAMILIES.get(name, {})) for name in ROWS}
    return {name: save_and_load(model, root / name) for name, model in models.items()}


def predict(model: Any, name: str, rows: list[dict[str, Any]], precision: str) -> Any:
    if name not in ("pretraining", "next-sentence"):
        return model.predict(data=rows, precision=precision)
    if name == "pretraining":
        return [model.fill_mask(row["text"], precision=precision) for row in rows]
    return [model.next_sentence(row["text"], "a c", precision=precision) for row in rows]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", ROWS)
def test_predictions_have_the_bits_of_the_network(
    name: str, precision: str, saved_models: dict[str, tuple[Any, Any]]
) -> None:
    network, native = saved_models[name]
    expected = predict(network, name, ROWS[name], precision)
    assert predict(native, name, ROWS[name], precision) == expected
    assert predict(native, name, ROWS[name][-1:], precision) == expected[-1:]


MODERNBERT = {
    **{"family": "modernbert", "type_vocab_size": 0, "norm_first": True, "gated": True},
    **{"use_bias": False, "norm_bias": False, "positions": "rotary", "local_attention": 8},
    **{"global_attention_every": 2, "classifier": "norm"},
}
NOMIC = {
    **{"family": "nomic_bert", "positions": "rotary", "gated": True, "use_bias": False},
    **{"hidden_act": "silu", "mlm_dense_bias": True},
}


@pytest.mark.long
@pytest.mark.parametrize("values", [MODERNBERT, NOMIC], ids=lambda values: values["family"])
@pytest.mark.parametrize("name", ["classification", "tagging", "pretraining"])
def test_heads_of_other_families_have_the_bits_of_the_network(
    name: str, values: dict[str, Any], tmp_path: Path
) -> None:
    settings = InstanceSettings(format="full-sentences")
    is_pretraining = name == "pretraining"
    task = PretrainingTask(TOKENIZER, settings) if is_pretraining else make_task(name)
    network, native = save_and_load(make_model(task, **values), tmp_path / "model")
    for precision in PRECISIONS:
        expected = predict(network, name, ROWS[name], precision)
        assert predict(native, name, ROWS[name], precision) == expected


@pytest.mark.parametrize("name", [name for name in ROWS if name in TASKS])
def test_metrics_equal_the_networks(name: str, saved_models: dict[str, tuple[Any, Any]]) -> None:
    network, native = saved_models[name]
    rows = ROWS[name]
    one, other = (model.evaluate(rows, precision=SHORTEST_FLOAT) for model in (network, native))
    assert one.metrics == other.metrics and one.notes == other.notes
    assert one.breakdown == other.breakdown


@pytest.mark.long
@pytest.mark.parametrize("weights", ["bf16", "int8"])
def test_other_weights_give_the_same_predictions(weights: str, tmp_path: Path) -> None:
    model = make_model(make_task("classification"))
    network, native = save_and_load(model, tmp_path / "model", precision=weights)
    assert native.predict(TEXTS, precision="int8") == network.predict(TEXTS, precision="int8")
    one, other = (each.predict_proba(TEXTS, precision=SHORTEST_FLOAT) for each in (network, native))
    assert np.array_equal(one, other)


@pytest.mark.long
@pytest.mark.parametrize(
    "values",
    [
        {"truncation": "windows", "stride": 4, "max_seq_length": 12},
        {"truncation": "windows", "stride": 4, "max_seq_length": 12, "window_pooling": "max"},
        {"pair_column": "pair", "both_orders": True},
    ],
    ids=["mean", "max", "sum"],
)
def test_rows_of_several_sequences_are_pooled_alike(values: dict[str, Any], tmp_path: Path) -> None:
    network, native = save_and_load(
        make_model(make_task("multilabel", **values)), tmp_path / "model"
    )
    texts: Any = [(text, "b a") for text in TEXTS] if "pair_column" in values else TEXTS
    expected = network.predict(texts, precision=SHORTEST_FLOAT)
    assert native.predict(texts, precision=SHORTEST_FLOAT) == expected
    assert native.predict(texts[3:4], precision=SHORTEST_FLOAT) == expected[3:4]


@pytest.mark.parametrize("pooling", ["cls", "mean", "last", "late"])
@pytest.mark.parametrize(
    "kind", ["pooler", "tanh", "relu", "context", "hidden_act", "norm", "none"]
)
def test_classifiers_are_close_to_the_formula(kind: str, pooling: str) -> None:
    """Of the module that is trained, in float32."""
    task = make_task("classification")
    values = {"classifier": kind, "classifier_pooling": pooling, "family": "bertworks"}
    check_formula(task, make_model(task, **values).network, ROWS["classification"])


@pytest.mark.parametrize("name", ROWS)
def test_outputs_are_close_to_the_formula(name: str) -> None:
    task = make_task(name)
    check_formula(task, make_model(task, **FAMILIES.get(name, {})).network, ROWS[name])


def check_formula(task: Task[Any], network: Any, rows: list[dict[str, Any]]) -> None:
    """Compare a task's outputs from arrays with those of its module."""
    runner = NetworkRunner(network, task, EngineSettings(precision="fp32"))
    examples = task.examples(rows, 0, labelled=False)
    outputs, _ = runner(examples)
    assert runner._arrays is not None
    with torch.inference_mode():
        expected = network.predict(task.collate(examples).to("cpu"))
    assert outputs.keys() == expected.keys()
    for key, value in expected.items():
        assert outputs[key].numpy() == pytest.approx(value.numpy(), abs=2e-5), key


def test_candidates_have_the_bits_of_the_network(
    saved_models: dict[str, tuple[Any, Any]],
) -> None:
    network, native = saved_models["pretraining"]
    options = {"candidates": ["a", "ab", "cab"], "precision": "fp32"}
    assert native.fill_mask("a [MASK] c", **options) == network.fill_mask("a [MASK] c", **options)


@pytest.mark.parametrize("values", [{}, {"unit": "words", "pieces": "mean", "layers": [0, -1]}])
def test_features_are_those_of_the_network(
    values: dict[str, Any], saved_models: dict[str, tuple[Any, Any]], tmp_path: Path
) -> None:
    models = saved_models["tagging"]
    files = [tmp_path / name for name in ("network.parquet", "native.parquet")]
    for model, file in zip(models, files, strict=True):
        written = model.features_to(file, TEXTS, precision=SHORTEST_FLOAT, **values)
        assert written.rows == len(TEXTS)
    one, other = (pq.read_table(file).to_pydict() for file in files)
    assert np.array(one.pop("vector")) == pytest.approx(np.array(other.pop("vector")), abs=1e-6)
    assert one == other


def test_written_predictions_and_vectors_are_those_of_the_network(
    saved_models: dict[str, tuple[Any, Any]], tmp_path: Path
) -> None:
    contents = []
    for number, model in enumerate(saved_models["classification"]):
        out, vectors = tmp_path / f"{number}.jsonl", tmp_path / f"{number}.npy"
        model.predict_to(out, ROWS["classification"], precision="int8")
        model.embed_to(vectors, TEXTS, precision="int8")
        contents.append((out.read_text(), np.load(vectors).tolist()))
    assert contents[0] == contents[1]


def test_workers_read_the_files_again(saved_models: dict[str, tuple[Any, Any]]) -> None:
    import pickle

    _, native = saved_models["classification"]
    copy = pickle.loads(pickle.dumps(native.network))
    other = NativeModel(TOKENIZER, native.task, copy, None, None, "copy")
    assert other.predict(TEXTS) == native.predict(TEXTS)


@pytest.mark.parametrize(
    ("rows", "inputs", "outputs"), [(1, 1, 1), (3, 17, 5), (5, 64, 33), (9, 100, 2), (4, 31, 16)]
)
def test_linear_maps_are_close_to_float64(rows: int, inputs: int, outputs: int) -> None:
    random = np.random.default_rng(rows)
    x, weight, bias = (
        random.standard_normal(shape, np.float32)
        for shape in ((rows, inputs), (outputs, inputs), (outputs,))
    )
    expected = x.astype(np.float64) @ weight.T.astype(np.float64)
    assert apply_linear(x, weight) == pytest.approx(expected, abs=1e-5)
    result = apply_linear(x, weight, bias)
    assert result == pytest.approx(expected + bias, abs=1e-5)
    for row in range(rows):
        assert np.array_equal(apply_linear(x[row : row + 1].copy(), weight, bias)[0], result[row])


@pytest.mark.parametrize("name", FORMULAS)
def test_activations_are_close_to_the_formula(name: str) -> None:
    x = np.linspace(-12, 12, 1001, dtype=np.float32).reshape(7, 143)
    expected = FORMULAS[name](torch.from_numpy(x).double()).numpy()
    np.testing.assert_allclose(ACTIVATIONS[name](x), expected, rtol=2e-6, atol=1e-6)
    assert np.array_equal(ACTIVATIONS[name](x[:1]), ACTIVATIONS[name](x)[:1])


def test_changed_heads_are_computed_by_pytorch() -> None:
    task = make_task("classification")
    network: Any = make_model(task).network
    form = frozen_form(network, "fp32")
    assert array_form_of(network, form, task) is not None
    handle = network.head.linear.register_forward_hook(lambda *_: None)
    assert array_form_of(network, form, task) is None
    handle.remove()
    torch.nn.utils.parametrizations.weight_norm(network.head.linear)
    assert array_form_of(network, frozen_form(network, "fp32"), task) is None


def test_tasks_that_need_pytorch_say_so(tmp_path: Path) -> None:
    task = make_task("translation")
    make_model(task).save(tmp_path / "model")
    native = bw.load(tmp_path / "model", backend="native")
    assert isinstance(native.task_error, NeedsPyTorchError)
    with pytest.raises(NeedsPyTorchError, match=r"the task translation .* needs PyTorch"):
        native.predict("a")
    assert native.embed("a").shape == (1, 64)


def test_missing_weights_of_heads_are_named(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    make_model(make_task("classification")).save(tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    tensors = load_file(file)
    del tensors["classifier.weight"]
    save_file(tensors, file)
    with pytest.raises(CheckpointError, match=r"head\.linear\.weight are missing"):
        bw.load(tmp_path / "model", backend="native")


_SCRIPT = """
import importlib.abc, json, sys
class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "pyarrow"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
import bertworks as bw
answers, p = {}, sys.argv[3]
for name, rows in json.load(open(sys.argv[2])).items():
    model = bw.load(f"{sys.argv[1]}/{name}")
    if name == "pretraining":
        answers[name] = [model.fill_mask(row["text"], precision=p) for row in rows]
    elif name == "next-sentence":
        answers[name] = [model.next_sentence(row["text"], "a c", precision=p) for row in rows]
    else:
        answers[name] = model.predict(data=rows, precision=p)
        if name in ("classification", "tagging"):
            model.evaluate(rows, precision=p)
print(json.dumps(answers))
"""


@pytest.mark.long
def test_predictions_need_no_pytorch(
    saved_models: dict[str, tuple[Any, Any]], tmp_path: Path
) -> None:
    """In a process that can import neither PyTorch nor pyarrow."""
    (tmp_path / "rows.json").write_text(json.dumps(ROWS))
    folder = Path(str(saved_models["tagging"][1].source)).parent
    process = subprocess.run(
        [sys.executable, "-c", _SCRIPT, folder, tmp_path / "rows.json", SHORTEST_FLOAT],
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    answers = json.loads(process.stdout)
    for name, (network, _) in saved_models.items():
        assert answers[name] == predict(network, name, ROWS[name], SHORTEST_FLOAT), name
