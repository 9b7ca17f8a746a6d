"""Traffic over time, in bounded memory: rates, refusals, differences and latency quantiles by topic.

An observer only increments counters; a task turns them into points, in rings of three resolutions. A point is
`len(COLUMNS)` numbers of 8 bytes, so a topic with a name of its own takes 0.5 MB, and each metric of other parts 27 kB
(at most `MAX_METRIC_NAMES`).
"""

import math
import re
import time
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import orjson
import trio

from codec.constants import STORED_CODES, ResponseCode
from codec.errors import FrameError
from gateway.runtime.metrics import Distribution, LatencyHistogram, Metric, MetricKind, MetricRegistry
from gateway.shadow.traffic.exchange import ALL_CODES, Codes, Exchange, Side
from gateway.shadow.traffic.outcome import Outcome, OutcomeKind

SEND: Final = "send"
PULL: Final = "pull"
OTHER: Final = "other"

JSON_HEADER_TYPE: Final = 0
"""The byte after the length of a frame whose header is JSON."""
SUCCESS_PREFIX: Final = b'{"code":0,'
"""The start of the JSON header of most successful answers, after the two length words."""
_TOPIC, _SHORT_TOPIC = ("topic", b'"topic":"'), ("b", b'"b":"')
REQUEST_KINDS: Final = {
    10: (SEND, *_TOPIC),
    310: (SEND, *_SHORT_TOPIC),
    320: (SEND, *_SHORT_TOPIC),
    324: (SEND, *_TOPIC),
    325: (SEND, *_SHORT_TOPIC),
    11: (PULL, *_TOPIC),
    361: (PULL, *_TOPIC),
    200050: (PULL, *_TOPIC),
}
"""Sends and reads by request code, with the header field that names their topic."""
SEND_CODES: Final = frozenset(code for code, kind in REQUEST_KINDS.items() if kind[0] is SEND)
_NOT_REFUSALS: Final = STORED_CODES | {
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
    ResponseCode.POLLING_FULL,
    ResponseCode.POLLING_TIMEOUT,
}
"""Response codes that are not refusals: success, stored but not yet safe everywhere, and reads without messages."""
_CODE_PATTERN: Final = re.compile(rb'"code"\s*:\s*(-?\d{1,10})')


def peek_topic(exchange: Exchange) -> bytes:
    """Return the topic of a send or a read as UTF-8; empty for other requests and for unreadable ones."""
    kind = REQUEST_KINDS.get(exchange.code)
    return b"" if kind is None else peek_named_topic(exchange, kind[1], kind[2])


def peek_named_topic(exchange: Exchange, name: str, quoted: bytes) -> bytes:
    """Return the topic when its header field is known already; ``quoted`` is the field's name as it appears in JSON."""
    request = exchange.request
    if request[4] == JSON_HEADER_TYPE:
        end = 8 + (request[6] << 8 | request[7])
        start = request.find(quoted, 8, end)
        if start > 0:
            start += len(quoted)
            return request[start : request.find(b'"', start, end)]
    try:
        return exchange.request_command.ext.get(name, "").encode("utf-8", "replace")
    except FrameError:
        return b""


def is_refusal(answer: bytes) -> bool:
    """Return whether an answer says that the request was refused."""
    if answer.startswith(SUCCESS_PREFIX, 8):
        return False
    if answer[4] != JSON_HEADER_TYPE:
        return int.from_bytes(answer[8:10], "big", signed=True) not in _NOT_REFUSALS
    match = _CODE_PATTERN.search(answer, 8, 8 + int.from_bytes(answer[5:8], "big"))
    return match is not None and int(match[1]) not in _NOT_REFUSALS


