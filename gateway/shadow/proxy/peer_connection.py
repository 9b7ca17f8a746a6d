"""The I/O of one connection of a session: reading that can be paused, and writing that never waits.

Bytes that the peer does not accept at once are buffered and sent by a task. A connection sees only bytes; frames are
the business of `session.py`.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import trio

from remoting.transport import Buffer, Transport

log = logging.getLogger(__name__)

CLOSED_BY_PEER = "closed by peer"
DEFECT = "session closed: defect in the gateway"


@dataclass(frozen=True, slots=True)
class ConnectionEvents:
    """The functions that a connection calls. None of them may wait."""

    on_data: Callable[[bytes], None]
    on_end: Callable[[str], None]
    """Nothing more will arrive, for this reason. Called at most once, and not after `PeerConnection.close`."""
    on_drained: Callable[[], None]
    """The buffered output has fallen to the high watermark or below."""
    on_buffered: Callable[[int], None]
    """This many bytes were added to the buffered output."""


LARGE_READ_BYTES: Final = 32 * 1024
"""Bytes per read while a large frame arrives: many such peers must not starve the others."""
_NO_EVENTS: Final = ConnectionEvents(lambda _: None, lambda _: None, lambda: None, lambda _: None)


class PeerConnection:
    """A transport with buffered output and pausable input.

    While more than ``high_watermark_bytes`` are buffered the connection `is_full`. The session then stops reading from
    the connection that supplies these bytes, so that at most one read and one frame are added.
    """

    __slots__ = (
        "_events",
        "_finishes",
        "_has_ended",
        "_high_watermark_bytes",
        "_is_paused",
        "_max_read_bytes",
        "_nursery",
        "_on_data",
        "_output",
        "_read_bytes",
        "_receive_now",
        "_resumed",
        "_send_now",
        "_transport",
        "_writes_directly",
        "buffered_bytes",
        "closed",
        "local",
        "remote",
    )

    def __init__(
        self,
        transport: Transport,
        events: ConnectionEvents,
        nursery: trio.Nursery,
        *,
        read_bytes: int,
        high_watermark_bytes: int,
    ) -> None:
        self._transport = transport
        self._receive_now = transport.receive_now
        self._send_now = transport.send_now
        self._events = events
        self._on_data = events.on_data
        self._nursery = nursery
        self._read_bytes = self._max_read_bytes = read_bytes
        self._high_watermark_bytes = high_watermark_bytes
        self.remote = transport.remote
        self.local = transport.local
        self.closed = trio.Event()
        self.buffered_bytes = 0
        self._output: list[Buffer] = []
        self._writes_directly = True
        """False while a task sends the buffered output, and after closing."""
        self._finishes = False
        """True after `finish`: the connection closes once the buffered output is sent."""
        self._has_ended = False
        """True once nothing more is read: `on_end` was called, or the connection was closed from this side."""
        self._is_paused = True
        self._resumed: trio.Event | None = None
        """Only for a transport that no reactor watches: its read loop waits for this while paused."""

    # -- reading ------------------------------------------------------------------------------------------------

    def start_reading(self) -> None:
        """Begin to read."""
        self._is_paused = False
        if not self._transport.watch(self._on_readable):
            self._resumed = trio.Event()
            self._nursery.start_soon(self._read_loop)

    def pause_reading(self) -> None:
        """Read nothing more until `resume_reading`."""
        if not self._is_paused:
            self._is_paused = True
            self._transport.unwatch()

    def resume_reading(self) -> None:
        """Read again; does nothing if the connection is not paused, or has ended."""
        if not self._is_paused or self._has_ended:
            return
        self._is_paused = False
        if self._resumed is None:
            self._transport.watch(self._on_readable)
        else:
            self._resumed.set()

    def limit_reads(self, *, limited: bool) -> None:
        """Read at most `LARGE_READ_BYTES` at a time, or as much as usual again."""
        self._read_bytes = min(LARGE_READ_BYTES, self._max_read_bytes) if limited else self._max_read_bytes

    def _on_readable(self) -> None:
        """Read once; called by the reactor."""
        try:
            data = self._receive_now(self._read_bytes)
        except BlockingIOError:
            return
        except OSError as error:
            self._end(str(error))
            return
        if not data:
            self._end(CLOSED_BY_PEER)
            return
        try:
            self._on_data(data)
        except Exception:
            log.exception(DEFECT, extra={"remote": self.remote})
            self._end("defect")

    async def _read_loop(self) -> None:
        try:
            while not self.closed.is_set():
                data = await self._transport.receive(self._read_bytes)
                # Paused while the read was under way: these bytes wait here, so that they are not handed on during the
                # pause.
                while self._is_paused and not self.closed.is_set():
                    self._resumed = trio.Event()
                    await self._resumed.wait()
                if not data:
                    self._end(CLOSED_BY_PEER)
                    return
                try:
                    self._on_data(data)
                except Exception:
                    log.exception(DEFECT, extra={"remote": self.remote})
                    self._end("defect")
                    return
        except OSError as error:
            self._end(str(error))

    def _end(self, reason: str) -> None:
        self.pause_reading()
        if not self._has_ended:
            self._has_ended = True
            self._events.on_end(reason)

    # -- writing ------------------------------------------------------------------------------------------------

    @property
    def is_full(self) -> bool:
        """Tell whether the buffered output is above the high watermark."""
        return self.buffered_bytes > self._high_watermark_bytes

    def write(self, data: Buffer) -> bool:
        """Send bytes in order; return False if some had to be buffered, because the kernel does not take them now."""
        if self._writes_directly:
            try:
                sent = self._send_now(data)
            except BlockingIOError:
                sent = 0
            except OSError as error:
                self._end(str(error))
                return True
            if sent == len(data):
                return True
            # The kernel's buffer is full. The rest waits, and a task sends it.
            data = memoryview(data)[sent:]
        elif self.closed.is_set():
            return True
        self._output.append(data)
        self.buffered_bytes += len(data)
        # The memory guard may close this very session here, hence the check that follows.
        self._events.on_buffered(len(data))
        if self.closed.is_set():
            return True
        if self._writes_directly:
            self._writes_directly = False
            self._nursery.start_soon(self._send_output)
        return False

    async def _send_output(self) -> None:
        try:
            while self._output and not self.closed.is_set():
                # Everything that waits goes in one call: after a pause there may be thousands of small pieces.
                batch, self._output = self._output, []
                size = sum(map(len, batch))
                await self._transport.send_all(batch[0] if len(batch) == 1 else b"".join(batch))
                # Only the fall below the watermark is an event. The session has paused its peer since the rise above
                # it.
                was_full = self.is_full
                self.buffered_bytes -= size
                if was_full and not self.is_full:
                    self._events.on_drained()
        except OSError as error:
            self._end(str(error))
            self.close()
        finally:
            self._writes_directly = not self.closed.is_set()
        if self._finishes:
            self.close()

    # -- closing ------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Read nothing more, and close as soon as the buffered output is sent."""
        self.pause_reading()
        self._has_ended = self._finishes = True
        if self._writes_directly:
            self.close()

    def close(self) -> None:
        """Close at once. Idempotent."""
        if self.closed.is_set():
            return
        self.pause_reading()
        self._has_ended = True
        self._writes_directly = False
        self.closed.set()
        if self._resumed is not None:
            self._resumed.set()
        self._transport.close()
        # Nothing is sent any more, and a closed connection must not count as memory in use.
        self._output.clear()
        self.buffered_bytes = 0
        # They are functions of the session, which would otherwise stay until a garbage collection, with its buffers.
        self._events, self._on_data = _NO_EVENTS, _NO_EVENTS.on_data
