"""Check-back of half messages: ask producers about half messages that were not ended, and give up hopeless ones.

Problem: a producer may crash between its half message and its decision, and messages can only be deleted from the
beginning of a queue. So the broker walks the half queue from the consumer offset of the group CID_RMQ_SYS_TRANS, and
every half message before that offset must have been ended, written again, or given up.

1. Op messages name the half offsets that are ended. `OpMessageReader` reads them as far as the walk needs.
2. A half message that is ended is skipped.
3. A half message that is old enough is written again at the queue's end, with its count of checks raised by one. The
   broker asks the producer about the copy, which replaces the original, and the offset moves past the original. Under
   a controller it asks once the copy is confirmed, because nobody can decide about it before.
4. After too many checks, or past the retention, the message is moved to TRANS_CHECK_MAX_TIME_TOPIC.
5. A message that is too young ends the round, because all later ones are younger still.

Invariant: the offset moves past a half message only after its op message was read or its copy was stored. After a crash
between storing the copy and saving the offset, the walk comes to both. The first round finds such copies by unique key
and producer, so that a producer is asked about the last one only, and a decision about any of them counts. A commit
whose op message was lost in a crash is recognised by the unique key of its real message, so one decision commits once.

A record that cannot be used never ends a round. A damaged half or op message is skipped; of an op message only the
offsets that can be half messages count. A half message whose properties leave no room for its count of checks cannot
be written again: its producer is asked about the original, once, and it is given up.

The task in `assembly/service.py` runs the rounds; producers' answers are handled in `transactions.py`.
"""

import logging
import re
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from types import MappingProxyType
from typing import Final, NamedTuple

from codec import properties as keys
from codec.constants import ResponseCode
from codec.errors import MessageFormatError
from codec.java_numbers import I32, parse_integer_or
from codec.message import Message, decode_message, encode_message, split_messages
from codec.sysflag import TRANSACTION_COMMIT, transaction_type
from codec.topics import TRANS_CHECK_MAX_TOPIC, TRANS_GROUP, TRANS_HALF_TOPIC, TRANS_OP_TOPIC
from gateway.broker.consumers.broker_tables import BrokerTables
from gateway.broker.messages.damaged_records import DamagedRecords, RecordKind, RecordLocation
from gateway.broker.messages.message_services import MessageServices
from gateway.broker.messages.message_writer import MessageAppender
from gateway.broker.messages.stored_messages import find_message
from gateway.broker.transactions.end_transaction import REMOVE_TAG, OpMessageWriter
from gateway.config.process import BrokerConfig
from remoting.bodies.topics import TopicConfig
from remoting.errors import RequestError
from remoting.requests.transaction import CheckTransactionState
from storage.append import Appended, NewMessage
from storage.queue_read import ReadStatus
from storage.store import MessageStore

log = logging.getLogger(__name__)

MAX_ROUND_MS: Final = 60_000
"""Longest time of one round per queue. Source: TransactionalMessageServiceImpl.MAX_PROCESS_TIME_LIMIT."""
OP_MESSAGES_PER_READ: Final = 32
"""Number of op messages per read. Source: TransactionalMessageServiceImpl.OP_MSG_PULL_NUMS."""
INDEXED_PER_TURN: Final = 100
"""Number of messages indexed before other tasks get their turn."""
HALF_MESSAGES_PER_READ: Final = 32
"""Number of half messages per read in the search for copies."""
HALF_MESSAGES_PER_TURN: Final = 512
"""Number of half messages walked before other tasks get their turn."""
OP_BYTES_PER_READ: Final = 256 * 1024
"""Bytes of op messages per read, unless a single one is longer."""
ENDED_PER_TURN: Final = 4096
"""Number of ended half messages noted before other tasks get their turn."""
MAX_TRACKED_HALVES: Final = 200_000
"""Number of half messages whose former offsets are remembered, per queue."""
MAX_FORMER_OFFSETS: Final = 32
"""Number of former offsets that are remembered of one half message: the first and the latest ones."""
_OFFSETS: Final = re.compile(rb"[^,]+")
_NO_MORE: Final = object()


