"""Two brokers in memory that get the same bytes at the same times, and the comparison of all that they then have."""

import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import trio
import trio.testing

from codec import command
from codec.errors import FrameError
from gateway.broker.assembly.build import BrokerBuilder
from gateway.broker.assembly.metrics import broker_metrics
from gateway.broker.assembly.service import BrokerService
from gateway.runtime.metrics import Distribution, LatencyHistogram, Metric
from gateway.tests.broker_fakes import FakeClock, run_inline
from gateway.tests.configs import broker_config
from gateway.tests.native_sends.frames import TOPICS
from remoting import frame_connection
from remoting.bodies.topics import TopicConfig
from remoting.frame_connection import TAKES_NO_FRAMES, FrameConnection
from remoting.limits import ConnectionLimits
from remoting.server import ServerLimits
from storage.files import DiskFiles, Files, MemoryFiles
from storage.layout import QUEUE_ENTRY_BYTES

SMALL_FILES: Final = {
    "mapped_file_size_commit_log_bytes": 1 << 20,
    "mapped_file_size_consume_queue_bytes": 500 * QUEUE_ENTRY_BYTES,
    "max_hash_slots": 1000,
    "max_index_entries": 4000,
    "offset_journal_bytes": 4096,
}
"""Small files, so that a run begins new ones often."""
LIMITS: Final = ConnectionLimits()
NO_CLOCK: Final = patch.object(frame_connection, "monotonic", lambda: 0.0)
"""Turns that never end by the clock, or, with ``max_turn_s`` 0, always: the two sides would end theirs at different
frames."""
SEED: Final = 5
_DECODE_NATIVELY: Final = command._decode_natively


class PairDiffers(AssertionError):
    """The two brokers do not have the same."""


class RecordingTransport:
    """A transport that takes all answers at once."""

    def __init__(self, remote: tuple[str, int]) -> None:
        self.remote = remote
        self.local = ("127.0.0.1", 10911)
        self.sent = bytearray()

    def send_now(self, data: bytes) -> int:
        self.sent += data
        return len(data)

    def close(self) -> None:
        pass

    def unwatch(self) -> None:
        pass


