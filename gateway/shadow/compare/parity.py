"""Content parity: compares the messages that both clusters store, queue by queue.

Finds missing, extra, duplicated, reordered and changed messages. Both sides of a queue are read into bounded buffers
and aligned (`alignment.py`): by queue offset if the target stores messages at the primary's offsets, else by unique
key. The target's end is read before the primary's, so everything the target has by then is at the primary too. A
message that only one side has is reported once it is older than the allowed lag; until then the other side gets time.
Memory is bounded by the window, whatever the length of the queues.
"""

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import trio

from codec.errors import MessageFormatError
from gateway.runtime.parallel import process_in_parallel
from gateway.shadow.clusters.cluster import CLUSTER_ERRORS, MAX_QUEUES_PER_TOPIC, Cluster
from gateway.shadow.compare.alignment import (
    AlignmentLedger,
    FindingKind,
    ParityFinding,
    align_by_key,
    align_by_offset,
)
from gateway.shadow.compare.queue_reader import QueueReader, ReadRateLimiter

POLL_INTERVAL_S: Final = 0.1
MAX_REPORTED_FINDINGS: Final = 20
MAX_NAMED_TOPICS: Final = 1000
READ_PERMISSION: Final = 4
MAX_QUEUES: Final = 1_000_000
"""Queues of one check by default."""
READ_ERRORS: Final = (*CLUSTER_ERRORS, MessageFormatError, LookupError)


@dataclass(frozen=True, slots=True)
class ParityRange:
    """The part of each queue to compare, by queue offset of the primary or by store time (ms since 1970), end
    exclusive.

    Without any bound: the whole queue, up to its end at the start of the check.
    """

    from_offset: int | None = None
    until_offset: int | None = None
    from_ms: int | None = None
    until_ms: int | None = None


ENTIRE_QUEUES: Final = ParityRange()


@dataclass(frozen=True, slots=True)
class ParityOptions:
    """Options of a parity check.

    `same_offsets`: the target stores messages at the primary's queue offsets. `lag_s`: messages stored at the primary
    less than this long ago may still be on their way, so the check waits for them. `window`: a message without a
    partner is reported once this many further messages were read. `per_second` limits the messages read from each
    cluster (0: no limit), `parallel` the number of queues read at a time, `max_queues` the queues of one check.
    """

    same_offsets: bool = False
    lag_s: float = 10.0
    window: int = 8192
    per_second: float = 0.0
    parallel: int = 4
    max_queues: int = MAX_QUEUES


@dataclass
class QueueParity:
    """The result for one queue. Offsets are the primary's; `problem` says why the queue could not be compared.

    `same` counts equal messages; `order_broken` the `reordered` messages that changed places with a message of their
    own sharding key; `sent_again` those of `same` with another born host, as after a roll-back; `waited` the messages
    whose place in the queue is arbitrary: ends of transactions and delayed messages. `findings` are examples. The
    field names are JSON keys.
    """

    topic: str
    broker: str
    queue_id: int
    from_offset: int = 0
    until_offset: int = 0
    same: int = 0
    missing: int = 0
    extra: int = 0
    duplicated: int = 0
    reordered: int = 0
    order_broken: int = 0
    changed: int = 0
    sent_again: int = 0
    waited: int = 0
    problem: str = ""
    findings: list[ParityFinding] = field(default_factory=list)

    def record_finding(self, finding: ParityFinding) -> None:
        """Count a finding and keep it as an example while there is room."""
        name = finding.kind.value
        setattr(self, name, getattr(self, name) + 1)
        self.order_broken += finding.order_broken
        if len(self.findings) < MAX_REPORTED_FINDINGS:
            self.findings.append(finding)

    @property
    def primary(self) -> int:
        """The number of the primary's messages that were compared."""
        return self.same + self.changed + self.missing

    @property
    def target(self) -> int:
        """The number of the target's messages in the compared part."""
        return self.same + self.changed + self.extra + self.duplicated

    @property
    def disordered(self) -> int:
        """The number of messages out of order.

        Where messages were delivered later than stored, only those of one sharding key have an order to keep.
        """
        return self.order_broken if self.waited else self.reordered

    @property
    def wrong(self) -> int:
        """The number of findings."""
        return sum(getattr(self, kind.value) for kind in FindingKind)


