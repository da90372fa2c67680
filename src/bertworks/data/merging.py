"""Merge the parts of a prepared corpus."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import BertworksError, DataError
from ..jobs.journal import TEXTS
from ..jobs.parts import order_parts
from ..text.files import write_definition
from ..utils.directories import new_directory
from ..utils.outputs import locked_output
from .manifest import EXCLUDED_FILE, MANIFEST, SUMMED_FIELDS, TOKENIZER, Manifest
from .shards import Corpus, open_shard

_COUNTS_OF_WHOLE_TEXT = (
    "duplicate_documents",
    "excluded_documents",
    "left_out_documents",
    "num_skipped",
)


def merge_corpora(parts: Sequence[Path], out: Path, *, overwrite: bool = False) -> Manifest:
    """Merge all parts of a corpus, to the same bytes that a single `prepare` writes.

    Every shard's checksum is verified. Shards are hard-linked where the file system supports it,
    otherwise copied.

    Args:
        parts: directories that `prepare --part` wrote, in any order.
        out: the directory to write, new or empty. If it holds the merged corpus, nothing is done.
        overwrite: replace another output in the directory.

    Raises:
        DataError: a part is missing, unfinished, given twice, or does not belong to the others; or
            the corpus holds no text.
        CheckpointError: a part is damaged.
        OutputError: `out` holds something else, or cannot be written.
    """
    part_manifests = {path: Manifest.read(path) for path in parts}
    paths = order_parts(
        (path, part_manifests[path].job.part, _shared_settings(part_manifests[path]))
        for path in parts
    )
    first = part_manifests[paths[0]]
    manifests = [part_manifests[path] for path in paths]
    shards = sorted(
        (shard for manifest in manifests for shard in manifest.shards),
        key=lambda shard: shard.number,
    )
    # Every part counts all documents without text; those without tokens only in its shards.
    read_empty = first.empty_documents - sum(shard.empty_documents for shard in first.shards)
    whole = first.model_copy(
        update={
            **{name: sum(getattr(one, name) for one in manifests) for name in SUMMED_FIELDS},
            "empty_documents": read_empty + sum(shard.empty_documents for shard in shards),
            "job": first.job.model_copy(update={"part": None}),
            "shards": tuple(shards),
        }
    )
    if not whole.tokens:
        raise DataError("the corpus is empty: no text gives tokens")
    if _is_merged(out, whole) and not overwrite:
        return whole
    with locked_output(out, paths, kind="whole directory", overwrite=overwrite):
        tokenizer = Corpus(paths[0], first, []).load_tokenizer()  # compares it with the shards
        with new_directory(out, last=MANIFEST, replace=True) as new:
            (new / TOKENIZER).mkdir()
            # Not copied: loading does not notice damage in files other than tokenizer.json.
            write_definition(tokenizer.definition, new / TOKENIZER)
            if first.job.exclude is not None:
                shutil.copyfile(paths[0] / EXCLUDED_FILE, new / EXCLUDED_FILE)
            for path in paths:
                for shard in part_manifests[path].shards:
                    open_shard(path, shard, first, verify=True)
                    _link(path / shard.file, new / shard.file)
            whole.write(new)
    return whole


def _shared_settings(part: Manifest) -> dict[str, Any]:
    """Return what all parts of a corpus share."""
    counts = {name: getattr(part, name) for name in _COUNTS_OF_WHOLE_TEXT}
    return {**part.job.settings, "part": None, TEXTS: part.text, **counts}


def _is_merged(out: Path, whole: Manifest) -> bool:
    """Whether a directory holds an undamaged corpus with this manifest."""
    try:
        return Corpus.open(out, verify=True).manifest == whole
    except BertworksError:
        return False


def _link(source: Path, target: Path) -> None:
    """Hard-link a file, which is never changed, or copy it."""
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without hard links
        shutil.copyfile(source, target)
