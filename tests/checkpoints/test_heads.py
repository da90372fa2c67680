"""The heads of tagging, answering and choice against Hugging Face's, there and back."""

from __future__ import annotations

import json
from contextlib import nullcontext

import onnxruntime
import pytest
import torch
import transformers
from torch.nn import functional as F

import bertworks as bw
from bertworks.checkpoints.families import FAMILIES
from bertworks.checkpoints.saving import check_layout
from bertworks.convert.export import PaddedNetwork, write_onnx
from bertworks.errors import CheckpointError
from bertworks.nn.encoder import BareEncoder, Encoder
from bertworks.packed import Batch
from bertworks.tasks import choice, find_task_class
from bertworks.tasks.answering import answers
from bertworks.tasks.answering.network import AnsweringNetwork
from bertworks.tasks.answering.settings import AnsweringSettings
from bertworks.tasks.answering.task import AnsweringTask
from bertworks.tasks.choice import ChoiceTask
from bertworks.tasks.choice_network import ChoiceNetwork
from bertworks.tasks.classification import ClassificationSettings, ClassificationTask
from bertworks.tasks.regression import RegressionTask
from bertworks.tasks.tagging.network import TaggingNetwork
from bertworks.tasks.tagging.task import TaggingTask
from bertworks.tasks.text_network import ClassificationNetwork
from tests.checkpoints import journeys, measures, oracles
from tests.checkpoints.measures import TOLERANCE
from tests.checkpoints.oracles import CONFIG_CLASSES, error, geometry


def families_with(kind: str) -> list[str]:
    """The families that have a published class for a kind of models."""
    return [family for family in CONFIG_CLASSES if kind in FAMILIES[family].classes]


ALL = families_with("tagging")
DTYPES = [torch.float64, torch.float32]


def test_all_but_gpt_have_them():
    assert set(CONFIG_CLASSES) - set(ALL) == {"openai-gpt"}  # which has choice


EXPORTED_TASKS = {
    "tagging": (TaggingTask, {"labels": ("O", "B-X"), "spans": True, "word_column": "w"}),
    "answering": (AnsweringTask, answers.USUAL_COLUMNS),
    "choice": (ChoiceTask, choice.USUAL_COLUMNS),
    "regression": (RegressionTask, {"text_column": "t"}),
    "regression on the mean": (
        RegressionTask,
        {"text_column": "t", "classifier_pooling": "mean"},
    ),
}


@pytest.mark.long
@pytest.mark.parametrize(
    "kind",
    [
        "tagging",
        *(
            pytest.param(kind, marks=pytest.mark.slow)
            for kind in EXPORTED_TASKS
            if kind != "tagging"
        ),
    ],
)
def test_onnx_runtime_gives_the_same(kind, tmp_path):
    tokenizer = bw.Tokenizer.from_vocabulary(journeys.PIECES)
    # Several layers are written by `journeys.onnx`.
    config = geometry("bert", vocab_size=len(journeys.PIECES), num_hidden_layers=1)
    task_class, settings = EXPORTED_TASKS[kind]
    task = task_class.from_dict({**settings, "max_seq_length": 20}, tokenizer)
    model = bw.Model(tokenizer, task, task.network(config).eval())
    oracles.redraw(model.network)
    write_onnx(model, tmp_path)
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
    packed, inputs, mask = journeys.batch_of(model)
    names = [output.name for output in session.get_outputs()]
    actual = session.run(names, {name: value.numpy() for name, value in inputs.items()})
    padded = PaddedNetwork(model.network)
    with torch.no_grad():
        expected = padded.outputs_by_name(**inputs)
        hidden = model.encoder(packed)
    assert names == list(expected)
    for own, other in zip(actual, expected.values(), strict=True):
        assert error(torch.from_numpy(own), other) < journeys.ONNX_TOLERANCE
    if kind == "tagging":
        assert error(expected["logits"][mask], model.network.tag_head(hidden).detach()) < 1e-5


