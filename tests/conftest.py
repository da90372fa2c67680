"""Fixtures of all tests: the folder of the real data, and one seed.

Where PyTorch is not installed, the files with tests that are marked `light` are collected alone.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import settings
from typer import testing

# Tests are small and may run side by side: threads that wait for one another cost far more than
# they bring. This must stand before torch is first imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The types and shapes that packs and the model declare are checked wherever a test uses them.
_CHECKED_MODULES = (
    "bertworks.packed",
    "bertworks.nn.attention",
    "bertworks.nn.attention_masks",
    "bertworks.nn.cpu",
    "bertworks.nn.embeddings",
    "bertworks.nn.encoder",
    "bertworks.nn.encoder_layers",
    "bertworks.nn.grouped_attention",
    "bertworks.nn.heads",
    "bertworks.nn.kv_cache",
    "bertworks.nn.layers",
    "bertworks.nn.losses",
    "bertworks.nn.pooling",
    "bertworks.nn.rotary",
)


def existing_modules(names: Sequence[str]) -> Sequence[str]:
    """Return names of modules, all of which exist: the import hook ignores the others silently."""
    for name in names:
        try:
            exists = find_spec(name) is not None
        except ModuleNotFoundError:  # nor does its package
            exists = False
        if not exists:
            raise pytest.UsageError(f"tests/conftest.py: {name!r} of _CHECKED_MODULES is no module")
    return names


HAS_PYTORCH = find_spec("torch") is not None
needs_pytorch = pytest.mark.skipif(not HAS_PYTORCH, reason="PyTorch is not installed")


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Without PyTorch, ignore files and folders without tests that are marked `light`."""
    if HAS_PYTORCH:
        return None
    is_folder = collection_path.is_dir()
    files = collection_path.rglob("test_*.py") if is_folder else [collection_path]
    is_light = any("pytest.mark.light" in file.read_text(encoding="utf-8") for file in files)
    return None if is_light else True


def _check_types() -> None:
    """Check declared types in the modules that are imported from now on."""
    names = existing_modules(_CHECKED_MODULES)
    import jaxtyping

    from tests.type_checks import remember_checks

    jaxtyping.jaxtyped = remember_checks(
        jaxtyping.jaxtyped
    )  # with which the hook decorates functions
    jaxtyping.install_import_hook(names, "beartype.beartype")


if HAS_PYTORCH:
    _check_types()

# A machine that is busy with something else is no fault of the code.
settings.register_profile("bertworks", deadline=None, max_examples=40)
settings.load_profile("bertworks")

ROOT = Path(__file__).resolve().parent.parent

gc.disable()  # while modules and tests are imported, which stay
_freeze = gc.freeze


def pytest_collection_finish() -> None:
    """Freeze all modules and tests for good: the garbage collector skips them.

    `fit` collects, freezes and unfreezes for each run, and a collection of all modules and tests
    takes longer than a short run.
    """
    _freeze()
    gc.freeze = gc.unfreeze = lambda: None
    gc.enable()


@pytest.fixture(scope="module", autouse=True)
def _imports_are_frozen() -> Iterator[None]:
    """Many libraries are imported at their first use."""
    yield
    gc.collect()
    _freeze()


@pytest.fixture(autouse=True)
def auto_is_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """`precision=auto` is fp32 on every machine, so that tests compare float32 numbers."""
    if HAS_PYTORCH:
        monkeypatch.setattr("bertworks.nn.device.is_fast_at_bfloat16", lambda _: False)
    monkeypatch.setattr("bertworks.inference.native_network.is_fast_at_bfloat16", lambda: False)


@pytest.fixture(autouse=True)
def auto_is_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """`device=auto` is the CPU on every machine, so that tests compare its bits."""
    if HAS_PYTORCH:
        import torch

        monkeypatch.setattr("bertworks.nn.device.fastest_device", lambda: torch.device("cpu"))


def _not_synchronised(descriptor: int) -> None:
    """As `os.fsync`, without its wait for the disk."""
    os.fstat(descriptor)  # an error for what is not open


# What is not synchronised is lost in a crash of the machine alone, which `crashes.py` simulates.
os.fsync = _not_synchronised


# For each command line typer builds all verbs anew, which takes longer than most of them do.
testing._get_command = cache(testing._get_command)


@pytest.fixture(scope="session", autouse=True)
def _workers_are_forked() -> Iterator[None]:
    """Workers are forked from a process that has imported everything.

    A worker that is started anew imports PyTorch, which takes longer than most of its work.
    """
    if not HAS_PYTORCH:
        yield
        return
    from bertworks.jobs import parallel

    from .forking import WorkerContext

    # That process finds this package and these tests, in whatever directory it is started.
    paths = [str(Path(parallel.__file__).parents[2]), str(ROOT), os.environ.get("PYTHONPATH")]
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
        patched.setattr(parallel, "CONTEXT", WorkerContext())
        yield


@pytest.fixture
def new_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are started anew, as users' are."""
    monkeypatch.setattr("bertworks.jobs.parallel.CONTEXT", multiprocessing.get_context("spawn"))


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real data; where it is absent, tests that need it are skipped and say so."""
    directory = Path(os.environ.get("BERTWORKS_DATA", ROOT.parent / "shared" / "data"))
    if not directory.is_dir():
        pytest.skip(f"no real data at {directory}: set BERTWORKS_DATA")
    return directory
