"""Transfers the settings, offsets and locks of a group to the side that it is about to consume from.

`checks` decides whether the group may switch.
"""

import trio

from gateway.shadow.clusters.cluster_pair import QueueRange, queue_name
from gateway.shadow.clusters.metadata_sync import copy_topic, plan_groups
from gateway.shadow.clusters.sync_steps import SyncAction, SyncStep, apply_steps
from gateway.shadow.cutover.checks import MoveCheck, MoveChecks
from gateway.shadow.cutover.moves import Move, QueueEnds
from gateway.shadow.cutover.retry_topics import retry_topics
from gateway.shadow.traffic.exchange import Side
from remoting.bodies.locks import LockBatchRequestBody
from remoting.requests.locks import LockBatchMq
from remoting.requests.offsets import InvokeBrokerToResetOffset, UpdateConsumerOffset


class GroupTransfer:
    """Copies what belongs to a group to the side that it does not consume from yet. Repeating it does no harm."""

    def __init__(self, checks: MoveChecks) -> None:
        self._checks = checks
        self._clusters = checks.clusters

    async def transfer_group(self, move: Move, group: str) -> list[MoveCheck]:
        """Copy settings, offsets and locks of a group; return one check for each. Raises CLUSTER_ERRORS, KeyError."""
        goal = Side.TARGET if move.consumer_side(group) is Side.PRIMARY else Side.PRIMARY
        checks = []
        for broker in await self._clusters.brokers_of(move.topic):
            if goal is Side.TARGET:
                checks.append(await self._copy_settings(broker, group, move.topic))
            checks.append(await self._copy_offsets(move, group, broker, goal))
            checks.append(await self._copy_locks(group, broker, goal))
        return checks

    async def _copy_settings(self, broker: str, group: str, topic: str) -> MoveCheck:
        clusters, target_broker = self._clusters, self._clusters.counterpart(broker)
        steps = await plan_groups(clusters.primary, clusters.target, broker, target_broker, [group])
        await apply_steps(clusters.target, steps)
        for name in retry_topics(group, topic):
            if await clusters.queue_ranges(Side.PRIMARY, broker, name):
                names = broker, target_broker, name
                steps.append(await copy_topic(clusters.primary, clusters.target, *names))
        return _settings_check("settings", f"{len(steps)} of {broker}", steps)

    # -- offsets ---------------------------------------------------------------------------------------------------

    async def _copy_offsets(self, move: Move, group: str, broker: str, goal: Side) -> MoveCheck:
        source = Side.PRIMARY if goal is Side.TARGET else Side.TARGET
        cluster, name = self._clusters.locate_broker(goal, broker)
        count = 0
        for topic in (move.topic, *retry_topics(group, move.topic)):
            source_ranges = await self._clusters.queue_ranges(source, broker, topic)
            goal_ranges = await self._clusters.queue_ranges(goal, broker, topic)
            for queue, goal_range in goal_ranges.items():
                offset = await self._clusters.consumer_offset(source, broker, group, topic, queue)
                ends = move.ends.get(queue_name(broker, queue)) if topic == move.topic else None
                next_offset = offset_after_switch(
                    goal, offset, source_ranges.get(queue, QueueRange(0, 0)), goal_range, ends
                )
                if next_offset is not None:
                    request = _offset_request(group, topic, queue, next_offset, moved=next_offset != offset)
                    await cluster.ask_broker(name, request)
                    count += 1
        return MoveCheck("offsets", True, f"{count} queues of {broker}")

    # -- locks -----------------------------------------------------------------------------------------------------

    async def _copy_locks(self, group: str, broker: str, goal: Side) -> MoveCheck:
        """Lock the queues at the other side for the clients that hold them, so that no other client gets them."""
        cluster, name = self._clusters.locate_broker(goal, broker)
        held = 0
        for client, queues in self._checks.traffic.held_locks(group, trio.current_time()).items():
            broker_queues = [queue for queue in queues if queue.broker_name in (broker, name)]
            if broker_queues:
                body = LockBatchRequestBody(consumer_group=group, client_id=client, mq_set=broker_queues)
                held += len((await cluster.ask_broker(name, LockBatchMq(data=body))).data.lock_okmq_set)
        return MoveCheck("locks", True, f"{held} queues of {broker}")


def offset_after_switch(
    goal: Side, offset: int | None, source_range: QueueRange, goal_range: QueueRange, ends: QueueEnds | None
) -> int | None:
    """Return the offset at which a group continues on the other side; None to leave the offset there as it is.

    ``offset`` is the group's offset on its present side. If it has reached the end that was recorded when producers
    switched, the group continues at that end on the other side. Otherwise it continues at the same offset, which is
    valid only where both sides use the same offsets; `MoveChecks` refuses it elsewhere. A queue without recorded ends
    (of a retry topic) has been consumed to its end.
    """
    if offset is None:
        # The client's own rule (CONSUME_FROM_…) says where a group without an offset starts. Where its side has no
        # message it has read everything, so it must not skip the first messages of the other side.
        return None if source_range.high > source_range.low else goal_range.low
    if ends is None:
        return goal_range.high
    source_end, goal_end = (ends.primary, ends.target) if goal is Side.TARGET else (ends.target, ends.primary)
    if offset >= source_end:
        return goal_end
    return min(offset, goal_end) if source_end == goal_end else None


def _offset_request(
    group: str, topic: str, queue_id: int, offset: int, *, moved: bool
) -> UpdateConsumerOffset | InvokeBrokerToResetOffset:
    """Return the request that sets an offset.

    Consumers continue at the offset in their memory unless the broker tells them that it was changed.
    """
    if moved:
        return InvokeBrokerToResetOffset(group=group, topic=topic, queue_id=queue_id, offset=offset)
    return UpdateConsumerOffset(consumer_group=group, topic=topic, queue_id=queue_id, commit_offset=offset)


def _settings_check(name: str, measured: str, steps: list[SyncStep]) -> MoveCheck:
    failed = [f"{step.kind} {step.name}: {step.detail}" for step in steps if step.action is SyncAction.FAILED]
    return MoveCheck(name, not failed, measured, "; ".join(failed))
