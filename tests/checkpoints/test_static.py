"""Static models: the files of model2vec and of sentence-transformers, and ours in their layout.

The oracle is sentence-transformers, and for model2vec the rule that it publishes, in a few lines.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

import bertworks as bw
from bertworks.checkpoints.sentence_settings import SentenceSettings
from bertworks.checkpoints.static import static_config
from bertworks.errors import BertworksError, BertworksWarning, CheckpointError, DataError
from bertworks.model import Model
from bertworks.serving.models import Models
from bertworks.text.static_tokenizer import to_static
from bertworks.text.tokenizer import Tokenizer as OurTokenizer

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "river", "##s", "run", ",", "über", "the"]
TEXTS = ["The rivers run, a river.", "Über the RIVER", "the", "run [SEP] 漢 rivers"]
NOTHING_KNOWN = "漢 ☃"
WIDTH = 5


def wordpiece() -> Tokenizer:
    """BERT's kind of tokenizer, with special pieces around a text, which nobody uses here."""
    tokenizer = Tokenizer(models.WordPiece({p: n for n, p in enumerate(PIECES)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(strip_accents=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.enable_padding()
    return tokenizer


def unigram() -> Tokenizer:
    """SentencePiece's kind, without a piece for the letter a."""
    pieces = [("<unk>", 0.0), ("▁the", -1.0), ("▁river", -1.5), ("s", -2.0), ("▁run", -1.0)]
    tokenizer = Tokenizer(models.Unigram([*pieces, ("▁", -4.0)], 0))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def random_vectors(rows: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(rows, WIDTH))).float()


def write_model2vec(
    directory: Path, tokenizer: Tokenizer, tensors: dict[str, torch.Tensor], **config: Any
) -> Path:
    directory.mkdir()
    tokenizer.save(str(directory / "tokenizer.json"))
    save_file(tensors, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps({"model_type": "model2vec", **config}))
    return directory


def model2vec_formula(
    tokenizer: Tokenizer, table: np.ndarray, texts: Sequence[str], *, normalize: bool
) -> np.ndarray:
    """The mean of the known pieces' vectors; zero for none (model2vec 0.10, `StaticModel`)."""
    rows = []
    for text in texts:
        encoding = tokenizer.encode(text, add_special_tokens=False)
        ids = [
            i
            for i, piece in zip(encoding.ids, encoding.tokens, strict=True)
            if piece in KNOWN_PIECES
        ]
        mean = table[ids].mean(0) if ids else np.zeros(table.shape[1])
        rows.append(mean / (np.linalg.norm(mean) + 1e-32) if normalize else mean)
    return np.array(rows)


KNOWN_PIECES = {*PIECES, "▁the", "▁river", "s", "▁run", "▁"} - {"[UNK]"}

TABLES = {
    "float32": lambda: {"embeddings": random_vectors(11)},
    "float16": lambda: {"embeddings": random_vectors(11).half()},
    "int8": lambda: {"embeddings": (random_vectors(11) * 40).round().to(torch.int8)},
    "mapped": lambda: {
        "embeddings": random_vectors(3),
        "mapping": torch.tensor([0, 1, 2, 1, 0, 2, 2, 1, 0, 1, 2]),
        "weights": torch.linspace(0.1, 2, 11, dtype=torch.float64),
    },
}


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("kind", TABLES)
def test_model2vec_vectors_equal_its_formula(kind: str, normalize: bool, tmp_path: Path) -> None:
    tensors = TABLES[kind]()
    table = tensors["embeddings"].double().numpy()
    if kind == "mapped":
        table = table[tensors["mapping"]] * tensors["weights"].numpy()[:, None]
    directory = write_model2vec(tmp_path / "m", wordpiece(), tensors, normalize=normalize)
    texts = [text for text in TEXTS if "[SEP]" not in text]  # which would be a piece in model2vec
    expected = model2vec_formula(wordpiece(), table, texts, normalize=normalize)
    assert bw.load(directory).embed(texts) == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_a_text_without_known_pieces_has_a_zero_vector_and_is_counted(tmp_path: Path) -> None:
    directory = write_model2vec(tmp_path / "m", wordpiece(), {"embeddings": random_vectors(11)})
    model = bw.load(directory)
    with pytest.warns(BertworksWarning, match="2 of 3 texts have no known piece"):
        vectors = model.embed([NOTHING_KNOWN, "river", ""], normalize=True)
    assert not vectors[[0, 2]].any()
    assert vectors[1].any()


def test_unknown_pieces_of_sentencepiece_are_left_out(tmp_path: Path) -> None:
    tensors = {"embeddings": random_vectors(6)}
    directory = write_model2vec(tmp_path / "m", unigram(), tensors, normalize=False)
    texts = ["the rivers x run", "runs"]
    expected = model2vec_formula(unigram(), tensors["embeddings"].numpy(), texts, normalize=False)
    assert bw.load(directory).embed(texts) == pytest.approx(expected, rel=1e-5)


def test_a_text_has_as_many_tokens_as_model2vec_reads(tmp_path: Path) -> None:
    tensors = {"embeddings": random_vectors(11)}
    river, the = tensors["embeddings"][5].numpy(), tensors["embeddings"][10].numpy()
    text = "river " * 512 + "the " * 88
    model = bw.load(write_model2vec(tmp_path / "usual", wordpiece(), tensors))
    with pytest.warns(BertworksWarning, match="1 of 1 texts were truncated to 512 tokens"):
        assert model.embed([text])[0] == pytest.approx(river, abs=1e-5)
    model = bw.load(write_model2vec(tmp_path / "all", wordpiece(), tensors, max_length=None))
    assert model.embed([text])[0] == pytest.approx((512 * river + 88 * the) / 600, abs=1e-5)


def sentence_transformer(tokenizer: Tokenizer, *, normalize: bool = False) -> Any:
    modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
    from sentence_transformers import SentenceTransformer

    rows = random_vectors(tokenizer.get_vocab_size())
    parts = [modules.StaticEmbedding(tokenizer, embedding_weights=rows)]
    return SentenceTransformer(modules=[*parts, *[modules.Normalize()] * normalize], device="cpu")


@pytest.mark.parametrize("has_module_folder", [False, True])
@pytest.mark.parametrize("tokenizer", [wordpiece, unigram])
def test_sentence_transformers_files_give_its_vectors(
    tokenizer: Any, has_module_folder: bool, tmp_path: Path
) -> None:
    theirs = sentence_transformer(tokenizer(), normalize=has_module_folder)
    theirs.save(str(tmp_path / "m"))
    if has_module_folder:  # as its older versions save it
        (tmp_path / "m" / "0_StaticEmbedding").mkdir()
        for name in ("tokenizer.json", "model.safetensors"):
            (tmp_path / "m" / name).rename(tmp_path / "m" / "0_StaticEmbedding" / name)
        text = (tmp_path / "m" / "modules.json").read_text()
        text = text.replace('"path": ""', '"path": "0_StaticEmbedding"')
        (tmp_path / "m" / "modules.json").write_text(text)
    texts = [*TEXTS[:3], NOTHING_KNOWN]  # unknown pieces count here
    model = bw.load(tmp_path / "m")
    assert np.array_equal(model.embed(texts), theirs.encode(texts))
    models = Models({"m": str(tmp_path / "m")}, device="cpu")  # without config.json
    assert models.get().form == "vectors"
    again = bw.load(model.save(tmp_path / "saved"))
    assert np.array_equal(again.embed(texts), theirs.encode(texts))
    assert again.tokenizer.fingerprint == model.tokenizer.fingerprint


def test_special_pieces_of_a_static_tokenizer_are_special() -> None:
    static = to_static(OurTokenizer.from_vocabulary([*PIECES]).definition)
    entries = {entry["content"]: entry for entry in static.tree["added_tokens"]}
    assert entries.keys() == {"[PAD]", "[UNK]", "[CLS]", "[SEP]"}
    for content, entry in entries.items():
        assert (entry["id"], entry["special"]) == (PIECES.index(content), True)
        flags = ("normalized", "single_word", "lstrip", "rstrip")
        assert not any(entry[flag] for flag in flags)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_our_model_opens_in_sentence_transformers_and_has_model2vec_tensors(
    precision: Any, tmp_path: Path
) -> None:
    from sentence_transformers import SentenceTransformer

    tokenizer = OurTokenizer(to_static(OurTokenizer.from_vocabulary([*PIECES]).definition))
    model = Model.fresh(static_config(11, WIDTH), tokenizer)
    with torch.no_grad():
        model.encoder.embeddings.word_embeddings.weight[1] = 0  # so that both rules agree
    model.sentence = SentenceSettings(normalize=True, entries={"prompts": {"query": "run "}})
    model.save(tmp_path / "m", precision=precision)
    theirs = SentenceTransformer(str(tmp_path / "m"), device="cpu")
    expected = theirs.encode(TEXTS[:3]).astype(np.float32)
    tolerance = 1e-6 if precision == "fp32" else 1e-3  # it computes in float16
    assert bw.load(tmp_path / "m").embed(TEXTS[:3]) == pytest.approx(expected, abs=tolerance)
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    kind = {"model_type": "model2vec", "normalize": True, "max_length": None, "hidden_dim": WIDTH}
    assert kind.items() <= config.items()
    dtypes = {"fp32": torch.float32, "bf16": torch.float16}
    tensors = load_file(tmp_path / "m" / "model.safetensors")
    assert {name: tensor.dtype for name, tensor in tensors.items()} == {
        "embeddings": dtypes[precision]
    }


def test_a_static_model_can_be_fine_tuned_and_saved_with_its_head(tmp_path: Path) -> None:
    directory = write_model2vec(tmp_path / "m", wordpiece(), {"embeddings": random_vectors(11)})
    rows = [{"text": text, "label": label} for text, label in [("river", "a"), ("run", "b")] * 8]
    result = bw.finetune(
        directory, "classification", train=rows, out=tmp_path / "run", epochs=1, device="cpu"
    )
    model = bw.load(result.run.model)
    assert model.labels == ("a", "b")
    tensors = load_file(result.run.model / "model.safetensors")
    assert set(tensors) == {"embeddings", "classifier.weight"}
    with pytest.raises(DataError, match="no tokens"):
        model.predict(["river", NOTHING_KNOWN])


@pytest.mark.parametrize(
    ("tensors", "config", "message"),
    [
        ({"table": 3}, {}, "no tensor 'embeddings'"),
        ({"embeddings": 3, "mapping": [0, 3] + [0] * 9}, {}, "rows that 'embeddings' does not"),
        ({"embeddings": 11, "weights": [1.0]}, {}, r"'weights' has shape \(1,\), not \(11,\)"),
        ({"embeddings": 9}, {}, "vocabulary has 11 pieces"),
        ({"embeddings": 11}, {"max_length": 0}, "max_length is 0"),
        ({"embeddings": 11}, {"normalize": "yes"}, "normalize is 'yes'"),
    ],
)
def test_damaged_static_files_are_named(
    tensors: dict[str, Any], config: dict[str, Any], message: str, tmp_path: Path
) -> None:
    values = {
        name: random_vectors(value) if isinstance(value, int) else torch.tensor(value)
        for name, value in tensors.items()
    }
    directory = write_model2vec(tmp_path / "m", wordpiece(), values, **config)
    with pytest.raises(CheckpointError, match=message):
        bw.load(directory)


def test_files_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    tensors = {"embeddings": random_vectors(11)}
    directory = write_model2vec(tmp_path / "m", wordpiece(), tensors, normalize=True)
    modules = [{"path": ".", "type": "sentence_transformers.models.StaticEmbedding"}]
    (directory / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(CheckpointError, match="lacks the module 'Normalize', but normalize is tr"):
        bw.load(directory)
    modules.append({"path": "2_Dense", "type": "sentence_transformers.models.Dense"})
    (directory / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(CheckpointError, match="'Dense' is not supported after 'StaticEmbedding'"):
        bw.load(directory)


def test_model_that_the_layout_cannot_hold_is_not_saved(tmp_path: Path) -> None:
    tokenizer = OurTokenizer.from_vocabulary([*PIECES])
    model = Model.fresh(static_config(11, WIDTH), tokenizer)
    with pytest.raises(BertworksError, match="special pieces around a text"):
        model.save(tmp_path / "m")
    model.tokenizer = OurTokenizer(to_static(tokenizer.definition))
    with pytest.raises(BertworksError, match="8-bit"):
        model.save(tmp_path / "m", precision="int8")
    model.sentence = SentenceSettings(pooling="max")
    with pytest.raises(BertworksError, match="pooling=mean only"):
        model.save(tmp_path / "m")
    assert not (tmp_path / "m").exists()