@pytest.mark.parametrize(
    ("family", "config_values"),
    [
        ("bert", {}),
        ("albert", {}),
        ("albert", {"classifier_dropout_prob": 0.3}),
        ("distilbert", {}),
        ("distilbert", {"seq_classif_dropout": 0.3, "qa_dropout": 0.4}),
    ],
)
def test_fresh_heads_have_the_familys_dropout(family, config_values):
    written = FAMILIES[family].write_config(geometry(family, hidden_dropout_prob=0.05))
    dropout_names = {"classifier_dropout_prob", "seq_classif_dropout", "qa_dropout"}
    raw = {key: value for key, value in written.items() if key not in dropout_names} | config_values
    own = getattr(transformers, CONFIG_CLASSES[family])(**raw, pad_token_id=0)
    config = FAMILIES[family].read_config(raw, where=family)
    assert FAMILIES[family].read_config(FAMILIES[family].write_config(config), where="") == config
    heads = {
        "classification": ClassificationNetwork(
            config, ClassificationSettings(labels=("a", "b"))
        ).head,
        "choice": ChoiceNetwork(config).choice_head,
        "tagging": TaggingNetwork(config, 2).tag_head,
        "answering": AnsweringNetwork(config, AnsweringSettings()).span_head,
    }
    for kind, head in heads.items():
        with torch.device("meta"):
            theirs = getattr(transformers, FAMILIES[family].classes[kind])(own)
        usual = getattr(theirs, "dropout", torch.nn.Dropout(0.0))
        assert head.dropout.p == usual.p, kind


@pytest.mark.long
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", ALL)
def test_a_tagger_has_the_same_outputs(family, dtype):
    config = geometry(family)
    theirs = oracles.theirs_of(config, "tagging", dtype, num_labels=5)
    pair = oracles.pair(TaggingNetwork(config, 5), theirs, config, dtype)
    positions = torch.tensor([0, 2, 5, 11, 30, 50, 60])
    labels = torch.arange(7) % 5
    batch = Batch(pair.packed, {"positions": positions, "labels": labels})
    with oracles.in_float64():
        logits = pair.theirs(**pair.padded).logits[pair.mask][positions]
    own = pair.ours.predict(batch)["logits"]
    assert error(own.detach(), logits.detach()) <= TOLERANCE[dtype]
    loss = pair.ours(batch)["tagging"] / len(labels)
    loss.backward()
    expected = F.cross_entropy(logits, labels)
    expected.backward()
    assert max(measures.compare(pair, loss, expected, family).values()) <= TOLERANCE[dtype]


