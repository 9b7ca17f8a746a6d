"""Follows a master: copies its commit log over the HA port, acknowledges it, and builds the queues after that.

Theory of operation
-------------------
**Problem.** The HA protocol checks nothing. A master sends bytes from any offset that it is asked for, and stays silent
for ever at an offset that it does not have. An official slave therefore merges its log with one that differs, and skips
what its master has deleted, without a word. This slave appends a byte only after it knows that everything before that
byte is the same on both sides.

**Invariant.** The slave's log is a part of its master's, byte for byte and at the same physical offsets. An
acknowledgement names the end of whole messages that are in the mapped files, so they survive the end of the process.

**Steps**, for each connection (`LogCopy` decides, `Follower` waits and moves bytes):

1. Ask the port that answers requests for the ends of the master's log (code 28). If it begins after the end of the own
   log, the master has deleted what comes next, and the slave stops (`CannotFollow`).
2. Report an offset. That of an empty log is the master's beginning, so that it receives everything. That of another
   log is the start of its last messages.
3. Compare what comes with the last messages. From the first one that differs, or that the master does not have
   (`Diverged`), the log is to be cut. If even the first one differs, the next connection compares more of them
   (`NothingEqual`). A log that has nothing in common with the master's is cut only if it is short: it may be the only
   copy of what a master has lost with its disk. It is cut as a whole, also what the master has deleted: the logs may
   part there, where nobody can compare them.
4. Append what follows, and acknowledge after each read of the socket. A message whose body does not match its CRC is
   refused, and asked for again over a new connection. If it is the same `MAX_REFUSALS` times, the master's log is
   damaged there: the message is copied as it is, so that those after it get their second copy. Another task builds the
   queues, in slices of `DISPATCH_MESSAGES`, so that no acknowledgement waits for that.

A report of 0 means "from your last file" to an official master. So offset 0 is asked for as 1, and the byte before it
is supplied here: a log begins with the size of a message below 16 MiB, whose first byte is 0.

A crash at any step leaves whole messages, perhaps without queue entries, which recovery builds. The next connection
compares again.
"""

import logging
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import trio

from codec.command import Command
from codec.constants import MASTER_ID, ResponseCode
from codec.java_numbers import parse_integer_or, quoted
from gateway.broker.replication.ha_access import encode_preface
from gateway.broker.replication.ha_wire import FrameReader, HaWireError, encode_report
from gateway.broker.replication.master_lookup import Address, Master, MasterLookup, cancel_after
from gateway.config.properties_file import PropertiesError, decode_text, parse_properties
from remoting.connection import Connection
from remoting.errors import REQUEST_FAILURES, RemotingClosed, RequestError, first_leaf
from remoting.requests.admin import GetBrokerConfig, GetBrokerRuntimeInfo
from remoting.requests.ha import ExchangeBrokerHaInfo
from remoting.requests.replication import OpenReplication
from remoting.transport import Opener, Transport
from storage.commit_log import NO_LIMIT
from storage.errors import FlushFailed, StoreError, StoreFull
from storage.replica_log import (
    COMPARED_BYTES,
    BadReplicaData,
    DamagedMessage,
    Diverged,
    LogComparison,
    ReplicaGap,
    ReplicaLog,
)
from storage.store import MessageStore

log = logging.getLogger(__name__)

