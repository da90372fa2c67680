"""`bertworks push`: what it would send, and what a hub on this machine receives."""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id
from typer.testing import CliRunner

from bertworks.checkpoints.locate import locate
from bertworks.cli import app

JOURNAL = "/home/me/secret"


class Hub(ThreadingHTTPServer):
    """A hub that stores what it receives, or refuses it with a status."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[str] = []
        self.created: list[dict[str, Any]] = []
        self.files: dict[str, bytes] = {}
        self.large: dict[str, bytes] = {}
        self.tokens: set[str | None] = set()
        self.refusal: tuple[int, str] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def reply(self, tree: Any, status: int = 200, **headers: str) -> None:
        content = json.dumps(tree).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(content)

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers["Content-Length"] or 0))

    def do_PUT(self) -> None:
        self.server.large[self.path.rpartition("/")[2]] = self.body()
        self.reply({})

    def do_POST(self) -> None:
        hub, content, url = self.server, self.body(), self.server.url
        hub.requests.append(self.path)
        hub.tokens.add(self.headers["Authorization"])
        if hub.refusal is not None:
            status, message = hub.refusal
            self.reply({"error": message}, status, X_Error_Message=message)
        elif self.path == "/api/repos/create":
            hub.created.append(json.loads(content))
            self.reply({"url": f"{url}/me/model"})
        elif self.path == "/api/validate-yaml":
            self.reply({"errors": [], "warnings": []})
        elif self.path.endswith("/preupload/main"):
            paths = [one["path"] for one in json.loads(content)["files"]]
            modes = {True: "lfs", False: "regular"}
            files = [
                {"path": path, "uploadMode": modes[path.endswith("safetensors")]} for path in paths
            ]
            self.reply({"files": [{**one, "shouldIgnore": False} for one in files]})
        elif self.path.endswith("/objects/batch"):
            objects = json.loads(content)["objects"]
            for one in objects:
                one["actions"] = {"upload": {"href": f"{url}/put/{one['oid']}"}}
            self.reply({"objects": objects, "transfer": "basic"})
        else:
            assert self.path == "/api/models/me/model/commit/main", self.path
            import base64

            for line in map(json.loads, content.splitlines()):
                value = line["value"]
                if line["key"] == "file":
                    hub.files[value["path"]] = base64.b64decode(value["content"])
                elif line["key"] == "lfsFile":
                    hub.files[value["path"]] = hub.large[value["oid"]]
            self.reply({"commitUrl": f"{url}/me/model/commit/1", "commitOid": "1", "success": True})


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    hub = Hub()
    thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    yield hub
    hub.shutdown()
    hub.server_close()
    thread.join()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with a model, in whose folder somebody put other files."""
    model = tmp_path / "run" / "model"
    shutil.copytree(locate("mini"), model)
    (model / "model.safetensors").write_bytes(b"weights")
    for name in ("optimizer.safetensors", "journal.jsonl", "answers.tsv", ".env", "notes/a.json"):
        (model / name).parent.mkdir(exist_ok=True)
        (model / name).write_text(JOURNAL)
    (tmp_path / "run" / "journal.jsonl").write_text(JOURNAL)
    return tmp_path / "run"


def push(*words: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["push", *map(str, words)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return result.exit_code, result.stdout, result.stderr


def test_a_dry_run_lists_files_and_asks_nobody(hub: Hub, run: Path) -> None:
    status, output, _ = push(run, "me/model")
    assert status == 0 and hub.requests == []
    assert re.search(r"model\.safetensors\s+7\b", output)
    assert ".env, answers.tsv, journal.jsonl" in output
    assert "me/model (private)" in output and "--send" in output and "cc-by-sa-3.0" in output


@pytest.mark.filterwarnings("ignore:Use 'content=")  # of huggingface-hub's HTTP library
@pytest.mark.parametrize("options", [(), ("--public",)])
def test_a_model_is_sent_without_the_files_of_others(
    hub: Hub, run: Path, options: tuple[str, ...]
) -> None:
    status, output, errors = push(run, "me/model", "--send", *options)
    assert status == 0, errors
    assert f"{hub.url}/me/model" in output
    (created,) = hub.created
    assert ("public" in created.values()) is bool(options)
    model = run / "model"
    expected = {"README.md", "bertworks.json", "config.json", "model.safetensors", "tokenizer.json"}
    assert hub.files.keys() == expected | {"tokenizer_config.json", "vocab.txt"}
    assert all((model / name).read_bytes() == content for name, content in hub.files.items())
    assert hub.tokens <= {"Bearer hf_secret", None}
    assert not any(JOURNAL.encode() in content for content in hub.files.values())


REFUSALS = {
    401: "The token is not valid",
    403: "The token may not write there",
    413: "Try again later",
}


@pytest.mark.parametrize("status", REFUSALS)
def test_a_refusal_is_one_line(hub: Hub, run: Path, status: int) -> None:
    hub.refusal = status, "You shall\nnot".replace("\n", " ")
    exit_code, _, errors = push(run, "me/model", "--send")
    assert exit_code == 1
    (line,) = errors.strip().splitlines()
    assert line.startswith("error: me/model: the hub refuses it")
    assert "You shall not" in line and REFUSALS[status] in line
    assert "hf_secret" not in line


def test_no_token_and_no_hub_are_one_line_each(
    hub: Hub, run: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    exit_code, _, errors = push(run, "me/model", "--send")
    assert exit_code == 1 and len(errors.strip().splitlines()) == 1
    assert "the upload failed (" in errors and "Connection refused" in errors
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "none"))
    exit_code, _, errors = push(run, "me/model", "--send")
    assert exit_code == 1 and "there is no token of the hub. Log in" in errors
    assert hub.requests == []


@pytest.mark.parametrize(
    "name",
    ["a", "a/b", "_a/b.c", "a-b/c_d", "", "a/", "/a", "a/b/c", "-a/b", "a/b-", "a--b", "a..b"],
)
def test_names_are_those_of_the_hub(run: Path, name: str) -> None:
    try:
        validate_repo_id(name)
        is_valid = True
    except HFValidationError:
        is_valid = False
    assert (push(run, name)[0] == 0) is (is_valid and name != "")


def test_a_model_that_cannot_be_published_is_an_error(run: Path) -> None:
    for model, name, says in (
        (run, "me/my/model", "is no name of a model on the hub"),
        (run / "absent", "me/model", "no such directory here"),
        (run / "model" / "notes", "me/model", "there is no config.json"),
    ):
        exit_code, _, errors = push(model, name)
        assert exit_code == 1 and says in errors, errors
    (run / "model" / "model.safetensors").rename(run / "model" / "pytorch_model.bin")
    exit_code, _, errors = push(run, "me/model")
    assert exit_code == 1 and "has no weights in safetensors" in errors
    assert "bertworks convert" in errors


def test_links_and_what_is_no_file_are_refused(run: Path, tmp_path: Path) -> None:
    notice = run / "model" / "NOTICE"
    (tmp_path / "private").write_text("secret")
    for target, says in {
        tmp_path / "private": "is a link to a file outside of the model",
        tmp_path / "absent": "is no file",
    }.items():
        notice.unlink(missing_ok=True)
        notice.symlink_to(target)
        status, _, error = push(run, "me/model")
        assert status == 1 and says in error and len(error.splitlines()) == 1
    notice.unlink()
    notice.symlink_to("config.json")
    assert push(run, "me/model")[0] == 0
