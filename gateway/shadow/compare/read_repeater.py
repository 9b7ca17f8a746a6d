"""Repeats clients' read-only requests at the target, and a share of them at the primary (second reads).

Reads wait in a heap until the settle time has passed, so that the mirror can deliver first. A task sends them at a
bounded rate over its own connections; number and bytes of waiting reads are bounded as well. Clients of the primary
never wait for any of this. `repeatable_reads.py` decides which requests may be repeated.
"""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import Final

import trio

from codec.command import Command
from codec.errors import FrameError, MessageFormatError
from gateway.shadow.clusters.cluster import CLUSTER_ERRORS, Cluster
from gateway.shadow.compare.answer_diff import SAME_SERVER, ComparisonTerms, Difference, diff_answers
from gateway.shadow.compare.noise import LearnedNoise
from gateway.shadow.compare.queue_reader import ReadRateLimiter
from gateway.shadow.compare.repeatable_reads import (
    KnownSubscriptions,
    MapOffset,
    NotRepeatable,
    RepeatedRead,
    plan_repeated_read,
)
from gateway.shadow.compare.settings import CompareSettings
from gateway.shadow.traffic.exchange import Exchange
from remoting.errors import RequestError

log = logging.getLogger(__name__)

MAX_CONCURRENT_READS: Final = 8
RETRY_INTERVAL_S: Final = 1.0
MAX_BODY_BYTES_ON_LOOP: Final = 32 * 1024
"""Larger answers are compared in a thread: 1 MiB of JSON takes up to 0.2 s."""
MAX_COMPARED_BODY_BYTES: Final = 4 * 1024 * 1024
DECODING_ERRORS: Final = (FrameError, MessageFormatError, RequestError)

SendRead = Callable[[str, Command], Awaitable[Command]]
"""Sends a read to a broker, named as at the primary, or to a namesrv when the name is "".

Raises LookupError, CLUSTER_ERRORS.
"""


def send_reads_to(cluster: Cluster, counterpart: Callable[[str], str] = lambda broker: broker) -> SendRead:
    """Return a function that sends reads to a cluster; ``counterpart`` maps the primary's broker names to the
    cluster's."""

    async def ask(broker: str, command: Command) -> Command:
        address = await cluster.find_master(counterpart(broker)) if broker else cluster.namesrvs[0]
        return await cluster.ask_command(address, command)

    return ask


@dataclass(slots=True)
class ReadComparison:
    """The result of one repeated read: the exchange, the differences, and the target's latency."""

    exchange: Exchange
    differences: list[Difference]
    target_s: float


@dataclass(slots=True)
class _PendingRead:
    exchange: Exchange
    with_second_read: bool
    added_s: float
    attempts: int = 0
    noisy_paths: frozenset[str] = field(default_factory=frozenset)