READ_BYTES: Final = 256 * 1024
"""Largest number of bytes taken from the socket at once; between two reads other tasks get their turn."""
DISPATCH_MESSAGES: Final = 200
"""Messages whose queue entries are built before other tasks get their turn: about a millisecond."""
CONNECT_TIMEOUT_S: Final = 5.0
MIN_PAUSE_S: Final = 1.0
MAX_PAUSE_S: Final = 5.0
"""Shortest and longest pause before the next connection. An official slave always pauses for 5 s."""
MAX_REFUSALS: Final = 3
"""Number of times that a damaged message is refused in a row."""
CATCHING_UP_BYTES: Final = 4 << 20
"""Bytes that are missing at a slave which does nothing else before they are copied and readable."""
MAX_UNDISPATCHED_BYTES: Final = 512 << 20
"""Largest part of a log that is copied before its queues are built: recovery would build them at the next start."""
COPY_FIRST_PAUSE_S: Final = 0.05
"""Time between two looks at a slave that is catching up: while its log grows, no queues are built."""
MAX_DISCARDED_BYTES: Final = COMPARED_BYTES
"""Largest log that is cut as a whole, when it has nothing in common with the master's."""
MORE_COMPARED: Final = 16
"""Factor by which the next connection compares more messages."""
MAX_COMPARED_BYTES: Final = 1 << 30
"""Largest part of a log that is compared: the places of its messages are held in memory, and found in one step."""
ANY_OFFSET: Final = -1
ADVICE: Final = (
    "If this broker is to follow that master, stop it, move its store away, but keep config/brokerRole.json at its "
    "place, and start it: it then copies the whole log"
)
LOOKING: Final = "looking for the master"
NO_CONNECTION: Final = "no connection to the master"
"""The state of a follower whose master is away: it goes on by itself when the master comes back."""
ZERO_BYTE: Final = memoryview(b"\0")
MASTER_ROLES: Final = ("ASYNC_MASTER", "SYNC_MASTER")

Dial = Callable[[str, int], AbstractAsyncContextManager[Connection]]
FAILURES: Final = (*REQUEST_FAILURES, trio.TooSlowError)


class GroupName(NamedTuple):
    """The name that a master shares with its slaves."""

    cluster: str
    broker: str


class LogRange(NamedTuple):
    """The ends of a master's log, as physical offsets: the first byte, and one past the last."""

    begin: int
    end: int


class CannotFollow(Exception):
    """The logs do not fit together, and an operator has to decide. The text says what to do."""


class NothingEqual(Exception):
    """All messages that were compared differ, and there are earlier ones."""


class SilentMaster(Exception):
    """The connection is open, but the master has sent nothing for too long."""


class OutdatedMaster(Exception):
    """The broker at the master's address is not the master yet, or not any more."""


NOT_FOLLOWED: Final = (CannotFollow, NothingEqual, SilentMaster, OutdatedMaster)


