"""Hidden states of a frozen encoder, computed once and kept in a file that is mapped into memory.

Features that are made once serve any number of probes and epochs. The file is NumPy's, `[layers +
1, pieces, hidden_size]`: each layer lies together, so a probe of one layer reads one part of it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.lib.format import open_memmap

from .. import files
from ..errors import BertworksError
from ..model.encoder import HasEncoder
from ..packed import Batch
from ..tasks.example import by_length
from ..tasks.tagging.examples import TaggingExample
from ..tasks.tagging.probe import FrozenStates, pieces_of, window_starts
from ..tasks.tagging.task import TaggingTask
from ..tasks.tagging.words import Window
from .engine import DEFAULTS, by_tokens, check_finite, row_number
from .form import frozen_form
from .settings import EngineSettings


def frozen_states(
    file: Path,
    network: HasEncoder,
    task: TaggingTask,
    examples: Sequence[TaggingExample],
    engine: EngineSettings = DEFAULTS,
    tell: Callable[[str], None] | None = None,
) -> FrozenStates:
    """All layers' vectors of the pieces that tell a tag.

    Args:
        file: where they are kept. If it is there, it has to be of this encoder and these examples;
            it is there as a whole or not at all.
        network: what holds the encoder; it runs on the device where it is.
        task: what packs the examples.
        examples: with their windows.
        engine: batching and precision.
        tell: told how large the file will be.

    Raises:
        BertworksError: the disk has no room for the file.
        CheckpointError: a vector is not finite.
    """
    starts, pieces = window_starts(examples)
    config = network.encoder.config
    shape = (config.num_hidden_layers + 1, pieces, config.hidden_size)
    if not file.exists():
        size = 4 * int(np.prod(shape))
        if tell is not None:
            tell(f"computing {pieces:,} pieces' {shape[0]} hidden states: {size / 1e6:,.0f} MB")
        file.with_name(f"{file.name}.part").unlink(missing_ok=True)  # an earlier release's
        with files.atomic(file) as new:
            free = shutil.disk_usage(file.parent).free
            if size > free:  # a full disk would end the process with no word of what was wrong
                raise BertworksError(
                    f"the hidden states take {size / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free",
                    where=str(file.parent),
                    fix="Make room, or give another --out.",
                )
            values = open_memmap(new, "w+", np.float32, shape)
            _fill(values, network, task, examples, starts, engine)
            values.flush()
    found = np.load(file, mmap_mode="r")
    assert found.shape == shape, "of this encoder and these examples"
    return FrozenStates(found, starts)


def _fill(
    values: np.ndarray,
    network: HasEncoder,
    task: TaggingTask,
    examples: Sequence[TaggingExample],
    starts: Mapping[Window, int],
    engine: EngineSettings,
) -> None:
    device = next(network.parameters()).device
    form = frozen_form(network, engine.precision)
    for part in by_tokens(examples, engine.batch_tokens):
        batch = task.collate(part).to(device)
        windows = (part[at].sequences[number] for at, number in by_length(part))
        pieces = pieces_of(starts, windows)
        with torch.inference_mode():
            for layer, hidden in enumerate(form.encoder.hidden_states(batch.packed)):
                told = hidden[batch.targets["positions"]]
                check_finite(told, lambda at: _row_of(batch, at))  # noqa: B023
                values[layer, pieces] = told.float().cpu().numpy()


def _row_of(batch: Batch, at: int) -> str:
    """The row that the piece at a place among those that tell a tag is of."""
    sequence = torch.searchsorted(
        batch.packed.cu_seqlens.long(), batch.targets["positions"][at], right=True
    )
    return row_number(int(batch.packed.sequence_row[sequence - 1]))