class ReadRepeater:
    """Repeats the exchanges given to `submit` and reports each comparison to ``on_compared``.

    While the answers differ and the message may still be on its way to the target (`lag_ms`), the read is repeated at
    both clusters. `left_out` counts exchanges that were not compared, by reason.
    """

    def __init__(
        self,
        settings: CompareSettings,
        terms: ComparisonTerms,
        noise: LearnedNoise,
        *,
        target: SendRead,
        primary: SendRead,
        map_offset: MapOffset,
        on_compared: Callable[[ReadComparison], None],
    ) -> None:
        self.left_out: Counter[str] = Counter()
        self.subscriptions = KnownSubscriptions()
        self._settings = settings
        self._terms = terms
        self._noise = noise
        self._send_to_target, self._send_to_primary = target, primary
        self._map_offset = map_offset
        self._on_compared = on_compared
        self._pending: list[tuple[float, int, _PendingRead]] = []
        self._pending_bytes = 0
        self._sequence = count()
        self._arrived = trio.Event()
        self._rate_limiter = ReadRateLimiter(settings.repeated_reads_per_s)
        self._large_comparisons = trio.CapacityLimiter(1)

    @property
    def waiting_count(self) -> int:
        """Reads that wait for their turn."""
        return len(self._pending)

    def submit(self, exchange: Exchange, second: bool = False) -> None:
        """Queue an exchange, or count it in `left_out` when too many reads wait. ``second``: reread the primary too."""
        full = len(self._pending) >= self._settings.waiting
        if full or self._pending_bytes + exchange.size_bytes > self._settings.waiting_bytes:
            self.left_out["too many repeated reads wait"] += 1
            return
        now_s = trio.current_time()
        self._schedule(_PendingRead(exchange, second, now_s), now_s + self._settings.settle_ms / 1000)

    def _schedule(self, item: _PendingRead, due_s: float) -> None:
        heappush(self._pending, (due_s, next(self._sequence), item))
        self._pending_bytes += item.exchange.size_bytes
        self._arrived.set()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Repeat reads until cancelled."""
        slots = trio.Semaphore(MAX_CONCURRENT_READS)
        async with trio.open_nursery() as nursery:
            task_status.started()
            while True:
                item = await self._next_due()
                await self._rate_limiter.acquire(1)
                await slots.acquire()
                nursery.start_soon(self._process_read, item, slots)

    async def _next_due(self) -> _PendingRead:
        while True:
            delay_s = self._pending[0][0] - trio.current_time() if self._pending else float("inf")
            if delay_s <= 0:
                item = heappop(self._pending)[2]
                self._pending_bytes -= item.exchange.size_bytes
                return item
            self._arrived = trio.Event()
            with trio.move_on_after(delay_s):
                await self._arrived.wait()

    async def _process_read(self, item: _PendingRead, slots: trio.Semaphore) -> None:
        try:
            await self._compare_answers(item)
        except NotRepeatable as reason:
            self.left_out[str(reason)] += 1
        except DECODING_ERRORS:
            self.left_out["a request or answer cannot be decoded"] += 1
        except (*CLUSTER_ERRORS, LookupError):
            self.left_out["no answer"] += 1
        except Exception:
            # No answer of a target, however odd, may disturb the primary's clients.
            self.left_out["an error in the gateway"] += 1
            log.exception("repeated read could not be compared", extra={"code": item.exchange.code})
        finally:
            slots.release()

    async def _compare_answers(self, item: _PendingRead) -> None:
        read = plan_repeated_read(item.exchange, self.subscriptions, self._map_offset)
        started = trio.current_time()
        answer = read.as_primary_answer(await self._send_to_target(item.exchange.broker, read.target_request))
        target_s = trio.current_time() - started
        primary = read.primary_answer
        # In a later attempt the client's answer is older than the target's, so the primary is read again.
        if item.with_second_read or item.attempts:
            primary = await self._second_read(item, read)
        differences = [
            difference
            for difference in await self._diff_answers(item.exchange.code, primary, answer, self._terms)
            if difference.path not in item.noisy_paths
            and not self._noise.is_noise(difference.code, difference.path)
        ]
        # The message may be on its way to the target, so a difference counts only after `lag_ms`.
        if differences and trio.current_time() - item.added_s < self._settings.lag_ms / 1000:
            item.attempts += 1
            self._schedule(item, trio.current_time() + RETRY_INTERVAL_S)
        else:
            self._on_compared(ReadComparison(item.exchange, differences, target_s))

    async def _diff_answers(
        self, code: int, primary: Command, other: Command, terms: ComparisonTerms
    ) -> list[Difference]:
        """Compare two answers; large ones in a thread, so that clients' requests do not wait. Raises NotRepeatable."""
        size = max(len(primary.body), len(other.body))
        if size <= MAX_BODY_BYTES_ON_LOOP:
            return diff_answers(code, primary, other, terms)
        if size > MAX_COMPARED_BODY_BYTES:
            raise NotRepeatable("answers too large to be compared")
        return await trio.to_thread.run_sync(
            diff_answers, code, primary, other, terms, limiter=self._large_comparisons
        )

    async def _second_read(self, item: _PendingRead, read: RepeatedRead) -> Command:
        """Read the primary again and return its answer.

        Fields that differ from its first answer are ignored for this read; those of the first attempt are learned as
        noise.
        """
        code = item.exchange.code
        second_answer = await self._send_to_primary(item.exchange.broker, read.primary_request)
        noisy = await self._diff_answers(code, read.primary_answer, second_answer, SAME_SERVER)
        item.noisy_paths |= {difference.path for difference in noisy}
        if item.with_second_read and not item.attempts:
            self._noise.record_second_read(code, item.noisy_paths)
        return second_answer
