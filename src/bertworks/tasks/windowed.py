"""What tasks on windows share: a row is several sequences, in order of length in the pack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

import numpy as np

from ..packed import Packed


class Window(Protocol):
    """A part of a row as one sequence."""

    @property
    def input_ids(self) -> np.ndarray: ...

    @property
    def token_type_ids(self) -> np.ndarray: ...


class Windowed(Protocol):
    """A row as windows."""

    @property
    def index(self) -> int: ...

    @property
    def windows(self) -> Sequence[Window]: ...


WindowedT = TypeVar("WindowedT", bound=Windowed)


def in_order(examples: Sequence[WindowedT]) -> list[tuple[WindowedT, int]]:
    """The windows of all rows in order of length: of each its row, and its number there."""
    places = [(example, number) for example in examples for number in range(len(example.windows))]
    places.sort(key=lambda place: len(place[0].windows[place[1]].input_ids))
    return places


def pack_windows(examples: Sequence[WindowedT]) -> tuple[Packed, list[tuple[WindowedT, int]]]:
    """The windows of all rows as a pack, and their places as `in_order` gives them."""
    places = in_order(examples)
    windows = [example.windows[number] for example, number in places]
    packed = Packed.from_arrays(
        [window.input_ids for window in windows],
        [window.token_type_ids for window in windows],
        rows=[example.index for example, _ in places],
        numbers=[number for _, number in places],
    )
    return packed, places
