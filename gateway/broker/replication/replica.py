"""One slave as its master sees it: where it began, what it was sent, and what it acknowledged.

The rules are stricter than those of the official master, where any peer of the HA port can acknowledge any message:

- Nothing beyond the last byte sent can be acknowledged. A peer that tries is closed (`AcknowledgementRefused`).
- What a slave says it has when it connects is no acknowledgement: this master did not send it those bytes, and they may
  be of another master. Answers that wait at that moment wait for a message that the slave claims to have, so it does
  not count before they have left (`Replica.begin`).
- One slave counts once. One of this project says its broker id with its ticket, and its newest connection counts.
  Official slaves do not say who they are, but each has one connection at a time. When a connection comes from the host
  of an older one, the older one may be of the same slave, whose end has not been noticed yet: it does not count until
  it shows that it lives on, by acknowledging bytes that were sent later (`Replica.doubt`). A slave may also have
  several addresses, so no more of them count than are registered (`InSyncRule`).
"""

from math import floor, inf
from typing import Final

from remoting.transport import Address

PROOF_OF_LIFE_S: Final = 2.0
"""Time after a new connection from its host after which any report of an older connection shows that it lives on: what
its slave had sent before it connected anew has arrived by then."""


class AcknowledgementRefused(Exception):
    """A slave acknowledged bytes that it was not sent."""


class Replica:
    """A connection of one slave. Offsets are physical ones, times those of `trio.current_time`.

    ``start`` is the first offset sent, None until the slave has said where it is; ``sent`` and ``acknowledged`` are the
    ends of what it was sent and of what it acknowledged. ``counted`` is True while its acknowledgements count,
    ``in_sync`` False since it was found far behind. ``broker_id`` is None for a slave that does not say it.
    ``is_superseded`` is True while a newer connection has said the same broker id: this one does not count.
    """

    __slots__ = (
        "_proof_offset",
        "_proof_s",
        "_superseded_offset",
        "_superseded_s",
        "acknowledged",
        "broker_id",
        "connected_s",
        "counted",
        "in_sync",
        "is_superseded",
        "last_report_s",
        "last_sent_s",
        "remote",
        "sent",
        "start",
        "transfer_rate",
    )

    def __init__(self, remote: Address, now_s: float) -> None:
        self.remote = remote
        self.broker_id: int | None = None
        self.connected_s = self.last_report_s = self.last_sent_s = now_s
        self.start: int | None = None
        self.sent = 0
        self.acknowledged = 0
        self.counted = False
        self.is_superseded = False
        self.in_sync = True  # so that only a slave that is behind is worth a word
        self.transfer_rate = TransferRate()
        # A report counts this connection that acknowledges more than this offset, or comes after this time.
        self._proof_offset: float = 0
        self._proof_s = 0.0
        self._superseded_offset, self._superseded_s = 0, inf

    def begin(self, start: int, now_s: float, counts_after_s: float = 0) -> None:
        """Note where the slave begins to copy. It counts from now on, or from a report after ``counts_after_s``."""
        self.start = self.sent = self.acknowledged = start
        self.last_report_s = self.last_sent_s = now_s
        self.counted = not counts_after_s
        self._proof_offset, self._proof_s = inf, now_s + counts_after_s

    def acknowledge(self, offset: int, now_s: float) -> None:
        """Note a report. Raises AcknowledgementRefused."""
        self.last_report_s = now_s
        if offset > self.sent:
            raise AcknowledgementRefused(
                f"it acknowledges {offset}, but was sent the log up to {self.sent} only"
            )
        if offset > self.acknowledged:
            self.acknowledged = offset
        if not self.counted and (offset > self._proof_offset or now_s > self._proof_s):
            self.counted = True

    def make_room_for(self, newer: "Replica", now_s: float) -> None:
        """Count this connection no longer if another one may be of the same slave, and while that is there if it is."""
        if self.may_be_of_slave_of(newer):
            self.doubt(now_s)
            if self.broker_id is not None and self.broker_id == newer.broker_id:
                self._superseded_offset, self._superseded_s = self.sent, now_s + PROOF_OF_LIFE_S
                self._proof_offset = self._proof_s = inf
                self.is_superseded = True

    def lives_on(self, now_s: float) -> bool:
        """Return True if the report that was just noted shows that another slave has the broker id of this one."""
        return self.is_superseded and (
            self.acknowledged > self._superseded_offset or now_s > self._superseded_s
        )

    def outlive(self, now_s: float) -> None:
        """Count this connection again once it shows that it lives on: the newer one of its broker id has ended."""
        self.is_superseded = False
        self._proof_offset, self._proof_s = self.sent, now_s + PROOF_OF_LIFE_S

    def doubt(self, now_s: float) -> None:
        """Count this connection no longer until it shows that it lives on: another one came from its host."""
        if self.counted:
            self.counted = False
            self._proof_offset = self.sent
        self._proof_s = max(self._proof_s, now_s + PROOF_OF_LIFE_S)

    def may_be_of_slave_of(self, other: "Replica") -> bool:
        """Return True if two connections may be of the same slave."""
        if self.broker_id is not None and other.broker_id is not None:
            return self.broker_id == other.broker_id
        return self.remote[0] == other.remote[0]

    def bytes_behind(self, end: int) -> int:
        """Return the bytes of a log that ends at ``end`` which the slave has not acknowledged."""
        return max(0, end - self.acknowledged)


class TransferRate:
    """Bytes sent within the present second and within the one before. Source: FlowMonitor, 5.4.0."""

    __slots__ = ("_bytes", "_last_bytes", "_second")

    def __init__(self) -> None:
        self._second = 0
        self._bytes = 0
        self._last_bytes = 0

    def _move_to(self, now_s: float) -> None:
        second = floor(now_s)
        if second != self._second:
            self._last_bytes = self._bytes if second == self._second + 1 else 0
            self._second, self._bytes = second, 0

    def add(self, size: int, now_s: float) -> None:
        """Count bytes that were sent."""
        self._move_to(now_s)
        self._bytes += size

    def sent_in_second(self, now_s: float) -> int:
        """Return the bytes sent since the present second began."""
        self._move_to(now_s)
        return self._bytes

    def bytes_per_second(self, now_s: float) -> int:
        """Return the bytes sent within the last whole second."""
        self._move_to(now_s)
        return self._last_bytes
