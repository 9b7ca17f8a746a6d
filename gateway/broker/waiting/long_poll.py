"""Long polls: requests that wait for a message and are answered when there is one, at the latest at their deadline.

Theory of operation
-------------------
Problem: one append may concern tens of thousands of waiting requests, and neither the sender of the message nor any
other client may notice them.

1. `mark_grown` notes that a queue grew. `answer_marked`, which runs once after each batch of requests, turns each mark
   into a *job*: a generator that tries one waiting request per step, oldest first.
2. Jobs run in slices of at most `MAX_SLICE_STEPS` steps and `MAX_SLICE_S`. The first slice runs at once, so that a few
   waiting requests are answered without a task switch. The task `run` continues with the rest, and other tasks have
   their turns between two slices. Jobs take turns within a slice, and new jobs alternate with old ones, so that a queue
   with many waiting requests delays no other queue.
3. Deadlines are rounded up to `TICK_MS`, so that requests with nearly the same deadline share one entry of the heap.
   A job answers the requests whose deadline has come.

Which waiting pulls a new message concerns is decided in `waiting_requests.py`, which pops and notifications in
`pop/waiting_pops.py`. Both are a `WaitingList`, which keeps its requests in order. This module decides when a
request is tried; the request itself knows how it is answered.

Invariant: a request that is held is in its list, in a tick and in its connection's table, and leaves all three at once
(`remove`). An exception of a step ends its job, not the others, and is logged.

Source: PullRequestHoldService, 5.4.0. Deviation: nothing is scanned every 5 s.
"""

import logging
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Final, Protocol, TypeVar

import trio.lowlevel

from gateway.broker.waiting.waiting_requests import (
    ANSWERED,
    FEW_PULLS,
    UNFINISHED,
    QueuePulls,
    WaitingList,
    WaitingPull,
    WaitingRequest,
)
from gateway.broker.waiting.wake_signal import WakeSignal
from remoting.connection import Connection
from storage.clock import Clock

log = logging.getLogger(__name__)

QueueKey = tuple[str, int]
Steps = Iterator[None]
"""A job: each step tries one waiting request."""
Watcher = Callable[[int], Steps]
"""Returns the steps for a queue, by its id, that grew."""

TICK_MS: Final = 20
MAX_HOLD_MS: Final = 24 * 3600 * 1000
"""Longest wait, whatever the caller asks for; handlers apply the configured limit."""
MAX_SLEEP_S: Final = 60.0
MAX_SLICE_S: Final = 0.001
MAX_SLICE_STEPS: Final = 256
STEPS_PER_TURN: Final = 8
"""Steps of one job before the next job has its turn."""
MAX_CODES_READ: Final = 1024
"""Largest number of new messages whose tags are looked at; after more of them every waiting pull is tried."""
_MAX_STALE_TICKS: Final = 1024
_EXPIRY: Final = "expiry"
_ALL: Final = "all requests"


