"""The types that the model declares are checked in the modules that `conftest.py` names."""

from __future__ import annotations

import importlib
import inspect

import pytest

from tests import conftest


@pytest.mark.parametrize("name", ["bertworks.nowhere", "bertworks.nn.nowhere", "bertworks.no.x"])
def test_checked_module_that_does_not_exist_is_an_error(name: str) -> None:
    names = ["bertworks.packed", name]
    assert conftest.existing_modules(names[:1]) == names[:1]
    with pytest.raises(pytest.UsageError, match=f"'{name}' of _CHECKED is no module"):
        conftest.existing_modules(names)


@pytest.mark.parametrize("name", conftest._CHECKED)
def test_types_of_a_checked_module_are_checked(name: str) -> None:
    module = importlib.import_module(name)
    own = [one for one in vars(module).values() if getattr(one, "__module__", "") == name]
    functions = filter(inspect.isfunction, own)
    methods = [method for one in own if inspect.isclass(one) for method in vars(one).values()]
    assert any(hasattr(function, "__wrapped__") for function in [*functions, *methods])
