"""The longest turn of an event loop: the processor time between two moments at which other tasks can run.

Processor time and not time: a machine that is busy with other processes makes no turn longer.
"""

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import trio

MAX_TURN_S: Final = 0.05
"""Longest turn of anything that one healthy request, or one peer, may ask for."""


class LongestTurn(trio.abc.Instrument):
    """Measures each step of each task in processor time of the thread."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.task_name = ""
        self._began_s = time.thread_time()  # The turn that adds this goes on.

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._began_s = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        lasted_s = time.thread_time() - self._began_s
        if lasted_s > self.seconds:
            self.seconds, self.task_name = lasted_s, task.name


@contextmanager
def short_turns(max_turn_s: float = MAX_TURN_S) -> Iterator[None]:
    """Fail after the block, if a turn of the event loop took longer. The block has to wait at least once."""
    longest = LongestTurn()
    # Servers tune the collector; here it would look at the objects of all tests before.
    was_enabled = gc.isenabled()
    gc.disable()
    trio.lowlevel.add_instrument(longest)
    try:
        yield
    finally:
        trio.lowlevel.remove_instrument(longest)
        if was_enabled:
            gc.enable()
    assert longest.seconds <= max_turn_s, (
        f"a turn of {longest.task_name} took {longest.seconds * 1000:.0f} ms"
    )
