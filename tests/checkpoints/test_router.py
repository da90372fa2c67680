"""Models with other modules for queries than for documents, against sentence-transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer, SparseEncoder
from sentence_transformers.base.modules import Dense, Normalize, Router, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling, StaticEmbedding
from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding, SpladePooling

import bertworks as bw
from bertworks.analysis.retrieval.index import Index
from bertworks.convert.model_editing import shrink
from bertworks.errors import CheckpointError
from bertworks.serving.models import Models
from bertworks.utils.json_files import write_json
from tests.checkpoints.journeys import PIECES, saved_by_them
from tests.serving.conftest import running

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
TEXTS = ["a b c a b c", "c a", "b b b a", "c"]
PROMPTS = {"query": "h ", "document": "g "}


def encoder(folder: Path) -> tuple[Transformer, Pooling]:
    saved_by_them("bert", "encoder", folder / "encoder")
    transformer = Transformer(str(folder / "encoder"))
    return transformer, Pooling(transformer.get_embedding_dimension())


def shared_encoder(folder: Path) -> Any:
    """One encoder, and a map for queries and one for documents."""
    torch.manual_seed(0)
    transformer, pooling = encoder(folder)
    parts = [[transformer, pooling, Dense(48, 32)] for _ in range(2)]
    router = Router.for_query_document(query_modules=parts[0], document_modules=parts[1])
    return SentenceTransformer(modules=[router, Normalize()], prompts=PROMPTS)


def router_at_the_end(folder: Path) -> Any:
    """The same in the older way, with a name for documents that is not ours."""
    torch.manual_seed(0)
    router = Router({"query": [Dense(48, 32)], "doc": [Dense(48, 32)]})
    return SentenceTransformer(modules=[*encoder(folder), router], prompts=PROMPTS)


def static_queries(folder: Path) -> Any:
    transformer, pooling = encoder(folder)
    table = torch.randn((len(PIECES), 48), generator=torch.Generator().manual_seed(0))
    queries = StaticEmbedding(transformer.tokenizer, embedding_weights=table)
    router = Router.for_query_document(
        query_modules=[queries], document_modules=[transformer, pooling]
    )
    return SentenceTransformer(modules=[router, Normalize()])


def weights_of_pieces(folder: Path) -> Any:
    """Queries without inference: a weight for each of their pieces, as OpenSearch's models."""
    saved_by_them("bert", "masked-lm", folder / "encoder")
    transformer = Transformer(str(folder / "encoder"), transformer_task="fill-mask")
    weights = torch.rand(len(PIECES), generator=torch.Generator().manual_seed(0))
    weights[PIECES.index("b")] = 0
    router = Router.for_query_document(
        query_modules=[SparseStaticEmbedding(transformer.tokenizer, weights)],
        document_modules=[transformer, SpladePooling("max")],
    )
    return SparseEncoder(modules=[router], similarity_fn_name="dot")


def dense(vectors: Any) -> np.ndarray:
    if isinstance(vectors, torch.Tensor):
        return vectors.to_dense().numpy()
    return vectors if isinstance(vectors, np.ndarray) else vectors.toarray()


@pytest.mark.long
@pytest.mark.parametrize(
    "make", [shared_encoder, router_at_the_end, static_queries, weights_of_pieces]
)
def test_queries_and_documents_have_their_modules(tmp_path: Path, make: Any) -> None:
    theirs = make(tmp_path)
    theirs.save(str(tmp_path / "m"))
    theirs = type(theirs)(str(tmp_path / "m"))  # else its parts share a tokenizer, which may pad
    model = bw.load(tmp_path / "m", device="cpu")
    document_task = "doc" if make is router_at_the_end else "document"
    prompt = theirs.prompts.get("document", "")
    own = [
        model.embed(TEXTS, is_query=True, precision="fp32"),
        model.embed(TEXTS, precision="fp32", prompt=prompt),
    ]
    expected = [
        theirs.encode_query(TEXTS),
        theirs.encode(TEXTS, task=document_task, prompt=prompt),
    ]
    for vectors, others in zip(own, expected, strict=True):
        np.testing.assert_allclose(dense(vectors), dense(others), atol=1e-5)
    assert np.abs(dense(own[0]) - dense(own[1])).max() > 0.1

    similarities = model.similarity(own[0], own[1])
    np.testing.assert_allclose(similarities, theirs.similarity(*expected), atol=1e-4)
    index = Index.open(model, TEXTS, precision="fp32")
    (hits,) = index.search(TEXTS[0], 4)
    best = theirs.similarity(*expected)[0].sort(descending=True).values
    np.testing.assert_allclose([hit.score for hit in hits], best, atol=1e-4)


