"""Late interaction (ColBERT), compared with the paper's formula on transformers' hidden states, and
with sentence-transformers' `MultiVectorEncoder`."""

from __future__ import annotations

import asyncio
import json
import re
import string
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from tests.checkpoints.oracles import geometry, theirs_of
from tests.cli.conftest import succeeds
from tests.serving.conftest import running
from transformers import AutoModel

import bertworks as bw
from bertworks.analysis.retrieval.index import Index
from bertworks.errors import BertworksError, CheckpointError, DataError, SettingsError
from bertworks.inference.merging import merge
from bertworks.inference.token_vectors import TokenVectors
from bertworks.loading import use
from bertworks.serving.client import AsyncClient, Client
from bertworks.serving.client_base import ServerError
from bertworks.text.wordpiece import WordPieceDefinition
from bertworks.utils.json_files import write_json

PIECES = [
    "[PAD]",
    "[unused0]",
    "[unused1]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    *"abcdefgh",
    *".,!",
]
QUERIES = ["a b", "c d e f g h a b c d", "h"]
DOCUMENTS = ["a b c.", "d, e, f! g", "h h h a", "b"]
FP32 = {"precision": "fp32"}
LENGTHS = {"query_length": 9, "document_length": 7}


def write(folder: Path, *, layout: str, attends: bool = False) -> Path:
    """Write a ColBERT with random weights."""
    torch.manual_seed(0)
    theirs = theirs_of(geometry("bert", vocab_size=len(PIECES)), "encoder", torch.float32)
    theirs.save_pretrained(folder)
    bw.Tokenizer.from_vocabulary(PIECES).save(folder)
    width = geometry("bert").hidden_size
    weight = torch.randn(5, width)
    if layout == "original":
        tensors = {
            f"bert.{name}": tensor
            for name, tensor in load_file(folder / "model.safetensors").items()
        }
        save_file(
            {**tensors, "linear.weight": weight}, folder / "model.safetensors", {"format": "pt"}
        )
        config = json.loads((folder / "config.json").read_text())
        write_json(folder / "config.json", {**config, "architectures": ["HF_ColBERT"]})
        metadata = {"query_maxlen": 9, "doc_maxlen": 7, "attend_to_mask_tokens": attends}
        (folder / "artifact.metadata").write_text(json.dumps(metadata))
        return folder
    dense = folder / "1_Dense"
    dense.mkdir()
    save_file({"linear.weight": weight}, dense / "model.safetensors")
    config = {"in_features": width, "out_features": 5, "bias": False}
    identity = "torch.nn.modules.linear.Identity"
    write_json(dense / "config.json", {**config, "activation_function": identity})
    kinds = {"": "sentence_transformers.models.Transformer", "1_Dense": "pylate.models.Dense.Dense"}
    parts = [
        {"idx": number, "name": str(number), "path": path, "type": kind}
        for number, (path, kind) in enumerate(kinds.items())
    ]
    write_json(folder / "modules.json", parts)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 20, "do_lower_case": False})
    entries = {"query_prefix": "[unused0]", "document_prefix": "[unused1]", **LENGTHS}
    entries |= {"attend_to_expansion_tokens": attends, "skiplist_words": list(string.punctuation)}
    write_json(folder / "config_sentence_transformers.json", {"model_type": "ColBERT", **entries})
    return folder


def expected_matrices(
    folder: Path, texts: list[str], *, is_query: bool, attends: bool
) -> list[np.ndarray]:
    """Khattab and Zaharia (2020), §3.2: Normalize(Linear(BERT([CLS] [Q] … [MASK]…)))."""
    bert = AutoModel.from_pretrained(folder).eval()
    own = folder / "1_Dense" / "model.safetensors"
    weight = load_file(own if own.exists() else folder / "model.safetensors")["linear.weight"]
    tokenizer = bw.Tokenizer.from_vocabulary(PIECES)
    matrices = []
    for text in texts:
        limit = LENGTHS["query_length" if is_query else "document_length"]
        pieces = tokenizer.piece_ids([text])[0].tolist()[: limit - 3]
        ids = [4, 1 if is_query else 2, *pieces, 5]
        ids, count = (ids + [6] * (limit - len(ids)) if is_query else ids), len(ids)
        mask = [1] * (len(ids) if attends else count) + [0] * (0 if attends else len(ids) - count)
        with torch.no_grad():
            states = bert(torch.tensor([ids]), torch.tensor([mask])).last_hidden_state[0]
        rows = torch.nn.functional.normalize(states @ weight.T, dim=-1).numpy()
        kept = [at for at, number in enumerate(ids) if is_query or PIECES[number] not in ".,!"]
        matrices.append(rows[kept])
    return matrices


