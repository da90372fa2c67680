"""The handle `Model`: its answers for texts, and its errors."""

from __future__ import annotations

import copy
import io
import sys
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import classification_report, confusion_matrix

import bertworks as bw
from bertworks.data.lines import StandardInput
from bertworks.data.reading import Reading
from bertworks.errors import (
    BertworksError,
    NeedsPyTorchError,
    SettingsError,
    needs_pytorch_error,
)
from bertworks.loading import use
from tests.checkpoints.test_store import tiny


def test_fresh_weights_depend_on_the_seed_alone():
    tokenizer = tiny().tokenizer
    config = tiny().encoder.config
    random_state = torch.get_rng_state()
    first, copy, other = (
        bw.Model.fresh(config, tokenizer, seed=seed).encoder.state_dict() for seed in (3, 3, 4)
    )
    assert torch.equal(torch.get_rng_state(), random_state)
    name = "layers.0.attention.output.weight"
    assert torch.equal(first[name], copy[name])
    assert not torch.equal(first[name], other[name])


def test_fill_mask_and_next_sentence_return_probabilities():
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
    with pytest.raises(SettingsError, match="top_k=-1: must be at least 1"):
        model.fill_mask("a [MASK]", top_k=-1)


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
    model.task.settings = model.task.settings.with_values(is_pair_optional=True)
    return model


def test_a_published_classifier_takes_texts_and_pairs():
    model = published_classifier()
    one, pair = model.predict(["a"]), model.predict([("a", "b")])
    assert one[0]["probabilities"] != pair[0]["probabilities"]


def test_unsupported_calls_of_a_model_are_refused():
    classifier, pretrained = tiny("classification"), tiny()
    with pytest.raises(bw.BertworksError, match="not for masked words or next sentences"):
        classifier.fill_mask("a [MASK]")
    with pytest.raises(bw.BertworksError, match="single texts"):
        classifier.predict([("a", "b")])
    with pytest.raises(bw.BertworksError, match="single texts and pairs cannot be mixed"):
        published_classifier().predict(["a", ("a", "b")])
    for item in (float("nan"), None, ("a", "b", "c"), ()):  # NaN: a gap in a column of pandas
        with pytest.raises(bw.BertworksError, match="is neither a text, a pair of texts nor a row"):
            classifier.predict(["a", item])
    bare = bw.Model.fresh(pretrained.encoder.config, pretrained.tokenizer)
    with pytest.raises(bw.BertworksError, match="bare encoder"):
        bare.predict(["a"])


def test_fill_mask_takes_one_text():
    with pytest.raises(bw.BertworksError, match="expected a text, got list"):
        tiny().fill_mask(["a [MASK]"])
    with pytest.raises(bw.BertworksError, match="expected a text, got int"):
        tiny().next_sentence("a", 5)


def test_a_fresh_model_leaves_the_random_state_alone():
    model = tiny()
    old_state = torch.get_rng_state()
    one = bw.Model.fresh(model.encoder.config, model.tokenizer, seed=3)
    other = bw.Model.fresh(model.encoder.config, model.tokenizer, seed=3)
    assert torch.equal(old_state, torch.get_rng_state())
    weights = [m.encoder.state_dict()["layers.0.attention.output.weight"] for m in (one, other)]
    assert torch.equal(*weights)


def test_a_runs_directory_is_its_model(tmp_path):
    tiny().save(tmp_path / "run" / "model")
    assert bw.load(tmp_path / "run", device="cpu").task.name == "pretraining"


def test_a_stopped_run_says_how_to_get_its_model(tmp_path):
    run = tmp_path / "run"
    (run / "checkpoints" / "step-00000110").mkdir(parents=True)
    for name in ("settings.yaml", "journal.jsonl"):
        (run / name).touch()
    message = "run: the run was stopped after step 110, and its model is .* Run its command again"
    with pytest.raises(bw.CheckpointError, match=message):
        bw.load(run)
    tiny().save(run / "model")
    assert bw.load(run, device="cpu").task.name == "pretraining"


