"""Whether two clusters hold the same messages, queue by queue; what is missing, extra, duplicated, reordered, changed.

Where the target keeps the primary's queue offsets, messages are matched by them, else by their unique keys. Memory is
bounded by the window, whatever the length of the queues. Not responsible for what to do about a fault.
"""

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import trio

from codec.errors import MessageFormatError
from gateway.shadow.clusters.cluster import ASKING_FAILED, Cluster
from gateway.shadow.compare.alignment import Fault, Kind, Ledger, align_by_key, align_by_offset
from gateway.shadow.compare.queue_reader import Budget, QueueReader

POLL_S: Final = 0.1
MAX_FAULTS_SHOWN: Final = 20
READ: Final = 4
UNREADABLE: Final = (*ASKING_FAILED, MessageFormatError, LookupError)


@dataclass(frozen=True, slots=True)
class Window:
    """Which part of each queue of the primary: by queue offset or by store time (ms since 1970), end exclusive.

    Nothing given: from the beginning, until where the queue ends when it is looked at.
    """

    from_offset: int | None = None
    until_offset: int | None = None
    from_ms: int | None = None
    until_ms: int | None = None


EVERYTHING: Final = Window()


@dataclass(frozen=True, slots=True)
class How:
    """How parity is looked for.

    `lag_s`: what the primary stored less than so many seconds ago may still be on its way; a look waits for it.
    `window`: so many messages further on, a message that is missing is given up. `per_second` limits what is read from
    each cluster (messages; 0: no limit), `parallel` is how many queues are read at a time.
    """

    kept: bool = False
    lag_s: float = 10.0
    window: int = 8192
    per_second: float = 0.0
    parallel: int = 4


