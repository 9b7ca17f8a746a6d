"""Watches all sockets of a process with one epoll, and stays with them while they are busy.

Not responsible for what is read: each socket has a function that is called when it is readable.

A trio task that waits for its socket costs a pass through the scheduler and a system call to arm the wait, for
each read. Here a socket is armed once, and after some traffic the loop lingers for some milliseconds in its own wait
before it goes back to trio: a client that sends one message after the other is answered without the scheduler.
Tasks that are ready, deadlines and worker threads are never kept waiting so; what trio itself watches is: new
connections and handshakes.
"""

import math
import select
import time
from collections.abc import Callable
from typing import Final

import trio

MAX_EVENTS: Final = 64
"""So few that all of them together, at a full read each, do not take much longer than a slice."""
LINGER_S: Final = 0.003
"""Longest wait for more traffic that sockets watched by trio put up with. epoll knows whole milliseconds only."""
SLICE_S: Final = 0.02
"""So long may traffic go on before sockets watched by trio get their turn."""


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

    ``slice_s``: the longest time that traffic goes on without trio, whose deadlines it keeps. A pass through trio takes
    as long as half a request.
    """

    def __init__(self, *, linger_s: float = LINGER_S, slice_s: float = SLICE_S) -> None:
        self._epoll = select.epoll()
        self._readers: dict[int, Callable[[], None]] = {}
        self._linger_s = linger_s
        self._slice_s = slice_s
        self._round_s = 0.0
        self._ready = _Ready()

    @staticmethod
    def available() -> bool:
        """Whether this platform has epoll."""
        return hasattr(select, "epoll")

    def watch(self, fileno: int, readable: Callable[[], None]) -> None:
        """Calls ``readable`` whenever the socket has something to read, until `forget`. It must not raise."""
        self._epoll.register(fileno, select.EPOLLIN)  # First, because it may fail.
        self._readers[fileno] = readable

    def forget(self, fileno: int) -> None:
        """Ends `watch`, before the socket is closed; nothing happens for a socket that is not watched."""
        if self._readers.pop(fileno, None) is not None and not self._epoll.closed:
            self._epoll.unregister(fileno)

    def waited_s(self) -> float:
        """Seconds since the socket being read was found readable, or at most a linger more."""
        return time.monotonic() - self._round_s

    async def run(self) -> None:
        """Serves the sockets until cancelled."""
        fileno = self._epoll.fileno()
        trio.lowlevel.add_instrument(self._ready)
        try:
            while True:
                await trio.lowlevel.wait_readable(fileno)
                self.work(trio.lowlevel.current_statistics().seconds_to_next_deadline)
        finally:
            trio.lowlevel.remove_instrument(self._ready)
            self._epoll.close()

    def work(self, within_s: float = math.inf) -> None:
        """Calls the readers of all readable sockets, again while there is traffic: for a slice, or ``within_s``."""
        readers, poll, others = self._readers, self._epoll.poll, self._ready.tasks
        threads = trio.to_thread.current_default_thread_limiter()
        now = time.monotonic()
        end = now + min(self._slice_s, within_s)
        events = poll(0, MAX_EVENTS)
        while events:
            self._round_s = now
            for fileno, _ in events:
                reader = readers.get(fileno)
                if reader is not None:
                    reader()
            now = time.monotonic()
            if others or now >= end:
                return
            # A thread that is done, with a flush that answers wait for, wakes trio and not this.
            if threads.borrowed_tokens:
                return
            events = poll(self._linger_s, MAX_EVENTS)
