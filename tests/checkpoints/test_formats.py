"""Other file formats: TensorFlow's checkpoints, pickles, shards; and damaged ones."""

from __future__ import annotations

import json
import pickle
import shutil
from dataclasses import replace

import numpy as np
import pytest
import tokenizers
import torch
from safetensors.torch import load_file

import bertworks as bw
from bertworks.checkpoints.bundle import _read_index, masked_checksum, read_bundle, write_bundle
from bertworks.checkpoints.tensorflow import original_tensors
from bertworks.convert.export import missing_settings, write_tensorflow
from bertworks.convert.model_editing import add_tokens
from bertworks.errors import CheckpointError, OutputError
from bertworks.packed import Packed
from bertworks.tasks import find_task_class
from bertworks.tasks.choice import USUAL_COLUMNS
from bertworks.tasks.classification import ClassificationSettings, ClassificationTask
from bertworks.tasks.pretraining.task import PretrainingTask
from bertworks.text.definition import AddedPiece, Frame, Roles
from bertworks.text.tree import TreeDefinition
from tests.checkpoints.journeys import PIECES
from tests.checkpoints.paper_forward import PaperBert
from tests.checkpoints.test_store import tiny


@pytest.fixture
def original(data_dir):
    return data_dir / "tf1-checkpoint"


