"""Tells the broker how far a stream is, as offsets of a consumer group, for tools that show lag.

The checkpoint is the truth: what is told here is never read again unless the user asks (`startingOffsets=committed`).
Not responsible for when a batch is done.
"""

import logging
from collections.abc import Mapping
from typing import Protocol

from spark.cluster import Queue, Queues
from spark.errors import EndpointError
from spark.source.offsets import Offsets
from spark.source.options import SOURCE

_LOG = logging.getLogger(__name__)


class Asked(Protocol):
    """Of a cluster what is needed here."""

    def is_live(self, group: str, queues: Queues) -> bool: ...

    def commit(self, group: str, queues: Queues, offsets: Mapping[Queue, int]) -> None: ...


class Progress:
    """Of one stream. `group` None: nothing is told to anybody. A group somebody consumes as is never touched."""

    def __init__(self, group: str | None, cluster: Asked) -> None:
        self._group = group
        self._cluster = cluster
        self._told: Offsets | None = None

    def begin(self, queues: Queues, offsets: Offsets) -> None:
        """A new stream starts here. Raises EndpointError when it cannot be told, or the group has live consumers."""
        if self._group is None:
            return
        if self._cluster.is_live(self._group, queues):
            raise EndpointError(
                f"{SOURCE}: group {self._group} has live consumers, whose offsets commitOffsetsToBroker would move; "
                "choose a consumerGroup of its own"
            )
        self._cluster.commit(self._group, queues, offsets)
        self._told = offsets

    def done(self, queues: Queues, offsets: Offsets) -> None:
        """Everything before these offsets is done. What goes wrong is logged and does not stop the stream."""
        if self._group is None or offsets == self._told:
            return
        try:
            if self._cluster.is_live(self._group, queues):
                _LOG.warning("group %s has live consumers: its offsets are left alone", self._group)
            else:
                self._cluster.commit(self._group, queues, offsets)
        except EndpointError as error:
            _LOG.warning("offsets of group %s could not be told: %s", self._group, error)
        self._told = offsets
