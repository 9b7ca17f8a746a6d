"""Check-back of half messages: ask producers about half messages that were not ended, and give up hopeless ones.

Problem: a producer may crash between its half message and its decision, and messages can only be deleted from the
beginning of a queue. So the broker walks the half queue from the consumer offset of the group CID_RMQ_SYS_TRANS, and
every half message before that offset must have been ended, written again, or given up.

1. Op messages name the half offsets that are ended. `OpMessageReader` reads them as far as the walk needs.
2. A half message that is ended is skipped.
3. A half message that is old enough is written again at the queue's end, with its count of checks raised by one. The
   broker asks the producer about the copy, which replaces the original, and the offset moves past the original.
4. After too many checks, or past the retention, the message is moved to TRANS_CHECK_MAX_TIME_TOPIC.
5. A message that is too young ends the round, because all later ones are younger still.

Invariant: the offset moves past a half message only after its op message was read or its copy was stored. A crash
after the copy but before the offset was saved makes another copy, so a producer may be asked twice about the same
transaction; a decision about any of the copies counts. A commit whose op message was lost in a crash is recognised by
the unique key of its real message, so nothing is committed twice.

The task in `assembly/service.py` runs the rounds; producers' answers are handled in `transactions.py`.
"""

import logging
from collections import defaultdict
from collections.abc import Iterator
from enum import Enum
from typing import Final

from codec import properties as keys
from codec.errors import MessageFormatError
from codec.java_numbers import parse_integer_or
from codec.message import Message, decode_message, encode_message
from codec.sysflag import TRANSACTION_COMMIT, transaction_type
from codec.topics import TRANS_CHECK_MAX_TOPIC, TRANS_GROUP, TRANS_HALF_TOPIC, TRANS_OP_TOPIC
from gateway.broker.message_writer import MessageAppender, NewMessage
from gateway.broker.shared_parts import BrokerTables
from gateway.broker.transactions import REMOVE_TAG, OpMessageWriter
from gateway.config.process import BrokerConfig
from remoting.bodies.topics import TopicConfig
from remoting.errors import RequestError
from remoting.requests.transaction import CheckTransactionState
from storage.append import Appended
from storage.queue_read import ReadStatus
from storage.store import MessageStore

log = logging.getLogger(__name__)

MAX_ROUND_MS: Final = 60_000
"""Longest time of one round per queue. Source: TransactionalMessageServiceImpl.MAX_PROCESS_TIME_LIMIT."""
OP_MESSAGES_PER_READ: Final = 32
"""Number of op messages per read. Source: TransactionalMessageServiceImpl.OP_MSG_PULL_NUMS."""
INDEXED_PER_TURN: Final = 100
"""Number of messages indexed before other tasks get their turn."""
HALF_MESSAGES_PER_TURN: Final = 512
"""Number of half messages walked before other tasks get their turn."""


class HalfMessageVerdict(Enum):
    """The next step for a half message that was not ended."""

    ASK = 0
    RENEW = 1
    GIVE_UP = 2
    LATER = 3


class HalfMessageCopies:
    """Former offsets of half messages that were written again, so that a decision about a former offset counts.

    Copies made before the broker started are unknown.
    """

    def __init__(self) -> None:
        self._former: dict[int, tuple[int, ...]] = {}
        self._former_offsets: set[int] = set()
        self._ended: set[int] = set()

    def record_move(self, before: int, now: int) -> None:
        """Record that the message at one offset is at another from now on."""
        places = (*self._former.pop(before, ()), before)
        self._former[now] = places
        self._former_offsets.update(places)

    def record_end(self, offset: int) -> None:
        """Record a decision about an offset that the walk has passed already."""
        if offset in self._former_offsets:
            self._ended.add(offset)

    def is_ended(self, offset: int) -> bool:
        """Tell whether the message was ended at one of its former offsets."""
        return any(place in self._ended for place in self._former.get(offset, ()))

    def forget(self, offset: int) -> None:
        """Forget a message that will not be walked again."""
        for place in self._former.pop(offset, ()):
            self._former_offsets.discard(place)
            self._ended.discard(place)