def test_an_original_checkpoint_gives_what_the_paper_says(original):
    model = bw.load(original, device="cpu")
    model.network.double()
    variables = {k: v.numpy() for k, v in read_bundle(original / "bert_model.ckpt").items()}
    config = json.loads((original / "bert_config.json").read_text())
    paper = PaperBert(variables, config["num_hidden_layers"], config["num_attention_heads"])
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, config["vocab_size"], length) for length in (1, 2, 5, 9, 9, 16)]
    types = [(np.arange(len(row)) >= len(row) // 2).astype(np.int64) for row in rows]
    packed = Packed.from_arrays(rows, types).to("cpu")
    with torch.no_grad():
        states = list(model.encoder.hidden_states(packed))
        pooled = model.encoder.pool(states[-1], packed)
        logits = model.network.mlm_head(states[-1])
        nsp = model.network.nsp_head(pooled)
    edges = packed.cu_seqlens.tolist()
    for number, (row, kinds) in enumerate(zip(rows, types, strict=True)):
        own = slice(edges[number], edges[number + 1])
        expected = paper.hidden_states(row, kinds)
        for state, theirs in zip(states, expected, strict=True):
            np.testing.assert_allclose(state[own].numpy(), theirs, rtol=0, atol=1e-10)
        vector = paper.pooled(expected[-1])
        np.testing.assert_allclose(pooled[number].numpy(), vector, rtol=0, atol=1e-10)
        np.testing.assert_allclose(logits[own].numpy(), paper.mlm_logits(expected[-1]), atol=1e-10)
        np.testing.assert_allclose(nsp[number].numpy(), paper.nsp_logits(vector), atol=1e-10)


def test_every_variable_is_used_or_dropped_with_a_reason(original):
    report = bw.load(original, device="cpu").report
    variables = read_bundle(original / "bert_model.ckpt")
    slots = [name for name in variables if "/adam_" in name]
    assert len(variables) == 139
    assert {name: report.dropped_tensors[name] for name in slots} == dict.fromkeys(
        slots, "optimizer state, which training starts anew"
    )
    assert "counter" in report.dropped_tensors["global_step"]
    assert len(report.dropped_tensors) == len(slots) + 1


def test_checksums_of_the_original_are_compared(original):
    """The reader finds the tensors where they are: each has the checksum that was written."""
    entries, shards = _read_index((original / "bert_model.ckpt.index").read_bytes())
    data = (original / "bert_model.ckpt.data-00000-of-00001").read_bytes()
    assert shards == 1
    assert len(entries) == 139
    for name, entry in entries.items():
        assert masked_checksum(data[entry.offset : entry.offset + entry.size]) == entry.checksum, (
            name
        )


def test_a_bundle_keeps_every_bit(tmp_path):
    tensors = {
        "a": torch.randn(3, 5),
        "a/b": torch.arange(7),
        "empty": torch.zeros(0, 4),
        "half": torch.randn(2).half(),
        "scalar": torch.tensor(3.5, dtype=torch.float64),
        **{f"many/{n:04}/kernel": torch.full((n % 3 + 1,), float(n)) for n in range(300)},
    }
    write_bundle(tmp_path / "x.ckpt", tensors)
    reloaded_tensors = read_bundle(tmp_path / "x.ckpt")
    assert reloaded_tensors.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert reloaded_tensors[name].dtype == tensor.dtype
        assert torch.equal(reloaded_tensors[name], tensor), name


def test_tensorflows_layout_has_no_classifier_on_the_mean(tmp_path):
    model = tiny("classification")
    network = model.task.network(model.config.with_values(classifier_pooling="mean"))
    with pytest.raises(CheckpointError, match="classifier_pooling=mean"):
        write_tensorflow(bw.Model(model.tokenizer, model.task, network), tmp_path)


@pytest.mark.parametrize("name", ["my_head.scale", "my_head.layer_1.weight"])  # none, another's
def test_a_tensor_that_tensorflows_layout_has_no_name_for(name):
    with pytest.raises(CheckpointError, match=f"has no place for '{name}'"):
        original_tensors({name: torch.zeros(2)})


@pytest.mark.parametrize("task", ["pretraining", "classification"])
def test_models_are_unchanged_by_tensorflows_layout(tmp_path, task):
    model = tiny(task)
    write_tensorflow(model, tmp_path / "tf")
    names = {path.name for path in (tmp_path / "tf").iterdir()}
    assert names == {
        *["bert_config.json", "bert_model.ckpt.index", "vocab.txt", "README.md"],
        "bert_model.ckpt.data-00000-of-00001",
    }
    reloaded_model = bw.load(tmp_path / "tf", device="cpu")
    theirs = reloaded_model.network.state_dict()
    for name, tensor in model.network.state_dict().items():
        if task == "pretraining" or not name.startswith("head."):
            assert torch.equal(tensor, theirs[name]), name
    assert reloaded_model.tokenizer.pieces == model.tokenizer.pieces


def test_tensorflows_layout_keeps_labels_and_limit_and_warns_of_the_rest(tmp_path):
    settings = {
        "labels": ("no", "perhaps", "yes"),
        "text_column": "text",
        "label_column": "label",
        "max_seq_length": 24,
        "truncation": "windows",
        "stride": 4,
    }
    tokenizer = tiny().tokenizer
    task = ClassificationTask(tokenizer, ClassificationSettings.parse(settings))
    model = bw.Model(tokenizer, task, task.network(tiny().encoder.config).eval())
    folder = write_tensorflow(model, tmp_path / "tf")
    reloaded_model = bw.load(folder, device="cpu")
    assert reloaded_model.task.labels == settings["labels"]
    assert reloaded_model.task.settings.max_seq_length == 24
    missing = missing_settings(model, folder)
    assert {"truncation", "stride"} <= set(missing)
    assert not {"labels", "max_seq_length"} & set(missing)
    texts = ["a b", "c"]
    for one, two in zip(model.predict(texts), reloaded_model.predict(texts), strict=True):
        assert one["label"] == two["label"]
        assert one["probabilities"] == pytest.approx(two["probabilities"])


def test_sentence_encoder_in_tensorflows_layout_is_warned_of(tmp_path):
    model = bw.load("mini-sentences", device="cpu")
    folder = write_tensorflow(model, tmp_path / "tf")
    first, second = missing_settings(model, folder)
    assert first == "the task 'retrieval' and its settings"
    assert second.startswith("how a text's vector is made") and "max_seq_length" in second


def test_the_activation_is_a_setting(original):
    assert bw.load(original, device="cpu").encoder.config.hidden_act == "gelu"
    model = bw.load(original, device="cpu", hidden_act="gelu_new")
    assert model.encoder.config.hidden_act == "gelu_new"


def test_the_tanh_form_comes_back_from_tensorflows_layout(tmp_path):
    """The original calls both forms `gelu`, and takes no other name."""
    model = tiny()
    for name in ("gelu_new", "gelu", "relu"):
        config = model.encoder.config.with_values(hidden_act=name)
        where = write_tensorflow(bw.Model.fresh(config, model.tokenizer), tmp_path / name)
        content = json.loads((where / "bert_config.json").read_text())["hidden_act"]
        assert content == name.removesuffix("_new")
        assert bw.load(where, device="cpu").encoder.config.hidden_act == name
    assert bw.load(where, device="cpu", hidden_act="gelu").encoder.config.hidden_act == "gelu"


def test_a_name_that_is_too_long_is_an_error(tmp_path):
    with pytest.raises(OutputError, match=r"a: cannot be written \(.*name too long"):
        tiny().save(tmp_path / ("a" * 300))


def test_a_saved_model_is_for_others_to_read_too(tmp_path):
    tiny().save(tmp_path / "m")
    modes = {file.name: oct(file.stat().st_mode & 0o444) for file in (tmp_path / "m").iterdir()}
    assert set(modes.values()) == {oct(0o444)}, modes


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("is_zip", [True, False])
def test_pickled_weights_are_loaded(tmp_path, shards, is_zip):
    model = tiny()
    model.save(tmp_path / "m")
    file = tmp_path / "m" / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    file.unlink()
    names = sorted(tensors)
    parts = {f"pytorch_model-{n}.bin": names[n::shards] for n in range(shards)}
    if shards == 1:
        parts = {"pytorch_model.bin": names}
    else:
        weight_map = {name: part for part, own in parts.items() for name in own}
        index = tmp_path / "m" / "pytorch_model.bin.index.json"
        index.write_text(json.dumps({"weight_map": weight_map}))
    for part, own in parts.items():
        torch.save(
            {name: tensors[name] for name in own},
            tmp_path / "m" / part,
            _use_new_zipfile_serialization=is_zip,
        )
    reloaded = bw.load(tmp_path / "m", device="cpu")
    for name, tensor in model.network.state_dict().items():
        assert torch.equal(tensor, reloaded.network.state_dict()[name]), name


class Malicious:
    def __reduce__(self):
        return print, ("this code was run",)


def test_code_in_a_pickle_is_not_run(tmp_path, capsys):
    tiny().save(tmp_path / "m")
    (tmp_path / "m" / "model.safetensors").unlink()
    with (tmp_path / "m" / "pytorch_model.bin").open("wb") as file:
        pickle.dump({"weight": Malicious()}, file, protocol=2)
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin: "):
        bw.load(tmp_path / "m", device="cpu")
    torch.save({"weight": Malicious()}, tmp_path / "m" / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="which are not executed"):
        bw.load(tmp_path / "m", device="cpu")
    assert "this code was run" not in capsys.readouterr().out


def test_a_header_that_promises_too_much(tmp_path):
    """100 GB in the header of a small file."""
    tiny().save(tmp_path / "m")
    file = tmp_path / "m" / "model.safetensors"
    entry = {"dtype": "F32", "shape": [250_000, 100_000], "data_offsets": [0, 10**11]}
    header = json.dumps({"bert.embeddings.word_embeddings.weight": entry}).encode()
    file.write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 64)
    with pytest.raises(CheckpointError, match=r"model\.safetensors: cannot be read"):
        bw.load(tmp_path / "m", device="cpu")


def test_a_geometry_that_is_not_that_of_the_weights(tmp_path):
    """100 GB in config.json: said before memory is spent."""
    tiny().save(tmp_path / "m")
    file = tmp_path / "m" / "config.json"
    raw = json.loads(file.read_text())
    file.write_text(json.dumps({**raw, "hidden_size": 200_000, "intermediate_size": 10**6}))
    with pytest.raises(CheckpointError, match=r"'bert\.\S+' has shape"):
        bw.load(tmp_path / "m", device="cpu")


def test_a_vocabulary_may_be_shorter_or_longer_than_the_embedding(tmp_path):
    tiny().save(tmp_path / "m")
    (tmp_path / "m" / "tokenizer.json").unlink()
    vocabulary = tmp_path / "m" / "vocab.txt"
    vocabulary.write_text(vocabulary.read_text() + "zz\n")
    with pytest.raises(CheckpointError, match="113 pieces, but the embeddings 112 rows"):
        bw.load(tmp_path / "m", device="cpu")


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda d: (d / "bert_model.ckpt.index").write_bytes(b"short"), "not a TensorFlow index"),
        (lambda d: (d / "bert_model.ckpt.data-00000-of-00001").unlink(), "no such file"),
        (lambda d: (d / "bert_model.ckpt.data-00000-of-00001").write_bytes(b""), "ends before"),
        (lambda d: (d / "bert_model.ckpt.index").rename(d / "x.index"), "no such file"),
        (lambda d: shutil.copy(d / "bert_model.ckpt.index", d / "y.index"), None),
    ],
)
def test_a_damaged_original_is_refused(original, tmp_path, damage, says):
    shutil.copytree(original, tmp_path / "m")
    damage(tmp_path / "m")
    if says is None:
        bw.load(tmp_path / "m", device="cpu")
        return
    with pytest.raises(CheckpointError, match=says):
        bw.load(tmp_path / "m", device="cpu")