@dataclass
class QueueParity:
    """One queue. `from_offset` and `until_offset` are the primary's; `problem` says why it could not be compared.

    `same` counts messages that are equal; `order_broken` those of `reordered` that changed places with a message of
    their own sharding key; `waited` messages whose place among others is chance: ends of transactions, delays.
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
    waited: int = 0
    problem: str = ""
    faults: list[Fault] = field(default_factory=list)

    def note(self, fault: Fault) -> None:
        """Counts a fault, and keeps the first ones."""
        name = fault.kind.value
        setattr(self, name, getattr(self, name) + 1)
        self.order_broken += fault.order_broken
        if len(self.faults) < MAX_FAULTS_SHOWN:
            self.faults.append(fault)

    @property
    def primary(self) -> int:
        """How many messages of the primary were looked at."""
        return self.same + self.changed + self.missing

    @property
    def target(self) -> int:
        """How many of the target stand beside them, or in between."""
        return self.same + self.changed + self.extra + self.duplicated

    @property
    def disordered(self) -> int:
        """How many stand where they should not: where messages waited, only those of one sharding key have an order."""
        return self.order_broken if self.waited else self.reordered

    @property
    def wrong(self) -> int:
        """How many faults there are."""
        return sum(getattr(self, kind.value) for kind in Kind)


COUNTED: Final = (
    "primary",
    "target",
    "same",
    *(kind.value for kind in Kind),
    "order_broken",
)
"""The counts of a `QueueParity` that `Parity` has the sums of."""


@dataclass
class Parity:
    """What was found in all queues looked at; `seconds` is how long it took."""

    queues: list[QueueParity] = field(default_factory=list)
    seconds: float = 0.0

    def total(self, name: str) -> int:
        """The sum of one of `COUNTED`, or of "wrong", over all queues; "problems" counts queues that have one."""
        if name == "problems":
            return sum(bool(each.problem) for each in self.queues)
        return sum(getattr(each, name) for each in self.queues)

    @property
    def holds(self) -> bool:
        """Whether every queue could be compared and has no fault."""
        return not any(each.wrong or each.problem for each in self.queues)

    def to_value(self) -> dict[str, Any]:
        """As JSON has it."""
        totals = {name: self.total(name) for name in (*COUNTED, "wrong", "problems")}
        return {
            "holds": self.holds,
            "seconds": round(self.seconds, 3),
            **totals,
            "queues": [_queue_value(each) for each in self.queues],
        }


def _queue_value(queue: QueueParity) -> dict[str, Any]:
    value = {each.name: getattr(queue, each.name) for each in dataclasses.fields(queue)}
    value["primary"], value["target"] = queue.primary, queue.target
    value["faults"] = [
        {
            "kind": fault.kind.value,
            "key": fault.identity.decode() if fault.identity.isascii() else fault.identity.hex(),
            "primary_offset": fault.primary_offset,
            "target_offset": fault.target_offset,
            "part": fault.part,
            "order_broken": fault.order_broken,
        }
        for fault in queue.faults
    ]
    return value


Progress = Callable[[QueueParity], None]


def silent(queue: QueueParity) -> None:
    """Progress that nobody wants to hear of."""


@dataclass(frozen=True, slots=True)
class Clusters:
    """The two sides; ``counterpart`` gives the target's broker of one of the primary's."""

    primary: Cluster
    target: Cluster
    counterpart: Callable[[str], str]


async def compare_topics(
    clusters: Clusters,
    topics: Iterable[str],
    how: How,
    now_ms: Callable[[], int],
    window: Window = EVERYTHING,
    on_progress: Progress = silent,
) -> Parity:
    """Looks at every readable queue the primary has of the topics, several at a time.

    ``on_progress`` is called now and then with a queue whose counts grew. A queue that cannot be read has a `problem`.
    Raises ASKING_FAILED when the primary's namesrv does not know a topic, or does not answer.
    """
    started = trio.current_time()
    queues = [queue for topic in topics for queue in await _queues(clusters.primary, topic)]
    budgets = Budget(how.per_second), Budget(how.per_second)
    free = trio.CapacityLimiter(how.parallel)

    async def one(queue: QueueParity) -> None:
        async with free:
            look = Look(clusters, queue, how, now_ms, budgets, on_progress)
            await look.run(window)

    async with trio.open_nursery() as nursery:
        for queue in queues:
            nursery.start_soon(one, queue)
    return Parity(queues, trio.current_time() - started)


async def _queues(primary: Cluster, topic: str) -> list[QueueParity]:
    route = await primary.route(topic)
    return [
        QueueParity(topic, data.broker_name, queue_id)
        for data in sorted(route.queue_datas, key=lambda data: data.broker_name)
        if data.perm & READ
        for queue_id in range(max(data.read_queue_nums, data.write_queue_nums))
    ]


class Look:
    """One look at one queue of both clusters."""

    def __init__(
        self,
        clusters: Clusters,
        queue: QueueParity,
        how: How,
        now_ms: Callable[[], int],
        budgets: tuple[Budget, Budget],
        on_progress: Progress,
    ) -> None:
        self._queue = queue
        self._how = how
        self._now_ms = now_ms
        self._on_progress = on_progress
        place = (queue.topic, queue.queue_id)
        self._primary = QueueReader(clusters.primary, queue.broker, *place, kept=how.kept, budget=budgets[0])
        self._counterpart = clusters.counterpart
        self._target = QueueReader(clusters.target, "", *place, kept=how.kept, budget=budgets[1])
        self._ledger = Ledger(how.window, self._note)
        self._open_start = self._open_end = self._closing = False

    async def run(self, window: Window) -> None:
        """Fills in the `QueueParity`; what goes wrong is told there."""
        try:
            await self._begin(window)
            while not (self._primary.done and self._target.done):
                await self._fill()
                if not await self._at_an_end():
                    self._align()
                self._count()
            self._closing = True
            self._ledger.close()
            self._count()
        except UNREADABLE as error:
            self._queue.problem = f"{type(error).__name__}: {error}"

    async def _begin(self, window: Window) -> None:
        self._target.broker = self._counterpart(self._queue.broker)
        # The target first: what it has by then, the primary has as well.
        target_low, target_high = await self._target.bounds()
        low, high = await self._primary.bounds()
        start, end = await self._range(window, low, high)
        self._queue.from_offset, self._queue.until_offset = start, end
        self._primary.next = start
        self._primary.end = self._ledger.end = end
        if self._how.kept:
            self._target.next = start
            self._target.end = self._target.limit = self._primary.limit = end
            return
        self._target.next = target_low
        if window.from_ms is not None:
            # Its clock may be behind; what is before the first common message does not count.
            self._target.next = await self._target.at_time(round(window.from_ms - self._how.lag_s * 1000))
        self._open_start = start > 0
        self._open_end = end < high
        self._target.end = 0 if self._open_end else target_high

    async def _range(self, window: Window, low: int, high: int) -> tuple[int, int]:
        start, end = window.from_offset, window.until_offset
        if start is None:
            start = low if window.from_ms is None else await self._primary.at_time(window.from_ms)
        if end is None:
            end = high if window.until_ms is None else await self._primary.at_time(window.until_ms)
        start = min(max(start, low), high)
        return start, max(start, min(end, high))

    async def _fill(self) -> None:
        problems: list[Exception] = []

        async def one(reader: QueueReader) -> None:
            try:
                await reader.fill(self._how.window)
            except UNREADABLE as error:
                problems.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(one, self._primary)
            nursery.start_soon(one, self._target)
        if problems:
            raise problems[0]

    def _align(self) -> None:
        ours, theirs = self._primary.buffer, self._target.buffer
        if self._how.kept:
            align_by_offset(ours, theirs, self._ledger)
        else:
            whole = self._primary.ended, self._target.ended
            align_by_key(ours, theirs, self._ledger, self._how.window, whole)

    async def _at_an_end(self) -> bool:
        """Whether one side has nothing (more) to set beside the other's; then that was dealt with."""
        ours, theirs = self._primary, self._target
        if ours.buffer and theirs.buffer:
            return False
        if ours.buffer and theirs.ended:
            await self._alone(ours, self._ledger.missing)
        elif theirs.buffer and ours.ended:
            await self._alone(theirs, self._ledger.extra)
        return True

    async def _alone(self, reader: QueueReader, tell: Callable[[Any], None]) -> None:
        """What only one side has, is wrong when it is old enough; else the other side is given time."""
        old_ms = self._now_ms() - self._how.lag_s * 1000
        while reader.buffer and not reader.done and reader.buffer[0].stored_ms <= old_ms:
            tell(reader.buffer.popleft())
        if reader.buffer and not reader.done:
            await trio.sleep(POLL_S)

    def _note(self, fault: Fault) -> None:
        if not self._outside(fault):
            self._queue.note(fault)

    def _outside(self, fault: Fault) -> bool:
        """Whether it is about a message before or behind the part looked at; see `Window`."""
        if fault.primary_offset is not None:
            return fault.primary_offset >= self._primary.end
        offset, ledger = fault.target_offset or 0, self._ledger
        if self._open_start and (ledger.first_matched is None or offset < ledger.first_matched):
            return True
        if self._open_end:
            return self._closing and (ledger.last_matched is None or offset > ledger.last_matched)
        return offset >= self._target.end

    def _count(self) -> None:
        self._queue.same, self._queue.waited = self._ledger.same, self._ledger.waited
        self._on_progress(self._queue)
