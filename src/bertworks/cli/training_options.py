"""The options that verbs share that train, or examine what was trained."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import SettingsError
from .option_groups import OptionGroup

Run = Annotated[
    Path, typer.Option(metavar="DIR", help="Run directory; an existing run is resumed.")
]
Train = Annotated[str, typer.Option(metavar="FILE", help="Training rows.")]
Dev = Annotated[str, typer.Option(metavar="FILE", help="Evaluation rows.")]
Seeds = Annotated[
    str | None,
    typer.Option(metavar="N|N,N…", help="Number of seeds for each run, or a list of seeds."),
]


def _grid(
    *,
    grid: list[str] | None = None,
    seeds: Seeds = None,
    jobs: Annotated[int | None, typer.Option(min=1, max=1024)] = None,
) -> dict[str, Any]:
    """The runs of a grid.

    Args:
        grid (WORD): paper, NAME=V,V… or optuna:N; may be repeated.
        jobs (N): Parallel runs; one per GPU, or one, if omitted.
    """
    if grid is None and seeds is None and jobs is None:
        return {}
    return {"grid": grid or (), "seeds": seed_numbers(seeds), "jobs": jobs}


GridOptions = Annotated[dict[str, Any], OptionGroup(_grid)]
"""The runs of a grid, as keyword arguments of `finetune_grid`; empty if not given."""


def seed_numbers(text: str | None) -> int | list[int]:
    """Parse the number of seeds (`3`; 1 if omitted) or a list of seeds (`0,1,2`; `7,`)."""
    if text is None:
        return 1
    parts = text.removesuffix(",").split(",")
    if not all(part.isdecimal() for part in parts):
        raise SettingsError(f"seeds={text}: not numbers", fix="For example: 3, or 0,1,2.")
    numbers = [int(part) for part in parts]
    return numbers if "," in text else numbers[0]
