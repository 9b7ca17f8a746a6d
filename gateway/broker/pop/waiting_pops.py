"""Pops and notifications that wait for a message, and are answered when their group can pop one.

The requests of one group for one topic share a list per queue id; `ALL_QUEUES` is the id of those that take from any
queue. When a queue of the topic, or of one of the group's retry topics, grows, a job of `long_poll.py` tries them in
turn. Source: PopLongPollingService, 5.4.0. Deviation: waiting requests are not scanned every 20 ms, and a pop whose
filter rejects the new message continues to wait.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final

from codec.constants import ResponseCode
from gateway.broker.pop.receipts import pop_retry_topic
from gateway.broker.waiting.long_poll import LongPolls
from gateway.broker.waiting.waiting_requests import ANSWERED, NOTHING, UNFINISHED, WaitingRequest, WaitOutcome
from gateway.config.process import BrokerConfig
from remoting.connection import Connection
from storage.clock import Clock

ALL_QUEUES: Final = -1
ANSWER_EARLY_MS: Final = 50
"""A waiting request is answered this long before its client gives up. Source: PopRequest.isTimeout, 5.4.0."""
CountAvailable = Callable[[], int]


class WaitingPop(WaitingRequest):
    """A waiting pop, or a waiting notification.

    An ordered pop that finds no message may be blocked by messages of another attempt, which do not block that
    attempt's own pops.
    """

    __slots__ = ("is_ordered",)

    def __init__(self, connection: Connection, *, is_ordered: bool = False) -> None:
        super().__init__(connection)
        self.is_ordered = is_ordered

    def try_answer(self) -> WaitOutcome:
        """Answer the request if there is a message for it."""
        raise NotImplementedError


class _PopList:
    """Waiting requests of one kind for one queue id, oldest first. ``forget`` is called when the last one leaves."""

    __slots__ = ("_forget", "_requests", "available")

    def __init__(self, forget: Callable[[], object]) -> None:
        self._requests: dict[WaitingPop, None] = {}
        self._forget = forget
        self.available: CountAvailable = lambda: 0

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, request: WaitingRequest) -> None:
        assert isinstance(request, WaitingPop)
        self._requests[request] = None

    def discard(self, request: WaitingRequest) -> None:
        assert isinstance(request, WaitingPop)
        del self._requests[request]
        if not self._requests:
            self._forget()

    def requests(self) -> list[WaitingPop]:
        """Return the requests that wait now, oldest first."""
        return list(self._requests)


class _WaitingGroup:
    """The waiting requests of one group for one topic, by queue id."""

    __slots__ = ("notifications", "pops", "topic", "watchers")

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.pops: dict[int, _PopList] = {}
        self.notifications: dict[int, _PopList] = {}
        self.watchers: list[tuple[str, Callable[[int], Iterator[None]]]] = []


class WaitingPops:
    """All waiting pops and notifications of a broker."""

    def __init__(self, config: BrokerConfig, clock: Clock, long_polls: LongPolls) -> None:
        self.config = config
        self._clock = clock
        self._long_polls = long_polls
        self._groups: dict[tuple[str, str], _WaitingGroup] = {}

    # -- holding ---------------------------------------------------------------------------------------------

    def refusal_code(self, waiting: int, born_ms: int, poll_ms: int) -> int | None:
        """Return the response code for a request that may not wait beside ``waiting`` others; None when it may."""
        if poll_ms <= 0:
            return ResponseCode.POLLING_TIMEOUT
        limit = min(self.config.pop.max_pop_polling_size, self.config.limits.max_long_polls)
        if len(self._long_polls) >= limit:
            return ResponseCode.POLLING_FULL
        if self._clock.now_ms() > born_ms + poll_ms - ANSWER_EARLY_MS:
            return ResponseCode.POLLING_TIMEOUT
        if waiting > self.config.pop.pop_polling_size:
            return ResponseCode.POLLING_FULL
        return None

    def hold_pop(self, pop: WaitingPop, topic: str, group: str, queue_id: int, until_ms: int) -> None:
        """Hold a pop. Raises RequestError for too many requests of its connection."""
        lists = self._find_or_create_group(topic, group).pops
        self._hold_until(pop, self._find_or_create_list(topic, group, lists, queue_id), until_ms)

    def hold_notification(
        self,
        notification: WaitingPop,
        topic: str,
        group: str,
        queue_id: int,
        until_ms: int,
        available: CountAvailable,
    ) -> None:
        """Hold a notification. ``available`` counts the messages that its group can pop.

        Raises RequestError as `hold_pop` does.
        """
        lists = self._find_or_create_group(topic, group).notifications
        waiting = self._find_or_create_list(topic, group, lists, queue_id)
        waiting.available = available
        self._hold_until(notification, waiting, until_ms)

    def _hold_until(self, pop: WaitingPop, waiting: _PopList, until_ms: int) -> None:
        wait_ms = until_ms - ANSWER_EARLY_MS - self._clock.now_ms()
        self._long_polls.hold(pop, waiting, min(wait_ms, self.config.limits.max_suspend_ms))

    def _find_or_create_group(self, topic: str, group: str) -> _WaitingGroup:
        waiting = self._groups.get((topic, group))
        if waiting is None:
            waiting = self._groups[topic, group] = _WaitingGroup(topic)
            for name in (topic, *(pop_retry_topic(topic, group, v2=v2) for v2 in (False, True))):
                watcher = partial(self._steps_after_growth, waiting, name)
                waiting.watchers.append((name, watcher))
                self._long_polls.watch_topic(name, watcher)
        return waiting

    def _find_or_create_list(
        self, topic: str, group: str, lists: dict[int, _PopList], queue_id: int
    ) -> _PopList:
        key = max(queue_id, ALL_QUEUES)
        pop_list = lists.get(key)
        if pop_list is None:
            pop_list = lists[key] = _PopList(partial(self._forget_list, topic, group, lists, key))
        return pop_list

    def _forget_list(self, topic: str, group: str, lists: dict[int, _PopList], queue_id: int) -> None:
        """Forget an empty list, and with its last list the group."""
        del lists[queue_id]
        waiting = self._groups[topic, group]
        if not waiting.pops and not waiting.notifications:
            del self._groups[topic, group]
            for name, watcher in waiting.watchers:
                self._long_polls.unwatch_topic(name, watcher)

    def count_waiting(self, topic: str, group: str, queue_id: int) -> int:
        """Return the number of waiting pops of a queue id."""
        waiting = self._groups.get((topic, group))
        return 0 if waiting is None else len(waiting.pops.get(max(queue_id, ALL_QUEUES), ()))

    def count_notifications(self, topic: str, group: str, queue_id: int) -> int:
        """Return the number of waiting notifications of a queue id."""
        waiting = self._groups.get((topic, group))
        return 0 if waiting is None else len(waiting.notifications.get(max(queue_id, ALL_QUEUES), ()))

    def waiting_requests(self, topic: str) -> list[WaitingPop]:
        """Return the pops and notifications that wait for messages of a topic."""
        return [
            request
            for waiting in self._groups.values()
            if waiting.topic == topic
            for lists in (waiting.pops, waiting.notifications)
            for waiting_list in lists.values()
            for request in waiting_list.requests()
        ]

    # -- answering ----------------------------------------------------------------------------------------

    def mark_for_retry(self, topic: str, group: str, queue_id: int) -> None:
        """Let the next `LongPolls.answer_marked` try waiting pops again, because a pop left messages for them."""
        waiting = self._groups.get((topic, group))
        key = max(queue_id, ALL_QUEUES)
        if waiting is not None and key in waiting.pops:
            self._long_polls.mark_work((topic, group, key), lambda: self._pop_steps(waiting, (key,)))

    def answer_waiting(self, topic: str, group: str) -> None:
        """Let the next `LongPolls.answer_marked` answer waiting requests whose messages became visible without a new
        message arriving.
        """
        waiting = self._groups.get((topic, group))
        if waiting is not None:
            self._long_polls.mark_work((topic, group), lambda: self._all_steps(waiting))

    def _steps_after_growth(self, waiting: _WaitingGroup, name: str, queue_id: int) -> Iterator[None]:
        """Try the requests for a queue that grew. Messages of retry topics are for requests of any queue."""
        if name != waiting.topic:
            yield from self._all_steps(waiting)
            return
        yield from self._pop_steps(waiting, (queue_id, ALL_QUEUES))
        yield from self._notification_steps(waiting, (queue_id, ALL_QUEUES))

    def _all_steps(self, waiting: _WaitingGroup) -> Iterator[None]:
        yield from self._pop_steps(waiting, list(waiting.pops))
        yield from self._notification_steps(waiting, list(waiting.notifications))

    def _pop_steps(self, waiting: _WaitingGroup, queue_ids: Iterable[int]) -> Iterator[None]:
        """Answer the pops of each queue id, first come first served, until one finds no message."""
        for queue_id in queue_ids:
            pop_list = waiting.pops.get(queue_id)
            pops = deque(() if pop_list is None else pop_list.requests())
            while pops:
                outcome = self._try_request(pops[0])
                if outcome is NOTHING and not pops[0].is_ordered:
                    pops.clear()
                elif outcome is not UNFINISHED:
                    pops.popleft()
                yield

    def _notification_steps(self, waiting: _WaitingGroup, queue_ids: Iterable[int]) -> Iterator[None]:
        """Answer as many notifications of each queue id as there are messages, latest first."""
        for queue_id in queue_ids:
            notification_list = waiting.notifications.get(queue_id)
            if notification_list is None:
                continue
            count = max(0, notification_list.available())
            yield
            for request in reversed(notification_list.requests()[-count:] if count else []):
                self._try_request(request)
                yield

    def _try_request(self, request: WaitingPop) -> WaitOutcome:
        """Answer a request if possible. One that waits no longer counts as answered."""
        if request.waiting_list is None:
            return ANSWERED
        outcome = ANSWERED if request.connection.closed else request.try_answer()
        if outcome is ANSWERED:
            self._long_polls.remove(request)
        return outcome
