"""Token sequences laid end to end, without pad tokens: the input of every encoder.

A `Packed` is immutable and made of NumPy arrays, so that preparing data needs no torch;
`.to(device)` gives the same pack with tensors. Sequences may be in any order. Sorted by length is
fastest, since attention on the CPU runs once per group of neighbouring sequences of equal length.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    Tensor = Any  # tests check shapes and dtypes at run time, when torch may not be imported yet

if TYPE_CHECKING or "jaxtyping" in sys.modules:  # which imports asyncio; tests check shapes
    from jaxtyping import Bool, Int, Int32, Int64, Shaped

Array = Any
"""A NumPy array or, after `.to(device)`, a tensor."""

LayoutT = TypeVar("LayoutT", bound="Layout")  # beartype does not check methods that return `Self`


@runtime_checkable  # tests check it
class Sized(Protocol):
    """Anything with a length in tokens."""

    @property
    def num_tokens(self) -> int: ...


SizedT = TypeVar("SizedT", bound=Sized)


def by_tokens(examples: Sequence[SizedT], batch_tokens: int) -> Iterator[list[SizedT]]:
    """Yield batches, longest examples first, of at most `batch_tokens` tokens or one example."""
    part: list[SizedT] = []
    tokens = 0
    for example in sorted(examples, key=lambda example: -example.num_tokens):
        if part and tokens + example.num_tokens > batch_tokens:
            yield part
            part, tokens = [], 0
        part.append(example)
        tokens += example.num_tokens
    if part:
        yield part


class Group(NamedTuple):
    """Neighbouring sequences of equal length, from token `start` on."""

    start: int
    sequences: int
    length: int

    @property
    def tokens(self) -> slice:
        """The slice of the tokens of all its sequences."""
        return slice(self.start, self.start + self.sequences * self.length)


@dataclass(frozen=True, eq=False)
class Layout:
    """The position of each sequence among tokens laid end to end."""

    # sequence `i` is tokens `cu_seqlens[i]` up to `cu_seqlens[i + 1]`; there is one edge more than
    # sequences
    cu_seqlens: Int32[Array, " edges"]
    max_seqlen: int  # the number of tokens of the longest sequence
    # runs of neighbouring sequences of equal length, in order
    groups: tuple[Group, ...] = field(repr=False)

    @staticmethod
    def from_lengths(lengths: Int[np.ndarray, " sequences"]) -> Layout:
        """Return the layout of at least one sequence, in the order of the lengths."""
        if len(lengths) == 1:  # the same, in a quarter of the time
            (length,) = lengths.tolist()
            return Layout(np.array([0, length], np.int32), length, (Group(0, 1, length),))
        cu_seqlens = np.zeros(len(lengths) + 1, np.int32)
        np.cumsum(lengths, out=cu_seqlens[1:])
        later = np.flatnonzero(lengths[1:] != lengths[:-1]) + 1  # first sequences of groups
        edges = np.concatenate([[0], later, [len(lengths)]])
        first, counts = edges[:-1], edges[1:] - edges[:-1]
        groups = map(Group, cu_seqlens[first].tolist(), counts.tolist(), lengths[first].tolist())
        return Layout(cu_seqlens, int(lengths.max()), tuple(groups))

    @property
    def num_sequences(self) -> int:
        return len(self.cu_seqlens) - 1

    @cached_property
    def lengths(self) -> Int64[np.ndarray, " sequences"]:
        """The number of tokens of each sequence; always a NumPy array."""
        lengths = np.array([group.length for group in self.groups], np.int64)
        return np.repeat(lengths, [group.sequences for group in self.groups])

    @cached_property
    def first_tokens(self) -> Int64[Array, " sequences"]:
        """The index of each sequence's first token, `[CLS]`."""
        return _to_int64(self.cu_seqlens[:-1])

    @cached_property
    def last_tokens(self) -> Int64[Array, " sequences"]:
        """The index of each sequence's last token."""
        return _to_int64(self.cu_seqlens[1:]) - 1

    @property
    def slices(self) -> list[slice]:
        """The tokens of each sequence."""
        return [slice(*edges) for edges in pairwise(self.on_host.cu_seqlens.tolist())]

    @cached_property
    def on_host(self: LayoutT) -> LayoutT:
        """The same with NumPy arrays; reading them does not wait for the device after `.to`."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        if not any(hasattr(value, "detach") for value in values.values()):
            return self
        arrays: dict[str, Any] = {
            name: to_array(value) if hasattr(value, "detach") else value
            for name, value in values.items()
        }
        return type(self)(**arrays)

    def to(self: LayoutT, device: torch.device | str) -> LayoutT:
        """Return the same with tensors on `device`; itself, if they are already there."""
        return self._with_tensors(lambda value: to_tensor(value, device))

    def pin(self: LayoutT) -> LayoutT:
        """Return the same with tensors in pinned memory, whose copies to a GPU do not wait."""
        return self._with_tensors(_pin)

    def _with_tensors(self: LayoutT, convert: Callable[[Any], Any]) -> LayoutT:
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        tensors = {
            name: convert(value) if hasattr(value, "shape") else value
            for name, value in values.items()
        }
        if all(tensors[name] is value for name, value in values.items()):
            return self
        result = type(self)(**tensors)
        vars(result)["on_host"] = self.on_host
        return result


@dataclass(frozen=True, eq=False)
class Packed(Layout):
    """Token sequences laid end to end.

    Attributes:
        input_ids: the tokens.
        token_type_ids: 0 for segment A, 1 for segment B.
        position_ids: each sequence counts from 0 (the encoder adds a family's offset).
        sequence_row: the row of data that a sequence belongs to.
        sequence_number: index of the sequence within its row: of a window or a choice; 0 for a
            query and 1 for its positive.
    """

    input_ids: Int64[Array, " tokens"]
    token_type_ids: Int64[Array, " tokens"]
    position_ids: Int64[Array, " tokens"]
    sequence_row: Int64[Array, " edges-1"]
    sequence_number: Int64[Array, " edges-1"]

    @classmethod
    def from_arrays(
        cls,
        input_ids: Sequence[np.ndarray],
        token_type_ids: Sequence[np.ndarray] | None = None,
        *,
        rows: Sequence[int] | np.ndarray | None = None,
        numbers: Sequence[int] | np.ndarray | None = None,
    ) -> Packed:
        """Lay sequences end to end, in the order given.

        Args:
            input_ids: the ids of each sequence; at least one sequence, none empty.
            token_type_ids: the token types of each sequence; 0 by default.
            rows: the row that each sequence belongs to; 0, 1, 2, … by default.
            numbers: index of each sequence within its row; 0 by default.
        """
        count = len(input_ids)
        assert count > 0, "a pack holds at least one sequence"
        lengths = np.fromiter(map(len, input_ids), np.int64, count)
        assert lengths.min() > 0, "a sequence holds at least one token"
        ids = np.concatenate(input_ids).astype(np.int64, copy=False)
        types = np.zeros_like(ids)
        if token_type_ids is not None:
            types = np.concatenate(token_type_ids).astype(np.int64, copy=False)
        assert len(types) == len(ids), "a token type for each token"
        layout = Layout.from_lengths(lengths)
        return cls(
            **vars(layout),
            input_ids=ids,
            token_type_ids=types,
            position_ids=np.arange(len(ids)) - np.repeat(layout.cu_seqlens[:-1], lengths),
            sequence_row=np.arange(count) if rows is None else np.asarray(rows, np.int64),
            sequence_number=np.asarray([0] * count if numbers is None else numbers, np.int64),
        )

    @classmethod
    def from_padded(
        cls, input_ids: Any, attention_mask: Any = None, token_type_ids: Any = None
    ) -> Packed:
        """Pack a padded `[rows, length]` batch, shortest row first; `to_padded` is the inverse.

        Args:
            input_ids: `[rows, length]`, array or tensor.
            attention_mask: `[rows, length]`, nonzero for real tokens, which are at the front or at
                the back of their row; all are real by default.
            token_type_ids: `[rows, length]`; 0 by default.

        Raises:
            ValueError: shapes differ, or a row has no real token.
        """
        ids = to_array(input_ids)
        mask = np.ones(ids.shape, bool)
        if attention_mask is not None:
            mask = to_array(attention_mask) != 0
        types = np.zeros_like(ids) if token_type_ids is None else to_array(token_type_ids)
        if ids.ndim != 2 or not ids.shape == mask.shape == types.shape:
            raise ValueError(f"shapes differ: {ids.shape}, {mask.shape}, {types.shape}")
        lengths = mask.sum(1)
        if not len(lengths) or lengths.min() == 0:
            raise ValueError("every row must hold at least one token")
        rows = np.argsort(lengths, kind="stable")
        packed = cls.from_arrays(
            [ids[row, mask[row]] for row in rows],
            [types[row, mask[row]] for row in rows],
            rows=rows,
        )
        return packed.to(input_ids.device) if hasattr(input_ids, "detach") else packed

    @property
    def num_tokens(self) -> int:
        return len(self.input_ids)

    def split(self, max_tokens: int) -> Iterator[Packed]:
        """Yield the sequences, in order, in packs of at most `max_tokens`, or of one sequence."""
        ends = np.cumsum(self.lengths)
        first = start = 0
        while first < len(ends):
            next_first = max(first + 1, int(np.searchsorted(ends, start + max_tokens, "right")))
            end = int(ends[next_first - 1])
            sequences, tokens = slice(first, next_first), slice(start, end)
            layout = Layout.from_lengths(self.lengths[sequences])
            part = self._part(sequences, tokens, layout)
            if self.on_host is not self:
                vars(part)["on_host"] = self.on_host._part(sequences, tokens, layout)
            yield part
            first, start = next_first, end

    def _part(self, sequences: slice, tokens: slice, layout: Layout) -> Packed:
        """Return some of the sequences, whose tokens and layout are given."""
        return replace(
            self,
            cu_seqlens=self.cu_seqlens[sequences.start : sequences.stop + 1] - tokens.start,
            max_seqlen=layout.max_seqlen,
            groups=layout.groups,
            input_ids=self.input_ids[tokens],
            token_type_ids=self.token_type_ids[tokens],
            position_ids=self.position_ids[tokens],
            sequence_row=self.sequence_row[sequences],
            sequence_number=self.sequence_number[sequences],
        )

    def to_padded(self, values: Any = None, *, fill: int | float = 0) -> tuple[Any, Any]:
        """Spread `[tokens, …]` values (the input ids by default) over a padded batch.

        Rows are sorted by `sequence_row`, then `sequence_number`, so that
        `from_padded(…).to_padded(hidden)` returns the rows in their original order.

        Returns:
            `[sequences, max_seqlen, …]` values, and a `[sequences, max_seqlen]` boolean mask.
        """
        values = self.input_ids if values is None else values
        order = np.lexsort((to_array(self.sequence_number), to_array(self.sequence_row)))
        row_of_sequence = np.empty_like(order)
        row_of_sequence[order] = np.arange(len(order))
        rows = np.repeat(row_of_sequence, self.lengths)
        columns = to_array(self.position_ids)
        shape = (self.num_sequences, self.max_seqlen, *values.shape[1:])
        mask = np.zeros(shape[:2], bool)
        mask[rows, columns] = True
        if isinstance(values, np.ndarray):
            padded = np.full(shape, fill, values.dtype)
            padded[rows, columns] = values
            return padded, mask
        padded = values.new_full(shape, fill)
        index = tuple(to_tensor(indices, values.device) for indices in (rows, columns))
        return padded.index_put(index, values), to_tensor(mask, values.device)


@dataclass(frozen=True, eq=False)
class Padded:
    """A padded batch, row after row, including pad tokens; used only for exports.

    Engines outside this package need padding. For real tokens, an encoder computes the same as for
    a `Packed`.

    Attributes:
        mask: which tokens are real; they are at the front of their row.
        input_ids: the tokens; there are rows × length of them.
        token_type_ids: 0 for segment A, 1 for segment B.
        position_ids: each row counts from 0.
    """

    mask: Bool[Tensor, "rows length"]
    input_ids: Int64[Tensor, " tokens"]
    token_type_ids: Int64[Tensor, " tokens"]
    position_ids: Int64[Tensor, " tokens"]

    @classmethod
    def from_tensors(
        cls,
        input_ids: Int[Tensor, "rows length"],
        attention_mask: Shaped[Tensor, "rows length"],
        token_type_ids: Int[Tensor, "rows length"] | None = None,
    ) -> Padded:
        """Create a padded batch from tensors."""
        import torch

        types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        return cls(
            attention_mask.bool(),
            input_ids.flatten(),
            types.flatten(),
            positions.expand_as(input_ids).flatten(),
        )

    # Sizes are symbols while a network is traced for an export.

    @property
    def num_tokens(self) -> int | torch.SymInt:
        return self.input_ids.shape[0]

    @property
    def max_seqlen(self) -> int | torch.SymInt:
        return self.mask.shape[1]

    @property
    def first_tokens(self) -> Int64[Tensor, " rows"]:
        import torch

        rows, length = self.mask.shape
        return torch.arange(rows, device=self.mask.device) * length

    @property
    def last_tokens(self) -> Int64[Tensor, " rows"]:
        return self.first_tokens + self.mask.sum(1) - 1


Sequences = Packed | Padded
"""Input of an encoder."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Input of a task's network: a pack and the labels of its tokens, sequences or rows.

    Attributes:
        packed: the sequences.
        targets: the task's labels and indices, by name; empty for prediction.
        counts: the number of terms of each loss (masked tokens, rows); known before the network
            runs, so that losses can be normalised over a whole global batch.
        examples: the collated examples, if predictions or metrics need more than arrays (texts,
            character offsets); never moved to a device.
    """

    packed: Packed
    targets: Mapping[str, Any] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    examples: Sequence[Any] = ()

    def to(self, device: torch.device | str) -> Batch:
        """The same batch as tensors on `device`."""
        targets = {name: to_tensor(value, device) for name, value in self.targets.items()}
        return Batch(self.packed.to(device), targets, self.counts, self.examples)

    def pin(self) -> Batch:
        """The same batch as tensors in pinned memory."""
        targets = {name: _pin(value) for name, value in self.targets.items()}
        return Batch(self.packed.pin(), targets, self.counts, self.examples)


def to_array(values: Any) -> np.ndarray:
    """Return an array or a tensor as an array: of bfloat16, which NumPy lacks, in float32."""
    if not hasattr(values, "detach"):
        return np.asarray(values)
    import torch

    values = values.detach().cpu()
    return np.asarray(values.float() if values.dtype == torch.bfloat16 else values)


def to_tensor(values: Any, device: torch.device | str) -> Any:
    """Return an array or tensor as a tensor on `device`, without waiting for a GPU.

    A copy that nobody waits for reads its source later, which must be pinned memory: elsewhere,
    MPS may read what has replaced a temporary array.
    """
    import torch

    if not isinstance(values, torch.Tensor):
        values = torch.from_numpy(np.ascontiguousarray(values))
    if torch.device(device).type != "cuda" or values.is_cuda:
        return values.to(device)
    return _pin(values).to(device, non_blocking=True)


def _pin(values: Any) -> Any:
    """Return an array or tensor of the host as a tensor in pinned memory."""
    import torch

    if not isinstance(values, torch.Tensor):
        values = torch.from_numpy(np.ascontiguousarray(values))
    return values.pin_memory()


def _to_int64(values: Any) -> Any:
    return values.astype(np.int64) if isinstance(values, np.ndarray) else values.long()
