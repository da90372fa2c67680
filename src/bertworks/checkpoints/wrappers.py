"""Names of tensors that a program wrapped around a model made longer.

A training program that saves its own module instead of the model puts the names of its parts in
front: `module.` (data parallelism), `model.` or `model.model.` (Lightning), `0.auto_model.` (a
whole sentence encoder). `torch.compile` and sharding insert `_orig_mod.` and the like anywhere.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping
from typing import TypeVar

from ..errors import BertworksWarning, CheckpointError
from .families import ALL_FAMILIES
from .family import Family

TensorT = TypeVar("TensorT")

_INSERTED_NAMES = re.compile(
    r"(?:^|(?<=\.))(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\."
)
_PREFIXES = {one.prefix for one in ALL_FAMILIES.values()} - {"", "model.", "transformer."}
"""Beginnings that name another family: its tensors would be read wrongly, not unwrapped."""


def remove_wrapper_names(
    tensors: Mapping[str, TensorT], family: Family, where: str
) -> dict[str, TensorT]:
    """Return the tensors under their names without a wrapper, and warn if there is one.

    Tensors next to the wrapped model, such as a head of the program's own, keep their names.

    Raises:
        CheckpointError: there are several models inside, or two tensors get the same name.
    """
    plain = {name: _INSERTED_NAMES.sub("", name) for name in tensors}
    wrapper = _find_wrapper(plain.values(), family, where)
    names = {name: short.removeprefix(wrapper) for name, short in plain.items()}
    if len(set(names.values())) < len(names):
        raise CheckpointError("two tensors have the same name without their wrapper", where=where)
    insertions = sorted({match[0] for name in tensors for match in _INSERTED_NAMES.finditer(name)})
    if prefixes := [*insertions, *([wrapper] if wrapper else [])]:
        what = ", ".join(map(repr, prefixes))
        warnings.warn(
            f"{where}: the model's tensors are read without {what} in their names",
            BertworksWarning,
            stacklevel=2,
        )
    return {names[name]: tensor for name, tensor in tensors.items()}


def _find_wrapper(names: Iterable[str], family: Family, where: str) -> str:
    """Return what precedes the names of a family's tensors; empty if nothing does.

    The name of the word embeddings shows it.
    """
    (whole,) = family.keys.theirs("encoder.embeddings.word_embeddings.weight")
    bare = whole.removeprefix(family.prefix)
    wrappers: set[str] = set()
    for name in names:
        for end in (whole, bare):
            if name == end or name.endswith(f".{end}"):
                wrappers.add(name.removesuffix(end))
                break
    wrappers = {wrapper for wrapper in wrappers if not _is_of_another(wrapper, family)}
    if "" in wrappers or not wrappers:
        return ""
    if len(wrappers) > 1:
        which = ", ".join(map(repr, sorted(wrappers)))
        raise CheckpointError(
            f"holds {len(wrappers)} encoders, under {which}",
            where=where,
            fix="Save one of them alone.",
        )
    return wrappers.pop()


def _is_of_another(wrapper: str, family: Family) -> bool:
    others = tuple(f".{name}" for name in _PREFIXES if name != family.prefix)
    return f".{wrapper}".endswith(others)