@pytest.mark.long
@pytest.mark.parametrize("layout", ["original", "pylate"])
@pytest.mark.parametrize("attends", [False, True])
def test_matrices_are_those_of_the_formula(tmp_path: Path, layout: str, attends: bool) -> None:
    folder = write(tmp_path / "theirs", layout=layout, attends=attends)
    model = bw.load(folder, device="cpu")
    theirs = MultiVectorEncoder(str(folder), device="cpu")
    with pytest.warns(bw.BertworksWarning, match="were truncated"):
        check(folder, model, theirs, attends)
    model.save(tmp_path / "ours")
    with pytest.warns(bw.BertworksWarning, match="were truncated"):
        check(
            folder, bw.load(tmp_path / "ours"), MultiVectorEncoder(str(tmp_path / "ours")), attends
        )


def check(folder: Path, model: bw.Model, theirs: Any, attends: bool) -> None:
    encoded = theirs.encode_query(QUERIES), theirs.encode_document(DOCUMENTS)
    for texts, is_query, peers in zip((QUERIES, DOCUMENTS), (True, False), encoded, strict=True):
        matrices: Any = model.embed(texts, is_query=is_query, **FP32)
        expected = expected_matrices(folder, texts, is_query=is_query, attends=attends)
        for own, one, peer, text in zip(matrices, expected, peers, texts, strict=True):
            np.testing.assert_allclose(own, one, atol=1e-5)
            np.testing.assert_allclose(own, peer, atol=1e-5)
            (alone,) = model.embed(text, is_query=is_query, **FP32)
            np.testing.assert_array_equal(alone, own)


@pytest.fixture(scope="module")
def colbert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("colbert") / "colbert", layout="pylate")


@pytest.mark.long
@pytest.mark.filterwarnings(r"ignore:\d+ of \d+ texts were truncated")
def test_texts_are_compared_by_the_sum_of_maxima(colbert: Path) -> None:
    model = bw.load(colbert, device="cpu")
    queries: Any = model.embed(QUERIES, is_query=True, **FP32)
    documents: Any = model.embed(DOCUMENTS, **FP32)
    expected = [[(q @ d.T).max(1).sum() for d in documents] for q in queries]
    np.testing.assert_allclose(model.similarity(QUERIES, DOCUMENTS, **FP32), expected, rtol=1e-5)
    scores = model.similarity(queries, documents)
    np.testing.assert_allclose(scores, expected, rtol=1e-5)
    order = np.argsort(-scores[0], kind="stable")
    with (
        running({"colbert": str(colbert)}, precision="fp32") as server,
        Client(server.url, model="colbert") as client,
    ):
        ranks = client.rerank(QUERIES[0], DOCUMENTS, truncate=True)
        repeated_ranks = client.rerank(QUERIES[0], DOCUMENTS * 6, truncate=True)
        for queries_or_one in (QUERIES, QUERIES[0]):
            np.testing.assert_array_equal(
                client.similarity(queries_or_one, DOCUMENTS * 2, truncate=True),
                model.similarity(queries_or_one, DOCUMENTS * 2, **FP32),
            )
        with pytest.raises(ServerError, match=r"sentences\[2\]: .* tokens, but at most"):
            client.similarity("a", ["a", "b", "a b c d e f g h"])

        async def compare() -> Any:
            async with AsyncClient(server.url, model="colbert") as asking:
                return await asking.similarity(QUERIES, DOCUMENTS, truncate=True)

        np.testing.assert_array_equal(asyncio.run(compare()), scores)
        inputs = {"source_sentence": QUERIES[0], "sentences": DOCUMENTS}
        body = {"inputs": inputs, "parameters": {"truncate": True}}
        np.testing.assert_array_equal(np.float32(server.ask("/similarity", body)), scores[0])
        with pytest.raises(ServerError, match="makes a matrix for each text"):
            client.embed(DOCUMENTS)
        with pytest.raises(ServerError, match="at most 7 fit"):
            client.rerank(QUERIES[0], ["a b c d e f g h"])
    assert [at for at, _ in ranks] == order.tolist()
    # Equal documents keep the order of the request.
    assert [at for at, _ in repeated_ranks] == [at for n in order for at in range(n, 24, 4)]
    assert [score for _, score in ranks] == pytest.approx(scores[0][order])


