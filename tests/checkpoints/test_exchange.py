"""Models go to other tools and come back: Hugging Face's classes, ONNX Runtime."""

from __future__ import annotations

import json
import re

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import bertworks as bw
from bertworks.analysis.retrieval.index import Index
from bertworks.checkpoints.sentence_settings import SentenceSettings
from bertworks.convert.export import PaddedNetwork
from bertworks.convert.model_editing import extend_positions
from bertworks.errors import BertworksError, CheckpointError, DataError, SettingsError
from bertworks.inference.native_model import NativeModel
from bertworks.tasks.pretraining.instances import InstanceSettings
from bertworks.tasks.pretraining.task import PretrainingTask
from tests.checkpoints import journeys, oracles
from tests.checkpoints.journeys import ONNX_TOLERANCE, PIECES
from tests.checkpoints.oracles import CONFIG_CLASSES, error, geometry

ALL = list(CONFIG_CLASSES)


@pytest.mark.long
@pytest.mark.parametrize(
    ("family", "kind"), [(family, kind) for family in ALL for kind in journeys.kinds_of(family)]
)
def test_a_round_trip_keeps_every_bit(family, kind, tmp_path):
    journey = journeys.there_and_back(family, kind, tmp_path)
    assert journey.num_used == journey.in_file
    assert journey.new == 0
    assert journey.num_changed == 0
    assert journey.problems == []
    assert journey.same_ids


def test_a_changed_bit_is_counted():
    one = torch.tensor([1.0, -2.0, 3.5])
    other = one.clone()
    assert journeys.changed_bits(one, other) == 0
    other[1] = 2.0  # the sign
    assert journeys.changed_bits(one, other) == 1
    assert journeys.changed_bits(one, one.double()) == 96


@pytest.mark.long
def test_a_causal_bert_is_a_decoder_of_hugging_face(tmp_path):
    """The paper's left-to-right baseline, one setting away (§5.1)."""
    tokenizer = bw.Tokenizer.from_vocabulary(PIECES)
    config = geometry("bert", vocab_size=len(PIECES), attention="causal")
    task = PretrainingTask(
        tokenizer, InstanceSettings(format="full-sentences"), causal=True, max_length=40
    )
    model = bw.Model(tokenizer, task, task.network(config).eval())
    oracles.redraw(model.network)
    model.save(tmp_path / "m")
    (named,) = transformers.AutoConfig.from_pretrained(tmp_path / "m").architectures
    assert named == "BertLMHeadModel"
    theirs = transformers.BertLMHeadModel.from_pretrained(tmp_path / "m").eval()
    packed, inputs, mask = journeys.batch_of(model)
    with torch.no_grad():
        own = model.network.mlm_head(model.encoder(packed))
        assert error(own, theirs(**inputs).logits[mask]) < 1e-5
    again = bw.load(tmp_path / "m", device="cpu")
    assert again.encoder.config == config
    assert again.generate(["a b"], max_new_tokens=5) == model.generate(["a b"], max_new_tokens=5)


def mlm_logits(model, theirs):
    """The logits of ours and of theirs, for the same batch."""
    packed, inputs, mask = journeys.batch_of(model)
    with torch.no_grad():
        own = model.network.mlm_head(model.encoder(packed))
        return own, theirs(**inputs).logits[mask]


@pytest.mark.long
@pytest.mark.parametrize("family", ["bert", "roberta", "albert", "ernie", "electra", "modernbert"])
def test_a_decoder_that_is_not_tied_has_a_bias_of_its_own(family, tmp_path):
    theirs = journeys.saved_by_them(
        family, "masked-lm", tmp_path / "theirs", tie_word_embeddings=False
    )
    model = bw.load(tmp_path / "theirs", device="cpu")
    assert error(*mlm_logits(model, theirs)) < 1e-5
    model.save(tmp_path / "ours")
    again, info = type(theirs).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not info["missing_keys"]
    assert error(*mlm_logits(model, again.eval())) < 1e-5


@pytest.mark.long
@pytest.mark.parametrize("both", [False, True])
def test_a_tied_decoders_bias_is_the_one_that_counts(both, tmp_path):
    """A file may have it under the decoder's name, alone or with another that is not used."""
    theirs = journeys.saved_by_them("bert", "masked-lm", tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    bias = tensors.pop("cls.predictions.bias")
    tensors["cls.predictions.decoder.bias"] = bias
    if both:
        tensors["cls.predictions.bias"] = bias + 1
    save_file(tensors, file, {"format": "pt"})
    model = bw.load(tmp_path, device="cpu")
    assert error(*mlm_logits(model, type(theirs).from_pretrained(tmp_path).eval())) < 1e-5
    assert ("cls.predictions.bias" in model.report.dropped_tensors) == both


def edit_config(folder, **entries):
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | entries))


