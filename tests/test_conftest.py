"""The types that the model declares are checked in the modules that `conftest.py` names."""

from __future__ import annotations

import importlib
import inspect
from dataclasses import dataclass
from typing import Any, Literal

import jaxtyping
import numpy as np
import pytest
import torch
from beartype import beartype
from jaxtyping import Float, Int64

from tests import conftest
from tests.type_checks import remember_checks


@pytest.mark.parametrize("name", ["bertworks.nowhere", "bertworks.nn.nowhere", "bertworks.no.x"])
def test_checked_module_that_does_not_exist_is_an_error(name: str) -> None:
    names = ["bertworks.packed", name]
    assert conftest.existing_modules(names[:1]) == names[:1]
    with pytest.raises(pytest.UsageError, match=f"'{name}' of _CHECKED_MODULES is no module"):
        conftest.existing_modules(names)


@pytest.mark.parametrize("name", conftest._CHECKED_MODULES)
def test_types_of_a_checked_module_are_checked(name: str) -> None:
    module = importlib.import_module(name)
    own = [one for one in vars(module).values() if getattr(one, "__module__", "") == name]
    functions = filter(inspect.isfunction, own)
    methods = [method for one in own if inspect.isclass(one) for method in vars(one).values()]
    assert any(hasattr(function, "__wrapped__") for function in [*functions, *methods])


check_once = remember_checks(jaxtyping.jaxtyped.__wrapped__)(typechecker=beartype)


class Results:
    """A function whose result is chosen, and how often it ran."""

    def __init__(self) -> None:
        self.result: Any = None
        self.num_calls = 0

    def make(self) -> Any:
        @check_once
        def rows(
            x: Float[torch.Tensor, "rows width"], *, mode: Literal["a", "b"] = "a"
        ) -> Float[torch.Tensor, " rows"]:
            self.num_calls += 1
            return self.result

        return rows


def test_wrong_arguments_are_errors_after_right_ones() -> None:
    results = Results()
    rows = results.make()
    results.result = torch.zeros(3)
    for _ in range(2):
        rows(torch.zeros(3, 2))
        rows(torch.zeros(3, 2), mode="b")
    for args, keywords in (
        ((torch.zeros(3),), {}),
        ((torch.zeros(3, 2, dtype=torch.int64),), {}),
        ((np.zeros((3, 2)),), {}),
        ((torch.zeros(4, 2),), {}),  # of which the result has other rows
        ((torch.zeros(3, 2),), {"mode": "c"}),
        ((torch.zeros(3, 2), torch.zeros(3, 2)), {}),
    ):
        for _ in range(2):
            with pytest.raises((jaxtyping.TypeCheckError, TypeError)):
                rows(*args, **keywords)


def test_wrong_results_are_errors_after_right_ones() -> None:
    results = Results()
    rows = results.make()
    x = torch.zeros(3, 2)
    results.result = torch.zeros(3)
    assert rows(x) is results.result
    for wrong in (torch.zeros(2), torch.zeros(3, dtype=torch.int64), None, np.zeros(3), {1: x}):
        results.result = wrong
        for _ in range(2):
            with pytest.raises(jaxtyping.TypeCheckError):
                rows(x)
    results.result = torch.nn.Parameter(torch.zeros(3))  # another kind, which is right
    assert rows(x) is results.result
    assert results.num_calls == 12, "each call is one"


def test_items_and_fields_are_checked_after_right_ones() -> None:
    @check_once
    @dataclass
    class Fields:
        ids: Int64[np.ndarray, " tokens"]
        pairs: tuple[tuple[int, int], ...]
        names: dict[str, int]

    right: tuple[Any, ...] = (np.zeros(2, np.int64), ((1, 2), (3, 4)), {"a": 1})
    for _ in range(2):
        Fields(*right)
    for index, wrong in ((0, np.zeros(2)), (1, (("x", "y"),)), (2, {"a": "b"})):
        with pytest.raises(jaxtyping.TypeCheckError):
            Fields(*right[:index], wrong, *right[index + 1 :])