@pytest.mark.long
@pytest.mark.parametrize(
    "make", [shared_encoder, router_at_the_end, static_queries, weights_of_pieces]
)
def test_a_saved_model_keeps_its_modules_for_queries(tmp_path: Path, make: Any) -> None:
    """It comes back with the same bits, is written again with the same bytes, and is theirs too."""
    theirs = make(tmp_path)
    theirs.save(str(tmp_path / "m"))
    model = bw.load(tmp_path / "m", device="cpu")
    model.save(tmp_path / "saved")
    new_model = bw.load(tmp_path / "saved", device="cpu")
    assert new_model.query_model is not None
    is_shared = make in (shared_encoder, router_at_the_end)
    assert (new_model.query_model.network is new_model.network) == is_shared
    for is_query in (True, False):
        own = [one.embed(TEXTS, is_query=is_query, precision="fp32") for one in (model, new_model)]
        assert np.array_equal(dense(own[0]), dense(own[1]))
    new_model.save(tmp_path / "again")
    files = [path for path in (tmp_path / "saved").rglob("*") if path.is_file()]
    for path in files:
        other = tmp_path / "again" / path.relative_to(tmp_path / "saved")
        assert path.read_bytes() == other.read_bytes(), path
    new_model.save(tmp_path / "saved", overwrite=True)
    assert sorted(path for path in (tmp_path / "saved").rglob("*") if path.is_file()) == sorted(
        files
    )

    their_model = type(theirs)(str(tmp_path / "saved"))
    prompt = theirs.prompts.get("document", "")
    np.testing.assert_allclose(
        dense(their_model.encode_query(TEXTS)),
        dense(model.embed(TEXTS, is_query=True, precision="fp32")),
        atol=1e-5,
    )
    np.testing.assert_allclose(
        dense(their_model.encode(TEXTS, task="document", prompt=prompt)),
        dense(model.embed(TEXTS, precision="fp32", prompt=prompt)),
        atol=1e-5,
    )