RESOLUTIONS: Final = ((1, 900), (10, 1080), (60, 1440))
"""Seconds per point, and number of points: a quarter of an hour, three hours, a day."""
ALL_TOPICS: Final = "(all)"
OTHER_TOPICS: Final = "(others)"
COUNT_NAMES: Final = (
    "sends",
    "pulls",
    "refused",
    "sent_bytes",
    "mirrored",
    "mirror_refused",
    "mirror_dropped",
    "compared",
    "differing",
)
"""Counts of a topic: client requests, refusals by the primary, outcomes at the target, comparisons."""
SIDES: Final = ("primary", "target", "share")
"""The parts of a send's latency: the primary's, the target's, and the gateway overhead before forwarding (`share`)."""
QUANTILE_PERCENTS: Final = (50, 90, 99)
COLUMNS: Final = tuple(f"{name}_per_s" for name in COUNT_NAMES) + tuple(
    f"{side}_p{percent}_ms" for side in SIDES for percent in QUANTILE_PERCENTS
)
MAX_METRIC_NAMES: Final = 64
MIN_ELAPSED_S: Final = 0.001
MAX_TOPIC_BYTES: Final = 255
SPARE_POINTS: Final = 8
"""Points that may be added while a report is being built."""
_OUTCOME_COUNTS: Final = {
    OutcomeKind.MIRRORED: "mirrored",
    OutcomeKind.REFUSED: "mirror_refused",
    OutcomeKind.DROPPED: "mirror_dropped",
}


_NO_QUANTILES: Final = [math.nan] * len(QUANTILE_PERCENTS)


class TopicTally:
    """The counts of one topic: plain numbers that only grow."""

    __slots__ = (*COUNT_NAMES, *SIDES)

    def __init__(self) -> None:
        for name in COUNT_NAMES:
            setattr(self, name, 0)
        for side in SIDES:
            setattr(self, side, LatencyHistogram())

    sends: int
    pulls: int
    refused: int
    sent_bytes: int
    mirrored: int
    mirror_refused: int
    mirror_dropped: int
    compared: int
    differing: int
    primary: LatencyHistogram
    target: LatencyHistogram
    share: LatencyHistogram

    def copy(self) -> "TopicTally":
        """Return a copy."""
        same = TopicTally()
        for name in COUNT_NAMES:
            setattr(same, name, getattr(self, name))
        for side in SIDES:
            setattr(same, side, getattr(self, side).copy())
        return same

    def has_counts(self) -> bool:
        """Return whether anything was counted."""
        return any(getattr(self, name) for name in COUNT_NAMES)

    def add_tally(self, other: "TopicTally") -> None:
        """Add the counts of another tally."""
        for name in COUNT_NAMES:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for side in SIDES:
            getattr(self, side).merge(getattr(other, side))

    def row_since(self, earlier: "TopicTally", elapsed_s: float) -> list[float]:
        """Return one number per column for everything counted after ``earlier`` was copied."""
        row = [round((getattr(self, name) - getattr(earlier, name)) / elapsed_s, 3) for name in COUNT_NAMES]
        for side in SIDES:
            now, then = getattr(self, side), getattr(earlier, side)
            row += _NO_QUANTILES if now.count == then.count else _quantiles_ms(now.since(then))
        return row

    def totals(self) -> dict[str, float | None]:
        """Return the counts and quantiles since the start, for tables and conditions."""
        shown: dict[str, float | None] = {name: getattr(self, name) for name in COUNT_NAMES}
        for side in SIDES:
            for percent, value in zip(QUANTILE_PERCENTS, _quantiles_ms(getattr(self, side)), strict=True):
                shown[f"{side}_p{percent}_ms"] = None if math.isnan(value) else value
        return shown


def _quantiles_ms(latencies: LatencyHistogram) -> list[float]:
    if not latencies.count:
        return _NO_QUANTILES
    return [round(latencies.quantile(percent / 100) * 1000, 3) for percent in QUANTILE_PERCENTS]


