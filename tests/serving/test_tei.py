"""The contract of text-embeddings-inference, line by line."""

from __future__ import annotations

import gzip

import numpy as np
import pytest
from huggingface_hub import InferenceClient

import bertworks as bw
from bertworks.serving.dialects.tei import rank_labels
from bertworks.serving.metrics import RequestContext
from bertworks.serving.runners import ScoredPrediction
from tests.serving.conftest import LIMIT, Running

TEXT = "the door was open"
LONG = "door " * 60


def test_one_text_and_several_have_the_same_form(server: Running, get_model) -> None:
    expected = get_model("encoder").embed([TEXT, "a river"])
    for inputs, rows in ((TEXT, 1), ([TEXT], 1), ([TEXT, "a river"], 2)):
        vectors = np.array(server.ask("/embed", {"inputs": inputs}), np.float32)
        np.testing.assert_array_equal(vectors, expected[:rows])
    assert len(server.ask("/embeddings", {"input": TEXT})["data"][0]["embedding"]) == 16


def test_times_in_headers_are_milliseconds() -> None:
    context = RequestContext("id", start_time=100.0)
    context.tokenising_seconds, context.queueing_seconds = 0.002, 0.03
    context.computing_seconds = 0.4
    headers = context.make_headers(100.5)
    times = {name: value for name, value in headers.items() if name.endswith("-time")}
    assert times == {
        **{"x-compute-time": "500", "x-total-time": "500", "x-tokenization-time": "2"},
        **{"x-queue-time": "30", "x-inference-time": "400"},
    }


def test_embed_reports_costs_in_headers(server: Running) -> None:
    answer = server.post("/embed", {"inputs": [TEXT, LONG], "truncate": True})
    assert answer.status_code == 200
    assert answer.headers["x-compute-type"] == "cpu"
    assert answer.headers["x-compute-characters"] == str(len(TEXT) + len(LONG))
    assert answer.headers["x-compute-tokens"] == str(6 + 32)
    assert answer.headers["x-truncated-texts"] == "1"
    for name in ("compute", "total", "tokenization", "queue", "inference"):
        assert int(answer.headers[f"x-{name}-time"]) >= 0


def test_long_texts_are_an_error_unless_they_are_truncated(server: Running, get_model) -> None:
    for options in ({}, {"truncate": None}, {"truncate": False}):
        answer = server.post("/embed", {"inputs": [TEXT, LONG], **options})
        assert answer.status_code == 413
        assert answer.json() == {
            "error": "inputs[1]: 62 tokens, but at most 32 fit. Shorten the text, or ask for "
            "truncate.",
            "error_type": "Validation",
        }
    both = LONG + "river " * 60
    vectors_of_sides = {
        side: server.ask("/embed", {**_truncate(side), "inputs": both})
        for side in ("Left", "Right")
    }
    for side, word in (("Right", "door"), ("Left", "river")):
        expected = get_model("encoder").embed([f"{word} " * 30])
        np.testing.assert_allclose(vectors_of_sides[side], expected, atol=1e-6)


def _truncate(side: str) -> dict[str, object]:
    return {"truncate": True, "truncation_direction": side}


def test_prompts_are_put_before_texts(server: Running, get_model) -> None:
    vectors = server.ask("/embed", {"inputs": "was open", "prompt_name": "query"})
    np.testing.assert_allclose(vectors, get_model("encoder").embed([TEXT]), atol=1e-6)
    empty = server.ask("/embed", {"inputs": TEXT, "prompt_name": "document"})  # its prompt is ""
    np.testing.assert_array_equal(empty, server.ask("/embed", {"inputs": TEXT}))
    refused = server.post("/embed", {"inputs": TEXT, "prompt_name": "q"})
    assert refused.status_code == 400
    assert refused.json()["error"].startswith("prompt_name: the model has no such prompt")
    assert [
        token["text"]
        for token in server.ask("/tokenize", {"inputs": "was", "prompt_name": "query"})[0]
    ] == ["[CLS]", "the", "door", "was", "[SEP]"]


def test_embed_all_gives_each_token_its_vector(server: Running, get_model) -> None:
    found = server.ask("/embed_all", {"inputs": [TEXT, "a"]})
    assert [np.shape(rows) for rows in found] == [(6, 16), (3, 16)]
    mean = np.mean(found[0], axis=0)
    expected = get_model("encoder").embed([TEXT], pooling="mean", normalize=False)[0]
    np.testing.assert_allclose(mean, expected, atol=1e-5)


