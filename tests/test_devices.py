"""All public functions that compute on a device choose it the same way."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import bertworks


def _functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the package's functions, methods and classes without an underscore in their names."""
    root = Path(bertworks.__file__).parent
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root.parent).with_suffix("").parts
        module = ".".join(part for part in parts if part != "__init__")
        if "._" in module:
            continue
        for name, item in vars(importlib.import_module(module)).items():
            if name.startswith("_") or getattr(item, "__module__", None) != module:
                continue
            if inspect.isfunction(item):
                yield f"{module}.{name}", item
            elif inspect.isclass(item):
                for key, method in vars(item).items():
                    is_public = key == "__init__" or not key.startswith("_")
                    # What a dataclass stores is not a choice that a caller makes.
                    if inspect.isfunction(method) and is_public and not _is_record(item, key):
                        yield f"{module}.{name}.{key}", method


def _is_record(kind: type, method: str) -> bool:
    return hasattr(kind, "__dataclass_fields__") and method == "__init__"


DEFAULTS = {
    name: parameter.default
    for name, function in _functions()
    if (parameter := inspect.signature(function).parameters.get("device")) is not None
    and parameter.default not in (inspect.Parameter.empty, None)  # None: as torch chooses
}


def test_devices_of_all_entry_points_are_examined() -> None:
    for name in ("loading.load", "training.finetune.finetune", "training.pretrain.pretrain"):
        assert f"bertworks.{name}" in DEFAULTS
    assert {
        "bertworks.cli.training.finetune",
        "bertworks.analysis.probing.probe",
    } <= DEFAULTS.keys()


@pytest.mark.parametrize("name", DEFAULTS)
def test_device_is_chosen_automatically_by_default(name: str) -> None:
    assert DEFAULTS[name] == "auto"