@dataclass(slots=True)
class _PointRing:
    """A ring of points of one resolution; all topics share its times. `at` is the index of the newest point."""

    step_s: int
    length: int
    due_s: float
    since_s: float
    at: int = -1
    points: int = 0
    times_ms: "array[float]" = field(init=False)
    columns: dict[str, list["array[float]"]] = field(default_factory=dict)
    earlier: dict[str, TopicTally] = field(default_factory=dict)
    metrics: dict[str, "array[float]"] = field(default_factory=dict)
    metrics_earlier: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.times_ms = self._empty_column()

    def begin_point(self, wall_ms: float) -> None:
        """Start a new point; a topic without a row in it has NaN there."""
        self.at = (self.at + 1) % self.length
        self.points = min(self.points + 1, self.length)
        self.times_ms[self.at] = wall_ms
        for column in self._all_columns():
            column[self.at] = math.nan

    def put_row(self, topic: str, row: Iterable[float]) -> None:
        """Set a topic's numbers in the newest point."""
        columns = self.columns.get(topic)
        if columns is None:
            columns = self.columns[topic] = [self._empty_column() for _ in COLUMNS]
        for column, value in zip(columns, row, strict=True):
            column[self.at] = value

    def put_metric(self, name: str, value: float) -> None:
        """Set a metric's number in the newest point."""
        column = self.metrics.get(name)
        if column is None:
            column = self.metrics[name] = self._empty_column()
        column[self.at] = value

    def visible_points(self) -> tuple[int, int]:
        """Return the points to show, as index of the newest and number, for `ordered_values`.

        A full ring leaves out `SPARE_POINTS` of the oldest: points that are added meanwhile overwrite them.
        """
        return self.at, self.points if self.points < self.length else self.length - SPARE_POINTS

    @staticmethod
    def ordered_values(column: "array[float]", window: tuple[int, int]) -> list[float]:
        """Return the values of these points, oldest first, even if newer points were added meanwhile."""
        at, points = window
        start = at + 1 - points
        shown = column[start : at + 1] if start >= 0 else column[start:] + column[: at + 1]
        return shown.tolist()

    def _empty_column(self) -> "array[float]":
        return array("d", [math.nan]) * self.length

    def _all_columns(self) -> Iterator["array[float]"]:
        for columns in self.columns.values():
            yield from columns
        yield from self.metrics.values()