class HalfMessageVerdict(Enum):
    """The next step for a half message that was not ended."""

    ASK = 0
    RENEW = 1
    GIVE_UP = 2
    LATER = 3


class HalfMessageCopies:
    """Former offsets of half messages that were written again, so that a decision about a former offset counts.

    Copies beyond `MAX_TRACKED_HALVES` are unknown: a decision about one of them is made again, as with the official
    broker.
    """

    def __init__(self) -> None:
        self._former: dict[int, tuple[int, ...]] = {}
        self._former_offsets: set[int] = set()
        self._ended: set[int] = set()

    def record_move(self, before: int, now: int) -> None:
        """Record that the message at one offset is at another from now on."""
        places = (*self._former.pop(before, ()), before)
        if len(places) > MAX_FORMER_OFFSETS:
            # The first offset tells whether the message is older than the start, the latest are those that a decision
            # may still name. So the second one goes.
            self._former_offsets.discard(places[1])
            self._ended.discard(places[1])
            places = (places[0], *places[2:])
        if len(self._former) < MAX_TRACKED_HALVES:
            self._former[now] = places
            self._former_offsets.update(places)
        else:
            # No room for the copy: what is known of its former offsets would never be removed.
            self._former_offsets.difference_update(places)
            self._ended.difference_update(places)

    def was_moved(self, offset: int) -> bool:
        """Tell whether the message at an offset is at another from now on."""
        return offset in self._former_offsets

    def first_offset(self, offset: int) -> int:
        """Return the first known offset of the message."""
        return self._former.get(offset, (offset,))[0]

    def record_end(self, offset: int) -> None:
        """Record a decision about an offset that the walk has passed already."""
        if offset in self._former_offsets:
            self._ended.add(offset)

    def is_ended(self, offset: int) -> bool:
        """Tell whether the message was ended at one of its former offsets."""
        return any(former_offset in self._ended for former_offset in self._former.get(offset, ()))

    def forget(self, offset: int) -> None:
        """Forget a message that will not be walked again."""
        for former_offset in self._former.pop(offset, ()):
            self._former_offsets.discard(former_offset)
            self._ended.discard(former_offset)


class UnconfirmedCopy(NamedTuple):
    """A half message that was written again, and whose producer is asked when all replicas in sync have the copy."""

    queue_id: int
    queue_offset: int
    physical_offset: int


