"""Models that cannot be loaded, and models whose files change while they are served."""

from __future__ import annotations

import gc
import json
import logging
import shutil
import socket
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from bertworks.cli import app
from bertworks.errors import CheckpointError, SettingsError
from bertworks.serving import models
from bertworks.serving.logs import LOG
from bertworks.serving.models import parse_sources
from bertworks.serving.settings import ServeSettings
from bertworks.settings.literals import Backend
from bertworks.utils import memory

TEXT = "the door was open"


def overflow(folder: Path) -> None:
    """Make a model's outputs infinite, with finite weights."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    for name in tensors:
        if name.endswith("LayerNorm.weight"):
            tensors[name] *= 1e38
    save_file(tensors, file, {"format": "pt"})


def truncate(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def break_config(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def lose_vocabulary(folder: Path) -> None:
    for name in ("vocab.txt", "tokenizer.json"):
        (folder / name).unlink(missing_ok=True)


def remove(folder: Path) -> None:
    shutil.rmtree(folder)


FAULTS: dict[Callable[[Path], None], str] = {
    overflow: "it cannot embed a text: the model's output is not finite",
    truncate: "model.safetensors: cannot be read",
    break_config: "config.json: ",
    lose_vocabulary: "vocab",
    remove: "no such directory",
}


@pytest.fixture(params=FAULTS, ids=lambda fault: fault.__name__)
def broken_model(request, directories, tmp_path: Path) -> tuple[str, str]:
    """A model that cannot be served, and a part of the reason."""
    folder = tmp_path / "broken"
    shutil.copytree(directories["encoder"], folder)
    request.param(folder)
    return str(folder), FAULTS[request.param]


@pytest.fixture(autouse=True)
def _log_of_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command's own log goes to the standard error of the call, which ends with it."""
    monkeypatch.setattr("bertworks.serving.server.log_to_stderr", lambda _: None)


def serve(*words: str) -> str:
    """The error of `serve`, which does not start."""
    result = CliRunner().invoke(app, ["serve", *words, "--port", "0", "--device", "cpu"])
    assert result.exit_code == 1, result.output
    assert "Traceback" not in result.output
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    return line


def test_the_error_at_the_start_says_its_cause(broken_model, directories) -> None:
    source, reason = broken_model
    for words in (
        [source],
        [source, f"b={source}"],
        [directories["tagger"], source, "require_all=true"],
    ):
        line = serve(*words)
        assert reason in line
        assert "cannot listen" not in line


