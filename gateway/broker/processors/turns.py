"""Long work in slices, between which other tasks run."""

from collections.abc import Iterable
from typing import Final

import trio.lowlevel

from codec.constants import ResponseCode
from remoting.errors import RequestError

ITEMS_PER_TURN: Final = 64
MAX_LISTED_QUEUES: Final = 100_000
"""Largest number of queues that one answer lists. They take 18 MB, more than a stock client reads as one frame."""


async def end_turn(number: int, per_turn: int = ITEMS_PER_TURN) -> None:
    """Let other tasks run after every ``per_turn`` items; call it with the number of each item that is done."""
    if number % per_turn == per_turn - 1:
        await trio.lowlevel.checkpoint()


async def run_in_slices(slices: Iterable[object]) -> None:
    """Run work that yields after each slice, and let other tasks run at each yield."""
    for _ in slices:
        await trio.lowlevel.checkpoint()


def check_listed_queues(count: int) -> None:
    """Refuse an answer that would list more queues than MAX_LISTED_QUEUES."""
    if count > MAX_LISTED_QUEUES:
        remark = f"the answer would list more than {MAX_LISTED_QUEUES} queues; ask for single topics"
        raise RequestError(ResponseCode.SYSTEM_ERROR, remark)
