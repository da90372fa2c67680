"""The names of all files that this package writes into output directories.

`--overwrite` deletes a directory only if it holds nothing else.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from .edits import is_edited, read_checksums
from .regular_files import read_bytes

_MODEL = (
    *("config.json", "bertworks.json", "model.safetensors", "model.onnx"),
    *("bert_config.json", r"bert_model\.ckpt\..+"),
    *(
        "modules.json",
        "router_config.json",
        "sentence_bert_config.json",
        "config_sentence_transformers.json",
    ),
    *("tokenizer.json", "tokenizer_config.json", "added_tokens.json", "special_tokens_map.json"),
    *("vocab.txt", "vocab.json", "merges.txt", "bpe.codes", "spiece.model", "spm.model"),
    *("sentencepiece.bpe.model", "sentencepiece.model", "tokenizer_78b3253a26.model"),
)
_CORPUS = ("manifest.json", r"(shards\.)?journal\.jsonl", r"shard-.+\.arrow", "excluded.jsonl")
_RUN = (
    *("settings.yaml", "sessions.jsonl", "outcome.json", "evaluation.json", "report.html"),
    "tracking.json",
    *("data.json", "samples.json", "state.json", r"step-\d+\.safetensors"),
    *(r"(weights|optimizer)[\w-]*\.safetensors", r"events\.out\.tfevents\..+"),
    *("grid.json", "grid.md", "result.json", "states.npy"),
    r"teacher\.npy(\.json|\.part|\.journal)?",
)
_EXPERIMENTS = (
    *("glue.json", "glue.md", "results.json", "table.md"),
    *("lab.json", "lab.md", "lineage.json", "lineage.md", r"lab-.+\.svg"),
    *("lineage.svg", r"vectors\.npy\.faiss"),
    r"vectors\.(npy|npz|safetensors)(\.json|\.part|\.journal)?",
)
_OWN = "|".join((*_MODEL, *_CORPUS, *_RUN, *_EXPERIMENTS))  # compiled when it is used: it is long
_COMMON = re.compile(
    r"(.*/)?((data|text)/(corpus\.txt|(train|dev)\.jsonl)|submission/[\w-]+\.tsv"
    r"|data/QQP-\w+\.tsv|(claims|runs)/.+\.json)"
)
"""Paths of files whose names other programs use, too: alone, they do not mark an output."""
_TEMPORARY = re.compile(r"\.lock|\..+\.(new|old|lock)")


def foreign_file(directory: Path) -> str | None:
    """Return a file of a directory that this package did not write; None if there is none.

    Args:
        directory: it exists.

    Returns:
        The file's relative path.

    Raises:
        OSError: the directory cannot be read.
    """
    common = None
    has_own = False
    for path in _files(directory):
        name = path.rpartition("/")[2]
        if re.fullmatch(_OWN, name) or _is_own_card(directory, path):
            has_own = True
        elif _COMMON.fullmatch(path):
            common = path
        elif not _TEMPORARY.fullmatch(name):
            return path
    return None if has_own else common


def _is_own_card(directory: Path, path: str) -> bool:
    """Whether a file is a model card that is written here; inside of a run, an unedited one.

    What a user wrote in the card of a model is kept when the model is replaced.
    """
    if path.rpartition("/")[2] != "README.md":
        return False
    text = read_bytes(directory / path).decode("utf-8", "surrogateescape")
    return not is_edited(text) if "/" in path else read_checksums(text) is not None


def _files(directory: Path) -> Iterator[str]:
    """Yield the relative paths of all files, also of those in subdirectories."""

    def stop(error: OSError) -> None:
        raise error

    for folder, _, names in os.walk(directory, onerror=stop):
        for name in sorted(names):
            yield Path(folder, name).relative_to(directory).as_posix()
