"""Pops and notifications that wait for a message: woken when one comes that their group can have.

Not responsible for what the answer is. They are held as long polls of a queue that only exists in name, and
everybody of a group and topic is looked after by one watcher of the real queues.
Source: PopLongPollingService, 5.4.0. Deviation: no scan every 20 ms, and no look at who is filtered out: a pop whose
filter lets nothing through goes on waiting.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

from codec.constants import ResponseCode
from gateway.broker.long_poll import LongPolls, QueueKey, WaitingPull
from gateway.broker.pop.receipts import pop_retry_topic
from gateway.broker.topic_table import TopicTable
from gateway.config.process import BrokerConfig
from storage.clock import Clock

ALL_QUEUES: Final = -1
EARLY_MS: Final = 50
"""How long before its time a waiting request is answered. Source: PopRequest.isTimeout, 5.4.0."""
Available = Callable[[], int]


class OrderedPop(WaitingPull):
    """A waiting pop in order."""

    __slots__ = ()


class _Audience:
    """Whoever of one group waits for one topic: the queue ids they asked for, and the queues watched for them."""

    __slots__ = ("available", "group", "name", "queue_ids", "topic", "watched")

    def __init__(self, topic: str, group: str) -> None:
        self.topic = topic
        self.group = group
        self.name = f"{topic}@{group}"
        self.queue_ids: dict[int, None] = {}
        self.available: dict[int, Available] = {}
        self.watched: set[QueueKey] = set()


class PopWaits:
    """All waiting pops and notifications of a broker."""

    def __init__(self, config: BrokerConfig, clock: Clock, long_polls: LongPolls, topics: TopicTable) -> None:
        self.config = config
        self._clock = clock
        self._long_polls = long_polls
        self._topics = topics
        self._audiences: dict[tuple[str, str], _Audience] = {}

    # -- coming ---------------------------------------------------------------------------------------------

    def refusal(self, key: QueueKey, born_ms: int, poll_ms: int) -> int | None:
        """The response code for a request that may not wait; None when it may."""
        if poll_ms <= 0:
            return ResponseCode.POLLING_TIMEOUT
        if len(self._long_polls) >= self.config.pop.max_pop_polling_size:
            return ResponseCode.POLLING_FULL
        if self._clock.now_ms() > born_ms + poll_ms - EARLY_MS:
            return ResponseCode.POLLING_TIMEOUT
        if self._long_polls.held_count(key) > self.config.pop.pop_polling_size:
            return ResponseCode.POLLING_FULL
        return None

    @staticmethod
    def pop_key(topic: str, group: str, queue_id: int) -> QueueKey:
        """What pops wait for."""
        return f"{topic}@{group}", queue_id

    @staticmethod
    def notification_key(topic: str, group: str, queue_id: int) -> QueueKey:
        """What notifications wait for."""
        return f"{topic}@{group}@notification", queue_id

    def hold_pop(self, pop: WaitingPull, topic: str, group: str, until_ms: int) -> None:
        """Holds a pop of a `pop_key`. Raises RequestError when its connection has too many requests under way."""
        self._audience(topic, group).queue_ids[pop.queue[1]] = None
        self._hold(pop, until_ms)

    def hold_notification(
        self, notification: WaitingPull, topic: str, group: str, until_ms: int, available: Available
    ) -> None:
        """Holds one of a `notification_key`; ``available`` counts the messages there are for it.

        Raises RequestError as `hold_pop`.
        """
        self._audience(topic, group).available[notification.queue[1]] = available
        self._hold(notification, until_ms)

    def _hold(self, waiting: WaitingPull, until_ms: int) -> None:
        self._long_polls.add(waiting, until_ms - EARLY_MS - self._clock.now_ms())

    def _audience(self, topic: str, group: str) -> _Audience:
        audience = self._audiences.get((topic, group))
        if audience is None:
            audience = self._audiences[topic, group] = _Audience(topic, group)
        config = self._topics.get(topic)
        for queue_id in range(0 if config is None else config.read_queue_nums):
            self._watch(audience, (topic, queue_id))
        for v2 in (False, True):
            retry = pop_retry_topic(topic, group, v2=v2)
            known = self._topics.get(retry)
            for queue_id in range(1 if known is None else known.read_queue_nums):
                self._watch(audience, (retry, queue_id))
        return audience

    def _watch(self, audience: _Audience, queue: QueueKey) -> None:
        if queue not in audience.watched:
            audience.watched.add(queue)
            self._long_polls.watch(queue, partial(self._arrived, audience, queue))

    # -- being woken ----------------------------------------------------------------------------------------

    def _arrived(self, audience: _Audience, queue: QueueKey) -> bool:
        """A queue grew; False when nobody of the audience waits any more, so that it is not watched any longer."""
        waiting = False
        for queue_id in list(audience.queue_ids):
            waiting = self._wake_pops(audience, queue_id) or waiting
        for queue_id in list(audience.available):
            waiting = self._wake_notifications(audience, queue_id) or waiting
        if not waiting:
            audience.watched.discard(queue)
            if not audience.watched:
                self._audiences.pop((audience.topic, audience.group), None)
        return waiting

    def waiting(self, topic: str, group: str, queue_id: int) -> int:
        """How many pops of one queue id wait."""
        return self._long_polls.held_count(self.pop_key(topic, group, queue_id))

    def poke(self, topic: str, group: str, queue_id: int) -> None:
        """Has waiting pops looked at in the next `LongPolls.wake`: somebody left messages for them."""
        self._long_polls.appended(*self.pop_key(topic, group, queue_id))

    def wake(self, topic: str, group: str) -> None:
        """Answers who waits and can be: for what becomes visible without a message coming."""
        audience = self._audiences.get((topic, group))
        if audience is not None:
            for queue_id in list(audience.queue_ids):
                self._wake_pops(audience, queue_id)
            for queue_id in list(audience.available):
                self._wake_notifications(audience, queue_id)

    def _wake_pops(self, audience: _Audience, queue_id: int) -> bool:
        """First come first served, until one goes away empty; whether anybody is left.

        Pops in order that are one attempt are not kept back by those of others, so all of them are looked at.
        """
        key = self.pop_key(audience.topic, audience.group, queue_id)
        for waiting in self._long_polls.held(key):
            if waiting.connection.closed or waiting.try_answer():
                self._long_polls.remove(waiting)
            elif not isinstance(waiting, OrderedPop):
                return True
        left = self._long_polls.held_count(key) > 0
        if not left:
            audience.queue_ids.pop(queue_id, None)
        return left

    def _wake_notifications(self, audience: _Audience, queue_id: int) -> bool:
        """As many as there are messages, last come first served; whether anybody is left."""
        key = self.notification_key(audience.topic, audience.group, queue_id)
        held = self._long_polls.held(key)
        count = audience.available[queue_id]() if held else 0
        for waiting in reversed(held[-count:] if count > 0 else []):
            if waiting.connection.closed or waiting.try_answer():
                self._long_polls.remove(waiting)
        left = self._long_polls.held_count(key) > 0
        if not left:
            audience.available.pop(queue_id, None)
        return left