@pytest.mark.long
def test_int8_model_is_calibrated_and_compared(colbert: Path, tmp_path: Path) -> None:
    (tmp_path / "some.txt").write_text("a b c.\nd, e\nh h h a\n")
    words = ["quantize", colbert, "--out", tmp_path / "int8", "--calibrate", tmp_path / "some.txt"]
    result = succeeds(*words, "--texts", tmp_path / "some.txt")
    worst = re.search(r"cosine +(\S+) at worst, (\S+) on average", result.stdout)
    assert worst is not None
    assert 0.9 < float(worst[1]) <= float(worst[2]) <= 1
    tensors = load_file(tmp_path / "int8" / "model.safetensors")
    assert any(name.endswith(".calibrated_shift") for name in tensors)


@pytest.mark.filterwarnings("ignore:. of . texts were truncated")
def test_search_reranks_by_late_interaction(colbert: Path) -> None:
    model = bw.load(colbert, device="cpu")
    first = bw.Model(model.tokenizer, None, model.network)
    index = Index.open(first, DOCUMENTS, **FP32)
    (hits,) = index.search(QUERIES[0], top_k=3, rerank=model)
    (scores,) = model.similarity(QUERIES[0], DOCUMENTS, **FP32)
    order = np.argsort(-scores, kind="stable")[:3]
    assert [hit.row for hit in hits] == order.tolist()
    assert [hit.score for hit in hits] == pytest.approx(scores[order])


@pytest.mark.filterwarnings("ignore:. of . texts were truncated")
@pytest.mark.filterwarnings("ignore:the texts given. . of . texts were too long")
def test_search_compares_all_texts_by_late_interaction(colbert: Path, tmp_path: Path) -> None:
    model = bw.load(colbert, device="cpu")
    scores = model.similarity(QUERIES, DOCUMENTS, **FP32)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :3]
    for directory in (None, tmp_path / "index", tmp_path / "index"):
        index = Index.open(model, DOCUMENTS, directory, **FP32)
        found = index.search(QUERIES, top_k=3)
        assert [[hit.row for hit in hits] for hits in found] == order.tolist()
        for hits, row, best in zip(found, scores, order, strict=True):
            assert [hit.score for hit in hits] == pytest.approx(row[best])
    with pytest.raises(BertworksError, match="approximate search does not support"):
        index.search(QUERIES, approximate=True)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:. of . texts were truncated")
def test_matrices_are_written_to_files(colbert: Path, tmp_path: Path) -> None:
    model = bw.load(colbert, device="cpu")
    texts = [*DOCUMENTS, ".", *DOCUMENTS]  # punctuation alone leaves the special pieces
    matrices: Any = model.embed(texts, **FP32)
    for name in ("whole.safetensors", "whole.parquet"):
        out = tmp_path / name
        assert model.embed_to(out, texts, window_rows=2, **FP32).rows == len(texts)
        parts = [out.with_stem(f"part-{number}") for number in (1, 2, 3)]
        for number, part in enumerate(parts, start=1):
            model.embed_to(part, texts, part=f"{number}/3", window_rows=2, **FP32)
        merge(parts, merged := out.with_stem("merged"))
        assert merged.read_bytes() == out.read_bytes()
    tensors = load_file(tmp_path / "whole.safetensors")
    ends = tensors["offsets"].tolist()
    file = TokenVectors.from_file(tmp_path / "whole.safetensors")
    rows = pq.read_table(tmp_path / "whole.parquet")["vectors"].to_pylist()
    for number, matrix in enumerate(matrices):
        assert np.array_equal(tensors["vectors"][ends[number] : ends[number + 1]].numpy(), matrix)
        assert np.array_equal(file[number], matrix)
        assert np.array_equal(np.array(rows[number], np.float32), matrix)
    queries = model.embed(QUERIES, is_query=True, **FP32)
    expected = model.similarity(queries, matrices)
    assert np.array_equal(model.similarity(queries, file), expected)


