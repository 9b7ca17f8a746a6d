"""The slave's side of AutoSwitchHA: the handshake about epochs, and epochs that are stored before their bytes.

Theory of operation
-------------------
**Problem.** A master that is elected may lack the last messages of the one before. A replica that has them must cut
them off before it copies on, and one that is master later must know which master wrote which part of its log.

**Steps**, for each connection (`EpochHandshake`, then `EpochStream`):

1. Say who this slave is, and get the master's epochs. The newest epoch that both have says up to where the logs are
   equal (`EpochTable.consistent_point`).
2. If the master has nothing after that point, and this log does, it is cut there (`Diverged`). Otherwise the bytes
   after it are compared with the master's, and the log is cut at the first message that differs. An official slave cuts
   all of them. But a master that is elected again, and keeps its connections, has begun an epoch that its slaves do
   not know: cutting would give up confirmed messages, if only until they are copied again.
3. Once everything is known to be the master's, its epochs up to the end of the log replace the own ones
   (`EpochTable.adopt`). Those that begin later follow as soon as the log reaches them: the entry is on the disk before
   the first byte of its epoch is in the log.

A broker at the master's address that has not reached an epoch in which this one has messages is not the master
(`OutdatedMaster`): nothing is cut for it. One of this project must have reached the epoch that the controller named. An
official master need not have it in its table: it leaves an epoch out that begins where the one before did.

A crash at any step leaves entries of epochs that begin in the log, or at its end.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

import trio

from gateway.broker.replication.auto_switch_wire import (
    NO_OFFSET,
    MasterHello,
    MasterHelloReader,
    SlaveHello,
    TransferReader,
    encode_report,
    encode_slave_hello,
)
from gateway.broker.replication.epochs import MAX_EPOCHS, NO_END, EpochStart, EpochTable
from gateway.broker.replication.follower import (
    ANY_OFFSET,
    MAX_COMPARED_BYTES,
    Agreement,
    CannotFollow,
    LogCopy,
    LogRange,
    OutdatedMaster,
)
from gateway.broker.replication.ha_wire import HaWireError
from gateway.broker.replication.log_cursor import LogStarts
from remoting.errors import RemotingClosed
from remoting.transport import Transport
from storage.replica_log import Diverged
from storage.store import MessageStore

HANDSHAKE_TIMEOUT_S: Final = 5.0
READ_BYTES: Final = 64 * 1024


class EpochHandshake:
    """Shakes hands with masters for one slave. ``broker_id`` is its id at the controller, ``master_epoch`` the epoch of
    the master that the controller named.

    An empty slave with ``begins_at_last_file`` copies the master's last file only. ``hides_unconfirmed`` is True where
    every message waits for all replicas in sync (allAckInSyncStateSet).
    """

    def __init__(
        self,
        store: MessageStore,
        epochs: EpochTable,
        broker_id: int,
        *,
        master_epoch: int = 0,
        begins_at_last_file: bool = False,
        is_learner: bool = False,
        hides_unconfirmed: bool = True,
    ) -> None:
        self.hides_unconfirmed = hides_unconfirmed
        self._store = store
        self._epochs = epochs
        self._broker_id = broker_id
        self._master_epoch = master_epoch
        self._begins_at_last_file = begins_at_last_file
        self._is_learner = is_learner

    async def agree(
        self, transport: Transport, log_range: LogRange | None, *, is_of_project: bool
    ) -> Agreement:
        """Shake hands; implements `Handshake` of `follower.py`."""
        is_empty = self._store.min_physical_offset == self._store.max_physical_offset
        own_hello = SlaveHello(self._broker_id, self._begins_at_last_file and is_empty, self._is_learner)
        await transport.send_all(encode_slave_hello(own_hello))
        hello = await _receive_hello(transport)
        if is_of_project and hello.newest_epoch < self._master_epoch:
            raise OutdatedMaster(
                f"the controller named the master of epoch {self._master_epoch}, and the broker at its address has "
                f"only reached epoch {hello.newest_epoch}"
            )
        begin = 0 if log_range is None else log_range.begin
        if is_empty and begin == hello.end == self._store.max_physical_offset:
            # Nothing is copied, so this slave is in sync from its first report on, and may be the next master. If it
            # does not name this epoch then, the former master cannot know that it has to cut its log.
            self._epochs.adopt(hello.epochs, hello.end)
        return Agreement(
            LogRange(begin, hello.end),
            None if is_empty else self._find_common_end(hello),
            partial(EpochStream, self._store, self._epochs, hello.epochs),
        )

    def _find_common_end(self, hello: MasterHello) -> int | None:
        """Return the offset before which this log is the master's; None if the epochs do not say it.

        Raises Diverged if the master has nothing after it, OutdatedMaster.
        """
        begin, end = self._store.min_physical_offset, self._store.max_physical_offset
        newest = max((entry.epoch for entry in self._epochs.entries if entry.start < end), default=-1)
        if newest > hello.newest_epoch:
            raise OutdatedMaster(
                f"this log has messages of epoch {newest}, and the broker at the master's address has only reached "
                f"epoch {hello.newest_epoch}"
            )
        common_end = self._epochs.consistent_point(end, hello.epochs, hello.end)
        if common_end is None or common_end < begin:
            return None
        if common_end < end and (hello.end <= common_end or end - common_end > MAX_COMPARED_BYTES):
            if common_end > begin and not LogStarts(self._store.commit_log).begins_message(common_end):
                raise CannotFollow(f"the logs part at {common_end} by their epochs, where no message begins")
            raise Diverged(common_end)
        return common_end


async def _receive_hello(transport: Transport) -> MasterHello:
    """Receive the master's answer. Raises HaWireError, RemotingClosed, trio.TooSlowError."""
    reader = MasterHelloReader()
    with trio.fail_after(HANDSHAKE_TIMEOUT_S):
        while True:
            data = await transport.receive(READ_BYTES)
            if not data:
                raise RemotingClosed(
                    "the broker at the master's address refused the handshake: its log says why"
                )
            answer = reader.feed(data)
            if answer is None:
                continue
            hello, rest = answer
            if rest:
                raise HaWireError(f"{len(rest)} bytes after the handshake that nobody asked for")
            return hello


