"""What tests of native code share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bertworks.native import library


def list_instruction_sets() -> list[str]:
    """The instruction sets for which there are kernels, the best one last."""
    names: list[str] = []
    while name := library.library().bertworks_isa(len(names)):
        names.append(name.decode())
    return names


@pytest.fixture
def instruction_sets() -> Iterator[list[str]]:
    """The instruction sets of this processor; afterwards the best one is chosen again."""
    names = list_instruction_sets()
    yield [name for name in names if not library.library().bertworks_choose(name.encode())]
    library._choose(library.library())