class OpMessageReader:
    """The op messages of one round, which say which half messages are ended; read only as far as the walk needs.

    ``_ended`` maps each ended half offset to the op message that names it, ``_left`` each op message to the number of
    its half offsets that were not walked yet, and ``_done`` holds op messages that are not needed any more.
    """

    def __init__(
        self, store: MessageStore, queue_id: int, start: int, first_half: int, copies: HalfMessageCopies
    ) -> None:
        self._store = store
        self._queue_id = queue_id
        self._first_half = first_half
        self._copies = copies
        self._start = start
        self._next = start
        self._ended: dict[int, int] = {}
        self._left: dict[int, int] = {}
        self._done: set[int] = set()

    def take_ended(self, half_offset: int) -> bool:
        """Tell whether a half message is known to be ended. Call it at most once for each half message."""
        op_offset = self._ended.pop(half_offset, None)
        if op_offset is None:
            return False
        self._left[op_offset] -= 1
        if not self._left[op_offset]:
            self._done.add(op_offset)
        return True

    def read_more(self) -> bool:
        """Read the next op messages; return False when there are none."""
        result = self._store.read(TRANS_OP_TOPIC, self._queue_id, self._next, OP_MESSAGES_PER_READ)
        if result.status is not ReadStatus.FOUND:
            jumps = result.next_offset != self._next and result.max_offset > 0
            if jumps:
                self._start = self._next = result.next_offset
                self._done.clear()
            return jumps and self._next < result.max_offset
        for chunk in result.chunks:
            position = 0
            while position < len(chunk):
                message = decode_message(chunk, position, check_crc=False)
                position += message.size
                self._note_op_message(message)
        self._next = result.next_offset
        return True

    def _note_op_message(self, message: Message) -> None:
        count = 0
        if message.tags == REMOVE_TAG:
            for text in message.body.split(b","):
                count += bool(text) and self._note_end(text, message.queue_offset)
        if count:
            self._left[message.queue_offset] = count
        else:
            self._done.add(message.queue_offset)

    def _note_end(self, text: bytes, op_offset: int) -> bool:
        if not text.isdigit():
            return False
        offset = int(text)
        if offset < self._first_half:
            self._copies.record_end(offset)
            return False
        if offset in self._ended:
            return False
        self._ended[offset] = op_offset
        return True

    def settled_offset(self) -> int:
        """Return the op offset before which no message is needed any more."""
        offset = self._start
        while offset in self._done:
            offset += 1
        return offset


