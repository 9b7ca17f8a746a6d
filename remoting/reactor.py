"""Watches all sockets of a process with one epoll, and polls them directly while they are busy.

Theory of operation
-------------------
A trio task that waits for its socket costs, for each read, a pass through the scheduler and a system call that arms the
wait. A single sender that waits for each answer pays that for every message.

Here a socket is registered once with an epoll of the reactor's own (`Reactor.watch`), and trio waits only for that
epoll. When it becomes readable, `Reactor.run_readers` calls the readers of all readable sockets. Then, as long as there
is traffic, it waits in its own epoll instead of returning to trio: a client that sends one message after the other is
answered without the scheduler.

Invariant: trio must not starve. While the reactor polls, trio's epoll is registered with the reactor's, so that new
connections, handshakes and threads end the poll. The poll also ends as soon as a task is ready (`_RunnableTasks`),
when a deadline of trio has come, and after ``slice_s`` at the latest. Two epolls cannot watch each other, so trio
stops watching the reactor's for that time (`Reactor._watching_trio`). Where the slice ends among the readers of one
poll, because they are slow, the rest of them is called first in the next slice.

After ``linger_s`` without traffic the reactor waits in trio again, so that an idle process uses no processor time.
Where trio's epoll cannot be found (it has no public name and is looked up in /proc), the reactor does not linger at
all: it handles the sockets that are readable and returns to trio.
"""

import math
import re
import select
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import ClassVar, Final

import trio

MAX_EVENTS: Final = 1024
"""Sockets per poll: enough to see how many are readable at once, which bounds the turn of each."""
DEFAULT_LINGER_S: Final = 0.05
"""Time without traffic, in whole slices, after which the process waits in trio again."""
DEFAULT_SLICE_S: Final = 0.02
"""Longest time without a pass through trio, and so the longest delay of a deadline that a reader brought forward.

epoll waits for whole milliseconds only.
"""


class _RunnableTasks(trio.abc.Instrument):
    """The tasks that could run now. trio's own count leaves out those scheduled for the current pass."""

    def __init__(self) -> None:
        self.tasks: set[trio.lowlevel.Task] = set()

    def task_scheduled(self, task: trio.lowlevel.Task) -> None:
        self.tasks.add(task)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.tasks.discard(task)


