"""Quotas of keys: tokens a minute, requests at a time."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from bertworks.errors import SettingsError
from bertworks.serving.quotas import Quota, Quotas
from bertworks.serving.request_error import RequestError
from bertworks.serving.security import Keys, read_keys
from tests.conftest import needs_pytorch

pytestmark = pytest.mark.light

TEXT = "the door was open"
KEY, OTHER_KEY = "a-key-of-sixteen-characters", "b" * 20


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


def test_tokens_of_a_minute_are_limited() -> None:
    clock = Clock()
    quotas = Quotas({"ada": Quota(tokens_per_minute=60)}, clock)
    quotas.begin("ada")
    quotas.end("ada", 90)  # a request may exceed what is left
    for seconds, retry_after in ((0, "30"), (10, "20"), (19.5, "1")):
        clock.time += seconds
        with pytest.raises(RequestError, match="at most 60 tokens a minute") as error:
            quotas.begin("ada")
        assert error.value.status == 429
        assert error.value.headers["retry-after"] == retry_after
    clock.time += 0.501
    quotas.begin("ada")
    quotas.end("ada", 0)
    assert quotas.refusals == {"ada": 3}
    clock.time += 3600
    quotas.begin("ada")
    quotas.end("ada", 61)  # an hour without requests saves nothing
    with pytest.raises(RequestError):
        quotas.begin("ada")


def test_requests_at_a_time_are_limited() -> None:
    quotas = Quotas({"ada": Quota(max_requests=2)})
    quotas.begin("ada")
    quotas.begin("ada")
    with pytest.raises(RequestError, match="at most 2 requests at a time"):
        quotas.begin("ada")
    for _ in range(5):
        quotas.begin("bob")  # has no quota
    quotas.end("ada", 1)
    quotas.begin("ada")
    quotas.use({"ada": Quota(max_requests=3)})
    quotas.begin("ada")  # those that run still count
    with pytest.raises(RequestError, match="at most 3"):
        quotas.begin("ada")


def test_quotas_are_read_with_their_keys(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"ada:{KEY} tokens_per_minute=100  max_requests=3\n{OTHER_KEY}\n")
    keys = read_keys(file)
    assert keys.find_owner(KEY) == "ada"
    assert keys.find_owner(OTHER_KEY) == "key-2"
    assert keys.quotas == {"ada": Quota(100, 3)}


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ("tokens_per_minut=1", "unknown limit 'tokens_per_minut'.*tokens_per_minute"),
        ("max_requests=0", "must be one positive whole number"),
        ("max_requests=1 max_requests=2", "must be one positive whole number"),
        ("max_requests=-1", "must be one positive whole number"),
        ("max_requests", "must be one positive whole number"),
    ],
)
def test_invalid_quotas_are_refused(tmp_path: Path, limits: str, message: str) -> None:
    file = tmp_path / "keys"
    file.write_text(f"ada:{KEY} {limits}\n")
    with pytest.raises(SettingsError, match=rf"keys:1.*{message}"):
        read_keys(file)


@pytest.mark.long
@needs_pytorch
def test_server_refuses_requests_beyond_a_quota(directories, start) -> None:
    quotas = {"ada": Quota(tokens_per_minute=12)}
    keys = Keys({"ada": KEY, "bob": OTHER_KEY}, quotas=quotas)
    ada, bob = ({"authorization": f"Bearer {key}"} for key in (KEY, OTHER_KEY))
    with start({"m": directories["encoder"]}, keys=keys) as server:
        server.ask("/embed", {"inputs": [TEXT] * 10}, headers=ada)
        response = server.post("/embed", {"inputs": TEXT}, headers=ada)
        assert response.status_code == 429
        assert int(response.headers["retry-after"]) > 60
        assert "'ada' allows at most 12 tokens a minute" in response.json()["error"]
        openai = server.post("/v1/embeddings", {"model": "m", "input": "a"}, headers=ada)
        assert openai.json()["error"]["code"] == "rate_limit_exceeded"
        assert server.http.get("/info", headers=ada).status_code == 200
        server.ask("/embed", {"inputs": [TEXT] * 10}, headers=bob)
        metrics = server.http.get("/metrics").text
        assert 'bertworks_quota_refusals_total{client="ada"} 2.0' in metrics


@pytest.mark.long
@needs_pytorch
def test_requests_in_progress_count_against_a_quota(directories, start) -> None:
    keys = Keys({"ada": KEY}, quotas={"ada": Quota(max_requests=1)})
    headers = {"authorization": f"Bearer {KEY}"}
    statuses: list[int] = []
    with start({"m": directories["encoder"]}, keys=keys) as server:
        server.ask("/embed", {"inputs": TEXT}, headers=headers)  # loads the model

        def send() -> None:
            response = server.post("/embed", {"inputs": [TEXT] * 500}, headers=headers)
            statuses.append(response.status_code)

        threads = [threading.Thread(target=send) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(set(statuses)) == [200, 429]
        server.ask("/embed", {"inputs": TEXT}, headers=headers)