COUNT_NAMES: Final = (
    "primary",
    "target",
    "same",
    *(kind.value for kind in FindingKind),
    "order_broken",
    "sent_again",
)
"""The counts of `QueueParity` that `ParityResult` adds up."""


PARITY_OF_MOVES: Final = "checked_by_moves_of"
"""Key of a result as JSON with the topics whose moves checked it; such a result covers only them."""


@dataclass
class ParityResult:
    """The results of all compared queues; `seconds` is how long the check took.

    `unmatched` are the names and patterns of topics that the primary does not have, each with similar names it has.
    `left_out_topics` are retry and dead-letter topics, which only a pattern that begins with "%" includes.
    """

    queues: list[QueueParity] = field(default_factory=list)
    seconds: float = 0.0
    unmatched: dict[str, list[str]] = field(default_factory=dict)
    left_out_topics: list[str] = field(default_factory=list)

    def total(self, name: str) -> int:
        """Return the sum of one of `COUNT_NAMES`, or of "wrong", over all queues; "problems" counts queues with a
        problem."""
        if name == "problems":
            return sum(bool(queue.problem) for queue in self.queues)
        return sum(getattr(queue, name) for queue in self.queues)

    @property
    def holds(self) -> bool:
        """True when something was compared, and every queue could be compared and has no finding."""
        return not self.is_empty and not any(queue.wrong or queue.problem for queue in self.queues)

    @property
    def is_empty(self) -> bool:
        """True when no message was compared, or topics were named that do not exist: there is no verdict."""
        compared = any(queue.primary or queue.target or queue.wrong or queue.problem for queue in self.queues)
        return bool(self.unmatched) or not compared

    def to_value(self) -> dict[str, Any]:
        """Return the result as a JSON object."""
        totals = {name: self.total(name) for name in (*COUNT_NAMES, "wrong", "problems")}
        return {
            "holds": self.holds,
            "empty": self.is_empty,
            "seconds": round(self.seconds, 3),
            **totals,
            "unmatched": [{"name": name, "similar": similar} for name, similar in self.unmatched.items()],
            "left_out_topics": self.left_out_topics[:MAX_NAMED_TOPICS],
            "left_out": len(self.left_out_topics),
            "queues": [_queue_value(queue) for queue in self.queues],
        }


def _queue_value(queue: QueueParity) -> dict[str, Any]:
    value = {item.name: getattr(queue, item.name) for item in dataclasses.fields(queue)}
    value["primary"], value["target"] = queue.primary, queue.target
    value["findings"] = [
        {
            "kind": finding.kind.value,
            "key": finding.identity.decode() if finding.identity.isascii() else finding.identity.hex(),
            "primary_offset": finding.primary_offset,
            "target_offset": finding.target_offset,
            "part": finding.part,
            "differences": [difference._asdict() for difference in finding.differences],
            "order_broken": finding.order_broken,
        }
        for finding in queue.findings
    ]
    return value


ProgressCallback = Callable[[QueueParity], None]


def ignore_progress(queue: QueueParity) -> None:
    """Ignore progress."""


@dataclass(frozen=True, slots=True)
class ComparedClusters:
    """The two clusters; ``counterpart`` maps the primary's broker names to the target's."""

    primary: Cluster
    target: Cluster
    counterpart: Callable[[str], str]


