"""Declared types and shapes, checked once for each kind of call.

A check of jaxtyping takes longer than most functions of a small model. What it finds depends only
on the types of arguments and result and, for arrays, on dtypes and shapes: when a call and a result
of the same description have passed, they pass again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import is_dataclass
from functools import cache, partial, wraps
from inspect import isclass
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch import nn

Check = Callable[[Callable[..., Any]], Callable[..., Any]]

MAX_ITEMS = 16
"""Longer lists are not described."""

_ARRAYS = (torch.Tensor, nn.Parameter, np.ndarray)
_VALUES = (type(None), bool, int, str, type, torch.dtype)


class UnknownKindError(Exception):
    """A value of which type and shape do not say all that a check may look at."""


def remember_checks(original: Callable[..., Any]) -> Callable[..., Any]:
    """`jaxtyping.jaxtyped`, whose functions check each kind of call once."""

    @wraps(original)
    def decorator(*, typechecker: Any) -> Callable[[Any], Any]:
        return partial(_decorate, original(typechecker=typechecker))

    return decorator


def _decorate(check: Check, one: Any) -> Any:
    """Check a function, or the fields of a dataclass."""
    if not isclass(one):
        return _remember(check, one)
    if is_dataclass(one) and "__init__" in vars(one):
        one.__init__ = _remember(check, one.__init__)
    return one


def _remember(check: Check, function: Callable[..., Any]) -> Callable[..., Any]:
    checked_function = check(function)
    results: dict[object, set[object]] = {}  # the kinds of results, for each kind of call
    replay = threading.local()

    def last_result(*_args: Any, **_keywords: Any) -> Any:
        return replay.result

    @cache
    def result_check() -> Callable[..., Any]:
        # with the function's globals, in which the names of its annotations are looked up
        names, closure = function.__globals__, last_result.__closure__
        return check(wraps(function)(FunctionType(last_result.__code__, names, closure=closure)))

    @wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        __tracebackhide__ = True
        if torch.compiler.is_compiling():
            return checked_function(*args, **keywords)
        try:
            kind = (*map(describe, args), *keywords, *map(describe, keywords.values()))
        except UnknownKindError:
            return checked_function(*args, **keywords)
        passed_kinds = results.get(kind)
        if passed_kinds is None:
            result = checked_function(*args, **keywords)
            results[kind] = {_describe_result(result)}
            return result
        result = function(*args, **keywords)
        result_kind = _describe_result(result)
        if result_kind is None or result_kind not in passed_kinds:
            replay.result = result
            try:
                result_check()(*args, **keywords)
            finally:
                del replay.result
            passed_kinds.add(result_kind)
        return result

    return call


def _describe_result(result: Any) -> object:
    try:
        return describe(result)
    except UnknownKindError:
        return None


def describe(value: Any) -> object:
    """Describe all of a value that a check of types and shapes looks at.

    Raises:
        UnknownKindError: that is more than can be described.
    """
    kind = type(value)
    try:
        describe_value = _DESCRIBE[kind]
    except KeyError:
        describe_value = _DESCRIBE[kind] = _description(kind)
    return kind if describe_value is None else describe_value(value)


def _description(kind: type) -> Callable[[Any], object] | None:
    """Choose how to describe values of a type; None: only by their type."""
    if kind in _ARRAYS:
        return lambda array: (kind, array.dtype, array.shape)
    if kind in _VALUES:  # may be among those of a `Literal`
        return lambda value: (kind, value)
    if issubclass(kind, tuple | list):
        return _describe_items
    is_unknown = issubclass(kind, torch.Tensor | np.ndarray | type) or (
        issubclass(kind, Collection) and not issubclass(kind, nn.Module)
    )
    return _refuse if is_unknown else None


def _describe_items(items: Any) -> object:
    if len(items) > MAX_ITEMS:
        _refuse(items)
    return (type(items), *map(describe, items))


def _refuse(value: Any) -> object:
    raise UnknownKindError(type(value).__name__)


_DESCRIBE: dict[type, Callable[[Any], object] | None] = {}