class LogCopy:
    """The copy of one connection: where it begins, what it compares, what it appends.

    ``master`` has the ends of the master's log, None if its other port is unknown. About ``compared_bytes`` of the log
    are compared, by ``prepared`` if that is given: `Follower` gives turns while it looks for the messages.
    ``common_end`` is the offset before which the logs are known to be equal, None if nothing is known. Where the master
    answers a report of 0 with its oldest bytes, wherever they begin, ``asks_with_0`` is True.
    ``next_offset`` is that of the next byte from the master, `ANY_OFFSET` until an empty log begins.
    """

    def __init__(
        self,
        store: MessageStore,
        replica_log: ReplicaLog,
        master: LogRange | None,
        compared_bytes: int = COMPARED_BYTES,
        prepared: LogComparison | None = None,
        common_end: int | None = None,
        asks_with_0: bool = False,
    ) -> None:
        self._common_end = common_end
        self._asks_with_0 = asks_with_0
        self._store = store
        self._prepared = prepared
        self._log = replica_log
        self._log.drop_tail()
        self._compared_bytes = compared_bytes
        self._master = master
        self._comparison: LogComparison | None = None
        self.next_offset = self._choose_start(compared_bytes)
        self.first_report = max(0, self.next_offset)
        self._compared_from = self.next_offset
        if self.next_offset == 0 and not asks_with_0 and (master is None or master.end > 0):
            self.first_report = 1
            self.receive(0, ZERO_BYTE)

    def _choose_start(self, compared_bytes: int) -> int:
        """Return the offset to copy from. Raises CannotFollow, and what `ReplicaLog.begin_at` does."""
        master, begin, end = self._master, self._store.min_physical_offset, self._store.max_physical_offset
        if begin == end:
            if self._asks_with_0:
                return ANY_OFFSET
            if master is None:
                raise CannotFollow(
                    "the beginning of the master's log is unknown, because the port that answers its requests is: the "
                    "port before that of haMasterAddress does not belong to it. Register the master with the namesrv "
                    "of this slave"
                )
            if begin != master.begin:
                self._log.begin_at(master.begin)
            return master.begin
        if master is None:
            self._comparison = self._prepared or self._log.comparison(compared_bytes)
            return self._comparison.start
        if end < master.begin:
            raise CannotFollow(
                f"the master's log begins at {master.begin}, and this one ends at {end}: the master has deleted the "
                f"messages between. {ADVICE}"
            )
        if end == master.begin and self._common_end != end:
            raise CannotFollow(
                f"the master's log begins at {master.begin}, where this one ends: the master has deleted the messages "
                f"by which the logs could be compared. {ADVICE}"
            )
        if master.end <= begin:
            raise CannotFollow(
                f"the master's log ends at {master.end}, and this one begins at {begin}: no message is in both. "
                f"{ADVICE}"
            )
        if end - master.end > MAX_COMPARED_BYTES:
            raise CannotFollow(
                f"the master's log ends at {master.end}, and this one at {end}: the master lacks "
                f"{end - master.end} bytes, which are too many to cut. Promote this broker if they are needed. {ADVICE}"
            )
        comparison = self._prepared or self._log.comparison(compared_bytes + max(0, end - master.end))
        comparison.position = max(comparison.start, master.begin)
        self._comparison = comparison
        return comparison.position

    @property
    def is_comparing(self) -> bool:
        """True until the last messages are known to be the master's."""
        return self._comparison is not None

    @property
    def acknowledged(self) -> int:
        """The end of the messages that are stored and known to be the master's, for the next report."""
        return self.first_report if self.is_comparing else self._store.max_physical_offset

    def receive(self, offset: int, data: memoryview) -> None:
        """Compare or append bytes of the master; no bytes are a heartbeat.

        Raises ReplicaGap, Diverged, NothingEqual, CannotFollow, BadReplicaData, StoreFull.
        """
        if self.next_offset == ANY_OFFSET:
            self._begin_at(offset)
        if offset != self.next_offset:
            raise ReplicaGap(self.next_offset, offset)
        self.next_offset += len(data)
        if self._comparison is not None:
            compared = self._compare(self._comparison, offset, data)
            if not self._comparison.done:
                return
            self._comparison = None
            offset, data = offset + compared, data[compared:]
        if data:
            self._log.receive(offset, data)

    def _begin_at(self, offset: int) -> None:
        """Let the empty log begin where the master's bytes do."""
        if self._master is not None and offset > self._master.end:
            raise ReplicaGap(self._master.end, offset)
        if offset != self._store.max_physical_offset:
            self._log.begin_at(offset)
        self.next_offset = offset

    def _compare(self, comparison: LogComparison, offset: int, data: memoryview) -> int:
        """Compare bytes; return their number. Raises Diverged only if a message before that one is equal."""
        try:
            compared = comparison.compare(offset, data)
            if self._master is not None and self.next_offset >= self._master.end:
                comparison.master_ended()
        except Diverged as error:
            begin, end = self._store.min_physical_offset, self._store.max_physical_offset
            first_common = max(begin, self._master.begin if self._master is not None else 0)
            # A common end in what the master has deleted leaves open where the logs part between it and here.
            is_after_common = (
                self._common_end is not None and first_common <= self._common_end <= error.physical_offset
            )
            if is_after_common or error.physical_offset > self._compared_from:
                raise
            if self._compared_from > first_common:
                if self._compared_bytes < MAX_COMPARED_BYTES:
                    raise NothingEqual from error
                raise CannotFollow(
                    f"the last {self._compared_bytes} bytes of this log have no message of the master's. {ADVICE}"
                ) from error
            if end - begin <= MAX_DISCARDED_BYTES:
                raise Diverged(begin) from error
            raise CannotFollow(
                f"no message of this log ({first_common} to {end}) is the master's. {ADVICE}"
            ) from error
        return compared