@pytest.mark.parametrize("settings", [["lazy=true"], ["lazy=false"]])
def test_reason_of_a_failed_start_is_printed_once(
    settings: list[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LOG, "propagate", True)
    assert "one/model/none" in serve("one/model/none", "other=two/model/none", *settings)
    failures = [json.loads(record.getMessage()) for record in caplog.records]
    assert [failure["model"] for failure in failures] == ["other"]


def test_an_address_in_use_is_an_error_before_models_are_loaded(directories) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        result = CliRunner().invoke(app, ["serve", "nowhere/at all", "--port", port])
    assert f"cannot listen on 127.0.0.1:{port}. Another server may be there" in result.stderr


@pytest.mark.long
def test_other_models_are_served_if_one_is_broken(
    broken_model,
    directories,
    start,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, reason = broken_model
    monkeypatch.setattr(LOG, "propagate", True)  # a server in this process may have set it
    caplog.set_level("INFO", logger="bertworks.serving")
    with start({"broken": source, "good": directories["encoder"]}, ServeSettings()) as server:
        assert server.http.get("/ready").status_code == 200
        assert len(server.ask("/embed", {"inputs": TEXT, "model": "good"})) == 1
        for body in ({"inputs": TEXT}, {"inputs": TEXT, "model": "broken"}):
            response = server.post("/embed", body)
            assert response.status_code == 503
            assert reason in response.json()["error"]
            assert response.json()["error"].startswith("the model 'broken' cannot be loaded: ")
        openai = server.post("/v1/embeddings", {"model": "broken", "input": "a"})
        assert openai.status_code == 503
        assert openai.json()["error"]["code"] == "model_unavailable"
        info = server.http.get("/info", params={"model": "good"}).json()
        assert info["models"] == ["good"]
        assert reason in info["unavailable_models"]["broken"]
        assert [one["id"] for one in server.http.get("/v1/models").json()["data"]] == ["good"]
        assert "bertworks_unavailable_models 1.0" in server.http.get("/metrics").text
    ours = [record for record in caplog.records if record.name == LOG.name]
    events = [json.loads(record.getMessage()) for record in ours]
    (event,) = [event for event in events if event["event"] == "model unavailable"]
    assert event["model"] == "broken"
    assert reason in event["reason"]


@pytest.mark.long
@pytest.mark.parametrize("lazy", [False, True])
def test_a_model_that_is_repaired_is_served(
    broken_model, directories, start, lazy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, _ = broken_model
    with start({"good": directories["encoder"], "b": source}, ServeSettings(lazy=lazy)) as server:
        body = {"inputs": TEXT, "model": "b"}
        assert server.post("/embed", body).status_code == 503
        shutil.rmtree(source, ignore_errors=True)
        shutil.copytree(directories["encoder"], source)
        assert server.post("/embed", body).status_code == 503, "not tried at each request"
        if lazy:
            monkeypatch.setattr(models, "_RETRY_SECONDS", 0.0)
        else:
            assert server.reload() == ["good", "b"]
        assert server.post("/embed", body).status_code == 200
        assert server.service.models.available == ["good", "b"]


@pytest.mark.long
def test_a_reload_keeps_a_model_whose_new_weights_overflow(
    directories, start, tmp_path: Path
) -> None:
    folder = tmp_path / "m"
    shutil.copytree(directories["encoder"], folder)
    with start({"m": str(folder)}, ServeSettings()) as server:
        vectors = server.ask("/embed", {"inputs": TEXT})
        overflow(folder)
        with pytest.raises(Exception, match="not finite"):
            server.reload()
        assert server.ask("/embed", {"inputs": TEXT}) == vectors


@pytest.mark.long
@pytest.mark.parametrize("change", ["other weights", "truncated", "removed"])
def test_a_served_model_does_not_depend_on_its_file(
    directories, start, tmp_path: Path, change: str
) -> None:
    folder = tmp_path / "m"
    shutil.copytree(directories["encoder"], folder)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    with start({"m": str(folder)}) as server:
        texts = ["the door", TEXT, "a river was deep in london"]
        vectors = server.ask("/embed", {"inputs": texts})
        if change == "other weights":
            inode = file.stat().st_ino
            save_file({name: tensor * 2 for name, tensor in tensors.items()}, tmp_path / "new")
            with file.open("r+b") as stream:
                stream.write((tmp_path / "new").read_bytes())
                stream.truncate()
            assert file.stat().st_ino == inode
        elif change == "truncated":
            file.write_bytes(b"")
        else:
            file.unlink()
        for precision in (None, "fp32"):
            server.ask("/encode", {"texts": texts, "precision": precision})
        np.testing.assert_array_equal(server.ask("/embed", {"inputs": texts}), vectors)
        assert server.ask("/embed_all", {"inputs": "other texts"})
        if change == "other weights":
            server.reload()
            new_vectors = server.ask("/embed", {"inputs": texts})
            assert np.abs(np.array(new_vectors) - vectors).max() > 1e-3


def test_all_models_cannot_be_required_if_none_is_loaded() -> None:
    with pytest.raises(SettingsError, match="require_all=true needs lazy=false"):
        ServeSettings.resolve(require_all=True, lazy=True)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("=mini", "'=mini' has no name"),
        ("=", "'=' has no model"),
        ("mini=", "'mini=' has no model"),
        ("", "'' has no model"),
        ("/", "'/' has no name"),
        ("a =mini", "'a =mini' has no printable name"),
        ("a\nb=mini", "has no printable name"),
    ],
)
def test_a_served_model_has_a_name_and_a_source(word: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        parse_sources(["mini", word])


@pytest.mark.long
def test_a_model_larger_than_the_limit_is_an_error(directories, start) -> None:
    resident_bytes = memory.measure_resident_bytes() or 0
    with start({"m": directories["encoder"]}, max_memory=resident_bytes // 2) as server:
        response = server.post("/embed", {"inputs": TEXT})
        assert response.status_code == 503
        error = response.json()["error"]
        assert f": more than max_memory={resident_bytes // 2 / 1e6:g}" in error


@pytest.mark.long
def test_models_without_files_are_not_ready_if_lazy(directories, start, tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    shutil.copy(Path(directories["encoder"]) / "config.json", tmp_path / "m")
    reasons = {str(tmp_path / "m"): "there are no weights", "./nowhere": "no such directory"}
    for source, reason in reasons.items():
        assert reason in serve(source, "lazy=true")
    sources = {"good": directories["encoder"], "absent": "./nowhere"}
    with start(sources, ServeSettings(lazy=True)) as server:
        assert server.http.get("/ready").status_code == 200
        info = server.http.get("/info").json()
        assert (info["models"], list(info["unavailable_models"])) == (["good"], ["absent"])
        assert server.service.models.num_loads == {"good": 1}, "by /info"


@pytest.mark.long
def test_memory_of_the_process_decides_what_is_unloaded(
    directories, start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Two models fit by their weights, but not with all else that the process has in memory."""
    caplog.set_level(logging.INFO, logger=LOG.name)
    resident_megabytes = [100]
    monkeypatch.setattr(models, "measure_resident_bytes", lambda: resident_megabytes[0] * 1_000_000)
    with start(dict.fromkeys("abc", directories["encoder"]), max_memory=120_000_000) as server:
        server_models = server.service.models
        for name, megabytes, loaded_names in (
            ("a", 110, ["a"]),
            ("b", 119, ["a", "b"]),
            ("c", 121, ["c"]),
        ):
            resident_megabytes[0] = megabytes
            server.ask("/embed", {"inputs": TEXT, "model": name})
            assert [model.name for model in server_models.list_loaded()] == loaded_names
    events = [
        json.loads(record.getMessage()) for record in caplog.records if record.name == LOG.name
    ]
    (warning,) = [event for event in events if event["event"] == "memory above max_memory"]
    assert warning["megabytes"] == 121


@pytest.mark.long
def test_models_that_unload_each_other_are_reported(
    directories, start, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, logger=LOG.name)
    monkeypatch.setattr(models, "measure_resident_bytes", lambda: None)  # weights alone count
    sources = dict.fromkeys("ab", directories["encoder"])
    with start(sources) as server:
        server.ask("/embed", {"inputs": TEXT, "model": "a"})
        (model,) = server.service.models.list_loaded()
    with start(sources, max_memory=model.num_bytes) as server:
        for name in ("a", "b", "a"):
            server.ask("/embed", {"inputs": TEXT, "model": name})
        metrics = server.http.get("/metrics").text
    assert 'bertworks_model_loads_total{model="a"} 2.0' in metrics
    assert 'bertworks_model_unloads_total{model="b"} 1.0' in metrics
    records = [record for record in caplog.records if record.name == LOG.name]
    events = [json.loads(record.getMessage()) for record in records]
    (warning,) = [event for event in events if event["event"] == "models unload each other"]
    assert (warning["model"], warning["unloaded"]) == ("a", ["b"])


def test_model_that_another_program_replaces_while_it_is_loaded_is_refused(
    directories: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its digest might be that of the other file."""
    folder = Path(shutil.copytree(directories["encoder"], tmp_path / "m"))
    load = models.use

    def replace(*args: object, **options: object) -> object:
        model = load(*args, **options)  # type: ignore[arg-type]
        file = folder / "model.safetensors"
        shutil.copy(file, tmp_path / "new")
        (tmp_path / "new").rename(file)
        return model

    monkeypatch.setattr(models, "use", replace)
    with pytest.raises(models.UnavailableModelError, match="was changed while it was read"):
        models.Models({"m": str(folder)}).get()


def test_network_of_a_served_model_is_not_read_from_changed_files(
    directories: dict[str, str], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(directories["encoder"], tmp_path / "m"))
    server_models = models.Models({"m": str(folder)}, backend="native")
    loaded_model = server_models.get()
    file = folder / "model.safetensors"
    save_file({name: tensor * 2 for name, tensor in load_file(file).items()}, file)
    with pytest.raises(CheckpointError, match="the files of 'm' have changed since it was loaded"):
        _ = loaded_model.network_model
    server_models.swap_in(server_models.load_again())
    assert server_models.get().network_model is not None


@pytest.mark.parametrize("backend", ["torch", "native"])
def test_replaced_models_are_freed_without_garbage_collection(
    start, directories: dict[str, str], backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A collection that visits all of PyTorch's objects would stop the server for a second."""
    requests = {
        "encoder": ("/embed", {"inputs": [TEXT, "a river"]}),
        "classifier": ("/classify", {"inputs": TEXT, "windows": True}),
        "pretrained": ("/explore/steps", {"text": "the [MASK] was open"}),
    }
    served = {name: directories[name] for name in requests}
    monkeypatch.setattr(models, "_free_memory", lambda: None)  # which collects what is left
    with start(served, backend=backend) as server:
        for name, (path, body) in requests.items():
            server.ask(path, {**body, "model": name})
        old_models = [weakref.ref(model.model) for model in server.service.models.list_loaded()]
        gc.disable()
        try:
            server.reload()
            server.ask("/embed", {"inputs": TEXT})  # the queue's threads have other work
            assert [reference() for reference in old_models] == [None] * 3
        finally:
            gc.enable()