class Reactor:
    """Calls functions when sockets are readable. Linux only: see `is_available`.

    Use one per event loop: while one reactor waits, the sockets of a second one would be ignored until its slice ends.
    Traffic continues for at most ``slice_s`` without a pass through trio, which takes as long as half a request.
    """

    readable_sockets: ClassVar[int] = 0
    """Number of sockets of this process that the latest poll found readable; 0 outside of `run_readers`."""

    def __init__(self, *, linger_s: float = DEFAULT_LINGER_S, slice_s: float = DEFAULT_SLICE_S) -> None:
        self._epoll = select.epoll()
        self._readers: dict[int, Callable[[], None]] = {}
        self._linger_s = linger_s
        self._slice_s = slice_s
        self._found_s = -math.inf
        self._found_sockets = 0
        self._trio_fileno = -1
        self._must_stop = False
        self._ready = _RunnableTasks()
        # Events of the last poll whose readers have not been called yet.
        self._uncalled_events: list[tuple[int, int]] = []
        self._deferred: list[Callable[[], None]] = []

    @staticmethod
    def is_available() -> bool:
        """Return True if this platform has epoll."""
        return hasattr(select, "epoll")

    def watch(self, fileno: int, readable: Callable[[], None]) -> None:
        """Call ``readable`` whenever the socket has data, until `unwatch`. It must not raise.

        It may also be called when there is no data.
        """
        self._epoll.register(fileno, select.EPOLLIN)  # First, because it may fail.
        self._readers[fileno] = readable

    def unwatch(self, fileno: int) -> None:
        """End `watch`, before the socket is closed. Does nothing for a socket that is not watched."""
        if self._readers.pop(fileno, None) is not None and not self._epoll.closed:
            self._epoll.unregister(fileno)

    def defer(self, call: Callable[[], None]) -> bool:
        """Call a function once, after the readers of the present poll; it must not raise.

        Return False outside of a poll: then it is not called.
        """
        if not Reactor.readable_sockets:
            return False
        self._deferred.append(call)
        return True

    def _call_deferred(self) -> None:
        deferred, self._deferred = self._deferred, []
        for call in deferred:
            call()

    def seconds_since_readable(self) -> float:
        """Return the seconds since the socket being read was found readable."""
        return time.monotonic() - self._found_s

    async def run(self) -> None:
        """Serve the sockets until cancelled."""
        fileno = self._epoll.fileno()
        trio.lowlevel.add_instrument(self._ready)
        try:
            # trio's epoll can only be found after it has begun to watch ours.
            await trio.lowlevel.wait_readable(fileno)
            self._trio_fileno = _epoll_that_watches(fileno)
            while True:
                with self._watching_trio():
                    while self.run_readers(trio.lowlevel.current_statistics().seconds_to_next_deadline):
                        # The readers may have made tasks ready, and deadlines may have come: trio's turn.
                        await trio.lowlevel.checkpoint()
                await trio.lowlevel.wait_readable(fileno)
        finally:
            trio.lowlevel.remove_instrument(self._ready)
            self._epoll.close()

    @contextmanager
    def _watching_trio(self) -> Iterator[None]:
        """Add trio's epoll to the watched sockets, and remove ours from trio's."""
        # The epoll stays open: this only makes trio stop watching it. The next `wait_readable` watches it again.
        trio.lowlevel.notify_closing(self._epoll.fileno())
        if self._trio_fileno >= 0:
            self.watch(self._trio_fileno, self._stop_polling)
        try:
            yield
        finally:
            self.unwatch(self._trio_fileno)

    def _stop_polling(self) -> None:
        self._must_stop = True

    def run_readers(self, within_s: float = math.inf) -> bool:
        """Call the readers of all readable sockets, repeatedly while there is traffic, for a slice or ``within_s``.

        Return True if there was traffic within the linger time; False where trio's epoll is not known.
        """
        readers, poll, runnable_tasks = self._readers, self._epoll.poll, self._ready.tasks
        clock, may_wait = time.monotonic, self._trio_fileno >= 0
        wait_s = max(0.0, min(self._slice_s, within_s))
        end, slice_end = clock() + wait_s, clock() + self._slice_s
        self._must_stop = False
        while events := self._uncalled_events or poll(
            wait_s if may_wait and not runnable_tasks else 0, MAX_EVENTS
        ):
            # Left over from the last slice: they were found readable then, as `seconds_since_readable` has to tell.
            if self._uncalled_events:
                self._uncalled_events = []
            else:
                self._found_s = clock()
                self._found_sockets = len(events)
            # Of the whole poll, also for the last of its sockets: their turns would grow otherwise.
            Reactor.readable_sockets = self._found_sockets
            pending, are_several = iter(events), len(events) > 1
            for fileno, _ in pending:
                # A reader before it may have closed this socket.
                reader = readers.get(fileno)
                if reader is not None:
                    reader()
                # A single event needs no clock: the loop is left below if it was slow.
                if are_several and clock() >= slice_end:
                    self._uncalled_events = list(pending)
                    break
            if self._deferred:
                self._call_deferred()
            # A task that became ready, a deadline, or trio's own epoll ends the poll: nothing may starve.
            wait_s = end - clock()
            if runnable_tasks or self._must_stop or wait_s <= 0:
                break
        # Tasks have turns of their own, see `remoting.connection`.
        Reactor.readable_sockets = 0
        return may_wait and clock() < self._found_s + self._linger_s


def _epoll_that_watches(fileno: int) -> int:
    """Return the descriptor of trio's epoll, recognised by watching ours; -1 where the kernel does not tell."""
    for info in Path("/proc/self/fdinfo").glob("*"):
        with suppress(OSError):  # closed since
            if re.search(rf"^tfd:\s+{fileno}\s", info.read_text(), re.MULTILINE):
                return int(info.name)
    return -1
