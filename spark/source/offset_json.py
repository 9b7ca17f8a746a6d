"""Offsets of queues as Spark stores them: `{"topic": {"broker": {"0": 123}}}`, in a fixed order.

Spark compares offsets as text, so equal offsets must give equal text.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from spark.cluster import Queue

Offsets = dict[Queue, int]
OffsetsJson = dict[str, dict[str, dict[str, int]]]


def offsets_to_json(offsets: Mapping[Queue, int]) -> OffsetsJson:
    """Return offsets as nested dictionaries, sorted by topic, broker and queue."""
    nested: OffsetsJson = {}
    for queue in sorted(offsets):
        nested.setdefault(queue.topic, {}).setdefault(queue.broker, {})[str(queue.queue_id)] = offsets[queue]
    return nested


_FINGERPRINTS: Final = "#fingerprints"
"""Member with the fingerprints of the messages before the offsets. No topic has such a name."""


def positions_to_json(offsets: Mapping[Queue, int], fingerprints: Mapping[Queue, int]) -> OffsetsJson:
    """Return offsets as `offsets_to_json` does, with fingerprints of the last messages before them."""
    nested = offsets_to_json(offsets)
    known = {queue: fingerprint for queue, fingerprint in fingerprints.items() if queue in offsets}
    if known:
        nested[_FINGERPRINTS] = offsets_to_json(known)  # type: ignore[assignment]
    return nested


def fingerprints_from_json(nested: Any) -> dict[Queue, int]:
    """Return the fingerprints of stored positions; none for positions that an earlier version stored."""
    fingerprints = nested.get(_FINGERPRINTS) if isinstance(nested, dict) else None
    return offsets_from_json(fingerprints) if fingerprints else {}


def offsets_from_json(nested: Any) -> Offsets:
    """Parse the result of `offsets_to_json`. Raises ValueError, with an example, for anything else."""
    offsets: Offsets = {}
    for topic, brokers in _object_items(nested):
        if topic == _FINGERPRINTS:
            continue
        for broker, queues in _object_items(brokers):
            for queue_id, offset in _object_items(queues):
                if not queue_id.isdecimal() or isinstance(offset, bool) or not isinstance(offset, int):
                    raise ValueError(
                        f"{json.dumps({queue_id: offset})} is not a queue number with an integer offset"
                    )
                offsets[Queue(topic, broker, int(queue_id))] = offset
    return dict(sorted(offsets.items()))


def _object_items(value: Any) -> list[tuple[str, Any]]:
    if not isinstance(value, dict) or not value:
        raise ValueError('must look like {"topic": {"broker": {"0": 23}}}')
    return list(value.items())
