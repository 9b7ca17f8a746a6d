"""Pops and notifications that wait for a message, and are answered when their group can pop one.

They are held as long polls under the name of a queue that does not exist, one per topic and group. A watcher on each
real queue answers them. Source: PopLongPollingService, 5.4.0. Deviation: waiting requests are not scanned every 20 ms,
and a pop whose filter rejects the new message continues to wait.
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
ANSWER_EARLY_MS: Final = 50
"""A waiting request is answered this long before its client gives up. Source: PopRequest.isTimeout, 5.4.0."""
CountAvailable = Callable[[], int]


class WaitingOrderedPop(WaitingPull):
    """A waiting pop in order."""

    __slots__ = ()


class _WaitingGroup:
    """The waiting requests of one group for one topic: their queue ids, and the queues that are watched for them."""

    __slots__ = ("available", "group", "name", "queue_ids", "topic", "watched")

    def __init__(self, topic: str, group: str) -> None:
        self.topic = topic
        self.group = group
        self.name = f"{topic}@{group}"
        self.queue_ids: dict[int, None] = {}
        self.available: dict[int, CountAvailable] = {}
        self.watched: set[QueueKey] = set()


class WaitingPops:
    """All waiting pops and notifications of a broker."""

    def __init__(self, config: BrokerConfig, clock: Clock, long_polls: LongPolls, topics: TopicTable) -> None:
        self.config = config
        self._clock = clock
        self._long_polls = long_polls
        self._topics = topics
        self._groups: dict[tuple[str, str], _WaitingGroup] = {}

    # -- holding ---------------------------------------------------------------------------------------------

    def refusal_code(self, key: QueueKey, born_ms: int, poll_ms: int) -> int | None:
        """Return the response code for a request that may not wait; None when it may."""
        if poll_ms <= 0:
            return ResponseCode.POLLING_TIMEOUT
        if len(self._long_polls) >= self.config.pop.max_pop_polling_size:
            return ResponseCode.POLLING_FULL
        if self._clock.now_ms() > born_ms + poll_ms - ANSWER_EARLY_MS:
            return ResponseCode.POLLING_TIMEOUT
        if self._long_polls.count_waiting(key) > self.config.pop.pop_polling_size:
            return ResponseCode.POLLING_FULL
        return None

    @staticmethod
    def pop_key(topic: str, group: str, queue_id: int) -> QueueKey:
        """Return the key, in the long polls, under which pops wait."""
        return f"{topic}@{group}", queue_id

    @staticmethod
    def notification_key(topic: str, group: str, queue_id: int) -> QueueKey:
        """Return the key, in the long polls, under which notifications wait."""
        return f"{topic}@{group}@notification", queue_id

    def hold_pop(self, pop: WaitingPull, topic: str, group: str, until_ms: int) -> None:
        """Hold a pop whose queue is a `pop_key`. Raises RequestError for too many requests of its connection."""
        self._find_or_create_group(topic, group).queue_ids[pop.queue[1]] = None
        self._hold_until(pop, until_ms)

    def hold_notification(
        self, notification: WaitingPull, topic: str, group: str, until_ms: int, available: CountAvailable
    ) -> None:
        """Hold a notification whose queue is a `notification_key`. ``available`` counts the messages its group can pop.
        Raises RequestError as `hold_pop` does.
        """
        self._find_or_create_group(topic, group).available[notification.queue[1]] = available
        self._hold_until(notification, until_ms)

    def _hold_until(self, waiting: WaitingPull, until_ms: int) -> None:
        wait_ms = until_ms - ANSWER_EARLY_MS - self._clock.now_ms()
        self._long_polls.hold(waiting, min(wait_ms, self.config.limits.max_suspend_ms))

    def _find_or_create_group(self, topic: str, group: str) -> _WaitingGroup:
        waiting_group = self._groups.get((topic, group))
        if waiting_group is None:
            waiting_group = self._groups[topic, group] = _WaitingGroup(topic, group)
        config = self._topics.get(topic)
        for queue_id in range(0 if config is None else config.read_queue_nums):
            self._watch_queue(waiting_group, (topic, queue_id))
        for v2 in (False, True):
            retry = pop_retry_topic(topic, group, v2=v2)
            known = self._topics.get(retry)
            for queue_id in range(1 if known is None else known.read_queue_nums):
                self._watch_queue(waiting_group, (retry, queue_id))
        return waiting_group

    def _watch_queue(self, waiting_group: _WaitingGroup, queue: QueueKey) -> None:
        if queue not in waiting_group.watched:
            waiting_group.watched.add(queue)
            self._long_polls.watch_queue(queue, partial(self._answer_after_growth, waiting_group, queue))

    # -- answering ----------------------------------------------------------------------------------------

    def _answer_after_growth(self, waiting_group: _WaitingGroup, queue: QueueKey) -> bool:
        """Answer requests after a queue grew.

        Return False, which ends the watch, when none of the group waits any more.
        """
        waiting = False
        for queue_id in list(waiting_group.queue_ids):
            waiting = self._answer_pops(waiting_group, queue_id) or waiting
        for queue_id in list(waiting_group.available):
            waiting = self._answer_notifications(waiting_group, queue_id) or waiting
        if not waiting:
            waiting_group.watched.discard(queue)
            if not waiting_group.watched:
                self._groups.pop((waiting_group.topic, waiting_group.group), None)
        return waiting

    def count_waiting(self, topic: str, group: str, queue_id: int) -> int:
        """Return the number of waiting pops of a queue id."""
        return self._long_polls.count_waiting(self.pop_key(topic, group, queue_id))

    def mark_for_retry(self, topic: str, group: str, queue_id: int) -> None:
        """Let the next `LongPolls.answer_marked` try waiting pops again, because a pop left messages for them."""
        self._long_polls.mark_grown(*self.pop_key(topic, group, queue_id))

    def answer_waiting(self, topic: str, group: str) -> None:
        """Answer waiting requests whose messages became visible without a new message arriving."""
        waiting_group = self._groups.get((topic, group))
        if waiting_group is not None:
            for queue_id in list(waiting_group.queue_ids):
                self._answer_pops(waiting_group, queue_id)
            for queue_id in list(waiting_group.available):
                self._answer_notifications(waiting_group, queue_id)

    def _answer_pops(self, waiting_group: _WaitingGroup, queue_id: int) -> bool:
        """Answer pops, first come first served, until one finds no message; return whether any still waits.

        An ordered pop that finds no message does not end the round: it may be blocked by messages of another attempt,
        which do not block that attempt's own pops.
        """
        key = self.pop_key(waiting_group.topic, waiting_group.group, queue_id)
        for waiting in self._long_polls.waiting_for(key):
            if waiting.connection.closed or waiting.try_answer():
                self._long_polls.remove(waiting)
            elif not isinstance(waiting, WaitingOrderedPop):
                return True
        left = self._long_polls.count_waiting(key) > 0
        if not left:
            waiting_group.queue_ids.pop(queue_id, None)
        return left

    def _answer_notifications(self, waiting_group: _WaitingGroup, queue_id: int) -> bool:
        """Answer as many notifications as there are messages, latest first; return whether any still waits."""
        key = self.notification_key(waiting_group.topic, waiting_group.group, queue_id)
        held = self._long_polls.waiting_for(key)
        count = waiting_group.available[queue_id]() if held else 0
        for waiting in reversed(held[-count:] if count > 0 else []):
            if waiting.connection.closed or waiting.try_answer():
                self._long_polls.remove(waiting)
        left = self._long_polls.count_waiting(key) > 0
        if not left:
            waiting_group.available.pop(queue_id, None)
        return left
