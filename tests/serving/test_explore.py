"""The explorer's routes: what the functions return, limits and errors of the server."""

from __future__ import annotations

import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from bertworks import explorer
from bertworks.inference.abandonment import AbandonedError
from bertworks.serving.dialects.explorer import _FUNCTIONS, VIEWS
from bertworks.serving.security import Keys
from tests.serving.conftest import Running
from tests.serving.test_bert import close
from tests.serving.test_operations import wait_until

TEXT = "the door was [MASK] in london"
REQUESTS = {
    "pieces": {"text": TEXT},
    "fill": {"text": TEXT, "words": [1], "candidates": ["open"], "ablated_heads": [[0, 1]]},
    "attention": {"text": TEXT, "words": [1]},
    "layer": {"text": TEXT, "words": [1], "layer": 1},
    "weights": {"layer": 1, "matrix": "value", "row": 3},
    "predict": {"text": TEXT, "ablated_heads": [[1, 1]], "target": {"token": "open"}},
    "heads": {"text": TEXT},
    "occlusion": {"text": TEXT, "target": {"kind": "blank"}},
    "steps": {"text": TEXT},
    "pair": {"text": TEXT, "other": "a river was [MASK] in london"},
    "contexts": {"word": "door", "texts": ["the door was open", "a door"]},
    "claim": {"texts": ["the door was open", "a river was deep"], "claim": "next"},
}


@pytest.mark.parametrize("view", VIEWS)
def test_a_route_answers_as_its_function(server: Running, get_model, view: str) -> None:
    answer = server.ask(f"/explore/{view}", {**REQUESTS[view], "model": "pretrained"})
    function = getattr(explorer, _FUNCTIONS.get(view, view))
    expected = function(get_model("pretrained"), **REQUESTS[view])
    assert close(answer, expected)


@pytest.mark.long
def test_models_say_which_views_they_have(server: Running, directories) -> None:
    for name in directories:
        server.ask("/explore/pieces", {"text": "the door", "model": name})
    answer = server.http.get("/explore/models").json()
    assert (answer["tokens"], answer["sentences"]) == (128, 64)
    entries = {entry["name"]: entry for entry in answer["models"]}
    assert list(entries) == list(directories)
    assert entries["encoder"]["default"]
    assert entries["pretrained"]["mask"] == "[MASK]"
    assert entries["classifier"]["labels"] == ["no", "so", "yes"]
    for name, entry in entries.items():
        for view in VIEWS:
            pair = "a river" if name in ("answering", "reranker") else None
            text = TEXT if view != "pieces" else "the door"
            request = {**REQUESTS[view], "model": name}
            if view in ("fill", "heads", "occlusion", "predict"):
                request = {"text": text, "pair": pair, "model": name}
            elif "words" in request:
                request.pop("words")
            response = server.post(f"/explore/{view}", request)
            reason = entry["views"][view]
            assert response.status_code == (200 if reason is None else 424), response.text
            if reason is not None:
                assert response.json()["error"] == reason
    line = entries["classifier"]["views"]["fill"]
    assert line.startswith("classifier is a classifier: it predicts no words. Serve ")
    assert "pretrained" in line


