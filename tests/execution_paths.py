"""Count the files of the package that a text, a request and a labelled row pass through.

    python -m tests.execution_paths [text | request | row]

A file counts if one of its functions is called during one use, which is traced after a first one
that fills the caches. `nn` and `native`, which compute, and the server's middleware (keys, logs,
metrics) are not counted.

- text: from a text to its vector, `Model.embed`;
- request: from an HTTP request for a vector to its answer;
- row: from a line of a table to its gradient: reading, examples, batches and one update.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import bertworks as bw

PACKAGE = Path(bw.__file__).parent
_MIDDLEWARE = tuple(f"serving/{name}.py" for name in ("middleware", "security", "logs", "metrics"))
_NOT_COUNTED = ("nn/", "native/", *_MIDDLEWARE)
_REQUEST = ("/v1/embeddings", {"input": ["a good film"], "model": "mini"})
_NUM_ROWS = 16


class Trace:
    """The files of the package whose functions are called while `running()`, in any thread."""

    def __init__(self) -> None:
        self._names: set[str] = set()

    @contextmanager
    def running(self) -> Iterator[None]:
        threading.setprofile(self.add_call)
        sys.setprofile(self.add_call)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def add_call(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            self._names.add(frame.f_code.co_filename)

    @property
    def files(self) -> list[str]:
        names = (Path(name) for name in self._names)
        paths = (str(n.relative_to(PACKAGE)) for n in names if n.is_relative_to(PACKAGE))
        return sorted(path for path in paths if not path.startswith(_NOT_COUNTED))


def files_of_text() -> list[str]:
    model = bw.load("mini")
    model.embed(["a good film"])
    trace = Trace()
    with trace.running():
        model.embed(["another good film"])
    return trace.files


def files_of_request() -> list[str]:
    from fastapi.testclient import TestClient

    from bertworks.serving.app import make_app
    from bertworks.serving.models import Models

    trace = Trace()
    is_tracing = False

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        if is_tracing:
            trace.add_call(frame, event, argument)

    threading.setprofile(profile)  # a thread of the server takes it when it starts
    try:
        app = make_app(Models({"mini": "mini"}))
        with TestClient(app, base_url="http://localhost") as client:
            path, body = _REQUEST
            client.post(path, json=body).raise_for_status()
            is_tracing = True
            client.post(path, json=body).raise_for_status()
            is_tracing = False
    finally:
        threading.setprofile(None)
    return trace.files


def files_of_row() -> list[str]:
    from bertworks.training import fit

    updates = 0
    trace = Trace()
    update = fit._Loop.update

    def traced_update(*arguments: Any, **keywords: Any) -> Any:
        nonlocal updates
        updates += 1
        if updates != 2:
            return update(*arguments, **keywords)
        with trace.running():
            return update(*arguments, **keywords)

    with tempfile.TemporaryDirectory() as directory:
        table = Path(directory) / "train.tsv"
        lines = [f"film {n}\t{'good' if n % 2 else 'bad'}\n" for n in range(_NUM_ROWS)]
        table.write_text("text\tlabel\n" + "".join(lines))
        model = bw.load("mini")
        task = _examples_of(table, model, trace)
        assert task is not None
        fit._Loop.update = traced_update  # type: ignore[method-assign]
        try:
            bw.finetune(
                model,
                "classification",
                train=str(table),
                out=str(Path(directory) / "run"),
                epochs=2,
                batch_size=8,
                progress=None,
            )
        finally:
            fit._Loop.update = update  # type: ignore[method-assign]
    return trace.files


def _examples_of(table: Path, model: bw.Model, trace: Trace) -> object:
    """Read a table and make its rows the task's examples, traced; return the task."""
    from bertworks.data.tables import read_rows
    from bertworks.tasks.classification import ClassificationSettings, ClassificationTask

    with trace.running():
        rows = read_rows(table)
        task = ClassificationTask.from_table(model.tokenizer, rows, ClassificationSettings())
        for _ in task.labelled_examples(rows):
            pass
    return task


PATHS: dict[str, Callable[[], list[str]]] = {
    "text": files_of_text,
    "request": files_of_request,
    "row": files_of_row,
}

if __name__ == "__main__":
    warnings.simplefilter("ignore")  # the list of files alone is printed
    for name in sys.argv[1:] or PATHS:
        files = PATHS[name]()
        print(f"{name}: {len(files)} files", *files, sep="\n  ")
