"""Copies the tables of a master to its slave: topics, groups, progress, and what else is not in the commit log.

Any master answers the official requests; a master of this project has more tables, in the answer to a private request.
Source: SlaveSynchronize, 5.4.0. Deviations:

- A topic or group never vanishes while a table is taken over. The official slave deletes all of them at every
  synchronisation and puts them back. Here the difference is applied in one step, and nothing is deleted unless the
  master listed its whole table.
- Consumer offsets and delay offsets only move forward: a slave that consumers have reached has newer ones. The master
  gets those that were committed here while it was away (`progress_return.py`).
- A topic that the master deleted is deleted here with its queues, so that a later topic of its name starts anew.

- Progress of the master's own work (delays, timers, transaction checks, pop) waits until the log is copied that it
  refers to (`WaitingProgress`). Otherwise a slave that is promoted while it catches up would take messages for done
  whose outcome it lacks. The end of the master's log is asked for after the progress, so it is not before that outcome.
  It replaces the slave's progress also where it is lower: that of a former master counts work whose outcome was cut.
  A log that is not known to be a part of this master's may be as long and have other messages. So progress is taken
  only while the log is copied, which is after it was compared. A master may come back with another log.
- The offset of a group that pops waits as well: the record of the pop is in the log, and without it nobody would revive
  the message.

The order of the requests matters. A deletion is taken over before the offsets are, because the offsets of the new topic
may be lower than those of the old one. After the offsets this slave asks which groups pop, because one may have begun
to meanwhile. The end of the own log is read before the topics are asked for, because a topic that is missing in the
answer may have been created again since.
"""

import logging
import math
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Final, Generic, TypeVar

import trio

from codec.command import Command
from codec.constants import ResponseCode
from codec.java_numbers import parse_integer_or
from codec.topics import is_system_group
from gateway.auth.access_control import Accounts
from gateway.broker.consumers.consumer_offsets import ConsumerOffsets, QueueOffsets, parse_offsets
from gateway.broker.consumers.group_table import GroupTable
from gateway.broker.delayed.delay_service import DelayService
from gateway.broker.delayed.timer_takeover import TakeoverState
from gateway.broker.filters.consumer_filters import ConsumerFilterTable
from gateway.broker.pop.ordered_pops import OrderedPopTable
from gateway.broker.pop.queue_assignment import RequestModes, parse_modes
from gateway.broker.pop.reviver import Reviver
from gateway.broker.replication.follower import FAILURES, Dial
from gateway.broker.replication.master_lookup import Address, Master, MasterLookup, cancel_after
from gateway.broker.replication.progress_return import OffsetTable, ProgressReturn, commit_offsets
from gateway.broker.topics.topic_table import TopicTable
from gateway.broker.waiting.long_poll import LongPolls
from gateway.runtime.run_blocking import RunBlocking
from remoting.bodies.groups import SubscriptionGroupConfig, SubscriptionGroupWrapper
from remoting.bodies.progress import ConsumerOffsetSerializeWrapper
from remoting.bodies.queues import DataVersion
from remoting.bodies.topics import TopicConfig
from remoting.connection import Connection
from remoting.declare import Request
from remoting.errors import RemotingClosed, RequestError
from remoting.requests.admin import GetBrokerRuntimeInfo
from remoting.requests.groups import GetAllSubscriptionGroupConfig
from remoting.requests.offsets import GetAllConsumerOffset, GetAllDelayOffset
from remoting.requests.pop import GetAllMessageRequestMode
from remoting.requests.replication import GetReplicatedAccounts, GetReplicatedTables, RaiseConsumerOffsets
from remoting.requests.timers import GetTimerCheckPoint, GetTimerMetrics
from remoting.requests.topics import GetAllTopicConfig, GetTopicStatsInfo
from storage.errors import StoreError, StoreFull
from storage.store import MessageStore

log = logging.getLogger(__name__)