def test_a_string_is_a_text_and_files_come_as_data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = tiny("classification")
    one = model.predict("a b")
    assert one == model.predict(["a b"]) == [answer for _, answer in model.stream("a b")]
    assert model.embed("a b").shape == (1, model.encoder.config.hidden_size)
    (tmp_path / "texts.txt").write_text("a b\nc\n")
    (tmp_path / "rows.jsonl").write_text('{"text": "a b"}\n{"text": "c"}\n')
    two, vectors = model.predict(["a b", "c"]), model.embed(["a b", "c"])
    assert model.predict(data="rows.jsonl") == two
    assert np.array_equal(model.embed(data="texts.txt"), vectors)
    assert np.array_equal(model.embed(data="rows.jsonl", column="text"), vectors)
    for verb in (model.predict, model.embed):
        with pytest.warns(bw.errors.BertworksWarning, match=r"'rows\.jsonl' is read as a text"):
            assert len(verb("rows.jsonl")) == 1
        with pytest.raises(bw.BertworksError, match=r"rows\.jsonl: a path, .* with data="):
            verb(tmp_path / "rows.jsonl")
        with pytest.raises(bw.BertworksError, match="give either texts or data="):
            verb("a", data="rows.jsonl")
        with pytest.raises(bw.BertworksError, match="give either texts or data="):
            verb()
        with pytest.raises(bw.BertworksError, match="expected a text, or several, got int"):
            verb(5)


def test_tables_in_memory_are_rows():
    model = tiny("classification")
    frame = pd.DataFrame({"text": ["a", "b c"], "label": ["yes", "no"]})
    two = model.predict(["a", "b c"])
    assert model.predict(frame) == model.predict(frame["text"]) == model.predict(data=frame) == two
    assert model.predict({"text": "a"}) == model.predict("a")
    assert np.array_equal(model.embed(frame), model.embed(["a", "b c"]))
    metrics = model.evaluate(frame).metrics
    assert model.evaluate((frame["text"], frame["label"])).metrics == metrics
    assert model.evaluate([("a", "yes"), ("b c", "no")]).metrics == metrics


def test_empty_inputs_have_empty_outputs():
    model = tiny("classification")
    for nothing in ([], (), iter(()), np.array([]), pd.DataFrame()):
        assert model.predict(nothing) == []
    for nothing in ([], iter(())):
        assert model.predict_proba(nothing).shape == (0, 2)
        assert model.embed(nothing).shape == (0, model.encoder.config.hidden_size)
    assert model.similarity([], "a").shape == (0, 1)
    with pytest.raises(bw.BertworksError, match="None"):
        model.predict([None])


def test_probabilities_are_in_the_order_of_the_labels():
    model = tiny("classification")
    texts = ["a", "b c", "d e f"]
    probabilities = model.predict_proba(texts)
    assert model.labels == ("no", "yes")
    assert probabilities.dtype == np.float64
    np.testing.assert_allclose(probabilities.sum(1), 1)
    for row, answer in zip(probabilities, model.predict(texts), strict=True):
        assert dict(zip(model.labels, row, strict=True)) == answer["probabilities"]
    assert tiny().labels == ()
    with pytest.raises(bw.BertworksError, match="for pretraining, not for classification"):
        tiny().predict_proba(texts)


def test_similarity_is_the_cosine_of_vectors():
    model = tiny()
    one, other = ["a b", "c"], ["a b", "d e", "f"]
    vectors, others = model.embed(one), model.embed(other)
    by_hand = [[v @ w / np.linalg.norm(v) / np.linalg.norm(w) for w in others] for v in vectors]
    similarities = model.similarity(one, other)
    assert similarities.dtype == np.float32
    np.testing.assert_allclose(similarities, by_hand, atol=1e-6)
    assert similarities[0, 0] == pytest.approx(1)
    np.testing.assert_array_equal(model.similarity(vectors, others), similarities)
    np.testing.assert_array_equal(model.similarity(list(vectors), list(others)), similarities)
    assert model.similarity("a", "b").shape == (1, 1)
    assert model.similarity(np.zeros((1, vectors.shape[1])), "b").tolist() == [[0]]
    with pytest.raises(bw.BertworksError, match="vectors of 3 and of"):
        model.similarity(np.ones((2, 3)), "b")