async def compare_topics(
    clusters: ComparedClusters,
    topics: Iterable[str],
    options: ParityOptions,
    now_ms: Callable[[], int],
    parity_range: ParityRange = ENTIRE_QUEUES,
    on_progress: ProgressCallback = ignore_progress,
) -> ParityResult:
    """Compare every readable queue that the primary has of the topics, several at a time.

    ``on_progress`` is called now and then with a queue whose counts grew. A queue that cannot be read has a `problem`.
    Raises CLUSTER_ERRORS when the primary's namesrv does not know a topic, or does not answer.
    """
    started = trio.current_time()
    queues: list[QueueParity] = []
    for topic in topics:
        queues += await _readable_queues(clusters.primary, topic)
        if len(queues) > options.max_queues:
            queues = queues[: options.max_queues]
            problem = f"only the first {options.max_queues} queues were compared: name fewer topics at a time"
            queues.append(QueueParity(topic, "", -1, problem=problem))
            break
    rate_limiters = ReadRateLimiter(options.per_second), ReadRateLimiter(options.per_second)

    async def compare_queue(queue: QueueParity) -> None:
        if not queue.problem:
            comparison = QueueComparison(clusters, queue, options, now_ms, rate_limiters, on_progress)
            await comparison.run(parity_range)

    await process_in_parallel(queues, compare_queue, options.parallel)
    return ParityResult(queues, trio.current_time() - started)


async def _readable_queues(primary: Cluster, topic: str) -> list[QueueParity]:
    """Return the readable queues of a topic; in place of a broker with absurdly many, one with a problem."""
    route = await primary.route(topic)
    queues = []
    for data in sorted(route.queue_datas, key=lambda data: data.broker_name):
        count = max(data.read_queue_nums, data.write_queue_nums)
        if data.perm & READ_PERMISSION and count > MAX_QUEUES_PER_TOPIC:
            problem = f"{count} queues are more than the {MAX_QUEUES_PER_TOPIC} that are compared"
            queues.append(QueueParity(topic, data.broker_name, -1, problem=problem))
        elif data.perm & READ_PERMISSION:
            queues += [QueueParity(topic, data.broker_name, queue_id) for queue_id in range(count)]
    return queues


