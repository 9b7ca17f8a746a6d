"""Resolution of starting and ending positions to offsets, and reports of missing messages."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from spark.cluster import Extent, Queue, QueueAddresses
from spark.errors import DataLossError, OptionError
from spark.source.offset_json import Offsets
from spark.source.options import COMMITTED, EARLIEST, EARLIEST_OFFSET, LATEST, LATEST_OFFSET, SOURCE
from spark.source.queue_discovery import QueueSnapshot

_LOG = logging.getLogger(__name__)


class PositionLookup(Protocol):
    """Part of `ClusterClient` that resolves times and consumer groups to offsets."""

    def find_offsets_at(self, queues: QueueAddresses, times_ms: Mapping[Queue, int]) -> dict[Queue, int]: ...

    def fetch_committed(self, group: str, queues: QueueAddresses) -> dict[Queue, int]: ...


@dataclass(frozen=True, slots=True)
class Position:
    """A position in every queue: a word, offsets per queue, one time, or times per queue.

    `option` is the option that gave it. If `strict`, a queue that holds nothing stored at or after its time is an
    error; otherwise the position is the queue's end.
    """

    option: str
    word: str | None = None
    offsets: Offsets | None = None
    time_ms: int | None = None
    times_ms: Offsets | None = None
    strict: bool = False
    group: str | None = None


def starting_position(values: Mapping[str, Any], default: str) -> Position:
    """Return the position at which a query starts, by its options."""
    strict = values["startingOffsetsByTimestampStrategy"] == "error"
    return _position_from_options(values, "starting", default, strict)


def ending_position(values: Mapping[str, Any]) -> Position:
    """Return the position at which a batch ends, by its options."""
    return _position_from_options(values, "ending", LATEST, False)


def _position_from_options(values: Mapping[str, Any], which: str, default: str, strict: bool) -> Position:
    group = values["consumerGroup"]
    if values[f"{which}Timestamp"] is not None:
        return Position(f"{which}Timestamp", time_ms=values[f"{which}Timestamp"], strict=strict)
    if values[f"{which}OffsetsByTimestamp"] is not None:
        option = f"{which}OffsetsByTimestamp"
        return Position(option, times_ms=values[option], strict=strict)
    value = values[f"{which}Offsets"] or default
    if isinstance(value, str):
        return Position(f"{which}Offsets", word=value, group=group)
    return Position(f"{which}Offsets", offsets=value)


def resolve_position(position: Position, snapshot: QueueSnapshot, cluster: PositionLookup) -> Offsets:
    """Return the offset of the position in each queue. Explicit offsets are not yet checked against what queues hold.

    Raises OptionError for queues that the position must name and does not, or names though the query does not read
    them, and for times after the last message.
    """
    if position.offsets is not None:
        _require_same_queues(position.option, position.offsets, snapshot.queues)
        special = {EARLIEST_OFFSET: snapshot.begin_offsets, LATEST_OFFSET: snapshot.end_offsets}
        return {
            queue: special[offset][queue] if offset in special else offset
            for queue, offset in position.offsets.items()
        }
    if position.times_ms is not None:
        _require_same_queues(position.option, position.times_ms, snapshot.queues)
        return _resolve_times(position, position.times_ms, snapshot, cluster)
    if position.time_ms is not None:
        return _resolve_times(position, dict.fromkeys(snapshot.queues, position.time_ms), snapshot, cluster)
    if position.word == COMMITTED:
        return _resolve_committed(position.group or "", snapshot, cluster)
    return snapshot.begin_offsets if position.word == EARLIEST else snapshot.end_offsets


def _require_same_queues(option: str, offsets: Mapping[Queue, int], queues: QueueAddresses) -> None:
    missing_queues = sorted(queue for queue in queues if queue not in offsets)
    unread_queues = sorted(queue for queue in offsets if queue not in queues)
    if missing_queues:
        queue_names = ", ".join(map(str, missing_queues))
        raise OptionError(f"{SOURCE}: option {option} must name every queue; missing: {queue_names}")
    if unread_queues:
        raise OptionError(
            f"{SOURCE}: option {option} names {', '.join(map(str, unread_queues))}, which this query does not read"
        )


def _resolve_times(
    position: Position, times_ms: Mapping[Queue, int], snapshot: QueueSnapshot, cluster: PositionLookup
) -> Offsets:
    offsets = cluster.find_offsets_at(snapshot.queues, times_ms)
    late = sorted(queue for queue, end in snapshot.end_offsets.items() if offsets[queue] >= end)
    if late and position.strict:
        raise OptionError(
            f"{SOURCE}: option {position.option}: nothing was stored in {', '.join(map(str, late))} from that time on; "
            "startingOffsetsByTimestampStrategy=latest starts at the end"
        )
    return {
        queue: min(max(offsets[queue], extent.begin), extent.end)
        for queue, extent in snapshot.extents.items()
    }


def _resolve_committed(group: str, snapshot: QueueSnapshot, cluster: PositionLookup) -> Offsets:
    committed = cluster.fetch_committed(group, snapshot.queues)
    without_offset = sorted(queue for queue in snapshot.queues if queue not in committed)
    if without_offset:
        queue_names = ", ".join(map(str, without_offset))
        _LOG.warning(
            "group %s has no committed offset for %s: reading from the beginning", group, queue_names
        )
    return snapshot.begin_offsets | committed


def clamp_offsets(offsets: Mapping[Queue, int], extents: Mapping[Queue, Extent], fail: bool) -> Offsets:
    """Return the offsets, moving those outside their queue to its nearest end.

    If one is outside, raises DataLossError if `fail`, else logs a warning.
    """
    outside = [
        f"{queue} holds [{extents[queue].begin}, {extents[queue].end}), {offset} is outside"
        for queue, offset in offsets.items()
        if not extents[queue].begin <= offset <= extents[queue].end
    ]
    report_losses(outside, fail)
    return {
        queue: min(max(offset, extents[queue].begin), extents[queue].end) for queue, offset in offsets.items()
    }


def readable_ranges(
    starts: Mapping[Queue, int], ends: Mapping[Queue, int], extents: Mapping[Queue, Extent], fail: bool
) -> dict[Queue, tuple[int, int]]:
    """Return [start, end) per queue of the messages that still exist; queues only in `ends` start at their beginning.

    If messages in between are missing, raises DataLossError if `fail`, else logs a warning.
    """
    ranges: dict[Queue, tuple[int, int]] = {}
    losses: list[str] = []
    for queue, end in ends.items():
        extent = extents.get(queue)
        start = starts.get(queue, min(extent.begin, end) if extent else 0)
        if start >= end:
            continue
        if extent is None:
            losses.append(f"{queue} no longer exists; [{start}, {end}) was to be read")
            continue
        inside = max(start, extent.begin), min(end, extent.end)
        if inside != (start, end):
            losses.append(f"of [{start}, {end}) in {queue} only [{extent.begin}, {extent.end}) is there")
        if inside[0] < inside[1]:
            ranges[queue] = inside
    report_losses(losses, fail)
    return ranges


def unreachable_queues(
    starts: Mapping[Queue, int], ends: Mapping[Queue, int], extents: Mapping[Queue, Extent]
) -> set[Queue]:
    """Return the queues whose end offset cannot be read now. It can be read again when their broker comes back."""
    return {
        queue
        for queue, end in ends.items()
        if starts.get(queue, 0) < end and (queue not in extents or extents[queue].end < end)
    }


def report_losses(losses: Iterable[str], fail: bool) -> None:
    """Raise DataLossError if there are losses and `fail`; otherwise log each as a warning."""
    texts = list(losses)
    if texts and fail:
        raise DataLossError(
            f"{SOURCE}: messages are missing: {'; '.join(texts)}. They may have expired, or a topic or broker was "
            "removed; failOnDataLoss=false continues without them"
        )
    for loss in texts:
        _LOG.warning("messages are missing: %s", loss)