class Side:
    """One of the two brokers, with the connection that the frames come from."""

    def __init__(
        self,
        nursery: trio.Nursery,
        *,
        native: bool,
        limits: ConnectionLimits = LIMITS,
        files: Files | None = None,
        **settings: Any,
    ) -> None:
        self.native = native
        self.clock = FakeClock(1_795_000_000_000)
        self.files = files or MemoryFiles()
        self._nursery = nursery
        self._limits = limits
        self._random = random.Random(SEED)
        config = broker_config(**{"store_path_root_dir": "/store", **SMALL_FILES, **settings})
        with self.turn():
            self.broker = BrokerBuilder(
                memory=False, clock=self.clock, run_blocking=run_inline, port=lambda: 10911, files=self.files
            ).build(config)
            self.service = BrokerService(self.broker, limits, ServerLimits(), run_inline)
            for name, (writes, reads, filter_type) in TOPICS.items():
                topic = TopicConfig(
                    topic_name=name,
                    read_queue_nums=reads,
                    write_queue_nums=writes,
                    topic_filter_type=filter_type,
                )
                self.broker.topics.create_if_absent(topic)
        if not native:
            self.broker.store.index._index_natively = None
        if self.broker.group_commit.synchronous:
            nursery.start_soon(self.broker.group_commit.run)
        self.connect()

    def turn(self) -> "_Turn":
        """Give this side the process's random generator and decoder as they would be without the other side."""
        return _Turn(self._random, native=self.native)

    def connect(self, remote: tuple[str, int] = ("127.0.0.1", 5000)) -> None:
        """Go on with a new connection."""
        self.transport = RecordingTransport(remote)
        self.connection = FrameConnection(
            self.transport,
            self.service.handlers,
            self._nursery,
            self._limits,
            self.service.end_batch,
            taker=self.service.native_sends if self.native else TAKES_NO_FRAMES,
        )
        self.service.handle_open(self.connection)

    @property
    def frames_taken(self) -> int:
        """The number of frames taken natively."""
        return self.service.native_sends.frames

    def feed(self, data: bytes) -> list[object]:
        """Handle what one read has brought; return what was sent, and how the connection stands."""
        outcome: list[object] = []
        with self.turn():
            try:
                turns = 1
                finished = self.connection._feed(data)
                while not finished and not self.connection.closed and turns < 10_000:
                    finished = self.connection._feed(b"")
                    turns += 1
                outcome.append(finished)
            except FrameError as error:
                outcome.append(str(error))
                self.connection.close(str(error))
        outcome += [bytes(self.transport.sent), self.connection.closed, self.connection.input_bytes]
        self.transport.sent.clear()
        return outcome

    def progress(self) -> list[object]:
        """Return the state that one read changes, as far as it is cheap to compare."""
        log, gate = self.broker.store.commit_log, self.broker.answer_gate
        return [
            (log.base, log.position, log.limit, log.queued_until, log.durable_offset),
            {topic: _slots(count) for topic, count in self.broker.stats.stored.items()},
            (gate.held_count, self.connection.outstanding_requests),
            dict(self.broker.long_polls._grown),
            len(self.broker.long_polls),
        ]

    def state(self) -> Iterator[tuple[str, object]]:
        """Yield everything else that may be compared, with its name."""
        store = self.broker.store
        with self.turn():
            while store.build_index(10_000):
                pass
        for key, queue in sorted(store._queues.items()):
            state = (queue.next_offset, queue.position, queue.limit, queue.min_offset, queue.recently_used)
            yield f"queue {key}", state
        yield from self._contents()
        yield (
            "metrics",
            [metric for metric in map(_comparable, broker_metrics("broker", self.broker)) if metric],
        )
        yield "topics", b"".join(self.broker.topics.encode_slices())
        yield "random", self._random.getstate()

    def _contents(self) -> Iterator[tuple[str, bytes]]:
        """Yield the content of every mapped file, by its path in the store."""
        if isinstance(self.files, MemoryFiles):
            for path, mapped in sorted(self.files._mapped.items()):
                yield path, bytes(mapped.view)
            return
        root = Path(self.broker.store.config.root)
        for folder in ("commitlog", "consumequeue", "index"):
            for file in sorted((root / folder).rglob("*")):
                if file.is_file():
                    yield str(file.relative_to(root)), file.read_bytes()

    def close(self) -> None:
        self.connection.close("the run is over")
        with suppress(Exception):
            self.service.close()


class _Turn:
    """Has the module `random` draw from a generator of one side, and frames decoded as on that side."""

    def __init__(self, own: random.Random, *, native: bool) -> None:
        self._own = own
        self._native = native

    def __enter__(self) -> None:
        random.setstate(self._own.getstate())
        if not self._native:
            command._decode_natively = None

    def __exit__(self, *_: object) -> None:
        self._own.setstate(random.getstate())
        command._decode_natively = _DECODE_NATIVELY


def _slots(count: Any) -> dict[str, object]:
    return {name: getattr(count, name) for name in count.__slots__}


def _comparable(metric: Metric | Distribution | None) -> tuple[object, ...] | None:
    """Return a metric without measured times; None for what the native path counts of itself."""
    if metric is None or "native" in metric.name:
        return None
    labels = sorted(metric.labels.items())
    if isinstance(metric, Metric):
        return metric.name, labels, "" if "seconds" in metric.name else metric.value
    histogram = metric.histogram
    if isinstance(histogram, LatencyHistogram):
        return metric.name, labels, histogram.count
    return metric.name, labels, histogram.count, histogram.total, list(histogram.shown_buckets())


