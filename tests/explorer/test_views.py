"""Views of one text equal the library's verbs, or a plain computation."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from bertworks import explorer
from bertworks.checkpoints.families import FAMILIES
from bertworks.errors import DataError
from bertworks.explorer.inputs import ablated_heads_mask, encode_input
from bertworks.explorer.target_kinds import targets_of
from bertworks.inference.activations import _RecordingAttention
from bertworks.model import Model
from bertworks.nn.encoder import BareEncoder, Encoder
from bertworks.packed import Packed
from bertworks.tasks.pretraining.instances import InstanceSettings
from bertworks.tasks.pretraining.next_sentence import NextSentenceTask
from bertworks.tasks.pretraining.replaced_tokens import ReplacedTokensTask
from bertworks.tasks.pretraining.task import PretrainingTask
from bertworks.tasks.task import Task
from bertworks.text.tokenizer import Tokenizer
from bertworks.training.checkpoint import save_weights
from tests.checkpoints.oracles import geometry, redraw
from tests.serving.conftest import LIMIT, PIECES
from tests.serving.test_fill_mask import _probability

TEXT = "the door was [MASK] in london"
GetModel = Callable[[str], Model]


TOKENIZER = Tokenizer.from_vocabulary(PIECES)
SENTENCES = InstanceSettings(format="full-sentences")


def model_of(task: Task[Any], family: str, seed: int = 0, **values: Any) -> Model:
    """A model of a family with random weights."""
    network = task.network(geometry(family, vocab_size=len(PIECES), **values))
    redraw(network, seed)
    return Model(TOKENIZER, task, network.eval())


def pretrained(family: str, seed: int = 0, **values: Any) -> Model:
    """A language model of a family; it predicts masked words, if the family is not causal."""
    causal = geometry(family).attention == "causal"
    task = PretrainingTask(TOKENIZER, SENTENCES, causal=causal, max_length=LIMIT)
    return model_of(task, family, seed, **values)


def tops(answer: dict) -> list[tuple[int, float]]:
    return [(one["id"], pytest.approx(one["probability"], abs=1e-6)) for one in answer["top"]]


def test_words_have_the_marks_of_their_last_character(get_model: GetModel) -> None:
    found = explorer.pieces(get_model("pretrained"), "the doore\u0301 was")["pieces"]
    assert [word["text"] for word in found["words"]] == ["the", "doore\u0301", "was"]
    assert [word["end"] for word in found["words"]] == [3, 10, 14]


def test_pieces_know_their_characters_and_words(get_model: GetModel) -> None:
    text, pair = "the riverx was  [MASK]", "é€ door"
    result = explorer.pieces(get_model("pretrained"), text, pair)["pieces"]
    words = [(word["text"], word["field"]) for word in result["words"]]
    firsts = [("the", "text"), ("riverx", "text"), ("was", "text"), ("[MASK]", "text")]
    assert words == [*firsts, ("é€", "pair"), ("door", "pair")]
    encoding = get_model("pretrained").tokenizer.encode(text, pair, typed_mask=True)
    tokens = result["tokens"]
    assert [token["id"] for token in tokens] == encoding.input_ids.tolist()
    assert [token["segment"] for token in tokens] == encoding.token_type_ids.tolist()
    assert [token["position"] for token in tokens] == list(range(len(tokens)))
    for token in tokens:
        if token["special"]:
            assert (token["field"], token["word"]) == (None, None)
        else:
            word = result["words"][token["word"]]
            assert word["start"] <= token["start"] < token["end"] <= word["end"]
            assert tokens[word["tokens"][0]]["start"] == word["start"]
    assert [token["token"] for token in tokens if token["unknown"]] == ["[UNK]"]


def test_a_tagger_reads_words_as_its_task_does(get_model: GetModel) -> None:
    model, text = get_model("tagger"), "the door, in london!"
    words = explorer.pieces(model, text)["pieces"]["words"]
    assert [word["text"] for word in words] == model.predict([text])[0]["words"]
    assert [text[word["start"] : word["end"]] for word in words] == [w["text"] for w in words]


def test_blanks_are_filled_as_fill_mask_does(get_model: GetModel) -> None:
    model = get_model("pretrained")
    text = "the [MASK] was [MASK] in london"
    blanks = explorer.fill(model, text, top_k=3)["blanks"]
    expected = model.fill_mask(text, top_k=3)
    assert model.fill_mask(text, top_k=1) == [own[:1] for own in expected]
    assert [blank["position"] for blank in blanks] == [2, 4]
    for blank, own in zip(blanks, expected, strict=True):
        assert tops(blank["both"]) == [(one["id"], one["probability"]) for one in own]
        assert tops(blank["layers"][-1]) == tops(blank["both"])
        assert len(blank["layers"]) == 3
        assert blank["both"]["original"] is None


def test_words_are_masked_by_their_numbers(get_model: GetModel) -> None:
    model = get_model("pretrained")
    (blank,) = explorer.fill(model, "the door was open", words=[1])["blanks"]
    (typed,) = explorer.fill(model, "the [MASK] was open")["blanks"]
    assert tops(blank["both"]) == tops(typed["both"])
    ids = model.tokenizer.encode("the [MASK] was open", typed_mask=True).input_ids
    with torch.inference_mode():
        hidden = model.encoder(Packed.from_arrays([ids]).to("cpu"))
        shares = torch.softmax(model.network.mlm_head(hidden[2:3])[0].double(), -1)
    original = blank["both"]["original"]
    assert (original["token"], blank["word"]) == ("door", 1)
    assert original["probability"] == pytest.approx(float(shares[original["id"]]), rel=1e-5)
    order = shares.argsort(descending=True).tolist()
    assert original["rank"] == 1 + order.index(original["id"])
    expected = -(shares * shares.log2()).sum().item()
    assert blank["both"]["entropy"] == pytest.approx(expected, rel=1e-4)


@pytest.mark.long
@pytest.mark.parametrize("family", ["bert", "modernbert", "albert"])
def test_a_layers_answer_is_that_of_a_model_that_ends_there(family: str) -> None:
    model = pretrained(family)
    (blank,) = explorer.fill(model, TEXT)["blanks"]
    for layers in (1, 2):
        short = pretrained(family, num_hidden_layers=layers, num_hidden_groups=None)
        if family == "albert":
            short = pretrained(family, num_hidden_layers=layers)
        own = short.network.state_dict()
        weights = model.network.state_dict()
        short.network.load_state_dict({name: weights[name] for name in own})
        assert tops(blank["layers"][layers]) == [
            (one["id"], one["probability"]) for one in short.fill_mask(TEXT, top_k=10)[0]
        ]


@pytest.mark.long
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_family_is_explained(family: str) -> None:
    model = pretrained(family)
    if model.task.causal:
        assert explorer.explain(model, "the door")["fill"]["blanks"][0]["left"]["top"]
        return
    result = explorer.explain(model, TEXT)
    (expected,) = model.fill_mask(TEXT, top_k=10)
    answer = [(one["id"], one["probability"]) for one in expected]
    assert tops(result["fill"]["blanks"][0]["both"]) == answer
    assert result["prediction"]["probability"] == pytest.approx(answer[0][1], abs=1e-6)
    assert np.shape(result["heads"]["effects"]) == (3, 4)
    assert max(abs(one["change"]) for one in result["heads"]["ranked"]) > 1e-6


def test_left_context_excludes_the_words_to_the_right() -> None:
    model = pretrained("bert")
    one, two = (
        explorer.fill(model, f"the door was [MASK] {more}")["blanks"][0]
        for more in ("in london", "a river")
    )
    assert tops(one["left"]) == tops(two["left"])
    assert tops(one["both"]) != tops(two["both"])
    other = explorer.fill(model, "a door was [MASK] in london")["blanks"][0]
    assert tops(one["left"]) != tops(other["left"])
    (last,) = explorer.fill(model, "in london the door was [MASK]")["blanks"]
    assert tops(last["left"]) == tops(last["both"]), "there is nothing to the right"


def test_candidates_of_several_pieces_take_as_many_masks(get_model: GetModel) -> None:
    model, words = get_model("pretrained"), ["open", "nu", "xyz"]
    (blank,) = explorer.fill(model, TEXT, candidates=words)["blanks"]
    for word, candidate in zip(words, blank["both"]["candidates"], strict=True):
        ids = model.tokenizer.piece_ids([word])[0].tolist()
        assert candidate["pieces"] == model.tokenizer.tokens(ids)
        assert candidate["probability"] == pytest.approx(
            _probability(model, TEXT, 0, ids), rel=1e-4
        )
    assert blank["layers"][-1]["candidates"] == blank["both"]["candidates"]


def test_causal_model_predicts_the_next_piece(get_model: GetModel) -> None:
    model = get_model("causal")
    (blank,) = explorer.fill(model, "the door")["blanks"]
    likeliest = blank["left"]["top"][0]["token"]
    assert model.generate(["the door"], max_new_tokens=1) == [
        model.tokenizer.decode([blank["left"]["top"][0]["id"]])
    ]
    assert blank["both"] is None
    prediction = explorer.predict(model, "the door")["prediction"]
    assert prediction["target"]["token"] == likeliest
    with pytest.raises(DataError, match="candidates"):
        explorer.fill(model, "the door", candidates=["nu"])


def test_attention_as_bytes_and_its_measures() -> None:
    model = pretrained("bert")
    result = explorer.attention(model, TEXT)
    coded = result["weights"]
    weights = np.frombuffer(base64.b64decode(coded["base64"]), np.uint8).reshape(coded["shape"])
    tokens = len(result["pieces"]["tokens"])
    assert weights.shape == (3, 4, tokens, tokens)
    assert np.abs(weights.sum(-1) / 255 - 1).max() <= tokens / 510
    for layer in model.encoder.layers:  # queries and keys of zeros: each token attends to all alike
        with torch.no_grad():
            layer.attention.query_key_value.weight[:96] = 0
            layer.attention.query_key_value.bias[:96] = 0
    measures = explorer.attention(model, TEXT)["measures"]
    places = np.arange(tokens)
    expected = {
        "entropy": math.log2(tokens),
        "separator": 1 / tokens,
        "first": 1 / tokens,
        "self": 1 / tokens,
        "previous": (tokens - 1) / tokens**2,
        "next": (tokens - 1) / tokens**2,
        "distance": np.abs(places[:, None] - places).mean(),
    }
    for name, value in expected.items():
        assert np.allclose(measures[name], value, rtol=1e-4), name
        assert np.shape(measures[name]) == (3, 4)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "text", "pair"),
    [
        ("pretrained", TEXT, None),
        ("pretrained", "the door was open", "a river"),
        ("classifier", "the door was open", None),
        ("topics", "the door was open", None),
        ("reranker", "the door", "a river"),
        ("tagger", "the door in london", None),
        ("answering", "was it deep", "the door was open in london. a river"),
        ("causal", "the door was", None),
    ],
)
def test_each_head_and_word_by_itself_moves_a_prediction(
    get_model: GetModel, name: str, text: str, pair: str | None
) -> None:
    model = get_model(name)
    base = explorer.predict(model, text, pair)["prediction"]
    result = explorer.heads(model, text, pair)
    assert result["prediction"] == base
    effects = np.array(result["effects"])
    assert effects.shape == (2, 2)
    for layer, head in np.ndindex(2, 2):
        answer = explorer.predict(
            model, text, pair, target=base["target"], ablated_heads=[(layer, head)]
        )
        change = answer["prediction"]["probability"] - base["probability"]
        assert effects[layer, head] == pytest.approx(change, abs=1e-6)
    changes = [abs(one["change"]) for one in result["ranked"]]
    assert changes == sorted(changes, reverse=True)
    assert len({(one["layer"], one["head"]) for one in result["ranked"]}) == 4
    assert max(changes) > 1e-6
    hidden = explorer.occlusion(model, text, pair)
    assert hidden["prediction"] == base
    own = base["target"].get("position") if base["target"]["kind"] == "blank" else None
    words = [word["number"] for word in result["pieces"]["words"] if own not in word["tokens"]]
    assert [one["word"] for one in hidden["words"]] == words
    assert max(abs(one["change"]) for one in hidden["words"]) > 1e-6


@pytest.mark.parametrize("name", ["tagger", "causal", "classifier", "topics"])
def test_pair_for_a_model_of_single_texts_is_refused(get_model: GetModel, name: str) -> None:
    """As in `Model.predict`, which would not read it either."""
    model = get_model(name)
    assert not explorer.describe(model)["second_text"]
    with pytest.raises(DataError, match="pair: the model takes single texts"):
        encode_input(model, "the door", "a river")


@pytest.mark.parametrize("name", ["encoder", "pretrained", "reranker", "answering"])
def test_pair_is_read_where_a_model_takes_one(get_model: GetModel, name: str) -> None:
    model = get_model(name)
    assert explorer.describe(model)["second_text"]
    assert encode_input(model, "the door", "a river").is_pair


def test_layers_below_a_head_that_is_off_are_computed_once(monkeypatch) -> None:
    model = pretrained("bert")  # of three layers with four heads
    size = len(explorer.pieces(model, TEXT)["pieces"]["tokens"])
    layers = []
    context = _RecordingAttention.context

    def record_layer(self, hidden, scope):
        layers.append(scope.layer)
        return context(self, hidden, scope)

    monkeypatch.setattr(_RecordingAttention, "context", record_layer)
    monkeypatch.setattr("bertworks.explorer.target._MAX_BATCH_TOKENS", 4 * size)
    effects = explorer.heads(model, TEXT)["effects"]
    text, states = [0, 1, 2], [0, 1, 2]  # the prediction, and the states that others begin with
    assert sorted(layers) == sorted([*text, *states, 0, 1, 2, 1, 2, 2])
    # Several layers in one pack:
    monkeypatch.setattr("bertworks.explorer.target._MAX_BATCH_TOKENS", 3 * size)
    assert np.allclose(explorer.heads(model, TEXT)["effects"], effects, atol=1e-6)


def test_a_hidden_word_is_a_mask_in_its_place(get_model: GetModel) -> None:
    model = get_model("pretrained")
    result = explorer.occlusion(model, TEXT, target={"token": "open"})
    assert (result["replacement"], len(result["words"])) == ("[MASK]", 5)
    masked = explorer.fill(model, "the [MASK] was [MASK] in london", candidates=["open"])
    chance = masked["blanks"][1]["both"]["candidates"][0]["probability"]
    assert result["words"][1]["probability"] == pytest.approx(chance, abs=1e-6)
    model = get_model("classifier")
    result = explorer.occlusion(model, "the door was open", target={"label": "so"})
    ids = model.tokenizer.encode("the door was open").input_ids.copy()
    ids[2] = model.tokenizer.mask_id
    with torch.inference_mode():
        logits = model.network.predict(_batch(ids))["logits"][0]
    expected = torch.softmax(logits, -1)[list(model.labels).index("so")]
    assert result["words"][1]["probability"] == pytest.approx(float(expected), abs=1e-6)


def _batch(ids: np.ndarray):
    from bertworks.packed import Batch

    return Batch(Packed.from_arrays([ids]).to("cpu"))


def test_predictions_are_those_of_the_task(get_model: GetModel) -> None:
    def predict(name: str, *texts: str, **target) -> dict:
        return explorer.predict(get_model(name), *texts, target=target or None)["prediction"]

    text = "the door was open in london"
    (answer,) = get_model("classifier").predict([text])
    found = predict("classifier", text)
    assert found["target"] == {"kind": "label", "label": answer["label"], "name": answer["label"]}
    shown = {one["name"]: pytest.approx(one["probability"]) for one in found["distribution"]}
    assert shown == answer["probabilities"]
    (answer,) = get_model("topics").predict([text])
    assert predict("topics", text, label="so")["probability"] == pytest.approx(
        answer["probabilities"]["so"]
    )
    (answer,) = get_model("reranker").predict([(text, "a river")])
    assert predict("reranker", text, "a river")["probability"] == pytest.approx(answer["value"])
    (answer,) = get_model("tagger").predict([text])
    for word, (tag, chance) in enumerate(zip(answer["tags"], answer["probabilities"], strict=True)):
        assert predict("tagger", text, word=word, tag=tag)["probability"] == pytest.approx(chance)
    expected = get_model("pretrained").next_sentence(text, "a river")
    assert predict("pretrained", text, "a river")["probability"] == pytest.approx(expected)
    (answer,) = get_model("answering").predict([("was it", "the door was open")])
    best = next(one for one in answer["alternatives"] if one["answer"])
    assert predict("answering", "was it", "the door was open")["target"]["text"] == best["answer"]


def test_a_replaced_token_is_one_kind_of_prediction() -> None:
    model = model_of(ReplacedTokensTask(TOKENIZER, max_length=LIMIT), "electra")
    (answer,) = model.predict(["the door was open"])
    probabilities = [token["probability"] for token in answer["tokens"]]
    prediction = explorer.predict(model, "the door was open")["prediction"]
    assert prediction["target"]["position"] == 1 + int(np.argmax(probabilities))
    assert prediction["probability"] == pytest.approx(max(probabilities), abs=1e-6)
    scores = {one["name"]: one["probability"] for one in prediction["distribution"]}
    assert scores == pytest.approx(
        {"replaced": max(probabilities), "original": 1 - max(probabilities)}, abs=1e-6
    )
    assert explorer.heads(model, "the door was open")["ranked"]


def test_a_model_of_next_sentences_alone_has_one_prediction() -> None:
    instances = InstanceSettings(format="segment-pair")
    model = model_of(NextSentenceTask(TOKENIZER, instances, max_length=LIMIT), "bert")
    prediction = explorer.predict(model, "the door", "a river")["prediction"]
    expected = model.next_sentence("the door", "a river", precision="fp32")
    assert prediction["probability"] == pytest.approx(expected, abs=1e-6)
    with pytest.raises(DataError, match="needs two texts"):
        explorer.predict(model, "the door")


def test_steps_add_up(get_model: GetModel) -> None:
    model = get_model("pretrained")
    result = explorer.steps(model, TEXT, target={"token": "open"})
    parts = {part["name"]: np.array(part["rows"]) for part in result["embeddings"]}
    assert np.allclose(
        parts["word"] + parts["position"] + parts["segment"], parts["sum"], atol=1e-4
    )
    encoding = model.tokenizer.encode(TEXT, typed_mask=True)
    with torch.inference_mode():
        states = list(
            model.encoder.hidden_states(Packed.from_arrays([encoding.input_ids]).to("cpu"))
        )
    for own, state in zip(result["states"], states, strict=True):
        assert own["shape"] == list(state.shape)
        assert np.allclose(own["rows"], state[:, :8], atol=1e-3)
        assert np.allclose(own["norms"], state.norm(dim=-1), rtol=1e-3)
    assert np.allclose(parts["norm"], result["states"][0]["rows"], atol=1e-4)
    head = result["head"]
    ((likeliest, *_),) = model.fill_mask(TEXT)
    assert head["probabilities"][0]["name"] == head["logits"][0]["name"] == likeliest["token"]
    first, second = head["logits"][:2]
    ratio = head["probabilities"][0]["probability"] / head["probabilities"][1]["probability"]
    assert math.exp(first["logit"] - second["logit"]) == pytest.approx(ratio, rel=1e-4)
    assert result["prediction"]["target"]["token"] == "open"
    bare = explorer.steps(get_model("encoder"), "the door")
    assert (bare["head"], bare["prediction"]) == (None, None)


def test_checkpoints_of_a_run_are_filled_in(tmp_path) -> None:
    model, other = pretrained("bert"), pretrained("bert", seed=1)
    run = tmp_path / "run"
    model.save(run / "model")
    for step, network in ((2, other.network), (10, model.network)):
        save_weights(run / "checkpoints" / f"step-{step:08d}" / "weights.safetensors", network)
    for source in (run, run / "model"):
        model.source = str(source)
        assert list(explorer.checkpoints(model)) == [2, 10]
        for step, expected in ((2, other), (10, model)):
            found = explorer.fill(model, TEXT, checkpoint=step)
            assert found["checkpoint"] == step
            assert tops(found["blanks"][0]["both"]) == [
                (one["id"], one["probability"]) for one in expected.fill_mask(TEXT, top_k=10)[0]
            ]
    assert explorer.describe(model)["checkpoints"] == [2, 10]
    with pytest.raises(DataError, match=r"no checkpoint of step 3. Has: 2, 10"):
        explorer.fill(model, TEXT, checkpoint=3)


@pytest.mark.long
def test_explain_has_the_results_of_every_view(get_model: GetModel, directories) -> None:
    for name in directories:
        pair = "a river was deep" if name in ("answering", "reranker") else None
        model = get_model(name)
        result = explorer.explain(model, "the door was open", pair)
        assert json.loads(json.dumps(result, allow_nan=False)) == result
        assert (result["prediction"] is None) == (name in ("encoder", "choice", "pretrained"))
        assert (result["masks"] is None) == (name != "pretrained")
        assert (result["model"]["name"], result["model"]["views"]["pieces"]) == (name, None)
    model = get_model("pretrained")
    result = explorer.explain(model, TEXT)
    assert [one["word"] for one in result["masks"]] == [0, 1, 2, 4, 5], "but for the typed one"
    for one in result["masks"]:
        (expected,) = (
            blank
            for blank in explorer.fill(model, TEXT, words=[one["word"]], top_k=5)["blanks"]
            if blank["word"] == one["word"]
        )
        assert one["blanks"] == [expected]
    assert result["heads"] == explorer.heads(model, TEXT)
    assert result["fill"] == explorer.fill(model, TEXT)


@pytest.mark.long
def test_a_model_is_left_as_it_was(get_model: GetModel) -> None:
    model = pretrained("bert")
    model.network.train()
    weights = {name: value.clone() for name, value in model.network.state_dict().items()}
    explorer.explain(model, TEXT)
    after = model.network.state_dict()
    assert all(torch.equal(weights[name], after[name]) for name in weights)
    assert all(module.training for module in model.network.modules())
    assert all(weight.requires_grad for weight in model.network.parameters())


def test_missing_heads_are_named_in_one_line() -> None:
    bare = Model(
        TOKENIZER, None, BareEncoder(Encoder(geometry("bert", num_hidden_layers=0), pooler=False))
    )
    views = explorer.describe(bare)["views"]
    assert targets_of(bare) == []
    for view, function in (("fill", explorer.fill), ("heads", explorer.heads)):
        with pytest.raises(explorer.WrongModelError) as raised:
            function(bare, "the door")
        assert str(raised.value) in (views[view], views["predict"])
    with pytest.raises(explorer.WrongModelError, match="without layers"):
        explorer.attention(bare, "the door")
    assert "without layers" in views["attention"]
    assert views["steps"] is None
    assert len(explorer.steps(bare, "the door")["states"]) == 1


@pytest.mark.parametrize("head", [(2, 0), (0, 2), (-1, 0), (0, -1)])
def test_a_head_that_does_not_exist_cannot_be_off(
    get_model: GetModel, head: tuple[int, int]
) -> None:
    model = get_model("pretrained")
    config = model.encoder.config
    assert (config.num_hidden_layers, config.num_attention_heads) == (2, 2)
    mask = ablated_heads_mask(model, [[], [(0, 1), (1, 0)]])
    assert mask is not None
    assert mask.nonzero().tolist() == [[0, 1, 1], [1, 1, 0]]
    with pytest.raises(DataError, match=f"there is no head {head[1]} in a layer {head[0]}"):
        ablated_heads_mask(model, [[(0, 0), head]])


@pytest.mark.parametrize("name", ["encoder", "classifier", "causal"])
def test_words_are_masked_only_for_a_model_that_predicts_them(
    get_model: GetModel, name: str
) -> None:
    with pytest.raises(explorer.WrongModelError):
        encode_input(get_model(name), "the door was open", words=[1])
    assert encode_input(get_model("pretrained"), "the door was open", words=[1]).hidden_ids
