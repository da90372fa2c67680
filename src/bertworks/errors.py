"""Errors and warnings that are addressed to users.

A `BertworksError` explains in one or two lines what is wrong, where, and what to do. The command
line prints it without a traceback and exits with status 1. Bugs of this package are `assert`s and
ordinary exceptions, and keep their traceback.
"""

from __future__ import annotations

import importlib
import os
import reprlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from types import ModuleType
from typing import Any


class BertworksError(Exception):
    """An error that the user can fix.

    Args:
        what: what is wrong, as a sentence without a final stop.
        where: the place: file, file and line (`data.tsv:12`), row, or settings key.
        fix: what to do about it, as a separate sentence.
    """

    def __init__(self, what: str, *, where: str | None = None, fix: str | None = None) -> None:
        super().__init__(what, where, fix)
        self.what, self.where, self.fix = what, where, fix

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), where=self.where, fix=self.fix), (self.what,)

    def __str__(self) -> str:
        what = self.what
        if len(what) > _MAX_MESSAGE_LENGTH:  # it may quote a file or a user's input
            what = f"{what[:_MAX_MESSAGE_LENGTH]}…"
        text = f"{self.where}: {what}" if self.where else what
        return f"{text}. {self.fix}" if self.fix else text


class SettingsError(BertworksError):
    """A setting is unknown, of the wrong type, or impossible together with another."""


class DataError(BertworksError):
    """A file or row of data is not valid."""


class LengthError(DataError):
    """A text has more tokens than the model accepts."""


class CheckpointError(BertworksError):
    """A model or checkpoint is missing, damaged, or of another shape than expected."""


class NeedsPyTorchError(CheckpointError, SettingsError, AttributeError):
    """PyTorch is needed, which is not installed or was not chosen (`backend`)."""


def has_pytorch() -> bool:
    """Whether PyTorch is installed; it is not imported."""
    if "torch" in sys.modules:
        return sys.modules["torch"] is not None
    try:
        return find_spec("torch") is not None
    except ModuleNotFoundError:  # an import hook says so
        return False


def needs_pytorch_error(what: str, *, where: str | None = None) -> NeedsPyTorchError:
    """Return the error for something that native code cannot compute.

    Args:
        what: what needs PyTorch, as the start of a sentence.
    """
    return NeedsPyTorchError(
        f"{what} needs PyTorch",
        where=where,
        fix="Leave backend out, or choose torch."
        if has_pytorch()
        else 'Run: pip install "bertworks[train]"',
    )


NOT_FINITE_FIX = "Try precision=fp32, or train the model again with a lower learning rate."


def not_finite_error(where: str) -> CheckpointError:
    """Return the error for a row whose outputs are not finite."""
    return CheckpointError("the model's output is not finite", where=where, fix=NOT_FINITE_FIX)


def row_name(index: int, names: Sequence[str] | None = None) -> str:
    """The name of a row in errors: one of the names, or its number if there are none."""
    return f"row {index + 1}" if names is None else names[index]


class WrongModelError(BertworksError):
    """A model cannot do what is asked: it lacks a head, or makes vectors of another form."""


class OutputError(BertworksError):
    """An output cannot be written, is being written by another process, or is an input too."""


def exists_error(path: str | os.PathLike[str]) -> OutputError:
    """Return the error about an output that exists: every verb and function says the same."""
    fix = "Choose another output path, or replace it with --overwrite (overwrite=True)."
    return OutputError("already exists", where=os.fspath(path), fix=fix)


class TrainingError(BertworksError):
    """Training cannot continue; what was saved before is untouched."""


class OtherRunError(TrainingError):
    """A directory holds a different run from the one to resume."""


class DamagedError(CheckpointError, TrainingError):
    """The files from which a run resumes are damaged: restore them, or start a new run."""


class BertworksWarning(UserWarning):
    """A warning to the user; the command line prints it on one line."""


MAX_NAMES = 12
"""The maximum number of names that an error lists."""

