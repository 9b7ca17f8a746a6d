"""The longest turn of an event loop: the processor time between two moments at which other tasks can run.

A pass of the loop has a turn of each task that can run. A test whose clients run in the same loop leaves their turns
out.

Processor time and not time: a machine that is busy with other processes makes no turn longer.
"""

import gc
import math
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final

import trio

MAX_TURN_S: Final = 0.05
"""Longest turn of anything that one healthy request, or one peer, may ask for."""
CLIENTS_OF_TESTS: Final = (".tests.", "test_")
"""Parts of the names of tasks that tests start."""


class LongTurn(AssertionError):
    """A turn or a pass took longer than it may."""


class LongestTurn(trio.abc.Instrument):
    """Measures each step of each task in processor time of the thread, and all steps of each pass together.

    Tasks with one of ``left_out`` in their name are not measured.
    """

    def __init__(self, left_out: tuple[str, ...] = ()) -> None:
        self.seconds = 0.0
        self.task_name = ""
        self.pass_seconds = 0.0
        self._left_out = left_out
        self._began_s = time.thread_time()  # The turn that adds this goes on.
        self._this_pass_s = 0.0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._began_s = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        lasted_s = time.thread_time() - self._began_s
        if any(part in task.name for part in self._left_out):
            return
        self._this_pass_s += lasted_s
        if lasted_s > self.seconds:
            self.seconds, self.task_name = lasted_s, task.name

    def before_io_wait(self, timeout: float) -> None:
        self.pass_seconds = max(self.pass_seconds, self._this_pass_s)
        self._this_pass_s = 0.0


@contextmanager
def short_turns(
    max_turn_s: float = MAX_TURN_S, *, max_pass_s: float = math.inf, left_out: tuple[str, ...] = ()
) -> Iterator[LongestTurn]:
    """Fail after the block, if a turn or a pass of the event loop took longer. The block has to wait at least once.

    Tasks with one of ``left_out`` in their name, such as the clients of a test, may take any time.
    """
    longest = LongestTurn(left_out)
    # Servers tune the collector; here it would look at the objects of all tests before.
    was_enabled = gc.isenabled()
    gc.disable()
    trio.lowlevel.add_instrument(longest)
    try:
        yield longest
    finally:
        trio.lowlevel.remove_instrument(longest)
        if was_enabled:
            gc.enable()
    if longest.seconds > max_turn_s:
        raise LongTurn(f"a turn of {longest.task_name} took {longest.seconds * 1000:.0f} ms")
    if longest.pass_seconds > max_pass_s:
        raise LongTurn(f"a pass took {longest.pass_seconds * 1000:.0f} ms")


async def check_short_turns(
    work: Callable[[], Awaitable[None]], measure: Callable[[], AbstractContextManager[object]]
) -> None:
    """Measure work by `short_turns`, and once more if a turn was long.

    What is slow by itself is slow again. Not so a turn in which the system took memory back from earlier tests, or a
    hypervisor stopped the machine, which the clock of the thread counts as well.
    """
    try:
        with measure():
            await work()
    except LongTurn:
        with measure():
            await work()