def test_sparse_vectors_are_refused(server: Running) -> None:
    for more in ({}, {"prompt_name": "none"}):  # the model's fault comes first
        answer = server.post("/embed_sparse", {"inputs": TEXT, **more})
        assert answer.status_code == 424
        assert "no sparse vectors" in answer.json()["error"]


def test_predict_takes_a_text_a_pair_and_batches(server: Running) -> None:
    one = server.ask("/predict", {"inputs": TEXT, "model": "classifier"})
    batch = server.ask("/predict", {"inputs": [[TEXT], ["a river"]], "model": "classifier"})
    assert batch[0] == one
    assert [entry["score"] for entry in one] == sorted((e["score"] for e in one), reverse=True)
    (pair,) = server.ask("/predict", {"inputs": [TEXT, "a river"], "model": "reranker"})
    assert pair["label"] == "LABEL_0"
    wrong = server.post("/predict", {"inputs": [TEXT, "a river"], "model": "classifier"})
    assert wrong.status_code == 422, "it is one pair, and the model takes single texts"


def test_raw_scores_are_logits(server: Running) -> None:
    raw = server.ask("/predict", {"inputs": TEXT, "model": "classifier", "raw_scores": True})
    probabilities = server.ask("/predict", {"inputs": TEXT, "model": "classifier"})
    logits = np.array([entry["score"] for entry in raw])
    shares = np.exp(logits) / np.exp(logits).sum()
    np.testing.assert_allclose(shares, [entry["score"] for entry in probabilities], atol=1e-5)


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank"])
def test_rerank_keeps_the_order_of_equal_texts(server: Running, path: str) -> None:
    texts = ["a river", "deep"] * 20  # more than NumPy sorts by insertion
    field = "texts" if path == "/rerank" else "documents"
    ranks = server.ask(path, {"query": TEXT, field: texts, "model": "reranker"})
    numbers = [rank["index"] for rank in (ranks if path == "/rerank" else ranks["results"])]
    assert sorted(numbers[:20]) in ([*range(0, 40, 2)], [*range(1, 40, 2)])
    assert numbers == [*sorted(numbers[:20]), *sorted(numbers[20:])]


def test_tokens_have_bytes_and_special_ones_none(server: Running) -> None:
    text = "日 the é ünot"
    (tokens,) = server.ask("/tokenize", {"inputs": text})
    assert [token["text"] for token in (tokens[0], tokens[-1])] == ["[CLS]", "[SEP]"]
    assert all(t["special"] and t["start"] is t["stop"] is None for t in (tokens[0], tokens[-1]))
    for token in tokens[1:-1]:
        assert text.encode()[token["start"] : token["stop"]].decode() == token["text"]
    (bare,) = server.ask("/tokenize", {"inputs": [text], "add_special_tokens": False})
    assert bare == tokens[1:-1]
    assert len(server.ask("/tokenize", {"inputs": ["a", "river"]})) == 2


def test_decode_is_the_other_way_round(server: Running) -> None:
    (tokens,) = server.ask("/tokenize", {"inputs": TEXT})
    ids = [token["id"] for token in tokens]
    assert server.ask("/decode", {"ids": ids}) == [TEXT]
    assert server.ask("/decode", {"ids": [ids, ids[:3]]}) == [TEXT, "the door"]
    whole = server.ask("/decode", {"ids": [ids], "skip_special_tokens": False})
    assert whole == [f"[CLS] {TEXT} [SEP]"]
    wrong = server.post("/decode", {"ids": [[9999]]})
    assert (wrong.status_code, wrong.json()["error_type"]) == (422, "Tokenizer")