class OpMessageReader:
    """The op messages of one round, which say which half messages are ended; read only as far as the walk needs.

    ``_ended`` maps each ended half offset to the op message that names it, ``_open_counts`` each op message to the
    number of its half offsets that were not walked yet. ``_done`` holds op messages that are not needed any more.
    """

    def __init__(
        self,
        store: MessageStore,
        damaged: DamagedRecords,
        queue_id: int,
        start: int,
        first_half: int,
        copies: HalfMessageCopies,
    ) -> None:
        self._store = store
        self._damaged = damaged
        self._queue_id = queue_id
        self._first_half = first_half
        self._copies = copies
        self._start = start
        self._next = start
        self._ended: dict[int, int] = {}
        self._open_counts: dict[int, int] = {}
        self._done: set[int] = set()
        self._steps = self._read_to_end()

    def take_ended(self, half_offset: int) -> bool:
        """Tell whether a half message is known to be ended. Call it at most once for each half message."""
        op_offset = self._ended.pop(half_offset, None)
        if op_offset is None:
            return False
        self._open_counts[op_offset] -= 1
        if not self._open_counts[op_offset]:
            # The walk has passed every half message that this op message names.
            self._done.add(op_offset)
        return True

    def read_more(self) -> bool:
        """Read some more op messages, or of a long one some more offsets; return False when there are none."""
        if next(self._steps, _NO_MORE) is not _NO_MORE:
            return True
        # Others may have been written since the end was reached.
        self._steps = self._read_to_end()
        return next(self._steps, _NO_MORE) is not _NO_MORE

    def _read_to_end(self) -> Iterator[None]:
        """Read all op messages; yield where other tasks may have their turn."""
        while True:
            result = self._store.read(
                TRANS_OP_TOPIC, self._queue_id, self._next, OP_MESSAGES_PER_READ, OP_BYTES_PER_READ
            )
            if result.status is not ReadStatus.FOUND:
                if result.next_offset == self._next or result.max_offset == 0:
                    return
                if result.min_offset <= self._next < result.max_offset:
                    # Op messages that were lost to damage: `storage/damage.py`.
                    self._done.update(range(self._next, result.next_offset))
                else:
                    self._start = result.next_offset
                    self._done.clear()
                self._next = result.next_offset
                if self._next >= result.max_offset:
                    return
                continue
            for chunk in result.chunks:
                for message in self._damaged.decode_readable(
                    RecordKind.OP_MESSAGE, TRANS_OP_TOPIC, self._queue_id, self._next, chunk
                ):
                    yield from self._note_op_message(message)
            # Op messages of which nothing is left, the skipped ones among them, are not needed any more.
            self._done.update(
                op_offset
                for op_offset in range(self._next, result.next_offset)
                if op_offset not in self._open_counts
            )
            self._next = result.next_offset
            yield

    def _note_op_message(self, message: Message) -> Iterator[None]:
        """Note the half messages that an op message names. Offsets that cannot be half messages are skipped."""
        unusable, op_offset = 0, message.queue_offset
        end_offset = self._store.max_offset(TRANS_HALF_TOPIC, self._queue_id)
        texts = _OFFSETS.finditer(message.body) if message.tags == REMOVE_TAG else iter(())
        for number, text in enumerate(texts, 1):
            offset = parse_integer_or(text[0].decode("latin-1"), -1)
            if not 0 <= offset < end_offset:
                unusable += 1
            elif offset < self._first_half:
                # The walk passed this offset in an earlier round; a copy of the message may be ahead.
                self._copies.record_end(offset)
            elif offset not in self._ended:
                self._ended[offset] = op_offset
                self._open_counts[op_offset] = self._open_counts.get(op_offset, 0) + 1
                # Between two yields the walk may have passed all offsets noted so far of a long op message.
                self._done.discard(op_offset)
            if number % ENDED_PER_TURN == 0:
                yield
        if unusable or message.tags != REMOVE_TAG:
            reason = (
                f"{unusable} offsets are not those of half messages"
                if unusable
                else "an op message of another kind"
            )
            self._damaged.skip(RecordKind.OP_MESSAGE, RecordLocation.of_message(message), reason)

    def settled_offset(self) -> int:
        """Return the op offset before which no message is needed any more."""
        offset = self._start
        # The round may have ended within the messages of a read: those are read again.
        while offset < self._next and offset in self._done:
            offset += 1
        return offset


