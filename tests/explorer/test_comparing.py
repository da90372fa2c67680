"""Views of several texts, on models with known answers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bertworks import explorer
from bertworks.errors import DataError
from bertworks.model import Model
from bertworks.nn.encoder import BareEncoder, Encoder
from bertworks.text.tokenizer import Tokenizer
from tests.serving.conftest import PIECES, config

SIZE = 32


@pytest.fixture(scope="module")
def looking_back() -> Model:
    """A model of one layer of two heads: the first attends to the token before, the second alike
    to all."""
    geometry = {"hidden_size": 2 * SIZE, "num_hidden_layers": 1, "max_position_embeddings": SIZE}
    network = BareEncoder(Encoder(config(**geometry), pooler=False))
    embeddings = network.encoder.embeddings
    attention = network.encoder.layers[0].attention.query_key_value
    with torch.no_grad():
        for weight in (*embeddings.parameters(), attention.weight, attention.bias):
            weight.zero_()
        embeddings.norm.weight.fill_(1)
        embeddings.position_embeddings.weight[:, :SIZE] = torch.eye(SIZE)
        query, key, _ = attention.weight.view(3, 2, SIZE, 2 * SIZE)
        query[0, :, :SIZE] = 5 * torch.eye(SIZE).roll(-1, 0)  # position i asks for i - 1
        key[0, :, :SIZE] = 5 * torch.eye(SIZE)
    return Model(Tokenizer.from_vocabulary(PIECES), None, network.eval())


def test_a_head_that_finds_the_previous_word_is_found(looking_back: Model) -> None:
    texts = ["the door was open", "a deepest river"]  # the last word but one has four pieces
    result = explorer.claim(looking_back, texts, "previous")
    assert (result["num_words"], result["scores"][0][0]) == (5, 1.0)
    assert result["ranked"][0] == {"layer": 0, "head": 0, "score": 1.0}
    assert result["baseline"] == {"offset": -1, "share": 1.0}
    assert result["num_heads_above_baseline"] == 0, "a fixed offset finds it as well"
    later = explorer.claim(looking_back, ["the door was open"], "links", links=[[[1, 2], [2, 3]]])
    assert (later["scores"][0][0], later["baseline"]["offset"]) == (0.0, 1)
    measures = explorer.attention(looking_back, texts[0])["measures"]
    assert measures["previous"][0][0] > 0.8
    assert measures["previous"][0][1] == pytest.approx(5 / 36, rel=1e-3)


def test_a_claim_is_counted_by_words(looking_back: Model) -> None:
    texts = ["the door the river", "the door was"]
    result = explorer.claim(looking_back, texts, "same-word")
    assert (result["num_words"], result["scores"][0][0]) == (2, 0.0)
    assert result["baseline"] == {"offset": 2, "share": 0.5}
    links = [[[3, 2], [1, 0]], [[2, 0]]]
    result = explorer.claim(looking_back, texts, "links", links=links)
    assert (result["num_words"], result["scores"][0][0]) == (3, 0.66667)
    assert result["baseline"] == {"offset": -1, "share": pytest.approx(2 / 3)}
    first = explorer.claim(looking_back, ["the door the river"], "first")
    assert (first["num_words"], first["scores"][0][0]) == (3, 0.33333)


def test_word_in_contexts_has_a_vector_for_each_occurrence(looking_back: Model, get_model) -> None:
    texts = ["the door was open", "open the Door", "a door is a door"]
    model = get_model("pretrained")
    result = explorer.contexts(model, "door", texts)
    shown = [(point["text"], point["shown"]) for point in result["points"]]
    assert shown == [(0, "door"), (1, "Door"), (2, "door"), (2, "door")]
    assert np.allclose(result["static"], 1), "the table knows one vector"
    similarity = np.array(result["similarity"])
    assert similarity.shape == (3, 4, 4)
    assert np.allclose(np.einsum("lpp->lp", similarity), 1, atol=1e-4)
    vectors = []
    for point in result["points"]:
        ids = model.tokenizer.encode(texts[point["text"]]).input_ids
        (at,) = point["tokens"]
        assert ids[at] == model.tokenizer.token_to_id("door")
        vectors.append(explorer.steps(model, texts[point["text"]])["states"][-1]["norms"][at])
    few = explorer.contexts(model, "door", texts[:1] * 2 + texts[1:2])
    places, cosines = np.array(few["map"]), np.array(few["similarity"])
    for layer in range(3):  # three points lie in a plane: a map in two dimensions loses nothing
        assert np.allclose(places[layer][0], places[layer][1], atol=1e-4)
        assert cosines[layer][0][1] == pytest.approx(1, abs=1e-4)
        assert sum(few["explained_variance"][layer]) == pytest.approx(1, abs=1e-4)
    distance = np.linalg.norm(places[-1][0] - places[-1][2])
    one, two = vectors[0], vectors[1]
    expected = np.sqrt(one**2 + two**2 - 2 * one * two * cosines[-1][0][2])
    assert distance == pytest.approx(expected, rel=1e-2)


@pytest.mark.long
def test_pieces_of_a_word_are_one_point(looking_back: Model) -> None:
    (point,) = explorer.contexts(looking_back, "deepest", ["the deepest, deep river"])["points"]
    assert (point["start"], point["end"], len(point["tokens"])) == (4, 11, 4)
    with pytest.raises(DataError, match=r"texts\[1\]: does not hold 'deep'"):
        explorer.contexts(looking_back, "deep", ["deep", "the deepest"])
    with pytest.raises(DataError, match="64"):
        explorer.contexts(looking_back, "a", ["a a", *["a"] * 63])


def test_text_has_no_differences_from_itself(get_model) -> None:
    text = "the door was [MASK] in london"
    result = explorer.minimal_pair(get_model("pretrained"), text, text)
    assert result["alignment"] == [[at, at] for at in range(8)]
    assert not any(result["is_different"])
    assert np.allclose(result["vectors"], 1, atol=1e-4)
    assert np.shape(result["vectors"]) == (3, 8)
    assert np.allclose(result["attention"], 0, atol=1e-6)
    assert result["prediction"] == result["other_prediction"]


def test_minimal_pair_has_aligned_vectors_and_predictions(get_model) -> None:
    model = get_model("pretrained")
    one, two = "the door was [MASK] in london", "the river was [MASK] in london"
    result = explorer.minimal_pair(model, one, two, target={"token": "open"})
    assert result["is_different"] == [False, False, True, *[False] * 5]
    for text, key in ((one, "prediction"), (two, "other_prediction")):
        expected = explorer.predict(model, text, target={"token": "open"})["prediction"]
        assert result[key] == expected
    vectors = np.array(result["vectors"])
    assert np.allclose(np.delete(vectors[0], 2), 1, atol=1e-4), "one piece differs at first"
    assert vectors[0, 2] < 0.999
    assert (vectors[-1] < 1 - 1e-5).all(), "all see it in the end"
    attention = np.array(result["attention_pieces"])
    assert attention.shape == (2, 8)
    assert ((attention >= 0) & (attention <= 1)).all()
    assert np.allclose(attention.mean(-1), np.array(result["attention"]).mean(-1), atol=1e-4)
    assert attention.max() > 1e-3
    longer = explorer.minimal_pair(model, "the door was open", "the door of a river was open", "a")
    assert [1, 1] in longer["alignment"]
    assert [4, 8] in longer["alignment"]
    assert not any(longer["is_different"])
    shifted_pair = explorer.minimal_pair(
        get_model("tagger"), "in london", "the door in london", target={"word": 1, "tag": "B-LOC"}
    )
    assert shifted_pair["other_prediction"]["target"]["word"] == 3
    gone = explorer.minimal_pair(get_model("pretrained"), "the [MASK]", "the door")
    assert gone["other_prediction"] is None


def test_texts_are_compared_without_attention_heads() -> None:
    tokenizer = Tokenizer.from_vocabulary(PIECES)
    geometry = config(family="bertworks", mixer="lstm", attention="causal", positions="none")
    result = explorer.minimal_pair(Model.fresh(geometry, tokenizer), "the door", "the river")
    assert result["attention"] is None
    assert result["attention_pieces"] is None
    assert len(result["vectors"]) == geometry.num_hidden_layers + 1
