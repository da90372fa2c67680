"""Models that benchmarks make for themselves: released geometries with random weights."""

from __future__ import annotations

from pathlib import Path

from harness import DATA


def fresh(size: str, directory: Path) -> Path:
    """Save a BERT of a released size as pre-training begins, with the uncased vocabulary."""
    import torch

    import bertworks as bw
    from bertworks.nn.config import EncoderConfig
    from bertworks.tasks.pretraining.task import PretrainingTask

    pieces = (DATA / "vocab/bert-base-uncased-vocab.txt").read_text(encoding="utf-8").splitlines()
    tokenizer = bw.Tokenizer.from_vocabulary(pieces)
    task = PretrainingTask(tokenizer)
    torch.manual_seed(0)
    bw.Model(tokenizer, task, task.network(EncoderConfig.from_size(size)).eval()).save(
        directory, overwrite=True
    )
    return directory
