"""Downloads from the hub, by its own library from a server of this machine."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

import pytest

COMMIT = "c" * 40
CONFIG = ("config.json", "vocab.txt", "README.md")
SHARDS = ("pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin")
REPOSITORIES = {
    "a/both": (*CONFIG, "model.safetensors", "pytorch_model.bin", "tf_model.h5", "model.onnx"),
    "a/shards": (*CONFIG, "pytorch_model.bin.index.json", *SHARDS, "flax_model.msgpack"),
    "a/trainer": (*CONFIG, "model.safetensors", "checkpoint-500/model.safetensors"),
    "a/keras": (*CONFIG, "tf_model.h5"),
    "a/tensorflow": (
        *("bert_config.json", "vocab.txt", "bert_model.ckpt.index"),
        "bert_model.ckpt.data-00000-of-00001",
    ),
    "a/colbert": (*CONFIG, "artifact.metadata", "model.safetensors"),
    "a/adapter": ("adapter_config.json", "adapter_model.bin"),
    "a/parts": (
        *("modules.json", "0_Transformer/config.json", "0_Transformer/model.safetensors"),
        *("1_Pooling/config.json", "2_Dense/config.json", "2_Dense/pytorch_model.bin"),
    ),
}
UNUSED = {"model.onnx", "flax_model.msgpack", "checkpoint-500/model.safetensors"}
NOT_FIRST = {"a/both": {"pytorch_model.bin", "tf_model.h5"}}
MODULES = [
    {"idx": idx, "name": str(idx), "path": path, "type": f"sentence_transformers.models.{kind}"}
    for idx, (path, kind) in enumerate(
        [("0_Transformer", "Transformer"), ("1_Pooling", "Pooling"), ("2_Dense", "Dense")]
    )
]


def content_of(path: str) -> bytes:
    if path == "modules.json":
        return json.dumps(MODULES).encode()
    return b"{}" if path.endswith(".json") else path.encode()


class Hub(BaseHTTPRequestHandler):
    """The three routes that downloads use."""

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if path.startswith("/api/models/"):
            name, _, rest = path.removeprefix("/api/models/").replace("/", "\0", 1).partition("/")
            name = name.replace("\0", "/")
            if name == "a/gated":
                return self._answer(b"", 403, {"X-Error-Code": "GatedRepo"})
            if name not in REPOSITORIES:
                return self._answer(b"", 404, {"X-Error-Code": "RepoNotFound"})
            return self._answer(json.dumps(self._description(name, rest)).encode())
        name, _, rest = path[1:].partition("/resolve/")
        file = rest.partition("/")[2]
        content = content_of(file)
        etag = hashlib.sha256(content).hexdigest()
        return self._answer(content, 200, {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT})

    def do_HEAD(self) -> None:
        self.do_GET()

    @staticmethod
    def _description(name: str, rest: str) -> Any:
        if rest.startswith("tree/"):
            return [
                {"type": "file", "path": file, "size": len(content_of(file)), "oid": "0" * 40}
                for file in REPOSITORIES[name]
            ]
        siblings = [{"rfilename": file} for file in REPOSITORIES[name]]
        return {"id": name, "sha": COMMIT, "siblings": siblings}

    def _answer(self, body: bytes, status: int = 200, headers: Any = MappingProxyType({})) -> None:
        self.send_response(status)
        for key, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Do not write to the terminal."""


@contextmanager
def hub() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


LOCATE_ALL = """
import json, sys
from bertworks.checkpoints.locate import locate
from bertworks.errors import CheckpointError
answers = {}
for name in sys.argv[1:]:
    try:
        directory = locate(name)
        paths = (path.relative_to(directory) for path in directory.rglob("*") if path.is_file())
        answers[name] = sorted(path.as_posix() for path in paths)
    except CheckpointError as error:
        answers[name] = str(error)
print(json.dumps(answers))
"""


def locate_all(cache: Path, endpoint: str, *names: str) -> dict[str, Any]:
    environment = {"HF_ENDPOINT": endpoint, "HF_HOME": str(cache), "HF_HUB_DISABLE_XET": "1"}
    process = subprocess.run(
        [sys.executable, "-c", LOCATE_ALL, *names],
        env={**os.environ, "HF_HUB_OFFLINE": "0", **environment},
        cwd=cache,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    answers: dict[str, Any] = json.loads(process.stdout)
    return answers


def test_weights_are_downloaded_in_one_format(tmp_path: Path) -> None:
    """Again from the copy, when there is no connection."""
    expected = {
        name: sorted({*files} - UNUSED - NOT_FIRST.get(name, set()))
        for name, files in REPOSITORIES.items()
    }
    with hub() as endpoint:
        assert locate_all(tmp_path, endpoint, *REPOSITORIES, *REPOSITORIES) == expected
    assert locate_all(tmp_path, endpoint, *REPOSITORIES) == expected


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a/gated", "a/gated: the hub gives this model only to those who may use it. Ask for"),
        ("a/unknown", "a/unknown: no such directory here, and no such model on the hub"),
    ],
)
def test_models_that_the_hub_does_not_give(name: str, message: str, tmp_path: Path) -> None:
    with hub() as endpoint:
        (answer,) = locate_all(tmp_path, endpoint, name).values()
    assert answer.startswith(message)


def test_hub_that_is_not_reached(tmp_path: Path) -> None:
    (answer,) = locate_all(tmp_path, "http://127.0.0.1:1", "a/both").values()
    assert "no such directory here, and the hub cannot be reached" in answer
