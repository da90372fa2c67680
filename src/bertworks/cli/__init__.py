"""The command line: one thin command per verb, without logic.

Nothing here imports torch before a verb needs it, so that `--help` is fast.
"""

from . import (
    checkpoint,
    corpus,
    lab,
    scale,
    serve,
    training,
    using,
    vectors,
)  # register their verbs
from .app import app

__all__ = ["app", "checkpoint", "corpus", "lab", "main", "scale"]
__all__ += ["serve", "training", "using", "vectors"]


def main() -> None:
    """The `bertworks` command."""
    app()
