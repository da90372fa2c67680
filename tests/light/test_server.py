"""A server of models in native code, where PyTorch may not be installed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from bertworks.native.library import has_kernels
from bertworks.serving.app import make_app
from bertworks.serving.models import Models
from tests.light.models import SavedBert, save_bert

pytestmark = [
    pytest.mark.light,
    pytest.mark.skipif(not has_kernels("fp32"), reason="no native code for this processor"),
]

LABELS = ("no", "so", "yes")


@pytest.fixture(scope="module")
def saved_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, SavedBert]:
    root = tmp_path_factory.mktemp("served")
    return {
        "encoder": save_bert(root / "encoder"),
        "tickets": save_bert(root / "tickets", labels=LABELS),
        "words": save_bert(root / "words", masked_lm=True),
    }


@pytest.fixture(scope="module")
def client(saved_models: dict[str, SavedBert]) -> Iterator[TestClient]:
    sources = {name: str(one.directory) for name, one in saved_models.items()}
    models = Models(sources, backend="native", precision="fp32")
    with TestClient(make_app(models), base_url="http://127.0.0.1") as client:
        yield client


def ask(client: TestClient, path: str, **body: Any) -> Any:
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def test_embeddings_are_those_of_the_formulas(
    client: TestClient, saved_models: dict[str, SavedBert]
) -> None:
    texts = ["the door was open", "london"]
    expected = np.stack([saved_models["encoder"].embed(text) for text in texts])
    actual = ask(client, "/embed", inputs=texts, normalize=False, model="encoder")
    assert np.array(actual) == pytest.approx(expected, abs=2e-5)
    openai = ask(client, "/v1/embeddings", input=texts, model="encoder")["data"]
    unit = expected / np.linalg.norm(expected, axis=1)[:, None]
    vectors = np.array([one["embedding"] for one in openai])
    assert vectors / np.linalg.norm(vectors, axis=1)[:, None] == pytest.approx(unit, abs=2e-5)


def test_vectors_of_tokens_are_the_last_states(
    client: TestClient, saved_models: dict[str, SavedBert]
) -> None:
    (tokens,) = ask(client, "/embed_all", inputs=["the door"], model="encoder")
    expected = saved_models["encoder"].hidden(["the", "door"])
    assert np.array(tokens) == pytest.approx(expected, abs=2e-5)


def test_predictions_are_those_of_the_formulas(
    client: TestClient, saved_models: dict[str, SavedBert]
) -> None:
    text = "a deep river"
    (answer,) = ask(client, "/classify", inputs=[text], model="tickets")
    expected = saved_models["tickets"].probabilities(text)
    assert answer["probabilities"] == pytest.approx(
        dict(zip(LABELS, expected, strict=True)), abs=1e-5
    )


def test_masks_are_filled(client: TestClient, saved_models: dict[str, SavedBert]) -> None:
    text = "the [MASK] was open"
    answer = ask(client, "/fill-mask", inputs=text, top_k=1, model="words")
    expected = saved_models["words"].pieces(text)
    best = answer[0]["masks"][0][0]
    assert best["id"] == expected.argmax()
    assert best["probability"] == pytest.approx(expected.max(), abs=1e-5)


def test_the_explorer_describes_models_and_shows_pieces(client: TestClient) -> None:
    assert client.get("/", headers={"accept": "text/html"}).status_code == 200
    tokens = ask(client, "/explore/pieces", text="the door", model="words")["pieces"]["tokens"]
    assert [one["token"] for one in tokens] == ["[CLS]", "the", "door", "[SEP]"]
    entries = {one["name"]: one for one in client.get("/explore/models").json()["models"]}
    assert entries["words"]["views"]["pieces"] is None


def test_views_of_the_network_say_what_they_need(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bertworks.explorer.available_views.has_pytorch", lambda: False)
    assert ask(client, "/explore/pieces", text="the door", model="words")["pieces"]
    response = client.post("/explore/attention", json={"text": "the door", "model": "words"})
    assert response.status_code == 424
    assert 'pip install "bertworks[train]"' in response.json()["error"]


def test_a_served_model_knows_its_device_and_size(saved_models: dict[str, SavedBert]) -> None:
    models = Models({"encoder": str(saved_models["encoder"].directory)}, backend="native")
    loaded_model = models.get("encoder")
    assert loaded_model.device == "cpu"
    assert loaded_model.num_bytes > 0