class MasterStream(Protocol):
    """The protocol of one connection with a master: DefaultHA or AutoSwitchHA."""

    def receive(self, data: bytes) -> None:
        """Take bytes of the master over into the copy. Raises HaWireError, and what `LogCopy.receive` does."""

    def encode_report(self, offset: int) -> bytes:
        """Return the report that the log is stored up to an offset."""


class DefaultMasterStream:
    """DefaultHA (`ha_wire.py`) on one connection."""

    def __init__(self, copy: LogCopy) -> None:
        self._copy = copy
        self._frames = FrameReader()

    def receive(self, data: bytes) -> None:
        """Take the bytes of frames over into the copy."""
        for offset, part in self._frames.feed(data):
            self._copy.receive(offset, part)

    def encode_report(self, offset: int) -> bytes:
        """Return a report."""
        return encode_report(offset)


class Agreement(NamedTuple):
    """The outcome of a handshake: the ends of the master's log, and the offset before which both logs are equal.

    ``common_end`` is None if that is not known. ``open_stream`` returns the stream of a copy, and calls its second
    argument with the master's confirm offset.
    """

    log_range: LogRange
    common_end: int | None
    open_stream: Callable[[LogCopy, Callable[[int], None]], MasterStream]


class Handshake(Protocol):
    """The exchange between master and slave before the log is copied.

    With ``hides_unconfirmed`` a message is readable only once all replicas in sync have it.
    """

    hides_unconfirmed: bool

    async def agree(
        self, transport: Transport, log_range: LogRange | None, *, is_of_project: bool
    ) -> Agreement:
        """Shake hands over a new connection. ``log_range`` has the ends of the log that the master's other port named.

        Raises Diverged, OutdatedMaster, CannotFollow, HaWireError, and what ends a connection.
        """


@dataclass(frozen=True, slots=True)
class FollowerTimes:
    """Times of the HA connection in seconds: between two reports, and of the longest silence of the master."""

    heartbeat_s: float = 5.0
    silence_s: float = 20.0