def test_errors_name_the_field(server: Running) -> None:
    def error(view: str, status: int, **body) -> str:
        answer = server.post(f"/explore/{view}", {"model": "pretrained", **body})
        assert answer.status_code == status, answer.text
        return answer.json()["error"]

    assert error("fill", 422, text="the door").startswith("text: there is no [MASK]")
    assert error("fill", 413, text="door " * 200).startswith("text: 202 tokens, but at most 48")
    assert error("attention", 400, text="") == "text: must not be empty"
    assert error("attention", 422, text="the", words=[7]).startswith("words: there is no word 7")
    assert error("predict", 422, text=TEXT, ablated_heads=[[9, 0]]).startswith(
        "ablated_heads: there is no head 0"
    )
    assert error("predict", 422, text=TEXT, target={"kind": "tag"}).startswith("target.kind: ")
    assert error(
        "predict", 424, model="classifier", text="a", target={"kind": "next-sentence"}
    ).startswith("classifier is a classifier: it predicts no next sentences. Serve ")
    assert error("predict", 422, text=TEXT, target={"token": "xyz"}).startswith("target.token: ")
    assert error("fill", 422, text=TEXT, checkpoint=3).startswith("checkpoint: no checkpoint of")
    assert error("fill", 422, text=TEXT, candidates=["a", "€"]).startswith("candidates[1]: ")
    assert error("fill", 422, text=TEXT, tex="").startswith("tex: no such field")
    assert error("contexts", 422, word="door", texts=["a door", "a"]).startswith("texts[1]: ")
    assert error("claim", 422, texts=["a"] * 65).startswith("texts: from 1 to 64")
    assert error("claim", 413, texts=["door", "door " * 99]).startswith("texts[1]: 101 tokens")
    assert error("claim", 422, texts=["door was"], claim="links").startswith("links: ")
    assert error("claim", 422, texts=["door"], claim="next").startswith("texts: the claim 'next'")
    assert error("layer", 422, text=TEXT, layer=2).startswith("layer: there is no layer 2")
    row = {"layer": 0, "matrix": "value"}
    assert error("weights", 422, **row, row=16).startswith("row: value has no row 16")
    assert error("weights", 422, layer=0, matrix="gate", row=0).startswith("matrix: the layers ")
    assert error("pair", 422, text=TEXT, other="a", target={"kind": "x"}).startswith("target.kind")


@pytest.mark.long
def test_keys_deadlines_and_limits_are_enforced(start, directories) -> None:
    keys = Keys({"me": "a-key-of-some-length"})
    body = {"text": TEXT}
    with start({"pretrained": directories["pretrained"]}, keys=keys) as server:
        assert server.post("/explore/fill", body).status_code == 401
        assert server.http.get("/explore/models").status_code == 401
        server.http.headers["authorization"] = "Bearer a-key-of-some-length"
        late = server.post("/explore/fill", body, headers={"x-deadline-ms": "0"})
        assert late.status_code == 408
        expected = server.ask("/explore/heads", body)
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda _: server.ask("/explore/heads", body), range(16)))
        assert all(one == expected for one in found)


@pytest.mark.long
def test_a_model_that_is_not_loaded_is_not_described(start, directories) -> None:
    with start({"one": directories["encoder"], "two": directories["pretrained"]}) as server:
        answer = server.http.get("/explore/models").json()["models"]
        assert answer == [
            {"name": "one", "default": True, "loaded": False},
            {"name": "two", "default": False, "loaded": False},
        ]
        answer = server.http.get("/explore/models", params={"model": "two"}).json()["models"]
        assert [entry["loaded"] for entry in answer] == [False, True]
        two = server.service.models.get("two").model
        assert answer[1]["layers"] == explorer.describe(two)["layers"] == 2


def test_a_view_is_dropped_or_stopped_when_its_client_leaves(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor, body = server.service.view_executor, {"text": TEXT, "model": "pretrained"}
    expected = server.ask("/explore/heads", body)
    is_running, go = threading.Event(), threading.Event()
    starts, stops = list[int](), list[int]()
    run = executor.run

    def run_watched(work, deadline):
        def watch():
            starts.append(1)
            is_running.set()
            assert go.wait(20)
            try:
                return work()
            except AbandonedError:
                stops.append(1)
                raise

        return run(watch, deadline)

    monkeypatch.setattr(executor, "run", run_watched)
    content = json.dumps(body)
    request = (
        "POST /explore/heads HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        f"content-length: {len(content)}\r\n\r\n{content}"
    )
    address = ("127.0.0.1", int(server.url.rpartition(":")[2]))
    with socket.create_connection(address) as one, socket.create_connection(address) as two:
        one.sendall(request.encode())
        assert is_running.wait(20)
        two.sendall(request.encode())
        wait_until(lambda: executor._waiting == 2)
    wait_until(lambda: executor._waiting == 0)
    go.set()
    assert server.ask("/explore/heads", body) == expected
    assert (len(starts), len(stops)) == (2, 1), "one is stopped, one never begins, one is answered"