@pytest.mark.parametrize(
    ("path", "body", "status", "kind"),
    [
        ("/embed", {"inputs": []}, 400, "Empty"),
        ("/embed", {"inputs": ""}, 400, "Empty"),
        ("/embed", {"inputs": ["a", ""]}, 400, "Empty"),
        ("/embed", {"inputs": "\ud800"}, 422, "Tokenizer"),
        ("/embed", {"inputs": ["a"] * 2049}, 413, "Validation"),
        ("/embed", {"inputs": "a" * 200_001}, 413, "Validation"),
        ("/embed", {"inputs": {"a": 1}}, 422, "Validation"),
        ("/embed", {}, 422, "Validation"),
        ("/embed", [1], 422, "Validation"),
        ("/embed", {"inputs": [5, 6]}, 400, "Validation"),
        ("/embed", {"inputs": "a", "dimensions": 8}, 400, "Validation"),
        ("/embed", {"inputs": "a", "dimensions": 0}, 400, "Validation"),
        ("/embed", {"inputs": "a", "normalize": "yes"}, 422, "Validation"),
        ("/embed", {"inputs": "a", "model": "other"}, 404, "NotFound"),
        ("/predict", {"inputs": TEXT}, 424, "Backend"),
        ("/predict", {"inputs": [["a", "b", "c"]], "model": "classifier"}, 422, "Validation"),
        ("/predict", {"inputs": LONG, "model": "classifier"}, 413, "Validation"),
        ("/rerank", {"query": "a", "texts": ["a"], "model": "classifier"}, 424, "Backend"),
        (
            "/predict",
            {"inputs": TEXT, "prompt_name": "query", "model": "classifier"},
            400,
            "Validation",
        ),
        (
            "/rerank",
            {"query": "a", "texts": ["a"], "prompt_name": "query", "model": "reranker"},
            400,
            "Validation",
        ),
        ("/rerank", {"query": "", "texts": ["a"], "model": "reranker"}, 400, "Empty"),
        ("/rerank", {"query": "a", "texts": [], "model": "reranker"}, 400, "Empty"),
        ("/nowhere", {"inputs": "a"}, 404, "NotFound"),
    ],
)
def test_errors_are_one_line_of_a_kind(
    server: Running, path: str, body: object, status: int, kind: str
) -> None:
    answer = server.http.post(path, content=_json(body), headers=_JSON)
    assert (answer.status_code, answer.json()["error_type"]) == (status, kind), answer.text
    assert set(answer.json()) == {"error", "error_type"}
    assert "\n" not in answer.json()["error"]
    assert len(answer.json()["error"]) < 400


_JSON = {"content-type": "application/json"}


def _json(body: object) -> bytes:
    import json

    return json.dumps(body).encode()


_ONE_OR_SEVERAL = "inputs: must be a text or a list of texts; "


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("/embed", {"inputs": ["a", ""]}, "inputs[1]: must not be empty"),
        ("/embed", {"inputs": ["a"] * 2049}, "inputs: 2,049 texts, but at most 2,048"),
        (
            "/embed",
            {"inputs": ["a", "a" * 200_001]},
            "inputs[1]: 200,001 characters, but at most 200,000",
        ),
        ("/embed", {}, "inputs: must be given"),
        (
            "/rerank",
            {"query": "a", "texts": ["a", 1, 2]},
            "texts[1]: input should be a valid string",
        ),
        ("/embed", {"inputs": ["a", None]}, f"{_ONE_OR_SEVERAL}inputs[1] is null"),
        ("/embed", {"inputs": 3}, f"{_ONE_OR_SEVERAL}inputs is a number"),
        ("/embed", {"inputs": {}}, f"{_ONE_OR_SEVERAL}inputs is an object"),
        ("/tokenize", {"inputs": True}, f"{_ONE_OR_SEVERAL}inputs is true or false"),
        (
            "/predict",
            {"inputs": [["a", "b"], ["a", []]]},
            "inputs: must be a text, a list of texts or a list of lists of texts; "
            "inputs[1][1] is a list",
        ),
        (
            "/decode",
            {"ids": ["a"]},
            "ids: must be a list of token ids or a list of lists of token ids; ids[0] is a text",
        ),
        (
            "/encode",
            {"texts": ["a", ["b"]]},
            "texts: must be a list of texts or a list of lists of texts; texts[1] is a list",
        ),
        (
            "/v1/rerank",
            {"query": "a", "documents": ["a", 3]},
            "documents[1]: must be a text or an object; documents[1] is a number",
        ),
        (
            "/predict-rows",
            {"rows": ["a", ["a", None]]},
            "rows[1]: must be a text, a list of texts or an object; rows[1][1] is null",
        ),
        ("/similarity", {"inputs": {}}, "inputs.source_sentence: must be given"),
    ],
)
def test_errors_name_the_field_the_types_and_the_item(
    server: Running, path: str, body: dict[str, object], says: str
) -> None:
    answer = server.post(path, body)
    assert answer.status_code in (400, 413, 422)
    error = answer.json()["error"]
    assert says == (error if isinstance(error, str) else error["message"])


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain", ""])
@pytest.mark.parametrize("path", ["/embed", "/fill-mask"])
def test_a_body_of_another_content_type_is_415(server: Running, path: str, kind: str) -> None:
    headers = {"content-type": kind} if kind else {}
    answer = server.http.post(path, content=b'{"inputs": "a"}', headers=headers)
    assert answer.status_code == 415
    assert "send the header content-type: application/json" in answer.json()["error"]
    assert answer.json()["error_type"] == "Validation"