def test_checksums_are_compared(original, tmp_path):
    """A flipped bit was read as another weight."""
    shutil.copytree(original, tmp_path / "m")
    entries, _ = _read_index((original / "bert_model.ckpt.index").read_bytes())

    def flip_bit(name, place):
        content = bytearray((original / name).read_bytes())
        content[place] ^= 1
        (tmp_path / "m" / name).write_bytes(content)

    data = "bert_model.ckpt.data-00000-of-00001"
    for name in ("bert/embeddings/word_embeddings", "bert/pooler/dense/bias"):
        flip_bit(data, entries[name].offset + 7)
        with pytest.raises(
            CheckpointError, match=rf"{data}: the tensor '{name}' does not match its"
        ):
            bw.load(tmp_path / "m", device="cpu")
    slot = next(name for name in entries if "/adam_" in name)
    flip_bit(data, entries[slot].offset)
    bw.load(tmp_path / "m", device="cpu")  # which is not used
    for place in (20, 500):
        flip_bit("bert_model.ckpt.index", place)
        with pytest.raises(CheckpointError, match=r"index: cannot be read \(a part does not match"):
            bw.load(tmp_path / "m", device="cpu")


def test_tensorflows_layout_goes_to_the_working_directory(tmp_path, monkeypatch):
    model = tiny()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    directory = write_tensorflow(model, ".")
    assert bw.load(directory, device="cpu").encoder.config == model.encoder.config
    assert [path.name for path in tmp_path.iterdir()] == ["here"]
    with pytest.raises(OutputError, match="already exists"):
        write_tensorflow(model, ".")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"tie_word_embeddings": False}, "no place for 'cls.predictions.decoder.weight'"),
        ({"attention": "causal"}, "has no attention=causal"),
    ],
)
def test_settings_that_tensorflows_layout_lacks_are_refused(tmp_path, settings, says):
    """The original's code would read it as another model."""
    tokenizer = tiny().tokenizer
    task = PretrainingTask(tokenizer, max_length=40, causal="attention" in settings)
    config = tiny().encoder.config.with_values(**settings)
    network = task.network(config).eval()
    with pytest.raises(CheckpointError, match=says):
        write_tensorflow(bw.Model(tokenizer, task, network), tmp_path / "tf")
    assert not (tmp_path / "tf").exists()


