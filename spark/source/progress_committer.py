"""Progress commits: a stream's position as offsets of a consumer group, for tools that show lag.

The checkpoint is authoritative. Committed offsets are never read back unless the user asks
(`startingOffsets=committed`).
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
    """Part of `ClusterClient` that commits offsets."""

    def has_live_consumers(self, group: str, queues: QueueAddresses) -> bool: ...

    def commit_offsets(self, group: str, queues: QueueAddresses, offsets: Mapping[Queue, int]) -> None: ...


class ProgressCommitter:
    """Commits the progress of one stream; does nothing if `group` is None. Never touches a group with live
    consumers.
    """

    def __init__(self, group: str | None, cluster: GroupOffsets) -> None:
        self._group = group
        self._cluster = cluster
        self._last_committed: Offsets | None = None

    def claim_group(self, queues: QueueAddresses, offsets: Offsets) -> None:
        """Commit the start of a new stream. Raises EndpointError if that fails, or if the group has live consumers."""
        if self._group is None:
            return
        if self._cluster.has_live_consumers(self._group, queues):
            raise EndpointError(
                f"{SOURCE}: group {self._group} has live consumers, whose offsets commitOffsetsToBroker would move; "
                "use a consumerGroup that nothing else consumes with"
            )
        self._cluster.commit_offsets(self._group, queues, offsets)
        self._last_committed = offsets

    def commit_progress(self, queues: QueueAddresses, offsets: Offsets) -> None:
        """Commit that everything before these offsets is processed. Failures are logged and do not stop the stream."""
        if self._group is None or offsets == self._last_committed:
            return
        try:
            if self._cluster.has_live_consumers(self._group, queues):
                _LOG.warning("group %s has live consumers: progress is not committed", self._group)
            else:
                self._cluster.commit_offsets(self._group, queues, offsets)
        except EndpointError as error:
            _LOG.warning("progress of group %s could not be committed: %s", self._group, error)
        self._last_committed = offsets
