"""Turns of tasks in the event loop."""

from __future__ import annotations

import asyncio


class FairYield:
    """Lets a few tasks continue in each iteration of the event loop.

    A batch completes hundreds of requests at once, and their clients then send hundreds of new
    ones. If all continued in one iteration, a health check would wait for all of them.
    """

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(4)

    async def wait_turn(self) -> None:
        """Wait until this task may continue."""
        async with self._free:
            await asyncio.sleep(0)
