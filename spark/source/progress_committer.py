"""Tells the broker how far a stream is, as offsets of a consumer group, for tools that show lag.

The checkpoint is the truth: what is told here is never read again unless the user asks (`startingOffsets=committed`).
Not responsible for when a batch is done.
"""

import logging
from collections.abc import Mapping
from typing import Protocol

from spark.cluster import Queue, QueueAddresses
from spark.errors import EndpointError
from spark.source.offset_json import Offsets
from spark.source.options import SOURCE

_LOG = logging.getLogger(__name__)


class GroupOffsets(Protocol):
    """Of a cluster what is needed here."""

    def has_live_consumers(self, group: str, queues: QueueAddresses) -> bool: ...

    def commit_offsets(self, group: str, queues: QueueAddresses, offsets: Mapping[Queue, int]) -> None: ...


class ProgressCommitter:
    """Of one stream. `group` None: nothing is told to anybody. A group somebody consumes as is never touched."""

    def __init__(self, group: str | None, cluster: GroupOffsets) -> None:
        self._group = group
        self._cluster = cluster
        self._last_committed: Offsets | None = None

    def claim_group(self, queues: QueueAddresses, offsets: Offsets) -> None:
        """A new stream starts here. Raises EndpointError when it cannot be told, or the group has live consumers."""
        if self._group is None:
            return
        if self._cluster.has_live_consumers(self._group, queues):
            raise EndpointError(
                f"{SOURCE}: group {self._group} has live consumers, whose offsets commitOffsetsToBroker would move; "
                "choose a consumerGroup of its own"
            )
        self._cluster.commit_offsets(self._group, queues, offsets)
        self._last_committed = offsets

    def commit_progress(self, queues: QueueAddresses, offsets: Offsets) -> None:
        """Everything before these offsets is done. What goes wrong is logged and does not stop the stream."""
        if self._group is None or offsets == self._last_committed:
            return
        try:
            if self._cluster.has_live_consumers(self._group, queues):
                _LOG.warning("group %s has live consumers: its offsets are left alone", self._group)
            else:
                self._cluster.commit_offsets(self._group, queues, offsets)
        except EndpointError as error:
            _LOG.warning("offsets of group %s could not be told: %s", self._group, error)
        self._last_committed = offsets