TIMER_INTERVAL_S: Final = 3.0
"""Time between two requests for the timer checkpoint, and the unit of all other times here."""
TABLES_INTERVAL_S: Final = 9.0
"""Shortest time between two copies of all tables. An official slave copies them every 60 s."""
MAX_SHARE: Final = 0.05
"""Largest share of the time in which tables are copied: those of millions of offsets are copied less often."""
MAX_INTERVAL_S: Final = 60.0
"""Longest pause between two copies, also after one that took long because a disk or the network was slow."""
MAX_ASKED_TOPICS: Final = 10_000
MISSING_TOPIC_PAUSE_S: Final = 0.5
"""Time between the first message of a new topic, or the comparison of the log, and the copy of the tables."""
RETRY_S: Final = 3.0
TIMEOUT_S: Final = 10.0
PAGE_ENTRIES: Final = 2000
KEYS_PER_SLICE: Final = 500
"""Keys of consumer offsets that are merged before other tasks get their turn: at most about five milliseconds."""
TOPICS_PER_COPY: Final = 20
TOPICS_LOOKED_AT: Final = 500
MAX_QUEUES_LOOKED_AT: Final = 64
"""Topics whose queue ends an official master is asked for at each copy, those that are looked at to find them, and the
queues of each that are looked at."""
QUEUES_PER_SLICE: Final = 20
"""Queues that begin in one turn: each may create a file."""
COPIED_POLL_S: Final = 0.5
"""Time between two looks at whether the log is copied that progress waits for."""
QUEUES_TIMEOUT_S: Final = 10.0
"""Longest time for which a slave that takes over waits for its queues."""
QUEUES_POLL_S: Final = 0.02
MAX_RESTARTS: Final = 5
"""Number of times that a paged listing begins anew because the table changed meanwhile."""

QueueEnds = Mapping[tuple[str, int], int]
Entry = TypeVar("Entry", TopicConfig, SubscriptionGroupConfig)


@dataclass(frozen=True, slots=True)
class ReplicatedParts:
    """The parts of a slave that follow those of its master."""

    store: MessageStore
    topics: TopicTable
    groups: GroupTable
    offsets: ConsumerOffsets
    delay_service: DelayService
    request_modes: RequestModes
    reviver: Reviver
    ordered_pops: OrderedPopTable
    filters: ConsumerFilterTable
    takeover: TakeoverState
    long_polls: LongPolls
    accounts: Accounts | None


class WaitingProgress:
    """Progress of the master that is applied once the slave's log is copied up to the end that the master's had.

    Only the first and the last are held: the first will be reached, even by a slave that is always a little late.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[int, Callable[[], object]]] = []

    def add(self, log_end: int, apply: Callable[[], object]) -> None:
        """Have ``apply`` called when the slave's log reaches an end."""
        self._waiting = [*self._waiting[:1], (log_end, apply)]

    def apply_until(self, log_end: int) -> None:
        """Apply what waits for an end up to this one. Raises ValueError for what cannot be read."""
        while self._waiting and self._waiting[0][0] <= log_end:
            self._waiting.pop(0)[1]()

    def forget_after(self, log_end: int) -> None:
        """Forget what waits for a later end: other messages may come to lie before that, with another master."""
        self._waiting = [waiting for waiting in self._waiting if waiting[0] <= log_end]

    def clear(self) -> None:
        """Forget what waits, because it is another master's."""
        self._waiting.clear()