@pytest.mark.parametrize("content", [b"", b"{}", b"\x02\0\0\0\0\0\0\0{}"])
def test_other_files_are_no_token_vectors(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.safetensors").write_bytes(content)
    with pytest.raises(DataError, match="is not a file of token vectors"):
        TokenVectors.from_file(tmp_path / "a.safetensors")
    save_file({"vectors": torch.ones(3, 2), "offsets": torch.tensor([0, 4])}, tmp_path / "b")
    with pytest.raises(DataError, match="its offsets do not fit its vectors"):
        TokenVectors.from_file(tmp_path / "b")


@pytest.mark.filterwarnings("ignore:1 of 1 texts were truncated")
def test_end_of_a_text_is_kept_if_the_tokenizer_truncates_on_the_left(colbert: Path) -> None:
    model = bw.load(colbert, device="cpu")
    definition = model.tokenizer.definition
    assert isinstance(definition, WordPieceDefinition)
    model.tokenizer = bw.Tokenizer(replace(definition, truncation_side="left"))
    for options in ({"is_query": True}, {}):
        np.testing.assert_array_equal(
            model.embed("a b c d e f g", max_seq_length=7, **options),
            model.embed("d e f g", max_seq_length=7, **options),
        )


@pytest.mark.parametrize("layout", ["original", "pylate"])
def test_verbs_use_every_layout(tmp_path: Path, layout: str) -> None:
    folder = write(tmp_path / "theirs", layout=layout)
    (expected,) = bw.load(folder, device="cpu").embed(["a b"])
    (actual,) = use(folder, lambda model: model.embed(["a b"]))
    np.testing.assert_allclose(actual, expected, atol=1e-6)


def test_original_model_without_its_metadata_is_read_with_a_warning(tmp_path: Path) -> None:
    folder = write(tmp_path / "theirs", layout="original")
    (folder / "artifact.metadata").unlink()
    with pytest.warns(bw.BertworksWarning, match=r"there is no artifact\.metadata: lengths"):
        bw.load(folder, device="cpu")


def test_other_uses_are_refused(colbert: Path, tmp_path: Path) -> None:
    model = bw.load(colbert)
    assert model.embed("a", pooling="mean").shape == (1, geometry("bert").hidden_size)
    with pytest.raises(DataError, match="not written in this format"):
        model.embed_to(tmp_path / "a.npy", DOCUMENTS)
    with pytest.raises(DataError, match="lists of matrices"):
        model.similarity(np.zeros((1, 5), np.float32), np.zeros((1, 5), np.float32))
    with pytest.raises(SettingsError, match="include_prompt=false: late interaction includes"):
        model.embed("a", prompt="b", include_prompt=False)
    with pytest.raises(DataError, match="max_length=2 has no room for the special tokens"):
        model.embed("a", max_seq_length=2)
    plain = bw.Model(model.tokenizer, None, model.network)
    with pytest.raises(bw.BertworksError, match="was not trained for late interaction"):
        plain.embed("a", pooling="none")
    model.save(tmp_path / "ours")
    file = tmp_path / "ours" / "config_sentence_transformers.json"
    write_json(file, {**json.loads(file.read_text()), "query_prefix": "[Query]"})
    with pytest.raises(
        bw.BertworksError, match=r"the prefix '\[Query\]' of late interaction is not"
    ):
        bw.load(tmp_path / "ours")
    write_json(file, {**json.loads(file.read_text()), "query_length": "long"})
    with pytest.raises(CheckpointError, match="query_length='long'"):
        bw.load(tmp_path / "ours")


def write_multi_vector(
    folder: Path, prompts: dict[str, str], *, has_norm: bool = False, **settings: Any
) -> Any:
    """Write a ColBERT in sentence-transformers' own layout."""
    torch.manual_seed(0)
    theirs = theirs_of(geometry("bert", vocab_size=len(PIECES)), "encoder", torch.float32)
    theirs.save_pretrained(folder / "encoder")
    bw.Tokenizer.from_vocabulary(PIECES).save(folder / "encoder")
    transformer = Transformer(str(folder / "encoder"), **settings)
    transformer.tokenizer.add_special_tokens({"additional_special_tokens": ["[unused0]"]})
    width = geometry("bert").hidden_size
    dense = Dense(width, 5, bias=False, module_input_name="token_embeddings")
    mask = MultiVectorMask(skiplist_words=[".", "a"])
    norm = [Normalize("token_embeddings")] if has_norm else []
    modules = [transformer, dense, mask, *norm]
    model = MultiVectorEncoder(modules=modules, prompts=prompts, device="cpu")
    model.save(str(folder / "m"))
    return MultiVectorEncoder(str(folder / "m"), device="cpu")


EXPANSION = {"strategy": "fixed", "length": 9}


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:. of . texts were truncated")
@pytest.mark.parametrize(
    ("prompts", "settings"),
    [
        (
            {"query": "[unused0]", "document": "h "},
            {"query_expansion": EXPANSION, "has_norm": True},
        ),
        (
            {"query": "", "document": "[unused0] "},
            {"query_expansion": {**EXPANSION, "attend": True}, "document_length": 7},
        ),
        ({"query": "b c ", "document": ""}, {"query_length": 6}),
        ({}, {"query_expansion": {"strategy": "min", "length": 8}}),
    ],
)
def test_the_layout_of_multi_vector_encoder_is_read_and_written(
    tmp_path: Path, prompts: dict[str, str], settings: dict[str, Any]
) -> None:
    theirs = write_multi_vector(tmp_path, prompts, **settings)
    expected = theirs.encode_query(QUERIES), theirs.encode_document(DOCUMENTS)
    model = bw.load(tmp_path / "m", device="cpu")
    model.save(tmp_path / "ours")
    again = MultiVectorEncoder(str(tmp_path / "ours"), device="cpu")
    vectors_of_copy = again.encode_query(QUERIES), again.encode_document(DOCUMENTS)
    for one in (model, bw.load(tmp_path / "ours", device="cpu")):
        own: Any = one.embed(QUERIES, is_query=True, **FP32), one.embed(DOCUMENTS, **FP32)
        for matrices, others, peers_again in zip(own, expected, vectors_of_copy, strict=True):
            for matrix, other, peer in zip(matrices, others, peers_again, strict=True):
                np.testing.assert_allclose(matrix, other, atol=1e-5)
                np.testing.assert_allclose(matrix, peer, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize(
    ("file", "entries", "message"),
    [
        ("sentence_bert_config.json", {"query_expansion": {"strategy": "few"}}, "strategy='few'"),
        ("sentence_bert_config.json", {"query_expansion": {"strategy": "min"}}, "has no length"),
        ("2_MultiVectorMask/config.json", {"keep_only_token_ids": [3]}, "keep_only_token_ids"),
        ("config_sentence_transformers.json", {"similarity_fn_name": "meanmaxsim"}, "meanmaxsim"),
        ("config_sentence_transformers.json", {"prompts": {"query": "[unused0] a"}}, "with text"),
    ],
)
def test_other_multi_vector_encoders_are_refused(
    tmp_path: Path, file: str, entries: dict[str, Any], message: str
) -> None:
    write_multi_vector(tmp_path, {}, query_expansion=EXPANSION)
    path = tmp_path / "m" / file
    write_json(path, {**json.loads(path.read_text()), **entries})
    with pytest.raises(CheckpointError, match=message):
        bw.load(tmp_path / "m")


def test_slice_of_token_vectors_has_the_matrices_of_its_texts() -> None:
    matrices = [np.full((rows, 2), rows, np.float32) for rows in (2, 1, 3)]
    whole = TokenVectors.from_matrices(matrices)
    for part, expected in (
        (whole, matrices),
        (whole[1:], matrices[1:]),
        (whole[1:2], [matrices[1]]),
    ):
        assert len(part) == len(expected)
        for number, matrix in enumerate(expected):
            np.testing.assert_array_equal(part[number], matrix)
    assert len(whole[2:1]) == 0