@dataclass
class BrokerPair:
    """The two sides, to be used in a nursery. With a ``folder`` their stores are there, otherwise in memory."""

    nursery: trio.Nursery
    limits: ConnectionLimits = LIMITS
    settings: dict[str, Any] = field(default_factory=dict)
    folder: Path | None = None

    def __post_init__(self) -> None:
        self.sides = tuple(
            Side(self.nursery, native=native, limits=self.limits, **self._files_of(native), **self.settings)
            for native in (False, True)
        )
        self.reads: list[bytes] = []

    def _files_of(self, native: bool) -> dict[str, Any]:
        if self.folder is None:
            return {}
        root = self.folder / ("native" if native else "python")
        return {"files": DiskFiles(), "store_path_root_dir": str(root)}

    def feed(self, data: bytes) -> list[object]:
        """Give both the same bytes; return what was sent. Raises PairDiffers."""
        self.reads.append(data)
        outcomes = [side.feed(data) for side in self.sides]
        _compare("answers", *outcomes)
        _compare("state", *(side.progress() for side in self.sides))
        if self.sides[0].connection.closed:
            self.reconnect()
        return outcomes[0]

    @property
    def has_running_tasks(self) -> bool:
        """True while a request is handled by a task, which needs `settle`."""
        return any(side.connection.has_running_tasks for side in self.sides)

    @property
    def has_held_answers(self) -> bool:
        """True while answers wait for the disk."""
        return any(side.broker.answer_gate.held_count for side in self.sides)

    def reconnect(self, remote: tuple[str, int] = ("127.0.0.1", 5000)) -> None:
        """Go on with new connections on both sides."""
        for side in self.sides:
            side.connection.close("replaced")
            side.connect(remote)

    def both(self, change: Callable[[Side], object]) -> None:
        """Change both brokers in the same way. Raises PairDiffers if the outcomes differ."""
        outcomes = []
        for side in self.sides:
            with side.turn():
                outcomes.append(change(side))
        _compare("outcome of a change", *outcomes)

    async def settle(self) -> None:
        """Let tasks run until both have sent what waited for the disk. Raises PairDiffers."""
        await trio.testing.wait_all_tasks_blocked()
        _compare("late answers", *(bytes(side.transport.sent) for side in self.sides))
        _compare("state", *(side.progress() for side in self.sides))
        for side in self.sides:
            side.transport.sent.clear()

    def check(self) -> None:
        """Compare all files, queues, counts and metrics. Raises PairDiffers."""
        first, second = (side.state() for side in self.sides)
        for (name, value), (other_name, other) in zip(first, second, strict=True):
            _compare("names", name, other_name)
            _compare(name, value, other)

    @property
    def frames_taken(self) -> int:
        """The number of frames that the second side took natively."""
        return self.sides[1].frames_taken

    def close(self) -> None:
        for side in self.sides:
            side.close()


def _compare(name: str, python: object, native: object) -> None:
    if python == native:
        return
    if isinstance(python, bytes) and isinstance(native, bytes):
        at = next((i for i, pair in enumerate(zip(python, native, strict=False)) if pair[0] != pair[1]), None)
        at = min(len(python), len(native)) if at is None else at
        parts = [python[max(0, at - 60) : at + 60], native[max(0, at - 60) : at + 60]]
        raise PairDiffers(
            f"{name}: at byte {at} of {len(python)} and {len(native)}\n{parts[0]!r}\n{parts[1]!r}"
        )
    if isinstance(python, list | tuple) and isinstance(native, list | tuple) and len(python) == len(native):
        for number, (mine, its) in enumerate(zip(python, native, strict=True)):
            _compare(f"{name}[{number}]", mine, its)
    raise PairDiffers(f"{name}:\npython {python!r:.3000}\nnative {native!r:.3000}")


def run_pair(story: Callable[[BrokerPair], Awaitable[None]], **arguments: Any) -> int:
    """Run a story about a pair and compare the pair at the end; return the number of frames taken natively."""
    taken, failures = 0, []

    async def main() -> None:
        nonlocal taken
        async with trio.open_nursery() as nursery:
            pair = BrokerPair(nursery, **arguments)
            try:
                await story(pair)
                pair.check()
                taken = pair.frames_taken
            except PairDiffers as error:
                failures.append(error)  # Raised below: a nursery would raise a group of exceptions.
            finally:
                pair.close()
                nursery.cancel_scope.cancel()

    with NO_CLOCK:
        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=1e9))
    for failure in failures:
        raise failure
    return taken