@pytest.mark.parametrize(
    ("kind", "entries", "says"),
    [
        ("classification", {"id2label": {"1": "x", "2": "y"}}, "names the outputs 1, 2; the head"),
        ("classification", {"id2label": {"0": "x"}}, "names the outputs 0; the head has 2"),
        ("classification", {"id2label": {"0": "x", "1": "x"}}, "two classes have the same name"),
        ("classification", {"problem_type": "regression"}, "a regression of 2 values is not"),
        ("choice", {"summary_last_dropout": 1.0}, "dropout=1.0: input should be less than 1"),
        ("choice", {"summary_type": "mean"}, "summary_type='mean' is not supported"),
        ("choice", {"summary_activation": "tanh"}, "summary_activation='tanh' is not supported"),
    ],
)
def test_an_impossible_head_is_refused_in_one_line(kind, entries, says, tmp_path):
    journeys.saved_by_them("electra", kind, tmp_path)
    edit_config(tmp_path, **entries)
    with pytest.raises(CheckpointError, match=re.escape(says)):
        bw.load(tmp_path, device="cpu")


@pytest.mark.parametrize("kind", ["classification", "answering"])
def test_a_checkpoint_with_too_few_positions_for_a_task_is_refused(kind, tmp_path):
    config = geometry("bert", vocab_size=len(PIECES), max_position_embeddings=3)
    oracles.theirs_of(config, kind, torch.float32).save_pretrained(tmp_path)
    bw.Tokenizer.from_vocabulary(PIECES).save(tmp_path)
    with pytest.raises(CheckpointError, match="max_seq_length=3: input should be greater"):
        bw.load(tmp_path, device="cpu")


def test_no_token_is_generated_that_the_vocabulary_has_not(tmp_path):
    """Embeddings may have more rows than there are pieces."""
    config = geometry("bert", vocab_size=len(PIECES) + 40, attention="causal")
    theirs = oracles.theirs_of(config, "causal-lm", torch.float32)
    likeliest = theirs.cls.predictions.bias  # whatever was written: a row of no piece
    with torch.no_grad():
        likeliest[len(PIECES) :] += 100
    theirs.save_pretrained(tmp_path)
    bw.Tokenizer.from_vocabulary(PIECES).save(tmp_path)
    model = bw.load(tmp_path, device="cpu")
    for temperature in (0, 1):
        (text,) = model.generate(["a b"], max_new_tokens=5, temperature=temperature)
        assert set(model.tokenizer.encode(text).input_ids) < set(range(len(PIECES)))
        assert text


@pytest.mark.parametrize(("layers", "groups"), [(18, 14), (5, 3), (12, 1)])
def test_layers_share_weights_as_in_hugging_face(layers, groups, tmp_path):
    """18 layers of 14 groups: by integers layer 9 is of group 7, and theirs of group 6."""
    sizes = {"num_hidden_layers": layers, "num_hidden_groups": groups}
    config = geometry("albert", vocab_size=len(PIECES), **sizes)
    theirs = oracles.theirs_of(config, "encoder", torch.float32)
    theirs.save_pretrained(tmp_path)
    bw.Tokenizer.from_vocabulary(PIECES).save(tmp_path)
    model = bw.load(tmp_path, device="cpu")
    packed, inputs, mask = journeys.batch_of(model)
    with torch.no_grad():
        assert error(model.encoder(packed), theirs(**inputs).last_hidden_state[mask]) < 1e-5