class Follower:
    """Keeps a slave's log a copy of its master's, as long as `run` runs.

    ``state`` and ``reason`` say in words how that goes. ``queues_grew`` is called with queues that got messages, and
    ``note_compared`` when a connection has shown that the log is a part of that of the master at an HA address.
    ``group`` is the name that the master must have where it cannot say which HA port is its own.
    ``diverged`` is set when the log has to be cut at the physical offset ``cut_at``: nothing is copied until the
    service has closed the store, cut it, and built the broker again. With a ``handshake`` the master speaks
    AutoSwitchHA, and ``confirm_offset`` is the newest that it named.
    """

    def __init__(
        self,
        store: MessageStore,
        lookup: MasterLookup,
        open_transport: Opener,
        dial: Dial,
        queues_grew: Callable[[Iterable[tuple[str, int]]], None],
        sign: Callable[[Command], None] | None = None,
        times: FollowerTimes = FollowerTimes(),
        open_secure: Opener | None = None,
        note_compared: Callable[[Address], None] = lambda ha_address: None,
        check_crc: bool = True,
        broker_id: int | None = None,
        handshake: Handshake | None = None,
        group: GroupName | None = None,
    ) -> None:
        self._handshake = handshake
        self.confirm_offset: int | None = None
        self._group = group
        self._is_stranger_logged = False
        self._store = store
        self._log = ReplicaLog(store, check_crc=check_crc)
        self._damaged_at = -1
        self._refusals = 0
        self.damaged_messages = 0
        """Number of messages that were refused because their body did not match its CRC."""
        self._note_compared = note_compared
        self._broker_id = broker_id
        self.lookup = lookup
        self._open_transport = open_transport
        self._open_secure = open_secure or open_transport
        self._dial = dial
        self._queues_grew = queues_grew
        self._sign = sign
        self._times = times
        self._arrived = trio.Event()
        self._logged = ""
        self._compared_bytes = COMPARED_BYTES
        self._master_end = -1
        self.state = LOOKING
        self.reason = ""
        self.connected_since: float | None = None
        self.diverged = trio.Event()
        self.cut_at: int | None = None

    @property
    def master_address(self) -> str:
        """The HA address of the master, "" while it is unknown."""
        master = self.lookup.master
        return "" if master is None else "{}:{}".format(*master.ha_address)

    @property
    def is_copying(self) -> bool:
        """True while the connection stands, and everything so far is known to be the master's."""
        return self.state == "copying"

    @property
    def is_catching_up(self) -> bool:
        """True while much of the master's log is not copied yet, or has no queue entries."""
        missing_bytes = max(0, self.lag_bytes) if self.is_copying else 0
        return self._log.undispatched_bytes + missing_bytes > CATCHING_UP_BYTES

    @property
    def _copies_first(self) -> bool:
        """True while so much of the master's log is missing that no queues are built beside the copy."""
        is_far_behind = self.is_copying and self.lag_bytes > CATCHING_UP_BYTES
        return is_far_behind and self._log.undispatched_bytes < MAX_UNDISPATCHED_BYTES

    @property
    def lag_bytes(self) -> int:
        """Bytes of the master's log that are known to be missing here; -1 while its end is unknown."""
        return -1 if self._master_end < 0 else max(0, self._master_end - self._store.max_physical_offset)

    @property
    def _confirmed_end(self) -> int:
        """The end of the messages that may be read. Under a controller nobody reads what a new master may not have."""
        if self._handshake is None:
            return NO_LIMIT
        return self.confirm_offset or 0

    def note_master_end(self, end: int) -> None:
        """Take over a newer end of the master's log, for ``lag_bytes``."""
        self._master_end = max(self._master_end, end)

    async def run(self) -> None:
        """Follow the master of the moment until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._build_queues)
            await self._keep_following()

    async def _keep_following(self) -> None:
        pause_s = MIN_PAUSE_S
        while True:
            if self.lookup.master is None:
                self.state, self.reason = LOOKING, ""
            master = await self.lookup.wait_for_master()
            changed = self.lookup.changed
            before = self._store.max_physical_offset
            await self._follow_until_trouble(master, changed)
            self.connected_since = None
            progressed = self._store.max_physical_offset > before
            pause_s = MIN_PAUSE_S if progressed else min(2 * pause_s, MAX_PAUSE_S)
            with trio.move_on_after(pause_s):
                await changed.wait()

    async def _follow_until_trouble(self, master: Master, changed: trio.Event) -> None:
        """Follow one master over one connection; return when it ends, for whatever reason, or the master changes."""
        trouble: Exception | None = None
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(cancel_after, changed, nursery.cancel_scope)
                await self._follow(master)
        except* (StoreError, HaWireError, *NOT_FOLLOWED, *FAILURES) as group:
            leaf = first_leaf(group)
            assert isinstance(leaf, Exception)
            trouble = leaf
        match trouble:
            case None:  # another master
                self.state, self.reason = LOOKING, ""
            case Diverged():
                await self._stop_copying(trouble.physical_offset, changed)
            case NothingEqual():
                self._compared_bytes = min(self._compared_bytes * MORE_COMPARED, MAX_COMPARED_BYTES)
            case CannotFollow():
                self._note_trouble("cannot follow the master", trouble)
            case DamagedMessage():
                self._note_damaged(trouble)
            case BadReplicaData():
                hint = "mappedFileSizeCommitLog must be the same at both brokers"
                self._note_trouble("the master sent what cannot be appended", f"{trouble} ({hint})")
            case HaWireError() | ReplicaGap():
                self._note_trouble("the master sent what cannot be appended", trouble)
            case StoreFull():
                self._note_trouble("no room for the master's messages", trouble)
            case StoreError():
                self._note_trouble("the store cannot follow the master", trouble)
            case _:
                self._note_trouble(NO_CONNECTION, trouble)

    def _note_trouble(self, state: str, error: object) -> None:
        """Show why nothing is copied, and log it once until something else happens."""
        self.state, self.reason = state, str(error) or type(error).__name__
        if state != self._logged:
            extra = {"state": state, "master": self.master_address, "reason": self.reason}
            log.warning("a slave does not copy its master", extra=extra)
            self._logged = state

    def _note_damaged(self, error: DamagedMessage) -> None:
        """Count a message that was refused; accept it from now on if that did not help."""
        self.damaged_messages += 1
        self._refusals = self._refusals + 1 if error.physical_offset == self._damaged_at else 1
        self._damaged_at = error.physical_offset
        self.state, self.reason = "the master sent a damaged message", str(error)
        extra = {"master": self.master_address, "physical_offset": error.physical_offset}
        if self._refusals < MAX_REFUSALS:
            log.error("damaged message of the master refused, it is fetched again", extra=extra)
        else:
            self._log.accepted_damage = error.physical_offset
            log.error("log of the master is damaged, the message is copied as it is", extra=extra)

    async def _stop_copying(self, end: int, changed: trio.Event) -> None:
        """Have the service cut the log at an offset, and wait until it does, or another master is to be followed."""
        self.state = "this log differs from the master's"
        self.reason = f"from physical offset {end} on"
        lost = self._store.max_physical_offset - end
        extra = {"master": self.master_address, "physical_offset": end, "bytes": lost}
        log.error("this log differs from the master's", extra=extra)
        confirmed_bytes = self._store.readable_until - end
        if self._handshake is not None and self._handshake.hides_unconfirmed and confirmed_bytes > 0:
            # Only the election of a replica that was not in sync does this (enableElectUncleanMaster).
            log.error(
                "confirmed messages are cut off: a replica without them became master",
                extra=extra | {"bytes": confirmed_bytes},
            )
        self.cut_at = end
        self.diverged.set()
        await changed.wait()
        self.cut_at, self.diverged = None, trio.Event()

    # -- one connection ------------------------------------------------------------------------------------

    async def _follow(self, master: Master) -> None:
        log_range, ticket = await self._ask_master(master)
        if self._handshake is not None:
            async with self._connect(master, ticket) as transport:
                agreement = await self._handshake.agree(
                    transport, log_range, is_of_project=ticket is not None
                )
                await self._copy_agreed(transport, agreement, master.ha_address)
            return
        prepared = await self._prepare_comparison(log_range, self._compared_bytes)
        copy = LogCopy(self._store, self._log, log_range, self._compared_bytes, prepared)
        async with self._connect(master, ticket) as transport:
            await self._copy(transport, copy, DefaultMasterStream(copy), master.ha_address)

    async def _copy_agreed(self, transport: Transport, agreement: Agreement, ha_address: Address) -> None:
        """Copy after a handshake. What is after the common end is compared, and kept as far as it is the master's."""
        log_range, common_end, open_stream = agreement
        uncommon_bytes = 0 if common_end is None else self._store.max_physical_offset - common_end
        compared_bytes = max(self._compared_bytes, uncommon_bytes)
        prepared = await self._prepare_comparison(log_range, compared_bytes)
        copy = LogCopy(
            self._store, self._log, log_range, compared_bytes, prepared, common_end, asks_with_0=True
        )
        if self.confirm_offset is not None:
            # It was another master's, and the rest of this log is yet to be compared.
            self.confirm_offset = min(self.confirm_offset, self._store.readable_until)
        await self._copy(transport, copy, open_stream(copy, self._note_confirmed), ha_address)

    def _note_confirmed(self, offset: int) -> None:
        self.confirm_offset = offset

    def confirm_everything(self) -> None:
        """Take the whole log for confirmed, because this broker is elected. There must be no master to copy from."""
        self.confirm_offset = self._store.max_physical_offset
        self._arrived.set()

    @asynccontextmanager
    async def _connect(self, master: Master, ticket: str | None) -> AsyncIterator[Transport]:
        """Connect to the master's HA port, and show the ticket if there is one."""
        preface = None if ticket is None else _encode_preface(ticket)
        open_transport = self._open_transport if preface is None else self._open_secure
        with trio.fail_after(CONNECT_TIMEOUT_S):
            transport = await open_transport(*master.ha_address)
        try:
            if preface is not None:
                await transport.send_all(preface)
            yield transport
        finally:
            transport.close()

    async def _prepare_comparison(
        self, log_range: LogRange | None, compared_bytes: int
    ) -> LogComparison | None:
        """Return the comparison of the last messages, None where there is none to make, or it is refused."""
        begin, end = self._store.min_physical_offset, self._store.max_physical_offset
        ahead = 0 if log_range is None else max(0, end - log_range.end)
        is_refused = log_range is not None and (end < log_range.begin or log_range.end <= begin)
        if begin == end or is_refused or ahead > MAX_COMPARED_BYTES:
            return None
        for comparison in self._log.comparison_slices(compared_bytes + ahead):
            if comparison is not None:
                return comparison
            await trio.lowlevel.checkpoint()
        return None

    async def _ask_master(self, master: Master) -> tuple[LogRange | None, str | None]:
        """Return the ends of the master's log, and a ticket for its HA port; None for what is not known.

        An official master has no tickets, and a master whose other port is unknown cannot be asked.
        """
        if master.address is None:
            if self.lookup.is_fixed:
                await self._presume_address(master)
            return None, None
        with trio.fail_after(CONNECT_TIMEOUT_S):
            async with self._dial(*master.address) as connection:
                table = (await connection.ask(GetBrokerRuntimeInfo(), sign=self._sign)).data.table
                ticket = await self._ask_ticket(connection)
        # An empty 4.9 broker answers that its log begins at -1.
        begin = max(0, parse_integer_or(table.get("commitLogMinOffset", ""), 0))
        end = parse_integer_or(table.get("commitLogMaxOffset", ""), -1)
        if not 0 <= begin <= end:
            raise CannotFollow(f"the master's log begins at {begin} and ends at {end}, which cannot be")
        self._master_end = end
        return LogRange(begin, end), ticket

    async def _presume_address(self, master: Master) -> None:
        """Take the port before the HA port for the master's port for requests, if the broker there says so.

        It is that one unless haListenPort was set. The lookup then has another master, which ends this attempt.
        Without an answer the namesrv may name the address later. A 4.9 broker does not know the question for its HA
        address, so its settings tell: the tables of another broker must not be taken for the master's.
        """
        host, ha_port = master.ha_address
        try:
            with trio.fail_after(CONNECT_TIMEOUT_S):
                async with self._dial(host, ha_port - 1) as connection:
                    try:
                        reply = await connection.ask(ExchangeBrokerHaInfo(), sign=self._sign)
                    except RequestError as error:
                        if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                            raise
                        if not await self._is_master_by_settings(connection, ha_port):
                            return
                    else:
                        if not (reply.master_ha_address or "").endswith(f":{ha_port}"):
                            return
        except FAILURES as error:
            log.debug("no broker at the port before haMasterAddress", extra={"reason": str(error)})
            return
        if self.lookup.master == master:
            self.lookup.set_master(Master(master.ha_address, (host, ha_port - 1)))
            await trio.sleep_forever()  # until the change of the lookup cancels this

    async def _is_master_by_settings(self, connection: Connection, ha_port: int) -> bool:
        """Return True if a broker's settings are those of the master of this name, with this HA port.

        Source: AdminBrokerProcessor.getBrokerConfig, 4.9.8, which returns all settings as they are in effect.
        """
        settings = (await connection.ask(GetBrokerConfig(), sign=self._sign)).body
        try:
            values = {line.key: line.value for line in parse_properties(decode_text(settings))}
        except PropertiesError as error:
            raise RemotingClosed(
                f"settings of the broker before haMasterAddress cannot be read: {error}"
            ) from error
        if self._group is not None and all(
            (
                values.get("brokerClusterName") == self._group.cluster,
                values.get("brokerName") == self._group.broker,
                values.get("brokerId") == str(MASTER_ID),
                values.get("brokerRole") in MASTER_ROLES,
                values.get("haListenPort") == str(ha_port),
            )
        ):
            return True
        if not self._is_stranger_logged:
            self._is_stranger_logged = True
            names = ("brokerClusterName", "brokerName", "brokerId", "brokerRole", "haListenPort")
            extra = {"found": " ".join(f"{name}={quoted(values.get(name, ''))}" for name in names)}
            log.warning("broker at the port before haMasterAddress is not this slave's master", extra=extra)
        return False

    async def _ask_ticket(self, connection: Connection) -> str | None:
        try:
            request = OpenReplication(broker_id=self._broker_id)
            return (await connection.ask(request, sign=self._sign)).ticket
        except RequestError as error:
            if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
            return None

    async def _copy(
        self, transport: Transport, copy: LogCopy, stream: MasterStream, ha_address: Address
    ) -> None:
        """Receive, compare, append and acknowledge until the connection ends; raises the reason."""
        times, reported = self._times, copy.first_report
        # Also after an earlier connection that copied: it may have been to another master.
        self.state, self.reason = "comparing", ""
        await transport.send_all(stream.encode_report(reported))
        heard_at = reported_at = self.connected_since = trio.current_time()
        if not copy.is_comparing:  # an empty log: a master without traffic sends nothing for 5 s
            self._note_received(copy, ha_address)
        while True:
            data = None
            with trio.move_on_at(min(heard_at + times.silence_s, reported_at + times.heartbeat_s)):
                data = await transport.receive(READ_BYTES)
            now = trio.current_time()
            if data:
                heard_at = now
                stream.receive(data)
                self._note_received(copy, ha_address)
            elif data is not None:
                raise RemotingClosed("the master closed the connection")
            elif now >= heard_at + times.silence_s:
                raise SilentMaster(f"the master sent nothing for {times.silence_s:g} s")
            acknowledged = copy.acknowledged
            if acknowledged != reported or now >= reported_at + times.heartbeat_s:
                await transport.send_all(stream.encode_report(acknowledged))
                reported, reported_at = acknowledged, now

    def _note_received(self, copy: LogCopy, ha_address: Address) -> None:
        if copy.is_comparing:
            return
        if self.state != "copying":
            self.state, self.reason, self._logged = "copying", "", ""
            self._note_compared(ha_address)
            self._compared_bytes = COMPARED_BYTES
            log.info("follows its master", extra={"master": self.master_address, "offset": copy.next_offset})
        self.note_master_end(copy.next_offset)
        self._arrived.set()

    # -- queues --------------------------------------------------------------------------------------------

    async def _build_queues(self) -> None:
        """Build the queue entries of copied messages, in slices between which other tasks run."""
        copied_end = 0
        while True:
            self._arrived = trio.Event()
            try:
                while undispatched_bytes := self._log.undispatched_bytes:
                    # A second copy of the messages is worth more than queues that nobody reads from yet.
                    if self._copies_first and self._store.max_physical_offset > copied_end:
                        copied_end = self._store.max_physical_offset
                        await trio.sleep(COPY_FIRST_PAUSE_S)
                        continue
                    grown = self._log.dispatch(DISPATCH_MESSAGES, self._confirmed_end)
                    if grown:
                        self._queues_grew(grown)
                    await trio.lowlevel.checkpoint()
                    if self._log.undispatched_bytes == undispatched_bytes:
                        break  # what follows is not confirmed yet
            except FlushFailed:
                raise
            except StoreFull as error:
                self._note_trouble("no room for the queues of copied messages", error)
                await trio.sleep(MIN_PAUSE_S)
            else:
                await self._arrived.wait()


def _encode_preface(ticket: str) -> bytes:
    """Return the bytes that show a ticket. Raises HaWireError for what is not one."""
    try:
        return encode_preface(ticket)
    except ValueError as error:
        raise HaWireError(f"its ticket for the HA port cannot be used: {error}") from error