@pytest.mark.parametrize(
    "normalization_values",
    [{"lowercase": False}, {"strip_accents": False}, {"split_ideographs": False}],
)
def test_tensorflows_layout_keeps_the_casing(tmp_path, normalization_values):
    """A vocabulary without capitals, such as the Chinese one, does not say that it is cased."""
    model = tiny()
    definition = bw.Tokenizer.from_vocabulary(PIECES).definition
    normalization = replace(definition.normalization, **normalization_values)
    tokenizer = bw.Tokenizer(replace(definition, normalization=normalization))
    write_tensorflow(bw.Model(tokenizer, model.task, model.network), tmp_path / "tf")
    assert bw.Tokenizer.load(tmp_path / "tf").fingerprint == tokenizer.fingerprint


def test_tensorflows_layout_has_wordpiece_only(tmp_path):
    several = add_tokens(tiny(), ["c-d"]).model
    with pytest.raises(CheckpointError, match="no place for this tokenizer"):
        write_tensorflow(several, tmp_path / "tf")
    library = tokenizers.Tokenizer(tokenizers.models.BPE({"<unk>": 0, "a": 1}, []))
    tree = {**json.loads(library.to_str())}
    byte_pairs = bw.Tokenizer(TreeDefinition(tree, Roles(unk="<unk>"), Frame((), (), (), 0)))
    with pytest.raises(CheckpointError, match="no place for this tokenizer"):
        write_tensorflow(bw.Model(byte_pairs, None, tiny().network), tmp_path / "tf")
    assert not (tmp_path / "tf").exists()


