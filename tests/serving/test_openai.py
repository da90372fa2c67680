"""The contract of OpenAI's `/v1`, through the real client and line by line."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import openai
import pytest
from sentence_transformers.util import quantize_embeddings

from bertworks.errors import SettingsError
from bertworks.inference.vector_codes import quantize_vectors
from bertworks.serving.schedule import OverloadedError
from bertworks.serving.settings import ServeSettings
from tests.serving.conftest import Running

TEXTS = ["the door was open", "a river", "deep in london"]


@pytest.fixture
def client(server: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client:
        yield client


@pytest.mark.long
def test_the_real_client_gets_whole_vectors(client: openai.OpenAI, get_model) -> None:
    """It requests base64 by default, and decodes it."""
    expected = get_model("encoder").embed(TEXTS)
    for more in ({}, {"encoding_format": "float"}, {"encoding_format": "base64"}):
        answer = client.embeddings.create(model="encoder", input=TEXTS, **more)
        assert [entry.index for entry in answer.data] == [0, 1, 2]
        vectors = [entry.embedding for entry in answer.data]
        if more.get("encoding_format") == "base64":
            vectors = [np.frombuffer(base64.b64decode(v), "<f4") for v in vectors]
        np.testing.assert_allclose(vectors, expected, atol=1e-6)
        assert answer.model == "encoder"
        assert answer.usage.prompt_tokens == answer.usage.total_tokens == 6 + 4 + 5
    one = client.embeddings.create(model="encoder", input=TEXTS[0])
    np.testing.assert_allclose(one.data[0].embedding, expected[0], atol=1e-6)


def test_vectors_are_quantized_on_request(server: Running, get_model) -> None:
    vectors = get_model("encoder").embed(TEXTS)
    for form in ("int8", "ubinary", "binary"):
        data = server.ask("/v1/embeddings", {"input": TEXTS, "encoding_format": form})["data"]
        codes = np.array([entry["embedding"] for entry in data])
        if form == "int8":
            assert np.abs(codes - quantize_vectors(vectors, "int8")).max() <= 1
        else:
            assert np.array_equal(codes, quantize_embeddings(vectors, form))


def test_models_are_listed(client: openai.OpenAI) -> None:
    found = client.models.list().data
    assert {"encoder", "tagger"} <= {model.id for model in found}
    assert all(model.object == "model" and model.owned_by and model.created for model in found)
    assert client.models.retrieve("tagger").id == "tagger"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("none")


def test_an_unknown_model_is_404(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as error:
        client.embeddings.create(model="text-embedding-3-small", input="a")
    assert error.value.code == "model_not_found"
    assert error.value.param == "model"
    assert error.value.request_id


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "input: give at least one text"),
        ("", "input: must not be empty"),
        (["a", ""], "input[1]: must not be empty"),
        (["a"] * 2049, "input: 2,049 texts, but at most 2,048"),
        ("door " * 60, "input: 62 tokens, but at most 32 fit."),
        ([[5, 6]], "check_embedding_ctx_length=False"),
        ([5, 6], "start the server with token_ids=true"),
        ([1.5], "input: must be a text or a list of texts; input[0] is a number"),
        (None, "input: must be a text or a list of texts; input is null"),
    ],
)
def test_bad_input_is_400_with_all_four_keys(server: Running, value: object, message: str) -> None:
    answer = server.post("/v1/embeddings", {"model": "encoder", "input": value})
    assert answer.status_code == 400
    assert set(answer.json()) == {"error"}
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert message in error["message"]
    assert error["type"] == "invalid_request_error"
    assert str(error["param"]).startswith("input")


def test_a_missing_field_is_named(server: Running) -> None:
    error = server.post("/v1/embeddings", {"model": "encoder"}).json()["error"]
    assert error["message"] == "input: must be given"
    assert error["param"] == "input"


def test_the_first_model_is_the_default(server: Running) -> None:
    for fields in ({}, {"model": None}):
        assert server.ask("/v1/embeddings", {"input": "a", **fields})["model"] == "encoder"


def test_a_body_of_another_content_type_is_415(server: Running) -> None:
    form = {"content-type": "application/x-www-form-urlencoded"}
    answer = server.http.post("/v1/embeddings", content=b'{"input": "a"}', headers=form)
    assert answer.status_code == 415
    error = answer.json()["error"]
    assert "send the header content-type: application/json" in error["message"]
    assert error["type"] == "invalid_request_error"


def test_fields_that_change_no_answer_are_accepted(server: Running) -> None:
    body = {"model": "pretrained", "input": "a"}
    more = {"user": "u", "modality": "text", "input_type": "query", "task": None}
    expected = server.ask("/v1/embeddings", body)["data"]
    assert server.ask("/v1/embeddings", {**body, **more})["data"] == expected


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("pooling", "cls", "pooling: no such field"),
        ("late_chunking", False, "late_chunking: no such field"),
        ("encoding_fromat", "base64", "The nearest valid name is 'encoding_format'"),
        ("modality", "image", "modality: input should be 'text'"),
        ("input_type", "query", "choose a prompt of the model by prompt_name: query, document"),
    ],
)
def test_a_field_that_would_change_the_answer_is_named(
    server: Running, field: str, value: object, message: str
) -> None:
    response = server.post("/v1/embeddings", {"model": "encoder", "input": "a", field: value})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == field
    assert message in response.json()["error"]["message"]


def test_texts_are_truncated_on_request(server: Running) -> None:
    body = {"model": "encoder", "input": "door " * 60, "truncate": True}
    assert server.ask("/v1/embeddings", body)["usage"]["prompt_tokens"] == 32


@pytest.mark.long
def test_vectors_are_shortened_and_normalized(directories, start, get_model) -> None:
    sources = {"encoder": directories["encoder"]}
    body = {"model": "encoder", "input": TEXTS[0], "dimensions": 6}
    with start(sources) as server:
        response = server.post("/v1/embeddings", body)
        assert response.status_code == 400
        assert "Matryoshka" in response.json()["error"]["message"]
        assert response.json()["error"]["param"] == "dimensions"
        full = server.ask("/v1/embeddings", {**body, "dimensions": 16})
        assert len(full["data"][0]["embedding"]) == 16
    with start(sources, ServeSettings(any_dimensions=True, token_ids=True)) as server:
        shortened_vector = np.array(server.ask("/v1/embeddings", body)["data"][0]["embedding"])
        whole = get_model("encoder").embed([TEXTS[0]])[0, :6]
        np.testing.assert_allclose(shortened_vector, whole / np.linalg.norm(whole), atol=1e-6)
        assert server.post("/v1/embeddings", {**body, "dimensions": 17}).status_code == 400
        tei = server.ask("/embed", {"inputs": TEXTS[0], "dimensions": 6})
        np.testing.assert_allclose(tei[0], shortened_vector, atol=1e-6)
        # Ids where the server takes them.
        ids = get_model("encoder").tokenizer.piece_ids([TEXTS[0]])[0].tolist()
        for value in (ids, [ids]):
            found = server.ask("/v1/embeddings", {**body, "input": value})
            np.testing.assert_allclose(found["data"][0]["embedding"], shortened_vector, atol=1e-6)
        wrong = server.post("/v1/embeddings", {**body, "input": [[99999]]})
        assert wrong.status_code == 400
        assert "this model's vocabulary" in wrong.json()["error"]["message"]


def test_bits_fill_bytes(directories, start, get_model) -> None:
    """As for `Model.embed`: the other bits of a byte would count as equal numbers."""
    body = {"model": "encoder", "input": TEXTS}
    with start({"encoder": directories["encoder"]}, ServeSettings(any_dimensions=True)) as server:
        for form in ("binary", "ubinary", "int8", "float"):
            for dimensions in range(1, 17):
                more = {"encoding_format": form, "dimensions": dimensions}
                response = server.post("/v1/embeddings", {**body, **more})
                if form in ("int8", "float") or dimensions % 8 == 0:
                    assert response.status_code == 200, (form, dimensions)
                    continue
                assert response.status_code == 400
                error = response.json()["error"]
                assert error["param"] == "encoding_format"
                assert f"a multiple of 8 numbers, not {dimensions}" in error["message"]
                with pytest.raises(SettingsError, match=f"of 8 numbers, not {dimensions}"):
                    get_model("encoder").embed(TEXTS, quantization="binary", dimensions=dimensions)


@pytest.mark.long
def test_vectors_of_a_declared_matryoshka_model_may_be_shortened(
    directories, start, tmp_path
) -> None:
    copy = tmp_path / "nested"
    shutil.copytree(directories["encoder"], copy)
    settings = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**settings, "matryoshka_dimensions": [4, 8]}))
    with start({"nested": str(copy)}) as server:
        body = {"model": "nested", "input": "a"}
        assert len(server.ask("/v1/embeddings", {**body, "dimensions": 8})["data"]) == 1
        response = server.post("/v1/embeddings", {**body, "dimensions": 6}).json()["error"]
        assert response["message"] == "dimensions: the model's vectors may be shortened to 4, 8"


def test_a_request_has_300_000_tokens_at_most(server: Running, monkeypatch) -> None:
    monkeypatch.setattr("bertworks.serving.dialects.openai.MAX_TOKENS", 20)
    body = {"model": "encoder", "input": TEXTS}
    assert server.post("/v1/embeddings", body).status_code == 200
    response = server.post("/v1/embeddings", {**body, "input": TEXTS * 2})
    assert response.status_code == 400
    assert "more than 20 tokens" in response.json()["error"]["message"]


def test_the_client_comes_again_when_the_server_is_busy(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, refusals = server.service.queue.submit, []

    def busy(*arguments, **keywords):
        if len(refusals) < 2:
            refusals.append(1)
            error = OverloadedError("the server is busy")
            error.retry_after = 0.02
            raise error
        return usual(*arguments, **keywords)

    monkeypatch.setattr(server.service.queue, "submit", busy)
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused") as client:
        assert len(client.embeddings.create(model="encoder", input="a").data) == 1
    refusals.clear()
    response = server.post("/v1/embeddings", {"model": "encoder", "input": "a"})
    assert response.status_code == 429
    assert response.headers["retry-after"] == "1"
    assert response.headers["retry-after-ms"] == "20"
    assert response.json()["error"]["type"] == "rate_limit_error"


def test_documents_to_rank_may_be_objects(server: Running) -> None:
    documents = ["a river", {"text": "the door was open"}, "deep"]
    body = {"model": "reranker", "query": TEXTS[0], "documents": documents}
    answer = server.ask("/v1/rerank", {**body, "top_n": 2, "return_documents": True})
    texts = ["a river", "the door was open", "deep"]
    same = server.ask("/v1/rerank", {**body, "documents": texts, "return_documents": True})
    assert answer["results"] == same["results"][:2]
    assert answer["usage"]["total_tokens"] > 0
    bare = server.ask("/v1/rerank", body)["results"]
    assert [set(one) for one in bare] == [{"index", "relevance_score"}] * 3
    wrong = server.post("/v1/rerank", {**body, "model": "classifier"})
    assert wrong.status_code == 424


@pytest.mark.slow
def test_the_real_javascript_client_gets_whole_vectors(
    server: Running, get_model, tmp_path: Path
) -> None:
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        pytest.skip("node and npm are not installed")
    install = [npm, "install", "--silent", "--no-audit", "--no-fund", "openai@7.57.0"]
    done = subprocess.run(install, cwd=tmp_path, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"npm cannot install the client: {done.stderr[-200:]}")
    script = shutil.copy(Path(__file__).with_name("openai_client.mjs"), tmp_path)
    result = subprocess.run(
        [node, script, f"{server.url}/v1", *TEXTS], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    answers = json.loads(result.stdout)
    expected = get_model("encoder").embed(TEXTS)
    np.testing.assert_allclose(answers["usual"], expected, atol=1e-6)
    np.testing.assert_allclose(answers["floats"], expected, atol=1e-6)
    assert "encoder" in answers["names"]
    assert answers["refused"] == {"status": 404, "code": "model_not_found", "param": "model"}