def test_a_body_that_is_not_json_is_400(server: Running) -> None:
    for content in (b"", b"{", b'{"inputs": NaN}', b"\xff\xfe", b'{"inputs": "\xff"}'):
        answer = server.http.post("/embed", content=content, headers=_JSON)
        assert answer.status_code in (400, 422), content
        assert "\n" not in answer.json()["error"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'{"inputs": "caf\xe9"}', "it is not UTF-8 (byte 15)"),
        (b'{"inputs": ["a", ', "Expecting value"),
        (b'{"inputs": ' + b"[" * 10**5 + b"]" * 10**5 + b"}", "it is nested too deeply"),
        (b'{"inputs": "a", "top_k": ' + b"9" * 5000 + b"}", "a number has too many digits"),
    ],
)
def test_a_body_that_cannot_be_read_says_why(server: Running, content: bytes, reason: str) -> None:
    for path in ("/embed", "/", "/invocations"):
        answer = server.http.post(path, content=content, headers=_JSON)
        assert answer.status_code == 400
        assert answer.json()["error"] == f"the body is not valid JSON: {reason}"


def test_a_compressed_body_is_415(server: Running) -> None:
    content = gzip.compress(b'{"inputs": "a"}')
    headers = {**_JSON, "content-encoding": "gzip"}
    answer = server.http.post("/embed", content=content, headers=headers)
    assert answer.status_code == 415
    assert "'gzip' is not supported; send plain JSON" in answer.json()["error"]
    headers["content-encoding"] = "identity"
    assert server.http.post("/embed", json={"inputs": "a"}, headers=headers).status_code == 200


def test_info_has_all_that_their_description_requires(server: Running) -> None:
    info = server.http.get("/info").json()
    assert info["model_type"] == {"embedding": {"pooling": "mean"}}
    assert info["max_input_length"] == 32, "the model's own limit"
    assert info["auto_truncate"] is False
    assert info["served_model_name"] == "encoder"
    assert info["tokenization_workers"] == 1, "the texts of a request are tokenized in one thread"
    required_fields = (
        *("model_id", "model_sha", "model_dtype", "max_concurrent_requests", "max_batch_tokens"),
        *("max_batch_requests", "max_client_batch_size", "tokenization_workers", "version"),
        *("sha", "docker_label"),
    )
    assert set(required_fields) <= info.keys()
    reranker = server.http.get("/info", params={"model": "reranker"}).json()["model_type"]
    assert set(reranker) == {"reranker"}
    kinds = server.http.get("/info", params={"model": "classifier"}).json()["model_type"]
    assert kinds == {
        "classifier": {
            "id2label": {"0": "no", "1": "so", "2": "yes"},
            "label2id": {"no": 0, "so": 1, "yes": 2},
        }
    }


@pytest.mark.long
@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8", "auto"])
def test_info_has_the_precision_that_is_computed(directories, start, precision: str) -> None:
    names = {"fp32": "float32", "bf16": "bfloat16", "int8": "int8"}
    with start({"m": directories["encoder"]}, precision=precision) as server:
        dtype = server.http.get("/info").json()["model_dtype"]
    if precision == "auto":
        precision = bw.load(directories["encoder"], device="cpu").embedder().auto_precision
    assert dtype == names[precision]


def test_an_unknown_field_is_an_error_and_an_empty_one_of_a_client_is_not(server: Running) -> None:
    body = {"inputs": "the door", "model": "encoder"}
    answer = server.post("/embed", {**body, "pooling": "cls"})
    assert (answer.status_code, answer.json()["error"].split(". ")[0]) == (
        422,
        "pooling: no such field",
    )
    inputs = {"source_sentence": "a", "sentences": ["b"], "sentence": ["c"]}
    answer = server.post("/similarity", {"inputs": inputs, "model": "encoder"})
    assert answer.json()["error"].startswith("inputs.sentence: no such field")
    body["model"] = "classifier"
    assert server.ask("/predict", {**body, "parameters": {}}) == server.ask("/predict", body)
    answer = server.post("/predict", {**body, "parameters": {"top_k": 1}})
    assert answer.json()["error"].startswith("parameters: ")