_MAX_MESSAGE_LENGTH = 2000  # in characters
_MAX_REPR_LENGTH = 60
_SHORT_REPR = reprlib.Repr()
_SHORT_REPR.maxstring = _SHORT_REPR.maxother = 30
_SHORT_REPR.maxlist = _SHORT_REPR.maxdict = _SHORT_REPR.maxlevel = 2


def truncate_repr(value: object) -> str:
    """Return the `repr` of a value, truncated if it is long: data may hold anything."""
    if isinstance(value, str) and len(value) > _MAX_REPR_LENGTH:
        return f"{value[:_MAX_REPR_LENGTH]!r}…"
    return repr(value) if isinstance(value, str) else _SHORT_REPR.repr(value)


def shorten_list(names: Sequence[str], format_name: Callable[[str], str] = truncate_repr) -> str:
    """Return the first dozen names, and the number of further names."""
    text = ", ".join(map(format_name, names[:MAX_NAMES])) or "none"
    num_more = len(names) - MAX_NAMES
    return f"{text} and {num_more:,} more" if num_more > 0 else text


def first_line(error: BaseException) -> str:
    """Return why an exception was raised: the first line of its message, or else its type.

    An error number and a path, which an operating system's error has, are left out.
    """
    text = str(getattr(error, "strerror", None) or error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def closest_name(name: str, valid: Iterable[str]) -> str | None:
    """Return the valid name most similar to `name`; None if none is similar."""
    import difflib  # for errors alone

    candidates = [other for other in valid if len(other) <= 2 * _MAX_REPR_LENGTH]
    close = difflib.get_close_matches(name[: 2 * _MAX_REPR_LENGTH], candidates, n=1, cutoff=0.5)
    return close[0] if close else None


def did_you_mean(name: str, valid: Iterable[str]) -> str:
    """Return a phrase that suggests the most similar valid name, or lists some valid names."""
    valid = list(valid)
    close = closest_name(name, valid)
    if close is not None:
        return f"The nearest valid name is {close!r}"
    are_plain = not any(set(name) & {" ", ","} for name in valid)
    return f"Valid: {shorten_list(valid, str if are_plain else truncate_repr)}"


_OTHER_SETTING_NAMES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("num_train_epochs", "num_epochs", "max_epochs", "n_epochs"), ("epochs",)),
    "max_steps": ("steps", "epochs"),
    **dict.fromkeys(("max_length", "max_len", "model_max_length"), ("max_seq_length",)),
    **dict.fromkeys(("per_device_train_batch_size", "train_batch_size"), ("batch_size",)),
    **dict.fromkeys(("per_device_eval_batch_size", "eval_batch_size"), ("batch_tokens",)),
    "batch_size": ("batch_tokens",),
    **dict.fromkeys(("normalize_embeddings", "normalise"), ("normalize",)),
    **dict.fromkeys(("truncate_dim", "matryoshka_dim"), ("dimensions",)),
    **dict.fromkeys(("pooling_mode", "pooling_strategy"), ("pooling",)),
    **dict.fromkeys(("class_weight", "class_weights"), ("balance_classes",)),
    "gradient_accumulation_steps": ("micro_batch_tokens",),
    "lr": ("learning_rate",),
    **dict.fromkeys(("warmup_ratio", "warmup_steps", "num_warmup_steps"), ("warmup",)),
    "lr_scheduler_type": ("schedule",),
    **dict.fromkeys(("adam_beta1", "adam_beta2"), ("betas",)),
    "adam_epsilon": ("eps",),
    "optim": ("optimizer",),
    **dict.fromkeys(("fp16", "bf16"), ("precision",)),
    **dict.fromkeys(("patience", "early_stopping_patience"), ("early_stopping",)),
    "metric_for_best_model": ("best_metric",),
    "label_smoothing_factor": ("label_smoothing",),
    "logging_steps": ("log_every",),
    **dict.fromkeys(("eval_steps", "eval_strategy", "evaluation_strategy"), ("eval_every",)),
    **dict.fromkeys(("save_steps", "save_strategy"), ("checkpoint_every",)),
    "save_total_limit": ("keep_checkpoints",),
    **dict.fromkeys(("num_workers", "dataloader_num_workers"), ("loader_workers",)),
    "report_to": ("tensorboard",),
    "mlm_probability": ("mlm_probability", "masking.mlm_probability"),
}
"""Settings of Hugging Face's trainer and of common scripts, with their names in this package. Of
several names, the first is suggested that a group of settings has, or for which it has a group."""

