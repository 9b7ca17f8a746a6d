"""Writes consumer offsets that clients commit at the primary to the target, translated to the target's offsets.

A group with consumers at the target commits its own offsets there, and is left alone. A cut-over copies all offsets at
once (`clusters/full_sync.py`).
"""

from typing import Final, Protocol

import trio

from codec.constants import ResponseCode
from codec.topics import RETRY_PREFIX
from gateway.shadow.clusters.cluster import Cluster, group_members
from gateway.shadow.clusters.metadata_sync import plan_groups
from gateway.shadow.clusters.sync_steps import apply_steps
from gateway.shadow.mirror.offset_map import OffsetMap
from gateway.shadow.traffic.exchange import Exchange
from gateway.shadow.traffic.outcome import Outcome, OutcomeKind, refused_outcome
from gateway.shadow.traffic.subject import Subject
from remoting.errors import RequestError
from remoting.requests.offsets import UpdateConsumerOffset

ACTIVITY_CACHE_S: Final = 1.0
"""Time for which it is cached whether a group has consumers at the target."""
_MAX_CACHED_GROUPS: Final = 10_000


class OffsetTranslation(Protocol):
    """Translates consumer offsets of the primary."""

    def translate(self, queue: tuple[str, str, int], primary: int, /) -> int | None:
        """Return the target's offset for one of the primary's in a queue (broker, topic, id); None when unknown."""


class ConsumerOffsetWriter:
    """Writes offsets that groups commit at one broker to its counterpart.

    ``earlier`` is the map of the opposite direction, filled before the roles were swapped. Both maps name queues by the
    primary's broker. ``retry_topics`` tells whether the target has the messages of retry topics too.
    """

    def __init__(
        self,
        source: Cluster,
        target: Cluster,
        broker: str,
        target_broker: str,
        offsets: OffsetTranslation,
        earlier: OffsetMap | None = None,
        *,
        retry_topics: bool = False,
    ) -> None:
        self._source = source
        self._target = target
        self._broker = broker
        self._target_broker = target_broker
        self._offsets = offsets
        self._earlier = earlier
        self._retry_topics = retry_topics
        self._active: dict[str, tuple[float, bool]] = {}

    async def write_commit(self, exchange: Exchange, subject: Subject) -> Outcome:
        """Write one committed offset to the target. Raises CLUSTER_ERRORS of `cluster`."""
        topic, queue_id, group = subject.topic, subject.queue_id, subject.group
        if topic.startswith(RETRY_PREFIX) and not self._retry_topics:
            return Outcome(exchange, OutcomeKind.SKIPPED, "retry topics are consumed at the primary")
        offset = self._translate_offset(topic, queue_id, subject.number)
        if offset is None:
            return Outcome(
                exchange, OutcomeKind.SKIPPED, "the offset is older than everything mirrored to this queue"
            )
        # The group has moved: its own commits at the target are newer than what the primary knows.
        if await self._is_active(group):
            return Outcome(exchange, OutcomeKind.SKIPPED, "the group is active on the target")
        request = UpdateConsumerOffset(
            consumer_group=group, topic=topic, queue_id=queue_id, commit_offset=offset
        )
        try:
            await self._commit_at_target(request)
        except RequestError as problem:
            return refused_outcome(exchange, problem.code, problem.remark)
        return Outcome(exchange, OutcomeKind.MIRRORED)

    async def advance_offset(self, group: str, topic: str, queue_id: int, offset: int) -> bool:
        """Set an offset at the target; return False if the group is active there. Raises CLUSTER_ERRORS of
        `cluster`.
        """
        if await self._is_active(group):
            return False
        await self._commit_at_target(
            UpdateConsumerOffset(consumer_group=group, topic=topic, queue_id=queue_id, commit_offset=offset)
        )
        return True

    async def _commit_at_target(self, request: UpdateConsumerOffset) -> None:
        """Set an offset at the target, after creating the group as it is at the source if it is missing."""
        try:
            await self._target.ask_broker(self._target_broker, request)
        except RequestError as problem:
            # The group has to exist first, with the settings that it has at the primary.
            if problem.code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                raise
            groups = (request.consumer_group,)
            places = self._source, self._target, self._broker, self._target_broker
            await apply_steps(self._target, await plan_groups(*places, groups))
            await self._target.ask_broker(self._target_broker, request)

    def _translate_offset(self, topic: str, queue_id: int, committed: int) -> int | None:
        offset = self._offsets.translate((self._broker, topic, queue_id), committed)
        if offset is None and self._earlier is not None:
            return self._earlier.translate_back((self._broker, topic, queue_id), committed)
        return offset

    async def _is_active(self, group: str) -> bool:
        now_s = trio.current_time()
        activity = self._active.get(group)
        if activity is not None and now_s - activity[0] < ACTIVITY_CACHE_S:
            return activity[1]
        if len(self._active) >= _MAX_CACHED_GROUPS:
            self._active.clear()
        active = bool(await group_members(self._target, self._target_broker, group))
        self._active[group] = now_s, active
        return active
