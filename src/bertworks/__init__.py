"""BERT, the whole life cycle: raw text, vocabulary, pre-training, fine-tuning, prediction.

Names are loaded on first use, so that `import bertworks` is cheap and does not load torch.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from .threads import limit_spinning

if TYPE_CHECKING:  # for editors and type checkers
    from .api import Model as Model
    from .api import load as load
    from .checkpoints.heads import Head as Head
    from .corpus.prepare import prepare as prepare
    from .corpus.readers import read_documents as read_documents
    from .corpus.shards import Corpus as Corpus
    from .errors import BertworksError as BertworksError
    from .errors import BertworksWarning as BertworksWarning
    from .errors import CheckpointError as CheckpointError
    from .errors import DataError as DataError
    from .errors import LengthError as LengthError
    from .errors import OutputError as OutputError
    from .errors import SettingsError as SettingsError
    from .errors import TrainingError as TrainingError
    from .inference.merging import merge as merge
    from .inspection import inspect as inspect
    from .lab.features import ablate_features as ablate_features
    from .model.config import EncoderConfig as EncoderConfig
    from .model.encoder import Encoder as Encoder
    from .packed import Batch as Batch
    from .packed import Packed as Packed
    from .packed import Padded as Padded
    from .probing import probe as probe
    from .scoring import score as score
    from .search import Index as Index
    from .serving.client import AsyncClient as AsyncClient
    from .serving.client import Client as Client
    from .settings_help import describe_settings as describe_settings
    from .tables.schema import Role as Role
    from .tables.schema import Schema as Schema
    from .tasks.classifying import ClassifyingNetwork as ClassifyingNetwork
    from .tasks.classifying import ClassifyingTask as ClassifyingTask
    from .tasks.example import LabelledExample as LabelledExample
    from .tasks.labelled import LabelledTask as LabelledTask
    from .tasks.task import Network as Network
    from .tasks.task import Task as Task
    from .text.tokenizer import Tokenizer as Tokenizer
    from .text.vocabulary import train_vocabulary as train_vocabulary
    from .training.estimate import estimate as estimate
    from .training.finetune import finetune as finetune
    from .training.glue import glue as glue
    from .training.grid import finetune_grid as finetune_grid
    from .training.pretrain import pretrain as pretrain

__version__ = "0.1.0"

limit_spinning(os.environ)  # before anything imports torch

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
    "Network": "tasks.task",
    "LabelledTask": "tasks.labelled",
    "LabelledExample": "tasks.example",
    "ClassifyingTask": "tasks.classifying",
    "ClassifyingNetwork": "tasks.classifying",
    "Schema": "tables.schema",
    "Role": "tables.schema",
    "Head": "checkpoints.heads",
    "DataError": "errors",
    "BertworksWarning": "errors",
    "TrainingError": "errors",
    "OutputError": "errors",
    "CheckpointError": "errors",
    "LengthError": "errors",
    "SettingsError": "errors",
    "Model": "api",
    "load": "api",
    "Index": "search",
    "Client": "serving.client",
    "AsyncClient": "serving.client",
    "inspect": "inspection",
    "merge": "inference.merging",
    "score": "scoring",
    "pretrain": "training.pretrain",
    "estimate": "training.estimate",
    "finetune": "training.finetune",
    "describe_settings": "settings_help",
    "finetune_grid": "training.grid",
    "glue": "training.glue",
    "probe": "probing",
    "ablate_features": "lab.features",
}


__all__ = ["__version__", *_HOMES]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'bertworks' has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
