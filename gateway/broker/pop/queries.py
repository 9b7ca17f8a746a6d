"""NOTIFICATION, PEEK_MESSAGE and POLLING_INFO: queries about messages that could be popped, which take none.

Source: NotificationProcessor, PeekMessageProcessor, PollingInfoProcessor, 5.4.0.
"""

import random
from collections.abc import Callable, Iterator
from functools import partial

from codec.constants import ResponseCode
from gateway.broker.consumers.broker_tables import BrokerTables
from gateway.broker.messages.message_services import MessageServices
from gateway.broker.pop.pop_handler import WRONG_OFFSET
from gateway.broker.pop.receipts import pop_retry_topic
from gateway.broker.pop.state import PopState
from gateway.broker.pop.waiting_pops import WaitingPop
from gateway.broker.waiting.waiting_requests import ANSWERED, NOTHING, WaitOutcome, keep_header
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
from storage.queue_read import ReadStatus


class PopQueries:
    """Answers queries about the messages that a group could pop."""

    def __init__(
        self, config: BrokerConfig, tables: BrokerTables, services: MessageServices, state: PopState
    ) -> None:
        self.config = config
        self._clock = services.store.clock
        self._store = services.store
        self._got = services.stats.delivered
        self._topics = tables.topics
        self._ordered_pops = state.ordered_pops
        self._waiting_pops = state.waiting_pops
        self._pop_offsets = state.pop_offsets
        self._checks = state.checks

    # -- notifications --------------------------------------------------------------------------------------

    def handle_notification(self, request: Notification, call: Call) -> NotificationReply | AnswersLater:
        """Tell a client whether there is a message, after waiting for one as long as the request allows.

        Raises RequestError.
        """
        topic, group, queue_id = request.topic, request.consumer_group, request.queue_id
        self._checks.check_read(call.connection, topic, queue_id, group)
        born_ms = request.born_time or self._clock.now_ms()
        if self._has_message(request):
            return NotificationReply(has_msg=True)
        waiting = self._waiting_pops.count_notifications(topic, group, queue_id)
        code = self._waiting_pops.refusal_code(waiting, born_ms, request.poll_time)
        if code is None and not keep_header(call.command, "", None):
            code = ResponseCode.POLLING_FULL
        if code is not None:
            return NotificationReply(has_msg=False, polling_full=code == ResponseCode.POLLING_FULL)
        call.command.ext = {}
        self._waiting_pops.hold_notification(
            _HeldNotification(partial(self._has_message, request), call),
            topic,
            group,
            queue_id,
            born_ms + request.poll_time,
            partial(self._count_available, request),
        )
        return ANSWERS_LATER

    def _has_message(self, request: Notification) -> bool:
        return any(count > 0 for count in self._available_by_queue(request))

    def _count_available(self, request: Notification) -> int:
        """Return the number of messages that the group could pop, which is how many notifications may be answered."""
        return sum(max(0, count) for count in self._available_by_queue(request))

    def _available_by_queue(self, request: Notification) -> Iterator[int]:
        """Yield the number of unpopped messages of each queue, retry topics last; 0 for a blocked queue."""
        topic, group = request.topic, request.consumer_group
        for name, queue_id in self._queues(topic, group, request.queue_id):
            blocked = request.order and self._ordered_pops.is_blocked(
                request.attempt_id, topic, group, queue_id, 0
            )
            yield 0 if blocked else self._pop_offsets.count_available(name, group, queue_id)

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
        queues = len(self._topics.queue_ids(0 if config is None else config.read_queue_nums))
        first = random.randrange(100)
        for number in range(queues):
            yield topic, (first + number) % queues

    # -- peeking --------------------------------------------------------------------------------------------

    def handle_peek(self, request: PeekMessage, call: Call) -> PeekMessageReply:
        """Return messages that a pop would bring, without taking them. Raises RequestError, PULL_NOT_FOUND for none."""
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
            rest += self._pop_offsets.count_available(name, group, queue_id)
            queue_count, queue_chunks = self._peek_queue(name, group, queue_id, request.max_msg_nums - count)
            count += queue_count
            chunks += queue_chunks
        reply = PeekMessageReply(pop_time=0, invisible_time=0, revive_qid=0, rest_num=rest)
        reply.body = b"".join(chunks)
        if count:
            self._got[group, topic].count_messages(count, len(reply.body))
        reply.code = ResponseCode.SUCCESS if count else ResponseCode.PULL_NOT_FOUND
        reply.remark = (ReadStatus.FOUND if count else ReadStatus.NO_MESSAGE_IN_QUEUE).name
        return reply

    def _peek_queue(self, topic: str, group: str, queue_id: int, room: int) -> tuple[int, list[memoryview]]:
        offset = self._pop_offsets.peek_offset(topic, group, queue_id)
        if room <= 0:
            return 0, []
        result = self._store.read(topic, queue_id, offset, room)
        if result.status in WRONG_OFFSET:
            result = self._store.read(topic, queue_id, result.next_offset, room)
        return result.count, result.chunks

    # -- polling info ------------------------------------------------------------------------------------------

    def handle_polling_info(self, request: PollingInfo, call: Call) -> PollingInfoReply:
        """Return the number of pops that wait for exactly this queue id (-1 for all queues). Raises RequestError."""
        topic, group, queue_id = request.topic, request.consumer_group, request.queue_id
        self._checks.check_read(call.connection, topic, queue_id, group)
        return PollingInfoReply(polling_num=self._waiting_pops.count_waiting(topic, group, queue_id))


class _HeldNotification(WaitingPop):
    """A waiting notification."""

    __slots__ = ("_call", "_has_message")

    def __init__(self, has_message: Callable[[], bool], call: Call) -> None:
        super().__init__(call.connection)
        self._has_message = has_message
        self._call = call

    def try_answer(self) -> WaitOutcome:
        try:
            if not self._has_message():
                return NOTHING
            self._call.reply(NotificationReply(has_msg=True))
        except Exception as error:  # noqa: BLE001 - becomes the answer, as in `Connection.answer_late`
            self._call.fail(error)
        return ANSWERED

    def expire(self) -> None:
        if self.try_answer() is NOTHING:
            self._call.reply(NotificationReply(has_msg=False))