class TrafficSeries:
    """Counts traffic (`observe`, `observe_outcome`, `record_comparison`) and adds a point every second while it runs.

    Part of it runs for every request of clients, so it only increments plain numbers.
    """

    def __init__(
        self,
        registry: MetricRegistry,
        *,
        topics: int = 32,
        wall_ms: Callable[[], float] = lambda: time.time() * 1000,
    ) -> None:
        self._registry = registry
        self._max_topics = topics
        self._wall_ms = wall_ms
        self._tallies: dict[bytes, TopicTally] = {}
        self._other_topics = TopicTally()
        self._untallied_latencies = {kind: LatencyHistogram() for kind in (PULL, OTHER)}
        self._rings: list[_PointRing] = []
        self.started_ms = wall_ms()

    def codes(self) -> Codes:
        """Return all codes: every request counts."""
        return ALL_CODES

    def observe(self, exchange: Exchange) -> None:
        """Count an exchange (2 us)."""
        if exchange.reverse:
            return
        kind = REQUEST_KINDS.get(exchange.code)
        answer = exchange.answer
        if kind is None:
            self._count_other(exchange)
            return
        topic = peek_named_topic(exchange, kind[1], kind[2])
        tally = self._tallies.get(topic) or self._tally_of(topic)
        if answer is not None and not answer.startswith(SUCCESS_PREFIX, 8):
            tally.refused += is_refusal(answer)
        if kind[0] is PULL:
            tally.pulls += 1
            self._untallied_latencies[PULL].record(exchange.answered_s - exchange.forwarded_s)
            return
        tally.sends += 1
        tally.sent_bytes += len(exchange.request)
        tally.share.record(exchange.forwarded_s - exchange.asked_s)
        if answer is not None:
            side = tally.primary if exchange.side is Side.PRIMARY else tally.target
            side.record(exchange.answered_s - exchange.forwarded_s)

    def _count_other(self, exchange: Exchange) -> None:
        if exchange.answer is not None:
            self._other_topics.refused += is_refusal(exchange.answer)
            self._untallied_latencies[OTHER].record(exchange.answered_s - exchange.forwarded_s)

    def observe_outcome(self, outcome: Outcome) -> None:
        """Count the outcome of a mirrored exchange: an `OutcomeListener`."""
        name = _OUTCOME_COUNTS.get(outcome.kind)
        if name is None:
            return
        tally = self._tally_of(peek_topic(outcome.exchange))
        setattr(tally, name, getattr(tally, name) + 1)
        if outcome.kind is OutcomeKind.MIRRORED and outcome.exchange.code in SEND_CODES:
            side = tally.target if outcome.exchange.side is Side.PRIMARY else tally.primary
            side.record(outcome.latency_s)

    def record_comparison(self, topic: str, differs: bool) -> None:
        """Count one comparison of an answer or a message of a topic ("" for none)."""
        tally = self._tally_of(topic.encode("utf-8", "replace"))
        tally.compared += 1
        tally.differing += differs

    def _tally_of(self, topic: bytes) -> TopicTally:
        tally = self._tallies.get(topic)
        if tally is None:
            if not 0 < len(topic) <= MAX_TOPIC_BYTES or len(self._tallies) >= self._max_topics:
                return self._other_topics
            tally = self._tallies[topic] = TopicTally()
        return tally

    def collect_metrics(self) -> Iterator[Metric | Distribution]:
        """Yield the metrics of the traffic."""
        for topic, tally in self._named_tallies():
            labels = {"topic": topic}
            for name in COUNT_NAMES:
                value = getattr(tally, name)
                yield Metric(
                    f"traffic_{name}_total", value, f"By topic: {name.replace('_', ' ')}.", labels=labels
                )
        total = self.total_tally()
        for side in SIDES:
            meaning = "Latency of sends by side; share is the gateway overhead."
            yield Distribution("send_latency_seconds", getattr(total, side), meaning, {"side": side})
        for kind, latencies in self._untallied_latencies.items():
            meaning = "Latency of other requests at the primary; reads include long polling."
            yield Distribution("request_latency_seconds", latencies, meaning, {"kind": kind})

    def _named_tallies(self) -> Iterator[tuple[str, TopicTally]]:
        for topic, tally in list(self._tallies.items()):
            yield topic.decode("utf-8", "replace"), tally
        if self._other_topics.has_counts():
            yield OTHER_TOPICS, self._other_topics

    def total_tally(self) -> TopicTally:
        """Return the counts of all topics together."""
        total = TopicTally()
        for _, tally in self._named_tallies():
            total.add_tally(tally)
        return total

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Add points until cancelled."""
        now_s = trio.current_time()
        if not self._rings:  # a restart after a failure keeps the points
            self._rings = [
                _PointRing(step_s, length, now_s + step_s, now_s) for step_s, length in RESOLUTIONS
            ]
        task_status.started()
        while True:
            await trio.sleep_until(self._rings[0].due_s)
            for ring in self._rings:
                if trio.current_time() >= ring.due_s:
                    await self._add_point(ring)

    async def _add_point(self, ring: _PointRing) -> None:
        """Add one point for all topics, yielding to other tasks after each, so that no request waits for this."""
        now_s = trio.current_time()
        # The clock stands still when the task is restarted after a failure.
        elapsed_s, ring.since_s = max(now_s - ring.since_s, MIN_ELAPSED_S), now_s
        ring.due_s += ring.step_s * max(1, math.ceil((now_s - ring.due_s) / ring.step_s))
        ring.begin_point(self._wall_ms())
        total = TopicTally()
        for topic, tally in self._named_tallies():
            self._put_topic_row(ring, topic, tally, elapsed_s)
            total.add_tally(tally)
            await trio.lowlevel.checkpoint()
        self._put_topic_row(ring, ALL_TOPICS, total, elapsed_s)
        await self._add_metric_points(ring, elapsed_s)

    def _put_topic_row(self, ring: _PointRing, topic: str, tally: TopicTally, elapsed_s: float) -> None:
        earlier = ring.earlier.get(topic)
        ring.put_row(topic, tally.row_since(earlier or TopicTally(), elapsed_s))
        ring.earlier[topic] = tally.copy()

    async def _add_metric_points(self, ring: _PointRing, elapsed_s: float) -> None:
        sums: dict[tuple[str, MetricKind], float] = {}
        _sum_metrics(sums, await self._registry.collect_in_slices(leave_out=self.collect_metrics))
        for (name, kind), value in sums.items():
            if name not in ring.metrics and len(ring.metrics) >= MAX_METRIC_NAMES:
                continue
            if kind == "counter":
                earlier, ring.metrics_earlier[name] = ring.metrics_earlier.get(name, 0.0), value
                value = round((value - earlier) / elapsed_s, 3)
            ring.put_metric(name, value)

    def newest_point(self) -> dict[str, Any]:
        """Return the last second: a number per column by topic, and the metrics of other parts."""
        if not self._rings or not self._rings[0].points:
            return {"topics": {}, "metrics": {}}
        ring = self._rings[0]
        topics = {
            topic: {
                name: _nan_to_none(column[ring.at]) for name, column in zip(COLUMNS, columns, strict=True)
            }
            for topic, columns in ring.columns.items()
        }
        metrics = {name: _nan_to_none(column[ring.at]) for name, column in ring.metrics.items()}
        return {"at_ms": ring.times_ms[ring.at], "topics": topics, "metrics": metrics}

    async def to_report(self) -> dict[str, Any]:
        """Return the finest points that reach back to the start (or as far as any do) as JSON fragments, and the
        totals."""
        totals = {topic: tally.totals() for topic, tally in self._named_tallies()}
        totals[ALL_TOPICS] = self.total_tally().totals()
        return {
            "started_ms": self.started_ms,
            "totals": totals,
            **await self._points_to_json(self._finest_complete_ring()),
        }

    def _finest_complete_ring(self) -> _PointRing | None:
        complete = [ring for ring in self._rings if ring.points < ring.length]
        return complete[0] if complete else (self._rings[-1] if self._rings else None)

    async def _points_to_json(self, ring: _PointRing | None) -> dict[str, Any]:
        if ring is None:
            return {"step_s": 1, "times_ms": [], "topics": {}, "metrics": {}}
        window, topics = ring.visible_points(), dict[str, orjson.Fragment]()
        for topic, columns in list(ring.columns.items()):
            shown = {
                name: ring.ordered_values(column, window)
                for name, column in zip(COLUMNS, columns, strict=True)
            }
            topics[topic] = orjson.Fragment(orjson.dumps(shown))
            await trio.lowlevel.checkpoint()
        return {
            "step_s": ring.step_s,
            "times_ms": ring.ordered_values(ring.times_ms, window),
            "topics": topics,
            "metrics": {name: ring.ordered_values(column, window) for name, column in ring.metrics.items()},
        }


def _nan_to_none(value: float) -> float | None:
    return None if math.isnan(value) else value


def _sum_metrics(sums: dict[tuple[str, MetricKind], float], metrics: Iterable[Metric | Distribution]) -> None:
    """Add up metrics by name, whatever their labels."""
    for metric in metrics:
        if isinstance(metric, Metric):
            key = metric.name, metric.kind
            sums[key] = sums.get(key, 0.0) + metric.value
