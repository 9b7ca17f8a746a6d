"""Watches all sockets of a process with one epoll, and stays with them while they are busy.

Not responsible for what is read: each socket has a function that is called when it is readable.

A trio task that waits for its socket costs a pass through the scheduler and a system call to arm the wait, for
each read. Here a socket is armed once, and while there is traffic the loop waits in its own epoll, which then watches
trio's as well: a client that sends one message after the other is answered without the scheduler. It goes back to trio
as soon as a task is ready, a deadline has come, or something that trio watches (new connections, handshakes, threads).
"""

import math
import re
import select
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import trio

MAX_EVENTS: Final = 64
"""So few that all of them together, at a full read each, do not take much longer than a slice."""
DEFAULT_LINGER_S: Final = 0.05
"""So long without traffic, in whole slices, and the process waits in trio again."""
DEFAULT_SLICE_S: Final = 0.02
"""Longest time until a deadline is kept that a reader brought forward without making a task ready.

epoll knows whole milliseconds only."""


class _Ready(trio.abc.Instrument):
    """Knows the tasks that could run now; trio's own count leaves out those that are to run in the current pass."""

    def __init__(self) -> None:
        self.tasks: set[trio.lowlevel.Task] = set()

    def task_scheduled(self, task: trio.lowlevel.Task) -> None:
        self.tasks.add(task)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.tasks.discard(task)


class Reactor:
    """Calls functions when sockets are readable. Linux only: see `available`.

    A loop has one: while it waits, it would not see the sockets of a second one before its slice is over.

    ``slice_s``: the longest time that traffic goes on without a pass through trio, each as long as half a request.
    """

    def __init__(self, *, linger_s: float = DEFAULT_LINGER_S, slice_s: float = DEFAULT_SLICE_S) -> None:
        self._epoll = select.epoll()
        self._readers: dict[int, Callable[[], None]] = {}
        self._linger_s = linger_s
        self._slice_s = slice_s
        self._found_s = -math.inf
        self._trio = -1
        self._left = False
        self._ready = _Ready()

    @staticmethod
    def is_available() -> bool:
        """Whether this platform has epoll."""
        return hasattr(select, "epoll")

    def watch(self, fileno: int, readable: Callable[[], None]) -> None:
        """Calls ``readable`` whenever the socket has something to read, until `forget`. It must not raise."""
        self._epoll.register(fileno, select.EPOLLIN)  # First, because it may fail.
        self._readers[fileno] = readable

    def unwatch(self, fileno: int) -> None:
        """Ends `watch`, before the socket is closed; nothing happens for a socket that is not watched."""
        if self._readers.pop(fileno, None) is not None and not self._epoll.closed:
            self._epoll.unregister(fileno)

    def seconds_since_readable(self) -> float:
        """Seconds since the socket being read was found readable."""
        return time.monotonic() - self._found_s

    async def run(self) -> None:
        """Serves the sockets until cancelled."""
        fileno = self._epoll.fileno()
        trio.lowlevel.add_instrument(self._ready)
        try:
            await trio.lowlevel.wait_readable(fileno)
            self._trio = _epoll_that_watches(fileno)
            while True:
                with self._watching_trio():
                    while self.run_readers(trio.lowlevel.current_statistics().seconds_to_next_deadline):
                        await trio.lowlevel.checkpoint()
                await trio.lowlevel.wait_readable(fileno)
        finally:
            trio.lowlevel.remove_instrument(self._ready)
            self._epoll.close()

    @contextmanager
    def _watching_trio(self) -> Iterator[None]:
        """Trio's epoll is among the sockets, and watches them no longer: two cannot watch each other."""
        trio.lowlevel.notify_closing(self._epoll.fileno())
        if self._trio >= 0:
            self.watch(self._trio, self._leave)
        try:
            yield
        finally:
            self.unwatch(self._trio)

    def _leave(self) -> None:
        self._left = True

    def run_readers(self, within_s: float = math.inf) -> bool:
        """Calls the readers of all readable sockets, again while there is traffic: for a slice, or ``within_s``.

        Returns whether there was some within a linger; it does not linger where trio's epoll is not known.
        """
        readers, poll, others = self._readers, self._epoll.poll, self._ready.tasks
        clock, may_wait = time.monotonic, self._trio >= 0
        wait_s = max(0.0, min(self._slice_s, within_s))
        end = clock() + wait_s
        self._left = False
        while events := poll(wait_s if may_wait and not others else 0, MAX_EVENTS):
            self._found_s = clock()
            for fileno, _ in events:
                reader = readers.get(fileno)
                if reader is not None:
                    reader()
            wait_s = end - clock()
            if others or self._left or wait_s <= 0:
                break
        return may_wait and clock() < self._found_s + self._linger_s


def _epoll_that_watches(fileno: int) -> int:
    """The descriptor of trio's epoll, which has no public name, but watches ours; -1 where the kernel does not tell."""
    for info in Path("/proc/self/fdinfo").glob("*"):
        with suppress(OSError):  # closed since
            if re.search(rf"^tfd:\s+{fileno}\s", info.read_text(), re.MULTILINE):
                return int(info.name)
    return -1
