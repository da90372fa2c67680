"""The command line: one thin command per verb, without logic.

Nothing here imports torch before a verb needs it, so that `--help` is fast. For the same reason the
command imports only the module of its verb.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

from ..utils.environment import SERVE_PREFIX
from ..utils.lazy_module import permanent_imports

if TYPE_CHECKING:
    from .application import app as app

__all__ = ["app", "main"]

MODULES = {
    "answering": ("answer",),
    "checkpoint": (
        *("inspect", "convert", "quantize", "distil", "add-tokens", "shrink", "extend"),
    ),
    "corpus": ("vocab", "prepare", "tokenize", "merge"),
    "evaluation": ("evaluate", "score", "probe", "check-labels"),
    "lab": ("demo", "glue", "ablate", "lab"),
    "language_modelling": ("fill-mask", "next-sentence", "generate"),
    "planning": ("estimate", "settings", "report-environment"),
    "prediction": ("predict", "explain"),
    "publishing": ("push",),
    "search": ("neighbours", "search", "index", "mine"),
    "serve": ("serve",),
    "training": ("pretrain", "finetune"),
    "vectors": ("embed", "features"),
}
"""The modules with verbs, and the verbs that each registers when it is imported."""


def main() -> None:
    """The `bertworks` command."""
    # Plugins of pydantic's that other packages install: a search for them reads the metadata of
    # all packages.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    verb = next(iter(sys.argv[1:]), "")
    modules = [module for module, verbs in MODULES.items() if verb in verbs] or list(MODULES)
    if any(name.startswith(SERVE_PREFIX) for name in os.environ) and "serve" not in modules:
        modules.append("serve")  # every verb checks that its variables are known
    with permanent_imports():
        application = _application(modules)
    application()


def _application(modules: Any) -> Any:
    """The application with the verbs of some modules."""
    for module in modules:
        importlib.import_module(f".{module}", __name__)
    return importlib.import_module(".application", __name__).app


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _application(MODULES)
