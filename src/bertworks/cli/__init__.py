"""The command line: one thin command per verb, without logic.

Nothing here imports torch before a verb needs it, so that `--help` is fast.
"""

from . import (
    checkpoint,
    corpus,
    evaluation,
    lab,
    language_modelling,
    planning,
    prediction,
    search,
    serve,
    training,
    vectors,
)  # register their verbs
from .app import app

__all__ = ["app", "checkpoint", "corpus", "evaluation", "lab", "language_modelling", "main"]
__all__ += ["planning", "prediction", "search", "serve", "training", "vectors"]


def main() -> None:
    """The `bertworks` command."""
    app()
