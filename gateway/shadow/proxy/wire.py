"""One end of a link: bytes that arrive are given to a function, bytes to send never make anybody wait.

Not responsible for frames, nor for who is at the other end of the link: both are told by callbacks.
"""

import logging
from typing import Protocol

import trio

from remoting.transport import Buffer, Transport

log = logging.getLogger(__name__)

CLOSED_BY_PEER = "closed by peer"


class Owner(Protocol):
    """Who uses a wire; none of these may wait."""

    def received(self, data: bytes) -> None:
        """Bytes have arrived."""

    def ended(self, reason: str) -> None:
        """Nothing more will arrive. Called once, unless the owner closed the wire first."""

    def drained(self) -> None:
        """Less than the high-water mark waits to be sent, after more did."""


class Wire:
    """A transport with output that is kept while the peer does not take it, and input that can be paused.

    `full` says that more than ``high_bytes`` wait to be sent: then the owner pauses whoever brings more, so that
    at most one read and one frame come on top.
    """

    __slots__ = (
        "_direct",
        "_ended",
        "_finishing",
        "_high_bytes",
        "_nursery",
        "_output",
        "_owner",
        "_read_bytes",
        "_resumed",
        "_send_now",
        "_stopped",
        "_transport",
        "closed",
        "kept_bytes",
        "local",
        "remote",
    )

    def __init__(
        self, transport: Transport, owner: Owner, nursery: trio.Nursery, *, read_bytes: int, high_bytes: int
    ) -> None:
        self._transport = transport
        self._send_now = transport.send_now
        self._owner = owner
        self._nursery = nursery
        self._read_bytes = read_bytes
        self._high_bytes = high_bytes
        self.remote = transport.remote
        self.local = transport.local
        self.closed = trio.Event()
        self.kept_bytes = 0
        self._output: list[Buffer] = []
        self._direct = True
        """What is written goes to the kernel at once; if not, a task sends what is kept, or the wire is closed."""
        self._finishing = False
        self._ended = False
        self._stopped = True  # reading
        self._resumed: trio.Event | None = None

    # -- reading ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begins to read."""
        self._stopped = False
        if not self._transport.watch(self._readable):
            self._resumed = trio.Event()
            self._nursery.start_soon(self._read_loop)

    def pause(self) -> None:
        """Reads no more until `resume`."""
        if not self._stopped:
            self._stopped = True
            self._transport.unwatch()

    def resume(self) -> None:
        """Reads again; nothing happens to a wire that reads or has ended."""
        if not self._stopped or self._ended:
            return
        self._stopped = False
        if self._resumed is None:
            self._transport.watch(self._readable)
        else:
            self._resumed.set()

    def _readable(self) -> None:
        """Called by the reactor."""
        try:
            data = self._transport.receive_now(self._read_bytes)
        except BlockingIOError:
            return
        except OSError as error:
            self._end(str(error))
        else:
            self._arrived(data)

    async def _read_loop(self) -> None:
        try:
            while not self.closed.is_set():
                data = await self._transport.receive(self._read_bytes)
                while self._stopped and not self.closed.is_set():
                    self._resumed = trio.Event()
                    await self._resumed.wait()
                if not self._arrived(data):
                    return
        except OSError as error:
            self._end(str(error))

    def _arrived(self, data: bytes) -> bool:
        if not data:
            self._end(CLOSED_BY_PEER)
            return False
        try:
            self._owner.received(data)
        except Exception:
            log.exception("link closed: a defect", extra={"remote": self.remote})
            self._end("defect")
            return False
        return True

    def _end(self, reason: str) -> None:
        self.pause()
        if not self._ended:
            self._ended = True
            self._owner.ended(reason)

    # -- writing ------------------------------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        """Whether whoever brings bytes for this wire should stop doing so."""
        return self.kept_bytes > self._high_bytes

    def write(self, data: Buffer) -> bool:
        """Sends bytes in order; what the kernel does not take is kept and sent by a task: then it returns False."""
        if self._direct:
            try:
                sent = self._send_now(data)
            except BlockingIOError:
                sent = 0
            except OSError as error:
                self._end(str(error))
                return True
            if sent == len(data):
                return True
            data = memoryview(data)[sent:]
        elif self.closed.is_set():
            return True
        self._keep(data)
        return False

    def _keep(self, data: Buffer) -> None:
        self._output.append(data)
        self.kept_bytes += len(data)
        if self._direct:
            self._direct = False
            self._nursery.start_soon(self._send_kept)

    async def _send_kept(self) -> None:
        try:
            while self._output and not self.closed.is_set():
                batch, self._output = self._output, []
                size = sum(map(len, batch))
                await self._transport.send_all(batch[0] if len(batch) == 1 else b"".join(batch))
                was_full = self.full
                self.kept_bytes -= size
                if was_full and not self.full:
                    self._owner.drained()
        except OSError as error:
            self._end(str(error))
            self.close()
        finally:
            self._direct = not self.closed.is_set()
        if self._finishing:
            self.close()

    # -- closing ------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Closes as soon as everything written is sent; reads no more."""
        self.pause()
        self._ended = self._finishing = True
        if self._direct:
            self.close()

    def close(self) -> None:
        """Closes at once. Idempotent."""
        if self.closed.is_set():
            return
        self.pause()
        self._ended = True
        self._direct = False
        self.closed.set()
        if self._resumed is not None:
            self._resumed.set()
        self._transport.close()
        self._output.clear()
        self.kept_bytes = 0