@pytest.mark.long
def test_a_server_has_vectors_of_queries(tmp_path: Path) -> None:
    weights_of_pieces(tmp_path).save(str(tmp_path / "m"))
    model = bw.load(tmp_path / "m", device="cpu")
    with running({"m": str(tmp_path / "m")}, precision="fp32") as server:
        for name, is_query in (("query", True), ("document", False)):
            body = {"inputs": TEXTS, "prompt_name": name}
            answer = httpx.post(f"{server.url}/embed_sparse", json=body).json()
            expected = dense(model.embed(TEXTS, is_query=is_query, precision="fp32"))
            for row, vector in zip(answer, expected, strict=True):
                assert {entry["index"] for entry in row} == {*vector.nonzero()[0].tolist()}
                for entry in row:
                    assert entry["value"] == pytest.approx(vector[entry["index"]], abs=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("build", [shared_encoder, static_queries, weights_of_pieces])
def test_a_server_compares_queries_with_documents(tmp_path: Path, build: Any) -> None:
    build(tmp_path).save(str(tmp_path / "m"))
    model = bw.load(tmp_path / "m", device="cpu")
    expected = model.similarity(TEXTS[:2], TEXTS, precision="fp32")
    with running({"m": str(tmp_path / "m")}, precision="fp32") as server:
        for text, row in zip(TEXTS, expected, strict=False):
            inputs = {"source_sentence": text, "sentences": TEXTS}
            scores = server.ask("/similarity", {"inputs": inputs})
            np.testing.assert_array_equal(np.float32(scores), row)
        with bw.Client(server.url) as client:
            if build is not weights_of_pieces:
                np.testing.assert_array_equal(client.similarity(TEXTS[:2], TEXTS), expected)
                vectors = model.embed(TEXTS, is_query=True, precision="fp32")
                np.testing.assert_array_equal(client.embed(TEXTS, is_query=True), vectors)


def test_a_default_prompt_is_not_that_of_queries_alone(tmp_path: Path) -> None:
    """Both routes read it from the same file."""
    router_at_the_end(tmp_path).save(str(tmp_path / "m"))
    file = tmp_path / "m" / "config_sentence_transformers.json"
    entries = {"prompts": {"query": "a ", "text": "b "}, "default_prompt_name": "text"}
    write_json(file, {**json.loads(file.read_text()), **entries})
    served_model = Models({"m": str(tmp_path / "m")}, device="cpu").get()
    assert served_model.is_for_queries("query")
    assert not served_model.is_for_queries("text")


def test_a_shared_encoder_is_loaded_once(tmp_path: Path) -> None:
    shared_encoder(tmp_path).save(str(tmp_path / "m"))
    model = bw.load(tmp_path / "m", device="cpu")
    assert model.query_model is not None
    assert model.query_model.network is model.network
    assert np.array_equal(
        model.similarity(TEXTS[:1], TEXTS),
        model.similarity(model.embed(TEXTS[:1], is_query=True), model.embed(TEXTS)),
    )
    with pytest.raises(CheckpointError, match="only those for documents would change"):
        shrink(model, TEXTS)


@pytest.mark.long
def test_routes_of_older_files_and_by_task_are_read(tmp_path: Path) -> None:
    """`Asym`, whose file has another name; and names of routes that only `route_mappings` tells."""
    theirs = router_at_the_end(tmp_path)
    theirs.save(str(tmp_path))
    expected = bw.load(tmp_path, device="cpu").embed(TEXTS, is_query=True)
    router = tmp_path / "2_Router"
    raw = json.loads((router / "router_config.json").read_text())
    (router / "router_config.json").unlink()
    raw["parameters"] = {"allow_empty_key": True}
    write_json(router / "config.json", raw)
    modules = json.loads((tmp_path / "modules.json").read_text())
    modules[2]["type"] = "sentence_transformers.models.Asym"
    write_json(tmp_path / "modules.json", modules)
    model = bw.load(tmp_path, device="cpu")
    assert np.array_equal(model.embed(TEXTS, is_query=True), expected)
    documents = model.embed(TEXTS)

    raw["structure"] = {"one": raw["structure"]["query"], "two": raw["structure"]["doc"]}
    write_json(router / "config.json", raw)
    with pytest.raises(CheckpointError, match="of the routes one, two, none is for a document"):
        bw.load(tmp_path, device="cpu")
    mappings = {"('query', 'text')": "one", "(None, None)": "two"}
    write_json(router / "config.json", {**raw, "parameters": {"route_mappings": mappings}})
    model = bw.load(tmp_path, device="cpu")
    assert np.array_equal(model.embed(TEXTS, is_query=True), expected)
    assert np.array_equal(model.embed(TEXTS), documents)


@pytest.mark.long
@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"structure": {"query": ["missing"]}}, "is not a router's"),
        ({"types": None}, "is not a router's"),
        ({"structure": {"query": ["../m"]}, "types": {"../m": "x.Dense"}}, "outside its directory"),
    ],
)
def test_damaged_routers_are_refused(tmp_path: Path, entries: dict[str, Any], message: str) -> None:
    router_at_the_end(tmp_path).save(str(tmp_path))
    file = tmp_path / "2_Router" / "router_config.json"
    write_json(file, {**json.loads(file.read_text()), **entries})
    with pytest.raises(CheckpointError, match=message):
        bw.load(tmp_path, device="cpu")
