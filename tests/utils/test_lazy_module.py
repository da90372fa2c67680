"""Imports without garbage collection."""

from __future__ import annotations

import gc

import pytest

from bertworks.utils.lazy_module import permanent_imports


def test_garbage_collection_is_as_before_an_import_that_fails() -> None:
    with pytest.raises(ImportError), permanent_imports():
        raise ImportError
    assert gc.isenabled()
    gc.disable()
    try:
        with permanent_imports():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()