@pytest.mark.long
def test_sentence_transformers_limit_is_kept(tmp_path):
    """Version 6 writes it as the tokenizer's `model_max_length` alone."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    journeys.saved_by_them("bert", "encoder", tmp_path / "encoder")
    parts = [Transformer(str(tmp_path / "encoder"), max_seq_length=8), Pooling(48)]
    theirs = SentenceTransformer(modules=parts, device="cpu")
    theirs.save(str(tmp_path / "theirs"))
    text = "a b c " * 5
    model = bw.load(tmp_path / "theirs", device="cpu")
    with pytest.warns(UserWarning, match="1 of 1 texts were truncated to 8 tokens"):
        own = torch.from_numpy(model.embed([text], precision="fp32"))
    assert error(own, torch.from_numpy(theirs.encode([text]))) < 1e-5
    model.save(tmp_path / "ours")
    again = SentenceTransformer(str(tmp_path / "ours"), device="cpu")
    assert again.max_seq_length == 8
    assert error(own, torch.from_numpy(again.encode([text]))) < 1e-5


@pytest.mark.long
@pytest.mark.parametrize("default", [None, "clustering"])
def test_prompts_are_put_before_texts_as_sentence_transformers_does(default, tmp_path):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    journeys.saved_by_them("bert", "encoder", tmp_path / "encoder")
    theirs = SentenceTransformer(
        modules=[Transformer(str(tmp_path / "encoder")), Pooling(48)],
        device="cpu",
        prompts={"query": "a b ", "passage": "c: ", "clustering": "d e d "},
        default_prompt_name=default,
    )
    theirs.save(str(tmp_path / "theirs"))
    texts = ["a c b", "e"]
    bw.load(tmp_path / "theirs", device="cpu").save(tmp_path / "ours")
    again = SentenceTransformer(str(tmp_path / "ours"), device="cpu")
    assert (again.prompts, again.default_prompt_name) == (theirs.prompts, default)
    for place in ("theirs", "ours"):
        model = bw.load(tmp_path / place, device="cpu")
        own = torch.from_numpy(model.embed(texts, precision="fp32"))
        assert error(own, torch.from_numpy(theirs.encode(texts))) < 1e-5
        without = torch.from_numpy(model.embed(texts, precision="fp32", prompt=""))
        assert error(without, torch.from_numpy(theirs.encode(texts, prompt=""))) < 1e-5
        index = Index.open(model, texts, precision="fp32")
        expected = theirs.encode_document(texts, normalize_embeddings=True)
        assert error(torch.from_numpy(index.vectors), torch.from_numpy(expected)) < 1e-5
        best = index.search("b c", top_k=2)[0]
        scores = expected @ theirs.encode_query(["b c"], normalize_embeddings=True)[0]
        assert [hit.score for hit in best] == pytest.approx(sorted(scores)[::-1], abs=1e-5)


def test_prompts_that_cannot_be_followed_are_errors(tmp_path):
    tokenizer = bw.Tokenizer.from_vocabulary(PIECES)
    network = bw.Model.fresh(geometry("bert", vocab_size=len(PIECES)), tokenizer).network
    bw.Model(tokenizer, None, network, sentence=SentenceSettings()).save(tmp_path / "m")
    file = tmp_path / "m" / "config_sentence_transformers.json"
    file.write_text(json.dumps({"prompts": {"query": "q: "}, "default_prompt_name": "none"}))
    with pytest.raises(CheckpointError, match="'none', which is not one of the prompts"):
        bw.load(tmp_path / "m")
    file.write_text(json.dumps({"prompts": {"query": "q: "}}))
    model = bw.load(tmp_path / "m", device="cpu")
    assert model.sentence.prompt("query") == "q: "
    # sentence-transformers' prompt_name chooses a prompt by its name; prompt= is a text.
    with pytest.raises(SettingsError, match=r"name of a prompt .* Give its text: prompt='q: '"):
        model.embed("a", prompt="query")
    with pytest.raises(SettingsError, match="Give the prompt's text as prompt="):
        model.embed("a", prompt_name="query")


def test_bare_encoder_reads_as_many_tokens_as_its_tokenizer_says(tmp_path):
    """As with `truncation=True` in transformers; a saved copy has the limit, too."""
    theirs = journeys.saved_by_them("bert", "encoder", tmp_path / "theirs").eval()
    file = tmp_path / "theirs" / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"model_max_length": 8}))
    text = "a b c d e " * 5
    ids = transformers.AutoTokenizer.from_pretrained(file.parent)(text, truncation=True)
    with torch.no_grad():
        states = theirs(**ids.convert_to_tensors("pt", prepend_batch_axis=True)).last_hidden_state
    expected = torch.nn.functional.normalize(states.mean(1))
    model = bw.load(file.parent, device="cpu")
    model.save(tmp_path / "ours")
    models = [model, bw.load(tmp_path / "ours"), NativeModel.load(file.parent)]
    for one in [*models, extend_positions(model, 100)]:
        options = {"precision": "fp32", "normalize": True}
        with pytest.warns(UserWarning, match="1 of 1 texts were truncated to 8 tokens"):
            own = torch.from_numpy(one.embed([text], pooling="mean", **options))
        assert error(own, expected) < 1e-5
        assert one.embedder(max_seq_length=12).limit == 12
    assert model.features_to(tmp_path / "features.parquet", [text]).num_truncated == 1
    limits = {"max_seq_length": 10, "do_lower_case": False}  # sentence-transformers' own limit
    bw.Model(model.tokenizer, None, model.network, sentence=SentenceSettings()).save(
        tmp_path / "sentences"
    )
    (tmp_path / "sentences" / "sentence_bert_config.json").write_text(json.dumps(limits))
    sentences = bw.load(tmp_path / "sentences")
    assert sentences.embedder().limit == 10
    sentences.max_seq_length = None  # as in a model that was not loaded
    assert sentences.features_to(tmp_path / "other.parquet", [text]).num_truncated == 1


@pytest.mark.parametrize("limit", [8, int(1e30)])
def test_texts_are_cut_where_the_tokenizers_files_say(limit, tmp_path):
    journeys.saved_by_them("bert", "classification", tmp_path)
    file = tmp_path / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"model_max_length": limit}))
    model = bw.load(tmp_path, device="cpu")
    assert model.task.settings.max_seq_length == min(limit, model.encoder.config.max_seqlen)


@pytest.mark.long
def test_a_cross_encoder_gives_sentence_transformers_the_same_scores(tmp_path):
    from sentence_transformers import CrossEncoder

    config = geometry("bert", vocab_size=len(PIECES))
    theirs = oracles.theirs_of(config, "classification", torch.float32, num_labels=1)
    theirs.save_pretrained(tmp_path / "plain")
    bw.Tokenizer.from_vocabulary(PIECES).save(tmp_path / "plain")
    plain = {"device": "cpu", "activation_fn": torch.nn.Identity()}
    CrossEncoder(str(tmp_path / "plain"), **plain).save(str(tmp_path / "theirs"))
    model = bw.load(tmp_path / "theirs", device="cpu")
    model.save(tmp_path / "ours")
    (answer,) = model.predict([("a b c", "c a")], precision="fp32")
    for folder in ("theirs", "ours"):
        (score,) = CrossEncoder(str(tmp_path / folder), device="cpu").predict([("a b c", "c a")])
        assert answer["value"] == pytest.approx(float(score), abs=1e-5)


def test_a_discriminator_detects_replaced_tokens(tmp_path):
    """What `predict` says of each token is what their model says of it."""
    theirs = journeys.saved_by_them("electra", "replaced-tokens", tmp_path / "m")
    model = bw.load(tmp_path / "m", device="cpu")
    text, pair = "a b  c\u00ad a", "c a"
    encoding = model.tokenizer.encode(text, pair)
    with torch.no_grad():
        logits = theirs(
            torch.tensor(encoding.input_ids[None].astype("int64")),
            token_type_ids=torch.tensor(encoding.token_type_ids[None].astype("int64")),
        ).logits[0]
    alone, both = model.predict(["b", (text, pair)])
    assert alone.keys() == {"tokens"}
    assert [entry["token"] for entry in alone["tokens"]] == ["b"]
    predicted = both["tokens"] + both["pair_tokens"]
    assert [entry["token"] for entry in both["pair_tokens"]] == ["c", "a"]
    inside = torch.from_numpy(~encoding.special_tokens_mask)
    assert [entry["probability"] for entry in predicted] == pytest.approx(
        torch.sigmoid(logits[inside]).tolist(), rel=1e-4
    )
    assert [text[entry["start"] : entry["end"]] for entry in both["tokens"]] == ["a", "b", "c", "a"]
    with pytest.raises(BertworksError, match="not for masked words or next sentences"):
        model.fill_mask("a [MASK]")
    with pytest.raises(DataError, match="do not say which of their tokens were replaced"):
        model.evaluate([{"text": "a b"}])


def test_a_padded_discriminator_has_the_same_logits(tmp_path):
    theirs = journeys.saved_by_them("electra", "replaced-tokens", tmp_path / "m")
    model = bw.load(tmp_path / "m", device="cpu")
    _, inputs, mask = journeys.batch_of(model)
    network = PaddedNetwork(model.network)
    assert list(network.outputs_by_name(**inputs)) == ["logits"]
    with torch.no_grad():
        (logits,) = network(**inputs)
        assert error(logits[mask], theirs(**inputs).logits[mask]) < 1e-5


@pytest.mark.long
@pytest.mark.parametrize("family", ALL)
def test_padded_batches_give_what_packs_give(family):
    assert journeys.padded_and_packed(family) < 1e-5


@pytest.mark.long
@pytest.mark.parametrize(
    "family",
    ["bert", *(pytest.param(family, marks=pytest.mark.slow) for family in ALL if family != "bert")],
)
def test_onnx_runtime_gives_the_same(family, tmp_path):
    assert journeys.onnx(family, tmp_path / "onnx") < ONNX_TOLERANCE
