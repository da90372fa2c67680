"""The command line: one thin command per verb, no logic.

Nothing here imports torch before a verb needs it, so that `--help` answers at once.
"""

from . import (
    checkpoint,
    corpus,
    measuring,
    search,
    serve,
    settings,
    training,
    using,
    vectors,
)  # each registers its verbs
from .app import app

__all__ = [
    "app",
    "checkpoint",
    "corpus",
    "main",
    "measuring",
    "search",
    "serve",
    "settings",
    "training",
    "using",
    "vectors",
]


def main() -> None:
    """The `bertworks` command."""
    app()