def test_special_pieces_after_a_vocabulary_are_saved_for_tensorflow(tmp_path):
    model = tiny()
    definition = replace(model.tokenizer.definition, added=(AddedPiece("[E1]", special=True),))
    config = model.encoder.config.with_values(vocab_size=len(PIECES) + 1)
    write_tensorflow(bw.Model.fresh(config, bw.Tokenizer(definition)), tmp_path / "tf")
    assert bw.load(tmp_path / "tf", device="cpu").tokenizer.pieces == definition.pieces


def test_an_answering_model_of_the_original_release_is_read(original, tmp_path):
    """`run_squad.py` names its head `cls/squad`; it was read as a classifier of two classes."""
    shutil.copytree(original, tmp_path / "m")
    variables = read_bundle(tmp_path / "m" / "bert_model.ckpt")
    size = len(variables["bert/pooler/dense/bias"])
    head = torch.arange(2.0 * size).view(2, size)
    tensors = {name: tensor for name, tensor in variables.items() if name.startswith("bert/")}
    for name in ("output_weights", "output_weights/adam_m", "output_weights/adam_v"):
        tensors[f"cls/squad/{name}"] = head
    tensors["cls/squad/output_bias"] = torch.tensor([3.0, 4.0])
    write_bundle(tmp_path / "m" / "bert_model.ckpt", tensors)
    model = bw.load(tmp_path / "m", device="cpu")
    assert model.task.name == "answering"
    assert torch.equal(model.network.span_head.linear.weight, head)
    write_tensorflow(model, tmp_path / "again")
    content = read_bundle(tmp_path / "again" / "bert_model.ckpt")
    assert torch.equal(content["cls/squad/output_weights"], head)
    assert content["cls/squad/output_bias"].tolist() == [3.0, 4.0]


@pytest.mark.parametrize(
    ("kind", "settings", "says"),
    [
        (
            "tagging",
            {"labels": ("O", "X"), "spans": False, "word_column": "w"},
            "for 'tag_head.",
        ),
        (
            "multilabel",
            {"labels": ("a", "b"), "text_column": "t"},
            "no classifiers of several labels per row",
        ),
        ("choice", USUAL_COLUMNS, "for 'choice_head."),
        ("translation", {"source_column": "s", "target_column": "t"}, "for 'decoder."),
    ],
)
def test_a_task_that_tensorflows_layout_does_not_have(tmp_path, kind, settings, says):
    """It would be read again as another task, or not at all."""
    model = tiny()
    task = find_task_class(kind).from_dict({**settings, "max_seq_length": 20}, model.tokenizer)
    network = task.network(model.config)
    with pytest.raises(CheckpointError, match=says):
        write_tensorflow(bw.Model(model.tokenizer, task, network), tmp_path / "tf")