class QueueTags(Protocol):
    """The part of the store that tells which messages are new."""

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset of the next message."""
        ...

    def read_tags_codes(self, topic: str, queue_id: int, start: int, end: int) -> Collection[int] | None:
        """Return the tag hashes of messages [start, end); None if they are not all in one file."""
        ...


class _Job:
    """Steps that are under way. ``key`` keeps the same work from being started twice."""

    __slots__ = ("key", "steps")

    def __init__(self, key: Hashable, steps: Steps) -> None:
        self.key = key
        self.steps = steps


class LongPolls:
    """All waiting requests of a broker, by deadline and connection, and the jobs that answer them."""

    def __init__(self, clock: Clock, queues: QueueTags) -> None:
        self._clock = clock
        self._queue_tags = queues
        self._queues: dict[QueueKey, QueuePulls] = {}
        self._watchers: dict[str, dict[Watcher, None]] = {}
        self._by_connection: dict[Connection, dict[WaitingRequest, None]] = {}
        self._by_tick: dict[int, dict[WaitingRequest, None]] = {}
        # A heap of every tick in the table above. Ticks without requests stay in it until they are due or too many.
        self._ticks: list[int] = []
        self._count = 0
        # Work to start: queues that grew, and other jobs by their keys.
        self._grown: dict[QueueKey, None] = {}
        self._marked: dict[Hashable, Callable[[], Steps]] = {}
        self._new_jobs: deque[_Job] = deque()
        self._jobs: deque[_Job] = deque()
        self._job_keys: set[Hashable] = set()
        self._in_slice = False
        self._work_left = WakeSignal()
        self._sleeping_until: float = 0

    def __len__(self) -> int:
        return self._count

    # -- holding ---------------------------------------------------------------------------------------------

    def hold_pull(self, pull: WaitingPull, queue: QueueKey, timeout_ms: int) -> None:
        """Hold a pull of a queue, of which it has read all messages. Raises RequestError as `hold` does."""
        pulls = self._queues.get(queue)
        if pulls is None:
            seen_until = self._queue_tags.max_offset(*queue)
            pulls = self._queues[queue] = QueuePulls(seen_until, partial(self._queues.pop, queue))
        self.hold(pull, pulls, timeout_ms)

    def hold(self, request: WaitingRequest, waiting_list: WaitingList, timeout_ms: int) -> None:
        """Hold a request in a list until it is answered, its connection closes or ``timeout_ms`` passes.

        Raises RequestError when the connection has too many outstanding requests; the request is released then.
        """
        # Into the list before anything can fail: a list that has just been made for this request is dropped by its
        # discard, and would stay for ever otherwise.
        waiting_list.add(request)
        try:
            request.connection.begin_request()
        except BaseException:
            waiting_list.discard(request)
            request.release()
            raise
        request.waiting_list = waiting_list
        if not 0 < timeout_ms <= MAX_HOLD_MS:
            timeout_ms = 1 if timeout_ms <= 0 else MAX_HOLD_MS
        tick = request.tick = -(-(self._now_ms() + timeout_ms) // TICK_MS)
        self._count += 1
        self._by_connection.setdefault(request.connection, {})[request] = None
        requests = self._by_tick.get(tick)
        if requests is None:
            requests = self._by_tick[tick] = {}
            self._add_tick(tick)
        requests[request] = None
        # `run` sleeps until the earliest deadline it knew; this one comes before that.
        if tick < self._sleeping_until:
            self._work_left.set()

    def _add_tick(self, tick: int) -> None:
        heappush(self._ticks, tick)
        # Clients that poll with long timeouts and are answered early leave a stale tick each: without this, the heap
        # would grow until those deadlines come.
        if len(self._ticks) > 2 * len(self._by_tick) + _MAX_STALE_TICKS:
            self._ticks = list(self._by_tick)
            heapify(self._ticks)

    def remove(self, request: WaitingRequest) -> None:
        """Forget a request. Do nothing when it is not held."""
        waiting_list = request.waiting_list
        if waiting_list is None:
            return
        request.waiting_list = None
        waiting_list.discard(request)
        _discard(self._by_tick, request.tick, request)
        _discard(self._by_connection, request.connection, request)
        self._count -= 1
        request.connection.end_request()
        request.release()

    def drop_connection(self, connection: Connection) -> None:
        """Forget the requests of a closed connection; `run` continues with those of one that had many."""
        requests = self._by_connection.get(connection, {})
        if len(requests) > MAX_SLICE_STEPS:
            self.mark_work(connection, lambda: self._drop_steps(connection))
            self._work_left.set()
            return
        for request in list(requests):
            self.remove(request)

    def _drop_steps(self, connection: Connection) -> Steps:
        while requests := self._by_connection.get(connection):
            self.remove(next(iter(requests)))
            yield

    # -- marking ---------------------------------------------------------------------------------------------

    def mark_grown(self, topic: str, queue_id: int) -> None:
        """Note that a queue grew. This is cheap when no request waits for it."""
        if (topic, queue_id) in self._queues or topic in self._watchers:
            self._grown[topic, queue_id] = None

    def try_pulls(self, topic: str, queue_id: int) -> None:
        """Let the next `answer_marked` try all pulls of a queue, for a reason other than a new message."""
        pulls = self._queues.get((topic, queue_id))
        if pulls is not None:
            self.mark_work(("all", topic, queue_id), lambda: self._pull_steps(pulls.everyone(), 0))

    def answer_topic(self, topic: str, others: Iterable[WaitingRequest] = ()) -> None:
        """Answer the pulls of a deleted topic, and ``others`` that wait for it, as at their deadline.

        A topic that is created again has other messages at the offsets for which they wait.
        """
        requests: list[WaitingRequest] = [
            pull for queue, pulls in self._queues.items() if queue[0] == topic for pull in pulls.everyone()
        ]
        requests += others
        if requests:
            self.mark_work(("deleted", topic), lambda: self._expire_steps(requests))
            self.answer_marked()

    def _expire_steps(self, requests: Iterable[WaitingRequest]) -> Steps:
        for request in requests:
            if request.waiting_list is not None:
                self._expire(request)
                yield

    def mark_work(self, key: Hashable, start: Callable[[], Steps]) -> None:
        """Let the next `answer_marked` start a job, unless one with this key is marked already."""
        self._marked.setdefault(key, start)

    def watch_topic(self, topic: str, watcher: Watcher) -> None:
        """Start the job ``watcher(queue_id)`` in `answer_marked` whenever a queue of a topic grew."""
        self._watchers.setdefault(topic, {})[watcher] = None

    def unwatch_topic(self, topic: str, watcher: Watcher) -> None:
        """End `watch_topic`."""
        watchers = self._watchers[topic]
        del watchers[watcher]
        if not watchers:
            del self._watchers[topic]

    # -- answering -------------------------------------------------------------------------------------------

    def answer_marked(self) -> None:
        """Answer the requests of marked queues that now find messages, or begin to: `run` continues."""
        # Within a slice there is nothing to do: it looks at the marks before each turn.
        if not (self._grown or self._marked or self._jobs) or self._in_slice:
            return
        # The short cut only if no job waits for its turn: it would overtake the requests of those jobs.
        if self._grown and not self._jobs:
            self._answer_few()
        if (self._grown or self._marked or self._jobs or self._new_jobs) and self._run_slice():
            self._work_left.set()

    def _answer_few(self) -> None:
        """Try the pulls of queues that grew, up to one with watchers or many pulls, within the time of a slice.

        A job takes longer to start than the only pull of a queue, which is the usual case, takes to answer.
        """
        end_s = 0.0
        self._in_slice = True
        try:
            while self._grown:
                queue = next(iter(self._grown))
                pulls = self._queues.get(queue)
                if pulls is None or len(pulls) > FEW_PULLS or queue[0] in self._watchers:
                    return
                del self._grown[queue]
                start = self._advance(queue, pulls) or 0
                # No look at tags: four tries cost less than reading the tags of the new messages.
                for pull in pulls.everyone():
                    if self._try_pull(pull, start):
                        # Its filter has more messages to look at than one step may: it goes on in slices.
                        self._start_job(pull, self._pull_steps(iter((pull,)), start))
                if self._grown:  # Usually one queue grew, and no look at the clock is needed.
                    now_s = self._clock.monotonic()
                    end_s = end_s or now_s + MAX_SLICE_S
                    if now_s >= end_s:
                        return
        except Exception:
            log.exception("answering waiting requests failed")
        finally:
            self._in_slice = False

    def _advance(self, queue: QueueKey, pulls: QueuePulls) -> int | None:
        """Return the queue offset of the first message that no pull has seen, and note that now all are seen.

        Return None when the queue became shorter.
        """
        start, pulls.seen_until = pulls.seen_until, self._queue_tags.max_offset(*queue)
        return start if start <= pulls.seen_until else None

    def _run_slice(self) -> bool:
        """Run steps for the time of a slice; return True when work is left. Does nothing within a slice."""
        if self._in_slice:
            return True
        self._in_slice = True
        try:
            monotonic = self._clock.monotonic
            steps_left, end_s = MAX_SLICE_STEPS, monotonic() + MAX_SLICE_S
            turn_of_new = True
            # Marks are looked at before every turn: answers of this slice may have made queues grow.
            while self._start_marked():
                # New and old jobs alternate: a job of a single request, the usual one, does not wait for all long ones,
                # and many new jobs cannot starve an old one.
                jobs = self._new_jobs if self._new_jobs and (turn_of_new or not self._jobs) else self._jobs
                turn_of_new = not turn_of_new
                job = jobs.popleft()
                for _ in range(STEPS_PER_TURN):
                    if not self._run_step(job):
                        self._job_keys.discard(job.key)
                        break
                    steps_left -= 1
                    if not steps_left or monotonic() >= end_s:
                        self._jobs.append(job)
                        return True
                else:
                    self._jobs.append(job)
            return False
        finally:
            self._in_slice = False

    def _start_marked(self) -> bool:
        """Turn marks into jobs, except those whose job is under way; return True when there are jobs.

        A queue whose job is under way stays marked, so that its job runs again: it may have passed the pulls that the
        newest message concerns.
        """
        if self._grown:
            for queue in [queue for queue in self._grown if queue not in self._job_keys]:
                del self._grown[queue]
                self._start_job(queue, self._queue_steps(queue))
        if self._marked:
            for key in [key for key in self._marked if key not in self._job_keys]:
                self._start_job(key, self._marked.pop(key)())
        return bool(self._new_jobs or self._jobs)

    def _start_job(self, key: Hashable, steps: Steps) -> None:
        self._job_keys.add(key)
        self._new_jobs.append(_Job(key, steps))

    @staticmethod
    def _run_step(job: _Job) -> bool:
        """Run one step; return False when the job has ended."""
        try:
            next(job.steps)
        except StopIteration:
            return False
        except Exception:
            log.exception("answering waiting requests failed", extra={"job": job.key})
            return False
        return True

    def _queue_steps(self, queue: QueueKey) -> Steps:
        """Try the pulls that new messages of a queue concern, and let the topic's watchers do the same."""
        pulls = self._queues.get(queue)
        if pulls is not None:
            start = self._advance(queue, pulls)
            yield from self._pull_steps(self._concerned(queue, pulls, start), start or 0)
        for watcher in list(self._watchers.get(queue[0], ())):
            yield from watcher(queue[1])
            yield

    def _concerned(self, queue: QueueKey, pulls: QueuePulls, start: int | None) -> Iterator[WaitingPull]:
        """Return the pulls that the messages from ``start`` on concern, all if their tags cannot be read cheaply."""
        codes = None
        if start is not None and pulls.has_indexed and pulls.seen_until - start <= MAX_CODES_READ:
            codes = self._queue_tags.read_tags_codes(*queue, start, pulls.seen_until)
        return pulls.everyone() if codes is None else pulls.concerned(codes)

    def _pull_steps(self, pulls: Iterator[WaitingPull], start: int) -> Steps:
        # All pulls are tried once before one with a long search is tried again: the others need not wait for it.
        unfinished: deque[WaitingPull] = deque()
        for pull in pulls:
            if self._try_pull(pull, start):
                unfinished.append(pull)
            yield
        while unfinished:
            pull = unfinished.popleft()
            if self._try_pull(pull, start):
                unfinished.append(pull)
            yield

    def _try_pull(self, pull: WaitingPull, start: int) -> bool:
        """Answer a pull if possible; return True when it must be tried again to know."""
        if pull.waiting_list is None:
            return False
        outcome = ANSWERED if pull.connection.closed else pull.try_answer(start)
        if outcome is ANSWERED:
            self.remove(pull)
        return outcome is UNFINISHED

    # -- deadlines -------------------------------------------------------------------------------------------

    def expire_due(self) -> None:
        """Start to answer the requests whose deadline has passed; `run` continues."""
        if self._ticks and self._ticks[0] <= self._now_tick():
            self.mark_work(_EXPIRY, self._expiry_steps)
            self.answer_marked()

    def answer_all(self) -> None:
        """Start to answer every request as at its deadline; `run` continues. For a broker that stops."""
        self.mark_work(_ALL, self._all_steps)
        self.answer_marked()
        self._work_left.set()

    def _all_steps(self) -> Steps:
        while self._by_connection:
            requests = next(iter(self._by_connection.values()))
            self._expire(next(iter(requests)))
            yield

    def _expire(self, request: WaitingRequest) -> None:
        self.remove(request)
        if not request.connection.closed:
            request.expire()

    def _expiry_steps(self) -> Steps:
        while self._ticks and self._ticks[0] <= self._now_tick():
            requests = self._by_tick.get(self._ticks[0])
            # Looked up again for each request: between two steps, other tasks hold and remove requests.
            if requests is None:
                heappop(self._ticks)
                continue
            self._expire(next(iter(requests)))
            yield

    async def run(self) -> None:
        """Answer requests at their deadlines, and continue what `answer_marked` began, until cancelled."""
        while True:
            # Cleared before the work is looked for: work that arrives after the look ends the sleep.
            self._work_left.clear()
            self.expire_due()
            if self._run_slice():
                await trio.lowlevel.checkpoint()
            else:
                await self._work_left.wait(self._sleep_until_next_tick())

    def _sleep_until_next_tick(self) -> float:
        """Return the seconds to sleep, and remember until which tick that is."""
        if not self._ticks:
            self._sleeping_until = self._now_tick() + MAX_SLEEP_S * 1000 / TICK_MS
            return MAX_SLEEP_S
        self._sleeping_until = self._ticks[0]
        left_s = (self._ticks[0] * TICK_MS - self._now_ms()) / 1000
        return min(max(0.001, left_s), MAX_SLEEP_S)

    def _now_ms(self) -> int:
        return round(self._clock.monotonic() * 1000)

    def _now_tick(self) -> int:
        return self._now_ms() // TICK_MS


Key = TypeVar("Key")


def _discard(table: dict[Key, dict[WaitingRequest, None]], key: Key, request: WaitingRequest) -> None:
    """Remove a request from the group under ``key``, and the group from the table with its last request."""
    requests = table[key]
    del requests[request]
    if not requests:
        del table[key]