_FIXES_OF_UNKNOWN_SETTINGS: Mapping[str, str] = {
    **dict.fromkeys(("out", "output_dir"), "Give the run directory as --out (in Python: out=)"),
    **dict.fromkeys(("train", "train_dataset", "train_file"), "Give it as --train (train=)"),
    **dict.fromkeys(("dev", "eval_dataset", "validation_file"), "Give it as --dev (dev=)"),
    **dict.fromkeys(("device", "use_cpu", "no_cuda"), "Give it as --device (device=)"),
    **dict.fromkeys(("num_workers", "dataloader_num_workers"), "No workers are needed here"),
    **dict.fromkeys(
        ("multi_label", "problem_type", "label_separator"),
        "The task multilabel is for rows with any number of labels",
    ),
    "targets": "Give the words as candidates= (fill_mask)",
    **dict.fromkeys(
        ("k", "topk", "num_results"), "The number of answers is --top-k (in Python top_k=)"
    ),
    **dict.fromkeys(("num_labels", "n_classes"), "The labels are found in the rows"),
    "output_value": "The vectors of tokens are those of features",
    "padding": "Nothing is padded",
    "prompt_name": "Give the prompt's text as prompt=, or is_query=true",
    "load_best_model_at_end": "With dev, the best weights are always kept",
    **dict.fromkeys(
        ("show_progress_bar", "show_progress", "verbose"),
        "Progress is a function: progress=lambda done, total: … (`embed`, `embed_to`)",
    ),
    **dict.fromkeys(
        ("convert_to_numpy", "convert_to_tensor", "return_tensors"),
        "Vectors are NumPy arrays; torch.from_numpy makes a tensor of one",
    ),
}
"""Names that are not settings in this package, with the fix to suggest."""


_OTHER_METHOD_NAMES: Mapping[str, str] = {
    **dict.fromkeys(("encode", "transform", "embed_documents", "embed_query"), "embed"),
    **dict.fromkeys(("encode_query", "encode_document"), "embed (is_query=true for queries)"),
    **dict.fromkeys(("encode_to", "encode_multi_process"), "embed_to"),
    **dict.fromkeys(("fit", "train", "fine_tune"), "finetune (bertworks.finetune)"),
    **dict.fromkeys(("save_pretrained", "save_to_disk", "push_to_hub"), "save"),
    **dict.fromkeys(("from_pretrained", "load"), "load (bertworks.load)"),
    **dict.fromkeys(("tokenize", "decode"), "tokenizer"),
    "hidden_size": "encoder.config",
    **dict.fromkeys(("score", "test"), "evaluate"),
    **dict.fromkeys(("rank", "rerank"), "predict"),
    **dict.fromkeys(("unmask", "fill"), "fill_mask"),
    **dict.fromkeys(("cos_sim", "pairwise_similarity"), "similarity"),
    **dict.fromkeys(("cuda", "cpu"), "to"),
}
"""Names of methods in sentence-transformers, transformers and scikit-learn, with ours."""


def suggest_method(name: str) -> str | None:
    """Return a sentence with this package's name for another library's; None if there is none."""
    method = _OTHER_METHOD_NAMES.get(name)
    return None if method is None else f"It is called {method} here"