class TableSync:
    """Copies the tables of a slave's master, as long as `run` runs. ``synced_at`` is the time of the last full copy.

    ``is_copying`` says whether the log of the master of the moment is copied, so that this one is a part of it.
    """

    def __init__(
        self,
        parts: ReplicatedParts,
        lookup: MasterLookup,
        dial: Dial,
        run_blocking: RunBlocking,
        sign: Callable[[Command], None] | None = None,
        is_copying: Callable[[], bool] = lambda: True,
    ) -> None:
        self._parts = parts
        self._is_copying = is_copying
        self._run_blocking = run_blocking
        self._lookup = lookup
        self._dial = dial
        self._sign = sign
        self._is_failing = False
        # True while the master refuses the progress that consumers made here.
        self._is_refused = False
        # False once the master has refused the private request: it is an official broker.
        self._is_ours = True
        self._has_accounts = True
        # The last one whose queue ends an official master was asked for.
        self._last_topic = ""
        # Those whose beginning is not taken over yet.
        self._empty_queues: dict[tuple[str, int], int] = {}
        # Keys of offsets, as topic@group, of groups that have popped at a master of this project.
        self._popped: frozenset[str] = frozenset()
        self._progress = ProgressReturn(parts.offsets, self._is_moved_by_broker)
        self._waiting_tables = WaitingProgress()
        self._waiting_timers = WaitingProgress()
        self._waiting_for: Master | None = None
        self._compared_ha_address: Address | None = None
        # True once progress was left out because the log was not compared.
        self._lacks_progress = False
        self._is_copy_due = trio.Event()
        # One copy at a time: of two, an older answer could be applied after a newer one.
        self._copying = trio.Lock()
        self._periodic_copy = trio.CancelScope()
        # Asked for once each: the master may have deleted a topic whose messages are still copied.
        self._asked_topics: set[str] = set()
        self.synced_at: float | None = None

    async def run(self) -> None:
        """Copy the tables of the master of the moment until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._apply_when_copied)
            await self._follow_masters()

    async def _apply_when_copied(self) -> None:
        while True:
            await trio.sleep(COPIED_POLL_S)
            try:
                self._apply_copied()
                await self._begin_empty_queues()
            except ValueError as error:
                log.warning("progress of the master cannot be read", extra={"reason": str(error)})

    def note_compared(self, ha_address: Address) -> None:
        """Note that this log is a part of that of the master with an HA address.

        Progress that was left out before is copied soon: without it a slave that takes over repeats work.
        """
        self._compared_ha_address = ha_address
        if self._lacks_progress:
            self._lacks_progress = False
            self._is_copy_due.set()

    @property
    def _is_compared(self) -> bool:
        return self._waiting_for is not None and self._waiting_for.ha_address == self._compared_ha_address

    async def _take_progress(
        self, connection: Connection, waiting: WaitingProgress, apply: Callable[[], object]
    ) -> bool:
        """Have progress applied once the log is copied. Return False if this log may be no part of the master's.

        Raises one of FAILURES, ValueError.
        """
        log_end = await self._ask_log_end(connection)
        # Progress of before the master died is kept: a take-over needs it.
        if not self._is_compared or not self._is_copying():
            self._lacks_progress = True
            return False
        waiting.add(log_end, apply)
        self._apply_copied()
        return True

    def _apply_copied(self) -> None:
        if not self._is_compared:
            return
        # Ends of queues need more than the log: a queue must not be taken for empty that has messages in it.
        end = self._parts.store.readable_until
        self._waiting_timers.apply_until(end)
        self._waiting_tables.apply_until(end)

    async def _follow_masters(self) -> None:
        while True:
            changed, master = self._lookup.changed, self._lookup.master
            if master is not None and master.address is not None:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(cancel_after, changed, nursery.cancel_scope)
                    await self._sync_until_trouble(master.address)
                    nursery.cancel_scope.cancel()
            with trio.move_on_after(RETRY_S if master is not None else math.inf):
                await changed.wait()

    async def _sync_until_trouble(self, address: Address) -> None:
        self._is_ours = True
        self._popped = frozenset()
        try:
            async with self._dial(*address) as connection:
                await self._keep_synced(connection)
        except* (*FAILURES, ValueError) as problems:
            if not self._is_failing:
                extra = {"master": f"{address[0]}:{address[1]}", "reason": str(problems.exceptions[0])}
                log.warning("tables of the master not copied", extra=extra)
            self._is_failing = True
            # The master may come back without its last messages, and store others.
            end = self._parts.store.max_physical_offset
            self._waiting_tables.forget_after(end)
            self._waiting_timers.forget_after(end)

    def note_topic(self, topic: str) -> None:
        """Copy the tables soon if a message of a topic has come that this slave does not know.

        Without its topic nobody could read the message, if the master were lost before the next copy.
        """
        is_known = topic in self._parts.topics or topic in self._asked_topics
        if not is_known and len(self._asked_topics) < MAX_ASKED_TOPICS:
            self._asked_topics.add(topic)
            self._is_copy_due.set()

    async def _keep_synced(self, connection: Connection) -> None:
        while True:
            started_s = trio.current_time()
            self._is_copy_due = trio.Event()
            await self._copy_alone(self.sync_all, connection)
            if self._is_failing:
                log.info("tables of the master are copied again")
            self._is_failing = False
            pause_s = max(TABLES_INTERVAL_S, (trio.current_time() - started_s) / MAX_SHARE)
            pause_s = min(pause_s, MAX_INTERVAL_S)
            next_s = trio.current_time() + pause_s
            while trio.current_time() < next_s and not self._is_copy_due.is_set():
                with trio.move_on_after(TIMER_INTERVAL_S):
                    await self._is_copy_due.wait()
                    # Many topics may be created together, and each copy costs the master something.
                    await trio.sleep(MISSING_TOPIC_PAUSE_S)
                await self._copy_alone(self._sync_timers, connection)

    async def _copy_alone(
        self, copy: Callable[[Connection], Awaitable[object]], connection: Connection
    ) -> None:
        """Run a part of the repeated copy while no other copy runs, or until `copy_once` ends it."""
        with trio.CancelScope() as self._periodic_copy:
            async with self._copying:
                await copy(connection)

    async def copy_once(self) -> bool:
        """Copy everything once, as `sync_all` does. Raises one of FAILURES, ValueError."""
        # The periodic one may hang, and whoever hands over waits for this one.
        self._periodic_copy.cancel()
        async with self._copying:
            master = self._lookup.master
            if master is None or master.address is None:
                raise RemotingClosed("the address of the master is unknown")
            async with self._dial(*master.address) as connection:
                return await self.sync_all(connection)

    async def sync_once(self) -> None:
        """Copy and apply everything once, before this broker takes over. Raises one of FAILURES, ValueError."""
        if not await self.copy_once():
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, "the slave's log is not compared with the master's yet"
            )
        if not await self.apply_all_copied():
            raise RequestError(ResponseCode.SYSTEM_ERROR, "the slave's queues are not complete yet")

    async def apply_all_copied(self) -> bool:
        """Apply all progress that the log is copied for, once the queues are complete, for which it waits a while.

        Return False if they are not complete even then. Raises ValueError.
        """
        store = self._parts.store
        with trio.move_on_after(QUEUES_TIMEOUT_S):
            while store.readable_until < store.max_physical_offset:  # noqa: ASYNC110 - nothing else waits for it
                await trio.sleep(QUEUES_POLL_S)
        self._apply_copied()
        await self._begin_empty_queues()
        return store.readable_until >= store.max_physical_offset

    async def sync_all(self, connection: Connection) -> bool:
        """Copy all tables over a connection to the master; no other copy may run. Raises one of FAILURES, ValueError.

        Return False if progress was left out, because this log may be no part of the master's.
        """
        self._note_address()
        has_timers = await self._sync_timers(connection)
        # Deletions before offsets, see above.
        empty_queues = await self._sync_private_tables(connection)
        deleted_topics = await self._sync_topics(connection)
        deleted_groups = await self._sync_groups(connection)
        if not self._is_ours:
            empty_queues = await self._ask_queue_ends(connection)
        saved_offsets = await self._ask(connection, GetAllConsumerOffset())
        # In a thread, because those of 100,000 groups take seconds.
        offsets = (await self._run_blocking(partial(parse_offsets, saved_offsets))).offset_table
        await self._ask_popped_keys(connection)
        for topic in deleted_topics:
            self._forget_topic(topic)
        own_progress, popped_progress = await self._merge_offsets(offsets)
        # Before the groups go: one that began to consume here while the master was away is new to the master.
        await self._return_progress(connection, offsets)
        groups_with_offsets = {key.partition("@")[2] for key in offsets} if deleted_groups else set()
        for group in deleted_groups:
            if group not in groups_with_offsets:
                self._parts.offsets.remove_group(group)
        delays = await self._ask(connection, GetAllDelayOffset())
        takeover = self._parts.takeover
        # As of these offsets: a group that is found to pop only later has been merged with the others.
        unknown_keys = takeover.popped_keys - offsets.keys()

        def apply() -> None:
            self._parts.offsets.adopt_progress(own_progress)
            if takeover.has_own_pops:
                # Also where they are lower, or the master has none: the pops of a former master may have been cut.
                self._parts.offsets.remove_keys(unknown_keys)
                self._parts.offsets.adopt_progress(popped_progress)
                takeover.note_pops()
            else:
                self._parts.offsets.merge(popped_progress)
            # Those of deleted groups and topics would stay for ever.
            present_keys = self._parts.offsets.table.keys()
            takeover.replace_popped_keys(takeover.popped_keys & (present_keys | self._popped))
            self._parts.delay_service.adopt(delays)
            self._empty_queues |= empty_queues

        has_progress = await self._take_progress(connection, self._waiting_tables, apply)
        await self._begin_empty_queues()
        await self._sync_request_modes(connection)
        self.synced_at = trio.current_time()
        return has_timers and has_progress

    def _note_address(self) -> None:
        """Forget the progress of another master than the present one."""
        master = self._lookup.master
        if master != self._waiting_for:
            self._waiting_for = master
            self._waiting_tables.clear()
            self._waiting_timers.clear()

    async def _merge_offsets(self, offsets: OffsetTable) -> tuple[OffsetTable, OffsetTable]:
        """Raise the offsets of consumers to those of the master.

        Return those of the master's own groups, and of groups that pop, which both wait for the log.
        """
        own_progress: dict[str, QueueOffsets] = {}
        popped_progress: dict[str, QueueOffsets] = {}
        popped_keys = self._popped
        if self._parts.takeover.has_own_pops:
            popped_keys |= self._parts.takeover.popped_keys
        entries = iter(offsets.items())
        while part := dict(islice(entries, KEYS_PER_SLICE)):
            own_part = {key: queues for key, queues in part.items() if _is_own_progress(key)}
            popped_part = {key: queues for key, queues in part.items() if key in popped_keys}
            waiting = own_part.keys() | popped_part.keys()
            self._parts.offsets.merge({key: part[key] for key in part.keys() - waiting})
            own_progress |= own_part
            popped_progress |= popped_part
            await trio.lowlevel.checkpoint()
        return own_progress, popped_progress

    async def _ask_log_end(self, connection: Connection) -> int:
        """Return the end of the master's log. Raises FAILURES, and ValueError for an answer without it."""
        table = (await connection.ask(GetBrokerRuntimeInfo(), TIMEOUT_S, self._sign)).data.table
        end = parse_integer_or(table.get("commitLogMaxOffset", ""), -1)
        if end < 0:
            raise ValueError("the master does not say where its log ends")
        return end

    async def _ask(self, connection: Connection, request: Request[Any]) -> bytes:
        """Return the body of an answer, which may be a large table. Raises RequestError and others of FAILURES."""
        command = request.to_command()
        if self._sign is not None:
            self._sign(command)
        answer = await connection.ask_command(command, TIMEOUT_S)
        if answer.code != ResponseCode.SUCCESS:
            raise RequestError(answer.code, answer.remark)
        return bytes(answer.body)

    def _is_moved_by_broker(self, key: str) -> bool:
        return (
            _is_own_progress(key)
            or key in self._parts.takeover.popped_keys  # those of the present master are among them
            or key in self._parts.reviver.popped_keys
        )

    async def _return_progress(self, connection: Connection, offsets: OffsetTable) -> None:
        """Send the master what consumers committed here; what it refuses is sent again next time."""
        try:
            await self._progress.return_progress(offsets, partial(self._send_progress, connection))
        except RequestError as error:
            if not self._is_refused:
                log.warning("the master refuses progress of consumers", extra={"reason": error.remark})
            self._is_refused = True
        else:
            self._is_refused = False

    async def _send_progress(self, connection: Connection, offsets: OffsetTable) -> None:
        """Send the master offsets that consumers committed here while it was away."""
        if self._is_ours:
            table = ConsumerOffsetSerializeWrapper(
                offset_table={key: dict(queues) for key, queues in offsets.items()}
            )
            await self._ask(connection, RaiseConsumerOffsets(data=table))
        else:
            await commit_offsets(offsets, partial(self._ask, connection))

    async def _sync_timers(self, connection: Connection) -> bool:
        """Remember how far the master has delivered timer messages; nothing from a master without timers.

        Return False if that was left out, because this log may be no part of the master's.
        """
        try:
            checkpoint = await self._ask(connection, GetTimerCheckPoint())
            self._parts.takeover.note_metrics(await self._ask(connection, GetTimerMetrics()))
        except RequestError as error:
            log.debug("timers of the master not copied", extra={"reason": str(error)})
            return True
        note = partial(self._parts.takeover.note_checkpoint, checkpoint)
        return await self._take_progress(connection, self._waiting_timers, note)

    async def _sync_topics(self, connection: Connection) -> list[str]:
        listing = await self._list_pages(connection, _TopicPages())
        return self._parts.topics.adopt(listing.entries, listing.version, is_whole=listing.is_whole)

    async def _sync_groups(self, connection: Connection) -> list[str]:
        pages = _GroupPages()
        listing = await self._list_pages(connection, pages)
        return self._parts.groups.adopt(
            listing.entries, pages.forbidden, listing.version, is_whole=listing.is_whole
        )

    async def _list_pages(self, connection: Connection, pages: "_Pages[Entry]") -> "_Listing[Entry]":
        """Return a table that the master lists in pages, or at once if it does not know pages.

        If the table changes meanwhile, the listing begins anew. After `MAX_RESTARTS` it is taken as it is, but as a
        part of the table only, so that nothing is deleted because of it.
        """
        version: DataVersion | None = None
        restarts = 0
        while True:
            first = len(pages.entries)
            total, page_version = await pages.ask(connection, self._sign, first, version)
            if version is not None and page_version != version:
                restarts += 1
                first = 0
            version = page_version
            if first == 0 and restarts <= MAX_RESTARTS:
                pages.begin_anew()
            size = pages.take_page()
            if total is None or len(pages.entries) >= total or not size:
                is_whole = restarts <= MAX_RESTARTS and (total is None or len(pages.entries) >= total)
                return _Listing(pages.entries, version, is_whole)
            if restarts > MAX_RESTARTS:
                return _Listing(pages.entries, version, is_whole=False)

    async def _sync_request_modes(self, connection: Connection) -> None:
        try:
            self._parts.request_modes.adopt(
                parse_modes(await self._ask(connection, GetAllMessageRequestMode()))
            )
        except RequestError as error:  # unknown to 4.9
            if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise

    async def _sync_private_tables(self, connection: Connection) -> QueueEnds:
        """Copy the tables that only a master of this project has; return the ends of its queues without messages."""
        if not self._is_ours:
            return {}
        try:
            reply = await connection.ask(GetReplicatedTables(), TIMEOUT_S, self._sign)
        except RequestError as error:
            if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
            self._is_ours = False
            return {}
        tables = reply.data
        self._parts.takeover.note_master_role(tables.broker_role)
        await self._repeat_deletions(
            {topic: (deletion.log_end, deletion.time_ms) for topic, deletion in tables.deleted_topics.items()}
        )
        if tables.consumer_filters:
            self._parts.filters.merge(tables.consumer_filters.encode())
        if tables.ordered_pops:
            self._parts.ordered_pops.adopt(tables.ordered_pops.encode())
        await self._sync_accounts(connection)
        return {
            (topic, queue_id): end
            for topic, queues in tables.empty_queues.items()
            for queue_id, end in queues.items()
        }

    async def _ask_popped_keys(self, connection: Connection) -> None:
        """Learn which offsets pops have moved, after the offsets: a group may have popped for the first time since."""
        if self._is_ours:
            reply = await connection.ask(GetReplicatedTables(popped_only=True), TIMEOUT_S, self._sign)
            self._popped = frozenset(reply.data.popped)
            self._parts.takeover.note_popped_keys(self._popped)

    async def _ask_queue_ends(self, connection: Connection) -> QueueEnds:
        """Return where queues without a message here end at an official master, of a few topics at each copy.

        Their messages may have expired there. Those that are still to be copied begin the queue by themselves.
        """
        store, topics = self._parts.store, self._parts.topics
        ends: dict[tuple[str, int], int] = {}
        for topic in self._next_topics():
            try:
                reply = await connection.ask(GetTopicStatsInfo(topic=topic), TIMEOUT_S, self._sign)
            except RequestError as error:  # such as one that has just been deleted
                log.debug("ends of queues not copied", extra={"topic": topic, "reason": str(error)})
                continue
            config = topics.get(topic)
            queue_count = 0 if config is None else max(config.read_queue_nums, config.write_queue_nums)
            for queue, offset in reply.data.offset_table.items():
                queue_id, end = queue.queue_id, offset.max_offset
                if 0 <= queue_id < queue_count and end > 0 and not store.max_offset(topic, queue_id):
                    ends[topic, queue_id] = end
        return ends

    def _next_topics(self) -> list[str]:
        """Return the next topics, in the order of their names, that have a queue without a message."""
        names = sorted(self._parts.topics.table)
        first = bisect_right(names, self._last_topic)
        rotation = [*names[first:], *names[:first]][:TOPICS_LOOKED_AT]
        chosen = list(islice(filter(self._lacks_messages, rotation), TOPICS_PER_COPY))
        if rotation:
            self._last_topic = chosen[-1] if len(chosen) == TOPICS_PER_COPY else rotation[-1]
        return chosen

    def _lacks_messages(self, topic: str) -> bool:
        config, store = self._parts.topics.table[topic], self._parts.store
        queue_count = min(max(config.read_queue_nums, config.write_queue_nums), MAX_QUEUES_LOOKED_AT)
        return any(not store.max_offset(topic, queue_id) for queue_id in range(queue_count))

    async def _begin_empty_queues(self) -> None:
        """Let queues whose messages have all expired go on where the master's do, after a promotion."""
        while self._empty_queues:
            part = dict(islice(self._empty_queues.items(), QUEUES_PER_SLICE))
            for key in part:
                del self._empty_queues[key]
            try:
                self._parts.store.begin_empty_queues_at(part)
            except StoreError as error:
                log.warning("ends of empty queues not taken over", extra={"reason": str(error)})
            await trio.lowlevel.checkpoint()

    async def _sync_accounts(self, connection: Connection) -> None:
        """Copy users and policies, if this broker has a table of them and its own user may read the master's."""
        accounts = self._parts.accounts
        if accounts is None:
            return
        # Here, because a start without access control is faster without it.
        from gateway.auth.accounts import StoredAccounts

        if not isinstance(accounts, StoredAccounts):
            return
        try:
            copied = (await connection.ask(GetReplicatedAccounts(), TIMEOUT_S, self._sign)).data
        except RequestError as error:
            if self._has_accounts:
                log.warning("accounts of the master not copied", extra={"reason": str(error)})
            self._has_accounts = False
            return
        self._has_accounts = True
        if copied.users:
            accounts.users.adopt(copied.users.encode())
            accounts.policy_table.adopt(copied.acls.encode())

    async def _repeat_deletions(self, notes: Mapping[str, tuple[int, int]]) -> None:
        """Delete the messages of topics that the master deleted, unless that was done already. Raises OSError."""
        store = self._parts.store
        added = store.missing_deletions(notes)
        if not added:
            return
        slices = store.note_deletions(added)
        # To the end: what is noted is not repeated.
        with trio.CancelScope(shield=True):
            try:
                await self._run_blocking(partial(next, slices, None))
            except StoreFull as error:
                raise OSError(str(error)) from error
            for _ in slices:
                await trio.lowlevel.checkpoint()
            for topic in added:
                self._forget_topic(topic)
                await trio.lowlevel.checkpoint()

    def _forget_topic(self, topic: str) -> None:
        """Forget what refers to the messages of a deleted topic."""
        self._parts.offsets.remove_topic(topic)
        self._parts.ordered_pops.forget_topic(topic)
        self._parts.long_polls.answer_topic(topic)


