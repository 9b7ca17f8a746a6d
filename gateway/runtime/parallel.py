"""Processes many items with a bounded number of tasks."""

from collections.abc import Awaitable, Callable, Collection
from typing import TypeVar

import trio

Item = TypeVar("Item")


async def process_in_parallel(
    items: Collection[Item], work: Callable[[Item], Awaitable[None]], max_tasks: int
) -> None:
    """Call ``work`` with each item, in order, with at most ``max_tasks`` calls at a time.

    The tasks share the items, so that a hundred thousand items need no more tasks. An exception of ``work`` ends all.
    """
    waiting = iter(items)

    async def process_waiting() -> None:
        for item in waiting:
            await work(item)

    async with trio.open_nursery() as nursery:
        for _ in range(min(max_tasks, len(items))):
            nursery.start_soon(process_waiting)
