"""The master's side of AutoSwitchHA: the handshake about epochs, and frames that end with their epoch.

Theory of operation
-------------------
The slave cuts its own log to what it has in common with this one before it reports (`auto_switch_follower.py`), so its
first report is as good as an acknowledgement. An official slave learns of an epoch only from the frames that it gets,
and only if the epoch begins after the last one that it knows. So that every epoch reaches it:

- A frame never reaches into another epoch. The one that ends an epoch names the next one, as an official master does;
  of several that begin at the same offset it names the newest, which is the only one that such a slave can keep.
- An epoch that ends with the first frame of a connection would never be named. A heartbeat names it before that frame.
  An official master leaves it out, and a slave that lacks an epoch cannot serve its bytes once it is master itself.
- A newer epoch of the same master, and a newer confirm offset, reach a slave that waits by a heartbeat as well.

A slave of this project, which has a ticket, takes over the epochs of the handshake. For each later one it gets a
heartbeat.

Source: AutoSwitchHAConnection, 5.4.0. Deviations: a slave says its broker id once, the one of its ticket if it has one,
and neither 0 nor that of the master; and a repeated handshake is not answered again.
"""

from collections.abc import Callable
from contextlib import suppress

from gateway.broker.replication.auto_switch_wire import (
    MAX_PIECE_BYTES,
    MasterHello,
    SlaveHello,
    SlaveReader,
    encode_frame_head,
    encode_master_hello,
)
from gateway.broker.replication.epochs import EpochStart, EpochTable
from gateway.broker.replication.ha_wire import HaWireError
from storage.commit_log import CommitLog
from storage.errors import StoreFull


class AutoSwitchMaster:
    """Opens the streams of one master's slaves.

    ``broker_id`` is the master's id at the controller. ``confirm_offset`` returns the end of the messages that all
    replicas of the set have.
    """

    def __init__(
        self,
        commit_log: CommitLog,
        epochs: EpochTable,
        broker_id: int,
        confirm_offset: Callable[[], int],
    ) -> None:
        self.log = commit_log
        self.epochs = epochs
        self.broker_id = broker_id
        self.confirm_offset = confirm_offset

    def open_stream(self, broker_id: int | None) -> "AutoSwitchStream":
        """Return the stream of a new slave, given the broker id of its ticket, None without one."""
        return AutoSwitchStream(self, broker_id)


class AutoSwitchStream:
    """AutoSwitchHA on one connection with a slave; implements `SlaveStream` of `ha_server.py`."""

    is_verified: bool = True

    def __init__(self, master: AutoSwitchMaster, broker_id: int | None) -> None:
        self.member: str | None = None
        self.broker_id = broker_id
        self.is_counted = True
        self._is_of_project = broker_id is not None
        self._master = master
        self._reader = SlaveReader()
        self._hello: SlaveHello | None = None
        self._has_reported = False
        self._answer = b""
        # What the last frame named.
        self._named_epoch: EpochStart | None = None
        self._named_confirm_offset = -1

    # -- receiving --

    def feed(self, data: bytes) -> int | None:
        """Return the newest report; a handshake makes an answer. Raises HaWireError."""
        newest: int | None = None
        for message in self._reader.feed(data):
            if isinstance(message, SlaveHello):
                self._take_hello(message)
            elif self._hello is None:
                raise HaWireError("a report before the handshake")
            else:
                newest = message
                self._has_reported = True
        return newest

    def _take_hello(self, hello: SlaveHello) -> None:
        if self._hello is not None:
            # An official slave repeats its handshake when the answer comes in two parts.
            if hello != self._hello or self._has_reported:
                raise HaWireError(f"a second handshake, of broker {hello.broker_id}")
            return
        master = self._master
        if master.epochs.newest is None:
            raise HaWireError("this master has no epoch yet")
        if hello.broker_id <= 0 or hello.broker_id == master.broker_id:
            raise HaWireError(f"a handshake of broker {hello.broker_id}, which no slave of this master is")
        if self.broker_id is not None and self.broker_id != hello.broker_id:
            raise HaWireError(
                f"a handshake of broker {hello.broker_id} with the ticket of broker {self.broker_id}"
            )
        self._hello = hello
        self.broker_id = hello.broker_id
        self.member = str(hello.broker_id)
        self.is_counted = not hello.is_learner
        with suppress(StoreFull, OSError):  # too many entries harm nobody
            master.epochs.drop_before(master.log.first_base)
        self._answer = encode_master_hello(MasterHello(master.log.max_offset, master.epochs.entries))
        if self._is_of_project:
            self._named_epoch = master.epochs.newest

    def take_answer(self) -> bytes:
        """Return the answer to a handshake, once."""
        answer, self._answer = self._answer, b""
        return answer

    def choose_start(self, report: int) -> int:
        """Return the offset that the slave asks for: with 0 the oldest one, or that of the last file."""
        commit_log = self._master.log
        if report:
            return report
        begins_at_last_file = self._hello is not None and self._hello.begins_at_last_file
        return commit_log.base if begins_at_last_file else commit_log.first_base

    # -- sending --

    def limit_piece(self, offset: int) -> int:
        """Return the bytes up to the end of the epoch, at most as many as an official slave takes."""
        return min(MAX_PIECE_BYTES, self._master.epochs.end_of_epoch(offset) - offset)

    def encode_head(self, offset: int, size: int) -> bytes:
        """Return the head of a frame, after a heartbeat if the epoch of the frame would not be named otherwise."""
        epoch = self._find_epoch(offset + size)
        if epoch == self._named_epoch:
            return self._encode(offset, size, epoch)
        heads = [self._encode(offset, 0, unnamed) for unnamed in self._find_unnamed(offset, epoch)]
        return b"".join((*heads, self._encode(offset, size, epoch)))

    def _find_unnamed(self, offset: int, epoch: EpochStart) -> list[EpochStart]:
        """Return the epochs to name before a frame that begins at an offset and names ``epoch``."""
        named = -1 if self._named_epoch is None else self._named_epoch.epoch
        own_epoch = self._find_epoch(offset)
        return [
            entry
            for entry in self._master.epochs.entries
            if named < entry.epoch < epoch.epoch and (self._is_of_project or entry == own_epoch)
        ]

    def _encode(self, offset: int, size: int, epoch: EpochStart) -> bytes:
        self._named_epoch, self._named_confirm_offset = epoch, self._master.confirm_offset()
        return encode_frame_head(offset, size, epoch, self._named_confirm_offset)

    def _find_epoch(self, offset: int) -> EpochStart:
        epoch = self._master.epochs.find(offset)
        assert epoch is not None, "a handshake needs an epoch"
        return epoch

    @property
    def has_news(self) -> bool:
        """True if the confirm offset or the epoch of the next frame differs from what the last frame named."""
        master = self._master
        return (
            master.confirm_offset() != self._named_confirm_offset
            or master.epochs.find(master.log.max_offset) != self._named_epoch
        )
