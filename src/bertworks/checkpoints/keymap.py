"""An ordered, reversible table of our parameters' names and those of a published layout.

A rule maps a name of ours to theirs. `{}` in it is a layer's number. One of our tensors may be
several of theirs concatenated by rows, or theirs transposed; nothing else ever changes, so a round
trip keeps every bit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rule:
    """Maps our tensors of the name `ours` to their tensors of the names `theirs`.

    The names are of modules (then `.weight` or `.bias` follows on both sides) or of tensors. If
    `is_transposed`, they store the transposes of our matrices.
    """

    ours: str
    theirs: tuple[str, ...]
    is_transposed: bool = False

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        return re.compile(re.escape(self.ours).replace(r"\{\}", r"(\d+)") + r"(\.weight|\.bias)?")

    @cached_property
    def theirs_pattern(self) -> re.Pattern[str]:
        """Matches their names of tensors."""
        names = "|".join(re.escape(part).replace(r"\{\}", r"\d+") for part in self.theirs)
        return re.compile(rf"({names})(\.weight|\.bias)?")

    def siblings(self, theirs: str) -> tuple[str, ...]:
        """All of their tensors that form one of ours together with the tensor `theirs`."""
        for part in self.theirs:
            pattern = re.escape(part).replace(r"\{\}", r"(\d+)") + r"(\.weight|\.bias)?"
            if match := re.fullmatch(pattern, theirs):
                *layer, kind = match.groups()
                return tuple(part.format(*layer) + (kind or "") for part in self.theirs)
        raise KeyError(theirs)

    def match(self, name: str) -> tuple[str, ...] | None:
        """Their names of our tensor `name`, if the rule covers it."""
        match = self.pattern.fullmatch(name)
        if match is None:
            return None
        *layer, kind = match.groups()
        return tuple(part.format(*layer) + (kind or "") for part in self.theirs)


class KeyMap:
    """A table of rules that covers every tensor of a network."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.rules = tuple(rules)

    def theirs(self, name: str) -> tuple[str, ...]:
        """Their names of our tensor `name`: more than one where ours combines several of theirs.

        Raises:
            KeyError: no rule covers the tensor: it is not part of the published layout.
        """
        return self._find(name)[0]

    def parts(self, name: str, shape: Sequence[int]) -> dict[str, tuple[int, ...]]:
        """The names and shapes of their tensors that form our tensor `name` with this shape.

        Raises:
            KeyError: as `theirs` does.
        """
        names, is_transposed = self._find(name)
        part = tuple(shape)
        if len(names) > 1:
            part = (shape[0] // len(names), *shape[1:])
        return dict.fromkeys(names, part[::-1] if is_transposed else part)

    def export(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Convert our tensors to theirs, under their names."""
        result: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            names, is_transposed = self._find(name)
            parts = tensor.chunk(len(names))
            if is_transposed:
                parts = tuple(_transpose(part) for part in parts)
            result.update(zip(names, parts, strict=True))
        return result

    def fetch(self, name: str, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return our tensor `name`; theirs must be present, with the shapes of `parts`."""
        names, is_transposed = self._find(name)
        parts = [tensors[part] for part in names]
        if len({part.dtype for part in parts}) > 1:
            parts = [part.double() for part in parts]  # float64 represents every value exactly
        if is_transposed:
            parts = [_transpose(part) for part in parts]
        return parts[0] if len(parts) == 1 else _below_each_other(parts)

    def stack(self, theirs: str) -> tuple[str, ...]:
        """All of their tensors that ours concatenates with `theirs`, untransposed.

        Empty if ours consists of this tensor alone.
        """
        for rule in self.rules:
            if (
                len(rule.theirs) > 1
                and not rule.is_transposed
                and rule.theirs_pattern.fullmatch(theirs)
            ):
                return rule.siblings(theirs)
        return ()

    def _find(self, name: str) -> tuple[tuple[str, ...], bool]:
        for rule in self.rules:
            names = rule.match(name)
            if names is not None:
                return names, rule.is_transposed
        raise KeyError(name)


def _below_each_other(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate tensors by rows, without a copy if they are adjacent in memory."""
    first, end = parts[0], parts[0].data_ptr()
    for part in parts:
        same = part.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        if not same or part.data_ptr() != end or not part.is_contiguous():
            return torch.cat(list(parts))
        end += part.nbytes
    rows = sum(len(part) for part in parts)
    return first.as_strided((rows, *first.shape[1:]), first.stride())


def _transpose(tensor: Tensor) -> Tensor:
    """The transpose of a matrix; a vector unchanged."""
    return tensor.t() if tensor.ndim == 2 else tensor
