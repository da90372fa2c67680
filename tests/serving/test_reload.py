"""SIGHUP: models, keys and certificate are replaced together, or stay as they were."""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from bertworks.errors import SettingsError
from bertworks.serving.client import Client
from bertworks.serving.client_base import ServerError
from tests.serving.test_production_pages import run_health_check

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates"),
    pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="Windows has no SIGHUP"),
]
OLD, STAYING, NEW = ("an-old-key-of-ada", "the-key-of-bob-stays", "a-new-key-of-carol")


def make_certificate(folder: Path, kind: str) -> None:
    """Write a certificate and its private key, of RSA or of an elliptic curve."""
    algorithm = {
        "rsa": ["-newkey", "rsa:2048"],
        "ec": ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"],
    }[kind]
    words = ["openssl", "req", "-x509", "-nodes", "-subj", "/CN=localhost", *algorithm]
    words += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    words += ["-keyout", str(folder / "key.pem"), "-out", str(folder / "certificate.pem")]
    subprocess.run(words, check=True, capture_output=True)


@dataclass
class ServerProcess:
    """A server that runs until the end of a test, and the files that it has read."""

    process: subprocess.Popen[str]
    folder: Path
    url: str
    events: list[dict[str, Any]] = field(default_factory=list)

    def read_events(self) -> None:
        """Read the log until its end."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.events.append(json.loads(line))

    def hang_up(self) -> dict[str, Any]:
        """Send SIGHUP; return the event that says how it ended."""
        num_events = len(self.events)
        self.process.send_signal(signal.SIGHUP)
        end_time = time.monotonic() + 60
        while time.monotonic() < end_time:
            for event in self.events[num_events:]:
                if event["event"].startswith("reload"):
                    return event
            time.sleep(0.01)
        raise AssertionError("nothing was reloaded")

    def get(self, path: str, key: str) -> httpx.Response:
        """Send a request on a new connection."""
        headers = {"authorization": f"Bearer {key}"}
        return httpx.get(f"{self.url}{path}", headers=headers, verify=False, timeout=60)

    def answers(self) -> dict[str, int]:
        """The status of a request with each key."""
        return {key: self.get("/info", key).status_code for key in (OLD, STAYING, NEW)}

    def certificate(self) -> str:
        """The certificate that the server sends now."""
        port = int(self.url.rpartition(":")[2])
        return ssl.get_server_certificate(("127.0.0.1", port))


@pytest.fixture(scope="module")
def server(
    directories: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("reload")
    shutil.copytree(directories["encoder"], folder / "m")
    (folder / "keys").write_text(f"ada:{OLD}\nbob:{STAYING}\n")
    make_certificate(folder, "rsa")
    words = [str(folder / "m"), "--port", "0", "--device", "cpu"]
    words += ["--api-keys", str(folder / "keys"), "--tls-key", str(folder / "key.pem")]
    words += ["--tls-certificate", str(folder / "certificate.pem")]
    process = subprocess.Popen(
        [sys.executable, "-m", "bertworks", "serve", *words], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    try:
        event: dict[str, Any] = {}
        while event.get("event") != "listening":
            event = json.loads(process.stderr.readline())
        server = ServerProcess(process, folder, event["url"])
        reader = threading.Thread(target=server.read_events)
        reader.start()
        yield server
        process.terminate()
        reader.join(60)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait(60)
        process.stderr.close()


def state_of(server: ServerProcess) -> tuple[Any, ...]:
    """What a reload may change."""
    info = server.get("/info", STAYING).json()
    return server.answers(), server.certificate(), info["model_sha"], info["load_time"]


@pytest.mark.parametrize("kind", ["ec", "rsa"])
def test_reload_replaces_keys_certificate_and_model(
    server: ServerProcess, directories: dict[str, str], kind: str
) -> None:
    make_certificate(server.folder, kind)
    revoked_key, added_key = (OLD, NEW) if kind == "ec" else (NEW, OLD)
    (server.folder / "keys").write_text(f"bob:{STAYING}\ncarol:{added_key}\n")
    model = directories["classifier" if kind == "ec" else "encoder"]
    shutil.rmtree(server.folder / "m")
    shutil.copytree(model, server.folder / "m")
    digest = hashlib.sha256((server.folder / "m" / "model.safetensors").read_bytes()).hexdigest()
    event = server.hang_up()
    assert event["event"] == "reloaded"
    assert event["models"] == {"m": digest}
    assert event["keys"] == ["bob", "carol"]
    assert server.answers() == {revoked_key: 401, STAYING: 200, added_key: 200}
    assert server.certificate() == (server.folder / "certificate.pem").read_text()
    assert server.get("/info", STAYING).json()["model_sha"] == digest


@pytest.mark.parametrize("what", ["keys", "certificate", "model"])
def test_reload_that_fails_keeps_all(server: ServerProcess, tmp_path: Path, what: str) -> None:
    first_state = state_of(server)
    bad_file = (
        server.folder / {"keys": "keys", "certificate": "key.pem", "model": "m/config.json"}[what]
    )
    good = bad_file.read_bytes()
    keys = (server.folder / "keys").read_bytes()
    if what != "keys":
        (server.folder / "keys").write_text(f"carol:{'n' * 20}\n")
    if what == "certificate":
        make_certificate(tmp_path, "rsa")
        shutil.copy(tmp_path / "key.pem", bad_file)  # of another certificate
    else:
        bad_file.write_text("")
    event = server.hang_up()
    assert event["event"] == "reload failed"
    assert bad_file.name in event["reason"]
    assert state_of(server) == first_state
    metrics = server.get("/metrics", STAYING).text
    assert "bertworks_reload_failures_total 0.0" not in metrics
    bad_file.write_bytes(good)
    (server.folder / "keys").write_bytes(keys)
    assert server.hang_up()["event"] == "reloaded"


def test_health_check_of_the_image_knows_tls(server: ServerProcess) -> None:
    port = server.url.rpartition(":")[2]
    assert run_health_check(BERTWORKS_SERVE_PORT=port, BERTWORKS_SERVE_TLS_KEY="key.pem") == 0
    assert run_health_check(BERTWORKS_SERVE_PORT=port) == 1


def test_client_trusts_only_the_given_certificate(server: ServerProcess, tmp_path: Path) -> None:
    certificate = server.folder / "certificate.pem"
    with Client(server.url, STAYING, verify=certificate) as client:
        vector = client.embed("the door")
    with Client(server.url, STAYING, verify=False) as client:
        np.testing.assert_array_equal(client.embed("the door"), vector)
    with (
        Client(server.url, STAYING) as client,
        pytest.raises(ServerError, match=r"certificate is not trusted.*verify=FILE"),
    ):
        client.embed("the door")
    with (
        Client(server.url.replace("https:", "http:"), STAYING) as client,
        pytest.raises(ServerError, match=r"the connection broke .*Does the server use HTTPS\?"),
    ):
        client.embed("the door")
    for name, message in (("none.pem", "no such file"), ("key", "Give a PEM file")):
        (tmp_path / "key").write_text("no certificate")
        with pytest.raises(SettingsError, match=message):
            Client(server.url, STAYING, verify=tmp_path / name)
