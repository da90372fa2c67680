"""The handle: what it says of texts, and what it says when it cannot."""

from __future__ import annotations

import pytest
import torch

import bertworks as bw
from tests.checkpoints.test_store import tiny


def test_fill_mask_and_next_sentence():
    model = tiny()
    (one, two) = model.fill_mask("a [MASK] c [MASK]", top_k=3)
    assert len(one) == len(two) == 3
    assert one[0]["probability"] >= one[1]["probability"] > 0
    assert 0 < model.next_sentence("a b", "c d") < 1


def test_only_fill_mask_reads_a_typed_mask():
    model = tiny()
    assert model.tokenizer.mask_id not in model.tokenizer.encode("a [MASK]").input_ids
    with pytest.raises(bw.BertworksError, match=r"no \[MASK\] in the text"):
        model.fill_mask("a b")


def test_answers_come_in_order_and_do_not_depend_on_company():
    model = tiny("classification")
    texts = ["a", "a b c d e", "b c", "a", "h g f e d c b a"]
    together = model.predict(texts)
    for text, answer in zip(texts, together, strict=True):
        (alone,) = model.predict([text])
        assert alone["label"] == answer["label"]
        assert alone["probabilities"]["yes"] == pytest.approx(
            answer["probabilities"]["yes"], abs=1e-6
        )


def published_classifier():
    """One that does not say whether it takes single texts or pairs."""
    model = tiny("classification")
    model.task.settings = model.task.settings.with_values(takes_either=True)
    return model


def test_a_published_classifier_takes_texts_and_pairs():
    model = published_classifier()
    one, pair = model.predict(["a"]), model.predict([("a", "b")])
    assert one[0]["probabilities"] != pair[0]["probabilities"]


def test_each_handle_says_what_it_cannot():
    classifier, pretrained = tiny("classification"), tiny()
    with pytest.raises(bw.BertworksError, match="not for masked words or next sentences"):
        classifier.fill_mask("a [MASK]")
    with pytest.raises(bw.BertworksError, match="single texts"):
        classifier.predict([("a", "b")])
    with pytest.raises(bw.BertworksError, match="single texts and pairs cannot be mixed"):
        published_classifier().predict(["a", ("a", "b")])
    for item in (float("nan"), None, ("a", "b", "c"), ()):  # NaN: a gap in a column of pandas
        with pytest.raises(bw.BertworksError, match="is no text, no pair of texts and no row"):
            classifier.predict(["a", item])
    bare = bw.Model.fresh(pretrained.encoder.config, pretrained.tokenizer)
    with pytest.raises(bw.BertworksError, match="bare encoder"):
        bare.predict(["a"])


def test_a_fresh_model_leaves_the_random_state_alone():
    model = tiny()
    before = torch.get_rng_state()
    one = bw.Model.fresh(model.encoder.config, model.tokenizer, seed=3)
    other = bw.Model.fresh(model.encoder.config, model.tokenizer, seed=3)
    assert torch.equal(before, torch.get_rng_state())
    weights = [m.encoder.state_dict()["layers.0.attention.output.weight"] for m in (one, other)]
    assert torch.equal(*weights)


def test_a_runs_directory_is_its_model(tmp_path):
    tiny().save(tmp_path / "run" / "model")
    assert bw.load(tmp_path / "run", device="cpu").task.name == "pretraining"
