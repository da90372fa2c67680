"""The imports of all commands, made once: every process is forked from one that has made them."""

import importlib
import pkgutil

import bertworks
from tests import forking  # noqa: F401, which defines processes

for module in pkgutil.walk_packages(bertworks.__path__, "bertworks."):
    if not module.name.endswith(("__main__", ".native.native")):  # the latter is the C library
        importlib.import_module(module.name)
