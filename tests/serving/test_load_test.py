"""The load test that is installed with the package."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from bertworks.serving import load_test
from bertworks.serving.loaded_model import EmbedRunner
from bertworks.serving.security import Keys

from .test_operations import wait_until

KEY = "a-key-of-sixteen-characters"


def run_main(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["load_test", *words])
    return load_test.main()


@pytest.mark.long
def test_a_load_test_measures_a_server(
    directories, start, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with start({"encoder": directories["encoder"]}, keys=Keys({"ada": KEY})) as server:
        words = (server.url, "--seconds", "0.3", "--clients", "2", "--texts", "3", "--words", "4")
        assert run_main(monkeypatch, *words, "--key", KEY) == 0
        lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
        count = int(lines["requests"].split()[0].replace(",", ""))
        # 64 texts were embedded alone before. A request is counted after it is answered.
        wait_until(lambda: server.service.metrics.count_requests("/embed") == 64 + count)
        assert "p99" in lines["latency"]
        assert run_main(monkeypatch, *words, "--key", "wrong") == 1
        assert "401 Unauthorized" in capsys.readouterr().err
    assert run_main(monkeypatch, *words) == 1
    assert "cannot be used" in capsys.readouterr().err


@pytest.mark.long
def test_a_load_test_finds_wrong_vectors(
    directories, start, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute = EmbedRunner.run

    def compute_wrongly(self: EmbedRunner, examples):
        vectors = compute(self, examples)
        return [vectors[0], *(np.roll(vector, 1) for vector in vectors[1:])]

    with start({"encoder": directories["encoder"]}) as server:
        monkeypatch.setattr(EmbedRunner, "run", compute_wrongly)
        result = load_test.run(server.url, clients=1, seconds=0.2, texts=5, words=4)
    assert set(result.statuses) == {200}
    assert result.num_wrong >= 3 * result.statuses[200]
    assert not result.is_good
