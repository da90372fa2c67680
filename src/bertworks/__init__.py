"""BERT, the whole life cycle: raw text, vocabulary, pre-training, fine-tuning, prediction.

Names are loaded on first use, so that `import bertworks` is cheap and does not load torch.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from .errors import has_pytorch, missing_package_error, suggest_name
from .utils.lazy_module import imports_without_collection
from .utils.threads import limit_spinning, limit_spinning_of_numpy

if TYPE_CHECKING:  # for editors and type checkers
    from .analysis.estimate import estimate as estimate
    from .analysis.inspection import inspect as inspect
    from .analysis.probing import probe as probe
    from .analysis.retrieval.index import Index as Index
    from .analysis.scoring import score as score
    from .analysis.settings_help import describe_settings as describe_settings
    from .checkpoints.heads import Head as Head
    from .data.documents import read_documents as read_documents
    from .data.prepare import prepare as prepare
    from .data.schema import Role as Role
    from .data.schema import Schema as Schema
    from .data.shards import Corpus as Corpus
    from .errors import BertworksError as BertworksError
    from .errors import BertworksWarning as BertworksWarning
    from .errors import CheckpointError as CheckpointError
    from .errors import DataError as DataError
    from .errors import LengthError as LengthError
    from .errors import OutputError as OutputError
    from .errors import SettingsError as SettingsError
    from .errors import TrainingError as TrainingError
    from .inference.merging import merge as merge
    from .lab.features import ablate_features as ablate_features
    from .lab.glue import glue as glue
    from .loading import load as load
    from .model import Model as Model
    from .nn.config import EncoderConfig as EncoderConfig
    from .nn.encoder import Encoder as Encoder
    from .packed import Batch as Batch
    from .packed import Packed as Packed
    from .packed import Padded as Padded
    from .serving.client import AsyncClient as AsyncClient
    from .serving.client import Client as Client
    from .tasks.classifier import ClassifierTask as ClassifierTask
    from .tasks.example import LabelledExample as LabelledExample
    from .tasks.labelled import LabelledTask as LabelledTask
    from .tasks.network import ClassifierNetwork as ClassifierNetwork
    from .tasks.network import Network as Network
    from .tasks.task import Task as Task
    from .text.tokenizer import Tokenizer as Tokenizer
    from .text.vocabulary import train_vocabulary as train_vocabulary
    from .training.finetune import finetune as finetune
    from .training.pretrain import pretrain as pretrain
    from .tuning.grid import finetune_grid as finetune_grid

__version__ = "0.1.0"

limit_spinning_of_numpy(os.environ)  # before anything imports NumPy or torch
if has_pytorch():
    limit_spinning(os.environ)

_HOMES = {
    "BertworksError": "errors",
    "Packed": "packed",
    "Padded": "packed",
    "Batch": "packed",
    "Tokenizer": "text.tokenizer",
    "train_vocabulary": "text.vocabulary",
    "prepare": "data.prepare",
    "read_documents": "data.documents",
    "Corpus": "data.shards",
    "Encoder": "nn.encoder",
    "EncoderConfig": "nn.config",
    "Task": "tasks.task",
    "Network": "tasks.network",
    "LabelledTask": "tasks.labelled",
    "LabelledExample": "tasks.example",
    "ClassifierTask": "tasks.classifier",
    "ClassifierNetwork": "tasks.network",
    "Schema": "data.schema",
    "Role": "data.schema",
    "Head": "checkpoints.heads",
    "DataError": "errors",
    "BertworksWarning": "errors",
    "TrainingError": "errors",
    "OutputError": "errors",
    "CheckpointError": "errors",
    "LengthError": "errors",
    "SettingsError": "errors",
    "Model": "model",
    "load": "loading",
    "Index": "analysis.retrieval.index",
    "Client": "serving.client",
    "AsyncClient": "serving.client",
    "inspect": "analysis.inspection",
    "merge": "inference.merging",
    "score": "analysis.scoring",
    "pretrain": "training.pretrain",
    "estimate": "analysis.estimate",
    "finetune": "training.finetune",
    "describe_settings": "analysis.settings_help",
    "finetune_grid": "tuning.grid",
    "glue": "lab.glue",
    "probe": "analysis.probing",
    "ablate_features": "lab.features",
}


__all__ = ["__version__", *_HOMES]  # noqa: PLE0604


if not TYPE_CHECKING:  # a type checker would find every name

    def __getattr__(name: str) -> Any:
        home = _HOMES.get(name)
        if home is None:
            hint = suggest_name(name)
            advice = "" if hint is None else f". {hint}"
            raise AttributeError(f"module 'bertworks' has no attribute {name!r}{advice}")
        try:
            with imports_without_collection():
                module = importlib.import_module(f"{__name__}.{home}")
            return getattr(module, name)
        except ModuleNotFoundError as error:
            missing = missing_package_error(error, f"bertworks.{name}")
            if missing is None:
                raise
            raise missing from None


def __dir__() -> list[str]:
    return sorted(__all__)