@pytest.mark.long
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", families_with("answering"))
def test_an_answering_model_has_the_same_outputs(family, dtype):
    config = geometry(family).with_global_tokens("question")
    theirs = oracles.theirs_of(config, "answering", dtype)
    pair = oracles.pair(AnsweringNetwork(config, AnsweringSettings()), theirs, config, dtype)
    lengths = pair.packed.cu_seqlens.diff()
    spans = torch.stack([lengths // 3, lengths // 2], 1).long()
    batch = Batch(pair.packed, {"spans": spans})
    with oracles.in_float64():
        predicted = pair.theirs(**pair.padded)
    logits = torch.stack([predicted.start_logits, predicted.end_logits], -1)
    own = pair.ours.predict(batch)["logits"]
    assert error(own.detach(), logits[pair.mask].detach()) <= TOLERANCE[dtype]
    # Theirs lets pad tokens into the softmax; ours has none.
    masked = logits.masked_fill(~pair.mask[..., None], -torch.inf)
    places = spans + pair.mask.int().argmax(1)[:, None]  # XLNet's padding is at the front
    start, end = (F.cross_entropy(masked[..., side], places[:, side]) for side in range(2))
    expected = (start + end) / 2
    expected.backward()
    loss = pair.ours(batch)["answering"] / len(spans)
    loss.backward()
    assert max(measures.compare(pair, loss, expected, family).values()) <= TOLERANCE[dtype]


@pytest.mark.long
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("family", "values"),
    [
        *((family, {}) for family in families_with("choice")),
        ("modernbert", {"classifier_pooling": "mean"}),
    ],
)
def test_a_choice_model_has_the_same_outputs(family, values, dtype):
    config = geometry(family, **values).with_global_tokens("choice")
    theirs = oracles.theirs_of(config, "choice", dtype)
    pair = oracles.pair(ChoiceNetwork(config), theirs, config, dtype)
    count = pair.packed.num_sequences
    assert count % 2 == 0
    labels = torch.arange(count // 2) % 2
    object.__setattr__(pair.packed, "sequence_number", torch.arange(count) % 2)
    targets = {"row": torch.arange(count) // 2, "max_choices": torch.zeros(2), "labels": labels}
    batch = Batch(pair.packed, targets, examples=[None] * (count // 2))
    inputs = {name: value.view(count // 2, 2, -1) for name, value in pair.padded.items()}
    if family == "openai-gpt":  # theirs needs the position of the last token, and masks no choices
        last = pair.packed.cu_seqlens.diff().long() - 1
        logits = pair.theirs(**pair.padded, mc_token_ids=last).mc_logits.view(-1, 2)
    else:
        with oracles.in_float64():
            logits = pair.theirs(**inputs).logits
    own = pair.ours.predict(batch)["logits"]
    assert error(own.detach(), logits.detach()) <= TOLERANCE[dtype]
    loss = pair.ours(batch)["choice"] / len(labels)
    loss.backward()
    expected = F.cross_entropy(logits, labels)
    expected.backward()
    assert max(measures.compare(pair, loss, expected, family).values()) <= TOLERANCE[dtype]


@pytest.mark.parametrize(
    ("family", "pooling"),
    [
        *((family, pooling) for family in ("bert", "roberta") for pooling in ("mean", "last")),
        *(("openai-gpt", pooling) for pooling in ("mean", "cls")),
    ],
)
def test_a_classifier_may_use_another_vector(family, pooling, tmp_path):
    tokenizer = bw.Tokenizer.from_vocabulary(journeys.PIECES)
    config = geometry(family, vocab_size=len(journeys.PIECES))
    settings = {"labels": ("a", "b", "c"), "text_column": "t", "max_seq_length": 20}
    task = ClassificationTask.from_dict({**settings, "classifier_pooling": pooling}, tokenizer)
    model = bw.Model(tokenizer, task, task.network(config).eval())
    oracles.redraw(model.network)
    packed, inputs, _ = journeys.batch_of(model)
    head = model.network.head
    with torch.no_grad():
        own = model.network.predict(Batch(packed))["logits"]
        expected = []
        for part in model.encoder(packed).split(packed.cu_seqlens.diff().tolist()):
            vector = {"mean": part.mean(0), "last": part[-1], "cls": part[0]}[pooling]
            if family == "roberta":  # its head has a layer of its own
                vector = torch.tanh(head.transform(vector))
            expected.append(head.linear(vector))
        padded = PaddedNetwork(model.network).outputs_by_name(**inputs)["logits"]
    assert error(own, torch.stack(expected)) < 1e-5
    assert error(padded, own) < 1e-5

    model.save(tmp_path)
    raw = json.loads((tmp_path / "config.json").read_text())
    assert raw["classifier_pooling"] == pooling
    # Theirs would take the first token's vector: only their encoder may open the directory.
    assert raw["architectures"] == [FAMILIES[family].classes["encoder"]]
    reloaded_model = bw.load(tmp_path, device="cpu")
    assert reloaded_model.encoder.config == model.encoder.config
    with torch.no_grad():
        assert torch.equal(reloaded_model.network.predict(Batch(packed))["logits"], own)


@pytest.mark.long
@pytest.mark.parametrize(
    ("family", "kind"),
    [
        (family, kind)
        for kind in ("tagging", "answering", "choice")
        for family in families_with(kind)
        if family != "openai-gpt"
    ],
)
def test_a_published_checkpoint_is_the_task_that_it_was_trained_for(family, kind, tmp_path):
    journeys.saved_by_them(family, kind, tmp_path)
    model = bw.load(tmp_path, device="cpu")
    assert model.task is not None
    assert model.task.name == kind


TABLES = {
    "classification": {"labels": ("a", "b"), "text_column": "t"},
    "tagging": {"labels": ("O", "B-X"), "spans": True, "word_column": "w"},
    "answering": answers.USUAL_COLUMNS,
    "choice": choice.USUAL_COLUMNS,
}


@pytest.mark.long
@pytest.mark.parametrize(
    ("family", "kind"),
    [
        (family, kind)
        for family in CONFIG_CLASSES
        for kind in sorted(FAMILIES[family].dropouts.keys() & FAMILIES[family].classes.keys())
    ],
)
def test_a_heads_dropout_is_written_where_hugging_face_reads_it(family, kind, tmp_path):
    tokenizer = bw.Tokenizer.from_vocabulary(journeys.PIECES)
    config = geometry(family, vocab_size=len(journeys.PIECES), hidden_dropout_prob=0.05)
    task = find_task_class(kind).from_dict(
        {**TABLES[kind], "max_seq_length": 20, "dropout": 0.37}, tokenizer
    )
    bw.Model(tokenizer, task, task.network(config).eval()).save(tmp_path)
    own = getattr(transformers, CONFIG_CLASSES[family]).from_pretrained(tmp_path)
    with torch.device("meta"):
        theirs = getattr(transformers, FAMILIES[family].classes[kind])(own)
    dropouts = {name: module.p for name, module in theirs.named_modules() if hasattr(module, "p")}
    assert [name for name, p in dropouts.items() if p == 0.37], dropouts
    assert all(p != 0.37 for name, p in dropouts.items() if ".layer" in name)

    (tmp_path / "bertworks.json").unlink()  # what another tool would have saved
    reloaded = bw.load(tmp_path, device="cpu")
    assert reloaded.task.name == kind
    assert 0.37 in {module.p for module in reloaded.network.modules() if hasattr(module, "p")}


@pytest.mark.parametrize(("family", "kind"), [("distilbert", "tagging"), ("bert", "answering")])
def test_a_head_that_reads_no_dropout_is_written_none(family, kind, tmp_path):
    tokenizer = bw.Tokenizer.from_vocabulary(journeys.PIECES)
    config = geometry(family, vocab_size=len(journeys.PIECES))
    task = find_task_class(kind).from_dict(
        {**TABLES[kind], "max_seq_length": 20, "dropout": 0.37}, tokenizer
    )
    bw.Model(tokenizer, task, task.network(config).eval()).save(tmp_path)
    assert 0.37 not in json.loads((tmp_path / "config.json").read_text()).values()
    assert bw.load(tmp_path, device="cpu").task.settings.dropout == 0.37


@pytest.mark.parametrize(
    ("attribute", "says"),
    [
        ("my_head", None),
        ("mlm_head", "has no place for the tensor 'mlm_head.weight'"),
        ("encoder.more", "has no place for the tensor 'encoder.more.weight'"),
        ("embeddings", "'embeddings.weight' has a name that the family 'bert' reads as another"),
    ],
)
def test_a_family_stores_the_tensors_of_its_heads(attribute, says):
    network = BareEncoder(Encoder(geometry("bert"), pooler=False))
    outer, _, name = attribute.rpartition(".")
    setattr(network.get_submodule(outer), name, torch.nn.Linear(2, 2))
    refused = pytest.raises(CheckpointError, match=says) if says else nullcontext()
    with refused:
        check_layout(network, geometry("bert"), "encoder")
