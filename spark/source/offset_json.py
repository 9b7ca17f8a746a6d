"""Positions in queues as Spark keeps them: `{"topic": {"broker": {"0": 123}}}`, always in the same order.

Spark compares offsets as texts: the same positions have to be the same text.

Not responsible for where anything starts or ends.
"""

import json
from collections.abc import Mapping
from typing import Any

from spark.cluster import Queue

Offsets = dict[Queue, int]
OffsetsJson = dict[str, dict[str, dict[str, int]]]


def offsets_to_json(offsets: Mapping[Queue, int]) -> OffsetsJson:
    """Nested as Spark gets it, sorted by topic, broker and queue."""
    nested: OffsetsJson = {}
    for queue in sorted(offsets):
        nested.setdefault(queue.topic, {}).setdefault(queue.broker, {})[str(queue.queue_id)] = offsets[queue]
    return nested


def offsets_from_json(nested: Any) -> Offsets:
    """What `to_json` made. Raises ValueError for anything else, saying what it should look like."""
    found: Offsets = {}
    for topic, brokers in _object_items(nested):
        for broker, queues in _object_items(brokers):
            for queue_id, offset in _object_items(queues):
                if not queue_id.isdecimal() or isinstance(offset, bool) or not isinstance(offset, int):
                    raise ValueError(
                        f"{json.dumps({queue_id: offset})} is not a queue's number and a whole number"
                    )
                found[Queue(topic, broker, int(queue_id))] = offset
    return dict(sorted(found.items()))


def _object_items(value: Any) -> list[tuple[str, Any]]:
    if not isinstance(value, dict) or not value:
        raise ValueError('must look like {"topic": {"broker": {"0": 23}}}')
    return list(value.items())
