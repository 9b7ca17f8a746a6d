"""Observes the traffic of moving topics and remembers what moves depend on. All tables are bounded.

It knows the sends that are not answered yet, the queue ends that answers reported, the side of each half message, the
holders of queue locks, the time until which popped messages are invisible, and the reads that wait at the target.
`director` decides about the side of a request.

Locks and pops are observed although no topic moves. A group that moves may hold locks, and messages that it popped
before: those come back at the side where they were popped, so the group must not leave that side until then. Pops
from before the gateway's start were not observed; they are over one invisible time after the group's first pop.
"""

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import Final, NamedTuple

from codec import properties as names
from codec.command import Command
from codec.constants import STORED_CODES, ResponseCode
from codec.java_numbers import I32, JavaNumberError, parse_java_integer
from codec.properties import decode_properties
from gateway.shadow.cutover.retry_topics import original_topic
from gateway.shadow.traffic.exchange import Exchange, Side
from remoting.bodies.locks import LockBatchRequestBody, LockBatchResponseBody, UnlockBatchRequestBody
from remoting.bodies.queues import MessageQueue
from remoting.errors import RequestError
from remoting.requests.locks import LockBatchMq, UnlockBatchMq
from remoting.requests.pop import ChangeMessageInvisibletime, PopMessage
from remoting.requests.pull import LitePullMessage, PullMessage
from remoting.requests.send import SendBatchMessage, SendMessage, SendMessageV2
from remoting.requests.transaction import CheckTransactionState

SEND_CODES: Final = frozenset({SendMessage.code, SendMessageV2.code, SendBatchMessage.code})
POP_CODES: Final = frozenset({PopMessage.code, ChangeMessageInvisibletime.code})
NO_MESSAGE_CODES: Final = frozenset(
    {ResponseCode.PULL_NOT_FOUND, ResponseCode.POLLING_FULL, ResponseCode.POLLING_TIMEOUT}
)
"""Answers of a broker that accepted a pop, and had no message for it."""
LOCK_CODES: Final = frozenset({LockBatchMq.code, UnlockBatchMq.code})
READ_CODES: Final = frozenset({PullMessage.code, LitePullMessage.code, PopMessage.code})
"""Requests that a broker may hold until there is a message."""
MAX_HALF_MESSAGES: Final = 100_000
MAX_LOCK_HOLDERS: Final = 10_000
MAX_LOCKED_QUEUES: Final = 1_000
"""Queues that one client may hold; further ones are not remembered."""
MAX_LOCK_BODY_BYTES: Final = 256 * 1024
MAX_QUEUE_ENDS: Final = 100_000
MAX_POP_GROUPS: Final = 10_000
POPS_SEARCH_MS: Final = 1_000
"""Time between two searches of a full table of groups, each of which takes 1 ms: anybody may fill it."""
MAX_SEND_DURATION_S: Final = 60.0
"""Time after which an unanswered send no longer counts; longer than any broker or client waits."""
MAX_READ_DURATION_S: Final = 120.0
"""Time after which a read at the target no longer counts as waiting. Stock clients let brokers wait 15, 20 or 30 s."""
LOCK_LEASE_S: Final = 60.0
"""Lifetime of a lock that is not renewed. Source: RebalanceLockManager.REBALANCE_LOCK_MAX_LIVE_TIME, 5.4.0."""

QueueOnSide = tuple[Side, str, str, int]
"""Side, topic, broker, queue id."""


def topic_of_send(command: Command) -> str:
    """Return the topic of a send of any of the three codes."""
    return command.ext.get("topic" if command.code == SendMessage.code else "b", "")


def properties_of_send(command: Command) -> dict[str, str]:
    """Return the properties of a send of any of the three codes."""
    return decode_properties(command.ext.get("properties" if command.code == SendMessage.code else "i") or "")


class GroupPops(NamedTuple):
    """A group's pops of a topic: the end of the last invisible time, in ms since 1970, and the longest one."""

    invisible_until_ms: int
    longest_ms: int