def test_repr_describes_the_model(tmp_path):
    model = tiny("classification")
    model.save(tmp_path / "m")
    layers = model.encoder.config.num_hidden_layers
    text = repr(bw.load(tmp_path / "m", device="cpu"))
    for part in (str(tmp_path / "m"), f"bert: {layers} layers", "classification into 'no', 'yes'"):
        assert part in text
    count = sum(weight.numel() for weight in model.network.parameters())
    assert f"{count / 1e3:.3g}k parameters" in text
    assert "pretraining" in repr(tiny())
    assert repr(model.evaluate([("a", "yes"), ("b", "no")])).startswith(
        "<Evaluation of 2 rows: loss"
    )
    assert repr(model.tokenizer).startswith("<Tokenizer: WordPiece,")
    assert repr(model.tokenizer("a b")).startswith("Encoding(4 tokens, input_ids=[")
    assert repr(model.tokenizer(["a b", "c"])) == "Encodings(2 texts, 7 tokens)"


def test_embed_reports_progress(tmp_path):
    model, calls = tiny(), []
    texts = ["a b", "c"] * 20
    settings = {"progress": lambda done, total: calls.append((done, total)), "window_rows": 16}
    vectors = model.embed(texts, **settings)
    np.testing.assert_array_equal(vectors, model.embed(texts))
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)
    assert calls[-1] == (40, 40)
    assert len(calls) > 1
    calls.clear()
    model.embed((text for text in texts), **settings)
    assert calls[-1] == (40, 0)  # nobody knows how many an iterator will give
    calls.clear()
    model.embed("a b", **settings)
    assert calls == [(1, 1)]


def test_predictions_as_a_frame_keep_the_rows():
    model = tiny("classification")
    frame = pd.DataFrame({"text": ["a", "b c"], "id": [7, 8]}, index=["x", "y"])
    predicted = model.predict(frame, as_frame=True)
    expected = model.predict(frame)
    assert predicted.index.tolist() == ["x", "y"]
    assert predicted.columns.tolist()[:2] == ["text", "id"]
    assert predicted["id"].tolist() == [7, 8]
    assert predicted["prediction.label"].tolist() == [one["label"] for one in expected]
    assert predicted["prediction.probabilities.yes"].tolist() == [
        one["probabilities"]["yes"] for one in expected
    ]
    assert model.predict(["a", "b c"], as_frame=True).index.tolist() == [0, 1]
    assert model.predict([], as_frame=True).empty
    with pytest.raises(bw.DataError, match=r"already have a column 'prediction\.label'"):
        model.predict(predicted, as_frame=True)


def test_evaluation_has_the_results_in_scikit_learns_words():
    model = tiny("classification")
    rows = [("a", "yes"), ("b", "no"), ("c d", "no"), ("e", "yes"), ("f", "no")]
    evaluation = model.evaluate(rows)
    gold = [label for _, label in rows]
    predicted = [one["label"] for one in model.predict([text for text, _ in rows])]
    expected = confusion_matrix(gold, predicted, labels=["no", "yes"])
    assert evaluation.confusion.labels == ("no", "yes")
    np.testing.assert_array_equal(evaluation.confusion.matrix, expected)
    wrong = sum(one != other for one, other in zip(gold, predicted, strict=True))
    assert len(evaluation.errors) == wrong > 0
    scores = classification_report(
        gold, predicted, labels=["no", "yes"], output_dict=True, zero_division=0
    )
    lines = [line.split() for line in evaluation.report.splitlines()]
    assert ["label", "precision", "recall", "f1", "rows"] in lines
    for label in ("no", "yes"):
        keys = ("precision", "recall", "f1-score")
        values = [f"{scores[label][key]:.3f}" for key in keys]
        assert [label, *values, f"{scores[label]['support']:.0f}"] in lines


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("encode", "embed"),
        ("encode_query", "embed"),
        ("fit", "finetune"),
        ("save_pretrained", "save"),
        ("cuda", "to"),
    ],
)
def test_method_of_another_library_names_ours(name, ours):
    with pytest.raises(AttributeError, match=rf"Model has no '{name}'\. It is called {ours}\b"):
        getattr(tiny(), name)


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        *(("from_pretrained", "load"), ("SentenceTransformer", "load"), ("Trainer", "finetune")),
        *(("AutoTokenizer", "Tokenizer.load"), ("settings", "describe_settings")),
    ],
)
def test_name_of_another_library_names_ours(name, ours):
    with pytest.raises(AttributeError, match=rf"attribute '{name}'\. Use bertworks\.{ours}$"):
        bw.__getattr__(name)  # a module's attribute once a part of the package has this name
    function = bw
    for part in ours.split("."):
        function = getattr(function, part)
    assert callable(function)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the machine has the device")
