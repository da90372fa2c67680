"""An ordered, reversible table of our parameters' names and those of a published layout.

A rule maps a name of ours to theirs. `{}` in it is a layer's number. One of our tensors may be
several of theirs concatenated by rows, or theirs transposed, or theirs with its two halves of rows
in the other order, or the matrix in a convolution of width 1, or a matrix with the columns of each
attention head apart; nothing else ever changes, so a round trip keeps every bit. If heads of
queries share keys, our map to queries, keys and values consists of a square matrix and two with
fewer rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor
else:
    Tensor = Any  # files of settings and names are read without PyTorch


@dataclass(frozen=True)
class Rule:
    """Maps our tensors of the name `ours` to their tensors of the names `theirs`.

    The names are of modules (then `.weight` or `.bias` follows on both sides) or of tensors. If
    `is_transposed`, they store the transposes of our matrices; if `is_convolution`, our matrices
    with a last dimension of size 1; if `is_by_head`, matrices as `[rows, heads, head_size]`.
    """

    ours: str
    theirs: tuple[str, ...]
    is_transposed: bool = False
    first_is_square: bool = False
    """Whether the first of their matrices has as many rows as columns; the others share the rest.
    Vectors have equal parts, since maps with fewer keys than queries have no biases."""
    is_swapped: bool = False
    """Whether they store the second half of our rows before the first."""
    is_convolution: bool = False
    is_by_head: bool = False

    def num_rows(self, shape: Sequence[int]) -> list[int]:
        """The number of rows of each of theirs that form a tensor of ours of this shape."""
        rows, count = shape[0], len(self.theirs)
        if self.first_is_square and len(shape) == 2:
            return [shape[1], *[(rows - shape[1]) // (count - 1)] * (count - 1)]
        return [rows // count] * count

    def split(self, tensor: Tensor, shape: Sequence[int]) -> list[Tensor]:
        """Divide the rows of a tensor of ours, or numbers of each row, as theirs are.

        Args:
            shape: of the tensor of ours.
        """
        import torch

        parts = torch.split(tensor, self.num_rows(shape)) if tensor.ndim else [tensor]
        return [_swap_halves(part) for part in parts] if self.is_swapped else list(parts)

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """Undo `split`, without a copy if the parts are adjacent in memory."""
        if self.is_swapped:
            parts = [_swap_halves(part) for part in parts]
        return parts[0] if len(parts) == 1 else _below_each_other(parts)

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
        layer, kind = self._match_theirs(theirs)
        return tuple(part.format(*layer) + kind for part in self.theirs)

    def our_name(self, theirs: str) -> str:
        """The name of our tensor of which their tensor `theirs` is a part."""
        layer, kind = self._match_theirs(theirs)
        return self.ours.format(*layer) + kind

    def _match_theirs(self, theirs: str) -> tuple[list[str], str]:
        """The number of the layer, if there is one, and `.weight`, `.bias` or nothing."""
        for part in self.theirs:
            pattern = re.escape(part).replace(r"\{\}", r"(\d+)") + r"(\.weight|\.bias)?"
            if match := re.fullmatch(pattern, theirs):
                *layer, kind = match.groups(default="")
                return layer, kind
        raise KeyError(theirs)

    def match(self, name: str) -> tuple[str, ...] | None:
        """Their names of our tensor `name`, if the rule covers it."""
        match = self.pattern.fullmatch(name)
        if match is None:
            return None
        *layer, kind = match.groups()
        return tuple(part.format(*layer) + (kind or "") for part in self.theirs)


class KeyMap:
    """A table of rules that covers every tensor of a network.

    Args:
        num_heads: of attention; needed for the shapes of matrices with heads apart.
    """

    def __init__(self, rules: Iterable[Rule], num_heads: int | None = None) -> None:
        self.rules, self.num_heads = tuple(rules), num_heads
        self._places: dict[str, tuple[Rule, tuple[str, ...]]] = {}

    def theirs(self, name: str) -> tuple[str, ...]:
        """Their names of our tensor `name`: more than one where ours combines several of theirs.

        Raises:
            KeyError: no rule covers the tensor: it is not part of the published layout.
        """
        return self._find(name)[1]

    def parts(self, name: str, shape: Sequence[int]) -> dict[str, tuple[int, ...]]:
        """The names and shapes of their tensors that form our tensor `name` with this shape.

        Raises:
            KeyError: as `theirs` does.
        """
        rule, names = self._find(name)
        parts = [(rows, *shape[1:]) for rows in rule.num_rows(shape)] if len(shape) else [()]
        if rule.is_convolution:
            parts = [(*part, 1) if len(part) == 2 else part for part in parts]
        shapes = [part[::-1] if rule.is_transposed else part for part in parts]
        if rule.is_by_head and self.num_heads is not None:
            heads = self.num_heads
            shapes = [(*part[:-1], heads, part[-1] // heads) for part in shapes]
        return dict(zip(names, shapes, strict=True))

    def export(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Convert our tensors to theirs, under their names."""
        result: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            rule, names = self._find(name)
            parts = rule.split(tensor, tensor.shape)
            if rule.is_transposed:
                parts = [_transpose(part) for part in parts]
            elif rule.is_convolution and tensor.ndim == 2:
                parts = [part.unsqueeze(-1) for part in parts]
            if rule.is_by_head and self.num_heads is not None and tensor.ndim == 2:
                parts = [part.reshape(len(part), self.num_heads, -1) for part in parts]
            result.update(zip(names, parts, strict=True))
        return result

    def fetch(self, name: str, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return our tensor `name`; theirs must be present, with the shapes of `parts`."""
        rule, names = self._find(name)
        parts = [tensors[part] for part in names]
        if len({part.dtype for part in parts}) > 1:
            parts = [part.double() for part in parts]  # float64 represents every value exactly
        if rule.is_by_head:
            parts = [part.flatten(1) if part.ndim == 3 else part for part in parts]
        if rule.is_transposed:
            parts = [_transpose(part) for part in parts]
        elif rule.is_convolution:
            parts = [part.squeeze(-1) if part.ndim == 3 else part for part in parts]
        return rule.join(parts)

    def rule_of(self, name: str) -> Rule:
        """The rule of our tensor `name`.

        Raises:
            KeyError: as `theirs` does.
        """
        return self._find(name)[0]

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

    def _find(self, name: str) -> tuple[Rule, tuple[str, ...]]:
        if name not in self._places:
            for rule in self.rules:
                if (names := rule.match(name)) is not None:
                    self._places[name] = rule, names
                    break
        return self._places[name]


def _below_each_other(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate tensors by rows, without a copy if they are adjacent in memory."""
    first, end = parts[0], parts[0].data_ptr()
    for part in parts:
        same = part.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        if not same or part.data_ptr() != end or not part.is_contiguous():
            import torch

            return torch.cat(list(parts))
        end += part.nbytes
    rows = sum(len(part) for part in parts)
    return first.as_strided((rows, *first.shape[1:]), first.stride())


def _swap_halves(tensor: Tensor) -> Tensor:
    import torch

    return torch.cat(tensor.chunk(2)[::-1])


def _transpose(tensor: Tensor) -> Tensor:
    """The transpose of a matrix; a vector unchanged."""
    return tensor.t() if tensor.ndim == 2 else tensor