def test_the_root_is_health_and_predicts_by_the_models_type(server: Running) -> None:
    for path in ("/", "/ping", "/health", "/ready"):
        assert server.http.get(path).status_code == server.http.head(path).status_code == 200
    embedded = server.ask("/embed", {"inputs": TEXT})
    for path in ("/", "/invocations"):
        assert np.allclose(server.ask(path, {"inputs": TEXT}), embedded, atol=1e-6)
        labels = server.ask(path, {"inputs": TEXT, "model": "classifier"})
        assert {entry["label"] for entry in labels} == {"no", "so", "yes"}
        ranks = server.ask(path, {"query": TEXT, "texts": ["a"], "model": "reranker"})
        assert [rank["index"] for rank in ranks] == [0]
        assert server.post(path, {"query": TEXT}).status_code == 422
        assert server.post(path, ["a"]).status_code == 422
        wrong = server.post(path, {"inputs": 3}).json()["error"]
        assert wrong == "inputs: must be a text or a list of texts; inputs is a number"


def test_hugging_faces_client_works_unchanged(
    server: Running, get_model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    client = InferenceClient(model=server.url)
    for texts in (TEXT, [TEXT, "a river"]):
        expected = get_model("encoder").embed(texts)
        np.testing.assert_allclose(client.feature_extraction(texts), expected, atol=1e-6)
    cosines = client.sentence_similarity(TEXT, ["a river", TEXT])
    expected = get_model("encoder").similarity(TEXT, ["a river", TEXT])[0]
    np.testing.assert_allclose(cosines, expected, atol=1e-5)


def test_large_requests_are_split(server: Running, get_model) -> None:
    texts = [f"{'door ' * (at % 25)} open" for at in range(700)]
    found = np.array(server.ask("/embed", {"inputs": texts}), np.float32)
    np.testing.assert_allclose(found, get_model("encoder").embed(texts), atol=1e-5)


def test_encode_is_that_of_bert_as_service(server: Running, get_model) -> None:
    answer = server.ask("/encode", {"id": 7, "texts": [TEXT, "a"], "is_tokenized": False})
    assert (answer["id"], answer["status"]) == (7, 200)
    np.testing.assert_allclose(
        answer["results"], get_model("encoder").embed([TEXT, "a"]), atol=1e-6
    )
    chosen = {"pooling": "max", "layers": [-1, 0], "normalize": False}
    own = server.ask("/encode", {"texts": [TEXT], **chosen})["results"]
    np.testing.assert_allclose(own, get_model("encoder").embed([TEXT], **chosen), atol=1e-5)
    words = server.ask("/encode", {"texts": [TEXT.split()], "is_tokenized": True})["results"]
    np.testing.assert_allclose(words, get_model("encoder").embed([TEXT]), atol=1e-6)
    for body in ({"texts": [TEXT], "is_tokenized": True}, {"texts": [["a"]]}):
        assert server.post("/encode", body).status_code == 422
    assert server.post("/encode", {"texts": [TEXT], "layers": [9]}).status_code == 400
    assert server.post("/encode", {"texts": [TEXT], "pooling": "first"}).status_code == 422


def test_a_number_that_is_returned_has_64_bits(server: Running) -> None:
    for number in (2**63 - 1, -(2**63)):
        assert server.ask("/encode", {"id": number, "texts": ["a"]})["id"] == number
    for number in (2**63, 2**70, -(2**63) - 1):
        answer = server.post("/encode", {"id": number, "texts": ["a"]})
        assert answer.status_code == 422
        assert answer.json()["error"].startswith("id: input should be")


def test_the_limit_of_a_classifier_is_its_own(server: Running) -> None:
    fits = "door " * (LIMIT - 2)
    assert server.post("/predict", {"inputs": fits, "model": "classifier"}).status_code == 200
    response = server.post("/predict", {"inputs": LONG, "model": "classifier", "truncate": True})
    assert response.headers["x-truncated-texts"] == "1"
    left = {"inputs": LONG, "model": "classifier", **_truncate("Left")}
    assert server.post("/predict", left).status_code == 400


def test_labels_are_ranked_by_their_scores() -> None:
    """Vector scaling may put another label first than the logits; these decide ties."""
    answer = {"label": "b", "probabilities": {"a": 0.2, "b": 0.4, "c": 0.4}}
    prediction = ScoredPrediction(answer, np.array([3.0, 1.0, 2.0]))
    ranked = rank_labels(["a", "b", "c"], prediction, raw=False)
    assert [one["label"] for one in ranked] == ["c", "b", "a"]
    assert [one["score"] for one in ranked] == [0.4, 0.4, 0.2]
    raw = rank_labels(["a", "b", "c"], prediction, raw=True)
    assert [one["label"] for one in raw] == ["a", "c", "b"]
