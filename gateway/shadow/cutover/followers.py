"""What goes along when a group changes sides: its settings, its offsets, its locks.

Not responsible for whether it may change sides (checks).
"""

import trio

from gateway.shadow.clusters.cluster_pair import Range, queue_name
from gateway.shadow.clusters.copy_steps import Action, Step, apply
from gateway.shadow.clusters.metadata_sync import copy_topic, plan_groups
from gateway.shadow.cutover.checks import Check, Checks
from gateway.shadow.cutover.machine import Ends, Move
from gateway.shadow.cutover.retries import retry_topics
from gateway.shadow.traffic.exchange import Side
from remoting.bodies.locks import LockBatchRequestBody
from remoting.requests.locks import LockBatchMq
from remoting.requests.offsets import InvokeBrokerToResetOffset, UpdateConsumerOffset


class Followers:
    """Brings a group's belongings to the side it does not consume at yet. May be done again."""

    def __init__(self, checks: Checks) -> None:
        self._checks = checks
        self._sides = checks.sides

    async def bring(self, move: Move, group: str) -> list[Check]:
        """Everything a group needs at the other side. Raises ASKING_FAILED, KeyError."""
        goal = Side.TARGET if move.consumers(group) is Side.PRIMARY else Side.PRIMARY
        checks = []
        for broker in await self._sides.brokers_of(move.topic):
            if goal is Side.TARGET:
                checks.append(await self._settings(broker, group, move.topic))
            checks.append(await self._offsets(move, group, broker, goal))
            checks.append(await self._locks(group, broker, goal))
        return checks

    async def _settings(self, broker: str, group: str, topic: str) -> Check:
        sides, target_broker = self._sides, self._sides.counterpart(broker)
        steps = await plan_groups(sides.primary, sides.target, broker, target_broker, [group])
        await apply(sides.target, steps)
        for name in retry_topics(group, topic):
            if await sides.ranges(Side.PRIMARY, broker, name):
                names = broker, target_broker, name
                steps.append(await copy_topic(sides.primary, sides.target, *names))
        return _check("settings", f"{len(steps)} of {broker}", steps)

    # -- offsets ---------------------------------------------------------------------------------------------------

    async def _offsets(self, move: Move, group: str, broker: str, goal: Side) -> Check:
        source = Side.PRIMARY if goal is Side.TARGET else Side.TARGET
        cluster, name = self._sides.at(goal, broker)
        count = 0
        for topic in (move.topic, *retry_topics(group, move.topic)):
            here = await self._sides.ranges(source, broker, topic)
            there = await self._sides.ranges(goal, broker, topic)
            for queue, range_there in there.items():
                offset = await self._sides.consumer_offset(source, broker, group, topic, queue)
                ends = move.ends.get(queue_name(broker, queue)) if topic == move.topic else None
                wanted = goes_on_at(goal, offset, here.get(queue, Range(0, 0)), range_there, ends)
                if wanted is not None:
                    request = _set_offset(group, topic, queue, wanted, moved=wanted != offset)
                    await cluster.ask(name, request)
                    count += 1
        return Check("offsets", True, f"{count} queues of {broker}")

    # -- locks -----------------------------------------------------------------------------------------------------

    async def _locks(self, group: str, broker: str, goal: Side) -> Check:
        """Whoever holds a queue holds it at the other side as well, so that no one else gets it meanwhile."""
        cluster, name = self._sides.at(goal, broker)
        held = 0
        for client, queues in self._checks.traffic.locks(group, trio.current_time()).items():
            wanted = [queue for queue in queues if queue.broker_name in (broker, name)]
            if wanted:
                body = LockBatchRequestBody(consumer_group=group, client_id=client, mq_set=wanted)
                held += len((await cluster.ask(name, LockBatchMq(data=body))).data.lock_okmq_set)
        return Check("locks", True, f"{held} queues of {broker}")


def goes_on_at(goal: Side, offset: int | None, here: Range, there: Range, ends: Ends | None) -> int | None:
    """Where a group that was at ``offset`` goes on at the other side; None: where it is there by itself.

    Behind all that was common when the producers were switched: there where that ended. Before it: at the same offset,
    which only means something where queue offsets are the same; `Checks` refuses it elsewhere. A queue without such a
    mark (of a retry topic) has been consumed to its end.
    """
    if offset is None:
        return None if here.high > here.low else there.low
    if ends is None:
        return there.high
    here_end, there_end = (ends.primary, ends.target) if goal is Side.TARGET else (ends.target, ends.primary)
    if offset >= here_end:
        return there_end
    return min(offset, there_end) if here_end == there_end else None


def _set_offset(
    group: str, topic: str, queue_id: int, offset: int, *, moved: bool
) -> UpdateConsumerOffset | InvokeBrokerToResetOffset:
    """Consumers go on by what they remember, unless the broker tells them that the offset is another one."""
    if moved:
        return InvokeBrokerToResetOffset(group=group, topic=topic, queue_id=queue_id, offset=offset)
    return UpdateConsumerOffset(consumer_group=group, topic=topic, queue_id=queue_id, commit_offset=offset)


def _check(name: str, measured: str, steps: list[Step]) -> Check:
    failed = [f"{step.kind} {step.name}: {step.detail}" for step in steps if step.action is Action.FAILED]
    return Check(name, not failed, measured, "; ".join(failed))