def _is_own_progress(key: str) -> bool:
    """Return True for offsets of the master's own groups: those of transaction checks and of pop."""
    return is_system_group(key.partition("@")[2])


@dataclass(frozen=True, slots=True)
class _Listing(Generic[Entry]):
    entries: dict[str, Entry]
    version: DataVersion
    is_whole: bool


class _Pages(Generic[Entry]):
    """The entries of a paged table that were listed so far."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}

    async def ask(
        self,
        connection: Connection,
        sign: Callable[[Command], None] | None,
        first: int,
        version: DataVersion | None,
    ) -> tuple[int | None, DataVersion]:
        """Ask for the page from an entry on; return the number of all entries, None if unknown, and the version."""
        raise NotImplementedError

    def take_page(self) -> int:
        """Add the entries of the last answer; return their number."""
        raise NotImplementedError

    def begin_anew(self) -> None:
        """Forget the entries of earlier pages."""
        self.entries.clear()


class _TopicPages(_Pages[TopicConfig]):
    page: dict[str, TopicConfig]

    async def ask(
        self,
        connection: Connection,
        sign: Callable[[Command], None] | None,
        first: int,
        version: DataVersion | None,
    ) -> tuple[int | None, DataVersion]:
        request = GetAllTopicConfig(
            topic_seq=first, max_topic_num=PAGE_ENTRIES, data_version=_version_text(version)
        )
        reply = await connection.ask(request, TIMEOUT_S, sign)
        self.page = reply.data.topic_config_table
        return reply.total_topic_num, reply.data.data_version

    def take_page(self) -> int:
        for name, config in self.page.items():
            config.topic_name = name
        self.entries.update(self.page)
        return len(self.page)


class _GroupPages(_Pages[SubscriptionGroupConfig]):
    page: SubscriptionGroupWrapper

    def __init__(self) -> None:
        super().__init__()
        self.forbidden: dict[str, dict[str, int]] = {}

    async def ask(
        self,
        connection: Connection,
        sign: Callable[[Command], None] | None,
        first: int,
        version: DataVersion | None,
    ) -> tuple[int | None, DataVersion]:
        request = GetAllSubscriptionGroupConfig(
            group_seq=first, max_group_num=PAGE_ENTRIES, data_version=_version_text(version)
        )
        reply = await connection.ask(request, TIMEOUT_S, sign)
        self.page = reply.data
        return reply.total_group_num, reply.data.data_version

    def take_page(self) -> int:
        groups = self.page.subscription_group_table
        for name, config in groups.items():
            config.group_name = name
        self.entries.update(groups)
        self.forbidden.update(self.page.forbidden_table)
        return len(groups)

    def begin_anew(self) -> None:
        super().begin_anew()
        self.forbidden.clear()


def _version_text(version: DataVersion | None) -> str:
    return "" if version is None else version.to_json().decode()
