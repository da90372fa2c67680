"""The connection to Ray's cluster: its token, and its loss; with a stand-in for Ray."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from bertworks.errors import BertworksError
from bertworks.jobs.parallel import Workers


class RayError(Exception):
    pass


class GetTimeoutError(RayError):
    pass


def wait_in_vain(*_: object, **more: object) -> None:
    raise GetTimeoutError


class StandIn(ModuleType):
    """Ray, as far as a job uses it; no task of it ever ends.

    Attributes:
        modes: RAY_AUTH_MODE at each connection.
    """

    def __init__(self, fault: Exception | None = None, head: str = "") -> None:
        super().__init__("ray")
        self.modes: list[str | None] = []
        self.cancellations: list[Any] = []
        self._fault = fault
        self.exceptions = SimpleNamespace(
            RayError=RayError, GetTimeoutError=GetTimeoutError, RayTaskError=RayError
        )
        self.is_initialized = lambda: False
        self.put = self.cancel = self.cancellations.append
        self.cluster_resources: Callable[[], dict[str, float]] = lambda: {"CPU": 1.0}
        task = SimpleNamespace(remote=lambda *_: "task")
        self.remote = lambda _: SimpleNamespace(options=lambda **_: task)
        self.get: Callable[..., Any] = wait_in_vain
        self.util = SimpleNamespace(
            client=SimpleNamespace(ray=SimpleNamespace(is_connected=lambda: False))
        )
        self.get_runtime_context = lambda: SimpleNamespace(gcs_address=head)

    def init(self, **_: object) -> None:
        self.modes.append(os.environ.get("RAY_AUTH_MODE"))
        if self._fault is not None:
            raise self._fault


@pytest.fixture(autouse=True)
def _no_token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.setenv(name, "")  # so that what is set later is removed after the test
        monkeypatch.delenv(name)


def run(ray: StandIn, monkeypatch: pytest.MonkeyPatch, num_parts: int = 0) -> list[int]:
    monkeypatch.setitem(sys.modules, "ray", ray)
    return list(Workers(cluster="ray").map(abs, range(num_parts)))


@pytest.mark.parametrize(
    ("place", "mode", "expected"),
    [
        ("", None, None),
        ("RAY_AUTH_TOKEN", None, "token"),
        ("RAY_AUTH_TOKEN_PATH", None, "token"),
        ("file", None, "token"),
        ("file", "disabled", "disabled"),
    ],
)
def test_token_of_ray_is_used(
    place: str, mode: str | None, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = Path.home() / (".ray/auth_token" if place == "file" else "token")
    file.parent.mkdir(exist_ok=True)
    if place:
        file.write_text("a token")
    if place.startswith("RAY"):
        monkeypatch.setenv(place, str(file) if place.endswith("PATH") else "a token")
    if mode is not None:
        monkeypatch.setenv("RAY_AUTH_MODE", mode)
    ray = StandIn()
    assert run(ray, monkeypatch) == []
    assert ray.modes == [expected]


@pytest.mark.parametrize("fault", [ConnectionError("timeout"), RayError("invalid token")])
def test_a_cluster_that_refuses_is_an_error_that_names_token_and_log(
    fault: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = rf"Ray cannot be reached \({fault}\).*RAY_AUTH_TOKEN.*session_latest/logs"
    with pytest.raises(BertworksError, match=message):
        run(StandIn(fault), monkeypatch)


@pytest.mark.parametrize("workers", [1, 3])
def test_tasks_on_ray_are_at_most_as_many_as_workers(
    workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray, num_drawn = StandIn(), 0
    ray.get = lambda *_, **more: (True, None)

    def parts() -> Iterator[int]:
        nonlocal num_drawn
        while num_drawn < 10:
            num_drawn += 1
            yield num_drawn

    monkeypatch.setitem(sys.modules, "ray", ray)
    results = Workers(workers, cluster="ray").map(abs, parts())
    # At each result, one part is drawn that is not a task yet.
    pending = [num_drawn - number for number, _ in enumerate(results)]
    assert max(pending) == workers + 1


def test_a_head_that_is_lost_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as unused_socket:
        unused_socket.bind(("127.0.0.1", 0))  # it does not listen
        ray = StandIn(head=f"127.0.0.1:{unused_socket.getsockname()[1]}")
        with pytest.raises(BertworksError, match="ray: the connection to Ray is lost"):
            run(ray, monkeypatch, 3)
    assert "task" not in ray.cancellations, "a call would start another cluster"