class EpochStream:
    """AutoSwitchHA on one connection with a master; implements `MasterStream` of `follower.py`."""

    def __init__(
        self,
        store: MessageStore,
        table: EpochTable,
        master_epochs: tuple[EpochStart, ...],
        copy: LogCopy,
        note_confirmed: Callable[[int], None],
    ) -> None:
        self._store = store
        self._table = table
        self._copy = copy
        self._note_confirmed = note_confirmed
        self._frames = TransferReader()
        self._compared_end = store.max_physical_offset
        self._newest = master_epochs[-1] if master_epochs else EpochStart(-1, 0)
        self._named = set(master_epochs)
        self._pending = deque(master_epochs)
        self._reached: list[EpochStart] = []
        self._has_adopted = False

    def encode_report(self, offset: int) -> bytes:
        """Return a report."""
        return encode_report(offset)

    def receive(self, data: bytes) -> None:
        """Take the bytes of frames over into the copy, and their epochs into the table."""
        frames = self._frames
        for offset, part in frames.feed(data):
            if offset == NO_OFFSET:
                continue
            if frames.epoch not in self._named:
                self._note_epoch(frames.epoch)
            self._receive(offset, part)
            if not self._has_adopted:
                continue  # what differs from the master's messages must not become readable
            self._note_confirmed(min(frames.confirm_offset, self._store.max_physical_offset))

    def _note_epoch(self, epoch: EpochStart) -> None:
        """Note an epoch that began after the handshake. Raises HaWireError for one that cannot have."""
        newest, next_offset = self._newest, self._copy.next_offset
        is_next = newest.epoch < epoch.epoch and max(newest.start, next_offset) <= epoch.start
        if not is_next or len(self._named) > 2 * MAX_EPOCHS:
            raise HaWireError(
                f"a frame of epoch {epoch.epoch} from {epoch.start} on, at {next_offset}, which the handshake did not "
                "name"
            )
        self._newest = epoch
        self._named.add(epoch)
        self._pending.append(epoch)

    def _receive(self, offset: int, part: memoryview) -> None:
        """Hand bytes on up to each place where epochs are to be noted first."""
        if not self._has_adopted:
            # An empty log begins here, with the epochs that begin at or before its first byte.
            self._copy.receive(offset, part[:0])
            self._adopt_reached()
        while True:
            size = min(len(part), self._next_stop(offset) - offset)
            self._copy.receive(offset, part[:size])
            self._adopt_reached()
            offset, part = offset + size, part[size:]
            if not part:
                return

    def _next_stop(self, offset: int) -> int:
        """Return the end of the bytes that are compared, and after it the start of the next epoch."""
        if offset < self._compared_end:
            return self._compared_end
        return next((epoch.start for epoch in self._pending if epoch.start > offset), NO_END)

    def _adopt_reached(self) -> None:
        """Take over the master's epochs that begin in this log, once it is known to be the master's."""
        pending, end = self._pending, self._store.max_physical_offset
        if self._copy.is_comparing or self._copy.next_offset == ANY_OFFSET:
            return
        if self._has_adopted and not (pending and pending[0].start <= end):
            return
        while pending and pending[0].start <= end:
            self._reached.append(pending.popleft())
        self._table.adopt(self._reached, end)
        if not self._has_adopted:
            self._table.drop_before(self._store.min_physical_offset)
        self._has_adopted = True