_OTHER_NAMES: Mapping[str, str] = {
    **dict.fromkeys(("from_pretrained", "pipeline", "SentenceTransformer", "CrossEncoder"), "load"),
    **dict.fromkeys(("AutoModel", "BertModel", "StaticModel"), "load"),
    **dict.fromkeys(("AutoTokenizer", "BertTokenizer"), "Tokenizer.load"),
    **dict.fromkeys(("Trainer", "SentenceTransformerTrainer", "train"), "finetune"),
    "settings": "describe_settings",
}
"""Names at the top of other libraries, and of this one's parts, with functions of ours."""


def suggest_name(name: str) -> str | None:
    """Return a sentence with this package's name for another library's; None if there is none."""
    ours = _OTHER_NAMES.get(name)
    return None if ours is None else f"Use bertworks.{ours}"


_OTHER_VERBS: Mapping[str, str] = {
    **dict.fromkeys(("train", "fit", "fine-tune"), "finetune, or pretrain without labels"),
    **dict.fromkeys(("classify", "infer", "run", "label", "tag"), "predict"),
    **dict.fromkeys(("encode", "vectorize", "embeddings"), "embed"),
    **dict.fromkeys(("eval", "test", "validate"), "evaluate"),
    **dict.fromkeys(("rank", "rerank", "query", "retrieve"), "search"),
    **dict.fromkeys(("qa", "ask"), "answer"),
    **dict.fromkeys(("unmask", "fill"), "fill-mask"),
    **dict.fromkeys(("start", "server", "api"), "serve"),
    **dict.fromkeys(("export", "onnx"), "convert"),
    **dict.fromkeys(("upload", "publish"), "push"),
    **dict.fromkeys(("info", "show"), "inspect"),
    **dict.fromkeys(("train-tokenizer", "tokenizer"), "vocab"),
    **dict.fromkeys(("tune", "sweep"), "finetune --grid"),
}
"""Verbs of other command lines, with ours."""


def suggest_verb(name: str) -> str | None:
    """Return a sentence with this package's verb for another's; None if there is none."""
    verb = _OTHER_VERBS.get(name.replace("_", "-"))
    return None if verb is None else f"Use {verb}"


def suggest_setting(name: str, valid: Iterable[str]) -> str:
    """Return a phrase as `did_you_mean` does, for settings; it also knows other tools' names."""
    valid = list(valid)
    for other in _OTHER_SETTING_NAMES.get(name, ()):
        if other.partition(".")[0] in valid:
            return f"The setting is called {other!r}"
    return _FIXES_OF_UNKNOWN_SETTINGS.get(name) or did_you_mean(name, valid)


def check_path_name(path: str | os.PathLike[str]) -> None:
    """Check that all libraries can read and write a file or directory by its name.

    Raises:
        DataError: the name is not UTF-8.
    """
    name = os.fspath(path)
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        raise DataError(
            "the name is not UTF-8", where=name, fix="Rename it, or give another."
        ) from None


_EXTRAS = {
    **dict.fromkeys(("torch", "jaxtyping", "sentencex", "google_crc32c"), "train"),
    "pyarrow": "parquet",
}
"""Packages that much of this package imports, each with the extra that installs it."""


def missing_package_error(error: ModuleNotFoundError, what: str) -> BertworksError | None:
    """Return the error that names the extra for a missing package; None if no extra has it.

    Args:
        what: what needs it, as the start of a sentence.
    """
    package = (error.name or "").partition(".")[0]
    extra = _EXTRAS.get(package)
    return None if extra is None else _needs_package(what, package, extra)


def _needs_package(what: str, package: str, extra: str) -> BertworksError:
    return BertworksError(
        f"{what} needs the package {package!r}, which is not installed",
        fix=f'Run: pip install "bertworks[{extra}]"',
    )


def import_optional(module: str, extra: str, what: str) -> ModuleType:
    """Import an optional `module`; if it is missing, the error names the extra to install.

    Args:
        module: the module's name, as in an `import` statement.
        extra: the extra in `pip install "bertworks[extra]"`.
        what: what needs it, as the start of a sentence.

    Raises:
        BertworksError: the module is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != module.split(".")[0]:
            raise
        raise _needs_package(what, module.split(".")[0], extra) from None
