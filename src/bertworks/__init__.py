"""BERT, the whole life cycle: raw text, vocabulary, pre-training, fine-tuning, prediction.

Names are loaded when they are first used, so that `import bertworks` is cheap and loads no torch.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "BertworksError": "errors",
    "Packed": "packed",
    "Padded": "packed",
    "Batch": "packed",
    "Tokenizer": "text.tokenizer",
    "train_vocabulary": "text.vocabulary",
    "prepare": "corpus.prepare",
    "read_documents": "corpus.readers",
    "Corpus": "corpus.shards",
    "Encoder": "model.encoder",
    "EncoderConfig": "model.config",
    "Task": "tasks.task",
    "Model": "api",
    "load": "api",
    "Index": "search",
    "inspect": "inspection",
    "score": "scoring",
    "pretrain": "training.pretrain",
    "finetune": "training.finetune",
    "finetune_grid": "training.grid",
    "glue": "training.glue",
    "probe": "probing",
    "ablate_features": "ablations.features",
}


__all__ = ["__version__", *_HOMES]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'bertworks' has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