NO_POPS: Final = GroupPops(0, 0)


class MoveTraffic:
    """An Observer of exchanges. `topics` are those whose sends count; while there are none only locks and pops are
    observed.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self.topics: frozenset[str] = frozenset()
        self._now_s = now_s
        self._unanswered_sends: dict[str, dict[int, list[float]]] = {}
        self._waiting_reads: dict[str, dict[int, list[float]]] = {}
        self._reads_watched = False
        self._ends: dict[QueueOnSide, int] = {}
        self._half_messages: OrderedDict[str, Side] = OrderedDict()
        self._lock_holders: OrderedDict[tuple[str, str], dict[MessageQueue, float]] = OrderedDict()
        self._pops: dict[tuple[str, str], GroupPops] = {}
        self._pops_searched_ms = 0
        self._first_pops: set[tuple[str, str]] = set()

    def watch_topics(self, topics: Collection[str]) -> None:
        """Count the sends of these topics from now on, and forget all others."""
        self.topics = frozenset(topics)
        # Reads that wait at the target are observed until they are answered, also when no topic moves any more.
        self._reads_watched = bool(self._waiting_reads)
        self._unanswered_sends = {topic: self._unanswered_sends.get(topic, {}) for topic in self.topics}
        self._ends = {queue: end for queue, end in self._ends.items() if queue[1] in self.topics}

    # -- an Observer ----------------------------------------------------------------------------------------------

    def codes(self) -> Collection[int]:
        """Return the codes of locks and pops, and while topics are watched those of their sends and check-backs."""
        codes = LOCK_CODES | POP_CODES
        if self._reads_watched:
            codes |= READ_CODES
        if self.topics:
            codes |= SEND_CODES | {CheckTransactionState.code}
        return codes

    def observe(self, exchange: Exchange) -> None:
        """Update the tables from one exchange."""
        if exchange.code in READ_CODES and exchange.side is Side.TARGET:
            self._observe_read(exchange)
        if exchange.code in SEND_CODES:
            self._observe_send(exchange)
        elif exchange.code in LOCK_CODES:
            self._observe_lock(exchange)
        elif exchange.code in POP_CODES:
            self._observe_pop(exchange)
        elif exchange.reverse:
            self._observe_check_back(exchange)

    # -- sends ----------------------------------------------------------------------------------------------------

    def note_send(self, topic: str, frame: bytes) -> None:
        """Count a send of a watched topic that is passed on; call it once per send."""
        # By hash, since the frames would take memory. Frames with the same hash share an entry with several times.
        self._unanswered_sends[topic].setdefault(hash(frame), []).append(self._now_s())

    def count_unanswered_sends(self, topic: str) -> int:
        """Return the number of sends of a watched topic that were passed on and are not answered."""
        return _count_younger(self._unanswered_sends.get(topic, {}), self._now_s() - MAX_SEND_DURATION_S)

    def answered_end(self, side: Side, topic: str, broker: str, queue_id: int) -> int:
        """Return the offset after the last message that an answer reported; 0 if there was none."""
        return self._ends.get((side, topic, broker, queue_id), 0)

    def side_of_half_message(self, *ids: str) -> Side | None:
        """Return the side that stored the half message with one of these ids; None if unknown."""
        return next(
            (self._half_messages[message_id] for message_id in ids if message_id in self._half_messages), None
        )

    def _observe_send(self, exchange: Exchange) -> None:
        topic = topic_of_send(exchange.request_command)
        unanswered = self._unanswered_sends.get(topic)
        if unanswered is None:
            return
        _forget_frame(unanswered, exchange.request)
        answer = exchange.answer_command
        if answer is None or answer.code not in STORED_CODES:
            return
        properties = properties_of_send(exchange.request_command)
        if properties.get(names.TRANSACTION_PREPARED, "").lower() == "true":
            self._note_half_message(properties.get(names.UNIQ_CLIENT_MESSAGE_ID_KEYIDX, ""), exchange.side)
        elif not _is_delayed(properties):
            self._note_end(exchange, topic, answer)

    def _note_end(self, exchange: Exchange, topic: str, answer: Command) -> None:
        queue = exchange.side, topic, exchange.broker, parse_java_integer(answer.ext["queueId"], I32)
        offset = parse_java_integer(answer.ext["queueOffset"])
        # The answer to a batch names one message id for each of its messages.
        end = offset + answer.ext.get("msgId", "").count(",") + 1
        if queue in self._ends or len(self._ends) < MAX_QUEUE_ENDS:
            self._ends[queue] = max(end, self._ends.get(queue, 0))

    def _note_half_message(self, unique_key: str, side: Side) -> None:
        if unique_key:
            self._half_messages[unique_key] = side
            if len(self._half_messages) > MAX_HALF_MESSAGES:
                self._half_messages.popitem(last=False)

    def _observe_check_back(self, exchange: Exchange) -> None:
        """Note the side that asks about a half message: that side has it."""
        ext = exchange.request_command.ext
        for name in ("msgId", "transactionId"):
            self._note_half_message(ext.get(name, ""), exchange.side)

    # -- reads of the target --------------------------------------------------------------------------------------

    def note_read(self, topic: str, frame: bytes) -> bool:
        """Count a read that is passed to the target; call it once per read. Return True if `codes` changed."""
        first, self._reads_watched = not self._reads_watched, True
        self._waiting_reads.setdefault(topic, {}).setdefault(hash(frame), []).append(self._now_s())
        return first

    def count_waiting_reads(self, topic: str) -> int:
        """Return the number of reads of a topic that wait at the target."""
        return _count_younger(self._waiting_reads.get(topic, {}), self._now_s() - MAX_READ_DURATION_S)

    def _observe_read(self, exchange: Exchange) -> None:
        topic = exchange.request_command.ext.get("topic", "")
        reads = self._waiting_reads.get(topic, {})
        _forget_frame(reads, exchange.request)
        if not reads:
            self._waiting_reads.pop(topic, None)

    # -- locks ----------------------------------------------------------------------------------------------------

    def held_locks(self, group: str, now_s: float) -> dict[str, list[MessageQueue]]:
        """Return the queues that the clients of a group have locked, by client id."""
        return {
            client: held
            for (owner, client), queues in self._lock_holders.items()
            if owner == group
            and (held := [queue for queue, at in queues.items() if now_s - at < LOCK_LEASE_S])
        }

    def _observe_lock(self, exchange: Exchange) -> None:
        if exchange.size_bytes > MAX_LOCK_BODY_BYTES:
            return
        try:
            if exchange.code == UnlockBatchMq.code:
                self._remove_locks(UnlockBatchRequestBody.from_json(exchange.request_command.body))
            elif exchange.answer_command is not None and exchange.answer_command.code == ResponseCode.SUCCESS:
                held = LockBatchResponseBody.from_json(exchange.answer_command.body).lock_okmq_set
                self._add_locks(
                    LockBatchRequestBody.from_json(exchange.request_command.body), held, exchange.answered_s
                )
        except RequestError:
            return  # no broker understands such a body either

    def _add_locks(self, body: LockBatchRequestBody, held: list[MessageQueue], at_s: float) -> None:
        key = body.consumer_group, body.client_id
        queues = self._lock_holders.setdefault(key, {})
        self._lock_holders.move_to_end(key)
        # Queues that were requested and not granted are locked by another client now.
        for queue in body.mq_set:
            queues.pop(queue, None)
        queues |= dict.fromkeys(held[: max(0, MAX_LOCKED_QUEUES - len(queues))], at_s)
        if len(self._lock_holders) > MAX_LOCK_HOLDERS:
            self._lock_holders.popitem(last=False)

    def _remove_locks(self, body: UnlockBatchRequestBody) -> None:
        queues = self._lock_holders.get((body.consumer_group, body.client_id), {})
        for queue in body.mq_set:
            queues.pop(queue, None)

    # -- pop ------------------------------------------------------------------------------------------------------

    def invisible_until_ms(self, group: str, topic: str) -> int:
        """Return the time until which messages that the group popped are invisible, in ms since 1970; 0 if there
        are none.
        """
        return self._pops.get((group, topic), NO_POPS).invisible_until_ms

    def note_pop(self, group: str, topic: str) -> None:
        """Note that a group asks for messages of a topic."""
        key = group, original_topic(topic, group)
        if key not in self._pops and len(self._first_pops) < MAX_POP_GROUPS:
            self._first_pops.add(key)

    def is_first_pop_waiting(self, group: str, topic: str) -> bool:
        """Tell whether a group's first pop is not answered yet, so that its invisible time is unknown."""
        return (group, topic) in self._first_pops

    def _observe_pop(self, exchange: Exchange) -> None:
        request_fields, answer = exchange.request_command.ext, exchange.answer_command
        group = request_fields.get("consumerGroup", "")
        key = group, original_topic(request_fields.get("topic", ""), group)
        self._first_pops.discard(key)
        try:
            invisible_ms = max(0, parse_java_integer(request_fields.get("invisibleTime") or "0"))
        except JavaNumberError:
            return  # Brokers refuse such a pop.
        pops = self._pops.get(key)
        if answer is None:
            # The broker may have popped messages all the same: nobody has them, and they come back. The time is that of
            # pops that a broker accepted, because this one may be of a client without permission.
            if pops is None:
                return
            invisible_ms = min(invisible_ms, pops.longest_ms)
        elif answer.code in NO_MESSAGE_CODES:
            # What the group popped before, through an earlier run of the gateway or through a Proxy, is unknown.
            if pops is None:
                self._note_pops(key, exchange.wall_ms, exchange.wall_ms + invisible_ms, invisible_ms)
            return
        elif answer.code != ResponseCode.SUCCESS:
            return
        # By the gateway's clock, as the broker's may differ: the messages were popped before the answer came.
        answered_ms = exchange.wall_ms + math.ceil((exchange.answered_s - exchange.asked_s) * 1000)
        self._note_pops(key, exchange.wall_ms, answered_ms + invisible_ms, invisible_ms)

    def _note_pops(self, key: tuple[str, str], now_ms: int, until_ms: int, invisible_ms: int) -> None:
        if key not in self._pops and len(self._pops) >= MAX_POP_GROUPS:
            self._forget_visible(now_ms)
        pops = self._pops.get(key, NO_POPS)
        if pops is not NO_POPS or len(self._pops) < MAX_POP_GROUPS:
            self._pops[key] = GroupPops(
                max(until_ms, pops.invisible_until_ms), max(invisible_ms, pops.longest_ms)
            )

    def _forget_visible(self, now_ms: int) -> None:
        """Forget the groups whose popped messages are visible again, at most once in POPS_SEARCH_MS."""
        if 0 <= now_ms - self._pops_searched_ms < POPS_SEARCH_MS:
            return
        self._pops_searched_ms = now_ms
        self._pops = {key: pops for key, pops in self._pops.items() if pops.invisible_until_ms > now_ms}


def _count_younger(under_way: dict[int, list[float]], since_s: float) -> int:
    """Count the entries that began at or after a time, and forget the others."""
    for key in [key for key, times in under_way.items() if times[-1] < since_s]:
        del under_way[key]
    return sum(map(len, under_way.values()))


def _forget_frame(under_way: dict[int, list[float]], frame: bytes) -> None:
    """Forget one of the frames that are equal to this one: it was answered."""
    times = under_way.get(hash(frame), [])
    if len(times) > 1:
        times.pop()
    else:
        under_way.pop(hash(frame), None)


def _is_delayed(properties: dict[str, str]) -> bool:
    """Tell whether a message is delivered later, so that the offset in its answer is not one of its queue."""
    return properties.get(names.DELAY_TIME_LEVEL, "0") != "0" or any(
        name in properties for name in (names.TIMER_DELAY_SEC, "TIMER_DELAY_MS", names.TIMER_DELIVER_MS)
    )