class QueueComparison:
    """The comparison of one queue of both clusters."""

    def __init__(
        self,
        clusters: ComparedClusters,
        queue: QueueParity,
        options: ParityOptions,
        now_ms: Callable[[], int],
        rate_limiters: tuple[ReadRateLimiter, ReadRateLimiter],
        on_progress: ProgressCallback,
    ) -> None:
        self._queue = queue
        self._options = options
        self._now_ms = now_ms
        self._on_progress = on_progress
        topic_queue = (queue.topic, queue.queue_id)
        self._primary = QueueReader(
            clusters.primary,
            queue.broker,
            *topic_queue,
            same_offsets=options.same_offsets,
            rate_limiter=rate_limiters[0],
        )
        self._counterpart = clusters.counterpart
        self._target = QueueReader(
            clusters.target,
            "",
            *topic_queue,
            same_offsets=options.same_offsets,
            rate_limiter=rate_limiters[1],
        )
        self._ledger = AlignmentLedger(options.window, self._report_finding)
        self._open_start = self._open_end = self._closing = False

    async def run(self, parity_range: ParityRange) -> None:
        """Fill in the `QueueParity`; errors become its `problem`."""
        try:
            await self._set_bounds(parity_range)
            while not (self._primary.is_done and self._target.is_done):
                await self._fill_buffers()
                if not await self._handle_exhausted_side():
                    await self._align_buffers()
                self._publish_counts()
            self._closing = True
            self._ledger.finish()
            self._publish_counts()
        except READ_ERRORS as error:
            self._queue.problem = f"{type(error).__name__}: {error}"

    async def _set_bounds(self, parity_range: ParityRange) -> None:
        self._target.broker = self._counterpart(self._queue.broker)
        # The target first: every message that it has by then is at the primary too.
        target_low, target_high = await self._target.read_bounds()
        low, high = await self._primary.read_bounds()
        start, end = await self._resolve_range(parity_range, low, high)
        self._queue.from_offset, self._queue.until_offset = start, end
        self._primary.next_offset = start
        self._primary.end_offset = self._ledger.primary_end = end
        if self._options.same_offsets:
            self._target.next_offset = start
            self._target.end_offset = self._target.stop_offset = self._primary.stop_offset = end
            return
        self._target.next_offset = target_low
        if parity_range.from_ms is not None:
            # The target's clock may be behind; messages before the first common one do not count.
            self._target.next_offset = await self._target.find_offset_at(
                round(parity_range.from_ms - self._options.lag_s * 1000)
            )
        # Without common offsets nobody knows where the compared part begins and ends at the target, so findings
        # before the first and after the last matching message do not count.
        self._open_start = start > 0
        self._open_end = end < high
        self._target.end_offset = 0 if self._open_end else target_high

    async def _resolve_range(self, parity_range: ParityRange, low: int, high: int) -> tuple[int, int]:
        start, end = parity_range.from_offset, parity_range.until_offset
        if start is None:
            start = (
                low
                if parity_range.from_ms is None
                else await self._primary.find_offset_at(parity_range.from_ms)
            )
        if end is None:
            end = (
                high
                if parity_range.until_ms is None
                else await self._primary.find_offset_at(parity_range.until_ms)
            )
        start = min(max(start, low), high)
        return start, max(start, min(end, high))

    async def _fill_buffers(self) -> None:
        problems: list[Exception] = []

        async def fill_one(reader: QueueReader) -> None:
            try:
                await reader.fill_buffer(self._options.window)
            except READ_ERRORS as error:
                problems.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fill_one, self._primary)
            nursery.start_soon(fill_one, self._target)
        if problems:
            raise problems[0]

    async def _align_buffers(self) -> None:
        """Take messages from both buffers, some at a time, so that clients' requests do not wait."""
        primary, target = self._primary.buffer, self._target.buffer
        whole = self._primary.at_end, self._target.at_end
        while primary and target:
            before = len(primary) + len(target)
            if self._options.same_offsets:
                align_by_offset(primary, target, self._ledger)
            else:
                align_by_key(primary, target, self._ledger, self._options.window, whole)
            await trio.lowlevel.checkpoint()
            # Nothing was taken: a buffer must be filled further first.
            if len(primary) + len(target) == before:
                return

    async def _handle_exhausted_side(self) -> bool:
        """Report the messages of one side if the other side has no more. Return whether a side was exhausted."""
        primary, target = self._primary, self._target
        if primary.buffer and target.buffer:
            return False
        if primary.buffer and target.at_end:
            await self._report_unmatched(primary, self._ledger.record_missing)
        elif target.buffer and primary.at_end:
            await self._report_unmatched(target, self._ledger.record_extra)
        return True

    async def _report_unmatched(self, reader: QueueReader, record: Callable[[Any], None]) -> None:
        """Report messages that only one side has once they are old enough; otherwise wait for the other side."""
        old_ms = self._now_ms() - self._options.lag_s * 1000
        while reader.buffer and not reader.is_done and reader.buffer[0].stored_ms <= old_ms:
            record(reader.buffer.popleft())
        if reader.buffer and not reader.is_done:
            await trio.sleep(POLL_INTERVAL_S)

    def _report_finding(self, finding: ParityFinding) -> None:
        if not self._is_outside_range(finding):
            self._queue.record_finding(finding)

    def _is_outside_range(self, finding: ParityFinding) -> bool:
        """Tell whether a finding is about a message outside the compared part; see `ParityRange`."""
        if finding.primary_offset is not None:
            return finding.primary_offset >= self._primary.end_offset
        offset, ledger = finding.target_offset or 0, self._ledger
        if self._open_start and (ledger.first_matched is None or offset < ledger.first_matched):
            return True
        if self._open_end:
            return self._closing and (ledger.last_matched is None or offset > ledger.last_matched)
        return offset >= self._target.end_offset

    def _publish_counts(self) -> None:
        self._queue.same, self._queue.waited = self._ledger.equal_count, self._ledger.delivered_later_count
        self._queue.sent_again = self._ledger.sent_again_count
        self._on_progress(self._queue)
