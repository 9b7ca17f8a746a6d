"""NOTIFICATION, PEEK_MESSAGE and POLLING_INFO: questions about what could be popped, which take nothing.

Not responsible for waiting (waits). Source: NotificationProcessor, PeekMessageProcessor, PollingInfoProcessor, 5.4.0.
"""

import random
from collections.abc import Iterator

from codec.constants import ResponseCode
from gateway.broker.long_poll import WaitingPull
from gateway.broker.pop.ordered_pops import OrderTable
from gateway.broker.pop.pop_handler import WRONG_OFFSET
from gateway.broker.pop.pop_offsets import Positions
from gateway.broker.pop.receipts import pop_retry_topic
from gateway.broker.pop.request_checks import PopChecks
from gateway.broker.pop.waiting_pops import PopWaits
from gateway.broker.topic_table import TopicTable
from gateway.broker.traffic_stats import BrokerStats
from gateway.config.process import BrokerConfig
from remoting.handler_table import ANSWERS_LATER, AnswersLater, Call
from remoting.requests.pop import (
    Notification,
    NotificationReply,
    PeekMessage,
    PeekMessageReply,
    PollingInfo,
    PollingInfoReply,
)
from storage.clock import Clock
from storage.queue_read import ReadStatus
from storage.store import MessageStore


class PopLooks:
    """Looks at what a group could pop."""

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        store: MessageStore,
        topics: TopicTable,
        positions: Positions,
        orders: OrderTable,
        waits: PopWaits,
        checks: PopChecks,
        stats: BrokerStats,
    ) -> None:
        self.config = config
        self._clock = clock
        self._store = store
        self._topics = topics
        self._positions = positions
        self._orders = orders
        self._waits = waits
        self._checks = checks
        self._got = stats.got

    # -- notifications --------------------------------------------------------------------------------------

    def notify(self, request: Notification, call: Call) -> NotificationReply | AnswersLater:
        """Whether there is a message; waits for one as long as the request allows. Raises RequestError."""
        topic, group, queue_id = request.topic, request.consumer_group, request.queue_id
        self._checks.check_read(call.connection, topic, queue_id, group)
        born_ms = request.born_time or self._clock.now_ms()
        if self._has_message(request):
            return NotificationReply(has_msg=True)
        key = self._waits.notification_key(topic, group, queue_id)
        code = self._waits.refusal(key, born_ms, request.poll_time)
        if code is not None:
            return NotificationReply(has_msg=False, polling_full=code == ResponseCode.POLLING_FULL)

        def try_answer() -> bool:
            found = self._has_message(request)
            if found:
                call.reply(NotificationReply(has_msg=True))
            return found

        def expire() -> None:
            call.reply(NotificationReply(has_msg=self._has_message(request)))

        waiting = WaitingPull(call.connection, key, try_answer, expire)
        until_ms = born_ms + request.poll_time
        self._waits.hold_notification(waiting, topic, group, until_ms, lambda: self._available(request))
        return ANSWERS_LATER

    def _has_message(self, request: Notification) -> bool:
        return any(count > 0 for count in self._counts(request))

    def _available(self, request: Notification) -> int:
        """How many notifications like this one have a message each."""
        return sum(max(0, count) for count in self._counts(request))

    def _counts(self, request: Notification) -> Iterator[int]:
        """Messages not popped yet, queue by queue, retry topics last; a queue that is blocked has none."""
        topic, group = request.topic, request.consumer_group
        for name, queue_id in self._queues(topic, group, request.queue_id):
            blocked = request.order and self._orders.is_blocked(request.attempt_id, topic, group, queue_id, 0)
            yield 0 if blocked else self._positions.available(name, group, queue_id)

    def _queues(self, topic: str, group: str, queue_id: int) -> Iterator[tuple[str, int]]:
        if queue_id >= 0:
            yield topic, queue_id
        else:
            yield from self._all_queues(topic)
        v2 = self.config.pop.enable_retry_topic_v2
        yield from self._all_queues(pop_retry_topic(topic, group, v2=v2))
        if v2 and self.config.pop.retrieve_message_from_pop_retry_topic_v1:
            yield from self._all_queues(pop_retry_topic(topic, group, v2=False))

    def _all_queues(self, topic: str) -> Iterator[tuple[str, int]]:
        config = self._topics.get(topic)
        queues = 0 if config is None else config.read_queue_nums
        first = random.randrange(100)
        for number in range(queues):
            yield topic, (first + number) % queues

    # -- peeking --------------------------------------------------------------------------------------------

    def peek(self, request: PeekMessage, call: Call) -> PeekMessageReply:
        """Messages a pop would bring, which stay where they are. Raises RequestError, PULL_NOT_FOUND for none."""
        topic, group = request.topic, request.consumer_group
        self._checks.check_read(call.connection, topic, request.queue_id, group)
        own = [(topic, request.queue_id)] if request.queue_id >= 0 else list(self._all_queues(topic))
        retry = list(
            self._all_queues(pop_retry_topic(topic, group, v2=self.config.pop.enable_retry_topic_v2))
        )
        queues = retry + own if random.randrange(5) == 0 else own + retry
        chunks: list[memoryview] = []
        rest = count = 0
        for name, queue_id in queues:
            rest += self._positions.available(name, group, queue_id)
            taken, found = self._peek_queue(name, group, queue_id, request.max_msg_nums - count)
            count += taken
            chunks += found
        reply = PeekMessageReply(pop_time=0, invisible_time=0, revive_qid=0, rest_num=rest)
        reply.body = b"".join(chunks)
        if count:
            self._got[group, topic].add(count, len(reply.body))
        reply.code = ResponseCode.SUCCESS if count else ResponseCode.PULL_NOT_FOUND
        reply.remark = (ReadStatus.FOUND if count else ReadStatus.NO_MESSAGE_IN_QUEUE).name
        return reply

    def _peek_queue(self, topic: str, group: str, queue_id: int, room: int) -> tuple[int, list[memoryview]]:
        offset = self._positions.peek(topic, group, queue_id)
        if room <= 0:
            return 0, []
        result = self._store.read(topic, queue_id, offset, room)
        if result.status in WRONG_OFFSET:
            result = self._store.read(topic, queue_id, result.next_offset, room)
        return result.count, result.chunks

    # -- who waits ------------------------------------------------------------------------------------------

    def polling_info(self, request: PollingInfo, call: Call) -> PollingInfoReply:
        """How many pops of exactly this queue (or of all, -1) wait. Raises RequestError."""
        topic, group, queue_id = request.topic, request.consumer_group, request.queue_id
        self._checks.check_read(call.connection, topic, queue_id, group)
        return PollingInfoReply(polling_num=self._waits.waiting(topic, group, queue_id))