class TransactionChecks:
    """Walks the half messages that are old enough, as the official broker does every 30 s.

    Source: TransactionalMessageServiceImpl.check, AbstractTransactionalMessageCheckListener, 5.4.0.
    Deviations:
    - All op messages, including those not yet written, are read before a producer is asked, so nothing sleeps to wait
      for them.
    - A decision about a former offset of a message counts; officially the producer is asked, and the decision carried
      out, once more.
    - A copy keeps the message's flag.
    - Waiting out a message's own immunity does not count as a check.
    - When the store refuses a message, the round ends, and the next one tries it again.
    - After a restart, a half message whose real message exists is ended without asking.
    """

    def __init__(
        self,
        config: BrokerConfig,
        tables: BrokerTables,
        store: MessageStore,
        appender: MessageAppender,
        op_writer: OpMessageWriter,
    ) -> None:
        self._config = config
        self._clock = store.clock
        self._store = store
        self._topics = tables.topics
        self._offsets = tables.offsets
        self._clients = tables.clients
        self._appender = appender
        self._op_writer = op_writer
        self._opened_ms = store.clock.now_ms()
        self._opened_end = store.max_physical_offset
        self._copies: defaultdict[int, HalfMessageCopies] = defaultdict(HalfMessageCopies)

    def reconfigure(self, config: BrokerConfig) -> None:
        """Apply changed settings."""
        self._config = config

    def run_round(self) -> Iterator[None]:
        """Walk all half messages once. Other tasks get their turn where the generator yields."""
        yield from self._index_stored_messages()
        config = self._topics.get(TRANS_HALF_TOPIC)
        for queue_id in range(config.read_queue_nums if config else 0):
            yield from self._check_queue(queue_id)

    def _index_stored_messages(self) -> Iterator[None]:
        """Index the messages stored before the start, which `_is_committed` searches. Only the first round has any."""
        store = self._store
        while (
            store.max_physical_offset - store.index.unindexed_bytes < self._opened_end
            and store.build_index(INDEXED_PER_TURN)
        ):
            yield

    def _start_offset(self, topic: str, queue_id: int) -> int:
        offset = self._offsets.query_offset(TRANS_GROUP, topic, queue_id)
        return self._store.min_offset(topic, queue_id) if offset < 0 else offset

    def _check_queue(self, queue_id: int) -> Iterator[None]:
        first = self._start_offset(TRANS_HALF_TOPIC, queue_id)
        op_first = self._start_offset(TRANS_OP_TOPIC, queue_id)
        ops = OpMessageReader(self._store, queue_id, op_first, first, self._copies[queue_id])
        settled = first
        try:
            for offset, pause in self._walk_half_messages(queue_id, first, ops):
                settled = offset
                if pause:
                    yield
        finally:
            self._commit_progress(TRANS_HALF_TOPIC, queue_id, first, settled)
            self._commit_progress(TRANS_OP_TOPIC, queue_id, op_first, ops.settled_offset())

    def _commit_progress(self, topic: str, queue_id: int, before: int, now: int) -> None:
        if now != before:
            self._offsets.commit_offset(TRANS_GROUP, topic, queue_id, now)

    def _walk_half_messages(
        self, queue_id: int, first: int, ops: OpMessageReader
    ) -> Iterator[tuple[int, bool]]:
        """Yield each half offset up to which everything is settled, and whether to let other tasks run."""
        started_ms = self._clock.now_ms()
        offset = first
        copies = self._copies[queue_id]
        while self._clock.now_ms() - started_ms <= MAX_ROUND_MS:
            if ops.take_ended(offset):
                copies.forget(offset)
            else:
                self._op_writer.flush()
                if ops.read_more():
                    yield offset, True
                    continue
                message, following = self._read_half(queue_id, offset)
                if message is None:
                    if following == offset:
                        return
                    offset = following - 1
                elif not self._settle_half(message, copies, started_ms):
                    return
            offset += 1
            yield offset, offset % HALF_MESSAGES_PER_TURN == 0

    def _read_half(self, queue_id: int, offset: int) -> tuple[Message | None, int]:
        """Return the half message at an offset, and the next offset.

        Without a message there, the offset to continue at is returned, which is the same one at the queue's end.
        """
        result = self._store.read(TRANS_HALF_TOPIC, queue_id, offset, 1)
        for chunk in result.chunks:
            try:
                return decode_message(chunk), result.next_offset
            except MessageFormatError as error:
                log.error("half message is damaged", extra={"offset": offset, "reason": str(error)})
        return None, result.next_offset if result.max_offset else offset

    # -- one half message ----------------------------------------------------------------------------------

    def _settle_half(self, message: Message, copies: HalfMessageCopies, started_ms: int) -> bool:
        """Take the next step for a message. Return False when the walk must end: this message has to wait."""
        before = message.queue_offset
        if copies.is_ended(before) or self._is_committed(message):
            copies.forget(before)
            return True
        verdict = self._decide(message, started_ms)
        try:
            if verdict is HalfMessageVerdict.GIVE_UP:
                self._give_up(message)
                copies.forget(before)
            elif verdict is HalfMessageVerdict.RENEW:
                copies.record_move(before, self._renew_half(message))
            elif verdict is HalfMessageVerdict.ASK:
                copies.record_move(before, self._ask_producer(message))
        except RequestError as error:
            log.error("half message could not be written again", extra={"reason": error.remark})
            return False
        return verdict is not HalfMessageVerdict.LATER

    def _decide(self, message: Message, started_ms: int) -> HalfMessageVerdict:
        age_ms = self._clock.now_ms() - message.born_timestamp
        if self._check_count(message) >= self._config.transaction_check_max:
            return HalfMessageVerdict.GIVE_UP
        if age_ms > self._config.store.file_reserved_hours * 3_600_000:
            return HalfMessageVerdict.GIVE_UP
        if message.store_timestamp >= started_ms:
            return HalfMessageVerdict.LATER
        text = message.properties.get(keys.CHECK_IMMUNITY_TIME_IN_SECONDS)
        if text is None:
            return (
                HalfMessageVerdict.LATER
                if 0 <= age_ms <= self._config.transaction_timeout_ms
                else HalfMessageVerdict.ASK
            )
        seconds = parse_integer_or(text, -1)
        immunity_ms = self._config.transaction_timeout_ms if seconds == -1 else seconds * 1000
        return HalfMessageVerdict.RENEW if age_ms <= immunity_ms else HalfMessageVerdict.ASK

    @staticmethod
    def _check_count(message: Message) -> int:
        """Return how often producers were asked. As officially, text that is not a number restarts the count."""
        return parse_integer_or(message.properties.get(keys.TRANSACTION_CHECK_TIMES, "0"), -1)

    def _is_committed(self, message: Message) -> bool:
        """Tell whether a half message from before the start was committed, since its op message may be lost."""
        topic, unique_key = message.properties.get(keys.REAL_TOPIC), message.unique_key
        if message.store_timestamp > self._opened_ms or not topic or not unique_key:
            return False
        begin_ms = min(message.born_timestamp, message.store_timestamp) - MAX_ROUND_MS
        end_ms = self._clock.now_ms()
        for place in self._store.query_by_key(topic, unique_key, 32, begin_ms, end_ms, catch_up=False):
            view = self._store.message_at(place)
            if view is None:
                continue
            found = decode_message(view, check_crc=False)
            if (found.topic, found.unique_key) == (topic, unique_key) and (
                transaction_type(found.sys_flag) == TRANSACTION_COMMIT
            ):
                return True
        return False

    def _write_again(
        self, message: Message, topic: str = TRANS_HALF_TOPIC, queue_id: int | None = None
    ) -> Appended:
        queue_id = message.queue_id if queue_id is None else queue_id
        return self._appender.append(NewMessage.from_stored(message, topic, queue_id))

    def _give_up(self, message: Message) -> None:
        """Move a message to the topic of given-up half messages.

        Source: DefaultTransactionalMessageCheckListener.resolveDiscardMsg, 5.4.0.
        """
        unique_key = message.unique_key
        log.warning("half message given up", extra={"unique_key": unique_key, "offset": message.queue_offset})
        config = TopicConfig(topic_name=TRANS_CHECK_MAX_TOPIC, read_queue_nums=1, write_queue_nums=1, perm=6)
        self._topics.create_if_absent(config)
        self._write_again(message, TRANS_CHECK_MAX_TOPIC, 0)

    def _renew_half(self, message: Message) -> int:
        """Write a message that is still immune to checks again, at the queue's end; return its new offset."""
        message.properties.setdefault(keys.TRANSACTION_PREPARED_QUEUE_OFFSET, str(message.queue_offset))
        return self._write_again(message)[0]

    def _ask_producer(self, message: Message) -> int:
        """Write a message again, ask a producer of its group about it, and return its new offset.

        It counts as a check even if no producer is online.
        """
        message.properties[keys.TRANSACTION_CHECK_TIMES] = str(self._check_count(message) + 1)
        message.queue_offset, message.physical_offset, _, _ = self._write_again(message)
        offset = message.queue_offset
        group = message.properties.get(keys.PRODUCER_GROUP, "")
        producer = self._clients.next_producer(group)
        if producer is None:
            log.warning("no producer online for a check-back", extra={"group": group})
        else:
            producer.connection.send_oneway(self._check_request(message))
        return offset

    def _check_request(self, message: Message) -> CheckTransactionState:
        """Return the check-back request. Source: AbstractTransactionalMessageCheckListener.sendCheckMessage, 5.4.0."""
        request = CheckTransactionState(
            topic=TRANS_HALF_TOPIC,
            tran_state_table_offset=message.queue_offset,
            commit_log_offset=message.physical_offset,
            msg_id=message.unique_key,
            transaction_id=message.unique_key,
            offset_msg_id=message.msg_id,
            bname=self._config.broker_name,
        )
        message.properties[keys.WAIT_STORE_MSG_OK] = "false"
        message.topic = message.properties.get(keys.REAL_TOPIC, "")
        message.queue_id = max(parse_integer_or(message.properties.get(keys.REAL_QUEUE_ID, "0"), 0), 0)
        request.body = encode_message(message)
        return request