@pytest.mark.parametrize("device", ["cuda", "cuda:1", torch.device("cuda"), "gpu", "cpu:x"])
def test_device_that_is_not_there_is_an_error(device):
    with pytest.raises(BertworksError, match=r"no cuda device|unknown device"):
        tiny().to(device)


def test_unknown_method_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"Model has no 'nonsense'$"):
        getattr(tiny(), "nonsense")  # noqa: B009
    assert not hasattr(tiny(), "__length_hint__")
    assert copy.copy(tiny()).task is not None


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("batch_size", "'batch_tokens'"),
        ("show_progress_bar", "progress="),
        ("truncate_dim", "dimensions"),
        ("padding", "Nothing is padded"),
        ("output_value", "features"),
        ("normalize_embeddings", "'normalize'"),
        ("convert_to_tensor", "torch.from_numpy"),
    ],
)
def test_setting_of_another_library_names_ours(name, hint):
    with pytest.raises(SettingsError, match=rf"unknown setting '{name}'.*{hint}"):
        tiny().embed(["a"], **{name: True})


def test_settings_are_listed():
    settings = {one.key: one for one in bw.describe_settings("finetune", "classification")}
    assert settings["epochs"].type == "number"
    assert settings["label_smoothing"].default == 0
    assert bw.describe_settings("embed")
    with pytest.raises(SettingsError, match="no verb 'nonsense'"):
        bw.describe_settings("nonsense")


def test_candidates_for_a_mask_have_the_probabilities_of_their_pieces():
    model = tiny()
    (masks,) = model.fill_mask("a [MASK] c", top_k=model.tokenizer.vocab_size)
    probabilities = {one["token"]: one["probability"] for one in masks}
    (ranking,) = model.fill_mask("a [MASK] c", candidates=["b", "d", "e"])
    assert {one["candidate"]: one["probability"] for one in ranking} == {
        word: probabilities[word] for word in ("b", "d", "e")
    }
    assert [one["probability"] for one in ranking] == sorted(
        (one["probability"] for one in ranking), reverse=True
    )
    # Two pieces: one mask each, and the product.
    first, second = model.fill_mask("a [MASK] [MASK] c", top_k=model.tokenizer.vocab_size)
    product = 1.0
    for masks, piece in zip((first, second), ("b", "d"), strict=True):
        product *= next(one["probability"] for one in masks if one["token"] == piece)
    (ranking,) = model.fill_mask("a [MASK] c", candidates=["b d", "b"])
    by_word = {one["candidate"]: one["probability"] for one in ranking}
    assert by_word["b d"] == pytest.approx(product, rel=1e-6)
    assert len(model.fill_mask("[MASK] a [MASK]", candidates=["b"])) == 2
    with pytest.raises(bw.DataError, match=r"candidates\[1\]: the vocabulary has no pieces"):
        model.fill_mask("a [MASK]", candidates=["b", "ж"])
    with pytest.raises(bw.DataError, match="there are no candidates"):
        model.fill_mask("a [MASK]", candidates=[])


def test_model_is_pytorchs_where_no_native_code_is_installed(monkeypatch):
    monkeypatch.setattr("bertworks.inference.native_network.library", lambda: None)
    monkeypatch.setattr("bertworks.loading._may_have_gpu", lambda: False)
    with pytest.raises(NeedsPyTorchError, match="no native code is installed"):
        bw.load("mini", backend="native")
    assert isinstance(use("mini", lambda model: model), bw.Model)


def test_standard_input_is_not_read_by_two_models(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(b"a\nb\n"))
    monkeypatch.setattr(sys, "stdin", stream)

    def count(model: Any) -> int:
        lines = StandardInput.lines(Reading())
        next(lines)
        if not isinstance(model, bw.Model):
            raise needs_pytorch_error("the next line")
        return sum(1 for _ in lines)

    with pytest.raises(NeedsPyTorchError, match=r"next line.*Give --backend torch, or a file"):
        use("mini", count)


def test_unknown_choices_are_refused(tmp_path):
    with pytest.raises(
        bw.SettingsError, match=r"unknown backend 'pytorch'\. The nearest .* 'torch'"
    ):
        bw.load("mini", backend="pytorch")
    model = published_classifier()
    with pytest.raises(bw.SettingsError, match="precision='fp16': weights are not saved so"):
        model.save(tmp_path / "model", precision="fp16")