class TransactionChecks:
    """Walks the half messages that are old enough, as the official broker does every 30 s.

    Source: TransactionalMessageServiceImpl.check, AbstractTransactionalMessageCheckListener, 5.4.0.
    Deviations:
    - All op messages, including those not yet written, are read before a producer is asked, so nothing sleeps to wait
      for them.
    - A decision about a former offset of a message counts; the official broker asks the producer, and carries out the
      decision, once more.
    - A copy keeps the message's flag.
    - Waiting out a message's own immunity does not count as a check. A message born in the future has none; the
      official broker writes it again at every check, for ever.
    - When the store refuses a message, the round ends, and the next one tries it again.
    - After a restart, a half message whose real message exists is ended without asking.
    """

    def __init__(
        self,
        config: BrokerConfig,
        tables: BrokerTables,
        services: MessageServices,
        appender: MessageAppender,
        op_writer: OpMessageWriter,
    ) -> None:
        store = services.store
        self._config = config
        self._clock = store.clock
        self._store = store
        self._damaged = services.damaged
        self._topics = tables.topics
        self._offsets = tables.offsets
        self._clients = tables.clients
        self._appender = appender
        self._op_writer = op_writer
        self.check_backs = self.given_up = 0
        config_of_halves = self._topics.get(TRANS_HALF_TOPIC)
        self._opened_half_ends = {
            queue_id: store.next_queue_offset(TRANS_HALF_TOPIC, queue_id)
            for queue_id in self._topics.queue_ids(
                config_of_halves.read_queue_nums if config_of_halves else 0
            )
        }
        self._opened_end = store.max_physical_offset
        self._copies: defaultdict[int, HalfMessageCopies] = defaultdict(HalfMessageCopies)
        self._unconfirmed: deque[UnconfirmedCopy] = deque()

    def reconfigure(self, config: BrokerConfig) -> None:
        """Apply changed settings."""
        self._config = config

    def run_round(self) -> Iterator[None]:
        """Walk all half messages once. Other tasks get their turn where the generator yields.

        Without effect while messages from before the start are unconfirmed, and op or real messages may be among them.
        """
        if self._store.readable_until < self._opened_end:
            return
        yield from self._index_stored_messages()
        config = self._topics.get(TRANS_HALF_TOPIC)
        for queue_id in self._topics.queue_ids(config.read_queue_nums if config else 0):
            yield from self._check_queue(queue_id)

    def _index_stored_messages(self) -> Iterator[None]:
        """Index the messages stored before the start, which `_is_committed` searches. Only the first round has any."""
        store = self._store
        while store.index.next_offset < self._opened_end and store.build_index(INDEXED_PER_TURN):
            yield

    def count_open(self) -> int:
        """Return the number of half messages that wait for a decision.

        Those that were ended before the start count until the first round has walked over them.
        """
        config = self._topics.get(TRANS_HALF_TOPIC)
        open_count = 0
        for queue_id in self._topics.queue_ids(config.read_queue_nums if config else 0):
            not_walked = self._store.max_offset(TRANS_HALF_TOPIC, queue_id) - self._start_offset(
                TRANS_HALF_TOPIC, queue_id
            )
            open_count += max(0, not_walked - self._op_writer.count_ended(queue_id))
        return open_count

    def _start_offset(self, topic: str, queue_id: int) -> int:
        offset = self._offsets.query_offset(TRANS_GROUP, topic, queue_id)
        return self._store.min_offset(topic, queue_id) if offset < 0 else offset

    def _check_queue(self, queue_id: int) -> Iterator[None]:
        first = self._start_offset(TRANS_HALF_TOPIC, queue_id)
        op_first = self._start_offset(TRANS_OP_TOPIC, queue_id)
        if queue_id not in self._copies:
            yield from self._find_copies_before_start(queue_id, first)
        ops = OpMessageReader(self._store, self._damaged, queue_id, op_first, first, self._copies[queue_id])
        settled = first
        try:
            for offset, pause in self._walk_half_messages(queue_id, first, ops):
                settled = offset
                if pause:
                    yield
        finally:
            # Also when the round is given up at a yield. Both offsets change without another task in between: an op
            # offset saved without its half offset would hide decisions from the next start.
            self._commit_progress(TRANS_HALF_TOPIC, queue_id, first, settled)
            self._op_writer.forget_ended(queue_id, settled)
            self._commit_progress(TRANS_OP_TOPIC, queue_id, op_first, ops.settled_offset())

    def _find_copies_before_start(self, queue_id: int, first: int) -> Iterator[None]:
        """Connect half messages stored before the start with their last copies, whose walk was not saved."""
        copies = self._copies[queue_id]
        last_offsets: dict[tuple[str, str, int], int] = {}
        offset = first
        while True:
            result = self._store.read(TRANS_HALF_TOPIC, queue_id, offset, HALF_MESSAGES_PER_READ)
            for message in _decodable_messages(result.chunks):
                if message.physical_offset >= self._opened_end:
                    return
                group = message.properties.get(keys.PRODUCER_GROUP, "")
                # A copy keeps the time of birth; another half message of the same key has its own.
                identity = message.unique_key or "", group, message.born_timestamp
                if identity in last_offsets:
                    copies.record_move(last_offsets[identity], message.queue_offset)
                if message.unique_key and len(last_offsets) < MAX_TRACKED_HALVES:
                    last_offsets[identity] = message.queue_offset
            if result.next_offset <= offset or not result.max_offset:
                return
            offset = result.next_offset
            yield

    def _commit_progress(self, topic: str, queue_id: int, before: int, now: int) -> None:
        if now != before:
            self._offsets.commit_offset(TRANS_GROUP, topic, queue_id, now, by_broker=True)

    def _walk_half_messages(
        self, queue_id: int, first: int, ops: OpMessageReader
    ) -> Iterator[tuple[int, bool]]:
        """Yield each half offset up to which everything is settled, and whether to let other tasks run."""
        started_ms = self._clock.now_ms()
        offset = first
        copies = self._copies[queue_id]
        while self._clock.now_ms() - started_ms <= MAX_ROUND_MS:
            if ops.take_ended(offset):
                # Step 2. If it is also the former offset of a message, that one is ended with it.
                copies.record_end(offset)
                copies.forget(offset)
            else:
                # Step 1. All decisions made so far go to the op queue and are read before the producer is asked; after
                # each part of them the same half message is looked up again.
                self._op_writer.flush()
                if ops.read_more():
                    yield offset, True
                    continue
                message, following = self._read_half(queue_id, offset)
                if copies.was_moved(offset):
                    pass  # Its copy comes later.
                elif message is None:
                    if following == offset:
                        return  # The queue's end.
                    offset = following - 1  # Damaged or expired messages are skipped; one is added below.
                elif not self._settle_half(message, copies, started_ms):
                    return  # Step 5, or the store takes no message now.
            offset += 1
            yield offset, offset % HALF_MESSAGES_PER_TURN == 0

    def _read_half(self, queue_id: int, offset: int) -> tuple[Message | None, int]:
        """Return the half message at an offset, and the next offset.

        Without a message there, the offset to continue at is returned, which is the same one at the queue's end.
        """
        result = self._store.read(TRANS_HALF_TOPIC, queue_id, offset, 1)
        message = self._damaged.decode_one(RecordKind.HALF_MESSAGE, TRANS_HALF_TOPIC, result.chunks)
        return message, result.next_offset if result.max_offset else offset

    # -- one half message ----------------------------------------------------------------------------------

    def _settle_half(self, message: Message, copies: HalfMessageCopies, started_ms: int) -> bool:
        """Take the next step for a message. Return False when the walk must end: this message has to wait."""
        before = message.queue_offset
        topic = message.properties.get(keys.REAL_TOPIC, "")
        if self._store.is_for_deleted_topic(topic, message.physical_offset, message.store_timestamp):
            copies.forget(before)
            return True
        if copies.is_ended(before) or self._is_committed(message, copies):
            copies.forget(before)
            return True
        verdict = self._decide(message, started_ms)
        if verdict is HalfMessageVerdict.LATER:
            return False
        try:
            self._carry_out(verdict, message, copies)
        except RequestError as error:
            log.error("half message could not be written again", extra={"reason": error.remark})
            return False
        return True

    def _carry_out(self, verdict: HalfMessageVerdict, message: Message, copies: HalfMessageCopies) -> None:
        """Write a message again, or give it up. Raises RequestError when the store takes no message at this time."""
        before = message.queue_offset
        try:
            if verdict is HalfMessageVerdict.RENEW:
                copies.record_move(before, self._renew_half(message))
                return
            if verdict is HalfMessageVerdict.ASK:
                copies.record_move(before, self._ask_about_copy(message))
                return
        except RequestError as error:
            if error.code != ResponseCode.MESSAGE_ILLEGAL:
                raise
            # With the count of checks it would be too long for the store.
            self._ask_producer(message)
        # Step 4, by verdict or because it cannot be written again. A message that is too long even for the topic of
        # given-up ones is skipped: it must not end every round.
        copies.forget(before)
        try:
            self._give_up(message)
        except RequestError as error:
            if error.code != ResponseCode.MESSAGE_ILLEGAL:
                raise
            self._damaged.skip(RecordKind.HALF_MESSAGE, RecordLocation.of_message(message), error.remark)

    def _decide(self, message: Message, started_ms: int) -> HalfMessageVerdict:
        age_ms = self._clock.now_ms() - message.born_timestamp
        if self._check_count(message) >= self._config.transaction_check_max:
            return HalfMessageVerdict.GIVE_UP
        if age_ms > self._config.store.file_reserved_hours * 3_600_000:
            return HalfMessageVerdict.GIVE_UP
        if message.store_timestamp >= started_ms:
            # Written during this round, perhaps as a copy: its check is due in the next one at the earliest.
            return HalfMessageVerdict.LATER
        text = message.properties.get(keys.CHECK_IMMUNITY_TIME_IN_SECONDS)
        if text is None:
            return (
                HalfMessageVerdict.LATER
                if 0 <= age_ms <= self._config.transaction_timeout_ms
                else HalfMessageVerdict.ASK
            )
        if age_ms < -self._config.transaction_timeout_ms:
            # Its producer's clock is far ahead, so the immunity would end too late (see the deviations).
            return HalfMessageVerdict.ASK
        # -1, and text that is not a number, stand for the broker's own timeout.
        seconds = parse_integer_or(text, -1)
        immunity_ms = self._config.transaction_timeout_ms if seconds == -1 else seconds * 1000
        return HalfMessageVerdict.RENEW if age_ms <= immunity_ms else HalfMessageVerdict.ASK

    @staticmethod
    def _check_count(message: Message) -> int:
        """Return how often producers were asked. As in the official broker, other text restarts the count."""
        return max(-1, parse_integer_or(message.properties.get(keys.TRANSACTION_CHECK_TIMES, "0"), -1, I32))

    def _is_committed(self, message: Message, copies: HalfMessageCopies) -> bool:
        """Tell whether a half message from before the start was committed.

        Its op message may be lost, or name a former offset that is not known any more.
        """
        topic, unique_key = message.properties.get(keys.REAL_TOPIC), message.unique_key
        is_older = copies.first_offset(message.queue_offset) < self._opened_half_ends.get(message.queue_id, 0)
        if not is_older or not topic or not unique_key:
            return False
        # The key alone does not prove a commit: a producer may send the same key again, without a transaction.
        begin_ms = min(message.born_timestamp, message.store_timestamp) - MAX_ROUND_MS
        end_ms = self._clock.now_ms()
        for physical_offset in self._store.query_by_key(
            topic, unique_key, 32, begin_ms, end_ms, catch_up=False
        ):
            candidate = find_message(self._store, physical_offset)
            if (
                candidate is not None
                and (candidate.topic, candidate.unique_key) == (topic, unique_key)
                and (transaction_type(candidate.sys_flag) == TRANSACTION_COMMIT)
            ):
                return True
        return False

    def _write_again(self, message: Message, changes: Mapping[str, str] = MappingProxyType({})) -> Appended:
        """Write a half message once more, with some properties changed. Raises RequestError."""
        again = NewMessage.from_stored(message, TRANS_HALF_TOPIC, message.queue_id)
        return self._appender.append(again.with_changes(properties={**message.properties, **changes}))

    def _give_up(self, message: Message) -> None:
        """Move a message to the topic of given-up half messages.

        Source: DefaultTransactionalMessageCheckListener.resolveDiscardMsg, 5.4.0.
        """
        unique_key = message.unique_key
        self.given_up += 1
        log.warning("half message given up", extra={"unique_key": unique_key, "offset": message.queue_offset})
        config = TopicConfig(topic_name=TRANS_CHECK_MAX_TOPIC, read_queue_nums=1, write_queue_nums=1, perm=6)
        try:
            self._topics.create_if_absent(config)
        except RequestError as error:
            # At the limit of queues: the message is stored, and seen when there is room.
            log.error("topic of given-up half messages not created", extra={"reason": error.remark})
        self._appender.append(NewMessage.from_stored(message, TRANS_CHECK_MAX_TOPIC, 0))

    def _renew_half(self, message: Message) -> int:
        """Write a message that is still immune to checks again, at the queue's end; return its new offset."""
        name = keys.TRANSACTION_PREPARED_QUEUE_OFFSET
        first = message.properties.get(name, str(message.queue_offset))
        try:
            return self._write_again(message, {name: first})[0]
        except RequestError as error:
            if error.code != ResponseCode.MESSAGE_ILLEGAL:
                raise
            return self._write_again(message)[0]  # The property that was added may be what is too much.

    def _ask_about_copy(self, message: Message) -> int:
        """Write a message again, ask a producer of its group about the copy, and return the copy's offset.

        It counts as a check even if no producer is online.
        """
        checks = {keys.TRANSACTION_CHECK_TIMES: str(self._check_count(message) + 1)}
        offset, physical_offset, _, _ = self._write_again(message, checks)
        message.properties |= checks
        if physical_offset < self._store.readable_until:
            # The producer's decision names the offsets of the question, so they must be those of the copy.
            message.queue_offset, message.physical_offset = offset, physical_offset
            self._ask_producer(message)
        elif len(self._unconfirmed) < MAX_TRACKED_HALVES:
            self._unconfirmed.append(UnconfirmedCopy(message.queue_id, offset, physical_offset))
        return offset

    def ask_about_confirmed(self) -> Iterator[None]:
        """Ask producers about copies that are confirmed by now: a decision about one that is not would be refused.

        Other tasks may run at each yield: after a pause of the slaves there may be a whole round's copies.
        """
        while self._unconfirmed and self._unconfirmed[0].physical_offset < self._store.readable_until:
            copy = self._unconfirmed.popleft()
            message, _ = self._read_half(copy.queue_id, copy.queue_offset)
            if message is not None and not self._copies[copy.queue_id].was_moved(copy.queue_offset):
                self._ask_producer(message)
            yield

    def _ask_producer(self, message: Message) -> None:
        group = message.properties.get(keys.PRODUCER_GROUP, "")
        producer = self._clients.next_producer(group)
        if producer is None:
            log.warning("no producer online for a check-back", extra={"group": group})
            return
        try:
            request = self._check_request(message)
        except MessageFormatError as error:
            extra = {"offset": message.queue_offset, "reason": str(error)}
            log.warning("half message leaves no room for a question to its producer", extra=extra)
        else:
            producer.connection.send_oneway(request)
            self.check_backs += 1

    def _check_request(self, message: Message) -> CheckTransactionState:
        """Return the check-back request. Raises MessageFormatError when the message cannot be encoded.

        Source: AbstractTransactionalMessageCheckListener.sendCheckMessage, 5.4.0.
        """
        request = CheckTransactionState(
            topic=TRANS_HALF_TOPIC,
            tran_state_table_offset=message.queue_offset,
            commit_log_offset=message.physical_offset,
            msg_id=message.unique_key,
            transaction_id=message.unique_key,
            offset_msg_id=message.msg_id,
            bname=self._config.broker_name,
        )
        # The producer sees the message as it sent it: with its real topic and queue.
        copy = replace(
            message,
            topic=message.properties.get(keys.REAL_TOPIC, ""),
            queue_id=max(parse_integer_or(message.properties.get(keys.REAL_QUEUE_ID), 0, I32), 0),
            properties={**message.properties, keys.WAIT_STORE_MSG_OK: "false"},
        )
        request.body = encode_message(copy)
        return request


def _decodable_messages(chunks: Sequence[memoryview]) -> Iterator[Message]:
    """Yield the messages of a read; the walk reports those that cannot be decoded."""
    for chunk in chunks:
        with suppress(MessageFormatError):
            for stored in split_messages(chunk):
                yield decode_message(stored)
