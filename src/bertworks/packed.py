"""The one currency between text and model: sequences laid end to end, without a pad token.

A `Packed` is immutable and made of NumPy arrays, so that nothing that prepares data loads torch;
`.to(device)` gives the same object with tensors in it. It is right for sequences in any order, and
fast for sequences in order of length: attention on the CPU runs once per *group* of neighbouring
sequences of equal length, and in order of length each length makes one group.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import torch


class Group(NamedTuple):
    """Neighbouring sequences of equal length, from token `start` on."""

    start: int
    sequences: int
    length: int


@dataclass(frozen=True, eq=False)
class Packed:
    """Token sequences laid end to end.

    Attributes:
        input_ids: `[tokens]` int64.
        token_type_ids: `[tokens]` int64; 0 for segment A, 1 for segment B.
        position_ids: `[tokens]` int64; each sequence counts from 0 (a family's offset is the
            encoder's business).
        cu_seqlens: `[sequences + 1]` int32; sequence `i` is tokens `cu_seqlens[i]` up to
            `cu_seqlens[i + 1]`.
        sequence_row: `[sequences]` int64; the row of data that a sequence belongs to.
        sequence_number: `[sequences]` int64; which of its row's sequences it is: the number of a
            window or of a choice, 0 for a query and 1 for its positive.
        max_seqlen: the longest sequence's tokens.
        groups: neighbouring sequences of equal length, in order.
    """

    input_ids: Any
    token_type_ids: Any
    position_ids: Any
    cu_seqlens: Any
    sequence_row: Any
    sequence_number: Any
    max_seqlen: int
    groups: tuple[Group, ...] = field(repr=False)

    @classmethod
    def from_arrays(
        cls,
        input_ids: Sequence[np.ndarray],
        token_type_ids: Sequence[np.ndarray] | None = None,
        *,
        rows: Sequence[int] | None = None,
        numbers: Sequence[int] | None = None,
    ) -> Packed:
        """Lay sequences end to end, in the order given.

        Args:
            input_ids: one array of ids a sequence, none of them empty.
            token_type_ids: the like for the token types; all 0 if left out.
            rows: the row each sequence belongs to; 0, 1, 2, … if left out.
            numbers: which of its row's sequences each is; all 0 if left out.
        """
        count = len(input_ids)
        assert count > 0, "a pack holds at least one sequence"
        lengths = np.fromiter(map(len, input_ids), np.int64, count)
        assert lengths.min() > 0, "a sequence holds at least one token"
        ids = np.concatenate(input_ids).astype(np.int64, copy=False)
        if token_type_ids is None:
            types = np.zeros_like(ids)
        else:
            types = np.concatenate(token_type_ids).astype(np.int64, copy=False)
        assert len(types) == len(ids), "a token type for each token"
        return cls._from_lengths(
            ids,
            types,
            lengths,
            np.arange(count) if rows is None else np.asarray(rows, dtype=np.int64),
            np.zeros(count, np.int64) if numbers is None else np.asarray(numbers, dtype=np.int64),
        )

    @classmethod
    def from_padded(
        cls, input_ids: Any, attention_mask: Any = None, token_type_ids: Any = None
    ) -> Packed:
        """Pack a padded `[rows, length]` batch, shortest row first; `to_padded` goes back.

        Args:
            input_ids: `[rows, length]`, array or tensor.
            attention_mask: `[rows, length]`, nonzero where a token is real, at the front or the
                back of its row; all real if left out.
            token_type_ids: `[rows, length]`; all 0 if left out.

        Raises:
            ValueError: shapes differ, or a row has no real token.
        """
        device = getattr(input_ids, "device", None)
        ids = _to_numpy(input_ids)
        mask = (
            np.ones(ids.shape, bool) if attention_mask is None else _to_numpy(attention_mask) != 0
        )
        types = np.zeros_like(ids) if token_type_ids is None else _to_numpy(token_type_ids)
        if ids.ndim != 2 or not ids.shape == mask.shape == types.shape:
            raise ValueError(f"shapes differ: {ids.shape}, {mask.shape}, {types.shape}")
        lengths = mask.sum(1)
        if not len(lengths) or lengths.min() == 0:
            raise ValueError("every row must hold at least one token")
        rows = np.argsort(lengths, kind="stable")
        keep = mask[rows]
        packed = cls._from_lengths(
            ids[rows][keep].astype(np.int64),
            types[rows][keep].astype(np.int64),
            lengths[rows],
            rows,
            np.zeros(len(rows), np.int64),
        )
        return packed if device is None or isinstance(device, str) else packed.to(device)

    @classmethod
    def _from_lengths(
        cls,
        input_ids: np.ndarray,
        token_type_ids: np.ndarray,
        lengths: np.ndarray,
        rows: np.ndarray,
        numbers: np.ndarray,
    ) -> Packed:
        cu_seqlens = np.zeros(len(lengths) + 1, np.int32)
        np.cumsum(lengths, out=cu_seqlens[1:])
        starts = np.repeat(cu_seqlens[:-1], lengths)
        return cls(
            input_ids=input_ids,
            token_type_ids=token_type_ids,
            position_ids=np.arange(len(input_ids)) - starts,
            cu_seqlens=cu_seqlens,
            sequence_row=rows,
            sequence_number=numbers,
            max_seqlen=int(lengths.max()),
            groups=equal_length_groups(lengths),
        )

    @property
    def num_tokens(self) -> int:
        return int(self.input_ids.shape[0])

    @property
    def num_sequences(self) -> int:
        return int(self.sequence_row.shape[0])

    @cached_property
    def first_tokens(self) -> Any:
        """`[sequences]` int64: where each sequence's first token, `[CLS]`, stands."""
        starts = self.cu_seqlens[:-1]
        return starts.astype(np.int64) if isinstance(starts, np.ndarray) else starts.long()

    @cached_property
    def last_tokens(self) -> Any:
        """`[sequences]` int64: where each sequence's last token stands."""
        ends = self.cu_seqlens[1:]
        ends = ends.astype(np.int64) if isinstance(ends, np.ndarray) else ends.long()
        return ends - 1

    def parts(self, tokens: int) -> Iterator[Packed]:
        """The sequences, in order, as packs of at most so many tokens each, or of one sequence."""
        lengths = np.repeat(
            [group.length for group in self.groups], [group.sequences for group in self.groups]
        )
        ends = np.cumsum(lengths)
        first = start = 0
        while first < len(lengths):
            past = max(first + 1, int(np.searchsorted(ends, start + tokens, "right")))
            end = int(ends[past - 1])
            yield replace(
                self,
                input_ids=self.input_ids[start:end],
                token_type_ids=self.token_type_ids[start:end],
                position_ids=self.position_ids[start:end],
                cu_seqlens=self.cu_seqlens[first : past + 1] - start,
                sequence_row=self.sequence_row[first:past],
                sequence_number=self.sequence_number[first:past],
                max_seqlen=int(lengths[first:past].max()),
                groups=equal_length_groups(lengths[first:past]),
            )
            first, start = past, end

    def to(self, device: torch.device | str) -> Packed:
        """The same pack as tensors on `device`; itself, if it is there already."""
        moved = {
            name: _to_tensor(getattr(self, name), device)
            for name in (
                "input_ids",
                "token_type_ids",
                "position_ids",
                "cu_seqlens",
                "sequence_row",
                "sequence_number",
            )
        }
        if all(value is getattr(self, name) for name, value in moved.items()):
            return self
        return replace(self, **moved)

    def to_padded(self, values: Any = None, *, fill: float = 0) -> tuple[Any, Any]:
        """Spread `[tokens, …]` values (the input ids, if left out) over a padded batch.

        Rows come in the order of `sequence_row`, then `sequence_number`, so that
        `from_padded(…).to_padded(hidden)` gives back the rows in their own order.

        Returns:
            `[sequences, max_seqlen, …]` values, and a `[sequences, max_seqlen]` boolean mask.
        """
        values = self.input_ids if values is None else values
        rows, numbers = _to_numpy(self.sequence_row), _to_numpy(self.sequence_number)
        target = np.empty(self.num_sequences, np.int64)
        target[np.lexsort((numbers, rows))] = np.arange(self.num_sequences)
        lengths = np.diff(_to_numpy(self.cu_seqlens))
        at_row = np.repeat(target, lengths)
        at_column = _to_numpy(self.position_ids)
        shape = (self.num_sequences, self.max_seqlen, *values.shape[1:])
        mask = np.zeros(shape[:2], bool)
        mask[at_row, at_column] = True
        if isinstance(values, np.ndarray):
            padded = np.full(shape, fill, values.dtype)
            padded[at_row, at_column] = values
            return padded, mask
        padded = values.new_full(shape, fill)
        index = tuple(_to_tensor(at, values.device) for at in (at_row, at_column))
        return padded.index_put(index, values), _to_tensor(mask, values.device)


@dataclass(frozen=True, eq=False)
class Padded:
    """A padded batch, seen as an encoder sees a pack: row after row, pad tokens among them.

    For exports to engines that know no packs; nothing else computes with pad tokens.

    Attributes:
        input_ids: `[rows * length]` int64 tensor.
        token_type_ids: `[rows * length]` int64 tensor.
        position_ids: `[rows * length]` int64 tensor.
        mask: `[rows, length]` boolean tensor: which tokens are real; they stand at the front.
    """

    input_ids: torch.Tensor
    token_type_ids: torch.Tensor
    position_ids: torch.Tensor
    mask: torch.Tensor

    @classmethod
    def of(
        cls,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        token_type_ids: torch.Tensor | None = None,
    ) -> Padded:
        """From `[rows, length]` tensors."""
        import torch

        types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        return cls(
            input_ids.flatten(),
            types.flatten(),
            positions.expand_as(input_ids).flatten(),
            attention_mask.bool(),
        )

    @property
    def num_tokens(self) -> int:
        return self.input_ids.shape[0]

    @property
    def max_seqlen(self) -> int:
        return self.mask.shape[1]

    @property
    def first_tokens(self) -> torch.Tensor:
        import torch

        rows, length = self.mask.shape
        return torch.arange(rows, device=self.mask.device) * length

    @property
    def last_tokens(self) -> torch.Tensor:
        return self.first_tokens + self.mask.sum(1) - 1


Sequences = Packed | Padded
"""What an encoder takes."""


@dataclass(frozen=True, eq=False)
class Batch:
    """What a task's network is given: a pack, and what the task wants to be learned from it.

    Attributes:
        packed: the sequences.
        targets: the task's own arrays, named; empty when nothing is to be learned.
        counts: for each loss, how many things it sums over (masked tokens, rows): known before
            the network runs, so that losses can be normalised over a whole global batch.
        examples: what it was collated from, where answers or metrics need more than arrays (texts,
            character offsets); never moved to a device.
    """

    packed: Packed
    targets: Mapping[str, Any] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    examples: Sequence[Any] = ()

    def to(self, device: torch.device | str) -> Batch:
        """The same batch as tensors on `device`."""
        targets = {name: _to_tensor(value, device) for name, value in self.targets.items()}
        return Batch(self.packed.to(device), targets, self.counts, self.examples)


def equal_length_groups(lengths: np.ndarray) -> tuple[Group, ...]:
    """Runs of neighbouring sequences of equal length."""
    edges = np.flatnonzero(np.diff(lengths)) + 1
    first = np.concatenate(([0], edges))
    counts = np.diff(np.concatenate((first, [len(lengths)])))
    starts = np.concatenate(([0], np.cumsum(lengths)))[first]
    return tuple(map(Group, starts.tolist(), counts.tolist(), lengths[first].tolist()))


def _to_numpy(values: Any) -> np.ndarray:
    if hasattr(values, "detach"):
        return np.asarray(values.detach().cpu())
    return np.asarray(values)


def _to_tensor(values: Any, device: torch.device | str) -> Any:
    import torch

    if isinstance(values, torch.Tensor):
        return values.to(device, non_blocking=True)
    return torch.from_numpy(np.ascontiguousarray(values)).to(device, non_blocking=True)
